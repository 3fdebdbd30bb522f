//! The operator's program that sets and removes records in DNS.

use std::{
    io,
    path::{Path, PathBuf},
    process::{ExitStatus, Stdio},
    time::Duration,
};

use tokio::{
    io::{AsyncRead, AsyncReadExt},
    process::Command,
    sync::oneshot,
    time::{sleep, timeout},
};

/// Time for one call: programs often wait themselves until the name servers of a provider have a record.
const TIME: Duration = Duration::from_secs(5 * 60);

/// Time for the rest of the output after the program's end: a process that it leaves behind may keep its output open.
const LAST_OUTPUT: Duration = Duration::from_secs(1);

/// Most bytes of each output that are kept; the rest is read and dropped.
const OUTPUT_BYTES: u64 = 4 * 1024;

/// What the program has to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Action {
    /// Set the record.
    Present,
    /// Remove it.
    Cleanup,
}

/// Why a call failed.
#[derive(Debug, thiserror::Error)]
pub(super) enum HookError {
    #[error("--acme-dns-hook: {}: cannot be executed: {source}", .program.display())]
    Start { program: PathBuf, source: io::Error },
    #[error("--acme-dns-hook: {} {action} failed ({status}): {output}", .program.display())]
    Failed {
        program: PathBuf,
        action: &'static str,
        status: ExitStatus,
        output: String,
    },
    #[error("--acme-dns-hook: {} {action} did not end in {TIME:?} and was killed", .program.display())]
    TimedOut {
        program: PathBuf,
        action: &'static str,
    },
}

impl Action {
    fn name(self) -> &'static str {
        match self {
            Self::Present => "present",
            Self::Cleanup => "cleanup",
        }
    }
}

/// Calls the program for a TXT record with this name and value, and waits for its end. It is killed when the future is
/// dropped.
///
/// # Errors
/// When it fails or takes too long.
pub(super) async fn call(
    program: &Path,
    action: Action,
    name: &str,
    value: &str,
) -> Result<(), HookError> {
    let started = Command::new(program)
        .args([action.name(), name, value])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn();
    let owned = || program.to_owned();
    let failed = |source| HookError::Start {
        program: owned(),
        source,
    };
    let mut child = started.map_err(failed)?;
    let (out, err) = (child.stdout.take(), child.stderr.take());
    let (mut first_out, mut first_err) = (Vec::new(), Vec::new());
    let (running, exited) = oneshot::channel::<()>();
    let exit = async {
        let status = child.wait().await;
        drop(running);
        status
    };
    let late = async {
        let _ = exited.await;
        sleep(LAST_OUTPUT).await;
    };
    let output = async {
        let both = async {
            tokio::join!(
                beginning(out, &mut first_out),
                beginning(err, &mut first_err)
            )
        };
        tokio::select! {
            _ = both => {}
            () = late => {}
        }
    };
    // Together: a program that writes more than a pipe holds ends only when it is read.
    let ended = async { tokio::join!(exit, output).0 };
    let action = action.name();
    let Ok(status) = timeout(TIME, ended).await else {
        return Err(HookError::TimedOut {
            program: owned(),
            action,
        });
    };
    let status = status.map_err(failed)?;
    match status.success() {
        true => Ok(()),
        false => Err(HookError::Failed {
            program: owned(),
            action,
            status,
            output: shown(&[first_out, first_err].concat()),
        }),
    }
}

/// Reads an output to its end, and its first bytes into `kept`.
async fn beginning(output: Option<impl AsyncRead + Unpin>, kept: &mut Vec<u8>) {
    if let Some(mut output) = output {
        // What was read before an error is shown.
        let _ = (&mut output).take(OUTPUT_BYTES).read_to_end(kept).await;
        let _ = tokio::io::copy(&mut output, &mut tokio::io::sink()).await;
    }
}

/// An output as one line of the log.
fn shown(output: &[u8]) -> String {
    let text = String::from_utf8_lossy(output);
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
    let text = lines.collect::<Vec<_>>().join("; ");
    match text.is_empty() {
        true => "it wrote nothing".to_owned(),
        false => text.replace(char::is_control, "\u{fffd}"),
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::PermissionsExt};

    use tempfile::TempDir;

    use super::*;

    /// A program of these lines of shell.
    fn program(folder: &TempDir, lines: &str) -> PathBuf {
        let path = folder.path().join("hook");
        fs::write(&path, format!("#!/bin/sh\n{lines}\n")).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        path
    }

    #[tokio::test]
    async fn a_program_gets_the_action_the_name_and_the_value() {
        let folder = tempfile::tempdir().unwrap();
        let path = program(
            &folder,
            r#"printf '%s\n' "$@" > "$(dirname "$0")/arguments""#,
        );
        call(&path, Action::Present, "_acme-challenge.t.example", "x_y-z")
            .await
            .unwrap();
        let arguments = fs::read_to_string(folder.path().join("arguments")).unwrap();
        assert_eq!(arguments, "present\n_acme-challenge.t.example\nx_y-z\n");
        call(&path, Action::Cleanup, "n", "v").await.unwrap();
        let arguments = fs::read_to_string(folder.path().join("arguments")).unwrap();
        assert_eq!(arguments, "cleanup\nn\nv\n");
    }

    #[tokio::test]
    async fn a_failure_shows_what_the_program_wrote() {
        let folder = tempfile::tempdir().unwrap();
        let lines = "echo one; printf '\\033[1mtwo\\n' >&2; exit 3";
        let path = program(&folder, lines);
        let error = call(&path, Action::Present, "n", "v").await.unwrap_err();
        let text = error.to_string();
        assert!(
            text.contains("hook present failed (exit status: 3): one; \u{fffd}[1mtwo"),
            "{text}"
        );
    }

    #[tokio::test]
    async fn a_program_that_writes_much_is_read_to_its_end() {
        let folder = tempfile::tempdir().unwrap();
        let path = program(&folder, "yes | head -c 1000000; exit 1");
        let error = call(&path, Action::Cleanup, "n", "v").await.unwrap_err();
        assert!(error.to_string().len() < 20_000);
    }

    /// As a daemon does that a shell starts in the background.
    #[tokio::test]
    async fn a_process_that_is_left_behind_is_not_waited_for() {
        let folder = tempfile::tempdir().unwrap();
        let path = program(&folder, "echo one; sleep 60 & echo $! >&2; exit 3");
        let error = call(&path, Action::Present, "n", "v").await.unwrap_err();
        let HookError::Failed { output, .. } = error else {
            panic!("{error}");
        };
        let (first, process) = output.split_once("; ").unwrap();
        assert_eq!(first, "one");
        // It is there still.
        let killed = std::process::Command::new("kill").arg(process).status();
        assert!(killed.unwrap().success());
    }

    #[tokio::test]
    async fn a_missing_program_is_named() {
        let missing = Path::new("/nowhere/hook");
        let error = call(missing, Action::Present, "n", "v").await.unwrap_err();
        assert!(
            error
                .to_string()
                .contains("/nowhere/hook: cannot be executed"),
            "{error}"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_program_that_does_not_end_is_killed() {
        let folder = tempfile::tempdir().unwrap();
        let path = program(&folder, "exec sleep 1000");
        let error = call(&path, Action::Present, "n", "v").await.unwrap_err();
        assert!(matches!(error, HookError::TimedOut { .. }), "{error}");
    }
}
