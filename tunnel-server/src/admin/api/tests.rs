//! Whether the description says what the routes do, and the values are as described.

use std::collections::BTreeSet;

use serde::Serialize;
use serde_json::{Map, Value, json};
use tunnel_http::tail::ExchangeView;

use super::super::nodes::NodeView;
use super::*;
const ID_BYTES: usize = CredentialId::ID_BYTES;
use crate::{
    admin::usage::{ProcessView, UsedLimitView},
    admin::view::{
        CertificateSource, CertificateView, ConfigView, LimitsView, ProblemView, RevocationScope,
        RouteView, ServerState, ServerView, SessionView, TokenView,
    },
    auth::{CredentialId, CredentialView},
    events::{EventKind, EventView},
    history::{EndedSession, RefusedDial},
    timestamp::Timestamp,
    upgrades::{UpgradeState, UpgradeView},
};

fn description() -> Value {
    serde_json::from_str(DESCRIPTION).unwrap()
}

/// What a `$ref` refers to, or the value itself.
fn resolved<'a>(description: &'a Value, value: &'a Value) -> &'a Value {
    match value.get("$ref").and_then(Value::as_str) {
        Some(path) => description.pointer(&path[1..]).unwrap(),
        None => value,
    }
}

fn names(object: Option<&Value>) -> BTreeSet<&str> {
    let keys = object.and_then(Value::as_object).map(Map::keys);
    keys.into_iter().flatten().map(String::as_str).collect()
}

/// Checks a value against a schema, and that all of the schema was seen when the value is a `full`
/// one, or just what is required when it is a bare one.
fn check(description: &Value, schema: &Value, value: &Value, is_full: bool, path: &str) {
    let schema = resolved(description, schema);
    let kind = schema["type"].as_str().unwrap();
    let fits = match kind {
        "object" => value.is_object(),
        "array" => value.is_array(),
        "string" => value.is_string(),
        "boolean" => value.is_boolean(),
        "integer" => value.is_u64(),
        "number" => value.is_number(),
        other => panic!("{path}: a type that nothing here has: {other}"),
    };
    assert!(fits, "{path}: {value} is no {kind}");
    if let Some(allowed) = schema.get("enum") {
        assert!(
            allowed.as_array().unwrap().contains(value),
            "{path}: {value}"
        );
    }
    if schema["format"] == "date-time" {
        let text = value.as_str().unwrap();
        text.parse::<Timestamp>().unwrap();
    }
    for (number, item) in value.as_array().into_iter().flatten().enumerate() {
        let path = format!("{path}[{number}]");
        check(description, &schema["items"], item, is_full, &path);
    }
    let Some(fields) = value.as_object() else {
        return;
    };
    if let Some(any) = schema
        .get("additionalProperties")
        .filter(|it| it.is_object())
    {
        for (name, field) in fields {
            check(description, any, field, is_full, &format!("{path}.{name}"));
        }
        return;
    }
    let given = names(Some(value));
    let expected = match is_full {
        true => names(schema.get("properties")),
        false => {
            let required = schema["required"].as_array().unwrap();
            required.iter().filter_map(Value::as_str).collect()
        }
    };
    assert_eq!(given, expected, "{path}");
    for (name, field) in fields {
        let path = format!("{path}.{name}");
        check(
            description,
            &schema["properties"][name],
            field,
            is_full,
            &path,
        );
    }
}

#[track_caller]
fn check_both(schema: &str, full: &impl Serialize, bare: &impl Serialize) {
    let description = description();
    let found = description.pointer(&format!("/components/schemas/{schema}"));
    let found = found.unwrap();
    let full = serde_json::to_value(full).unwrap();
    check(&description, found, &full, true, schema);
    let bare = serde_json::to_value(bare).unwrap();
    check(&description, found, &bare, false, schema);
}

fn runtime() -> RuntimeView {
    let now = Timestamp::now();
    RuntimeView {
        label: "acme-prod".into(),
        account: "acme".into(),
        name: "prod".into(),
        managed: true,
        tokens: Some(vec![token()]),
        hosts: vec!["acme-prod.tunnels.test".into()],
        online: true,
        online_since: Some(now),
        last_online: Some(now),
        instance: Some("i".into()),
        nodes: vec!["n2".into()],
        epoch: Some(3),
        credential: Some(CredentialView {
            kind: "token".into(),
            id: "0123456789abcdef".into(),
        }),
        expires: Some(now),
        sessions: vec![session()],
        open_exchanges: 1,
        requests: 5,
        bytes_in: 2,
        bytes_out: 3,
        waiting: 4,
        limits: LimitsView {
            exchanges: Some(1),
            exchange_rate: Some(2),
            upload_rate: Some(3),
            download_rate: Some(4),
            websockets: Some(5),
            head_bytes: Some(6),
            waiting: Some(7),
            waiting_bytes: Some(8),
        },
        allow_from: Some(vec!["10.0.0.0/8".into()]),
        last_problem: Some(ProblemView {
            reason: "session_lost".into(),
            at: now,
        }),
        last_session_end: Some(Arc::new(EndedSession {
            at: now,
            session: "i/1".into(),
            reason: "silence".into(),
            detail: "nothing was received for 3 s".into(),
            peer: "127.0.0.1:1".into(),
            client_version: "1.2.3".into(),
        })),
        last_refusal: Some(Arc::new(refusal())),
        routes: Some(vec![RouteView {
            name: "default".into(),
            matches: "/*".into(),
            to: "http://app:80".into(),
            state: "up".into(),
        }]),
        routes_omitted: Some(1),
    }
}

fn token() -> TokenView {
    TokenView {
        id: "0123456789abcdef".into(),
        created: Some(Timestamp::now()),
        expires: Some(Timestamp::now()),
        revoked: true,
        note: Some("first".into()),
    }
}

fn refusal() -> RefusedDial {
    RefusedDial {
        at: Timestamp::now(),
        reason: "token_expired".into(),
        detail: "the token has expired".into(),
        peer: "127.0.0.1:1".into(),
        credential: Some(CredentialView {
            kind: "token".into(),
            id: "0123456789abcdef".into(),
        }),
        instance: Some("i".into()),
        client_version: Some("1.2.3".into()),
    }
}

fn session() -> SessionView {
    SessionView {
        id: "i/1".into(),
        node: Some("n1".into()),
        number: 1,
        peer: "127.0.0.1:1".into(),
        client_version: "1.2.3".into(),
        since: Timestamp::now(),
        round_trip_ms: Some(0.25),
        open_exchanges: 1,
        bytes_in: 2,
        bytes_out: 3,
        is_draining: false,
    }
}

fn bare_runtime() -> RuntimeView {
    RuntimeView {
        online: false,
        online_since: None,
        last_online: None,
        instance: None,
        tokens: None,
        epoch: None,
        credential: None,
        expires: None,
        sessions: vec![SessionView {
            node: None,
            round_trip_ms: None,
            ..session()
        }],
        limits: LimitsView::default(),
        nodes: Vec::new(),
        allow_from: None,
        last_problem: None,
        last_session_end: None,
        last_refusal: None,
        routes: None,
        routes_omitted: None,
        ..runtime()
    }
}

/// That each operation is there, and for whom, is seen over real sockets: `tests/it/admin.rs`.
#[test]
fn every_route_is_described() {
    let description = description();
    let paths = description["paths"].as_object().unwrap();
    assert_eq!(paths.len(), ROUTES);
    assert_eq!(description["servers"][0]["url"], ROOT);
}

#[test]
fn every_reference_resolves() {
    fn walk(description: &Value, value: &Value) {
        match value {
            Value::Object(fields) => {
                resolved(description, value);
                fields.values().for_each(|field| walk(description, field));
            }
            Value::Array(items) => items.iter().for_each(|item| walk(description, item)),
            _ => {}
        }
    }
    let description = description();
    walk(&description, &description);
}

fn server() -> ServerView {
    ServerView {
        version: "1.2.3".into(),
        pid: 7,
        started: Timestamp::now(),
        uptime_seconds: 1,
        state: ServerState::Draining,
        runtimes: 2,
        runtimes_online: 1,
        sessions: 3,
        open_exchanges: 4,
        requests: 7,
        problems: [("session_lost".to_owned(), 3)].into(),
        process: Some(ProcessView {
            memory_bytes: 1,
            cpu_seconds: 0.25,
        }),
        limits: [("handshakes".to_owned(), UsedLimitView { used: 1, limit: 2 })].into(),
        config_version: 5,
        last_reload_ok: Some(true),
        last_reload: Some(Timestamp::now()),
        upgrade: Some(UpgradeView {
            state: UpgradeState::Failed,
            since: Timestamp::now(),
            reason: Some("broken".into()),
        }),
        last_reload_fault: Some("server.toml:1:1: unknown key".into()),
        waiting_for_restart: vec!["shards".into()],
        nodes: vec![NodeView {
            name: "n1".into(),
            version: "1.2.3".into(),
            state: "serving".into(),
            runtimes: 6,
            peer: Some("10.0.0.7:7400".into()),
            zone: Some("a".into()),
            links: Some(2),
        }],
        certificates: vec![CertificateView {
            source: CertificateSource::Acme,
            name: "*.t.example".into(),
            not_after: Some(Timestamp::now()),
            problem: Some("refused".into()),
        }],
    }
}

#[test]
fn responses_are_as_described() {
    let full = server();
    let bare = ServerView {
        state: ServerState::Running,
        process: None,
        last_reload_ok: None,
        last_reload: None,
        upgrade: None,
        last_reload_fault: None,
        waiting_for_restart: Vec::new(),
        nodes: Vec::new(),
        certificates: Vec::new(),
        ..full.clone()
    };
    check_both("Server", &full, &bare);
    let config = ConfigView {
        version: 2,
        settings: [("domain".to_owned(), "tunnels.test".to_owned())].into(),
    };
    check_both("Configuration", &config, &config);
    check_both("Runtime", &runtime(), &bare_runtime());
    let page = |runtimes, next: Option<String>| RuntimesPage {
        unanswered: next.iter().cloned().collect(),
        runtimes,
        next,
    };
    check_both(
        "RuntimesPage",
        &page(vec![runtime()], Some("acme-prod".into())),
        &page(vec![bare_runtime()], None),
    );
    let operation = OperationView {
        label: "acme-prod".into(),
        sessions: 2,
        issued_before: Some(Timestamp::now()),
        durable: Some(false),
        unanswered: vec!["n2".into()],
    };
    let everywhere = OperationView {
        issued_before: None,
        durable: None,
        unanswered: Vec::new(),
        ..operation.clone()
    };
    check_both("Operation", &operation, &everywhere);
    let cleared = ClearedView { removed: 1 };
    check_both("Cleared", &cleared, &cleared);
    let refused = RefusedDial {
        credential: None,
        instance: None,
        client_version: None,
        ..refusal()
    };
    check_both("RefusedDial", &refusal(), &refused);
    let problem = AdminProblem {
        reason: "runtime_unknown".into(),
        detail: "no such thing".into(),
    };
    check_both("Problem", &problem, &problem);
}

#[test]
fn tokens_are_as_described() {
    let bare_token = TokenView {
        created: None,
        expires: None,
        note: None,
        ..token()
    };
    check_both("Token", &token(), &bare_token);
    let made = NewTokenView {
        id: "0123456789abcdef".into(),
        token: "tnlrt_".into(),
        expires: Some(Timestamp::now()),
    };
    let lasting = NewTokenView {
        expires: None,
        ..made.clone()
    };
    check_both("NewToken", &made, &lasting);
}

#[test]
fn events_are_as_described() {
    let text = || Some("text".to_owned());
    let exchange = ExchangeView {
        timestamp: "2026-01-02T03:04:05.678901Z".to_owned(),
        method: text(),
        host: text(),
        path: text(),
        upgrade: Some(false),
        runtime: text(),
        route: text(),
        status: Some(502),
        end: "connection_refused".to_owned(),
        hop: Some("tunnel-client".to_owned()),
        detail: text(),
        request_bytes: Some(1),
        response_bytes: Some(2),
        duration_ms: Some(0.25),
        request_id: text(),
        trace_id: text(),
        peer: text(),
    };
    let bare = ExchangeView {
        timestamp: exchange.timestamp.clone(),
        end: exchange.end.clone(),
        ..ExchangeView::default()
    };
    check_both("Exchange", &exchange, &bare);
    let full = EventView {
        id: text(),
        time: Timestamp::now(),
        kind: EventKind::Online,
        label: text(),
        session: text(),
        reason: text(),
        detail: text(),
    };
    let bare = EventView {
        id: None,
        label: None,
        session: None,
        reason: None,
        detail: None,
        ..full.clone()
    };
    check_both("Event", &full, &bare);
    let description = description();
    let kinds = &description["components"]["schemas"]["Event"]["properties"]["kind"]["enum"];
    let known: Vec<EventKind> = serde_json::from_value(kinds.clone()).unwrap();
    let names: Vec<&str> = known.iter().map(|kind| kind.name()).collect();
    assert_eq!(json!(names), *kinds);
    assert_eq!(names.len(), EventKind::ALL.len());
}

#[test]
fn a_revocation_accepts_the_described_bodies() {
    let description = description();
    let schema = description.pointer("/components/schemas/Revocation");
    let schema = schema.unwrap();
    assert_eq!(names(schema.get("properties")), ["all", "id"].into());
    let scope =
        |body: Value| serde_json::from_value::<RevocationRequest>(body).map(|it| it.scope());
    assert_eq!(
        scope(json!({ "all": true })).unwrap(),
        Ok(RevocationScope::All)
    );
    let most = "x".repeat(ID_BYTES);
    let one = scope(json!({ "id": most })).unwrap();
    assert_eq!(one, Ok(RevocationScope::Credential(most)));
    assert_eq!(schema["properties"]["id"]["maxLength"], ID_BYTES);
}

#[test]
fn a_revocation_names_its_scope_or_is_refused() {
    for body in [
        "",
        "{}",
        "null",
        "true",
        "\"all\"",
        r#"{"id": null}"#,
        r#"{"all": null}"#,
        r#"{"all": "true"}"#,
        r#"{"ID": "x"}"#,
        r#"{"id": "x", "all": true}"#,
        r#"{"all": true, "id": null}"#,
        r#"{"all": true} x"#,
    ] {
        let read = serde_json::from_str::<RevocationRequest>(body);
        assert!(read.is_err(), "{body}: {read:?}");
    }
    let long = "x".repeat(ID_BYTES + 1);
    for order in [
        RevocationRequest::All(false),
        RevocationRequest::Id(String::new()),
        RevocationRequest::Id(long),
        RevocationRequest::Id("tnlrt_0123456789abcdef_secret".to_owned()),
    ] {
        let refused = order.clone().scope().unwrap_err();
        assert!(!refused.contains("secret"), "{order:?}");
    }
}

fn query(query: &str) -> Result<RuntimesQuery, ApiError> {
    let uri = format!("/?{query}").parse().unwrap();
    RuntimesQuery::check(Query::try_from_uri(&uri))
}

#[test]
fn a_query_is_parsed_or_refused() {
    let all = query("online=true&account=acme&limit=7&after=acme-prod").unwrap();
    let expected = RuntimesQuery {
        scope: Scope::All,
        online: Some(true),
        account: Some("acme".into()),
        limit: 7,
        after: Some("acme-prod".into()),
    };
    assert_eq!(all, expected);
    assert_eq!(query("").unwrap().limit, 100);
    let limit = format!("limit={PAGE_MAX}&");
    assert_eq!(query(&limit).unwrap().limit, PAGE_MAX);
    for wrong in [
        "online=1",
        "online",
        "limit=0",
        "limit=1001",
        "limit=x",
        "x=1",
        "Online=true",
    ] {
        let refused = query(wrong).unwrap_err();
        assert_eq!(refused.status, StatusCode::BAD_REQUEST, "{wrong}");
        assert_eq!(refused.reason, "query_malformed", "{wrong}");
    }
}
