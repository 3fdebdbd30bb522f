//! A link of known delay and rate in front of a server.

use crate::language::Process;

/// A relay as a process of its own; ends when dropped.
pub(crate) struct Relay {
    _process: Process,
    /// The URL of what is behind it.
    pub(crate) url: String,
}

impl Relay {
    /// Starts one to `url` with these arguments.
    pub(crate) fn start(url: &str, arguments: &str) -> Self {
        let to = url.strip_prefix("http://").unwrap();
        let arguments = arguments.split_ascii_whitespace();
        let mut process = Process::start(["relay", "--to", to].into_iter().chain(arguments));
        let url = process.url();
        Self {
            _process: process,
            url,
        }
    }
}
