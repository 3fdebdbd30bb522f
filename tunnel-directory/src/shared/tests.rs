//! Nodes over a store that is simulated: the rules of the shared directory are those of the one in memory, and tables
//! agree in whatever order they learn of changes.

mod faults;
mod labels;
mod life;
mod links;
mod restores;
mod store;
mod unanswered;
mod world;

use std::{cell::RefCell, collections::BTreeMap, rc::Rc, time::Duration};

use proptest::prelude::*;
use tunnel_etcd::{Event, EventKind, KeyValue};
use tunnel_proto::handshake::InstanceId;

use self::store::{Store, event};
use super::*;
use crate::{
    claim::{ClaimRefusal, OnConflict},
    fixtures::{Runtime, instance, start},
    memory::MemoryClaims,
    owner::Claimant,
    record::{self, ClusterRecord, encode},
    table::{Change, Source},
};

/// A node, and the time.
struct Node {
    directory: RefCell<SharedDirectory>,
    clock: Rc<RefCell<Now>>,
}

impl Node {
    fn now(&self) -> Now {
        *self.clock.borrow()
    }

    fn input<R>(&self, input: impl FnOnce(&mut SharedDirectory, Now) -> R) -> R {
        input(&mut self.directory.borrow_mut(), self.now())
    }

    fn precheck(&self, claimant: Claimant<'_>) -> Result<(), ClaimRefusal> {
        let directory = self.directory.borrow();
        directory.precheck(claimant, self.now().instant)
    }

    fn current(&self, label: &str) -> Option<Claim> {
        self.directory.borrow().current(label)
    }

    fn holders(&self, label: &str) -> Option<(Epoch, Vec<Holder>)> {
        self.directory.borrow().holders(label)
    }

    /// Whether the node holds the runtime, and for which account.
    fn held(&self, label: &RuntimeLabel) -> Option<AccountName> {
        let directory = self.directory.borrow();
        directory.holds.get(label).map(|hold| hold.account.clone())
    }

    /// Gives an instance a runtime as while etcd is away.
    fn claim_provisionally(self: &Rc<Self>, claimant: Claimant<'_>) -> Result<Guard, ClaimRefusal> {
        let granted = self.input(|directory, _| directory.claim_provisionally(claimant))?;
        Ok(Guard::new(self, granted))
    }

    fn on_unanswered(&self, service: availability::EtcdService) {
        let error = EtcdError::LeaseEnded;
        self.input(|directory, now| directory.on_unanswered(service, error, now));
        self.settle_all();
    }

    /// Does all steps that are left.
    fn settle_all(&self) {
        while self.directory.borrow().settling.deadline().is_some() {
            self.input(|directory, now| directory.settle_next(now));
        }
    }
}

/// A session's part of a claim, which is released when it is dropped.
struct Guard {
    node: Rc<Node>,
    granted: GrantedClaim,
}

impl Guard {
    fn new(node: &Rc<Node>, granted: GrantedClaim) -> Self {
        Self {
            node: node.clone(),
            granted,
        }
    }

    fn claim(&self) -> &Claim {
        &self.granted.claim
    }

    fn leave(&self) {
        let GrantedClaim { label, serial, .. } = &self.granted;
        let node = &self.node;
        node.input(|directory, now| directory.on_leave(label, *serial, now));
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        let GrantedClaim { label, serial, .. } = &self.granted;
        let node = &self.node;
        node.input(|directory, now| directory.on_release(label, *serial, now));
    }
}

/// A link on which one node reports to another.
struct Link {
    from: Rc<Node>,
    to: Rc<Node>,
    sent: SentReports,
    receiving: ReportingLink,
}

impl Link {
    fn new(from: &Rc<Node>, to: &Rc<Node>) -> Self {
        let name = from.directory.borrow().run.node.clone();
        Self {
            from: from.clone(),
            to: to.clone(),
            sent: SentReports::default(),
            receiving: ReportingLink::new(name),
        }
    }

    fn report(&mut self) {
        let to = self.to.directory.borrow().run.clone();
        let now = self.from.now().instant;
        for number in 0.. {
            let from = self.from.directory.borrow();
            let Some(report) = from.next_report(&to, &self.sent, number, now) else {
                return;
            };
            drop(from);
            let read = Report::parse(&report.text).unwrap();
            self.sent.on_sent(report);
            let link = &mut self.receiving;
            self.to
                .input(|directory, now| directory.on_report(link, read, now));
            self.to.settle_all();
        }
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        let link = &self.receiving;
        self.to
            .input(|directory, now| directory.on_link_down(link, now));
    }
}

/// Nodes that share a store, and learn of every change at once.
struct Nodes {
    store: Store,
    nodes: Vec<Rc<Node>>,
    clock: Rc<RefCell<Now>>,
    /// A node that learns of nothing.
    cut_off: Option<usize>,
    last_claim: u64,
    answers: BTreeMap<ClaimId, Result<GrantedClaim, ClaimRefusal>>,
}

impl Nodes {
    fn new(count: usize) -> Self {
        let now = Now {
            instant: start(),
            wall_ms: 1_700_000_000_000,
        };
        let mut nodes = Self {
            store: Store::default(),
            nodes: Vec::new(),
            clock: Rc::new(RefCell::new(now)),
            cut_off: None,
            last_claim: 0,
            answers: BTreeMap::new(),
        };
        nodes.nodes = (0..count).map(|number| nodes.run_of(number, 1)).collect();
        for node in nodes.nodes.clone() {
            nodes.register(&node);
        }
        nodes.store.set_generation(0);
        nodes.list(false);
        nodes
    }

    /// A process of a node.
    fn run_of(&self, number: usize, run: u64) -> Rc<Node> {
        let settings = NodeSettings {
            name: format!("n{number}").parse().unwrap(),
            peer: Some("127.0.0.1:1".to_owned()),
            zone: None,
            without_directory: WithoutDirectory::Accept,
        };
        let random = 100 * number as u64 + run;
        let now = self.clock.borrow().instant;
        Rc::new(Node {
            directory: RefCell::new(SharedDirectory::new(settings, "/t/", random, now)),
            clock: self.clock.clone(),
        })
    }

    fn advance(&mut self, time: Duration) {
        let mut clock = self.clock.borrow_mut();
        clock.instant += time;
        clock.wall_ms += u64::try_from(time.as_millis()).unwrap();
    }

    fn register(&mut self, node: &Node) {
        self.store.revision += 1;
        let directory = node.directory.borrow();
        let key = directory.keys.node(&directory.run.node);
        let value = encode(&directory.own_record());
        self.store.put(key.as_bytes(), &value);
    }

    /// Starts a node again, which reads all.
    fn restart(&mut self, number: usize, run: u64) {
        let node = self.run_of(number, run);
        self.register(&node);
        self.nodes[number] = node;
        self.list(false);
        self.write_all();
    }

    fn deliver(&mut self) {
        let events = std::mem::take(&mut self.store.events);
        let nodes = self.nodes.iter().enumerate();
        for (_, node) in nodes.filter(|(number, _)| Some(*number) != self.cut_off) {
            let events = events.iter().cloned();
            node.input(|directory, now| directory.apply_events(events, now));
        }
    }

    /// Every node reads all.
    fn list(&mut self, is_restored: bool) {
        self.store.events.clear();
        for node in &self.nodes {
            node.input(|directory, now| list(directory, &self.store, is_restored, now));
            node.settle_all();
        }
    }

    /// Has a node write what it has to write.
    fn write(&mut self, number: usize) {
        let node = self.nodes[number].clone();
        let mut writes = 0;
        node.input(|directory, now| directory.write_next(now));
        while let Some(output) = node.input(|directory, _| directory.poll_output()) {
            match output {
                Output::Call(id, Call::Txn(txn)) => {
                    writes += 1;
                    assert!(writes < 100, "a node writes without end");
                    let answer = EtcdAnswer::Txn(self.store.txn(&txn));
                    node.input(|directory, now| directory.on_answer(id, Ok(answer), now));
                    self.deliver();
                }
                Output::ClaimAnswer(id, answer) => {
                    self.answers.insert(id, answer);
                }
                _ => {}
            }
        }
    }

    fn write_all(&mut self) {
        for number in 0..self.nodes.len() {
            self.write(number);
        }
    }

    fn claim(
        &mut self,
        number: usize,
        instance: &InstanceId,
        on_conflict: OnConflict,
    ) -> Result<Guard, ClaimRefusal> {
        self.claim_by(number, prod().claimant(instance, on_conflict))
    }

    fn claim_by(&mut self, number: usize, claimant: Claimant<'_>) -> Result<Guard, ClaimRefusal> {
        let node = self.nodes[number].clone();
        let (id, progress) = self.begin_claim(number, claimant);
        self.write(number);
        let answer = match progress {
            ClaimProgress::Answered(answer) => answer,
            ClaimProgress::Pending => self.answers.remove(&id).expect("no answer"),
        };
        answer.map(|granted| Guard::new(&node, granted))
    }

    fn begin_claim(&mut self, number: usize, claimant: Claimant<'_>) -> (ClaimId, ClaimProgress) {
        self.last_claim += 1;
        let id = ClaimId(self.last_claim);
        let node = &self.nodes[number];
        let progress = node.input(|directory, now| directory.claim(id, claimant, now));
        (id, progress)
    }
}

/// A node reads all.
fn list(directory: &mut SharedDirectory, store: &Store, is_restored: bool, now: Now) {
    directory.table.begin_listing();
    if is_restored {
        directory.table.on_restored();
    }
    let changes = read(directory, store, now);
    directory.on_changes(changes, now);
    let gone = end_listing(directory, store);
    directory.on_changes(gone, now);
    directory.settle_all(now);
    directory.set_position(store.revision, now);
}

fn read(directory: &mut SharedDirectory, store: &Store, now: Now) -> Vec<Change> {
    let source = Source::Read {
        revision: store.revision,
        wall_ms: now.wall_ms,
    };
    let records = store.keys.values();
    let table = &mut directory.table;
    let changes = records.filter_map(|kv| table.put(&kv.key, &kv.value, kv, source, now.instant));
    changes.collect()
}

fn end_listing(directory: &mut SharedDirectory, store: &Store) -> Vec<Change> {
    let table = &mut directory.table;
    let mut gone = table.end_listing_of_nodes(store.revision);
    for part in 0..Table::PARTS {
        let labels = table.end_listing_of_part(part, store.revision);
        gone.extend(labels.into_iter().map(Change::Runtime));
    }
    gone
}

/// The runtime of most tests.
fn prod() -> &'static Runtime {
    static PROD: std::sync::OnceLock<Runtime> = std::sync::OnceLock::new();
    PROD.get_or_init(|| Runtime::new("acme", "prod"))
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
    guard: Guard,
    model: Claim,
    is_leaving: bool,
}

fn is_leaving(held: &[Both], instance: &InstanceId) -> bool {
    let mut own = held.iter().filter(|both| both.model.instance == *instance);
    own.any(|both| both.is_leaving)
}

fn compare_with_memory(steps: Vec<Happening>) {
    let mut nodes = Nodes::new(3);
    let (mut model, mut held) = (MemoryClaims::default(), Vec::<Both>::new());
    let label = &prod().label;
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
                let now = nodes.clock.borrow().instant;
                let expected = model.claim(prod().claimant(&instance, on_conflict), now);
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
                    model.leave(label, both.model.epoch);
                }
            }
            Happening::Release(which) if !held.is_empty() => {
                let both = held.swap_remove(which % held.len());
                model.release(label, both.model.epoch);
                drop(both.guard);
            }
            Happening::Leave(_) | Happening::Release(_) => {}
            Happening::Wait(seconds) => nodes.advance(Duration::from_secs(seconds)),
        }
        nodes.write_all();
        let expected = model.current(label).map(|claim| claim.instance.clone());
        for node in &nodes.nodes {
            let held = node.directory.borrow().table.held_claim(label.as_str());
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

/// The watch may report a write before its answer has come; answering that by another write would never end.
#[test]
fn a_node_writes_its_key_again_only_when_that_is_lost() {
    let mut nodes = Nodes::new(1);
    let node = nodes.nodes[0].clone();
    let is_challenged = || node.directory.borrow().presence.is_challenged();
    assert!(!is_challenged(), "by the report of its own write");
    nodes.store.revision += 1;
    nodes.store.delete(b"/t/node/n0");
    nodes.deliver();
    assert!(is_challenged());
}

/// Late events, a listing and the own writes lead to one table.
fn tables_agree(steps: Vec<Happening>, order: &[prop::sample::Index]) {
    let mut nodes = Nodes::new(3);
    let mut held = Vec::new();
    let mut events: Vec<Event> = Vec::new();
    for step in steps {
        if let Happening::Claim(node, number, _) = step {
            let claimed = nodes.claim(node, &instance(number), OnConflict::Supersede);
            held.extend(claimed.ok());
        }
        if let Happening::Release(which) = step
            && !held.is_empty()
        {
            held.swap_remove(which % held.len());
        }
        nodes.write_all();
        let keys = nodes.store.keys.values().cloned();
        events.extend(keys.map(|kv| event(EventKind::Put, kv)));
    }
    let late = nodes.run_of(9, 1);
    // Older states in any order, then the listing, then some of them again.
    for index in order {
        if !events.is_empty() {
            let event = index.get(&events).clone();
            late.input(|directory, now| directory.apply_events(std::iter::once(event), now));
        }
    }
    late.input(|directory, now| {
        directory.table.begin_listing();
        read(directory, &nodes.store, now);
        end_listing(directory, &nodes.store);
    });
    let label = prod().label.as_str();
    let (own, other) = (late.directory.borrow(), nodes.nodes[0].directory.borrow());
    let (own, other) = (&own.table, &other.table);
    assert_eq!(own.counts(), other.counts());
    assert_eq!(own.claim(label), other.claim(label));
    let sorted = |table: &Table| {
        let mut holders = table.holders(label);
        if let Some((_, holders)) = &mut holders {
            holders.sort_by_key(|holder| holder.node.clone());
        }
        holders
    };
    assert_eq!(sorted(own), sorted(other));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn several_nodes_decide_as_one_does(steps in steps()) {
        compare_with_memory(steps);
    }

    /// Whatever comes twice, late or after a listing, the table ends as the store is.
    #[test]
    fn tables_agree_in_the_end(steps in steps(), order in proptest::collection::vec(any::<prop::sample::Index>(), 1..40)) {
        tables_agree(steps, &order);
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
    let run = NodeRun {
        node: "node-1".parse().unwrap(),
        incarnation: Incarnation::new(1),
    };
    let mut table = Table::new(keys.clone(), run.clone(), 1);
    let (before, now) = (resident(), start());
    for number in 0..RUNTIMES {
        let (account, runtime) = (
            format!("account-{}", number / 4),
            format!("runtime-{}", number % 4),
        );
        let label =
            RuntimeLabel::new(&account.parse().unwrap(), &runtime.parse().unwrap()).unwrap();
        let claim = record::ClaimRecord {
            instance: instance((number % 251) as u8),
            nonce: format!("{number:016x}"),
            account,
            runtime,
            generation: Some(0),
            overrules: false,
            node: run.node.to_string(),
            at_ms: 0,
            takeovers: 0,
            last_takeover_ms: 0,
            superseded: VecDeque::new(),
        };
        let held = record::HeldRecord {
            epoch: 0,
            state: record::HeldState::Open,
        };
        let records = [
            (keys.claim(&label), encode(&claim)),
            (keys.held(&run, &label), encode(&held)),
        ];
        for (key, value) in records {
            table.put(key.as_bytes(), &value, number + 1, Source::Write, now);
        }
    }
    eprintln!(
        "{} bytes for each runtime",
        (resident() - before) / RUNTIMES
    );
    assert_eq!(table.len(), RUNTIMES as usize);
}
