//! Server nodes on a real etcd: requests are forwarded, and a node that is killed is left by all.

use std::process::Command;

use crate::{
    language::{Measured, PROGRAM, programs},
    tunnels::{crowd, table},
};

/// Few runtimes at three nodes, and few connections.
const SMALL: &str = "cluster --runtimes 6 --connections 4 --warm-up 200ms";

/// How many sessions the nodes with these names have at the end.
fn sessions(measured: &Measured, nodes: &[&str]) -> u32 {
    let at_end = table(measured, "At the end");
    let of = |node: &&str| at_end[*node].parse::<u32>().unwrap();
    nodes.iter().map(of).sum()
}

#[test]
fn a_node_forwards_what_others_hold() {
    let measured = crowd(&format!("{SMALL} --duration 2s"));
    assert_eq!(measured.code, 0, "{measured:#?}");
    let errors = measured.run()["errors"].as_object().unwrap();
    assert!(errors.is_empty(), "{measured:#?}");
    // Two of three nodes do not hold the runtime that they are asked for.
    let all = table(&measured, "All the time");
    let share = &all["forwarded by one node to another"];
    let share: f64 = share.trim_end_matches(" %").parse().unwrap();
    assert!((55.0..78.0).contains(&share), "{measured:#?}");
    assert_eq!(sessions(&measured, &["n1", "n2", "n3"]), 6, "{measured:#?}");
    for (role, processes) in [("tunnel server", 3), ("etcd", 1), ("fleet", 1)] {
        let usage = &measured.run()["usage"][role];
        assert_eq!(usage["processes"], processes, "{measured:#?}");
    }
    let cpu = table(&measured, "CPU for each request");
    assert!(
        cpu.values().all(|time| time.ends_with('s')),
        "{measured:#?}"
    );
}

#[test]
fn runtimes_of_a_killed_node_are_served_at_the_others() {
    let measured = crowd(&format!("{SMALL} --duration 6s --fault kill"));
    assert_eq!(measured.code, 0, "{measured:#?}");
    let after = table(&measured, "After the fault");
    let served = &after["until each other node had served each runtime"];
    assert!(served.ends_with('s'), "{measured:#?}");
    assert_ne!(after["requests answered"], "0", "{measured:#?}");
    assert_eq!(table(&measured, "At the end")["n3"], "–", "{measured:#?}");
    assert_eq!(sessions(&measured, &["n1", "n2"]), 6, "{measured:#?}");
}

#[test]
#[ignore = "takes a minute: e2e/run-cluster runs it"]
fn a_node_that_is_parted_from_the_others_costs_no_request_elsewhere() {
    let options = "--runtimes 3 --connections 4 --warm-up 200ms --duration 60s";
    let measured = crowd(&format!(
        "cluster {options} --fault partition --real-client"
    ));
    assert_eq!(measured.code, 0, "{measured:#?}");
    let after = table(&measured, "After the fault");
    assert_eq!(after["requests that failed"], "0", "{measured:#?}");
    let served = &after["until each other node had served each runtime"];
    assert!(served.ends_with('s'), "{measured:#?}");
}

#[test]
fn without_etcd_it_is_told_what_to_install() {
    let output = Command::new(PROGRAM)
        .args(["cluster", "--programs"])
        .arg(programs())
        .env("PATH", "")
        .output()
        .unwrap();
    let complaint = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{complaint}");
    assert!(complaint.contains("install it"), "{complaint}");
}
