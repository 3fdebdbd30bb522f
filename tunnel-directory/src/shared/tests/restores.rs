//! etcd is restored from a snapshot, or its records are another program's.

use super::*;
use crate::error::DirectoryError;

/// The ways in which etcd is restored from a snapshot.
#[derive(Clone, Copy)]
enum Restore {
    /// Revisions begin again at the snapshot's, so that a node raises the generation.
    Plain,
    /// By `etcdutl snapshot restore --bump-revision --mark-compacted`.
    Bumped,
}

/// etcd is restored from a snapshot, and all nodes read it again.
fn restore(nodes: &mut Nodes, (keys, revision): (BTreeMap<Vec<u8>, KeyValue>, i64), how: Restore) {
    nodes.store.keys = keys;
    match how {
        Restore::Plain => {
            nodes.store.revision = revision;
            nodes.store.set_generation(1);
            nodes.list(true);
        }
        Restore::Bumped => {
            nodes.store.revision = revision + 1_000_000;
            nodes.list(false);
        }
    }
    nodes.write_all();
}

/// The snapshot has an older instance: what is live stays, by a greater epoch.
#[test]
fn after_a_restore_live_sessions_stay_and_their_claims_have_a_greater_epoch() {
    for how in [Restore::Plain, Restore::Bumped] {
        let mut nodes = Nodes::new(2);
        let label = &prod().label;
        let _older = nodes.claim(0, &instance(1), OnConflict::Supersede).ok();
        let snapshot = (nodes.store.keys.clone(), nodes.store.revision);
        let newer = nodes.claim(1, &instance(2), OnConflict::Supersede);
        let newer = newer.ok().unwrap();
        nodes.write_all();
        restore(&mut nodes, snapshot, how);
        assert!(nodes.nodes[1].held(label).is_some());
        for node in &nodes.nodes {
            let claim = node.current(label.as_str()).unwrap();
            assert_eq!(claim.instance, instance(2));
            assert!(claim.epoch > newer.claim().epoch);
            let holders = node.directory.borrow().table.holders(label.as_str());
            let holders = holders.map(|(_, holders)| holders).unwrap_or_default();
            let holders: Vec<String> = holders
                .iter()
                .map(|holder| holder.node.to_string())
                .collect();
            assert_eq!(holders, ["n1"]);
        }
    }
}

/// The snapshot has an earlier claim of the instance that is live.
#[test]
fn after_a_restore_a_live_instance_has_a_greater_epoch_than_before() {
    for how in [Restore::Plain, Restore::Bumped] {
        let mut nodes = Nodes::new(2);
        let (label, newest) = (&prod().label, OnConflict::Supersede);
        let first = nodes.claim(1, &instance(2), newest).ok().unwrap();
        let older = nodes.claim(0, &instance(1), newest).ok().unwrap();
        drop(first);
        nodes.write_all();
        drop(older);
        nodes.write_all();
        let before = nodes.claim(0, &instance(1), newest).ok().unwrap();
        drop(before);
        nodes.write_all();
        let snapshot = (nodes.store.keys.clone(), nodes.store.revision);
        let other = nodes.claim(1, &instance(2), newest).ok().unwrap();
        drop(other);
        nodes.write_all();
        let live = nodes.claim(0, &instance(1), newest).ok().unwrap();
        restore(&mut nodes, snapshot, how);
        let claim = nodes.nodes[1].current(label.as_str()).unwrap();
        assert_eq!(claim.instance, instance(1));
        assert!(claim.epoch > live.claim().epoch);
        let holders = nodes.nodes[1]
            .directory
            .borrow()
            .table
            .holders(label.as_str());
        assert_eq!(holders.unwrap().1.len(), 1);
    }
}

/// The generation is raised once, even if the listing that raised it fails.
#[test]
fn a_listing_after_a_restore_that_fails_is_not_another_restore() {
    let nodes = Nodes::new(1);
    let cluster = nodes.store.keys[&b"/t/cluster"[..]].value.clone();
    nodes.nodes[0].input(|directory, now| {
        directory.set_position(100, now);
        assert!(directory.has_gone_back(5, &cluster));
        directory.begin_listing(true);
        assert!(!directory.has_gone_back(5, &cluster));
    });
}

/// Nodes may have seen greater epochs than that of a claim that was made before the generation was raised.
#[test]
fn a_claim_from_before_a_restore_is_made_again_for_the_next_session() {
    let mut nodes = Nodes::new(2);
    let newest = OnConflict::Supersede;
    let first = nodes.claim(0, &instance(1), newest).ok().unwrap();
    nodes.store.set_generation(1);
    nodes.list(true);
    let next = nodes.claim(1, &instance(1), newest).ok().unwrap();
    assert!(next.claim().epoch > first.claim().epoch);
    let directory = nodes.nodes[0].directory.borrow();
    let held = directory.holds.get(&prod().label).unwrap();
    assert_eq!(held.claim, *next.claim(), "one claim for both sessions");
}

/// A record of another program, and one of a later version, prevent the node from starting.
#[test]
fn a_record_of_the_cluster_that_this_version_cannot_use_is_named() {
    let nodes = Nodes::new(1);
    let directory = nodes.nodes[0].directory.borrow();
    let of = |record: &[u8]| directory.unusable(record);
    let own = nodes.store.keys.get(&b"/t/cluster"[..]).unwrap();
    assert_eq!(of(&own.value), None);
    assert_eq!(of(b"x"), Some(DirectoryError::Foreign("/t/cluster".into())));
    let later = ClusterRecord {
        id: String::new(),
        format: record::FORMAT + 1,
        generation: 0,
    };
    assert!(matches!(
        of(&encode(&later)),
        Some(DirectoryError::Format { .. })
    ));
}
