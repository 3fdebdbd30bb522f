//! Faults of our own: a panic costs the connection or session in which it happens, and nothing else.
//!
//! There is nothing in the server that can be made to panic from outside, so these tests bring the
//! fault in by a way that leads everywhere: the log, and the access log.

use std::{
    fmt::Debug,
    sync::{LazyLock, Once},
};

use testkit::{
    deadline::soon,
    http1::RawConnection,
    tunnel::client::{FakeClient, dial, session_request},
};
use tracing::{
    Event, Metadata, Subscriber,
    field::{Field, Visit},
    span,
};
use tunnel_proto::handshake::InstanceSecret;

use crate::{
    access_lines::PANIC_PATH,
    rig::{PROD, PROD_HOST, Rig},
};

/// The secret of the instance whose lines make the log panic.
const SECRET: &str = "badbadbadbadbadbadbadbadbadbad00";
/// The id of the instance with that secret.
static INSTANCE: LazyLock<String> =
    LazyLock::new(|| InstanceSecret::parse(SECRET).unwrap().id().to_string());

/// A log that panics at the lines of one instance.
struct Fuse;

impl Subscriber for Fuse {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.is_event() && metadata.target().contains("session")
    }

    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }

    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}

    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}

    fn event(&self, event: &Event<'_>) {
        event.record(&mut Spark);
    }

    fn enter(&self, _: &span::Id) {}

    fn exit(&self, _: &span::Id) {}
}

struct Spark;

impl Visit for Spark {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        let is_cause =
            field.name() == "instance" && format!("{value:?}").contains(INSTANCE.as_str());
        assert!(!is_cause, "on purpose");
    }
}

fn set_the_fuse() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| tracing::subscriber::set_global_default(Fuse).unwrap());
}

fn get(path: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nhost: {PROD_HOST}\r\n\r\n")
}

#[tokio::test]
async fn a_panic_in_a_connection_costs_that_connection() {
    let rig = Rig::start().await;
    let client = FakeClient::describing(&rig, PROD).await;
    let mut neighbours = [rig.raw().await, rig.raw().await, rig.raw().await];
    for raw in &mut neighbours {
        assert_eq!(raw.ask(get("/")).await.head.status(), 200);
    }
    for _ in 0..4 {
        let mut raw = rig.raw().await;
        raw.send(get(PANIC_PATH)).await;
        raw.rest().await;
    }
    for raw in &mut neighbours {
        assert_eq!(raw.ask(get("/")).await.head.status(), 200);
    }
    drop(neighbours);
    rig.metric_becomes("tunnel_server_connections{listener=\"public\"}", 0.0)
        .await;
    rig.metric_becomes("tunnel_server_open_exchanges{runtime=\"acme-prod\"}", 0.0)
        .await;
    client.rests().await;
    rig.stop().await;
}

#[tokio::test]
async fn a_panic_in_a_session_costs_that_session() {
    set_the_fuse();
    let rig = Rig::start().await;
    let mut sessions = Vec::new();
    for _ in 0..4 {
        let request = session_request(rig.token(PROD), InstanceSecret::parse(SECRET).unwrap());
        let connected = dial(&rig, &request).await;
        assert_eq!(connected.status, 101);
        sessions.push(RawConnection::over(connected.io));
    }
    // Each panics when the time for its echo is over.
    for session in &mut sessions {
        session.rest().await;
    }
    rig.metric_becomes("tunnel_server_sessions", 0.0).await;
    rig.metric_becomes("tunnel_server_connections{listener=\"tunnel\"}", 0.0)
        .await;
    let mut raw = rig.raw().await;
    assert_eq!(raw.ask(get("/")).await.reason(), "runtime_offline");
    let client = FakeClient::describing(&rig, PROD).await;
    assert_eq!(raw.ask(get("/")).await.head.status(), 200);
    soon("the answer to it", client.request(1)).await;
    rig.stop().await;
}
