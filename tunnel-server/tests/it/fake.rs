//! A fake tunnel client: the other end of the wire, with a handler that a test writes in place of
//! upstreams, and a record of every request that it was sent.

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use bytes::Bytes;
use futures_util::future::BoxFuture;
use http::{HeaderMap, Method, Request, Response, StatusCode, Uri, header};
use http_body::{Body, Frame};
use http_body_util::{BodyExt, Full, combinators::UnsyncBoxBody};
use testkit::{
    deadline::{SOON, eventually, soon},
    http1::{Duplex, RawConnection},
};
use tokio::{
    sync::{mpsc, watch},
    task::JoinSet,
};
use tunnel_ops::task::Owned;
use tunnel_proto::{
    control::Control,
    exchange::{AsProblem, BodyError, Informational, Protocol, RecvBody, serve},
    handshake::{self, Greeting, InstanceSecret},
    problem::Problem,
    session::{Session, SessionEnd, SessionEvent, SessionEvents, SessionSettings, Side},
};

use crate::rig::Rig;

/// Why a scripted body fails.
#[derive(Debug)]
pub(crate) struct Failure(pub(crate) Problem);

impl AsProblem for Failure {
    fn as_problem(&self) -> Problem {
        self.0.clone()
    }
}

/// A scripted response's body.
pub(crate) type AnyBody = UnsyncBoxBody<Bytes, Failure>;

/// What a handler comes to.
pub(crate) type Outcome = Result<Response<AnyBody>, Problem>;

/// Feeds a body piece by piece; dropped, the body ends whole.
pub(crate) type Feed = mpsc::Sender<Result<Frame<Bytes>, Failure>>;

/// A request as it arrived.
#[derive(Debug, Clone)]
pub(crate) struct ReceivedRequest {
    pub(crate) method: Method,
    pub(crate) authority: String,
    pub(crate) uri: Uri,
    /// Without the authority.
    pub(crate) headers: HeaderMap,
    pub(crate) is_upgrade: bool,
}

impl ReceivedRequest {
    /// The lines of a field, in their order.
    pub(crate) fn values(&self, name: &str) -> Vec<&str> {
        let lines = self.headers.get_all(name).iter();
        lines.map(|value| value.to_str().unwrap()).collect()
    }

    /// The path and query.
    pub(crate) fn path(&self) -> &str {
        self.uri.path_and_query().unwrap().as_str()
    }
}

/// A connected tunnel client.
pub(crate) struct FakeClient {
    pub(crate) session: Session,
    seen: watch::Sender<Vec<ReceivedRequest>>,
    controls: watch::Receiver<Vec<Control>>,
    driver: Owned<SessionEnd>,
    _serving: Owned<()>,
}

/// An answer on `/connect`.
pub(crate) struct Connected {
    pub(crate) status: u16,
    pub(crate) headers: HeaderMap,
    pub(crate) io: Box<dyn Duplex>,
    /// What came behind the head.
    pub(crate) behind: Bytes,
}

impl FakeClient {
    /// A client of `runtime` that answers every request with 200 and a line about it.
    pub(crate) async fn describing(rig: &Rig, runtime: &'static str) -> Self {
        Self::new(rig, runtime, move |request| async move {
            let path = request.uri().path_and_query().unwrap().clone();
            let body = format!("{runtime} {} {path}\n", request.method());
            collect(request.into_body())
                .await
                .1
                .map_err(|_| internal())?;
            Ok(Response::new(full(body)))
        })
        .await
    }

    /// A client of `runtime` with a handler.
    pub(crate) async fn new<H, F>(rig: &Rig, runtime: &str, handler: H) -> Self
    where
        H: Fn(Request<RecvBody>) -> F + Send + Sync + 'static,
        F: Future<Output = Outcome> + Send + 'static,
    {
        Self::of_instance(rig, runtime, random_instance(), handler).await
    }

    /// A client of `runtime` that is this instance.
    pub(crate) async fn of_instance<H, F>(
        rig: &Rig,
        runtime: &str,
        instance: InstanceSecret,
        handler: H,
    ) -> Self
    where
        H: Fn(Request<RecvBody>) -> F + Send + Sync + 'static,
        F: Future<Output = Outcome> + Send + 'static,
    {
        let request = session_request(rig.token(runtime), instance);
        Self::by(rig, &request, handler).await
    }

    /// A client that asks for its session like this.
    pub(crate) async fn by<H, F>(rig: &Rig, request: &Request<()>, handler: H) -> Self
    where
        H: Fn(Request<RecvBody>) -> F + Send + Sync + 'static,
        F: Future<Output = Outcome> + Send + 'static,
    {
        Self::on(dial(rig, request).await, handler).await
    }

    /// An accepted client.
    pub(crate) async fn on<H, F>(connected: Connected, handler: H) -> Self
    where
        H: Fn(Request<RecvBody>) -> F + Send + Sync + 'static,
        F: Future<Output = Outcome> + Send + 'static,
    {
        assert_eq!(connected.status, 101);
        let settings = SessionSettings::default();
        let (session, events, driver) =
            Session::new(connected.io, connected.behind, Side::Client, settings);
        let driver = Owned::spawn("driver", driver);
        let seen = watch::Sender::default();
        let (heard, mut controls) = watch::channel(Vec::new());
        let handler = Handler {
            handle: Arc::new(move |request| Box::pin(handler(request))),
            seen: seen.clone(),
        };
        let serving = Owned::spawn(
            "serving",
            serve_all(session.clone(), events, handler, heard),
        );
        let welcome = |controls: &Vec<Control>| !controls.is_empty();
        let is_welcome = soon("a welcome", controls.wait_for(welcome)).await.is_ok();
        assert!(is_welcome, "no welcome: {:?}", session.close_reason());
        Self {
            session,
            seen,
            controls,
            driver,
            _serving: serving,
        }
    }

    /// Every request so far.
    pub(crate) fn seen(&self) -> Vec<ReceivedRequest> {
        self.seen.borrow().clone()
    }

    /// The paths of every request so far.
    pub(crate) fn paths(&self) -> Vec<String> {
        self.seen()
            .iter()
            .map(|seen| seen.path().to_owned())
            .collect()
    }

    /// Waits for the request number `count`, counted from 1.
    pub(crate) async fn request(&self, count: usize) -> ReceivedRequest {
        let mut seen = self.seen.subscribe();
        let seen = soon("a request", seen.wait_for(|seen| seen.len() >= count))
            .await
            .unwrap();
        seen[count - 1].clone()
    }

    /// Every control message so far.
    pub(crate) fn controls(&self) -> Vec<Control> {
        self.controls.borrow().clone()
    }

    /// Waits for a control message.
    pub(crate) async fn control(&self, wanted: impl Fn(&Control) -> bool) -> Control {
        let mut controls = self.controls.clone();
        let controls = soon(
            "a control message",
            controls.wait_for(|controls| controls.iter().any(&wanted)),
        );
        let controls = controls.await.unwrap();
        controls
            .iter()
            .find(|control| wanted(control))
            .unwrap()
            .clone()
    }

    /// Waits until no exchange is open.
    pub(crate) async fn rests(&self) {
        eventually(SOON, "the exchanges' end", async || {
            (self.session.outstanding() == 0).then_some(())
        })
        .await;
    }

    /// Waits for the end of the session.
    pub(crate) async fn ended(&mut self) -> SessionEnd {
        soon("the session's end", &mut self.driver).await.unwrap()
    }

    /// Ends the connection as a client does that has died.
    pub(crate) fn die(self) {
        self.driver.abort();
    }
}

/// The request for a session, as the real client sends it.
pub(crate) fn session_request(token: &str, instance: InstanceSecret) -> Request<()> {
    let greeting = Greeting {
        instance,
        version: "1.2.3".into(),
        session_number: 1,
        allow_from: None,
        is_check: false,
        placement: None,
    };
    let request = handshake::request(&greeting, &handshake::new_key())
        .uri(handshake::CONNECT_PATH)
        .header("host", "localhost")
        .header("authorization", format!("Bearer {token}"));
    request.body(()).unwrap()
}

/// Sends a request to the tunnel listener.
pub(crate) async fn dial(rig: &Rig, request: &Request<()>) -> Connected {
    dial_over(rig.tunnel().await, request).await
}

/// Sends a request on a connection to a tunnel listener.
pub(crate) async fn dial_over(io: impl Duplex + 'static, request: &Request<()>) -> Connected {
    let mut text = format!("{} {} HTTP/1.1\r\n", request.method(), request.uri());
    for (name, value) in request.headers() {
        text += &format!("{name}: {}\r\n", value.to_str().unwrap());
    }
    text += "\r\n";
    let mut raw = RawConnection::over(io);
    raw.send(text).await;
    let head = raw.head().await.unwrap();
    let fields = head.fields.iter();
    let headers = fields.map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap()));
    let headers = headers.collect();
    let (io, behind) = raw.into_parts();
    Connected {
        status: head.status(),
        headers,
        io,
        behind: behind.freeze(),
    }
}

/// The secret of an instance that no other client has.
pub(crate) fn random_instance() -> InstanceSecret {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes).unwrap();
    InstanceSecret::from_random(bytes)
}

/// A body of one piece.
pub(crate) fn full(content: impl Into<Bytes>) -> AnyBody {
    Full::new(content.into())
        .map_err(|never| match never {})
        .boxed_unsync()
}

/// No body.
pub(crate) fn empty() -> AnyBody {
    full(Bytes::new())
}

/// A body that is fed while it is sent.
pub(crate) fn fed() -> (Feed, AnyBody) {
    let (feed, receiver) = mpsc::channel(16);
    (feed, FedBody(receiver).boxed_unsync())
}

/// A frame of content.
pub(crate) fn data(content: impl Into<Bytes>) -> Result<Frame<Bytes>, Failure> {
    Ok(Frame::data(content.into()))
}

/// A response with nothing but a status and a body.
pub(crate) fn status(status: u16, body: AnyBody) -> Response<AnyBody> {
    let mut response = Response::new(body);
    *response.status_mut() = StatusCode::from_u16(status).unwrap();
    response
}

/// A failure without meaning.
pub(crate) fn internal() -> Problem {
    use tunnel_proto::problem::{Hop, Reason};
    Problem::new(Hop::Client, Reason::InternalError, "a handler failed")
}

/// Reads a body to its end: its content, and its trailers or why it ended early.
pub(crate) async fn collect(mut body: RecvBody) -> (Vec<u8>, Result<HeaderMap, BodyError>) {
    let mut content = Vec::new();
    let mut trailers = HeaderMap::new();
    while let Some(frame) = body.frame().await {
        match frame.map(Frame::into_data) {
            Ok(Ok(data)) => content.extend_from_slice(&data),
            Ok(Err(frame)) => trailers = frame.into_trailers().unwrap_or_default(),
            Err(error) => return (content, Err(error)),
        }
    }
    (content, Ok(trailers))
}

async fn serve_all(
    session: Session,
    mut events: SessionEvents,
    handler: Handler,
    heard: watch::Sender<Vec<Control>>,
) {
    let mut streams = JoinSet::new();
    while let Some(event) = events.next(&session).await {
        match event {
            SessionEvent::Stream(stream) => {
                let handler = handler.clone();
                streams.spawn(serve(stream, move |request, informational| {
                    handler.call(request, informational)
                }));
            }
            SessionEvent::Control(control) => heard.send_modify(|all| all.push(control)),
        }
    }
}

#[derive(Clone)]
struct Handler {
    handle: Arc<dyn Fn(Request<RecvBody>) -> BoxFuture<'static, Outcome> + Send + Sync>,
    seen: watch::Sender<Vec<ReceivedRequest>>,
}

impl Handler {
    fn call(
        &self,
        mut request: Request<RecvBody>,
        informational: Informational,
    ) -> BoxFuture<'static, Outcome> {
        let mut headers = request.headers().clone();
        let authority = headers.remove(header::HOST).unwrap();
        let seen = ReceivedRequest {
            method: request.method().clone(),
            authority: authority.to_str().unwrap().to_owned(),
            uri: request.uri().clone(),
            headers,
            is_upgrade: request.extensions().get::<Protocol>().is_some(),
        };
        self.seen.send_modify(|all| all.push(seen));
        request.extensions_mut().insert(informational);
        (self.handle)(request)
    }
}

struct FedBody(mpsc::Receiver<Result<Frame<Bytes>, Failure>>);

impl Body for FedBody {
    type Data = Bytes;
    type Error = Failure;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Failure>>> {
        self.0.poll_recv(cx)
    }
}

/// How an exchange ended for its handler.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BodyEnd {
    /// The request's body was read to its end.
    Whole,
    /// It failed, or the exchange was cancelled.
    Cut,
}

/// Makes an [`Ending`] for each exchange of a handler.
pub(crate) struct Endings(mpsc::Sender<BodyEnd>);

/// Held by a handler for as long as its exchange lives; tells how that ended.
pub(crate) struct Ending {
    told: mpsc::Sender<BodyEnd>,
    end: BodyEnd,
}

/// What tells how exchanges end, and what it has told.
pub(crate) fn endings() -> (Endings, mpsc::Receiver<BodyEnd>) {
    let (told, ends) = mpsc::channel(1024);
    (Endings(told), ends)
}

impl Endings {
    /// For the next exchange.
    pub(crate) fn next(&self) -> Ending {
        Ending {
            told: self.0.clone(),
            end: BodyEnd::Cut,
        }
    }
}

impl Ending {
    /// The request's body was read.
    pub(crate) fn on_read<T>(&mut self, result: &Result<T, BodyError>) {
        if result.is_ok() {
            self.end = BodyEnd::Whole;
        }
    }
}

impl Drop for Ending {
    fn drop(&mut self) {
        let _ = self.told.try_send(self.end);
    }
}
