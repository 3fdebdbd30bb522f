//! `serve` over HTTP/2 with prior knowledge and over TLS, and its upgraded connections.

use std::future::poll_fn;
use std::time::Duration;

use bytes::Bytes;
use h2::client::SendRequest;
use h2::ext::Protocol;
use h2::{RecvStream, SendStream};
use http::{HeaderMap, Method, Request, Response, StatusCode};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::pki_types::ServerName;
use tunnel_client::config::CertificateFiles;
use tunnel_ops::task::Owned;
use tunnel_ops::tls_files::{Roots, client_config};
use tunnel_proto::handshake::accept_key;

use crate::serve::Served;
use crate::upgrade::KEY;
use testkit::deadline::SOON;
use testkit::http1::End;
use testkit::scripted::{ScriptedConnection, ScriptedUpstream};

/// A connection of HTTP/2.
struct Http2 {
    sender: SendRequest<Bytes>,
    _driver: Owned<()>,
}

impl Http2 {
    async fn over(io: impl AsyncRead + AsyncWrite + Unpin + Send + 'static) -> Self {
        Self::with(h2::client::Builder::new(), io).await
    }

    /// One that gives streams no window, and so reads nothing of any content.
    async fn reading_nothing(served: &Served) -> Self {
        let mut builder = h2::client::Builder::new();
        builder.initial_window_size(0);
        Self::with(builder, TcpStream::connect(served.front).await.unwrap()).await
    }

    async fn with(
        builder: h2::client::Builder,
        io: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    ) -> Self {
        let (sender, connection) = builder.handshake(io).await.unwrap();
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

    /// Asks for a WebSocket, as soon as it is known that one can be asked for.
    async fn upgrade(&mut self, served: &Served) -> (Response<RecvStream>, SendStream<Bytes>) {
        poll_fn(|cx| self.sender.poll_ready(cx)).await.unwrap();
        let known = async {
            while !self.sender.is_extended_connect_protocol_enabled() {
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
        self.ask(request, false).await
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

/// A watch asks once, and is answered when there is something to tell.
#[tokio::test]
async fn a_grpc_call_may_be_silent_before_it_is_answered() {
    const LIMIT: Duration = Duration::from_millis(200);
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("h2c://{}", listener.local_addr().unwrap());
    let _upstream = Owned::spawn("upstream", async move {
        let (socket, _) = listener.accept().await.unwrap();
        let mut connection = h2::server::handshake(socket).await.unwrap();
        let (_request, mut respond) = connection.accept().await.unwrap().unwrap();
        let answering = async {
            // That nothing happens in this time is what the test is about.
            tokio::time::sleep(LIMIT * 4).await;
            respond.send_response(Response::new(()), true).unwrap();
        };
        tokio::join!(answering, connection.accept());
    });
    let served = Served::with(&url, |config| config.settings.body_idle_timeout = LIMIT);
    let mut client = Http2::connect(&served).await;
    let (response, _stream) = client.ask(grpc(&served), false).await;
    assert_eq!(response.status(), StatusCode::OK);
    assert!(!response.headers().contains_key("grpc-status"));
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
    let gone = ScriptedUpstream::answering(b"").await.url();
    let served = Served::start(&gone);
    let mut client = Http2::connect(&served).await;
    let (response, _) = client.ask(grpc(&served), true).await;
    assert_eq!(response.status(), StatusCode::OK);
    assert_eq!(response.headers()["grpc-status"], "14");
    let status = response.headers()["proxy-status"].to_str().unwrap();
    assert!(status.starts_with("tunnel-client; error="), "{status}");
}

/// Makes a certificate, and what trusts it.
fn write(files: &CertificateFiles) -> Roots {
    let made = testkit::ca::self_signed("localhost");
    std::fs::write(&files.key, &made.key).unwrap();
    std::fs::write(&files.cert, &made.certificate).unwrap();
    made.roots()
}

fn files_in(folder: &tempfile::TempDir) -> CertificateFiles {
    CertificateFiles {
        cert: folder.path().join("cert.pem"),
        key: folder.path().join("key.pem"),
    }
}

async fn connect_tls(
    served: &Served,
    roots: &Roots,
    alpn: &[u8],
) -> std::io::Result<TlsStream<TcpStream>> {
    let config = client_config(roots, None, &[alpn]).unwrap();
    let socket = TcpStream::connect(served.front).await.unwrap();
    let name = ServerName::try_from("localhost").unwrap();
    TlsConnector::from(config).connect(name, socket).await
}

/// Ingress controllers connect ahead of need, and would lose the request that comes just then.
#[tokio::test]
async fn who_connects_ahead_of_need_over_tls_has_the_time_of_one_between_two_requests() {
    const SHORT: Duration = Duration::from_secs(2);
    let folder = tempfile::tempdir().unwrap();
    let files = files_in(&folder);
    let roots = write(&files);
    let upstream =
        ScriptedUpstream::answering(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok").await;
    let served = Served::with(&upstream.url(), |config| {
        config.certificate = Some(files.clone());
        config.settings.request_head_timeout = SHORT;
    });
    let mut ahead = connect_tls(&served, &roots, b"http/1.1").await.unwrap();
    // That it may do nothing in this time is what the test is about.
    tokio::time::sleep(SHORT * 2).await;
    let request = b"GET / HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n";
    ahead.write_all(request).await.unwrap();
    let mut answer = String::new();
    let read = ahead.read_to_string(&mut answer);
    timeout(SOON, read).await.unwrap().unwrap();
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
}

#[tokio::test]
async fn tls_agrees_on_http2_and_the_certificate_is_read_again() {
    let folder = tempfile::tempdir().unwrap();
    let files = files_in(&folder);
    let connect = async |served: &Served, roots: &Roots| connect_tls(served, roots, b"h2").await;
    let roots = write(&files);
    let (url, _upstream) = echoing().await;
    let served = Served::with(&url, |config| {
        config.certificate = Some(files.clone());
    });
    let mut client = Http2::over(connect(&served, &roots).await.unwrap()).await;
    let (response, _) = client.ask(grpc(&served), true).await;
    assert_eq!(response.status(), StatusCode::OK);
    let newer = write(&files);
    let replaced = async {
        while connect(&served, &newer).await.is_err() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(SOON, replaced).await.unwrap();
}

/// Trailers as a hostile end sends them: one that may travel, and some that may not.
fn hostile_trailers() -> HeaderMap {
    let mut trailers = HeaderMap::new();
    for name in [
        "x-checksum",
        "authorization",
        "host",
        "x-forwarded-user",
        "set-cookie",
    ] {
        trailers.insert(name, "1".parse().unwrap());
    }
    trailers
}

#[tokio::test]
async fn only_trailers_that_may_travel_reach_an_upstream() {
    let (tell, mut told) = tokio::sync::mpsc::channel(2);
    let upstream = ScriptedUpstream::start(move |mut connection: ScriptedConnection| {
        let tell = tell.clone();
        async move {
            connection.head().await.unwrap();
            // The chunks, and what stands behind them up to the empty line.
            tell.send(connection.head().await.unwrap()).await.unwrap();
            connection
                .send("HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")
                .await;
        }
    })
    .await;
    let served = Served::start(&upstream.url());
    let mut client = Http2::connect(&served).await;
    let request = Request::post(format!("http://{}/", served.front))
        .header("te", "trailers")
        .header(
            "trailer",
            "x-checksum, authorization, host, x-forwarded-user, set-cookie",
        )
        .body(())
        .unwrap();
    let mut sender = client.sender.clone().ready().await.unwrap();
    let (response, mut stream) = sender.send_request(request, false).unwrap();
    stream.send_data("body".into(), false).unwrap();
    stream.send_trailers(hostile_trailers()).unwrap();
    let content = timeout(SOON, told.recv()).await.unwrap().unwrap();
    assert_eq!(&*content, "4\r\nbody\r\n0\r\nx-checksum: 1\r\n\r\n");
    let response = timeout(SOON, response).await.unwrap().unwrap();
    assert_eq!(response.status(), StatusCode::OK);
    client.sender = sender;
}

#[tokio::test]
async fn only_trailers_that_may_travel_reach_a_platform_client() {
    let upstream = ScriptedUpstream::answering(
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\ntrailer: x-checksum\r\n\r\n\
          4\r\nbody\r\n0\r\nx-checksum: 1\r\nset-cookie: a=1\r\nx-forwarded-user: admin\r\n\
          www-authenticate: Basic\r\n\r\n",
    )
    .await;
    let served = Served::start(&upstream.url());
    let mut client = Http2::connect(&served).await;
    let request = Request::get(format!("http://{}/", served.front))
        .header("te", "trailers")
        .body(())
        .unwrap();
    let (response, _) = client.ask(request, true).await;
    let (content, trailers) = all(&mut response.into_body()).await;
    let trailers = trailers.unwrap();
    let names: Vec<_> = trailers.keys().map(http::HeaderName::as_str).collect();
    assert_eq!(
        (&content[..], &names[..]),
        (&b"body"[..], &["x-checksum"][..])
    );
}

/// What it sends first: a message of one frame.
const FIRST: &[u8] = b"\x81\x05first";

/// An upstream that agrees to WebSocket, and then follows the script.
async fn agreeing<F>(
    script: impl Fn(ScriptedConnection) -> F + Send + Sync + 'static,
) -> ScriptedUpstream
where
    F: Future<Output = ()> + Send + 'static,
{
    let script = std::sync::Arc::new(script);
    ScriptedUpstream::start(move |mut connection| {
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
        assert_eq!(connection.rest().await.0, b"last", "an end, and no reset");
        connection.send("answer").await;
    })
    .await;
    let served = Served::start(&upstream.url());
    let mut client = served.connect().await;
    // Sent ahead of the answer, as some do.
    client.send(upgrade() + "ping").await;
    let head = client.head().await.unwrap();
    assert!(head.starts_with("HTTP/1.1 101 "), "{head}");
    assert!(head.contains(&accept_key(KEY.as_bytes())), "{head}");
    assert_eq!(client.bytes(11).await, [FIRST, b"pong"].concat());
    client.send("last").await;
    client.finish().await;
    assert_eq!(client.rest().await, (b"answer".to_vec(), End::Clean));
}

/// A socket takes more only when a good part of its buffer is free again, which is much longer than the
/// limit here; that bytes go all the time only the kernel sees.
#[tokio::test]
async fn who_reads_a_websocket_slowly_over_http1_keeps_it() {
    const BYTES: usize = 16 * 1024 * 1024;
    const SLOW: usize = 32 * 1024;
    const READS: usize = 28;
    let upstream = agreeing(async |mut connection| {
        connection.send(vec![7; BYTES]).await;
        connection.rest().await;
    })
    .await;
    let served = Served::with(&upstream.url(), |config| {
        config.settings.body_idle_timeout = Duration::from_secs(3);
    });
    let mut client = served.connect().await;
    client.send(upgrade()).await;
    assert!(client.head().await.unwrap().starts_with("HTTP/1.1 101 "));
    assert_eq!(client.bytes(FIRST.len()).await, FIRST);
    for _ in 0..READS {
        tokio::time::sleep(Duration::from_millis(250)).await;
        client.bytes(SLOW).await;
    }
    client.bytes(BYTES - READS * SLOW).await;
}

#[tokio::test]
async fn an_upgrade_that_the_upstream_declines_is_an_answer_like_any_other() {
    let upstream =
        ScriptedUpstream::answering(b"HTTP/1.1 403 Forbidden\r\ncontent-length: 2\r\n\r\nno").await;
    let served = Served::start(&upstream.url());
    let mut client = served.connect().await;
    for _ in 0..2 {
        client.send(upgrade()).await;
        assert!(client.head().await.unwrap().starts_with("HTTP/1.1 403 "));
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
    let (response, mut stream) = client.upgrade(&served).await;
    assert_eq!(response.status(), StatusCode::OK);
    stream.send_data("ping".into(), false).unwrap();
    let mut body = response.into_body();
    let mut received = Vec::new();
    while received != [FIRST, b"pong"].concat() {
        let data = timeout(SOON, body.data()).await.unwrap().unwrap();
        received.extend_from_slice(&data.unwrap());
    }
}

/// How many answers were counted of which nothing was taken.
async fn not_taken(served: &Served) -> u32 {
    let metrics = served.admin("/metrics").await.text();
    let series = "tunnel_client_problems_total{reason=\"not_taken\"} ";
    let mut lines = metrics.lines().filter_map(|line| line.strip_prefix(series));
    lines.next().unwrap().parse().unwrap()
}

/// Waits until there is a place for an exchange, of which there is one.
async fn place_is_free(served: &Served) {
    let mut other = Http2::connect(served).await;
    let asked = async {
        loop {
            let request = Request::get(format!("http://{}/other", served.front));
            let (response, _) = other.ask(request.body(()).unwrap(), true).await;
            if response.status() != StatusCode::SERVICE_UNAVAILABLE {
                return;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(SOON, asked).await.unwrap();
}

#[tokio::test]
async fn a_peer_that_reads_nothing_of_an_answer_holds_no_place_for_ever() {
    let upstream =
        ScriptedUpstream::answering(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok").await;
    let served = Served::with(&upstream.url(), |config| {
        config.settings.max_exchanges = 1;
        config.settings.body_idle_timeout = Duration::from_millis(200);
    });
    let mut client = Http2::reading_nothing(&served).await;
    let request = Request::get(format!("http://{}/", served.front));
    let (response, _) = client.ask(request.body(()).unwrap(), true).await;
    assert_eq!(response.status(), StatusCode::OK);
    place_is_free(&served).await;
    let cut = timeout(SOON, response.into_body().data()).await.unwrap();
    let reason = cut.unwrap().unwrap_err().reason();
    assert_eq!(reason, Some(h2::Reason::CANCEL));
    assert_eq!(not_taken(&served).await, 1);
}

#[tokio::test]
async fn a_peer_that_reads_nothing_of_a_websocket_holds_no_place_for_ever() {
    let (ended, mut is_ended) = tokio::sync::mpsc::channel(1);
    let upstream = agreeing(move |mut connection| {
        let ended = ended.clone();
        async move {
            while connection.try_send(vec![7; 10_000]).await {}
            ended.send(()).await.unwrap();
        }
    })
    .await;
    let served = Served::with(&upstream.url(), |config| {
        config.settings.max_exchanges = 1;
        config.settings.body_idle_timeout = Duration::from_millis(200);
    });
    let mut client = Http2::reading_nothing(&served).await;
    let (response, _stream) = client.upgrade(&served).await;
    assert_eq!(response.status(), StatusCode::OK);
    timeout(SOON, is_ended.recv()).await.unwrap().unwrap();
    assert_eq!(not_taken(&served).await, 1);
    // The stream, too, whatever hyper had taken for it.
    let cut = timeout(SOON, response.into_body().data()).await.unwrap();
    assert!(!matches!(cut, Some(Ok(_))), "{cut:?}");
}

#[tokio::test]
async fn both_ends_of_a_websocket_are_told_when_the_client_stops() {
    let (told, mut is_told) = tokio::sync::mpsc::channel(1);
    let upstream = agreeing(move |mut connection| {
        let told = told.clone();
        async move { told.send(connection.rest().await.0).await.unwrap() }
    })
    .await;
    let served = Served::with(&upstream.url(), |config| {
        config.settings.grace_period = Duration::from_millis(400);
    });
    let mut client = served.connect().await;
    client.send(upgrade()).await;
    client.head().await.unwrap();
    assert_eq!(client.bytes(FIRST.len()).await, FIRST);
    served.trigger.request();
    assert_eq!(client.bytes(4).await, [0x88, 2, 0x03, 0xe9]);
    let masked = timeout(SOON, is_told.recv()).await.unwrap().unwrap();
    assert_eq!(masked, [0x88, 0x82, 0, 0, 0, 0, 0x03, 0xe9]);
    assert_eq!(client.rest().await, (Vec::new(), End::Clean));
    served.ended().await;
}
