//! `tunnel-server certs`: writes what [`crate::certs`] makes.

use std::fs;
use std::io::ErrorKind;

use super::Failure;
use super::atomic_file::{self, Existing};
use crate::certs::generate;
use crate::cli::CertsArgs;

/// Everybody may read a certificate.
const CERTIFICATE_MODE: u32 = 0o644;

/// Only the owner may read a key.
const KEY_MODE: u32 = 0o600;

pub(super) fn certs(args: &CertsArgs) -> Result<(), Failure> {
    let made = generate(&args.names, args.days).map_err(Failure::configuration)?;
    let files = [
        ("ca.pem", &made.ca_pem, CERTIFICATE_MODE),
        ("server.pem", &made.server_pem, CERTIFICATE_MODE),
        ("server.key", &made.server_key, KEY_MODE),
        ("client.pem", &made.client_pem, CERTIFICATE_MODE),
        ("client.key", &made.client_key, KEY_MODE),
    ];
    let out = &args.out;
    // Looked for before the first is written: files of two runs would not fit together.
    let present = files
        .iter()
        .map(|(name, ..)| out.join(name))
        .find(|path| path.symlink_metadata().is_ok());
    if let (Some(path), false) = (present, args.force) {
        return Err(Failure::Configuration(format!(
            "{} is there already: use --force to replace it",
            path.display()
        )));
    }
    fs::create_dir_all(out).map_err(|error| {
        Failure::running(format_args!(
            "cannot make the folder {}: {error}",
            out.display()
        ))
    })?;
    let existing = if args.force {
        Existing::Replace
    } else {
        Existing::Keep
    };
    for (name, text, mode) in files {
        let path = out.join(name);
        atomic_file::write(&path, text, mode, existing).map_err(|error| match error.kind() {
            ErrorKind::AlreadyExists => {
                Failure::running(format_args!("{} appeared meanwhile", path.display()))
            }
            _ => Failure::running(format_args!("cannot write {}: {error}", path.display())),
        })?;
    }
    // Told only when all are there: whoever listens may stop listening, which must not leave half of them.
    for (name, ..) in files {
        eprintln!("wrote {}", out.join(name).display());
    }
    Ok(())
}
