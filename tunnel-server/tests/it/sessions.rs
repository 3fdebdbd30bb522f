//! Sessions: which clients are accepted, how others are refused, and how sessions end.

use std::time::Duration;

use http::{HeaderValue, Method, Request};
use testkit::{
    deadline::{SOON, eventually, soon},
    http1::End,
    tunnel::{
        body::{Feed, data, fed, full, status},
        client::{Connected, FakeClient, dial, random_instance, session_request},
        wire::Wire,
    },
};
use tokio::{io::AsyncReadExt, sync::mpsc};
use tunnel_directory::OnConflict;
use tunnel_proto::{
    close::CloseReason,
    control::Control,
    handshake::{InstanceSecret, Refusal},
    session::SessionEnd,
};

use crate::rig::{DEV, DEV_HOST, PROD, PROD_HOST, Rig};

pub(crate) fn get(path: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nhost: {PROD_HOST}\r\n\r\n")
}

/// What the server refuses a request for a session with.
async fn refusal(rig: &Rig, change: impl FnOnce(&mut Request<()>)) -> (u16, Refusal) {
    let mut request = session_request(rig.token(PROD), random_instance());
    change(&mut request);
    let mut connected = dial(rig, &request).await;
    let length: usize = connected.headers["content-length"]
        .to_str()
        .unwrap()
        .parse()
        .unwrap();
    let mut body = connected.behind.to_vec();
    while body.len() < length {
        assert!(
            soon("a body", connected.io.read_buf(&mut body))
                .await
                .unwrap()
                > 0
        );
    }
    assert_eq!(connected.headers["content-type"], "application/json");
    let mut rest = Vec::new();
    let _ = soon("the connection's end", connected.io.read_to_end(&mut rest)).await;
    assert_eq!(rest, b"", "something behind the refusal");
    (connected.status, serde_json::from_slice(&body).unwrap())
}

#[tokio::test]
async fn malformed_session_requests_are_refused_by_name() {
    let rig = Rig::start().await;
    let set = |name: &'static str, value: &'static str| {
        move |request: &mut Request<()>| {
            request
                .headers_mut()
                .insert(name, HeaderValue::from_static(value));
        }
    };
    let (code, why) = refusal(&rig, |request| *request.uri_mut() = "/".parse().unwrap()).await;
    assert_eq!((code, why.reason.as_str()), (404, "path_unknown"));
    let (code, why) = refusal(&rig, |request| *request.method_mut() = Method::POST).await;
    assert_eq!((code, why.reason.as_str()), (405, "method_not_allowed"));
    let (code, why) = refusal(&rig, set("origin", "https://a.test")).await;
    assert_eq!((code, why.reason.as_str()), (403, "origin_not_allowed"));
    let (code, why) = refusal(&rig, set("sec-websocket-protocol", "tunnel.v9")).await;
    assert_eq!(
        (code, why.reason.as_str(), why.fatal),
        (426, "version_unsupported", true)
    );
    let (code, why) = refusal(&rig, |request| {
        drop(request.headers_mut().remove("upgrade"))
    })
    .await;
    assert_eq!(
        (code, why.reason.as_str(), why.fatal),
        (426, "upgrade_required", false)
    );
    let (code, why) = refusal(&rig, set("sec-websocket-version", "8")).await;
    assert_eq!((code, why.reason.as_str()), (426, "upgrade_required"));
    let (code, why) = refusal(&rig, set("tunnel-instance", "me")).await;
    assert_eq!((code, why.reason.as_str()), (400, "greeting_malformed"));
    for reason in ["path_unknown", "origin_not_allowed", "version_unsupported"] {
        let series = format!("tunnel_server_handshakes_total{{result=\"{reason}\"}}");
        rig.metric_becomes(&series, 1.0).await;
    }
}

#[tokio::test]
async fn only_a_listed_token_authenticates() {
    let rig = Rig::start().await;
    let token = rig.token(PROD).to_owned();
    let other_secret = format!(
        "{}{}",
        &token[..token.len() - 1],
        if token.ends_with('a') { 'b' } else { 'a' }
    );
    let unknown_id = token.replacen(&token[6..10], "0000", 1);
    for (given, reason) in [
        (None, "credential_missing"),
        (Some(token.clone()), "credential_missing"),
        (Some(format!("Basic {token}")), "credential_missing"),
        (Some("Bearer".to_owned()), "credential_missing"),
        (Some("Bearer x".to_owned()), "token_malformed"),
        (Some(format!("Bearer  {token}")), "token_malformed"),
        (Some(format!("Bearer {other_secret}")), "token_refused"),
        (Some(format!("Bearer {unknown_id}")), "token_refused"),
        (Some(format!("Bearer {token}x")), "token_malformed"),
        (
            Some(format!("Bearer {}", token.to_uppercase())),
            "token_malformed",
        ),
    ] {
        let what = given.clone();
        let (code, why) = refusal(&rig, |request| {
            request.headers_mut().remove("authorization");
            if let Some(given) = given {
                request
                    .headers_mut()
                    .insert("authorization", given.parse().unwrap());
            }
        })
        .await;
        assert_eq!(
            (code, why.reason.as_str(), why.fatal),
            (401, reason, reason != "token_refused"),
            "{what:?}"
        );
        assert!(
            !why.detail.contains(&token[10..]),
            "the answer holds a credential"
        );
    }
    let (code, why) = refusal(&rig, |request| {
        let again = format!("Bearer {token}").parse().unwrap();
        request.headers_mut().append("authorization", again);
    })
    .await;
    assert_eq!((code, why.reason.as_str()), (401, "credential_missing"));
    // A token in the address is none.
    let (code, _) = refusal(&rig, |request| {
        request.headers_mut().remove("authorization");
        *request.uri_mut() = format!("/connect?token={token}").parse().unwrap();
    })
    .await;
    assert_eq!(code, 401);
    assert!(rig.metric("tunnel_server_sessions").await.abs() < 0.5);
}

#[tokio::test]
async fn a_token_leads_to_its_own_runtime_only() {
    let rig = Rig::start().await;
    let dev = FakeClient::describing(&rig, DEV).await;
    let welcome = dev
        .control(|control| matches!(control, Control::Welcome { .. }))
        .await;
    let Control::Welcome { runtime, .. } = welcome else {
        unreachable!()
    };
    assert_eq!(runtime, DEV);
    let mut raw = rig.raw().await;
    assert_eq!(raw.ask(get("/")).await.reason(), "runtime_offline");
    let dev_get = format!("GET / HTTP/1.1\r\nhost: {DEV_HOST}\r\n\r\n");
    assert_eq!(raw.ask(dev_get).await.head.status(), 200);
}

#[tokio::test]
async fn the_metrics_of_a_runtime_live_as_long_as_its_sessions() {
    let rig = Rig::start().await;
    let first = FakeClient::describing(&rig, PROD).await;
    let mut raw = rig.raw().await;
    raw.ask(get("/")).await;
    raw.ask(format!(
        "POST / HTTP/1.1\r\nhost: {PROD_HOST}\r\ncontent-length: 3\r\n\r\nabc"
    ))
    .await;
    rig.metric_becomes("tunnel_server_sessions", 1.0).await;
    let answered = "tunnel_server_exchanges_total{runtime=\"acme-prod\",status=\"2xx\"}";
    rig.metric_becomes(answered, 2.0).await;
    let bytes = "tunnel_server_bytes_total{direction=\"in\",runtime=\"acme-prod\"}";
    rig.metric_becomes(bytes, 3.0).await;
    drop(raw);
    first.session.close(CloseReason::Left);
    rig.metric_becomes("tunnel_server_sessions", 0.0).await;
    rig.metric_becomes("tunnel_server_sessions_ended_total{reason=\"left\"}", 1.0)
        .await;
    rig.metric_becomes("tunnel_server_connections{listener=\"tunnel\"}", 0.0)
        .await;
    let (_, text) = rig.admin("/metrics").await;
    assert!(!text.contains(PROD), "{text}");
}

#[tokio::test]
async fn a_second_session_of_an_instance_shares_the_work() {
    let rig = Rig::start().await;
    let instance = random_instance();
    let hold = |_| async {
        std::future::pending::<()>().await;
        unreachable!()
    };
    let first = FakeClient::of_instance(&rig, PROD, instance.clone(), hold).await;
    let second = FakeClient::of_instance(&rig, PROD, instance, hold).await;
    let mut held = Vec::new();
    for _ in 0..10 {
        let mut raw = rig.raw().await;
        raw.send(get("/")).await;
        held.push(raw);
        let so_far = held.len();
        eventually(SOON, "the request", async || {
            (first.seen().len() + second.seen().len() == so_far).then_some(())
        })
        .await;
    }
    assert_eq!((first.seen().len(), second.seen().len()), (5, 5));
    rig.metric_becomes("tunnel_server_sessions", 2.0).await;
    first.die();
    rig.metric_becomes("tunnel_server_sessions", 1.0).await;
    for _ in 0..2 {
        let mut raw = rig.raw().await;
        raw.send(get("/")).await;
        held.push(raw);
    }
    second.request(7).await;
}

/// What a session has lost goes to another one if nothing was heard of it and it does no harm twice.
#[tokio::test]
async fn an_exchange_that_nothing_was_heard_of_is_tried_once_more_when_that_is_safe() {
    let rig = Rig::start().await;
    let instance = random_instance();
    let good = |_| async { Ok(status(200, full("second"))) };
    for (request, is_accepted, code) in [
        (get("/"), false, 200),
        (
            format!("POST / HTTP/1.1\r\nhost: {PROD_HOST}\r\ncontent-length: 0\r\n\r\n"),
            false,
            502,
        ),
        (
            format!("POST / HTTP/1.1\r\nhost: {PROD_HOST}\r\ncontent-length: 1\r\n\r\nx"),
            false,
            502,
        ),
        (get("/"), true, 502),
    ] {
        let mut wire = Wire::of_instance(&rig, PROD, instance.clone()).await;
        rig.metric_becomes("tunnel_server_sessions", 1.0).await;
        let (mut before, mut raw) = (rig.raw().await, rig.raw().await);
        if is_accepted {
            // Takes the stream that the session was probed by, so that the next is a new one.
            before.send(get("/before")).await;
            wire.request().await;
        }
        raw.send(&request).await;
        let stream = wire.request().await;
        let second = FakeClient::of_instance(&rig, PROD, instance.clone(), good).await;
        if is_accepted {
            wire.data(stream, &[1]).await;
            // A round trip through the session, so that the server has read this.
            wire.round_trip().await;
        }
        drop(wire);
        let answer = raw.response().await;
        assert_eq!(answer.head.status(), code, "{request} {is_accepted}");
        let seen = second.paths();
        let repeated = seen.iter().filter(|path| *path != "/before").count();
        assert_eq!(repeated, usize::from(code == 200));
        second.session.close(CloseReason::Left);
        rig.metric_becomes("tunnel_server_sessions", 0.0).await;
    }
}

/// A client whose exchanges wait for the test to answer them.
pub(crate) async fn answering(
    rig: &Rig,
    instance: InstanceSecret,
) -> (FakeClient, mpsc::Receiver<Feed>) {
    let name = instance.id().to_string();
    let request = session_request(rig.token(PROD), instance);
    answering_on(dial(rig, &request).await, name).await
}

/// As above, on an accepted connection.
pub(crate) async fn answering_on(
    connected: Connected,
    name: String,
) -> (FakeClient, mpsc::Receiver<Feed>) {
    let (handed, feeds) = mpsc::channel(8);
    let client = FakeClient::on(connected, move |request| {
        let (handed, name) = (handed.clone(), name.clone());
        async move {
            if request.uri().path().starts_with("/now") {
                return Ok(status(200, full(name)));
            }
            drop(request);
            let (feed, body) = fed();
            handed.send(feed).await.unwrap();
            Ok(status(200, body))
        }
    })
    .await;
    (client, feeds)
}

#[tokio::test]
async fn a_newer_instance_takes_over_and_the_older_one_finishes_what_it_has() {
    let rig = Rig::start().await;
    let (mut older, mut feeds) = answering(&rig, random_instance()).await;
    let mut begun = rig.raw().await;
    begun.send(get("/long")).await;
    let feed = soon("the request", feeds.recv()).await.unwrap();
    assert_eq!(begun.head().await.unwrap().status(), 200);

    let instance = random_instance();
    let (newer, _feeds) = answering(&rig, instance.clone()).await;
    let mut raw = rig.raw().await;
    for _ in 0..5 {
        assert_eq!(raw.ask(get("/now")).await.text(), instance.id().to_string());
    }
    let told = older
        .control(|control| matches!(control, Control::Superseded { .. }))
        .await;
    assert_eq!(
        told,
        Control::Superseded {
            instance: instance.id().to_string()
        }
    );
    feed.send(data("done")).await.unwrap();
    drop(feed);
    assert_eq!(begun.line().await.unwrap(), "4");
    assert_eq!(begun.bytes(6).await, b"done\r\n");
    let end = older.ended().await;
    assert!(
        matches!(end, SessionEnd::ClosedByPeer(CloseReason::Superseded)),
        "{end}"
    );
    rig.metric_becomes("tunnel_server_sessions", 1.0).await;
    rig.metric_becomes(
        "tunnel_server_sessions_ended_total{reason=\"superseded\"}",
        1.0,
    )
    .await;
    rig.metric_becomes("tunnel_server_takeovers_total", 1.0)
        .await;
    assert_eq!(raw.ask(get("/now")).await.text(), instance.id().to_string());
    assert_eq!(newer.seen().len(), 6);
}

/// The refusal of a second client tells which instance holds the runtime: whoever shows that is another one.
#[tokio::test]
async fn an_instance_id_does_not_admit_to_its_tunnel() {
    let rig = Rig::with(|config| config.settings.on_conflict = OnConflict::Reject).await;
    let _holder = FakeClient::describing(&rig, PROD).await;
    let (code, why) = refusal(&rig, |_| {}).await;
    assert_eq!((code, why.reason.as_str()), (409, "runtime_held"));
    let is_id = |word: &&str| word.len() == 32 && word.bytes().all(|byte| byte.is_ascii_hexdigit());
    let mut words = why.detail.split([' ', ',']);
    let told = HeaderValue::from_str(words.find(is_id).unwrap()).unwrap();
    let (code, why) = refusal(&rig, |request| {
        request
            .headers_mut()
            .insert("tunnel-instance", told.clone());
    })
    .await;
    assert_eq!((code, why.reason.as_str()), (409, "runtime_held"));
}

/// A client that was superseded has been forgotten when the runtime was free for a moment.
#[tokio::test]
async fn a_client_that_stands_by_takes_the_runtime_from_nobody() {
    let rig = Rig::start().await;
    let (holder, _feeds) = answering(&rig, random_instance()).await;
    let stand_by = |request: &mut Request<()>| {
        let fields = request.headers_mut();
        fields.insert("tunnel-standby", HeaderValue::from_static("1"));
    };
    let (code, why) = refusal(&rig, stand_by).await;
    assert_eq!((code, why.reason.as_str()), (409, "runtime_held"));
    holder.die();
    let mut request = session_request(rig.token(PROD), random_instance());
    stand_by(&mut request);
    eventually(SOON, "the free runtime", async || {
        (dial(&rig, &request).await.status == 101).then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_superseded_session_that_does_not_finish_is_closed_after_the_grace_period() {
    let rig = Rig::with(|config| config.settings.grace_period = Duration::from_millis(200)).await;
    let (mut older, mut feeds) = answering(&rig, random_instance()).await;
    let mut begun = rig.raw().await;
    begun.send(get("/long")).await;
    let _feed = soon("the request", feeds.recv()).await.unwrap();
    let (_newer, _feeds) = answering(&rig, random_instance()).await;
    let end = older.ended().await;
    assert!(
        matches!(end, SessionEnd::ClosedByPeer(CloseReason::Superseded)),
        "{end}"
    );
    drop(begun.head().await);
    let (rest, _) = begun.rest().await;
    assert!(!rest.ends_with(b"0\r\n\r\n"));
}

#[tokio::test]
async fn a_session_that_drains_gets_nothing_new_and_finishes() {
    let rig = Rig::start().await;
    let (first, mut feeds) = answering(&rig, random_instance()).await;
    let mut begun = rig.raw().await;
    begun.send(get("/long")).await;
    let feed = soon("the request", feeds.recv()).await.unwrap();
    first
        .session
        .send(Control::Drain { spread_ms: None })
        .unwrap();
    // The control message is on its way; requests may still come until it has arrived.
    let mut raw = rig.raw().await;
    eventually(SOON, "the drain", async || {
        let answer = raw.ask(get("/now")).await;
        (answer.head.status() == 503).then_some(())
    })
    .await;
    drop(feed);
    assert_eq!(begun.response().await.content.end, End::Clean);
}

#[tokio::test]
async fn a_refreshed_token_must_be_of_the_same_runtime() {
    let rig = Rig::start().await;
    for (token, is_good) in [(PROD, true), (DEV, false), ("", false)] {
        let client = FakeClient::describing(&rig, PROD).await;
        let token = if token.is_empty() {
            "nonsense"
        } else {
            rig.token(token)
        }
        .to_owned();
        client
            .session
            .send(Control::RefreshToken { token })
            .unwrap();
        if is_good {
            let mut raw = rig.raw().await;
            assert_eq!(raw.ask(get("/")).await.head.status(), 200);
            client
                .control(|control| matches!(control, Control::Refreshed { .. }))
                .await;
        } else {
            let answer = client
                .control(|control| matches!(control, Control::RefreshRefused { .. }))
                .await;
            let Control::RefreshRefused { reason, .. } = answer else {
                panic!("{answer:?}")
            };
            assert!(
                ["runtime_differs", "token_malformed"].contains(&&*reason),
                "{reason}"
            );
        }
        // The token before is still good.
        assert!(!client.session.is_closed());
        client.session.close(CloseReason::Left);
        rig.metric_becomes("tunnel_server_sessions", 0.0).await;
    }
}
