//! One simulated client: it dials, holds its session, answers, and dials again.
//!
//! What the wire says of the upgrade is `tunnel_proto::handshake`'s, and the waits between dials are `tunnel_proto::redial`'s, as
//! in a real client.

use std::{cell::Cell, pin::pin, rc::Rc, sync::Arc, time::Duration};

use bytes::Bytes;
use http::{
    HeaderValue, Request, Response, StatusCode,
    header::{AUTHORIZATION, CONTENT_LENGTH, HOST, RETRY_AFTER},
};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use tokio::{
    io::AsyncReadExt as _,
    sync::Semaphore,
    task::JoinSet,
    time::{Instant, sleep, timeout},
};
use tunnel_proto::{
    close::{AfterClose, CloseReason},
    control::Control,
    exchange::{RecvBody, serve},
    handshake::{self, Greeting, InstanceSecret, Refusal},
    problem::{Hop, Problem},
    redial::{NoSession, Redial, RedialSettings},
    refusal::Finality,
    session::{Session, SessionEvent, SessionSettings, Side},
};

use crate::{
    client::{
        Dialer, Stream, body,
        connection::{self, Connection, Http1},
        template::connected,
    },
    fleet::{HOST_NAME, status::Counters},
    measure::errors::{Failure, FailureKind},
};

/// How long a client waits to be welcomed, as a real one.
const WELCOME_LIMIT: Duration = Duration::from_secs(10);

/// What every exchange is answered with.
const ANSWER: &[u8] = b"ok";

/// Most bytes read of a refusal's content; the server's are far smaller.
const REFUSAL_BYTES: usize = 16 * 1024;

/// Bound of the first wait, and of any wait, as the defaults of a real client.
const BASE: Duration = Duration::from_secs(1);
const CAP: Duration = Duration::from_secs(30);

/// What the clients of one thread share.
#[derive(Debug)]
pub(super) struct FleetThread {
    /// One for each server.
    pub(super) dialers: Vec<Dialer>,
    /// How many dials there were, from where this thread begins: they go to the servers in turn.
    pub(super) dialled: Cell<usize>,
    /// Longest time for each step of a dial.
    pub(super) limit: Duration,
    pub(super) counters: Arc<Counters>,
    /// How long a session has to last for the waits between dials to start over.
    pub(super) stable: Duration,
    /// Bounds the first dials.
    pub(super) first: Semaphore,
}

/// Why there is no session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct DialFailure {
    /// What went wrong.
    kind: FailureKind,
    /// The server says that dialling again cannot help.
    is_fatal: bool,
    /// What was found, which decides when to dial again.
    found: NoSession,
}

impl From<Failure> for DialFailure {
    fn from(failure: Failure) -> Self {
        Self {
            kind: failure.kind,
            is_fatal: false,
            found: match failure.kind {
                FailureKind::Other(_) => NoSession::Refused(None),
                _ => NoSession::NoServer(None),
            },
        }
    }
}

fn other(kind: &'static str) -> Failure {
    Failure::fatal(FailureKind::Other(kind))
}

/// One client's life; ends when the server tells it to stay away. Without a token it only makes a TLS connection
/// and keeps it.
pub(super) async fn run(fleet: Rc<FleetThread>, token: Option<Box<str>>) {
    let mut redial = Redial::new(RedialSettings {
        base: BASE,
        cap: CAP,
        stable: fleet.stable,
    });
    let mut instance = [0; 16];
    // Without it a client would only be harder to tell from another in the server's log.
    let _ = getrandom::fill(&mut instance);
    let mut greeting = Greeting {
        instance: InstanceSecret::from_random(instance),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        session_number: 0,
        allow_from: None,
        is_check: false,
        stands_by: false,
        placement: None,
    };
    // The semaphore is never closed.
    let mut turn = fleet.first.acquire().await.ok();
    let mut without = Instant::now();
    loop {
        greeting.session_number += 1;
        let on_connected = || {
            drop(turn.take());
            fleet.counters.on_connected(without.elapsed());
        };
        let session = fleet.session(token.as_deref(), &greeting, on_connected);
        let ended = Box::pin(session).await;
        let (now, random) = (Instant::now(), getrandom::u64().unwrap_or_default());
        let stays_away = match ended {
            Ok((reason, lived)) => {
                fleet.counters.on_lost();
                without = now;
                redial.after_session(reason, lived, now, random);
                reason.after() == AfterClose::Stop
            }
            Err(none) => {
                fleet.counters.on_failure(none.kind);
                redial.after_failure(none.found, now, random);
                none.is_fatal
            }
        };
        turn = None;
        if stays_away {
            return fleet.counters.count(|status| status.stopped += 1);
        }
        sleep(redial.next_dial(now).after(now)).await;
    }
}

impl FleetThread {
    /// Dials, and holds what came of it until it ends: why it did, and how long it lived. An error when the client was
    /// never welcomed.
    async fn session(
        &self,
        token: Option<&str>,
        greeting: &Greeting,
        on_connected: impl FnOnce(),
    ) -> Result<(CloseReason, Duration), DialFailure> {
        // Boxed, so that a client at rest holds nothing of what a dial needs.
        let dialled = Box::pin(self.dial(token, greeting)).await?;
        let began = Instant::now();
        let reason = match dialled {
            (mut stream, None) => {
                on_connected();
                while stream.read_u8().await.is_ok() {}
                CloseReason::Other(1006)
            }
            (stream, Some(unread)) => Box::pin(hold(stream, unread, on_connected)).await?,
        };
        Ok((reason, began.elapsed()))
    }

    /// A connection, and with a token that of a session, with what was read past the 101.
    async fn dial(
        &self,
        token: Option<&str>,
        greeting: &Greeting,
    ) -> Result<(Stream, Option<Bytes>), DialFailure> {
        let dialled = self.dialled.get();
        self.dialled.set(dialled.wrapping_add(1));
        let dialer = self.dialers.get(dialled % self.dialers.len().max(1));
        let dialer = dialer.ok_or_else(|| other("no_server"))?;
        let stream = connected(self.limit, dialer.dial()).await?;
        self.counters.count(|status| status.handshakes += 1);
        let Some(token) = token else {
            return Ok((stream, None));
        };
        let asking = timeout(self.limit, upgrade(stream, greeting, token)).await;
        let (stream, unread) = asking.map_err(|_| other("upgrade_timeout"))??;
        Ok((stream, Some(unread)))
    }
}

/// Asks for a session over a connection.
async fn upgrade(
    stream: Stream,
    greeting: &Greeting,
    token: &str,
) -> Result<(Stream, Bytes), DialFailure> {
    let key = handshake::new_key();
    let request = handshake::request(greeting, &key)
        .uri(handshake::CONNECT_PATH)
        .header(HOST, HOST_NAME)
        .header(AUTHORIZATION, format!("Bearer {token}"))
        .body(body::empty())
        .map_err(|_| other("token_malformed"))?;
    let mut connection = Connection::One(Http1::new(stream).await?);
    let answer = connection.send(request).await?;
    if answer.status() != StatusCode::SWITCHING_PROTOCOLS {
        return Err(refused(answer, connection).await);
    }
    if !handshake::is_accepted(answer.headers(), greeting, &key) {
        return Err(Failure::fatal(FailureKind::Protocol).into());
    }
    Ok(connection::upgraded(answer).await?)
}

async fn refused(answer: Response<Incoming>, mut connection: Connection) -> DialFailure {
    let (head, content) = answer.into_parts();
    // Incomplete content is handled as content that is not the server's.
    let text = connection.collect(content, REFUSAL_BYTES).await;
    let refusal = serde_json::from_slice::<Refusal>(&text.unwrap_or_default()).ok();
    // Seconds, as the tunnel server says it. A date, which only a proxy on the way would send, is taken for none.
    let after = head.headers.get(RETRY_AFTER);
    let after: Option<u64> = after.and_then(|text| text.to_str().ok()?.trim().parse().ok());
    DialFailure {
        kind: FailureKind::Status(head.status.as_u16()),
        found: NoSession::after_response(refusal.as_ref(), after.map(Duration::from_secs)),
        is_fatal: refusal.is_some_and(|refusal| refusal.finality() == Finality::Final),
    }
}

/// Holds a session until it ends; an error when it was never welcomed.
async fn hold(
    stream: Stream,
    unread: Bytes,
    on_connected: impl FnOnce(),
) -> Result<CloseReason, Failure> {
    let settings = SessionSettings::default();
    let (session, mut events, driver) = Session::new(stream, unread, Side::Client, settings);
    // A session that has ended already says so below.
    let _ = session.send(Control::Hello {
        version: env!("CARGO_PKG_VERSION").to_owned(),
    });
    let mut driver = pin!(driver);
    let mut streams = JoinSet::new();
    let mut on_connected = Some(on_connected);
    let mut late = pin!(sleep(WELCOME_LIMIT));
    let end = loop {
        tokio::select! {
            end = &mut driver => break end,
            Some(event) = events.next(&session) => match event {
                SessionEvent::Stream(stream) => {
                    streams.spawn_local(serve(stream, |request, _| answer(request)));
                }
                SessionEvent::Control(Control::Welcome { .. }) => {
                    if let Some(on_connected) = on_connected.take() {
                        on_connected();
                    }
                }
                SessionEvent::Control(_) => {}
            },
            Some(_) = streams.join_next() => {}
            () = &mut late, if on_connected.is_some() && !late.is_elapsed() => {
                session.close(CloseReason::ProtocolError);
            }
        }
    };
    match on_connected {
        Some(_) => Err(other("not_welcomed")),
        None => Ok(end.reason()),
    }
}

/// Takes a request to its end and answers with two bytes.
async fn answer(request: Request<RecvBody>) -> Result<Response<Full<Bytes>>, Problem> {
    let mut content = request.into_body();
    while let Some(frame) = content.frame().await {
        frame.map_err(|error| error.problem(Hop::Client))?;
    }
    let mut response = Response::new(Full::from(ANSWER));
    let length = HeaderValue::from(ANSWER.len());
    response.headers_mut().insert(CONTENT_LENGTH, length);
    Ok(response)
}

#[cfg(test)]
mod tests {
    use rustls::{ServerConfig, crypto::aws_lc_rs};
    use rustls_pki_types::PrivateKeyDer;
    use tokio::{
        io::{AsyncReadExt as _, AsyncWriteExt as _},
        net::{TcpListener, TcpStream},
        task::LocalSet,
    };
    use tokio_rustls::TlsAcceptor;
    use tunnel_proto::handshake::InstanceSecret;

    use super::*;
    use crate::fleet;

    fn acceptor() -> TlsAcceptor {
        let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
        let key = PrivateKeyDer::try_from(made.signing_key.serialize_der()).unwrap();
        let config = ServerConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
            .with_protocol_versions(&[&rustls::version::TLS13])
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![made.cert.der().clone()], key)
            .unwrap();
        Arc::new(config).into()
    }

    /// Lets one client dial; answers its first request and returns when that came.
    async fn answer(listener: &TcpListener, tls: &TlsAcceptor, answer: &str) -> Instant {
        let (stream, _) = listener.accept().await.unwrap();
        let mut stream = tls.accept(stream).await.unwrap();
        let came = Instant::now();
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            head.push(stream.read_u8().await.unwrap());
        }
        stream.write_all(answer.as_bytes()).await.unwrap();
        stream.shutdown().await.unwrap();
        came
    }

    #[tokio::test]
    async fn comes_again_no_earlier_than_asked_and_stays_away_when_told() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let server = listener.local_addr().unwrap();
        let counters = Arc::new(Counters::default());
        let workers = Rc::new(FleetThread {
            dialers: fleet::dialers(&[server]).unwrap(),
            dialled: Cell::default(),
            limit: Duration::from_secs(20),
            counters: counters.clone(),
            stable: Duration::from_secs(20),
            first: Semaphore::new(1),
        });
        let tls = acceptor();
        let serving = async {
            let busy = "HTTP/1.1 503 Service Unavailable\r\nretry-after: 1\r\n\r\n";
            let first = answer(&listener, &tls, busy).await;
            let content = r#"{"reason":"credential_revoked","detail":"x","fatal":true}"#;
            let never = format!("HTTP/1.1 401 Unauthorized\r\n\r\n{content}");
            answer(&listener, &tls, &never).await - first
        };
        let client = run(workers, Some("tnlrt_x".into()));
        let both = async { tokio::join!(serving, client) };
        let (waited, ()) = LocalSet::new().run_until(both).await;
        assert!(waited >= Duration::from_secs(1), "{waited:?}");
        let status = counters.next();
        assert_eq!(
            (status.handshakes, status.connected, status.stopped),
            (2, 0, 1)
        );
        let expected = [("status_401".to_owned(), 1), ("status_503".to_owned(), 1)];
        assert_eq!(status.failures, expected.into());
    }

    /// Asks a server, over plain TCP, that reads one head and answers with this.
    async fn ask(answer: &str) -> Result<(Stream, Bytes), DialFailure> {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let server = async {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut head = Vec::new();
            while !head.ends_with(b"\r\n\r\n") {
                head.push(stream.read_u8().await.unwrap());
            }
            stream.write_all(answer.as_bytes()).await.unwrap();
            String::from_utf8(head).unwrap()
        };
        let client = async {
            let stream = TcpStream::connect(listener.local_addr().unwrap())
                .await
                .unwrap();
            let greeting = Greeting {
                instance: InstanceSecret::from_random([1; 16]),
                version: "0.1.0".to_owned(),
                session_number: 3,
                allow_from: None,
                is_check: false,
                stands_by: false,
                placement: None,
            };
            upgrade(Stream::Left(stream), &greeting, "tnlrt_x").await
        };
        let both = async { tokio::join!(server, client) };
        let (head, asked) = LocalSet::new().run_until(both).await;
        assert!(head.starts_with("GET /connect HTTP/1.1\r\n"), "{head}");
        assert!(head.contains("authorization: Bearer tnlrt_x\r\n"), "{head}");
        asked
    }

    #[tokio::test]
    async fn a_refusal_says_its_status_and_when_to_come_again() {
        let busy =
            "HTTP/1.1 503 Service Unavailable\r\nretry-after: 7\r\ncontent-length: 0\r\n\r\n";
        let expected = DialFailure {
            kind: FailureKind::Status(503),
            is_fatal: false,
            found: NoSession::NoServer(Some(Duration::from_secs(7))),
        };
        assert_eq!(ask(busy).await.unwrap_err(), expected);
    }

    #[tokio::test]
    async fn a_fatal_refusal_is_known_by_its_content() {
        let content = r#"{"reason":"credential_revoked","detail":"x","fatal":true}"#;
        let length = content.len();
        let refusal =
            format!("HTTP/1.1 401 Unauthorized\r\ncontent-length: {length}\r\n\r\n{content}");
        let refused = ask(&refusal).await.unwrap_err();
        assert_eq!(
            (refused.kind, refused.is_fatal),
            (FailureKind::Status(401), true)
        );
    }

    #[tokio::test]
    async fn a_101_for_another_key_is_no_session() {
        let answer = "HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\n\
                  upgrade: websocket\r\nsec-websocket-accept: x\r\n\
                  sec-websocket-protocol: tunnel.v1\r\n\r\n";
        assert_eq!(ask(answer).await.unwrap_err().kind, FailureKind::Protocol);
    }
}
