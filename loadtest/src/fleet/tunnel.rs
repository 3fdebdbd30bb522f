//! One simulated client: it dials, holds its session, answers, and dials again.

use std::{pin::pin, rc::Rc, sync::Arc, time::Duration};

use bytes::Bytes;
use http::{HeaderValue, Request, Response, header::CONTENT_LENGTH};
use http_body_util::{BodyExt as _, Full};
use tokio::{
    io::AsyncReadExt as _,
    sync::Semaphore,
    task::JoinSet,
    time::{Instant, sleep, timeout},
};
use tunnel_proto::{
    close::CloseReason,
    control::Control,
    exchange::{RecvBody, serve},
    handshake::{Greeting, InstanceSecret},
    problem::{Hop, Problem},
    session::{Session, SessionEvent, SessionSettings, Side},
};

use crate::{
    client::{Dialer, Stream, template::connected},
    fleet::{
        dial::{DialFailure, UpgradedConnection, upgrade},
        redial::Redial,
        status::Counters,
    },
    measure::errors::FailureKind,
};

/// How long a client waits to be welcomed, as a real one.
const WELCOME_LIMIT: Duration = Duration::from_secs(10);

/// What every exchange is answered with.
const ANSWER: &[u8] = b"ok";

/// What the clients of one thread share.
#[derive(Debug)]
pub(super) struct FleetThread {
    pub(super) dialer: Dialer,
    /// Longest time for each step of a dial.
    pub(super) limit: Duration,
    pub(super) counters: Arc<Counters>,
    /// How long a session has to last for the waits between dials to start over.
    pub(super) stable: Duration,
    /// Bounds the first dials.
    pub(super) first: Semaphore,
}

/// What a worker does.
pub(super) enum SimulatedClient {
    /// It is a tunnel client with this token.
    Client(Box<str>),
    /// It only makes a TLS connection and keeps it.
    Handshake,
}

/// How a session ended.
struct SessionEnd {
    reason: CloseReason,
    lived: Duration,
}

/// One client's life; ends when the server tells it to stay away.
pub(super) async fn run(workers: Rc<FleetThread>, worker: SimulatedClient) {
    let mut redial = Redial::new(workers.stable);
    let mut instance = [0; 16];
    // Without it a client would only be harder to tell from another in the server's log.
    let _ = getrandom::fill(&mut instance);
    let mut greeting = Greeting {
        instance: InstanceSecret::from_random(instance),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        session_number: 0,
        allow_from: None,
        is_check: false,
        placement: None,
    };
    // The semaphore is never closed.
    let mut turn = workers.first.acquire().await.ok();
    let mut without = Instant::now();
    loop {
        greeting.session_number += 1;
        let random = || getrandom::u64().unwrap_or_default();
        let on_connected = || drop(turn.take());
        // Boxed, so that a client at rest holds nothing of what a dial needs.
        let came_of_it = match Box::pin(dial(&workers, &worker, &greeting)).await {
            Ok(Dialled::Session(link)) => {
                Box::pin(hold(&workers, link, without, on_connected)).await
            }
            Ok(Dialled::Bare(stream)) => Ok(keep(&workers, stream, without, on_connected).await),
            Err(none) => Err(none),
        };
        let next = match came_of_it {
            Ok(ended) => {
                without = Instant::now();
                redial.after_session(ended.reason, ended.lived, random())
            }
            Err(none) => {
                workers.counters.on_failure(none.kind);
                (!none.is_fatal).then(|| redial.after_failure(none.retry_after, random()))
            }
        };
        turn = None;
        match next {
            Some(wait) => sleep(wait).await,
            None => return workers.counters.count(|status| status.stopped += 1),
        }
    }
}

/// What a dial gave.
enum Dialled {
    Session(UpgradedConnection),
    Bare(Stream),
}

async fn dial(
    workers: &FleetThread,
    worker: &SimulatedClient,
    greeting: &Greeting,
) -> Result<Dialled, DialFailure> {
    let stream = connected(workers.limit, workers.dialer.dial()).await?;
    workers.counters.count(|status| status.handshakes += 1);
    let SimulatedClient::Client(token) = worker else {
        return Ok(Dialled::Bare(stream));
    };
    let asking = timeout(workers.limit, upgrade(stream, greeting, token));
    let late = |_| FailureKind::Other("upgrade_timeout");
    Ok(Dialled::Session(asking.await.map_err(late)??))
}

/// Keeps a connection that says nothing until it ends.
async fn keep(
    workers: &FleetThread,
    mut stream: Stream,
    without: Instant,
    on_connected: impl FnOnce(),
) -> SessionEnd {
    let began = Instant::now();
    let _up = workers.counters.on_connected(without.elapsed());
    on_connected();
    while stream.read_u8().await.is_ok() {}
    SessionEnd {
        reason: CloseReason::Other(1006),
        lived: began.elapsed(),
    }
}

/// Holds a session until it ends; an error when it was never welcomed.
async fn hold(
    workers: &FleetThread,
    link: UpgradedConnection,
    without: Instant,
    on_connected: impl FnOnce(),
) -> Result<SessionEnd, DialFailure> {
    let began = Instant::now();
    let settings = SessionSettings::default();
    let made = Session::new(link.stream, link.unread, Side::Client, settings);
    let (session, mut events, driver) = made;
    // A session that has ended already says so below.
    let _ = session.send(Control::Hello {
        version: env!("CARGO_PKG_VERSION").to_owned(),
    });
    let mut driver = pin!(driver);
    let mut streams = JoinSet::new();
    let mut on_connected = Some(on_connected);
    let mut up = None;
    let mut late = pin!(sleep(WELCOME_LIMIT));
    let end = loop {
        tokio::select! {
            end = &mut driver => break end,
            Some(event) = events.next(&session) => match event {
                SessionEvent::Exchanges(stream) => {
                    streams.spawn_local(serve(stream, |request, _| answer(request)));
                }
                SessionEvent::Control(Control::Welcome { .. }) => {
                    if let Some(on_connected) = on_connected.take() {
                        up = Some(workers.counters.on_connected(without.elapsed()));
                        on_connected();
                    }
                }
                SessionEvent::Control(_) => {}
            },
            Some(_) = streams.join_next() => {}
            () = &mut late, if up.is_none() && !late.is_elapsed() => {
                session.close(CloseReason::ProtocolError);
            }
        }
    };
    if up.is_none() {
        return Err(FailureKind::Other("not_welcomed").into());
    }
    Ok(SessionEnd {
        reason: end.reason(),
        lived: began.elapsed(),
    })
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
    use tokio::{io::AsyncWriteExt as _, net::TcpListener, task::LocalSet};
    use tokio_rustls::TlsAcceptor;

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

    /// Lets one client dial; answers its first request and gives when that came.
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
            dialer: fleet::dialer(server).unwrap(),
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
        let client = run(workers, SimulatedClient::Client("tnlrt_x".into()));
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
}
