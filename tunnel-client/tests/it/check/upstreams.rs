//! What a check says of what routes lead to.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use rcgen::date_time_ymd;
use testkit::ca::Authority;
use testkit::listener::Listener;
use testkit::scripted::ScriptedUpstream;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpListener;
use tokio::sync::Barrier;
use tunnel_client::check::{Step, StepResult};

use super::{Place, verdict};

use crate::network::{self, checked, head};

#[tokio::test]
async fn upstreams_are_connected_to_whatever_the_server_says() {
    let place = Place::new();
    let server = network::server(
        &place.authority.issue(&["127.0.0.1"]).identity(),
        Some(checked()),
    )
    .await;
    let closed = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let flag = format!("--upstream=http://{}", closed.local_addr().unwrap());
    drop(closed);
    for server in [server.url(), "wss://127.0.0.1:1".to_owned()] {
        let report = place.check(&server, &[&flag]).await;
        let step = report.steps.last().unwrap();
        assert_eq!(
            (step.step, step.name.as_deref()),
            (Step::Upstream, Some("default"))
        );
        assert_eq!(step.verdict.as_ref().unwrap().name, "upstream_refused");
        assert!(!report.is_ok());
    }
    let flag = "--upstream=http://no-such-host.invalid";
    let report = place.check(&server.url(), &[flag]).await;
    assert_eq!(verdict(&report), (Step::Upstream, "upstream_dns_failure"));
    let other = Authority::new("Other");
    let wrong = Listener::tls(&other.issue(&["127.0.0.1"]).identity(), None, |_stream| {
        Box::pin(async {})
    })
    .await;
    let flag = format!("--upstream=https://{}", wrong.address);
    let report = place.check(&server.url(), &[&flag]).await;
    assert_eq!(verdict(&report), (Step::Upstream, "upstream_certificate"));
}

#[tokio::test]
async fn each_upstream_of_the_routes_is_looked_at() {
    let place = Place::new();
    let server = network::server(
        &place.authority.issue(&["127.0.0.1"]).identity(),
        Some(checked()),
    )
    .await;
    let well = ScriptedUpstream::answering(b"HTTP/1.1 204 No Content\r\n\r\n").await;
    let ill = ScriptedUpstream::answering(b"HTTP/1.1 503 Oh\r\ncontent-length: 0\r\n\r\n").await;
    let closed = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let gone = closed.local_addr().unwrap();
    drop(closed);
    let (well, ill) = (well.url(), ill.url());
    let table = format!(
        r#"
        [[route]]
        name = "app"
        path = "/app/*"
        upstreams = [{{ url = "{well}", weight = 3 }}, {{ url = "{ill}" }}]
        health = {{ path = "/healthz", interval = "5s", timeout = "2s" }}

        [[route]]
        name = "hooks"
        path = "/hooks/{{source}}"
        upstream = "http://{{source}}.hooks.svc"

        [[route]]
        name = "metrics"
        path = "/metrics"
        deny = "not for the outside"
        "#
    );
    place.write("client.toml", &table);
    let config = format!("--config={}", place.path().join("client.toml").display());
    let upstream = format!("--upstream=http://{gone}");
    let report = place.check(&server.url(), &[&config, &upstream]).await;
    let upstreams: Vec<_> = (report.steps.iter())
        .filter(|step| step.step == Step::Upstream)
        .map(|step| {
            let verdict = step.verdict.as_ref().map(|verdict| verdict.name);
            (step.name.as_deref().unwrap(), step.result, verdict)
        })
        .collect();
    assert_eq!(
        upstreams,
        [
            ("app", StepResult::Held, None),
            ("app", StepResult::Failed, Some("upstream_unhealthy")),
            ("hooks", StepResult::Skipped, None),
            ("default", StepResult::Failed, Some("upstream_refused")),
        ]
    );
}

/// What answers as no upstream should is no failure where requests may succeed all the same.
#[tokio::test]
async fn doubtful_answers_are_warnings_with_advice() {
    const SETTINGS: &[u8] = b"\0\0\x06\x04\0\0\0\0\0\0\x05\0\0@\0";
    let place = Place::new();
    let server = network::server(
        &place.authority.issue(&["127.0.0.1"]).identity(),
        Some(checked()),
    )
    .await;
    let silent = ScriptedUpstream::answering(b"").await;
    let refusing = ScriptedUpstream::answering(b"HTTP/1.1 400 No\r\n\r\n").await;
    let http2 = ScriptedUpstream::answering(SETTINGS).await;
    let good = ScriptedUpstream::answering(b"HTTP/1.1 200 OK\r\n\r\n").await;
    let secure = |answer: &'static [u8]| {
        let identity = place.authority.issue(&["127.0.0.1"]).identity();
        async move {
            Listener::tls(&identity, None, move |mut stream| async move {
                let _ = head(&mut stream).await;
                let _ = stream.write_all(answer).await;
                let _ = stream.shutdown().await;
            })
            .await
        }
    };
    let (http1, other) = (
        secure(b"HTTP/1.1 200 OK\r\n\r\n").await,
        secure(b"220 mail\r\n").await,
    );
    let (http1, other) = (
        format!("https://{}", http1.address),
        format!("https://{}", other.address),
    );
    let ca = format!(
        "tls = {{ ca_file = \"{}/ca.pem\" }}",
        place.path().display()
    );
    let ca = ca.as_str();
    let (ok, warning, failed) = (StepResult::Held, StepResult::Warning, StepResult::Failed);
    let (any, grpc) = ("/a/*", "/shop.v1.Orders/*");
    let cases = [
        (any, silent.url(), "", warning, Some("upstream_silent")),
        (
            any,
            refusing.url(),
            "",
            warning,
            Some("upstream_bad_request"),
        ),
        (any, http2.url(), "", failed, Some("upstream_protocol")),
        (any, other, ca, failed, Some("upstream_protocol")),
        (any, http1.clone(), ca, ok, None),
        (grpc, good.url(), "", warning, Some("upstream_grpc")),
        (grpc, http1, ca, warning, Some("upstream_grpc")),
        (grpc, http2.url().replace("http", "h2c"), "", ok, None),
    ];
    for (path, url, more, result, verdict) in cases {
        let table =
            format!("[[route]]\nname = \"a\"\npath = \"{path}\"\nupstream = \"{url}\"\n{more}\n");
        place.write("client.toml", &table);
        let config = format!("--config={}", place.path().join("client.toml").display());
        let default = format!("--upstream={}", good.url());
        let report = place.check(&server.url(), &[&config, &default]).await;
        let mut steps = report.steps.iter();
        let step = steps
            .find(|step| step.name.as_deref() == Some("a"))
            .unwrap();
        let name = step.verdict.as_ref().map(|verdict| verdict.name);
        assert_eq!((step.result, name), (result, verdict), "{url} {report:#?}");
        assert_eq!(report.is_ok(), result != failed, "{report:#?}");
        let is_of_tls = step.words.contains("over TLS");
        assert_eq!(is_of_tls, result == failed && url.starts_with("https"));
    }
}

/// Side by side, or those of a network that drops everything would take minutes; and each once.
#[tokio::test]
async fn upstreams_are_looked_at_side_by_side_and_told_in_their_order() {
    const DIFFERENT: usize = 6;
    let place = Place::new();
    let server = network::server(
        &place.authority.issue(&["127.0.0.1"]).identity(),
        Some(checked()),
    )
    .await;
    let all_asked = Arc::new(Barrier::new(DIFFERENT));
    let asked = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&asked);
    let upstream = Listener::plain(move |mut stream| {
        let (all_asked, asked) = (Arc::clone(&all_asked), Arc::clone(&asked));
        async move {
            // A connection that is only tried asks nothing.
            if head(&mut stream).await.is_some() {
                asked.fetch_add(1, Ordering::SeqCst);
                all_asked.wait().await;
                let _ = stream.write_all(b"HTTP/1.1 204 No Content\r\n\r\n").await;
            }
        }
    })
    .await;
    let url = format!("http://{}", upstream.address);
    // What the last one leads to is what the first one does.
    let table: String = (0..=DIFFERENT)
        .map(|number| {
            let seconds = 60 + number % DIFFERENT;
            format!(
                "[[route]]\nname = \"app{number}\"\npath = \"/{number}/*\"\nupstream = \"{url}\"\n\
                 head_timeout = \"{seconds}s\"\nhealth = {{ path = \"/\", interval = \"1m\", timeout = \"30s\" }}\n"
            )
        })
        .collect();
    place.write("client.toml", &table);
    let config = format!("--config={}", place.path().join("client.toml").display());
    let upstream = ScriptedUpstream::answering(b"").await;
    let default = format!("--upstream={}", upstream.url());
    let report = place.check(&server.url(), &[&config, &default]).await;
    assert!(report.is_ok(), "{report:#?}");
    assert_eq!(counted.load(Ordering::SeqCst), DIFFERENT);
    let names = report.steps.iter().filter_map(|step| step.name.clone());
    let expected = (0..=DIFFERENT).map(|number| format!("app{number}"));
    let expected: Vec<_> = expected.chain(["default".to_owned()]).collect();
    assert_eq!(names.collect::<Vec<_>>(), expected);
}

/// What fails at one upstream is told with what helps there.
#[cfg(unix)]
#[tokio::test]
async fn an_upstream_s_certificate_and_socket_have_their_own_advice() {
    let place = Place::new();
    let server = network::server(
        &place.authority.issue(&["127.0.0.1"]).identity(),
        Some(checked()),
    )
    .await;
    let old = place
        .authority
        .issue_with(&["127.0.0.1"], |params| {
            params.not_before = date_time_ymd(2001, 1, 1);
            params.not_after = date_time_ymd(2002, 1, 1);
        })
        .identity();
    let old = Listener::tls(&old, None, |_stream| Box::pin(async {})).await;
    let socket = format!("unix:{}", place.path().join("app.sock").display());
    let ca = format!(
        "--upstream-ca-file={}",
        place.path().join("ca.pem").display()
    );
    let expired = format!("https://{}", old.address);
    for (url, more, name, advice) in [
        (
            &expired,
            &[ca.as_str()][..],
            "upstream_certificate",
            "get a new one",
        ),
        (&socket, &[], "upstream_refused", "correct the path"),
    ] {
        let flag = format!("--upstream={url}");
        let flags: Vec<&str> = more.iter().copied().chain([flag.as_str()]).collect();
        let report = place.check(&server.url(), &flags).await;
        assert_eq!(verdict(&report), (Step::Upstream, name));
        let told = &report.verdict().unwrap().advice;
        assert!(told.contains(advice), "{told}");
    }
}
