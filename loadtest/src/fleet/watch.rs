//! Starts a fleet, and follows it and the server that it dials, sample by sample, through a scenario's phases.
//!
//! Whatever else a scenario does meanwhile goes through [`FleetWatch::meanwhile`]: no line of the fleet
//! is ever missed. What the samples mean is for the scenario; here are only the sums that both
//! scenarios need.

use std::{collections::BTreeMap, future::Future, net::SocketAddr, path::PathBuf, time::Duration};

use anyhow::{Context as _, bail};
use http::HeaderValue;

use crate::{
    fleet::status::{Status, clock},
    load::BUSY,
    measure::usage::{Cpu, Roles, resident},
    progress::Progress,
    report::{
        Interval, Run, Usage,
        format::count,
        latency::Latencies,
        tables::{FLEET, TUNNEL_SERVER},
    },
    stack::{self, ACCOUNT, DOMAIN, Files, ProgramArgs, Server, child::Child},
};

/// Points of a curve, and intervals of a run, that a report shows at most.
const POINTS: usize = 100;

/// A fleet without a report for this time has failed.
const SILENCE: Duration = Duration::from_secs(60);

/// Flags of the scenarios that measure a crowd of tunnels. They always start the server.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Load")]
pub struct FleetArgs {
    /// Clients that make their first dial at the same time
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub concurrency: u32,
    /// Threads of the fleet. A dial costs the fleet more than the server: one thread would limit the measurement
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u16).range(1..=64))]
    pub fleet_threads: u16,
    /// Longest time until all tunnels are connected
    #[arg(long, value_name = "TIME", default_value = "5m", value_parser = humantime::parse_duration)]
    pub limit: Duration,
    /// The programs.
    #[command(flatten)]
    pub programs: ProgramArgs,
}

/// A fleet, a server, and what was observed of them in the present phase. The fleet is killed and waited
/// for when this is dropped.
#[derive(Debug)]
pub struct FleetWatch {
    fleet: Child,
    /// Number of the fleet's next line.
    next: u64,
    server: u32,
    samples: Samples,
}

/// The samples of one phase.
#[derive(Clone, Debug)]
pub struct Samples {
    /// The server's role.
    role: &'static str,
    fleet_threads: u16,
    samples: Vec<Sample>,
}

/// The fleet at one moment, and the server at very nearly that moment.
#[derive(Clone, Debug)]
struct Sample {
    status: Status,
    /// None while there is no server.
    server: Option<ServerUse>,
}

/// What a server used since it began.
#[derive(Clone, Copy, Debug)]
struct ServerUse {
    /// When, by [`clock`].
    at: f64,
    cpu: Cpu,
    /// Resident memory, bytes.
    rss: u64,
}

impl FleetWatch {
    /// Starts a fleet, which begins to dial these addresses in turn at once, and follows it and the server with this
    /// role and process id. `clients` is the flag of the fleet with the clients' tokens, or with the number of TLS
    /// connections instead. Sessions that lasted for `stable` let a client dial again without the waits that it had
    /// before.
    ///
    /// # Errors
    /// This program cannot be started again.
    pub fn start(
        args: &FleetArgs,
        (role, server): (&'static str, u32),
        addresses: &[SocketAddr],
        clients: String,
        stable: Duration,
    ) -> anyhow::Result<Self> {
        let addresses: Vec<_> = addresses.iter().map(ToString::to_string).collect();
        let flags = [
            "fleet".to_owned(),
            format!("--server={}", addresses.join(",")),
            clients,
            format!("--concurrency={}", args.concurrency),
            format!("--threads={}", args.fleet_threads),
            format!("--stable={}", humantime::format_duration(stable)),
        ];
        Ok(Self {
            fleet: Child::start_own(FLEET, flags)?,
            next: 0,
            server,
            samples: Samples {
                role,
                fleet_threads: args.fleet_threads,
                samples: Vec::new(),
            },
        })
    }

    /// The server has another process id from here on; what its forerunner used no longer counts.
    pub fn server_is(&mut self, server: u32) {
        self.server = server;
        for sample in &mut self.samples.samples {
            sample.server = None;
        }
    }

    /// This program, the fleet, and the server.
    pub fn roles(&self) -> Roles {
        let mut roles = Roles::generator();
        roles.add(self.samples.role, self.server);
        roles.add(FLEET, self.fleet.id());
        roles
    }

    /// Resident memory of the server, zero if it has ended.
    pub fn server_rss(&self) -> u64 {
        resident(self.server).unwrap_or(0)
    }

    /// The samples since the last call: a phase is over.
    pub fn take(&mut self) -> Samples {
        let taken = self.samples.clone();
        self.samples.samples.clear();
        taken
    }

    /// The next sample. There is one every tenth of a second, and none is left out.
    ///
    /// # Errors
    /// The fleet has ended or is silent for too long, or some of its clients were stopped by a final refusal.
    pub async fn next(&mut self) -> anyhow::Result<&Status> {
        let beginning = Status::beginning(self.next);
        let find = |line: &str| {
            let is_next = line.starts_with(&beginning);
            is_next.then(|| serde_json::from_str::<Status>(line).ok())?
        };
        let status = self.fleet.wait_line("a status line", SILENCE, find).await?;
        self.next += 1;
        if status.stopped > 0 {
            let (stopped, refusals) = (status.stopped, kinds(&status.failures));
            bail!("the server told {stopped} simulated clients to stay away: {refusals}");
        }
        let server = ServerUse::of(self.server);
        self.samples.samples.push(Sample { status, server });
        self.samples.last().context("no sample")
    }

    /// Follows until `done`, and returns true; or until the limit is over, and returns false. `on_status` is called
    /// with each sample.
    ///
    /// # Errors
    /// As [`Self::next`].
    pub async fn until(
        &mut self,
        limit: Duration,
        mut done: impl FnMut(&Status) -> bool,
        mut on_status: impl FnMut(&Status),
    ) -> anyhow::Result<bool> {
        let end = clock() + limit.as_secs_f64();
        loop {
            let status = self.next().await?;
            on_status(status);
            if done(status) || status.at > end {
                return Ok(done(status));
            }
        }
    }

    /// Follows until so many clients are connected, and returns true; or until the limit is over, and returns false.
    ///
    /// # Errors
    /// As [`Self::next`].
    pub async fn until_up(
        &mut self,
        wanted: u64,
        limit: Duration,
        progress: &Progress,
    ) -> anyhow::Result<bool> {
        let role = self.samples.role;
        let on_status = |status: &Status| {
            let (up, wanted) = (count(status.up as f64), count(wanted as f64));
            let failures = match status.failures.is_empty() {
                true => String::new(),
                false => format!("; {}", kinds(&status.failures)),
            };
            progress.message(format_args!("{role}: {up} of {wanted} connected{failures}"));
        };
        self.until(limit, |status| status.up >= wanted, on_status)
            .await
    }

    /// Follows while something else goes on.
    ///
    /// # Errors
    /// As [`Self::next`].
    pub async fn meanwhile<F: Future>(&mut self, other: F) -> anyhow::Result<F::Output> {
        let mut other = std::pin::pin!(other);
        loop {
            tokio::select! {
                biased;
                output = &mut other => return Ok(output),
                next = self.next() => drop(next?),
            }
        }
    }
}

impl ServerUse {
    fn of(pid: u32) -> Option<Self> {
        Some(Self {
            at: clock(),
            cpu: Cpu::of(pid)?,
            rss: resident(pid)?,
        })
    }
}

impl Samples {
    /// The last one's status.
    pub fn last(&self) -> Option<&Status> {
        self.samples.last().map(|sample| &sample.status)
    }

    /// A value of the fleet's reports over time since `start`, by the fleet's clock.
    pub fn over_time(&self, start: f64, value: impl Fn(&Status) -> u64) -> Vec<(f64, f64)> {
        let statuses = self.samples.iter().map(|sample| &sample.status);
        let line = statuses.map(|status| (status.at - start, value(status) as f64));
        line.collect()
    }

    /// Processor time of the server over time since `start`, seconds.
    pub fn server_cpu(&self, start: f64) -> Vec<(f64, f64)> {
        let uses = || self.samples.iter().filter_map(|sample| sample.server);
        let first = uses().next().map_or_else(Cpu::default, |first| first.cpu);
        let point = |of: ServerUse| (of.at - start, of.cpu.since(first).as_secs_f64());
        uses().map(point).collect()
    }

    /// Resident memory of the server over the number of connected clients.
    pub fn memory_by_up(&self) -> Vec<(f64, f64)> {
        let point = |sample: &Sample| Some((sample.status.up as f64, sample.server?.rss as f64));
        self.samples.iter().filter_map(point).collect()
    }

    /// Highest resident memory of the server.
    pub fn peak_rss(&self) -> u64 {
        let of_server = self.samples.iter().filter_map(|sample| sample.server);
        of_server.map(|of| of.rss).max().unwrap_or(0)
    }

    /// The phase as a run whose requests are new sessions, and the processor time of the fleet as a share of its
    /// threads' time. `before` is the status at the start of the phase. The run is counted from `since` to the last new
    /// session; `usage` was metered from `metered_since` to the last sample.
    pub fn run(
        &self,
        before: &Status,
        since: f64,
        metered_since: f64,
        mut usage: BTreeMap<String, Usage>,
    ) -> (Run, f64) {
        let last = self.last().unwrap_or(before);
        let completed = last.connected - before.connected;
        let end = match completed {
            0 => last.at,
            _ => last.connected_at,
        };
        let seconds = (end - since).max(1e-3);
        if let Some(server) = usage.get_mut(self.role) {
            // A meter looks less often than the samples do.
            server.peak_rss = server.peak_rss.max(self.peak_rss());
        }
        let cpu = |role: &str| usage.get(role).map(|usage| usage.cpu_seconds);
        let metered = (last.at - metered_since).max(1e-3);
        let fleet_share = cpu(FLEET).unwrap_or(0.0) / metered / f64::from(self.fleet_threads);
        let server_cpu = cpu(self.role).filter(|_| completed > 0);
        let latencies = took(&self.samples);
        let run = Run {
            name: self.role.to_owned(),
            seconds,
            completed,
            rate: completed as f64 / seconds,
            latency: latencies.summary(),
            histogram: Some(latencies),
            errors: failures_since(before, last),
            cpu_us_per_request: server_cpu.map(|cpu| cpu * 1e6 / completed as f64),
            usage,
            timeline: self.timeline(since),
            generator_bound: fleet_share >= BUSY,
            ..Run::default()
        };
        (run, fleet_share)
    }

    /// The phase in intervals since `start`.
    fn timeline(&self, start: f64) -> Vec<Interval> {
        let state = |sample: &Sample| {
            let failed: u64 = sample.status.failures.values().sum();
            (sample.status.at, sample.status.connected, failed)
        };
        let mut before = self.samples.first().map_or((start, 0, 0), state);
        before.0 = before.0.min(start);
        let step = self.samples.len().div_ceil(POINTS).max(1);
        let mut timeline = Vec::new();
        for samples in self.samples.chunks(step) {
            let now = samples.last().map_or(before, state);
            let seconds = now.0 - before.0;
            if seconds > 0.0 && now.0 > start {
                let took = took(samples);
                timeline.push(Interval {
                    at: now.0 - start,
                    rate: (now.1 - before.1) as f64 / seconds,
                    error_rate: (now.2 - before.2) as f64 / seconds,
                    p50: took.quantile(0.5),
                    p99: took.quantile(0.99),
                    ..Interval::default()
                });
            }
            before = now;
        }
        timeline
    }
}

/// What failed between two moments of a fleet, by kind.
fn failures_since(earlier: &Status, later: &Status) -> BTreeMap<String, u64> {
    let since = later.failures.iter().map(|(kind, times)| {
        let before = earlier.failures.get(kind).copied().unwrap_or(0);
        (kind.clone(), times - before)
    });
    since.filter(|(_, times)| *times > 0).collect()
}

/// Counts by kind in one line.
pub fn kinds(failures: &BTreeMap<String, u64>) -> String {
    if failures.is_empty() {
        return "no dial failed".to_owned();
    }
    let each = failures
        .iter()
        .map(|(kind, times)| format!("{kind} {times}"));
    each.collect::<Vec<_>>().join(", ")
}

/// The steepest rise of a rising line, per second, in any `stretch` of time: from each point to the first one that is
/// as much later, or to the last.
pub fn peak_rate(line: &[(f64, f64)], stretch: f64) -> f64 {
    let rise = |(index, from): (usize, &(f64, f64))| {
        let rest = line.get(index..)?;
        // Sample times are a little uneven, so a little less is enough.
        let far_enough = |to: &&(f64, f64)| to.0 - from.0 >= stretch * 0.999;
        let to = rest.iter().find(far_enough).or_else(|| rest.last())?;
        Some((to.1 - from.1) / (to.0 - from.0).max(stretch))
    };
    line.iter().enumerate().filter_map(rise).fold(0.0, f64::max)
}

/// When a line first reached `level`, between its points too; none if it never did.
pub fn when_reached(line: &[(f64, f64)], level: f64) -> Option<f64> {
    let at = line.iter().position(|point| point.1 >= level)?;
    let to = line.get(at)?;
    match at.checked_sub(1).and_then(|before| line.get(before)) {
        Some(from) if to.1 > from.1 => {
            Some(from.0 + (to.0 - from.0) * (level - from.1) / (to.1 - from.1))
        }
        _ => Some(to.0),
    }
}

/// A line with few enough points to be drawn; its last point stays.
pub fn thinned(line: &[(f64, f64)]) -> Vec<(f64, f64)> {
    let step = line.len().div_ceil(POINTS).max(1);
    let mut points: Vec<_> = line.iter().step_by(step).copied().collect();
    if let (Some(last), Some(end)) = (line.last(), points.last())
        && last != end
    {
        points.push(*last);
    }
    points
}

/// How long clients were without a session.
fn took(samples: &[Sample]) -> Latencies {
    let mut latencies = Latencies::new();
    let all = samples.iter().flat_map(|sample| &sample.status.took_us);
    all.for_each(|took| latencies.record(Duration::from_micros(u64::from(*took))));
    latencies
}

/// The runtimes of one run, each with a simulated client, and one more for a real client.
#[derive(Debug)]
pub struct Crowd<'a> {
    /// Flags of the fleet.
    pub args: &'a FleetArgs,
    /// Where to say what is going on.
    pub progress: &'a Progress,
    /// Files of the server.
    pub files: Files,
    /// How many simulated clients there are.
    pub count: u64,
    /// The token of the runtime that no simulated client has.
    pub single_token: PathBuf,
    /// The other tokens, one in each line.
    pub tokens: PathBuf,
}

impl<'a> Crowd<'a> {
    /// Creates so many runtimes, and one more.
    ///
    /// # Errors
    /// The server's program is not there, or the directory cannot be written.
    pub fn create(args: &'a FleetArgs, count: u64, progress: &'a Progress) -> anyhow::Result<Self> {
        progress.message("making runtimes and tokens");
        let files = Files::new(&args.programs)?;
        let names = (0..count).map(name).chain(["real".to_owned()]);
        let mut tokens = files.create_runtimes(names)?;
        let single = tokens.pop().unwrap_or_default();
        Ok(Self {
            args,
            progress,
            count,
            single_token: files.write("real.token", &single)?,
            tokens: files.write("fleet.tokens", &tokens.join("\n"))?,
            files,
        })
    }

    /// Starts the server; for tunnels at `address` if given, else at a free port.
    ///
    /// # Errors
    /// It does not start.
    pub async fn start_server(&self, address: Option<SocketAddr>) -> anyhow::Result<Server> {
        stack::start_server(&self.args.programs, &self.files, address).await
    }

    /// Lets all simulated clients dial these servers in turn; the first of them is followed.
    ///
    /// # Errors
    /// As [`FleetWatch::start`], or there is no server.
    pub fn dial(&self, servers: &[&Server], stable: Duration) -> anyhow::Result<FleetWatch> {
        let first = servers.first().context("no server to dial")?;
        let role = (TUNNEL_SERVER, first.child.id());
        let addresses: Vec<_> = servers.iter().map(|server| server.tunnel).collect();
        let clients = format!("--tokens={}", self.tokens.display());
        FleetWatch::start(self.args, role, &addresses, clients, stable)
    }

    /// The hosts of all runtimes, as platform clients name them.
    ///
    /// # Errors
    /// Never, as names are made here.
    pub fn hosts(&self) -> anyhow::Result<Vec<HeaderValue>> {
        let host = |number| HeaderValue::try_from(format!("{ACCOUNT}-{}.{DOMAIN}", name(number)));
        Ok((0..self.count).map(host).collect::<Result<_, _>>()?)
    }
}

fn name(number: u64) -> String {
    format!("r{number}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(at: f64, connected: u64, failed: u64, took_us: &[u32]) -> Sample {
        let status = Status {
            at,
            up: connected,
            connected,
            took_us: took_us.to_vec(),
            failures: BTreeMap::from([("status_503".to_owned(), failed)]),
            ..Status::default()
        };
        Sample {
            status,
            server: None,
        }
    }

    #[test]
    fn the_peak_is_what_fits_into_one_second() {
        let line = [
            (0.0, 0.0),
            (0.5, 10.0),
            (1.0, 300.0),
            (1.5, 310.0),
            (3.0, 400.0),
        ];
        assert!((peak_rate(&line, 1.0) - 300.0).abs() < 1e-9);
        // What took less than a second is still no more than that in a second.
        assert!((peak_rate(&line[..2], 1.0) - 10.0).abs() < 1e-9);
        assert!(peak_rate(&[], 1.0).abs() < 1e-9);
    }

    #[test]
    fn a_level_is_reached_between_two_points() {
        let line = [(0.0, 0.0), (1.0, 0.0), (2.0, 10.0), (3.0, 20.0)];
        for (level, at) in [
            (0.0, Some(0.0)),
            (5.0, Some(1.5)),
            (20.0, Some(3.0)),
            (21.0, None),
        ] {
            assert_eq!(when_reached(&line, level), at);
        }
    }

    #[test]
    fn a_phase_counts_only_what_is_its_own() {
        // A second phase: 100 were connected and 7 dials had failed before it began.
        let samples = Samples {
            role: FLEET,
            fleet_threads: 1,
            samples: vec![
                sample(9.9, 100, 7, &[]),
                sample(10.1, 100, 7, &[]),
                sample(10.5, 120, 9, &[1000, 3000]),
                sample(11.5, 200, 9, &[2000]),
            ],
        };
        let timeline = samples.timeline(10.0);
        let rates: Vec<_> = timeline
            .iter()
            .map(|interval| interval.rate.round())
            .collect();
        assert_eq!(rates, [0.0, 50.0, 80.0]);
        let errors: f64 = timeline.iter().map(|interval| interval.error_rate).sum();
        assert!((errors - 5.0).abs() < 1e-6, "{errors}");
        assert_eq!(took(&samples.samples).count(), 3);
        let (first, last) = (sample(0.0, 0, 7, &[]).status, samples.last().unwrap());
        assert_eq!(kinds(&failures_since(&first, last)), "status_503 2");
        assert_eq!(kinds(&failures_since(last, last)), "no dial failed");
    }

    #[test]
    fn a_thinned_line_keeps_its_end() {
        let line: Vec<_> = (0..1234).map(|at| (f64::from(at), 0.0)).collect();
        let few = thinned(&line);
        assert!(
            few.len() <= POINTS + 1 && few.last() == line.last(),
            "{}",
            few.len()
        );
    }
}
