//! From a connection to a session: the upgrade with a token.
//!
//! What the wire says of the upgrade is `tunnel_proto::handshake`'s; here is only the client's part.

use std::time::Duration;

use bytes::Bytes;
use http::{
    HeaderMap, Request, Response, StatusCode,
    header::{AUTHORIZATION, HOST, RETRY_AFTER},
};
use hyper::body::Incoming;
use tunnel_proto::{
    handshake::{self, Greeting, Refusal},
    refusal::Finality,
};

use crate::{
    client::{
        Stream, body,
        body::Outgoing,
        connection::{self, Connection, Http1},
    },
    fleet::HOST_NAME,
    measure::errors::{Failure, FailureKind},
};

/// Most bytes read of a refusal's content; the server's are far smaller.
const REFUSAL_BYTES: usize = 16 * 1024;

/// A connection that is a session's from here on, and what was read past the 101.
#[derive(Debug)]
pub(super) struct UpgradedConnection {
    pub(super) stream: Stream,
    pub(super) unread: Bytes,
}

/// Why there is no session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct DialFailure {
    /// What went wrong.
    pub(super) kind: FailureKind,
    /// The server says that dialling again cannot help.
    pub(super) is_fatal: bool,
    /// When to dial again at the earliest, after a refusal.
    pub(super) retry_after: Option<Duration>,
}

impl From<FailureKind> for DialFailure {
    fn from(kind: FailureKind) -> Self {
        Self {
            kind,
            is_fatal: false,
            retry_after: None,
        }
    }
}

impl From<Failure> for DialFailure {
    fn from(failure: Failure) -> Self {
        failure.kind.into()
    }
}

/// Asks for a session over a connection.
pub(super) async fn upgrade(
    stream: Stream,
    greeting: &Greeting,
    token: &str,
) -> Result<UpgradedConnection, DialFailure> {
    let key = handshake::new_key();
    let request: Request<Outgoing> = handshake::request(greeting, &key)
        .uri(handshake::CONNECT_PATH)
        .header(HOST, HOST_NAME)
        .header(AUTHORIZATION, format!("Bearer {token}"))
        .body(body::empty())
        .map_err(|_| FailureKind::Other("token_malformed"))?;
    let mut connection = Connection::One(Http1::new(stream).await?);
    let answer = connection.send(request).await?;
    if answer.status() != StatusCode::SWITCHING_PROTOCOLS {
        return Err(refused(answer, connection).await);
    }
    if !handshake::is_accepted(answer.headers(), greeting, &key) {
        return Err(FailureKind::Protocol.into());
    }
    let (stream, unread) = connection::upgraded(answer).await?;
    Ok(UpgradedConnection { stream, unread })
}

async fn refused(answer: Response<Incoming>, mut connection: Connection) -> DialFailure {
    let (head, content) = answer.into_parts();
    // Incomplete content is handled as content that is not the server's.
    let text = connection.collect(content, REFUSAL_BYTES).await;
    let refusal = serde_json::from_slice::<Refusal>(&text.unwrap_or_default());
    DialFailure {
        kind: FailureKind::Status(head.status.as_u16()),
        is_fatal: refusal.is_ok_and(|refusal| refusal.finality() == Finality::Final),
        retry_after: retry_after(&head.headers),
    }
}

/// Seconds, as the tunnel server says it. A date, which only a proxy on the way would send, is
/// taken for none.
fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let text = headers.get(RETRY_AFTER)?.to_str().ok()?;
    text.trim().parse().ok().map(Duration::from_secs)
}

#[cfg(test)]
mod tests {
    use tokio::{
        io::{AsyncReadExt as _, AsyncWriteExt as _},
        net::{TcpListener, TcpStream},
        task::LocalSet,
    };
    use tunnel_proto::handshake::InstanceSecret;

    use super::*;

    /// Asks a server, over plain TCP, that reads one head and answers with this.
    async fn ask(answer: &str) -> Result<UpgradedConnection, DialFailure> {
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
