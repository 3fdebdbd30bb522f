//! Upstreams over HTTP/2 that end connections and refuse streams, and what becomes of everybody's requests.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use http::{HeaderMap, HeaderValue, Request, StatusCode};
use http_body::Frame;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use parking_lot::Mutex;
use testkit::http2::Frame as H2Frame;
use testkit::scripted::{ScriptedConnection, ScriptedUpstream};
use testkit::tunnel::body::data;
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tunnel_ops::task::Owned;

use crate::http2::{serve, text};
use crate::setup::{Setup, get, post_fed};

/// A request that an upstream may end its connection for ends nobody else's exchange.
#[tokio::test]
async fn a_request_that_may_cost_a_connection_has_one_to_itself() {
    let peers = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&peers);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("h2c://{}", listener.local_addr().unwrap());
    let _serving = Owned::spawn("upstream", async move {
        let mut tasks = JoinSet::new();
        loop {
            let (stream, peer) = listener.accept().await.unwrap();
            let seen = Arc::clone(&seen);
            tasks.spawn(serve(
                stream,
                true,
                200,
                move |request: Request<Incoming>| {
                    seen.lock().push(peer);
                    async move {
                        let collected = request.into_body().collect().await.unwrap();
                        text(if collected.trailers().is_some() {
                            "trailers"
                        } else {
                            "none"
                        })
                    }
                },
            ));
        }
    });
    let setup = Setup::new(&url).await;
    let large = HeaderValue::from_bytes(&[b'a'; 5_000]).unwrap();
    let rare = HeaderValue::from_bytes(&[b'~'; 1_200]).unwrap();
    let announced = HeaderValue::from_static("x-last");
    for (field, expected) in [
        (None, "none"),
        (Some(("cookie", large)), "none"),
        (Some(("cookie", rare)), "none"),
        (Some(("trailer", announced)), "trailers"),
        (None, "none"),
    ] {
        let (pieces, mut request) = post_fed();
        if let Some((name, value)) = field {
            request.headers_mut().insert(name, value);
        }
        let sending = async {
            let trailers =
                HeaderMap::from_iter([("x-last".parse().unwrap(), HeaderValue::from_static("1"))]);
            pieces.send(data("hello")).await.unwrap();
            pieces.send(Ok(Frame::trailers(trailers))).await.unwrap();
            drop(pieces);
        };
        let (response, ()) = tokio::join!(setup.session.fetch(request), sending);
        assert_eq!(response.body(), expected);
    }
    let peers = peers.lock();
    let [shared, large, rare, trailers, again] = peers[..] else {
        panic!("{peers:?}")
    };
    assert_eq!(shared, again);
    assert_eq!([large, rare], [trailers; 2], "one after another");
    assert_ne!(shared, trailers);
}

/// A GOAWAY says which requests were not touched: these are sent again, whatever their method and content.
#[tokio::test]
async fn a_post_above_the_last_stream_of_a_goaway_is_sent_again_whole() {
    const OK: &[u8] = b"\x88";
    for (code, content) in [(0, 5), (0, 60_000), (11, 5)] {
        let connections = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&connections);
        let received = Arc::new(Mutex::new(Vec::<u8>::new()));
        let receiving = Arc::clone(&received);
        let upstream = ScriptedUpstream::start(move |mut connection: ScriptedConnection| {
            let is_first = counted.fetch_add(1, Ordering::SeqCst) == 0;
            let receiving = Arc::clone(&receiving);
            async move {
                connection.begin_http2_server().await;
                while let Some(frame) = connection.http2_frame().await {
                    if frame.kind == H2Frame::DATA && !is_first {
                        receiving.lock().extend(&frame.payload);
                    }
                    let is_end = frame.flags & 1 != 0;
                    match frame.kind {
                        H2Frame::HEADERS if is_first && frame.stream == 3 => {
                            let last = [0, 0, 0, 1, 0, 0, 0, code];
                            let goaway = H2Frame::new(H2Frame::GOAWAY, 0, 0, &last);
                            connection.send(goaway.bytes()).await;
                        }
                        H2Frame::HEADERS | H2Frame::DATA if is_end => {
                            let head = H2Frame::new(H2Frame::HEADERS, 5, frame.stream, OK);
                            connection.send(head.bytes()).await;
                        }
                        _ => {}
                    }
                }
            }
        })
        .await;
        let setup = Setup::new(&format!("h2c://{}", upstream.address())).await;
        setup.session.fetch(get("/first")).await;
        let text = "x".repeat(content);
        let request =
            Request::post("https://a-b.tunnels.test/").body(Full::new(text.clone().into()));
        let response = setup.session.ask(request.unwrap()).await.unwrap();
        assert_eq!(response.status(), StatusCode::OK);
        assert_eq!(connections.load(Ordering::SeqCst), 2);
        assert!(received.lock()[..] == *text.as_bytes());
    }
}

/// Trailers are part of what is sent again.
#[tokio::test]
async fn trailers_are_sent_again_with_their_content() {
    let connections = Arc::new(AtomicUsize::new(0));
    let received = Arc::new(Mutex::new(Vec::<u8>::new()));
    let receiving = Arc::clone(&received);
    let upstream = ScriptedUpstream::start(move |mut connection: ScriptedConnection| {
        let is_first = connections.fetch_add(1, Ordering::SeqCst) == 0;
        let receiving = Arc::clone(&receiving);
        async move {
            connection.begin_http2_server().await;
            while let Some(frame) = connection.http2_frame().await {
                let is_message = [H2Frame::HEADERS, H2Frame::DATA].contains(&frame.kind);
                if !is_first && is_message {
                    receiving.lock().push(frame.kind);
                }
                if !is_message || frame.flags & 1 == 0 {
                    continue;
                }
                let answer = match is_first {
                    true => H2Frame::new(H2Frame::GOAWAY, 0, 0, &[0; 8]),
                    false => H2Frame::new(H2Frame::HEADERS, 5, frame.stream, b"\x88"),
                };
                connection.send(answer.bytes()).await;
            }
        }
    })
    .await;
    let setup = Setup::new(&format!("h2c://{}", upstream.address())).await;
    let (pieces, mut request) = post_fed();
    let announced = HeaderValue::from_static("x-sum");
    request.headers_mut().insert("trailer", announced);
    let sending = async {
        let sum = HeaderValue::from_static("42");
        let trailers = HeaderMap::from_iter([("x-sum".parse().unwrap(), sum)]);
        pieces.send(data("hello")).await.unwrap();
        pieces.send(Ok(Frame::trailers(trailers))).await.unwrap();
        drop(pieces);
    };
    let (response, ()) = tokio::join!(setup.session.fetch(request), sending);
    assert_eq!(response.status(), StatusCode::OK);
    let message = [H2Frame::HEADERS, H2Frame::DATA, H2Frame::HEADERS];
    assert_eq!(received.lock()[..], message);
}

/// An upload that is answered before the upstream gives window for all of it gives its place back.
#[tokio::test]
async fn answers_before_the_content_is_taken_use_up_no_streams() {
    let upstream = ScriptedUpstream::start(async |mut connection: ScriptedConnection| {
        connection.bytes(24).await;
        // Two streams at once.
        let settings = H2Frame::new(H2Frame::SETTINGS, 0, 0, &[0, 3, 0, 0, 0, 2]);
        connection.send(settings.bytes()).await;
        while let Some(frame) = connection.http2_frame().await {
            if frame.kind == H2Frame::HEADERS {
                let head = H2Frame::new(H2Frame::HEADERS, 5, frame.stream, b"\x88");
                connection.send(head.bytes()).await;
            }
        }
    })
    .await;
    let setup = Setup::new(&format!("h2c://{}", upstream.address())).await;
    for _ in 0..6 {
        let content = vec![b'x'; 65_536];
        let request = Request::post("https://a-b.tunnels.test/").body(Full::new(content.into()));
        let response = setup.session.ask(request.unwrap()).await.unwrap();
        assert_eq!(response.status(), StatusCode::OK);
    }
}
