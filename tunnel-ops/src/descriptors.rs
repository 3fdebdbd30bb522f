//! The limit of open files and sockets of the process.

use std::io;

use rustix::io::Errno;

/// Whether an error is that the process, or the system, has as many files and sockets open as it may.
#[must_use]
pub fn is_exhausted(error: &io::Error) -> bool {
    matches!(
        Errno::from_io_error(error),
        Some(Errno::MFILE | Errno::NFILE)
    )
}

/// The current soft limit; `None` if it cannot be determined.
#[must_use]
pub fn limit() -> Option<u64> {
    rlimit::Resource::NOFILE.get_soft().ok()
}

/// Raises the soft limit of open files to the hard limit, and logs the result. Every connection takes a
/// descriptor, and the soft limit is often only 1,024, for programs that use `select`.
pub fn raise_limit() {
    match rlimit::increase_nofile_limit(rlimit::INFINITY) {
        Ok(limit) => tracing::debug!(limit, "open files"),
        Err(error) => tracing::warn!(%error, "the limit of open files cannot be raised"),
    }
}
