//! A load balancer in front of the nodes: each connection goes to the next node that accepts it.

use std::{io, net::SocketAddr, sync::Arc};

use tokio::{
    io::copy_bidirectional,
    net::{TcpListener, TcpStream},
    sync::watch,
    task::JoinSet,
};
use tunnel_ops::task::Owned;

/// Connections that are carried at once; more wait.
const CONNECTIONS: usize = 1_000;

/// A running load balancer, which ends when it is dropped.
pub(crate) struct Balancer {
    address: SocketAddr,
    targets: Arc<watch::Sender<Vec<SocketAddr>>>,
    _accepting: Owned<()>,
}

impl Balancer {
    /// Listens; nothing is carried before there are targets.
    ///
    /// # Errors
    /// When the address cannot be bound.
    pub(crate) async fn bind(address: SocketAddr) -> io::Result<Self> {
        let listener = TcpListener::bind(address).await?;
        let address = listener.local_addr()?;
        let targets = Arc::new(watch::Sender::new(Vec::new()));
        let accepting = accept(listener, targets.clone());
        Ok(Self {
            address,
            targets,
            _accepting: Owned::spawn("balancer", accepting),
        })
    }

    /// Where it listens.
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Sends later connections to these nodes.
    pub(crate) fn lead_to(&self, targets: Vec<SocketAddr>) {
        self.targets.send_replace(targets);
    }
}

async fn accept(listener: TcpListener, targets: Arc<watch::Sender<Vec<SocketAddr>>>) {
    let mut connections = JoinSet::new();
    for turn in 0.. {
        while connections.len() >= CONNECTIONS {
            connections.join_next().await;
        }
        while connections.try_join_next().is_some() {}
        // What fails is that connection alone.
        if let Ok((socket, _)) = listener.accept().await {
            let mut targets = targets.borrow().clone();
            let count = targets.len().max(1);
            targets.rotate_left(turn % count);
            connections.spawn(carry(socket, targets));
        }
    }
}

/// Carries a connection to the first of these nodes that accepts it.
async fn carry(mut socket: TcpStream, targets: Vec<SocketAddr>) {
    for target in targets {
        if let Ok(mut node) = TcpStream::connect(target).await {
            drop((socket.set_nodelay(true), node.set_nodelay(true)));
            // Either end may leave at any time.
            drop(copy_bidirectional(&mut socket, &mut node).await);
            return;
        }
    }
}
