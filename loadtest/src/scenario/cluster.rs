//! Several server nodes on one etcd: what requests cost that one node forwards to another, and what a fault of a node
//! does to them.
//!
//! ```text
//!   connections ─▶ balancer ─▶ n1, n2, n3 ◀─ dials in turn ─ fleet, or real clients ─▶ upstream
//!                              └─── etcd
//!   warm up ─▶ measure, a third ─▶ fault ─▶ measure, two thirds ─▶ sessions of each node
//! ```
//!
//! A runtime has one simulated client with one session, so all nodes but one forward the requests for it.

mod balance;
mod nodes;

use std::{fs, num::NonZeroUsize, sync::Arc, time::Duration};

use anyhow::{Context as _, bail};
use futures_util::future::join;
use rustix::process::Signal;
use tokio::{
    sync::watch,
    time::{Instant, sleep, sleep_until, timeout},
};

use crate::{
    fleet::watch::{Crowd, FleetArgs, FleetWatch, kinds},
    load::{Load, LoadArgs, Outcome},
    measure::{Window, errors::FailureCounts, usage::Roles},
    progress::Progress,
    report::{
        Report, Table,
        format::{cell, count, seconds},
        tables::{FLEET, TUNNEL_CLIENT, TUNNEL_SERVER, cpu_us_per_request},
    },
    scenario::cluster::{
        balance::{Balancer, Period},
        nodes::Nodes,
    },
    stack::{self, Running, START_LIMIT},
    upstream::UpstreamArgs,
};

/// How long `--fault stop` stops a node.
const STOPPED: Duration = Duration::from_secs(5);

/// How long `--fault partition` lasts: until the node's lease has ended, its clients have moved, and some more.
const PARTED: Duration = Duration::from_secs(30);

/// Longest time until all runtimes are served after a fault.
const SERVED_LIMIT: Duration = Duration::from_secs(60);

/// The balancer ends a request that is late, and knows at which node; a worker, which does not, comes after it.
const WORKER_LATER: Duration = Duration::from_secs(1);

/// The metric of forwarded requests, and the one of sessions.
const FORWARDS: &str = "tunnel_server_forwards_total";
const SESSIONS: &str = "tunnel_server_sessions";

/// Flags of `loadtest cluster`.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Load")]
pub struct Args {
    /// Server nodes
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u16).range(2..=16))]
    pub nodes: u16,
    /// Runtimes, each with a tunnel client of its own
    #[arg(long, value_name = "N", default_value_t = 30, value_parser = clap::value_parser!(u64).range(1..=10_000))]
    pub runtimes: u64,
    /// Requests at a time, each over a connection of its own to each node
    #[arg(long, short = 'c', value_name = "N", default_value = "16")]
    pub connections: NonZeroUsize,
    /// Start a real tunnel client for each runtime, and an upstream, instead of simulated clients
    #[arg(long)]
    pub real_client: bool,
    /// What happens to a node, one third into the measurement
    #[arg(long, value_enum, default_value_t = Fault::None)]
    pub fault: Fault,
    /// How long and how much.
    #[command(flatten)]
    pub load: LoadArgs,
    /// The fleet and the programs.
    #[command(flatten)]
    pub crowd: FleetArgs,
}

/// What happens to a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Fault {
    /// Nothing
    None,
    /// SIGKILL
    Kill,
    /// SIGSTOP, and SIGCONT 5 s later
    Stop,
    /// Silence for 30 s between it and etcd, and on the links by which others reach it; its own links go on
    Partition,
    /// SIGTERM and a new start, of all nodes one after another
    Restart,
}

/// Measures.
///
/// # Errors
/// There is no etcd, the programs cannot be started, or not all runtimes are served in the first place.
pub async fn run(args: Args, progress: &Progress) -> anyhow::Result<Report> {
    let crowd = Crowd::create(&args.crowd, args.runtimes, progress)?;
    let (nodes, runtimes) = (count(args.nodes.into()), count(args.runtimes as f64));
    let title = format!("{runtimes} runtimes at {nodes} server nodes");
    let mut report = Report::new("cluster", title);
    progress.message("starting etcd and the server nodes");
    let is_relayed = args.fault == Fault::Partition;
    let mut nodes = Box::pin(Nodes::start(&crowd, args.nodes.into(), is_relayed)).await?;
    let mut clients = Box::pin(Clients::start(&args, &crowd, &nodes)).await?;
    let addresses = nodes.addresses();
    let balancer = Balancer::new(&addresses, crowd.hosts()?, args.load.timeout).await?;
    progress.message("asking each node for each runtime");
    let served = timeout(SERVED_LIMIT, balancer.all_served());
    let served = clients.meanwhile(served).await?;
    served.context("not each node has served each runtime")?;

    let mut roles = clients.roles();
    roles.extend(&nodes.roles());
    let measuring = measure(&args, &mut nodes, &roles, balancer, progress);
    let (outcome, measurement) = clients.meanwhile(Box::pin(measuring)).await??;
    add_run(&args, outcome, &nodes, &mut report);
    measurement.show(&args, &mut report);
    show_sessions(&nodes.metric(SESSIONS).await, &mut report);
    report.add_standard_charts();
    Ok(report)
}

/// The tunnel clients. They are killed when this is dropped.
enum Clients {
    Simulated(FleetWatch),
    Real(Vec<Running>),
}

impl Clients {
    /// Starts them, and waits until all are connected.
    async fn start(args: &Args, crowd: &Crowd<'_>, nodes: &Nodes<'_>) -> anyhow::Result<Self> {
        if args.real_client {
            return Self::start_real(crowd, nodes).await;
        }
        // All sessions count as stable, as they are in nodes that have run for a while.
        let mut watch = crowd.dial(&nodes.servers(), Duration::ZERO)?;
        let limit = args.crowd.limit;
        if !watch.until_up(args.runtimes, limit, crowd.progress).await? {
            let failures = kinds(&watch.next().await?.failures);
            bail!("not all tunnel clients connected within the limit: {failures}");
        }
        Ok(Self::Simulated(watch))
    }

    async fn start_real(crowd: &Crowd<'_>, nodes: &Nodes<'_>) -> anyhow::Result<Self> {
        let upstream = stack::start_upstream(&UpstreamArgs::default(), None).await?;
        let url = format!("http://{}", upstream.address);
        let mut servers: Vec<_> = nodes.servers().iter().map(|server| server.tunnel).collect();
        let mut running = vec![upstream];
        let tokens = fs::read_to_string(&crowd.tokens)?;
        for (number, token) in tokens.lines().enumerate() {
            crowd
                .progress
                .message(format_args!("tunnel client {number}"));
            let token = crowd.files.write(&format!("r{number}.token"), token)?;
            let programs = &crowd.args.programs;
            let client =
                stack::start_client(programs, &crowd.files, &servers, &token, &url).await?;
            running.push(client);
            servers.rotate_left(1);
        }
        for client in running.iter().skip(1) {
            client.child.wait_ready(client.address, START_LIMIT).await?;
        }
        Ok(Self::Real(running))
    }

    /// This program, and the processes of the clients.
    fn roles(&self) -> Roles {
        match self {
            Self::Simulated(watch) => watch.roles(),
            Self::Real(running) => {
                let mut roles = Roles::generator();
                for Running { child, .. } in running {
                    roles.add(child.role(), child.id());
                }
                roles
            }
        }
    }

    /// Does something else, and follows simulated clients meanwhile.
    async fn meanwhile<F: Future>(&mut self, other: F) -> anyhow::Result<F::Output> {
        match self {
            Self::Simulated(watch) => watch.meanwhile(other).await,
            Self::Real(_) => Ok(other.await),
        }
    }
}

/// What was seen beside the load's own figures.
struct Measurement {
    /// Before the fault, or all.
    before: Period,
    /// Share of its requests that a node forwarded to another.
    forwarded: f64,
    after: Option<AfterFault>,
}

/// What was seen from the fault on.
struct AfterFault {
    period: Period,
    fault: FaultTimes,
    /// Whether the fault was over before the measurement was.
    is_within: bool,
}

/// How long a fault took, and how long after it all runtimes were served.
struct FaultTimes {
    took: Duration,
    served: Option<Duration>,
}

/// Runs the load with probes and the fault beside it.
async fn measure(
    args: &Args,
    nodes: &mut Nodes<'_>,
    roles: &Roles,
    balancer: Balancer,
    progress: &Progress,
) -> anyhow::Result<(Outcome, Measurement)> {
    let balancer = Arc::new(balancer);
    let mut load = Load::new(LoadArgs {
        timeout: args.load.timeout + WORKER_LATER,
        ..args.load
    });
    let opened = load.opened();
    let name = "requests to all nodes";
    load.requests(name, args.connections.get(), None, balancer.clone());
    let observing = observe(args.fault, nodes, &balancer, opened);
    let both = async { tokio::try_join!(load.run(progress, roles), observing) };
    let (outcome, mut measurement) = tokio::select! {
        never = balancer.probe() => match never {},
        both = Box::pin(both) => both?,
    };
    // What failed after the end had begun before it.
    let late = balancer.end_period();
    if let Some(after) = &mut measurement.after {
        after.period.failed.merge(&late.failed);
        after.period.failed_at_lost.merge(&late.failed_at_lost);
    }
    Ok((outcome, measurement))
}

/// Follows the measured time, and lets the fault happen in it.
async fn observe(
    fault: Fault,
    nodes: &mut Nodes<'_>,
    balancer: &Balancer,
    mut opened: watch::Receiver<Option<Window>>,
) -> anyhow::Result<Measurement> {
    let window = opened.wait_for(Option::is_some).await.map(|window| *window);
    let window = window.ok().flatten().context("the load was not run")?;
    sleep_until(window.begin).await;
    let earlier = nodes.metric(FORWARDS).await;
    drop(balancer.end_period());
    let fault_at = match fault {
        Fault::None => window.end,
        _ => window.begin + (window.end - window.begin) / 3,
    };
    sleep_until(fault_at).await;
    let later = nodes.metric(FORWARDS).await;
    let before = balancer.end_period();
    let sum = |of_nodes: Vec<Option<f64>>| of_nodes.into_iter().flatten().sum::<f64>();
    let requests = before.answered + before.failed.total();
    let forwarded = (sum(later) - sum(earlier)) / requests.max(1) as f64;
    let mut measurement = Measurement {
        before,
        forwarded,
        after: None,
    };
    if fault != Fault::None {
        let rest = async {
            sleep_until(window.end).await;
            balancer.end_period()
        };
        let (times, period) = join(Box::pin(inflict(fault, nodes, balancer)), rest).await;
        let fault = times?;
        let is_within = fault_at + fault.took <= window.end;
        measurement.after = Some(AfterFault {
            period,
            fault,
            is_within,
        });
    }
    Ok(measurement)
}

/// Lets the fault happen, and waits until it is over and each node that is there serves each runtime.
async fn inflict(
    fault: Fault,
    nodes: &mut Nodes<'_>,
    balancer: &Balancer,
) -> anyhow::Result<FaultTimes> {
    let begun = Instant::now();
    let all = nodes.addresses().len();
    let last = all - 1;
    let served = async || {
        let begun = Instant::now();
        let served = timeout(SERVED_LIMIT, balancer.all_served()).await;
        served.ok().map(|()| begun.elapsed())
    };
    let served = match fault {
        Fault::None => None,
        Fault::Kill => {
            balancer.lose(last);
            nodes.kill(last);
            served().await
        }
        Fault::Stop | Fault::Partition => {
            let (time, signal): (_, &dyn Fn(Signal) -> anyhow::Result<()>) = match fault {
                Fault::Stop => (STOPPED, &|signal| nodes.signal(last, signal)),
                _ => (PARTED, &|signal| nodes.signal_relays(signal)),
            };
            balancer.lose(last);
            signal(Signal::STOP)?;
            let goes_on = async {
                sleep(time).await;
                signal(Signal::CONT)?;
                balancer.regain(last, nodes.wait_ready(last).await?).await
            };
            let (served, back) = join(served(), goes_on).await;
            back?;
            served
        }
        Fault::Restart => {
            for number in 0..all {
                balancer.lose(number);
                balancer
                    .regain(number, nodes.restart(number).await?)
                    .await?;
            }
            served().await
        }
    };
    Ok(FaultTimes {
        took: begun.elapsed(),
        served,
    })
}

/// Adds the load's figures, with the processor time of nodes that were started meanwhile.
fn add_run(args: &Args, mut outcome: Outcome, nodes: &Nodes<'_>, report: &mut Report) {
    if args.fault == Fault::Restart {
        // They were meant to end.
        let ended = |text: &str| text.starts_with(TUNNEL_SERVER);
        outcome.notes.retain(|note| !ended(&note.text));
    }
    for run in &mut outcome.runs {
        if let Some(servers) = run.usage.get_mut(TUNNEL_SERVER) {
            nodes.add_restarted(servers);
        }
        run.cpu_us_per_request = cpu_us_per_request(&run.usage, run.completed);
        let each = |role: &str| {
            let usage = run.usage.get(role)?;
            Some(usage.cpu_seconds / run.completed.max(1) as f64)
        };
        let clients = each(FLEET).or_else(|| each(TUNNEL_CLIENT));
        let rows = [
            ("tunnel servers", cell(each(TUNNEL_SERVER), seconds)),
            ("tunnel clients", cell(clients, seconds)),
        ];
        report
            .tables
            .push(Table::of_values("CPU for each request", "time", rows));
    }
    report.add(outcome);
}

impl Measurement {
    fn show(&self, args: &Args, report: &mut Report) {
        let title = match self.after {
            Some(_) => "Before the fault",
            None => "All the time",
        };
        let rows = [
            ("requests answered", count(self.before.answered as f64)),
            ("requests that failed", failures(&self.before.failed)),
            ("forwarded by one node to another", percent(self.forwarded)),
            ("longest time without an answer", gap(&self.before)),
        ];
        report.tables.push(Table::of_values(title, "value", rows));
        if let Some(after) = &self.after {
            after.show(args, report);
        }
    }
}

impl AfterFault {
    fn show(&self, args: &Args, report: &mut Report) {
        let period = &self.period;
        let (at_lost, until) = match args.fault {
            Fault::Restart => (
                "requests that failed at a node while it was restarted",
                "until each node had served each runtime, after the last one was ready",
            ),
            _ => (
                "requests that failed at the node itself",
                "until each other node had served each runtime",
            ),
        };
        let served = self.fault.served.map(|served| served.as_secs_f64());
        let took = self.fault.took.as_secs_f64();
        let rows = [
            ("requests answered", count(period.answered as f64)),
            ("requests that failed", failures(&period.failed)),
            (at_lost, failures(&period.failed_at_lost)),
            ("longest time without an answer", gap(period)),
            (until, cell(served, seconds)),
            ("all of it, until then", seconds(took)),
        ];
        report
            .tables
            .push(Table::of_values("After the fault", "value", rows));
        if served.is_none() {
            let limit = SERVED_LIMIT.as_secs();
            report.warn(format!(
                "not each runtime was served again within {limit} s"
            ));
        }
        if !self.is_within {
            report.warn(
                "the fault went on after the measurement, which does not have all that it did: give a longer --duration",
            );
        }
        if !args.real_client {
            report.note(
                "a simulated tunnel client has one session and dials after its end; meanwhile requests for its runtime \
                 wait, and in the end all connections with them. A real one has sessions at two nodes, and the next \
                 before a node that leaves ends the last: see --real-client",
            );
        }
    }
}

fn gap(period: &Period) -> String {
    seconds(period.longest_gap.as_secs_f64())
}

fn failures(failures: &FailureCounts) -> String {
    match failures.total() {
        0 => "0".to_owned(),
        _ => kinds(&failures.by_name()),
    }
}

fn percent(share: f64) -> String {
    format!("{:.1} %", share * 100.0)
}

fn show_sessions(sessions: &[Option<f64>], report: &mut Report) {
    let rows = sessions.iter().enumerate();
    let rows = rows.map(|(number, sessions)| vec![nodes::name(number), cell(*sessions, count)]);
    let rows = rows.collect();
    report
        .tables
        .push(Table::new("At the end", "node,sessions", rows));
}
