//! Sessions that only check the path: authenticated as any other, and never the runtime's.

use std::time::Duration;

use http::{HeaderValue, Request, header};
use testkit::{
    deadline::{SOON, eventually},
    tunnel::{
        client::{Connected, FakeClient, dial, random_instance, session_request},
        without_pings,
    },
};
use tokio::time::sleep;
use tunnel_directory::OnConflict;
use tunnel_proto::{close::CloseReason, control::Control, handshake::CHECK_SUBPROTOCOL};

use crate::{
    rig::{PROD, Rig},
    sessions::get,
};

/// The request for a check.
fn check_request(rig: &Rig) -> Request<()> {
    let mut request = session_request(rig.token(PROD), random_instance());
    let protocol = HeaderValue::from_static(CHECK_SUBPROTOCOL);
    request
        .headers_mut()
        .insert(header::SEC_WEBSOCKET_PROTOCOL, protocol);
    request
}

async fn check(rig: &Rig) -> Connected {
    dial(rig, &check_request(rig)).await
}

/// A check that was accepted, as a client that would answer requests if any came.
async fn let_in(connected: Connected) -> FakeClient {
    assert_eq!(
        connected.headers["sec-websocket-protocol"],
        CHECK_SUBPROTOCOL
    );
    FakeClient::on(connected, |_| async { panic!("a request on a check") }).await
}

/// What it was told.
async fn word(check: &FakeClient) -> Control {
    let is_word = |control: &Control| matches!(control, Control::Checked { .. });
    check.control(is_word).await
}

#[tokio::test]
async fn a_check_beside_the_live_client_takes_nothing_from_it() {
    let rig = Rig::start().await;
    let client = FakeClient::describing(&rig, PROD).await;
    let mut raw = rig.raw().await;
    assert_eq!(raw.ask(get("/before")).await.head.status(), 200);

    let checking = let_in(check(&rig).await).await;
    let Control::Checked {
        account,
        runtime,
        holder,
        conflict,
        expires_in_ms,
        ..
    } = word(&checking).await
    else {
        unreachable!()
    };
    assert_eq!((account.as_str(), runtime.as_str()), ("acme", PROD));
    assert!(holder.is_some(), "the live client holds it");
    assert_eq!((conflict, expires_in_ms), (None, None));

    for _ in 0..5 {
        assert_eq!(raw.ask(get("/beside")).await.head.status(), 200);
    }
    assert_eq!(client.seen().len(), 6);
    assert_eq!(checking.seen().len(), 0);
    rig.metric_becomes("tunnel_server_sessions", 1.0).await;
    rig.metric_becomes("tunnel_server_takeovers_total", 0.0)
        .await;
    let handshakes = "tunnel_server_handshakes_total{result=\"checked\"}";
    rig.metric_becomes(handshakes, 1.0).await;

    checking.session.close(CloseReason::Left);
    rig.metric_becomes("tunnel_server_connections{listener=\"tunnel\"}", 1.0)
        .await;
    assert_eq!(raw.ask(get("/after")).await.head.status(), 200);
}

#[tokio::test]
async fn a_check_does_not_make_a_runtime_online() {
    let rig = Rig::start().await;
    let checking = let_in(check(&rig).await).await;
    let Control::Checked { holder, .. } = word(&checking).await else {
        unreachable!()
    };
    assert_eq!(holder, None);
    let mut raw = rig.raw().await;
    assert_eq!(raw.ask(get("/")).await.reason(), "runtime_offline");
    let (_, runtimes) = rig.admin("/api/v1/runtimes").await;
    assert!(!runtimes.contains("\"online\":true"), "{runtimes}");
}

#[tokio::test]
async fn a_check_gets_the_holder_of_the_runtime() {
    let rig = Rig::with(|config| config.settings.on_conflict = OnConflict::Reject).await;
    let _client = FakeClient::describing(&rig, PROD).await;
    let checking = let_in(check(&rig).await).await;
    let Control::Checked { conflict, .. } = word(&checking).await else {
        unreachable!()
    };
    assert_eq!(conflict.unwrap().reason, "runtime_held");
}

#[tokio::test]
async fn a_check_needs_the_credential_that_a_session_needs() {
    let rig = Rig::start().await;
    let mut request = check_request(&rig);
    let bad = HeaderValue::from_static("Bearer tnlrt_nothing");
    request.headers_mut().insert(header::AUTHORIZATION, bad);
    assert_eq!(dial(&rig, &request).await.status, 401);
}

#[tokio::test]
async fn checks_of_a_runtime_are_limited_and_return_their_permits() {
    let rig = Rig::start().await;
    let mut checks = Vec::new();
    for _ in 0..8 {
        checks.push(let_in(check(&rig).await).await);
    }
    let refused = check(&rig).await;
    assert_eq!(refused.status, 503);
    assert!(refused.headers.contains_key("retry-after"));
    // Whoever serves is not held up by whoever checks.
    let _client = FakeClient::describing(&rig, PROD).await;
    for mut check in checks {
        check.session.close(CloseReason::Left);
        check.ended().await;
    }
    rig.metric_becomes("tunnel_server_connections{listener=\"tunnel\"}", 1.0)
        .await;
    let_in(check(&rig).await).await;
}

#[tokio::test]
async fn a_server_that_stops_does_not_wait_for_checks() {
    let rig = Rig::start().await;
    let mut checking = let_in(check(&rig).await).await;
    rig.trigger.request();
    assert_eq!(checking.ended().await.reason(), CloseReason::Drained);
    rig.stopped().await;
}

/// A way may bear less silence than pings leave, which is what a check wants to find out.
#[tokio::test]
async fn nothing_is_sent_on_a_check_that_rests() {
    let rig = Rig::with(|config| config.settings.ping_interval = Duration::from_millis(20)).await;
    let connected = check(&rig).await;
    let handler = |_| async { panic!("a request on a check") };
    let checking = FakeClient::with(connected, without_pings(), handler).await;
    word(&checking).await;
    // The first pings, and those that a silence calls for, are over when nothing moves for so long.
    let mut seen = checking.session.bytes();
    eventually(SOON, "silence", async || {
        sleep(Duration::from_millis(1_500)).await;
        let now = checking.session.bytes();
        let is_silent = now == seen;
        seen = now;
        is_silent.then_some(())
    })
    .await;
}
