//! The program while it runs as it does in a container, and what it logs.

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, ChildStderr, Command, Stdio};

pub(crate) const PROGRAM: &str = env!("CARGO_BIN_EXE_tunnel-client");

/// The program while it runs, in a folder of its own.
pub(crate) struct Program {
    child: Child,
    log: BufReader<ChildStderr>,
    pub(crate) read: String,
}

impl Program {
    /// Starts it in a folder, with these variables and no others. The system ends it should it write as much as
    /// a byte into a file.
    pub(crate) fn start(command: &str, folder: &Path, variables: &[(&str, &str)]) -> Self {
        let mut child = Command::new("sh")
            .args(["-c", "ulimit -f 0 && exec \"$0\" \"$1\"", PROGRAM, command])
            .current_dir(folder)
            .env_clear()
            .envs(variables.iter().copied())
            .env("HOME", folder)
            .env("TMPDIR", folder)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let log = BufReader::new(child.stderr.take().unwrap());
        Self {
            child,
            log,
            read: String::new(),
        }
    }

    /// The next line of the log with this in it.
    pub(crate) fn line(&mut self, with: &str) -> String {
        loop {
            let mut line = String::new();
            assert_ne!(self.log.read_line(&mut line).unwrap(), 0, "{}", self.read);
            self.read.push_str(&line);
            if line.contains(with) {
                return line;
            }
        }
    }

    /// An address that it says it listens on.
    pub(crate) fn address(&mut self, listener: &str) -> SocketAddr {
        let line = self.line(&format!("listener=\"{listener}\""));
        let address = line.split("address=").nth(1).unwrap();
        address.split_whitespace().next().unwrap().parse().unwrap()
    }

    /// The files that it holds open so that it could write them.
    pub(crate) fn writable(&self) -> Vec<String> {
        let folder = format!("/proc/{}/fd", self.child.id());
        let files = fs::read_dir(&folder).unwrap().flatten();
        let writable = files.filter_map(|file| {
            let target = fs::read_link(file.path()).ok()?;
            let number = file.file_name().into_string().ok()?;
            let info = format!("/proc/{}/fdinfo/{number}", self.child.id());
            let info = fs::read_to_string(info).ok()?;
            let flags = info.lines().find_map(|line| line.strip_prefix("flags:"))?;
            let mode = u32::from_str_radix(flags.trim(), 8).unwrap() & 0o3;
            let is_file = target.starts_with("/") && !target.starts_with("/dev");
            (is_file && mode != 0).then(|| target.display().to_string())
        });
        writable.collect()
    }

    pub(crate) fn signal(&self, name: &str) {
        let pid = self.child.id().to_string();
        let sent = Command::new("kill").args(["-s", name, &pid]).status();
        assert!(sent.unwrap().success());
    }

    /// Asks it to stop, and waits for that. The exit code.
    pub(crate) fn stop(self) -> Option<i32> {
        self.stop_and_say().0
    }

    /// Asks it to stop, and waits for that. The exit code, and all that it has logged.
    pub(crate) fn stop_and_say(self) -> (Option<i32>, String) {
        self.signal("TERM");
        self.ended()
    }

    /// Waits for its end. The exit code, `None` if a signal ended it, and all that it has logged.
    pub(crate) fn ended(mut self) -> (Option<i32>, String) {
        self.log.read_to_string(&mut self.read).unwrap();
        (self.child.wait().unwrap().code(), self.read)
    }
}
