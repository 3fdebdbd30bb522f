//! The access log of the program in a file: through its end, a rotation and a reload, and when the file is too slow.

use std::{
    fs::{self, OpenOptions},
    ops::Range,
    path::Path,
    process::Command,
};

use serde_json::Value;
use testkit::{
    deadline::{SOON, eventually},
    http1::RawConnection,
};

use crate::{
    rig::{PROD, connect},
    serving::{Files, Serving, VERSION},
};

/// A server with one client, whose access log is this file.
async fn logging_to(file: &Path) -> (Serving, testkit::tunnel::client::FakeClient) {
    let files = Files::new();
    let token = files.add("acme", "prod");
    let serving = files.serve(&target(file)).await;
    let (client, _feeds) = serving.client(token.expose()).await;
    (serving, client)
}

fn target(file: &Path) -> String {
    format!("access_log = \"{}\"\n", file.display())
}

/// Sends numbered requests on one connection, and checks that each is answered.
async fn get_all(serving: &Serving, numbers: Range<usize>, path: &str) {
    let mut raw = RawConnection::over(connect(serving.public).await);
    for number in numbers {
        let request = format!("GET {path}{number} HTTP/1.1\r\nhost: {PROD}.tunnels.test\r\n\r\n");
        assert_eq!(raw.ask(request).await.head.status(), 200);
    }
}

/// The numbers of the requests in a file, in its order.
fn numbers_in(file: &Path) -> Vec<usize> {
    let text = fs::read_to_string(file).unwrap_or_default();
    let lines = text.lines().map(|line| {
        let line: Value = serde_json::from_str(line).unwrap();
        let path = line["path"].as_str().unwrap();
        path.trim_start_matches("/now/").parse().unwrap()
    });
    lines.collect()
}

async fn becomes(file: &Path, numbers: Range<usize>) {
    let numbers: Vec<_> = numbers.collect();
    eventually(SOON, "the lines", async || {
        (numbers_in(file) == numbers).then_some(())
    })
    .await;
}

#[tokio::test]
async fn no_line_is_lost_when_the_program_stops() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("access.log");
    let (serving, _client) = logging_to(&file).await;
    get_all(&serving, 0..300, "/now/").await;
    serving.stop().await;
    let all: Vec<_> = (0..300).collect();
    assert_eq!(numbers_in(&file), all);
}

#[tokio::test]
async fn a_moved_file_is_opened_again_and_another_target_counts_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let name = |name: &str| folder.path().join(name);
    let (file, moved, other) = (name("access.log"), name("access.log.1"), name("other.log"));
    let (serving, _client) = logging_to(&file).await;
    get_all(&serving, 0..3, "/now/").await;
    becomes(&file, 0..3).await;
    fs::rename(&file, &moved).unwrap();
    get_all(&serving, 3..6, "/now/").await;
    becomes(&file, 3..6).await;
    assert_eq!(numbers_in(&moved), [0, 1, 2]);
    serving.set(&target(&other));
    serving.metric_becomes(VERSION, 2.0).await;
    get_all(&serving, 6..9, "/now/").await;
    becomes(&other, 6..9).await;
    assert_eq!(numbers_in(&file), [3, 4, 5]);
    // A target that cannot be opened leaves all as it is.
    serving.set(&target(&name("no folder/access.log")));
    let is_fault = |line: &Value| {
        let fault = line["fault"].as_str().unwrap_or_default();
        fault.contains("cannot open the access log")
    };
    serving.logged("the fault", is_fault).await;
    get_all(&serving, 9..12, "/now/").await;
    becomes(&other, 6..12).await;
    serving.set("access_log = \"off\"\n");
    serving.metric_becomes(VERSION, 3.0).await;
    get_all(&serving, 12..15, "/now/").await;
    serving.stop().await;
    assert_eq!(numbers_in(&other).len(), 6);
}

#[tokio::test]
async fn a_file_that_takes_nothing_delays_no_request_and_its_losses_are_counted() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("access.log");
    assert!(
        Command::new("mkfifo")
            .arg(&file)
            .status()
            .unwrap()
            .success()
    );
    // Opened for both, so that opening does not wait for the other end.
    let unread = OpenOptions::new().read(true).write(true).open(&file);
    let (serving, _client) = logging_to(&file).await;
    // More than the pipe, the lines that are being written, and the queue hold.
    let path = format!("/now/{}", "x".repeat(12_000));
    get_all(&serving, 0..500, &path).await;
    assert!(
        serving
            .metric("tunnel_server_access_log_lost_lines_total")
            .await
            > 0.0
    );
    serving.stop().await;
    drop(unread);
}
