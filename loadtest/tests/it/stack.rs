//! The programs that `--self-contained` starts: measured apart, and never left behind.

use std::{
    fs,
    path::Path,
    process::{Command, Stdio},
    thread,
    time::Duration,
};

use tokio::time::Instant;

use crate::language::{PROGRAM, beside_others, loadtest, programs};

#[test]
fn a_tunnel_is_started_and_measured_by_role() {
    let programs = programs();
    let measured = loadtest(&format!(
        "http --self-contained --programs {} --warm-up 0s --duration 500ms --connections 4 \
         --error-rate 0.5",
        programs.display()
    ));
    assert_eq!(measured.code, 0, "{measured:#?}");
    let usage = &measured.run()["usage"];
    for role in [
        "load generator",
        "tunnel client",
        "tunnel server",
        "upstream",
    ] {
        assert!(
            usage[role]["cpu_seconds"].as_f64().unwrap() > 0.0,
            "{measured:#?}"
        );
    }
    assert!(measured.run()["cpu_us_per_request"].as_f64().unwrap() > 0.0);
    // The answers came from the upstream behind the tunnel.
    let (completed, failed) = (measured.completed(), measured.errors("status_503"));
    assert!(
        completed > 0 && completed.abs_diff(failed) <= 4,
        "{measured:#?}"
    );
}

#[test]
fn missing_programs_are_told_with_what_to_do() {
    let measured = loadtest("http --self-contained --programs missing/directory");
    assert_eq!(measured.code, 1);
    for expected in ["missing/directory/tunnel-server", "cargo build --release"] {
        assert!(measured.complaint.contains(expected), "{measured:#?}");
    }
}

#[test]
fn a_program_that_does_not_start_is_quoted() {
    let measured = loadtest(&format!(
        "http --self-contained --programs {} --server-flag=--no-such-flag",
        programs().display()
    ));
    assert_eq!(measured.code, 1);
    assert!(measured.complaint.contains("no-such-flag"), "{measured:#?}");
}

#[test]
fn no_program_is_left_when_it_is_interrupted() {
    let programs = programs();
    let _beside_others = beside_others();
    for signal in ["INT", "TERM"] {
        let mut loadtest = Command::new(PROGRAM)
            .args(["http", "--self-contained", "--duration", "5m", "--programs"])
            .arg(&programs)
            .stderr(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        // Upstream, server, client.
        let children = wait_children(loadtest.id(), 3);
        let id = loadtest.id().to_string();
        let kill = Command::new("kill").args(["-s", signal, &id]).status();
        assert!(kill.unwrap().success());
        assert_eq!(loadtest.wait().unwrap().code(), Some(1));
        for child in children {
            assert!(
                !Path::new(&format!("/proc/{child}")).exists(),
                "{child} lives"
            );
        }
    }
}

#[test]
fn its_own_servers_end_with_it_even_when_it_is_killed() {
    let _beside_others = beside_others();
    let mut loadtest = Command::new(PROGRAM)
        .args(["compare", "--only", "direct,hop", "--upstream", "sample"])
        .args(["--duration", "5m", "--connections", "1"])
        .stderr(Stdio::null())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    // Upstream and hop.
    let children = wait_children(loadtest.id(), 2);
    loadtest.kill().unwrap();
    loadtest.wait().unwrap();
    // One that nobody has waited for yet has no command line any more.
    let lives = |child: &u32| {
        let line = fs::read(format!("/proc/{child}/cmdline"));
        line.is_ok_and(|line| !line.is_empty())
    };
    until("their end", || (!children.iter().any(lives)).then_some(()));
}

/// Waits until a process has so many children, and returns their ids.
fn wait_children(parent: u32, count: usize) -> Vec<u32> {
    until(&format!("{count} children"), || {
        let children = children(parent);
        (children.len() == count).then_some(children)
    })
}

/// Asks until there is a value.
fn until<T>(what: &str, ask: impl Fn() -> Option<T>) -> T {
    let until = Instant::now() + Duration::from_secs(20);
    loop {
        if let Some(value) = ask() {
            return value;
        }
        assert!(Instant::now() < until, "waited in vain for {what}");
        thread::sleep(Duration::from_millis(20));
    }
}

fn children(parent: u32) -> Vec<u32> {
    let processes = fs::read_dir("/proc").unwrap().flatten();
    let processes = processes.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let is_child = |pid: &u32| {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        let fields = stat.rsplit_once(')').map(|(_, fields)| fields);
        let ppid = fields.and_then(|fields| fields.split_ascii_whitespace().nth(1));
        ppid == Some(parent.to_string().as_str())
    };
    processes.filter(is_child).collect()
}
