//! What the TLS library alone reaches on this machine, dialled by the same kind of fleet.

use std::time::Duration;

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
    stack::{Running, files::Files},
};

/// The role of the process that only does handshakes.
pub(super) const ALONE: &str = "TLS alone";

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
    let Running {
        child: sink,
        address,
    } = start(args, files).await?;
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

async fn start(args: &CrowdArgs, files: &Files) -> anyhow::Result<Running> {
    let flags = [
        "tls-sink".to_owned(),
        format!("--threads={}", args.shards.max(1)),
        format!("--cert={}", files.certificate().display()),
        format!("--key={}", files.key().display()),
    ];
    Running::start_own(ALONE, flags).await
}
