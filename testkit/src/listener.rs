//! A listener on loopback, and what a test does with each of its connections.

use std::{net::SocketAddr, sync::Arc};

use tokio::{
    net::{TcpListener, TcpStream},
    task::JoinSet,
};
use tokio_rustls::{TlsAcceptor, server::TlsStream};
use tunnel_ops::{
    task::Owned,
    tls_files::{ClientAuth, Identity, server_config},
};

/// A listener. Its connections end with it.
pub struct Listener {
    /// Where it listens.
    pub address: SocketAddr,
    _accepting: Owned<()>,
}

impl Listener {
    /// Listens on a free port, and runs `serve` for each connection.
    pub async fn plain<F>(serve: impl FnMut(TcpStream) -> F + Send + 'static) -> Self
    where
        F: Future<Output = ()> + Send + 'static,
    {
        Self::at("127.0.0.1:0".parse().unwrap(), serve).await
    }

    /// Listens on this address, and runs `serve` for each connection.
    pub async fn at<F>(
        address: SocketAddr,
        mut serve: impl FnMut(TcpStream) -> F + Send + 'static,
    ) -> Self
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let listener = TcpListener::bind(address).await.unwrap();
        let address = listener.local_addr().unwrap();
        let accepting = Owned::spawn("listener", async move {
            let mut connections = JoinSet::new();
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                stream.set_nodelay(true).unwrap();
                connections.spawn(serve(stream));
            }
        });
        Self {
            address,
            _accepting: accepting,
        }
    }

    /// Listens on a free port, and runs `serve` for each connection on which a TLS handshake has succeeded.
    pub async fn tls<F>(
        identity: &Identity,
        client_auth: Option<&ClientAuth>,
        serve: impl Fn(TlsStream<TcpStream>) -> F + Send + Sync + 'static,
    ) -> Self
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let config = server_config(identity, &[b"http/1.1"], client_auth).unwrap();
        let (acceptor, serve) = (TlsAcceptor::from(config), Arc::new(serve));
        Self::plain(move |stream| {
            let (acceptor, serve) = (acceptor.clone(), Arc::clone(&serve));
            async move {
                if let Ok(stream) = acceptor.accept(stream).await {
                    serve(stream).await;
                }
            }
        })
        .await
    }

    /// The URL by which a tunnel client dials it.
    pub fn url(&self) -> String {
        format!("wss://{}", self.address)
    }
}
