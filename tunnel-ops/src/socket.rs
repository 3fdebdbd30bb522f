//! Options of TCP sockets that only some systems have, and what the others do instead.

use std::io;
use std::time::Duration;

use tokio::net::TcpStream;

/// What to do where an address cannot be listened on, to follow the error; empty where that is not known.
#[must_use]
pub fn listen_advice(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::AddrInUse => {
            "; another program listens there, such as an earlier run of this one: end it, or give another port"
        }
        io::ErrorKind::PermissionDenied => {
            "; ports below 1024 need root or CAP_NET_BIND_SERVICE: give that to the program, or take a higher port"
        }
        io::ErrorKind::AddrNotAvailable => {
            "; this machine has no such address: give one that it has, or 0.0.0.0 or [::] for all of them"
        }
        _ => "",
    }
}

/// Limits how long sent bytes may stay unacknowledged, or the peer's window closed, before the kernel ends the connection
/// with `ETIMEDOUT`; `None` is the system's own limit of many minutes. Only Linux has the option; on other systems the
/// call does nothing.
///
/// # Errors
/// When the kernel refuses it.
#[cfg(target_os = "linux")]
pub fn set_user_timeout(stream: &TcpStream, limit: Option<Duration>) -> io::Result<()> {
    socket2::SockRef::from(stream).set_tcp_user_timeout(limit)
}

/// Limits the bytes that the kernel holds before it sends them: the socket is not writable above it. Only Linux has the
/// option; on other systems the call does nothing.
///
/// # Errors
/// When the kernel refuses it.
#[cfg(target_os = "linux")]
pub fn set_unsent_limit(stream: &TcpStream, bytes: u32) -> io::Result<()> {
    socket2::SockRef::from(stream).set_tcp_notsent_lowat(bytes)
}

/// Does nothing, since the system has no such option.
///
/// # Errors
/// Never.
#[cfg(not(target_os = "linux"))]
pub fn set_user_timeout(_stream: &TcpStream, _limit: Option<Duration>) -> io::Result<()> {
    Ok(())
}

/// Does nothing, since the system has no such option.
///
/// # Errors
/// Never.
#[cfg(not(target_os = "linux"))]
pub fn set_unsent_limit(_stream: &TcpStream, _bytes: u32) -> io::Result<()> {
    Ok(())
}
