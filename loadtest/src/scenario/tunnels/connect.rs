//! Connecting them all: how long it took, what it cost the server, and who was the limit.

use anyhow::bail;

use crate::{
    fleet::{
        flags::CrowdArgs,
        status::Status,
        watch::{self, Watch, kinds, peak_rate, thinned},
    },
    load::BUSY,
    measure::usage::{FLEET, Meter, Roles},
    report::{Run, format::count},
    scenario::Context,
};

/// What was seen until all were connected.
#[derive(Debug)]
pub(super) struct Connected {
    /// For the report.
    pub(super) run: Run,
    /// Most connected in any one second.
    pub(super) peak_rate: f64,
    /// Processor time of the server, seconds.
    pub(super) server_cpu: f64,
    /// Share of one core that the fleet used for each of its threads.
    pub(super) fleet_share: f64,
    /// Resident memory of the server before the first.
    pub(super) before: u64,
    /// The highest on the way.
    pub(super) peak: u64,
    /// Whether all are connected.
    pub(super) all: bool,
    /// Connected over time.
    pub(super) over_time: Vec<(f64, f64)>,
    /// Resident memory above what it was before, over the number of those connected.
    pub(super) memory: Vec<(f64, f64)>,
}

/// Several of them taken together.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Sum {
    /// How many were connected.
    pub(super) connected: u64,
    /// How long it took.
    pub(super) seconds: f64,
    /// Processor time of the server, seconds.
    pub(super) server_cpu: f64,
    /// The highest peak rate.
    pub(super) peak_rate: f64,
    /// Of the fleet, for each of its threads; the mean.
    pub(super) fleet_share: f64,
    /// Resident memory of the server that came with all of them, after settling.
    pub(super) memory: f64,
}

impl Sum {
    /// Each part goes with the memory that the server came to; nothing when nobody was connected.
    pub(super) fn of<'a>(parts: impl IntoIterator<Item = (&'a Connected, u64)>) -> Option<Self> {
        let parts: Vec<_> = parts.into_iter().collect();
        let mut sum = Self::default();
        for (part, settled) in &parts {
            sum.connected += part.run.completed;
            sum.seconds += part.run.seconds;
            sum.server_cpu += part.server_cpu;
            sum.peak_rate = sum.peak_rate.max(part.peak_rate);
            sum.fleet_share += part.fleet_share / parts.len() as f64;
            sum.memory += settled.saturating_sub(part.before) as f64;
        }
        (sum.connected > 0).then_some(sum)
    }

    /// Connected for each second.
    pub(super) fn rate(&self) -> f64 {
        self.connected as f64 / self.seconds
    }

    /// Processor time of the server for each, seconds.
    pub(super) fn cpu_each(&self) -> f64 {
        self.server_cpu / self.connected as f64
    }

    /// Memory of the server for each, bytes.
    pub(super) fn memory_each(&self) -> f64 {
        self.memory / self.connected as f64
    }
}

/// Follows a fleet that has just been started until `wanted` are connected or the limit is over.
/// `before` is the memory of the server before that, `role` is the server's.
///
/// # Errors
/// The fleet ended, or nobody was connected.
pub(super) async fn connect(
    watch: &mut Watch,
    role: &str,
    (wanted, before): (u64, u64),
    args: &CrowdArgs,
    context: &Context,
) -> anyhow::Result<Connected> {
    let mut roles = Roles::generator();
    roles.add(role, watch.server_id());
    roles.add(FLEET, watch.fleet_id());
    let meter = Meter::start(roles);
    // The line before the first dial.
    let start = watch.next().await?.at;
    let tell = |status: &Status| {
        let (up, wanted) = (count(status.up as f64), count(wanted as f64));
        let failures = match status.failures.is_empty() {
            true => String::new(),
            false => format!("; {}", kinds(&status.failures)),
        };
        context
            .progress
            .message(format_args!("{role}: {up} of {wanted} connected{failures}"));
    };
    let all = watch
        .until(args.limit, |status| status.up >= wanted, tell)
        .await?;
    let mut usage = meter.finish();
    let samples = watch.take();
    let Some(last) = samples.last().filter(|status| status.connected > 0) else {
        let failures = samples
            .last()
            .map_or_else(String::new, |status| kinds(&status.failures));
        bail!(
            "no connection to the {role} within {:?}: {failures}",
            args.limit
        );
    };
    let server_cpu = usage.get(role).map_or(0.0, |of_role| of_role.cpu_seconds);
    let fleet_cpu = usage.get(FLEET).map_or(0.0, |of_role| of_role.cpu_seconds);
    watch::raise_peak(&mut usage, role, samples.peak_rss());
    let seconds = (last.connected_at - start).max(1e-3);
    // The last line comes a little later than the last connection.
    let fleet_share = fleet_cpu / (last.at - start).max(1e-3) / f64::from(args.fleet_threads);
    let over_time = samples.over_time(start, |status| status.connected);
    let memory = samples.memory_by_up().into_iter();
    let memory = memory.map(|(up, rss)| (up, (rss - before as f64).max(0.0)));
    let run = Run {
        name: role.to_owned(),
        seconds,
        completed: last.connected,
        rate: last.connected as f64 / seconds,
        bytes_up: 0,
        bytes_down: 0,
        latency: samples.took().summary(),
        errors: last.failures.clone(),
        cpu_us_per_request: Some(server_cpu * 1e6 / last.connected as f64),
        usage,
        timeline: samples.timeline(start),
        generator_bound: fleet_share >= BUSY,
    };
    Ok(Connected {
        peak_rate: peak_rate(&over_time, 1.0),
        server_cpu,
        fleet_share,
        before,
        peak: samples.peak_rss(),
        all,
        over_time: thinned(&over_time),
        memory: thinned(&memory.collect::<Vec<_>>()),
        run,
    })
}
