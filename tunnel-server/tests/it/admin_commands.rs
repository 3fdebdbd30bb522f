//! `tunnel-server status` and `runtimes`: the program as an operator runs it, asking a live server.

use std::{
    ffi::OsString,
    io::{BufRead, BufReader},
    process::Stdio,
    sync::Arc,
    time::Duration,
};

use serde_json::Value;
use testkit::{
    deadline::{SOON, eventually, soon},
    tunnel::client::{FakeClient, dial, random_instance, session_request},
};
use tokio::task::spawn_blocking;
use tunnel_ops::timestamp::Timestamp;
use tunnel_proto::{
    close::CloseReason,
    control::{Control, RouteState, RouteSummary, RoutesSummary},
    problem::{Hop, Problem, Reason},
    session::SessionEnd,
};

use crate::{
    admin::{ADMIN_TOKEN, TokenFile, guarded, thousands},
    program::{Ended, Folder},
    rig::{DEV, PROD, Rig},
    sessions::get,
};

/// An operator at a server.
struct Operator {
    folder: Arc<Folder>,
    url: String,
    token: Option<TokenFile>,
}

impl Operator {
    fn new(rig: &Rig, token: Option<TokenFile>) -> Self {
        Self {
            folder: Arc::new(Folder::new()),
            url: format!("http://{}", rig.addresses.admin),
            token,
        }
    }

    /// Runs the program. In a thread of its own, since the server is in this one.
    async fn runs(&self, arguments: &[&str]) -> Ended {
        let mut arguments: Vec<OsString> = arguments.iter().map(Into::into).collect();
        arguments.push(format!("--admin={}", self.url).into());
        if let Some(token) = &self.token {
            arguments.push("--admin-token-file".into());
            arguments.push(token.path().into());
        }
        let folder = self.folder.clone();
        let ended = spawn_blocking(move || folder.run(arguments)).await.unwrap();
        assert!(!ended.stdout.contains(ADMIN_TOKEN) && !ended.stderr.contains(ADMIN_TOKEN));
        ended
    }

    /// What the program prints when all is well.
    async fn sees(&self, arguments: &[&str]) -> String {
        let ended = self.runs(arguments).await;
        assert_eq!(ended.code, Some(0), "{}", ended.stderr);
        ended.stdout
    }

    /// The program's error.
    async fn fails(&self, arguments: &[&str]) -> String {
        let ended = self.runs(arguments).await;
        assert_eq!(
            (ended.code, &*ended.stdout),
            (Some(1), ""),
            "{}",
            ended.stderr
        );
        ended.stderr
    }
}

/// The lines of a text as words.
fn words(text: &str) -> Vec<Vec<&str>> {
    let lines = text.lines();
    lines
        .map(|line| line.split_whitespace().collect())
        .collect()
}

#[tokio::test]
async fn status_shows_the_server() {
    let rig = Rig::start().await;
    let _client = FakeClient::describing(&rig, PROD).await;
    let operator = Operator::new(&rig, None);
    let text = operator.sees(&["status"]).await;
    let (version, process) = (env!("CARGO_PKG_VERSION"), std::process::id());
    let rows: Vec<String> = words(&text).iter().map(|row| row.join(" ")).collect();
    assert_eq!(
        rows[0],
        format!(
            "server tunnel-server {version}, process {process}, {}",
            operator.url
        )
    );
    assert!(rows[1].starts_with("state running, up "), "{text}");
    assert_eq!(rows[2..4], ["runtimes 1 of 2 online", "sessions 1"]);
    let limit = "waiting bytes 0 B of 256.0 MiB".to_owned();
    assert!(rows.contains(&limit), "{text}");
    let json: Value = serde_json::from_str(&operator.sees(&["status", "--json"]).await).unwrap();
    assert_eq!(
        (&json["state"], &json["sessions"]),
        (&"running".into(), &1.into())
    );
    rig.stop().await;
}

#[tokio::test]
async fn status_can_be_watched() {
    let rig = Rig::start().await;
    let operator = Operator::new(&rig, None);
    for arguments in [&["status", "--watch"][..], &["status", "--watch", "--json"]] {
        let admin = format!("--admin={}", operator.url);
        let mut command = operator.folder.command(arguments);
        command.arg(admin).stdout(Stdio::piped());
        let is_json = arguments.contains(&"--json");
        let lines = spawn_blocking(move || {
            let mut program = command.spawn().unwrap();
            let lines = BufReader::new(program.stdout.take().unwrap()).lines();
            // Two blocks with an empty line behind each, or two objects.
            let mut ends = 0;
            let is_end = |line: &String| is_json || line.is_empty();
            let lines = lines.map(Result::unwrap).take_while(|line| {
                ends += usize::from(is_end(line));
                ends < 2 || is_json
            });
            let lines: Vec<String> = lines.take(if is_json { 2 } else { usize::MAX }).collect();
            // Nobody reads any more: it ends by itself, and says nothing of it.
            assert!(program.wait().unwrap().success());
            lines
        });
        let lines = lines.await.unwrap();
        if is_json {
            let second: Value = serde_json::from_str(&lines[1]).unwrap();
            assert_eq!(second["state"], "running");
        } else {
            let (first, second) = lines.split_at(lines.len() / 2 + 1);
            assert_eq!(
                (first.last().unwrap().as_str(), &second[0]),
                ("", &lines[0])
            );
            for name in ["requests", "problems", "process", "certificate", "buffered"] {
                assert!(
                    second.iter().any(|line| line.starts_with(name)),
                    "{name}: {lines:?}"
                );
            }
        }
    }
    rig.stop().await;
}

#[tokio::test]
async fn runtimes_are_listed() {
    let rig = Rig::start().await;
    let _client = FakeClient::describing(&rig, DEV).await;
    let operator = Operator::new(&rig, None);
    let text = operator.sees(&["runtimes", "list"]).await;
    let lines = words(&text);
    assert_eq!(
        lines[0],
        [
            "RUNTIME", "ACCOUNT", "STATE", "FOR", "SESSIONS", "RTT", "OPEN", "IN", "OUT", "WHY"
        ]
    );
    assert_eq!(lines[1][..5], [PROD, "acme", "offline", "-", "0"]);
    assert_eq!(lines[2][..3], [DEV, "globex", "online"]);
    assert_eq!(lines.len(), 3);
    let online = operator.sees(&["runtimes", "list", "--online"]).await;
    assert!(
        words(&online)[1][0] == DEV && words(&online).len() == 2,
        "{online}"
    );
    let json = operator
        .sees(&["runtimes", "list", "--account=acme", "--json"])
        .await;
    let json: Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json[0]["label"], PROD);
    let wide = operator.sees(&["runtimes", "list", "-o", "wide"]).await;
    assert!(wide.contains("  LAST PROBLEM  WHY\n"), "{wide}");
    assert!(
        wide.contains("  no tunnel client has named it since "),
        "{wide}"
    );
    let yaml = operator.sees(&["runtimes", "list", "-o", "yaml"]).await;
    assert!(
        yaml.starts_with("---\n- label: acme-prod\n  account: acme\n"),
        "{yaml}"
    );
    assert_eq!(json.as_array().unwrap().len(), 1);
    let nobody = operator
        .runs(&["runtimes", "list", "--account=nobody"])
        .await;
    assert_eq!((&*nobody.stdout, &*nobody.stderr), ("", "no runtimes\n"));
    rig.stop().await;
}

#[tokio::test]
async fn all_of_thousands_are_listed() {
    let rig = Rig::with(|config| config.runtimes = thousands(&config.clone())).await;
    let operator = Operator::new(&rig, None);
    let text = operator.sees(&["runtimes", "list"]).await;
    assert_eq!(text.lines().count(), 2_501);
    rig.stop().await;
}

#[tokio::test]
async fn one_runtime_is_shown() {
    let rig = Rig::start().await;
    let _client = FakeClient::describing(&rig, PROD).await;
    let operator = Operator::new(&rig, None);
    let text = operator.sees(&["runtimes", "show", PROD]).await;
    assert!(
        text.starts_with("runtime       acme-prod\naccount       acme\n"),
        "{text}"
    );
    assert!(text.contains("\nallowed from  anywhere\n"), "{text}");
    let (_, sessions) = text.split_once("\n\n").unwrap();
    let session = &words(sessions)[1];
    assert_eq!((session[0], session[1]), ("1", "-"));
    assert_eq!((session[3], session[4]), ("1.2.3", "open"));
    let json = operator.sees(&["runtimes", "show", PROD, "--json"]).await;
    let json: Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json["sessions"][0]["client_version"], "1.2.3");
    let error = operator.fails(&["runtimes", "show", "acme-prodd"]).await;
    assert_eq!(
        error,
        "error: no runtime has the label `acme-prodd`: a label is ACCOUNT-RUNTIME, and `tunnel-server runtimes list` has \
         all (runtime_unknown)\n"
    );
    rig.stop().await;
}

#[tokio::test]
async fn a_runtime_is_shown_with_its_round_trip_and_last_problem() {
    let rig = Rig::with(|config| config.settings.ping_interval = Duration::from_millis(100)).await;
    let refusing = |_| async {
        let detail = "no such name";
        Err(Problem::new(Hop::Client, Reason::DnsError, detail))
    };
    let _client = FakeClient::new(&rig, PROD, refusing).await;
    let operator = Operator::new(&rig, None);
    let shown = async || {
        let json = operator.sees(&["runtimes", "show", PROD, "--json"]).await;
        serde_json::from_str::<Value>(&json).unwrap()
    };
    assert_eq!(shown().await["last_problem"], Value::Null);
    let answer = rig.raw().await.ask(get("/")).await;
    assert_eq!(
        (answer.head.status(), &*answer.reason()),
        (502, "dns_error")
    );
    let problem = shown().await["last_problem"].clone();
    assert_eq!(problem["reason"], "dns_error");
    let at = humantime::parse_rfc3339(problem["at"].as_str().unwrap()).unwrap();
    assert!(at.elapsed().unwrap_or_default() < SOON, "{problem}");
    // Measured, and measured again.
    let measured = async || shown().await["sessions"][0]["round_trip_ms"].as_f64();
    let first = eventually(SOON, "a round trip", measured).await;
    assert!(first > 0.0 && first < 20_000.0, "{first}");
    eventually(SOON, "another one", async || {
        measured()
            .await
            .filter(|time| (time - first).abs() > f64::EPSILON)
    })
    .await;
    let text = operator.sees(&["runtimes", "show", PROD]).await;
    let problem = text.lines().find(|line| line.starts_with("last problem"));
    let problem = problem.unwrap();
    assert!(
        problem.contains("dns_error") && problem.ends_with(" ago"),
        "{problem}"
    );
    let (_, sessions) = text.split_once("\n\n").unwrap();
    let lines: Vec<&str> = sessions.lines().collect();
    let round_trip = lines[0].find("RTT").unwrap() + "RTT".len();
    assert!(lines[1][..round_trip].ends_with(" ms"), "{sessions}");
}

#[tokio::test]
async fn an_offline_runtime_is_shown_with_why_and_with_what_it_has_carried() {
    let rig = Rig::start().await;
    let operator = Operator::new(&rig, None);
    let client = FakeClient::describing(&rig, PROD).await;
    for path in ["/1", "/2"] {
        assert_eq!(rig.raw().await.ask(get(path)).await.head.status(), 200);
    }
    client.die();
    let shown = async || {
        let json = operator.sees(&["runtimes", "show", PROD, "--json"]).await;
        serde_json::from_str::<Value>(&json).unwrap()
    };
    let offline = eventually(SOON, "the end of the session", async || {
        Some(shown().await).filter(|shown| shown["online"] == false)
    });
    let offline = offline.await;
    assert_eq!(offline["last_session_end"]["reason"], "connection_lost");
    assert_eq!(offline["requests"], 2);
    assert_eq!(offline["last_refusal"], Value::Null);
    let list = operator.sees(&["runtimes", "list"]).await;
    assert!(
        list.contains("  session ended ") && list.contains(" ago, connection_lost: "),
        "{list}"
    );

    // The id of the token is known, the rest of it is wrong.
    let token = rig.token(PROD);
    let (id, secret) = token.split_at("tnlrt_0123456789abcdef_".len());
    let wrong = format!("{id}{}", secret.chars().rev().collect::<String>());
    let refused = dial(&rig, &session_request(&wrong, random_instance())).await;
    assert_eq!(refused.status, 401);
    let refusal = eventually(SOON, "the refusal", async || {
        let refusal = shown().await["last_refusal"].clone();
        (!refusal.is_null()).then_some(refusal)
    });
    let refusal = refusal.await;
    assert_eq!(refusal["reason"], "token_refused");
    // The operator learns what the client does not.
    let detail = refusal["detail"].as_str().unwrap();
    assert!(detail.contains("its secret is wrong"), "{detail}");
    assert_eq!(refusal["credential"]["id"], id["tnlrt_".len()..][..16]);
    assert_eq!(refusal["client_version"], "1.2.3");
    let list = operator.sees(&["runtimes", "list"]).await;
    let (_, why) = list.split_once("  refused ").unwrap();
    assert!(why.contains(" ago, token_refused: "), "{list}");
    let text = operator.sees(&["runtimes", "show", PROD]).await;
    let because = text
        .lines()
        .find(|line| line.starts_with("offline because"));
    assert!(because.unwrap().contains(" ago, token_refused: "), "{text}");
    assert!(
        text.contains("\nlast session end  connection_lost, "),
        "{text}"
    );
    assert!(
        text.contains("\nlast refusal      token_refused, "),
        "{text}"
    );
    rig.stop().await;
}

#[tokio::test]
async fn changes_need_the_token() {
    let (rig, file) = guarded().await;
    let mut client = FakeClient::describing(&rig, PROD).await;
    let mut operator = Operator::new(&rig, None);
    let error = operator.fails(&["runtimes", "disconnect", PROD]).await;
    assert!(
        error.contains("requires the admin token: give its file with --admin-token-file"),
        "{error}"
    );
    let other = TokenFile::new();
    std::fs::write(other.path(), "the-token-of-somebody-else").unwrap();
    operator.token = Some(other);
    let error = operator.fails(&["runtimes", "disconnect", PROD]).await;
    assert!(error.contains("refused the token in "), "{error}");
    assert!(client.session.is_open());
    operator.token = Some(file);
    let text = operator.sees(&["runtimes", "disconnect", PROD]).await;
    assert_eq!(text, "acme-prod: 1 session disconnected\n");
    let end = client.ended().await;
    assert!(
        matches!(end, SessionEnd::ClosedByPeer(CloseReason::Disconnected)),
        "{end}"
    );
    rig.stop().await;
}

#[tokio::test]
async fn runtimes_are_drained_and_revoked() {
    let (rig, file) = guarded().await;
    let operator = Operator::new(&rig, Some(file));
    let mut client = FakeClient::describing(&rig, PROD).await;
    let text = operator.sees(&["runtimes", "drain", PROD]).await;
    assert_eq!(text, "acme-prod: 1 session draining\n");
    let text = operator.sees(&["runtimes", "drain", DEV]).await;
    assert_eq!(text, "globex-dev: offline, nothing to do\n");
    let leaked = ["runtimes", "revoke", PROD, "--id=leaked"];
    let error = operator.fails(&leaked).await;
    assert!(
        error.contains("no credential with the id `leaked`"),
        "{error}"
    );
    let id = &rig.token(PROD)["tnlrt_".len()..][..16];
    let id = format!("--id={id}");
    let text = operator.sees(&["runtimes", "revoke", PROD, &id]).await;
    assert!(text.ends_with(" revoked, 1 session ended\n"), "{text}");
    client.ended().await;
    let text = operator.sees(&["runtimes", "revoke", DEV, "--all"]).await;
    let issued = "globex-dev: every credential issued before ";
    let moment = text
        .strip_prefix(issued)
        .and_then(|rest| rest.strip_suffix(" revoked, 0 sessions ended\n"));
    assert!(moment.unwrap().parse::<Timestamp>().is_ok(), "{text}");
    rig.stop().await;
}

#[tokio::test]
async fn an_unreachable_server_is_reported_with_advice() {
    let rig = Rig::start().await;
    let mut operator = Operator::new(&rig, None);
    // Another listener of the same server: an answer, but not the admin API's.
    operator.url = format!("http://{}", rig.addresses.public);
    let error = operator.fails(&["status"]).await;
    assert!(error.starts_with("error: "), "{error}");
    operator.url = format!("http://{}", rig.addresses.admin);
    rig.stop().await;
    let error = operator.fails(&["status", "--watch"]).await;
    let expected = format!("error: no server answers at {}: ", operator.url);
    assert!(
        error.starts_with(&expected) && error.contains("--admin"),
        "{error}"
    );
}

#[test]
fn contradictory_flags_are_bad_usage() {
    let folder = Folder::new();
    for arguments in [
        &["status", "--admin=https://localhost"][..],
        &["status", "--admin=localhost"],
        &["status", "--admin-token-file=nowhere"],
        &["runtimes", "show", "a/b"],
        &["runtimes", "show"],
        &["runtimes", "revoke", PROD],
        &["runtimes", "revoke", PROD, "--id=x", "--all"],
        &["runtimes"],
    ] {
        let ended = folder.run(arguments);
        assert_eq!((ended.code, &*ended.stdout), (Some(2), ""), "{arguments:?}");
    }
    let ended = folder.run(["runtimes", "revoke", PROD]);
    assert!(
        ended.stderr.contains("<--id <ID>|--all>"),
        "{}",
        ended.stderr
    );
    folder.write("empty", "\n");
    let ended = folder.run(["status", "--admin-token-file=empty"]);
    assert_eq!(ended.code, Some(2));
    assert!(
        ended.stderr.contains("empty: holds no token"),
        "{}",
        ended.stderr
    );
}

#[test]
fn the_environment_says_where_the_server_is() {
    let folder = Folder::new();
    let mut command = folder.command(["status"]);
    command.env("TUNNEL_SERVER_ADMIN", "http://127.0.0.1:1");
    let ended = crate::program::ended(command.output().unwrap());
    assert_eq!(ended.code, Some(1));
    assert!(
        ended.stderr.contains("http://127.0.0.1:1"),
        "{}",
        ended.stderr
    );
}

fn told(name: &str, to: &str) -> RouteSummary {
    RouteSummary {
        name: name.to_owned(),
        matches: "/*".to_owned(),
        to: to.to_owned(),
        state: RouteState::Degraded,
    }
}

#[tokio::test]
async fn a_runtimes_routes_are_shown_as_reported() {
    let rig = Rig::start().await;
    let client = FakeClient::describing(&rig, PROD).await;
    let operator = Operator::new(&rig, None);
    let tell = |routes| {
        let summary = RoutesSummary::new(routes);
        client.session.send(Control::Routes(summary)).unwrap();
    };
    tell(vec![told("old", "http://old")]);
    tell(vec![
        told("b", "http://b:80"),
        told("a", "http://a\u{1b}[2J"),
    ]);
    let show = ["runtimes", "show", PROD, "--json"];
    let json = eventually(SOON, "the routes", async || {
        let json: Value = serde_json::from_str(&operator.sees(&show).await).unwrap();
        (json["routes"][1]["name"] == "b").then_some(json)
    })
    .await;
    let first = &json["routes"][0];
    assert_eq!(
        (&first["name"], &first["state"]),
        (&"a".into(), &"degraded".into())
    );
    assert_eq!(first["to"], "http://a?[2J", "nothing commands the terminal");
    assert!(json["routes_omitted"].is_null(), "{json}");
    let text = operator.sees(&["runtimes", "show", PROD]).await;
    let (_, routes) = text.rsplit_once("\n\n").unwrap();
    assert_eq!(words(routes)[2], ["b", "/*", "degraded", "http://b:80"]);
    // A list of runtimes is about runtimes.
    let list = operator.sees(&["runtimes", "list", "--json"]).await;
    assert!(!list.contains("routes"), "{list}");
    rig.stop().await;
}

#[tokio::test]
async fn drain_stops_the_server_and_says_whether_it_has_ended() {
    let token = TokenFile::new();
    let path = token.path();
    let rig = Rig::with(|config| {
        config.settings.admin_token_file = Some(path);
        // It serves on for as long.
        config.settings.drain_delay = Duration::from_secs(4);
    })
    .await;
    let client = FakeClient::describing(&rig, PROD).await;
    let operator = Operator::new(&rig, Some(token));
    let slow = operator.fails(&["drain", "--timeout", "500ms"]).await;
    assert!(
        slow.contains("not ended within 500ms: 1 sessions"),
        "{slow}"
    );
    assert_eq!(rig.admin("/readyz").await.0, 503);
    let asked = client.control(|control| matches!(control, Control::Drain { .. }));
    let (drained, _) = tokio::join!(operator.sees(&["drain"]), asked);
    assert_eq!(drained, "drained\n");
    rig.stopped().await;
    let gone = operator.fails(&["drain"]).await;
    assert!(gone.contains("no server answers"), "{gone}");
}

#[tokio::test]
async fn events_are_shown_as_they_happen() {
    let rig = Rig::start().await;
    let operator = Operator::new(&rig, None);
    let admin = format!("--admin={}", operator.url);
    let mut command = operator
        .folder
        .command(["events", "--kind=online,offline", &admin]);
    let mut program = command.stdout(Stdio::piped()).spawn().unwrap();
    let output = program.stdout.take().unwrap();
    let (sender, mut lines) = tokio::sync::mpsc::channel(8);
    let reading = spawn_blocking(move || {
        for line in BufReader::new(output).lines().map_while(Result::ok) {
            let _ = sender.blocking_send(line);
        }
    });
    // A reader is there from then on.
    rig.metric_becomes("tunnel_server_held{table=\"event_readers\"}", 1.0)
        .await;
    let client = FakeClient::describing(&rig, PROD).await;
    client.die();
    for kind in ["online", "offline"] {
        let line = soon("a line", lines.recv()).await.unwrap();
        assert_eq!(
            line.split_whitespace().skip(1).collect::<Vec<_>>(),
            [kind, PROD]
        );
    }
    program.kill().unwrap();
    program.wait().unwrap();
    reading.await.unwrap();
    rig.stop().await;
}
