//! Many tunnels of a real tunnel server, few of them here: each is counted, and comes back.

use std::collections::BTreeMap;

use serde_json::Value;
use tempfile::TempDir;

use crate::language::{Measured, Process, loadtest, programs};

/// Runs a scenario with this crowd against the real programs.
pub(crate) fn crowd(arguments: &str) -> Measured {
    let programs = programs();
    loadtest(&format!("{arguments} --programs {}", programs.display()))
}

/// The run of this name.
fn run<'a>(measured: &'a Measured, name: &str) -> &'a Value {
    let runs = measured.report["runs"].as_array().unwrap();
    let run = runs.iter().find(|run| run["name"] == name);
    run.unwrap_or_else(|| panic!("no run {name}: {measured:#?}"))
}

/// The rows of the table whose title begins so: name to first figure.
pub(crate) fn table(measured: &Measured, title: &str) -> BTreeMap<String, String> {
    let tables = measured.report["tables"].as_array().unwrap();
    let table = tables.iter().find(|table| {
        let its = table["title"].as_str().unwrap();
        its.starts_with(title)
    });
    let table = table.unwrap_or_else(|| panic!("no table {title}: {measured:#?}"));
    let cell = |row: &Value, column: usize| row[column].as_str().unwrap().to_owned();
    let rows = table["rows"].as_array().unwrap();
    rows.iter()
        .map(|row| (cell(row, 0), cell(row, 1)))
        .collect()
}

fn is_clean(run: &Value) -> bool {
    run["errors"].as_object().unwrap().is_empty()
}

#[test]
fn idle_tunnels_are_counted_and_carry_requests() {
    let measured = crowd(
        "tunnels --tunnels 30 --settle 200ms --idle 500ms --real-client --spread-load \
         --spread-duration 1s --rounds 1 --connections 4 --fleet-threads 2",
    );
    assert_eq!(measured.code, 0, "{measured:#?}");
    let connecting = run(&measured, "tunnels connect");
    assert_eq!(connecting["completed"], 30, "{measured:#?}");
    assert_eq!(connecting["latency"]["count"], 30, "{measured:#?}");
    assert!(is_clean(connecting), "{measured:#?}");
    for role in ["tunnel server", "fleet"] {
        let usage = &connecting["usage"][role];
        assert_eq!(usage["processes"], 1, "{measured:#?}");
        assert!(
            usage["peak_rss"].as_u64().unwrap() > 1_000_000,
            "{measured:#?}"
        );
    }
    // The same number of handshakes, in two halves.
    for half in ["TLS alone, first half", "TLS alone, second half"] {
        let alone = run(&measured, half);
        assert_eq!(alone["completed"], 15, "{measured:#?}");
        assert!(is_clean(alone), "{measured:#?}");
    }
    // Each runtime is held by its own client: else a request would find nobody.
    for load in ["over 30 tunnels", "over one tunnel"] {
        let load = run(&measured, load);
        assert!(is_clean(load), "{measured:#?}");
        let completed = load["completed"].as_u64().unwrap();
        assert!(completed > 30, "{measured:#?}");
        // Each is answered with two bytes.
        assert_eq!(load["bytes_down"], 2 * completed, "{measured:#?}");
    }
    let memory = table(&measured, "Memory");
    assert!(
        memory["one real tunnel client at rest"].ends_with("MiB"),
        "{measured:#?}"
    );
    assert_eq!(table(&measured, "Connecting")["connected"], "30");
    table(&measured, "CPU at rest");
    let notes = measured.report["notes"].as_array().unwrap();
    for complaint in ["ended though", "did not answer", "that failed"] {
        let is_it = |note: &Value| note["text"].as_str().unwrap().contains(complaint);
        assert!(!notes.iter().any(is_it), "{measured:#?}");
    }
}

#[test]
fn the_baseline_can_be_left_out() {
    let measured = crowd("tunnels --tunnels 5 --settle 0s --idle 200ms --tls-baseline=false");
    assert_eq!(measured.code, 0, "{measured:#?}");
    assert_eq!(measured.run()["completed"], 5, "{measured:#?}");
}

/// All come at once to the gate that a server has by itself, and all are served again.
fn assert_all_are_served_again(tunnels: usize) {
    let storm = format!("storm --tunnels {tunnels} --settle 100ms --outage 500ms --limit 3m");
    let measured = crowd(&storm);
    assert_eq!(measured.code, 0, "{measured:#?}");
    let back = run(&measured, "coming back");
    assert_eq!(back["completed"], tunnels, "{measured:#?}");
    let answered = &table(&measured, "The storm")["runtimes that answered afterwards"];
    assert_eq!(
        answered.replace(',', ""),
        tunnels.to_string(),
        "{measured:#?}"
    );
    let times = table(&measured, "Time until tunnels are served again");
    eprintln!("{tunnels} tunnels: {times:?}, {:?}", back["errors"]);
}

#[test]
fn hundreds_that_lost_their_server_are_all_served_again() {
    assert_all_are_served_again(700);
}

#[test]
#[ignore = "takes more than a minute without optimisation"]
fn two_thousand_that_lost_their_server_are_all_served_again() {
    assert_all_are_served_again(2_000);
}

#[test]
fn a_crowd_that_lost_its_server_comes_back() {
    let measured = crowd("storm --tunnels 40 --settle 100ms --outage 500ms --limit 2m");
    assert_eq!(measured.code, 0, "{measured:#?}");
    let back = run(&measured, "coming back");
    assert_eq!(back["completed"], 40, "{measured:#?}");
    // Nobody was served while there was no server.
    assert!(back["seconds"].as_f64().unwrap() > 0.5, "{measured:#?}");
    // The new server knows all tokens; whoever failed found nobody there, or was cut in between.
    let errors = back["errors"].as_object().unwrap();
    let refused = errors.keys().any(|kind| kind.starts_with("status_"));
    assert!(!refused, "{measured:#?}");
    assert_eq!(
        table(&measured, "The storm")["runtimes that answered afterwards"],
        "40"
    );
    let times = table(&measured, "Time until tunnels are served again");
    assert_eq!(times.len(), 4, "{measured:#?}");
    assert!(
        times.values().all(|time| time.ends_with('s')),
        "{measured:#?}"
    );
    // The new server's own time, not what is left when the old one's is taken from it.
    let cpu = &table(&measured, "The storm")["server CPU, most within one second"];
    assert_ne!(cpu, "0 % of a core", "{measured:#?}");
    // The line of those that are served rises from nobody to all.
    let charts = measured.report["charts"].as_array().unwrap();
    let served = charts
        .iter()
        .find(|chart| chart["title"] == "Served again")
        .unwrap();
    let points = served["series"][0]["points"].as_array().unwrap();
    let (first, last) = (points.first().unwrap(), points.last().unwrap());
    assert!(first[1].as_f64().unwrap() < 40.0, "{measured:#?}");
    assert_eq!(
        last[1].as_f64().unwrap().round() as u64,
        40,
        "{measured:#?}"
    );
}

#[test]
fn a_server_that_does_not_answer_is_given_up_and_dialled_again() {
    let directory = TempDir::new().unwrap();
    let file = |name: &str, text: &str| {
        let path = directory.path().join(name);
        std::fs::write(&path, text).unwrap();
        path.display().to_string()
    };
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let cert = file("cert.pem", &made.cert.pem());
    let key = file("key.pem", &made.signing_key.serialize_pem());
    let tokens = file("tokens", "one\ntwo\n");
    // It does the TLS handshake, and then nothing.
    let mut sink = Process::start(["tls-sink", "--cert", &cert, "--key", &key]);
    let url = sink.url();
    let address = url.strip_prefix("http://").unwrap();
    let mut fleet = Process::start([
        "fleet",
        "--server",
        address,
        "--tokens",
        &tokens,
        "--timeout",
        "100ms",
    ]);
    let failed = |status: &Value, kind: &str| status["failures"][kind].as_u64().unwrap_or(0);
    let status = fleet.line(|line| {
        let status: Value = serde_json::from_str(line).unwrap();
        (failed(&status, "upgrade_timeout") >= 3).then_some(status)
    });
    assert!(status["handshakes"].as_u64().unwrap() >= 3, "{status}");
    assert_eq!(
        (&status["up"], &status["connected"]),
        (&0.into(), &0.into()),
        "{status}"
    );
    drop(sink);
    fleet.line(|line| {
        let status: Value = serde_json::from_str(line).unwrap();
        (failed(&status, "connect_refused") >= 1).then_some(())
    });
}

#[test]
fn missing_programs_are_told() {
    let missing = loadtest("storm --programs missing/directory");
    assert_eq!(missing.code, 1);
    assert!(
        missing
            .complaint
            .contains("missing/directory/tunnel-server"),
        "{missing:#?}"
    );
}
