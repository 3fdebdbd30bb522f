//! Events as they are read over a real socket: each kind when what it tells of has happened.

use std::{
    io::{BufRead, BufReader, Lines},
    net::SocketAddr,
    process::{Child, ChildStderr, Stdio},
    time::{Duration, SystemTime},
};

use serde_json::{Value, json};
use testkit::{
    http1::RawConnection,
    tunnel::{
        body::internal,
        client::{FakeClient, dial, random_instance, session_request},
    },
};
use tunnel_proto::handshake::InstanceSecret;
use tunnel_server::runtimes::Moment;

use crate::{
    admin::{ALL, act, guarded},
    program::Folder,
    rig::{DEV, PROD, Rig, connect},
};

/// A reader of events.
pub(crate) struct Watcher {
    raw: RawConnection,
    text: String,
}

impl Watcher {
    async fn new(rig: &Rig, last: Option<&str>) -> Self {
        Self::at(rig.addresses.admin, last).await
    }

    async fn at(admin: SocketAddr, last: Option<&str>) -> Self {
        let last = last.map(|id| format!("last-event-id: {id}\r\n"));
        Self::open(admin, "/events", &last.unwrap_or_default()).await
    }

    /// A reader of the stream at this path below the API's root.
    pub(crate) async fn open(admin: SocketAddr, path: &str, fields: &str) -> Self {
        let request = format!("GET /api/v1{path} HTTP/1.1\r\nhost: localhost\r\n{fields}\r\n");
        let mut raw = RawConnection::over(connect(admin).await);
        raw.send(request).await;
        let head = raw.head().await.unwrap();
        assert_eq!(head.status(), 200);
        assert_eq!(head.value("content-type"), Some("text/event-stream"));
        assert_eq!(head.value("transfer-encoding"), Some("chunked"));
        let mut watcher = Self {
            raw,
            text: String::new(),
        };
        let beginning = watcher.block().await;
        assert!(beginning.starts_with(": "), "{beginning}");
        watcher
    }

    /// Everything up to the next empty line.
    async fn block(&mut self) -> String {
        loop {
            if let Some((block, rest)) = self.text.split_once("\n\n") {
                let block = block.to_owned();
                self.text = rest.to_owned();
                return block;
            }
            let size = usize::from_str_radix(&self.raw.line().await.unwrap(), 16).unwrap();
            assert!(size > 0, "the events have ended");
            let bytes = self.raw.bytes(size).await;
            self.text += std::str::from_utf8(&bytes).unwrap();
            assert_eq!(self.raw.line().await.unwrap(), "");
        }
    }

    /// The name and the data of the next event.
    pub(crate) async fn named(&mut self) -> (String, Value) {
        let block = self.block().await;
        let (name, data) = block.split_once("\ndata: ").unwrap();
        let name = name.strip_prefix("event: ").unwrap();
        (name.to_owned(), serde_json::from_str(data).unwrap())
    }

    async fn event(&mut self) -> Value {
        let block = self.block().await;
        let field = |name: &str| block.lines().find_map(|line| line.strip_prefix(name));
        let event: Value = serde_json::from_str(field("data: ").unwrap()).unwrap();
        assert_eq!(field("event: "), event["kind"].as_str());
        assert_eq!(field("id: "), event["id"].as_str());
        event
    }

    /// The next event of this kind.
    async fn kind(&mut self, kind: &str) -> Value {
        loop {
            let event = self.event().await;
            if event["kind"] == kind {
                return event;
            }
        }
    }
}

#[tokio::test]
async fn events_are_seen_as_they_happen() {
    let (rig, _file) = guarded().await;
    let mut watcher = Watcher::new(&rig, None).await;
    let client = FakeClient::describing(&rig, PROD).await;
    let began = watcher.kind("session-began").await;
    assert_eq!(began["label"], PROD);
    assert!(
        began["time"].is_string() && began["session"].is_string(),
        "{began}"
    );
    act(&rig, "/runtimes/acme-prod/revoke", ALL).await;
    assert_eq!(watcher.kind("revoked").await["label"], PROD);
    let ended = watcher.kind("session-ended").await;
    assert_eq!(
        (&ended["reason"], &ended["session"]),
        (&json!("revoked"), &began["session"])
    );
    drop(client);
    let revoked = session_request(rig.token(PROD), random_instance());
    assert_eq!(dial(&rig, &revoked).await.status, 403);
    let refused = watcher.kind("refused").await;
    assert_eq!(
        (&refused["label"], &refused["reason"]),
        (&json!(PROD), &json!("credential_revoked"))
    );
    rig.trigger.request();
    watcher.kind("draining").await;
    rig.stopped().await;
}

#[tokio::test]
async fn a_reader_that_reconnects_gets_the_events_in_between() {
    let rig = Rig::start().await;
    let mut watcher = Watcher::new(&rig, None).await;
    let _first = FakeClient::describing(&rig, PROD).await;
    let began = watcher.kind("session-began").await;
    drop(watcher);
    let _second = FakeClient::describing(&rig, DEV).await;
    let mut watcher = Watcher::new(&rig, began["id"].as_str()).await;
    assert_eq!(watcher.kind("session-began").await["label"], DEV);
    let mut stranger = Watcher::new(&rig, Some("of-another-run-5")).await;
    assert_eq!(stranger.event().await["kind"], "missed");
    assert_eq!(stranger.kind("session-began").await["label"], PROD);
    rig.stop().await;
}

#[tokio::test]
async fn a_runtime_comes_online_and_goes_offline() {
    let rig = Rig::start().await;
    let mut watcher = Watcher::new(&rig, None).await;
    let first = FakeClient::describing(&rig, PROD).await;
    assert_eq!(watcher.kind("online").await["label"], PROD);
    first.die();
    assert_eq!(watcher.kind("offline").await["label"], PROD);
    let _second = FakeClient::describing(&rig, DEV).await;
    assert_eq!(watcher.kind("online").await["label"], DEV);
    rig.stop().await;
}

#[tokio::test]
async fn takeovers_and_contests_are_reported() {
    let rig = Rig::start().await;
    let mut watcher = Watcher::new(&rig, None).await;
    let mut older: Option<(InstanceSecret, FakeClient)> = None;
    // The runtime passes from hand to hand, until it is too much.
    for _ in 0..4 {
        let instance = random_instance();
        let fails = |_| async { Err(internal()) };
        let client = FakeClient::of_instance(&rig, PROD, instance.clone(), fails).await;
        if let Some((older, _)) = older.replace((instance, client)) {
            let superseded = watcher.kind("superseded").await;
            assert_eq!(superseded["label"], PROD);
            assert_eq!(superseded["detail"], format!("instance {}", older.id()));
        }
    }
    let another = session_request(rig.token(PROD), random_instance());
    assert_ne!(dial(&rig, &another).await.status, 101);
    assert_eq!(watcher.kind("contested").await["label"], PROD);
    rig.stop().await;
}

#[tokio::test]
async fn an_expired_credential_is_reported() {
    let end = Moment::from(SystemTime::now() + Duration::from_secs(3));
    let edit = |text: String| text.replacen("id = ", &format!("expires = {end}\nid = "), 1);
    let rig = Rig::listing(edit, |config| {
        config.settings.expiry_grace = Duration::ZERO;
    })
    .await;
    let mut watcher = Watcher::new(&rig, None).await;
    let mut client = FakeClient::describing(&rig, PROD).await;
    let expired = watcher.kind("expired").await;
    assert_eq!(
        (&expired["label"], &expired["reason"]),
        (&json!(PROD), &json!("token_expired"))
    );
    assert_eq!(watcher.kind("session-ended").await["reason"], "expired");
    client.ended().await;
    rig.stop().await;
}

/// The program, ended with the test. Its log stays open, and is short.
struct Running(Child, Lines<BufReader<ChildStderr>>);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Running {
    /// Starts the program, and waits until its admin listener is there.
    fn start(folder: &Folder) -> (Self, SocketAddr) {
        let arguments = [
            "run",
            "--log-format=json",
            "--tls-cert=server.pem",
            "--tls-key=server.key",
            "--runtimes=runtimes.toml",
            "--domain=tunnels.test",
            "--tunnel-listen=127.0.0.1:0",
            "--public-listen=127.0.0.1:0",
            "--admin-listen=127.0.0.1:0",
        ];
        let mut command = folder.command(arguments);
        let mut program = command.stderr(Stdio::piped()).spawn().unwrap();
        let log = BufReader::new(program.stderr.take().unwrap()).lines();
        let mut running = Self(program, log);
        let admin = running.1.find_map(|line| {
            let line: Value = serde_json::from_str(&line.unwrap()).unwrap();
            let is_admin = line["message"] == "listening" && line["listener"] == "admin";
            is_admin.then(|| line["address"].as_str().unwrap().parse().unwrap())
        });
        (running, admin.expect("an admin listener"))
    }
}

#[tokio::test]
async fn a_reload_is_reported_valid_or_not() {
    let folder = Folder::with_all_files();
    let good = folder.read("runtimes.toml");
    let (_running, admin) = Running::start(&folder);
    let mut watcher = Watcher::at(admin, None).await;
    // A file may be read again before all of it is written: more than one event is fine.
    for (text, reason) in [("this is no TOML", json!("not_good")), (&good, Value::Null)] {
        folder.write("runtimes.toml", text);
        while watcher.kind("reloaded").await["reason"] != reason {}
    }
}
