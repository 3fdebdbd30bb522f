//! Small requests over all tunnels in turn, against small requests over one of them.
//!
//! The two take turns, and who begins changes from round to round, so that what the machine does
//! otherwise meets both alike.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use crate::{
    fleet::{crowd::Crowd, watch::kinds},
    load::{BUSY, Load, LoadArgs, Outcome},
    measure::usage::Roles,
    progress::Progress,
    report::{
        Report,
        build::latency_chart,
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

/// Requests over the tunnels of a fleet.
pub(super) struct SpreadLoad<'a> {
    pub(super) args: &'a SpreadArgs,
    pub(super) fleet_threads: f64,
    pub(super) public: SocketAddr,
    pub(super) roles: Roles,
}

impl SpreadLoad<'_> {
    /// Measures all rounds, and adds them to the report.
    ///
    /// # Errors
    /// A load cannot be run.
    pub(super) async fn measure(
        &self,
        crowd: &Crowd<'_>,
        report: &mut Report,
    ) -> anyhow::Result<()> {
        let (hosts, progress) = (crowd.hosts()?, crowd.progress);
        let all = Requests::in_turn(self.public, &hosts).await?;
        // The first request on a tunnel opens a stream, which is not what is compared.
        progress.message("asking each runtime once");
        let connections = self.args.connections.into();
        let (_, failures) = all.once_each(connections).await;
        if failures.total() > 0 {
            let failures = kinds(&failures.by_name());
            report.warn(format!("runtimes that did not answer: {failures}"));
        }
        // One in the middle: neither the first that was connected nor the last.
        let middle = hosts
            .get(hosts.len() / 2)
            .map_or(&[][..], std::slice::from_ref);
        let one = Requests::in_turn(self.public, middle).await?;
        let names = [
            format!("over {} tunnels", hosts.len()),
            "over one tunnel".to_owned(),
        ];
        let requests = [Arc::new(all), Arc::new(one)];
        let mut results = [Rounds::default(), Rounds::default()];
        let measure = async |which: usize| {
            let outcome = self.run(&names[which], requests[which].clone(), progress);
            let (run, notes) = Box::pin(outcome).await?.into_run();
            results[which].add(run, notes);
            Ok(())
        };
        rounds::interleave(self.args.rounds, &names, progress, measure).await?;
        self.show(report, names, &results);
        Ok(())
    }

    async fn run(
        &self,
        name: &str,
        requests: Arc<Requests>,
        progress: &Progress,
    ) -> anyhow::Result<Outcome> {
        let mut load = Load::new(LoadArgs {
            warm_up: WARM_UP,
            duration: self.args.spread_duration,
            timeout: TIMEOUT,
            threads: 1,
        });
        load.requests(name, self.args.connections.into(), None, requests);
        load.run(progress, &self.roles).await
    }

    fn show(&self, report: &mut Report, names: [String; 2], results: &[Rounds; 2]) {
        let rows = names.iter().zip(results);
        let rows = rows.map(|(name, rounds)| (name.clone(), rounds, Some(&results[1])));
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
            let share = used / run.seconds / self.fleet_threads;
            if share >= BUSY {
                report.warn(format!(
                    "{}: the simulated clients were the limit ({:.0} % of their threads' time)",
                    run.name,
                    share * 100.0
                ));
            }
            runs.push(run);
        }
        report
            .charts
            .extend(latency_chart("Latency by percentile", &runs));
        report.runs.extend(runs);
    }
}
