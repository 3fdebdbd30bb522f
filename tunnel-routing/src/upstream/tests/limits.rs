//! What a route bounds: the size of a request, and silence. And what it leaves alone: redirects.

use std::convert::Infallible;

use http_body::Frame;
use http_body_util::{Full, StreamBody};
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio::time::sleep;
use tokio_stream::wrappers::ReceiverStream;
use tunnel_proto::exchange::BodyError;
use tunnel_proto::problem::Fault;

use super::*;
use testkit::scripted::{ScriptedConnection, ScriptedUpstream};

type Piece = Result<Frame<Bytes>, Infallible>;

/// A request whose content comes piece by piece, its length not known.
fn pieces() -> (
    mpsc::Sender<Piece>,
    Request<StreamBody<ReceiverStream<Piece>>>,
) {
    let (sender, receiver) = mpsc::channel(16);
    let body = StreamBody::new(ReceiverStream::new(receiver));
    let request = Request::post("https://a-b.tunnels.test/").body(body);
    (sender, request.unwrap())
}

fn piece(bytes: usize) -> Piece {
    Ok(Frame::data(Bytes::from(vec![b'x'; bytes])))
}

/// A request whose length is known.
fn whole(bytes: usize) -> Request<Full<Bytes>> {
    Request::post("https://a-b.tunnels.test/")
        .header("content-length", bytes)
        .body(Full::new(Bytes::from(vec![b'x'; bytes])))
        .unwrap()
}

fn with_max_body(upstream: &ScriptedUpstream) -> Route {
    let options = UpstreamOptions {
        max_body: Some(10),
        ..options()
    };
    Route::to(self::upstream(&upstream.url(), &options))
}

#[tokio::test]
async fn a_request_that_says_it_is_too_large_never_reaches_the_upstream() {
    let upstream = ScriptedUpstream::start(|mut connection: ScriptedConnection| async move {
        connection.head().await.unwrap();
        assert_eq!(connection.bytes(10).await, b"xxxxxxxxxx");
        connection.send(answer("taken")).await;
    })
    .await;
    let route = with_max_body(&upstream);
    let problem = route.ask(whole(11)).await.unwrap_err();
    assert_eq!(problem.reason(), Reason::BodyTooLarge);
    assert_eq!(problem.status(), 413);
    assert_eq!(upstream.connections(), 0);
    assert_eq!(route.fetch(whole(10)).await, "taken");
}

#[tokio::test]
async fn a_request_that_turns_out_too_large_is_ended_there_and_never_looks_whole() {
    let (seen, mut all) = mpsc::channel(1);
    let upstream = ScriptedUpstream::start(move |mut connection: ScriptedConnection| {
        let seen = seen.clone();
        async move {
            connection.head().await.unwrap();
            let (rest, _) = connection.rest().await;
            seen.send(rest).await.unwrap();
        }
    })
    .await;
    let route = with_max_body(&upstream);
    let (sender, request) = pieces();
    let sending = async {
        for bytes in [6, 4, 1] {
            sender.send(piece(bytes)).await.unwrap();
        }
    };
    let (failure, ()) = tokio::join!(route.failure(request), sending);
    assert_eq!(failure, Reason::BodyTooLarge);
    let seen = String::from_utf8(all.recv().await.unwrap()).unwrap();
    assert!(!seen.contains("0\r\n\r\n"), "{seen:?}");
}

#[tokio::test]
async fn a_request_that_fits_is_sent_whole_though_its_length_was_not_known() {
    let upstream = ScriptedUpstream::start(|mut connection: ScriptedConnection| async move {
        connection.head().await.unwrap();
        connection
            .bytes(b"a\r\nxxxxxxxxxx\r\n0\r\n\r\n".len())
            .await;
        connection.send(answer("taken")).await;
    })
    .await;
    let route = with_max_body(&upstream);
    let (sender, request) = pieces();
    let sending = async {
        sender.send(piece(10)).await.unwrap();
        drop(sender);
    };
    let (content, ()) = tokio::join!(route.fetch(request), sending);
    assert_eq!(content, "taken");
}

fn with_idle_limit(upstream: &ScriptedUpstream) -> Route {
    let options = UpstreamOptions {
        idle_timeout: Some(Duration::from_millis(200)),
        ..options()
    };
    Route::to(self::upstream(&upstream.url(), &options))
}

#[tokio::test]
async fn an_upstream_that_hangs_is_given_up_within_its_answer() {
    let upstream = ScriptedUpstream::start(|mut connection: ScriptedConnection| async move {
        connection.head().await.unwrap();
        connection
            .send("HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nhalf")
            .await;
        connection.rest().await;
    })
    .await;
    let route = with_idle_limit(&upstream);
    let response = route.ask(get("/within")).await.unwrap();
    let collected = timeout(SOON, response.into_body().collect()).await.unwrap();
    match collected.unwrap_err() {
        BodyError::Aborted(problem) => assert_eq!(problem.reason(), Reason::IdleTimeout),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn an_answer_may_take_its_time_to_begin_when_the_request_has_ended() {
    let upstream = ScriptedUpstream::start(|mut connection: ScriptedConnection| async move {
        connection.head().await.unwrap();
        sleep(Duration::from_millis(500)).await;
        connection.send(answer("late")).await;
    })
    .await;
    let route = with_idle_limit(&upstream);
    assert_eq!(route.fetch(get("/")).await, "late");
}

#[tokio::test]
async fn an_upstream_that_takes_no_more_of_a_request_is_given_up() {
    let upstream = ScriptedUpstream::start(|mut connection: ScriptedConnection| async move {
        connection.head().await.unwrap();
        std::future::pending::<()>().await;
    })
    .await;
    let route = with_idle_limit(&upstream);
    // More than all that lies between.
    let large = Full::new(Bytes::from(vec![b'x'; 32 * 1024 * 1024]));
    let request = Request::post("https://a-b.tunnels.test/").body(large);
    assert_eq!(route.failure(request.unwrap()).await, Reason::IdleTimeout);
}

#[tokio::test]
async fn a_request_that_stops_coming_is_given_up() {
    let upstream = ScriptedUpstream::start(|mut connection: ScriptedConnection| async move {
        connection.head().await.unwrap();
        connection.rest().await;
    })
    .await;
    let route = with_idle_limit(&upstream);
    let (sender, request) = pieces();
    sender.send(piece(1)).await.unwrap();
    let problem = route.ask(request).await.unwrap_err();
    assert_eq!(problem.reason(), Reason::RequestIncomplete);
    assert_eq!(problem.reason().fault(), Fault::PlatformClient);
}

#[tokio::test]
async fn a_request_that_waits_to_be_let_on_is_not_to_blame() {
    let upstream = ScriptedUpstream::start(|mut connection: ScriptedConnection| async move {
        connection.head().await.unwrap();
        connection.rest().await;
    })
    .await;
    let route = with_idle_limit(&upstream);
    let (_sender, mut request) = pieces();
    let expect = "100-continue".parse().unwrap();
    request.headers_mut().insert("expect", expect);
    assert_eq!(route.failure(request).await, Reason::IdleTimeout);
}

#[tokio::test]
async fn a_request_that_turns_out_too_large_after_an_answer_has_begun_ends_it_by_that_name() {
    let upstream = ScriptedUpstream::start(|mut connection: ScriptedConnection| async move {
        connection.head().await.unwrap();
        let head = "HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nhalf";
        connection.send(head).await;
        connection.rest().await;
    })
    .await;
    let route = with_max_body(&upstream);
    let (sender, request) = pieces();
    sender.send(piece(6)).await.unwrap();
    let response = route.ask(request).await.unwrap();
    sender.send(piece(6)).await.unwrap();
    let collected = timeout(SOON, response.into_body().collect()).await.unwrap();
    match collected.unwrap_err() {
        BodyError::Aborted(problem) => assert_eq!(problem.reason(), Reason::BodyTooLarge),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn over_http2_it_has_the_same_name_and_is_taken_back() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("h2c://{}", listener.local_addr().unwrap());
    let (tell, mut told) = mpsc::channel(1);
    let _upstream = Owned::spawn("upstream", async move {
        let (stream, _) = listener.accept().await.unwrap();
        let mut connection = h2::server::handshake(stream).await.unwrap();
        let (request, mut respond) = connection.accept().await.unwrap().unwrap();
        let answering = async move {
            let mut sending = respond.send_response(Response::new(()), false).unwrap();
            sending.send_data("half".into(), false).unwrap();
            let mut content = request.into_body();
            let reset = loop {
                match content.data().await {
                    Some(Ok(_)) => {}
                    Some(Err(error)) => break error.reason(),
                    None => break None,
                }
            };
            tell.send(reset).await.unwrap();
        };
        tokio::join!(answering, async {
            while connection.accept().await.is_some() {}
        });
    });
    let options = UpstreamOptions {
        max_body: Some(10),
        ..options()
    };
    let route = Route::to(upstream(&url, &options));
    let (sender, request) = pieces();
    sender.send(piece(6)).await.unwrap();
    let response = route.ask(request).await.unwrap();
    sender.send(piece(6)).await.unwrap();
    let collected = timeout(SOON, response.into_body().collect()).await.unwrap();
    match collected.unwrap_err() {
        BodyError::Aborted(problem) => assert_eq!(problem.reason(), Reason::BodyTooLarge),
        other => panic!("{other:?}"),
    }
    let reset = timeout(SOON, told.recv()).await.unwrap().unwrap();
    assert_eq!(reset, Some(h2::Reason::CANCEL));
}

#[tokio::test]
async fn a_redirect_is_passed_on_and_never_followed() {
    let elsewhere = ScriptedUpstream::answering(b"HTTP/1.1 204 No Content\r\n\r\n").await;
    let location = format!("{}/there", elsewhere.url());
    for status in [301, 302, 303, 307, 308] {
        let head =
            format!("HTTP/1.1 {status} Go\r\nlocation: {location}\r\ncontent-length: 0\r\n\r\n");
        let upstream = ScriptedUpstream::start(move |mut connection: ScriptedConnection| {
            let head = head.clone();
            async move {
                connection.head().await.unwrap();
                connection.send(head).await;
                connection.rest().await;
            }
        })
        .await;
        let route = Route::to(self::upstream(&upstream.url(), &options()));
        let response = route.ask(get("/")).await.unwrap();
        assert_eq!(response.status(), status);
        assert_eq!(response.headers()["location"], location);
        assert_eq!(upstream.connections(), 1);
    }
    assert_eq!(elsewhere.connections(), 0);
}
