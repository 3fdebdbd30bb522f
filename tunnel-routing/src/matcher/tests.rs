//! Tests of the matcher, against a slow reference that is obvious.

mod readings;

use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use proptest::sample::select;

use super::*;

/// A route as written, which the reference matcher parses for each request.
#[derive(Debug, Clone)]
struct Written {
    host: Option<&'static str>,
    methods: Vec<Method>,
    path: String,
    takes_odd: bool,
}

impl Written {
    fn conditions(&self) -> Conditions {
        Conditions {
            host: self.host.map(|host| host.parse().unwrap()),
            methods: self.methods.clone(),
            path: self.path.parse().unwrap(),
            allow_paths_with: match self.takes_odd {
                true => OddParts::ALL,
                false => OddParts::NONE,
            },
            is_denial: false,
            prefix: None,
        }
    }

    /// How much this says about a request, or nothing when it does not match: the rule of
    /// docs/reference/routes.md, word for word.
    fn score(&self, host: &str, method: &Method, path: &str) -> Option<Vec<usize>> {
        let host_score = match self.host {
            None => 0,
            Some(own) => match own.strip_prefix('*') {
                Some(end) if host.len() > end.len() && host.ends_with(end) => end.len(),
                None if own == host => 1_000,
                _ => return None,
            },
        };
        if !self.methods.is_empty() && !self.methods.contains(method) {
            return None;
        }
        let mut scores = vec![host_score];
        scores.extend(self.path_score(path)?);
        // Behind all that a path can say.
        scores.resize(64, 0);
        scores.push(usize::from(!self.methods.is_empty()));
        Some(scores)
    }

    fn path_score(&self, path: &str) -> Option<Vec<usize>> {
        if self.path == "/*" {
            return Some(vec![3]);
        }
        let given: Vec<&str> = path.split('/').collect();
        let own: Vec<&str> = self.path.split('/').collect();
        let mut scores = Vec::new();
        for (index, own) in own.iter().enumerate() {
            match (given.get(index), *own) {
                (_, "*") => return Some(scores),
                (Some(given), own) if own.starts_with('{') && !given.is_empty() => scores.push(2),
                (Some(given), own) if !own.starts_with('{') && own == *given => scores.push(3),
                _ => return None,
            }
        }
        scores.push(1);
        (own.len() == given.len()).then_some(scores)
    }
}

fn looks_odd(path: &str) -> bool {
    let has_encoded = |what: std::ops::RangeInclusive<char>| {
        what.into_iter().any(|one| {
            path.to_lowercase()
                .contains(&format!("%{:02x}", one as u32))
        })
    };
    if [
        '\0'..='\x1f',
        '0'..='9',
        'A'..='Z',
        'a'..='z',
        '-'..='.',
        '_'..='_',
        '~'..='\x7f',
    ]
    .into_iter()
    .any(has_encoded)
    {
        return true;
    }
    let path = path.to_lowercase().replace("%2e", ".");
    path.contains(['\\', ';'])
        || path.contains("//")
        || path.contains("%2f")
        || path.contains("%5c")
        || path.split('/').any(|segment| {
            let name = segment.split("%3b").next().unwrap();
            name == "." || name == ".."
        })
}

fn reference(
    routes: &[Written],
    host: &str,
    method: &Method,
    path: &str,
) -> Result<usize, NoRoute> {
    let scored = routes.iter().enumerate();
    let scored =
        scored.filter_map(|(index, route)| Some((route.score(host, method, path)?, index)));
    // The first of those that say most; only those that overlap say the same.
    let best = scored
        .max_by(|(a, first), (b, second)| a.cmp(b).then(second.cmp(first)))
        .map(|(_, index)| index);
    match best {
        None => Err(NoRoute::Unknown),
        Some(index) if looks_odd(path) && !routes[index].takes_odd => Err(NoRoute::OddPath(index)),
        Some(index) => Ok(index),
    }
}

fn written() -> impl Strategy<Value = Written> {
    let segment = select(vec!["a", "b", "{x}", "%2e", "a.b", "app-proxy"]);
    let path = vec(segment, 0..4).prop_map(|mut segments| {
        // A name stands in a path once.
        let mut names = ["{x}", "{y}", "{z}", "{w}"].into_iter();
        for segment in &mut segments {
            if *segment == "{x}" {
                *segment = names.next().unwrap();
            }
        }
        format!("/{}", segments.join("/"))
    });
    let path = (path, any::<bool>()).prop_map(|(path, takes_rest)| match (takes_rest, &*path) {
        (false, _) => path,
        (true, "/") => "/*".to_owned(),
        (true, _) => format!("{path}/*"),
    });
    let methods = vec(select(vec![Method::GET, Method::POST, Method::PUT]), 0..3);
    let hosts = vec!["a.test", "b.a.test", "*.a.test", "*.test", "*.b.a.test"];
    (option::of(select(hosts)), methods, path, any::<bool>()).prop_map(
        |(host, methods, path, takes_odd)| Written {
            host,
            methods,
            path,
            takes_odd,
        },
    )
}

fn hostile_path() -> impl Strategy<Value = String> {
    let segment = select(vec![
        "a",
        "b",
        "c",
        "",
        ".",
        "..",
        "%2e",
        "%2E%2e",
        ".%2e",
        "a%2fb",
        "a%5Cb",
        "a\\b",
        "..;x",
        "a;x",
        "%2e%3b",
        "%252e",
        "app-proxy",
        "app-proxyx",
        "*",
        "{x}",
        "a.b",
        "...",
        "%",
        "%2",
        "%61",
        "?",
        "a b",
        "\u{fc}",
    ]);
    let path = vec(segment, 0..6).prop_map(|segments| format!("/{}", segments.join("/")));
    prop_oneof![9 => path, 1 => "\\PC{0,12}", 1 => Just("*".to_owned())]
}

fn conditions(host: Option<&str>, methods: &[Method], path: &str) -> Conditions {
    Conditions {
        host: host.map(|host| host.parse().unwrap()),
        methods: methods.to_vec(),
        path: path.parse().unwrap(),
        allow_paths_with: OddParts::NONE,
        is_denial: false,
        prefix: None,
    }
}

/// The pattern of a route that denies.
fn denial(conditions: Conditions) -> Conditions {
    Conditions {
        allow_paths_with: OddParts::ALL,
        is_denial: true,
        ..conditions
    }
}

fn found(routes: &[Conditions], host: &str, method: Method, path: &str) -> Result<usize, NoRoute> {
    let (matcher, _) = Matcher::new(routes);
    matcher.find(&RouteKey {
        host: Some(host.as_bytes()),
        method: &method,
        path: path.as_bytes(),
    })
}

#[test]
fn the_most_specific_wins_whatever_the_order() {
    let mut routes = vec![
        conditions(None, &[], "/*"),
        conditions(None, &[], "/app-proxy/*"),
        conditions(None, &[], "/webhooks/{namespace}/{event_source}/*"),
        conditions(None, &[], "/webhooks/{namespace}/health"),
        conditions(None, &[Method::POST], "/app-proxy/*"),
        conditions(Some("*.example.com"), &[], "/*"),
        conditions(Some("x.example.com"), &[Method::GET], "/*"),
    ];
    for _ in 0..routes.len() {
        routes.rotate_left(1);
        let path = |host: &str, method: Method, path: &str| {
            let route = &routes[found(&routes, host, method, path).unwrap()];
            (
                route.path.as_str(),
                route.host.is_some(),
                route.methods.len(),
            )
        };
        assert_eq!(
            path("a", Method::GET, "/app-proxy/x"),
            ("/app-proxy/*", false, 0)
        );
        assert_eq!(
            path("a", Method::POST, "/app-proxy"),
            ("/app-proxy/*", false, 1)
        );
        assert_eq!(path("a", Method::GET, "/app-proxyx"), ("/*", false, 0));
        let health = "/webhooks/{namespace}/health";
        assert_eq!(
            path("a", Method::GET, "/webhooks/n/health"),
            (health, false, 0)
        );
        let hooks = "/webhooks/{namespace}/{event_source}/*";
        assert_eq!(
            path("a", Method::GET, "/webhooks/n/health/x"),
            (hooks, false, 0)
        );
        assert_eq!(path("a", Method::GET, "/webhooks/n/"), ("/*", false, 0));
        assert_eq!(
            path("y.Example.com:1", Method::GET, "/app-proxy"),
            ("/*", true, 0)
        );
        assert_eq!(
            path("X.example.com.", Method::GET, "/app-proxy"),
            ("/*", true, 1)
        );
        assert_eq!(
            path("x.example.com", Method::PUT, "/app-proxy"),
            ("/*", true, 0)
        );
    }
}

/// Many frameworks read it as the other.
#[test]
fn a_denied_method_is_denied_in_small_letters() {
    let (get, delete) = (Method::GET, Method::DELETE);
    let routes = [
        denial(conditions(None, std::slice::from_ref(&delete), "/a/*")),
        conditions(None, &[get], "/a/b"),
        conditions(None, &[], "/*"),
    ];
    let of = |method: &str, path: &str| found(&routes, "a.test", method.parse().unwrap(), path);
    for method in ["DELETE", "delete", "Delete"] {
        assert_eq!(of(method, "/a/b"), Ok(0), "{method}");
    }
    // Others are what they are written.
    assert_eq!((of("GET", "/a/b"), of("get", "/a/b")), (Ok(1), Ok(2)));
    assert_eq!(of("deletes", "/a/b"), Ok(2));
}

#[test]
fn a_host_that_is_too_long_is_nobodys() {
    let routes = [conditions(Some("*.test"), &[], "/*")];
    let host = format!("{}.test", "a".repeat(300));
    assert_eq!(
        found(&routes, &host, Method::GET, "/"),
        Err(NoRoute::Unknown)
    );
    assert_eq!(found(&routes, "a.test", Method::GET, "/"), Ok(0));
}

#[test]
fn routes_of_which_neither_is_more_specific_are_told() {
    let overlaps = |routes: &[Conditions]| {
        let overlaps = Matcher::new(routes).1;
        overlaps
            .iter()
            .map(|overlap| (overlap.first, overlap.second))
            .collect::<Vec<_>>()
    };
    let routes = [
        conditions(None, &[Method::GET, Method::GET], "/{a}/*"),
        conditions(None, &[Method::POST, Method::GET], "/{b}/*"),
        conditions(None, &[], "/{a}/*"),
        conditions(Some("a.test"), &[], "/{a}/*"),
        conditions(Some("A.test"), &[], "/{c}/*"),
        conditions(Some("*.a.test"), &[], "/{c}/*"),
        conditions(None, &[], "/{a}"),
    ];
    assert_eq!(overlaps(&routes), [(0, 1), (3, 4)]);
}

#[test]
fn an_odd_spelling_of_a_path_is_no_way_around_its_route() {
    let allowing = |conditions: Conditions| Conditions {
        allow_paths_with: OddParts::ALL,
        ..conditions
    };
    let routes = [
        conditions(None, &[], "/a/*"),
        conditions(None, &[Method::POST], "/a/{x}/*"),
        conditions(Some("a.test"), &[], "/b/*"),
        allowing(conditions(None, &[], "/b/c/*")),
        allowing(conditions(None, &[], "/*")),
    ];
    for (host, method, path, expected) in [
        ("", Method::GET, "/a/b", Ok(0)),
        ("", Method::GET, "/a/../b", Err(NoRoute::OddPath(0))),
        ("", Method::GET, "/a/b%2fc", Err(NoRoute::OddPath(0))),
        ("", Method::GET, "/a//b", Err(NoRoute::OddPath(0))),
        ("", Method::GET, "/a/;b", Err(NoRoute::OddPath(0))),
        ("", Method::POST, "/a/b%2fc", Err(NoRoute::OddPath(1))),
        ("", Method::POST, "/a//b", Err(NoRoute::OddPath(0))),
        ("a.test", Method::GET, "/b/c/%2e", Err(NoRoute::OddPath(2))),
        ("", Method::GET, "/b/c/%2e", Ok(3)),
        ("", Method::GET, "/b/%2e", Ok(4)),
        // It is another path as it stands, which only the widest takes.
        ("", Method::GET, "//a/b", Ok(4)),
    ] {
        assert_eq!(found(&routes, host, method, path), expected, "{path}");
    }
    let alone = found(&routes[..1], "", Method::GET, "//a/b");
    assert_eq!(alone, Err(NoRoute::Unknown));
}

#[test]
fn a_route_takes_the_odd_parts_that_it_names_and_no_others() {
    let routes = [Conditions {
        allow_paths_with: OddParts::ENCODED_SLASH.with(OddParts::SEMICOLON),
        ..conditions(None, &[], "/*")
    }];
    for (path, expected) in [
        ("/a%2fb;c", Ok(0)),
        ("/a//b", Err(NoRoute::OddPath(0))),
        ("/a%2f..", Ok(0)),
        ("/a%2f/..", Err(NoRoute::OddPath(0))),
        ("/%61", Err(NoRoute::OddPath(0))),
    ] {
        assert_eq!(found(&routes, "", Method::GET, path), expected, "{path}");
    }
}

#[test]
fn what_an_upstream_may_read_as_denied_is_denied() {
    let allowing = |conditions: Conditions| Conditions {
        allow_paths_with: OddParts::ALL,
        ..conditions
    };
    let routes = [
        allowing(conditions(None, &[], "/*")),
        denial(conditions(None, &[], "/admin/*")),
        allowing(conditions(None, &[], "/admin/public/*")),
        denial(conditions(None, &[Method::PUT], "/{a}")),
        denial(conditions(None, &[], "/caf%c3%A9/@me")),
        allowing(conditions(None, &[], "/static/assets/*")),
        allowing(conditions(Some("a.test"), &[], "/files/*")),
        allowing(conditions(None, &[], "/admin/projects/{id}/issues")),
    ];
    for (method, path, expected) in [
        (Method::GET, "/admin/x", 1),
        (Method::GET, "/%61dmin/x", 1),
        (Method::GET, "//admin", 1),
        (Method::GET, "/x/../admin", 1),
        (Method::GET, "/x%2f..%5cadmin;a", 1),
        (Method::GET, "/\\admin", 1),
        (Method::GET, "/admin%00", 1),
        (Method::GET, "/caf%C3%a9/%40me", 4),
        (Method::GET, "/x%2fy//z", 0),
        (Method::PUT, "/x//", 0),
        // The route that takes the path as it stands has a longer pattern, and is about other paths.
        (Method::GET, "/static/assets/..%2f..%2fadmin/x", 1),
        (Method::GET, "/static/assets/a%2fb", 5),
        (Method::PUT, "/admin/public/..%2f..%2fx", 3),
        // It is an exception to the denial, as long as nobody leaves it.
        (Method::GET, "/admin/public/a%2fb", 2),
        (Method::GET, "/admin/projects/group%2Fone/issues", 7),
        (Method::GET, "/admin/public/..%2fx", 1),
        (Method::GET, "/admin/public/x%2f..%2fy", 2),
        (Method::GET, "/admin/projects/a%2f..%2fb/issues", 7),
        (Method::GET, "/admin/projects/a%2f..%2f..%2fb/issues", 1),
        (Method::GET, "/admin/projects/a%2fdelete%00/issues", 1),
    ] {
        assert_eq!(found(&routes, "", method, path), Ok(expected), "{path}");
    }
    // More specific by its host.
    for (path, expected) in [("/files/..%2fadmin/x", 1), ("/files/a%2fb", 6)] {
        let found = found(&routes, "a.test", Method::GET, path);
        assert_eq!(found, Ok(expected), "{path}");
    }
}

/// A path in the normal form of RFC 3986 section 6.2.2.
fn normal(path: &str) -> String {
    let mut text = String::new();
    let mut rest = path;
    while let Some(first) = rest.chars().next() {
        let code = rest.get(1..3).filter(|_| first == '%');
        match code.and_then(|code| u8::from_str_radix(code, 16).ok()) {
            Some(byte) => {
                let letter = char::from(byte);
                match letter.is_ascii_alphanumeric() || "-._~".contains(letter) {
                    true => text.push(letter),
                    false => text.push_str(&rest[..3].to_uppercase()),
                }
                rest = &rest[3..];
            }
            None => {
                text.push(first);
                rest = &rest[first.len_utf8()..];
            }
        }
    }
    let mut segments: Vec<&str> = Vec::new();
    let given: Vec<_> = text.split('/').skip(1).collect();
    for (index, segment) in given.iter().enumerate() {
        match *segment {
            "." | ".." => {
                if *segment == ".." {
                    segments.pop();
                }
                if index + 1 == given.len() {
                    segments.push("");
                }
            }
            other => segments.push(other),
        }
    }
    format!("/{}", segments.join("/"))
}

fn disguised_path() -> impl Strategy<Value = String> {
    let segment = select(vec![
        "a",
        "%61",
        "b",
        "%62",
        "%2E",
        "..",
        ".",
        "%2e.",
        "x",
        "%78",
        "",
        "a%20b",
        "%61%20%62",
        "%c3%a9",
        "%C3%A9",
        "a%2fb",
        "a;b",
    ]);
    vec(segment, 0..6).prop_map(|segments| format!("/{}", segments.join("/")))
}

fn table_with_denials() -> impl Strategy<Value = Vec<Conditions>> {
    let segment = select(vec!["a", "b", "x", "a%20b", "%C3%A9", "{n}"]);
    let path = (vec(segment, 0..3), any::<bool>()).prop_map(|(mut segments, takes_rest)| {
        let mut names = ["{n}", "{m}", "{o}"].into_iter();
        for segment in segments.iter_mut().filter(|segment| **segment == "{n}") {
            *segment = names.next().unwrap();
        }
        segments.extend(takes_rest.then_some("*"));
        format!("/{}", segments.join("/"))
    });
    let route = (path, any::<bool>()).prop_map(|(path, denies)| {
        let route = conditions(None, &[], &path);
        if denies { denial(route) } else { route }
    });
    vec(route, 1..8)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]
    #[test]
    fn no_spelling_of_a_path_gets_around_a_route_that_denies_it(
        routes in table_with_denials(),
        paths in vec(disguised_path(), 1..16),
    ) {
        for path in &paths {
            if let Ok(index) = found(&routes, "", Method::GET, &normal(path))
                && routes[index].is_denial
            {
                let takes = found(&routes, "", Method::GET, path);
                let is_forwarded = takes.is_ok_and(|index| !routes[index].is_denial);
                prop_assert!(!is_forwarded, "{} {:?} {:?}", path, takes, routes);
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]
    #[test]
    fn it_finds_what_the_slow_reference_finds(
        written in vec(written(), 0..12),
        paths in vec(hostile_path(), 1..8),
        host in select(vec!["a.test", "b.a.test", "c.b.a.test", "c.a.test", "test", "", "x.y", ".a.test"]),
        method in select(vec![Method::GET, Method::POST, Method::PUT, Method::HEAD]),
    ) {
        let routes: Vec<_> = written.iter().map(Written::conditions).collect();
        let (matcher, overlaps) = Matcher::new(&routes);
        // Those that overlap are refused when they are loaded, so no request is asked for them.
        let written: Vec<_> = written.into_iter().enumerate()
            .filter(|(index, _)| overlaps.iter().all(|overlap| overlap.second != *index))
            .map(|(_, written)| written)
            .collect();
        let routes: Vec<_> = written.iter().map(Written::conditions).collect();
        let (matcher, overlaps) = if overlaps.is_empty() { (matcher, overlaps) } else { Matcher::new(&routes) };
        prop_assert!(overlaps.is_empty());
        for path in &paths {
            let key = RouteKey { host: Some(host.as_bytes()), method: &method, path: path.as_bytes() };
            let expected = reference(&written, host, &method, path);
            prop_assert_eq!(matcher.find(&key), expected, "{} {}", host, path);
            let matching: Vec<_> = routes.iter().filter(|route| route.matches(&key)).collect();
            prop_assert_eq!(matching.is_empty(), expected == Err(NoRoute::Unknown));
            if let Ok(decides) | Err(NoRoute::OddPath(decides)) = expected {
                let refused = routes[decides].refused_parts(key.path);
                prop_assert_eq!(!refused.is_empty(), expected.is_err());
                prop_assert!(matching.iter().all(|other| routes[decides].compare(other).is_ge()));
            }
        }
    }
}
