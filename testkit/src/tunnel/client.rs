//! A fake tunnel client, with a handler that a test writes in place of upstreams, and a record of every request that it
//! was sent.

use std::sync::Arc;

use bytes::Bytes;
use http::{HeaderMap, Method, Request, Response, Uri, header};
use tokio::sync::watch;
use tunnel_ops::task::Owned;
use tunnel_proto::{
    control::Control,
    exchange::{Informational, Protocol, RecvBody},
    handshake::{self, Greeting, InstanceSecret},
    problem::Problem,
    session::{Session, SessionEnd, SessionSettings, Side},
};

use super::{
    FakeEnd, answer_all,
    body::{AnyBody, collect, full, internal},
};
use crate::{
    deadline::{SOON, eventually, soon},
    http1::{Duplex, RawConnection},
};

/// What a handler comes to.
pub type Outcome = Result<Response<AnyBody>, Problem>;

/// A request as it arrived.
#[derive(Debug, Clone)]
pub struct ReceivedRequest {
    /// The method.
    pub method: Method,
    /// The authority.
    pub authority: String,
    /// Path and query.
    pub uri: Uri,
    /// Without the authority.
    pub headers: HeaderMap,
    /// Whether it asks for an upgrade.
    pub is_upgrade: bool,
}

impl ReceivedRequest {
    fn of(request: &Request<RecvBody>) -> Self {
        let mut headers = request.headers().clone();
        let authority = headers.remove(header::HOST).unwrap();
        Self {
            method: request.method().clone(),
            authority: authority.to_str().unwrap().to_owned(),
            uri: request.uri().clone(),
            headers,
            is_upgrade: request.extensions().get::<Protocol>().is_some(),
        }
    }

    /// The lines of a field, in their order.
    pub fn values(&self, name: &str) -> Vec<&str> {
        let lines = self.headers.get_all(name).iter();
        lines.map(|value| value.to_str().unwrap()).collect()
    }

    /// The path and query.
    pub fn path(&self) -> &str {
        self.uri.path_and_query().unwrap().as_str()
    }
}

/// A connected tunnel client.
pub struct FakeClient {
    /// Its session.
    pub session: Session,
    requests: watch::Receiver<Vec<ReceivedRequest>>,
    controls: watch::Receiver<Vec<Control>>,
    driver: Owned<SessionEnd>,
    _serving: Owned<()>,
}

/// An answer on `/connect`.
pub struct Connected {
    /// Its status.
    pub status: u16,
    /// Its fields.
    pub headers: HeaderMap,
    /// The connection.
    pub io: Box<dyn Duplex>,
    /// What came behind the head.
    pub behind: Bytes,
}

/// A tunnel server under test.
pub trait ServerUnderTest {
    /// The token of a runtime.
    fn token(&self, runtime: &str) -> &str;

    /// A new connection to the tunnel listener.
    fn connect(&self) -> impl Future<Output = Box<dyn Duplex>>;
}

impl FakeClient {
    /// A client of `runtime` that answers every request with 200 and a line about it.
    pub async fn describing(server: &impl ServerUnderTest, runtime: &'static str) -> Self {
        Self::new(server, runtime, move |request| async move {
            let path = request.uri().path_and_query().unwrap().clone();
            let body = format!("{runtime} {} {path}\n", request.method());
            let (_, end) = collect(request.into_body()).await;
            end.map_err(|_| internal())?;
            Ok(Response::new(full(body)))
        })
        .await
    }

    /// A client of `runtime` with a handler.
    pub async fn new<H, F>(server: &impl ServerUnderTest, runtime: &str, handler: H) -> Self
    where
        H: Fn(Request<RecvBody>) -> F + Send + Sync + 'static,
        F: Future<Output = Outcome> + Send + 'static,
    {
        Self::of_instance(server, runtime, random_instance(), handler).await
    }

    /// A client of `runtime` that is this instance.
    pub async fn of_instance<H, F>(
        server: &impl ServerUnderTest,
        runtime: &str,
        instance: InstanceSecret,
        handler: H,
    ) -> Self
    where
        H: Fn(Request<RecvBody>) -> F + Send + Sync + 'static,
        F: Future<Output = Outcome> + Send + 'static,
    {
        let request = session_request(server.token(runtime), instance);
        Self::on(dial(server, &request).await, handler).await
    }

    /// An accepted client. The handler finds [`Informational`] in the request's extensions.
    pub async fn on<H, F>(connected: Connected, handler: H) -> Self
    where
        H: Fn(Request<RecvBody>) -> F + Send + Sync + 'static,
        F: Future<Output = Outcome> + Send + 'static,
    {
        Self::with(connected, SessionSettings::default(), handler).await
    }

    /// As [`FakeClient::on`], with these settings of its session.
    pub async fn with<H, F>(connected: Connected, settings: SessionSettings, handler: H) -> Self
    where
        H: Fn(Request<RecvBody>) -> F + Send + Sync + 'static,
        F: Future<Output = Outcome> + Send + 'static,
    {
        assert_eq!(connected.status, 101);
        let end = FakeEnd::new(connected.io, connected.behind, Side::Client, settings);
        let (request_log, requests) = watch::channel(Vec::new());
        let (control_log, mut controls) = watch::channel(Vec::new());
        let handler = Arc::new((handler, request_log));
        let answer = move |mut request: Request<RecvBody>, informational: Informational| {
            let (handler, request_log) = &*handler;
            request_log.send_modify(|all| all.push(ReceivedRequest::of(&request)));
            request.extensions_mut().insert(informational);
            handler(request)
        };
        let on_control = move |control| control_log.send_modify(|all| all.push(control));
        let session = end.session.clone();
        let serving = answer_all(end.session, end.events, answer, on_control);
        let serving = Owned::spawn("serving", serving);
        let welcome = |controls: &Vec<Control>| !controls.is_empty();
        let is_welcome = soon("a welcome", controls.wait_for(welcome)).await.is_ok();
        assert!(is_welcome, "no welcome: {:?}", session.close_reason());
        Self {
            session,
            requests,
            controls,
            driver: end.driver,
            _serving: serving,
        }
    }

    /// Every request so far.
    pub fn seen(&self) -> Vec<ReceivedRequest> {
        self.requests.borrow().clone()
    }

    /// The paths of every request so far.
    pub fn paths(&self) -> Vec<String> {
        let requests = self.requests.borrow();
        let paths = requests.iter().map(|request| request.path().to_owned());
        paths.collect()
    }

    /// Waits for the request number `count`, counted from 1.
    pub async fn request(&self, count: usize) -> ReceivedRequest {
        let mut requests = self.requests.clone();
        let requests = requests.wait_for(|requests| requests.len() >= count);
        soon("a request", requests).await.unwrap()[count - 1].clone()
    }

    /// Every control message so far.
    pub fn controls(&self) -> Vec<Control> {
        self.controls.borrow().clone()
    }

    /// Waits for a control message.
    pub async fn control(&self, wanted: impl Fn(&Control) -> bool) -> Control {
        let mut controls = self.controls.clone();
        let controls = controls.wait_for(|controls| controls.iter().any(&wanted));
        let controls = soon("a control message", controls).await.unwrap();
        let control = controls.iter().find(|control| wanted(control));
        control.unwrap().clone()
    }

    /// Waits until no exchange is open.
    pub async fn rests(&self) {
        eventually(SOON, "the exchanges' end", async || {
            (self.session.outstanding() == 0).then_some(())
        })
        .await;
    }

    /// Waits for the end of the session.
    pub async fn ended(&mut self) -> SessionEnd {
        soon("the session's end", &mut self.driver).await.unwrap()
    }

    /// Ends the connection as a client does that has died.
    pub fn die(self) {
        self.driver.abort();
    }
}

/// The request for a session, as the real client sends it.
pub fn session_request(token: &str, instance: InstanceSecret) -> Request<()> {
    let greeting = Greeting {
        instance,
        version: "1.2.3".into(),
        session_number: 1,
        allow_from: None,
        is_check: false,
        stands_by: false,
        placement: None,
    };
    let request = handshake::request(&greeting, &handshake::new_key())
        .uri(handshake::CONNECT_PATH)
        .header("host", "localhost")
        .header("authorization", format!("Bearer {token}"));
    request.body(()).unwrap()
}

/// Sends a request for a session to the tunnel listener.
pub async fn dial(server: &impl ServerUnderTest, request: &Request<()>) -> Connected {
    dial_over(server.connect().await, request).await
}

/// Sends a request for a session on a connection to a tunnel listener.
pub async fn dial_over(io: impl Duplex + 'static, request: &Request<()>) -> Connected {
    let mut text = format!("{} {} HTTP/1.1\r\n", request.method(), request.uri());
    for (name, value) in request.headers() {
        text += &format!("{name}: {}\r\n", value.to_str().unwrap());
    }
    text += "\r\n";
    let mut raw = RawConnection::over(io);
    raw.send(text).await;
    let head = raw.head().await.unwrap();
    let (io, behind) = raw.into_parts();
    Connected {
        status: head.status(),
        headers: head.headers(),
        io,
        behind: behind.freeze(),
    }
}

/// The secret of an instance that no other client has.
pub fn random_instance() -> InstanceSecret {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes).unwrap();
    InstanceSecret::from_random(bytes)
}
