//! What a route costs: from a request's first line to the route that takes it.
//!
//! In: tables of one to a thousand routes, and paths that match in the ways paths do. Out: time and
//! allocations of a look-up, of a template filled in, and of a prefix stripped. No sockets, no HTTP.
//!
//! Allocations are counted while the time is taken, which adds some nanoseconds to each of them.
#![allow(clippy::unwrap_used, reason = "a benchmark fails by panicking")]

use std::hint::black_box;

use divan::{AllocProfiler, Bencher};
use http::Method;
use tunnel_routing::matcher::{Conditions, Matcher, RouteKey};
use tunnel_routing::odd::OddParts;
use tunnel_routing::pattern::Pattern;
use tunnel_routing::rewrite::Prefix;
use tunnel_routing::template::Template;

#[global_allocator]
static ALLOC: AllocProfiler = AllocProfiler::system();

/// Samples of each benchmark, and runs in each: fixed, since a slow first run (a cold cache) would
/// otherwise make every sample too short to time.
const SAMPLES: u32 = 200;
const SAMPLE_SIZE: u32 = 128;

const TABLES: [usize; 3] = [1, 10, 1_000];

const HOOKS: &str = "/webhooks/{namespace}/{event_source}/*";

fn main() {
    divan::main();
}

fn route(host: Option<&str>, path: &str, takes_odd: bool) -> Conditions {
    Conditions {
        host: host.map(|host| host.parse().unwrap()),
        methods: Vec::new(),
        path: path.parse().unwrap(),
        allow_paths_with: match takes_odd {
            true => OddParts::ALL,
            false => OddParts::NONE,
        },
        is_denial: false,
        prefix: None,
    }
}

/// `/*` alone, or beside it as many services with a prefix each.
fn table(count: usize) -> Matcher {
    let services = (1..count).map(|number| route(None, &format!("/service-{number}/api/*"), false));
    let all: Vec<_> = [route(None, "/*", count == 1)]
        .into_iter()
        .chain(services)
        .collect();
    let (matcher, overlaps) = Matcher::new(&all);
    assert!(overlaps.is_empty());
    matcher
}

fn key<'a>(host: &'a str, path: &'a str) -> RouteKey<'a> {
    RouteKey {
        host: Some(host.as_bytes()),
        method: &Method::GET,
        path: path.as_bytes(),
    }
}

/// A path below one of the prefixes, each time another.
#[divan::bench(args = TABLES, sample_size = SAMPLE_SIZE, sample_count = SAMPLES)]
fn prefix(bencher: Bencher<'_, '_>, routes: usize) {
    let matcher = table(routes);
    let paths: Vec<_> = (0..routes)
        .map(|number| format!("/service-{}/api/projects/42", number * 7 % routes))
        .collect();
    let mut paths = paths.iter().cycle();
    bencher.bench_local(|| {
        let path = black_box(paths.next().unwrap());
        matcher
            .find(&key("acme-prod.tunnel.example", path))
            .unwrap()
    });
}

/// A path that only `/*` takes.
#[divan::bench(args = TABLES, sample_size = SAMPLE_SIZE, sample_count = SAMPLES)]
fn fallback(bencher: Bencher<'_, '_>, routes: usize) {
    let matcher = table(routes);
    let key = key("acme-prod.tunnel.example", "/other/api/projects/42");
    bencher.bench_local(|| matcher.find(black_box(&key)).unwrap());
}

/// A host of its own for each route.
#[divan::bench(args = TABLES, sample_size = SAMPLE_SIZE, sample_count = SAMPLES)]
fn host(bencher: Bencher<'_, '_>, routes: usize) {
    let hosts: Vec<_> = (0..routes)
        .map(|number| format!("service-{number}.example.com"))
        .collect();
    let all: Vec<_> = hosts
        .iter()
        .map(|host| route(Some(host), "/*", false))
        .collect();
    let (matcher, _) = Matcher::new(&all);
    let mut hosts = hosts.iter().cycle();
    bencher.bench_local(|| {
        let host = black_box(hosts.next().unwrap());
        matcher.find(&key(host, "/api/projects/42")).unwrap()
    });
}

/// The host of an upstream, from the segments of a path.
#[divan::bench(sample_size = SAMPLE_SIZE, sample_count = SAMPLES)]
fn fill_template(bencher: Bencher<'_, '_>) {
    let path: Pattern = HOOKS.parse().unwrap();
    let url = "http://{event_source}-eventsource-svc.{namespace}.svc.cluster.local:12000";
    let template = Template::parse(url, &path).unwrap();
    bencher.bench_local(|| {
        template
            .fill(black_box(b"/webhooks/team-a/github/push"))
            .unwrap()
    });
}

#[divan::bench(sample_size = SAMPLE_SIZE, sample_count = SAMPLES)]
fn strip_prefix(bencher: Bencher<'_, '_>) {
    let prefix = Prefix::new("/workflows", "");
    bencher.bench_local(|| {
        prefix
            .replace(black_box("/workflows/api/v1/info?x=1"))
            .unwrap()
    });
}
