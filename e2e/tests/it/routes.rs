//! The router that clusters have today, by nginx, beside ours on the same requests: equal where
//! nginx is right, better where it has traps; and paths that mean to be sent elsewhere.

use std::time::Duration;

use e2e::{
    client::tunnel_client,
    cluster_services::{ClusterService, ClusterServices},
    deadline::{SOON, within},
    entry::Entry,
    load::{ExchangeKind, Load, Plan},
    payload::Payload,
    peers::{
        nginx::{Nginx, RouterUpstreams},
        python::{Step, websocket_client},
    },
    platform::{PlatformClient, empty},
    program::root,
    raw::RawClient,
    served::Served,
    system::{Options, System},
    upstream::{Received, Upstream, sign},
};
use http::{Method, Request, StatusCode};
use http_body_util::BodyExt;

/// The name of the App-Proxy in the shipped table.
const APP_PROXY: &str = "cap-app-proxy";

/// The name of the workflows' server there.
const WORKFLOWS: &str = "argo-server";

/// The outcome of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Outcome {
    /// This service received it, with this target.
    Reached(ClusterService, String),
    /// It was answered with this status, and no service received it.
    Answered(u16),
}

use Outcome::Answered;

fn reached(service: ClusterService, target: &str) -> Outcome {
    Outcome::Reached(service, target.to_owned())
}

/// The routers to compare, in front of one cluster.
struct Routers {
    cluster: ClusterServices,
    nginx: Nginx,
    served: Served,
    system: System,
}

impl Routers {
    /// `None` where this machine does not allow a cluster.
    async fn start(read_seconds: u32) -> Option<Self> {
        let cluster = match ClusterServices::make(APP_PROXY, WORKFLOWS).await {
            Ok(cluster) => cluster,
            Err(why) => {
                eprintln!("skipped: this machine gives no addresses: {why}");
                return None;
            }
        };
        let names = cluster.names().address();
        let upstreams = RouterUpstreams {
            app_proxy: cluster.addresses().at(0, 3017),
            workflows: cluster.addresses().at(1, 2746),
            names,
            read_seconds,
        };
        let nginx = Nginx::router(&upstreams).await;
        let table = table(&cluster);
        let names = names.to_string();
        let flags = ["--dns-server", &names];
        let served = Served::start(&table, &flags).await;
        let options = Options::to("").client_flags(&flags).client_file(&table);
        let system = System::with(options).await;
        Some(Self {
            cluster,
            nginx,
            served,
            system,
        })
    }

    /// Ours: behind an ingress controller, and through the tunnel.
    fn ours(&self) -> [(&'static str, Entry); 2] {
        [
            ("serve", self.served.entry()),
            ("tunnel", self.system.entry()),
        ]
    }

    /// Sends a request, and returns which service received it.
    async fn outcome(&self, entry: &Entry, method: &str, target: &str) -> Outcome {
        let mark = self.cluster.mark();
        let mut client = RawClient::connect(entry).await;
        let lines = "Origin: https://g.example.com\r\nConnection: close\r\n";
        let answer = client.exchange(method, target, lines).await;
        match &self.cluster.since(&mark)[..] {
            [] => Answered(answer.head.status()),
            [(service, seen)] => {
                assert_eq!(seen.method, method);
                if *service == ClusterService::Push {
                    // It receives its own name as `Host`; some routers add the default port.
                    let host = seen.authority.trim_end_matches(":80");
                    assert_eq!(host, "push-eventsource-svc.argo.svc.cluster.local");
                }
                reached(*service, &seen.target)
            }
            more => panic!("{method} {target} was sent more than once: {more:?}"),
        }
    }
}

/// The shipped table.
fn table(_cluster: &ClusterServices) -> String {
    let path = root().join("examples/gitops-runtime.toml");
    std::fs::read_to_string(path).unwrap()
}

/// Requests for which the router of today is right.
fn equal() -> Vec<(&'static str, &'static str, Outcome)> {
    let app_proxy = |method, target| (method, target, reached(ClusterService::AppProxy, target));
    let push = |method, target| (method, target, reached(ClusterService::Push, target));
    vec![
        app_proxy("GET", "/app-proxy"),
        app_proxy("GET", "/app-proxy/"),
        app_proxy("GET", "/app-proxy/api/readyz"),
        app_proxy("POST", "/app-proxy/api/graphql"),
        app_proxy("OPTIONS", "/app-proxy/api/graphql"),
        app_proxy("DELETE", "/app-proxy/api/clusters/a?b=c&d=%2F&e"),
        app_proxy(
            "GET",
            "/app-proxy/git-auth/github/callback?code=a%20b&state=%7B%7D",
        ),
        app_proxy("GET", "/app-proxy/a%20b/%C3%BC"),
        app_proxy("GET", "/app-proxy/api/repos/owner%2Frepo"),
        (
            "GET",
            "/workflows/",
            reached(ClusterService::Workflows, "/"),
        ),
        (
            "GET",
            "/workflows/main.js",
            reached(ClusterService::Workflows, "/main.js"),
        ),
        (
            "GET",
            "/workflows/api/v1/workflow-events/argo?listOptions.x=%2F",
            reached(
                ClusterService::Workflows,
                "/api/v1/workflow-events/argo?listOptions.x=%2F",
            ),
        ),
        (
            "POST",
            "/workflows/upload-artifacts/a%20b",
            reached(ClusterService::Workflows, "/upload-artifacts/a%20b"),
        ),
        push("POST", "/webhooks/argo/push/github"),
        push("POST", "/webhooks/argo/push/"),
        push("POST", "/webhooks/argo/push/a/b?c=%3f"),
        push("GET", "/webhooks/argo/push/status"),
        ("GET", "/readyz", Answered(200)),
        ("GET", "/healthz", Answered(200)),
        ("GET", "/", Answered(404)),
        ("GET", "/api/v1/applications", Answered(404)),
        ("GET", "/webhooks", Answered(404)),
        ("POST", "/webhooks/argo", Answered(404)),
        ("GET", "/APP-PROXY/api", Answered(404)),
    ]
}

/// Requests that the router of today sends where nobody meant them to go, or spoils: what it does,
/// and what ours does.
fn better() -> Vec<(&'static str, &'static str, Outcome, Outcome)> {
    vec![
        // A prefix is one on segment borders.
        (
            "GET",
            "/app-proxyless",
            reached(ClusterService::AppProxy, "/app-proxyless"),
            Answered(404),
        ),
        ("GET", "/readyzzz", Answered(200), Answered(404)),
        // A pattern begins where the path begins.
        (
            "POST",
            "/elsewhere/webhooks/argo/push/x",
            reached(ClusterService::Push, "/elsewhere/webhooks/argo/push/x"),
            Answered(404),
        ),
        // What is matched is what is forwarded.
        (
            "GET",
            "/app-proxy/../webhooks/argo/push",
            reached(ClusterService::Push, "/app-proxy/../webhooks/argo/push"),
            Answered(404),
        ),
        // What a service may read in two ways goes nowhere, but for the encoded slash.
        (
            "GET",
            "/app-proxy/a;v=1",
            reached(ClusterService::AppProxy, "/app-proxy/a;v=1"),
            Answered(404),
        ),
        (
            "GET",
            "/app-proxy//twice//",
            reached(ClusterService::AppProxy, "/app-proxy//twice//"),
            Answered(404),
        ),
        (
            "GET",
            "/%61pp-proxy/api",
            reached(ClusterService::AppProxy, "/%61pp-proxy/api"),
            Answered(404),
        ),
    ]
}

#[tokio::test]
async fn every_route_leads_where_the_router_of_today_leads_or_better() {
    let Some(routers) = Routers::start(60).await else {
        return;
    };
    let nginx = ("nginx", routers.nginx.entry());
    let mut wrong = Vec::new();
    let mut compare = async |(name, entry): &(&str, Entry), method, target, expected: &Outcome| {
        let outcome = routers.outcome(entry, method, target).await;
        if outcome != *expected {
            wrong.push(format!(
                "{name}: {method} {target}: {outcome:?}, not {expected:?}"
            ));
        }
    };
    for (method, target, outcome) in equal() {
        compare(&nginx, method, target, &outcome).await;
        for ours in routers.ours() {
            compare(&ours, method, target, &outcome).await;
        }
    }
    for (method, target, theirs, mine) in better() {
        compare(&nginx, method, target, &theirs).await;
        for ours in routers.ours() {
            compare(&ours, method, target, &mine).await;
        }
    }
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}

/// `routes test` says of each request what becomes of it.
#[tokio::test]
async fn routes_test_tells_beforehand_what_becomes_of_a_request() {
    let file = root().join("examples/gitops-runtime.toml");
    let file = file.to_str().unwrap();
    let mut wrong = Vec::new();
    let better = better()
        .into_iter()
        .map(|(method, target, _, mine)| (method, target, mine));
    for (method, target, outcome) in equal().into_iter().chain(better) {
        let url = format!("http://any.example.com{target}");
        let ended = tunnel_client(&["routes", "test", "--config", file, method, &url]).await;
        let expected = match &outcome {
            Outcome::Reached(ClusterService::AppProxy, target) => {
                format!("http://{APP_PROXY}:3017{target}")
            }
            Outcome::Reached(ClusterService::Workflows, target) => {
                format!("https://{WORKFLOWS}:2746{target}")
            }
            Outcome::Reached(_, target) => {
                format!("http://push-eventsource-svc.argo.svc.cluster.local{target}")
            }
            Answered(status) => status.to_string(),
        };
        // An answer of its own is as good as an upstream.
        let leads = outcome != Answered(404);
        let good =
            ended.code == Some(i32::from(!leads)) && (!leads || ended.out.contains(&expected));
        if !good {
            wrong.push(format!("{method} {target}: not {expected}: {ended:?}"));
        }
    }
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}

#[tokio::test]
async fn a_webhook_larger_than_a_mebibyte_arrives_whole() {
    let Some(routers) = Routers::start(60).await else {
        return;
    };
    let content: Vec<u8> = Payload::new(20_000_000).flatten().collect();
    let post = async |entry: &Entry| {
        let mut client = PlatformClient::http1(entry).await;
        let request = Request::post("/webhooks/argo/push/webhook");
        let request = request.header("x-signature", sign(&content));
        let body = http_body_util::Full::from(content.clone()).boxed_unsync();
        client.send(request.body(body).unwrap()).await
    };
    // nginx may close before it has read what it refuses.
    if let Ok(answer) = post(&routers.nginx.entry()).await {
        assert_eq!(answer.status(), StatusCode::PAYLOAD_TOO_LARGE);
    }
    for (name, entry) in routers.ours() {
        assert_eq!(post(&entry).await.unwrap().status(), 200, "{name}");
        let received: Received = routers
            .cluster
            .member(ClusterService::Push)
            .wait_content("/webhooks/argo/push/webhook")
            .await;
        assert_eq!(received.bytes, content.len() as u64, "{name}");
    }
}

/// The router of today gives up after 60 s between two reads. So that nobody waits that long, it has
/// one second here; ours has what it always has.
#[tokio::test]
async fn an_upstream_that_takes_its_time_is_waited_for() {
    let Some(routers) = Routers::start(1).await else {
        return;
    };
    let slow = "/workflows/events?every_ms=3000&count=2";
    let read = async |entry: &Entry| {
        let mut client = PlatformClient::http1(entry).await;
        let request = Request::get(slow).body(empty()).unwrap();
        let body = client.send(request).await.unwrap().into_body().collect();
        let body = within(SOON, "the end of the events", body).await;
        body.map(|body| String::from_utf8_lossy(&body.to_bytes()).into_owned())
    };
    let theirs = read(&routers.nginx.entry()).await;
    let is_cut = !theirs.as_ref().is_ok_and(|text| text.contains("id: 1"));
    assert!(is_cut, "nginx waited: {theirs:?}");
    for (name, entry) in routers.ours() {
        assert!(read(&entry).await.unwrap().contains("id: 1"), "{name}");
    }
}

/// Whether the first event comes though the second does not.
async fn first_event(entry: &Entry, path: &str, time_limit: Duration) -> bool {
    let mut client = PlatformClient::http1(entry).await;
    let events = format!("{path}/events?every_ms=60000&count=2");
    let request = Request::get(events).body(empty()).unwrap();
    let first = async {
        let mut response = client.send(request).await.unwrap();
        let frame = response.body_mut().frame().await.unwrap().unwrap();
        frame.into_data().unwrap()
    };
    tokio::time::timeout(time_limit, first).await.is_ok()
}

/// The router of today holds back what comes from where it speaks HTTP/1.0.
#[tokio::test]
async fn an_event_is_not_held_back() {
    let Some(routers) = Routers::start(60).await else {
        return;
    };
    let (held, passed) = ("/webhooks/argo/push", "/workflows");
    let nginx = routers.nginx.entry();
    assert!(first_event(&nginx, passed, SOON).await);
    let time_limit = Duration::from_secs(2);
    let theirs = first_event(&nginx, held, time_limit).await;
    assert!(!theirs, "nginx did not hold the event back");
    for (name, entry) in routers.ours() {
        for path in [held, passed] {
            let came = first_event(&entry, path, SOON).await;
            assert!(came, "{name} holds the event of {path} back");
        }
    }
}

/// The router of today collects a request's content before it asks anybody.
#[tokio::test]
async fn a_content_is_not_held_back() {
    let Some(routers) = Routers::start(60).await else {
        return;
    };
    let echoed = async |entry: &Entry, time_limit: Duration| {
        let mut client = RawClient::connect(entry).await;
        let lines = "Transfer-Encoding: chunked\r\n";
        let part = b"5\r\nfirst\r\n";
        client
            .request("POST", "/app-proxy/duplex", lines, part)
            .await;
        tokio::time::timeout(time_limit, client.head())
            .await
            .is_ok()
    };
    let theirs = echoed(&routers.nginx.entry(), Duration::from_secs(2)).await;
    assert!(!theirs, "nginx did not hold the content back");
    for (name, entry) in routers.ours() {
        assert!(echoed(&entry, SOON).await, "{name} holds the content back");
    }
}

#[tokio::test]
async fn upgrades_trailers_and_cookies_pass() {
    let Some(routers) = Routers::start(60).await else {
        return;
    };
    let nginx = [("nginx", routers.nginx.entry())];
    for (name, entry) in nginx.into_iter().chain(routers.ours()) {
        let steps = [Step::Text("hello"), Step::Binary(70_000), Step::Close(1000)];
        let path = "/app-proxy/websocket";
        let reports = websocket_client(&entry, path, &["graphql-ws"], &steps).await;
        assert_eq!(reports[0]["opened"], "graphql-ws", "{name}: {reports:?}");
        assert_eq!(reports[1]["text"], "hello", "{name}: {reports:?}");

        let mut client = PlatformClient::http1(&entry).await;
        let answer = client.get("/app-proxy/cookies").await;
        assert_eq!(answer.values("set-cookie").len(), 3, "{name}");
        let moved = client.get("/app-proxy/status/302").await;
        assert_eq!(moved.values("location"), ["/echo?moved"], "{name}");
        let request = Request::get("/workflows/trailers").header("te", "trailers");
        let trailers = client.ask(request.body(empty()).unwrap()).await.trailers;
        assert_eq!(
            trailers.len(),
            if name == "nginx" { 0 } else { 2 },
            "{name}"
        );
    }
}

/// While the App-Proxy is away, a page of the platform must be able to see why.
#[tokio::test]
async fn a_page_sees_that_the_app_proxy_is_away() {
    let Some(mut routers) = Routers::start(60).await else {
        return;
    };
    routers.cluster.stop(ClusterService::AppProxy);
    let nginx = [("nginx", routers.nginx.entry())];
    for (name, entry) in nginx.into_iter().chain(routers.ours()) {
        for method in [Method::OPTIONS, Method::POST] {
            let request = Request::builder().method(method.clone());
            let request = request.uri("/app-proxy/api/graphql");
            let request = request.header("origin", "https://g.example.com");
            let request = request.header("access-control-request-method", "POST");
            let mut client = PlatformClient::http1(&entry).await;
            let answer = client.ask(request.body(empty()).unwrap()).await;
            let preflight = method == Method::OPTIONS;
            let status = if preflight { 204 } else { 502 };
            assert_eq!(answer.status, status, "{name}: {method}: {answer:?}");
            let origins = answer.values("access-control-allow-origin");
            assert_eq!(origins.len(), 1, "{name}: {method}: {answer:?}");
            let credentials = answer.values("access-control-allow-credentials");
            assert_eq!(credentials, ["true"], "{name}: {method}");
        }
    }
}

/// Segments that mean to be more than a label, as they stand in a path.
fn hostile_segments() -> Vec<String> {
    let mut segments: Vec<_> = [
        "push%3f",
        "push%3Fa=b",
        "push%2f",
        "a%2Fb",
        "push:80",
        "push%3a80",
        "user@secret",
        "user%40secret",
        "user:word@secret",
        ".",
        "..",
        "%2e",
        "%2e%2e",
        ".%2E",
        "pu.sh",
        "push.",
        ".push",
        "Push",
        "PUSH",
        "pusH",
        "-push",
        "push-",
        "-",
        "pu_sh",
        "p%C3%BCsh",
        "püsh",
        "пуш",
        "push%00",
        "push%0d%0aHost:x",
        "push%20",
        "push%09",
        "push%23",
        "push%5c",
        "push\\x",
        "pu+sh",
        "pu;sh",
        "pu,sh",
        "pu&sh",
        "pu=sh",
        "pu*sh",
        "*",
        "{x}",
        "$push",
        "~push",
        "pu%sh",
        "push%",
        "push%2",
        "%",
        "%zz",
        "%70ush",
        "pus%68",
        "[::1]",
        "127.0.0.1",
        "secret.argo.svc.cluster.local%3f",
        "secret.argo.svc.cluster.local:80%2f",
        "secret.argo.svc.cluster.local%23",
        "x@secret.argo.svc.cluster.local%3f",
    ]
    .map(str::to_owned)
    .to_vec();
    segments.push("a".repeat(64));
    segments.push("a".repeat(300));
    segments
}

/// Both segments of a webhook's path, each hostile, and what else could mislead.
fn hostile_paths() -> Vec<String> {
    let segments = hostile_segments();
    let sources = segments
        .iter()
        .map(|segment| format!("/webhooks/argo/{segment}/x"));
    let last = segments
        .iter()
        .map(|segment| format!("/webhooks/argo/{segment}"));
    let namespaces = segments
        .iter()
        .map(|segment| format!("/webhooks/{segment}/push/x"));
    let others = [
        "/webhooks//push/x",
        "/webhooks/argo//x",
        "//webhooks/argo/push/x",
        "/webhooks/argo/push/../../../app-proxy/x",
        "/webhooks/argo/push/%2e%2e/x",
        "/webhooks/argo/push/..;/x",
        "/webhooks%2fargo/push/x",
        "/webhooks/argo%2fpush/x",
        "/webhooks\\argo\\push\\x",
        "/Webhooks/argo/push/x",
    ];
    let others = others.into_iter().map(str::to_owned);
    // A label by itself, but none with what the template puts behind it.
    let others = others.chain([format!("/webhooks/argo/{}/x", "a".repeat(63))]);
    sources
        .chain(last)
        .chain(namespaces)
        .chain(others)
        .collect()
}

#[tokio::test]
async fn no_path_leads_to_a_place_that_nobody_named() {
    let Some(routers) = Routers::start(60).await else {
        return;
    };
    let cluster = &routers.cluster;
    // The trap is one: the router of today walks into it.
    let path = "/webhooks/argo/secret.argo.svc.cluster.local%3f/x";
    let outcome = routers.outcome(&routers.nginx.entry(), "POST", path).await;
    assert!(
        matches!(outcome, Outcome::Reached(ClusterService::Trap, _)),
        "{outcome:?}"
    );

    let mut wrong = Vec::new();
    for (name, entry) in routers.ours() {
        for path in hostile_paths() {
            let (asked, mark) = (cluster.names().questions().len(), cluster.mark());
            let mut client = RawClient::connect(&entry).await;
            let answer = client
                .exchange("POST", &path, "Connection: close\r\n")
                .await;
            let status = answer.head.status();
            let (came, asked) = (
                cluster.since(&mark),
                cluster.names().questions().len() - asked,
            );
            if !(400..=404).contains(&status) || !came.is_empty() || asked > 0 {
                wrong.push(format!(
                    "{name}: {path}: {status}, {asked} names asked, {came:?}"
                ));
            }
        }
    }
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}

/// Where requests come by an ingress controller instead of the tunnel.
#[tokio::test]
async fn serve_answers_behind_an_ingress_controller() {
    let upstream = Upstream::start().await;
    let table = format!(
        "[[route]]\nname = \"all\"\npath = \"/*\"\nupstream = \"{}\"\n",
        upstream.url()
    );
    let served = Served::start(&table, &[]).await;
    served.admin().wait_ready(true).await;
    let ingress = Nginx::gateway(served.entry().address(), "runtime.example.com").await;
    let kinds = [
        ExchangeKind::Get,
        ExchangeKind::Post,
        ExchangeKind::Events,
        ExchangeKind::WebSocket,
    ];
    let load = Load::start(ingress.entry(), &Plan::only(&kinds, 2));
    load.wait_progress(10).await;
    load.finish().await.assert_none_failed();
    let requests = upstream.requests();
    let seen = requests.first().unwrap();
    assert_eq!(seen.authority, "runtime.example.com");
    assert_eq!(seen.values("x-forwarded-host"), ["runtime.example.com"]);
}
