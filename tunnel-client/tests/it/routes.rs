//! Requests go by the table of routes: to the upstream that it says, changed as it says, or to nobody.

use bytes::Bytes;
use http::{Method, Request, Response};
use http_body_util::Empty;
use tunnel_proto::problem::Reason;
use tunnel_routing::config::RouteList;

use crate::setup::{Setup, get, post};
use testkit::scripted::ScriptedUpstream;

/// Answers each request with its own head, and with this field.
pub(crate) async fn telling(name: &'static str) -> ScriptedUpstream {
    telling_at("127.0.0.1:0", name).await
}

/// The same at an address.
pub(crate) async fn telling_at(address: &str, name: &'static str) -> ScriptedUpstream {
    ScriptedUpstream::start_at(address.parse().unwrap(), move |mut connection| async move {
        while let Ok(head) = connection.head().await {
            let answer = format!(
                "HTTP/1.1 200 OK\r\nserver: {name}\r\ncontent-length: {}\r\n\r\n{head}",
                head.len()
            );
            connection.send(answer).await;
        }
    })
    .await
}

/// A client with these routes, and no other upstream than one that nobody listens at.
async fn with_routes(routes: &str) -> Setup {
    let routes = RouteList::from_toml("routes.toml", routes).unwrap();
    Setup::with("http://127.0.0.1:1", |config| {
        config.settings.upstream = None;
        config.routes = routes;
    })
    .await
}

fn asked(method: Method, path: &str, fields: &[(&str, &str)]) -> Request<Empty<Bytes>> {
    let mut request = Request::builder()
        .method(method)
        .uri(format!("https://a-b.tunnels.test{path}"));
    for (name, value) in fields {
        request = request.header(*name, *value);
    }
    request.body(Empty::new()).unwrap()
}

fn field<'a, B>(response: &'a Response<B>, name: &str) -> &'a str {
    let value = response.headers().get(name);
    value.map_or("", |value| value.to_str().unwrap())
}

#[tokio::test]
async fn each_path_goes_to_its_own_upstream() {
    let (app, workflows, rest) = (
        telling("app").await,
        telling("workflows").await,
        telling("rest").await,
    );
    let setup = with_routes(&format!(
        r#"
        [[route]]
        name = "app"
        path = "/app/*"
        upstream = "{}"
        [[route]]
        name = "workflows"
        path = "/workflows/*"
        strip_prefix = "/workflows"
        host_header = "upstream"
        upstream = "{}"
        [[route]]
        name = "rest"
        path = "/{{any}}"
        host_header = "some.name"
        upstream = "{}"
        "#,
        app.url(),
        workflows.url(),
        rest.url()
    ))
    .await;
    for (path, name, line, host) in [
        ("/app", "app", "GET /app ", "a-b.tunnels.test"),
        (
            "/app/x%40y/?a=%zz//;",
            "app",
            "GET /app/x%40y/?a=%zz//; ",
            "a-b.tunnels.test",
        ),
        (
            "/workflows?x",
            "workflows",
            "GET /?x ",
            &workflows.url()["http://".len()..],
        ),
        (
            "/workflows/api/v1?x=/y",
            "workflows",
            "GET /api/v1?x=/y ",
            &workflows.url()["http://".len()..],
        ),
        ("/workflowsx", "rest", "GET /workflowsx ", "some.name"),
    ] {
        let answer = setup.session.fetch(get(path)).await;
        assert_eq!(field(&answer, "server"), name, "{path}");
        assert!(answer.body().starts_with(line), "{path}: {}", answer.body());
        let expected = format!("host: {host}\r\n");
        assert_eq!(answer.body().matches("host: ").count(), 1, "{path}");
        assert!(
            answer.body().contains(&expected),
            "{path}: {}",
            answer.body()
        );
    }
    for (series, value) in [("app", 2.0), ("workflows", 2.0), ("rest", 1.0)] {
        let series = format!("route_exchanges_total{{route=\"{series}\",status=\"2xx\"}}");
        setup.client.wait_metric(&series, value).await;
    }
}

#[tokio::test]
async fn fields_are_changed_both_ways() {
    let upstream = telling("app").await;
    let setup = with_routes(&format!(
        r#"
        [[route]]
        name = "app"
        path = "/*"
        upstream = "{}"
        request_headers = {{ remove = ["x-secret"], set = {{ x-from = "tunnel" }}, add = {{ x-more = "2" }} }}
        response_headers = {{ remove = ["server"], set = {{ x-frame-options = "DENY" }} }}
        "#,
        upstream.url()
    ))
    .await;
    let fields = [("x-secret", "s"), ("x-from", "me"), ("x-more", "1")];
    let answer = setup.session.fetch(asked(Method::GET, "/", &fields)).await;
    let body = answer.body();
    assert!(
        !body.contains("x-secret") && body.contains("x-from: tunnel\r\n"),
        "{body}"
    );
    assert!(
        body.contains("x-more: 1\r\n") && body.contains("x-more: 2\r\n"),
        "{body}"
    );
    assert_eq!(
        (field(&answer, "server"), field(&answer, "x-frame-options")),
        ("", "DENY")
    );
}

#[tokio::test]
async fn what_no_route_sends_on_is_told_apart() {
    let setup = with_routes(
        r#"
        [[route]]
        name = "no"
        path = "/no/*"
        deny = "not for the outside"
        [[route]]
        name = "hooks"
        methods = ["POST"]
        path = "/hooks/{namespace}/*"
        values = { namespace = ["argo"] }
        upstream = "http://{namespace}.invalid"
        [[route]]
        name = "all"
        path = "/hooks/*"
        respond = { body = "anybody" }
        "#,
    )
    .await;
    let failure = |path| setup.session.failure(asked(Method::POST, path, &[]));
    assert_eq!(failure("/other").await, Reason::RouteUnknown);
    assert_eq!(failure("/no/a").await, Reason::RouteDenied);
    // It is not sent by a less specific route instead.
    assert_eq!(failure("/hooks/team-a").await, Reason::SegmentRefused);
    assert_eq!(failure("/hooks/a%2fb").await, Reason::RouteUnknown);
    assert_eq!(failure("/hooks/../no").await, Reason::RouteUnknown);
    assert_eq!(
        setup.session.fetch(get("/hooks/team-a")).await.body(),
        "anybody"
    );
    let denied = setup.session.ask(get("/no")).await.unwrap_err();
    assert_eq!(denied.detail(), "not for the outside");
    for (reason, value) in [
        ("route_unknown", 3.0),
        ("route_denied", 2.0),
        ("segment_refused", 1.0),
    ] {
        let series = format!("problems_total{{reason=\"{reason}\"}}");
        setup.client.wait_metric(&series, value).await;
    }
}

#[tokio::test]
async fn an_odd_path_is_refused_where_a_plain_one_would_go() {
    let setup = with_routes(
        r#"
        [[route]]
        name = "no"
        path = "/no/*"
        deny = "not for the outside"
        [[route]]
        name = "hooks"
        path = "/hooks/{namespace}/*"
        values = { namespace = ["argo"] }
        upstream = "http://{namespace}.invalid"
        [[route]]
        name = "all"
        path = "/*"
        allow_paths_with = ["encoded_slash", "empty_segment"]
        respond = { body = "anybody" }
        "#,
    )
    .await;
    for path in [
        "/no/a%2fb",
        "/no//a",
        "/no/a/..",
        "/no/;a",
        "//no",
        "//no%2fa",
    ] {
        let failure = setup.session.failure(get(path)).await;
        assert_eq!(failure, Reason::RouteDenied, "{path}");
    }
    for (path, words) in [
        (
            "/hooks/team%2fa/x",
            "route `hooks` does not take a path with an encoded slash",
        ),
        (
            "/hooks/argo/../x",
            "route `hooks` does not take a path with a segment `.`",
        ),
        (
            "/hooks/argo;x/y",
            "route `hooks` does not take a path with a `;`",
        ),
        (
            "/%6eo/a",
            "route `all` does not take a path with an encoded letter",
        ),
        (
            "/a//b/..",
            "route `all` does not take a path with a segment `.`",
        ),
    ] {
        let problem = setup.session.ask(get(path)).await.unwrap_err();
        assert_eq!(problem.reason(), Reason::RouteUnknown, "{path}");
        assert!(problem.detail().starts_with(words), "{problem}");
    }
    assert_eq!(setup.session.fetch(get("/a//b")).await.body(), "anybody");
}

#[tokio::test]
async fn a_fixed_answer_is_given_without_asking_anybody() {
    let setup = with_routes(
        r#"
        [[route]]
        name = "readyz"
        path = "/readyz"
        respond = { status = 203, content_type = "text/plain", body = "ok" }
        response_headers = { set = { cache-control = "no-store" } }
        "#,
    )
    .await;
    let answer = setup.session.fetch(get("/readyz?x")).await;
    assert_eq!(
        (answer.status().as_u16(), answer.body().as_str()),
        (203, "ok")
    );
    assert_eq!(field(&answer, "content-type"), "text/plain");
    assert_eq!(field(&answer, "cache-control"), "no-store");
    let answer = setup
        .session
        .fetch(asked(Method::HEAD, "/readyz", &[]))
        .await;
    assert_eq!(
        (field(&answer, "content-length"), answer.body().as_str()),
        ("2", "")
    );
    // Its content is nobody's, and does not hold up the next.
    let posted = Request::post("https://a-b.tunnels.test/readyz").header("content-length", 5);
    let posted = posted
        .body(http_body_util::Full::new(Bytes::from("hello")))
        .unwrap();
    assert_eq!(setup.session.fetch(posted).await.body(), "ok");
    assert_eq!(setup.session.fetch(get("/readyz")).await.body(), "ok");
}

#[tokio::test]
async fn a_page_reads_why_its_upstream_does_not_answer() {
    let there = telling("app").await;
    let setup = with_routes(&format!(
        r#"
        [[route]]
        name = "away"
        path = "/app/*"
        upstream = "http://127.0.0.1:1"
        cors = {{ origins = ["https://g.test"], headers = ["x-access-token"], credentials = true }}
        [[route]]
        name = "there"
        path = "/there"
        upstream = "{}"
        cors = {{ origins = ["https://g.test"] }}
        [[route]]
        name = "fixed"
        path = "/fixed"
        respond = {{ body = "ok" }}
        cors = {{ origins = ["*"] }}
        "#,
        there.url()
    ))
    .await;
    let (ours, theirs) = (
        [("origin", "https://g.test")],
        [("origin", "https://evil.test")],
    );
    let answer = setup
        .session
        .fetch(asked(Method::POST, "/app/api", &ours))
        .await;
    assert_eq!(answer.status().as_u16(), 502);
    assert_eq!(
        field(&answer, "access-control-allow-origin"),
        "https://g.test"
    );
    assert!(
        answer.body().contains("\"reason\":\"connection_refused\""),
        "{}",
        answer.body()
    );
    let preflight = [ours[0], ("access-control-request-method", "POST")];
    let answer = setup
        .session
        .fetch(asked(Method::OPTIONS, "/app/api", &preflight))
        .await;
    assert_eq!(
        (answer.status().as_u16(), answer.body().as_str()),
        (204, "")
    );
    assert_eq!(
        field(&answer, "access-control-allow-headers"),
        "x-access-token"
    );
    for fields in [&theirs[..], &[]] {
        let failure = setup
            .session
            .failure(asked(Method::POST, "/app/api", fields))
            .await;
        assert_eq!(failure, Reason::ConnectionRefused);
    }
    // What an upstream answers is its own, its CORS too.
    let answer = setup
        .session
        .fetch(asked(Method::OPTIONS, "/there", &preflight))
        .await;
    assert_eq!(
        (
            field(&answer, "server"),
            field(&answer, "access-control-allow-origin")
        ),
        ("app", "")
    );
    let answer = setup
        .session
        .fetch(asked(Method::GET, "/fixed", &theirs))
        .await;
    assert_eq!(
        field(&answer, "access-control-allow-origin"),
        "https://evil.test"
    );
    // Nor may a cache give a page what nobody in particular has asked for.
    let answer = setup.session.fetch(get("/fixed")).await;
    assert_eq!(
        (
            field(&answer, "vary"),
            field(&answer, "access-control-allow-origin")
        ),
        ("origin", "")
    );
    // A problem is counted as one, whoever is told.
    let series = "problems_total{reason=\"connection_refused\"}";
    setup.client.wait_metric(series, 4.0).await;
    let series = "route_exchanges_total{route=\"away\",status=\"5xx\"}";
    setup.client.wait_metric(series, 3.0).await;
}

#[tokio::test]
async fn the_route_of_the_upstream_flag_takes_what_no_other_does() {
    let (app, rest) = (telling("app").await, telling("rest").await);
    let text = format!(
        "[[route]]\nname = \"app\"\npath = \"/app\"\nmethods = [\"POST\"]\nupstream = \"{}\"\n",
        app.url()
    );
    let routes = RouteList::from_toml("routes.toml", &text).unwrap();
    let setup = Setup::with(&rest.url(), |config| config.routes = routes).await;
    let request = Request::post("https://a-b.tunnels.test/app").body(Empty::<Bytes>::new());
    let answer = setup.session.fetch(request.unwrap()).await;
    assert_eq!(field(&answer, "server"), "app");
    assert_eq!(
        field(&setup.session.fetch(get("/app")).await, "server"),
        "rest"
    );
    assert_eq!(
        field(&setup.session.fetch(post("")).await, "server"),
        "rest"
    );
    // Beside other routes it does not take what could be meant for them.
    assert_eq!(
        setup.session.failure(get("/x/../app")).await,
        Reason::RouteUnknown
    );
    setup
        .client
        .wait_metric(
            "route_exchanges_total{route=\"default\",status=\"2xx\"}",
            2.0,
        )
        .await;
}

#[tokio::test]
async fn an_upgrade_is_a_get() {
    let upstream =
        ScriptedUpstream::answering(b"HTTP/1.1 426 Upgrade Required\r\ncontent-length: 0\r\n\r\n")
            .await;
    let setup = with_routes(&format!(
        "[[route]]\nname = \"socket\"\npath = \"/socket\"\nmethods = [\"GET\"]\nupstream = \"{}\"\n",
        upstream.url()
    ))
    .await;
    let answer = setup.session.ask(upgrade("/socket")).await;
    assert_eq!(answer.unwrap().status().as_u16(), 426);
}

fn upgrade(path: &str) -> Request<Empty<Bytes>> {
    let mut request = asked(Method::CONNECT, path, &[]);
    let protocol = tunnel_proto::exchange::Protocol::WEBSOCKET;
    request.extensions_mut().insert(protocol);
    request
}

#[tokio::test]
async fn a_fixed_answer_never_agrees_to_an_upgrade() {
    let setup = with_routes(
        r#"
        [[route]]
        name = "ok"
        path = "/ok"
        respond = { body = "ok" }
        [[route]]
        name = "no"
        path = "/no"
        respond = { status = 426, body = "no" }
        "#,
    )
    .await;
    let failure = setup.session.failure(upgrade("/ok")).await;
    assert_eq!(failure, Reason::UpgradeFailed);
    let answer = setup.session.fetch(upgrade("/no")).await;
    assert_eq!(
        (answer.status().as_u16(), answer.body().as_str()),
        (426, "no")
    );
}
