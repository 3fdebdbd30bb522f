//! From an address to a session's connection: TCP, TLS, and the upgrade with a token.
//!
//! Each step has the same limit, and its own kind when it fails. What the wire says of the upgrade
//! is `tunnel_proto::handshake`'s; here is only who asks.

use std::{future::Future, io, net::SocketAddr, sync::Arc, time::Duration};

use bytes::{Bytes, BytesMut};
use http::{
    HeaderMap, Request, Response, StatusCode,
    header::{AUTHORIZATION, HOST, RETRY_AFTER},
};
use hyper::body::Incoming;
use rustls_pki_types::ServerName;
use tokio::{net::TcpStream, time::timeout};
use tokio_rustls::TlsConnector;
use tunnel_proto::{
    handshake::{self, Greeting, Refusal},
    refusal::Finality,
};

use crate::{
    client::{Stream, body::Outgoing, http1::Http1, kind_of_connect},
    measure::errors::{Failure, Kind},
};

/// Most bytes read of a refusal's content; the server's are far smaller.
const REFUSAL_BYTES: usize = 16 * 1024;

/// The name that is asked for. Any certificate is believed.
const HOST_NAME: &str = "localhost";

/// Dials one server. Cheap to clone.
#[derive(Clone, Debug)]
pub(super) struct Dialler {
    server: SocketAddr,
    tls: Arc<rustls::ClientConfig>,
    /// For each step.
    limit: Duration,
}

/// A connection that is a session's from here on, and what was read past the 101.
#[derive(Debug)]
pub(super) struct Link {
    pub(super) stream: Stream,
    pub(super) unread: Bytes,
}

/// Why there is no session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct NoSession {
    /// What went wrong.
    pub(super) kind: Kind,
    /// The server says that dialling again cannot help.
    pub(super) is_fatal: bool,
    /// When to dial again at the earliest, after a refusal.
    pub(super) retry_after: Option<Duration>,
}

impl From<Kind> for NoSession {
    fn from(kind: Kind) -> Self {
        Self {
            kind,
            is_fatal: false,
            retry_after: None,
        }
    }
}

impl From<Failure> for NoSession {
    fn from(failure: Failure) -> Self {
        failure.kind.into()
    }
}

impl Dialler {
    /// A dialler of this server.
    pub(super) fn new(server: SocketAddr, tls: Arc<rustls::ClientConfig>, limit: Duration) -> Self {
        Self { server, tls, limit }
    }

    /// TCP and TLS.
    pub(super) async fn connect(&self) -> Result<Stream, Kind> {
        let connecting = within(
            self.limit,
            Kind::ConnectTimeout,
            TcpStream::connect(self.server),
        );
        let stream = connecting.await?.map_err(|error| kind_of_connect(&error))?;
        // It fails only on a socket that is already dead, which the first write tells.
        drop(stream.set_nodelay(true));
        let name = ServerName::try_from(HOST_NAME).map_err(|_| Kind::TlsHandshake)?;
        let handshake = TlsConnector::from(self.tls.clone()).connect(name, stream);
        let late = Kind::Other("tls_timeout");
        match within(self.limit, late, handshake).await? {
            Ok(stream) => Ok(Stream::Right(Box::new(stream))),
            Err(error) => Err(kind_of_handshake(&error)),
        }
    }

    /// Asks for a session over a connection.
    pub(super) async fn upgrade(
        &self,
        stream: Stream,
        greeting: &Greeting,
        token: &str,
    ) -> Result<Link, NoSession> {
        let late = Kind::Other("upgrade_timeout");
        within(self.limit, late, upgrade(stream, greeting, token)).await?
    }
}

async fn within<F: Future>(limit: Duration, late: Kind, step: F) -> Result<F::Output, Kind> {
    timeout(limit, step).await.map_err(|_| late)
}

/// A server that is gone in the midst of it is no failure of TLS.
fn kind_of_handshake(error: &io::Error) -> Kind {
    match Kind::of_io(error) {
        Kind::Protocol => Kind::TlsHandshake,
        other => other,
    }
}

async fn upgrade(stream: Stream, greeting: &Greeting, token: &str) -> Result<Link, NoSession> {
    let key = handshake::new_key();
    let request: Request<Outgoing> = handshake::request(greeting, &key)
        .uri(handshake::CONNECT_PATH)
        .header(HOST, HOST_NAME)
        .header(AUTHORIZATION, format!("Bearer {token}"))
        .body(Outgoing::Empty)
        .map_err(|_| Kind::Other("token_malformed"))?;
    let mut connection = Http1::over(stream).await?;
    let answer = connection.send(request).await?;
    if answer.status() != StatusCode::SWITCHING_PROTOCOLS {
        return Err(refused(answer, connection).await);
    }
    if !handshake::is_accepted(answer.headers(), greeting, &key) {
        return Err(Kind::Protocol.into());
    }
    let (stream, unread) = connection.into_stream();
    Ok(Link { stream, unread })
}

async fn refused(answer: Response<Incoming>, mut connection: Http1) -> NoSession {
    let (head, mut content) = answer.into_parts();
    let mut text = BytesMut::new();
    // Content that breaks off says as much as content that is none of ours.
    while let Ok(Some(data)) = connection.frame(&mut content).await {
        text.extend_from_slice(&data[..data.len().min(REFUSAL_BYTES - text.len())]);
        if text.len() == REFUSAL_BYTES {
            break;
        }
    }
    let refusal = serde_json::from_slice::<Refusal>(&text);
    NoSession {
        kind: Kind::Status(head.status.as_u16()),
        is_fatal: refusal.is_ok_and(|refusal| refusal.finality() == Finality::Final),
        retry_after: retry_after(&head.headers),
    }
}

/// Seconds, as the tunnel server says it. A date, which only somebody on the way would send, is
/// taken for none.
fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let text = headers.get(RETRY_AFTER)?.to_str().ok()?;
    text.trim().parse().ok().map(Duration::from_secs)
}

#[cfg(test)]
mod tests {
    use tokio::{
        io::{AsyncReadExt as _, AsyncWriteExt as _},
        net::TcpListener,
    };
    use tunnel_proto::handshake::InstanceSecret;

    use super::*;

    /// Asks somebody, over plain TCP, who reads one head and answers with this.
    async fn ask(answer: &str) -> Result<Link, NoSession> {
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
            };
            upgrade(Stream::Left(stream), &greeting, "tnlrt_x").await
        };
        let (head, asked) = tokio::join!(server, client);
        assert!(head.starts_with("GET /connect HTTP/1.1\r\n"), "{head}");
        assert!(head.contains("authorization: Bearer tnlrt_x\r\n"), "{head}");
        asked
    }

    #[tokio::test]
    async fn a_refusal_says_its_status_and_when_to_come_again() {
        let busy =
            "HTTP/1.1 503 Service Unavailable\r\nretry-after: 7\r\ncontent-length: 0\r\n\r\n";
        let expected = NoSession {
            kind: Kind::Status(503),
            is_fatal: false,
            retry_after: Some(Duration::from_secs(7)),
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
        assert_eq!((refused.kind, refused.is_fatal), (Kind::Status(401), true));
    }

    #[tokio::test]
    async fn a_101_for_another_key_is_no_session() {
        let answer = "HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\n\
                      upgrade: websocket\r\nsec-websocket-accept: x\r\n\
                      sec-websocket-protocol: tunnel.v1\r\n\r\n";
        assert_eq!(ask(answer).await.unwrap_err().kind, Kind::Protocol);
    }

    #[tokio::test]
    async fn nobody_there_is_told_apart_from_no_tls() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let tls = crate::target::tls::client(crate::target::tls::Trust::Anybody, false).unwrap();
        let dialler = Dialler::new(address, tls, Duration::from_secs(20));
        let answer = async {
            let (mut stream, _) = listener.accept().await.unwrap();
            stream
                .write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n")
                .await
                .unwrap();
            stream
        };
        let (connected, _stream) = tokio::join!(dialler.connect(), answer);
        assert_eq!(connected.unwrap_err(), Kind::TlsHandshake);
        drop(listener);
        assert_eq!(dialler.connect().await.unwrap_err(), Kind::ConnectRefused);
    }
}
