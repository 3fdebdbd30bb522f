//! Asking a running server: one request to its admin listener, and its answer or a text that says
//! what to do.
//!
//! In come the operator's flags; out come the API's own values. Every step has a deadline, and an
//! answer a bound. The token goes into the request alone.

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
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use serde::de::DeserializeOwned;
use tokio::{net::TcpStream, time::timeout};

use super::{Failure, table::printable};
use crate::admin::{
    address::AdminUrl,
    api::{AdminProblem, ROOT},
};
use crate::cli::AdminArgs;

/// For the connection: the server is near, or not there.
const CONNECT_DEADLINE: Duration = Duration::from_secs(5);

/// For the answer, which the server makes at once.
const ANSWER_DEADLINE: Duration = Duration::from_secs(10);

/// Most bytes of an answer: several times the largest page of runtimes.
const ANSWER_BYTES: usize = 16 * 1024 * 1024;

/// Most bytes of a token's file.
const TOKEN_BYTES: u64 = 4_096;

/// Longest part of an answer that is not ours that an error repeats, in characters.
const SHOWN: usize = 200;

/// A way to a server's admin listener.
pub(super) struct AdminClient {
    url: AdminUrl,
    /// Which flag has it.
    flag: &'static str,
    /// The whole field, and where it is from.
    token: Option<(HeaderValue, PathBuf)>,
}

/// Why a server did not do what it was asked.
#[derive(Debug, thiserror::Error)]
pub(super) enum AskError {
    /// There is no server.
    #[error(
        "no server answers at {url}: {source}; start one, or say with {flag} where its admin \
         listener is"
    )]
    Unreachable {
        url: AdminUrl,
        flag: &'static str,
        source: io::Error,
    },
    /// Something took too long.
    #[error("{url} did not answer within {limit:?}: look at the server's log")]
    Slow { url: AdminUrl, limit: Duration },
    /// The connection ended, or carried no HTTP.
    #[error("{url} gave no whole answer: {source}; is it an admin listener?")]
    Broken {
        url: AdminUrl,
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// No token was given, and one is needed.
    #[error(
        "{url} wants the admin token: give its file with --admin-token-file, or in \
         TUNNEL_SERVER_ADMIN_TOKEN_FILE"
    )]
    TokenMissing { url: AdminUrl },
    /// The token is another.
    #[error(
        "{url} refused the token in {}: give the file that the server was started with",
        .file.display()
    )]
    TokenRefused { url: AdminUrl, file: PathBuf },
    /// The server says no.
    #[error("{detail} ({reason})")]
    Refused { reason: String, detail: String },
    /// An answer that no admin listener of this version gives.
    #[error("{url} answered {status}, which is not an answer of the admin API: {text}")]
    NotOurs {
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

    /// A client for the URL of another flag.
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

    /// The server that is asked.
    pub(super) fn url(&self) -> &AdminUrl {
        &self.url
    }

    /// Reads what is at a path below the API's root.
    pub(super) async fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, AskError> {
        self.ask(Method::GET, path, Bytes::new()).await
    }

    /// Has something done.
    pub(super) async fn post<T: DeserializeOwned>(
        &self,
        path: &str,
        body: Bytes,
    ) -> Result<T, AskError> {
        self.ask(Method::POST, path, body).await
    }

    async fn ask<T: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        body: Bytes,
    ) -> Result<T, AskError> {
        let stream = self.connect().await?;
        let request = self.request(method, path, body)?;
        let exchange = exchange(stream, request);
        let response = match timeout(ANSWER_DEADLINE, exchange).await {
            Ok(answer) => answer.map_err(|source| self.broken(source))?,
            Err(_) => return Err(self.slow(ANSWER_DEADLINE)),
        };
        let status = response.status();
        if status != StatusCode::OK {
            return Err(self.refused(status, response.body()));
        }
        serde_json::from_slice(response.body()).map_err(|_| self.not_ours(&response))
    }

    async fn connect(&self) -> Result<TcpStream, AskError> {
        let connecting = TcpStream::connect((self.url.host(), self.url.port()));
        match timeout(CONNECT_DEADLINE, connecting).await {
            Ok(Ok(stream)) => Ok(stream),
            Ok(Err(source)) => Err(AskError::Unreachable {
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
    ) -> Result<Request<Full<Bytes>>, AskError> {
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

    fn refused(&self, status: StatusCode, body: &[u8]) -> AskError {
        let url = self.url.clone();
        match (status, &self.token) {
            (StatusCode::UNAUTHORIZED, None) => return AskError::TokenMissing { url },
            (StatusCode::UNAUTHORIZED, Some((_, file))) => {
                let file = file.clone();
                return AskError::TokenRefused { url, file };
            }
            _ => {}
        }
        match serde_json::from_slice(body) {
            Ok(AdminProblem { reason, detail }) => AskError::Refused {
                reason: printable(&reason),
                detail: printable(&detail),
            },
            Err(_) => AskError::NotOurs {
                url,
                status,
                text: shown(body),
            },
        }
    }

    fn not_ours(&self, response: &Response<Bytes>) -> AskError {
        AskError::NotOurs {
            url: self.url.clone(),
            status: response.status(),
            text: shown(response.body()),
        }
    }

    fn broken(&self, source: Box<dyn std::error::Error + Send + Sync>) -> AskError {
        let url = self.url.clone();
        AskError::Broken { url, source }
    }

    fn slow(&self, limit: Duration) -> AskError {
        let url = self.url.clone();
        AskError::Slow { url, limit }
    }
}

impl From<AskError> for Failure {
    fn from(error: AskError) -> Self {
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

/// One request and its answer, which ends the connection.
async fn exchange(
    stream: TcpStream,
    request: Request<Full<Bytes>>,
) -> Result<Response<Bytes>, Box<dyn std::error::Error + Send + Sync>> {
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    let answer = async {
        let (head, body) = sender.send_request(request).await?.into_parts();
        let body = Limited::new(body, ANSWER_BYTES).collect().await?;
        Ok(Response::from_parts(head, body.to_bytes()))
    };
    // The connection moves the bytes; whatever ends it shows in the answer.
    let moving = async {
        let _ = connection.await;
        std::future::pending().await
    };
    tokio::select! {
        answer = answer => answer,
        never = moving => never,
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

/// The beginning of an answer, on one line.
fn shown(body: &[u8]) -> String {
    let text = String::from_utf8_lossy(body);
    let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
    let words = words.chars().filter(|letter| !letter.is_control());
    words.take(SHOWN).collect()
}
