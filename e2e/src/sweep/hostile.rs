//! The hostile peers of a cell, as tasks: platform clients, and ends of tunnels.

use std::{
    net::{Ipv4Addr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use testkit::tunnel::wire::{Side, Wire};
use tokio::{
    net::{TcpSocket, TcpStream},
    time::sleep,
};

use super::{
    Callers, Deed, Protocol,
    line::Line,
    peer::{Peer, Reads},
    tunnel_end::TunnelEnd,
};
use crate::{entry::Entry, stranger::Stranger};

/// The addresses of hostile platform clients, each in a network of its own: one address gets no more than a share.
pub(super) const ADDRESSES: [Ipv4Addr; 3] = [
    Ipv4Addr::new(127, 1, 0, 1),
    Ipv4Addr::new(127, 2, 0, 1),
    Ipv4Addr::new(127, 3, 0, 1),
];

/// The receive buffer of those who read nothing: what they leave waits in the programs and not in the kernel.
const BUFFER: u32 = 4 * 1024;

/// Until somebody who was refused tries again.
const AGAIN: Duration = Duration::from_millis(300);

/// A connection of a hostile platform client, or one after the other.
pub(super) struct Caller {
    pub(super) callers: Callers,
    pub(super) number: usize,
    pub(super) target: SocketAddr,
    pub(super) authority: String,
    pub(super) path: &'static str,
    pub(super) protocol: Protocol,
    pub(super) line: Arc<Line>,
}

impl Caller {
    /// Connects and does what there is to do.
    pub(super) async fn run(self) {
        let Callers {
            deed,
            reads,
            window,
            is_repeated,
            ..
        } = &self.callers;
        loop {
            let Ok(socket) = self.connect(*reads).await else {
                sleep(AGAIN).await;
                continue;
            };
            let whither = (self.authority.as_str(), self.path);
            let line = Arc::clone(&self.line);
            let peer = Peer::client(socket, self.protocol, whither, (*reads, *window), line).await;
            deed(Arc::clone(&peer)).await;
            if !is_repeated {
                std::future::pending().await
            }
        }
    }

    async fn connect(&self, reads: Reads) -> std::io::Result<TcpStream> {
        let socket = TcpSocket::new_v4()?;
        if reads != Reads::All {
            socket.set_recv_buffer_size(BUFFER)?;
        }
        socket.bind((ADDRESSES[self.number % ADDRESSES.len()], 0).into())?;
        let socket = socket.connect(self.target).await?;
        socket.set_nodelay(true)?;
        Ok(socket)
    }
}

/// A hostile tunnel client, and the next one when its session has ended.
pub(super) async fn dial(entry: Entry, login: String, line: Arc<Line>, deed: Deed<TunnelEnd>) {
    loop {
        if let Ok((_, connection)) = Stranger::dial_raw(&entry, &login).await {
            let (stream, rest) = connection.into_parts();
            let wire = Wire::new(stream, &rest, Side::Client);
            deed(TunnelEnd::client(wire, Arc::clone(&line)).await).await;
        }
        sleep(AGAIN).await;
    }
}

/// Dials with a wrong token, again and again.
pub(super) async fn dial_wrongly(entry: Entry, login: String) {
    loop {
        drop(Stranger::dial_raw(&entry, &login).await);
    }
}
