//! Connections to an upstream: used again when that is safe, and only then.

use http::Request;
use tokio::time::timeout;
use tunnel_proto::problem::Reason;

use crate::setup::{Setup, get, post};
use testkit::deadline::SOON;
use testkit::scripted::ScriptedUpstream;

const HELLO: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello";

#[tokio::test]
async fn exchanges_one_after_another_share_a_connection() {
    let upstream = ScriptedUpstream::answering(HELLO).await;
    let setup = Setup::new(&upstream.url()).await;
    for _ in 0..20 {
        assert_eq!(setup.session.fetch(get("/")).await.body(), "hello");
    }
    assert_eq!(upstream.connections(), 1);
}

#[tokio::test]
async fn chunked_empty_and_bodiless_answers_give_the_connection_back() {
    let upstream = ScriptedUpstream::start(|mut connection| async move {
        while let Ok(head) = connection.head().await {
            let answer = match head.split(' ').nth(1).unwrap() {
                "/chunked" => {
                    "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\n\r\n"
                }
                "/trailers" => {
                    "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n0\r\nx-end: 1\r\n\r\n"
                }
                "/empty" => "HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n",
                "/204" => "HTTP/1.1 204 No Content\r\n\r\n",
                "/304" => "HTTP/1.1 304 Not Modified\r\ncontent-length: 9\r\n\r\n",
                other => panic!("{other}"),
            };
            connection.send(answer).await;
        }
    })
    .await;
    let setup = Setup::new(&upstream.url()).await;
    for path in [
        "/chunked",
        "/trailers",
        "/empty",
        "/204",
        "/304",
        "/chunked",
    ] {
        setup.session.fetch(get(path)).await;
    }
    assert_eq!(upstream.connections(), 1);
}

#[tokio::test]
async fn a_connection_that_the_upstream_closed_is_not_used_again() {
    let upstream = ScriptedUpstream::answering_once(HELLO).await;
    let setup = Setup::new(&upstream.url()).await;
    for _ in 0..3 {
        assert_eq!(setup.session.fetch(post("x")).await.body(), "hello");
    }
    assert_eq!(upstream.connections(), 3);
}

/// Answers one request, and closes the connection when the next one is there: what happens when an
/// upstream's idle time-out ends at that moment.
async fn closing_late() -> ScriptedUpstream {
    ScriptedUpstream::start(|mut connection| async move {
        connection.head().await.unwrap();
        connection.send(HELLO).await;
        connection.head().await.unwrap();
    })
    .await
}

#[tokio::test]
async fn a_harmless_request_is_sent_again_when_the_connection_turns_out_dead() {
    let upstream = closing_late().await;
    let setup = Setup::new(&upstream.url()).await;
    for _ in 0..3 {
        assert_eq!(setup.session.fetch(get("/")).await.body(), "hello");
    }
    assert_eq!(upstream.connections(), 3);
}

#[tokio::test]
async fn a_request_that_may_do_harm_is_not_sent_again() {
    let upstream = closing_late().await;
    let setup = Setup::new(&upstream.url()).await;
    setup.session.fetch(get("/")).await;
    let bare = Request::post("https://a-b.tunnels.test/").body(http_body_util::Empty::new());
    assert_eq!(
        setup.session.failure(bare.unwrap()).await,
        Reason::ConnectionTerminated
    );
    assert_eq!(upstream.connections(), 1);
}

#[tokio::test]
async fn a_request_is_sent_again_only_once() {
    let upstream = ScriptedUpstream::start(|mut connection| async move {
        connection.head().await.unwrap();
        if connection.number == 0 {
            connection.send(HELLO).await;
            connection.head().await.unwrap();
        }
    })
    .await;
    let setup = Setup::new(&upstream.url()).await;
    setup.session.fetch(get("/")).await;
    assert_eq!(
        setup.session.failure(get("/")).await,
        Reason::ConnectionTerminated
    );
    assert_eq!(upstream.connections(), 2);
}

#[tokio::test]
async fn bytes_that_nobody_asked_for_end_the_connection() {
    let upstream = ScriptedUpstream::answering(
        b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhelloHTTP/1.1 200 OK\r\n\r\nevil",
    )
    .await;
    let setup = Setup::new(&upstream.url()).await;
    for _ in 0..3 {
        assert_eq!(setup.session.fetch(get("/")).await.body(), "hello");
    }
    assert_eq!(upstream.connections(), 3);
}

#[tokio::test]
async fn an_upstream_that_says_close_is_believed() {
    let upstream = ScriptedUpstream::start(|mut connection| async move {
        connection.head().await.unwrap();
        let answer = "HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 2\r\n\r\nhi";
        connection.send(answer).await;
        assert!(
            connection.rest().await.0.is_empty(),
            "nothing more is asked"
        );
    })
    .await;
    let setup = Setup::new(&upstream.url()).await;
    for _ in 0..2 {
        let response = setup.session.fetch(get("/")).await;
        assert!(!response.headers().contains_key("connection"));
    }
    assert_eq!(upstream.connections(), 2);
}

#[tokio::test]
async fn exchanges_at_once_have_connections_of_their_own() {
    let both = std::sync::Arc::new(tokio::sync::Barrier::new(2));
    let upstream = ScriptedUpstream::start(move |mut connection| {
        let both = both.clone();
        async move {
            connection.head().await.unwrap();
            both.wait().await;
            connection.send(HELLO).await;
            connection.rest().await;
        }
    })
    .await;
    let setup = Setup::new(&upstream.url()).await;
    tokio::join!(setup.session.fetch(get("/")), setup.session.fetch(get("/")));
    assert_eq!(upstream.connections(), 2);
}

#[tokio::test]
async fn the_pool_is_as_large_as_the_load() {
    const WORKERS: usize = 256;
    let upstream = ScriptedUpstream::answering(HELLO).await;
    let setup = Setup::new(&upstream.url()).await;
    let worker = async || {
        for _ in 0..10 {
            assert_eq!(setup.session.fetch(get("/")).await.body(), "hello");
        }
    };
    futures_util::future::join_all((0..WORKERS).map(|_| worker())).await;
    // A few more: a connection is kept a moment after its response has reached the other end.
    let made = upstream.connections();
    assert!(made <= WORKERS + WORKERS / 8, "{made}");
}

#[tokio::test]
async fn no_more_connections_rest_than_allowed() {
    let upstream = ScriptedUpstream::answering(HELLO).await;
    let setup = Setup::with(&upstream.url(), |config| {
        config.settings.upstream_idle_pool = 0
    })
    .await;
    for _ in 0..3 {
        setup.session.fetch(get("/")).await;
    }
    assert_eq!(upstream.connections(), 3);
}

#[tokio::test]
async fn three_hundred_that_never_answer_do_not_keep_the_next_from_its_answer() {
    let upstream = ScriptedUpstream::start(|mut connection| async move {
        let head = connection.head().await.unwrap();
        if head.starts_with("GET /never") {
            connection.rest().await;
        }
        connection.send(HELLO).await;
    })
    .await;
    let setup = Setup::new(&upstream.url()).await;
    let mut never = tokio::task::JoinSet::new();
    for _ in 0..300 {
        let session = setup.session.session.clone();
        never.spawn(async move {
            tunnel_proto::exchange::exchange(&session, get("/never"), |_, _| {})
                .await
                .is_ok()
        });
    }
    setup.client.wait_metric("open_exchanges", 300.0).await;
    assert_eq!(setup.session.fetch(get("/")).await.body(), "hello");
    never.abort_all();
    setup.client.wait_metric("open_exchanges", 0.0).await;
    assert!(timeout(SOON, setup.session.session.at_rest()).await.is_ok());
}
