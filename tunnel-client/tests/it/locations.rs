//! Where a client has its sessions: at different nodes and different servers, as far as there are any.

use std::time::Duration;

use testkit::deadline::soon;
use testkit::tunnel::server::{FakeServer, ServerSession, refusal};
use tunnel_proto::control::Control;
use tunnel_proto::handshake::Placement;

use crate::setup::Running;

/// An upstream nobody asks anything.
const NOBODY: &str = "http://127.0.0.1:1";

/// A wait that no test sees the end of.
const FOR_EVER: Duration = Duration::from_secs(3_600);

fn placement(session: &ServerSession) -> Placement {
    session.request.greeting.placement.clone().unwrap()
}

/// The next session of either server, welcomed.
async fn either(one: &mut FakeServer, two: &mut FakeServer) -> ServerSession {
    tokio::select! {
        session = one.welcome() => session,
        session = two.welcome() => session,
    }
}

#[tokio::test]
async fn a_client_names_the_nodes_that_it_has_and_dials_again_at_once_for_another() {
    let mut server = FakeServer::start().await;
    let client = Running::start(&server, NOBODY, |config| {
        config.settings.sessions = 2;
        // A wait would never end.
        config.settings.redial_base = FOR_EVER;
        config.settings.redial_cap = FOR_EVER;
    });
    let first = server.accept().await;
    assert_eq!(placement(&first), Placement::avoiding(Vec::new()));
    let elsewhere = || refusal(503, "elsewhere", false);
    server.refuse([elsewhere(), elsewhere()]);
    first.welcome_at(Some("n1"));
    let second = server.accept().await;
    let avoid = vec!["n1".to_owned()];
    assert_eq!(placement(&second), Placement { avoid, attempt: 3 });
    second.welcome_at(Some("n2"));
    client
        .wait_metric("dials_total{result=\"elsewhere\"}", 2.0)
        .await;
}

/// A session that the server drains is to be left, and so is its node.
#[tokio::test]
async fn the_node_of_a_session_that_is_drained_is_named_too() {
    let mut server = FakeServer::start().await;
    let _client = Running::start(&server, NOBODY, |_| {});
    let first = server.accept().await;
    first.welcome_at(Some("n1"));
    first.send(Control::Drain { spread_ms: None });
    let next = server.accept().await;
    let avoid = vec!["n1".to_owned()];
    assert_eq!(placement(&next), Placement::avoiding(avoid));
}

#[tokio::test]
async fn sessions_go_to_different_servers_and_one_that_fails_is_left_for_the_next() {
    let (mut one, mut two) = (FakeServer::start().await, FakeServer::start().await);
    let both = format!("{}{}", one.pem(), two.pem());
    let client = Running::start(&one, NOBODY, |config| {
        let second: tunnel_client::config::ServerUrl = two.url().parse().unwrap();
        config.servers.push(second.into());
        config.server_trust = tunnel_ops::tls_files::Roots::from_pem(&both)
            .unwrap()
            .into();
        config.settings.sessions = 2;
    });
    let (at_one, at_two) = tokio::join!(one.welcome(), two.welcome());
    client.wait_metric("sessions", 2.0).await;
    assert_eq!(at_one.request.host, one.address().to_string());
    assert_eq!(at_two.request.host, two.address().to_string());
    // One of the servers ends.
    drop((one, at_one));
    let next = soon("a session at the other server", two.welcome()).await;
    assert_eq!(next.request.host, two.address().to_string());
    client.wait_metric("sessions", 2.0).await;
    drop(at_two);
}

#[tokio::test]
async fn a_session_that_is_drained_goes_to_the_other_server() {
    let (mut one, mut two) = (FakeServer::start().await, FakeServer::start().await);
    let both = format!("{}{}", one.pem(), two.pem());
    let _client = Running::start(&one, NOBODY, |config| {
        let second: tunnel_client::config::ServerUrl = two.url().parse().unwrap();
        config.servers.push(second.into());
        config.server_trust = tunnel_ops::tls_files::Roots::from_pem(&both)
            .unwrap()
            .into();
        // Also a session that is drained at once is none that has failed.
        config.settings.redial_base = Duration::ZERO;
    });
    let mut last = either(&mut one, &mut two).await;
    for _ in 0..3 {
        last.send(Control::Drain { spread_ms: None });
        let next = either(&mut one, &mut two).await;
        assert_ne!(next.request.host, last.request.host);
        last = next;
    }
}
