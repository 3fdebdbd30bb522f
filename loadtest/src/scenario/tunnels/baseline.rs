//! What the TLS library alone reaches on this machine, dialled by the same kind of fleet.

use std::time::Duration;

use tokio::time::sleep;

use crate::{
    fleet::{
        flags::CrowdArgs,
        process::{Fleet, Work},
        watch::Watch,
    },
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
) -> anyhow::Result<Option<Connected>> {
    if wanted == 0 {
        return Ok(None);
    }
    let Running {
        child: sink,
        address,
    } = start(args, files).await?;
    let fleet = Fleet::start(args, address, Work::Handshakes(wanted), Duration::ZERO)?;
    let mut watch = Watch::new(fleet, sink.id());
    let wanted = (wanted, watch.server_rss());
    let connecting = connect::connect(&mut watch, ALONE, wanted, args, context);
    let mut connected = Box::pin(connecting).await?;
    watch.meanwhile(sleep(SETTLE)).await?;
    connected.settled = watch.server_rss();
    Ok(Some(connected))
}

async fn start(args: &CrowdArgs, files: &Files) -> anyhow::Result<Running> {
    let flags = [
        "tls-sink".to_owned(),
        format!("--threads={}", args.programs.shards.max(1)),
        format!("--cert={}", files.certificate().display()),
        format!("--key={}", files.key().display()),
    ];
    Running::start_own(ALONE, flags).await
}
