//! Ratios must be those that are known, and what cannot be measured must be told.

use std::{env, fs, process::Command};

use serde_json::Value;
use tempfile::TempDir;
use testkit::closed_port::closed_port;

use crate::language::{Measured, PROGRAM, Upstream, beside_others, loadtest, programs};

/// Short, and never without figures.
const SHORT: &str = "--rounds 2 --duration 400ms --warm-up 100ms";

/// `IP:PORT` of an upstream.
fn address(upstream: &Upstream) -> &str {
    upstream.url.strip_prefix("http://").unwrap()
}

/// The row of a target in the table of a level, by the heads of its columns.
struct Row(Vec<(String, String)>);

impl Row {
    fn of(measured: &Measured, table: usize, target: &str) -> Self {
        let table = &measured.report["tables"][table];
        let texts = |cells: &Value| -> Vec<String> {
            let cells = cells
                .as_array()
                .unwrap_or_else(|| panic!("no table: {measured:#?}"));
            cells
                .iter()
                .map(|cell| cell.as_str().unwrap().to_owned())
                .collect()
        };
        let heads = texts(&table["columns"]);
        let mut rows = table["rows"].as_array().unwrap().iter().map(texts);
        let row = rows.find(|row| row[0] == target);
        let row = row.unwrap_or_else(|| panic!("no row {target}: {measured:#?}"));
        Self(heads.into_iter().zip(row).collect())
    }

    fn cell(&self, head: &str) -> &str {
        let place = self.place(head);
        &self.0[place].1
    }

    /// A duration, such as `20.0 ms`.
    fn seconds(&self, head: &str) -> f64 {
        let cell = self.cell(head);
        let (value, unit) = cell.split_once(' ').unwrap();
        let unit = match unit {
            "µs" => 1e-6,
            "ms" => 1e-3,
            "s" => 1.0,
            _ => panic!("{head}: no duration in {cell:?}"),
        };
        value.parse::<f64>().unwrap() * unit
    }

    /// The ratio that stands beside a figure, without its spread.
    fn ratio(&self, head: &str) -> f64 {
        let cell = &self.0[self.place(head) + 1].1;
        let median = cell
            .split_once(' ')
            .map_or(cell.as_str(), |(median, _)| median);
        median
            .parse()
            .unwrap_or_else(|_| panic!("{head}: no ratio in {cell:?}"))
    }

    fn place(&self, head: &str) -> usize {
        let place = self.0.iter().position(|(name, _)| name == head);
        place.unwrap_or_else(|| panic!("no column {head}"))
    }
}

#[test]
fn a_target_that_is_ten_times_as_slow_is_told_as_slower() {
    let (fast, slow) = (
        Upstream::start("--delay 20ms"),
        Upstream::start("--delay 200ms"),
    );
    let measured = loadtest(&format!(
        "compare --load http --connections 1,4 {SHORT} --upstream {} --base direct \
         --only direct,slow --target slow={},{}",
        address(&fast),
        slow.url,
        slow.id()
    ));
    assert_eq!(measured.code, 0, "{measured:#?}");
    for table in 0..2 {
        let row = Row::of(&measured, table, "slow");
        // No bounds above: a busy machine makes both slower. The histogram keeps three digits.
        assert!(row.seconds("p50") >= 0.199_8, "{measured:#?}");
        assert!(row.ratio("p50") > 1.5, "{measured:#?}");
        assert!(row.ratio("rate") < 0.7, "{measured:#?}");
        // Its process is known; that of an upstream that ran already is not.
        assert!(row.cell("CPU/request").ends_with('s'), "{measured:#?}");
        let base = Row::of(&measured, table, "direct");
        assert_eq!(base.cell("CPU/request"), "–");
        assert!(base.seconds("p50") >= 0.019_98, "{measured:#?}");
        assert_eq!(base.ratio("p50"), 1.0);
        assert_eq!(base.cell("errors"), "0");
    }
    // Each level of each target is a run, with what its processes used.
    let runs = measured.report["runs"].as_array().unwrap();
    assert_eq!(runs.len(), 4, "{measured:#?}");
    let slow = runs.iter().find(|run| run["usage"]["slow"].is_object());
    assert!(slow.unwrap()["latency"]["p50"].as_f64().unwrap() >= 0.199_8);
}

#[test]
fn what_cannot_be_measured_keeps_its_row_and_its_reason() {
    let (upstream, other) = (Upstream::start(""), Upstream::start("--answer-size 5B"));
    let measured = loadtest(&format!(
        "compare --load http --connections 1 {SHORT} --upstream {} --base direct \
         --only direct,dead,other --target dead=http://{} --target other={}",
        address(&upstream),
        closed_port(),
        other.url
    ));
    assert_eq!(measured.code, 0, "{measured:#?}");
    for target in ["dead", "other"] {
        assert_eq!(Row::of(&measured, 0, target).cell("errors"), "not measured");
    }
    let dead = "dead was not measured: it fails: connect_refused";
    let other = "other was not measured: it answers 200 OK (5 bytes) where the upstream answers \
                 200 OK (16 bytes)";
    for expected in [dead, other] {
        assert!(measured.text.contains(expected), "{measured:#?}");
    }
}

#[test]
fn nothing_to_measure_is_a_failure_with_reasons() {
    let upstream = Upstream::start("");
    let measured = loadtest(&format!(
        "compare --upstream {} --only dead --target dead=http://{}",
        address(&upstream),
        closed_port()
    ));
    assert_eq!(measured.code, 1);
    let expected = "dead was not measured: it fails: connect_refused";
    assert!(measured.complaint.contains(expected), "{measured:#?}");
}

#[test]
fn a_hop_costs_what_the_upstream_does_not() {
    let directory = TempDir::new().unwrap();
    let file = directory.path().join("tables.md");
    let measured = loadtest(&format!(
        "compare --upstream sample --only direct,hop --base hop --connections 4 {SHORT} \
         --size 8MiB --markdown {}",
        file.display()
    ));
    assert_eq!(measured.code, 0, "{measured:#?}");
    // One level of small requests, a download, an upload.
    for (table, cost, speed) in [
        (0, "CPU/request", "rate"),
        (1, "CPU/GiB", "throughput"),
        (2, "CPU/GiB", "throughput"),
    ] {
        let (hop, direct) = (
            Row::of(&measured, table, "hop"),
            Row::of(&measured, table, "direct"),
        );
        assert_eq!(
            (hop.cell("errors"), direct.cell("errors")),
            ("0", "0"),
            "{measured:#?}"
        );
        assert_eq!(direct.cell(cost), "–");
        assert!(hop.cell(cost).ends_with('s'), "{measured:#?}");
        assert!(direct.ratio(speed) > 0.0);
    }
    let text = fs::read_to_string(file).unwrap();
    let expected = "| target | CPU/request | × hop | rate | × hop |";
    assert!(
        text.contains(expected) && text.contains("| direct | – | – |"),
        "{text}"
    );
}

#[test]
fn errors_of_a_target_are_counted_in_its_row() {
    let upstream = Upstream::start("--error-rate 0.5");
    let measured = loadtest(&format!(
        "compare --load http --connections 1 {SHORT} --upstream {} --only direct --base direct",
        address(&upstream)
    ));
    assert_eq!(measured.code, 0, "{measured:#?}");
    assert_ne!(Row::of(&measured, 0, "direct").cell("errors"), "0");
    assert!(
        measured.text.contains("failed with status_503"),
        "{measured:#?}"
    );
}

/// Whether a program is found where the program under test looks for it first.
fn is_installed(name: &str) -> bool {
    let path = env::var_os("PATH").unwrap_or_default();
    env::split_paths(&path).any(|directory| directory.join(name).is_file())
}

#[test]
fn our_tunnel_and_all_that_is_installed_are_started() {
    let mut only = vec!["hop", "ours"];
    only.extend(
        ["nginx", "envoy", "rathole", "wstunnel"]
            .into_iter()
            .filter(|name| is_installed(name)),
    );
    let upstream = if only.contains(&"nginx") {
        "nginx"
    } else {
        "sample"
    };
    let measured = loadtest(&format!(
        "compare --only {} --base hop --upstream {upstream} --connections 2 --rounds 1 \
         --duration 300ms --warm-up 100ms --size 2MiB --programs {}",
        only.join(","),
        programs().display()
    ));
    assert_eq!(measured.code, 0, "{measured:#?}");
    for table in 0..3 {
        for target in &only {
            let row = Row::of(&measured, table, target);
            assert_eq!(row.cell("errors"), "0", "{measured:#?}");
            let cost = if table == 0 { "CPU/request" } else { "CPU/GiB" };
            assert!(row.ratio(cost) > 0.0, "{measured:#?}");
        }
    }
    // Both ends are accounted.
    let runs = measured.report["runs"].as_array().unwrap();
    for name in only.iter().filter(|name| !["hop", "ours"].contains(name)) {
        let of_target = |run: &&Value| run["name"].as_str().unwrap().ends_with(name);
        let usage = runs.iter().find(of_target).unwrap()["usage"]
            .as_object()
            .unwrap();
        let ends = usage.iter().filter(|(role, _)| role.contains(name));
        let counts: Vec<_> = ends.map(|(_, used)| &used["processes"]).collect();
        assert_eq!(counts, [1, 1], "{name}: {measured:#?}");
    }
}

#[test]
fn what_is_not_installed_is_named() {
    let _beside_others = beside_others();
    let measured = Command::new(PROGRAM)
        .args("compare --load http --connections 1 --upstream sample --programs missing".split(' '))
        .args(SHORT.split(' '))
        .env("PATH", "missing")
        .output()
        .unwrap();
    assert!(measured.status.success(), "{measured:#?}");
    let text = String::from_utf8(measured.stdout).unwrap();
    let note = text
        .lines()
        .find(|line| line.contains("not installed, so not measured: "));
    assert!(
        note.unwrap().ends_with("envoy, rathole, wstunnel"),
        "{text}"
    );
}

#[test]
fn wrong_targets_are_refused_with_what_is_wrong() {
    let cases = [
        ("--target frp", "NAME=URL[,PID...]"),
        ("--target frp=http://a,x", "neither the id of a process"),
        (
            "--target ours=http://a",
            "there is another target of this name",
        ),
        ("--only frp", "no such target; there are direct, hop"),
        ("--base frp", "no such target; there are direct"),
        ("--connections 0", "non-zero"),
        ("--upstream somewhere", "neither nginx nor sample"),
    ];
    for (arguments, expected) in cases {
        let measured = loadtest(&format!(
            "compare --programs missing --only direct {arguments}"
        ));
        assert_ne!(measured.code, 0, "{arguments}");
        // Long lines are wrapped.
        let complaint = measured
            .complaint
            .split_whitespace()
            .collect::<Vec<_>>()
            .join(" ");
        assert!(complaint.contains(expected), "{arguments}: {complaint}");
    }
}
