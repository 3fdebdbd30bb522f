//! The connecting of many clients to one server, measured; and how fast they connect to the TLS library alone.

use std::time::Duration;

use anyhow::bail;
use tokio::time::sleep;

use crate::{
    fleet::{
        flags::FleetArgs,
        status::Status,
        watch::{ConnectPhase, FleetWatch, FleetWork, kinds, peak_rate, thinned},
    },
    measure::usage::Meter,
    progress::Progress,
    report::Run,
    stack::{Running, files::Files},
};

/// The role of the process that only does handshakes.
pub(super) const ALONE: &str = "TLS alone";

/// Before memory is read, so that what handshakes needed is given back.
const SETTLE: Duration = Duration::from_secs(1);

/// What the connecting of one fleet to one server showed.
#[derive(Debug)]
pub(super) struct Connected {
    pub(super) run: Run,
    /// Most connected within one second.
    pub(super) peak_rate: f64,
    /// Processor time of the fleet, as a share of its threads' time.
    pub(super) fleet_share: f64,
    /// Resident memory of the server before the first client.
    pub(super) before: u64,
    /// The highest meanwhile.
    pub(super) peak: u64,
    /// And once all was quiet again.
    pub(super) settled: u64,
    pub(super) all: bool,
    pub(super) over_time: Vec<(f64, f64)>,
    /// Resident memory that came with the clients, over their number.
    pub(super) memory: Vec<(f64, f64)>,
}

/// Several of them together, as if they were one.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ConnectedSum {
    pub(super) connected: u64,
    pub(super) seconds: f64,
    pub(super) peak_rate: f64,
    pub(super) fleet_share: f64,
    server_cpu: f64,
    memory: f64,
}

impl ConnectedSum {
    /// The sum of all parts; none if nothing was connected.
    pub(super) fn of(parts: &[Connected]) -> Option<Self> {
        let mut sum = Self::default();
        for part in parts {
            sum.connected += part.run.completed;
            sum.seconds += part.run.seconds;
            let server = part.run.usage.get(&part.run.name);
            sum.server_cpu += server.map_or(0.0, |server| server.cpu_seconds);
            sum.peak_rate = sum.peak_rate.max(part.peak_rate);
            sum.fleet_share += part.fleet_share / parts.len() as f64;
            sum.memory += part.settled.saturating_sub(part.before) as f64;
        }
        (sum.connected > 0).then_some(sum)
    }

    pub(super) fn rate(&self) -> f64 {
        self.connected as f64 / self.seconds
    }

    pub(super) fn cpu_each(&self) -> f64 {
        self.server_cpu / self.connected as f64
    }

    pub(super) fn memory_each(&self) -> f64 {
        self.memory / self.connected as f64
    }
}

/// Waits until as many as wanted are connected, or the limit is over. `before` is the memory of the server.
///
/// # Errors
/// The fleet ended, or no client was connected.
pub(super) async fn connect(
    watch: &mut FleetWatch,
    role: &str,
    (wanted, before): (u64, u64),
    args: &FleetArgs,
    progress: &Progress,
) -> anyhow::Result<Connected> {
    let meter = Meter::start(watch.roles(role));
    let start = watch.next().await?.at;
    let shown = (role, progress);
    let all = watch.until_up(wanted, args.limit, shown).await?;
    let usage = meter.finish();
    let samples = watch.take();
    let last = samples.last();
    if last.is_none_or(|status| status.connected == 0) {
        let failures = last.map_or_else(String::new, |status| kinds(&status.failures));
        let limit = args.limit;
        bail!("no connection to the {role} within {limit:?}: {failures}");
    }
    let phase = ConnectPhase {
        role,
        before: &Status::default(),
        since: start,
        metered_since: start,
        fleet_threads: args.fleet_threads,
    };
    let (run, fleet_share) = samples.run(phase, usage);
    let over_time = samples.over_time(start, |status| status.connected);
    let memory = samples.memory_by_up().into_iter();
    let memory = memory.map(|(up, rss)| (up, (rss - before as f64).max(0.0)));
    Ok(Connected {
        peak_rate: peak_rate(&over_time, 1.0),
        fleet_share,
        before,
        peak: samples.peak_rss(),
        settled: 0,
        all,
        over_time: thinned(&over_time),
        memory: thinned(&memory.collect::<Vec<_>>()),
        run,
    })
}

/// Connects clients to a process that does handshakes and nothing else, with as many threads as the server has.
/// None when there is no client to connect.
///
/// # Errors
/// Either does not start, or no client could connect.
pub(super) async fn baseline(
    args: &FleetArgs,
    files: &Files,
    wanted: u64,
    progress: &Progress,
) -> anyhow::Result<Option<Connected>> {
    if wanted == 0 {
        return Ok(None);
    }
    let flags = [
        "tls-sink".to_owned(),
        format!("--threads={}", args.programs.shards.max(1)),
        format!("--cert={}", files.certificate().display()),
        format!("--key={}", files.key().display()),
    ];
    let Running { child, address } = Running::start_own(ALONE, flags).await?;
    let work = FleetWork::Handshakes(wanted);
    let mut watch = FleetWatch::start(args, address, child.id(), work, Duration::ZERO)?;
    let wanted = (wanted, watch.server_rss());
    let mut connected = Box::pin(connect(&mut watch, ALONE, wanted, args, progress)).await?;
    watch.meanwhile(sleep(SETTLE)).await?;
    connected.settled = watch.server_rss();
    Ok(Some(connected))
}
