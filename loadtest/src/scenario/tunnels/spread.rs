//! Small requests over all tunnels in turn, against small requests over one of them.
//!
//! The two take turns, and who begins changes from round to round, so that what the machine does
//! otherwise meets both alike.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use crate::{
    fleet::watch::{Crowd, kinds},
    load::{BUSY, Load, LoadArgs},
    measure::usage::Roles,
    report::{
        Report, latency_chart,
        tables::{CPU_PER_REQUEST, FLEET, P50, P99, RATE},
    },
    scenario::{
        http::Requests,
        rounds::{self, Rounds},
    },
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

/// Measures all rounds over the server's public listener, and adds them to the report.
///
/// # Errors
/// A load cannot be run.
pub(super) async fn measure(
    args: &SpreadArgs,
    crowd: &Crowd<'_>,
    public: SocketAddr,
    roles: &Roles,
    report: &mut Report,
) -> anyhow::Result<()> {
    let (hosts, progress) = (crowd.hosts()?, crowd.progress);
    let all = Requests::in_turn(public, &hosts).await?;
    // The first request on a tunnel opens a stream, which is not what is compared.
    progress.message("asking each runtime once");
    let connections = args.connections.into();
    let (_, failures) = all.once_each(connections).await;
    if failures.total() > 0 {
        let failures = kinds(&failures.by_name());
        report.warn(format!("runtimes that did not answer: {failures}"));
    }
    // One in the middle: neither the first that was connected nor the last.
    let middle = hosts.iter().skip(hosts.len() / 2).take(1);
    let middle: Vec<_> = middle.cloned().collect();
    let one = Requests::in_turn(public, &middle).await?;
    let over_all = format!("over {} tunnels", hosts.len());
    let names = [over_all, "over one tunnel".to_owned()];
    let requests = [Arc::new(all), Arc::new(one)];
    let mut results = [Rounds::default(), Rounds::default()];
    let measure = async |which: usize| {
        let mut load = Load::new(LoadArgs {
            warm_up: WARM_UP,
            duration: args.spread_duration,
            timeout: TIMEOUT,
            threads: 1,
        });
        load.requests(&names[which], connections, None, requests[which].clone());
        let outcome = Box::pin(load.run(progress, roles)).await?;
        let (run, notes) = outcome.into_run();
        results[which].add(run, notes);
        Ok(())
    };
    rounds::interleave(args.rounds, &names, progress, measure).await?;
    show(report, names, &results, crowd.args.fleet_threads.into());
    Ok(())
}

fn show(report: &mut Report, names: [String; 2], results: &[Rounds; 2], fleet_threads: f64) {
    let rows = names.into_iter().zip(results);
    let rows = rows.map(|(name, rounds)| (name, rounds, Some(&results[1])));
    let rows: Vec<_> = rows.collect();
    let title = "The same requests over all tunnels and over one, medians of rounds".to_owned();
    let figures = [RATE, CPU_PER_REQUEST, P50, P99];
    let ratios = (2, "× one tunnel");
    let table = rounds::table(title, "small requests", &figures, ratios, &rows);
    report.tables.push(table.with_errors(&rows));
    let mut runs = Vec::new();
    for (name, rounds, _) in rows {
        report.notes.extend(rounds.notes(&name));
        let run = rounds.run(name);
        let used = run.usage.get(FLEET).map_or(0.0, |usage| usage.cpu_seconds);
        let share = used / run.seconds / fleet_threads;
        if share >= BUSY {
            report.warn(format!(
                "{}: the simulated clients were the limit ({:.0} % of their threads' time)",
                run.name,
                share * 100.0
            ));
        }
        runs.push(run);
    }
    let title = "Latency by percentile";
    report.charts.extend(latency_chart(title, &runs));
    report.runs.extend(runs);
}
