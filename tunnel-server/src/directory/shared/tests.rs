//! Nodes over a store that is simulated: the rules of the shared directory are those of the one in memory, and tables
//! agree in whatever order they learn of changes.

use std::collections::BTreeMap;

use futures_util::FutureExt;
use proptest::prelude::*;
use tokio::{runtime, sync::oneshot};
use tunnel_directory::{
    ClaimRefusal, Claimant, MemoryClaims, OnConflict,
    record::{self, ClusterRecord, encode},
};
use tunnel_etcd::{
    Event, EventKind, KeyValue, Operand, RangeResponse, Request, RequestOp, Response,
    ResponseHeader, ResponseOp, Settings, TxnRequest, TxnResponse,
};
use tunnel_ops::tls_files::{Roots, client_config};
use tunnel_proto::handshake::{InstanceId, InstanceSecret};

use super::{
    super::now,
    claiming::{Entered, ROUNDS},
    writer::ClaimAnswer,
    *,
};

mod labels;

/// A store with etcd's transactions.
#[derive(Default)]
struct Store {
    keys: BTreeMap<Vec<u8>, KeyValue>,
    revision: i64,
    events: Vec<Event>,
}

impl Store {
    fn txn(&mut self, txn: &TxnRequest) -> TxnResponse {
        self.revision += 1;
        let mut answer = self.inner(txn);
        answer.header = Some(ResponseHeader {
            revision: self.revision,
            ..ResponseHeader::default()
        });
        answer
    }

    fn inner(&mut self, txn: &TxnRequest) -> TxnResponse {
        let succeeded = txn.compare.iter().all(|compare| {
            let found = self.keys.get(&compare.key[..]);
            match compare.operand.as_ref().unwrap() {
                Operand::ModRevision(revision) => {
                    found.map_or(0, |kv| kv.mod_revision) == *revision
                }
                Operand::Value(value) => found.is_some_and(|kv| kv.value == *value),
            }
        });
        let operations = match succeeded {
            true => &txn.success,
            false => &txn.failure,
        };
        let responses = operations.iter().map(|operation| {
            let response = match operation.request.as_ref().unwrap() {
                Request::Txn(inner) => Response::Txn(self.inner(inner)),
                Request::Range(read) => Response::Range(RangeResponse {
                    kvs: self.keys.get(&read.key[..]).cloned().into_iter().collect(),
                    ..RangeResponse::default()
                }),
                Request::Put(put) => {
                    self.put(&put.key, &put.value);
                    Response::Put(tunnel_etcd::PutResponse::default())
                }
                Request::Delete(delete) => {
                    self.delete(&delete.key);
                    Response::Delete(tunnel_etcd::DeleteRangeResponse::default())
                }
            };
            ResponseOp {
                response: Some(response),
            }
        });
        let responses = responses.collect();
        TxnResponse {
            succeeded,
            responses,
            header: None,
        }
    }

    fn put(&mut self, key: &[u8], value: &[u8]) {
        let known = self.keys.get(key);
        let kv = KeyValue {
            key: key.to_vec().into(),
            value: value.to_vec().into(),
            create_revision: known.map_or(self.revision, |kv| kv.create_revision),
            mod_revision: self.revision,
            ..KeyValue::default()
        };
        self.keys.insert(key.to_vec(), kv.clone());
        self.events.push(event(EventKind::Put, kv));
    }

    fn set_generation(&mut self, generation: u16) {
        let cluster = ClusterRecord {
            id: String::new(),
            format: record::FORMAT,
            generation,
        };
        self.revision += 1;
        self.put(b"/t/cluster", &encode(&cluster));
    }

    fn delete(&mut self, key: &[u8]) {
        if self.keys.remove(key).is_some() {
            let kv = KeyValue {
                key: key.to_vec().into(),
                mod_revision: self.revision,
                ..KeyValue::default()
            };
            self.events.push(event(EventKind::Delete, kv));
        }
    }
}

fn event(kind: EventKind, kv: KeyValue) -> Event {
    Event {
        kind: kind.into(),
        kv: Some(kv),
    }
}

fn node(number: usize) -> Arc<Shared> {
    run_of(number, 1)
}

/// One of the runs of a node.
fn run_of(number: usize, run: u64) -> Arc<Shared> {
    let client = Client::new(Settings {
        members: vec!["http://127.0.0.1:1".parse().unwrap()],
        tls: client_config(&Roots::none(), None, &[]).unwrap(),
        user: None,
        timeout: Duration::from_secs(1),
    });
    let node = Node {
        name: format!("n{number}").parse().unwrap(),
        peer: Some("127.0.0.1:1".to_owned()),
        zone: None,
        without_directory: WithoutDirectory::Accept,
    };
    let metrics = crate::metrics::Metrics::new().unwrap().directory.clone();
    Shared::new(client, "/t/", node, 100 * number as u64 + run, metrics)
}

/// Nodes that share a store, and learn of every change at once.
struct Nodes {
    store: Store,
    nodes: Vec<Arc<Shared>>,
    /// A node that learns of nothing.
    cut_off: Option<usize>,
}

impl Nodes {
    fn new(count: usize) -> Self {
        let mut nodes = Self {
            store: Store::default(),
            nodes: (0..count).map(node).collect(),
            cut_off: None,
        };
        for node in nodes.nodes.clone() {
            nodes.register(&node);
        }
        nodes.store.set_generation(0);
        nodes.list(false);
        nodes
    }

    fn register(&mut self, node: &Shared) {
        self.store.revision += 1;
        let key = node.keys.node(&node.node.name);
        self.store.put(key.as_bytes(), &encode(&node.record(0)));
    }

    /// Starts a node again, which reads all.
    fn restart(&mut self, number: usize, run: u64) {
        let node = run_of(number, run);
        self.register(&node);
        self.nodes[number] = node;
        self.list(false);
        self.write_all();
    }

    fn deliver(&mut self) {
        let events = std::mem::take(&mut self.store.events);
        let nodes = self.nodes.iter().enumerate();
        for (_, node) in nodes.filter(|(number, _)| Some(*number) != self.cut_off) {
            let changes = feed::apply_events(node, &events);
            node.on_changes(changes);
        }
    }

    /// Every node reads all.
    fn list(&mut self, is_restored: bool) {
        self.store.events.clear();
        let records: Vec<KeyValue> = self.store.keys.values().cloned().collect();
        for node in &self.nodes {
            feed::begin(node, is_restored);
            let changes = feed::apply_page(node, &records, self.store.revision);
            node.on_changes(changes);
            feed::end(node, self.store.revision);
        }
    }

    /// Writes what a node has to write.
    fn write(&mut self, number: usize, mut waiting: Vec<ClaimRequest>) {
        let node = self.nodes[number].clone();
        for _ in 0..100 {
            let batch = writer::batch(&node, &mut waiting);
            if batch.is_empty() {
                return;
            }
            let answer = self.store.txn(&node.joined(&batch));
            node.on_answers(batch, answer);
            self.deliver();
        }
        panic!("a node writes without end");
    }

    fn write_all(&mut self) {
        for number in 0..self.nodes.len() {
            self.write(number, Vec::new());
        }
    }

    fn claim(
        &mut self,
        number: usize,
        instance: &InstanceId,
        on_conflict: OnConflict,
    ) -> Result<ClaimGuard, ClaimRefusal> {
        let runtime = entry();
        self.claim_by(number, claimant(&runtime, instance, on_conflict))
    }

    fn claim_by(
        &mut self,
        number: usize,
        claimant: Claimant<'_>,
    ) -> Result<ClaimGuard, ClaimRefusal> {
        let node = self.nodes[number].clone();
        for _ in 0..ROUNDS {
            let step = match node.enter(claimant)? {
                Entered::Joined(guard) => {
                    self.write(number, Vec::new());
                    return Ok(guard);
                }
                Entered::Next(step) => step,
            };
            let (answer, mut answered) = oneshot::channel();
            let request = ClaimRequest {
                label: claimant.label.clone(),
                account: claimant.account.clone(),
                name: claimant.name.clone(),
                instance: claimant.instance.clone(),
                step,
                answer,
            };
            self.write(number, vec![request]);
            if let Ok(ClaimAnswer::Claimed(guard)) = answered.try_recv() {
                return Ok(guard);
            }
        }
        panic!("no claim in {ROUNDS} rounds");
    }
}

fn entry() -> Arc<RuntimeEntry> {
    let file = "[[runtime]]\naccount = \"acme\"\nname = \"prod\"\n";
    let file = tunnel_ops::config_file::TomlFile::from_text("r.toml", file);
    let domain = "tunnels.localhost".parse().unwrap();
    let runtimes = crate::runtimes::Runtimes::parse(&file, &domain).unwrap();
    runtimes.iter().next().unwrap().clone()
}

/// A runtime of a credential, as which no file lists it.
fn claimant<'a>(
    runtime: &'a RuntimeEntry,
    instance: &'a InstanceId,
    on_conflict: OnConflict,
) -> Claimant<'a> {
    runtime.claimant(false, instance, on_conflict)
}

fn claim_alone(node: &Arc<Shared>, number: u8) -> Result<ClaimGuard, ClaimRefusal> {
    let (runtime, instance) = (entry(), instance(number));
    node.claim_alone(claimant(&runtime, &instance, OnConflict::Supersede))
}

fn instance(number: u8) -> InstanceId {
    InstanceSecret::from_random([number; 16]).id().clone()
}

/// Something that happens to one runtime.
#[derive(Debug, Clone)]
enum Happening {
    Claim(usize, u8, bool),
    Leave(usize),
    Release(usize),
    Wait(u64),
}

fn steps() -> impl Strategy<Value = Vec<Happening>> {
    let step = prop_oneof![
        4 => (0..3_usize, 0..4_u8, any::<bool>()).prop_map(|(node, instance, rejects)| Happening::Claim(node, instance, rejects)),
        1 => (0..8_usize).prop_map(Happening::Leave),
        3 => (0..8_usize).prop_map(Happening::Release),
        1 => (0..40_u64).prop_map(Happening::Wait),
    ];
    proptest::collection::vec(step, 1..60)
}

/// A claim as it is held in both directories.
struct Both {
    guard: ClaimGuard,
    model: Claim,
    is_leaving: bool,
}

fn is_leaving(held: &[Both], instance: &InstanceId) -> bool {
    let mut own = held.iter().filter(|both| both.model.instance == *instance);
    own.any(|both| both.is_leaving)
}

async fn compare_with_memory(steps: Vec<Happening>) {
    let mut nodes = Nodes::new(3);
    let (mut model, mut held) = (MemoryClaims::default(), Vec::<Both>::new());
    let label = entry().label.clone();
    for step in steps {
        match step {
            // In memory a joining session ends the leaving of its whole instance, here only that of its node. So an
            // instance that leaves does not claim.
            Happening::Claim(_, number, _) if is_leaving(&held, &instance(number)) => {}
            Happening::Claim(node, number, rejects) => {
                let on_conflict = match rejects {
                    true => OnConflict::Reject,
                    false => OnConflict::Supersede,
                };
                let instance = instance(number);
                let runtime = entry();
                let expected = model.claim(claimant(&runtime, &instance, on_conflict), now());
                match (nodes.claim(node, &instance, on_conflict), expected) {
                    (Ok(guard), Ok(model)) => held.push(Both {
                        guard,
                        model,
                        is_leaving: false,
                    }),
                    (found, expected) => {
                        assert_eq!(found.err(), expected.err());
                    }
                }
            }
            Happening::Leave(which) if !held.is_empty() => {
                // In memory one session speaks for all, here one node: the instance leaves all nodes.
                let instance = held[which % held.len()].model.instance.clone();
                let all = held.iter_mut();
                for both in all.filter(|both| both.model.instance == instance) {
                    both.is_leaving = true;
                    both.guard.leave();
                    model.leave(&label, both.model.epoch);
                }
            }
            Happening::Release(which) if !held.is_empty() => {
                let both = held.swap_remove(which % held.len());
                model.release(&label, both.model.epoch);
                drop(both.guard);
            }
            Happening::Leave(_) | Happening::Release(_) => {}
            Happening::Wait(seconds) => tokio::time::advance(Duration::from_secs(seconds)).await,
        }
        nodes.write_all();
        let expected = model.current(&label).map(|claim| claim.instance.clone());
        for node in &nodes.nodes {
            let held = node.table.read().held_claim(label.as_str());
            assert_eq!(held.map(|held| held.claim.instance), expected);
        }
    }
    drop(held);
    nodes.write_all();
    let held = nodes
        .store
        .keys
        .keys()
        .filter(|key| key.starts_with(b"/t/held/"));
    assert_eq!(held.count(), 0, "records of nodes that hold nothing");
}

fn paused<T>(future: impl Future<Output = T>) -> T {
    let runtime = runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build();
    runtime.unwrap().block_on(future)
}

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
#[tokio::test]
async fn after_a_restore_live_sessions_stay_and_their_claims_have_a_greater_epoch() {
    for how in [Restore::Plain, Restore::Bumped] {
        let mut nodes = Nodes::new(2);
        let label = entry().label.clone();
        let _older = nodes.claim(0, &instance(1), OnConflict::Supersede).unwrap();
        let snapshot = (nodes.store.keys.clone(), nodes.store.revision);
        let newer = nodes.claim(1, &instance(2), OnConflict::Supersede).unwrap();
        nodes.write_all();
        restore(&mut nodes, snapshot, how);
        assert!(nodes.nodes[1].holds.lock().get(&label).is_some());
        for node in &nodes.nodes {
            let claim = node.current(label.as_str()).unwrap();
            assert_eq!(claim.instance, instance(2));
            assert!(claim.epoch > newer.claim().epoch);
            let holders = node.table.read().holders(label.as_str());
            let holders: Vec<String> = holders
                .iter()
                .map(|holder| holder.node.to_string())
                .collect();
            assert_eq!(holders, ["n1"]);
        }
    }
}

/// The snapshot has an earlier claim of the instance that is live.
#[tokio::test]
async fn after_a_restore_a_live_instance_has_a_greater_epoch_than_before() {
    for how in [Restore::Plain, Restore::Bumped] {
        let mut nodes = Nodes::new(2);
        let (label, newest) = (entry().label.clone(), OnConflict::Supersede);
        let first = nodes.claim(1, &instance(2), newest).unwrap();
        let older = nodes.claim(0, &instance(1), newest).unwrap();
        drop(first);
        nodes.write_all();
        drop(older);
        nodes.write_all();
        let before = nodes.claim(0, &instance(1), newest).unwrap();
        drop(before);
        nodes.write_all();
        let snapshot = (nodes.store.keys.clone(), nodes.store.revision);
        let other = nodes.claim(1, &instance(2), newest).unwrap();
        drop(other);
        nodes.write_all();
        let live = nodes.claim(0, &instance(1), newest).unwrap();
        restore(&mut nodes, snapshot, how);
        let claim = nodes.nodes[1].current(label.as_str()).unwrap();
        assert_eq!(claim.instance, instance(1));
        assert!(claim.epoch > live.claim().epoch);
        let holders = nodes.nodes[1].table.read().holders(label.as_str());
        assert_eq!(holders.len(), 1);
    }
}

/// The generation is raised once, even if the listing that raised it fails.
#[tokio::test]
async fn a_listing_after_a_restore_that_fails_is_not_another_restore() {
    let nodes = Nodes::new(1);
    let node = &nodes.nodes[0];
    node.position.store(100, Ordering::Relaxed);
    feed::begin(node, true);
    let cluster = nodes.store.keys.get(&b"/t/cluster"[..]).unwrap();
    assert!(!feed::has_gone_back(node, 5, &cluster.value));
}

/// Nodes may have seen greater epochs than that of a claim that was made before the generation was raised.
#[tokio::test]
async fn a_claim_from_before_a_restore_is_made_again_for_the_next_session() {
    let mut nodes = Nodes::new(2);
    let first = nodes.claim(0, &instance(1), OnConflict::Supersede).unwrap();
    nodes.store.set_generation(1);
    nodes.list(true);
    let next = nodes.claim(1, &instance(1), OnConflict::Supersede).unwrap();
    assert!(next.claim().epoch > first.claim().epoch);
    let held = nodes.nodes[0].holds.lock();
    let held = held.get(&entry().label).unwrap();
    assert_eq!(held.claim, *next.claim(), "one claim for both sessions");
}

/// Sends the reports of one node to another, as on their link.
fn report(from: &Shared, to: &Shared, sent: &mut SentReports, received: &mut ReceivedReports) {
    from.report_to(&to.node.name, to.run.incarnation, sent, |report| {
        received.on_report(&report);
        true
    });
}

/// A record of another program, and one of a later version, prevent the node from starting.
#[tokio::test]
async fn a_record_of_the_cluster_that_this_version_cannot_use_is_named() {
    let nodes = Nodes::new(1);
    let of = |record: &[u8]| feed::unusable(&nodes.nodes[0], record);
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

#[tokio::test]
async fn a_node_that_is_cut_off_learns_from_the_others_what_it_has_lost() {
    let mut nodes = Nodes::new(2);
    let (one, two) = (nodes.nodes[0].clone(), nodes.nodes[1].clone());
    let _older = nodes.claim(0, &instance(1), OnConflict::Supersede).unwrap();
    one.position.store(nodes.store.revision, Ordering::Relaxed);
    nodes.cut_off = Some(0);
    let newer = nodes.claim(1, &instance(2), OnConflict::Supersede).unwrap();
    two.position.store(nodes.store.revision, Ordering::Relaxed);
    let label = entry().label.clone();
    let mut sent = (SentReports::default(), SentReports::default());
    let mut at_one = ReceivedReports::new(one.clone(), two.node.name.clone());
    let mut at_two = ReceivedReports::new(two.clone(), one.node.name.clone());
    let mut both = || {
        report(&one, &two, &mut sent.0, &mut at_two);
        report(&two, &one, &mut sent.1, &mut at_one);
    };
    both();
    assert!(
        one.holds.lock().get(&label).is_some(),
        "it may be about to learn it"
    );
    two.past_position
        .store(nodes.store.revision, Ordering::Relaxed);
    both();
    assert!(one.holds.lock().get(&label).is_none());
    assert_eq!(one.current(label.as_str()).as_ref(), Some(newer.claim()));
    let (_, holders) = one.holders(label.as_str()).unwrap();
    assert_eq!(holders[0].node, two.node.name, "requests go there");
}

#[tokio::test]
async fn what_is_held_while_etcd_is_away_is_reported_and_dies_with_the_link() {
    let nodes = Nodes::new(2);
    let (one, two) = (nodes.nodes[0].clone(), nodes.nodes[1].clone());
    let label = entry().label.clone();
    let held = claim_alone(&one, 1).unwrap();
    for node in [&one, &two] {
        let error = EtcdError::LeaseEnded;
        node.on_unanswered(Unanswered::Writes, &error);
    }
    one.update_unrecorded();
    let mut sent = SentReports::default();
    let mut received = ReceivedReports::new(two.clone(), one.node.name.clone());
    report(&one, &two, &mut sent, &mut received);
    let (epoch, holders) = two.holders(label.as_str()).unwrap();
    assert_eq!((epoch, holders.len()), (held.claim().epoch, 1));
    assert!(two.runtime(label.as_str()).is_some());
    let refused = claim_alone(&two, 2);
    assert_eq!(refused.err(), Some(ClaimRefusal::Unavailable));
    // One more session of the instance.
    assert_eq!(claim_alone(&two, 1).unwrap().claim(), held.claim());
    // The node whose lease has ended is still there.
    two.table
        .write()
        .delete(two.keys.node(&one.node.name).as_bytes(), i64::MAX);
    assert!(two.holders(label.as_str()).is_some());
    drop(received);
    assert!(two.holders(label.as_str()).is_none());
    // A new link begins anew, and says as well what is held no more.
    let mut sent = SentReports::default();
    let mut received = ReceivedReports::new(two.clone(), one.node.name.clone());
    drop(held);
    one.update_unrecorded();
    report(&one, &two, &mut sent, &mut received);
    assert!(two.holders(label.as_str()).is_none());
}

/// A node that holds a runtime is gone while etcd is away: its runtimes are free for new instances, which keep them.
#[tokio::test]
async fn what_a_node_held_that_does_not_report_is_free_while_etcd_is_away() {
    let mut nodes = Nodes::new(3);
    let _dead = nodes.claim(0, &instance(1), OnConflict::Supersede).unwrap();
    let (one, two, three) = (
        nodes.nodes[0].clone(),
        nodes.nodes[1].clone(),
        nodes.nodes[2].clone(),
    );
    two.on_unanswered(Unanswered::Writes, &EtcdError::LeaseEnded);
    // Renewals of the lease say nothing of writes.
    two.on_answered(Unanswered::Renewals);
    let (runtime, id) = (entry(), instance(2));
    let newer = || two.precheck(claimant(&runtime, &id, OnConflict::Supersede));
    let receive = |from: &Arc<Shared>| {
        let mut received = ReceivedReports::new(two.clone(), from.node.name.clone());
        report(from, &two, &mut SentReports::default(), &mut received);
        received
    };
    assert!(newer().is_err(), "no other node reports");
    let _third = receive(&three);
    assert!(newer().is_ok());
    let first = receive(&one);
    assert!(newer().is_err());
    drop(first);
    let _newer = claim_alone(&two, 2).unwrap();
    two.on_answered(Unanswered::Writes);
    nodes.write(1, Vec::new());
    for node in [&two, &three] {
        let claim = node.current(entry().label.as_str()).unwrap();
        assert_eq!(claim.instance, instance(2));
    }
    assert!(two.holds.lock().get(&entry().label).is_some());
}

/// The link was away, not the node: a runtime that was given to a new instance meanwhile goes back to the first holder.
#[tokio::test]
async fn a_holder_that_reports_again_keeps_its_runtimes() {
    let mut nodes = Nodes::new(3);
    let _older = nodes.claim(0, &instance(1), OnConflict::Supersede).unwrap();
    let two = nodes.nodes[1].clone();
    let receive = |from: usize| {
        let from = &nodes.nodes[from];
        let mut received = ReceivedReports::new(two.clone(), from.node.name.clone());
        report(from, &two, &mut SentReports::default(), &mut received);
        received
    };
    let _third = receive(2);
    two.on_unanswered(Unanswered::Writes, &EtcdError::LeaseEnded);
    let _newer = claim_alone(&two, 2).unwrap();
    let _first = receive(0);
    assert!(two.holds.lock().get(&entry().label).is_none());
}

/// The watch may report a write before its answer has come; answering that by another write would never end.
#[test]
fn a_node_writes_its_key_again_only_when_that_is_lost() {
    let mut nodes = Nodes::new(1);
    let node = nodes.nodes[0].clone();
    let is_asked_to_write = || node.is_challenged.notified().now_or_never().is_some();
    assert!(!is_asked_to_write(), "by the report of its own write");
    nodes.store.txn(&TxnRequest {
        success: vec![RequestOp::delete(node.keys.node(&node.node.name))],
        ..TxnRequest::default()
    });
    nodes.deliver();
    assert!(is_asked_to_write());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn several_nodes_decide_as_one_does(steps in steps()) {
        paused(compare_with_memory(steps));
    }

    /// Whatever comes twice, late or after a listing, the table ends as the store is.
    #[test]
    fn tables_agree_in_the_end(steps in steps(), order in proptest::collection::vec(any::<prop::sample::Index>(), 1..40)) {
        paused(async {
            let mut nodes = Nodes::new(3);
            let mut held = Vec::new();
            let mut events = Vec::new();
            for step in steps {
                if let Happening::Claim(node, number, _) = step {
                    held.extend(nodes.claim(node, &instance(number), OnConflict::Supersede).ok());
                }
                if let Happening::Release(which) = step && !held.is_empty() {
                    held.swap_remove(which % held.len());
                }
                nodes.write_all();
                let keys = nodes.store.keys.values().cloned();
                events.extend(keys.map(|kv| event(EventKind::Put, kv)));
            }
            let late = node(9);
            // Older states in any order, then the listing, then some of them again.
            for index in &order {
                if !events.is_empty() {
                    feed::apply_events(&late, &[index.get(&events).clone()]);
                }
            }
            let listing: Vec<KeyValue> = nodes.store.keys.values().cloned().collect();
            late.table.write().begin_listing();
            feed::apply_page(&late, &listing, nodes.store.revision);
            late.table.write().end_listing(nodes.store.revision);
            let label = entry().label.clone();
            let (own, other) = (late.table.read(), nodes.nodes[0].table.read());
            assert_eq!(own.counts(), other.counts());
            assert_eq!(own.claim(label.as_str()), other.claim(label.as_str()));
            let sorted = |mut holders: Vec<Holder>| {
                holders.sort_by_key(|holder| holder.node.clone());
                holders
            };
            let (own, other) = (own.holders(label.as_str()), other.holders(label.as_str()));
            assert_eq!(sorted(own), sorted(other));
        });
    }
}

/// The memory of a table of a million runtimes.
#[test]
#[ignore = "a measurement: run it alone, with --nocapture"]
fn a_million_runtimes() {
    const RUNTIMES: i64 = 1_000_000;
    let resident = || {
        let pages = std::fs::read_to_string("/proc/self/statm").unwrap();
        let pages: i64 = pages.split(' ').nth(1).unwrap().parse().unwrap();
        pages * 4_096
    };
    let keys = Keys::new("/t/");
    let mut table = Table::new(keys.clone(), 1);
    let run = NodeRun {
        node: "node-1".parse().unwrap(),
        incarnation: Incarnation::new(1),
    };
    let before = resident();
    for number in 0..RUNTIMES {
        let (account, runtime) = (
            format!("account-{}", number / 4),
            format!("runtime-{}", number % 4),
        );
        let label =
            RuntimeLabel::new(&account.parse().unwrap(), &runtime.parse().unwrap()).unwrap();
        let claim = record::ClaimRecord {
            instance: instance((number % 251) as u8),
            nonce: writer::nonce(),
            account,
            runtime,
            overrules: false,
            node: run.node.to_string(),
            at_ms: wall_ms(),
            takeovers: 0,
            last_takeover_ms: 0,
            superseded: std::collections::VecDeque::new(),
        };
        let held = record::HeldRecord {
            epoch: 0,
            state: record::HeldState::Open,
        };
        table.put(
            keys.claim(&label).as_bytes(),
            &encode(&claim),
            number + 1,
            Source::Write,
            now(),
        );
        let key = keys.held(&run, &label);
        table.put(
            key.as_bytes(),
            &encode(&held),
            number + 1,
            Source::Write,
            now(),
        );
    }
    eprintln!(
        "{} bytes for each runtime",
        (resident() - before) / RUNTIMES
    );
    assert_eq!(table.len(), RUNTIMES as usize);
}
