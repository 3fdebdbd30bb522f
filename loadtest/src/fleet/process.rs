//! A fleet as its parent sees it: a process that is started, and tells how it stands.

use std::{env, net::SocketAddr, path::Path, process::Command, time::Duration};

use anyhow::Context as _;

use crate::{
    fleet::{FLEET, flags::CrowdArgs, status::Status},
    stack::child::Child,
};

/// A fleet that has told nothing for so long is not coming back.
const SILENCE: Duration = Duration::from_secs(60);

/// What the fleet consists of.
#[derive(Clone, Copy, Debug)]
pub enum Members<'a> {
    /// Tunnel clients with the tokens of this file.
    Clients(&'a Path),
    /// So many TLS connections, and nothing more.
    Handshakes(u64),
}

/// A running fleet. It is killed and waited for when this is dropped.
#[derive(Debug)]
pub struct Fleet {
    child: Child,
    next: u64,
}

impl Fleet {
    /// Starts one, which begins to dial at once. Sessions that lasted for `stable` let a client
    /// dial again without the waits that it had before.
    ///
    /// # Errors
    /// This program cannot be started again.
    pub fn start(
        args: &CrowdArgs,
        server: SocketAddr,
        members: Members<'_>,
        stable: Duration,
    ) -> anyhow::Result<Self> {
        let program = env::current_exe().context("cannot find this program's own file")?;
        let mut command = Command::new(program);
        command.args(["fleet", "--server", &server.to_string()]);
        match members {
            Members::Clients(tokens) => command.arg("--tokens").arg(tokens),
            Members::Handshakes(count) => command.args(["--handshakes", &count.to_string()]),
        };
        command.args(["--concurrency", &args.concurrency.to_string()]);
        command.args(["--threads", &args.fleet_threads.to_string()]);
        command.args(["--stable", &humantime::format_duration(stable).to_string()]);
        let child = Child::start(FLEET, command)?;
        Ok(Self { child, next: 0 })
    }

    /// Its process id.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// The next line; there is one every tenth of a second, and none is left out.
    ///
    /// # Errors
    /// It ended, or is silent for too long.
    pub async fn next(&mut self) -> anyhow::Result<Status> {
        let beginning = Status::beginning(self.next);
        let find = |line: &str| {
            if line.starts_with(&beginning) {
                serde_json::from_str(line).ok()
            } else {
                None
            }
        };
        let status = self.child.wait_line("how it stands", SILENCE, find).await?;
        self.next += 1;
        Ok(status)
    }
}
