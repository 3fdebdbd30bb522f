//! `tunnel-server token create`: a token's hash into the runtimes file, the token itself to
//! standard output.

use std::fs::{self, File};
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};

use tunnel_ops::config_file::TomlFile;

use super::Failure;
use super::atomic_file::{self, Existing};
use crate::cli::TokenCreateArgs;
use crate::runtimes::Runtimes;
use crate::runtimes::edit::{Addition, add_token};
use crate::token::Token;

/// Hashes are no secrets, but who has which token is nobody else's business.
const FILE_MODE: u32 = 0o600;

pub(super) fn create(args: &TokenCreateArgs) -> Result<(), Failure> {
    let path = real_path(&args.runtimes)?;
    let _lock = lock_folder_of(&path)?;
    let before = read(&path)?;
    // A file that is not good is left alone, and its faults are told with the lines as they are.
    Runtimes::parse(&before, &args.domain).map_err(Failure::configuration)?;
    let token = Token::generate()
        .map_err(|error| Failure::running(format_args!("no randomness to be had: {error}")))?;
    let addition = Addition {
        account: &args.account,
        runtime: &args.runtime,
        hosts: &args.hosts,
        token: &token,
        note: args.note.as_deref(),
    };
    let text = add_token(before.text(), &addition)
        .map_err(|error| Failure::configuration(format_args!("{}: {error}", path.display())))?;
    let after = TomlFile::from_text(&path, text);
    Runtimes::parse(&after, &args.domain).map_err(|error| {
        Failure::configuration(format_args!(
            "nothing was changed, since this would be:\n{error}"
        ))
    })?;
    atomic_file::write(&path, after.text(), FILE_MODE, Existing::Update).map_err(|error| {
        Failure::running(format_args!("cannot write {}: {error}", path.display()))
    })?;
    // The hash is in the file before the token is out: a token that nobody got harms less than one
    // that does not work.
    print(&token)?;
    let (account, runtime) = (&args.account, &args.runtime);
    eprintln!(
        "added token {} for account {account}, runtime {runtime} to {}",
        token.id(),
        path.display()
    );
    Ok(())
}

fn print(token: &Token) -> Result<(), Failure> {
    let mut output = io::stdout().lock();
    writeln!(output, "{}", token.expose())
        .and_then(|()| output.flush())
        .map_err(|error| {
            let id = token.id();
            Failure::running(format_args!(
                "the token cannot be printed: {error}; remove {id} from the file, and try again"
            ))
        })
}

/// Where a symbolic link leads, so that the file behind it is replaced and not the link.
fn real_path(path: &Path) -> Result<PathBuf, Failure> {
    match fs::canonicalize(path) {
        Ok(path) => Ok(path),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(path.to_owned()),
        Err(error) => Err(Failure::configuration(format_args!(
            "{}: {error}",
            path.display()
        ))),
    }
}

/// Lets one change at a time happen, as long as the result is held: the file itself is replaced, so
/// it cannot be locked.
fn lock_folder_of(path: &Path) -> Result<File, Failure> {
    let folder = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    let lock = File::open(folder).and_then(|folder| folder.lock().map(|()| folder));
    lock.map_err(|error| {
        Failure::configuration(format_args!(
            "cannot use the folder {}: {error}",
            folder.display()
        ))
    })
}

fn read(path: &Path) -> Result<TomlFile, Failure> {
    match path.try_exists() {
        Ok(false) => Ok(TomlFile::from_text(path, "")),
        _ => TomlFile::read(path).map_err(Failure::configuration),
    }
}
