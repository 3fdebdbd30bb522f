//! Spans of both programs, as a collector gets them.

use e2e::{
    deadline::{SOON, eventually},
    etcd::Etcd,
    nodes::{APP, Nodes},
    peers::collector::{CollectedSpan, Collector, OtelCollector},
    platform::{PlatformClient, empty},
    raw::RawClient,
    relay::Relay,
    secrets,
    served::Served,
    system::{Options, System},
    upstream::{Echo, Upstream},
};
use http::Request;

const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
const CALLER: &str = "b7ad6b7169203331";

/// Both programs send spans to `collector`, of this part of the exchanges whose requests name no trace.
async fn system(upstream: &Upstream, collector: &str, ratio: &str) -> System {
    let flags = ["--otlp-endpoint", collector, "--trace-ratio", ratio];
    let options = Options::to(&upstream.url());
    System::with(options.server_flags(&flags).client_flags(&flags)).await
}

/// Sends a request with these field lines, and gives what the upstream has received.
async fn echo(system: &System, target: &str, lines: &str) -> Echo {
    let mut client = RawClient::connect(&system.entry()).await;
    let response = client.exchange("GET", target, lines).await;
    assert_eq!(response.head.status(), 200);
    serde_json::from_slice(&response.content.bytes).unwrap()
}

/// The `traceparent` of a caller that traces its request.
fn sampled() -> String {
    format!("traceparent: 00-{TRACE}-{CALLER}-01\r\ntracestate: vendor=1\r\n")
}

/// Each span below the one before it, from the caller's to the last.
async fn chain(collector: &Collector, wanted: &[(&str, &str)]) -> Vec<CollectedSpan> {
    let (mut parent, mut spans) = (CALLER.to_owned(), Vec::new());
    for (service, kind) in wanted {
        let what = format!("the span {kind} of {service} below {parent}");
        let span = collector.span(TRACE, &what, |span| span.parent == parent);
        let span = span.await;
        assert_eq!((span.service(), &*span.kind), (*service, *kind));
        parent.clone_from(&span.id);
        spans.push(span);
    }
    spans
}

const BOTH: [(&str, &str); 4] = [
    ("tunnel-server", "SERVER"),
    ("tunnel-server", "CLIENT"),
    ("tunnel-client", "SERVER"),
    ("tunnel-client", "CLIENT"),
];

#[tokio::test]
async fn a_trace_leads_from_the_caller_through_both_programs_to_the_upstream() {
    let (upstream, collector) = (Upstream::start().await, Collector::start().await);
    let system = system(&upstream, &collector.url(), "0").await;
    let lines = format!("{}x-request-id: r-1\r\n", sampled());
    let echo = echo(&system, "/a/b?secret=1", &lines).await;
    let spans = chain(&collector, &BOTH).await;
    let [server, through, client, attempt] = &spans[..] else {
        unreachable!()
    };
    let parent = format!("00-{TRACE}-{}-01", attempt.id);
    assert_eq!(echo.head.values("traceparent"), [parent]);
    assert_eq!(echo.head.values("tracestate"), ["vendor=1"]);

    assert_eq!(server.name, "GET");
    let host = system.entry().host().to_owned();
    for (name, value) in [
        ("http.request.method", "GET"),
        ("url.scheme", "http"),
        ("url.path", "/a/b"),
        ("server.address", &host),
        ("client.address", "127.0.0.1"),
        ("tunnel.runtime", "demo-app"),
        ("tunnel.request_id", "r-1"),
        ("tunnel.end", "whole"),
    ] {
        assert_eq!(server.text(name), Some(value), "{name}");
    }
    assert_eq!(server.attributes["http.response.status_code"], 200);
    assert_eq!(server.events, ["tunnel.response_head"]);
    assert_eq!(through.name, "GET tunnel");
    assert_eq!(client.text("tunnel.request_id"), Some("r-1"));
    let full = format!("{}/a/b", upstream.url());
    assert_eq!(attempt.text("url.full"), Some(&*full));
    for (outer, inner) in spans.iter().zip(&spans[1..]) {
        assert!(outer.start <= inner.start, "{outer:?} {inner:?}");
        assert!(inner.start <= inner.end, "{inner:?}");
    }
    assert!(!format!("{spans:?}").contains("secret"));

    let log = system.server().program();
    let line = log.wait_for_line("\"request_id\":\"r-1\"", SOON).await;
    assert!(line.contains(TRACE), "{line}");
    let sent = system.server().admin();
    let sent = sent.wait_metric("tunnel_server_spans_total", &["sent"], |sent| sent == 2.0);
    sent.await;
}

#[tokio::test]
async fn what_is_not_sampled_passes_unchanged() {
    let (upstream, collector) = (Upstream::start().await, Collector::start().await);
    let system = system(&upstream, &collector.url(), "0").await;
    let unsampled = format!("00-{TRACE}-{CALLER}-00");
    let received = echo(&system, "/", &format!("traceparent: {unsampled}\r\n")).await;
    assert_eq!(received.head.values("traceparent"), [unsampled]);
    let received = echo(&system, "/", "tracestate: vendor=1\r\n").await;
    assert!(received.head.values("traceparent").is_empty());
    // Spans of a later exchange come after those of an earlier one.
    echo(&system, "/", &sampled()).await;
    chain(&collector, &BOTH).await;
    assert_eq!(collector.spans().len(), 4);
}

#[tokio::test]
async fn a_trace_begins_at_the_first_program_without_the_state_of_another() {
    let (upstream, collector) = (Upstream::start().await, Collector::start().await);
    let system = system(&upstream, &collector.url(), "1").await;
    let lines = "traceparent: 00-0-0-01\r\ntracestate: vendor=1\r\n";
    let received = echo(&system, "/", lines).await;
    let [parent] = &received.head.values("traceparent")[..] else {
        panic!("{received:?}");
    };
    assert!(received.head.values("tracestate").is_empty());
    let is_root = |span: &CollectedSpan| span.parent.is_empty();
    let root = collector.span(&parent[3..35], "the root", is_root).await;
    assert_eq!((root.service(), &*root.kind), ("tunnel-server", "SERVER"));
}

#[tokio::test]
async fn requests_do_not_wait_for_a_collector_that_is_away_and_spans_do() {
    let (upstream, collector) = (Upstream::start().await, Collector::start().await);
    let relay = Relay::start(collector.address()).await;
    relay.refuse();
    let url = format!("http://{}", relay.address());
    let system = system(&upstream, &url, "0").await;
    for _ in 0..3 {
        echo(&system, "/", "").await;
    }
    echo(&system, "/", &sampled()).await;
    let log = system.server().program();
    log.wait_for_line("spans cannot be sent", SOON).await;
    // A second attempt, which is not reported again.
    let what = "another attempt of each program";
    eventually(SOON, what, async || {
        (relay.dials().len() >= 4).then_some(())
    })
    .await;
    relay.resume();
    chain(&collector, &BOTH).await;
    log.wait_for_line("takes spans again", SOON).await;
    assert_eq!(log.text().matches("spans cannot be sent").count(), 1);
}

#[tokio::test]
async fn a_collector_that_refuses_is_reported_once_and_gets_no_batch_twice() {
    let upstream = Upstream::start().await;
    let collector = Collector::answering(400).await;
    let system = system(&upstream, &collector.url(), "1").await;
    let admin = system.server().admin();
    for spans in [2.0, 4.0] {
        echo(&system, "/", "").await;
        let refused = admin.wait_metric("tunnel_server_spans_total", &["refused"], |refused| {
            refused == spans
        });
        refused.await;
    }
    let log = system.server().program().text();
    assert_eq!(log.matches("the collector refuses spans").count(), 1);
}

#[tokio::test]
async fn the_last_spans_are_sent_when_a_client_without_a_tunnel_stops() {
    const TOKEN: &str = "Bearer for-the-collector-and-nobody-else-1234567890";
    let (upstream, collector) = (Upstream::start().await, Collector::start().await);
    let directory = tempfile::tempdir().unwrap();
    let headers = directory.path().join("headers");
    std::fs::write(&headers, format!("Authorization: {TOKEN}\n")).unwrap();
    secrets::keep("the collector's token", TOKEN);
    let toml = format!(
        "otlp_endpoint = '{}'\notlp_headers_file = '{}'\ntrace_ratio = 1\n\
         [[route]]\nname = 'all'\npath = '/*'\nupstream = '{}'\n",
        collector.url(),
        headers.display(),
        upstream.url()
    );
    let mut served = Served::start(&toml, &[]).await;
    let mut client = PlatformClient::http1(&served.entry()).await;
    let request = Request::get("/x").body(empty()).unwrap();
    assert_eq!(client.ask(request).await.status, 200);
    drop(client);
    assert_eq!(served.program_mut().stop().await, Some(0));
    let spans = collector.spans();
    let names: Vec<_> = spans.iter().map(|span| span.name.as_str()).collect();
    assert_eq!(names, ["GET all", "GET"]);
    assert_eq!(spans[0].text("tunnel.route"), Some("all"));
    assert_eq!(spans[0].resource["authorization"], TOKEN);
}

#[tokio::test]
async fn a_forwarded_request_is_traced_through_both_nodes() {
    let (upstream, collector) = (Upstream::start().await, Collector::start().await);
    let mut nodes = Nodes::on(Etcd::start(1).await);
    for _ in 0..2 {
        let before = [
            "env".to_owned(),
            format!("TUNNEL_SERVER_OTLP_ENDPOINT={}", collector.url()),
        ];
        nodes.add(before.to_vec()).await;
    }
    nodes.wait_linked().await;
    let address = nodes.server(0).tunnel_address();
    let _client = nodes.client(APP, address, &upstream, 1).await;
    nodes.wait_served(1, APP).await;
    let mut client = RawClient::connect(&nodes.entry(1, APP)).await;
    let response = client.exchange("GET", "/status/200", &sampled()).await;
    assert_eq!(response.head.status(), 200);
    let wanted = [
        ("tunnel-server", "SERVER"),
        ("tunnel-server", "CLIENT"),
        ("tunnel-server", "SERVER"),
        ("tunnel-server", "CLIENT"),
    ];
    let spans = chain(&collector, &wanted).await;
    let nodes = spans
        .iter()
        .map(|span| span.resource["tunnel.node"].as_str().unwrap());
    assert_eq!(nodes.collect::<Vec<_>>(), ["n2", "n2", "n1", "n1"]);
    assert_eq!(spans[1].text("tunnel.peer_node"), Some("n1"));
    assert_eq!(spans[2].text("tunnel.end"), Some("whole"));
}

#[tokio::test]
#[ignore = "needs the collector that e2e/build-otelcol builds"]
async fn opentelemetry_s_collector_understands_the_spans() {
    let (upstream, collector) = (Upstream::start().await, Collector::start().await);
    let directory = tempfile::tempdir().unwrap();
    let between = OtelCollector::before(&collector, directory.path()).await;
    let system = system(&upstream, &between.url(), "0").await;
    echo(&system, "/a", &sampled()).await;
    let spans = chain(&collector, &BOTH).await;
    assert_eq!(spans[0].text("url.path"), Some("/a"));
}
