//! The limit of open files and sockets of the process.

use std::error::Error;
use std::io;

use rustix::io::Errno;

/// Whether an error, or one behind it, is that the process, or the system, has as many files and sockets open as it may.
#[must_use]
pub fn is_exhausted(error: &io::Error) -> bool {
    let mut cause: Option<&(dyn Error + 'static)> = Some(error);
    while let Some(error) = cause {
        let errno = error.downcast_ref().and_then(Errno::from_io_error);
        if matches!(errno, Some(Errno::MFILE | Errno::NFILE)) {
            return true;
        }
        cause = match error.downcast_ref::<io::Error>() {
            // The source of an error that wraps another is the source of the latter.
            Some(error) => error.get_ref().map(|inner| inner as &(dyn Error + 'static)),
            None => error.source(),
        };
    }
    false
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
