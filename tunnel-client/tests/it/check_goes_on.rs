//! What a check still looks at when something has failed, and what it says of the rest.

use std::process::Command as Process;

use testkit::scripted::ScriptedUpstream;
use tokio::net::TcpListener;
use tunnel_client::check::{Report, Step, StepResult};

use crate::check::{Place, result, verdict};
use crate::network::{self, refusal};
use crate::program::PROGRAM;

/// The steps in order, with how they went.
fn steps(report: &Report) -> Vec<(Step, StepResult)> {
    let steps = report.steps.iter();
    steps.map(|step| (step.step, step.result)).collect()
}

/// What is wrong on this machine keeps nobody from seeing that an upstream is away as well.
#[tokio::test]
async fn what_fails_first_keeps_no_upstream_from_being_asked() {
    let place = Place::new();
    let upstream = ScriptedUpstream::answering(b"HTTP/1.1 204 No Content\r\n\r\n").await;
    let upstream = format!("--upstream={}", upstream.url());
    let nowhere = place.path().join("nowhere").display().to_string();
    let [token, ca, cap] = [
        format!("--token-file={nowhere}"),
        format!("--ca-file={nowhere}"),
        "--redial-cap=1ms".to_owned(),
    ];
    for (flag, first) in [
        (&token, (Step::Token, "token_file_missing")),
        (&ca, (Step::Config, "trust_unusable")),
        (&cap, (Step::Config, "config_invalid")),
    ] {
        let report = place.check("wss://127.0.0.1:1", &[&upstream, flag]).await;
        assert_eq!(verdict(&report), first);
        let (held, skipped) = (StepResult::Held, StepResult::Skipped);
        let bad = StepResult::Failed;
        // Without a token the way can be gone to where one is shown; that of these tests is none of the server's.
        let (config, token_result, dns, tcp) = match first.0 {
            Step::Token => (held, bad, held, bad),
            _ => (bad, StepResult::Warning, skipped, skipped),
        };
        assert_eq!(
            steps(&report),
            [
                (Step::Config, config),
                (Step::Token, token_result),
                (Step::Dns, dns),
                (Step::Tcp, tcp),
                (Step::Tls, skipped),
                (Step::Upgrade, skipped),
                (Step::Authentication, skipped),
                (Step::Echo, skipped),
                (Step::Clock, skipped),
                (Step::Upstream, held),
            ],
            "{flag}"
        );
        assert_eq!(result(&report, Step::Tls).1, "not reached");
    }
    // Of two that fail the first is the verdict, and both are told.
    let report = place
        .check("wss://127.0.0.1:1", &[&upstream, &token, &ca])
        .await;
    assert_eq!(verdict(&report), (Step::Config, "trust_unusable"));
    assert_eq!(result(&report, Step::Token).0, StepResult::Failed);
    let report = place
        .check("wss://127.0.0.1:1", &["--config=nowhere.toml"])
        .await;
    assert_eq!(verdict(&report), (Step::Config, "config_invalid"));
    assert_eq!(
        result(&report, Step::Upstream),
        (StepResult::Skipped, "not reached")
    );
}

#[tokio::test]
async fn without_a_token_the_way_is_gone_as_far_as_tls_and_no_session_is_asked_for() {
    let place = Place::new();
    let upstream = ScriptedUpstream::answering(b"HTTP/1.1 204 No Content\r\n\r\n").await;
    let upstream = format!("--upstream={}", upstream.url());
    let nowhere = place.path().join("nowhere").display().to_string();
    let token = format!("--token-file={nowhere}");
    let authority = &place.authority;
    let answer = |head: &str| {
        assert!(!head.to_ascii_lowercase().contains("upgrade"), "{head}");
        let date = "date: Sun, 22 Nov 2026 06:00:00 GMT\r\n";
        refusal("426 Upgrade Required", date, "upgrade_required")
    };
    let server = network::answering(&authority.issue(&["127.0.0.1"]).identity(), answer).await;
    let report = place.check(&server.url(), &[&upstream, &token]).await;
    assert_eq!(verdict(&report), (Step::Token, "token_file_missing"));
    for (step, expected) in [
        (Step::Tcp, StepResult::Held),
        (Step::Tls, StepResult::Held),
        (Step::Upgrade, StepResult::Skipped),
        (Step::Echo, StepResult::Skipped),
        (Step::Upstream, StepResult::Held),
    ] {
        assert_eq!(result(&report, step).0, expected, "{report:#?}");
    }
    assert_ne!(result(&report, Step::Clock).0, StepResult::Skipped);
}

#[tokio::test]
async fn the_steps_of_a_proxy_are_told_as_not_reached_as_well() {
    let place = Place::new();
    let nowhere = place.path().join("nowhere").display().to_string();
    let ca = format!("--ca-file={nowhere}");
    for (proxy, names) in [
        ("http", &["proxy_dns", "proxy_tcp", "proxy", "tls"][..]),
        (
            "https",
            &["proxy_dns", "proxy_tcp", "proxy_tls", "proxy", "tls"],
        ),
        ("socks5h", &["proxy_dns", "proxy_tcp", "proxy", "tls"]),
        ("socks5", &["dns", "proxy_dns", "proxy_tcp", "proxy", "tls"]),
    ] {
        let flag = format!("--proxy={proxy}://127.0.0.1:1");
        let report = place.check("wss://127.0.0.1:1", &[&ca, &flag]).await;
        let after_token = report.steps.iter().skip(2).take(names.len());
        let found: Vec<_> = after_token.map(|step| step.step.name()).collect();
        assert_eq!(found, names);
    }
    // One that is not there: what comes after it.
    let closed = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let flag = format!("--proxy=http://{}", closed.local_addr().unwrap());
    drop(closed);
    let report = place.check("wss://127.0.0.1:1", &[&flag]).await;
    assert_eq!(verdict(&report).0, Step::ProxyTcp);
    for step in [Step::Proxy, Step::Tls, Step::Echo] {
        assert_eq!(result(&report, step), (StepResult::Skipped, "not reached"));
    }
    assert!(report.steps.iter().all(|step| step.step != Step::Dns));
}

#[tokio::test]
async fn a_ca_file_that_is_mistyped_is_told_as_that() {
    let place = Place::new();
    let path = place.path().join("nowhere.pem").display().to_string();
    let server = "wss://127.0.0.1:1";
    let report = place.check(server, &[&format!("--ca-file={path}")]).await;
    let told = report.verdict().unwrap();
    assert_eq!(
        told.sentence,
        format!("the CA file {path} that --ca-file names does not exist")
    );
    assert!(told.advice.contains("the path for a slip"), "{told:?}");
    // A path in the file, and of another setting.
    place.write("client.toml", "upstream_ca_file = \"token\"\n");
    let config = place.path().join("client.toml").display().to_string();
    let upstream = "--upstream=https://127.0.0.1:1";
    let report = place
        .check(server, &[&format!("--config={config}"), upstream])
        .await;
    let told = report.verdict().unwrap();
    assert_eq!(told.name, "trust_unusable");
    let named = format!("`upstream_ca_file` in line 1 of {config}");
    assert!(told.sentence.contains(&named), "{told:?}");
    assert!(!format!("{told:?}").contains("secret"), "{told:?}");
    // The way to the server needs it as little as the token.
    assert_eq!(
        result(&report, Step::Upstream),
        (StepResult::Skipped, "not reached")
    );
}

#[tokio::test]
async fn a_proxy_that_is_not_used_for_this_server_is_told_with_the_rule() {
    const PROXY: (&str, &str) = ("HTTPS_PROXY", "http://me:secret@proxy.test:3128");
    let place = Place::new();
    let run = |server: &str, variables: &'static [(&'static str, &'static str)]| {
        let mut process = Process::new(PROGRAM);
        let flags = place.flags(server);
        let flags = flags
            .into_iter()
            .filter(|flag| !flag.starts_with("--proxy"));
        process.arg("check").args(flags).env_clear();
        process.envs(variables.iter().copied());
        let output = tokio::task::spawn_blocking(move || process.output().unwrap());
        async move { String::from_utf8(output.await.unwrap().stdout).unwrap() }
    };
    let text = run("wss://127.0.0.1:1", &[PROXY]).await;
    let line = "-    proxy           the proxy of HTTPS_PROXY is not used: 127.0.0.1 is this machine itself";
    assert!(text.contains(line), "{text}");
    assert!(text.contains("FAIL tcp"), "{text}");
    let text = run(
        "wss://no-such-host.invalid",
        &[PROXY, ("no_proxy", "a.test,.invalid")],
    )
    .await;
    let line = "is not used: `invalid` in no_proxy exempts no-such-host.invalid";
    assert!(text.contains(line) && !text.contains("secret"), "{text}");
}
