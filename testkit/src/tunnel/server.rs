//! A fake tunnel server: it accepts or refuses the dials of a client, and each session is in the hands of the test.

use std::{
    net::SocketAddr,
    ops::{Deref, DerefMut},
    sync::Arc,
    time::{Duration, SystemTime},
};

use bytes::Bytes;
use http::{HeaderName, Request, Response, header};
use parking_lot::Mutex;
use tokio::{io::AsyncWriteExt, net::TcpStream, sync::mpsc, time::timeout};
use tokio_rustls::server::TlsStream;
use tunnel_ops::tls_files::{ClientAuth, Roots};
use tunnel_proto::{
    control::Control,
    handshake::{self, Greeting},
    session::{SessionSettings, Side},
};

use super::FakeEnd;
use crate::{
    ca::{CertifiedKey, self_signed},
    deadline::soon,
    http1::{Duplex, MessageReader},
    listener::Listener,
};

/// A listener for tunnel clients.
pub struct FakeServer {
    listener: Listener,
    key: CertifiedKey,
    granted: mpsc::Receiver<(SessionRequest, Box<dyn Duplex>)>,
    /// Refusals still to be given, the next one last.
    refusals: Arc<Mutex<Vec<Response<String>>>>,
}

/// A client's request for a session.
pub struct SessionRequest {
    /// What the client declares about itself.
    pub greeting: Greeting,
    /// The credential.
    pub authorization: Option<String>,
    /// The host that was asked for the session.
    pub host: String,
    /// The client's own certificate, DER.
    pub certificate: Option<Vec<u8>>,
    key: String,
}

/// The server's end of a session.
pub struct ServerSession {
    /// The request for it.
    pub request: SessionRequest,
    end: FakeEnd,
}

impl SessionRequest {
    /// Reads the request on a new connection; `None` if the connection ends first.
    pub async fn read(io: &mut impl Duplex) -> Option<Self> {
        let mut reader = MessageReader::new(io);
        let head = reader.read_head().await.ok()?;
        let (_, unread) = reader.into_parts();
        assert!(unread.is_empty(), "sent before the 101: {unread:?}");
        let mut request = Request::builder().uri(head.target()).body(()).unwrap();
        *request.headers_mut() = head.headers();
        let text = |name: HeaderName| head.value(name.as_str()).map(str::to_owned);
        Some(Self {
            greeting: handshake::check_request(&request).unwrap(),
            authorization: text(header::AUTHORIZATION),
            host: text(header::HOST).unwrap(),
            certificate: None,
            key: text(header::SEC_WEBSOCKET_KEY).unwrap(),
        })
    }

    /// Answers it with the 101.
    pub async fn grant(&self, io: &mut impl Duplex) {
        let accept = handshake::accept_key(self.key.as_bytes());
        let protocol = self.greeting.subprotocol();
        let date = httpdate::fmt_http_date(SystemTime::now());
        let head = format!(
            "HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: websocket\r\n\
             date: {date}\r\nsec-websocket-accept: {accept}\r\nsec-websocket-protocol: {protocol}\r\n\r\n"
        );
        // A client that has gone shows when something is read.
        let _ = io.write_all(head.as_bytes()).await;
        let _ = io.flush().await;
    }
}

impl FakeServer {
    /// Starts one.
    pub async fn start() -> Self {
        Self::with_client_auth(None).await
    }

    /// Starts one that asks its clients for certificates.
    pub async fn with_client_auth(client_auth: Option<ClientAuth>) -> Self {
        let key = self_signed("127.0.0.1");
        let refusals = Arc::<Mutex<Vec<_>>>::default();
        let (grants, granted) = mpsc::channel(8);
        let answers = Arc::clone(&refusals);
        let serve = move |mut stream: TlsStream<TcpStream>| {
            let (answers, grants) = (Arc::clone(&answers), grants.clone());
            async move {
                let Some(mut request) = SessionRequest::read(&mut stream).await else {
                    return;
                };
                let refusal = answers.lock().pop();
                if let Some(refusal) = refusal {
                    return refuse(&mut stream, &refusal).await;
                }
                let certificates = stream.get_ref().1.peer_certificates();
                let own = certificates.and_then(|chain| chain.first());
                request.certificate = own.map(|own| own.to_vec());
                request.grant(&mut stream).await;
                let stream: Box<dyn Duplex> = Box::new(stream);
                let _ = grants.send((request, stream)).await;
            }
        };
        let listener = Listener::tls(&key.identity(), client_auth.as_ref(), serve).await;
        Self {
            listener,
            key,
            granted,
            refusals,
        }
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.listener.address
    }

    /// Its URL.
    pub fn url(&self) -> String {
        self.listener.url()
    }

    /// Its certificate as the only root to trust.
    pub fn roots(&self) -> Roots {
        self.key.roots()
    }

    /// Its certificate, which is its own issuer.
    pub fn pem(&self) -> &str {
        &self.key.certificate
    }

    /// Refuses the next dials with these answers, in this order.
    pub fn refuse(&self, answers: impl IntoIterator<Item = Response<String>>) {
        let mut refusals = self.refusals.lock();
        refusals.extend(answers);
        refusals.reverse();
    }

    async fn granted(&mut self) -> (SessionRequest, Box<dyn Duplex>) {
        soon("a client", self.granted.recv()).await.unwrap()
    }

    /// The connection of the next session.
    pub async fn accept_bytes(&mut self) -> Box<dyn Duplex> {
        self.granted().await.1
    }

    /// The next session, not welcomed yet.
    pub async fn accept(&mut self) -> ServerSession {
        let (request, io) = self.granted().await;
        let settings = SessionSettings::default();
        ServerSession {
            request,
            end: FakeEnd::new(io, Bytes::new(), Side::Server, settings),
        }
    }

    /// The next session, welcomed.
    pub async fn welcome(&mut self) -> ServerSession {
        let session = self.accept().await;
        session.welcome();
        session
    }

    /// Whether no client is given a session for this time.
    pub async fn is_left_alone(&mut self, time: Duration) -> bool {
        timeout(time, self.granted.recv()).await.is_err()
    }
}

impl ServerSession {
    /// Welcomes the client.
    pub fn welcome(&self) {
        self.welcome_at(None);
    }

    /// Welcomes the client as the node of this name.
    pub fn welcome_at(&self, node: Option<&str>) {
        self.send(Control::Welcome {
            runtime: "a-b".to_owned(),
            session: "1".to_owned(),
            version: "test".to_owned(),
            node: node.map(str::to_owned),
            url: None,
        });
    }
}

impl Deref for ServerSession {
    type Target = FakeEnd;

    fn deref(&self) -> &FakeEnd {
        &self.end
    }
}

impl DerefMut for ServerSession {
    fn deref_mut(&mut self) -> &mut FakeEnd {
        &mut self.end
    }
}

/// A refusal as a tunnel server gives it.
pub fn refusal(status: u16, reason: &str, fatal: bool) -> Response<String> {
    let detail = format!("the test says {reason}");
    let body = format!(r#"{{"reason":"{reason}","detail":"{detail}","fatal":{fatal}}}"#);
    Response::builder().status(status).body(body).unwrap()
}

/// Sends an answer, and closes.
async fn refuse(io: &mut impl Duplex, answer: &Response<String>) {
    let (status, content) = (answer.status(), answer.body());
    let mut text = format!("HTTP/1.1 {status}\r\ncontent-length: {}\r\n", content.len());
    for (name, value) in answer.headers() {
        text += &format!("{name}: {}\r\n", value.to_str().unwrap());
    }
    text += &format!("\r\n{content}");
    let _ = io.write_all(text.as_bytes()).await;
    let _ = io.shutdown().await;
}
