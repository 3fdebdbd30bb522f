//! One plain proxy hop: the least that a proxy that understands HTTP can do.
//!
//! A yardstick, not a tunnel: hyper's HTTP/1.1 server and client on one thread, requests and
//! answers handed through as they are. It checks nothing, encrypts nothing, limits nothing, so never
//! put it in front of anything real. Each client connection has its own connection to the upstream.

use std::{cell::RefCell, net::SocketAddr, rc::Rc};

use http::{Request, Response};
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;

use crate::{
    client::{Dialer, connection::Http1},
    measure::errors::Failure,
    serve,
};

/// Flags of `loadtest hop`.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// Where to listen
    #[arg(long, value_name = "IP:PORT", default_value = "127.0.0.1:8001")]
    pub listen: SocketAddr,
    /// Where requests go
    #[arg(long, value_name = "IP:PORT", default_value = "127.0.0.1:8000")]
    pub upstream: SocketAddr,
}

/// Serves until the process ends. Says where it listens in one connection on standard output.
///
/// # Errors
/// It cannot listen there.
pub fn run(args: Args) -> anyhow::Result<()> {
    serve::run(args.listen, move |stream| connection(stream, args.upstream))
}

async fn connection(stream: TcpStream, upstream: SocketAddr) {
    let connection = Rc::new(RefCell::new(None));
    let service = service_fn(move |request| forward(connection.clone(), upstream, request));
    // A failure at either side closes both, which is all that a client needs to know here.
    drop(
        http1::Builder::new()
            .serve_connection(TokioIo::new(stream), service)
            .await,
    );
}

async fn forward(
    connection: Rc<RefCell<Option<Http1<Incoming>>>>,
    upstream: SocketAddr,
    request: Request<Incoming>,
) -> Result<Response<Incoming>, Failure> {
    // The requests of a connection come one after another, so no other wants it meanwhile.
    let resting = connection.borrow_mut().take().filter(Http1::is_open);
    let mut current = match resting {
        Some(resting) => resting,
        None => {
            let stream = Dialer::new(vec![upstream], None).dial().await?;
            Http1::new(stream).await?
        }
    };
    let answer = current.send(request).await?;
    // Its content may still be on its way; the next request waits until it has come.
    *connection.borrow_mut() = Some(current);
    Ok(answer)
}
