//! Faults that the search has found, each with the plan that shows it, and a search of some seconds.

use std::time::Duration;

use testkit::random::Random;

use super::*;
use crate::plan::Fault::{
    CrashNode, CutLinks, CutMember, Empty, FreezeEtcd, PauseNode, ReplaceNode, RestartClient,
    Restore, SecondInstance, Snapshot, StopClient,
};

const fn at(milliseconds: u64) -> Duration {
    Duration::from_millis(milliseconds)
}

/// Runs a plan of these nodes and members of etcd with two clients, which dial a balancer.
fn hold(seed: u64, nodes: usize, members: usize, faults: &[(Duration, Fault)]) {
    hold_with(true, seed, nodes, members, faults);
}

/// As [`hold`], or with clients that dial each node.
fn hold_with(
    has_balancer: bool,
    seed: u64,
    nodes: usize,
    members: usize,
    faults: &[(Duration, Fault)],
) {
    let plan = Plan {
        seed,
        nodes,
        members,
        clients: 2,
        has_balancer,
        faults: faults.to_vec(),
    };
    let violation = run(&plan).violation;
    assert!(violation.is_none(), "{violation:#?}");
}

#[test]
fn a_claim_that_was_given_up_takes_nothing_from_a_living_instance() {
    let faults = [
        (at(68_080), FreezeEtcd(at(27_762))),
        (at(71_258), SecondInstance(0, at(2_152))),
    ];
    hold(717, 2, 1, &faults);
}

#[test]
fn a_claim_of_a_client_that_is_gone_takes_nothing_from_what_was_given_without_etcd() {
    let faults = [
        (at(15_045), StopClient(0, at(32_036))),
        (at(41_205), FreezeEtcd(at(22_605))),
        (at(57_218), StopClient(0, at(764))),
    ];
    hold(6581, 3, 3, &faults);
}

#[test]
fn a_client_that_is_started_again_while_etcd_is_away_gets_its_runtime() {
    let faults = [
        (at(18_388), FreezeEtcd(at(39_424))),
        (at(28_249), RestartClient(1)),
    ];
    hold(1397, 2, 1, &faults);
}

#[test]
fn sessions_that_two_nodes_give_an_instance_without_etcd_stay() {
    let faults = [
        (at(20_719), SecondInstance(0, at(1_762))),
        (at(44_960), StopClient(0, at(29_149))),
        (at(45_663), FreezeEtcd(at(31_273))),
    ];
    hold(1138, 2, 3, &faults);
}

#[test]
fn a_record_that_is_right_again_counts_when_its_claim_is_known() {
    let faults = [
        (at(45_760), CutMember(0, at(11_646))),
        (at(53_260), StopClient(0, at(3_310))),
    ];
    hold(366, 3, 1, &faults);
}

#[test]
fn a_void_record_stays_void_while_its_node_does_not_report() {
    let faults = [
        (at(42_574), StopClient(0, at(5_000))),
        (at(42_600), CutMember(0, at(23_026))),
        (at(63_575), PauseNode(1, at(30_000))),
    ];
    hold(1930, 2, 1, &faults);
}

#[test]
fn an_instance_that_a_snapshot_brings_back_takes_nothing_from_a_living_one() {
    let faults = [
        (at(20_000), Snapshot),
        (at(25_000), RestartClient(0)),
        (at(26_000), RestartClient(1)),
        (at(30_000), Empty),
        (at(45_000), Restore),
    ];
    for seed in 1..=20 {
        hold(seed, 2, 1, &faults);
    }
}

#[test]
fn what_a_node_releases_after_a_pause_without_etcd_is_free() {
    let faults = [
        (at(35_881), PauseNode(2, at(33_136))),
        (at(49_287), FreezeEtcd(at(39_843))),
        (at(56_811), ReplaceNode(2, at(34_883))),
        (at(58_198), RestartClient(1)),
    ];
    for seed in 1..=5 {
        hold(seed, 3, 1, &faults);
    }
}

/// Nodes that start without etcd are not ready, and nobody has a session until it is back.
#[test]
fn clients_have_sessions_again_after_all_nodes_have_crashed_in_an_outage() {
    let faults = [
        (at(62_104), FreezeEtcd(at(30_865))),
        (at(64_454), CrashNode(1, at(640))),
        (at(64_514), CrashNode(0, at(3_360))),
    ];
    hold(1, 2, 3, &faults);
}

/// The runtimes have been stable for more than a minute when the links of one node after the other are cut for a moment.
#[test]
fn a_moment_without_links_fails_no_request() {
    let blips =
        [0, 1, 2].map(|node| (at(85_000 + 10_000 * node as u64), CutLinks(node, at(1_500))));
    for seed in 1..=5 {
        hold(seed, 3, 1, &blips);
    }
}

#[test]
fn sessions_are_at_two_nodes_after_both_were_replaced() {
    let faults = [
        (at(15_000), ReplaceNode(0, at(2_000))),
        (at(30_000), ReplaceNode(1, at(2_000))),
    ];
    for seed in 1..=5 {
        hold_with(true, seed, 2, 1, &faults);
        hold_with(false, seed, 2, 1, &faults);
    }
}

#[test]
fn sessions_are_at_two_nodes_after_a_node_has_served_alone() {
    let faults = [
        (at(15_000), CrashNode(1, at(30_000))),
        (at(15_000), CrashNode(2, at(30_000))),
        (at(20_000), RestartClient(0)),
    ];
    for seed in 1..=5 {
        hold_with(true, seed, 3, 1, &faults);
        hold_with(false, seed, 3, 1, &faults);
    }
}

#[test]
fn a_node_without_links_is_not_ready() {
    for seed in 1..=5 {
        hold(seed, 3, 1, &[(at(20_000), CutLinks(1, at(120_000)))]);
    }
}

/// `E2E_SIMULATION_STEPS` plans from `E2E_SIMULATION_SEED` on.
#[test]
fn random_plans_hold() {
    let (plans, mut random) = Random::of_test_with("SIMULATION", 60, 1);
    for _ in 0..plans {
        let plan = Plan::draw(random.next_number());
        if let Some(violation) = run(&plan).violation {
            panic!("{violation:#?}\nof {:#?}", shrink(&plan));
        }
    }
}
