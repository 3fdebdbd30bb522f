//! Two runtimes of one label at several nodes: the one that has it keeps it, and no request of it reaches a client of the
//! other.

use super::*;

const LABEL: &str = "a-b-c";

fn pair() -> [Runtime; 2] {
    [Runtime::new("a-b", "c"), Runtime::new("a", "b-c")]
}

fn taken() -> ClaimRefusal {
    ClaimRefusal::LabelTaken(pair()[0].label.clone())
}

impl Nodes {
    fn dial(&mut self, number: usize, runtime: &Runtime, by: u8) -> Result<Guard, ClaimRefusal> {
        let instance = instance(by);
        let claimant = runtime.claimant(&instance, OnConflict::Supersede);
        let precheck = self.nodes[number].precheck(claimant);
        let claimed = self.claim_by(number, claimant);
        assert_eq!(precheck.err().as_ref(), claimed.as_ref().err());
        self.write_all();
        claimed
    }

    /// The accounts whose clients get requests that reach this node.
    fn reached_from(&self, number: usize) -> Vec<String> {
        let label = &pair()[0].label;
        let held = |node: &Node| node.held(label).map(|account| account.to_string());
        let node = &self.nodes[number];
        if let Some(account) = held(node) {
            return vec![account];
        }
        let holders = node.holders(LABEL).map_or_else(Vec::new, |(_, all)| all);
        let accounts = holders.iter().map(|holder| {
            let all = self.nodes.iter();
            let is_it = |node: &&Rc<Node>| node.directory.borrow().run.node == holder.node;
            let mut holders = all.filter(is_it);
            match holders.next() {
                Some(node) => held(node).expect("a holder that holds nothing"),
                None => self.at_older_node(),
            }
        });
        accounts.collect()
    }

    /// Registers a node of a version that does not compare the pairs of names.
    fn add_older_node(&mut self) {
        let older = self.run_of(9, 1);
        self.register(&older);
        self.deliver();
    }

    /// Its write for a client that has dialled it.
    fn claim_at_older_node(&mut self, runtime: &Runtime) {
        let record = record::ClaimRecord {
            instance: instance(90),
            nonce: String::new(),
            account: runtime.account.to_string(),
            runtime: runtime.name.to_string(),
            generation: None,
            overrules: false,
            node: "n9".to_owned(),
            at_ms: self.clock.borrow().wall_ms,
            takeovers: 0,
            last_takeover_ms: 0,
            superseded: VecDeque::new(),
        };
        let held = record::HeldRecord {
            epoch: 0,
            state: record::HeldState::Open,
        };
        let older = self.run_of(9, 1);
        let older = older.directory.borrow();
        let key = older.keys.held(&older.run, &runtime.label);
        let claim = older.keys.claim(&runtime.label);
        self.store.revision += 1;
        self.store.put(claim.as_bytes(), &encode(&record));
        self.store.put(key.as_bytes(), &encode(&held));
        self.deliver();
        self.write_all();
    }

    /// The account of the record, which is the one that the older node has written where it holds the label.
    fn at_older_node(&self) -> String {
        let record = &self.store.keys[format!("/t/claim/{LABEL}").as_bytes()];
        let record: record::ClaimRecord = record::decode(&record.value).unwrap();
        record.account
    }
}

#[test]
fn a_label_is_its_owners_at_every_node_and_after_restarts() {
    let [first, second] = pair();
    let mut nodes = Nodes::new(2);
    let held = nodes.dial(0, &first, 1).ok().unwrap();
    assert_eq!(nodes.dial(1, &second, 2).err(), Some(taken()));
    nodes.restart(1, 2);
    assert_eq!(nodes.dial(1, &second, 2).err(), Some(taken()));
    let also = nodes.dial(1, &first, 1).ok().unwrap();
    assert_eq!(also.claim(), held.claim());
    nodes.restart(0, 2);
    assert_eq!(nodes.dial(0, &second, 2).err(), Some(taken()));
    drop((held, also));
    nodes.write_all();
    assert_eq!(
        nodes.dial(0, &second, 2).err(),
        Some(taken()),
        "the record of one that is offline"
    );
    nodes.store.revision += 1;
    nodes.store.delete(format!("/t/claim/{LABEL}").as_bytes());
    nodes.deliver();
    assert!(nodes.dial(0, &second, 2).is_ok(), "it is long gone");
}

#[test]
fn a_listed_runtime_takes_its_label_at_every_node() {
    let [first, second] = pair();
    let mut nodes = Nodes::new(2);
    let _older = nodes.dial(0, &first, 1).ok().unwrap();
    let id = instance(2);
    let listed = Claimant {
        is_listed: true,
        ..second.claimant(&id, OnConflict::Reject)
    };
    let _newer = nodes.claim_by(1, listed).ok().unwrap();
    nodes.write_all();
    for number in 0..2 {
        assert_eq!(nodes.reached_from(number), ["a"]);
        assert_eq!(nodes.dial(number, &first, 3).err(), Some(taken()));
    }
    // Its next instance has the label as well, also at a node that does not list it yet.
    let _next = nodes.dial(0, &second, 4).ok().unwrap();
    nodes.list(false);
    nodes.write_all();
    assert_eq!(nodes.reached_from(1), ["a"]);
}

/// During a rollout: a node of an earlier version gives the label to the other runtime.
#[test]
fn what_an_older_node_writes_over_a_held_label_is_taken_back() {
    let [first, second] = pair();
    let mut nodes = Nodes::new(2);
    let held = nodes.dial(0, &first, 1).ok().unwrap();
    nodes.add_older_node();
    nodes.claim_at_older_node(&second);
    for number in 0..2 {
        assert_eq!(nodes.reached_from(number), ["a-b"]);
        assert_eq!(nodes.dial(number, &second, 2).err(), Some(taken()));
        let claim = nodes.nodes[number].current(LABEL).unwrap();
        assert_eq!(claim.instance, instance(1));
        assert!(claim.epoch > held.claim().epoch, "the older node obeys it");
    }
    let again = nodes.dial(1, &first, 1).ok().unwrap();
    assert!(again.claim().epoch > held.claim().epoch);
}

/// The same, while no node of this version has a session of the owner: its client comes back at once.
#[test]
fn what_an_older_node_writes_over_a_label_that_is_offline_counts_for_nothing() {
    let [first, second] = pair();
    let mut nodes = Nodes::new(2);
    drop(nodes.dial(0, &first, 1).ok().unwrap());
    nodes.write_all();
    nodes.add_older_node();
    nodes.claim_at_older_node(&second);
    for number in 0..2 {
        assert_eq!(nodes.reached_from(number), [""; 0]);
        assert_eq!(nodes.dial(number, &second, 2).err(), Some(taken()));
    }
    // A node that has started since knows of the later record alone.
    nodes.restart(1, 2);
    assert_eq!(nodes.dial(1, &first, 1).err(), Some(taken()));
    let _back = nodes.dial(0, &first, 1).ok().unwrap();
    for number in 0..2 {
        assert_eq!(nodes.reached_from(number), ["a-b"]);
        assert_eq!(nodes.dial(number, &second, 2).err(), Some(taken()));
    }
}

/// A takeover of an instance by another of its runtime, by a node of an earlier version.
#[test]
fn an_older_node_gives_a_label_to_the_next_instance_of_its_owner() {
    let [first, second] = pair();
    let mut nodes = Nodes::new(1);
    let _held = nodes.dial(0, &first, 1).ok().unwrap();
    nodes.add_older_node();
    nodes.claim_at_older_node(&first);
    assert_eq!(
        nodes.nodes[0].current(LABEL).unwrap().instance,
        instance(90)
    );
    assert!(nodes.nodes[0].held(&first.label).is_none());
    assert_eq!(nodes.dial(0, &second, 2).err(), Some(taken()));
}

#[test]
fn a_record_without_names_belongs_to_nobody() {
    let [first, second] = pair();
    let mut nodes = Nodes::new(1);
    nodes.store.revision += 1;
    let record = format!(
        r#"{{"instance":"{}","nonce":"","node":"n0","at_ms":1}}"#,
        instance(1)
    );
    nodes
        .store
        .put(format!("/t/claim/{LABEL}").as_bytes(), record.as_bytes());
    nodes.deliver();
    let _own = nodes.dial(0, &first, 1).ok().unwrap();
    let _next = nodes.dial(0, &first, 2).ok().unwrap();
    assert_eq!(nodes.dial(0, &second, 3).err(), Some(taken()));
}

/// The other runtime dials before the holder has written its record again.
#[test]
fn a_held_label_is_taken_back_after_etcd_was_emptied() {
    let [first, second] = pair();
    let mut nodes = Nodes::new(2);
    let _held = nodes.dial(0, &first, 1).ok().unwrap();
    nodes.store.keys.clear();
    for node in nodes.nodes.clone() {
        nodes.register(&node);
    }
    nodes.store.set_generation(1);
    nodes.list(true);
    let id = instance(2);
    let quick = nodes.claim_by(1, second.claimant(&id, OnConflict::Supersede));
    assert!(quick.is_ok(), "the record was missing");
    nodes.write_all();
    for number in 0..2 {
        assert_eq!(nodes.reached_from(number), ["a-b"]);
        assert_eq!(nodes.dial(number, &second, 2).err(), Some(taken()));
    }
}

#[test]
fn a_label_is_its_owners_while_etcd_is_away() {
    let [first, second] = pair();
    let nodes = Nodes::new(2);
    let (one, two) = (nodes.nodes[0].clone(), nodes.nodes[1].clone());
    let claim = |node: &Rc<Node>, runtime: &Runtime, by: u8| {
        let instance = instance(by);
        node.claim_provisionally(runtime.claimant(&instance, OnConflict::Supersede))
    };
    let _held = claim(&one, &first, 1).ok().unwrap();
    assert_eq!(claim(&one, &second, 2).err(), Some(taken()));
    one.on_unanswered(availability::EtcdService::Writes);
    let mut link = Link::new(&one, &two);
    link.report();
    assert_eq!(
        claim(&two, &second, 2).err(),
        Some(taken()),
        "by what the other node reports"
    );
}

/// Something that happens to the label.
#[derive(Debug, Clone)]
enum LabelEvent {
    /// A client of one of the runtimes dials a node.
    Dial(usize, usize, u8),
    /// A session ends.
    End(usize),
    /// A node is started again.
    Restart(usize),
    /// A client of one of the runtimes dials a node of an earlier version.
    DialOlder(usize),
    /// The claim of a label that nobody holds is removed.
    Sweep,
}

fn events(has_older: bool) -> impl Strategy<Value = Vec<LabelEvent>> {
    let rare = match has_older {
        true => (0..2_usize).prop_map(LabelEvent::DialOlder).boxed(),
        false => (0..2_usize).prop_map(LabelEvent::Restart).boxed(),
    };
    let event = prop_oneof![
        6 => (0..2_usize, 0..2_usize, 0..3_u8).prop_map(|(node, runtime, by)| LabelEvent::Dial(node, runtime, by)),
        3 => (0..8_usize).prop_map(LabelEvent::End),
        2 => rare,
        1 => Just(LabelEvent::Sweep),
    ];
    proptest::collection::vec(event, 1..60)
}

fn run(events: Vec<LabelEvent>, has_older: bool) {
    let runtimes = pair();
    let mut nodes = Nodes::new(2);
    if has_older {
        nodes.add_older_node();
    }
    let mut held = Vec::new();
    let mut owner = None;
    for (step, event) in events.into_iter().enumerate() {
        nodes.advance(Duration::from_secs(100));
        match event {
            LabelEvent::Dial(node, runtime, by) => {
                let by = by + 10 * u8::try_from(runtime).unwrap();
                match nodes.dial(node, &runtimes[runtime], by) {
                    Ok(guard) => {
                        assert_eq!(*owner.get_or_insert(runtime), runtime);
                        held.push(guard);
                    }
                    Err(ClaimRefusal::LabelTaken(_)) => assert_eq!(owner, Some(1 - runtime)),
                    Err(_) => assert_eq!(owner, Some(runtime)),
                }
            }
            LabelEvent::End(which) if !held.is_empty() => {
                drop(held.swap_remove(which % held.len()));
            }
            LabelEvent::End(_) => {}
            LabelEvent::Restart(node) => nodes.restart(node, 2 + step as u64),
            LabelEvent::DialOlder(runtime) => {
                owner.get_or_insert(runtime);
                nodes.claim_at_older_node(&runtimes[runtime]);
            }
            LabelEvent::Sweep => {
                let is_free = nodes.nodes[0]
                    .directory
                    .borrow()
                    .table
                    .held_claim(LABEL)
                    .is_none();
                if is_free {
                    nodes.store.revision += 1;
                    nodes.store.delete(format!("/t/claim/{LABEL}").as_bytes());
                    nodes.deliver();
                    owner = None;
                }
            }
        }
        nodes.write_all();
        for node in 0..2 {
            for account in nodes.reached_from(node) {
                let owner = owner.expect("a label that is held has an owner");
                assert_eq!(
                    account,
                    runtimes[owner].account.as_str(),
                    "after step {step}"
                );
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    /// No request of one runtime ever reaches a client of the other.
    #[test]
    fn a_label_leads_to_its_owner(events in events(false)) {
        run(events, false);
    }

    /// Nor while there are nodes of an earlier version, at those of this one.
    #[test]
    fn a_label_leads_to_its_owner_during_a_rollout(events in events(true)) {
        run(events, true);
    }
}
