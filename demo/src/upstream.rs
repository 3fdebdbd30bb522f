//! The sample upstream: a page that uses fetch, Server-Sent Events and a WebSocket, and the paths that the page
//! requests. HTTP/1.1 and h2c, one task for each connection.
//!
//! | path | answer |
//! |---|---|
//! | `/` | the page |
//! | `/events` | an event immediately and then each second, with time and counter |
//! | `/checksum` | length and SHA-256 of the content, as JSON; POST or PUT, of any size |
//! | `/ws` | a WebSocket that echoes |
//! | `/echo` | method, path, headers and length of the request, as JSON |
//! | `/headers` | the request's headers, one on a line |
//! | `/download?bytes=N` | `N` bytes, as fast as the peer reads them |

mod content;
mod websocket;

use std::{convert::Infallible, io, net::SocketAddr, time::Duration};

use bytes::Bytes;
use http::{HeaderValue, Method, Request, Response, StatusCode, header};
use http_body_util::{BodyExt, Full, combinators::UnsyncBoxBody};
use hyper::{body::Incoming, service::service_fn};
use hyper_util::{
    rt::{TokioExecutor, TokioIo},
    server::conn::auto::Builder,
};
use serde_json::json;
use tokio::{
    net::{TcpListener, TcpStream},
    task::JoinSet,
    time::sleep,
};

/// The page, with its style and script: nothing is fetched from elsewhere.
const PAGE: &str = include_str!("page.html");

/// The page may load only itself, and connect only to this host.
const PAGE_POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'; \
    script-src 'unsafe-inline'; connect-src 'self' ws: wss:; img-src data:";

/// Pause after a failure to accept, such as too many open files, so that the retry is no busy loop.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// The content of every response of the sample.
type Body = UnsyncBoxBody<Bytes, io::Error>;

/// A bound listener, ready to be run.
#[derive(Debug)]
pub struct SampleUpstream {
    listener: TcpListener,
    address: SocketAddr,
}

impl SampleUpstream {
    /// Listens on `address`; port 0 takes a free one.
    ///
    /// # Errors
    /// When the address cannot be bound.
    pub async fn bind(address: SocketAddr) -> io::Result<Self> {
        let listener = TcpListener::bind(address).await?;
        let address = listener.local_addr()?;
        Ok(Self { listener, address })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Serves until `shutdown` is ready, and then ends all connections.
    pub async fn run(self, shutdown: impl Future<Output = ()>) {
        let mut connections = JoinSet::new();
        tokio::select! {
            () = shutdown => {}
            () = accept(&self.listener, &mut connections) => {}
        }
        connections.shutdown().await;
    }
}

async fn accept(listener: &TcpListener, connections: &mut JoinSet<()>) {
    loop {
        tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((socket, _)) => {
                    connections.spawn(serve(socket));
                }
                Err(error) => {
                    tracing::warn!(%error, "the sample upstream cannot accept a connection");
                    sleep(ACCEPT_PAUSE).await;
                }
            },
            Some(_) = connections.join_next() => {}
        }
    }
}

/// Serves one connection, and the WebSocket if it was upgraded to one.
async fn serve(socket: TcpStream) {
    // Without this option small responses are only slower, so a failure is ignored.
    drop(socket.set_nodelay(true));
    let (upgrades, mut upgraded) = tokio::sync::mpsc::channel(1);
    let service = service_fn(move |request: Request<Incoming>| {
        let upgrades = upgrades.clone();
        async move { Ok::<_, Infallible>(answer(request, upgrades).await) }
    });
    let builder = Builder::new(TokioExecutor::new());
    let served = builder
        .serve_connection_with_upgrades(TokioIo::new(socket), service)
        .await;
    if let Err(error) = served {
        tracing::debug!(%error, "a connection to the sample upstream ended early");
    }
    if let Ok(upgrade) = upgraded.try_recv() {
        websocket::echo(upgrade).await;
    }
}

async fn answer(request: Request<Incoming>, upgrades: websocket::Upgrades) -> Response<Body> {
    match (request.method(), request.uri().path()) {
        (&Method::GET, "/") => page(),
        (&Method::GET, "/events") => content::events(),
        (&Method::POST | &Method::PUT, "/checksum") => checksum(request).await,
        (&Method::GET, "/ws") => websocket::accept(request, upgrades),
        (_, "/echo") => echo(request).await,
        (_, "/headers") => headers(&request),
        (&Method::GET, "/download") => download(&request),
        (_, "/checksum") => text(StatusCode::METHOD_NOT_ALLOWED, "send it with POST or PUT\n"),
        _ => text(StatusCode::NOT_FOUND, "no such path; open / in a browser\n"),
    }
}

fn page() -> Response<Body> {
    let mut response = text(StatusCode::OK, PAGE);
    let headers = response.headers_mut();
    let kind = HeaderValue::from_static("text/html; charset=utf-8");
    headers.insert(header::CONTENT_TYPE, kind);
    let policy = HeaderValue::from_static(PAGE_POLICY);
    headers.insert(header::CONTENT_SECURITY_POLICY, policy);
    response
}

async fn checksum(request: Request<Incoming>) -> Response<Body> {
    match content::digest(request.into_body()).await {
        Ok((bytes, sha256)) => json(&json!({ "bytes": bytes, "sha256": sha256 })),
        Err(_) => text(StatusCode::BAD_REQUEST, "the content was cut\n"),
    }
}

async fn echo(request: Request<Incoming>) -> Response<Body> {
    let (head, body) = request.into_parts();
    let Ok((bytes, _)) = content::digest(body).await else {
        return text(StatusCode::BAD_REQUEST, "the content was cut\n");
    };
    let headers: Vec<_> = (head.headers.iter())
        .map(|(name, value)| {
            [
                name.as_str().into(),
                String::from_utf8_lossy(value.as_bytes()),
            ]
        })
        .collect();
    json(&json!({
        "method": head.method.as_str(),
        "path": head.uri.path_and_query().map_or("*", |path| path.as_str()),
        "version": format!("{:?}", head.version),
        "headers": headers,
        "bytes": bytes,
    }))
}

fn headers(request: &Request<Incoming>) -> Response<Body> {
    let lines = request.headers().iter().map(|(name, value)| {
        let value = String::from_utf8_lossy(value.as_bytes());
        format!("{name}: {value}\n")
    });
    text(StatusCode::OK, lines.collect::<String>())
}

fn download(request: &Request<Incoming>) -> Response<Body> {
    let query = request.uri().query().unwrap_or_default();
    let bytes = query
        .split('&')
        .find_map(|pair| pair.strip_prefix("bytes="));
    match bytes.unwrap_or("1048576").parse() {
        Ok(bytes) => content::download(bytes),
        Err(_) => text(
            StatusCode::BAD_REQUEST,
            "bytes must be a number, as in ?bytes=1048576\n",
        ),
    }
}

/// A response with this text as its content.
fn text(status: StatusCode, text: impl Into<Bytes>) -> Response<Body> {
    let mut response = Response::new(whole(text));
    *response.status_mut() = status;
    let kind = HeaderValue::from_static("text/plain; charset=utf-8");
    response.headers_mut().insert(header::CONTENT_TYPE, kind);
    response
}

fn json(value: &serde_json::Value) -> Response<Body> {
    let mut response = text(StatusCode::OK, format!("{value}\n"));
    let kind = HeaderValue::from_static("application/json");
    response.headers_mut().insert(header::CONTENT_TYPE, kind);
    response
}

fn whole(content: impl Into<Bytes>) -> Body {
    Full::new(content.into())
        .map_err(|never| match never {})
        .boxed_unsync()
}

#[cfg(test)]
mod tests {
    use futures_util::{SinkExt, StreamExt};
    use tokio::{
        io::{AsyncReadExt, AsyncWriteExt},
        sync::oneshot,
    };
    use tokio_tungstenite::{client_async, tungstenite::Message};

    use super::{content::PIECE, *};

    /// Starts the sample, which ends when the returned set is dropped.
    async fn start() -> (SocketAddr, JoinSet<()>) {
        let sample = SampleUpstream::bind("127.0.0.1:0".parse().unwrap())
            .await
            .unwrap();
        let address = sample.address();
        let mut tasks = JoinSet::new();
        tasks.spawn(sample.run(std::future::pending()));
        (address, tasks)
    }

    /// Sends one request and reads the whole response.
    async fn ask(address: SocketAddr, request: &str, content: &[u8]) -> String {
        let mut socket = TcpStream::connect(address).await.unwrap();
        let length = content.len();
        let head = format!(
            "{request} HTTP/1.1\r\nHost: sample\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n"
        );
        socket
            .write_all(&[head.as_bytes(), content].concat())
            .await
            .unwrap();
        let mut answer = String::new();
        socket.read_to_string(&mut answer).await.unwrap();
        answer
    }

    #[tokio::test]
    async fn the_page_may_load_nothing_from_elsewhere() {
        let (address, _tasks) = start().await;
        let page = ask(address, "GET /", b"").await;
        assert!(page.contains("content-security-policy: default-src 'none'"));
        assert!(page.ends_with("</html>\n"));
        for elsewhere in ["src=\"http", "href=\"http", "url(", "@import", "//cdn"] {
            assert!(!page.contains(elsewhere), "the page has {elsewhere}");
        }
    }

    #[tokio::test]
    async fn a_checksum_is_that_of_the_content() {
        let (address, _tasks) = start().await;
        let answer = ask(address, "PUT /checksum", b"abc").await;
        let abc = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert!(
            answer.ends_with(&format!("{{\"bytes\":3,\"sha256\":\"{abc}\"}}\n")),
            "{answer}"
        );
        assert!(
            ask(address, "GET /checksum", b"")
                .await
                .starts_with("HTTP/1.1 405")
        );
    }

    #[tokio::test]
    async fn an_echo_keeps_the_path_and_the_headers() {
        let (address, _tasks) = start().await;
        let answer = ask(address, "POST /echo?a=%2e%2E&b", b"12345").await;
        assert!(answer.contains(r#""path":"/echo?a=%2e%2E&b""#), "{answer}");
        assert!(answer.contains(r#"["host","sample"]"#) && answer.contains(r#""bytes":5"#));
        assert!(
            ask(address, "GET /headers", b"")
                .await
                .contains("\r\n\r\nhost: sample\n")
        );
    }

    #[tokio::test]
    async fn a_download_is_as_long_as_it_says() {
        let (address, _tasks) = start().await;
        for bytes in [0, 1, PIECE - 1, PIECE, PIECE + 1, 3 * PIECE] {
            let answer = ask(address, &format!("GET /download?bytes={bytes}"), b"").await;
            let (head, content) = answer.split_once("\r\n\r\n").unwrap();
            assert!(head.contains(&format!("content-length: {bytes}")), "{head}");
            assert_eq!(content.len(), bytes);
        }
        assert!(
            ask(address, "GET /download?bytes=x", b"")
                .await
                .starts_with("HTTP/1.1 400")
        );
    }

    #[tokio::test]
    async fn the_first_event_comes_at_once() {
        let (address, _tasks) = start().await;
        let mut socket = TcpStream::connect(address).await.unwrap();
        socket
            .write_all(b"GET /events HTTP/1.1\r\nHost: sample\r\n\r\n")
            .await
            .unwrap();
        let mut seen = Vec::new();
        while !String::from_utf8_lossy(&seen).contains("\"count\":1,") {
            assert!(socket.read_buf(&mut seen).await.unwrap() > 0);
        }
    }

    #[tokio::test]
    async fn a_websocket_echoes_until_it_is_closed() {
        let (address, _tasks) = start().await;
        let socket = TcpStream::connect(address).await.unwrap();
        let (mut socket, _) = client_async("ws://sample/ws", socket).await.unwrap();
        for message in [Message::text("hello"), Message::binary(vec![0; 100_000])] {
            socket.send(message.clone()).await.unwrap();
            assert_eq!(socket.next().await.unwrap().unwrap(), message);
        }
        socket.close(None).await.unwrap();
        assert!(matches!(socket.next().await, Some(Ok(Message::Close(_)))));
        assert!(
            ask(address, "GET /ws", b"")
                .await
                .starts_with("HTTP/1.1 426")
        );
    }

    #[tokio::test]
    async fn a_shutdown_ends_it_and_all_connections() {
        let sample = SampleUpstream::bind("127.0.0.1:0".parse().unwrap())
            .await
            .unwrap();
        let address = sample.address();
        let (stop, stopped) = oneshot::channel::<()>();
        let mut tasks = JoinSet::new();
        tasks.spawn(sample.run(async { drop(stopped.await) }));
        let mut socket = TcpStream::connect(address).await.unwrap();
        socket
            .write_all(b"GET /events HTTP/1.1\r\nHost: sample\r\n\r\n")
            .await
            .unwrap();
        assert!(socket.read_u8().await.is_ok());
        stop.send(()).unwrap();
        tasks.join_next().await.unwrap().unwrap();
        let mut rest = Vec::new();
        drop(socket.read_to_end(&mut rest).await);
        assert!(TcpStream::connect(address).await.is_err());
    }
}
