//! The report of the client's routes to the server.

use std::time::Duration;

use testkit::scripted::ScriptedUpstream;
use testkit::tunnel::server::FakeServer;
use tokio::time::timeout;
use tunnel_client::config::TellRoutes;
use tunnel_proto::control::{Control, RouteState};

use crate::setup::{Running, get};

#[tokio::test]
async fn the_server_is_told_of_the_routes_once_it_has_said_welcome() {
    let upstream =
        ScriptedUpstream::answering(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok").await;
    let mut server = FakeServer::start().await;
    let _client = Running::start(&server, &upstream.url(), |_| {});
    let mut session = server.accept().await;
    assert!(matches!(session.receive().await, Control::Hello { .. }));
    session.welcome();
    let Control::Routes(summary) = session.receive().await else {
        panic!("the routes come next");
    };
    let [route] = summary.routes() else {
        panic!("{summary:?}");
    };
    assert_eq!((route.name.as_str(), summary.omitted()), ("default", 0));
    assert!(route.matches.starts_with("/*"));
    assert_eq!(route.to, "", "nothing of the client's network");
    assert_eq!(route.state, RouteState::Unknown);
    // That it answers is told at the next look, seconds later: exchanges wait for nothing of it.
    assert_eq!(session.fetch(get("/")).await.body(), "ok");
    let soon = Duration::from_millis(50);
    assert!(timeout(soon, session.receive()).await.is_err());
}

#[tokio::test]
async fn where_routes_lead_is_told_only_if_the_client_says_so() {
    let mut server = FakeServer::start().await;
    let _client = Running::start(&server, "http://localhost:9", |config| {
        config.settings.tell_routes = TellRoutes::Full;
    });
    let mut session = server.accept().await;
    assert!(matches!(session.receive().await, Control::Hello { .. }));
    session.welcome();
    let Control::Routes(summary) = session.receive().await else {
        panic!("the routes come next");
    };
    assert_eq!(summary.routes()[0].to, "http://localhost:9");
}

#[tokio::test]
async fn a_client_that_tells_nothing_tells_no_names_either() {
    let upstream =
        ScriptedUpstream::answering(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok").await;
    let mut server = FakeServer::start().await;
    let _client = Running::start(&server, &upstream.url(), |config| {
        config.settings.tell_routes = TellRoutes::None;
    });
    let mut session = server.accept().await;
    assert!(matches!(session.receive().await, Control::Hello { .. }));
    session.welcome();
    assert_eq!(session.fetch(get("/")).await.body(), "ok");
    let soon = Duration::from_millis(50);
    assert!(timeout(soon, session.receive()).await.is_err());
}
