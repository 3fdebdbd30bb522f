//! etcd that is restored from a snapshot, which takes back what happened after it.

use std::time::Duration;

use e2e::{
    deadline::SOON,
    nodes::{APP, Nodes, OTHER, THIRD},
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
