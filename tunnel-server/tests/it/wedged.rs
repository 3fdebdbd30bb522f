//! Sessions whose connection is well and whose client is not: pings are answered, exchanges are not taken.

use std::time::Duration;

use testkit::{
    deadline::soon,
    http1::RawConnection,
    tunnel::{
        body::{full, status},
        client::{FakeClient, random_instance},
        wire::Wire,
    },
};
use tokio::time::timeout;
use tunnel_ops::task::Owned;

use crate::{
    rig::{PROD, PROD_HOST, Rig, ask_admin},
    sessions::get,
};

/// The code by which a session is closed whose client takes nothing.
const WEDGED: u16 = 4010;

const ENDED: &str = "tunnel_server_sessions_ended_total{reason=\"wedged\"}";

/// Asks until one is not answered: the others went through another session.
async fn stuck(rig: &Rig, request: &str) -> RawConnection {
    soon("a request that is stuck", async {
        loop {
            let mut raw = rig.raw().await;
            raw.send(request).await;
            match timeout(Duration::from_millis(300), raw.head()).await {
                Ok(head) => assert_eq!(head.unwrap().status(), 200),
                Err(_) => return raw,
            }
        }
    })
    .await
}

#[tokio::test]
async fn a_session_that_takes_nothing_is_evicted_and_the_others_of_its_tunnel_serve() {
    let rig = Rig::with(|config| config.settings.ping_interval = Duration::from_millis(500)).await;
    let instance = random_instance();
    let second = |_| async { Ok(status(200, full("second"))) };
    let second = FakeClient::of_instance(&rig, PROD, instance.clone(), second).await;
    let mut wire = Wire::of_instance(&rig, PROD, instance).await;
    rig.metric_becomes("tunnel_server_sessions", 2.0).await;
    // Reads all, and answers pings.
    let wedged = Owned::spawn("wedged", async move { wire.end().await });
    let post = format!("POST / HTTP/1.1\r\nhost: {PROD_HOST}\r\ncontent-length: 1\r\n\r\nx");
    // What is stuck there counts as something to do, so that what comes later goes elsewhere.
    let mut safe = stuck(&rig, &get("/")).await;
    for _ in 0..20 {
        assert_eq!(rig.raw().await.ask(get("/")).await.text(), "second");
    }
    assert_eq!(soon("its end", wedged).await.unwrap(), Some(WEDGED));
    // What was stuck in it has gone another way, since that is safe.
    assert_eq!(safe.response().await.text(), "second");
    rig.metric_becomes(ENDED, 1.0).await;
    rig.metric_becomes("tunnel_server_sessions", 1.0).await;
    for request in [get("/"), post] {
        assert_eq!(rig.raw().await.ask(request).await.text(), "second");
    }
    assert!(!second.session.is_closed());
}

#[tokio::test]
async fn a_request_that_may_not_be_repeated_fails_with_its_wedged_session() {
    let rig = Rig::start().await;
    let mut wire = Wire::connect(&rig, PROD).await;
    let wedged = Owned::spawn("wedged", async move { wire.end().await });
    let post = format!("POST / HTTP/1.1\r\nhost: {PROD_HOST}\r\ncontent-length: 1\r\n\r\nx");
    let mut raw = rig.raw().await;
    raw.send(post).await;
    let answer = raw.response().await;
    assert_eq!(
        (answer.head.status(), &*answer.reason()),
        (502, "session_lost")
    );
    assert_eq!(soon("its end", wedged).await.unwrap(), Some(WEDGED));
}

#[tokio::test]
async fn a_session_without_echo_does_not_join_and_supersedes_none() {
    let rig = Rig::start().await;
    let holder = FakeClient::describing(&rig, PROD).await;
    let mut mute = Wire::mute(&rig, PROD, random_instance()).await;
    let ended = Owned::spawn("mute", async move { mute.end().await });
    let view = async || {
        let (_, text) = ask_admin(rig.addresses.admin, "/api/v1/runtimes/acme-prod").await;
        serde_json::from_str::<serde_json::Value>(&text).unwrap()
    };
    let before = view().await;
    assert_eq!(before["sessions"].as_array().unwrap().len(), 1);
    let mut raw = rig.raw().await;
    let mut ended = ended;
    let code = loop {
        // For as long as it is there, all is as if it were not.
        if let Ok(code) = timeout(Duration::from_millis(100), &mut ended).await {
            break code.unwrap();
        }
        assert_eq!(raw.ask(get("/")).await.head.status(), 200);
        let now = view().await;
        assert_eq!(now["sessions"].as_array().unwrap().len(), 1);
        assert_eq!(
            (&now["instance"], &now["epoch"]),
            (&before["instance"], &before["epoch"])
        );
    };
    assert_eq!(code, Some(WEDGED));
    rig.metric_becomes(ENDED, 1.0).await;
    assert_eq!(rig.metric("tunnel_server_takeovers_total").await, 0.0);
    assert!(!holder.session.is_closed());
}
