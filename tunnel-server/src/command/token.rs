//! `tunnel-server token`: adds a token's hash to the runtimes file and prints the token; marks tokens there as revoked;
//! lists them.
//!
//! The file is replaced as a whole, one change at a time, and only by a valid one.

use std::fs::{self, File};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use serde::Serialize;
use tunnel_directory::RuntimeLabel;
use tunnel_ops::config_file::TomlFile;
use tunnel_ops::terminal;

use super::Failure;
use crate::atomic_file::{self, Existing};
use crate::cli::{TokenCreateArgs, TokenListArgs, TokenRevokeArgs};
use crate::runtimes::edit::{EditError, TokenAddition, TokenRevocation, add_token, revoke_tokens};
use crate::runtimes::{HostName, ListedToken, Moment, RuntimeEntry, Runtimes};
use crate::token::Token;

/// Hashes are not secret, but the names of the tokens' owners are private.
const FILE_MODE: u32 = 0o600;

pub(super) fn create(args: &TokenCreateArgs) -> Result<(), Failure> {
    let token = Token::generate()
        .map_err(|error| Failure::running(format_args!("cannot generate random bytes: {error}")))?;
    let addition = TokenAddition {
        account: &args.account,
        runtime: &args.runtime,
        hosts: &args.hosts,
        token: &token,
        created: Some(SystemTime::now().into()),
        expires: args.expires,
        note: args.note.as_deref(),
    };
    let (path, ()) = change(&args.runtimes, &args.domain, |text| {
        Ok((add_token(text, &addition)?, ()))
    })?;
    // The hash is written before the token is printed: a listed token that was never printed does less harm than one
    // that was printed and does not work.
    print(&token)?;
    let (account, runtime) = (&args.account, &args.runtime);
    tunnel_ops::print_note!(
        "added token {} for account {account}, runtime {runtime} to {}",
        token.id(),
        path.display()
    );
    if let Ok(label) = RuntimeLabel::new(account, runtime)
        && let Ok(own) = HostName::of_runtime(&label, &args.domain)
    {
        let hosts = std::iter::once(&own)
            .chain(&args.hosts)
            .map(HostName::as_str);
        let hosts = hosts.collect::<Vec<_>>().join(", ");
        tunnel_ops::print_note!("reached at {hosts}, once its client is connected");
    }
    Ok(())
}

pub(super) fn revoke(args: &TokenRevokeArgs) -> Result<(), Failure> {
    let revocation = TokenRevocation {
        account: &args.account,
        runtime: &args.runtime,
        id: args.id,
    };
    let (path, revoked) = change(&args.runtimes, &args.domain, |text| {
        revoke_tokens(text, &revocation)
    })?;
    let owner = format!("of account {}, runtime {}", args.account, args.runtime);
    for id in revoked.now {
        tunnel_ops::print_note!("revoked token {id} {owner} in {}", path.display());
    }
    for id in revoked.before {
        tunnel_ops::print_note!("token {id} {owner} was revoked before");
    }
    Ok(())
}

pub(super) fn list(args: &TokenListArgs) -> Result<(), Failure> {
    let file = TomlFile::read(&args.runtimes).map_err(Failure::configuration)?;
    let runtimes = Runtimes::parse(&file, &args.domain).map_err(Failure::configuration)?;
    let now = SystemTime::now();
    let rows: Vec<Row<'_>> = runtimes
        .tokens()
        .filter(|(runtime, _)| {
            args.account
                .as_ref()
                .is_none_or(|it| *it == runtime.account)
                && args.runtime.as_ref().is_none_or(|it| *it == runtime.name)
        })
        .map(|(runtime, token)| Row::new(runtime, token, now))
        .collect();
    let text = match args.json {
        // Serialising strings cannot fail.
        true => serde_json::to_string_pretty(&rows).unwrap_or_default() + "\n",
        false => table(&rows),
    };
    super::print(&text).map(drop)
}

/// One token of the list.
#[derive(Serialize)]
struct Row<'a> {
    id: &'a str,
    account: &'a str,
    runtime: &'a str,
    /// `good`, `expired` or `revoked`.
    state: &'static str,
    created: Option<String>,
    expires: Option<String>,
    note: Option<&'a str>,
}

impl<'a> Row<'a> {
    fn new(runtime: &'a RuntimeEntry, token: &'a ListedToken, now: SystemTime) -> Self {
        let shown = |time: Option<SystemTime>| time.map(|time| Moment::from(time).to_string());
        Self {
            id: token.id.as_str(),
            account: runtime.account.as_str(),
            runtime: runtime.name.as_str(),
            state: match token.expires {
                _ if token.revoked => "revoked",
                Some(end) if end <= now => "expired",
                _ => "good",
            },
            created: shown(token.created),
            expires: shown(token.expires),
            note: token.note.as_deref(),
        }
    }

    fn cells(&self) -> [String; 7] {
        let moment = |time: &Option<String>| time.clone().unwrap_or_else(|| "-".into());
        // A note may contain any characters, which the terminal must show as text.
        let note = self.note.unwrap_or("-").escape_debug().to_string();
        [
            self.id.into(),
            self.account.into(),
            self.runtime.into(),
            self.state.into(),
            moment(&self.created),
            moment(&self.expires),
            note.replace("\\\'", "'").replace("\\\"", "\""),
        ]
    }
}

fn table(rows: &[Row<'_>]) -> String {
    let head = [
        "ID", "ACCOUNT", "RUNTIME", "STATE", "CREATED", "EXPIRES", "NOTE",
    ];
    let mut lines = vec![head.map(str::to_owned)];
    lines.extend(rows.iter().map(Row::cells));
    let mut widths = [0; 7];
    for line in &lines {
        for (width, cell) in widths.iter_mut().zip(line) {
            *width = cell.chars().count().max(*width);
        }
    }
    let mut text = String::new();
    for line in &lines {
        let cells: Vec<String> = line
            .iter()
            .zip(widths)
            .map(|(cell, width)| format!("{cell:width$}"))
            .collect();
        text.push_str(cells.join("  ").trim_end());
        text.push('\n');
    }
    text
}

/// Replaces the file's text by the result of `edit`, if both are valid. Returns the real path of the file, and the second
/// result of `edit`.
fn change<T>(
    path: &Path,
    domain: &HostName,
    edit: impl FnOnce(&str) -> Result<(String, T), EditError>,
) -> Result<(PathBuf, T), Failure> {
    let path = real_path(path)?;
    let _lock = lock_folder_of(&path)?;
    let before = read(&path)?;
    // An invalid file is not changed, so that its faults are reported with their lines as they are.
    Runtimes::parse(&before, domain).map_err(Failure::configuration)?;
    let (text, result) = edit(before.text())
        .map_err(|error| Failure::configuration(format_args!("{}: {error}", path.display())))?;
    if text == before.text() {
        return Ok((path, result));
    }
    let after = TomlFile::from_text(&path, text);
    Runtimes::parse(&after, domain).map_err(|error| {
        Failure::configuration(format_args!(
            "nothing was changed, because the result would be invalid:\n{error}"
        ))
    })?;
    atomic_file::write(&path, after.text(), FILE_MODE, Existing::Update).map_err(|error| {
        Failure::running(format_args!("cannot write {}: {error}", path.display()))
    })?;
    Ok((path, result))
}

fn print(token: &Token) -> Result<(), Failure> {
    let printed = terminal::print(&format!("{}\n", token.expose()));
    let why = match printed {
        Ok(true) => return Ok(()),
        Ok(false) => "nobody reads it".to_owned(),
        Err(error) => error.to_string(),
    };
    let id = token.id();
    Err(Failure::running(format_args!(
        "the token cannot be printed: {why}; remove {id} from the file, and try again"
    )))
}

/// Resolves symbolic links, so that the file is replaced and not the link.
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

/// Locks the file's folder until the result is dropped, so that changes do not overlap. The file itself cannot be
/// locked, because it is replaced.
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
