//! Which build of a program this is: the commit that it was made from, and the target.
//!
//! `main.rs` of each program knows the commit, and records it here for `--version`, the log and the metrics. It is the
//! variable `TUNNEL_COMMIT` of the build, or else what git says of the checkout.

use std::sync::OnceLock;

static COMMIT: OnceLock<&'static str> = OnceLock::new();

/// Records the commit. Only the first call counts.
pub fn set_commit(commit: &'static str) {
    let _ = COMMIT.set(commit);
}

/// The commit, short, with `-dirty` if the checkout differed from it; `unknown` if the build had neither git nor
/// `TUNNEL_COMMIT`.
pub fn commit() -> &'static str {
    COMMIT.get().copied().unwrap_or("unknown")
}

/// What `--version` prints after the program's name, such as `0.1.0 (8f4743b, x86_64-unknown-linux-gnu, wire 1)`. `wire`
/// is the version of the protocol between server and client. There is no date, so that a commit always gives the same bytes.
pub fn long_version(version: &str, wire: &str) -> String {
    format!("{version} ({}, {}, wire {wire})", commit(), env!("TARGET"))
}
