//! One server that is restarted or upgraded in place: whoever asks meanwhile is answered, by the old process or by the new.

use std::{
    fs,
    net::TcpListener,
    process::Command,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use e2e::{
    client::Client,
    deadline::{SOON, eventually, within},
    entry::Entry,
    http1::End,
    issuer::{AUDIENCE, ISSUER, Issuer, LATE},
    load::{ExchangeKind, Load, Plan},
    platform::PlatformClient,
    program::{Program, Signal, built},
    raw::RawClient,
    stranger::Stranger,
    system::{Options, System},
    upstream::Upstream,
};
use serde_json::Value;
use tokio::{
    net::UnixDatagram,
    sync::watch,
    task::JoinSet,
    time::{Instant, interval},
};

const APP: &str = "demo-app";

/// Long streams hold the end of the old process up for no longer than this.
const GRACE: &str = "4s";

fn options(upstream: &Upstream) -> Options {
    let options = Options::to(&upstream.h2c_url());
    let options = options.server_flags(&["--grace-period", GRACE]);
    options.with_admin_token()
}

async fn under_load(options: Options) -> (System, Load) {
    let system = System::with(options).await;
    let load = Load::start(system.entry(), &Plan::every_kind());
    load.wait_progress(10).await;
    (system, load)
}

const LONG: [ExchangeKind; 3] = [
    ExchangeKind::Events,
    ExchangeKind::WebSocket,
    ExchangeKind::Stream,
];

async fn upgrade(system: &mut System) -> e2e::program::Ended {
    let token = system.directory().join("admin.token");
    system.server_mut().upgrade(&token).await
}

/// A running command of the server's that shows what happens.
fn watching(system: &System, arguments: &[&str]) -> Program {
    let token = system.directory().join("admin.token");
    let mut command = Command::new(built("tunnel-server"));
    command
        .args(arguments)
        .arg(format!("--admin=http://{}", system.server().admin().0))
        .arg("--admin-token-file")
        .arg(token);
    Program::start(arguments[0], &mut command)
}

/// Also while something long is open at the old process, which ends only after it.
#[tokio::test]
async fn who_watches_sees_both_processes_of_an_upgrade() {
    let upstream = Upstream::start().await;
    let mut system = System::with(options(&upstream)).await;
    let tail = watching(&system, &["tail", APP]);
    let events = watching(&system, &["events"]);
    let mut platform = RawClient::connect(&system.entry()).await;
    eventually(SOON, "both streams", async || {
        platform.exchange("GET", "/status/200", "").await;
        system.server().program().signal(Signal::HUP);
        (tail.text().contains("/status/200") && events.text().contains("reloaded")).then_some(())
    })
    .await;
    let mut long = RawClient::connect(&system.entry()).await;
    let chunked = "Transfer-Encoding: chunked\r\n";
    long.request("POST", "/duplex", chunked, b"5\r\nfirst\r\n")
        .await;
    let head = long.head().await.unwrap();
    assert_eq!(upgrade(&mut system).await.code, Some(0));
    let log = system.server().program();
    log.wait_for_line("platform clients are served here", SOON)
        .await;
    let mut new = RawClient::connect(&system.entry()).await;
    new.exchange("GET", "/status/201", "").await;
    tail.wait_for_line("/status/201", SOON).await;
    let shown = tail.text();
    assert!(!shown.contains("/duplex"), "{shown}");
    long.send("0\r\n\r\n").await;
    let content = long.content(head.response_framing("POST")).await;
    assert_eq!((&*content.bytes, content.end), (&b"first"[..], End::Clean));
    tail.wait_for_line("/duplex", SOON).await;
    let program = system.server_mut().program_mut();
    assert!(program.wait_exit_alone(SOON).await.success());
    let shown = events.text();
    let count = |kind: &str| shown.matches(kind).count();
    assert_eq!(count("online"), 1, "{shown}");
    assert_eq!(count("session-began"), 2, "{shown}");
    assert_eq!(count("session-ended"), 2, "{shown}");
    assert_eq!(count("missed"), 0, "{shown}");
    assert!(shown.contains("takes over"), "{shown}");
    let warnings = tail.text() + &shown;
    assert!(!warnings.contains("warning"), "{warnings}");
}

/// The process that answers at the admin listener.
async fn process(system: &System) -> u64 {
    let status = system.server().admin().get("/api/v1/status").await;
    let status: Value = serde_json::from_str(status.text()).unwrap();
    status["pid"].as_u64().unwrap()
}

#[tokio::test]
async fn a_server_is_upgraded_under_load_without_loss() {
    let upstream = Upstream::start().await;
    let (mut system, load) = under_load(options(&upstream)).await;
    let streams = load.open_streams(&LONG);
    // An upload and a download that are under way at the upgrade end whole.
    let mut download = RawClient::connect(&system.entry()).await;
    let events = "/events?count=20&every_ms=100";
    download.request("GET", events, "", b"").await;
    let head = download.head().await.unwrap();
    let mut upload = RawClient::connect(&system.entry()).await;
    let lines = "Content-Length: 10\r\n";
    upload.request("POST", "/upload", lines, b"01234").await;
    upstream.wait_request("/upload").await;
    let began = Instant::now();
    let ended = upgrade(&mut system).await;
    load.mark("the new process serves");
    assert_eq!(ended.code, Some(0), "{ended:?}");
    eprintln!("{} after {:?}", ended.out.trim(), began.elapsed());
    assert_ne!(
        process(&system).await,
        u64::from(system.server().program().id())
    );
    system.server().admin().wait_ready(true).await;
    let content = download.content(head.response_framing("GET")).await;
    assert_eq!(content.end, End::Clean);
    upload.send(b"56789".to_vec()).await;
    assert_eq!(upload.response_to("POST").await.head.status(), 200);
    load.mark("upload and download are complete");
    let exit = system
        .server_mut()
        .program_mut()
        .wait_exit_alone(SOON)
        .await;
    load.mark("the old process is gone");
    assert!(exit.success(), "{exit}");
    load.wait_ended_by_protocol(&streams).await;
    load.wait_progress(10).await;
    load.finish().await.assert_none_failed();
}

/// Tunnel clients and platform clients come by one socket, which only one process accepts from at a time.
#[tokio::test]
async fn a_server_with_one_listener_is_upgraded_under_load_without_loss() {
    let upstream = Upstream::start().await;
    let socket = Arc::new(TcpListener::bind("127.0.0.1:0").unwrap());
    let address = socket.local_addr().unwrap();
    let options = options(&upstream).server_flags(&["--tunnel-host", "localhost"]);
    let mut options = options.public_tls().not_connected();
    options.server.tunnel_listen = Some(address);
    options.server.public_listen = Some(address);
    options.server.sockets = vec![socket];
    let mut system = System::with(options).await;
    system.client_options(APP).server_name = Some("localhost".to_owned());
    system.start_client(APP).await;
    let (entry, answered) = (system.entry(), Arc::new(AtomicUsize::new(0)));
    let mut load = JoinSet::new();
    for _ in 0..4 {
        let (entry, answered) = (entry.clone(), answered.clone());
        load.spawn(async move {
            loop {
                let mut client = PlatformClient::http1(&entry).await;
                assert_eq!(client.get("/status/200").await.status, 200);
                answered.fetch_add(1, Ordering::Relaxed);
            }
        });
    }
    let progress = async |count: usize| {
        let wanted = answered.load(Ordering::Relaxed) + count;
        let reached = async || (answered.load(Ordering::Relaxed) >= wanted).then_some(());
        eventually(SOON, "answers", reached).await;
    };
    for _ in 0..2 {
        progress(20).await;
        let before = process(&system).await;
        assert_eq!(upgrade(&mut system).await.code, Some(0));
        assert_ne!(process(&system).await, before);
        progress(200).await;
    }
    assert!(load.try_join_next().is_none(), "a request has failed");
}

#[tokio::test]
async fn an_upgraded_server_can_be_upgraded_again() {
    let upstream = Upstream::start().await;
    let (mut system, load) = under_load(options(&upstream)).await;
    for _ in 0..4 {
        let before = process(&system).await;
        let ended = upgrade(&mut system).await;
        load.mark("the new process serves");
        assert_eq!(ended.code, Some(0), "{ended:?}");
        assert_ne!(process(&system).await, before);
    }
    load.wait_progress(20).await;
    let report = load.finish().await;
    assert_eq!(report.failures(), 0, "{report}");
}

/// Requests at once: with 256 connections the admin listener closes those whose request has not come.
const MAKERS: usize = 8;

/// What the admin API has answered as durable is, whichever process has answered.
#[tokio::test]
async fn runtimes_that_are_made_during_an_upgrade_are_there_afterwards() {
    let upstream = Upstream::start().await;
    let folder = tempfile::tempdir().unwrap();
    // The new process reads them for a while, in which others are made.
    for number in 0..1_000 {
        let text = format!("[[runtime]]\naccount = \"acme\"\nname = \"n{number}\"\n");
        fs::write(folder.path().join(format!("acme-n{number}.toml")), text).unwrap();
    }
    let place = ["--managed-runtimes", folder.path().to_str().unwrap()];
    let mut system = System::with(options(&upstream).server_flags(&place)).await;
    let token = fs::read_to_string(system.directory().join("admin.token")).unwrap();
    let fields = format!("Authorization: Bearer {}\r\n", token.trim());
    let admin = Entry::plain(system.server().admin().0, "localhost");
    let (made, mut noted) = watch::channel(Vec::new());
    // One every few milliseconds, so that some are under way at each step of the upgrade.
    let mut open = JoinSet::new();
    let making = async {
        let mut pace = interval(Duration::from_millis(3));
        for number in 0.. {
            pace.tick().await;
            while open.len() >= MAKERS {
                open.join_next().await.unwrap().unwrap();
            }
            let (admin, fields, made) = (admin.clone(), fields.clone(), made.clone());
            open.spawn(async move {
                let name = format!("r{number}");
                let path = format!("/api/v1/runtimes/acme-{name}");
                let content = format!(r#"{{"account": "acme", "name": "{name}"}}"#);
                let mut client = RawClient::connect(&admin).await;
                client
                    .request("PUT", &path, &fields, content.as_bytes())
                    .await;
                match client.head().await.unwrap().status() {
                    201 => made.send_modify(|made: &mut Vec<String>| made.push(name)),
                    // While the folder changes hands.
                    other => assert_eq!(other, 503),
                }
            });
        }
    };
    let upgrading = async {
        noted.wait_for(|made| made.len() >= 20).await.unwrap();
        assert_eq!(upgrade(&mut system).await.code, Some(0));
        let before = noted.borrow().len();
        noted.wait_for(|made| made.len() > before).await.unwrap();
    };
    tokio::select! {
        () = making => {}
        () = upgrading => {}
    }
    while let Some(answered) = open.join_next().await {
        answered.unwrap();
    }
    let admin = system.server().admin();
    for name in noted.borrow().clone() {
        let path = format!("/api/v1/runtimes/acme-{name}");
        assert_eq!(admin.get(&path).await.status, 200, "{path}");
    }
}

#[tokio::test]
async fn an_upgrade_to_a_broken_configuration_leaves_the_server_as_it_is() {
    let upstream = Upstream::start().await;
    let mut system = System::with(options(&upstream)).await;
    let before = process(&system).await;
    let runtimes = system.files().runtimes.clone();
    let good = fs::read_to_string(&runtimes).unwrap();
    fs::write(&runtimes, format!("{good}\nnonsense = 1\n")).unwrap();
    let ended = upgrade(&mut system).await;
    assert_eq!(ended.code, Some(1), "{ended:?}");
    assert!(ended.err.contains("runtimes.toml"), "{}", ended.err);
    assert!(ended.err.contains("nonsense"), "{}", ended.err);
    assert_eq!(process(&system).await, before);
    let mut client = RawClient::connect(&system.entry()).await;
    let answer = client.exchange("GET", "/status/200", "").await;
    assert_eq!(answer.head.status(), 200);
    // A file that is empty is being written, as for a reload: its clients would lose their sessions.
    let events = watching(&system, &["events"]);
    eventually(SOON, "the stream", async || {
        fs::write(&runtimes, &good).unwrap();
        events.text().contains("reloaded").then_some(())
    })
    .await;
    fs::write(&runtimes, "").unwrap();
    let ended = upgrade(&mut system).await;
    assert_eq!(ended.code, Some(1), "{ended:?}");
    assert!(ended.err.contains("no entries any more"), "{}", ended.err);
    events.wait_for_line("upgrade-failed", SOON).await;
    // Nor does the failure prevent the next one.
    fs::write(&runtimes, good).unwrap();
    assert_eq!(upgrade(&mut system).await.code, Some(0));
    assert_ne!(process(&system).await, before);
}

#[tokio::test]
async fn a_signal_upgrades_a_server_too() {
    let upstream = Upstream::start().await;
    let mut system = System::with(options(&upstream)).await;
    system.server().program().signal(Signal::USR2);
    let program = system.server_mut().program_mut();
    assert!(program.wait_exit_alone(SOON).await.success());
    system.server_mut().find_successor().await;
    let mut client = RawClient::connect(&system.entry()).await;
    let answer = client.exchange("GET", "/status/200", "").await;
    assert_eq!(answer.head.status(), 200);
}

#[tokio::test]
async fn a_server_with_sockets_of_systemd_is_restarted_under_load_without_loss() {
    let upstream = Upstream::start().await;
    let socket = || Arc::new(TcpListener::bind("127.0.0.1:0").unwrap());
    let (tunnel, public) = (socket(), socket());
    let mut options = options(&upstream);
    options.server.tunnel_listen = Some(tunnel.local_addr().unwrap());
    options.server.public_listen = Some(public.local_addr().unwrap());
    options.server.sockets = vec![public, tunnel];
    let mut system = System::with(options).await;
    let plan = Plan::only(
        &[ExchangeKind::Get, ExchangeKind::Post, ExchangeKind::Call],
        4,
    );
    let load = Load::start(system.entry(), &plan);
    load.wait_progress(10).await;
    let (tunnel, public) = (
        system.server().tunnel_address(),
        system.server().public_address(),
    );
    for _ in 0..3 {
        let began = Instant::now();
        system.server().program().signal(Signal::TERM);
        load.mark("the server has a SIGTERM");
        let exit = system.server_mut().program_mut().wait_exit(SOON).await;
        let stopped = began.elapsed();
        assert!(exit.success(), "{exit}");
        load.mark("it is gone");
        let newer = system.another_server(Some(tunnel), Some(public)).await;
        drop(system.replace_server(newer));
        load.mark("the next one listens");
        load.wait_progress(1).await;
        eprintln!(
            "stopped after {stopped:?}, all go on after {:?}",
            began.elapsed()
        );
        load.wait_progress(10).await;
    }
    let report = load.finish().await;
    assert_eq!(report.failures(), 0, "{report}");
}

#[tokio::test]
async fn a_stop_waits_for_nobody_when_nothing_is_open() {
    let upstream = Upstream::start().await;
    let mut system = System::start(&upstream.url()).await;
    let mut client = RawClient::connect(&system.entry()).await;
    client.exchange("GET", "/status/200", "").await;
    // Else it is given a moment to close its end.
    drop(client);
    let asked = Instant::now();
    system.server().program().signal(Signal::TERM);
    let exit = system.server_mut().program_mut().wait_exit(SOON).await;
    let took = asked.elapsed();
    assert!(exit.success(), "{exit}");
    assert!(took < Duration::from_secs(1), "it took {took:?}");
}

/// The newer of two clients keeps the runtime, whichever of them reaches the new process first.
#[tokio::test]
async fn a_client_that_is_replaced_during_an_upgrade_keeps_the_runtime() {
    let upstream = Upstream::start().await;
    let (mut system, load) = under_load(options(&upstream)).await;
    let older = holder(&system).await;
    let client = system.client_options(APP).clone();
    let (newer, ended) = tokio::join!(Client::start(&client), upgrade(&mut system));
    load.mark("the new process serves");
    assert_eq!(ended.code, Some(0), "{ended:?}");
    newer.admin().wait_ready(true).await;
    let other = async || Some(holder(&system).await).filter(|id| id.is_string() && *id != older);
    let held = eventually(SOON, "the newer client to hold the runtime", other).await;
    // The older one has left by then, and does not come back.
    let program = system.server_mut().program_mut();
    program.wait_exit_alone(SOON).await;
    assert_eq!(holder(&system).await, held);
    // Requests of open connections to the old process may find no session there any more.
    load.wait_progress(10).await;
    eprintln!("{}", load.finish().await);
}

/// `demo` + `corp-app` and `demo-corp` + `app` have one label. Clients of the second one dial again and again.
#[tokio::test]
async fn a_label_stays_with_its_runtime_during_an_upgrade() {
    let (upstream, issuer) = (Upstream::start().await, Issuer::new());
    let options = options(&upstream)
        .server_file("--jwks", "jwks.json", &issuer.key_set())
        .server_flags(&["--jwt-issuer", ISSUER, "--jwt-audience", AUDIENCE])
        .not_connected();
    let mut system = System::with(options).await;
    let mut client = system.client_options(APP).clone();
    client.token = system.directory().join("corp-app.token");
    fs::write(&client.token, issuer.token("corp-app", LATE)).unwrap();
    let client = Client::start(&client).await;
    client.admin().wait_ready(true).await;
    let other = system.directory().join("other.token");
    fs::write(&other, issuer.token_of("demo-corp", "app")).unwrap();
    let (entry, refused) = (system.tunnel_entry(), Arc::new(AtomicUsize::new(0)));
    let mut dials = JoinSet::new();
    for _ in 0..4 {
        let (entry, other, refused) = (entry.clone(), other.clone(), refused.clone());
        dials.spawn(async move {
            loop {
                let refusal = Stranger::dial(&entry, &other).await.err();
                let refusal = refusal.expect("the label is another runtime's");
                match refusal.body["reason"].as_str() {
                    Some("runtime_label_taken") => refused.fetch_add(1, Ordering::Relaxed),
                    Some("server_draining") => continue,
                    reason => panic!("{reason:?}"),
                };
            }
        });
    }
    assert_eq!(upgrade(&mut system).await.code, Some(0));
    let program = system.server_mut().program_mut();
    program.wait_exit_alone(SOON).await;
    let at_upgrade = refused.load(Ordering::Relaxed);
    eventually(SOON, "more dials", async || {
        (refused.load(Ordering::Relaxed) > at_upgrade + 20).then_some(())
    })
    .await;
    // A loop that was let in has ended.
    assert!(dials.try_join_next().is_none());
    client.admin().wait_ready(true).await;
    let corp = system.entry_of("demo-corp-app");
    let answer = PlatformClient::http1(&corp).await.get("/status/200").await;
    assert_eq!(answer.status, 200);
}

/// The instance that holds the runtime.
async fn holder(system: &System) -> Value {
    let path = format!("/api/v1/runtimes/{APP}");
    let runtime = system.server().admin().get(&path).await;
    let runtime: Value = serde_json::from_str(runtime.text()).unwrap();
    runtime["instance"].clone()
}

/// What systemd is told of a unit of `Type=notify`.
#[tokio::test]
async fn systemd_is_told_who_serves() {
    let upstream = Upstream::start().await;
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("notify");
    let notified = UnixDatagram::bind(&path).unwrap();
    let next = async || {
        let mut text = [0; 256];
        let read = within(SOON, "a notification", notified.recv(&mut text)).await;
        String::from_utf8_lossy(&text[..read.unwrap()])
            .trim()
            .to_owned()
    };
    let mut options = options(&upstream);
    let variable = format!("NOTIFY_SOCKET={}", path.display());
    options.server.before = vec!["env".to_owned(), variable];
    let mut system = System::with(options).await;
    assert_eq!(next().await, "READY=1");
    assert_eq!(upgrade(&mut system).await.code, Some(0));
    let process = system.server().successor();
    assert_eq!(next().await, format!("MAINPID={}", process.id()));
    assert_eq!(next().await, "READY=1");
    process.signal(Signal::TERM);
    assert_eq!(next().await, "STOPPING=1");
}

/// A process for which systemd listens somewhere else than it is configured to.
#[tokio::test]
async fn a_socket_that_no_listener_takes_ends_the_start() {
    let upstream = Upstream::start().await;
    let system = System::with(options(&upstream).not_connected()).await;
    let other = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = other.local_addr().unwrap();
    let ended = system.refused_server(vec![Arc::new(other)]).await;
    assert_eq!(ended.code, Some(2), "{ended:?}");
    assert!(ended.err.contains(&address.to_string()), "{}", ended.err);
    assert!(ended.err.contains("ListenStream="), "{}", ended.err);
}
