//! Levels must grow as what is measured is known to grow.

use std::process::{Command, Output};

use serde_json::Value;
use tempfile::TempDir;

use crate::language::{PROGRAM, Upstream, alone};

/// Runs `loadtest scale`; its own flags stand before those of the scenario.
fn scale(arguments: &str) -> (Output, Value) {
    let directory = TempDir::new().unwrap();
    let json = directory.path().join("report.json");
    let mut command = Command::new(PROGRAM);
    command.arg("--json").arg(&json).arg("scale");
    let output = command
        .args(arguments.split_ascii_whitespace())
        .output()
        .unwrap();
    let report = std::fs::read(&json).unwrap_or_default();
    (output, serde_json::from_slice(&report).unwrap_or_default())
}

#[test]
fn four_connections_that_wait_do_four_times_as_much() {
    let _alone = alone();
    let upstream = Upstream::start("--delay 50ms");
    let (output, report) = scale(&format!(
        "--over connections=1,4 --rounds 3 http --url {} --duration 500ms --warm-up 100ms \
         --pid upstream={}",
        upstream.url,
        upstream.id()
    ));
    assert!(output.status.success(), "{output:#?}");
    let rates = &report["charts"]
        .as_array()
        .unwrap()
        .iter()
        .find(|chart| chart["title"] == "rate by connections");
    let points = &rates.unwrap_or_else(|| panic!("{report:#?}"))["series"][0]["points"];
    let rate = |level: usize| points[level][1].as_f64().unwrap();
    assert_eq!(
        (points[0][0].as_f64(), points[1][0].as_f64()),
        (Some(1.0), Some(4.0))
    );
    assert!((2.5..6.0).contains(&(rate(1) / rate(0))), "{report:#?}");
    let rows = report["tables"][0]["rows"].as_array().unwrap();
    assert_eq!((rows.len(), &rows[1][0]), (2, &Value::from("4")));
    let runs = report["runs"].as_array().unwrap();
    assert_eq!(runs.len(), 2, "{report:#?}");
    assert_eq!(runs[1]["seconds"].as_f64(), Some(1.5), "{report:#?}");
    assert!(runs[1]["usage"]["upstream"].is_object(), "{report:#?}");
}

#[test]
fn a_level_that_fails_is_named() {
    let (output, _) = scale("--over connections=1,x http --url http://127.0.0.1:1");
    let complaint = String::from_utf8(output.stderr).unwrap();
    assert!(
        !output.status.success() && complaint.contains('x'),
        "{complaint}"
    );
    let (output, _) = scale("--over shards=1,2 http --self-contained --programs missing");
    let complaint = String::from_utf8(output.stderr).unwrap();
    assert!(
        complaint.contains("shards 1: there is no missing/tunnel-server"),
        "{complaint}"
    );
}
