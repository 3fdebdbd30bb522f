//! Which exchanges are traced, and what their spans say.

use std::time::Duration;

use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::trace::v1::Span;
use opentelemetry_proto::tonic::trace::v1::span::SpanKind;
use opentelemetry_proto::tonic::trace::v1::status::StatusCode;
use prometheus::IntCounter;
use proptest::prelude::*;
use tokio::sync::mpsc::{self, Receiver};
use tokio::time::sleep;

use super::*;

const TRACE: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331";

const ALL: Sampler = Sampler {
    follows_parent: true,
    ratio: 1.0,
};

/// A tracer, what it puts into its queue of one place, and what it drops.
fn tracer(sampler: Sampler) -> (Tracer, Receiver<Vec<Span>>, IntCounter) {
    let (sender, receiver) = mpsc::channel(1);
    let dropped = IntCounter::new("dropped", "dropped").unwrap();
    let queue = SpanQueue {
        sender,
        dropped: dropped.clone(),
    };
    (Tracer::new(sampler, queue), receiver, dropped)
}

fn parent(flags: &str) -> Option<TraceParent> {
    TraceParent::parse(format!("{TRACE}-{flags}").as_bytes())
}

fn request(method: &str) -> TracedRequest<'_> {
    TracedRequest {
        method,
        scheme: None,
        host: None,
        path: "/",
        request_id: None,
        client: None,
    }
}

fn end<'a>(status: Option<u16>, problem: Option<(&'static str, &'a str)>) -> TracedEnd<'a> {
    TracedEnd {
        began: Instant::now(),
        status,
        end: problem.map_or("whole", |(reason, _)| reason),
        problem,
        runtime: None,
        route: None,
        request_bytes: 0,
        response_bytes: 0,
    }
}

fn text<'a>(span: &'a Span, key: &str) -> Option<&'a str> {
    let found = span.attributes.iter().find(|pair| pair.key == key)?;
    match found.value.as_ref()?.value.as_ref()? {
        Value::StringValue(text) => Some(text),
        _ => None,
    }
}

fn is_error(span: &Span) -> bool {
    let status = span.status.as_ref();
    status.is_some_and(|status| status.code == StatusCode::Error as i32)
}

#[test]
fn off_there_is_no_trace_and_the_request_is_not_looked_at() {
    let trace = Tracer::default().trace(|| panic!("looked at"));
    assert!(trace.is_none());
}

#[test]
fn the_sender_decides_if_the_sampler_follows_it_and_the_ratio_otherwise() {
    for (follows_parent, ratio, flags, expected) in [
        (true, 0.0, Some("01"), true),
        (true, 1.0, Some("00"), false),
        (true, 0.0, None, false),
        (true, 1.0, None, true),
        (false, 0.0, Some("01"), false),
        (false, 1.0, Some("00"), true),
    ] {
        let sampler = Sampler {
            follows_parent,
            ratio,
        };
        let (tracer, ..) = tracer(sampler);
        let trace = tracer.trace(|| parent(flags?));
        assert_eq!(trace.is_some(), expected, "{sampler:?} {flags:?}");
        let Some(trace) = trace else {
            continue;
        };
        assert_eq!(trace.is_root(), flags.is_none());
        assert!(trace.context().is_sampled());
        if flags.is_some() {
            assert_eq!(trace.context().trace_id(), &TRACE[3..35]);
        }
    }
}

proptest! {
    #[test]
    fn of_two_ratios_the_greater_includes_the_traces_of_the_smaller(
        trace in any::<u128>(), one in 0.0..=1.0_f64, other in 0.0..=1.0_f64,
    ) {
        let includes = |ratio| Sampler { follows_parent: true, ratio }.includes(trace);
        let (less, more) = (one.min(other), one.max(other));
        prop_assert!(!includes(less) || includes(more));
        prop_assert!(includes(1.0) && !includes(0.0));
    }
}

#[test]
fn about_as_many_are_sampled_as_the_ratio_says() {
    let sampler = Sampler {
        follows_parent: true,
        ratio: 0.25,
    };
    let sampled = (0..10_000)
        .filter(|_| sampler.sample(None).is_some())
        .count();
    assert!((2_000..3_000).contains(&sampled), "{sampled}");
}

#[tokio::test(start_paused = true)]
async fn each_attempt_is_a_span_below_that_of_the_exchange() {
    let (tracer, mut queue, _) = tracer(ALL);
    let trace = tracer.trace(|| parent("01")).unwrap();
    trace.on_request(&request("GET"));
    let target = |authority| AttemptTarget::Upstream {
        scheme: "https",
        authority,
        address: "app",
        port: Some(443),
        path: "/x",
    };
    let began = Instant::now();
    let first = trace.on_attempt(target("app"));
    assert_eq!(first, trace.first_attempt());
    sleep(Duration::from_millis(20)).await;
    trace.on_attempt_failed("connection_refused");
    let second = trace.on_attempt(target("other"));
    assert_ne!(first.parent_id(), second.parent_id());
    sleep(Duration::from_millis(30)).await;
    trace.end(&TracedEnd {
        began,
        ..end(Some(404), None)
    });
    let spans = queue.recv().await.unwrap();
    let [server, failed, answered] = &spans[..] else {
        panic!("{spans:?}");
    };
    let took = |span: &Span| (span.end_time_unix_nano - span.start_time_unix_nano) / 1_000_000;
    assert_eq!([server, failed, answered].map(took), [50, 20, 30]);
    assert_eq!(server.kind, SpanKind::Server as i32);
    assert_eq!(
        server.parent_span_id,
        [0xb7, 0xad, 0x6b, 0x71, 0x69, 0x20, 0x33, 0x31]
    );
    // A 404 is an error of who asks, not of who answers.
    assert!(!is_error(server) && is_error(failed) && is_error(answered));
    assert_eq!(text(failed, "error.type"), Some("connection_refused"));
    assert_eq!(text(answered, "error.type"), Some("404"));
    assert_eq!(text(answered, "url.full"), Some("https://other/x"));
    for span in [failed, answered] {
        assert_eq!(span.parent_span_id, server.span_id);
        assert_eq!(span.trace_id, server.trace_id);
        assert_eq!(span.kind, SpanKind::Client as i32);
    }
}

#[test]
fn an_error_is_named_by_its_reason_and_a_name_is_not_made_up_by_a_stranger() {
    let (tracer, mut queue, _) = tracer(ALL);
    let mut span = |method, end: TracedEnd<'_>| {
        let trace = tracer.trace(|| None).unwrap();
        trace.on_request(&request(method));
        trace.end(&end);
        queue.try_recv().unwrap().remove(0)
    };
    let offline = span("GET", end(Some(503), Some(("runtime_offline", "gone"))));
    assert!(is_error(&offline));
    assert_eq!(text(&offline, "error.type"), Some("runtime_offline"));
    assert_eq!(text(&offline, "tunnel.end"), Some("runtime_offline"));
    let refused = span("GET", end(Some(431), Some(("head_too_large", ""))));
    assert!(!is_error(&refused));
    let cut = span("GET", end(Some(200), Some(("session_lost", ""))));
    assert!(is_error(&cut));
    let cancelled = span("GET", end(None, None));
    assert!(!is_error(&cancelled));
    let long = "x".repeat(5_000);
    let other = span(&long, end(Some(200), None));
    assert_eq!(other.name, "HTTP");
    assert_eq!(text(&other, "http.request.method"), Some("_OTHER"));
    assert_eq!(
        text(&other, "http.request.method_original").unwrap().len(),
        1_024
    );
}

#[test]
fn what_finds_the_queue_full_is_dropped_and_counted() {
    let (tracer, _queue, dropped) = tracer(ALL);
    for _ in 0..3 {
        let trace = tracer.trace(|| None).unwrap();
        trace.on_attempt(AttemptTarget::Tunnel);
        trace.end(&end(Some(200), None));
    }
    assert_eq!(dropped.get(), 4);
}

#[test]
fn more_attempts_than_are_traced_belong_to_the_exchange() {
    let (tracer, mut queue, _) = tracer(ALL);
    let trace = tracer.trace(|| None).unwrap();
    for _ in 0..ATTEMPTS {
        assert_ne!(trace.on_attempt(AttemptTarget::Tunnel), trace.context());
    }
    assert_eq!(trace.on_attempt(AttemptTarget::Tunnel), trace.context());
    trace.end(&end(Some(200), None));
    assert_eq!(queue.try_recv().unwrap().len(), 1 + ATTEMPTS);
}
