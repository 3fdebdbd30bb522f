//! How many files and sockets the process may have open.

/// How many files and sockets the process may have open now; `None` where that cannot be known.
#[must_use]
pub fn limit() -> Option<u64> {
    rlimit::Resource::NOFILE.get_soft().ok()
}

/// Raises the soft limit of open files to the hard one: every connection takes one, and the soft limit
/// is often 1,024 for the sake of programs that use `select`. Logs what it came to.
pub fn raise_limit() {
    match rlimit::increase_nofile_limit(rlimit::INFINITY) {
        Ok(limit) => tracing::debug!(limit, "open files"),
        Err(error) => tracing::warn!(%error, "the limit of open files cannot be raised"),
    }
}
