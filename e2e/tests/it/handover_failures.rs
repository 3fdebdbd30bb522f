//! An upgrade in which the new process dies or stands still, at each step: the old process serves on.

use std::{fs, os::unix::fs::PermissionsExt, path::PathBuf};

use e2e::{
    deadline::{SOON, eventually},
    load::{Load, Plan},
    program::{Ended, Signal, built},
    stranger::Stranger,
    system::{Options, System},
    upstream::Upstream,
};
use rustix::process::{Pid, kill_process};
use serde_json::Value;
use tempfile::TempDir;

/// What the new process does with its standard input, which is the channel to the old one, before it dies or stands still.
const STEPS: [(&str, &str); 5] = [
    ("before it is ready", ""),
    ("when it is ready", "ready"),
    ("when it is to have the tunnel clients", "ready; order"),
    (
        "when it has the tunnel clients",
        "ready; order; say '\"tunnels\"'",
    ),
    (
        "when it is to have the platform clients",
        "ready; order; say '\"tunnels\"'; order",
    ),
];

/// The functions of these steps. Nothing else is read, and nothing accepted.
const FUNCTIONS: &str = r#"
say() { printf '%s\n' "$1" >&0; }
ready() { say '{"ready":{"version":"9.9.9","reports":true}}'; }
order() { read -r _; }
"#;

/// A system whose server takes this program for its own, whatever is in that file.
struct Replaceable {
    system: System,
    program: PathBuf,
    /// The token of a runtime without a client.
    other: PathBuf,
    _directory: TempDir,
}

impl Replaceable {
    async fn start(upstream: &Upstream) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let program = directory.path().join("tunnel-server");
        let options = Options::to(&upstream.h2c_url()).and("demo", "other", &upstream.url());
        let options = options.server_flags(&["--grace-period", "4s"]);
        let mut options = options.with_admin_token();
        let name = format!("exec -a {} \"$0\" \"$@\"", program.display());
        options.server.before = ["bash", "-c", &name].map(str::to_owned).to_vec();
        let mut system = System::with(options).await;
        system.kill_client("demo-other");
        Self {
            other: system.token_of("demo-other"),
            system,
            program,
            _directory: directory,
        }
    }

    /// A tunnel client of the other runtime, which does not do what it is asked to.
    async fn stranger(&self) -> Stranger {
        let stranger = Stranger::dial(&self.system.tunnel_entry(), &self.other).await;
        stranger.expect("the tunnel listener accepts")
    }

    fn put(&self, script: &str) {
        // Replaced as a whole, since the older file may be running.
        let next = self.program.with_extension("next");
        fs::write(&next, format!("#!/usr/bin/env bash\n{script}\n")).unwrap();
        fs::set_permissions(&next, fs::Permissions::from_mode(0o755)).unwrap();
        fs::rename(next, &self.program).unwrap();
    }

    fn put_good(&self) {
        let program = built("tunnel-server");
        self.put(&format!("exec {} \"$@\"", program.display()));
    }

    async fn upgrade(&mut self) -> Ended {
        let token = self.system.directory().join("admin.token");
        self.system.server_mut().upgrade(&token).await
    }

    async fn status(&self) -> Value {
        let status = self.system.server().admin().get("/api/v1/status").await;
        serde_json::from_str(status.text()).unwrap()
    }
}

#[tokio::test]
async fn a_new_process_that_fails_at_any_step_leaves_the_old_one_serving() {
    let upstream = Upstream::start().await;
    let mut it = Replaceable::start(&upstream).await;
    let load = Load::start(it.system.entry(), &Plan::every_kind());
    load.wait_progress(10).await;
    let before = it.status().await["pid"].clone();
    for (when, steps) in STEPS {
        for (what, end) in [("dies", "exit 3"), ("stands still", "exec sleep 600")] {
            if steps.is_empty() && what == "stands still" {
                // As long as a start may take.
                continue;
            }
            load.mark(&format!("{what} {when}"));
            it.put(&format!("{FUNCTIONS}{steps}\n{end}"));
            let ended = it.upgrade().await;
            assert_eq!(ended.code, Some(1), "{what} {when}: {ended:?}");
            assert!(ended.err.contains("continues as before"), "{ended:?}");
            assert_eq!(it.status().await["pid"], before);
            load.wait_progress(5).await;
            drop(it.stranger().await);
        }
    }
    it.put_good();
    load.mark("a good one");
    assert_eq!(it.upgrade().await.code, Some(0));
    assert_ne!(it.status().await["pid"], before);
    load.wait_progress(5).await;
    load.finish().await.assert_none_failed();
}

/// A new process that serves tunnel clients already. One of them does not move, so that the platform clients do not either.
#[tokio::test]
async fn clients_that_have_moved_come_back_from_a_new_process_that_is_lost() {
    for signal in [Signal::KILL, Signal::STOP] {
        let upstream = Upstream::start().await;
        let mut it = Replaceable::start(&upstream).await;
        let _stays = it.stranger().await;
        let load = Load::start(it.system.entry(), &Plan::every_kind());
        load.wait_progress(10).await;
        let sessions = it
            .system
            .server()
            .admin()
            .metric("tunnel_server_sessions", &[])
            .await;
        it.put_good();
        it.system.server().program().signal(Signal::USR2);
        let log = it.system.server().program();
        let line = log.wait_for_line("the new process is ready", SOON).await;
        let line: Value = serde_json::from_str(&line).unwrap();
        let process = line["process"].as_u64().unwrap();
        log.wait_for_line("tunnel clients move here", SOON).await;
        let client = it.system.client().program();
        client
            .wait_for_line("the server drains a session", SOON)
            .await;
        let process = i32::try_from(process).ok().and_then(Pid::from_raw).unwrap();
        kill_process(process, signal).unwrap();
        load.mark("the new process is lost");
        let failed = async || {
            let upgrade = it.status().await["upgrade"].clone();
            (upgrade["state"] == "failed").then_some(upgrade["reason"].clone())
        };
        let reason = eventually(SOON, "the upgrade's failure", failed).await;
        eprintln!("{reason}");
        eventually(SOON, "the sessions to be back", async || {
            let admin = it.system.server().admin();
            let now = admin.metric("tunnel_server_sessions", &[]).await;
            (now == sessions).then_some(())
        })
        .await;
        load.wait_progress(10).await;
        assert_eq!(it.upgrade().await.code, Some(0));
        load.wait_progress(10).await;
        load.finish().await.assert_none_failed();
    }
}
