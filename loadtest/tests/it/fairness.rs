//! What runs beside small requests must be there, and who starves must be counted.

use crate::language::{Measured, Upstream, loadtest, programs};

const SHORT: &str = "--rounds 1 --duration 600ms --warm-up 200ms --bulk-streams 2 --slow-readers 2";

/// The row of a phase: phase, p50, ratio, p99, ratio, max, answered, starved, not sent,
/// other errors, beside.
fn row(measured: &Measured, phase: &str) -> Vec<String> {
    let rows = measured.report["tables"][0]["rows"].as_array();
    let rows = rows.unwrap_or_else(|| panic!("no table: {measured:#?}"));
    let row = rows.iter().find(|row| row[0] == phase);
    let row = row.unwrap_or_else(|| panic!("no phase {phase}: {measured:#?}"));
    let cells = row.as_array().unwrap().iter();
    cells
        .map(|cell| cell.as_str().unwrap().to_owned())
        .collect()
}

#[test]
fn each_phase_has_its_load_beside() {
    let upstream = Upstream::start("");
    let url = &upstream.url;
    let measured = loadtest(&format!(
        "fairness --url {url} --neighbour {url} {SHORT} --rate 100 --bulk-rate 1MiB"
    ));
    assert_eq!(measured.code, 0, "{measured:#?}");
    assert_eq!(
        measured.report["runs"].as_array().unwrap().len(),
        6,
        "{measured:#?}"
    );
    let unloaded = row(&measured, "unloaded");
    // What the processes used is told, with the cost of those that ran alone.
    let used = &measured.report["runs"][0]["usage"]["load generator"];
    assert!(used["cpu_seconds"].as_f64().unwrap() > 0.0, "{measured:#?}");
    assert_eq!((unloaded[4].as_str(), unloaded[10].as_str()), ("1.00", "–"));
    for phase in ["paced downloads", "paced downloads, neighbour"] {
        let row = row(&measured, phase);
        // All that was due is there, however busy the machine was.
        let [answered, starved, unsent, others] =
            [6, 7, 8, 9].map(|cell| row[cell].parse::<u32>().unwrap());
        assert_eq!(
            (answered + unsent, starved, others),
            (60, 0, 0),
            "{measured:#?}"
        );
        // Two downloads of 1 MiB a second: a busy machine makes it less, never more.
        let (beside, unit) = row[10].split_once(' ').unwrap();
        let unit = match unit {
            "B/s" => 1.0,
            "KiB/s" => 1024.0,
            "MiB/s" => 1024.0 * 1024.0,
            other => panic!("{other}: {measured:#?}"),
        };
        let beside = beside.parse::<f64>().unwrap() * unit / 1024.0 / 1024.0;
        assert!(beside > 0.0 && beside < 4.0, "{measured:#?}");
    }
    let unthrottled = &row(&measured, "unthrottled downloads")[10];
    assert!(
        unthrottled.ends_with(" MiB/s") || unthrottled.ends_with(" GiB/s"),
        "{measured:#?}"
    );
    assert_eq!(row(&measured, "slow readers")[7], "0", "{measured:#?}");
}

#[test]
fn who_gets_no_answer_is_starved() {
    let upstream = Upstream::start("--delay 2s");
    let measured = loadtest(&format!(
        "fairness --url {} {SHORT} --connections 16 --rate 20 --timeout 200ms",
        upstream.url
    ));
    // 12 requests were due in each phase, and none was answered.
    let [answered, starved, unsent, others] =
        [6, 7, 8, 9].map(|cell| row(&measured, "unloaded")[cell].parse::<u32>().unwrap());
    assert_eq!(
        (answered, starved + unsent, others),
        (0, 12, 0),
        "{measured:#?}"
    );
    assert!(starved > 0, "{measured:#?}");
    assert!(
        measured.text.contains("no neighbour was measured"),
        "{measured:#?}"
    );
}

#[test]
fn a_self_contained_run_has_a_neighbour() {
    let measured = loadtest(&format!(
        "fairness --self-contained --direct --programs {} {SHORT} --rate 50 --bulk-rate 1MiB",
        programs().display()
    ));
    assert_eq!(measured.code, 0, "{measured:#?}");
    for phase in [
        "unloaded",
        "paced downloads, neighbour",
        "slow readers",
        "unloaded, direct",
    ] {
        let row = row(&measured, phase);
        assert_ne!(row[6], "0", "{measured:#?}");
        assert_eq!(
            (row[7].as_str(), row[9].as_str()),
            ("0", "0"),
            "{measured:#?}"
        );
    }
    assert_ne!(row(&measured, "paced downloads")[4], "–");
    assert!(
        !measured
            .text
            .contains("downloads beside the small requests failed"),
        "{measured:#?}"
    );
}

#[test]
fn a_neighbour_of_a_tunnel_at_its_limits_has_no_error() {
    let measured = loadtest(&format!(
        "fairness --self-contained --limits --programs {} {SHORT} --rate 50",
        programs().display()
    ));
    assert_eq!(measured.code, 0, "{measured:#?}");
    let ways = [
        "downloads above its rate",
        "uploads above its rate",
        "requests above its rate",
        "open exchanges above its number",
        "WebSockets above their number",
        "heads above their size",
    ];
    for way in ways {
        let row = row(&measured, &format!("{way}, neighbour"));
        assert_ne!(row[6], "0", "{measured:#?}");
        assert_eq!((&*row[7], &*row[9]), ("0", "0"), "{measured:#?}");
    }
    // What is shaped is late, what is too much is refused.
    for way in &ways[2..] {
        let quiet = format!("{way}, neighbour: beside it 0 were refused");
        assert!(!measured.text.contains(&quiet), "{measured:#?}");
    }
}
