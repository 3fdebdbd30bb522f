//! Which runtime a request goes to, and what is answered when it goes to none.

use std::time::Duration;

use testkit::{http1::RawResponse, tunnel::client::FakeClient};
use tokio::time::Instant;

use crate::rig::{DEV, DEV_HOST, DEV_OWN_HOST, PROD, PROD_HOST, Rig};

/// Spells a host in ways that mean the same.
fn spellings(host: &str) -> Vec<String> {
    let capitals = host.to_ascii_uppercase();
    let mixed = format!("{}{}", &capitals[..5], &host[5..]);
    [host, &capitals, &mixed]
        .iter()
        .flat_map(|host| {
            [
                (*host).to_owned(),
                format!("{host}."),
                format!("{host}:8080"),
            ]
        })
        .chain([format!("{host}.:443"), format!("{host}:0080")])
        .collect()
}

/// Fields that must not decide anything, each naming `host`.
fn distractions(host: &str) -> Vec<String> {
    [
        format!("x-forwarded-host: {host}"),
        format!("x-forwarded-server: {host}"),
        format!("x-host: {host}"),
        format!("x-original-host: {host}"),
        format!("x-original-url: http://{host}/"),
        format!("x-rewrite-url: http://{host}/"),
        format!("forwarded: host={host};for=1.1.1.1"),
        format!("forwarded: for=1.1.1.1, host=\"{host}\""),
        format!("connection: host\r\nx-forwarded-host: {host}"),
        format!("referer: http://{host}/"),
        format!("origin: http://{host}"),
        format!("cookie: host={host}"),
        format!(":authority: {host}"),
    ]
    .to_vec()
}

#[tokio::test]
async fn no_field_but_the_host_decides_which_runtime_answers() {
    let rig = Rig::start().await;
    let prod = FakeClient::describing(&rig, PROD).await;
    let dev = FakeClient::describing(&rig, DEV).await;
    let mut raw = rig.raw().await;
    let mut counts = (0, 0);
    for (host, other, runtime) in [
        (PROD_HOST, DEV_HOST, PROD),
        (PROD_HOST, DEV_OWN_HOST, PROD),
        (DEV_HOST, PROD_HOST, DEV),
        (DEV_OWN_HOST, PROD_HOST, DEV),
    ] {
        for host in spellings(host) {
            for distraction in distractions(other) {
                for target in ["/p".to_owned(), format!("http://{host}/p")] {
                    let request =
                        format!("GET {target} HTTP/1.1\r\nhost: {host}\r\n{distraction}\r\n\r\n");
                    let answer = raw.ask(&request).await;
                    if distraction.starts_with(':') {
                        answer.assert_refused(400, &request);
                        raw = rig.raw().await;
                        continue;
                    }
                    assert_eq!(answer.text(), format!("{runtime} GET /p\n"), "{request}");
                    *if runtime == PROD {
                        &mut counts.0
                    } else {
                        &mut counts.1
                    } += 1;
                }
            }
        }
    }
    assert_eq!((prod.seen().len(), dev.seen().len()), counts);
    assert!(prod.seen().iter().all(|seen| {
        let host = seen.authority.split(':').next().unwrap();
        host.trim_end_matches('.').eq_ignore_ascii_case(PROD_HOST)
    }));
}

#[tokio::test]
async fn a_target_and_a_host_that_differ_are_refused() {
    let rig = Rig::start().await;
    let prod = FakeClient::describing(&rig, PROD).await;
    let dev = FakeClient::describing(&rig, DEV).await;
    for (target, host) in [
        (PROD_HOST.to_owned(), DEV_HOST.to_owned()),
        (DEV_HOST.to_owned(), PROD_HOST.to_owned()),
        (DEV_OWN_HOST.to_owned(), DEV_HOST.to_owned()),
        (format!("{PROD_HOST}:80"), format!("{PROD_HOST}:81")),
        (PROD_HOST.to_owned(), "evil.test".to_owned()),
        ("evil.test".to_owned(), PROD_HOST.to_owned()),
    ] {
        let mut raw = rig.raw().await;
        let request = format!("GET http://{target}/ HTTP/1.1\r\nhost: {host}\r\n\r\n");
        raw.ask(&request).await.assert_refused(400, &request);
    }
    assert_eq!((prod.seen().len(), dev.seen().len()), (0, 0));
}

#[tokio::test]
async fn an_unknown_host_is_forwarded_to_no_runtime() {
    let rig = Rig::start().await;
    let prod = FakeClient::describing(&rig, PROD).await;
    let mut raw = rig.raw().await;
    let below = format!("x.{PROD_HOST}");
    for host in [
        "evil.test",
        "tunnels.test",
        "acme-prod",
        "acme-prod.tunnels.test.evil.test",
        "acme-prod.tunnels.test..",
        "acme-stage.tunnels.test",
        "xacme-prod.tunnels.test",
        "127.0.0.1",
        "[::1]:8080",
        &below,
    ] {
        let answer = raw
            .ask(format!("GET / HTTP/1.1\r\nhost: {host}\r\n\r\n"))
            .await;
        is_problem(&answer, 404, "runtime_unknown");
    }
    // The connection was good all the time.
    let answer = raw
        .ask(format!("GET /x HTTP/1.1\r\nhost: {PROD_HOST}\r\n\r\n"))
        .await;
    assert_eq!(answer.head.status(), 200);
    assert_eq!(prod.paths(), ["/x"]);
}

fn is_problem(answer: &RawResponse, status: u16, reason: &str) {
    assert_eq!(
        (answer.head.status(), answer.reason().as_str()),
        (status, reason)
    );
    let proxy_status = answer.head.value("proxy-status").unwrap();
    assert!(
        proxy_status.starts_with("tunnel-server; error="),
        "{proxy_status}"
    );
    assert_eq!(
        answer.head.value("connection"),
        Some("keep-alive"),
        "{answer:?}"
    );
    assert_eq!(answer.head.value("cache-control"), Some("no-store"));
}

#[tokio::test]
async fn a_runtime_without_a_session_is_offline_after_a_wait() {
    let wait = Duration::from_millis(300);
    let rig = Rig::with(|config| config.settings.offline_wait = wait).await;
    let _other = FakeClient::describing(&rig, DEV).await;
    let mut raw = rig.raw().await;
    let began = Instant::now();
    let answer = raw
        .ask(format!("GET / HTTP/1.1\r\nhost: {PROD_HOST}\r\n\r\n"))
        .await;
    is_problem(&answer, 503, "runtime_offline");
    assert!(began.elapsed() >= wait, "{:?}", began.elapsed());
    let retry: u64 = answer.head.value("retry-after").unwrap().parse().unwrap();
    assert!((1..=60).contains(&retry));
    rig.metric_becomes(
        "tunnel_server_problems_total{hop=\"tunnel-server\",reason=\"runtime_offline\"}",
        1.0,
    )
    .await;
}

#[tokio::test]
async fn a_request_waits_for_a_runtime_that_comes_back() {
    let rig = Rig::with(|config| config.settings.offline_wait = Duration::from_secs(15)).await;
    FakeClient::describing(&rig, PROD).await.die();
    rig.metric_becomes("tunnel_server_sessions", 0.0).await;
    let mut raw = rig.raw().await;
    raw.send(format!(
        "GET /waiting HTTP/1.1\r\nhost: {PROD_HOST}\r\n\r\n"
    ))
    .await;
    let client = FakeClient::describing(&rig, PROD).await;
    assert_eq!(raw.response().await.text(), "acme-prod GET /waiting\n");
    assert_eq!(client.paths(), ["/waiting"]);
}

#[tokio::test]
async fn only_an_allowed_page_may_read_the_tunnels_own_answers() {
    let allowed = "https://app.example.com";
    let rig =
        Rig::with(|config| config.settings.cors_origin = vec![allowed.parse().unwrap()]).await;
    let mut raw = rig.raw().await;
    let mut ask = async |method: &str, host: &str, origin: &str, lines: &str| {
        let request =
            format!("{method} / HTTP/1.1\r\nhost: {host}\r\norigin: {origin}\r\n{lines}\r\n");
        raw.send(request).await;
        raw.response_to(method).await
    };
    for (host, status) in [(PROD_HOST, 503), ("unknown.tunnels.test", 404)] {
        let answer = ask("GET", host, allowed, "").await;
        assert_eq!(answer.head.status(), status);
        let head = &answer.head;
        assert_eq!(head.value("access-control-allow-origin"), Some(allowed));
        assert_eq!(head.value("access-control-allow-credentials"), Some("true"));
        assert_eq!(head.values("vary"), ["accept", "origin"]);
        let exposed = head.value("access-control-expose-headers").unwrap();
        assert!(
            exposed.contains("proxy-status") && exposed.contains("retry-after"),
            "{exposed}"
        );

        let lines = "access-control-request-method: PUT\r\naccess-control-request-headers: x-a\r\n";
        let preflight = ask("OPTIONS", host, allowed, lines).await;
        assert_eq!(preflight.head.status(), 204);
        assert_eq!(
            preflight.head.value("access-control-allow-methods"),
            Some("PUT")
        );
        assert_eq!(
            preflight.head.value("access-control-allow-headers"),
            Some("x-a")
        );
        assert_eq!(
            preflight.head.value("access-control-allow-origin"),
            Some(allowed)
        );
        assert_eq!(preflight.head.value("content-length"), None);

        for origin in [
            "https://evil.example.com",
            "null",
            "https://app.example.com.evil.com",
        ] {
            for (method, lines) in [("GET", ""), ("OPTIONS", lines)] {
                let answer = ask(method, host, origin, lines).await;
                assert_eq!(answer.head.status(), status, "{origin} {method}");
                let head = format!("{:?}", answer.head);
                assert!(!head.contains("access-control"), "{head}");
            }
        }
    }
}

/// What the upstream says about pages is the upstream's business.
#[tokio::test]
async fn an_upstreams_answer_gets_no_cors_fields_of_ours() {
    let allowed = "https://app.example.com";
    let rig =
        Rig::with(|config| config.settings.cors_origin = vec![allowed.parse().unwrap()]).await;
    let client = FakeClient::describing(&rig, PROD).await;
    let mut raw = rig.raw().await;
    for lines in ["", "access-control-request-method: PUT\r\n"] {
        let request =
            format!("OPTIONS / HTTP/1.1\r\nhost: {PROD_HOST}\r\norigin: {allowed}\r\n{lines}\r\n");
        let answer = raw.ask(request).await;
        assert_eq!(answer.head.status(), 200);
        assert_eq!(answer.head.value("access-control-allow-origin"), None);
    }
    assert_eq!(
        client.seen()[1].values("access-control-request-method"),
        ["PUT"]
    );
}
