//! Several servers over one etcd: what becomes of a runtime's claim when its instances dial different nodes.

use std::time::Duration;

use http::Response;
use serde_json::Value;
use testkit::{
    deadline::{SOON, eventually, soon},
    etcd::Etcd,
    program::Signal,
    tunnel::{
        body::full,
        client::{FakeClient, dial, session_request},
    },
};
use tokio::time::Instant;
use tunnel_directory::{DirectoryError, OnConflict};
use tunnel_ops::tls_files::{Roots, client_config};
use tunnel_proto::{
    close::CloseReason, control::Control, handshake::InstanceSecret, session::SessionEnd,
};
use tunnel_server::{
    config::{Config, SharedDirectory, WebhookSecret},
    events::EventKind,
    server::RunError,
};

use crate::{
    rig::{DEV, PROD, PROD_HOST, Rig},
    scripted_server::{Reply, ScriptedServer},
};

/// The label's key, as the documentation has it.
const CLAIM: &str = "/tunnel/v1/claim/acme-prod";

pub(crate) fn shared(etcd: &Etcd, name: &str) -> SharedDirectory {
    let settings = tunnel_etcd::Settings {
        members: etcd.urls().iter().map(|url| url.parse().unwrap()).collect(),
        tls: client_config(&Roots::none(), None, &[b"h2"]).unwrap(),
        user: None,
        timeout: Duration::from_millis(500),
    };
    SharedDirectory::new(settings, name.parse().unwrap())
}

/// A node that is ready.
async fn node(etcd: &Etcd, name: &str) -> Rig {
    node_with(etcd, name, |_| {}).await
}

pub(crate) async fn node_with(etcd: &Etcd, name: &str, change: impl FnOnce(&mut Config)) -> Rig {
    let shared = shared(etcd, name);
    let rig = Rig::with(|config| {
        config.shared_directory = Some(shared);
        change(config);
    })
    .await;
    is_ready(&rig).await;
    rig
}

pub(crate) async fn is_ready(rig: &Rig) {
    eventually(SOON, "the node to be ready", async || {
        (rig.admin("/readyz").await.0 == 200).then_some(())
    })
    .await;
}

async fn client(rig: &Rig, instance: Instance) -> FakeClient {
    FakeClient::of_instance(rig, PROD, instance.secret(), |_| async {
        Ok(Response::new(full("here")))
    })
    .await
}

/// An instance that may dial several times.
#[derive(Clone, Copy)]
struct Instance([u8; 16]);

impl Instance {
    fn new() -> Self {
        let mut bytes = [0; 16];
        getrandom::fill(&mut bytes).unwrap();
        Self(bytes)
    }

    fn secret(self) -> InstanceSecret {
        InstanceSecret::from_random(self.0)
    }

    fn id(self) -> String {
        self.secret().id().to_string()
    }
}

/// What a node says of the runtime.
async fn runtime(rig: &Rig) -> Value {
    let (_, text) = rig.admin("/api/v1/runtimes/acme-prod?scope=node").await;
    serde_json::from_str(&text).unwrap()
}

async fn epoch(rig: &Rig) -> u64 {
    runtime(rig).await["epoch"].as_u64().unwrap()
}

async fn superseded(client: &mut FakeClient) {
    client
        .control(|control| matches!(control, Control::Superseded { .. }))
        .await;
    assert!(matches!(
        client.ended().await,
        SessionEnd::ClosedByPeer(CloseReason::Superseded)
    ));
}

/// The keys below a prefix.
pub(crate) async fn keys(etcd: &Etcd, prefix: &str) -> Vec<String> {
    let text = etcd.ctl(&["get", "--prefix", "--keys-only", prefix]).await;
    let lines = text.lines().filter(|line| !line.is_empty());
    lines.map(str::to_owned).collect()
}

#[tokio::test]
async fn a_newer_instance_at_another_node_supersedes_the_older() {
    let etcd = Etcd::start(1).await;
    let (one, two) = (node(&etcd, "n1").await, node(&etcd, "n2").await);
    let mut older = client(&one, Instance::new()).await;
    let before = epoch(&one).await;
    let newer = client(&two, Instance::new()).await;
    superseded(&mut older).await;
    assert!(epoch(&two).await > before);
    let held = eventually(SOON, "the older record's end", async || {
        let held = keys(&etcd, "/tunnel/v1/held/").await;
        (held.len() == 1).then_some(held)
    });
    assert!(held.await[0].starts_with("/tunnel/v1/held/n2/"));
    drop(newer);
    one.stop().await;
    two.stop().await;
    assert_eq!(keys(&etcd, "/tunnel/v1/node/").await, [""; 0]);
}

#[tokio::test]
async fn sessions_of_one_instance_at_two_nodes_share_a_claim() {
    let etcd = Etcd::start(1).await;
    let (one, two) = (node(&etcd, "n1").await, node(&etcd, "n2").await);
    let instance = Instance::new();
    let first = client(&one, instance).await;
    let second = client(&two, instance).await;
    assert_eq!(epoch(&one).await, epoch(&two).await);
    assert_eq!(keys(&etcd, "/tunnel/v1/held/").await.len(), 2);
    // One of them goes: the claim stays with the other.
    first.die();
    eventually(SOON, "the record of the first node to go", async || {
        (keys(&etcd, "/tunnel/v1/held/").await.len() == 1).then_some(())
    })
    .await;
    let mut second = second;
    let newest = client(&one, Instance::new()).await;
    superseded(&mut second).await;
    drop(newest);
}

#[tokio::test]
async fn an_older_instance_at_another_node_may_be_kept() {
    let etcd = Etcd::start(1).await;
    let one = node(&etcd, "n1").await;
    let rejects = |config: &mut Config| config.settings.on_conflict = OnConflict::Reject;
    let two = node_with(&etcd, "n2", rejects).await;
    let older = client(&one, Instance::new()).await;
    eventually(SOON, "the other node to know it", async || {
        (runtime(&two).await["nodes"][0] == "n1").then_some(())
    })
    .await;
    let request = session_request(two.token(PROD), Instance::new().secret());
    assert_eq!(dial(&two, &request).await.status, 409);
    older.die();
    eventually(SOON, "the runtime to be free", async || {
        let request = session_request(two.token(PROD), Instance::new().secret());
        (dial(&two, &request).await.status == 101).then_some(())
    })
    .await;
}

/// An instance that has a session on a node gets its next one on another, as long as one serves.
#[tokio::test]
async fn an_instance_is_sent_to_another_node_than_those_that_it_names() {
    let etcd = Etcd::start(1).await;
    let (one, two) = (node(&etcd, "n1").await, node(&etcd, "n2").await);
    let asked = async |rig: &Rig, avoid: &str, attempt: &str| {
        let mut request = session_request(rig.token(PROD), Instance::new().secret());
        let fields = request.headers_mut();
        fields.insert("tunnel-avoid", avoid.parse().unwrap());
        fields.insert("tunnel-attempt", attempt.parse().unwrap());
        dial(rig, &request).await
    };
    let first = asked(&one, "n0", "1").await;
    let client = FakeClient::on(first, |_| async { Ok(Response::new(full("here"))) }).await;
    let welcome = client
        .control(|control| matches!(control, Control::Welcome { .. }))
        .await;
    assert!(matches!(welcome, Control::Welcome { node, .. } if node.as_deref() == Some("n1")));
    eventually(SOON, "a node to hear that the other serves", async || {
        let (_, status) = one.admin("/api/v1/status").await;
        (status.matches("\"serving\"").count() >= 2).then_some(())
    })
    .await;
    for attempt in ["1", "2"] {
        let refused = asked(&one, "n0,n1", attempt).await;
        assert_eq!(
            (refused.status, &refused.headers["retry-after"]),
            (503, &"0".parse().unwrap())
        );
        assert!(String::from_utf8_lossy(&refused.behind).contains("\"elsewhere\""));
    }
    // Often enough; at the other node; where no other is left; from a client that does not know the refusal.
    assert_eq!(asked(&one, "n1", "3").await.status, 101);
    assert_eq!(asked(&two, "n1", "1").await.status, 101);
    assert_eq!(asked(&one, "n1, n2", "1").await.status, 101);
    let mut older = session_request(one.token(PROD), Instance::new().secret());
    older
        .headers_mut()
        .insert("tunnel-avoid", "n1".parse().unwrap());
    assert_eq!(dial(&one, &older).await.status, 101);
    two.stop().await;
    eventually(SOON, "the other node to be gone", async || {
        (asked(&one, "n1", "1").await.status == 101).then_some(())
    })
    .await;
}

/// All sessions of a client are at one node: that has one of them move, and no other.
#[tokio::test]
async fn of_two_sessions_at_one_node_one_moves_to_another() {
    let etcd = Etcd::start(1).await;
    let (one, two) = (node(&etcd, "n1").await, node(&etcd, "n2").await);
    let instance = Instance::new();
    let staying = client(&one, instance).await;
    let mut moving = client(&one, instance).await;
    let is_drained = |client: &FakeClient| {
        let controls = client.controls();
        (controls.iter()).any(|control| matches!(control, Control::Drain { .. }))
    };
    // The nodes have to be the same ones for ten seconds.
    eventually(2 * SOON, "the younger session to be moved", async || {
        is_drained(&moving).then_some(())
    })
    .await;
    assert!(
        !moving.session.is_closed(),
        "it serves until there is another"
    );
    let next = client(&two, instance).await;
    moving.session.send(Control::Moved).unwrap();
    assert!(matches!(
        moving.ended().await,
        SessionEnd::ClosedByPeer(CloseReason::Drained)
    ));
    assert!(!is_drained(&staying) && !is_drained(&next));
    assert_eq!(keys(&etcd, "/tunnel/v1/held/").await.len(), 2);
}

/// etcd comes back without anything that it had stored, and with smaller revisions.
#[tokio::test]
async fn live_sessions_outlive_what_etcd_has_stored() {
    let mut etcd = Etcd::start(1).await;
    let (one, two) = (node(&etcd, "n1").await, node(&etcd, "n2").await);
    let mut older = client(&one, Instance::new()).await;
    let mut held = client(&two, Instance::new()).await;
    superseded(&mut older).await;
    let before = epoch(&two).await;
    etcd.wipe(0);
    etcd.start_again(0).await;
    eventually(SOON, "a greater epoch", async || {
        (epoch(&two).await > before).then_some(())
    })
    .await;
    assert!(!held.session.is_closed());
    eventually(SOON, "the keys of both nodes", async || {
        (keys(&etcd, "/tunnel/v1/node/").await.len() == 2).then_some(())
    })
    .await;
    let _newest = client(&one, Instance::new()).await;
    superseded(&mut held).await;
}

/// Two instances that dial two nodes at one moment: one of them has the runtime in the end, everywhere.
#[tokio::test]
async fn of_claims_at_one_moment_one_wins_everywhere() {
    let etcd = Etcd::start(1).await;
    let (one, two) = (node(&etcd, "n1").await, node(&etcd, "n2").await);
    for _ in 0..20 {
        let (a, b) = (Instance::new(), Instance::new());
        let dial_both = async {
            let first = dial_in(&one, a);
            let second = dial_in(&two, b);
            tokio::join!(first, second)
        };
        let (first, second) = soon("two sessions", Box::pin(dial_both)).await;
        let text = etcd.ctl(&["get", CLAIM, "--print-value-only"]).await;
        let claim: Value = serde_json::from_str(&text).unwrap();
        let winner = claim["instance"].as_str().unwrap().to_owned();
        assert!([a.id(), b.id()].contains(&winner));
        for (client, instance) in [(first, a), (second, b)] {
            let Some(mut client) = client else { continue };
            match instance.id() == winner {
                true => assert!(!client.session.is_closed()),
                false => superseded(&mut client).await,
            }
        }
        // The next pair finds the runtime free, so that nobody has to wait after takeovers.
        eventually(SOON, "the runtime to be free", async || {
            keys(&etcd, "/tunnel/v1/held/")
                .await
                .is_empty()
                .then_some(())
        })
        .await;
    }
}

/// A client that may be refused because another instance was faster.
async fn dial_in(rig: &Rig, instance: Instance) -> Option<FakeClient> {
    let request = session_request(rig.token(PROD), instance.secret());
    let connected = dial(rig, &request).await;
    if connected.status != 101 {
        return None;
    }
    Some(FakeClient::on(connected, |_| async { Ok(Response::new(full("here"))) }).await)
}

/// How long an older instance serves on after the newer one was welcome.
#[tokio::test]
async fn a_takeover_is_known_at_the_other_node_within_a_moment() {
    let etcd = Etcd::start(3).await;
    let nodes = [node(&etcd, "n1").await, node(&etcd, "n2").await];
    let mut times = Vec::new();
    for round in 0..20 {
        let older = client(&nodes[round % 2], Instance::new()).await;
        let newer = client(&nodes[(round + 1) % 2], Instance::new()).await;
        let welcome = Instant::now();
        older
            .control(|control| matches!(control, Control::Superseded { .. }))
            .await;
        times.push(welcome.elapsed());
        drop((older, newer));
        eventually(SOON, "the runtime to be free", async || {
            keys(&etcd, "/tunnel/v1/held/")
                .await
                .is_empty()
                .then_some(())
        })
        .await;
    }
    times.sort();
    eprintln!(
        "superseded after the welcome: median {:?}, most {:?}",
        times[10], times[19]
    );
    assert!(times[19] < Duration::from_secs(1), "{times:?}");
}

#[tokio::test]
async fn a_lost_lease_of_a_living_node_changes_nothing_for_its_clients() {
    let etcd = Etcd::start(1).await;
    let (one, two) = (node(&etcd, "n1").await, node(&etcd, "n2").await);
    let instance = Instance::new();
    let mut client = client(&one, instance).await;
    let before = epoch(&one).await;
    let leases = etcd.ctl(&["lease", "list"]).await;
    for lease in leases.lines().skip(1) {
        etcd.ctl(&["lease", "revoke", lease]).await;
    }
    eventually(Duration::from_secs(2), "both keys to be back", async || {
        (keys(&etcd, "/tunnel/v1/node/").await.len() == 2).then_some(())
    })
    .await;
    assert_eq!(epoch(&one).await, before);
    assert!(!client.session.is_closed());
    assert_eq!(client.controls().len(), 1, "nothing after the welcome");
    // The records are valid: a newer instance at the other node is a takeover.
    let _newer = FakeClient::describing(&two, PROD).await;
    superseded(&mut client).await;
}

#[tokio::test]
async fn records_that_are_deleted_by_hand_come_back() {
    let etcd = Etcd::start(1).await;
    let (one, two) = (node(&etcd, "n1").await, node(&etcd, "n2").await);
    let instance = Instance::new();
    let first = client(&one, instance).await;
    let second = client(&two, instance).await;
    let before = epoch(&one).await;
    etcd.ctl(&["del", CLAIM]).await;
    etcd.ctl(&["del", "--prefix", "/tunnel/v1/held/n1/"]).await;
    eventually(SOON, "one newer epoch at both nodes", async || {
        let (one, two) = (epoch(&one).await, epoch(&two).await);
        (one == two && one > before).then_some(())
    })
    .await;
    eventually(SOON, "both records", async || {
        (keys(&etcd, "/tunnel/v1/held/").await.len() == 2).then_some(())
    })
    .await;
    for client in [first, second] {
        assert!(!client.session.is_closed());
        assert_eq!(client.controls().len(), 1, "nothing after the welcome");
    }
}

#[tokio::test]
async fn a_lost_leader_delays_a_claim_and_loses_none() {
    for signal in [Signal::KILL, Signal::STOP] {
        let etcd = Etcd::start(3).await;
        let (one, two) = (node(&etcd, "n1").await, node(&etcd, "n2").await);
        let mut older = client(&one, Instance::new()).await;
        etcd.signal(etcd.leader().await, signal);
        let start = Instant::now();
        let newer = client(&two, Instance::new()).await;
        superseded(&mut older).await;
        eprintln!("{signal:?}: taken over after {:?}", start.elapsed());
        assert!(!newer.session.is_closed());
    }
}

/// What a node takes back from etcd at its end, and the last events of a webhook that is not answered, are no reason to
/// stay.
#[tokio::test]
async fn a_node_stops_within_the_grace_period_while_etcd_stands_still() {
    let etcd = Etcd::start(1).await;
    let grace = Duration::from_secs(3);
    let platform = ScriptedServer::start(None, Reply::Silence).await;
    let one = node_with(&etcd, "n1", |config| {
        config.settings.grace_period = grace;
        config.settings.webhook_url = Some(platform.url.parse().unwrap());
        config.settings.webhook_events = vec![EventKind::Draining];
        config.webhook_secret = WebhookSecret::parse("whsec_YSBrZXkgb2YgbW9yZSB0aGFuIDI0IGJ5dGVz");
    })
    .await;
    let client = FakeClient::new(&one, PROD, |_| std::future::pending()).await;
    let mut busy = one.raw().await;
    busy.send(format!("GET / HTTP/1.1\r\nhost: {PROD_HOST}\r\n\r\n"))
        .await;
    client.request(1).await;
    etcd.signal(0, Signal::STOP);
    let began = Instant::now();
    one.stop().await;
    let took = began.elapsed();
    assert!(took > grace / 2 && took < grace, "{took:?}");
}

#[tokio::test]
async fn without_etcd_sessions_stay_and_takeovers_of_the_living_wait() {
    let mut etcd = Etcd::start(1).await;
    let (one, two) = (node(&etcd, "n1").await, node(&etcd, "n2").await);
    let instance = Instance::new();
    let client_of_one = client(&one, instance).await;
    etcd.kill(0);
    // One more session of the instance needs no claim.
    let second = client(&two, instance).await;
    // Another instance cannot have the runtime, wherever it dials.
    for node in [&one, &two] {
        eventually(SOON, "a refusal", async || {
            let request = session_request(node.token(PROD), Instance::new().secret());
            let connected = dial(node, &request).await;
            (connected.status == 503 && connected.headers["retry-after"] == "2").then_some(())
        })
        .await;
    }
    assert!(!client_of_one.session.is_closed() && !second.session.is_closed());
    etcd.start_again(0).await;
    let mut all = [client_of_one, second];
    eventually(SOON, "etcd to be back", async || {
        (one.metric("tunnel_server_directory_away").await < 1.0
            && two.metric("tunnel_server_directory_away").await < 1.0)
            .then_some(())
    })
    .await;
    let _newer = FakeClient::describing(&two, PROD).await;
    for client in &mut all {
        superseded(client).await;
    }
}

#[tokio::test]
async fn a_runtime_that_nobody_holds_is_given_without_etcd_and_claimed_later() {
    let mut etcd = Etcd::start(1).await;
    let one = node(&etcd, "n1").await;
    etcd.kill(0);
    let instance = Instance::new();
    let client = client(&one, instance).await;
    etcd.start_again(0).await;
    eventually(SOON, "the claim", async || {
        let text = etcd.ctl(&["get", CLAIM, "--print-value-only"]).await;
        text.contains(&instance.id()).then_some(())
    })
    .await;
    assert!(!client.session.is_closed());
    assert_eq!(client.controls().len(), 1, "nothing after the welcome");
}

#[tokio::test]
async fn a_node_waits_for_etcd_and_says_so() {
    let mut etcd = Etcd::start(1).await;
    etcd.kill(0);
    let shared = shared(&etcd, "n1");
    let rig = Rig::with(|config| config.shared_directory = Some(shared)).await;
    let (status, text) = soon("an answer", rig.admin("/readyz")).await;
    assert_eq!(status, 503);
    assert!(text.contains("etcd"), "{text}");
    etcd.start_again(0).await;
    is_ready(&rig).await;
    rig.stop().await;
}

#[tokio::test]
async fn a_second_living_node_of_one_name_ends_and_a_dead_one_is_replaced() {
    let etcd = Etcd::start(1).await;
    let first = node(&etcd, "n1").await;
    let shared_again = shared(&etcd, "n1");
    let second = Rig::with(|config| config.shared_directory = Some(shared_again)).await;
    let error = second.failed().await;
    assert!(
        matches!(error, RunError::Directory(DirectoryError::NameTaken(_))),
        "{error}"
    );
    let client = client(&first, Instance::new()).await;
    first.kill();
    drop(client);
    // Its key is still there.
    assert_eq!(keys(&etcd, "/tunnel/v1/node/").await.len(), 1);
    let again = node(&etcd, "n1").await;
    let _client = FakeClient::describing(&again, PROD).await;
}

/// As in an etcd that was restored from a snapshot: the record is that of an earlier run of the node.
#[tokio::test]
async fn a_record_of_a_dead_node_of_its_name_does_not_end_a_node() {
    const NODE: &str = "/tunnel/v1/node/n1";
    let etcd = Etcd::start(1).await;
    let rig = node(&etcd, "n1").await;
    let own = etcd.ctl(&["get", NODE, "--print-value-only"]).await;
    let mut record: Value = serde_json::from_str(&own).unwrap();
    let incarnation = record["incarnation"].take();
    let digits = incarnation.as_str().unwrap().chars().rev();
    record["incarnation"] = digits.collect::<String>().into();
    etcd.ctl(&["put", NODE, &record.to_string()]).await;
    eventually(SOON, "its own record again", async || {
        let now = etcd.ctl(&["get", NODE, "--print-value-only"]).await;
        let now: Value = serde_json::from_str(&now).unwrap();
        (now["incarnation"] == incarnation).then_some(())
    })
    .await;
    let _client = FakeClient::describing(&rig, PROD).await;
    rig.stop().await;
}

#[tokio::test]
async fn records_of_a_later_format_end_the_node() {
    let etcd = Etcd::start(1).await;
    let later = r#"{"format":2,"generation":0}"#;
    etcd.ctl(&["put", "/tunnel/v1/cluster", later]).await;
    let shared = shared(&etcd, "n1");
    let rig = Rig::with(|config| config.shared_directory = Some(shared)).await;
    let error = rig.failed().await;
    assert!(error.to_string().contains("format 2"), "{error}");
}

/// After a compaction that the watch has missed, the table is as etcd is.
#[tokio::test]
async fn what_was_compacted_while_a_node_was_cut_off_is_listed_again() {
    let mut etcd = Etcd::start(1).await;
    let (one, two) = (node(&etcd, "n1").await, node(&etcd, "n2").await);
    let mut older = client(&one, Instance::new()).await;
    etcd.kill(0);
    etcd.start_again(0).await;
    for _ in 0..5 {
        etcd.ctl(&["put", "/tunnel/v1/later/unknown", "x"]).await;
    }
    let text = etcd.ctl(&["get", CLAIM, "--write-out", "json"]).await;
    let revision = serde_json::from_str::<Value>(&text).unwrap()["header"]["revision"].clone();
    etcd.ctl(&["compact", &revision.to_string()]).await;
    let _newer = FakeClient::describing(&two, PROD).await;
    superseded(&mut older).await;
}

/// etcd's database is full: it renews leases, and takes no write; versions before 3.5 take those of claims, which they do
/// not count. Sessions are welcome as without etcd, and all is written when there is room.
#[tokio::test]
async fn a_full_database_ends_no_session_and_keeps_none_out() {
    let quota = "--quota-backend-bytes=4194304";
    let etcd = Etcd::start_with_flags(1, &[quota]).await;
    let (one, two) = (node(&etcd, "n1").await, node(&etcd, "n2").await);
    let instance = Instance::new();
    let mut first = client(&one, instance).await;
    eventually(SOON, "the other node to know it", async || {
        (runtime(&two).await["nodes"][0] == "n1").then_some(())
    })
    .await;
    fill(&etcd).await;
    let mut second = client(&two, instance).await;
    let free = FakeClient::describing(&two, DEV).await;
    for lease in etcd.ctl(&["lease", "list"]).await.lines().skip(1) {
        etcd.ctl(&["lease", "revoke", lease]).await;
    }
    // The nodes say that etcd does not take what they write.
    for node in [&one, &two] {
        node.metric_becomes("tunnel_server_directory_away", 1.0)
            .await;
    }
    empty(&etcd).await;
    eventually(SOON, "all records to be written", async || {
        let nodes = keys(&etcd, "/tunnel/v1/node/").await;
        let held = keys(&etcd, "/tunnel/v1/held/").await;
        (nodes.len() == 2 && held.len() == 3).then_some(())
    })
    .await;
    one.metric_becomes("tunnel_server_directory_away", 0.0)
        .await;
    for client in [&first, &second, &free] {
        assert!(!client.session.is_closed());
        assert_eq!(client.controls().len(), 1, "nothing after the welcome");
    }
    let _newer = FakeClient::describing(&one, PROD).await;
    superseded(&mut first).await;
    superseded(&mut second).await;
}

/// Writes until etcd takes no more.
async fn fill(etcd: &Etcd) {
    let client = tunnel_etcd::Client::new(shared(etcd, "n9").etcd);
    let large = "x".repeat(500_000);
    eventually(SOON, "a full database", async || {
        let put = tunnel_etcd::RequestOp::put("/large".to_owned(), large.clone(), 0);
        let txn = tunnel_etcd::TxnRequest {
            success: vec![put],
            ..tunnel_etcd::TxnRequest::default()
        };
        client.txn(txn).await.is_err().then_some(())
    })
    .await;
}

/// Makes room, as an operator does.
async fn empty(etcd: &Etcd) {
    let text = etcd.ctl(&["get", "/large", "--write-out", "json"]).await;
    let revision = serde_json::from_str::<Value>(&text).unwrap()["header"]["revision"].clone();
    etcd.ctl(&["compact", &revision.to_string()]).await;
    etcd.ctl(&["del", "/large"]).await;
    etcd.ctl(&["defrag"]).await;
    etcd.ctl(&["alarm", "disarm"]).await;
}

/// A node of a directory of a million runtimes, all held by another node, is ready in time.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "a measurement that takes minutes: run it alone, with --nocapture"]
async fn a_directory_of_a_million_runtimes() {
    const RUNTIMES: usize = 1_000_000;
    const TOGETHER: usize = 60;
    let etcd = Etcd::start_with_flags(1, &["--quota-backend-bytes=8589934592"]).await;
    let client = tunnel_etcd::Client::new(shared(&etcd, "n9").etcd);
    let incarnation = format!("{:016x}", 1);
    let record = serde_json::json!({
        "incarnation": incarnation, "version": "0.1.0", "state": "serving",
    });
    etcd.ctl(&["put", "/tunnel/v1/node/n1", &record.to_string()])
        .await;
    let next = std::sync::atomic::AtomicUsize::new(0);
    let write = async || loop {
        let first = next.fetch_add(TOGETHER, std::sync::atomic::Ordering::Relaxed);
        if first >= RUNTIMES {
            return;
        }
        let puts = (first..(first + TOGETHER).min(RUNTIMES)).flat_map(|number| {
            let (account, runtime) = (number / 4, number % 4);
            let label = format!("account-{account}-runtime-{runtime}");
            let claim = serde_json::json!({
                "instance": format!("{number:032x}"), "nonce": format!("{number:016x}"),
                "account": format!("account-{account}"), "runtime": format!("runtime-{runtime}"),
                "node": "n1", "at_ms": 1_795_525_135_152_u64,
            });
            let held = format!("/tunnel/v1/held/n1/{incarnation}/{label}");
            let put = tunnel_etcd::RequestOp::put;
            [
                put(format!("/tunnel/v1/claim/{label}"), claim.to_string(), 0),
                put(held, r#"{"state":"open"}"#.to_owned(), 0),
            ]
        });
        let txn = tunnel_etcd::TxnRequest {
            success: puts.collect(),
            ..tunnel_etcd::TxnRequest::default()
        };
        while let Err(error) = client.txn(txn.clone()).await {
            eprintln!("{error}");
        }
    };
    tokio::join!(write(), write(), write(), write());
    let start = Instant::now();
    let directory = shared(&etcd, "n2");
    let two = Rig::with(|config| config.shared_directory = Some(directory)).await;
    eventually(10 * SOON, "the node to be ready", async || {
        (two.admin("/readyz").await.0 == 200).then_some(())
    })
    .await;
    eprintln!("ready after {:?}", start.elapsed());
    let (_, text) = two.admin("/api/v1/runtimes/account-77-runtime-3").await;
    assert!(text.contains("\"nodes\":[\"n1\"]"), "{text}");
}
