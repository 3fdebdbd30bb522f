//! Reads, transactions and leases, and what a failed member costs.

use std::time::Duration;

use testkit::{
    deadline::{SOON, eventually},
    etcd::Etcd,
    program::Signal,
};
use tokio::time::Instant;
use tunnel_etcd::{Compare, EtcdError, RangeRequest, RequestOp, Response, TxnRequest};

use crate::{PATIENT, client, put, under, write};

#[tokio::test]
async fn a_transaction_writes_only_if_its_conditions_hold() {
    let etcd = Etcd::start(1).await;
    let client = client(&etcd, PATIENT);
    let revision = write(&client, "/a", "1").await.revision();
    let take = |seen: i64| TxnRequest {
        compare: vec![Compare::mod_revision("/a", seen)],
        success: vec![RequestOp::put("/a", "2", 0)],
        failure: vec![RequestOp::get("/a")],
    };
    let lost = client.txn(take(revision - 1)).await.unwrap();
    assert!(!lost.succeeded);
    assert_eq!(&lost.first_read().unwrap().value[..], b"1");
    let won = client.txn(take(revision)).await.unwrap();
    assert!(won.succeeded && won.revision() > revision);
    assert_eq!(etcd.ctl(&["get", "/a", "--print-value-only"]).await, "2\n");
}

#[tokio::test]
async fn transactions_within_a_transaction_have_conditions_of_their_own() {
    let etcd = Etcd::start(1).await;
    let client = client(&etcd, PATIENT);
    write(&client, "/taken", "1").await;
    let claim = |key: &'static str| {
        RequestOp::from(TxnRequest {
            compare: vec![Compare::mod_revision(key, 0)],
            success: vec![RequestOp::put(key, "2", 0)],
            failure: vec![RequestOp::get(key)],
        })
    };
    let batch = TxnRequest {
        success: vec![claim("/free"), claim("/taken")],
        ..TxnRequest::default()
    };
    let answer = client.txn(batch).await.unwrap();
    let inner = answer
        .responses
        .into_iter()
        .map(|response| match response.response {
            Some(Response::Txn(inner)) => inner.succeeded,
            other => panic!("{other:?}"),
        });
    assert_eq!(inner.collect::<Vec<_>>(), [true, false]);
}

#[tokio::test]
async fn a_range_is_read_by_pages_at_one_revision() {
    let etcd = Etcd::start(1).await;
    let client = client(&etcd, PATIENT);
    for key in ["/k/1", "/k/2", "/k/3", "/other"] {
        write(&client, key, "v").await;
    }
    let (key, range_end) = under("/k/");
    let page = |key, revision| RangeRequest {
        key,
        range_end: range_end.clone(),
        limit: 2,
        revision,
        serializable: true,
        count_only: false,
    };
    let first = client.range(page(key, 0)).await.unwrap();
    assert!(first.more && first.count == 3);
    let revision = first.header.unwrap().revision;
    write(&client, "/k/4", "later").await;
    let next = [&first.kvs[1].key[..], b"\0"].concat().into();
    let second = client.range(page(next, revision)).await.unwrap();
    assert!(!second.more);
    assert_eq!(&second.kvs[0].key[..], b"/k/3");
    assert_eq!(second.kvs.len(), 1);
}

#[tokio::test]
async fn a_lease_carries_its_keys_and_its_end_is_told() {
    let etcd = Etcd::start(1).await;
    let client = client(&etcd, PATIENT);
    let lease = client.grant(Duration::from_secs(60)).await.unwrap();
    assert!(lease.ttl >= Duration::from_secs(60));
    let keep = TxnRequest {
        success: vec![RequestOp::put("/node", "here", lease.id)],
        ..TxnRequest::default()
    };
    client.txn(keep).await.unwrap();
    assert!(client.keep_alive(lease.id).await.unwrap() >= Duration::from_secs(60));
    let id = format!("{:x}", lease.id);
    assert!(
        etcd.ctl(&["lease", "timetolive", &id, "--keys"])
            .await
            .contains("/node")
    );
    client.revoke(lease.id).await.unwrap();
    assert_eq!(etcd.ctl(&["get", "/node"]).await, "");
    assert_eq!(
        client.keep_alive(lease.id).await,
        Err(EtcdError::LeaseEnded)
    );
    assert_eq!(client.revoke(lease.id).await, Err(EtcdError::LeaseEnded));
}

#[tokio::test]
async fn every_member_has_its_own_state() {
    let etcd = Etcd::start(3).await;
    let client = client(&etcd, PATIENT);
    let leader = etcd.leader().await;
    let mut ids = Vec::new();
    for index in 0..client.members() {
        let status = client.status(index).await.unwrap();
        let id = status.header.unwrap().member_id;
        assert_eq!(status.leader == id, index == leader, "{status:?}");
        ids.push(id);
    }
    ids.dedup();
    assert_eq!(ids.len(), 3);
}

/// A leader that is lost costs an election, and not the 7 s for which etcd holds the write that was under way.
#[tokio::test]
async fn a_write_comes_through_soon_after_the_leader_is_lost() {
    for signal in [Signal::KILL, Signal::STOP] {
        let etcd = Etcd::start(3).await;
        let client = client(&etcd, Duration::from_millis(500));
        write(&client, "/a", "before").await;
        etcd.signal(etcd.leader().await, signal);
        let start = Instant::now();
        eventually(SOON, "a write", async || {
            let written = client.txn(put("/a", "after")).await;
            assert!(
                written.as_ref().err().is_none_or(EtcdError::is_of_member),
                "{written:?}"
            );
            written.ok()
        })
        .await;
        eprintln!("{signal:?}: written after {:?}", start.elapsed());
    }
}

#[tokio::test]
async fn a_member_that_is_not_there_is_left_for_the_next_one() {
    let mut etcd = Etcd::start(3).await;
    let client = client(&etcd, PATIENT);
    etcd.kill(client.preferred());
    let lost = client.txn(put("/a", "1")).await.unwrap_err();
    assert!(lost.is_of_member(), "{lost}");
    assert_eq!(client.preferred(), 1);
    eventually(SOON, "a write", async || {
        client.txn(put("/a", "1")).await.ok()
    })
    .await;
    assert_ne!(client.preferred(), 0);
}
