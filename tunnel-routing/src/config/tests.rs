//! Tests of routes in a file: what is taken, what is refused, and with which words.

use http::Method;

use super::*;
use crate::rewrite::HostHeader;

fn read(text: &str) -> Result<RouteList, Faults<ConfigFileError>> {
    RouteList::from_toml("r.toml", text)
}

#[track_caller]
fn check(text: &str, expected: &[&str]) {
    check_with(&RouteDefaults::default(), text, expected);
}

#[track_caller]
fn check_with(defaults: &RouteDefaults, text: &str, expected: &[&str]) {
    let file = TomlFile::from_text("r.toml", text);
    let faults = RouteList::from_file(&file, defaults).unwrap_err();
    let faults: Vec<_> = faults.faults().iter().map(ToString::to_string).collect();
    assert_eq!(faults, expected);
}

/// A route with this in it, and the faults without their place.
#[track_caller]
fn faults_of(rest: &str) -> Vec<String> {
    let text = format!("[[route]]\nname = \"a\"\n{rest}\n");
    let error = read(&text).expect_err(rest);
    let faults = error.faults().iter().map(ToString::to_string);
    faults
        .map(|fault| fault.split_once(": ").unwrap().1.to_owned())
        .collect()
}

#[track_caller]
fn refused(rest: &str, key: &str, words: &str) {
    let faults = faults_of(rest);
    let [fault] = faults.as_slice() else {
        panic!("{rest}: {faults:?}")
    };
    assert!(fault.starts_with(&format!("{key}: ")), "{rest}: {fault}");
    assert!(fault.contains(words), "{rest}: {fault}");
}

#[test]
fn a_whole_table_is_read() {
    let text = r#"
        [[route]]
        name = "webhooks"
        host = "*.Example.com"
        methods = ["POST", "OPTIONS"]
        path = "/webhooks/{namespace}/{event_source}/*"
        allow_paths_with = ["encoded_slash", "semicolon"]
        values = { namespace = ["argo", "team-a"] }
        upstream = "http://{event_source}-eventsource-svc.{namespace}.svc.cluster.local"
        replace_prefix = { from = "/webhooks", to = "/hooks" }
        host_header = "some.name:80"
        request_headers = { set = { x-a = "1" }, add = { x-b = "2" }, remove = ["x-c"] }
        response_headers = { remove = ["server"] }
        head_timeout = "1m"
        idle_timeout = "10m"
        max_body = "25MiB"
        cors = { origins = ["https://g.example.com"], credentials = true, max_age = "1h" }

        [[route]]
        name = "app"
        path = "/app/*"
        upstreams = [{ url = "http://a:80", weight = 3 }, { url = "h2c://b" }]
        health = { path = "/healthz" }
        ejection = { for = "30s" }
        "#;
    let defaults = RouteDefaults {
        connect_timeout: Duration::from_secs(3),
        ..RouteDefaults::default()
    };
    let routes = RouteList::from_file(&TomlFile::from_text("r.toml", text), &defaults).unwrap();
    let [hooks, app] = routes.0.as_slice() else {
        panic!("{routes:?}")
    };
    assert_eq!((hooks.line, &*hooks.name), (Some(3), "webhooks"));
    let conditions = &hooks.conditions;
    assert_eq!(conditions.methods, [Method::POST, Method::OPTIONS]);
    let parts = OddParts::ENCODED_SLASH.with(OddParts::SEMICOLON);
    assert_eq!(conditions.allow_paths_with, parts);
    assert_eq!(hooks.values[0].index, 1);
    assert_eq!(hooks.check_values(b"/webhooks/argo/x"), Ok(()));
    assert_eq!(
        &*hooks.check_values(b"/webhooks/other/x").unwrap_err().name,
        "namespace"
    );
    assert!(matches!(&hooks.rewrite.host, HostHeader::Set(host) if host == "some.name:80"));
    assert_eq!(hooks.rewrite.request.count(), 3);
    assert_eq!(
        hooks.cors.as_ref().unwrap().max_age,
        Some(Duration::from_secs(3600))
    );
    let RouteAction::Template(_, options) = &hooks.action else {
        panic!("{:?}", hooks.action)
    };
    let seconds = Duration::from_secs;
    assert_eq!(
        (
            options.connect_timeout,
            options.head_timeout,
            options.idle_timeout,
            options.max_body
        ),
        (seconds(3), seconds(60), Some(seconds(600)), Some(25 << 20))
    );
    let RouteAction::Upstreams(upstreams) = &app.action else {
        panic!("{:?}", app.action)
    };
    let weights: Vec<_> = upstreams
        .members
        .iter()
        .map(|member| member.weight)
        .collect();
    assert_eq!((weights, &upstreams.options.tls), (vec![3, 1], &None));
    let health = upstreams.health.as_ref().unwrap();
    assert_eq!(
        (
            health.interval,
            health.unhealthy_after,
            health.healthy_after
        ),
        (seconds(5), 3, 2)
    );
    let ejection = upstreams.ejection.as_ref().unwrap();
    assert_eq!((ejection.after, ejection.duration), (5, seconds(30)));
}

#[test]
fn all_faults_are_told_at_once_with_file_line_and_key() {
    check(
        r#"upstream = "http://a"
[[route]]
name = "One"
path = "one"
upstream = "http://a/b"
connect_timeout = "5"

[[route]]
name = "two"
path = "/two"

[[route]]
name = "two"
path = "/three"
deny = "no"
"#,
        &[
            "r.toml:3:8: route.name: expected lower-case letters, digits and inner hyphens, at most 63",
            "r.toml:13:8: route.name: `two` is the route in line 9 already",
            "r.toml:4:8: route.path: expected a path such as `/readyz`, `/app/*` or `/hooks/{name}/*`: it must \
             begin with `/`",
            "r.toml:5:12: route.upstream: expected a URL such as `http://127.0.0.1:3000`: leave out path, query \
             and fragment",
            "r.toml:6:19: route.connect_timeout: a duration needs a unit, such as `5s`, `250ms` or `10m`",
            "r.toml:9:8: route: expected exactly one of `upstream`, `upstreams`, `respond` and `deny`",
        ],
    );
}

#[test]
fn a_version_of_http_is_for_https_upstreams() {
    let upstream = |url: &str, http: &str| {
        format!("[[route]]\nname = \"a\"\npath = \"/\"\nupstream = \"{url}\"\nhttp = {http}\n")
    };
    for (http, expected) in [
        ("\"auto\"", UpstreamHttp::Auto),
        ("\"1.1\"", UpstreamHttp::Http1),
        ("\"2\"", UpstreamHttp::Http2),
    ] {
        let text = upstream("https://a", http);
        let file = TomlFile::from_text("r.toml", text);
        let routes = RouteList::from_file(&file, &RouteDefaults::default()).unwrap();
        let RouteAction::Upstreams(upstreams) = &routes.0[0].action else {
            panic!("{routes:?}")
        };
        assert_eq!(upstreams.options.http, expected);
    }
    check(
        &upstream("https://a", "\"3\""),
        &["r.toml:5:8: route.http: expected `auto`, `1.1` or `2`"],
    );
    check(
        &upstream("h2c://a", "\"2\""),
        &[
            "r.toml:5:8: route.http: only https:// upstreams have a choice: http:// and unix: get HTTP/1.1, \
             h2c:// gets HTTP/2",
        ],
    );
}

#[test]
fn an_unknown_key_is_named_with_its_line() {
    let route = "[[route]]\nname = \"a\"\npath = \"/\"\ndeny = \"no\"\n";
    for (line, index) in [
        ("strip_prefx = \"/a\"", "r.toml:5:1: route.strip_prefx: "),
        (
            "cors = { origin = [\"https://a\"] }",
            "r.toml:5:10: route.cors.origin: ",
        ),
    ] {
        let text = format!("{route}{line}\n");
        let error = RouteList::from_toml("r.toml", &text).unwrap_err();
        assert!(error.to_string().starts_with(index), "{error}");
    }
}

#[test]
fn routes_that_take_the_same_requests_are_both_named() {
    check(
        r#"[[route]]
name = "one"
methods = ["GET", "POST"]
path = "/a/{x}/*"
deny = "no"
[[route]]
name = "two"
methods = ["POST"]
path = "/a/{y}/*"
deny = "no"
[[route]]
name = "three"
path = "/a/{y}/*"
deny = "no"
"#,
        &[
            "r.toml:9:8: route.path: `/a/{y}/*` takes the same requests as the route `one` in line 4, and neither \
             says more about them: change host, path or methods of one",
        ],
    );
    let defaults = RouteDefaults {
        upstream: Some("http://a".parse().unwrap()),
        ..RouteDefaults::default()
    };
    check_with(
        &defaults,
        "[[route]]\nname = \"all\"\npath = \"/*\"\ndeny = \"no\"\n",
        &[
            "r.toml:3:8: route.path: `/*` takes the same requests as the route that `upstream` (--upstream) makes: \
             leave one of them out",
        ],
    );
    check_with(
        &defaults,
        "[[route]]\nname = \"default\"\npath = \"/a\"\ndeny = \"no\"\n",
        &["r.toml:2:8: route.name: the route that `upstream` makes has this name"],
    );
}

#[test]
fn a_template_has_names_of_the_path_and_nothing_that_must_be_known_before() {
    let path = "path = \"/w/{a}/*\"\n";
    let with = |rest: &str| format!("{path}{rest}");
    refused(
        &with("upstream = \"http://{b}.svc\""),
        "route.upstream",
        "the path has no segment `{b}`",
    );
    refused(
        &with("upstream = \"http://a:{a}\""),
        "route.upstream",
        "only the host can be made of",
    );
    refused(
        &with("upstream = \"http://{a}.svc\"\nhealth = { path = \"/\" }"),
        "route.health",
        "known only from requests",
    );
    refused(
        &with("upstreams = [{ url = \"http://{a}.svc\" }]"),
        "route.upstreams.url",
        "only a single `upstream`",
    );
    let values = "upstream = \"http://{a}.svc\"\nvalues = { a = [\"ok\", \"Not-Ok\"] }";
    refused(&with(values), "route.values.a", "must be a DNS label");
    refused(
        &with("deny = \"no\"\nvalues = { b = [\"c\"] }"),
        "route.values.b",
        "no segment `{b}`",
    );
    refused(
        &with("deny = \"no\"\nvalues = { a = [] }"),
        "route.values.a",
        "the list is empty",
    );
    refused(
        &with("deny = \"no\"\nvalues = { a = [\"b/c\"] }"),
        "route.values.a",
        "not a path segment",
    );
}

#[test]
fn a_prefix_is_one_that_the_path_has() {
    let with = |rest: &str| format!("path = \"/a/b/{{x}}/*\"\nupstream = \"http://a\"\n{rest}");
    for bad in ["/b", "/a/b/c", "/a/bc"] {
        let rest = with(&format!("strip_prefix = \"{bad}\""));
        refused(&rest, "route.strip_prefix", "does not begin with it");
    }
    for bad in ["a", "", "/a/../b", "/a?b", "/a//b", "/a/*", "/a b"] {
        let rest = with(&format!("strip_prefix = \"{bad}\""));
        refused(&rest, "route.strip_prefix", "expected whole segments");
    }
    for good in ["/a", "/a/", "/a/b", "/"] {
        let rest = with(&format!("strip_prefix = \"{good}\""));
        assert!(
            read(&format!("[[route]]\nname = \"a\"\n{rest}")).is_ok(),
            "{good}"
        );
    }
    let both = with("strip_prefix = \"/a\"\nreplace_prefix = { from = \"/a\", to = \"/b\" }");
    refused(&both, "route.replace_prefix", "leave one of them out");
    let to = with("replace_prefix = { from = \"/a\", to = \"/%2e%2e\" }");
    refused(&to, "route.replace_prefix", "expected whole segments");
}

#[test]
fn fields_that_a_route_may_not_change_are_refused() {
    let with = |rest: &str| format!("path = \"/*\"\nupstream = \"http://a\"\n{rest}");
    for name in [
        "Connection",
        "transfer-encoding",
        "content-length",
        "via",
        "x-forwarded-for",
    ] {
        let rest = with(&format!(
            "request_headers = {{ set = {{ {name} = \"x\" }} }}"
        ));
        refused(&rest, "route.request_headers.set", "is the tunnel's own");
        let rest = with(&format!("response_headers = {{ remove = [\"{name}\"] }}"));
        refused(
            &rest,
            "route.response_headers.remove",
            "is the tunnel's own",
        );
    }
    let host = with("request_headers = { add = { host = \"x\" } }");
    refused(&host, "route.request_headers.add", "use host_header");
    let value = with("request_headers = { set = { a = \" x\" } }");
    refused(&value, "route.request_headers.set", "white space");
    let name = with("request_headers = { set = { \"a b\" = \"x\" } }");
    refused(&name, "route.request_headers.set", "is no name of a field");
    let long = "a".repeat(9_000);
    let long = with(&format!(
        "response_headers = {{ set = {{ a = \"{long}\" }} }}"
    ));
    refused(&long, "route.response_headers", "at most 8192 bytes");
    refused(
        &with("host_header = \"me@host\""),
        "route.host_header",
        "expected `keep`",
    );
}

#[test]
fn a_route_that_asks_nobody_says_nothing_about_upstreams() {
    let with = |rest: &str| format!("path = \"/*\"\n{rest}");
    for rest in [
        "strip_prefix = \"/\"",
        "max_body = \"1B\"",
        "tls = { insecure = true }",
        "host_header = \"keep\"",
    ] {
        let key = format!("route.{}", rest.split(' ').next().unwrap());
        refused(
            &with(&format!("deny = \"no\"\n{rest}")),
            &key,
            "asks no upstream",
        );
        refused(
            &with(&format!("respond = {{ status = 200 }}\n{rest}")),
            &key,
            "asks no upstream",
        );
    }
    refused(
        &with("respond = { status = 101 }"),
        "route.respond.status",
        "from 200 to 599",
    );
    refused(
        &with("respond = { status = 204, body = \"x\" }"),
        "route.respond.body",
        "has no body",
    );
    refused(&with("deny = \"\""), "route.deny", "expected a few words");
    refused(
        &with("deny = \"no\"\nupstream = \"http://a\""),
        "route",
        "exactly one of",
    );
}

#[test]
fn pages_are_named_as_browsers_name_them() {
    let with = |rest: &str| format!("path = \"/*\"\nupstream = \"http://a\"\ncors = {{ {rest} }}");
    for bad in [
        "https://A.test",
        "https://a.test/",
        "a.test",
        "null",
        "https://",
    ] {
        let rest = with(&format!("origins = [\"{bad}\"]"));
        refused(&rest, "route.cors.origins", "expected an origin");
    }
    refused(&with("origins = []"), "route.cors.origins", "one to 256");
    refused(
        &with("origins = [\"*\"], credentials = true"),
        "route.cors.origins",
        "each origin must be named",
    );
    let methods =
        "path = \"/*\"\nupstream = \"http://a\"\nmethods = [\"GET\"]\ncors = { origins = [\"*\"] }";
    refused(methods, "route.methods", "browsers ask with OPTIONS first");
    // Whichever of the routes for these paths takes it.
    let split = |second: &str| {
        let route = |name: &str, path: &str, methods: &str| {
            format!(
                "[[route]]\nname = \"{name}\"\npath = \"{path}\"\nupstream = \"http://a\"\n\
                 methods = {methods}\ncors = {{ origins = [\"*\"] }}\n"
            )
        };
        read(&(route("a", "/a/{x}", "[\"GET\", \"OPTIONS\"]") + &route("b", second, "[\"POST\"]")))
    };
    assert!(split("/a/{y}").is_ok());
    assert!(split("/b/{y}").is_err());
    refused(
        &with("origins = [\"*\"], methods = [\"get\"]"),
        "route.cors.methods",
        "upper case",
    );
}

#[test]
fn tls_is_for_upstreams_that_speak_it_and_its_files_are_read() {
    let with =
        |url: &str, tls: &str| format!("path = \"/*\"\nupstream = \"{url}\"\ntls = {{ {tls} }}");
    refused(
        &with("http://a", "insecure = true"),
        "route.tls",
        "use https://",
    );
    refused(
        &with("https://a", "ca_file = \"/nowhere\""),
        "route.tls.ca_file",
        "cannot be read",
    );
    refused(
        &with("https://a", "ca_file = \"/nowhere\", insecure = true"),
        "route.tls.ca_file",
        "leave one of them out",
    );
    let insecure = "insecure = true, ";
    let cert = |rest: &str| with("https://a", &format!("{insecure}{rest}"));
    refused(
        &cert("client_cert = \"c\""),
        "route.tls.client_cert",
        "give client_key",
    );
    refused(
        &cert("client_key = \"c\""),
        "route.tls.client_key",
        "give client_cert",
    );
    refused(
        &cert("server_name = \"a b\""),
        "route.tls.server_name",
        "expected a host name",
    );
    let text = format!(
        "[[route]]\nname = \"a\"\n{}",
        with("https://a", "insecure = true")
    );
    let routes = read(&text).unwrap();
    let RouteAction::Upstreams(upstreams) = &routes.0[0].action else {
        panic!("{routes:?}")
    };
    let tls = upstreams.options.tls.as_ref().unwrap();
    assert!(tls.insecure && tls.roots.is_none());
}

#[test]
fn numbers_and_lists_are_bounded() {
    let with = |rest: &str| format!("path = \"/*\"\n{rest}");
    refused(&with("upstreams = []"), "route.upstreams", "one to 64");
    refused(
        &with("upstreams = [{ url = \"http://a\", weight = 0 }]"),
        "route.upstreams.weight",
        "from 1 to 1000",
    );
    refused(
        &with("upstreams = [{ url = \"http://a\" }, { url = \"http://a:80\" }]"),
        "route.upstreams.url",
        "use `weight`",
    );
    refused(
        &with("upstream = \"http://a\"\nhealth = { path = \"/\", interval = \"1ms\" }"),
        "route.health.interval",
        "at least 100ms",
    );
    refused(
        &with("upstream = \"http://a\"\nhealth = { path = \"x\" }"),
        "route.health.path",
        "expected a path",
    );
    refused(
        &with("upstream = \"http://a\"\nejection = { after = 0 }"),
        "route.ejection.after",
        "from 1",
    );
    refused(
        &with("deny = \"no\"\nmethods = []"),
        "route.methods",
        "the list is empty",
    );
    refused(
        &with("deny = \"no\"\nmethods = [\"CONNECT\"]"),
        "route.methods",
        "counts as GET",
    );
    refused(
        "path = \"/a/..\"\nrespond = {}",
        "route.path",
        "unless `allow_paths_with` lists dot_segment",
    );
    refused(
        "path = \"/a%2Db%2F\"\nallow_paths_with = [\"encoded_slash\"]\nrespond = {}",
        "route.path",
        "unless `allow_paths_with` lists encoded_unreserved",
    );
    refused(
        "path = \"/a\"\nallow_paths_with = [\"slashes\"]\nrespond = {}",
        "route.allow_paths_with",
        "expected one of encoded_slash, backslash, empty_segment, semicolon, dot_segment,",
    );
    refused(
        "path = \"/a\"\nallow_odd_paths = true\nrespond = {}",
        "route.allow_odd_paths",
        "allow_paths_with = [\"encoded_slash\"]",
    );
    let route = |number: usize| {
        format!("[[route]]\nname = \"r{number}\"\npath = \"/{number}\"\ndeny = \"no\"\n")
    };
    let many: String = (0..=4096).map(route).collect();
    let error = read(&many).unwrap_err().to_string();
    assert!(
        error.ends_with("route: there may be at most 4096 routes"),
        "{error}"
    );
}

#[test]
fn a_route_that_denies_takes_odd_paths_whatever_it_says() {
    let conditions = |text: &str| {
        let routes = read(&format!("[[route]]\nname = \"a\"\n{text}")).unwrap();
        routes.0[0].conditions.clone()
    };
    let allowed = |text: &str| conditions(text).allow_paths_with;
    assert_eq!(allowed("path = \"/a/*\"\ndeny = \"no\""), OddParts::ALL);
    let named = "path = \"/a;b\"\nallow_paths_with = [\"backslash\"]\ndeny = \"no\"";
    assert_eq!(allowed(named), OddParts::ALL);
    assert_eq!(allowed("path = \"/a/*\"\nrespond = {}"), OddParts::NONE);
}

#[test]
fn the_default_route_takes_odd_paths_only_when_it_is_alone() {
    let options = || UpstreamOptions::of(&RouteDefaults::default(), None);
    let with_default = |text: &str| {
        let routes = read(text)
            .unwrap()
            .with_default("http://a".parse().unwrap(), options());
        routes.0.last().unwrap().conditions.allow_paths_with == OddParts::ALL
    };
    assert!(with_default(""));
    assert!(!with_default(
        "[[route]]\nname = \"a\"\npath = \"/a\"\ndeny = \"no\"\n"
    ));
}

#[test]
fn a_route_of_a_grpc_service_whose_upstream_gets_http1_is_warned_of() {
    let warnings = |path: &str, url: &str, more: &str| {
        let text =
            format!("[[route]]\nname = \"a\"\npath = \"{path}\"\nupstream = \"{url}\"\n{more}\n");
        read(&text).unwrap().warnings()
    };
    assert_eq!(
        warnings("/shop.v1.Orders/*", "http://a", ""),
        [
            "route `a` has the path of a gRPC service, but http://a is sent HTTP/1.1, over which gRPC calls fail: give it \
             h2c://, or https:// without `http = \"1.1\"`"
        ]
    );
    let (tls, http1) = ("tls = { insecure = true }", "http = \"1.1\"");
    let version = format!("{tls}\n{http1}");
    for (path, url, more, is_warned) in [
        ("/shop.v1.Orders/Get", "https://a", version.as_str(), true),
        ("/shop.v1.Orders/{method}", "http://{method}.svc", "", true),
        (
            "/shop.v1.Orders/*",
            "http://a",
            "methods = [\"POST\"]",
            true,
        ),
        (
            "/shop.v1.Orders/*",
            "http://a",
            "methods = [\"GET\"]",
            false,
        ),
        (
            "/shop.v1.Orders/*",
            "http://a",
            "strip_prefix = \"/shop.v1.Orders\"",
            false,
        ),
        ("/shop.v1.Orders/*", "https://a", tls, false),
        ("/shop.v1.Orders/*", "h2c://a", "", false),
        ("/shop.v1.Orders", "http://a", "", false),
        ("/Orders/*", "http://a", "", false),
        ("/jquery.min/*", "http://a", "", false),
        ("/shop-1.Orders/*", "http://a", "", false),
        ("/*", "http://a", "", false),
    ] {
        assert_eq!(
            warnings(path, url, more).len(),
            usize::from(is_warned),
            "{path} {url} {more}"
        );
    }
}

#[test]
fn a_denial_beside_a_wider_route_that_takes_odd_paths_is_warned_of() {
    let warnings = |wide: &str, host: &str| {
        let text = format!(
            "[[route]]\nname = \"no\"\npath = \"/admin/*\"\ndeny = \"no\"\n{host}\n\
             [[route]]\nname = \"all\"\nupstream = \"http://a\"\n{wide}\n"
        );
        read(&text).unwrap().warnings()
    };
    let odd = "allow_paths_with = [\"encoded_slash\", \"semicolon\"]";
    assert_eq!(
        warnings(&format!("path = \"/*\"\n{odd}"), ""),
        [
            "route `all` takes paths with an encoded slash (`%2F`), a `;`: an upstream may read one of \
             them as a path that route `no` denies"
        ]
    );
    let none: [&str; 0] = [];
    assert_eq!(warnings("path = \"/*\"", ""), none);
    assert_eq!(warnings(&format!("path = \"/app/*\"\n{odd}"), ""), none);
    let other = format!("path = \"/*\"\n{odd}\nhost = \"b.test\"");
    assert_eq!(warnings(&other, "host = \"a.test\""), none);
    assert_eq!(warnings(&other, "").len(), 1);
}
