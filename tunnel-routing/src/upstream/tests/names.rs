//! Names: asked for by their time to live, followed when they lead elsewhere, refused where they may
//! not lead.

use std::net::SocketAddr;

use tokio::sync::Notify;
use tokio::time::sleep;

use super::*;
use testkit::names::{NameServer, Reply};
use testkit::scripted::{ScriptedConnection, ScriptedUpstream};

const NAME: &str = "app.ns.svc.cluster.test";

/// An upstream by name, wherever that leads, and its port.
fn named(server: &NameServer, port: u16, options: &UpstreamOptions) -> Arc<Upstream> {
    let url = format!("http://{NAME}.:{port}").parse().unwrap();
    let shared = Arc::new(UpstreamShared::new(
        &[server.address()],
        tunnel_proto::memory::MemoryAccount::new(usize::MAX),
        64,
    ));
    let destination = Destination::anywhere(url);
    Arc::new(Upstream::with_tls(destination, None, options, &shared))
}

/// Two upstreams at the same port of two addresses, each with an answer of its own, and a stream that goes on
/// when it is told to.
async fn two(goes_on: &Arc<Notify>) -> (ScriptedUpstream, ScriptedUpstream) {
    let at = |address: SocketAddr, content: &'static str| {
        let goes_on = Arc::clone(goes_on);
        ScriptedUpstream::start_at(address, move |mut connection| {
            let goes_on = Arc::clone(&goes_on);
            async move {
                while let Ok(head) = connection.head().await {
                    if head.starts_with("GET /stream") {
                        let head =
                            "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n1\r\nx\r\n";
                        connection.send(head).await;
                        goes_on.notified().await;
                        connection.send("1\r\ny\r\n0\r\n\r\n").await;
                    } else {
                        connection.send(answer(content)).await;
                    }
                }
            }
        })
    };
    // The port that is free at the one address is at the other as well, or another is tried.
    loop {
        let one = at("127.0.0.1:0".parse().unwrap(), "one").await;
        let other = SocketAddr::new([127, 0, 0, 2].into(), one.address().port());
        if tokio::net::TcpListener::bind(other).await.is_ok() {
            return (one, at(other, "two").await);
        }
    }
}

#[tokio::test]
async fn connections_go_when_their_name_leads_elsewhere_and_open_exchanges_end_first() {
    let goes_on = Arc::new(Notify::new());
    let (one, _two) = two(&goes_on).await;
    let server = NameServer::start().await;
    server.set(NAME, &["127.0.0.1"], 1);
    let route = Route::to(named(&server, one.address().port(), &options()));
    assert_eq!(route.fetch(get("/")).await, "one");
    let open = route.ask(get("/stream")).await.unwrap();
    server.set(NAME, &["127.0.0.2"], 1);
    let moved = async {
        while route.fetch(get("/")).await != "two" {
            sleep(Duration::from_millis(20)).await;
        }
    };
    timeout(SOON, moved).await.unwrap();
    for _ in 0..10 {
        assert_eq!(route.fetch(get("/")).await, "two");
    }
    goes_on.notify_one();
    let whole = open.into_body().collect().await.unwrap().to_bytes();
    assert_eq!(whole, "xy", "what was open goes on where it was");
    assert_eq!(
        route.fetch(get("/")).await,
        "two",
        "and its connection is not used again"
    );
}

#[tokio::test]
async fn a_name_is_asked_for_no_more_often_than_its_answer_runs_out() {
    let upstream =
        ScriptedUpstream::answering_once(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").await;
    let server = NameServer::start().await;
    server.set(NAME, &["127.0.0.1"], 300);
    let route = Route::to(named(&server, upstream.address().port(), &options()));
    let mut all = JoinSet::new();
    let route = Arc::new(route);
    for _ in 0..20 {
        let route = Arc::clone(&route);
        all.spawn(async move { route.fetch(get("/")).await });
    }
    all.join_all().await;
    for _ in 0..10 {
        route.fetch(get("/")).await;
    }
    assert_eq!(upstream.connections(), 30);
    assert_eq!(server.asked(NAME), 1);
}

#[tokio::test]
async fn the_next_address_is_tried_when_one_refuses() {
    let upstream = ScriptedUpstream::answering_once(b"HTTP/1.1 204 No Content\r\n\r\n").await;
    let server = NameServer::start().await;
    server.set(NAME, &["127.0.0.3", "127.0.0.1", "::1"], 60);
    let route = Route::to(named(&server, upstream.address().port(), &options()));
    for _ in 0..3 {
        route.fetch(get("/")).await;
    }
}

#[tokio::test]
async fn the_last_addresses_go_on_while_the_name_servers_are_down() {
    let upstream =
        ScriptedUpstream::answering_once(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").await;
    let server = NameServer::start().await;
    server.set(NAME, &["127.0.0.1"], 1);
    let route = Route::to(named(&server, upstream.address().port(), &options()));
    route.fetch(get("/")).await;
    let before = server.asked(NAME);
    server.set_reply(NAME, Reply::Failure);
    let asked = async {
        while server.asked(NAME) == before {
            route.fetch(get("/")).await;
            sleep(Duration::from_millis(20)).await;
        }
    };
    timeout(SOON, asked).await.unwrap();
    route.fetch(get("/")).await;
}

#[tokio::test]
async fn a_name_that_is_gone_takes_its_connections_along() {
    let upstream = ScriptedUpstream::start(|mut connection: ScriptedConnection| async move {
        while connection.head().await.is_ok() {
            connection.send(answer("here")).await;
        }
    })
    .await;
    let server = NameServer::start().await;
    server.set(NAME, &["127.0.0.1"], 1);
    let route = Route::to(named(&server, upstream.address().port(), &options()));
    assert_eq!(route.fetch(get("/")).await, "here");
    server.forget(NAME);
    let gone = async {
        loop {
            match route.ask(get("/")).await {
                Ok(response) => {
                    response.into_body().collect().await.unwrap();
                    sleep(Duration::from_millis(20)).await;
                }
                Err(problem) => break problem.reason(),
            }
        }
    };
    assert_eq!(timeout(SOON, gone).await.unwrap(), Reason::DnsError);
}

#[tokio::test]
async fn a_name_that_leads_where_it_may_not_is_refused_by_name() {
    let server = NameServer::start().await;
    let shared = Arc::new(UpstreamShared::new(
        &[server.address()],
        tunnel_proto::memory::MemoryAccount::new(usize::MAX),
        64,
    ));
    for address in [
        "127.0.0.1",
        "169.254.169.254",
        "::ffff:127.0.0.1",
        "::1",
        "0.0.0.0",
    ] {
        // Each its own name, since answers are kept.
        let name = format!("{}.test", address.replace(['.', ':'], "-"));
        server.set(&name, &[address], 60);
        let url = format!("http://x{name}.:1");
        server.set(&format!("x{name}"), &[address], 60);
        let upstream = Upstream::new(url.parse().unwrap(), &options(), &shared).unwrap();
        let problem = Route::to(Arc::new(upstream))
            .ask(get("/"))
            .await
            .unwrap_err();
        assert_eq!(
            problem.reason(),
            Reason::DestinationDenied,
            "{address}: {problem}"
        );
        let cache = UpstreamCache::new(UpstreamScheme::Http, &options(), &shared).unwrap();
        let route = Route::to(cache.get(url.parse().unwrap()));
        assert_eq!(route.failure(get("/")).await, Reason::DestinationDenied);
    }
}

#[tokio::test]
async fn a_template_reaches_no_address_that_is_only_for_who_writes_it() {
    let upstream = ScriptedUpstream::answering(b"HTTP/1.1 204 No Content\r\n\r\n").await;
    let port = upstream.address().port();
    let cache = UpstreamCache::new(UpstreamScheme::Http, &options(), &shared()).unwrap();
    for host in [
        "127.0.0.1",
        "localhost",
        "localhost.",
        "[::1]",
        "[::ffff:127.0.0.1]",
    ] {
        let url = format!("http://{host}:{port}").parse().unwrap();
        let route = Route::to(cache.get(url));
        assert_eq!(
            route.failure(get("/")).await,
            Reason::DestinationDenied,
            "{host}"
        );
    }
    assert_eq!(upstream.connections(), 0);
    for host in ["127.0.0.1", "localhost"] {
        let url = format!("http://{host}:{port}");
        Route::to(self::upstream(&url, &options()))
            .fetch(get("/"))
            .await;
    }
}

#[tokio::test]
async fn a_name_server_that_says_nothing_costs_no_more_than_the_limit() {
    let server = NameServer::start().await;
    server.set_reply(NAME, Reply::Silence);
    let short = UpstreamOptions {
        connect_timeout: Duration::from_millis(200),
        ..options()
    };
    let route = Route::to(named(&server, 1, &short));
    assert_eq!(route.failure(get("/")).await, Reason::DnsTimeout);
    server.forget(NAME);
    let route = Route::to(named(&server, 1, &options()));
    assert_eq!(route.failure(get("/")).await, Reason::DnsError);
}
