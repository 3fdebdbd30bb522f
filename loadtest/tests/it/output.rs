//! What is written: for people, for programs, for a browser.

use serde_json::Value;
use tempfile::TempDir;

use crate::language::{Upstream, http};

#[test]
fn the_json_has_every_figure() {
    let upstream = Upstream::start("--error-rate 0.5");
    let measured = http(&upstream.url, "--connections 1");
    let report = &measured.report;
    let fields = "scenario title started version machine settings runs tables charts notes";
    assert_fields(report, fields);
    assert_eq!(report["scenario"], "http");
    assert_fields(&report["machine"], "cores processor system");
    assert_fields(&report["settings"][0], "name value");
    let run = "name seconds completed rate bytes_up bytes_down latency errors usage \
        cpu_us_per_request timeline generator_bound";
    assert_fields(measured.run(), run);
    let latency = "count min mean deviation p50 p90 p99 p999 max curve";
    assert_fields(&measured.run()["latency"], latency);
    assert_fields(
        &measured.run()["timeline"][0],
        "at rate error_rate bytes_per_second p50 p99",
    );
    assert_fields(
        &measured.run()["usage"]["load generator"],
        "processes cpu_seconds peak_rss rss",
    );
    for chart in report["charts"].as_array().unwrap() {
        assert_fields(chart, "title x y series");
        assert_fields(&chart["x"], "label unit scale");
        assert_fields(&chart["series"][0], "name points");
    }
    // The figures are those of the text.
    let failed = measured.errors("status_503");
    assert!(failed > 0 && measured.completed().abs_diff(failed) <= 1);
    let line = measured
        .text
        .lines()
        .find(|line| line.contains("status_503"));
    let share = failed as f64 * 100.0 / (measured.completed() + failed) as f64;
    let figures: String = line.unwrap().split(',').collect();
    let expected = format!("{failed}  {share:.2} %");
    assert!(figures.ends_with(&expected), "{}", measured.text);
}

#[track_caller]
fn assert_fields(object: &Value, expected: &str) {
    let mut found: Vec<_> = object
        .as_object()
        .unwrap()
        .keys()
        .map(String::as_str)
        .collect();
    let mut expected: Vec<_> = expected.split_ascii_whitespace().collect();
    found.sort_unstable();
    expected.sort_unstable();
    assert_eq!(found, expected);
}

#[test]
fn the_page_is_one_file_that_fetches_nothing() {
    let upstream = Upstream::start("");
    let directory = TempDir::new().unwrap();
    let page = directory.path().join("report.html");
    let measured = http(
        &upstream.url,
        &format!("--rate 50 --report {}", page.display()),
    );
    assert_eq!(measured.code, 0, "{measured:#?}");
    let page = std::fs::read_to_string(page).unwrap();
    assert!(page.to_ascii_lowercase().contains("<!doctype html>"));
    assert!(page.contains("http requests to"), "{page}");
    for fetched in ["src=\"http", "href=\"http", "@import", "url(http"] {
        assert!(!page.contains(fetched), "{fetched}");
    }
}

#[test]
fn progress_goes_to_standard_error_and_can_be_silenced() {
    let upstream = Upstream::start("");
    let told = http(&upstream.url, "--rate 20");
    assert!(!told.complaint.is_empty());
    let quiet = http(&upstream.url, "--rate 20 --quiet");
    assert_eq!(quiet.complaint, "");
    assert!(quiet.text.contains("p99"), "{}", quiet.text);
}

#[test]
fn a_file_that_cannot_be_written_is_told_before_measuring() {
    let upstream = Upstream::start("");
    let measured = http(&upstream.url, "--report missing/directory/report.html");
    assert_eq!(
        (measured.code, measured.text.as_str()),
        (1, ""),
        "{measured:#?}"
    );
    assert!(
        measured.complaint.contains("missing/directory"),
        "{measured:#?}"
    );
}
