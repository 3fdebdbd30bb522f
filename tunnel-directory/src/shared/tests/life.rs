//! The life of nodes, from their start to their end, and what etcd does to them.

use super::{
    world::{Reach, World, summary},
    *,
};
use crate::error::DirectoryError;

const SECOND: Duration = Duration::from_secs(1);

/// Two nodes that take part.
fn two() -> World {
    let mut world = World::new();
    world.add("n1", 1);
    world.add("n2", 2);
    world.run(SECOND);
    for running in &world.nodes {
        assert!(running.has(|output| matches!(output, Output::Ready)));
    }
    world
}

fn holder(world: &World, number: usize) -> Vec<String> {
    let held = world.nodes[number].node.holders(prod().label.as_str());
    let holders = held.map_or_else(Vec::new, |(_, holders)| holders);
    holders
        .iter()
        .map(|holder| holder.node.to_string())
        .collect()
}

fn restored() -> impl Fn(&Output) -> bool {
    |output| matches!(output, Output::Log(LogLine::EtcdRestored))
}

#[test]
fn nodes_take_part_and_learn_of_claims() {
    let mut world = two();
    assert_eq!(world.keys("node"), ["n1", "n2"]);
    let granted = world.claim(0, prod(), 1).unwrap();
    world.run(SECOND);
    assert_eq!(holder(&world, 1), ["n1"]);
    let now = world.now();
    let node = &mut world.nodes[0].node;
    node.on_release(&granted.label, granted.serial, now);
    world.run(SECOND);
    assert!(holder(&world, 1).is_empty());
    assert!(world.keys("held").is_empty());
}

#[test]
fn a_takeover_at_another_node_supersedes() {
    let mut world = two();
    world.claim(0, prod(), 1).unwrap();
    let newer = world.claim(1, prod(), 2).unwrap();
    world.run(SECOND);
    assert!(
        world.nodes[0].has(|output| {
            matches!(output, Output::NewerClaim(_, claim) if *claim == newer.claim)
        })
    );
    assert_eq!(holder(&world, 0), ["n2"]);
}

/// More records than are applied in one step, and parts without any.
#[test]
fn a_node_that_starts_reads_all_records_in_steps() {
    let mut world = two();
    let runtimes: Vec<Runtime> = (0..700)
        .map(|number| Runtime::new("acme", &format!("r{number}")))
        .collect();
    for runtime in &runtimes {
        let id = ClaimId(number_of(runtime));
        let (now, instance) = (world.now(), instance(1));
        let claimant = runtime.claimant(&instance, OnConflict::Supersede);
        world.nodes[0].node.claim(id, claimant, now);
    }
    world.run(SECOND);
    let late = world.add("n3", 3);
    world.run(SECOND);
    for runtime in &runtimes {
        let held = world.nodes[late].node.holders(runtime.label.as_str());
        assert!(held.is_some(), "{}", runtime.label);
    }
    assert_eq!(world.nodes[late].node.len(), (0, runtimes.len()));
}

fn number_of(runtime: &Runtime) -> u64 {
    1_000_000 + runtime.name.as_str()[1..].parse::<u64>().unwrap()
}

#[test]
fn a_node_whose_watch_was_compacted_lists_again_and_forgets_what_is_gone() {
    let mut world = two();
    let granted = world.claim(0, prod(), 1).unwrap();
    world.run(SECOND);
    world.nodes[1].reach = Reach::None;
    world.run(10 * SECOND);
    let now = world.now();
    world.nodes[0]
        .node
        .on_release(&granted.label, granted.serial, now);
    world.run(SECOND);
    world.compacted = world.store.revision;
    world.nodes[1].reach = Reach::All;
    world.run(10 * SECOND);
    assert!(world.nodes[1].has(|output| matches!(output, Output::Relisted)));
    assert!(holder(&world, 1).is_empty());
}

#[test]
fn a_member_that_says_nothing_is_left() {
    let mut world = two();
    world.nodes[1].reach = Reach::SilentWatch;
    world.run(10 * SECOND);
    assert_eq!(world.nodes[1].watched[..2], [1, 2]);
    world.claim(0, prod(), 1).unwrap();
    world.nodes[1].reach = Reach::All;
    world.run(10 * SECOND);
    assert_eq!(holder(&world, 1), ["n1"]);
}

#[test]
fn a_node_whose_lease_has_ended_puts_its_key_back() {
    let mut world = two();
    world.claim(0, prod(), 1).unwrap();
    world.run(SECOND);
    world.end_leases();
    world.run(10 * SECOND);
    assert_eq!(world.keys("node"), ["n1", "n2"]);
    assert_eq!(holder(&world, 1), ["n1"]);
}

#[test]
fn nodes_write_all_again_after_etcd_was_emptied() {
    let mut world = two();
    let granted = world.claim(0, prod(), 1).unwrap();
    world.run(SECOND);
    world.empty();
    world.run(20 * SECOND);
    assert!(world.nodes.iter().any(|running| running.has(restored())));
    assert_eq!(world.keys("node"), ["n1", "n2"]);
    assert_eq!(holder(&world, 1), ["n1"]);
    let claim = world.nodes[1].node.current(prod().label.as_str()).unwrap();
    assert_eq!(claim.instance, instance(1));
    assert!(claim.epoch > granted.claim.epoch);
}

#[test]
fn a_second_process_under_a_living_name_is_refused() {
    let mut world = two();
    let twin = world.add("n1", 9);
    world.run(10 * SECOND);
    assert!(
        world.nodes[twin]
            .has(|output| { matches!(output, Output::Failed(DirectoryError::NameTaken(_))) })
    );
    let is_failed = |output: &Output| matches!(output, Output::Failed(_));
    assert!(!world.nodes[0].has(is_failed));
    assert!(world.keys("challenge").is_empty());
}

#[test]
fn a_process_takes_the_name_of_one_that_has_died() {
    let mut world = two();
    world.nodes.remove(0);
    let next = world.add("n1", 9);
    world.run(10 * SECOND);
    assert!(world.nodes[next].has(|output| matches!(output, Output::Ready)));
    let (_, incarnation, _) = world.nodes[0].node.nodes().remove(0);
    assert_eq!(incarnation, Incarnation::new(9));
}

#[test]
fn a_node_that_departs_leaves_nothing() {
    let mut world = two();
    for number in 0..150 {
        let runtime = Runtime::new("acme", &format!("r{number}"));
        world.claim(0, &runtime, 1).unwrap();
    }
    let now = world.now();
    world.nodes[0].node.depart(now);
    world.run(SECOND);
    assert!(world.nodes[0].has(|output| matches!(output, Output::Departed)));
    assert_eq!(world.keys("node"), ["n2"]);
    assert!(world.keys("held").is_empty());
    let outputs = world.nodes[0].outputs.len();
    world.run(60 * SECOND);
    let later = &world.nodes[0].outputs[outputs..];
    assert!(
        later
            .iter()
            .all(|output| matches!(output, Output::State(_) | Output::Log(_)))
    );
    assert_eq!(world.keys("node"), ["n2"]);
}

#[test]
fn a_node_that_was_paused_learns_what_has_happened() {
    let mut world = two();
    world.claim(0, prod(), 1).unwrap();
    world.run(SECOND);
    let paused = world.nodes.remove(0);
    world.claim(0, prod(), 2).unwrap();
    world.run(5 * SECOND);
    world.nodes.insert(0, paused);
    let now = world.now();
    let running = &world.nodes[0];
    assert!(was_paused(running.node.last_tick(), now.instant));
    world.run(SECOND);
    let running = &world.nodes[0];
    assert!(running.has(|output| matches!(output, Output::CaughtUp)));
    let now = world.now();
    assert!(!was_paused(running.node.last_tick(), now.instant));
    assert_eq!(holder(&world, 0), ["n2"]);
}

#[test]
fn records_of_a_node_that_has_died_are_removed() {
    let mut world = two();
    world.claim(1, prod(), 1).unwrap();
    world.nodes.remove(1);
    world.run(SECOND);
    world.end_lease(2);
    world.run(60 * SECOND);
    assert_eq!(world.keys("held").len(), 1, "it may come back");
    world.run(120 * SECOND);
    assert!(world.keys("held").is_empty());
    assert_eq!(world.keys("claim"), [prod().label.as_str()]);
    world.run(25 * 60 * 60 * SECOND);
    assert!(world.keys("claim").is_empty(), "it has long been free");
}

#[test]
fn runtimes_are_given_while_etcd_is_away_and_recorded_later() {
    let mut world = two();
    world.claim(1, prod(), 1).unwrap();
    for running in &mut world.nodes {
        running.reach = Reach::None;
    }
    world.run(10 * SECOND);
    let other = Runtime::new("acme", "other");
    world.claim(0, &other, 2).unwrap();
    assert_eq!(
        world.claim(0, prod(), 2).unwrap_err(),
        ClaimRefusal::Unavailable,
        "another node may hold it"
    );
    world.run(30 * SECOND);
    let states = world.nodes.iter().map(|running| running.node.state());
    assert!(states.into_iter().all(|state| state == EtcdState::Alone));
    for running in &mut world.nodes {
        running.reach = Reach::All;
    }
    world.run(10 * SECOND);
    let states = world.nodes.iter().map(|running| running.node.state());
    assert!(states.into_iter().all(|state| state == EtcdState::Ok));
    let held = world.nodes[1].node.holders(other.label.as_str());
    assert_eq!(held.unwrap().1[0].node.as_str(), "n1");
}

#[test]
fn a_claim_whose_session_has_ended_is_not_decided_again() {
    let mut world = two();
    world.nodes[0].reach = Reach::None;
    let (now, instance) = (world.now(), instance(1));
    let claimant = prod().claimant(&instance, OnConflict::Supersede);
    let id = ClaimId(77);
    let node = &mut world.nodes[0].node;
    assert_eq!(node.claim(id, claimant, now), ClaimProgress::Pending);
    node.on_claim_abandoned(id);
    world.run(10 * SECOND);
    let is_answer = |output: &Output| matches!(output, Output::ClaimAnswer(..));
    assert!(!world.nodes[0].has(is_answer));
    assert_eq!(world.nodes[0].node.len().0, 0);
}

/// How long inputs take at a node that has, and holds, very many runtimes: the longest ones.
#[test]
#[ignore = "a measurement: run it optimised and alone, with --nocapture"]
fn inputs_are_short_at_300_000_claims() {
    const CLAIMS: u64 = 300_000;
    let mut world = World::new();
    world.add("n1", 1);
    world.run(SECOND);
    for number in 0..CLAIMS {
        let runtime = Runtime::new(&format!("account-{}", number / 4), &format!("r{number}"));
        let (now, instance) = (world.now(), instance(1));
        let claimant = runtime.claimant(&instance, OnConflict::Supersede);
        let node = &mut world.nodes[0].node;
        node.claim(ClaimId(1_000_000 + number), claimant, now);
        if number % 40 == 0 {
            world.run(Duration::ZERO);
            world.nodes[0].outputs.clear();
        }
    }
    world.run(SECOND);
    eprintln!("claims: {}", summary(&mut world.times));
    world.add("n2", 2);
    world.run(60 * SECOND);
    assert_eq!(world.nodes[1].node.len().1, CLAIMS as usize);
    eprintln!("a listing at another node: {}", summary(&mut world.times));
    world.empty();
    world.run(60 * SECOND);
    assert_eq!(world.keys("claim").len(), CLAIMS as usize);
    eprintln!("all is written again: {}", summary(&mut world.times));
    for running in &mut world.nodes {
        running.reach = Reach::None;
    }
    world.run(60 * SECOND);
    for running in &mut world.nodes {
        running.reach = Reach::All;
    }
    world.run(180 * SECOND);
    eprintln!("an outage, and sweeps: {}", summary(&mut world.times));
    let now = world.now();
    world.nodes[0].node.depart(now);
    world.run(10 * SECOND);
    eprintln!("the departure: {}", summary(&mut world.times));
}
