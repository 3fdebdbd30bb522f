//! What the TLS library alone reaches on this machine, dialled by the same kind of fleet.

use std::{env, net::SocketAddr, process::Command, time::Duration};

use anyhow::Context as _;
use tokio::time::sleep;

use crate::{
    fleet::{
        flags::CrowdArgs,
        process::{Fleet, Members},
        watch::Watch,
    },
    measure::usage::resident,
    scenario::{
        Context,
        tunnels::connect::{self, Connected},
    },
    stack::{child::Child, files::Files},
};

/// The role of the process that only does handshakes.
pub(super) const ALONE: &str = "TLS alone";

/// A process that has not said where it listens by then never will.
const START_LIMIT: Duration = Duration::from_secs(20);

/// Before memory is read, so that what handshakes needed is given back.
const SETTLE: Duration = Duration::from_secs(1);

/// Starts a sink and a fleet, and gives what connecting came to, and the sink's memory afterwards.
/// Nothing when there is nobody to connect.
///
/// # Errors
/// Either does not start, or nobody could connect.
pub(super) async fn measure(
    args: &CrowdArgs,
    files: &Files,
    wanted: u64,
    context: &Context,
) -> anyhow::Result<Option<(Connected, u64)>> {
    if wanted == 0 {
        return Ok(None);
    }
    let (sink, address) = start(args, files).await?;
    let before = resident(sink.id()).unwrap_or(0);
    let fleet = Fleet::start(args, address, Members::Handshakes(wanted), Duration::ZERO)?;
    let mut watch = Watch::new(fleet, sink.id());
    let connecting = connect::connect(&mut watch, ALONE, (wanted, before), args, context);
    let connected = Box::pin(connecting).await?;
    watch.meanwhile(sleep(SETTLE)).await?;
    let settled = resident(sink.id()).unwrap_or(0);
    // The fleet first: it must not dial again when the sink goes.
    drop(watch);
    drop(sink);
    Ok(Some((connected, settled)))
}

async fn start(args: &CrowdArgs, files: &Files) -> anyhow::Result<(Child, SocketAddr)> {
    let program = env::current_exe().context("cannot find this program's own file")?;
    let mut command = Command::new(program);
    command.args(["tls-sink", "--listen", "127.0.0.1:0"]);
    command.args(["--threads", &args.shards.max(1).to_string()]);
    command.arg("--cert").arg(files.certificate());
    command.arg("--key").arg(files.key());
    let sink = Child::start(ALONE, command)?;
    let find = |line: &str| line.strip_prefix("listening on ")?.parse().ok();
    let address = sink
        .wait_line("where it listens", START_LIMIT, find)
        .await?;
    Ok((sink, address))
}
