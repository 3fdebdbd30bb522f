//! From a connection under TLS to a session's connection: the request, and the 101 that answers it.
//!
//! Any other status is a refusal. Its JSON content has the reason, and whether dialling again can help; without such
//! content, as from a proxy in between, only the status is known.

use std::error::Error as _;
use std::io;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use http::header::{AUTHORIZATION, HOST, RETRY_AFTER, USER_AGENT};
use http::{HeaderMap, HeaderValue, Request, Response, StatusCode};
use http_body_util::Empty;
use hyper::body::Incoming;
use secrecy::{ExposeSecret, SecretString};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::timeout;
use tunnel_proto::handshake::{self, Greeting, Refusal};

use crate::http1::Http1;

/// Most bytes read of a refusal's content; a tunnel server's is far smaller.
const REFUSAL_BYTES: usize = 16 * 1024;
/// Most fields and bytes of a response's head. A tunnel server's has a dozen short fields.
const HEAD_FIELDS: usize = 100;
const HEAD_BYTES: usize = 32 * 1024;

/// The response to the request for a session, and its outcome.
pub(super) struct UpgradeResponse<IO> {
    /// Its status.
    pub(super) status: StatusCode,
    /// Its fields.
    pub(super) fields: HeaderMap,
    /// The beginning of its content, if it is not a 101.
    pub(super) text: Bytes,
    /// A session, or a refusal.
    pub(super) outcome: UpgradeOutcome<IO>,
}

/// The outcome of a request for a session.
pub(super) enum UpgradeOutcome<IO> {
    /// The upgraded connection, and the bytes that were read after the head of the 101.
    Accepted(IO, Bytes),
    /// No session.
    Refused(RefusalResponse),
}

/// A response without a session, from the server or from a program in between.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RefusalResponse {
    /// Its status.
    pub(crate) status: StatusCode,
    /// Its parsed content; `None` if it is not that of a tunnel server.
    pub(crate) refusal: Option<Refusal>,
    /// The earliest time to try again, from its `Retry-After`.
    pub(crate) retry_after: Option<Duration>,
}

/// A 101 that does not match the request.
#[derive(Debug, thiserror::Error)]
#[error("the server switched to another protocol than the tunnel's")]
pub(super) struct NotATunnel;

/// Requests a session. The time-out `limit` covers the head of the response; the content of a refusal has a short
/// time-out of its own.
pub(super) async fn upgrade<IO>(
    io: IO,
    host: &str,
    greeting: &Greeting,
    token: Option<&SecretString>,
    limit: Duration,
) -> io::Result<UpgradeResponse<IO>>
where
    IO: AsyncRead + AsyncWrite + Unpin,
{
    let key = handshake::new_key();
    let request = request(host, greeting, token, &key)?;
    let (response, connection) = send(io, request, limit).await?;
    if response.status() != StatusCode::SWITCHING_PROTOCOLS {
        return Ok(refused(response, connection).await);
    }
    if !handshake::is_accepted(response.headers(), greeting, &key) {
        return Err(io::Error::other(NotATunnel));
    }
    // hyper's connection ends in the poll that returns the 101.
    let remains = connection
        .into_remains()
        .ok_or(io::ErrorKind::UnexpectedEof)?;
    let (head, _) = response.into_parts();
    Ok(UpgradeResponse {
        status: head.status,
        fields: head.headers,
        text: Bytes::new(),
        outcome: UpgradeOutcome::Accepted(remains.io, remains.unread),
    })
}

/// Sends a request without token and `Upgrade`, and returns the response.
pub(super) async fn probe<IO>(
    io: IO,
    host: &str,
    limit: Duration,
) -> io::Result<(StatusCode, HeaderMap, Bytes)>
where
    IO: AsyncRead + AsyncWrite + Unpin,
{
    let request = Request::get(handshake::CONNECT_PATH)
        .header(HOST, host)
        .header(USER_AGENT, super::USER_AGENT);
    let request = request.body(Empty::new()).map_err(io::Error::other)?;
    let (response, connection) = send(io, request, limit).await?;
    let response = refused(response, connection).await;
    Ok((response.status, response.fields, response.text))
}

/// Sends the request, and returns the head of the response within the limit.
async fn send<IO>(
    io: IO,
    request: Request<Empty<Bytes>>,
    limit: Duration,
) -> io::Result<(Response<Incoming>, Http1<IO, Empty<Bytes>>)>
where
    IO: AsyncRead + AsyncWrite + Unpin,
{
    let mut connection = Http1::new(io, HEAD_FIELDS, HEAD_BYTES)
        .await
        .map_err(io::Error::other)?;
    let sent = timeout(limit, connection.send_request(request)).await;
    let response = sent
        .map_err(|_| io::ErrorKind::TimedOut)?
        .map_err(|error| cause(&error.into_error()))?;
    Ok((response, connection))
}

fn request(
    host: &str,
    greeting: &Greeting,
    token: Option<&SecretString>,
    key: &str,
) -> io::Result<Request<Empty<Bytes>>> {
    let mut request = handshake::request(greeting, key)
        .uri(handshake::CONNECT_PATH)
        .header(HOST, host)
        .header(USER_AGENT, super::USER_AGENT);
    if let Some(token) = token {
        // The errors do not contain the value.
        let bearer = format!("Bearer {}", token.expose_secret());
        let mut bearer = HeaderValue::try_from(bearer).map_err(io::Error::other)?;
        bearer.set_sensitive(true);
        request = request.header(AUTHORIZATION, bearer);
    }
    request.body(Empty::new()).map_err(io::Error::other)
}

async fn refused<IO>(
    response: Response<Incoming>,
    mut connection: Http1<IO, Empty<Bytes>>,
) -> UpgradeResponse<IO>
where
    IO: AsyncRead + AsyncWrite + Unpin,
{
    let (head, body) = response.into_parts();
    let (text, _) = connection.beginning(body, REFUSAL_BYTES).await;
    let refused = RefusalResponse {
        status: head.status,
        refusal: serde_json::from_slice(&text).ok(),
        retry_after: retry_after(&head.headers, SystemTime::now()),
    };
    UpgradeResponse {
        status: head.status,
        fields: head.headers,
        text,
        outcome: UpgradeOutcome::Refused(refused),
    }
}

/// RFC 9110 section 10.2.3: seconds, or a date.
fn retry_after(headers: &HeaderMap, now: SystemTime) -> Option<Duration> {
    let text = headers.get(RETRY_AFTER)?.to_str().ok()?.trim();
    if let Ok(seconds) = text.parse() {
        return Some(Duration::from_secs(seconds));
    }
    let date = httpdate::parse_http_date(text).ok()?;
    Some(date.duration_since(now).unwrap_or_default())
}

/// hyper's error with its cause, which hyper's `Display` leaves out.
fn cause(error: &hyper::Error) -> io::Error {
    match error.source() {
        Some(source) => io::Error::other(format!("{error}: {source}")),
        None => io::Error::other(error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};
    use tunnel_proto::handshake::{InstanceSecret, accept_key};

    use super::*;

    fn greeting() -> Greeting {
        Greeting {
            instance: InstanceSecret::from_random([1; 16]),
            version: "0.1.0".to_owned(),
            session_number: 3,
            allow_from: None,
            is_check: false,
            stands_by: false,
            placement: None,
        }
    }

    /// Dials a peer that reads one head and answers with what `answer` makes of it.
    async fn dial(answer: impl FnOnce(&str) -> String) -> io::Result<UpgradeOutcome<DuplexStream>> {
        let (ours, mut theirs) = duplex(64 * 1024);
        let server = async {
            let mut head = Vec::new();
            while !head.ends_with(b"\r\n\r\n") {
                head.push(theirs.read_u8().await.unwrap());
            }
            let head = String::from_utf8(head).unwrap();
            theirs.write_all(answer(&head).as_bytes()).await.unwrap();
            theirs.shutdown().await.unwrap();
        };
        let (greeting, token) = (greeting(), SecretString::from("tnlrt_1_secret"));
        let dialling = upgrade(
            ours,
            "tunnel.example.com",
            &greeting,
            Some(&token),
            Duration::from_secs(10),
        );
        tokio::join!(dialling, server)
            .0
            .map(|answered| answered.outcome)
    }

    fn field<'a>(head: &'a str, name: &str) -> &'a str {
        let line = head.lines().find(|line| line.starts_with(name)).unwrap();
        line.split_once(": ").unwrap().1
    }

    fn switching(head: &str) -> String {
        let accept = accept_key(field(head, "sec-websocket-key").as_bytes());
        format!(
            "HTTP/1.1 101 Switching Protocols\r\nconnection: Upgrade\r\nupgrade: websocket\r\n\
             sec-websocket-accept: {accept}\r\nsec-websocket-protocol: tunnel.v1\r\n\r\n"
        )
    }

    #[tokio::test]
    async fn bytes_after_the_101_are_kept() {
        let answer = dial(|head| {
            assert!(head.starts_with("GET /connect HTTP/1.1\r\n"), "{head}");
            assert_eq!(field(head, "host"), "tunnel.example.com");
            assert!(field(head, "user-agent").starts_with("tunnel-client/"));
            assert_eq!(field(head, "authorization"), "Bearer tnlrt_1_secret");
            assert_eq!(field(head, "tunnel-session"), "3");
            switching(head) + "first bytes"
        })
        .await;
        let Ok(UpgradeOutcome::Accepted(_, unread)) = answer else {
            panic!("accepted")
        };
        assert_eq!(unread, "first bytes");
    }

    #[tokio::test]
    async fn a_101_that_does_not_fit_the_key_is_an_error() {
        let wrong = |head: &str| {
            let right = switching(head);
            let accept = field(&right, "sec-websocket-accept").to_owned();
            right.replace(&accept, &accept_key(b"another"))
        };
        assert!(dial(wrong).await.is_err());
    }

    async fn refusal(answer: &str) -> RefusalResponse {
        match dial(|_| answer.to_owned()).await {
            Ok(UpgradeOutcome::Refused(refused)) => refused,
            Ok(UpgradeOutcome::Accepted(..)) => panic!("accepted"),
            Err(error) => panic!("{error}"),
        }
    }

    #[tokio::test]
    async fn a_refusal_says_why_and_when_to_try_again() {
        let refused = refusal(
            "HTTP/1.1 401 Unauthorized\r\nretry-after: 7\r\ncontent-length: 54\r\n\r\n\
             {\"reason\":\"token_unknown\",\"detail\":\"x\",\"fatal\":true}",
        )
        .await;
        assert_eq!(refused.status, StatusCode::UNAUTHORIZED);
        assert_eq!(refused.retry_after, Some(Duration::from_secs(7)));
        let said = refused.refusal.unwrap();
        assert_eq!((said.reason.as_str(), said.fatal), ("token_unknown", true));
    }

    #[tokio::test]
    async fn an_answer_of_somebody_else_says_only_its_status() {
        let page = "<html>".repeat(10_000);
        let answer = format!("HTTP/1.1 502 Bad Gateway\r\nconnection: close\r\n\r\n{page}");
        let refused = refusal(&answer).await;
        assert_eq!(refused.status, StatusCode::BAD_GATEWAY);
        assert_eq!((refused.refusal, refused.retry_after), (None, None));
    }

    #[tokio::test(start_paused = true)]
    async fn a_refusal_without_an_end_still_says_its_status_and_silence_has_the_limit() {
        let (ours, mut theirs) = duplex(64 * 1024);
        let (greeting, limit) = (greeting(), Duration::from_secs(10));
        let server = async {
            while theirs.read_u8().await.unwrap() != b'\n'
                || theirs.read_u8().await.unwrap() != b'\r'
            {}
            let endless = b"HTTP/1.1 503 Busy\r\ncontent-length: 100\r\n\r\n{\"reason\"";
            theirs.write_all(endless).await.unwrap();
        };
        let began = tokio::time::Instant::now();
        let asking = upgrade(ours, "a", &greeting, None, limit);
        let answered = tokio::join!(asking, server).0.unwrap();
        assert!(began.elapsed() < limit);
        assert_eq!(
            (answered.status.as_u16(), &answered.text[..]),
            (503, &b"{\"reason\""[..])
        );
        let (ours, _theirs) = duplex(64 * 1024);
        let error = upgrade(ours, "a", &greeting, None, limit)
            .await
            .err()
            .unwrap();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    }

    #[tokio::test]
    async fn what_is_no_http_is_an_error() {
        assert!(
            dial(|_| "SSH-2.0-OpenSSH\r\n\r\n".to_owned())
                .await
                .is_err()
        );
        assert!(dial(|_| String::new()).await.is_err());
    }

    #[test]
    fn a_date_to_try_again_is_counted_from_now() {
        let date = "Fri, 21 Nov 2025 12:00:00 GMT";
        let headers = HeaderMap::from_iter([(RETRY_AFTER, HeaderValue::from_static(date))]);
        let then = httpdate::parse_http_date(date).unwrap();
        let minute = Duration::from_secs(60);
        assert_eq!(retry_after(&headers, then - minute), Some(minute));
        assert_eq!(retry_after(&headers, then + minute), Some(Duration::ZERO));
    }
}
