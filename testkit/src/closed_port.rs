//! Ports that refuse connections.

use std::{mem, net::SocketAddr};

use socket2::{Domain, Socket, Type};

/// An address of this machine that refuses connections. Its port stays bound until the test program ends, so that no
/// other program listens there meanwhile.
///
/// # Panics
/// When no port is free.
#[must_use]
pub fn closed_port() -> SocketAddr {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    let any = SocketAddr::from(([127, 0, 0, 1], 0));
    socket.bind(&any.into()).unwrap();
    let address = socket.local_addr().unwrap().as_socket().unwrap();
    mem::forget(socket);
    address
}
