//! The other end of a client's sessions: a tunnel server that does only what a test tells it to.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{
    AUTHORIZATION, CONNECTION, HOST, SEC_WEBSOCKET_ACCEPT, SEC_WEBSOCKET_KEY,
    SEC_WEBSOCKET_PROTOCOL, UPGRADE,
};
use http::{HeaderMap, Request, Response, StatusCode};
use http_body::Body;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use rustls::ServerConfig;
use testkit::{
    ca::{CertifiedKey, self_signed},
    deadline::soon,
};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;
use tunnel_ops::task::Owned;
use tunnel_ops::tls_files::{ClientAuth, Roots, server_config};
use tunnel_proto::close::CloseReason;
use tunnel_proto::control::Control;
use tunnel_proto::exchange::{AsProblem, ExchangeError, RecvBody, exchange};
use tunnel_proto::handshake::{self, Greeting, SUBPROTOCOL};
use tunnel_proto::problem::{Problem, Reason};
use tunnel_proto::session::{
    Session, SessionEnd, SessionEvent, SessionEvents, SessionSettings, Side,
};

/// A listener for tunnel clients.
pub(crate) struct TunnelServer {
    address: SocketAddr,
    key: CertifiedKey,
    arrivals: mpsc::Receiver<Arrived>,
    /// Refusals still to be given, the next one last.
    refusals: Arc<Mutex<Vec<Response<String>>>>,
    _serving: Owned<()>,
}

/// A client that was given a session.
struct Arrived {
    greeting: Greeting,
    authorization: Option<String>,
    host: String,
    certificate: Option<Vec<u8>>,
    io: TokioIo<hyper::upgrade::Upgraded>,
}

/// The server's end of a session.
pub(crate) struct ServerSession {
    pub(crate) greeting: Greeting,
    pub(crate) authorization: Option<String>,
    /// The host that was asked for it.
    pub(crate) host: String,
    /// The client's own, DER.
    pub(crate) certificate: Option<Vec<u8>>,
    pub(crate) session: Session,
    pub(crate) events: SessionEvents,
    driver: Owned<SessionEnd>,
}

impl TunnelServer {
    pub(crate) async fn start() -> Self {
        Self::with_client_auth(None).await
    }

    /// One that asks its clients for certificates.
    pub(crate) async fn with_client_auth(client_auth: Option<ClientAuth>) -> Self {
        let key = self_signed("127.0.0.1");
        let tls = server_config(&key.identity(), &[b"http/1.1"], client_auth.as_ref()).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let refusals = Arc::default();
        let (arrivals_in, arrivals) = mpsc::channel(8);
        let serving = accept_all(listener, tls, Arc::clone(&refusals), arrivals_in);
        Self {
            address,
            key,
            arrivals,
            refusals,
            _serving: Owned::spawn("tunnel server", serving),
        }
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    pub(crate) fn url(&self) -> String {
        format!("wss://{}", self.address)
    }

    pub(crate) fn roots(&self) -> Roots {
        self.key.roots()
    }

    /// Its certificate, which is its own issuer.
    pub(crate) fn pem(&self) -> &str {
        &self.key.certificate
    }

    /// Refuses the next dials with these answers, in this order.
    pub(crate) fn refuse(&self, answers: impl IntoIterator<Item = Response<String>>) {
        let mut refusals = self.refusals.lock();
        refusals.extend(answers);
        refusals.reverse();
    }

    async fn arrived(&mut self) -> Arrived {
        soon("a client", self.arrivals.recv()).await.unwrap()
    }

    /// The bytes of the next session.
    pub(crate) async fn accept_bytes(&mut self) -> impl AsyncRead + AsyncWrite + Unpin + use<> {
        self.arrived().await.io
    }

    /// The next session, not welcomed yet.
    pub(crate) async fn accept(&mut self) -> ServerSession {
        let arrived = self.arrived().await;
        let settings = SessionSettings::default();
        let (session, events, driver) =
            Session::new(arrived.io, Bytes::new(), Side::Server, settings);
        ServerSession {
            greeting: arrived.greeting,
            authorization: arrived.authorization,
            host: arrived.host,
            certificate: arrived.certificate,
            session,
            events,
            driver: Owned::spawn("driver", driver),
        }
    }

    /// The next session, welcomed.
    pub(crate) async fn welcome(&mut self) -> ServerSession {
        let session = self.accept().await;
        session.welcome();
        session
    }

    /// Whether nobody dials for so long.
    pub(crate) async fn is_left_alone(&mut self, time: Duration) -> bool {
        timeout(time, self.arrivals.recv()).await.is_err()
    }
}

impl ServerSession {
    pub(crate) fn say(&self, control: Control) {
        self.session.send(control).unwrap();
    }

    pub(crate) fn welcome(&self) {
        self.welcome_at(None);
    }

    /// Welcomes the client as the node of this name.
    pub(crate) fn welcome_at(&self, node: Option<&str>) {
        self.say(Control::Welcome {
            runtime: "a-b".to_owned(),
            session: "1".to_owned(),
            version: "test".to_owned(),
            node: node.map(str::to_owned),
        });
    }

    /// The next control message after the first, which greets, and but for those that tell of routes.
    pub(crate) async fn told(&mut self) -> Control {
        loop {
            match self.hear().await {
                Control::Hello { .. } | Control::Routes(_) => {}
                other => return other,
            }
        }
    }

    /// Whether nothing is said for so long, but for the greeting.
    pub(crate) async fn is_told_nothing(&mut self, time: Duration) -> bool {
        timeout(time, self.told()).await.is_err()
    }

    /// The next control message.
    pub(crate) async fn hear(&mut self) -> Control {
        match soon("a control message", self.events.next(&self.session)).await {
            Some(SessionEvent::Control(control)) => control,
            Some(SessionEvent::Stream(_)) => panic!("clients open no streams"),
            None => panic!("the session has ended"),
        }
    }

    /// Why the session ended.
    pub(crate) async fn ended(self) -> CloseReason {
        soon("the session's end", self.driver)
            .await
            .unwrap()
            .reason()
    }

    /// Ends the session's connection without a word.
    pub(crate) fn lose(&self) {
        self.driver.abort();
    }

    /// One exchange, up to the head of its response.
    pub(crate) async fn ask<B>(&self, request: Request<B>) -> Result<Response<RecvBody>, Problem>
    where
        B: Body<Data = Bytes> + Send + 'static,
        B::Error: AsProblem + std::fmt::Debug,
    {
        self.ask_hearing(request, |_, _| {}).await
    }

    /// The same, with the informational responses.
    pub(crate) async fn ask_hearing<B>(
        &self,
        request: Request<B>,
        hear: impl FnMut(StatusCode, HeaderMap),
    ) -> Result<Response<RecvBody>, Problem>
    where
        B: Body<Data = Bytes> + Send + 'static,
        B::Error: AsProblem + std::fmt::Debug,
    {
        match soon("a response", exchange(&self.session, request, hear)).await {
            Ok(response) => Ok(response),
            Err(ExchangeError::Failed { problem, .. }) => Err(problem),
            Err(other) => panic!("{other:?}"),
        }
    }

    /// One exchange that is answered whole, content and all.
    pub(crate) async fn fetch<B>(&self, request: Request<B>) -> Response<String>
    where
        B: Body<Data = Bytes> + Send + 'static,
        B::Error: AsProblem + std::fmt::Debug,
    {
        whole(self.ask(request).await.unwrap()).await
    }

    /// The reason why an exchange failed.
    pub(crate) async fn failure<B>(&self, request: Request<B>) -> Reason
    where
        B: Body<Data = Bytes> + Send + 'static,
        B::Error: AsProblem + std::fmt::Debug,
    {
        self.ask(request).await.unwrap_err().reason()
    }
}

/// A response with all of its content.
pub(crate) async fn whole(response: Response<RecvBody>) -> Response<String> {
    let (head, body) = response.into_parts();
    let body = soon("a content", body.collect()).await.unwrap().to_bytes();
    Response::from_parts(head, String::from_utf8(body.to_vec()).unwrap())
}

/// A refusal as a tunnel server gives it.
pub(crate) fn refusal(status: u16, reason: &str, fatal: bool) -> Response<String> {
    let detail = format!("the test says {reason}");
    let body = format!(r#"{{"reason":"{reason}","detail":"{detail}","fatal":{fatal}}}"#);
    Response::builder().status(status).body(body).unwrap()
}

async fn accept_all(
    listener: TcpListener,
    tls: Arc<ServerConfig>,
    refusals: Arc<Mutex<Vec<Response<String>>>>,
    arrivals: mpsc::Sender<Arrived>,
) {
    let mut tasks = JoinSet::new();
    loop {
        let (stream, _) = listener.accept().await.unwrap();
        stream.set_nodelay(true).unwrap();
        let (tls, refusals, arrivals) = (Arc::clone(&tls), Arc::clone(&refusals), arrivals.clone());
        tasks.spawn(async move {
            let Ok(stream) = TlsAcceptor::from(tls).accept(stream).await else {
                return;
            };
            let certificates = stream.get_ref().1.peer_certificates();
            let own = certificates.and_then(|chain| chain.first());
            let certificate = own.map(|own| own.to_vec());
            let service =
                service_fn(|request| answer(request, certificate.clone(), &refusals, &arrivals));
            let connection = hyper::server::conn::http1::Builder::new()
                .serve_connection(TokioIo::new(stream), service)
                .with_upgrades();
            let _ = connection.await;
        });
    }
}

async fn answer(
    mut request: Request<Incoming>,
    certificate: Option<Vec<u8>>,
    refusals: &Mutex<Vec<Response<String>>>,
    arrivals: &mpsc::Sender<Arrived>,
) -> Result<Response<Full<Bytes>>, std::convert::Infallible> {
    let greeting = handshake::check_request(&request).unwrap();
    let refusal = refusals.lock().pop();
    if let Some(refusal) = refusal {
        return Ok(refusal.map(|body| Full::new(body.into())));
    }
    let accept = handshake::accept_key(request.headers()[SEC_WEBSOCKET_KEY].as_bytes());
    let authorization = request.headers().get(AUTHORIZATION);
    let authorization = authorization.map(|value| value.to_str().unwrap().to_owned());
    let host = request.headers()[HOST].to_str().unwrap().to_owned();
    let upgrade = hyper::upgrade::on(&mut request);
    let arrivals = arrivals.clone();
    let mut tasks = JoinSet::new();
    tasks.spawn(async move {
        let io = TokioIo::new(upgrade.await.unwrap());
        arrivals
            .send(Arrived {
                greeting,
                authorization,
                host,
                certificate,
                io,
            })
            .await
            .unwrap();
    });
    tasks.detach_all();
    let response = Response::builder()
        .status(StatusCode::SWITCHING_PROTOCOLS)
        .header(CONNECTION, "upgrade")
        .header(UPGRADE, "websocket")
        .header(SEC_WEBSOCKET_ACCEPT, accept)
        .header(SEC_WEBSOCKET_PROTOCOL, SUBPROTOCOL);
    Ok(response.body(Full::default()).unwrap())
}
