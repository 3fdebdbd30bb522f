//! Faults of our own: a panic costs the connection or session in which it happens, and nothing else.
//!
//! There is nothing in the server that can be made to panic from outside, so these tests bring the
//! fault in by the one way that leads everywhere: what is told to the log.

use std::{
    collections::HashMap,
    fmt::Debug,
    sync::{LazyLock, Mutex, Once},
};

use testkit::{deadline::soon, http1::RawConnection};
use tracing::{
    Event, Metadata, Subscriber,
    field::{Field, Visit},
    span,
};
use tunnel_proto::handshake::InstanceSecret;

use crate::{
    fake::{FakeClient, dial, session_request},
    rig::{PROD, PROD_HOST, Rig},
};

/// What makes the log panic: a path, and an instance.
pub(crate) const PATH: &str = "/panic-on-purpose";
const SECRET: &str = "badbadbadbadbadbadbadbadbadbad00";
/// The id of the instance with that secret.
static INSTANCE: LazyLock<String> =
    LazyLock::new(|| InstanceSecret::parse(SECRET).unwrap().id().to_string());

/// What the access log has said last of each path, by field.
static LOGGED: LazyLock<Mutex<HashMap<String, Line>>> = LazyLock::new(Mutex::default);

/// One line, by field.
pub(crate) type Line = HashMap<&'static str, String>;

/// The last line of the access log about a path.
pub(crate) fn logged(path: &str) -> Option<Line> {
    LOGGED.lock().unwrap().get(path).cloned()
}

/// A log that is kept by path, and panics when it is asked to.
struct Fuse;

impl Subscriber for Fuse {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.is_event()
            && (metadata.target() == "access" || metadata.target().contains("session"))
    }

    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }

    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}

    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut spark = Spark::default();
        event.record(&mut spark);
        if let Some(path) = spark.0.get("path") {
            let mut logged = LOGGED.lock().unwrap();
            logged.insert(path.clone(), spark.0);
        }
    }

    fn enter(&self, _: &span::Id) {}

    fn exit(&self, _: &span::Id) {}
}

#[derive(Default)]
struct Spark(Line);

impl Visit for Spark {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        let is_cause = match field.name() {
            "path" => format!("{value:?}").contains(PATH),
            "instance" => format!("{value:?}").contains(INSTANCE.as_str()),
            _ => false,
        };
        assert!(!is_cause, "on purpose");
        let value = format!("{value:?}");
        self.0
            .insert(field.name(), value.trim_matches('"').to_owned());
    }
}

pub(crate) fn set_the_fuse() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| tracing::subscriber::set_global_default(Fuse).unwrap());
}

fn get(path: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nhost: {PROD_HOST}\r\n\r\n")
}

#[tokio::test]
async fn a_panic_in_a_connection_costs_that_connection() {
    set_the_fuse();
    let rig = Rig::start().await;
    let client = FakeClient::describing(&rig, PROD).await;
    let mut neighbours = [rig.raw().await, rig.raw().await, rig.raw().await];
    for raw in &mut neighbours {
        assert_eq!(raw.ask(get("/")).await.head.status(), 200);
    }
    for _ in 0..4 {
        let mut raw = rig.raw().await;
        raw.send(get(PATH)).await;
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
    for _ in 0..4 {
        let request = session_request(rig.token(PROD), InstanceSecret::parse(SECRET).unwrap());
        let connected = dial(&rig, &request).await;
        assert_eq!(connected.status, 101);
        RawConnection::over(connected.io).rest().await;
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
