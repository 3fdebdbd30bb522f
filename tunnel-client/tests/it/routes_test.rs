//! `tunnel-client routes test` and `validate`: what the program says of routes, and the example that is
//! to be used as it is.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use serde_json::Value;
use tunnel_routing::config::RouteList;
use tunnel_routing::dry_run::{DryRunRequest, Outcome, try_request};

struct Ended {
    code: Option<i32>,
    stdout: String,
    stderr: String,
}

fn run(arguments: &[&str]) -> Ended {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tunnel-client"));
    let output = command.args(arguments).env_clear().output().unwrap();
    Ended {
        code: output.status.code(),
        stdout: String::from_utf8(output.stdout).unwrap(),
        stderr: String::from_utf8(output.stderr).unwrap(),
    }
}

fn example() -> PathBuf {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("..");
    root.join("examples/gitops-runtime.toml")
}

/// What the example does with a request, in a few words.
fn outcome(routes: &RouteList, request: &str) -> String {
    let (method, path) = request.split_once(' ').unwrap();
    let url = format!("https://acc-prod.tunnels.example{path}");
    let trial = try_request(routes, &DryRunRequest::new(method, &url).unwrap());
    let name = trial.route.map_or("none", |route| &*route.name);
    match trial.outcome {
        Outcome::Forwarded(sent) => format!("{name} -> {} as {}", sent[0].url, sent[0].host),
        Outcome::Answered(status) => format!("{name} answers {status}"),
        Outcome::SegmentRefused(_) => format!("{name} refuses"),
        Outcome::Unknown => "none".to_owned(),
        other => format!("{name} {other:?}"),
    }
}

#[test]
fn the_example_has_every_row_of_the_runtimes_router() {
    let routes = RouteList::from_toml(example(), &fs::read_to_string(example()).unwrap()).unwrap();
    let app = "as cap-app-proxy:3017";
    let argo = "as argo-server:2746";
    let hooks = "github-eventsource-svc.argo.svc.cluster.local";
    for (request, expected) in [
        (
            "POST /app-proxy/api/graphql",
            format!("app-proxy -> http://cap-app-proxy:3017/app-proxy/api/graphql {app}"),
        ),
        (
            "OPTIONS /app-proxy/api/graphql",
            format!("app-proxy -> http://cap-app-proxy:3017/app-proxy/api/graphql {app}"),
        ),
        (
            "GET /app-proxy",
            format!("app-proxy -> http://cap-app-proxy:3017/app-proxy {app}"),
        ),
        ("GET /app-proxyx", "none".to_owned()),
        // As it came, as clients have always sent it.
        (
            "GET /app-proxy/api/repos/owner%2Frepo",
            format!(
                "app-proxy -> http://cap-app-proxy:3017/app-proxy/api/repos/owner%2Frepo {app}"
            ),
        ),
        (
            "GET /workflows/artifact-files/argo%2Fx",
            format!("workflows -> https://argo-server:2746/artifact-files/argo%2Fx {argo}"),
        ),
        (
            "GET /workflows//evil.test/",
            "workflows OddPath({\"empty_segment\"})".to_owned(),
        ),
        (
            "GET /workflows/",
            format!("workflows -> https://argo-server:2746/ {argo}"),
        ),
        (
            "GET /workflows/api/v1/workflow-events/argo?a=%2f&&",
            format!(
                "workflows -> https://argo-server:2746/api/v1/workflow-events/argo?a=%2f&& {argo}"
            ),
        ),
        (
            "POST /webhooks/argo/github/push?x=1",
            format!("webhooks -> http://{hooks}/webhooks/argo/github/push?x=1 as {hooks}"),
        ),
        (
            "POST /webhooks/argo/github",
            format!("webhooks -> http://{hooks}/webhooks/argo/github as {hooks}"),
        ),
        ("GET /readyz", "readyz answers 200".to_owned()),
        ("HEAD /healthz", "healthz answers 200".to_owned()),
        ("GET /", "none".to_owned()),
        ("GET /api/v1/namespaces", "none".to_owned()),
    ] {
        assert_eq!(outcome(&routes, request), expected, "{request}");
    }
}

#[test]
fn no_webhook_of_the_example_goes_where_its_path_does_not_lead() {
    let routes = RouteList::from_toml(example(), &fs::read_to_string(example()).unwrap()).unwrap();
    let refused = "webhooks refuses";
    let odd = |part: &str| format!("webhooks OddPath({{\"{part}\"}})");
    for (request, expected) in [
        ("POST /webhooks/argo", "none".to_owned()),
        ("POST /webhooks/argo/", "none".to_owned()),
        ("POST /webhooks//github/push", "none".to_owned()),
        (
            "POST /webhooks/kube-system%3f/github/push",
            refused.to_owned(),
        ),
        ("POST /webhooks/evil.test:80/github", refused.to_owned()),
        ("POST /webhooks/a@b/github", refused.to_owned()),
        ("POST /webhooks/argo/GitHub", refused.to_owned()),
        ("POST /webhooks/argo%2fx/github", odd("encoded_slash")),
        ("POST /webhooks/../github/x", odd("dot_segment")),
        ("POST /webhooks/argo/github/../x", odd("dot_segment")),
        ("POST /webhooks/argo/github//x", odd("empty_segment")),
        ("POST /webhooks/argo/git;hub/x", odd("semicolon")),
        ("POST /webhooks/argo/%67ithub/x", odd("encoded_unreserved")),
        ("POST //webhooks/argo/github/x", "none".to_owned()),
        (
            "GET /app-proxy/owner%2Frepo/../x",
            "app-proxy OddPath({\"dot_segment\"})".to_owned(),
        ),
    ] {
        assert_eq!(outcome(&routes, request), expected, "{request}");
    }
}

#[test]
fn the_winner_is_told_with_why() {
    let config = format!("--config={}", example().display());
    let ended = run(&[
        "routes",
        "test",
        &config,
        "POST",
        "https://a.example/webhooks/argo/github/push",
    ]);
    assert_eq!((ended.code, ended.stderr.as_str()), (Some(0), ""));
    for line in [
        "segment    {namespace} = argo",
        "upstream   http://github-eventsource-svc.argo.svc.cluster.local/webhooks/argo/github/push",
        "host       github-eventsource-svc.argo.svc.cluster.local",
        "http       HTTP/1.1",
    ] {
        assert!(
            ended.stdout.lines().any(|found| found == line),
            "{}",
            ended.stdout
        );
    }
    assert!(
        ended.stdout.starts_with("route      webhooks (line "),
        "{}",
        ended.stdout
    );
    assert!(
        ended.stdout.contains("is for another path"),
        "{}",
        ended.stdout
    );
}

#[test]
fn what_gets_nowhere_is_told_with_its_exit_code() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("client.toml");
    let text = r#"
        [[route]]
        name = "no"
        path = "/no/*"
        deny = "not for the outside"
        [[route]]
        name = "hooks"
        path = "/hooks/{namespace}"
        upstream = "http://{namespace}.svc"
        [[route]]
        name = "shared"
        path = "/shared"
        upstreams = [{ url = "http://a", weight = 3 }, { url = "h2c://b" }]
        [[route]]
        name = "all"
        path = "/all/*"
        allow_paths_with = ["encoded_slash", "empty_segment", "semicolon", "dot_segment", "backslash"]
        strip_prefix = "/all"
        upstream = "http://a"
        "#;
    fs::write(&file, text).unwrap();
    let config = format!("--config={}", file.display());
    let check = |request: &[&str], code: i32, words: &str| {
        let arguments = [&["routes", "test", config.as_str()], request].concat();
        let ended = run(&arguments);
        assert_eq!(ended.code, Some(code), "{}{}", ended.stdout, ended.stderr);
        let told = format!("{}{}", ended.stdout, ended.stderr);
        assert!(told.contains(words), "{told}");
    };
    check(&["/shared"], 0, "upstream   http://a/shared   (weight 3)");
    check(&["/shared"], 0, "http       HTTP/1.1\nhttp       HTTP/2\n");
    check(&["/no/a"], 1, "route      no (line 3)\n");
    check(
        &["/no/a"],
        1,
        "error: route `no` denies it (403 route_denied): not for the outside",
    );
    check(
        &["/hooks/A"],
        1,
        "error: route `hooks` refuses it (404 segment_refused): the segment `namespace` is no DNS",
    );
    check(
        &["/other"],
        1,
        "error: no route takes it (404 route_unknown)",
    );
    check(
        &["/hooks/.."],
        1,
        "error: route `hooks` refuses it (404 route_unknown): the path has a segment `.` or `..`",
    );
    check(
        &["--upstream=http://c:81", "/hooks/.."],
        1,
        "route      hooks (line 7)\nmatches    /hooks/{namespace}\nsegment    {namespace} = ..\n\
         refuses    404, the path has a segment `.` or `..`, encoded or not\n",
    );
    check(&["/no/a%2fb"], 1, "denies it (403 route_denied)");
    check(
        &["/all//x"],
        1,
        "route `all` refuses it (404 segment_refused)",
    );
    check(&["/all/x//y"], 0, "upstream   http://a/x//y");
    check(&["GET", "not a url"], 2, "expected a URL");
    check(&["G T", "/"], 2, "expected a method");
    check(&["a", "b", "c"], 2, "");
    // What the program refuses in a request.
    check(&["/all/<"], 2, "no request can have this URL");
    check(&["/all/a b"], 2, "no request can have this URL");
    check(&["/all/é"], 2, "bytes that are not visible ascii");
    check(
        &["CONNECT", "/all/x"],
        2,
        "connect and trace are not served",
    );
    check(&["TRACE", "/all/x"], 2, "connect and trace are not served");
    check(&["GET", "*"], 2, "a target that is not a path");
    check(&["https://a_b~/all/x"], 2, "no request can");
    check(&["OPTIONS", "*"], 1, "no route takes it");
    // The route of the flag is one of them.
    check(
        &["--upstream=http://c:81", "/other"],
        0,
        "upstream   http://c:81/other",
    );
    let ended = run(&[
        "routes",
        "test",
        "--json",
        &config,
        "https://x.test/hooks/argo?a",
    ]);
    let told: Value = serde_json::from_str(&ended.stdout).unwrap();
    assert_eq!(told["route"], "hooks");
    assert_eq!(
        told["outcome"]["upstreams"][0]["url"],
        "http://argo.svc/hooks/argo?a"
    );
    assert_eq!(told["outcome"]["upstreams"][0]["host"], "x.test");
    assert_eq!(told["outcome"]["upstreams"][0]["http"], "1.1");
    assert_eq!(told["segments"][0]["value"], "argo");
    let ended = run(&["routes", "test", "--json", &config, "/hooks/.."]);
    let told: Value = serde_json::from_str(&ended.stdout).unwrap();
    assert_eq!(
        (&told["route"], &told["line"]),
        (&"hooks".into(), &7.into())
    );
    let ended = run(&["routes", "test", "--json", &config, "/other"]);
    assert_eq!(ended.code, Some(1));
    let told: Value = serde_json::from_str(&ended.stdout).unwrap();
    assert_eq!(
        (&told["route"], told["outcome"]["kind"].as_str()),
        (&Value::Null, Some("route_unknown"))
    );
}

#[test]
fn validate_shows_the_table_the_most_specific_first_and_every_fault() {
    let folder = tempfile::tempdir().unwrap();
    let made = testkit::ca::self_signed("localhost");
    let write = |name: &str, text: &str| fs::write(folder.path().join(name), text).unwrap();
    write("ca.pem", &made.certificate);
    write("token", "tnlrt_1_secret\n");
    let settings = "server = \"wss://127.0.0.1:1\"\ntoken_file = \"token\"\nca_file = \"ca.pem\"\n";
    let routes = |second: &str| {
        format!(
            "{settings}upstream = \"http://rest\"\n[[route]]\nname = \"a\"\npath = \"/a/*\"\nupstream = \"http://a\"\n\
             [[route]]\nname = \"b\"\npath = \"{second}\"\nhost = \"b.test\"\ndeny = \"no\"\n"
        )
    };
    write("client.toml", &routes("/b"));
    let config = format!("--config={}", folder.path().join("client.toml").display());
    let ended = run(&["validate", &config]);
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    let lines: Vec<_> = ended
        .stdout
        .lines()
        .map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "))
        .collect();
    assert_eq!(
        lines,
        [
            "ok: server wss://127.0.0.1:1, routes 3",
            "b b.test /b denies: no",
            "a /a/* http://a",
            "default /* http://rest",
        ]
    );
    write("client.toml", &routes("b"));
    let ended = run(&["validate", &config]);
    assert_eq!(ended.code, Some(2));
    let place = "client.toml:11:8: route.path: expected a path";
    assert!(ended.stderr.contains(place), "{}", ended.stderr);
}
