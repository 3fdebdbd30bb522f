//! `tunnel-server certs`: writes the files that [`crate::certs`] makes, beside existing ones.

use std::fs;
use std::io::ErrorKind;
use std::path::Path;

use super::Failure;
use crate::atomic_file::{self, Existing};
use crate::certs::{Certificates, NodeAuthority, Present, complete, unnamed};
use crate::cli::CertsArgs;

/// All users may read a certificate.
const CERTIFICATE_MODE: u32 = 0o644;

/// Only the owner may read a key.
const KEY_MODE: u32 = 0o600;

pub(super) fn certs(args: &CertsArgs) -> Result<(), Failure> {
    if !args.names.is_empty() {
        of_listeners(args)?;
    }
    if !args.peers.is_empty() {
        of_nodes(args)?;
    }
    Ok(())
}

/// Writes the certificates of server nodes, and their CA if there is none.
fn of_nodes(args: &CertsArgs) -> Result<(), Failure> {
    let (out, days) = (&args.out, args.days);
    make_folder(out)?;
    let present = match args.force {
        true => (None, None),
        false => (read(out, "peer-ca.pem")?, read(out, "peer-ca.key")?),
    };
    let authority = match &present {
        (Some(pem), Some(key)) => NodeAuthority::load(pem, key, days),
        (None, None) => NodeAuthority::generate(days),
        _ => {
            let problem = "of peer-ca.pem and peer-ca.key only one exists: put the other back, or replace all with --force";
            return Err(Failure::configuration(problem));
        }
    };
    let authority = authority.map_err(Failure::configuration)?;
    let is_present = present.0.is_some();
    write_or_keep(
        args,
        "peer-ca.pem",
        is_present,
        &authority.pem,
        CERTIFICATE_MODE,
    )?;
    write_or_keep(args, "peer-ca.key", is_present, &authority.key, KEY_MODE)?;
    for node in &args.peers {
        let (cert, key) = (format!("peer-{node}.pem"), format!("peer-{node}.key"));
        let is_present = !args.force && (out.join(&cert).exists() || out.join(&key).exists());
        let (pem, text) = authority
            .issue(node, days)
            .map_err(Failure::configuration)?;
        write_or_keep(args, &cert, is_present, &pem, CERTIFICATE_MODE)?;
        write_or_keep(args, &key, is_present, &text, KEY_MODE)?;
    }
    Ok(())
}

fn write_or_keep(
    args: &CertsArgs,
    name: &str,
    is_kept: bool,
    text: &str,
    mode: u32,
) -> Result<(), Failure> {
    let path = args.out.join(name);
    if is_kept {
        tunnel_ops::print_note!("kept {}", path.display());
        return Ok(());
    }
    let existing = match args.force {
        true => Existing::Replace,
        false => Existing::Keep,
    };
    write(&path, text, mode, existing)?;
    tunnel_ops::print_note!("wrote {}", path.display());
    Ok(())
}

fn make_folder(out: &Path) -> Result<(), Failure> {
    fs::create_dir_all(out).map_err(|error| {
        let folder = out.display();
        Failure::running(format_args!("cannot make the folder {folder}: {error}"))
    })
}

/// Writes the certificates of the tunnel listener and of a tunnel client.
fn of_listeners(args: &CertsArgs) -> Result<(), Failure> {
    let out = &args.out;
    let present = match args.force {
        true => Present::default(),
        false => read_present(out)?,
    };
    let made = complete(&present, &args.names, args.days).map_err(Failure::configuration)?;
    make_folder(out)?;
    let existing = match args.force {
        true => Existing::Replace,
        false => Existing::Keep,
    };
    let files = files(&present, &made);
    for (name, is_kept, text, mode) in files {
        if let (Some(text), false) = (text, is_kept) {
            write(&out.join(name), text, mode, existing)?;
        }
    }
    // Printed after all files are written: a closed pipe must not leave only half of them.
    for (name, is_kept, text, _) in files {
        let path = out.join(name);
        match (text, is_kept) {
            (Some(_), false) => tunnel_ops::print_note!("wrote {}", path.display()),
            (Some(_), true) => tunnel_ops::print_note!("kept {}", path.display()),
            (None, _) => {}
        }
    }
    warn_unnamed(out, &present, &args.names);
    Ok(())
}

/// A file: its name, whether it existed, its content, and its mode.
type ToWrite<'a> = (&'static str, bool, Option<&'a str>, u32);

fn files<'a>(present: &Present, made: &'a Certificates) -> [ToWrite<'a>; 6] {
    let is = Option::is_some;
    let (certificate, key) = (CERTIFICATE_MODE, KEY_MODE);
    let texts = [
        &made.server_pem,
        &made.server_key,
        &made.client_pem,
        &made.client_key,
    ];
    let [server_pem, server_key, client_pem, client_key] = texts.map(|text| Some(text.as_str()));
    [
        (
            "ca.pem",
            is(&present.ca_pem),
            Some(&made.ca_pem),
            certificate,
        ),
        ("ca.key", is(&present.ca_key), made.ca_key.as_deref(), key),
        (
            "server.pem",
            is(&present.server_pem),
            server_pem,
            certificate,
        ),
        ("server.key", is(&present.server_key), server_key, key),
        (
            "client.pem",
            is(&present.client_pem),
            client_pem,
            certificate,
        ),
        ("client.key", is(&present.client_key), client_key, key),
    ]
}

fn read(out: &Path, name: &str) -> Result<Option<String>, Failure> {
    let path = out.join(name);
    match fs::read_to_string(&path) {
        Ok(text) => Ok(Some(text)),
        // A dangling link exists, too.
        Err(error) if error.kind() == ErrorKind::NotFound && !path.is_symlink() => Ok(None),
        Err(error) => Err(Failure::configuration(format_args!(
            "{} exists and cannot be read: {error}",
            path.display()
        ))),
    }
}

fn read_present(out: &Path) -> Result<Present, Failure> {
    let read = |name: &str| read(out, name);
    Ok(Present {
        ca_pem: read("ca.pem")?,
        ca_key: read("ca.key")?,
        server_pem: read("server.pem")?,
        server_key: read("server.key")?,
        client_pem: read("client.pem")?,
        client_key: read("client.key")?,
    })
}

fn write(path: &Path, text: &str, mode: u32, existing: Existing) -> Result<(), Failure> {
    atomic_file::write(path, text, mode, existing).map_err(|error| match error.kind() {
        ErrorKind::AlreadyExists => Failure::running(format_args!(
            "{} was created by another program meanwhile",
            path.display()
        )),
        _ => Failure::running(format_args!("cannot write {}: {error}", path.display())),
    })
}

/// Warns if a kept server certificate does not cover all names.
fn warn_unnamed(out: &Path, present: &Present, names: &[String]) {
    let Some(pem) = &present.server_pem else {
        return;
    };
    let unnamed = unnamed(pem, names);
    if !unnamed.is_empty() {
        tunnel_ops::print_note!(
            "warning: {}, which was kept, is not for {}: remove it and run this again for a new certificate of its key",
            out.join("server.pem").display(),
            unnamed.join(", ")
        );
    }
}
