//! Keys as they are, and then as they change.

use testkit::{deadline::soon, etcd::Etcd};
use tokio::sync::mpsc;
use tunnel_etcd::{Followed, RequestOp, TxnRequest};
use tunnel_ops::task::Owned;

use crate::{PATIENT, client, under, write};

/// More than one page.
const KEYS: usize = 600;

#[tokio::test]
async fn all_keys_are_told_and_then_each_change_until_etcd_is_gone() {
    let mut etcd = Etcd::start(1).await;
    let client = client(&etcd, PATIENT);
    let keys: Vec<String> = (0..KEYS).map(|number| format!("/a/{number:04}")).collect();
    // As many as one transaction may have.
    for some in keys.chunks(100) {
        let puts = some.iter().map(|key| RequestOp::put(key.clone(), "x", 0));
        let all = TxnRequest {
            success: puts.collect(),
            ..TxnRequest::default()
        };
        client.txn(all).await.unwrap();
    }
    write(&client, "/b", "not of the range").await;
    let (sender, mut told) = mpsc::channel(16);
    let follower = client.clone();
    let following = Owned::spawn("follower", async move {
        let tell = async |followed| sender.send(followed).await.unwrap();
        follower.follow(under("/a/"), tell).await
    });
    let listed = soon("the keys", told.recv()).await.unwrap();
    let Followed::Listed { keys: found, .. } = listed else {
        panic!("{listed:?}");
    };
    let found: Vec<_> = found.iter().map(|kv| &kv.key[..]).collect();
    assert_eq!(found, keys.iter().map(String::as_bytes).collect::<Vec<_>>());

    let changed = write(&client, "/a/0000", "y").await.revision();
    let change = soon("the change", told.recv()).await.unwrap();
    let Followed::Changed { events, up_to } = change else {
        panic!("{change:?}");
    };
    assert_eq!((events.len(), up_to), (1, Some(changed)));
    assert_eq!(&events[0].kv.as_ref().unwrap().value[..], b"y");

    etcd.kill(0);
    let ended = soon("the end", following).await.unwrap();
    assert!(ended.is_err());
}
