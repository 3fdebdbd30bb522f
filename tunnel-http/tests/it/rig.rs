//! A gateway whose answers the test gives, at a listener.

use std::convert::Infallible;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use http::{Request, Response};
use http_body::{Body, Frame, SizeHint};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full};
use testkit::http1::RawConnection;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tunnel_http::connection::Bounds;
use tunnel_http::gateway::{self, Connection, Gateway};
use tunnel_http::http1::InFlight;
use tunnel_http::outgoing::ForwardedClient;
use tunnel_http::prefixed::Prefixed;
use tunnel_http::received::ReceivedBody;
use tunnel_ops::signals::{Shutdown, Trigger};
use tunnel_ops::task::Owned;
use tunnel_proto::problem::{Hop, Problem};

/// Time-outs that no test waits for.
const LONG: Duration = Duration::from_secs(3_600);

/// The keep-alive time-outs of other clients, and of trusted proxies.
pub(crate) const KEEP_ALIVE: [Duration; 2] = [Duration::from_secs(75), Duration::from_secs(620)];

/// The content of an answer.
pub(crate) type Content = UnsyncBoxBody<Bytes, Infallible>;

type Answerer =
    dyn Fn(Request<ReceivedBody>) -> BoxFuture<'static, Response<Content>> + Send + Sync;

/// The gateway of a test.
pub(crate) struct TestGateway {
    answer: Box<Answerer>,
    stopping: Shutdown,
    ending: Shutdown,
}

/// A listener with a gateway behind it.
pub(crate) struct Rig {
    /// Where it listens.
    pub(crate) address: SocketAddr,
    /// Has connections end with their next answer.
    pub(crate) stop: Trigger,
    /// Leaves no more time.
    pub(crate) end: Trigger,
    serving: Owned<()>,
}

impl Rig {
    /// A gateway that gives these answers.
    pub(crate) async fn answering<F>(
        answer: impl Fn(Request<ReceivedBody>) -> F + Send + Sync + 'static,
    ) -> Self
    where
        F: Future<Output = Response<Content>> + Send + 'static,
    {
        Self::with(false, answer).await
    }

    /// A gateway whose clients are trusted proxies, or not.
    pub(crate) async fn with<F>(
        is_trusted: bool,
        answer: impl Fn(Request<ReceivedBody>) -> F + Send + Sync + 'static,
    ) -> Self
    where
        F: Future<Output = Response<Content>> + Send + 'static,
    {
        let (stop, stopping) = Shutdown::manual();
        let (end, ending) = Shutdown::manual();
        let gateway = Arc::new(TestGateway {
            answer: Box::new(move |request| answer(request).boxed()),
            stopping,
            ending,
        });
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let serving = Owned::spawn("gateway", async move {
            let mut connections = JoinSet::new();
            loop {
                let (socket, peer) = listener.accept().await.unwrap();
                let gateway = gateway.clone();
                connections.spawn(async move {
                    let client = ForwardedClient::new(peer.ip(), is_trusted, false);
                    let socket = Prefixed::new(Bytes::new(), socket);
                    let _ = gateway::serve(&gateway, client, (), socket, None).await;
                });
            }
        });
        Self {
            address,
            stop,
            end,
            serving,
        }
    }

    /// A connection of a platform client.
    pub(crate) async fn connect(&self) -> RawConnection {
        RawConnection::connect(self.address).await
    }

    /// Ends all of it, as the end of the process does.
    pub(crate) fn kill(self) {
        drop(self.serving);
    }
}

/// An answer with this content.
pub(crate) fn ok(content: &'static str) -> Response<Content> {
    Response::new(Full::new(Bytes::from_static(content.as_bytes())).boxed_unsync())
}

impl Gateway for TestGateway {
    type Peer = ();
    type Upgrade = ();
    type Body = Answer;

    const HOP: Hop = Hop::Server;

    fn bounds(&self, client: &ForwardedClient) -> Bounds {
        Bounds {
            max_head_bytes: 16 * 1024,
            stream_window_bytes: 64 * 1024,
            tls_handshake_timeout: LONG,
            first_byte_timeout: LONG,
            request_head_timeout: LONG,
            keep_alive_timeout: KEEP_ALIVE[usize::from(client.is_trusted)],
            body_idle_timeout: LONG,
        }
    }

    fn stopping(&self) -> &Shutdown {
        &self.stopping
    }

    fn ending(&self) -> &Shutdown {
        &self.ending
    }

    async fn silence_ended(&self) {
        self.stopping.requested().await;
    }

    fn answer(
        connection: &Arc<Connection<Self>>,
        request: Request<ReceivedBody>,
        in_flight: Option<InFlight>,
    ) -> impl Future<Output = Result<Response<Answer>, Infallible>> + Send + use<> {
        connection.not_upgraded();
        let answered = (connection.gateway.answer)(request);
        async move {
            let answer = answered.await;
            Ok(answer.map(|content| Answer {
                content,
                _in_flight: in_flight,
            }))
        }
    }

    async fn join<IO>(self: &Arc<Self>, _: IO, (): (), _: Option<Duration>)
    where
        IO: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
    }

    fn on_unread(&self, _: IpAddr, _: &Problem) {}
}

/// An answer that is in flight until it is written.
pub(crate) struct Answer {
    content: Content,
    _in_flight: Option<InFlight>,
}

impl Body for Answer {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        Pin::new(&mut self.content).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.content.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.content.size_hint()
    }
}
