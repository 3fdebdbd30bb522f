//! A server that is reached by another address, name or `Host` than its URL's, whose CA changes, and
//! whose sessions are replaced for their age.

use std::time::Duration;

use testkit::tunnel::server::FakeServer;
use tunnel_client::config::Trust;
use tunnel_proto::control::Control;

use crate::setup::Running;

/// An upstream nobody asks anything.
const NOBODY: &str = "http://127.0.0.1:1";

#[tokio::test]
async fn another_address_is_dialled_another_name_checked_another_host_named() {
    let mut server = FakeServer::start().await;
    let address = server.address();
    let client = Running::start(&server, NOBODY, |config| {
        config.servers[0].url = "wss://tunnel.invalid".parse().unwrap();
        config.settings.connect_to = Some(address.to_string().parse().unwrap());
        config.settings.server_name = Some("127.0.0.1".parse().unwrap());
    });
    let session = server.welcome().await;
    assert_eq!(session.request.host, "tunnel.invalid");
    drop(client);
    let _client = Running::start(&server, NOBODY, |config| {
        config.settings.host_header = Some("tunnel.example.com:8443".parse().unwrap());
    });
    assert_eq!(
        server.welcome().await.request.host,
        "tunnel.example.com:8443"
    );
}

#[tokio::test]
async fn a_certificate_is_checked_for_the_name_that_is_given() {
    let server = FakeServer::start().await;
    let client = Running::start(&server, NOBODY, |config| {
        config.settings.server_name = Some("another.example.com".parse().unwrap());
    });
    let series = "dials_total{result=\"tls\"}";
    let counts = async {
        while client
            .metrics()
            .await
            .lines()
            .any(|line| line == format!("tunnel_client_{series} 0"))
        {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(testkit::deadline::SOON, counts)
        .await
        .unwrap();
}

#[tokio::test]
async fn a_ca_file_that_is_put_in_place_later_is_taken_at_the_next_dial() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("ca.pem");
    let other = testkit::ca::self_signed("127.0.0.1");
    std::fs::write(&path, &other.certificate).unwrap();
    let mut server = FakeServer::start().await;
    let trust = Trust::new(false, vec![path.clone()], Vec::new());
    let _client = Running::start(&server, NOBODY, |config| config.server_trust = trust);
    assert!(server.is_left_alone(Duration::from_millis(100)).await);
    std::fs::write(&path, server.pem()).unwrap();
    server.welcome().await;
}

#[tokio::test]
async fn sessions_of_one_age_are_replaced_one_after_the_other() {
    let mut server = FakeServer::start().await;
    let _client = Running::start(&server, NOBODY, |config| {
        config.settings.sessions = 2;
        config.settings.max_session_age = Some(Duration::from_millis(400));
    });
    let (mut one, mut other) = (server.welcome().await, server.welcome().await);
    // Both are due before this one is welcome, and neither leaves.
    let next = server.accept().await;
    assert!(server.is_left_alone(Duration::from_millis(500)).await);
    assert!(one.is_quiet(Duration::from_millis(10)).await);
    assert!(other.is_quiet(Duration::from_millis(10)).await);
    next.welcome();
    let last = server.welcome().await;
    assert!(matches!(one.notice().await, Control::Drain { .. }));
    assert!(matches!(other.notice().await, Control::Drain { .. }));
    drop(last);
}

#[tokio::test]
async fn a_session_of_age_is_replaced_before_it_leaves() {
    let mut server = FakeServer::start().await;
    let client = Running::start(&server, NOBODY, |config| {
        config.settings.max_session_age = Some(Duration::from_millis(400));
    });
    let mut first = server.welcome().await;
    client.wait_ready(true).await;
    // The next one, while the first still stands: it leaves only once this one is welcome.
    let second = server.accept().await;
    assert!(first.is_quiet(Duration::from_millis(50)).await);
    second.welcome();
    assert!(matches!(first.notice().await, Control::Drain { .. }));
    assert!(client.admin("/readyz").await.head.status() == 200);
}
