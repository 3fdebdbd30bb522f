//! One replica, with listings and events made by hand.

use std::collections::BTreeMap;

use tunnel_etcd::{EventKind, Request};

use super::*;
use crate::fixtures::start as now;

const NOW: u64 = 1_700_000_000_000;
const LABEL: &str = "acme-prod";
const DOCUMENT: &str = "/t/runtime/acme-prod";
const REMOVAL: &str = "/t/runtime-removed/acme-prod";
const MARK_KEY: &str = "/t/runtime/";

/// The newer text, and each line of the older one that it has not.
fn merge(newer: &str, older: &str, _now_ms: u64) -> String {
    let missing = older
        .lines()
        .filter(|line| !newer.lines().any(|own| own == *line) && line.starts_with("token"));
    missing.fold(newer.to_owned(), |text, line| format!("{text}{line}\n"))
}

/// An etcd of one range.
#[derive(Default)]
struct Store {
    keys: BTreeMap<String, KeyValue>,
    revision: i64,
}

impl Store {
    /// Makes all that a transaction does if its conditions hold; whether they do.
    fn commit(&mut self, txn: &TxnRequest) -> Option<Vec<Event>> {
        let holds = txn.compare.iter().all(|compare| {
            let key = String::from_utf8_lossy(&compare.key).into_owned();
            let found = self.keys.get(&key).map_or(0, |kv| kv.mod_revision);
            compare.operand == Some(tunnel_etcd::Operand::ModRevision(found))
        });
        holds.then(|| self.apply(&txn.success))
    }

    fn apply(&mut self, operations: &[RequestOp]) -> Vec<Event> {
        self.revision += 1;
        let mut events = Vec::new();
        for operation in operations {
            match &operation.request {
                Some(Request::Put(put)) => {
                    let key = String::from_utf8_lossy(&put.key).into_owned();
                    let created = self.keys.get(&key).map(|kv| kv.create_revision);
                    let kv = KeyValue {
                        key: put.key.clone(),
                        value: put.value.clone(),
                        create_revision: created.unwrap_or(self.revision),
                        mod_revision: self.revision,
                        lease: 0,
                    };
                    self.keys.insert(key, kv.clone());
                    events.push(event(EventKind::Put, kv));
                }
                Some(Request::Delete(range)) => {
                    let key = String::from_utf8_lossy(&range.key).into_owned();
                    if self.keys.remove(&key).is_some() {
                        let kv = KeyValue {
                            key: range.key.clone(),
                            mod_revision: self.revision,
                            ..KeyValue::default()
                        };
                        events.push(event(EventKind::Delete, kv));
                    }
                }
                _ => {}
            }
        }
        events
    }

    fn list(&self) -> Vec<KeyValue> {
        self.keys.values().cloned().collect()
    }
}

fn event(kind: EventKind, kv: KeyValue) -> Event {
    Event {
        kind: kind.into(),
        kv: Some(kv),
    }
}

/// A node that follows an etcd.
struct Node {
    replica: Replica,
    store: Store,
    last_nonce: u64,
}

impl Node {
    fn new() -> Self {
        let mut node = Self {
            replica: Replica::new("/t/", true, 1, merge),
            store: Store::default(),
            last_nonce: 0,
        };
        node.list();
        node
    }

    fn list(&mut self) -> Changes {
        let (keys, revision) = (self.store.list(), self.store.revision);
        self.replica.on_listed(&keys, revision, NOW)
    }

    fn told(&mut self, events: &[Event]) -> Changes {
        let revision = self.store.revision;
        self.replica.on_changed(events, Some(revision), NOW)
    }

    fn change(&mut self, next: Next<'_>) -> Option<Changes> {
        self.last_nonce += 1;
        let txn = self.replica.change(&[DocumentChange {
            label: LABEL,
            next,
            revoked: None,
            now_ms: NOW,
            nonce: self.last_nonce,
        }]);
        let events = self.store.commit(&txn)?;
        Some(self.told(&events))
    }

    /// Writes until nothing is left.
    fn settle(&mut self) {
        while let Some(txn) = self.replica.next_write(now() + 2 * PAUSE) {
            let events = self.store.commit(&txn).unwrap();
            let revision = self.store.revision;
            self.replica.on_written(Some(revision), now());
            self.told(&events);
        }
        assert!(self.replica.is_written());
    }

    fn by_hand(&mut self, operations: &[RequestOp]) -> Changes {
        let events = self.store.apply(operations);
        self.told(&events)
    }

    fn text(&self) -> Option<&str> {
        self.replica.document(LABEL)
    }

    fn has(&self, key: &str) -> bool {
        self.store.keys.contains_key(key)
    }
}

const REMOVED: Next<'_> = Next::Removed {
    until_ms: NOW + 1_000,
};

fn removed() -> Changes {
    Changes {
        documents: vec![(LABEL.to_owned(), None)],
        ..Changes::default()
    }
}

#[test]
fn what_an_emptied_etcd_has_lost_is_written_again() {
    let mut node = Node::new();
    node.change(Next::Text("one\n")).unwrap();
    let pair: Pair = "acme/prod".parse().unwrap();
    let more = RevokedCredentials::of_id("x", None);
    assert!(node.replica.revoke(&pair, &more));
    assert!(!node.replica.revoke(&pair, &more));
    node.settle();
    node.store = Store::default();
    assert_eq!(node.list(), Changes::default());
    assert!(!node.replica.is_written());
    node.settle();
    assert!(node.has(DOCUMENT) && node.has("/t/runtime-revoked/acme/prod"));
    assert_eq!(node.text(), Some("one\n"));
}

#[test]
fn an_older_text_of_a_snapshot_gives_way_and_its_removed_documents_stay_so() {
    let mut node = Node::new();
    node.change(Next::Text("one\n")).unwrap();
    let snapshot = (node.store.keys.clone(), node.store.revision);
    node.change(Next::Text("two\ntoken a\n")).unwrap();
    let restore = |node: &mut Node| {
        (node.store.keys, node.store.revision) = snapshot.clone();
        node.list();
        node.settle();
    };
    restore(&mut node);
    assert_eq!(node.text(), Some("two\ntoken a\n"));
    assert_eq!(node.change(REMOVED), Some(removed()));
    restore(&mut node);
    assert_eq!(node.text(), None);
    assert!(!node.has(DOCUMENT) && node.has(REMOVAL));
    // The label may be made again, without what it had.
    node.change(Next::Text("three\n")).unwrap();
    restore(&mut node);
    assert_eq!(node.text(), Some("three\n"));
}

#[test]
fn a_document_that_is_deleted_by_hand_is_written_again_and_one_that_an_older_version_removes_is_not()
 {
    let mut node = Node::new();
    node.change(Next::Text("one\n")).unwrap();
    let by_hand = node.by_hand(&[RequestOp::delete(DOCUMENT)]);
    assert_eq!(by_hand, Changes::default());
    node.settle();
    assert!(node.has(DOCUMENT));
    let older = [RequestOp::delete(DOCUMENT), RequestOp::put(MARK_KEY, "", 0)];
    assert_eq!(node.by_hand(&older), removed());
    node.settle();
    assert!(node.has(REMOVAL), "the removal is written for it");
    // And it makes the label again.
    let again = [
        RequestOp::put(DOCUMENT, "two\n", 0),
        RequestOp::put(MARK_KEY, "", 0),
    ];
    node.by_hand(&again);
    assert_eq!(node.text(), Some("two\n"));
    assert!(node.replica.is_written());
}

/// A node removes an older document of the label, which a snapshot has brought back.
#[test]
fn a_removal_of_another_document_is_no_removal_of_what_is_known() {
    let mut node = Node::new();
    node.change(Next::Text("one\n")).unwrap();
    let other = RequestOp::put(REMOVAL, format!("{{\"removed\":{{\"x\":{}}}}}", NOW + 1), 0);
    let operations = [
        other,
        RequestOp::delete(DOCUMENT),
        RequestOp::put(MARK_KEY, "", 0),
    ];
    assert_eq!(node.by_hand(&operations), Changes::default());
    node.settle();
    assert!(node.has(DOCUMENT));
}

#[test]
fn revisions_that_are_told_at_once_are_told_apart() {
    let mut node = Node::new();
    node.change(Next::Text("one\n")).unwrap();
    let mut events = node
        .store
        .apply(&[RequestOp::delete(DOCUMENT), RequestOp::put(MARK_KEY, "", 0)]);
    events.extend(node.store.apply(&[RequestOp::put(MARK_KEY, "", 0)]));
    assert_eq!(node.told(&events), removed());
}

#[test]
fn a_document_without_a_first_line_is_removed_for_good() {
    let mut node = Node::new();
    let older = [
        RequestOp::put(DOCUMENT, "one\n", 0),
        RequestOp::put(MARK_KEY, "", 0),
    ];
    node.by_hand(&older);
    let snapshot = (node.store.keys.clone(), node.store.revision);
    assert_eq!(node.change(REMOVED), Some(removed()));
    (node.store.keys, node.store.revision) = snapshot.clone();
    assert_eq!(node.list(), Changes::default());
    node.settle();
    assert!(!node.has(DOCUMENT) && node.has(REMOVAL));
    node.change(Next::Text("two\n")).unwrap();
    (node.store.keys, node.store.revision) = snapshot;
    assert_eq!(node.list(), Changes::default());
    node.settle();
    assert_eq!(node.text(), Some("two\n"));
}

/// The removal comes with the document that is made, so that nobody puts it together with what was removed.
#[test]
fn a_label_that_is_made_again_has_the_removals_that_etcd_has_lost() {
    let mut node = Node::new();
    node.change(Next::Text("one\n")).unwrap();
    node.change(REMOVED).unwrap();
    node.store = Store::default();
    node.list();
    node.change(Next::Text("two\n")).unwrap();
    assert!(node.has(REMOVAL) && node.replica.is_written());
}

#[test]
fn tokens_that_two_nodes_have_added_apart_are_put_together() {
    let mut node = Node::new();
    node.change(Next::Text("one\ntoken a\n")).unwrap();
    node.store = Store::default();
    // A node that knows nothing makes the label before this one lists.
    node.store.apply(&[
        RequestOp::put(
            DOCUMENT,
            format!("# written {} b\ntwo\ntoken b\n", NOW + 1),
            0,
        ),
        RequestOp::put(MARK_KEY, "", 0),
    ]);
    let changes = node.list();
    let both = "two\ntoken b\ntoken a\n";
    assert_eq!(
        changes.documents,
        [(LABEL.to_owned(), Some(both.to_owned()))]
    );
    node.settle();
    let written = &node.store.keys[DOCUMENT].value;
    assert!(written.ends_with(both.as_bytes()));
    // A removal covers both makings.
    node.change(REMOVED).unwrap();
    let first = format!("# written {} b\ntwo\ntoken b\n", NOW + 1);
    node.by_hand(&[RequestOp::put(DOCUMENT, first, 0)]);
    assert_eq!(node.text(), None);
    node.settle();
    assert!(!node.has(DOCUMENT));
}

#[test]
fn a_change_beside_another_one_is_not_made() {
    let mut node = Node::new();
    let txn = node.replica.change(&[DocumentChange {
        label: LABEL,
        next: Next::Text("one\n"),
        revoked: None,
        now_ms: NOW,
        nonce: 7,
    }]);
    node.by_hand(&[RequestOp::put(MARK_KEY, "", 0)]);
    assert!(node.store.commit(&txn).is_none());
    assert!(node.change(Next::Text("one\n")).is_some());
}

#[test]
fn many_documents_are_written_in_batches_that_etcd_takes() {
    let mut node = Node::new();
    let count = 3 * BATCH;
    let operations: Vec<RequestOp> = (0..count)
        .map(|number| RequestOp::put(format!("/t/runtime/a-{number}"), "x\n", 0))
        .collect();
    node.by_hand(&operations);
    node.store = Store::default();
    node.list();
    let txn = node.replica.next_write(now()).unwrap();
    assert!(txn.success.len() <= 128 && txn.compare.len() <= 128);
    assert!(node.replica.next_write(now()).is_none(), "one at a time");
    node.replica.on_written(None, now());
    assert!(node.replica.deadline().is_some());
    node.settle();
    assert_eq!(node.replica.labels().count(), count);
}

#[test]
fn removals_end_and_then_leave_etcd() {
    let mut node = Node::new();
    node.change(Next::Text("one\n")).unwrap();
    node.change(REMOVED).unwrap();
    let month = 31 * 24 * 60 * 60 * 1_000;
    let (keys, revision) = (node.store.list(), node.store.revision);
    node.replica.on_listed(&keys, revision, NOW + month);
    let txn = node.replica.next_write(now()).unwrap();
    node.store.commit(&txn).unwrap();
    assert!(!node.has(REMOVAL));
}
