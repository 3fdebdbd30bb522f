//! A check on networks that are broken in one way each: what it says beside what was broken.

mod upstreams;

use std::fs;
use std::path::Path;
use std::process::Command as Process;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime};

use clap::Parser;
use rcgen::{BasicConstraints, IsCa, date_time_ymd};
use serde_json::Value;
use testkit::ca::{Authority, CertifiedKey, self_signed_with};
use testkit::listener::Listener;
use testkit::scripted::ScriptedUpstream;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tunnel_client::check::{Event, Options, Report, Step, StepResult, check};
use tunnel_client::cli::{Cli, Command};
use tunnel_proto::control::Control;
use tunnel_proto::handshake::Refusal;

use crate::network::{self, checked, head, http, refusal, session};

/// Where a check is run: a folder with a token and a CA.
pub(crate) struct Place {
    folder: tempfile::TempDir,
    pub(crate) authority: Authority,
}

impl Place {
    pub(crate) fn new() -> Self {
        let place = Self {
            folder: tempfile::tempdir().unwrap(),
            authority: Authority::new("Test Root"),
        };
        place.write("ca.pem", &place.authority.pem());
        place.write("token", "tnlrt_1_secret\n");
        place
    }

    pub(crate) fn path(&self) -> &Path {
        self.folder.path()
    }

    pub(crate) fn write(&self, name: &str, text: &str) {
        fs::write(self.path().join(name), text).unwrap();
    }

    pub(crate) fn flags(&self, server: &str) -> Vec<String> {
        let file = |name: &str| self.path().join(name).display().to_string();
        vec![
            format!("--server={server}"),
            format!("--token-file={}", file("token")),
            format!("--ca-file={}", file("ca.pem")),
            "--upstream=http://127.0.0.1:1".to_owned(),
            "--dial-timeout=5s".to_owned(),
            "--proxy=none".to_owned(),
        ]
    }

    /// Checks the way to a server, with further flags in the place of those above.
    pub(crate) async fn check(&self, server: &str, more: &[&str]) -> Report {
        self.check_with(server, more, Options::default()).await
    }

    async fn check_with(&self, server: &str, more: &[&str], options: Options) -> Report {
        let name = |flag: &str| flag.split('=').next().unwrap().to_owned();
        let mut flags = self.flags(server);
        flags.retain(|flag| more.iter().all(|other| name(other) != name(flag)));
        flags.extend(more.iter().map(ToString::to_string));
        let all = ["tunnel-client".to_owned(), "check".to_owned()];
        let cli = Cli::try_parse_from(all.into_iter().chain(flags)).unwrap();
        let Command::Check(arguments) = cli.command else {
            unreachable!()
        };
        let mut reported = 0;
        let mut notify =
            |event: Event<'_>| reported += usize::from(matches!(event, Event::Step(_)));
        let report = check(arguments.given, options, &mut notify).await;
        assert_eq!(
            reported,
            report.steps.len(),
            "each step is reported at once"
        );
        report
    }
}

/// The name of the first thing that is wrong on the way to the server; nothing is known of upstreams.
#[track_caller]
pub(crate) fn verdict(report: &Report) -> (Step, &'static str) {
    let failed = (report.steps.iter()).find(|step| step.result == StepResult::Failed);
    let Some(failed) = failed else {
        panic!("all held: {report:#?}");
    };
    assert!(!report.is_ok());
    // Whatever fails, each step is told, and the upstreams are asked.
    for step in [Step::Tls, Step::Echo, Step::Upstream] {
        assert!(
            report.steps.iter().any(|told| told.step == step),
            "{report:#?}"
        );
    }
    (failed.step, failed.verdict.as_ref().unwrap().name)
}

#[track_caller]
pub(crate) fn result(report: &Report, step: Step) -> (StepResult, &str) {
    let found = report.steps.iter().find(|found| found.step == step);
    let found = found.unwrap_or_else(|| panic!("no {step:?} in {report:#?}"));
    (found.result, &found.words)
}

fn json(report: &Report) -> Value {
    serde_json::to_value(report).unwrap()
}

#[tokio::test]
async fn a_good_way_is_said_to_be_good_step_by_step() {
    let place = Place::new();
    let server = network::server(
        &place.authority.issue(&["127.0.0.1"]).identity(),
        Some(checked()),
    )
    .await;
    let upstream = ScriptedUpstream::answering(b"").await;
    let flag = format!("--upstream={}", upstream.url());
    let report = place.check(&server.url(), &[&flag]).await;
    assert!(report.is_ok(), "{report:#?}");
    let names: Vec<_> = report.steps.iter().map(|step| step.step).collect();
    assert_eq!(
        names,
        [
            Step::Config,
            Step::Token,
            Step::Dns,
            Step::Tcp,
            Step::Tls,
            Step::Upgrade,
            Step::Authentication,
            Step::Echo,
            Step::Clock,
            Step::Upstream,
        ]
    );
    let (_, words) = result(&report, Step::Authentication);
    assert!(words.contains("acme-prod of account acme"), "{words}");
    let (_, words) = result(&report, Step::Echo);
    assert!(words.contains("server version 9.9.9"), "{words}");
    let json = json(&report);
    assert_eq!(
        (&json["ok"], &json["verdict"]),
        (&Value::Bool(true), &Value::Null)
    );
    assert_eq!(json["steps"][4]["chain"][0]["names"][0], "127.0.0.1");
    assert!(!json.to_string().contains("secret"), "{json}");
}

#[tokio::test]
async fn what_stands_on_this_machine_is_looked_at_first() {
    let place = Place::new();
    let server = "wss://127.0.0.1:1";
    let nowhere = place.path().join("nowhere").display().to_string();
    let report = place
        .check(server, &[&format!("--token-file={nowhere}")])
        .await;
    assert_eq!(verdict(&report), (Step::Token, "token_file_missing"));
    let report = place
        .check(server, &[&format!("--ca-file={nowhere}")])
        .await;
    assert_eq!(verdict(&report), (Step::Config, "trust_unusable"));
    let report = place
        .check(server, &["--redial-base=1m", "--redial-cap=1s"])
        .await;
    assert_eq!(verdict(&report), (Step::Config, "config_invalid"));
    let key = format!("--client-key={nowhere}");
    let cert = format!("--client-cert={nowhere}");
    let report = place.check(server, &[&cert, &key]).await;
    assert_eq!(
        verdict(&report),
        (Step::Certificate, "certificate_file_unusable")
    );
    // As a shell makes one for `<(…)`: nobody waits for what is written into it.
    let pipe = place.path().join("pipe");
    assert!(
        Process::new("mkfifo")
            .arg(&pipe)
            .status()
            .unwrap()
            .success()
    );
    let flag = format!("--token-file={}", pipe.display());
    let report = place.check(server, &[&flag]).await;
    assert_eq!(verdict(&report), (Step::Token, "token_file_irregular"));
    place.write("token", " \n");
    let report = place.check(server, &[]).await;
    assert_eq!(verdict(&report), (Step::Token, "token_file_empty"));
    assert_eq!(result(&report, Step::Config).0, StepResult::Held);
}

#[tokio::test]
async fn servers_that_are_not_reached() {
    let place = Place::new();
    let closed = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = closed.local_addr().unwrap();
    drop(closed);
    let report = place.check(&format!("wss://{address}"), &[]).await;
    assert_eq!(verdict(&report), (Step::Tcp, "connect_refused"));
    assert_eq!(result(&report, Step::Tls).0, StepResult::Skipped);
    let report = place.check("wss://no-such-host.invalid", &[]).await;
    assert_eq!(verdict(&report), (Step::Dns, "dns_failure"));
    let silent = Listener::plain(|stream| async move {
        let _held = stream;
        std::future::pending::<()>().await;
    })
    .await;
    let report = place.check(&silent.url(), &["--dial-timeout=300ms"]).await;
    assert_eq!(verdict(&report), (Step::Tls, "tls_timeout"));
    let cutting = Listener::plain(|stream| async move { drop(stream) }).await;
    let report = place.check(&cutting.url(), &[]).await;
    assert_eq!(verdict(&report), (Step::Tls, "tls_cut"));
}

#[tokio::test]
async fn proxies_that_say_no() {
    let place = Place::new();
    let refusing = |answer: &'static str| async move {
        Listener::plain(move |mut stream| async move {
            while head(&mut stream).await.is_some() {
                stream.write_all(answer.as_bytes()).await.unwrap();
            }
        })
        .await
    };
    let login = "HTTP/1.1 407 Proxy Authentication Required\r\n\
                 proxy-authenticate: Basic realm=\"corp\"\r\ncontent-length: 0\r\n\r\n";
    let denied = "HTTP/1.1 403 Blocked by policy\r\ncontent-length: 0\r\n\r\n";
    for (answer, name) in [(login, "proxy_login"), (denied, "proxy_refused")] {
        let proxy = refusing(answer).await;
        let flag = format!("--proxy=http://{}", proxy.address);
        let report = place.check("wss://tunnel.example.com", &[&flag]).await;
        assert_eq!(verdict(&report), (Step::Proxy, name), "{report:#?}");
        assert_eq!(result(&report, Step::ProxyTcp).0, StepResult::Held);
    }
    // One that wants the login on another connection.
    let again = refusing(
        "HTTP/1.1 407 Proxy Authentication Required\r\nconnection: close\r\n\
         proxy-authenticate: Basic realm=\"corp\"\r\ncontent-length: 0\r\n\r\n",
    )
    .await;
    place.write("login", "user:password\n");
    let login = format!("--proxy-auth-file={}", place.path().join("login").display());
    let flag = format!("--proxy=http://{}", again.address);
    let server = "wss://tunnel.example.com";
    let report = place.check(server, &[&flag, &login]).await;
    assert_eq!(verdict(&report), (Step::Proxy, "proxy_login"));
    let (held, words) = result(&report, Step::Proxy);
    assert_eq!(held, StepResult::Held);
    assert!(words.contains("another connection"), "{words:?}");
    let closed = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let flag = format!("--proxy=http://{}", closed.local_addr().unwrap());
    drop(closed);
    let report = place.check("wss://tunnel.example.com", &[&flag]).await;
    assert_eq!(verdict(&report), (Step::ProxyTcp, "proxy_connect_refused"));
}

#[tokio::test]
async fn whoever_opens_tls_is_named_and_his_ca_can_be_given() {
    let place = Place::new();
    let corp = Authority::new("Corp Inspection CA");
    let server = network::server(&corp.issue(&["127.0.0.1"]).identity(), Some(checked())).await;
    let report = place.check(&server.url(), &[]).await;
    assert_eq!(verdict(&report), (Step::Tls, "tls_inspection"));
    let json = json(&report);
    let sentence = json["verdict"]["sentence"].as_str().unwrap();
    assert!(sentence.contains("Corp Inspection CA"), "{sentence}");
    let tls = json["steps"]
        .as_array()
        .unwrap()
        .iter()
        .find(|step| step["step"] == "tls");
    let issuer = &tls.unwrap()["chain"][0]["issuer"];
    assert_eq!(
        issuer, "CN=Corp Inspection CA",
        "the chain is seen although it was refused"
    );

    place.write("corp.pem", &corp.pem());
    let flag = format!("--ca-file={}", place.path().join("corp.pem").display());
    let report = place.check(&server.url(), &[&flag]).await;
    assert_eq!(
        result(&report, Step::Echo).0,
        StepResult::Held,
        "{report:#?}"
    );
}

#[tokio::test]
async fn certificates_that_are_not_good() {
    let place = Place::new();
    let authority = &place.authority;
    let answer = |_: &str| refusal("426 Upgrade Required", "", "upgrade_required");
    let other = authority.issue(&["other.test"]).identity();
    let server = network::answering(&other, answer).await;
    let report = place.check(&server.url(), &[]).await;
    assert_eq!(verdict(&report), (Step::Tls, "tls_name_mismatch"));

    let old = authority
        .issue_with(&["127.0.0.1"], |params| {
            params.not_before = date_time_ymd(2001, 1, 1);
            params.not_after = date_time_ymd(2002, 1, 1);
        })
        .identity();
    let server = network::answering(&old, answer).await;
    let report = place.check(&server.url(), &[]).await;
    assert_eq!(verdict(&report), (Step::Tls, "tls_expired"));
}

/// By the server's clock its certificate is good: this machine's it is that is off.
#[tokio::test]
async fn a_clock_that_is_off_is_told_from_a_certificate_that_is() {
    let place = Place::new();
    let future = place
        .authority
        .issue_with(&["127.0.0.1"], |params| {
            params.not_before = date_time_ymd(2090, 1, 1);
            params.not_after = date_time_ymd(2091, 1, 1);
        })
        .identity();
    let date = "date: Wed, 01 Mar 2090 00:00:00 GMT\r\n";
    let server = network::answering(&future, move |head| {
        assert!(
            !head.to_lowercase().contains("authorization"),
            "nothing is told to him: {head}"
        );
        refusal("426 Upgrade Required", date, "upgrade_required")
    })
    .await;
    let report = place.check(&server.url(), &[]).await;
    assert_eq!(verdict(&report), (Step::Tls, "clock_off"));
    let (result, words) = result(&report, Step::Clock);
    assert_eq!(result, StepResult::Failed);
    assert!(words.contains("behind"), "{words}");
}

#[tokio::test]
async fn networks_that_want_a_sign_in() {
    let place = Place::new();
    let identity = place.authority.issue(&["127.0.0.1"]).identity();
    let redirect = |_: &str| http("302 Found", "location: http://portal.test/login\r\n", "");
    // Whoever proves that he is the host that was named is that: a web site, as a rule.
    let html = |_: &str| {
        http(
            "200 OK",
            "content-type: text/html\r\n",
            "<html>sign in</html>",
        )
    };
    for server in [
        network::answering(&identity, redirect).await,
        network::answering(&identity, html).await,
    ] {
        let report = place.check(&server.url(), &[]).await;
        assert_eq!(verdict(&report), (Step::Upgrade, "not_a_tunnel_server"));
    }
    let wanting = |_: &str| http("511 Network Authentication Required", "", "sign in");
    let server = network::answering(&identity, wanting).await;
    let report = place.check(&server.url(), &[]).await;
    assert_eq!(verdict(&report), (Step::Upgrade, "captive_portal"));
    // It catches TLS as well, with a certificate of its own.
    let own = Authority::new("Portal").issue(&["portal.test"]).identity();
    let server = network::answering(&own, redirect).await;
    let report = place.check(&server.url(), &[]).await;
    assert_eq!(verdict(&report), (Step::Tls, "captive_portal"));
    // It speaks no TLS at all.
    let plain = without_tls(http("302 Found", "location: http://portal.test/\r\n", "")).await;
    let report = place.check(&plain.url(), &[]).await;
    assert_eq!(verdict(&report), (Step::Tls, "captive_portal"));
}

/// Answers a request so, and what is no request with a 400.
async fn without_tls(answer: String) -> Listener {
    Listener::plain(move |mut stream| {
        let answer = answer.clone();
        async move {
            let mut first = [0];
            let _ = stream.read_exact(&mut first).await;
            match first == *b"G" {
                true => {
                    let head = head(&mut stream).await.unwrap().to_lowercase();
                    assert!(
                        !head.contains("authorization"),
                        "nothing is told to him: {head}"
                    );
                    let _ = stream.write_all(answer.as_bytes()).await;
                }
                false => {
                    let _ = stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").await;
                }
            }
            end(stream).await;
        }
    })
    .await
}

/// Reads on, or what was not read would have the system throw away what was written.
async fn end(mut stream: TcpStream) {
    let _ = stream.shutdown().await;
    let _ = stream.read_to_end(&mut Vec::new()).await;
}

#[tokio::test]
async fn a_port_that_is_not_the_tunnel_listener_s() {
    let place = Place::new();
    let problem = r#"{"reason":"runtime_offline","hop":"tunnel-server","detail":"no session"}"#;
    let problem = http("503 Service Unavailable", "", problem);
    // The public listener, with TLS and without.
    let answer = problem.clone();
    let secure = network::answering(
        &place.authority.issue(&["127.0.0.1"]).identity(),
        move |_| answer.clone(),
    )
    .await;
    let report = place.check(&secure.url(), &[]).await;
    assert_eq!(verdict(&report), (Step::Upgrade, "public_listener"));
    let plain = without_tls(problem).await;
    let report = place.check(&plain.url(), &[]).await;
    assert_eq!(verdict(&report), (Step::Tls, "public_listener"));
    // The service itself, and one that speaks no HTTP.
    let app = http("200 OK", "content-type: text/html\r\n", "<html>app</html>");
    let app = without_tls(app).await;
    let report = place.check(&app.url(), &[]).await;
    assert_eq!(verdict(&report), (Step::Tls, "not_tls"));
    let ssh = Listener::plain(|mut stream| async move {
        let _ = stream.write_all(b"SSH-2.0-OpenSSH\r\n").await;
        end(stream).await;
    })
    .await;
    let report = place.check(&ssh.url(), &[]).await;
    assert_eq!(verdict(&report), (Step::Tls, "not_tls"));
}

/// What `openssl req -x509` makes.
#[tokio::test]
async fn a_certificate_that_signed_itself() {
    let place = Place::new();
    for (is_authority, advice) in [(true, "CA:FALSE"), (false, "give that very certificate")] {
        let made = self_signed_with("127.0.0.1", |params| {
            params.is_ca = match is_authority {
                true => IsCa::Ca(BasicConstraints::Unconstrained),
                false => IsCa::ExplicitNoCa,
            };
        });
        let server = network::answering(&made.identity(), |_| http("200 OK", "", "")).await;
        let report = place.check(&server.url(), &[]).await;
        assert_eq!(verdict(&report), (Step::Tls, "tls_self_signed"));
        let told = &report.verdict().unwrap().advice;
        assert!(told.contains(advice), "{told}");
    }
}

#[tokio::test]
async fn what_stands_before_the_server_and_passes_on_no_upgrade() {
    let place = Place::new();
    let identity = place.authority.issue(&["127.0.0.1"]).identity();
    // It removes the field, and the server says so.
    let removing = |_: &str| refusal("426 Upgrade Required", "", "upgrade_required");
    let server = network::answering(&identity, removing).await;
    let report = place.check(&server.url(), &[]).await;
    assert_eq!(verdict(&report), (Step::Upgrade, "upgrade_stripped"));
    // It answers such requests by itself, and passes on all others.
    for status in ["400 Bad Request", "404 Not Found", "200 OK"] {
        let server = network::answering(&identity, move |head| {
            match head.to_ascii_lowercase().contains("upgrade: websocket") {
                true => http(status, "content-type: text/html\r\n", "<html>"),
                false => refusal("426 Upgrade Required", "", "upgrade_required"),
            }
        })
        .await;
        let report = place.check(&server.url(), &[]).await;
        assert_eq!(
            verdict(&report),
            (Step::Upgrade, "upgrade_stripped"),
            "{status}"
        );
    }
    // Or looks at the token, which the request that got through did not show.
    let server = network::answering(&identity, |head| {
        match head.to_ascii_lowercase().contains("authorization: bearer") {
            true => http("403 Forbidden", "server: gateway\r\n", "no"),
            false => refusal("426 Upgrade Required", "", "upgrade_required"),
        }
    })
    .await;
    let report = place.check(&server.url(), &[]).await;
    assert_eq!(verdict(&report), (Step::Upgrade, "refused_on_the_way"));
    // Or says no to everything, whatever is asked for.
    let server = network::answering(&identity, |_| {
        http(
            "400 Bad Request",
            "server: nginx\r\n",
            "<p>No such host here</p>",
        )
    })
    .await;
    let report = place.check(&server.url(), &[]).await;
    assert_eq!(verdict(&report), (Step::Upgrade, "refused_on_the_way"));
    let told = &report.verdict().unwrap().sentence;
    assert!(told.contains("No such host here"), "{told}");
}

#[tokio::test]
async fn what_is_no_tunnel_server() {
    let place = Place::new();
    let identity = place.authority.issue(&["127.0.0.1"]).identity();
    for (answer, name) in [
        (
            http("404 Not Found", "server: nginx\r\n", "<html>"),
            "not_a_tunnel_server",
        ),
        (
            http("200 OK", "", r#"{"status":"ok"}"#),
            "not_a_tunnel_server",
        ),
        (http("400 Bad Request", "", "no"), "refused_on_the_way"),
        (http("426 Upgrade Required", "", "no"), "upgrade_stripped"),
        (
            http("403 Forbidden", "server: waf\r\n", "no"),
            "refused_on_the_way",
        ),
        (http("502 Bad Gateway", "", "<html>"), "server_away"),
        ("SSH-2.0-OpenSSH\r\n\r\n".to_owned(), "upgrade_cut"),
        (String::new(), "upgrade_cut"),
        (
            "HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n"
                .to_owned(),
            "not_a_tunnel_server",
        ),
    ] {
        let said = answer.clone();
        let server = network::answering(&identity, move |_| said.clone()).await;
        let report = place.check(&server.url(), &[]).await;
        assert_eq!(verdict(&report), (Step::Upgrade, name), "{answer}");
    }
    let silent = Listener::tls(&identity, None, |stream| {
        Box::pin(async move {
            let _held = stream;
            std::future::pending::<()>().await;
        })
    })
    .await;
    let report = place.check(&silent.url(), &["--dial-timeout=1s"]).await;
    assert_eq!(verdict(&report), (Step::Upgrade, "upgrade_timeout"));
}

#[tokio::test]
async fn the_server_s_own_refusals() {
    let place = Place::new();
    let identity = place.authority.issue(&["127.0.0.1"]).identity();
    for (reason, name) in [
        ("token_refused", "token_unknown"),
        ("token_expired", "token_expired"),
        ("auth_unavailable", "server_busy"),
        ("credential_revoked", "credential_revoked"),
    ] {
        let server =
            network::answering(&identity, move |_| refusal("401 Unauthorized", "", reason)).await;
        let report = place.check(&server.url(), &[]).await;
        assert_eq!(verdict(&report), (Step::Authentication, name));
        assert_eq!(result(&report, Step::Upgrade).0, StepResult::Held);
        assert_eq!(result(&report, Step::Echo).0, StepResult::Skipped);
    }
    for (reason, name) in [
        ("version_unsupported", "version_unsupported"),
        ("handshake_queue", "server_busy"),
        ("path_unknown", "request_changed"),
    ] {
        let server = network::answering(&identity, move |_| {
            refusal("426 Upgrade Required", "", reason)
        })
        .await;
        let report = place.check(&server.url(), &[]).await;
        assert_eq!(verdict(&report), (Step::Upgrade, name));
    }
}

#[tokio::test]
async fn a_clock_that_is_far_off_does_not_hold_whatever_else_does() {
    let place = Place::new();
    let identity = place.authority.issue(&["127.0.0.1"]).identity();
    let date = |ahead: u64| {
        let theirs = SystemTime::now() + Duration::from_secs(ahead);
        format!("date: {}\r\n", httpdate::fmt_http_date(theirs))
    };
    for (ahead, expected) in [
        (5, StepResult::Held),
        (120, StepResult::Warning),
        (3600, StepResult::Failed),
    ] {
        let date = date(ahead);
        let server = network::answering(&identity, move |_| {
            refusal("401 Unauthorized", &date, "token_refused")
        })
        .await;
        let report = place.check(&server.url(), &[]).await;
        assert_eq!(result(&report, Step::Clock).0, expected);
    }
    // A page that has been kept for a day is no clock.
    let old = SystemTime::now() - Duration::from_secs(24 * 3600);
    let date = format!("date: {}\r\n", httpdate::fmt_http_date(old));
    let server = network::answering(&identity, move |_| http("404 Not Found", &date, "")).await;
    let report = place.check(&server.url(), &[]).await;
    assert_eq!(verdict(&report).1, "not_a_tunnel_server");
    let clock = result(&report, Step::Clock);
    assert_eq!(clock, (StepResult::Skipped, "not reached"), "{report:#?}");
}

#[tokio::test]
async fn a_token_that_has_run_out_is_told_from_a_clock_that_is_off() {
    let place = Place::new();
    let identity = place.authority.issue(&["127.0.0.1"]).identity();
    let hour = Duration::from_secs(3600);
    let now = SystemTime::now();
    let (before, after) = (now - hour, now + hour);
    let refused = (Step::Authentication, "clock_off");
    for (expires, theirs, expected) in [
        (now - hour / 2, after, (Step::Token, "token_expired")),
        (now - hour / 2, now, (Step::Token, "token_expired")),
        (now - hour / 2, before, (Step::Token, "clock_off")),
        // Good by this clock, and the server says no.
        (now + hour / 2, after, refused),
        (now + hour / 2, now, (Step::Authentication, "token_expired")),
    ] {
        place.write("token", &jwt(expires));
        let date = format!("date: {}\r\n", httpdate::fmt_http_date(theirs));
        let server = network::answering(&identity, move |_| {
            refusal("401 Unauthorized", &date, "token_expired")
        })
        .await;
        let report = place.check(&server.url(), &[]).await;
        assert_eq!(verdict(&report), expected, "{report:#?}");
    }
}

fn jwt(expires: SystemTime) -> String {
    use base64::Engine;
    let expires = expires
        .duration_since(SystemTime::UNIX_EPOCH)
        .unwrap()
        .as_secs();
    let part = |json: &str| base64::engine::general_purpose::URL_SAFE_NO_PAD.encode(json);
    let claims = format!(r#"{{"iss":"https://id.example","exp":{expires}}}"#);
    format!(
        "{}.{}.{}",
        part(r#"{"alg":"ES256"}"#),
        part(&claims),
        part("signature")
    )
}

/// In TLS 1.3 the server says so when the client has gone on already.
#[tokio::test]
async fn a_client_certificate_that_the_server_does_not_take() {
    let place = Place::new();
    let server = network::wanting_certificates(&place.authority).await;
    let CertifiedKey { certificate, key } = Authority::new("Other").issue(&["client"]);
    place.write("client.pem", &certificate);
    place.write("client.key", &key);
    let file = |name: &str| place.path().join(name).display().to_string();
    let cert = format!("--client-cert={}", file("client.pem"));
    let key = format!("--client-key={}", file("client.key"));
    let report = place.check(&server.url(), &[&cert, &key]).await;
    assert_eq!(verdict(&report).1, "certificate_refused", "{report:#?}");
    assert_eq!(result(&report, Step::Certificate).0, StepResult::Held);
}

#[tokio::test]
async fn sessions_that_give_no_echo() {
    let place = Place::new();
    let server = network::server(&place.authority.issue(&["127.0.0.1"]).identity(), None).await;
    let report = place.check(&server.url(), &["--dial-timeout=1s"]).await;
    assert_eq!(verdict(&report), (Step::Echo, "echo_failed"));
    assert_eq!(result(&report, Step::Authentication).0, StepResult::Held);
}

#[tokio::test]
async fn a_runtime_that_another_keeps() {
    let place = Place::new();
    let mut says = checked();
    if let Control::Checked {
        holder, conflict, ..
    } = &mut says
    {
        *holder = Some("00112233445566778899aabbccddeeff".to_owned());
        *conflict = Some(Refusal {
            reason: "runtime_held".to_owned(),
            detail: "the older one keeps it".to_owned(),
            fatal: false,
        });
    }
    let server = network::server(
        &place.authority.issue(&["127.0.0.1"]).identity(),
        Some(says),
    )
    .await;
    let report = place.check(&server.url(), &[]).await;
    assert_eq!(verdict(&report), (Step::Authentication, "runtime_conflict"));
    assert_eq!(result(&report, Step::Echo).0, StepResult::Held);
}

#[tokio::test]
async fn the_idle_limit_of_the_way_is_found() {
    let place = Place::new();
    let server = network::server(
        &place.authority.issue(&["127.0.0.1"]).identity(),
        Some(checked()),
    )
    .await;
    let upstream = ScriptedUpstream::answering(b"").await;
    let flag = format!("--upstream={}", upstream.url());
    let relay = network::cutting_after(server.address, Duration::from_secs(4)).await;
    let options = Options::default().with_idle_probe(Duration::from_secs(30));
    let report = place.check_with(&relay.url(), &[&flag], options).await;
    let idle = report.idle.as_ref().unwrap();
    let (from, to) = idle.limit.unwrap();
    // Far from the 15 s after which the first of them would have been asked.
    let near = Duration::from_secs(2)..Duration::from_secs(14);
    assert!(near.contains(&from) && near.contains(&to), "{idle:?}");
    assert!(idle.advised < from, "{idle:?}");
    let (result, words) = result(&report, Step::Idle);
    assert_eq!(result, StepResult::Warning);
    assert!(words.contains("--ping-interval="), "{words}");

    let options = Options::default().with_idle_probe(Duration::from_secs(3));
    let report = place.check_with(&server.url(), &[&flag], options).await;
    assert!(report.is_ok(), "{report:#?}");
    let idle = report.idle.unwrap();
    assert_eq!((idle.limit, idle.proven), (None, Duration::from_secs(3)));
}

/// The way was good a moment ago: what fails now is told for what it is.
#[tokio::test]
async fn a_session_that_cannot_be_had_any_more_says_why() {
    let place = Place::new();
    let identity = place.authority.issue(&["127.0.0.1"]).identity();
    let is_first = AtomicBool::new(true);
    let server = Listener::tls(&identity, None, move |mut stream| {
        let is_first = is_first.swap(false, Ordering::SeqCst);
        async move {
            if is_first {
                return session(stream, Some(checked())).await;
            }
            head(&mut stream).await.unwrap();
            let answer = http("502 Bad Gateway", "server: nginx\r\n", "<html>");
            let _ = stream.write_all(answer.as_bytes()).await;
            let _ = stream.shutdown().await;
        }
    })
    .await;
    let upstream = ScriptedUpstream::answering(b"").await;
    let flag = format!("--upstream={}", upstream.url());
    let options = Options::default().with_idle_probe(Duration::from_secs(3));
    let report = place.check_with(&server.url(), &[&flag], options).await;
    assert_eq!(verdict(&report), (Step::Idle, "server_away"));
}

#[tokio::test]
async fn the_program_tells_people_and_scripts() {
    let place = Place::new();
    let run = |more: &'static [&'static str]| {
        let mut process = Process::new(env!("CARGO_BIN_EXE_tunnel-client"));
        let flags = place.flags("wss://127.0.0.1:1");
        process.arg("check").args(flags).args(more).env_clear();
        tokio::task::spawn_blocking(move || process.output().unwrap())
    };
    let people = run(&[]).await.unwrap();
    let text = String::from_utf8(people.stdout).unwrap();
    assert_eq!(people.status.code(), Some(1));
    assert!(text.is_ascii(), "{text}");
    assert!(text.contains("FAIL tcp"), "{text}");
    assert!(
        text.contains("\nconnect_refused: ") && text.contains("\nwhat to do: "),
        "{text}"
    );
    assert_eq!(String::from_utf8(people.stderr).unwrap(), "");
    let scripts = run(&["--json"]).await.unwrap();
    let json: Value = serde_json::from_slice(&scripts.stdout).unwrap();
    assert_eq!(scripts.status.code(), Some(1));
    assert_eq!(json["verdict"]["name"], "connect_refused");
    let usage = run(&["--idle-probe", "--idle-probe-max=2h"]).await.unwrap();
    assert_eq!(usage.status.code(), Some(2));
}
