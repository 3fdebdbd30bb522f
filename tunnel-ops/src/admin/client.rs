//! The client of a running program's admin API.
//!
//! In: the operator's flags. Out: the API's values, or an error that says what to do. Every step has a deadline, and the
//! size of a response is bounded. The token is used in the request only.

use std::{
    fmt, fs,
    future::ready,
    io::{self, Read},
    path::{Path, PathBuf},
    time::Duration,
};

use bytes::Bytes;
use futures_util::{
    StreamExt,
    stream::{self, BoxStream, SelectAll},
};
use http::{
    HeaderValue, Method, Request, Response, StatusCode,
    header::{AUTHORIZATION, CONTENT_TYPE, HOST},
};
use http_body_util::{BodyExt, Full, Limited};
use hyper::{body::Incoming, client::conn::http1};
use hyper_util::rt::TokioIo;
use serde::de::DeserializeOwned;
use tokio::{
    net::TcpStream,
    time::{sleep, timeout},
};

use super::{API_ROOT, AdminProblem, AdminUrl, EventParser, HEARTBEAT, REPLACED, ReceivedEvent};
use crate::{byte_order_mark::without_mark, task::Owned, terminal::printable};

/// Time for the connection, which is usually local.
const CONNECT_DEADLINE: Duration = Duration::from_secs(5);

/// Time for the response, which the program makes without waiting.
const RESPONSE_DEADLINE: Duration = Duration::from_secs(10);

/// Longest silence of a stream of events.
const SILENCE: Duration = HEARTBEAT.saturating_mul(2);

/// Time until the next request after a stream was lost.
const PAUSE: Duration = Duration::from_secs(1);

/// Largest response, in bytes: several times the largest page of runtimes.
const RESPONSE_BYTES: usize = 16 * 1024 * 1024;

/// Largest token file, in bytes.
const TOKEN_BYTES: u64 = 4_096;

/// Longest part of a foreign response that an error quotes, in characters.
const QUOTED_CHARS: usize = 200;

/// Whose admin API is used.
#[derive(Debug, Clone)]
pub struct AdminTarget {
    /// The URL of its admin listener.
    pub url: AdminUrl,
    /// The flag that the URL is from.
    pub flag: &'static str,
    /// What the program is, as errors name it: `server` or `tunnel client`.
    pub program: &'static str,
}

/// A client of one admin listener.
pub struct AdminClient {
    target: AdminTarget,
    /// The value of `Authorization`, and the file that it is from.
    token: Option<(HeaderValue, PathBuf)>,
}

/// A file with an admin token cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("--admin-token-file: {}: {problem}", .file.display())]
pub struct AdminTokenError {
    file: PathBuf,
    problem: String,
}

/// Why a request failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AdminRequestError {
    /// The connection failed.
    #[error(
        "no {} answers at {}: {source}; start one, or give the URL of its admin listener with {}",
        .target.program, .target.url, .target.flag
    )]
    Unreachable {
        /// Who was asked.
        target: AdminTarget,
        /// Why not.
        source: io::Error,
    },
    /// A deadline passed.
    #[error("{url} did not answer within {limit:?}: see the log of the program there")]
    Slow {
        /// Who was asked.
        url: AdminUrl,
        /// The deadline.
        limit: Duration,
    },
    /// The connection ended early, or the peer does not speak HTTP.
    #[error("{url} sent no complete response: {source}; is it an admin listener?")]
    Broken {
        /// Who was asked.
        url: AdminUrl,
        /// What happened.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// A token is required, and none was given.
    #[error(
        "{url} requires the admin token: give its file with --admin-token-file, or in \
         TUNNEL_SERVER_ADMIN_TOKEN_FILE"
    )]
    TokenMissing {
        /// Who was asked.
        url: AdminUrl,
    },
    /// The server does not accept the token.
    #[error(
        "{url} refused the token in {}: give the file that the server was started with",
        .file.display()
    )]
    TokenRefused {
        /// Who was asked.
        url: AdminUrl,
        /// The file of the token.
        file: PathBuf,
    },
    /// The server refused the request.
    #[error("{detail} ({reason})")]
    Refused {
        /// The reason, as a stable name.
        reason: String,
        /// The reason for people.
        detail: String,
    },
    /// The response is not one of the admin API.
    #[error("{url} answered {status}, which is not a response of the admin API: {text}")]
    Foreign {
        /// Who was asked.
        url: AdminUrl,
        /// The status of the response.
        status: StatusCode,
        /// Its beginning.
        text: String,
    },
    /// What was received cannot be written.
    #[error("standard output: {0}")]
    Output(#[from] io::Error),
}

impl AdminRequestError {
    /// Whether another attempt may succeed: also when the listener changes hands, or behind a forwarded port.
    fn is_of_network(&self) -> bool {
        matches!(
            self,
            Self::Unreachable { .. } | Self::Slow { .. } | Self::Broken { .. }
        )
    }
}

impl AdminClient {
    /// A client without a token.
    #[must_use]
    pub fn new(target: AdminTarget) -> Self {
        let token = None;
        Self { target, token }
    }

    /// A client that shows the token in this file.
    ///
    /// # Errors
    /// When the file cannot be read, or has no token.
    pub fn with_token(target: AdminTarget, file: &Path) -> Result<Self, AdminTokenError> {
        let field = token_field(file).map_err(|problem| AdminTokenError {
            file: file.to_owned(),
            problem,
        })?;
        let token = Some((field, file.to_owned()));
        Ok(Self { target, token })
    }

    /// The URL of the admin listener.
    #[must_use]
    pub fn url(&self) -> &AdminUrl {
        &self.target.url
    }

    /// Reads the resource at a path below the API's root.
    ///
    /// # Errors
    /// See [`AdminRequestError`].
    pub async fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, AdminRequestError> {
        self.send(Method::GET, path, Bytes::new()).await
    }

    /// Requests an operation.
    ///
    /// # Errors
    /// See [`AdminRequestError`].
    pub async fn post<T: DeserializeOwned>(
        &self,
        path: &str,
        body: Bytes,
    ) -> Result<T, AdminRequestError> {
        self.send(Method::POST, path, body).await
    }

    async fn send<T: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        body: Bytes,
    ) -> Result<T, AdminRequestError> {
        let stream = self.connect().await?;
        let request = self.request(method, path, body)?;
        let round_trip = round_trip(stream, request);
        let response = match timeout(RESPONSE_DEADLINE, round_trip).await {
            Ok(response) => response.map_err(|source| self.broken(source))?,
            Err(_) => return Err(self.slow(RESPONSE_DEADLINE)),
        };
        let status = response.status();
        if status != StatusCode::OK {
            return Err(self.refused(status, response.body()));
        }
        serde_json::from_slice(response.body()).map_err(|_| self.foreign(&response))
    }

    /// Gives `take` each event of the stream at a path below the API's root, until `take` returns false. A stream that is
    /// lost is opened again, after the last event that had an id. One of a process that was [replaced](REPLACED) is read to
    /// its end, beside that of the new process.
    ///
    /// # Errors
    /// When the first request fails, a later one is refused, or `take` fails.
    pub async fn follow(
        &self,
        path: &str,
        mut take: impl FnMut(&ReceivedEvent) -> io::Result<bool>,
    ) -> Result<(), AdminRequestError> {
        let (mut last, mut newest, mut refused) = (None, 0, None);
        let mut streams = SelectAll::new();
        streams.push(self.stream(path, None).await?.events(newest));
        // Another one is opened as a part of these, so that they are read meanwhile.
        while let Some((number, next)) = streams.next().await {
            let is_newest = number == newest;
            match next {
                Ok(event) if event.name == REPLACED => {
                    if is_newest {
                        (last, newest) = (event.id, newest + 1);
                        let opening = self.stream(path, last.clone());
                        streams.push(self.opened(newest, opening));
                    }
                }
                Ok(event) => {
                    if !take(&event)? {
                        return Ok(());
                    }
                    if is_newest {
                        last = event.id.or(last);
                    }
                }
                Err(StreamEnd::Refused(error)) => {
                    if !streams.is_empty() {
                        crate::print_note!(
                            "warning: {error}: only what ends in the process that was replaced follows"
                        );
                    }
                    refused = Some(error);
                }
                Err(end) if is_newest => {
                    crate::print_note!(
                        "warning: the stream of the {0} at {1} is over ({end}): the {0} stops or restarts, or the \
                         connection was cut; connecting again",
                        self.target.program,
                        self.target.url
                    );
                    newest += 1;
                    let opening = self.stream_again(path, last.clone());
                    streams.push(self.opened(newest, opening));
                }
                Err(StreamEnd::Ended) => {}
                Err(StreamEnd::Lost(cause)) => crate::print_note!(
                    "warning: the connection to the process that was replaced is lost ({cause}): what ends there from now \
                     on is missing"
                ),
            }
        }
        refused.map_or(Ok(()), Err)
    }

    /// The events of a stream that is being opened.
    fn opened<'a>(
        &'a self,
        number: u64,
        opening: impl Future<Output = Result<EventStream, AdminRequestError>> + Send + 'a,
    ) -> NumberedEvents<'a> {
        let opening = stream::once(opening).map(move |opened| match opened {
            Ok(stream) => stream.events(number),
            Err(error) => {
                let end = match error.is_of_network() {
                    true => StreamEnd::Lost(error.to_string()),
                    false => StreamEnd::Refused(error),
                };
                stream::once(ready((number, Err(end)))).boxed()
            }
        });
        opening.flatten().boxed()
    }

    /// Opens a stream again after a pause, until that succeeds or is refused.
    async fn stream_again(
        &self,
        path: &str,
        last: Option<String>,
    ) -> Result<EventStream, AdminRequestError> {
        loop {
            sleep(PAUSE).await;
            match self.stream(path, last.clone()).await {
                Err(error) if error.is_of_network() => {}
                Ok(stream) => {
                    crate::print_note!(
                        "warning: the stream of the {} at {} goes on; what happened in between may be missing",
                        self.target.program,
                        self.target.url
                    );
                    return Ok(stream);
                }
                Err(refused) => return Err(refused),
            }
        }
    }

    /// The stream after the event with this id, or from now on.
    async fn stream(
        &self,
        path: &str,
        last: Option<String>,
    ) -> Result<EventStream, AdminRequestError> {
        let stream = self.connect().await?;
        let mut request = self.request(Method::GET, path, Bytes::new())?;
        if let Some(id) = last.and_then(|id| HeaderValue::from_str(&id).ok()) {
            request.headers_mut().insert("last-event-id", id);
        }
        let begun = timeout(RESPONSE_DEADLINE, begin(stream, request)).await;
        let (response, connection) = match begun {
            Ok(begun) => begun.map_err(|source| self.broken(source))?,
            Err(_) => return Err(self.slow(RESPONSE_DEADLINE)),
        };
        let (head, body) = response.into_parts();
        if head.status != StatusCode::OK {
            let body = Limited::new(body, RESPONSE_BYTES).collect();
            let body = timeout(RESPONSE_DEADLINE, body).await;
            let body = body.map_err(|_| self.slow(RESPONSE_DEADLINE))?;
            let body = body.map_err(|source| self.broken(source))?.to_bytes();
            return Err(self.refused(head.status, &body));
        }
        Ok(EventStream {
            body,
            parser: EventParser::default(),
            _connection: connection,
        })
    }

    async fn connect(&self) -> Result<TcpStream, AdminRequestError> {
        let connecting = TcpStream::connect((self.target.url.host(), self.target.url.port()));
        match timeout(CONNECT_DEADLINE, connecting).await {
            Ok(Ok(stream)) => Ok(stream),
            Ok(Err(source)) => Err(AdminRequestError::Unreachable {
                target: self.target.clone(),
                source,
            }),
            Err(_) => Err(self.slow(CONNECT_DEADLINE)),
        }
    }

    fn request(
        &self,
        method: Method,
        path: &str,
        body: Bytes,
    ) -> Result<Request<Full<Bytes>>, AdminRequestError> {
        let mut request = Request::builder()
            .method(method)
            .uri(format!("{API_ROOT}{path}"))
            .header(HOST, self.target.url.authority());
        if !body.is_empty() {
            request = request.header(CONTENT_TYPE, "application/json");
        }
        if let Some((token, _)) = &self.token {
            request = request.header(AUTHORIZATION, token);
        }
        let request = request.body(Full::new(body));
        request.map_err(|source| self.broken(source.into()))
    }

    fn refused(&self, status: StatusCode, body: &[u8]) -> AdminRequestError {
        let url = self.target.url.clone();
        match (status, &self.token) {
            (StatusCode::UNAUTHORIZED, None) => return AdminRequestError::TokenMissing { url },
            (StatusCode::UNAUTHORIZED, Some((_, file))) => {
                let file = file.clone();
                return AdminRequestError::TokenRefused { url, file };
            }
            _ => {}
        }
        match serde_json::from_slice(body) {
            Ok(AdminProblem { reason, detail }) => AdminRequestError::Refused {
                reason: printable(&reason),
                detail: printable(&detail),
            },
            Err(_) => AdminRequestError::Foreign {
                url,
                status,
                text: excerpt(body),
            },
        }
    }

    fn foreign(&self, response: &Response<Bytes>) -> AdminRequestError {
        AdminRequestError::Foreign {
            url: self.target.url.clone(),
            status: response.status(),
            text: excerpt(response.body()),
        }
    }

    fn broken(&self, source: Box<dyn std::error::Error + Send + Sync>) -> AdminRequestError {
        let url = self.target.url.clone();
        AdminRequestError::Broken { url, source }
    }

    fn slow(&self, limit: Duration) -> AdminRequestError {
        let url = self.target.url.clone();
        AdminRequestError::Slow { url, limit }
    }
}

impl fmt::Debug for AdminClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AdminClient")
            .field("target", &self.target)
            .finish_non_exhaustive()
    }
}

/// The events of a numbered stream, and then why it has ended.
type NumberedEvents<'a> = BoxStream<'a, (u64, Result<ReceivedEvent, StreamEnd>)>;

/// Why a stream of events has ended.
#[derive(Debug, thiserror::Error)]
enum StreamEnd {
    /// The program has ended it.
    #[error("it ended")]
    Ended,
    /// The network, or what came by it.
    #[error("{0}")]
    Lost(String),
    /// The program has refused it.
    #[error(transparent)]
    Refused(AdminRequestError),
}

/// A stream of events.
struct EventStream {
    body: Incoming,
    parser: EventParser,
    _connection: Owned<()>,
}

impl EventStream {
    /// Its events, each with this number, and then why it has ended.
    fn events(self, number: u64) -> NumberedEvents<'static> {
        let events = stream::unfold(Some(self), async |events| {
            let mut events = events?;
            let end = match events.next().await {
                Ok(Some(event)) => return Some((Ok(event), Some(events))),
                Ok(None) => StreamEnd::Ended,
                Err(error) => StreamEnd::Lost(error.to_string()),
            };
            Some((Err(end), None))
        });
        events.map(move |next| (number, next)).boxed()
    }

    /// The next event; `None` at the end of the stream.
    async fn next(
        &mut self,
    ) -> Result<Option<ReceivedEvent>, Box<dyn std::error::Error + Send + Sync>> {
        loop {
            if let Some(event) = self.parser.next_event() {
                return Ok(Some(event));
            }
            // The program sends something at least with each heartbeat.
            let Ok(frame) = timeout(SILENCE, self.body.frame()).await else {
                return Err(format!("nothing came for {SILENCE:?}").into());
            };
            let Some(frame) = frame else {
                return Ok(None);
            };
            let data = frame?.into_data().unwrap_or_default();
            self.parser.receive(&data)?;
        }
    }
}

/// Sends one request on a connection of its own, and reads the head of the response.
async fn begin(
    stream: TcpStream,
    request: Request<Full<Bytes>>,
) -> Result<(Response<Incoming>, Owned<()>), Box<dyn std::error::Error + Send + Sync>> {
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    let connection = Owned::spawn("admin-connection", async {
        // Its error is also that of the body.
        let _ = connection.await;
    });
    Ok((sender.send_request(request).await?, connection))
}

/// Sends one request and reads its response, on a connection of its own.
async fn round_trip(
    stream: TcpStream,
    request: Request<Full<Bytes>>,
) -> Result<Response<Bytes>, Box<dyn std::error::Error + Send + Sync>> {
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    let response = async {
        let (head, body) = sender.send_request(request).await?.into_parts();
        let body = Limited::new(body, RESPONSE_BYTES).collect().await?;
        Ok(Response::from_parts(head, body.to_bytes()))
    };
    // The connection moves the bytes. Its error is also the response's.
    let driving = async {
        let _ = connection.await;
        std::future::pending().await
    };
    tokio::select! {
        response = response => response,
        never = driving => never,
    }
}

fn token_field(path: &Path) -> Result<HeaderValue, String> {
    let mut text = String::new();
    fs::File::open(path)
        .and_then(|file| file.take(TOKEN_BYTES).read_to_string(&mut text))
        .map_err(|error| format!("cannot be read: {error}"))?;
    let token = without_mark(&text).trim();
    if token.is_empty() || !token.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err("holds no token: give one line without spaces".to_owned());
    }
    let field = HeaderValue::from_str(&format!("Bearer {token}"));
    let mut field = field.map_err(|_| "holds no token".to_owned())?;
    field.set_sensitive(true);
    Ok(field)
}

/// The beginning of a response, on one line.
fn excerpt(body: &[u8]) -> String {
    let text = String::from_utf8_lossy(body);
    let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
    let words = words.chars().filter(|letter| !letter.is_control());
    words.take(QUOTED_CHARS).collect()
}
