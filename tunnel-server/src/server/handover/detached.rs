//! The step between the two processes of a hand-over, after which what supervises the server is the parent of the new one.
//!
//! What a predecessor starts is its child, which systemd does not wait for: when it is told of the new main process it looks
//! once whether that is a child of its own. So this process starts the program once more, reports which process that is, and
//! ends. The parent of an orphan is what supervises, or process 1.

use std::{env, io, process::Command};

use super::{DETACH, Predecessor, WORDS, successor::Program};

/// Starts the program once more if the predecessor asks for it. Returns whether it does; then this process has nothing else
/// to do. It must have opened nothing so far, and taken over no socket.
///
/// # Errors
/// When the program cannot be started.
pub(crate) fn detach(predecessor: &Predecessor) -> io::Result<bool> {
    if !predecessor.knows(DETACH) {
        return Ok(false);
    }
    let Program { path, arguments } = Program::this();
    let mut command = Command::new(path);
    command.args(arguments);
    // Standard input and sockets are inherited. Only this step is done.
    let words = env::var(WORDS).unwrap_or_default();
    command.env(WORDS, words.replace(DETACH, ""));
    #[allow(
        clippy::zombie_processes,
        reason = "this process ends, and waits for nothing"
    )]
    let process = command.spawn()?.id();
    predecessor.report_started(process);
    Ok(true)
}
