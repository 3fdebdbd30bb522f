//! A panic in the client costs what it happened in, and not the client.

use std::fmt::Debug;
use std::sync::Once;
use std::time::Duration;

use testkit::tunnel::server::FakeServer;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};
use tunnel_client::config::OnRefusal;
use tunnel_proto::control::Control;

use crate::setup::Running;

/// The runtime whose mention in the log panics.
const CAUSE: &str = "panic-on-purpose";

/// A log that panics.
struct Log;

impl Visit for Log {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        let is_cause = field.name() == "runtime" && format!("{value:?}").contains(CAUSE);
        assert!(!is_cause, "on purpose");
    }
}

impl Subscriber for Log {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.fields().field("runtime").is_some()
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        event.record(&mut Self);
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

#[tokio::test]
async fn a_place_that_panics_is_followed_by_another_dial() {
    // For the whole process: whether a log line is wanted is decided once for each place in the
    // code, by the thread that reaches it first, which may be another test's.
    static ONCE: Once = Once::new();
    ONCE.call_once(|| tracing::subscriber::set_global_default(Log).unwrap());
    let mut server = FakeServer::start().await;
    let client = Running::start(&server, "http://127.0.0.1:1", |config| {
        config.settings.on_refusal = OnRefusal::Exit;
        config.settings.refusal_wait = Duration::from_secs(3_600);
    });
    let session = server.accept().await;
    session.send(Control::Welcome {
        runtime: CAUSE.to_owned(),
        session: "1".to_owned(),
        version: "test".to_owned(),
        node: None,
        url: None,
    });
    let _next = server.welcome().await;
    client.wait_ready(true).await;
}
