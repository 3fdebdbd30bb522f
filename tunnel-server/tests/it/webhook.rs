//! Events as the platform gets them: signed, in order, and again until it has taken them.

use base64::{Engine, engine::general_purpose::STANDARD};
use hmac::{Hmac, KeyInit, Mac};
use serde_json::Value;
use sha2::Sha256;
use testkit::{
    deadline::{SOON, eventually},
    tunnel::client::FakeClient,
};
use tunnel_server::{config::WebhookSecret, events::EventKind};

use crate::{
    rig::{DEV, PROD, Rig},
    scripted_server::{Question, Reply, ScriptedServer},
};

const KEY: &[u8] = b"a key of more than 24 bytes";

async fn rig(platform: &ScriptedServer) -> Rig {
    let secret = WebhookSecret::parse(&format!("whsec_{}", STANDARD.encode(KEY)));
    Rig::with(|config| {
        config.settings.webhook_url = Some(platform.url.parse().unwrap());
        config.settings.webhook_events = vec![EventKind::Online, EventKind::Draining];
        config.webhook_secret = secret;
    })
    .await
}

fn header<'a>(question: &'a Question, name: &str) -> &'a str {
    question.headers[name].to_str().unwrap()
}

fn kind(question: &Question) -> String {
    let body: Value = serde_json::from_str(&question.body).unwrap();
    body["type"].as_str().unwrap().to_owned()
}

async fn asked(platform: &ScriptedServer, times: usize) -> Vec<Question> {
    eventually(SOON, "the platform to be sent events", async || {
        let questions = platform.questions();
        (questions.len() >= times).then_some(questions)
    })
    .await
}

#[tokio::test]
async fn an_event_is_signed_and_sent_again_until_it_is_taken() {
    let platform = ScriptedServer::start(None, Reply::Answer(503, String::new())).await;
    let rig = rig(&platform).await;
    let _client = FakeClient::describing(&rig, PROD).await;
    asked(&platform, 1).await;
    platform.reply(Reply::Answer(204, String::new()));
    let questions = asked(&platform, 2).await;
    let id = header(&questions[1], "webhook-id");
    assert_eq!(id, header(&questions[0], "webhook-id"));
    let body: Value = serde_json::from_str(&questions[1].body).unwrap();
    assert_eq!(
        (&body["type"], &body["data"]["label"]),
        (&"online".into(), &PROD.into())
    );
    assert_eq!(
        (&body["data"]["id"], &body["timestamp"]),
        (&id.into(), &body["data"]["time"])
    );
    let timestamp = header(&questions[1], "webhook-timestamp");
    let mut hmac = Hmac::<Sha256>::new_from_slice(KEY).unwrap();
    hmac.update(format!("{id}.{timestamp}.{}", questions[1].body).as_bytes());
    let signature = STANDARD.encode(hmac.finalize().into_bytes());
    assert_eq!(
        header(&questions[1], "webhook-signature"),
        format!("v1,{signature}")
    );
    for (result, count) in [("failed", 1.0), ("delivered", 1.0)] {
        let series = format!("tunnel_server_webhook_attempts_total{{result=\"{result}\"}}");
        rig.metric_becomes(&series, count).await;
    }
    rig.stop().await;
    assert_eq!(kind(platform.questions().last().unwrap()), "draining");
}

#[tokio::test]
async fn an_event_that_is_rejected_is_not_sent_again() {
    let platform = ScriptedServer::start(None, Reply::Answer(400, String::new())).await;
    let rig = rig(&platform).await;
    let _client = FakeClient::describing(&rig, PROD).await;
    asked(&platform, 1).await;
    rig.stop().await;
    let kinds: Vec<_> = platform.questions().iter().map(kind).collect();
    assert_eq!(kinds, ["online", "draining"]);
}

#[tokio::test]
async fn an_event_that_is_never_taken_delays_no_other_runtime() {
    let platform = ScriptedServer::start(
        None,
        Reply::Made(|body| {
            let status = if body.contains(PROD) { 500 } else { 204 };
            (status, String::new())
        }),
    )
    .await;
    let rig = rig(&platform).await;
    let _client = FakeClient::describing(&rig, PROD).await;
    asked(&platform, 1).await;
    let _other = FakeClient::describing(&rig, DEV).await;
    eventually(SOON, "the event of the other", async || {
        let questions = platform.questions();
        questions
            .iter()
            .any(|question| question.body.contains(DEV))
            .then_some(())
    })
    .await;
    let series = "tunnel_server_webhook_attempts_total{result=\"delivered\"}";
    rig.metric_becomes(series, 1.0).await;
    rig.stop().await;
}
