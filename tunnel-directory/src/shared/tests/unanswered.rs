//! While etcd answers some nodes, or none: what the nodes report to each other.

use super::{availability::EtcdService::Writes, *};

fn claim_provisionally(node: &Rc<Node>, number: u8) -> Result<Guard, ClaimRefusal> {
    let instance = instance(number);
    node.claim_provisionally(prod().claimant(&instance, OnConflict::Supersede))
}

#[test]
fn a_node_that_is_cut_off_learns_from_the_others_what_it_has_lost() {
    let mut nodes = Nodes::new(2);
    let (one, two) = (nodes.nodes[0].clone(), nodes.nodes[1].clone());
    let newest = OnConflict::Supersede;
    let _older = nodes.claim(0, &instance(1), newest).ok().unwrap();
    let revision = nodes.store.revision;
    one.input(|directory, now| directory.set_position(revision, now));
    nodes.cut_off = Some(0);
    let newer = nodes.claim(1, &instance(2), newest).ok().unwrap();
    let revision = nodes.store.revision;
    two.input(|directory, now| directory.set_position(revision, now));
    let label = &prod().label;
    let (mut forth, mut back) = (Link::new(&one, &two), Link::new(&two, &one));
    forth.report();
    back.report();
    assert!(one.held(label).is_some(), "it may be about to learn it");
    for _ in 0..3 {
        nodes.advance(REPORT_INTERVAL);
        two.input(|directory, now| directory.tick(now));
    }
    forth.report();
    back.report();
    assert!(one.held(label).is_none());
    assert_eq!(one.current(label.as_str()).as_ref(), Some(newer.claim()));
    let (_, holders) = one.holders(label.as_str()).unwrap();
    let own = two.directory.borrow();
    assert_eq!(holders[0].node, own.run.node, "requests go there");
}

/// One transaction may take many runtimes from a node, more than one report has.
#[test]
fn a_node_that_is_cut_off_learns_of_all_claims_of_one_revision() {
    let mut nodes = Nodes::new(2);
    let (one, two) = (nodes.nodes[0].clone(), nodes.nodes[1].clone());
    let runtimes: Vec<_> = (0..20)
        .map(|number| Runtime::new("acme", &format!("r{number}")))
        .collect();
    let mut held = Vec::new();
    for runtime in &runtimes {
        let id = instance(1);
        let claimant = runtime.claimant(&id, OnConflict::Supersede);
        held.push(nodes.claim_by(0, claimant).ok().unwrap());
    }
    let revision = nodes.store.revision;
    one.input(|directory, now| directory.set_position(revision, now));
    nodes.cut_off = Some(0);
    for runtime in &runtimes {
        let id = instance(2);
        nodes.begin_claim(1, runtime.claimant(&id, OnConflict::Supersede));
    }
    nodes.write_all();
    let revision = nodes.store.revision;
    two.input(|directory, now| directory.set_position(revision, now));
    for _ in 0..3 {
        nodes.advance(REPORT_INTERVAL);
        two.input(|directory, now| directory.tick(now));
    }
    let (mut forth, mut back) = (Link::new(&one, &two), Link::new(&two, &one));
    forth.report();
    back.report();
    for runtime in &runtimes {
        assert!(one.held(&runtime.label).is_none(), "{}", runtime.label);
    }
}

#[test]
fn what_is_held_while_etcd_is_away_is_reported_and_dies_with_the_link() {
    let nodes = Nodes::new(2);
    let (one, two) = (nodes.nodes[0].clone(), nodes.nodes[1].clone());
    let label = prod().label.as_str();
    let held = claim_provisionally(&one, 1).ok().unwrap();
    for node in [&one, &two] {
        node.on_unanswered(Writes);
    }
    let mut link = Link::new(&one, &two);
    link.report();
    let (epoch, holders) = two.holders(label).unwrap();
    assert_eq!((epoch, holders.len()), (held.claim().epoch, 1));
    assert!(two.directory.borrow().runtime(label).is_some());
    let refused = claim_provisionally(&two, 2);
    assert_eq!(refused.err(), Some(ClaimRefusal::Unavailable));
    // One more session of the instance.
    let also = claim_provisionally(&two, 1).ok().unwrap();
    assert_eq!(also.claim(), held.claim());
    drop(also);
    // The node whose lease has ended is still there.
    two.input(|directory, _| directory.table.delete(b"/t/node/n0", i64::MAX));
    assert!(two.holders(label).is_some());
    drop(link);
    assert!(two.holders(label).is_none());
    // A new link begins anew, and says as well what is held no more.
    let mut link = Link::new(&one, &two);
    drop(held);
    link.report();
    assert!(two.holders(label).is_none());
}

/// A node that holds a runtime is gone while etcd is away: its runtimes are free for new instances, which keep them.
#[test]
fn what_a_node_held_that_does_not_report_is_free_while_etcd_is_away() {
    let mut nodes = Nodes::new(3);
    let newest = OnConflict::Supersede;
    let _dead = nodes.claim(0, &instance(1), newest).ok().unwrap();
    let (one, two, three) = (
        nodes.nodes[0].clone(),
        nodes.nodes[1].clone(),
        nodes.nodes[2].clone(),
    );
    two.on_unanswered(Writes);
    // Renewals of the lease say nothing of writes.
    let renewals = availability::EtcdService::Renewals;
    two.input(|directory, now| directory.on_answered(renewals, now.instant));
    let id = instance(2);
    let newer = || two.precheck(prod().claimant(&id, newest));
    let receive = |from: &Rc<Node>| {
        let mut link = Link::new(from, &two);
        link.report();
        link
    };
    assert!(newer().is_err(), "no other node reports");
    let _third = receive(&three);
    assert!(newer().is_ok());
    let first = receive(&one);
    assert!(newer().is_err());
    drop(first);
    let _newer = claim_provisionally(&two, 2).ok().unwrap();
    two.input(|directory, now| directory.on_answered(Writes, now.instant));
    nodes.write(1);
    for node in [&two, &three] {
        let claim = node.current(prod().label.as_str()).unwrap();
        assert_eq!(claim.instance, instance(2));
    }
    assert!(two.held(&prod().label).is_some());
}

/// The link was away, not the node: a runtime that was given to a new instance meanwhile goes back to the first holder.
#[test]
fn a_holder_that_reports_again_keeps_its_runtimes() {
    let mut nodes = Nodes::new(3);
    let newest = OnConflict::Supersede;
    let _older = nodes.claim(0, &instance(1), newest).ok().unwrap();
    let two = nodes.nodes[1].clone();
    let receive = |from: usize| {
        let mut link = Link::new(&nodes.nodes[from], &two);
        link.report();
        link
    };
    let _third = receive(2);
    two.on_unanswered(Writes);
    let _newer = claim_provisionally(&two, 2).ok().unwrap();
    let _first = receive(0);
    assert!(two.held(&prod().label).is_none());
}

/// More records of a node are void than one report has.
#[test]
fn no_record_counts_before_its_node_has_named_all_void_ones() {
    let mut nodes = Nodes::new(2);
    let (one, two) = (nodes.nodes[0].clone(), nodes.nodes[1].clone());
    let runtimes: Vec<_> = (0..100)
        .map(|number| Runtime::new("acme", &format!("r{number}")))
        .collect();
    let gone = instance(1);
    let held = runtimes.iter().map(|runtime| {
        let claimant = runtime.claimant(&gone, OnConflict::Supersede);
        nodes.claim_by(0, claimant).ok().unwrap()
    });
    let held: Vec<Guard> = held.collect();
    for node in [&one, &two] {
        node.on_unanswered(Writes);
    }
    drop(held);
    one.settle_all();
    let mut former = Link::new(&one, &two);
    former.report();
    let given = instance(2);
    let given = runtimes.iter().map(|runtime| {
        let claimant = runtime.claimant(&given, OnConflict::Supersede);
        two.claim_provisionally(claimant)
    });
    let given: Vec<Guard> = given.map(|given| given.ok().unwrap()).collect();
    drop(former);
    let mut link = Link::new(&one, &two);
    link.report();
    let kept = runtimes
        .iter()
        .filter(|runtime| two.held(&runtime.label).is_some());
    assert_eq!(kept.count(), runtimes.len());
    drop(given);
}
