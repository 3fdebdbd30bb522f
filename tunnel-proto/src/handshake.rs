//! The request `GET /connect` that opens a session: path, subprotocols, field names, and the body of a
//! refusal.
//!
//! Each end performs the WebSocket handshake (RFC 6455 section 4) with hyper, so that every limit and
//! time-out is its own. Authentication precedes the 101; a refusal is an ordinary response with a
//! [`Refusal`] as its JSON body.

use std::time::Duration;

use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, header};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use tokio_tungstenite::tungstenite::handshake::{client, derive_accept_key};

use crate::{
    limits,
    refusal::{Finality, RefusalReason},
};

/// Path of the tunnel listener that opens a session.
pub const CONNECT_PATH: &str = "/connect";

/// Subprotocol of this version of the protocol.
pub const SUBPROTOCOL: &str = "tunnel.v1";

/// The version of the protocol, as [`SUBPROTOCOL`] names it.
pub fn wire_version() -> &'static str {
    SUBPROTOCOL.strip_prefix("tunnel.v").unwrap_or(SUBPROTOCOL)
}

/// Subprotocol of a session that only checks the path and the credential. The server admits it like any
/// other, answers with [`crate::control::Control::Checked`], and gives it neither the runtime nor an
/// exchange. It has a separate name so that a server without this feature refuses it, instead of taking the
/// runtime from its holder.
pub const CHECK_SUBPROTOCOL: &str = "tunnel-check.v1";

/// Carries the tunnel client's [`InstanceSecret`].
pub const INSTANCE: HeaderName = HeaderName::from_static("tunnel-instance");

/// Carries the version of the tunnel client program.
pub const CLIENT_VERSION: HeaderName = HeaderName::from_static("tunnel-client-version");

/// Carries the number of the session within its instance, counted from 1.
pub const SESSION_NUMBER: HeaderName = HeaderName::from_static("tunnel-session");

/// Carries the source addresses from which the tunnel client allows requests to its runtime: networks in
/// CIDR notation, separated by commas. If absent, the client does not restrict them.
pub const ALLOW_FROM: HeaderName = HeaderName::from_static("tunnel-allow-from");

/// Carries the names of the server nodes on which the instance has a session already, separated by commas, so that its
/// sessions are on different nodes. Each `welcome` tells the node's name.
pub const AVOID: HeaderName = HeaderName::from_static("tunnel-avoid");

/// Carries the number of this dial, from 1: one more than the refusals `elsewhere` that it follows. If absent, the client
/// does not know that refusal, and gets none.
pub const ATTEMPT: HeaderName = HeaderName::from_static("tunnel-attempt");

/// Present if the client has lost its runtime to another instance since it held it: this dial does not take the runtime
/// from an instance that holds it. The value is `1`.
pub const STANDBY: HeaderName = HeaderName::from_static("tunnel-standby");

/// The beginning of a [`crowded_response`].
const CROWDED_STATUS: &str = "HTTP/1.1 503 ";

/// Longest list of networks in [`ALLOW_FROM`], in bytes: about 200 networks.
const ALLOW_FROM_BYTES: usize = 4096;

/// Longest list of nodes in [`AVOID`], in bytes: one for each session of a tunnel, each as long as a DNS name.
const AVOID_BYTES: usize = limits::SESSIONS * 256;

/// The random secret that a tunnel client generates at its start, 32 lower-case hexadecimal digits, and the
/// id derived from it. The client sends the secret in [`INSTANCE`] for each session; no session of the
/// instance can be opened without it. Everything else (logs, refusals, control messages, the admin API)
/// contains only the id.
#[derive(Clone, PartialEq, Eq)]
pub struct InstanceSecret {
    text: String,
    id: InstanceId,
}

/// Names an instance: the first 16 bytes of the SHA-256 of its secret's text; as text, in lower-case hexadecimal
/// digits. It is public: the secret cannot be computed from it.
#[derive(Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct InstanceId([u8; 16]);

/// The text is not an instance id.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("an instance id is 32 lower-case hexadecimal digits")]
pub struct BadInstanceId;

/// The text is not an instance secret.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("an instance secret is 32 lower-case hexadecimal digits")]
pub struct BadInstanceSecret;

/// A new random value for `Sec-WebSocket-Key`.
#[must_use]
pub fn new_key() -> String {
    client::generate_key()
}

/// The `Sec-WebSocket-Accept` that belongs to a key (RFC 6455 section 4.2.2).
#[must_use]
pub fn accept_key(key: &[u8]) -> String {
    derive_accept_key(key)
}

impl InstanceSecret {
    /// The secret with these 16 random bytes.
    #[must_use]
    pub fn from_random(bytes: [u8; 16]) -> Self {
        Self::new(hex(bytes))
    }

    /// Reads a secret.
    ///
    /// # Errors
    /// When it is not 32 lower-case hexadecimal digits.
    pub fn parse(text: &str) -> Result<Self, BadInstanceSecret> {
        match is_hex(text) {
            true => Ok(Self::new(text.to_owned())),
            false => Err(BadInstanceSecret),
        }
    }

    fn new(text: String) -> Self {
        let mut half = [0; 16];
        half.copy_from_slice(&Sha256::digest(text.as_bytes())[..16]);
        let id = InstanceId(half);
        Self { text, id }
    }

    /// The id of the instance.
    #[must_use]
    pub fn id(&self) -> &InstanceId {
        &self.id
    }
}

/// Shows only the id.
impl std::fmt::Debug for InstanceSecret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("InstanceSecret").field(&self.id).finish()
    }
}

/// Reads the id of an instance, as another server node has written it.
impl TryFrom<String> for InstanceId {
    type Error = BadInstanceId;

    fn try_from(text: String) -> Result<Self, BadInstanceId> {
        if !is_hex(&text) {
            return Err(BadInstanceId);
        }
        let number = u128::from_str_radix(&text, 16).map_err(|_| BadInstanceId)?;
        Ok(Self(number.to_be_bytes()))
    }
}

impl From<InstanceId> for String {
    fn from(id: InstanceId) -> Self {
        hex(id.0)
    }
}

impl std::fmt::Display for InstanceId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&hex(self.0))
    }
}

impl std::fmt::Debug for InstanceId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "InstanceId({self})")
    }
}

/// Whether the text is 16 bytes in lower-case hexadecimal digits.
fn is_hex(text: &str) -> bool {
    let is_digit = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
    text.len() == 32 && text.bytes().all(is_digit)
}

fn hex(bytes: [u8; 16]) -> String {
    format!("{:032x}", u128::from_be_bytes(bytes))
}

/// Body of the response that refuses a session. The tunnel client shows it verbatim.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refusal {
    /// The name of a [`RefusalReason`], possibly one that is unknown to this version.
    pub reason: String,
    /// Why, for a person, and what to do about it.
    pub detail: String,
    /// Whether dialling again is useless before a person acts. Used only if the reason is unknown.
    #[serde(default)]
    pub fatal: bool,
}

impl Refusal {
    /// A refusal for this reason, with a sentence for a person.
    #[must_use]
    pub fn new(reason: RefusalReason, detail: impl Into<String>) -> Self {
        Self {
            reason: reason.name().to_owned(),
            detail: detail.into(),
            fatal: reason.finality() == Finality::Final,
        }
    }

    /// The reason, if it is known to this version.
    #[must_use]
    pub fn known(&self) -> Option<RefusalReason> {
        RefusalReason::from_name(&self.reason)
    }

    /// Whether its cause can pass: by the reason, or by `fatal` if the reason is unknown.
    #[must_use]
    pub fn finality(&self) -> Finality {
        match self.known() {
            Some(reason) => reason.finality(),
            None if self.fatal => Finality::Final,
            None => Finality::Passing,
        }
    }
}

/// What the tunnel client declares about itself when it dials.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Greeting {
    /// The secret of the instance that dials.
    pub instance: InstanceSecret,
    /// Version of the program.
    pub version: String,
    /// Number of the session within the instance, from 1.
    pub session_number: u32,
    /// The value of [`ALLOW_FROM`], unparsed.
    pub allow_from: Option<String>,
    /// Whether the session is only a check, see [`CHECK_SUBPROTOCOL`].
    pub is_check: bool,
    /// Whether the instance stands by, see [`STANDBY`].
    pub stands_by: bool,
    /// On which server node the session should be; `None` if the client does not know the refusal `elsewhere`.
    pub placement: Option<Placement>,
}

/// Where an instance wants its next session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Placement {
    /// The value of [`AVOID`]: the nodes on which the instance has a session.
    pub avoid: Vec<String>,
    /// The value of [`ATTEMPT`].
    pub attempt: u32,
}

impl Placement {
    /// Dials that may be refused with `elsewhere` in a row, less one. Where one address leads to N nodes at random, all of
    /// them miss with a probability of 1/N to this power.
    pub const ATTEMPTS: u32 = 3;

    /// The first dial of an instance that has sessions on these nodes.
    #[must_use]
    pub fn avoiding(nodes: Vec<String>) -> Self {
        Self {
            avoid: nodes,
            attempt: 1,
        }
    }

    /// Whether this dial may still be refused with `elsewhere`.
    #[must_use]
    pub fn may_go_elsewhere(&self) -> bool {
        self.attempt < Self::ATTEMPTS
    }
}

impl Greeting {
    /// The subprotocol to request.
    #[must_use]
    pub fn subprotocol(&self) -> &'static str {
        match self.is_check {
            true => CHECK_SUBPROTOCOL,
            false => SUBPROTOCOL,
        }
    }
}

/// What a server with too many handshakes in progress answers to a ClientHello, in place of TLS: it has room for this client
/// after this time, in whole seconds.
#[must_use]
pub fn crowded_response(retry_after: Duration) -> String {
    let seconds = retry_after.as_secs();
    format!(
        "{CROWDED_STATUS}Service Unavailable\r\nConnection: close\r\nRetry-After: {seconds}\r\nContent-Length: 0\r\n\r\n"
    )
}

/// The time of a [`crowded_response`], if the first bytes that a server has sent are one.
#[must_use]
pub fn crowded_retry_after(first: &[u8]) -> Option<Duration> {
    let head = std::str::from_utf8(first.strip_prefix(CROWDED_STATUS.as_bytes())?).ok()?;
    let mut fields = head
        .split("\r\n")
        .skip(1)
        .map_while(|line| line.split_once(':'));
    let (_, value) =
        fields.find(|(name, _)| name.eq_ignore_ascii_case(header::RETRY_AFTER.as_str()))?;
    value.trim().parse().ok().map(Duration::from_secs)
}

/// Why a request does not open a session. The text is for the response.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NotASession {
    /// Not the path of the tunnel listener.
    #[error("there is nothing here: tunnel clients connect to {CONNECT_PATH}")]
    Path,
    /// Not `GET`.
    #[error("a session is opened with GET")]
    Method,
    /// Has an `Origin` field, so it was sent by a web page.
    #[error("a session cannot be opened from a web page")]
    Origin,
    /// Not a WebSocket handshake, often because a proxy on the path has removed the `Upgrade` field.
    #[error(
        "this is no websocket handshake: if the client did send one, a proxy on the way removed \
         its upgrade field"
    )]
    NotWebSocket,
    /// Not the subprotocol of this server.
    #[error("this server speaks {SUBPROTOCOL}: install a tunnel client of a matching version")]
    Subprotocol,
    /// Instance secret, version or session number is missing or malformed, or [`ALLOW_FROM`], [`ATTEMPT`], [`AVOID`] or
    /// [`STANDBY`] is malformed.
    #[error(
        "the fields tunnel-instance, tunnel-client-version and tunnel-session must be valid, and \
         tunnel-allow-from, tunnel-attempt, tunnel-avoid and tunnel-standby where they are given"
    )]
    Greeting,
}

impl NotASession {
    /// The reason of the refusal.
    #[must_use]
    pub fn reason(self) -> RefusalReason {
        match self {
            Self::Path => RefusalReason::PathUnknown,
            Self::Method => RefusalReason::MethodNotAllowed,
            Self::Origin => RefusalReason::OriginNotAllowed,
            Self::NotWebSocket => RefusalReason::UpgradeRequired,
            Self::Subprotocol => RefusalReason::VersionUnsupported,
            Self::Greeting => RefusalReason::GreetingMalformed,
        }
    }
}

/// The client's request for a session, without `Host` and `Authorization`.
#[must_use]
pub fn request(greeting: &Greeting, key: &str) -> http::request::Builder {
    // 32 hexadecimal digits are always a valid field value.
    let mut instance =
        HeaderValue::try_from(&greeting.instance.text).unwrap_or(HeaderValue::from_static(""));
    instance.set_sensitive(true);
    let request = Request::builder()
        .method(Method::GET)
        .header(header::CONNECTION, "upgrade")
        .header(header::UPGRADE, "websocket")
        .header(header::SEC_WEBSOCKET_VERSION, "13")
        .header(header::SEC_WEBSOCKET_KEY, key)
        .header(header::SEC_WEBSOCKET_PROTOCOL, greeting.subprotocol())
        .header(INSTANCE, instance)
        .header(CLIENT_VERSION, greeting.version.as_str())
        .header(SESSION_NUMBER, greeting.session_number);
    let request = match &greeting.allow_from {
        Some(networks) => request.header(ALLOW_FROM, networks),
        None => request,
    };
    let request = match greeting.stands_by {
        true => request.header(STANDBY, "1"),
        false => request,
    };
    let Some(placement) = &greeting.placement else {
        return request;
    };
    let request = request.header(ATTEMPT, placement.attempt);
    match placement.avoid.is_empty() {
        true => request,
        false => request.header(AVOID, placement.avoid.join(", ")),
    }
}

/// Checks all of a request for a session except the credential.
///
/// # Errors
/// When the request does not open a session. The error determines the response.
pub fn check_request<B>(request: &Request<B>) -> Result<Greeting, NotASession> {
    let headers = request.headers();
    if request.uri().path() != CONNECT_PATH {
        return Err(NotASession::Path);
    }
    if request.method() != Method::GET {
        return Err(NotASession::Method);
    }
    if headers.contains_key(header::ORIGIN) {
        return Err(NotASession::Origin);
    }
    if !has_token(headers, header::CONNECTION, "upgrade")
        || !has_token(headers, header::UPGRADE, "websocket")
        || headers
            .get(header::SEC_WEBSOCKET_VERSION)
            .is_none_or(|version| version != "13")
        || headers
            .get(header::SEC_WEBSOCKET_KEY)
            .is_none_or(|key| key.len() != 24)
    {
        return Err(NotASession::NotWebSocket);
    }
    let offers = |name| has_token(headers, header::SEC_WEBSOCKET_PROTOCOL, name);
    let is_check = match (offers(SUBPROTOCOL), offers(CHECK_SUBPROTOCOL)) {
        (true, _) => false,
        (false, true) => true,
        (false, false) => return Err(NotASession::Subprotocol),
    };
    greeting(headers, is_check).ok_or(NotASession::Greeting)
}

/// Whether a request asks for a session, or for a check: by its method, path, upgrade and subprotocol. It can still be
/// malformed otherwise. For a listener at which other requests for [`CONNECT_PATH`] can be for somebody else.
#[must_use]
pub fn asks_for_session<B>(request: &Request<B>) -> bool {
    let headers = request.headers();
    let offers = |name| has_token(headers, header::SEC_WEBSOCKET_PROTOCOL, name);
    request.uri().path() == CONNECT_PATH
        && request.method() == Method::GET
        && has_token(headers, header::UPGRADE, "websocket")
        && (offers(SUBPROTOCOL) || offers(CHECK_SUBPROTOCOL))
}

fn greeting(headers: &HeaderMap, is_check: bool) -> Option<Greeting> {
    let text = |name| {
        headers
            .get(name)
            .and_then(|value: &HeaderValue| value.to_str().ok())
    };
    let version = text(CLIENT_VERSION)?;
    if version.is_empty() || version.len() > 64 {
        return None;
    }
    let session_number = text(SESSION_NUMBER)?
        .parse()
        .ok()
        .filter(|number| *number > 0)?;
    let allow_from = match headers.get(ALLOW_FROM) {
        None => None,
        Some(_) => Some(text(ALLOW_FROM).filter(|list| list.len() <= ALLOW_FROM_BYTES)?),
    };
    let stands_by = match headers.get(STANDBY) {
        None => false,
        Some(value) if value == "1" => true,
        Some(_) => return None,
    };
    Some(Greeting {
        instance: InstanceSecret::parse(text(INSTANCE)?).ok()?,
        version: version.to_owned(),
        session_number,
        allow_from: allow_from.map(str::to_owned),
        is_check,
        stands_by,
        placement: placement(headers)?,
    })
}

/// Where the client wants the session, if it says so; the outer `None` if that is malformed.
fn placement(headers: &HeaderMap) -> Option<Option<Placement>> {
    let Some(attempt) = headers.get(ATTEMPT) else {
        return Some(None);
    };
    let attempt = attempt.to_str().ok()?.parse().ok();
    let avoid = match headers.get(AVOID) {
        Some(avoid) => avoid
            .to_str()
            .ok()
            .filter(|avoid| avoid.len() <= AVOID_BYTES)?,
        None => "",
    };
    let nodes = avoid
        .split(',')
        .map(str::trim)
        .filter(|node| !node.is_empty());
    Some(Some(Placement {
        avoid: nodes.map(str::to_owned).collect(),
        attempt: attempt.filter(|attempt| *attempt > 0)?,
    }))
}

/// Whether the head of a 101 response completes the handshake that this greeting and `key` began.
#[must_use]
pub fn is_accepted(headers: &HeaderMap, greeting: &Greeting, key: &str) -> bool {
    has_token(headers, header::CONNECTION, "upgrade")
        && has_token(headers, header::UPGRADE, "websocket")
        && headers
            .get(header::SEC_WEBSOCKET_ACCEPT)
            .is_some_and(|accept| accept == accept_key(key.as_bytes()).as_str())
        && headers
            .get(header::SEC_WEBSOCKET_PROTOCOL)
            .is_some_and(|protocol| protocol == greeting.subprotocol())
}

/// Whether a comma-separated field contains a token, in any letter case.
#[must_use]
pub fn has_token(headers: &HeaderMap, name: HeaderName, token: &str) -> bool {
    headers
        .get_all(name)
        .iter()
        .flat_map(|value| value.as_bytes().split(|byte| *byte == b','))
        .any(|element| element.trim_ascii().eq_ignore_ascii_case(token.as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn greeting() -> Greeting {
        Greeting {
            instance: InstanceSecret::from_random([7; 16]),
            version: "0.1.0".into(),
            session_number: 1,
            allow_from: Some("10.0.0.0/8, 2001:db8::/32".into()),
            is_check: false,
            stands_by: false,
            placement: Some(Placement::avoiding(vec!["n1".into(), "n2".into()])),
        }
    }

    fn session_request() -> Request<()> {
        request(&greeting(), &new_key())
            .uri(CONNECT_PATH)
            .body(())
            .unwrap()
    }

    #[test]
    fn a_generated_request_is_accepted() {
        assert_eq!(check_request(&session_request()), Ok(greeting()));
    }

    #[test]
    fn a_placement_is_read_as_it_is_written_and_may_be_absent() {
        let asked = |attempt: Option<&str>, avoid: Option<&str>| {
            let mut request = session_request();
            for (name, value) in [(ATTEMPT, attempt), (AVOID, avoid)] {
                request.headers_mut().remove(&name);
                if let Some(value) = value {
                    let value = HeaderValue::from_str(value).unwrap();
                    request.headers_mut().insert(name, value);
                }
            }
            check_request(&request).map(|greeting| greeting.placement)
        };
        assert_eq!(asked(None, None), Ok(None));
        assert_eq!(
            asked(None, Some("n1")),
            Ok(None),
            "it does not know the refusal"
        );
        let third = Placement {
            avoid: Vec::new(),
            attempt: 3,
        };
        assert!(!third.may_go_elsewhere());
        assert_eq!(asked(Some("3"), None), Ok(Some(third)));
        for (attempt, avoid) in [
            ("0", "n1"),
            ("x", "n1"),
            ("1", &"n".repeat(AVOID_BYTES + 1)),
        ] {
            assert_eq!(
                asked(Some(attempt), Some(avoid)),
                Err(NotASession::Greeting)
            );
        }
    }

    #[test]
    fn an_instance_stands_by_or_does_not() {
        let standing_by = Greeting {
            stands_by: true,
            ..greeting()
        };
        let request = request(&standing_by, &new_key()).uri(CONNECT_PATH).body(());
        let mut request = request.unwrap();
        assert_eq!(check_request(&request), Ok(standing_by));
        let other = HeaderValue::from_static("0");
        request.headers_mut().insert(STANDBY, other);
        assert_eq!(check_request(&request), Err(NotASession::Greeting));
    }

    #[test]
    fn the_public_id_does_not_serve_as_the_secret() {
        let secret = InstanceSecret::parse("0123456789abcdef0123456789abcdef").unwrap();
        let id = secret.id().to_string();
        // SHA-256 of the 32 digits, as any other program computes it.
        assert_eq!(id, "3eb1bd439947eb762998e566ccc2e099");
        let shown = InstanceSecret::parse(&id).unwrap();
        assert_ne!(shown.id(), secret.id());
        let debug = format!("{secret:?} {:?}", session_request());
        assert!(
            debug.contains(&id) && !debug.contains("0123456789abcdef"),
            "{debug}"
        );
        assert!(!debug.contains(&"07".repeat(16)), "{debug}");
    }

    #[test]
    fn only_the_response_of_a_crowded_server_counts_before_tls() {
        let after = Duration::from_secs(7);
        let response = crowded_response(after);
        assert_eq!(crowded_retry_after(response.as_bytes()), Some(after));
        let others: [&[u8]; 6] = [
            b"",
            b"\x16\x03\x03\x00\x7a\x02",
            b"\x15\x03\x03\x00\x02\x02\x28",
            b"HTTP/1.1 400 Bad Request\r\nRetry-After: 7\r\n\r\n",
            b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 14\r\n\r\nRetry-After: 7",
            b"HTTP/1.1 503 Service Unavailable\r\nRetry-After: Sat, 28 Nov 2026 05:00:00 GMT\r\n\r\n",
        ];
        for other in others {
            assert_eq!(crowded_retry_after(other), None);
        }
    }

    #[test]
    fn a_check_has_its_own_subprotocol() {
        let check = Greeting {
            is_check: true,
            ..greeting()
        };
        let mut request = request(&check, &new_key()).uri(CONNECT_PATH).body(());
        let request = request.as_mut().unwrap();
        assert_eq!(check_request(request), Ok(check.clone()));
        assert!(
            !has_token(
                request.headers(),
                header::SEC_WEBSOCKET_PROTOCOL,
                SUBPROTOCOL
            ),
            "a server without checks must not accept it as a session"
        );
        let both = HeaderValue::from_static("tunnel-check.v1, tunnel.v1");
        let headers = request.headers_mut();
        headers.insert(header::SEC_WEBSOCKET_PROTOCOL, both);
        assert_eq!(check_request(request), Ok(greeting()));
    }

    #[test]
    fn each_defect_has_its_own_error() {
        let broken = |change: &dyn Fn(&mut Request<()>)| {
            let mut request = session_request();
            change(&mut request);
            check_request(&request).unwrap_err()
        };
        let without = |name: HeaderName| broken(&move |r| drop(r.headers_mut().remove(&name)));
        assert_eq!(
            broken(&|r| *r.uri_mut() = "/".parse().unwrap()),
            NotASession::Path
        );
        assert_eq!(
            broken(&|r| *r.method_mut() = Method::POST),
            NotASession::Method
        );
        assert_eq!(without(header::UPGRADE), NotASession::NotWebSocket);
        assert_eq!(
            without(header::SEC_WEBSOCKET_PROTOCOL),
            NotASession::Subprotocol
        );
        assert_eq!(without(INSTANCE), NotASession::Greeting);
        assert_eq!(without(SESSION_NUMBER), NotASession::Greeting);
        let origin = HeaderValue::from_static("https://evil.example");
        assert_eq!(
            broken(&|r| drop(r.headers_mut().insert(header::ORIGIN, origin.clone()))),
            NotASession::Origin
        );
    }

    #[test]
    fn the_response_must_match_the_key() {
        let key = new_key();
        let mut headers = HeaderMap::new();
        headers.insert(header::CONNECTION, HeaderValue::from_static("Upgrade"));
        headers.insert(header::UPGRADE, HeaderValue::from_static("WebSocket"));
        headers.insert(
            header::SEC_WEBSOCKET_PROTOCOL,
            HeaderValue::from_static(SUBPROTOCOL),
        );
        headers.insert(
            header::SEC_WEBSOCKET_ACCEPT,
            HeaderValue::from_str(&accept_key(key.as_bytes())).unwrap(),
        );
        assert!(is_accepted(&headers, &greeting(), &key));
        assert!(!is_accepted(&headers, &greeting(), &new_key()));
        let check = Greeting {
            is_check: true,
            ..greeting()
        };
        assert!(!is_accepted(&headers, &check, &key));
    }
}
