//! The client of a running server's admin API.
//!
//! In: the operator's flags. Out: the API's values, or an error that says what to do. Every step has a deadline, and the
//! size of a response is bounded. The token is used in the request only.

use std::{
    fmt, fs,
    io::{self, Read},
    path::{Path, PathBuf},
    time::Duration,
};

use bytes::Bytes;
use http::{
    HeaderValue, Method, Request, Response, StatusCode,
    header::{AUTHORIZATION, CONTENT_TYPE, HOST},
};
use http_body_util::{BodyExt, Full, Limited};
use hyper::{body::Incoming, client::conn::http1};
use hyper_util::rt::TokioIo;
use serde::de::DeserializeOwned;
use tokio::{net::TcpStream, time::timeout};
use tunnel_ops::task::Owned;

use super::{Failure, table::printable};
use crate::admin::{address::AdminUrl, api::ROOT, refusal::AdminProblem};
use crate::cli::AdminArgs;

/// Time for the connection, which is usually local.
const CONNECT_DEADLINE: Duration = Duration::from_secs(5);

/// Time for the response, which the server makes without waiting.
const RESPONSE_DEADLINE: Duration = Duration::from_secs(10);

/// Longest silence of a stream of events: two of the server's heartbeats.
const SILENCE: Duration = Duration::from_secs(30);

/// Largest response, in bytes: several times the largest page of runtimes.
const RESPONSE_BYTES: usize = 16 * 1024 * 1024;

/// Largest token file, in bytes.
const TOKEN_BYTES: u64 = 4_096;

/// Longest part of a foreign response that an error quotes, in characters.
const QUOTED_CHARS: usize = 200;

/// A client of one admin listener.
pub(super) struct AdminClient {
    url: AdminUrl,
    /// The flag that the URL is from.
    flag: &'static str,
    /// The value of `Authorization`, and the file that it is from.
    token: Option<(HeaderValue, PathBuf)>,
}

/// Why a request failed.
#[derive(Debug, thiserror::Error)]
pub(super) enum AdminRequestError {
    /// The connection failed.
    #[error(
        "no server answers at {url}: {source}; start one, or give the URL of its admin listener with \
         {flag}"
    )]
    Unreachable {
        url: AdminUrl,
        flag: &'static str,
        source: io::Error,
    },
    /// A deadline passed.
    #[error("{url} did not answer within {limit:?}: see the server's log")]
    Slow { url: AdminUrl, limit: Duration },
    /// The connection ended early, or the peer does not speak HTTP.
    #[error("{url} sent no complete response: {source}; is it an admin listener?")]
    Broken {
        url: AdminUrl,
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// A token is required, and none was given.
    #[error(
        "{url} requires the admin token: give its file with --admin-token-file, or in \
         TUNNEL_SERVER_ADMIN_TOKEN_FILE"
    )]
    TokenMissing { url: AdminUrl },
    /// The server does not accept the token.
    #[error(
        "{url} refused the token in {}: give the file that the server was started with",
        .file.display()
    )]
    TokenRefused { url: AdminUrl, file: PathBuf },
    /// The server refused the request.
    #[error("{detail} ({reason})")]
    Refused { reason: String, detail: String },
    /// The response is not one of the admin API.
    #[error("{url} answered {status}, which is not a response of the admin API: {text}")]
    Foreign {
        url: AdminUrl,
        status: StatusCode,
        text: String,
    },
}

impl AdminClient {
    /// Reads the token, if a file is given.
    pub(super) fn new(args: &AdminArgs) -> Result<Self, Failure> {
        Self::at("--admin", &args.url, args.token_file.as_deref())
    }

    /// A client for the URL that was given with this flag.
    pub(super) fn at(
        flag: &'static str,
        url: &AdminUrl,
        token_file: Option<&Path>,
    ) -> Result<Self, Failure> {
        let token = token_file.map(|path| {
            let field = token_field(path);
            field
                .map(|field| (field, path.to_owned()))
                .map_err(|problem| {
                    Failure::configuration(format_args!(
                        "--admin-token-file: {}: {problem}",
                        path.display()
                    ))
                })
        });
        Ok(Self {
            url: url.clone(),
            flag,
            token: token.transpose()?,
        })
    }

    /// The URL of the admin listener.
    pub(super) fn url(&self) -> &AdminUrl {
        &self.url
    }

    /// Reads the resource at a path below the API's root.
    pub(super) async fn get<T: DeserializeOwned>(
        &self,
        path: &str,
    ) -> Result<T, AdminRequestError> {
        self.send(Method::GET, path, Bytes::new()).await
    }

    /// Requests an operation.
    pub(super) async fn post<T: DeserializeOwned>(
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

    /// The stream of events after the one with this id, or from now on.
    pub(super) async fn events(&self, last: Option<&str>) -> Result<EventLines, AdminRequestError> {
        let stream = self.connect().await?;
        let mut request = self.request(Method::GET, "/events", Bytes::new())?;
        if let Some(id) = last.and_then(|id| HeaderValue::from_str(id).ok()) {
            request.headers_mut().insert("last-event-id", id);
        }
        let begun = timeout(RESPONSE_DEADLINE, begin(stream, request)).await;
        let (response, connection) = match begun {
            Ok(begun) => begun.map_err(|source| self.broken(source))?,
            Err(_) => return Err(self.slow(RESPONSE_DEADLINE)),
        };
        let (head, body) = response.into_parts();
        if head.status != StatusCode::OK {
            let body = Limited::new(body, RESPONSE_BYTES).collect().await;
            let body = body.map_err(|source| self.broken(source))?.to_bytes();
            return Err(self.refused(head.status, &body));
        }
        Ok(EventLines {
            url: self.url.clone(),
            body,
            read: Vec::new(),
            _connection: connection,
        })
    }

    async fn connect(&self) -> Result<TcpStream, AdminRequestError> {
        let connecting = TcpStream::connect((self.url.host(), self.url.port()));
        match timeout(CONNECT_DEADLINE, connecting).await {
            Ok(Ok(stream)) => Ok(stream),
            Ok(Err(source)) => Err(AdminRequestError::Unreachable {
                url: self.url.clone(),
                flag: self.flag,
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
            .uri(format!("{ROOT}{path}"))
            .header(HOST, self.url.authority());
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
        let url = self.url.clone();
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
            url: self.url.clone(),
            status: response.status(),
            text: excerpt(response.body()),
        }
    }

    fn broken(&self, source: Box<dyn std::error::Error + Send + Sync>) -> AdminRequestError {
        let url = self.url.clone();
        AdminRequestError::Broken { url, source }
    }

    fn slow(&self, limit: Duration) -> AdminRequestError {
        let url = self.url.clone();
        AdminRequestError::Slow { url, limit }
    }
}

impl From<AdminRequestError> for Failure {
    fn from(error: AdminRequestError) -> Self {
        Self::running(error)
    }
}

impl fmt::Debug for AdminClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AdminClient")
            .field("url", &self.url)
            .finish_non_exhaustive()
    }
}

/// The lines of a stream of events.
pub(super) struct EventLines {
    url: AdminUrl,
    body: Incoming,
    /// What was received behind the last line.
    read: Vec<u8>,
    _connection: Owned<()>,
}

impl EventLines {
    /// The next line, without its end; `None` at the end of the stream.
    pub(super) async fn next(&mut self) -> Result<Option<String>, AdminRequestError> {
        loop {
            if let Some(end) = self.read.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.read.drain(..=end).collect();
                return Ok(Some(String::from_utf8_lossy(&line).trim_end().to_owned()));
            }
            // The server speaks at least every 15 s.
            let Ok(frame) = timeout(SILENCE, self.body.frame()).await else {
                let (url, limit) = (self.url.clone(), SILENCE);
                return Err(AdminRequestError::Slow { url, limit });
            };
            match frame {
                None => return Ok(None),
                Some(Ok(frame)) => self.read.extend(frame.into_data().unwrap_or_default()),
                Some(Err(source)) => {
                    let (url, source) = (self.url.clone(), source.into());
                    return Err(AdminRequestError::Broken { url, source });
                }
            }
            if self.read.len() > RESPONSE_BYTES {
                return Ok(None);
            }
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
    let token = text.trim();
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
