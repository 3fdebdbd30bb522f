//! Listening sockets that the process was started with, in the way of systemd: `LISTEN_FDS` says how many descriptors from
//! 3 on there are, `LISTEN_FDNAMES` how they are called.
//!
//! A socket that is bound to the address of a listener is taken over by it, so that no setting is needed. Connections that
//! nobody accepts wait in it, also while the program is started again.

use std::env;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::process::Command;

use listenfd::ListenFd;

/// The first descriptor that is inherited.
pub const FIRST_DESCRIPTOR: i32 = 3;

const NAMES: &str = "LISTEN_FDNAMES";

/// The sockets that no listener has taken yet.
#[derive(Debug, Default)]
pub struct Inherited {
    sockets: Vec<Socket>,
}

#[derive(Debug)]
struct Socket {
    name: String,
    address: SocketAddr,
    socket: TcpListener,
}

/// An inherited descriptor cannot be used.
#[derive(Debug, thiserror::Error)]
#[error(
    "cannot use the inherited socket {number} of LISTEN_FDS: {source}; only TCP sockets are taken over, \
     ListenStream=ADDRESS:PORT in a socket unit"
)]
pub struct InheritedError {
    number: usize,
    source: io::Error,
}

/// Inherited sockets belong to no listener.
#[derive(Debug, thiserror::Error)]
#[error(
    "no listener is configured at {0}, where systemd listens for this program: connections there would never be accepted; \
     give a listener that address (--…-listen), or correct ListenStream= in the socket unit"
)]
pub struct UnclaimedError(String);

impl Inherited {
    /// The sockets of this process. Finds them once.
    ///
    /// # Errors
    /// When there is something other than a TCP socket.
    pub fn from_environment() -> Result<Self, InheritedError> {
        let names = env::var(NAMES).unwrap_or_default();
        let mut names = names.split(':');
        let mut descriptors = ListenFd::from_env();
        let mut sockets = Vec::new();
        for number in 0..descriptors.len() {
            let failed = |source| InheritedError { number, source };
            let name = names.next().unwrap_or_default().to_owned();
            if let Some(socket) = descriptors.take_tcp_listener(number).map_err(failed)? {
                socket.set_nonblocking(true).map_err(failed)?;
                let address = socket.local_addr().map_err(failed)?;
                sockets.push(Socket {
                    name,
                    address,
                    socket,
                });
            }
        }
        Ok(Self { sockets })
    }

    /// The sockets of the listener with this name: those bound to its address; if that leaves the port open, those with its
    /// name at that IP address. None if there are none.
    pub fn take(&mut self, name: &str, address: SocketAddr) -> Vec<TcpListener> {
        let is_wanted = |socket: &mut Socket| match address.port() {
            0 => socket.name == name && socket.address.ip() == address.ip(),
            _ => socket.address == address,
        };
        let taken = self.sockets.extract_if(.., is_wanted);
        taken.map(|taken| taken.socket).collect()
    }

    /// All listeners have taken theirs.
    ///
    /// # Errors
    /// When a socket is left: connections to it would never be accepted.
    pub fn finish(self) -> Result<(), UnclaimedError> {
        let left: Vec<_> = (self.sockets.iter())
            .map(|socket| socket.address.to_string())
            .collect();
        match left.is_empty() {
            true => Ok(()),
            false => Err(UnclaimedError(left.join(", "))),
        }
    }
}

/// Says to a process that `command` starts that it inherits sockets with these names, from [`FIRST_DESCRIPTOR`] on.
pub fn announce<'a>(command: &mut Command, names: impl Iterator<Item = &'a str>) {
    let names: Vec<_> = names.collect();
    // The process id is not known before the start, and may be absent.
    command
        .env_remove("LISTEN_PID")
        .env("LISTEN_FDS", names.len().to_string())
        .env(NAMES, names.join(":"));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn inherited(name: &str) -> (Inherited, SocketAddr) {
        let socket = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = socket.local_addr().unwrap();
        let name = name.to_owned();
        let sockets = vec![Socket {
            name,
            address,
            socket,
        }];
        (Inherited { sockets }, address)
    }

    #[test]
    fn a_listener_takes_over_what_is_bound_to_its_address() {
        let (mut inherited, address) = inherited("any.socket");
        let other = SocketAddr::new("127.0.0.2".parse().unwrap(), address.port());
        assert!(inherited.take("public", other).is_empty());
        assert_eq!(inherited.take("public", address).len(), 1);
        assert!(inherited.take("public", address).is_empty());
        inherited.finish().unwrap();
    }

    #[test]
    fn a_socket_that_no_listener_takes_is_an_error() {
        let (inherited, address) = inherited("any.socket");
        let error = inherited.finish().unwrap_err().to_string();
        assert!(error.contains(&address.to_string()), "{error}");
    }

    #[test]
    fn a_listener_with_any_port_takes_over_what_has_its_name() {
        let (mut inherited, _) = inherited("public");
        let any = "127.0.0.1:0".parse().unwrap();
        assert!(inherited.take("tunnel", any).is_empty());
        assert_eq!(inherited.take("public", any).len(), 1);
    }
}
