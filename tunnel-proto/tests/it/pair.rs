//! Two sessions joined by memory, their drivers running, and a service behind the client's one.

use std::{
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use bytes::Bytes;
use http::{Request, Response};
use http_body::Body;
use tokio::{
    io::{DuplexStream, duplex},
    task::JoinSet,
};
use tower_service::Service;
use tunnel_proto::{
    exchange::{AsProblem, RecvBody, serve},
    problem::Problem,
    session::{Session, SessionEnd, SessionEvent, SessionEvents, SessionSettings, Side},
};

/// Bytes that the connection between the two takes before it blocks.
const CONNECTION_BYTES: usize = 64 * 1024;

/// Both ends of a session.
pub(crate) struct Pair {
    pub(crate) server: Session,
    pub(crate) server_events: SessionEvents,
    pub(crate) client: Session,
    /// The two drivers and whatever serves the client's streams.
    pub(crate) tasks: JoinSet<Option<SessionEnd>>,
}

/// A session over one end of a connection, its driver running in `tasks`.
pub(crate) async fn session(
    tasks: &mut JoinSet<Option<SessionEnd>>,
    io: DuplexStream,
    side: Side,
    settings: SessionSettings,
) -> (Session, SessionEvents) {
    let (session, events, driver) = Session::new(io, Bytes::new(), side, settings).await;
    tasks.spawn(async { Some(driver.await) });
    (session, events)
}

/// Serves every stream of a session with the service.
async fn serve_all<S, B>(session: Session, mut events: SessionEvents, service: S)
where
    S: Service<Request<RecvBody>, Response = Response<B>, Error = Problem>,
    S: Clone + Send + Sync + 'static,
    S::Future: Send,
    B: Body<Data = Bytes> + Send + 'static,
    B::Error: AsProblem + Send,
{
    let mut streams = JoinSet::new();
    while let Some(event) = events.next(&session).await {
        if let SessionEvent::Exchanges(stream) = event {
            streams.spawn(serve(stream, service.clone()));
        }
    }
}

impl Pair {
    /// A pair whose client answers with `handler`.
    pub(crate) async fn start<H, F, B>(handler: H) -> Self
    where
        H: Fn(Request<RecvBody>) -> F + Send + Sync + 'static,
        F: Future<Output = Result<Response<B>, Problem>> + Send + 'static,
        B: Body<Data = Bytes> + Send + 'static,
        B::Error: AsProblem + Send,
    {
        Self::start_with(SessionSettings::default(), handler).await
    }

    pub(crate) async fn start_with<H, F, B>(settings: SessionSettings, handler: H) -> Self
    where
        H: Fn(Request<RecvBody>) -> F + Send + Sync + 'static,
        F: Future<Output = Result<Response<B>, Problem>> + Send + 'static,
        B: Body<Data = Bytes> + Send + 'static,
        B::Error: AsProblem + Send,
    {
        let (server_io, client_io) = duplex(CONNECTION_BYTES);
        let mut tasks = JoinSet::new();
        let (server, server_events) =
            session(&mut tasks, server_io, Side::Server, settings).await;
        let (client, events) = session(&mut tasks, client_io, Side::Client, settings).await;
        let serving = serve_all(client.clone(), events, Handler(Arc::new(handler)));
        tasks.spawn(async {
            serving.await;
            None
        });
        Self { server, server_events, client, tasks }
    }
}

struct Handler<H>(Arc<H>);

impl<H> Clone for Handler<H> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<H, F, B> Service<Request<RecvBody>> for Handler<H>
where
    H: Fn(Request<RecvBody>) -> F,
    F: Future<Output = Result<Response<B>, Problem>> + Send + 'static,
{
    type Response = Response<B>;
    type Error = Problem;
    type Future = Pin<Box<dyn Future<Output = Result<Response<B>, Problem>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Problem>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<RecvBody>) -> Self::Future {
        Box::pin((self.0)(request))
    }
}
