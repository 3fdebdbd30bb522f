//! Upstreams that speak HTTP/2: `h2c` by prior knowledge, `https` by agreement.

use std::convert::Infallible;
use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Request, Response, StatusCode, Version};
use http_body::Frame;
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Empty, Full, StreamBody};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls::{HandshakeKind, ServerConfig};
use testkit::deadline::SOON;
use testkit::tunnel::{body::data, whole};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Barrier, mpsc, oneshot};
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};
use tokio_rustls::TlsAcceptor;
use tunnel_ops::task::Owned;
use tunnel_ops::tls_files::{Roots, server_config};
use tunnel_proto::handshake::accept_key;
use tunnel_proto::problem::Reason;
use tunnel_routing::config::UpstreamHttp;

use crate::setup::{Setup, get, post, post_fed};
use crate::upgrade::{KEY, next, websocket};

type Answer = Response<BoxBody<Bytes, Infallible>>;

/// An upstream made with hyper.
struct Http2Upstream {
    address: SocketAddr,
    connections: Arc<AtomicUsize>,
    _serving: Owned<()>,
}

impl Http2Upstream {
    async fn start<F>(
        tls: Option<Arc<ServerConfig>>,
        streams: u32,
        handler: impl Fn(Request<Incoming>) -> F + Clone + Send + Sync + 'static,
    ) -> Self
    where
        F: Future<Output = Answer> + Send + 'static,
    {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let connections = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&connections);
        let serving = Owned::spawn("upstream", async move {
            let mut tasks = JoinSet::new();
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                counted.fetch_add(1, Ordering::SeqCst);
                let (handler, tls) = (handler.clone(), tls.clone());
                tasks.spawn(async move {
                    match tls {
                        None => serve(stream, true, streams, handler).await,
                        Some(tls) => {
                            let Ok(stream) = TlsAcceptor::from(tls).accept(stream).await else {
                                return;
                            };
                            let is_http2 = stream.get_ref().1.alpn_protocol() == Some(b"h2");
                            serve(stream, is_http2, streams, handler).await;
                        }
                    }
                });
            }
        });
        Self {
            address,
            connections,
            _serving: serving,
        }
    }

    async fn h2c<F>(
        handler: impl Fn(Request<Incoming>) -> F + Clone + Send + Sync + 'static,
    ) -> Self
    where
        F: Future<Output = Answer> + Send + 'static,
    {
        Self::start(None, 200, handler).await
    }

    fn url(&self, scheme: &str) -> String {
        format!("{scheme}://{}", self.address)
    }
}

pub(crate) async fn serve<IO, F>(
    io: IO,
    is_http2: bool,
    streams: u32,
    handler: impl Fn(Request<Incoming>) -> F + Send + Sync + 'static,
) where
    IO: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    F: Future<Output = Answer> + Send + 'static,
{
    let service = service_fn(move |request| {
        let answer = handler(request);
        async { Ok::<_, Infallible>(answer.await) }
    });
    let io = TokioIo::new(io);
    if is_http2 {
        let _ = hyper::server::conn::http2::Builder::new(TokioExecutor::new())
            .enable_connect_protocol()
            .max_concurrent_streams(streams)
            .serve_connection(io, service)
            .await;
    } else {
        let builder = hyper::server::conn::http1::Builder::new();
        let _ = builder.serve_connection(io, service).with_upgrades().await;
    }
}

/// Lets the client take note of a new connection's settings. Nothing of that is seen from outside.
async fn settings_are_known() {
    tokio::time::sleep(Duration::from_millis(100)).await;
}

pub(crate) fn text(text: impl Into<Bytes>) -> Answer {
    Response::new(Full::new(text.into()).boxed())
}

#[tokio::test]
async fn requests_share_one_connection_and_say_where_they_go() {
    let upstream = Http2Upstream::h2c(async |request: Request<Incoming>| {
        assert_eq!(request.version(), Version::HTTP_2);
        let fields = request
            .headers()
            .iter()
            .map(|(name, value)| format!("{name}={value:?}"));
        let fields: Vec<_> = fields.collect();
        text(format!("{} {}", request.uri(), fields.join(" ")))
    })
    .await;
    let setup = Setup::new(&upstream.url("h2c")).await;
    let mut request = get("/a//b?x=%zz");
    request
        .headers_mut()
        .insert("te", "trailers".parse().unwrap());
    request.headers_mut().insert("x-own", "1".parse().unwrap());
    let expected = "http://a-b.tunnels.test/a//b?x=%zz x-own=\"1\" te=\"trailers\"";
    assert_eq!(setup.session.fetch(request).await.body(), expected);
    tokio::join!(setup.session.fetch(get("/")), setup.session.fetch(get("/")));
    assert_eq!(upstream.connections.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn content_and_trailers_go_both_ways() {
    let upstream = Http2Upstream::h2c(async |request: Request<Incoming>| {
        let sent = request.into_body().collect().await.unwrap();
        let trailers = sent.trailers().cloned().unwrap();
        let frames = [Frame::data(sent.to_bytes()), Frame::trailers(trailers)].map(Ok);
        Response::new(BodyExt::boxed(StreamBody::new(futures_util::stream::iter(
            frames,
        ))))
    })
    .await;
    let setup = Setup::new(&upstream.url("h2c")).await;
    let (pieces, mut request) = post_fed();
    let announced = HeaderValue::from_static("grpc-status");
    request.headers_mut().insert("trailer", announced);
    let sending = async {
        pieces.send(data("hello")).await.unwrap();
        let status = HeaderMap::from_iter([("grpc-status".parse().unwrap(), "0".parse().unwrap())]);
        pieces.send(Ok(Frame::trailers(status))).await.unwrap();
        drop(pieces);
    };
    let answered = async {
        let response = setup.session.ask(request).await.unwrap();
        timeout(SOON, response.into_body().collect())
            .await
            .unwrap()
            .unwrap()
    };
    let (answer, ()) = tokio::join!(answered, sending);
    assert_eq!(answer.trailers().unwrap()["grpc-status"], "0");
    assert_eq!(answer.to_bytes(), "hello");
}

#[tokio::test]
async fn both_directions_stream() {
    let upstream = Http2Upstream::h2c(async |request: Request<Incoming>| {
        Response::new(
            request
                .into_body()
                .map_err(|error| panic!("{error}"))
                .boxed(),
        )
    })
    .await;
    let setup = Setup::new(&upstream.url("h2c")).await;
    let (pieces, request) = post_fed();
    let mut body = setup.session.ask(request).await.unwrap().into_body();
    for message in ["one", "two", "three"] {
        pieces.send(data(message)).await.unwrap();
        assert_eq!(next(&mut body).await.unwrap(), message);
    }
    drop(pieces);
    assert_eq!(next(&mut body).await, None);
}

#[tokio::test]
async fn a_cancelled_exchange_resets_its_stream_only() {
    let (asked, mut answers) = mpsc::channel(1);
    let upstream = Http2Upstream::h2c(move |request: Request<Incoming>| {
        let asked = asked.clone();
        async move {
            if request.uri().path() == "/never" {
                let (held, dropped) = oneshot::channel::<()>();
                asked.send(dropped).await.unwrap();
                std::future::pending::<()>().await;
                drop(held);
            }
            text("hi")
        }
    })
    .await;
    let setup = Setup::new(&upstream.url("h2c")).await;
    let session = setup.session.session.clone();
    let mut never = Box::pin(tunnel_proto::exchange::exchange(
        &session,
        get("/never"),
        |_, _| {},
    ));
    let dropped = tokio::select! {
        _ = &mut never => panic!("never"),
        dropped = answers.recv() => dropped.unwrap(),
    };
    drop(never);
    assert!(
        timeout(Duration::from_secs(1), dropped)
            .await
            .unwrap()
            .is_err()
    );
    setup.client.wait_metric("open_exchanges", 0.0).await;
    assert_eq!(setup.session.fetch(get("/")).await.body(), "hi");
    assert_eq!(upstream.connections.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn another_connection_is_made_when_all_streams_of_one_are_taken() {
    let upstream = Http2Upstream::start(None, 2, async |request: Request<Incoming>| {
        if request.uri().path() == "/never" {
            std::future::pending::<()>().await;
        }
        text("hi")
    })
    .await;
    let setup = Setup::new(&upstream.url("h2c")).await;
    assert_eq!(setup.session.fetch(get("/")).await.body(), "hi");
    settings_are_known().await;
    let mut never = JoinSet::new();
    for open in 1..=5 {
        let session = setup.session.session.clone();
        never.spawn(async move {
            tunnel_proto::exchange::exchange(&session, get("/never"), |_, _| {})
                .await
                .is_ok()
        });
        setup
            .client
            .wait_metric("open_exchanges", f64::from(open))
            .await;
        settings_are_known().await;
    }
    assert_eq!(setup.session.fetch(get("/")).await.body(), "hi");
    assert!(upstream.connections.load(Ordering::SeqCst) >= 3);
}

#[tokio::test]
async fn a_connection_that_ended_is_made_anew() {
    let upstream = Http2Upstream::h2c(async |_: Request<Incoming>| text("hi")).await;
    let address = upstream.address;
    let setup = Setup::new(&upstream.url("h2c")).await;
    assert_eq!(setup.session.fetch(get("/")).await.body(), "hi");
    drop(upstream);
    assert_eq!(
        setup.session.failure(get("/")).await,
        Reason::ConnectionRefused
    );
    let listener = TcpListener::bind(address).await.unwrap();
    let _serving = Owned::spawn("upstream", async move {
        let (stream, _) = listener.accept().await.unwrap();
        serve(stream, true, 200, async |_: Request<Incoming>| text("back")).await;
    });
    assert_eq!(setup.session.fetch(get("/")).await.body(), "back");
}

#[tokio::test]
async fn who_waits_for_continue_is_told_so() {
    let upstream = Http2Upstream::h2c(async |request: Request<Incoming>| {
        assert!(!request.headers().contains_key("expect"));
        text(request.into_body().collect().await.unwrap().to_bytes())
    })
    .await;
    let setup = Setup::new(&upstream.url("h2c")).await;
    let mut request = post("hello");
    request
        .headers_mut()
        .insert("expect", "100-continue".parse().unwrap());
    let mut heard = Vec::new();
    let response = setup
        .session
        .ask_with(request, |status, _| heard.push(status))
        .await;
    assert_eq!(response.unwrap().status(), StatusCode::OK);
    assert_eq!(heard, [StatusCode::CONTINUE]);
}

/// Agrees to an upgrade of either version, and sends back what it gets.
async fn echo(mut request: Request<Incoming>) -> Answer {
    let is_http2 = request.version() == Version::HTTP_2;
    let key = request.headers().get("sec-websocket-key").cloned();
    let upgrade = hyper::upgrade::on(&mut request);
    let mut tasks = JoinSet::new();
    tasks.spawn(async move {
        let mut io = TokioIo::new(upgrade.await.unwrap());
        let mut buffer = [0; 64];
        loop {
            let read = io.read(&mut buffer).await.unwrap();
            if read == 0 {
                io.shutdown().await.unwrap();
                return;
            }
            io.write_all(&buffer[..read]).await.unwrap();
        }
    });
    tasks.detach_all();
    let mut response = Response::builder().header("sec-websocket-protocol", "chat");
    if !is_http2 {
        let accept = accept_key(key.unwrap().as_bytes());
        response = response
            .status(StatusCode::SWITCHING_PROTOCOLS)
            .header("connection", "upgrade")
            .header("upgrade", "websocket")
            .header("sec-websocket-accept", accept);
    }
    response.body(Empty::new().boxed()).unwrap()
}

async fn check_echo(setup: &Setup) {
    check_echo_with(setup, HeaderMap::new()).await;
}

/// Fields for which an upstream might end a connection of many requests.
fn hazardous() -> HeaderMap {
    let cookie = HeaderValue::from_bytes(&[b'a'; 5_000]).unwrap();
    HeaderMap::from_iter([(http::header::COOKIE, cookie)])
}

async fn check_echo_with(setup: &Setup, fields: HeaderMap) {
    let (sender, mut request) = websocket();
    request.headers_mut().extend(fields);
    let response = setup.session.ask(request).await.unwrap();
    assert_eq!(response.status(), StatusCode::OK);
    assert_eq!(response.headers()["sec-websocket-protocol"], "chat");
    let mut body = response.into_body();
    for message in ["one", "two"] {
        sender.send(data(message)).await.unwrap();
        assert_eq!(next(&mut body).await.unwrap(), message);
    }
    drop(sender);
    assert_eq!(next(&mut body).await, None);
}

#[tokio::test]
async fn an_upgrade_over_http2_is_an_extended_connect() {
    let upstream = Http2Upstream::h2c(async |request: Request<Incoming>| {
        assert_eq!(
            request
                .extensions()
                .get::<hyper::ext::Protocol>()
                .unwrap()
                .as_str(),
            "websocket"
        );
        echo(request).await
    })
    .await;
    let setup = Setup::new(&upstream.url("h2c")).await;
    check_echo(&setup).await;
}

#[tokio::test]
async fn a_platform_clients_key_is_answered_although_http2_has_none() {
    let upstream = Http2Upstream::h2c(async |request: Request<Incoming>| {
        assert!(!request.headers().contains_key("sec-websocket-key"));
        echo(request).await
    })
    .await;
    let setup = Setup::new(&upstream.url("h2c")).await;
    let (_sender, mut request) = websocket();
    request
        .headers_mut()
        .insert("sec-websocket-key", KEY.parse().unwrap());
    let response = setup.session.ask(request).await.unwrap();
    assert_eq!(
        response.headers()["sec-websocket-accept"],
        accept_key(KEY.as_bytes()).as_str()
    );
}

#[tokio::test]
async fn an_upstream_without_extended_connect_takes_no_upgrades() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("h2c://{}", listener.local_addr().unwrap());
    let _serving = Owned::spawn("upstream", async move {
        let (stream, _) = listener.accept().await.unwrap();
        let service = service_fn(async |_| Ok::<_, Infallible>(text("hi")));
        let builder = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
        let _ = builder
            .serve_connection(TokioIo::new(stream), service)
            .await;
    });
    let setup = Setup::new(&url).await;
    let (_sender, request) = websocket();
    assert_eq!(setup.session.failure(request).await, Reason::UpgradeFailed);
    assert_eq!(setup.session.fetch(get("/")).await.body(), "hi");
}

/// A TLS set-up that offers these protocols, and who believes it.
fn tls(alpn: &[&[u8]]) -> (Arc<ServerConfig>, Roots) {
    let made = testkit::ca::self_signed("127.0.0.1");
    let identity = made.identity();
    (server_config(&identity, alpn, None).unwrap(), made.roots())
}

/// A request of a protocol, by its media type.
fn of_type(media_type: &str) -> Request<Empty<Bytes>> {
    let request = Request::get("https://a-b.tunnels.test/").header("content-type", media_type);
    request.body(Empty::new()).unwrap()
}

#[tokio::test]
async fn https_speaks_http1_unless_route_request_or_upstream_wants_http2() {
    use UpstreamHttp::{Auto, Http1, Http2};
    const BOTH: &[&[u8]] = &[b"h2", b"http/1.1"];
    const H2: &[&[u8]] = &[b"h2"];
    const HTTP1: &[&[u8]] = &[b"http/1.1"];
    let version = async |request: Request<Incoming>| text(format!("{:?}", request.version()));
    let (one, two, refused) = (Ok("HTTP/1.1"), Ok("HTTP/2.0"), Err(Reason::ProtocolRefused));
    // What TLS of the upstream knows; what the route says; an ordinary request, gRPC, a stream of Connect, gRPC-Web.
    for (alpn, http, expected) in [
        (BOTH, Auto, [one, two, two, one]),
        (HTTP1, Auto, [one, refused, one, one]),
        (H2, Auto, [two, two, two, two]),
        (&[], Auto, [one, refused, one, one]),
        (BOTH, Http1, [one, one, one, one]),
        (H2, Http1, [refused, refused, refused, refused]),
        (BOTH, Http2, [two, two, two, two]),
        (HTTP1, Http2, [refused, refused, refused, refused]),
    ] {
        let (server, roots) = tls(alpn);
        let upstream = Http2Upstream::start(Some(server), 200, version).await;
        let setup = Setup::with(&upstream.url("https"), |config| {
            config.upstream_roots = Some(roots);
            config.settings.upstream_http = http;
        })
        .await;
        // The second time open connections are used, none of which another protocol has opened.
        let mut connections = 0;
        for round in 1..=2 {
            for (media_type, expected) in [
                "application/json",
                "application/grpc+proto",
                "Application/connect+json",
                "application/grpc-web",
            ]
            .into_iter()
            .zip(expected)
            {
                let result = setup.session.ask(of_type(media_type)).await;
                let version = match result {
                    Ok(response) => Ok(whole(response).await.into_body()),
                    Err(problem) => Err(problem.reason()),
                };
                let expected = expected.map(str::to_owned);
                assert_eq!(version, expected, "{alpn:?} {http} {media_type}");
            }
            let now = upstream.connections.load(Ordering::SeqCst);
            if round == 2 && !expected.contains(&refused) {
                assert_eq!(now, connections, "{alpn:?} {http}");
            }
            connections = now;
        }
    }
}

#[tokio::test]
async fn tls_sessions_of_an_upstream_are_resumed() {
    let (server, roots) = tls(&[b"http/1.1"]);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("https://{}", listener.local_addr().unwrap());
    let (report, mut handshakes) = mpsc::channel(2);
    let _serving = Owned::spawn("upstream", async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            let stream = TlsAcceptor::from(server.clone()).accept(stream).await;
            let stream = stream.unwrap();
            let kind = stream.get_ref().1.handshake_kind().unwrap();
            report.send(kind).await.unwrap();
            let once = async |_: Request<Incoming>| {
                let mut response = text("hi");
                let close = HeaderValue::from_static("close");
                response.headers_mut().insert("connection", close);
                response
            };
            serve(stream, false, 0, once).await;
        }
    });
    let setup = Setup::with(&url, |config| config.upstream_roots = Some(roots)).await;
    for expected in [HandshakeKind::Full, HandshakeKind::Resumed] {
        assert_eq!(setup.session.fetch(get("/")).await.body(), "hi");
        assert_eq!(handshakes.recv().await, Some(expected));
    }
}

#[tokio::test]
async fn those_who_waited_for_a_dial_that_cannot_be_shared_do_not_dial_in_turn() {
    let (server, roots) = tls(&[b"http/1.1"]);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("https://{}", listener.local_addr().unwrap());
    let _serving = Owned::spawn("upstream", async move {
        let all = Arc::new(Barrier::new(3));
        let answer = |(stream, _): (TcpStream, SocketAddr)| {
            let (server, all) = (server.clone(), all.clone());
            async move {
                let stream = TlsAcceptor::from(server).accept(stream).await.unwrap();
                // No connection is free before all have come.
                let held = move |_: Request<Incoming>| {
                    let all = all.clone();
                    async move {
                        all.wait().await;
                        text("hi")
                    }
                };
                serve(stream, false, 0, held).await;
            }
        };
        let mut tasks = JoinSet::new();
        tasks.spawn(answer(listener.accept().await.unwrap()));
        let second = listener.accept().await.unwrap();
        let third = listener.accept().await.unwrap();
        tasks.spawn(answer(second));
        tasks.spawn(answer(third));
        tasks.join_all().await;
    });
    let setup = Setup::with(&url, |config| {
        config.upstream_roots = Some(roots);
        config.settings.upstream_connect_timeout = Duration::from_secs(1);
    })
    .await;
    let fetch = || setup.session.fetch(of_type("application/connect+json"));
    tokio::join!(fetch(), fetch(), fetch());
}

#[tokio::test]
async fn https_upgrades_over_http1_until_http2_is_known_to_take_them() {
    let (server, roots) = tls(&[b"h2", b"http/1.1"]);
    let upstream = Http2Upstream::start(Some(server), 200, async |request: Request<Incoming>| {
        if request.uri().path() == "/socket" {
            return echo(request).await;
        }
        text("hi")
    })
    .await;
    let setup = Setup::with(&upstream.url("https"), |config| {
        config.upstream_roots = Some(roots);
        config.settings.upstream_http = UpstreamHttp::Http2;
    })
    .await;
    check_echo(&setup).await;
    assert_eq!(setup.session.fetch(get("/")).await.body(), "hi");
    settings_are_known().await;
    let before = upstream.connections.load(Ordering::SeqCst);
    check_echo(&setup).await;
    assert_eq!(
        upstream.connections.load(Ordering::SeqCst),
        before,
        "a stream of HTTP/2"
    );
    check_echo_with(&setup, hazardous()).await;
    assert_eq!(
        upstream.connections.load(Ordering::SeqCst),
        before + 1,
        "a connection of its own"
    );
}

#[tokio::test]
async fn a_dial_that_fails_fails_for_all_who_wait_for_it() {
    // Takes connections, and says nothing.
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("https://{}", silent.local_addr().unwrap());
    let (_, roots) = tls(&[]);
    let limit = Duration::from_millis(200);
    let setup = Setup::with(&url, |config| {
        config.upstream_roots = Some(roots);
        config.settings.upstream_connect_timeout = limit;
    })
    .await;
    let started = Instant::now();
    let asking = JoinSet::from_iter((0..20).map(|_| {
        let session = setup.session.session.clone();
        async move {
            let response = tunnel_proto::exchange::exchange(&session, get("/"), |_, _| {}).await;
            response.map(drop).unwrap_err().to_string()
        }
    }));
    for failure in asking.join_all().await {
        assert!(
            failure.contains(Reason::ConnectionTimeout.name()),
            "{failure}"
        );
    }
    assert!(started.elapsed() < limit * 5, "{:?}", started.elapsed());
}

/// A request without content is asked again when its connection broke, though nobody knows what became
/// of it, if asking twice does no harm; and one new connection does for all who lost theirs.
#[tokio::test]
async fn a_connection_that_breaks_costs_no_harmless_request() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("h2c://{}", listener.local_addr().unwrap());
    let connections = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&connections);
    let _serving = Owned::spawn("upstream", async move {
        let mut tasks = JoinSet::new();
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            let is_first = counted.fetch_add(1, Ordering::SeqCst) == 0;
            let open = Arc::new(Barrier::new(6));
            let all_open = Arc::clone(&open);
            let handler = move |request: Request<Incoming>| {
                let open = Arc::clone(&open);
                async move {
                    if is_first && request.uri().path() != "/first" {
                        open.wait().await;
                        std::future::pending::<()>().await;
                    }
                    text("good")
                }
            };
            tasks.spawn(async move {
                tokio::select! {
                    () = serve(stream, true, 200, handler) => {}
                    _ = all_open.wait() => {}
                }
            });
        }
    });
    let setup = Setup::new(&url).await;
    assert_eq!(setup.session.fetch(get("/first")).await.body(), "good");
    let session = &setup.session;
    let gets = async {
        let fetch = || session.fetch(get("/"));
        let all = tokio::join!(fetch(), fetch(), fetch(), fetch());
        [all.0, all.1, all.2, all.3].map(|response| response.into_body())
    };
    let (gets, posted) = tokio::join!(gets, session.ask(post("x")));
    assert_eq!(gets, ["good"; 4]);
    let problem = posted.unwrap_err();
    assert_eq!(problem.reason(), Reason::ConnectionTerminated, "{problem}");
    assert_eq!(connections.load(Ordering::SeqCst), 2);
}

#[tokio::test]
async fn an_upstream_that_refuses_streams_gets_no_connection_for_each_of_them() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("h2c://{}", listener.local_addr().unwrap());
    let connections = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&connections);
    let _serving = Owned::spawn("upstream", async move {
        let mut tasks = JoinSet::new();
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            counted.fetch_add(1, Ordering::SeqCst);
            tasks.spawn(async move {
                let mut connection = h2::server::handshake(stream).await.unwrap();
                while let Some(Ok((request, mut respond))) = connection.accept().await {
                    if request.uri().path() == "/first" {
                        respond.send_response(Response::new(()), true).unwrap();
                    } else {
                        respond.send_reset(h2::Reason::REFUSED_STREAM);
                    }
                }
            });
        }
    });
    let setup = Setup::new(&url).await;
    setup.session.fetch(get("/first")).await;
    for _ in 0..10 {
        let reason = setup.session.failure(get("/")).await;
        assert_eq!(reason, Reason::ConnectionTerminated);
    }
    assert_eq!(connections.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn a_websocket_is_opened_over_https_where_only_http2_is_spoken() {
    let (server, roots) = tls(&[b"h2"]);
    let upstream = Http2Upstream::start(Some(server), 200, echo).await;
    let setup = Setup::with(&upstream.url("https"), |config| {
        config.upstream_roots = Some(roots);
    })
    .await;
    check_echo(&setup).await;
    let connections = || upstream.connections.load(Ordering::SeqCst);
    let before = connections();
    check_echo_with(&setup, hazardous()).await;
    check_echo_with(&setup, hazardous()).await;
    // For each it is found anew that HTTP/1.1 is not spoken; the other two requests have a connection one after the other.
    assert_eq!(connections(), before + 3);
}
