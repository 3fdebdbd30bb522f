//! `serve` over HTTP/2 with prior knowledge and over TLS, and its upgraded connections.

use std::future::poll_fn;
use std::time::Duration;

use bytes::Bytes;
use h2::client::SendRequest;
use h2::ext::Protocol;
use h2::{RecvStream, SendStream};
use http::{HeaderMap, Method, Request, Response, StatusCode};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::ServerName;
use tunnel_client::config::CertificateFiles;
use tunnel_ops::task::Owned;
use tunnel_ops::tls_files::{Roots, client_config};
use tunnel_proto::handshake::accept_key;

use crate::scripted::{Connection, Scripted};
use crate::serve::Served;
use crate::server::SOON;
use crate::upgrade::KEY;

/// A connection of HTTP/2.
struct Http2 {
    sender: SendRequest<Bytes>,
    _driver: Owned<()>,
}

impl Http2 {
    async fn over(io: impl AsyncRead + AsyncWrite + Unpin + Send + 'static) -> Self {
        let (sender, connection) = h2::client::handshake(io).await.unwrap();
        let driver = Owned::spawn("h2", async move {
            let _ = connection.await;
        });
        Self {
            sender,
            _driver: driver,
        }
    }

    async fn connect(served: &Served) -> Self {
        Self::over(TcpStream::connect(served.front).await.unwrap()).await
    }

    async fn ask(
        &mut self,
        request: Request<()>,
        is_bare: bool,
    ) -> (Response<RecvStream>, SendStream<Bytes>) {
        let mut sender = self.sender.clone().ready().await.unwrap();
        let (response, stream) = sender.send_request(request, is_bare).unwrap();
        let response = timeout(SOON, response).await.unwrap().unwrap();
        (response, stream)
    }
}

/// All of a content, and what follows it.
async fn all(body: &mut RecvStream) -> (Vec<u8>, Option<HeaderMap>) {
    let mut content = Vec::new();
    while let Some(data) = timeout(SOON, body.data()).await.unwrap() {
        let data = data.unwrap();
        body.flow_control().release_capacity(data.len()).unwrap();
        content.extend_from_slice(&data);
    }
    let trailers = timeout(SOON, body.trailers()).await.unwrap().unwrap();
    (content, trailers)
}

fn grpc(served: &Served) -> Request<()> {
    Request::post(format!("http://{}/a.B/C", served.front))
        .header("content-type", "application/grpc")
        .header("te", "trailers")
        .body(())
        .unwrap()
}

/// An upstream of HTTP/2 that says back what it is sent, with a status behind it.
async fn echoing() -> (String, Owned<()>) {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("h2c://{}", listener.local_addr().unwrap());
    let serving = Owned::spawn("upstream", async move {
        let (socket, _) = listener.accept().await.unwrap();
        let mut connection = h2::server::handshake(socket).await.unwrap();
        let mut answering = tokio::task::JoinSet::new();
        while let Some(Ok((request, mut respond))) = connection.accept().await {
            answering.spawn(async move {
                let mut body = request.into_body();
                let mut stream = respond.send_response(Response::new(()), false).unwrap();
                while let Some(data) = body.data().await {
                    stream.send_data(data.unwrap(), false).unwrap();
                }
                let mut trailers = HeaderMap::new();
                trailers.insert("grpc-status", "0".parse().unwrap());
                stream.send_trailers(trailers).unwrap();
            });
        }
    });
    (url, serving)
}

#[tokio::test]
async fn grpc_passes_with_its_trailers() {
    let (url, _upstream) = echoing().await;
    let served = Served::start(&url);
    let mut client = Http2::connect(&served).await;
    let (response, mut stream) = client.ask(grpc(&served), false).await;
    assert_eq!(response.status(), StatusCode::OK);
    let mut body = response.into_body();
    for message in ["one", "two"] {
        stream.send_data(message.into(), false).unwrap();
        let data = timeout(SOON, body.data()).await.unwrap().unwrap();
        assert_eq!(data.unwrap(), message, "each message at once");
    }
    stream.send_data(Bytes::new(), true).unwrap();
    let (rest, trailers) = all(&mut body).await;
    assert_eq!(
        (rest.len(), &trailers.unwrap()["grpc-status"]),
        (0, &"0".parse().unwrap())
    );
}

#[tokio::test]
async fn a_grpc_client_is_told_of_a_problem_in_its_own_words() {
    let gone = Scripted::answering(b"").await.url();
    let served = Served::start(&gone);
    let mut client = Http2::connect(&served).await;
    let (response, _) = client.ask(grpc(&served), true).await;
    assert_eq!(response.status(), StatusCode::OK);
    assert_eq!(response.headers()["grpc-status"], "14");
    let status = response.headers()["proxy-status"].to_str().unwrap();
    assert!(status.starts_with("tunnel-client; error="), "{status}");
}

#[tokio::test]
async fn tls_agrees_on_http2_and_the_certificate_is_read_again() {
    let folder = tempfile::tempdir().unwrap();
    let files = CertificateFiles {
        cert: folder.path().join("cert.pem"),
        key: folder.path().join("key.pem"),
    };
    let write = || {
        let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
        std::fs::write(&files.key, made.signing_key.serialize_pem()).unwrap();
        std::fs::write(&files.cert, made.cert.pem()).unwrap();
        Roots::from_pem(&made.cert.pem()).unwrap()
    };
    let connect = async |served: &Served, roots: &Roots| {
        let config = client_config(roots, None, &[b"h2"]).unwrap();
        let socket = TcpStream::connect(served.front).await.unwrap();
        let name = ServerName::try_from("localhost").unwrap();
        TlsConnector::from(config).connect(name, socket).await
    };
    let roots = write();
    let (url, _upstream) = echoing().await;
    let served = Served::with(&url, |config| {
        config.listen.certificate = Some(files.clone());
    });
    let mut client = Http2::over(connect(&served, &roots).await.unwrap()).await;
    let (response, _) = client.ask(grpc(&served), true).await;
    assert_eq!(response.status(), StatusCode::OK);
    let newer = write();
    let replaced = async {
        while connect(&served, &newer).await.is_err() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(SOON, replaced).await.unwrap();
}

/// What it sends first: a message of one frame.
const FIRST: &[u8] = b"\x81\x05first";

/// An upstream that agrees to WebSocket, and then follows the script.
async fn agreeing<F>(script: impl Fn(Connection) -> F + Send + Sync + 'static) -> Scripted
where
    F: Future<Output = ()> + Send + 'static,
{
    let script = std::sync::Arc::new(script);
    Scripted::start(move |mut connection| {
        let script = std::sync::Arc::clone(&script);
        async move {
            let head = connection.head().await.unwrap();
            assert!(head.starts_with("GET /socket HTTP/1.1\r\n"), "{head}");
            let key = head
                .lines()
                .find_map(|line| line.strip_prefix("sec-websocket-key: "));
            let accept = accept_key(key.unwrap().as_bytes());
            let answer = format!(
                "HTTP/1.1 101 Switching Protocols\r\nconnection: Upgrade\r\nupgrade: websocket\r\n\
                 sec-websocket-accept: {accept}\r\n\r\n"
            );
            connection.send([answer.as_bytes(), FIRST].concat()).await;
            script(connection).await;
        }
    })
    .await
}

fn upgrade() -> String {
    format!(
        "GET /socket HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
         Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: {KEY}\r\n\r\n"
    )
}

#[tokio::test]
async fn a_websocket_passes_over_http1_and_each_direction_ends_by_itself() {
    let upstream = agreeing(async |mut connection| {
        assert_eq!(connection.bytes(4).await, b"ping");
        connection.send("pong").await;
        assert_eq!(connection.rest().await, b"last", "an end, and no reset");
        connection.send("answer").await;
    })
    .await;
    let served = Served::start(&upstream.url());
    let mut client = served.connect().await;
    // Sent ahead of the answer, as some do.
    client.send(upgrade() + "ping").await;
    let head = client.head().await;
    assert!(head.starts_with("HTTP/1.1 101 "), "{head}");
    assert!(head.contains(&accept_key(KEY.as_bytes())), "{head}");
    assert_eq!(client.bytes(11).await, [FIRST, b"pong"].concat());
    client.send("last").await;
    client.end_sending().await;
    assert_eq!(client.rest().await, ("answer".to_owned(), None));
}

#[tokio::test]
async fn an_upgrade_that_the_upstream_declines_is_an_answer_like_any_other() {
    let upstream =
        Scripted::answering(b"HTTP/1.1 403 Forbidden\r\ncontent-length: 2\r\n\r\nno").await;
    let served = Served::start(&upstream.url());
    let mut client = served.connect().await;
    for _ in 0..2 {
        client.send(upgrade()).await;
        assert!(client.head().await.starts_with("HTTP/1.1 403 "));
        assert_eq!(client.bytes(2).await, b"no");
    }
}

#[tokio::test]
async fn a_websocket_passes_over_http2() {
    let upstream = agreeing(async |mut connection| {
        assert_eq!(connection.bytes(4).await, b"ping");
        connection.send("pong").await;
        connection.rest().await;
    })
    .await;
    let served = Served::start(&upstream.url());
    let mut client = Http2::connect(&served).await;
    poll_fn(|cx| client.sender.poll_ready(cx)).await.unwrap();
    let known = async {
        while !client.sender.is_extended_connect_protocol_enabled() {
            tokio::task::yield_now().await;
        }
    };
    timeout(SOON, known).await.unwrap();
    let mut request = Request::new(());
    *request.method_mut() = Method::CONNECT;
    *request.uri_mut() = format!("http://{}/socket", served.front).parse().unwrap();
    request
        .extensions_mut()
        .insert(Protocol::from_static("websocket"));
    let (response, mut stream) = client.ask(request, false).await;
    assert_eq!(response.status(), StatusCode::OK);
    stream.send_data("ping".into(), false).unwrap();
    let mut body = response.into_body();
    let mut received = Vec::new();
    while received != [FIRST, b"pong"].concat() {
        let data = timeout(SOON, body.data()).await.unwrap().unwrap();
        received.extend_from_slice(&data.unwrap());
    }
}

#[tokio::test]
async fn both_ends_of_a_websocket_are_told_when_the_client_stops() {
    let (told, mut is_told) = tokio::sync::mpsc::channel(1);
    let upstream = agreeing(move |mut connection| {
        let told = told.clone();
        async move { told.send(connection.rest().await).await.unwrap() }
    })
    .await;
    let served = Served::with(&upstream.url(), |config| {
        config.grace_period = Duration::from_millis(400);
    });
    let mut client = served.connect().await;
    client.send(upgrade()).await;
    client.head().await;
    assert_eq!(client.bytes(FIRST.len()).await, FIRST);
    served.trigger.ask();
    assert_eq!(client.bytes(4).await, [0x88, 2, 0x03, 0xe9]);
    let masked = timeout(SOON, is_told.recv()).await.unwrap().unwrap();
    assert_eq!(masked, [0x88, 0x82, 0, 0, 0, 0, 0x03, 0xe9]);
    assert_eq!(client.rest().await, (String::new(), None));
    served.ended().await;
}
