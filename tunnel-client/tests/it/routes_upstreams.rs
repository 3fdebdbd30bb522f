//! What a route says of its upstreams holds for a whole client: which are asked, and which never.

use std::net::{Ipv4Addr, UdpSocket};

use http::Request;
use tunnel_proto::problem::Reason;
use tunnel_routing::config::RouteList;

use crate::routes::{telling, telling_at};
use crate::setup::{Setup, get, post};
use testkit::names::NameServer;

/// A client with these routes, which asks this server for names.
async fn with_routes(routes: &str, names: Option<&NameServer>) -> Setup {
    let routes = RouteList::from_toml("routes.toml", routes).unwrap();
    Setup::with("http://127.0.0.1:1", |config| {
        config.settings.upstream = None;
        config.routes = routes;
        config.settings.dns_server = Some(names.iter().map(|names| names.address()).collect());
    })
    .await
}

#[tokio::test]
async fn a_path_never_leads_to_the_machine_itself() {
    let names = NameServer::start().await;
    names.set("app.test", &["127.0.0.1"], 60);
    names.set("meta.test", &["169.254.169.254"], 60);
    let upstream = telling("app").await;
    let port = upstream.address().port();
    let setup = with_routes(
        &format!("[[route]]\nname = \"any\"\npath = \"/{{name}}/*\"\nupstream = \"http://{{name}}.test.:{port}\"\n"),
        Some(&names),
    )
    .await;
    for path in ["/app/x", "/meta/x"] {
        assert_eq!(
            setup.session.failure(get(path)).await,
            Reason::DestinationDenied,
            "{path}"
        );
    }
    assert_eq!(
        setup.session.failure(get("/other/x")).await,
        Reason::DnsError
    );
    assert_eq!(
        setup.session.failure(get("/127.0.0.1/x")).await,
        Reason::SegmentRefused
    );
    assert_eq!(upstream.connections(), 0);
}

/// An address of this machine by which others reach it, if it has one; nothing is sent for that.
fn own_address() -> Option<Ipv4Addr> {
    let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
    socket.connect("192.0.2.1:9").ok()?;
    match socket.local_addr().unwrap().ip() {
        std::net::IpAddr::V4(address) if !address.is_loopback() => Some(address),
        _ => None,
    }
}

#[tokio::test]
async fn a_path_leads_to_the_service_that_it_names() {
    // A machine without a network has no address that a path may lead to.
    let Some(address) = own_address() else { return };
    let names = NameServer::start().await;
    let address = address.to_string();
    names.set("github-eventsource-svc.argo.test", &[&address], 60);
    let upstream = telling_at(&format!("{address}:0"), "github").await;
    let port = upstream.address().port();
    let setup = with_routes(
        &format!(
            "[[route]]\nname = \"hooks\"\npath = \"/webhooks/{{ns}}/{{es}}/*\"\nhost_header = \"upstream\"\n\
             upstream = \"http://{{es}}-eventsource-svc.{{ns}}.test.:{port}\"\n"
        ),
        Some(&names),
    )
    .await;
    for _ in 0..3 {
        let answer = setup
            .session
            .fetch(get("/webhooks/argo/github/push?x=%2f"))
            .await;
        let body = answer.body();
        assert!(
            body.starts_with("GET /webhooks/argo/github/push?x=%2f HTTP/1.1\r\n"),
            "{body}"
        );
        let host = format!("host: github-eventsource-svc.argo.test:{port}\r\n");
        assert!(body.contains(&host), "{body}");
    }
    assert_eq!(upstream.connections(), 1);
}

#[tokio::test]
async fn one_upstream_of_several_that_is_gone_is_passed_over() {
    let upstream = telling("app").await;
    let setup = with_routes(
        &format!(
            "[[route]]\nname = \"app\"\npath = \"/*\"\nejection = {{ after = 2 }}\n\
             upstreams = [{{ url = \"http://127.0.0.1:1\", weight = 9 }}, {{ url = \"{}\" }}]\n",
            upstream.url()
        ),
        None,
    )
    .await;
    for _ in 0..12 {
        let answer = setup.session.fetch(get("/")).await;
        assert_eq!(answer.headers()["server"], "app");
    }
}

#[tokio::test]
async fn a_content_that_is_larger_than_the_route_takes_is_refused() {
    let upstream = telling("app").await;
    let setup = with_routes(
        &format!(
            "[[route]]\nname = \"small\"\npath = \"/*\"\nmax_body = \"4B\"\nupstream = \"{}\"\n",
            upstream.url()
        ),
        None,
    )
    .await;
    let problem = setup.session.ask(post("hello")).await.unwrap_err();
    assert_eq!(problem.status().as_u16(), 413, "{problem}");
    let empty = Request::post("https://a-b.tunnels.test/")
        .body(http_body_util::Empty::<bytes::Bytes>::new());
    assert_eq!(
        setup.session.fetch(empty.unwrap()).await.headers()["server"],
        "app"
    );
}
