//! etcd that is restored from a snapshot, which takes back what happened after it.

use std::time::Duration;

use e2e::{
    deadline::{SOON, eventually},
    nodes::{APP, Nodes, OTHER, THIRD},
    stranger::Stranger,
    upstream::Upstream,
};
use testkit::etcd::has_etcdutl;
use tokio::time::sleep;

use super::{etcd::is_superseded, every_kind};

/// How long the snapshot's state may stand after etcd's return.
const TRUE_WITHIN: Duration = Duration::from_secs(5);

/// After the snapshot a runtime is taken over, and a node and a client of another runtime come. The restore by a command
/// with these flags takes that back; the nodes know better. No session ends, no request fails, and takeovers go on.
async fn is_restored(flags: &[&str]) {
    let (mut nodes, upstream) = (Nodes::start(2).await, Upstream::start().await);
    let balancer = nodes.balancer().await;
    let addresses = [0, 1].map(|number| nodes.server(number).tunnel_address());
    let app = nodes.client(APP, balancer.address(), &upstream, 2).await;
    let older = nodes.client(OTHER, addresses[0], &upstream, 1).await;
    nodes.wait_holders(1, OTHER, &[0]).await;
    let snapshot = nodes.etcd().snapshot().await;

    let newer = nodes.client(OTHER, addresses[1], &upstream, 1).await;
    is_superseded(&older).await;
    nodes.add(Vec::new()).await;
    nodes.wait_linked().await;
    let address = nodes.server(2).tunnel_address();
    let third = nodes.client(THIRD, address, &upstream, 1).await;
    nodes.wait_agreement(SOON).await;
    let loads = [0, 1, 2].map(|number| nodes.load(number, &every_kind()));
    let go_on = async |what: &str| {
        for load in &loads {
            load.mark(what);
            load.wait_progress(5).await;
        }
    };
    go_on("all is well").await;
    let mut before = Vec::new();
    for label in [APP, OTHER, THIRD] {
        before.push((label, nodes.sessions(label).await, nodes.held(label).await));
    }

    nodes.etcd_mut().restore(&snapshot, flags).await;
    let time = nodes.wait_agreement(TRUE_WITHIN).await;
    eprintln!("claims were true {time:?} after etcd's return");
    go_on("etcd is restored").await;
    // What comes late would come by now.
    sleep(Duration::from_secs(2)).await;
    nodes.wait_agreement(SOON).await;
    for (label, sessions, held) in before {
        assert_eq!(nodes.sessions(label).await, sessions, "{label}");
        let ((earlier, instance), (epoch, now)) = (held.unwrap(), nodes.held(label).await.unwrap());
        assert_eq!(now, instance, "{label}");
        // No session has joined since the snapshot that the claim of APP is in.
        let is_greater = epoch > earlier || label == APP && epoch == earlier;
        assert!(is_greater, "{label}: {earlier}, then {epoch}");
        for number in 0..3 {
            assert_eq!(nodes.status(number, label).await, 200, "{label}");
        }
    }
    let newest = nodes.client(OTHER, address, &upstream, 1).await;
    is_superseded(&newer).await;
    nodes.wait_agreement(SOON).await;
    go_on("taken over").await;
    for load in loads {
        load.finish().await.assert_none_failed();
    }
    for client in [&app, &third, &newest] {
        let log = client.program().text();
        assert!(!log.contains("has taken over"), "{log}");
    }
}

#[tokio::test]
async fn what_a_snapshot_does_not_have_is_written_again() {
    is_restored(&[]).await;
}

/// Revisions do not go back, and watches are told that they have missed something.
#[tokio::test]
#[ignore = "needs etcdutl: e2e/run-cluster runs it"]
async fn what_a_snapshot_with_greater_revisions_does_not_have_is_written_again() {
    assert!(has_etcdutl(), "there is no etcdutl");
    is_restored(&["--bump-revision", "1000000000", "--mark-compacted"]).await;
}

/// A managed runtime, whose token was made after the snapshot, and one whose token was revoked after it.
const LATE: &str = "demo-late";
const EARLY: &str = "demo-early";

/// Why a token is refused at a node; `None` if it is good.
async fn refusal(nodes: &Nodes, number: usize, label: &str) -> Option<String> {
    let entry = nodes.tunnel_entry(number);
    match Stranger::dial(&entry, nodes.token(label)).await {
        Ok(_) => None,
        Err(refusal) => Some(refusal.body["reason"].to_string()),
    }
}

/// etcd loses a managed runtime, the revocation of a managed token, and one by the operator. The clients notice nothing, the
/// tokens stay revoked, also at a node that comes then and knows etcd alone.
#[tokio::test]
async fn managed_runtimes_and_revocations_outlive_an_etcd_that_is_restored_and_emptied() {
    let (mut nodes, upstream) = (Nodes::managing(2).await, Upstream::start().await);
    let early = nodes.make_runtime(0, EARLY).await;
    let snapshot = nodes.etcd().snapshot().await;
    nodes.make_runtime(0, LATE).await;
    let path = format!("/runtimes/{EARLY}/tokens/{early}");
    let revoked = nodes.operate(0, "DELETE", &path, "").await;
    assert_eq!(revoked.head.status(), 204, "{revoked:?}");
    let path = format!("/runtimes/{OTHER}/revoke");
    let revoked = nodes.operate(1, "POST", &path, r#"{"all": true}"#).await;
    assert!(revoked.text().contains(r#""durable":true"#), "{revoked:?}");
    let balancer = nodes.balancer().await;
    let client = nodes.client(LATE, balancer.address(), &upstream, 2).await;
    let dials = balancer.dials().len();
    let holds = async |nodes: &Nodes, count: usize| {
        for number in 0..count {
            assert_eq!(nodes.status(number, LATE).await, 200);
            let early = refusal(nodes, number, EARLY).await;
            assert_eq!(early.as_deref(), Some("\"credential_revoked\""));
            let other = refusal(nodes, number, OTHER).await;
            assert_eq!(other.as_deref(), Some("\"credential_revoked\""));
        }
    };
    let is_there = async |nodes: &Nodes| {
        eventually(SOON, "etcd to have the runtime again", async || {
            let keys = nodes.keys("runtime/").await;
            keys.iter().any(|key| key.ends_with(LATE)).then_some(())
        })
        .await;
    };
    holds(&nodes, 2).await;
    nodes.etcd_mut().restore(&snapshot, &[]).await;
    is_there(&nodes).await;
    holds(&nodes, 2).await;
    nodes.etcd_mut().wipe(0);
    nodes.etcd_mut().start_again(0).await;
    is_there(&nodes).await;
    holds(&nodes, 2).await;
    nodes.etcd_mut().restore(&snapshot, &[]).await;
    is_there(&nodes).await;
    nodes.add(Vec::new()).await;
    nodes.wait_linked().await;
    nodes.wait_served(2, LATE).await;
    holds(&nodes, 3).await;
    assert_eq!(
        balancer.dials().len(),
        dials,
        "the client has dialled again"
    );
    let log = client.program().text();
    assert!(!log.contains("refused"), "{log}");
}
