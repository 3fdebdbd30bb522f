//! Watches: what they report, how they end, and how they are resumed.

use testkit::{
    deadline::{SOON, within},
    etcd::Etcd,
    program::Signal,
};
use tunnel_etcd::{EtcdError, Watch, WatchReport};

use crate::{PATIENT, client, under, write};

async fn next(watch: &mut Watch) -> Result<WatchReport, EtcdError> {
    within(SOON, "a report of the watch", watch.next()).await
}

#[tokio::test]
async fn changes_come_in_order_from_the_wanted_revision_on() {
    let etcd = Etcd::start(1).await;
    let client = client(&etcd, PATIENT);
    write(&client, "/w/a", "before").await;
    let from = write(&client, "/w/a", "first").await.revision();
    let mut watch = client.watch(0, under("/w/"), from).await.unwrap();
    etcd.ctl(&["put", "/other", "x"]).await;
    etcd.ctl(&["del", "/w/a"]).await;
    let mut changes = Vec::new();
    while changes.len() < 2 {
        match next(&mut watch).await.unwrap() {
            WatchReport::Events { events, up_to } => {
                changes.extend(events.iter().map(tunnel_etcd::Event::is_delete));
                let last = events.last().unwrap().kv.as_ref().unwrap();
                assert_eq!(up_to, Some(last.mod_revision));
            }
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(changes, [false, true]);
    watch.request_progress();
    let alive = next(&mut watch).await.unwrap();
    assert_eq!(alive, WatchReport::Alive { revision: from + 2 });
}

#[tokio::test]
async fn a_revision_that_is_compacted_cannot_be_watched_from() {
    let etcd = Etcd::start(1).await;
    let client = client(&etcd, PATIENT);
    let from = write(&client, "/w/a", "1").await.revision();
    let oldest = write(&client, "/w/a", "2").await.revision();
    etcd.ctl(&["compact", &oldest.to_string()]).await;
    let mut watch = client.watch(0, under("/w/"), from).await.unwrap();
    let ended = next(&mut watch).await.unwrap_err();
    assert_eq!(ended, EtcdError::Compacted { oldest });
}

#[tokio::test]
async fn a_member_that_has_lost_the_others_ends_its_watches() {
    let etcd = Etcd::start(3).await;
    let client = client(&etcd, PATIENT);
    let from = write(&client, "/w/a", "1").await.revision();
    let mut watch = client.watch(0, under("/w/"), from).await.unwrap();
    next(&mut watch).await.unwrap();
    etcd.signal(1, Signal::STOP);
    etcd.signal(2, Signal::STOP);
    let ended = next(&mut watch).await.unwrap_err();
    assert!(
        ended.is_of_member() && ended.to_string().contains("no leader"),
        "{ended}"
    );
}

#[tokio::test]
async fn many_changes_in_one_revision_are_reported_in_parts() {
    let etcd = Etcd::start(1).await;
    let client = client(&etcd, PATIENT);
    let mut from = 0;
    let value = "x".repeat(30_000);
    for part in 0..4 {
        let operations = (0..30).map(|number| {
            let key = format!("/w/{part}/{number}");
            tunnel_etcd::RequestOp::put(key, value.clone(), 0)
        });
        let written = client
            .txn(tunnel_etcd::TxnRequest {
                success: operations.collect(),
                ..Default::default()
            })
            .await;
        let revision = written.unwrap().revision();
        from = if part == 0 { revision } else { from };
    }
    let mut watch = client.watch(0, under("/w/"), from).await.unwrap();
    let (mut changes, mut marks) = (0, 0);
    while changes < 120 {
        if let WatchReport::Events { events, up_to } = next(&mut watch).await.unwrap() {
            changes += events.len();
            marks += usize::from(up_to.is_some());
        }
    }
    assert!(changes == 120 && marks >= 1, "{marks}");
}
