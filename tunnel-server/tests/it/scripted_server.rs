//! A server to which the tunnel server under test sends requests: the platform, or an issuer of keys. It answers as a
//! test scripts, and records the requests.

use std::{convert::Infallible, future::pending, sync::Arc, time::Duration};

use bytes::Bytes;
use http::{HeaderMap, Request, Response, header};
use http_body_util::{BodyExt, Full};
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use tokio::{net::TcpListener, sync::Semaphore, task::JoinSet};
use tokio_rustls::TlsAcceptor;
use tunnel_ops::{
    task::Owned,
    tls_files::{self, Identity},
};
use tunnel_server::certs::Certificates;

/// How the server answers a request.
#[derive(Clone)]
pub(crate) enum Reply {
    /// A status and a body.
    Answer(u16, String),
    /// No answer.
    Silence,
    /// This answer, once for each permit.
    Held(Arc<Semaphore>, u16, String),
    /// An answer that is computed from the body of the request.
    Made(fn(&str) -> (u16, String)),
}

/// A received request.
#[derive(Debug, Clone)]
pub(crate) struct Question {
    pub(crate) method: String,
    pub(crate) authorization: Option<String>,
    pub(crate) headers: HeaderMap,
    pub(crate) body: String,
}

/// The scripted server.
pub(crate) struct ScriptedServer {
    pub(crate) url: String,
    state: Arc<State>,
    _serving: Owned<()>,
}

struct State {
    reply: Mutex<Reply>,
    questions: Mutex<Vec<Question>>,
    /// Open requests, and the most that were open at once.
    open: Mutex<(usize, usize)>,
}

impl ScriptedServer {
    /// Starts the server, with TLS if there are certificates.
    pub(crate) async fn start(certificates: Option<&Certificates>, reply: Reply) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let tls = certificates.map(|made| {
            let identity = Identity::from_pem(&made.server_pem, &made.server_key).unwrap();
            TlsAcceptor::from(tls_files::server_config(&identity, &[], None).unwrap())
        });
        let scheme = if tls.is_some() { "https" } else { "http" };
        let state = Arc::new(State {
            reply: Mutex::new(reply),
            questions: Mutex::default(),
            open: Mutex::default(),
        });
        Self {
            url: format!("{scheme}://localhost:{port}/verify"),
            state: state.clone(),
            _serving: Owned::spawn("scripted server", serve(listener, tls, state)),
        }
    }

    /// Sets the answer to later requests.
    pub(crate) fn reply(&self, reply: Reply) {
        *self.state.reply.lock() = reply;
    }

    /// All requests up to now.
    pub(crate) fn questions(&self) -> Vec<Question> {
        self.state.questions.lock().clone()
    }

    /// The most requests that were open at once.
    pub(crate) fn most_at_once(&self) -> usize {
        self.state.open.lock().1
    }

    /// The number of open requests.
    pub(crate) fn open(&self) -> usize {
        self.state.open.lock().0
    }
}

async fn serve(listener: TcpListener, tls: Option<TlsAcceptor>, state: Arc<State>) {
    let mut connections = JoinSet::new();
    loop {
        let (socket, _) = listener.accept().await.unwrap();
        let (tls, state) = (tls.clone(), state.clone());
        connections.spawn(async move {
            let service = service_fn(|request| answer(request, state.clone()));
            let http = http1::Builder::new();
            // The other end may hang up whenever it likes.
            match tls {
                Some(tls) => {
                    let Ok(stream) = tls.accept(socket).await else {
                        return;
                    };
                    let _ = http.serve_connection(TokioIo::new(stream), service).await;
                }
                None => {
                    let _ = http.serve_connection(TokioIo::new(socket), service).await;
                }
            }
        });
    }
}

async fn answer(
    request: Request<Incoming>,
    state: Arc<State>,
) -> Result<Response<Full<Bytes>>, Infallible> {
    let _open = Open::new(&state);
    let (head, body) = request.into_parts();
    let body = body.collect().await.unwrap().to_bytes();
    let body = String::from_utf8(body.to_vec()).unwrap();
    let authorization = head.headers.get(header::AUTHORIZATION);
    state.questions.lock().push(Question {
        method: head.method.to_string(),
        authorization: authorization.map(|value| value.to_str().unwrap().to_owned()),
        headers: head.headers,
        body: body.clone(),
    });
    let reply = state.reply.lock().clone();
    let (status, text) = match reply {
        Reply::Answer(status, text) => (status, text),
        Reply::Silence => pending().await,
        Reply::Held(permits, status, text) => {
            permits.acquire().await.unwrap().forget();
            (status, text)
        }
        Reply::Made(make) => make(&body),
    };
    let mut response = Response::new(Full::from(text));
    *response.status_mut() = status.try_into().unwrap();
    Ok(response)
}

struct Open<'a>(&'a State);

impl<'a> Open<'a> {
    fn new(state: &'a State) -> Self {
        let mut open = state.open.lock();
        open.0 += 1;
        open.1 = open.0.max(open.1);
        Self(state)
    }
}

impl Drop for Open<'_> {
    fn drop(&mut self) {
        self.0.open.lock().0 -= 1;
    }
}

/// A short time-out, for tests that wait until it has passed.
pub(crate) const SHORT: Duration = Duration::from_millis(300);
