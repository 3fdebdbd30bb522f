//! Credentials of live sessions as time goes by: asked of the platform again before they run out, with what
//! it says then in force at once; and those that run out, with a warning and a grace.

use std::time::{Duration, SystemTime};

use serde_json::{Value, json};
use testkit::{
    deadline::{SOON, eventually, soon},
    tunnel::{
        body::Feed,
        client::{FakeClient, dial, random_instance, session_request},
    },
};
use tokio::time::Instant;
use tunnel_proto::{close::CloseReason, control::Control, session::SessionEnd};

use crate::{
    credentials::ask,
    rig::{PROD, Rig, ask_admin},
    scripted_server::{Reply, ScriptedServer},
    sessions::{answering, answering_on, get},
};

/// Is asked again as early as any: the moment is drawn by a hash of it.
const TOKEN: &str = "s3cr3t-of-prod-93";

/// For how long the platform's answers hold: for two seconds, and one more to ask again in.
const HOLDS: Duration = Duration::from_secs(3);

/// How soon what somebody has taken back is gone.
const PROMISED: Duration = Duration::from_secs(1);

fn yes(more: Value) -> Reply {
    let mut answer = json!({
        "account": "acme", "runtime": "prod", "id": "t-7", "expires_in": HOLDS.as_secs(),
    });
    for (key, value) in more.as_object().unwrap() {
        answer[key] = value.clone();
    }
    Reply::Answer(200, answer.to_string())
}

/// A server that asks this platform.
async fn asking_rig(platform: &ScriptedServer) -> Rig {
    with_outage(platform, Duration::from_secs(3_600)).await
}

/// The same, where known tokens go on for so long without the platform.
async fn with_outage(platform: &ScriptedServer, outage: Duration) -> Rig {
    Rig::with(|config| {
        ask(&mut config.settings, &platform.url);
        config.settings.auth_outage = outage;
        config.settings.auth_timeout = Duration::from_secs(2);
        config.settings.expiry_grace = PROMISED;
    })
    .await
}

/// A client by the platform's word, which answers `/now` and holds everything else open.
async fn client(rig: &Rig) -> (FakeClient, tokio::sync::mpsc::Receiver<Feed>) {
    let request = session_request(TOKEN, random_instance());
    answering_on(dial(rig, &request).await, "here".into()).await
}

/// Waits until the platform was asked so often; when that was.
async fn questions(platform: &ScriptedServer, count: usize) -> Instant {
    eventually(SOON, "a question", async || {
        (platform.questions().len() >= count).then(Instant::now)
    })
    .await
}

async fn view(rig: &Rig) -> Value {
    let (_, text) = ask_admin(rig.addresses.admin, "/api/v1/runtimes/acme-prod").await;
    serde_json::from_str(&text).unwrap()
}

async fn status(rig: &Rig) -> u16 {
    rig.raw().await.ask(get("/now")).await.head.status()
}

fn ended_as(end: &SessionEnd, reason: CloseReason) {
    let is_so = matches!(end, SessionEnd::ClosedByPeer(told) if *told == reason);
    assert!(is_so, "{end}");
}

#[tokio::test]
async fn the_platform_is_asked_again_before_its_answer_expires_and_a_denial_cuts() {
    let platform = ScriptedServer::start(None, yes(json!({}))).await;
    let rig = asking_rig(&platform).await;
    let (mut client, _feeds) = client(&rig).await;
    let mut before = questions(&platform, 1).await;
    for count in [2, 3] {
        let again = questions(&platform, count).await;
        let after = again - before;
        assert!((HOLDS / 2..HOLDS).contains(&after), "{after:?}");
        before = again;
    }
    let seen = platform.questions();
    assert!(seen.iter().all(|question| question.body == seen[0].body));
    assert_eq!(status(&rig).await, 200);
    // Nobody has to do anything, so nobody is told.
    assert_eq!(client.controls().len(), 1, "{:?}", client.controls());
    platform.reply(Reply::Answer(403, r#"{"reason": "left"}"#.into()));
    let refused = questions(&platform, 4).await;
    // The platform may say yes a moment later: the client dials again, and is told why it is refused.
    ended_as(&client.ended().await, CloseReason::Disconnected);
    assert!(refused.elapsed() < PROMISED, "{:?}", refused.elapsed());
    let series = "tunnel_server_sessions_ended_total{reason=\"disconnected\"}";
    rig.metric_becomes(series, 1.0).await;
    assert_eq!(status(&rig).await, 503);
}

#[tokio::test]
async fn while_the_platform_is_unreachable_a_session_outlives_its_answer() {
    let platform = ScriptedServer::start(None, yes(json!({}))).await;
    let rig = asking_rig(&platform).await;
    let (client, _feeds) = client(&rig).await;
    let began = Instant::now();
    platform.reply(Reply::Answer(500, String::new()));
    questions(&platform, 2).await;
    // What it knew counts for as long as the server is set to.
    let expires = eventually(SOON, "a later end", async || {
        let expires = view(&rig).await["expires"].as_str().unwrap().to_owned();
        let expires = humantime::parse_rfc3339(&expires).unwrap();
        let left = expires
            .duration_since(SystemTime::now())
            .unwrap_or_default();
        (left > 2 * HOLDS).then_some(left)
    });
    assert!(expires.await > Duration::from_secs(3_500));
    // Past the end of the answer, and of the grace that it does not need.
    tokio::time::sleep_until(began + HOLDS + Duration::from_millis(500)).await;
    assert_eq!(status(&rig).await, 200);
    assert!(!client.session.is_closed());
    rig.metric_becomes("tunnel_server_platform_away", 1.0).await;
}

#[tokio::test]
async fn the_end_of_the_outage_time_is_warned_of() {
    let platform = ScriptedServer::start(None, yes(json!({}))).await;
    let rig = with_outage(&platform, Duration::from_secs(30)).await;
    let (client, _feeds) = client(&rig).await;
    platform.reply(Reply::Answer(500, String::new()));
    // That it is asked again and again puts off nothing.
    client
        .control(|control| matches!(control, Control::Expiring { in_ms } if *in_ms > 10_000))
        .await;
    assert!(!client.session.is_closed());
}

#[tokio::test]
async fn without_outage_time_a_session_is_warned_and_closed() {
    let platform = ScriptedServer::start(None, yes(json!({}))).await;
    let rig = with_outage(&platform, Duration::ZERO).await;
    let (mut client, _feeds) = client(&rig).await;
    platform.reply(Reply::Answer(500, String::new()));
    // Only now there is something to tell.
    questions(&platform, 2).await;
    client
        .control(|control| matches!(control, Control::Expiring { in_ms } if *in_ms > 0))
        .await;
    client
        .control(|control| matches!(control, Control::Expiring { in_ms: 0 }))
        .await;
    ended_as(&client.ended().await, CloseReason::Expired);
}

#[tokio::test]
async fn the_platforms_limits_and_addresses_apply_and_change_at_once() {
    let one = json!({ "limits": { "exchanges": 1 } });
    let platform = ScriptedServer::start(None, yes(one)).await;
    let rig = asking_rig(&platform).await;
    let (client, mut feeds) = client(&rig).await;
    let mut long = rig.raw().await;
    long.send(get("/long")).await;
    let _feed = soon("the request", feeds.recv()).await.unwrap();
    assert_eq!(long.head().await.unwrap().status(), 200);
    let refused = rig.raw().await.ask(get("/now")).await;
    assert_eq!(
        (refused.head.status(), &*refused.reason()),
        (503, "exchange_limit")
    );
    assert_eq!(view(&rig).await["limits"]["exchanges"], 1);

    platform.reply(yes(
        json!({ "limits": { "exchanges": 2 }, "allow_from": ["127.0.0.0/8"] }),
    ));
    eventually(SOON, "a wider answer", async || {
        (status(&rig).await == 200).then_some(())
    })
    .await;

    platform.reply(yes(json!({ "allow_from": ["192.0.2.0/24"] })));
    let denied = eventually(SOON, "a narrower answer", async || {
        let answer = rig.raw().await.ask(get("/now")).await;
        (answer.head.status() != 200).then_some(answer)
    });
    let denied = denied.await;
    assert_eq!(
        (denied.head.status(), &*denied.reason()),
        (403, "address_denied")
    );
    assert_eq!(view(&rig).await["allow_from"], json!(["192.0.2.0/24"]));

    platform.reply(yes(json!({})));
    eventually(SOON, "a wider answer", async || {
        (status(&rig).await == 200).then_some(())
    })
    .await;
    // All that on one session.
    assert!(!client.session.is_closed());
    let accepted = rig.metric("tunnel_server_handshakes_total{result=\"accepted\"}");
    assert_eq!(accepted.await, 1.0);
}

#[tokio::test]
async fn a_session_whose_token_expires_is_warned_and_closed_after_a_grace() {
    let time = Duration::from_secs(2);
    let ends = humantime::format_rfc3339_millis(SystemTime::now() + time);
    let listed = |text: String| {
        let token = "[[runtime.token]]\n";
        assert!(text.contains(token));
        text.replacen(token, &format!("{token}expires = {ends}\n"), 1)
    };
    let rig = Rig::listing(listed, |config| config.settings.expiry_grace = time).await;
    let (mut client, _feeds) = answering(&rig, random_instance()).await;
    client
        .control(|control| matches!(control, Control::Expiring { in_ms } if *in_ms > 0))
        .await;
    assert_eq!(status(&rig).await, 200);
    client
        .control(|control| matches!(control, Control::Expiring { in_ms: 0 }))
        .await;
    let ended = Instant::now();
    assert_eq!(status(&rig).await, 200, "in the grace");
    let end = client.ended().await;
    ended_as(&end, CloseReason::Expired);
    assert_eq!(end.reason().code(), 4008);
    // It is looked at once in a second then.
    let took = ended.elapsed();
    assert!((time * 3 / 4..2 * time).contains(&took), "{took:?}");
    assert_eq!(
        dial(&rig, &session_request(rig.token(PROD), random_instance()))
            .await
            .status,
        401
    );
}
