//! Small requests over all tunnels in turn, against the same requests over one of them.
//!
//! The two take turns, and who begins changes from round to round, so that what the machine does
//! otherwise meets both alike.

use std::{sync::Arc, time::Duration};

use crate::{
    client::minimal::Written,
    fleet::{in_turn, in_turn::InTurn, runtimes::Runtimes, watch::kinds},
    load::{BUSY, Load, Pace, Stretch},
    measure::usage::{FLEET, Roles},
    report::{
        Note, Report, Run, Table, build,
        format::{NONE, count, per_second, seconds},
    },
    scenario::{
        Context,
        rounds::{self, Spread},
    },
    stack::Server,
};

/// Before each measured stretch.
const WARM_UP: Duration = Duration::from_secs(1);

/// Longest time for one request.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Flags of this part.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Requests")]
pub struct SpreadArgs {
    /// Send small requests over all tunnels in turn, and the same over one of them
    #[arg(long)]
    pub spread_load: bool,
    /// How long each stretch of requests is measured
    #[arg(long, value_name = "TIME", default_value = "3s", value_parser = humantime::parse_duration)]
    pub spread_duration: Duration,
    /// How often both are measured, in turn
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..=100))]
    pub rounds: u16,
    /// Connections of the requests, each with one at a time
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u16).range(1..=1000))]
    pub connections: u16,
}

/// What the rounds came to.
#[derive(Debug)]
pub(super) struct Found {
    args: SpreadArgs,
    tunnels: usize,
    /// One pair for each round: over all, over one.
    rounds: Vec<[Run; 2]>,
    notes: Vec<Note>,
    fleet_threads: f64,
}

/// Measures all rounds.
///
/// # Errors
/// A load cannot be run.
pub(super) async fn measure(
    args: &SpreadArgs,
    fleet_threads: u16,
    server: &Server,
    runtimes: &Runtimes,
    roles: &Roles,
    context: &Context,
) -> anyhow::Result<Found> {
    let mut found = Found {
        args: args.clone(),
        tunnels: 0,
        rounds: Vec::new(),
        notes: Vec::new(),
        fleet_threads: fleet_threads.into(),
    };
    let all = in_turn::requests(server.public, &runtimes.hosts()?).await?;
    found.tunnels = all.len();
    // The first request on a tunnel opens a stream, which is not what is compared.
    context.progress.message("asking each runtime once");
    let connections = args.connections.into();
    let (_, failures) = in_turn::once_each(server.public, all.clone(), connections).await;
    if failures.total() > 0 {
        let failures = kinds(&failures.by_name());
        found.notes.push(Note::warning(format!(
            "runtimes that did not answer: {failures}"
        )));
    }
    // One in the middle: neither the first that was connected nor the last.
    let one: Arc<[Written]> = all.get(all.len() / 2).cloned().into_iter().collect();
    let loads = [
        (format!("over {} tunnels", all.len()), all),
        ("over one tunnel".into(), one),
    ];
    for round in 0..args.rounds {
        let mut pair = [None, None];
        for which in rounds::order(2, round.into()) {
            let (name, requests) = &loads[which];
            let label = format!("round {} of {}, {name}", round + 1, args.rounds);
            context.progress.label(label);
            let client = InTurn::new(server.public, requests.clone());
            let stretch = Stretch {
                warm_up: WARM_UP,
                duration: args.spread_duration,
                timeout: TIMEOUT,
            };
            let mut load = Load::new(stretch, 1);
            load.requests(name, connections, Pace::Closed, Arc::new(client));
            let outcome = Box::pin(load.run(&context.progress, roles)).await?;
            let (run, notes) = outcome.into_run(name);
            found.notes.extend(notes);
            pair[which] = run;
        }
        if let [Some(all), Some(one)] = pair {
            found.rounds.push([all, one]);
        }
    }
    context.progress.label("");
    Ok(found)
}

impl Found {
    /// Puts the rounds into the report, and the round in the middle of each kind as a run.
    pub(super) fn show(mut self, report: &mut Report) {
        report.setting(
            "spread-duration",
            humantime::format_duration(self.args.spread_duration),
        );
        report.setting("rounds", self.args.rounds);
        report.setting("connections", self.args.connections);
        let cpu = |run: &Run| {
            let each = run.cpu_us_per_request.unwrap_or(f64::NAN);
            seconds(each / 1e6)
        };
        let row = |name: String, all: &Run, one: &Run, ratio: String| {
            let rates = [per_second(all.rate), per_second(one.rate), ratio];
            [vec![name], rates.to_vec(), vec![cpu(all), cpu(one)]].concat()
        };
        let ratio = |[all, one]: &[Run; 2]| all.rate / one.rate;
        let mut rows: Vec<_> = (self.rounds.iter().zip(1..))
            .map(|(round, number)| {
                let [all, one] = round;
                row(format!("round {number}"), all, one, count(ratio(round)))
            })
            .collect();
        let ratios = Spread::of(self.rounds.iter().map(ratio));
        let ratio = ratios.map_or_else(|| NONE.to_owned(), |ratios| ratios.ratio());
        let in_the_middle = [0, 1].map(|which| {
            let mut runs: Vec<_> = self.rounds.iter().map(|round| &round[which]).collect();
            runs.sort_by(|one, other| one.rate.total_cmp(&other.rate));
            runs.get(runs.len() / 2).copied().cloned()
        });
        if let [Some(all), Some(one)] = in_the_middle {
            rows.push(row("median".to_owned(), &all, &one, ratio));
            self.warn_of_fleet(report, &[&all, &one]);
            let runs = [all, one];
            report.charts.extend(build::latency_chart(&runs));
            report.runs.extend(runs);
        }
        let columns = [
            "small requests",
            "over all",
            "over one",
            "ratio",
            "server CPU each, all",
            "server CPU each, one",
        ];
        let title = format!(
            "The same requests over {} tunnels and over one",
            self.tunnels
        );
        report.tables.push(Table::new(title, &columns, rows));
        self.notes.dedup_by(|one, other| one.text == other.text);
        report.notes.append(&mut self.notes);
    }

    fn warn_of_fleet(&self, report: &mut Report, runs: &[&Run]) {
        for run in runs {
            let used = run.usage.get(FLEET).map_or(0.0, |usage| usage.cpu_seconds);
            let share = used / run.seconds / self.fleet_threads;
            if share >= BUSY {
                report.warn(format!(
                    "{}: the simulated clients were the limit ({:.0} % of their threads' time)",
                    run.name,
                    share * 100.0
                ));
            }
        }
    }
}
