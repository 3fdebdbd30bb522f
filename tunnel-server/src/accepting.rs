//! Whether listeners accept: it can be paused and resumed. Connections wait in the kernel meanwhile, or are accepted by
//! another process that has the sockets, too.

use std::net::SocketAddr;

use tokio::{
    net::{TcpListener, TcpStream},
    sync::watch,
};
use tunnel_http::listener;

/// Whether the listeners of one kind accept; they do at first.
#[derive(Debug)]
pub(crate) struct Accepting {
    is_paused: watch::Sender<bool>,
}

impl Default for Accepting {
    fn default() -> Self {
        let (is_paused, _) = watch::channel(false);
        Self { is_paused }
    }
}

impl Accepting {
    /// No connection is accepted from now on.
    pub(crate) fn pause(&self) {
        self.is_paused.send_replace(true);
    }

    /// Connections are accepted again.
    pub(crate) fn resume(&self) {
        self.is_paused.send_replace(false);
    }

    pub(crate) fn is_paused(&self) -> bool {
        *self.is_paused.borrow()
    }

    /// Resolves when connections are accepted.
    pub(crate) async fn resumed(&self) {
        // The sender is this one's own.
        let _ = self
            .is_paused
            .subscribe()
            .wait_for(|is_paused| !is_paused)
            .await;
    }

    /// Accepts the next connection, unless it is paused; see [`listener::accept`].
    pub(crate) async fn accept(&self, listener: &TcpListener) -> (TcpStream, SocketAddr) {
        let mut state = self.is_paused.subscribe();
        loop {
            let _ = state.wait_for(|is_paused| !is_paused).await;
            tokio::select! {
                biased;
                _ = state.changed() => {}
                accepted = listener::accept(listener) => return accepted,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;
    use testkit::deadline::soon;

    use super::*;

    #[tokio::test]
    async fn a_connection_waits_while_accepting_is_paused() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let accepting = Accepting::default();
        let _first = TcpStream::connect(address).await.unwrap();
        soon("a connection", accepting.accept(&listener)).await;
        {
            // It is paused while a connection is awaited.
            let mut accepted = Box::pin(accepting.accept(&listener));
            assert!((&mut accepted).now_or_never().is_none());
            accepting.pause();
            let _second = TcpStream::connect(address).await.unwrap();
            tokio::task::yield_now().await;
            assert!((&mut accepted).now_or_never().is_none());
            assert!(accepting.is_paused());
            accepting.resume();
            soon("the connection that waits", accepted).await;
        }
    }
}
