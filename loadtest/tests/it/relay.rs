//! A link of known delay and rate in front of a server.

use std::{
    io::{BufRead, BufReader},
    process::{Child, Command, Stdio},
};

use crate::language::PROGRAM;

/// A relay as a process of its own; ends when dropped.
pub(crate) struct Relay {
    child: Child,
    /// The URL of what is behind it.
    pub(crate) url: String,
}

impl Relay {
    /// Starts one to `url` with these arguments.
    pub(crate) fn start(url: &str, arguments: &str) -> Self {
        let to = url.strip_prefix("http://").unwrap();
        let mut child = Command::new(PROGRAM)
            .args(["relay", "--to", to])
            .args(arguments.split_ascii_whitespace())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        let output = child.stdout.take().unwrap();
        BufReader::new(output).read_line(&mut line).unwrap();
        let address = line.trim().strip_prefix("listening on ").unwrap();
        let url = address.to_owned();
        Self { child, url }
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}
