//! A fleet as its parent sees it: a process that is started, and tells how it stands.

use std::{net::SocketAddr, path::Path, time::Duration};

use crate::{
    fleet::{flags::CrowdArgs, status::Status},
    measure::usage::FLEET,
    stack::child::Child,
};

/// A fleet that has told nothing for so long is not coming back.
const SILENCE: Duration = Duration::from_secs(60);

/// What the fleet consists of.
#[derive(Clone, Copy, Debug)]
pub enum Work<'a> {
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
        work: Work<'_>,
        stable: Duration,
    ) -> anyhow::Result<Self> {
        let mut flags = vec!["fleet".to_owned(), format!("--server={server}")];
        flags.push(match work {
            Work::Clients(tokens) => format!("--tokens={}", tokens.display()),
            Work::Handshakes(count) => format!("--handshakes={count}"),
        });
        flags.push(format!("--concurrency={}", args.concurrency));
        flags.push(format!("--threads={}", args.fleet_threads));
        flags.push(format!("--stable={}", humantime::format_duration(stable)));
        let child = Child::start_own(FLEET, flags)?;
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
