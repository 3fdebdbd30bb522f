//! Any request: the matcher finds the route that a search of all routes finds. No path yields a host that is not made of
//! labels, and rewriting never yields an invalid target.
#![no_main]

use std::cmp::Ordering;
use std::sync::LazyLock;

use http::{Method, uri::PathAndQuery};
use libfuzzer_sys::fuzz_target;
use tunnel_routing::{
    matcher::{Conditions, Matcher, NoRoute, RouteKey},
    odd::OddParts,
    pattern::Pattern,
    rewrite::Prefix,
    template::{Template, is_dns_label},
};

const HOOKS: &str = "/webhooks/{namespace}/{event_source}/*";

static TABLE: LazyLock<(Vec<Conditions>, Matcher)> = LazyLock::new(|| {
    let route = |host: &str, methods: &[Method], path: &str, takes_odd: bool| Conditions {
        host: (!host.is_empty()).then(|| host.parse().unwrap()),
        methods: methods.to_vec(),
        path: path.parse().unwrap(),
        allow_paths_with: match takes_odd {
            true => OddParts::ALL,
            false => OddParts::NONE,
        },
        is_denial: false,
        prefix: None,
    };
    let routes = vec![
        route("", &[], "/a/*", false),
        route("", &[], "/a/b/*", true),
        route("", &[], "/a/{x}/c", false),
        route("", &[Method::GET], "/a/{x}/*", false),
        route("", &[], "/", true),
        route("", &[], "/a/", false),
        route("", &[], HOOKS, false),
        route("", &[], "/app-proxy/*", false),
        route("*.test", &[], "/a/*", false),
        route("*.a.test", &[Method::POST], "/{x}/*", true),
        route("a.test", &[], "/*", true),
    ];
    let (matcher, overlaps) = Matcher::new(&routes);
    assert!(overlaps.is_empty());
    (routes, matcher)
});

static TEMPLATE: LazyLock<(Pattern, Template)> = LazyLock::new(|| {
    let path = HOOKS.parse().unwrap();
    let url = "http://{event_source}-eventsource-svc.{namespace}.svc.cluster.local";
    let template = Template::parse(url, &path).unwrap();
    (path, template)
});

fuzz_target!(|bytes: &[u8]| {
    let mut parts = bytes.splitn(2, |byte| *byte == b'\n');
    let path = parts.next().unwrap_or_default();
    let host = parts.next();
    let (routes, matcher) = &*TABLE;
    for method in [Method::GET, Method::POST] {
        let key = RouteKey {
            host,
            method: &method,
            path,
        };
        let matching = || routes.iter().filter(|route| route.matches(&key));
        let found = matcher.find(&key);
        match found {
            Err(NoRoute::Unknown) => assert_eq!(matching().count(), 0),
            Err(NoRoute::TooManyReadings(_)) => unreachable!("no route denies"),
            Ok(index) | Err(NoRoute::OddPath(index)) => {
                let decides = &routes[index];
                assert!(decides.matches(&key));
                assert_eq!(!decides.refused_parts(path).is_empty(), found.is_err());
                assert!(matching().all(|other| decides.compare(other) != Ordering::Less));
            }
        }
    }
    let (hooks, template) = &*TEMPLATE;
    if hooks.matches(path)
        && let Ok(url) = template.fill(path)
    {
        let labels: Vec<_> = url.host().split('.').collect();
        assert!(labels.len() == 5 && labels.iter().all(|label| is_dns_label(label.as_bytes())));
        assert!(
            labels[0].ends_with("-eventsource-svc") && labels[2..] == ["svc", "cluster", "local"]
        );
    }
    if let Ok(text) = std::str::from_utf8(path) {
        if let Ok(pattern) = text.parse::<Pattern>() {
            pattern.matches(path);
            let _ = Template::parse(text, &pattern);
        }
        if let Ok(target) = PathAndQuery::try_from(text)
            && let Some(replaced) = Prefix::new("/a", "/b").replace(target.as_str())
        {
            let replaced = PathAndQuery::try_from(replaced).unwrap();
            assert_eq!(replaced.query(), target.query());
        }
    }
});
