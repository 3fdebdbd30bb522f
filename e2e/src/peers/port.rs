//! Free ports for programs that cannot take one by themselves.
//!
//! One is sought, and tried again when somebody else was faster.

use std::net::{SocketAddr, TcpListener};

/// How often another port is tried.
const ATTEMPTS: usize = 20;

/// Starts a program on a free port of loopback. `start` gives nothing when the port was taken
/// meanwhile.
///
/// # Panics
/// When no port was free often enough.
pub(super) async fn on_free_port<T>(
    name: &str,
    mut start: impl AsyncFnMut(SocketAddr) -> Option<T>,
) -> T {
    for _ in 0..ATTEMPTS {
        if let Some(started) = start(free_address()).await {
            return started;
        }
    }
    panic!("{name} found no free port in {ATTEMPTS} attempts");
}

/// An address that is free now.
pub(super) fn free_address() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap()
}
