//! A connection through an HTTP proxy: `CONNECT`, repeated with a login if the proxy demands one.
//!
//! ```text
//!   CONNECT ──▶ 2xx: the connection leads to the server
//!           ──▶ 407: CONNECT with the login, by the strongest scheme that both support,
//!                    on this connection or, if it is closed, on another
//!           ──▶ other: a refusal, with the proxy's text
//! ```
//!
//! The password is sent only to a proxy that has demanded it, and only by a scheme that the proxy offers.

use std::error::Error as _;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use http::header::{CONNECTION, HOST, PROXY_AUTHENTICATE, PROXY_AUTHORIZATION, USER_AGENT};
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, Uri, Version, response};
use http_body_util::Empty;
use hyper::body::Incoming;
use hyper::ext::ReasonPhrase;
use secrecy::{ExposeSecret, SecretString};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::{Instant, timeout_at};

use super::challenge::{self, Challenge};
use super::digest::{self, DigestChallenge};
use crate::config::ProxyLogin;
use crate::dial::page_text::{Redactor, one_line, page_text};
use crate::dial::proxy_error::{ProxyError, ProxyResponse};
use crate::http1::Http1;

/// Most fields and bytes of a response's head. Some proxies send large ones.
const HEAD_FIELDS: usize = 100;
const HEAD_BYTES: usize = 64 * 1024;

/// Most bytes read of a response's content: enough for an error page, after which the connection can be reused.
const BODY_BYTES: usize = 64 * 1024;

/// Most `CONNECT` requests for one connection: without a login, with it, and once more after a stale nonce.
const ATTEMPTS: usize = 3;

/// The outcome of the `CONNECT` requests on one connection.
pub(super) enum ConnectOutcome<IO> {
    /// The connection leads to the server.
    Established(IO, ProxyResponse),
    /// The next request needs a new connection.
    Reconnect,
}

/// The `CONNECT` requests for one connection to the server, over one or more connections to the proxy.
pub(super) struct ConnectAttempts<'a> {
    authority: &'a str,
    login: Option<&'a ProxyLogin>,
    /// The value of `Proxy-Authorization` of the next request, and its scheme.
    authorization: Option<(Scheme, SecretString)>,
    attempts: usize,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Scheme {
    Basic,
    Digest(DigestChallenge),
}

impl<'a> ConnectAttempts<'a> {
    /// No request is sent yet. `authority` is host and port.
    pub(super) fn new(authority: &'a str, login: Option<&'a ProxyLogin>) -> Self {
        Self {
            authority,
            login,
            authorization: None,
            attempts: 0,
        }
    }

    /// Sends requests on this connection until it leads to the server or a new connection is needed. The time-out `limit`
    /// covers the heads of all responses; the content of each has a short time-out of its own.
    ///
    /// # Errors
    /// When the proxy refuses, breaks HTTP, or does not respond.
    pub(super) async fn run<IO>(
        &mut self,
        io: IO,
        limit: Duration,
    ) -> Result<ConnectOutcome<IO>, ProxyError>
    where
        IO: AsyncRead + AsyncWrite + Unpin,
    {
        let mut connection = Http1::new(io, HEAD_FIELDS, HEAD_BYTES)
            .await
            .map_err(|error| no_response(&error))?;
        let end = Instant::now() + limit;
        let mut is_used = false;
        loop {
            let sent = timeout_at(end, connection.send_request(self.request()?));
            let response = match sent.await.map_err(|_| ProxyError::Silent)? {
                Ok(response) => response,
                // The proxy has closed a connection that it announced as persistent.
                Err(_) if is_used => return Ok(ConnectOutcome::Reconnect),
                Err(error) => return Err(no_response(&error.into_error())),
            };
            self.attempts += 1;
            if response.status().is_success() {
                return self.established(&response, connection);
            }
            let (head, body) = response.into_parts();
            let (text, is_whole) = connection.beginning(body, BODY_BYTES).await;
            let response = self.to_proxy_response(&head, &text);
            if head.status != StatusCode::PROXY_AUTHENTICATION_REQUIRED {
                return Err(ProxyError::Refused(response));
            }
            self.on_challenge(&head.headers, response)?;
            if !is_whole || !is_persistent(&head) {
                return Ok(ConnectOutcome::Reconnect);
            }
            is_used = true;
        }
    }

    fn request(&self) -> Result<Request<Empty<Bytes>>, ProxyError> {
        let fault = |error: http::Error| ProxyError::NotAProxy(error.to_string());
        let uri = Uri::builder().authority(self.authority);
        let mut request = Request::builder()
            .method(Method::CONNECT)
            .uri(uri.build().map_err(fault)?)
            .header(HOST, self.authority)
            .header(USER_AGENT, crate::dial::USER_AGENT);
        if let Some((_, value)) = &self.authorization {
            let bytes = value.expose_secret().as_bytes();
            let value = HeaderValue::from_bytes(bytes).map_err(|error| fault(error.into()));
            let mut value = value?;
            value.set_sensitive(true);
            request = request.header(PROXY_AUTHORIZATION, value);
        }
        request.body(Empty::new()).map_err(fault)
    }

    fn established<IO>(
        &self,
        response: &Response<Incoming>,
        connection: Http1<IO, Empty<Bytes>>,
    ) -> Result<ConnectOutcome<IO>, ProxyError>
    where
        IO: AsyncRead + AsyncWrite + Unpin,
    {
        let proxy_response = ProxyResponse {
            status: Some(response.status()),
            text: status_line(response.status(), response.extensions().get()),
            schemes: Vec::new(),
            login: self.login_scheme(),
        };
        // hyper's connection ends in the poll that returns a 2xx to `CONNECT`.
        let remains = connection.into_remains();
        match remains {
            // A TLS server sends nothing before the ClientHello, so these bytes are the proxy's.
            Some(remains) if !remains.unread.is_empty() => {
                let text = "it accepted CONNECT, and then sent bytes of its own";
                Err(ProxyError::NotAProxy(text.to_owned()))
            }
            Some(remains) => Ok(ConnectOutcome::Established(remains.io, proxy_response)),
            None if response.status() == StatusCode::NO_CONTENT => {
                let text = "it responded to CONNECT with 204: it has to send 200";
                Err(ProxyError::NotAProxy(text.to_owned()))
            }
            None => Err(ProxyError::NotAProxy(
                "it accepted CONNECT, and closed the connection".to_owned(),
            )),
        }
    }

    /// After a 407: decides on the login of the next request.
    fn on_challenge(
        &mut self,
        fields: &HeaderMap,
        mut response: ProxyResponse,
    ) -> Result<(), ProxyError> {
        let values = fields.get_all(PROXY_AUTHENTICATE).iter();
        // Some values, such as a realm's name, may be in any encoding.
        let values: Vec<_> = values
            .map(|value| String::from_utf8_lossy(value.as_bytes()))
            .collect();
        let challenges = challenge::parse(values.iter().map(|value| &**value));
        response.schemes = schemes(&challenges);
        let Some(login) = self.login else {
            return Err(ProxyError::LoginRequired(response));
        };
        let Some(scheme) = strongest(&challenges) else {
            return Err(ProxyError::LoginSchemeUnsupported(response));
        };
        if self.authorization.is_some() && !self.may_retry(&scheme, &challenges) {
            return Err(ProxyError::LoginRefused(response));
        }
        let value = match &scheme {
            Scheme::Basic => basic(login),
            Scheme::Digest(challenge) => challenge.respond(login, self.authority, &client_nonce()?),
        };
        self.authorization = Some((scheme, value));
        Ok(())
    }

    /// Whether the login may be sent again: only if the proxy says that the nonce was stale.
    fn may_retry(&self, scheme: &Scheme, challenges: &[Challenge]) -> bool {
        let is_stale = |challenge: &Challenge| {
            let stale = challenge.parameter("stale");
            challenge.is("digest") && stale.is_some_and(|stale| stale.eq_ignore_ascii_case("true"))
        };
        self.attempts < ATTEMPTS
            && matches!(scheme, Scheme::Digest(_))
            && challenges.iter().any(is_stale)
    }

    fn to_proxy_response(&self, head: &response::Parts, text: &[u8]) -> ProxyResponse {
        let redactor = self.redactor();
        let line = redactor.redact(&status_line(head.status, head.extensions.get()));
        let text = page_text(text, &redactor);
        ProxyResponse {
            status: Some(head.status),
            text: match text.is_empty() {
                true => line,
                false => format!("{line}: {text}"),
            },
            schemes: Vec::new(),
            login: self.login_scheme(),
        }
    }

    /// Redacts the login that was sent: some proxies repeat the request on their error page.
    fn redactor(&self) -> Redactor {
        let mut redactor = Redactor::default();
        if let (Some((scheme, value)), Some(login)) = (&self.authorization, self.login) {
            let value = value.expose_secret();
            redactor.add(match scheme {
                Scheme::Basic => value,
                Scheme::Digest(_) => digest::response_of(value),
            });
            redactor.add(login.password.expose_secret());
        }
        redactor
    }

    fn login_scheme(&self) -> Option<&'static str> {
        self.authorization.as_ref().map(|(scheme, _)| match scheme {
            Scheme::Basic => "Basic",
            Scheme::Digest(_) => "Digest",
        })
    }
}

/// Status and reason phrase.
fn status_line(status: StatusCode, reason: Option<&ReasonPhrase>) -> String {
    let given = reason.map(|reason| String::from_utf8_lossy(reason.as_bytes()));
    let usual = status.canonical_reason().unwrap_or_default();
    let reason = given.as_deref().unwrap_or(usual);
    one_line(&format!("{} {reason}", status.as_u16()))
}

/// The offered schemes, each once.
fn schemes(challenges: &[Challenge]) -> Vec<String> {
    let mut schemes: Vec<String> = Vec::new();
    for challenge in challenges {
        if !schemes.contains(&challenge.scheme) {
            schemes.push(challenge.scheme.clone());
        }
    }
    schemes
}

/// The strongest supported scheme: Digest before Basic.
fn strongest(challenges: &[Challenge]) -> Option<Scheme> {
    let digests = challenges.iter().filter_map(DigestChallenge::new);
    let digest = digests.max_by_key(DigestChallenge::hash);
    let has_basic = || challenges.iter().any(|challenge| challenge.is("basic"));
    digest
        .map(Scheme::Digest)
        .or_else(|| has_basic().then_some(Scheme::Basic))
}

fn basic(login: &ProxyLogin) -> SecretString {
    let both = format!("{}:{}", login.user, login.password.expose_secret());
    format!("Basic {}", STANDARD.encode(both)).into()
}

/// The client's nonce for Digest.
fn client_nonce() -> Result<String, ProxyError> {
    let random = getrandom::u64().map_err(|_| ProxyError::NoRandom)?;
    Ok(format!("{random:016x}"))
}

/// Whether the connection is persistent. Some proxies say so in `Proxy-Connection`, which is in no standard.
fn is_persistent(head: &response::Parts) -> bool {
    let has_option = |option: &str| {
        let fields = ["proxy-connection", CONNECTION.as_str()];
        let values = fields.iter().flat_map(|name| head.headers.get_all(*name));
        let mut options = values
            .filter_map(|value| value.to_str().ok())
            .flat_map(|value| value.split(','));
        options.any(|one| one.trim().eq_ignore_ascii_case(option))
    };
    match head.version {
        Version::HTTP_11 => !has_option("close"),
        _ => has_option("keep-alive") && !has_option("close"),
    }
}

/// The error of a request without a valid response.
fn no_response(error: &hyper::Error) -> ProxyError {
    if error.is_parse_too_large() {
        let text = "the head of its response is too large: more than 64 KiB, or 100 fields";
        return ProxyError::NotAProxy(text.to_owned());
    }
    if error.is_parse() {
        return ProxyError::NotAProxy("its response is not HTTP".to_owned());
    }
    if error.is_incomplete_message() {
        return ProxyError::NotAProxy("it closed the connection without a response".to_owned());
    }
    let cause = error.source().map(ToString::to_string);
    let cause = cause.unwrap_or_else(|| error.to_string());
    ProxyError::NotAProxy(format!("it did not respond: {cause}"))
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};

    use super::*;

    const LIMIT: Duration = Duration::from_secs(10);
    const AUTHORITY: &str = "[2001:db8::1]:443";

    fn login() -> ProxyLogin {
        ProxyLogin {
            user: "me".to_owned(),
            password: "secret".into(),
        }
    }

    /// A proxy that sends these responses on one connection. Returns the requests.
    async fn respond(theirs: &mut DuplexStream, responses: &[&[u8]]) -> Vec<String> {
        let mut heads = Vec::new();
        for response in responses {
            let mut head = Vec::new();
            while !head.ends_with(b"\r\n\r\n") {
                match theirs.read_u8().await {
                    Ok(byte) => head.push(byte),
                    Err(_) => return heads,
                }
            }
            heads.push(String::from_utf8(head).unwrap());
            if theirs.write_all(response).await.is_err() {
                return heads;
            }
        }
        heads
    }

    /// Asks one that closes the connection after the last response.
    async fn run(
        attempts: &mut ConnectAttempts<'_>,
        responses: &[&str],
    ) -> (
        Result<ConnectOutcome<DuplexStream>, ProxyError>,
        Vec<String>,
    ) {
        let (ours, mut theirs) = duplex(256 * 1024);
        let responses: Vec<_> = responses
            .iter()
            .map(|response| response.as_bytes())
            .collect();
        let proxy = async move { respond(&mut theirs, &responses).await };
        tokio::join!(attempts.run(ours, LIMIT), proxy)
    }

    /// Asks one that keeps the connection.
    async fn run_staying(
        attempts: &mut ConnectAttempts<'_>,
        responses: &[&[u8]],
    ) -> Result<ConnectOutcome<DuplexStream>, ProxyError> {
        let (ours, mut theirs) = duplex(256 * 1024);
        let proxy = respond(&mut theirs, responses);
        tokio::join!(attempts.run(ours, LIMIT), proxy).0
    }

    fn shown(head: &str) -> Option<&str> {
        head.lines()
            .find_map(|line| line.strip_prefix("proxy-authorization: "))
    }

    const THROUGH: &str = "HTTP/1.1 200 Connection established\r\n\r\n";
    const WANTS_BASIC: &str = "HTTP/1.1 407 Login\r\nproxy-authenticate: Basic realm=\"a\"\r\ncontent-length: 2\r\n\r\nno";

    fn wants_digest(more: &str) -> String {
        format!(
            "HTTP/1.1 407 Login\r\nproxy-authenticate: Basic realm=\"a\"\r\n\
             proxy-authenticate: Digest realm=\"a\", nonce=\"b\", qop=\"auth\"{more}\r\ncontent-length: 0\r\n\r\n"
        )
    }

    #[tokio::test]
    async fn a_proxy_that_wants_nothing_is_shown_nothing() {
        let login = login();
        let mut attempts = ConnectAttempts::new(AUTHORITY, Some(&login));
        let (outcome, heads) = run(&mut attempts, &[THROUGH]).await;
        let Ok(ConnectOutcome::Established(_, response)) = outcome else {
            panic!("let through")
        };
        assert_eq!(
            (response.text.as_str(), response.login),
            ("200 Connection established", None)
        );
        assert!(
            heads[0].starts_with("CONNECT [2001:db8::1]:443 HTTP/1.1\r\n"),
            "{heads:?}"
        );
        assert!(
            heads[0].contains("\r\nhost: [2001:db8::1]:443\r\n"),
            "{heads:?}"
        );
        assert!(
            heads[0].contains("\r\nuser-agent: tunnel-client/"),
            "{heads:?}"
        );
        assert_eq!(shown(&heads[0]), None);
    }

    #[tokio::test]
    async fn any_2xx_lets_through_whatever_its_head_says() {
        for response in [
            "HTTP/1.0 200 OK\r\n\r\n",
            "HTTP/1.1 204 No Content\r\nconnection: close\r\n\r\n",
            "HTTP/1.1 200 OK\r\ncontent-length: 7\r\nproxy-connection: close\r\n\r\n",
            "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n",
            "HTTP/1.1 200\r\n\r\n",
        ] {
            let mut attempts = ConnectAttempts::new(AUTHORITY, None);
            let (outcome, _) = run(&mut attempts, &[response]).await;
            assert!(
                matches!(outcome, Ok(ConnectOutcome::Established(..))),
                "{response}"
            );
        }
    }

    #[tokio::test]
    async fn the_login_is_shown_by_the_strongest_scheme_on_the_same_connection() {
        let login = login();
        let mut attempts = ConnectAttempts::new(AUTHORITY, Some(&login));
        let (outcome, heads) = run(&mut attempts, &[WANTS_BASIC, THROUGH]).await;
        assert!(
            matches!(outcome, Ok(ConnectOutcome::Established(_, response)) if response.login == Some("Basic"))
        );
        assert_eq!(shown(&heads[1]), Some("Basic bWU6c2VjcmV0"));
        let mut attempts = ConnectAttempts::new(AUTHORITY, Some(&login));
        let (outcome, heads) = run(&mut attempts, &[&wants_digest(""), THROUGH]).await;
        assert!(
            matches!(outcome, Ok(ConnectOutcome::Established(_, response)) if response.login == Some("Digest"))
        );
        let value = shown(&heads[1]).unwrap();
        assert!(
            value.starts_with("Digest username=\"me\"")
                && value.contains("uri=\"[2001:db8::1]:443\""),
            "{value}"
        );
    }

    #[tokio::test]
    async fn a_proxy_that_closes_is_asked_again_on_another_connection() {
        let login = login();
        let closes = WANTS_BASIC.replace(
            "content-length: 2",
            "proxy-connection: close\r\ncontent-length: 2",
        );
        let old = "HTTP/1.0 407 Login\r\nproxy-authenticate: Basic realm=a\r\n\r\nno";
        for first in [closes.as_str(), old, WANTS_BASIC] {
            let mut attempts = ConnectAttempts::new(AUTHORITY, Some(&login));
            let (outcome, _) = run(&mut attempts, &[first]).await;
            assert!(matches!(outcome, Ok(ConnectOutcome::Reconnect)), "{first}");
            let (outcome, heads) = run(&mut attempts, &[THROUGH]).await;
            assert!(
                matches!(outcome, Ok(ConnectOutcome::Established(..))),
                "{first}"
            );
            assert!(shown(&heads[0]).is_some(), "{first}");
        }
    }

    #[tokio::test]
    async fn a_wrong_login_is_not_shown_twice_and_an_old_nonce_is_no_wrong_login() {
        let login = login();
        let mut attempts = ConnectAttempts::new(AUTHORITY, Some(&login));
        let (outcome, heads) = run(
            &mut attempts,
            &[&wants_digest(""), &wants_digest(""), THROUGH],
        )
        .await;
        assert!(matches!(outcome, Err(ProxyError::LoginRefused(_))));
        assert_eq!(heads.len(), 2);
        let stale = wants_digest(", stale=TRUE");
        let mut attempts = ConnectAttempts::new(AUTHORITY, Some(&login));
        let (outcome, _) = run(&mut attempts, &[&wants_digest(""), &stale, THROUGH]).await;
        assert!(matches!(outcome, Ok(ConnectOutcome::Established(..))));
        let mut attempts = ConnectAttempts::new(AUTHORITY, Some(&login));
        let (outcome, heads) = run(&mut attempts, &[&stale, &stale, &stale, &stale]).await;
        assert!(matches!(outcome, Err(ProxyError::LoginRefused(_))));
        assert_eq!(heads.len(), ATTEMPTS);
    }

    #[tokio::test]
    async fn the_error_names_the_login_that_is_wanted() {
        let mut attempts = ConnectAttempts::new(AUTHORITY, None);
        let (outcome, _) = run(&mut attempts, &[WANTS_BASIC]).await;
        let error = outcome.err().unwrap();
        assert!(
            matches!(&error, ProxyError::LoginRequired(response) if response.schemes == ["Basic"])
        );
        let text = error.to_string();
        assert!(
            text.contains("--proxy-auth-file") && text.contains("407 Login: no"),
            "{text}"
        );
        let login = login();
        let unknown = "HTTP/1.1 407 Login\r\nproxy-authenticate: Negotiate\r\nproxy-authenticate: NTLM\r\ncontent-length: 0\r\n\r\n";
        let mut attempts = ConnectAttempts::new(AUTHORITY, Some(&login));
        let (outcome, heads) = run(&mut attempts, &[unknown]).await;
        let error = outcome.err().unwrap().to_string();
        assert!(error.contains("Negotiate, NTLM"), "{error}");
        assert!(!error.contains("secret") && shown(&heads[0]).is_none());
    }

    #[tokio::test]
    async fn a_realm_in_another_encoding_does_not_prevent_the_login() {
        let login = login();
        let latin1 =
            b"HTTP/1.1 407 Login\r\nproxy-authenticate: Digest realm=\"B\xfcro\", nonce=\"n\"\r\n\
            proxy-authenticate: Basic realm=\"B\xfcro\"\r\ncontent-length: 0\r\n\r\n";
        let mut attempts = ConnectAttempts::new(AUTHORITY, Some(&login));
        let outcome = run_staying(&mut attempts, &[latin1, THROUGH.as_bytes()]).await;
        assert!(
            matches!(outcome, Ok(ConnectOutcome::Established(_, response)) if response.login == Some("Basic")),
            "a digest of what is not known for certain would be wrong"
        );
        let utf8 = wants_digest("").replace("realm=\"a\"", "realm=\"Büro\"");
        let mut attempts = ConnectAttempts::new(AUTHORITY, Some(&login));
        let (outcome, heads) = run(&mut attempts, &[&utf8, THROUGH]).await;
        assert!(
            matches!(outcome, Ok(ConnectOutcome::Established(_, response)) if response.login == Some("Digest"))
        );
        assert!(heads[1].contains("realm=\"Büro\""), "{heads:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_page_without_an_end_does_not_take_the_words_nor_the_login_with_it() {
        let login = login();
        let endless = WANTS_BASIC.replace("content-length: 2", "content-length: 99");
        let mut attempts = ConnectAttempts::new(AUTHORITY, Some(&login));
        let outcome = run_staying(&mut attempts, &[endless.as_bytes()]).await;
        assert!(
            matches!(outcome, Ok(ConnectOutcome::Reconnect))
                && attempts.login_scheme() == Some("Basic")
        );
        let endless = b"HTTP/1.1 403 No\r\ncontent-length: 99\r\n\r\nnot for you";
        let outcome = run_staying(&mut ConnectAttempts::new(AUTHORITY, None), &[endless]).await;
        assert!(
            matches!(outcome, Err(ProxyError::Refused(response)) if response.text == "403 No: not for you")
        );
        let (ours, _theirs) = duplex(64 * 1024);
        let outcome = ConnectAttempts::new(AUTHORITY, None).run(ours, LIMIT).await;
        assert!(matches!(outcome, Err(ProxyError::Silent)));
    }

    #[tokio::test]
    async fn what_was_shown_is_not_repeated_when_the_proxy_does() {
        let login = ProxyLogin {
            user: "me".to_owned(),
            password: "o?~~>secret".into(),
        };
        let basic = "bWU6bz9+fj5zZWNyZXQ=";
        let page = format!(
            "<p>proxy-authorization: Basic {basic}</p><p>me:o?~~&gt;secret</p> {}",
            basic.replace('+', "&#43;")
        );
        let refused = format!(
            "HTTP/1.1 407 Wrong {basic}\r\nproxy-authenticate: Basic realm=a\r\ncontent-length: {}\r\n\r\n{page}",
            page.len()
        );
        let mut attempts = ConnectAttempts::new(AUTHORITY, Some(&login));
        let (outcome, heads) = run(&mut attempts, &[WANTS_BASIC, &refused]).await;
        assert_eq!(shown(&heads[1]), Some(format!("Basic {basic}").as_str()));
        let error = outcome.err().unwrap().to_string();
        assert!(error.contains("407 Wrong"), "{error}");
        for secret in ["bWU6", "zZWNyZXQ", "secret"] {
            assert!(!error.contains(secret), "{error}");
        }
        let mut attempts = ConnectAttempts::new(AUTHORITY, Some(&login));
        let digest = wants_digest("");
        let (_, heads) = run(&mut attempts, &[&digest, THROUGH]).await;
        let value = shown(&heads[1]).unwrap();
        let response = value.split("response=\"").nth(1).unwrap();
        let text = attempts.redactor().redact(&format!("you sent {value}!"));
        assert!(
            !text.contains(&response[..32]) && text.starts_with("you sent"),
            "{text}"
        );
    }

    #[tokio::test]
    async fn a_refusal_is_reported_in_the_proxy_s_own_words() {
        let page = format!("<html><h1>Access\x1b Denied</h1>{}", "x".repeat(100_000));
        let response = format!(
            "HTTP/1.1 403 Not For You\r\nconnection: close\r\ncontent-length: {}\r\n\r\n{page}",
            page.len()
        );
        let mut attempts = ConnectAttempts::new(AUTHORITY, None);
        let (outcome, _) = run(&mut attempts, &[&response]).await;
        let Err(ProxyError::Refused(response)) = outcome else {
            panic!("refused")
        };
        assert_eq!(response.status, Some(StatusCode::FORBIDDEN));
        assert!(
            response
                .text
                .starts_with("403 Not For You: Access Denied xxx"),
            "{}",
            response.text
        );
        assert!(response.text.chars().count() < 400);
    }

    #[tokio::test]
    async fn an_invalid_response_is_reported_as_such() {
        let large = format!("HTTP/1.1 200 OK\r\na: {}\r\n\r\n", "x".repeat(HEAD_BYTES));
        for (response, expected) in [
            ("SSH-2.0-OpenSSH\r\n\r\n", "is not HTTP"),
            ("", "without a response"),
            ("HTTP/1.1 200 OK\r\n\r\nSSH-2.0", "bytes of its own"),
            (large.as_str(), "too large"),
        ] {
            let mut attempts = ConnectAttempts::new(AUTHORITY, None);
            let (outcome, _) = run(&mut attempts, &[response]).await;
            let Err(error @ ProxyError::NotAProxy(_)) = outcome else {
                panic!("{response}")
            };
            assert!(error.to_string().contains(expected), "{error}");
        }
        let no_content = b"HTTP/1.1 204 No Content\r\n\r\n";
        let outcome = run_staying(&mut ConnectAttempts::new(AUTHORITY, None), &[no_content]).await;
        let error = outcome.err().unwrap().to_string();
        assert!(error.contains("with 204"), "{error}");
    }
}
