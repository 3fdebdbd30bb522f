//! One load over several targets, interleaved in rounds: a table of ratios with their spread.
//!
//! ```text
//!   direct   load ─────────────────────────────────────▶ upstream
//!   hop      load ─▶ hyper proxy ──────────────────────▶ upstream
//!   nginx    load ─▶ nginx ══ TLS ══▶ nginx ───────────▶ upstream
//!   envoy    load ─▶ Envoy ◀═ TLS ═ Envoy ─────────────▶ upstream
//!   rathole  load ─▶ rathole ◀═ noise ═ rathole ───────▶ upstream
//!   ours     load ─▶ tunnel server ◀═ TLS ═ client ────▶ upstream
//!   NAME     load ─▶ whatever --target names ──────────▶ upstream
//! ```
//!
//! A *target* of the comparison is a set of programs that `preset` describes and `targets` starts, or one of
//! `--target`. `sample` measures one target once. A target that fails is reported, never dropped. All share one
//! machine, so other activity on it is reported as well (`noise`).

mod noise;
mod preset;
mod sample;
pub mod targets;

use std::{net::SocketAddr, num::NonZeroUsize};

use anyhow::bail;
use bytesize::ByteSize;

use crate::{
    load::{ALL_BUSY, LoadArgs},
    measure::usage::Roles,
    progress::Progress,
    report::{
        Axis, Chart, Note, NoteLevel, Report, Scale, Unit, format, latency_chart, tables::Figure,
    },
    scenario::{
        compare::{
            noise::Noise,
            sample::LoadLevel,
            targets::{NamedTarget, OpenTarget, TargetChoice, Upstream, UpstreamChoice},
        },
        rounds::{self, Rounds},
    },
    stack::StackArgs,
    target::ClientArgs,
};

/// The targets that ratios are to unless told otherwise, the better one first.
const BASES: [&str; 2] = ["nginx", "hop"];

/// Flags of `loadtest compare`.
#[derive(Clone, Debug, clap::Args)]
#[command(mut_arg("duration", |flag| flag.default_value("4s")))]
#[command(mut_arg("warm_up", |flag| flag.default_value("1s")))]
#[command(next_help_heading = "Targets")]
pub struct Args {
    /// Compare this too: NAME=URL, then after commas the ids of its processes, for their use, and
    /// an IP:PORT to connect to instead of the URL's host; repeat for more
    #[arg(long = "target", value_name = "NAME=URL[,PID...]")]
    pub targets: Vec<NamedTarget>,
    /// Compare these alone, by name [default: all that are installed]. What is started ends with this program; when
    /// it is killed by SIGKILL, programs other than its own go on
    #[arg(long, value_name = "NAME,...", value_delimiter = ',')]
    pub only: Vec<String>,
    /// The target that ratios are to [default: nginx, or hop where nginx is not installed]
    #[arg(long, value_name = "NAME")]
    pub base: Option<String>,
    /// What answers: nginx, sample, or the IP:PORT of something that runs and answers as `loadtest
    /// upstream` does [default: nginx where installed]
    #[arg(long, value_name = "WHAT")]
    pub upstream: Option<UpstreamChoice>,
    /// Where the upstream listens, so that a tunnel of --target can lead there [default: a free
    /// port]
    #[arg(long, value_name = "IP:PORT")]
    pub upstream_listen: Option<SocketAddr>,
    /// How requests are sent to those of --target.
    #[command(flatten, next_help_heading = "Targets of --target")]
    pub client: ClientArgs,
    /// What to send.
    #[command(flatten)]
    pub traffic: TrafficArgs,
    /// How long and how much.
    #[command(flatten)]
    pub load: LoadArgs,
    /// Ours, and the sample upstream.
    #[command(flatten)]
    pub stack: StackArgs,
}

/// Flags of what is sent.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Load")]
pub struct TrafficArgs {
    /// What to send: small requests, and one large download and upload
    #[arg(
        long = "load",
        value_name = "LOAD,...",
        value_delimiter = ',',
        default_value = "http,bulk"
    )]
    pub loads: Vec<Traffic>,
    /// Connections of the small requests, one level for each
    #[arg(
        long,
        short = 'c',
        value_name = "N,...",
        value_delimiter = ',',
        default_value = "1,64,256"
    )]
    pub connections: Vec<NonZeroUsize>,
    /// Size of the download and of the upload
    #[arg(long, value_name = "SIZE", default_value = "1GiB")]
    pub size: ByteSize,
    /// Rounds: in each, every target gets every load once
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u16).range(1..=1000))]
    pub rounds: u16,
}

/// The kinds of load.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Traffic {
    /// Small requests, closed loop.
    Http,
    /// One large download, one large upload.
    Bulk,
}

/// Measures.
///
/// # Errors
/// The flags contradict one another, there is no upstream, or no target could be measured.
pub async fn run(args: Args, progress: &Progress) -> anyhow::Result<Report> {
    let mut report = Report::new("compare", "the same load over several targets");
    let choices = TargetChoice::all(&args, &mut report)?;
    let names = choices.iter().map(|choice| choice.name().to_owned());
    let names: Vec<_> = names.collect();
    progress.message("starting the targets");
    let levels = args.levels();
    let mut environments = Vec::new();
    for upstream in Upstream::open_all(&args).await? {
        if levels.iter().any(|level| upstream.serves(*level)) {
            environments.push(Environment::open(&args, &choices, upstream).await?);
        }
    }
    if environments.len() > 1 {
        report.note("uploads go to the sample upstream, since nginx swallows none by itself");
    }
    let base = args.base(&names, &environments, &mut report)?;
    describe(&names, &environments, &mut report);
    let mut known = Roles::generator();
    for opened in environments.iter().flat_map(|all| &all.targets).flatten() {
        known.extend(&opened.target.roles);
    }
    let noise = Noise::start(known);
    let mut results = Results::new(&levels, &names);
    for round in 0..usize::from(args.traffic.rounds) {
        measure(&args, progress, &environments, round, &mut results).await?;
    }
    if (results.cells.iter().flatten()).all(|cell| cell.completed() == 0) {
        let failures = environments.iter().flat_map(|all| all.failures.clone());
        let reasons = failures.collect::<Vec<_>>().join("\n");
        bail!("no target could be measured\n{reasons}");
    }
    results.fill(&base, &mut report);
    report.note(rounds::meaning(args.traffic.rounds.into()));
    let is_unknown = choices.iter().any(TargetChoice::has_unknown_processes)
        || environments.iter().any(|all| all.upstream.pid.is_none());
    noise.report(is_unknown, &mut report);
    Ok(report)
}

/// One round: every level over every target.
async fn measure(
    args: &Args,
    progress: &Progress,
    environments: &[Environment],
    round: usize,
    results: &mut Results<'_>,
) -> anyhow::Result<()> {
    let levels = results.levels.iter().zip(&mut results.cells);
    for (number, (&level, cells)) in levels.enumerate() {
        let environment = environments.iter().find(|all| all.upstream.serves(level));
        let targets = environment.map_or(&[][..], |environment| &environment.targets);
        for index in rounds::order(targets.len(), round + 2 * number) {
            let Some(OpenTarget { target, .. }) = &targets[index] else {
                continue;
            };
            let (rounds, name) = (args.traffic.rounds, &results.names[index]);
            progress.label(format!("round {} of {rounds}, {level}, {name}", round + 1));
            let measured = sample::measure(level, target, args, progress);
            let (run, notes) = Box::pin(measured).await?;
            cells[index].add(run, notes);
        }
    }
    Ok(())
}

fn describe(names: &[String], environments: &[Environment], report: &mut Report) {
    if let Some(Environment {
        upstream, targets, ..
    }) = environments.first()
    {
        report.title = format!(
            "Comparison: {} in front of {}",
            names.join(", "),
            upstream.about
        );
        for (name, opened) in names.iter().zip(targets) {
            let about = opened.iter().map(|opened| &opened.about);
            about.for_each(|about| report.note(format!("{name}: {about}")));
        }
    }
    for failure in environments.iter().flat_map(|all| &all.failures) {
        report.warn(failure);
    }
}

/// The rounds of each target at each level.
struct Results<'a> {
    levels: &'a [LoadLevel],
    names: &'a [String],
    cells: Vec<Vec<Rounds>>,
}

impl<'a> Results<'a> {
    fn new(levels: &'a [LoadLevel], names: &'a [String]) -> Self {
        let row = || names.iter().map(|_| Rounds::default()).collect();
        Self {
            cells: levels.iter().map(|_| row()).collect(),
            levels,
            names,
        }
    }

    /// Writes everything into the report, with ratios to the target `base`.
    fn fill(&self, base: &str, report: &mut Report) {
        let of_base = self.names.iter().position(|name| name == base);
        let (mut curves, mut by_round) = (Vec::new(), Vec::new());
        for (level, cells) in self.levels.iter().zip(&self.cells) {
            let of_base = of_base.and_then(|base| cells.get(base));
            let rows = self.names.iter().zip(cells);
            let rows = rows.map(|(name, cell)| (name.clone(), cell, of_base));
            let rows: Vec<_> = rows.collect();
            let (figures, ratio) = (level.figures(), format!("× {base}"));
            let ratios = (figures.len(), ratio.as_str());
            let table = rounds::table(level.to_string(), "target", figures, ratios, &rows);
            report.tables.push(table.with_errors(&rows));
            let mut runs = Vec::new();
            for (name, cell, _) in rows.iter().filter(|(_, cell, _)| !cell.is_empty()) {
                runs.push(cell.run(name.clone()));
                let name = format!("{level}, {name}");
                report.notes.extend(failed(&name, cell));
                report.notes.extend(cell.notes(&name));
            }
            let title = format!("{level}: latency by percentile");
            curves.extend(latency_chart(title, &runs));
            by_round.extend(self.by_round(*level, cells));
            for mut run in runs {
                run.name = format!("{level}, {}", run.name);
                report.runs.push(run);
            }
        }
        let charts = self.charts().into_iter().chain(curves).chain(by_round);
        report.charts.extend(charts);
        fold_busy(report);
    }

    /// The first figure of a level in each round, which shows whether the machine drifted.
    fn by_round(&self, level: LoadLevel, cells: &[Rounds]) -> Option<Chart> {
        let figure = level.figures().first()?;
        let lines = self.names.iter().zip(cells).map(|(name, cell)| {
            let rounds = (1..).map(f64::from).zip(cell.figure(figure));
            (name, rounds.collect())
        });
        let x = Axis::new("round", Unit::Count, Scale::Linear);
        let title = format!("{level}: {} by round", figure.title);
        rounds::chart(title, figure, x, lines)
    }

    /// Each figure of small requests against the number of connections, if there are several numbers.
    fn charts(&self) -> Vec<Chart> {
        let levels = self.levels.iter().zip(&self.cells);
        let levels = levels.filter_map(|(level, cells)| match level {
            LoadLevel::Http(connections) => Some((*connections as f64, cells)),
            LoadLevel::Download(_) | LoadLevel::Upload(_) => None,
        });
        let levels: Vec<_> = levels.collect();
        if levels.len() < 2 {
            return Vec::new();
        }
        let chart = |figure: &Figure| {
            let x = Axis::new("connections", Unit::Count, Scale::Log);
            let lines = self.names.iter().enumerate().map(|(target, name)| {
                let level = |(at, cells): &(f64, &Vec<Rounds>)| (*at, cells[target].median(figure));
                (name, levels.iter().map(level).collect())
            });
            rounds::chart(format!("{} by connections", figure.title), figure, x, lines)
        };
        let figures = LoadLevel::Http(0).figures().iter();
        figures.filter_map(chart).collect()
    }
}

/// One note in place of many that differ only in their figures.
fn fold_busy(report: &mut Report) {
    let is_busy = |note: &Note| note.level == NoteLevel::Info && note.text.contains(ALL_BUSY);
    let busy = report.notes.iter().filter(|note| is_busy(note)).count();
    if busy > 1 {
        let all = report.runs.len();
        report.notes.retain(|note| !is_busy(note));
        report.note(format!(
            "{ALL_BUSY} in {busy} of {all} measurements: what the load generator waited for a processor is part of their latencies"
        ));
    }
}

fn failed(name: &str, cell: &Rounds) -> Option<Note> {
    let errors = cell.errors();
    let all = cell.completed() + errors.values().sum::<u64>();
    let kinds = errors.iter().map(|(kind, times)| {
        let times = format::count(*times as f64);
        format!("{times} failed with {kind}")
    });
    let kinds = kinds.collect::<Vec<_>>().join(", ");
    let text = format!("{name}: of {}, {kinds}", format::count(all as f64));
    (!errors.is_empty()).then(|| Note::warning(text))
}

/// An upstream and all targets in front of it.
struct Environment {
    upstream: Upstream,
    /// In the order of the choices; none for those that could not be started.
    targets: Vec<Option<OpenTarget>>,
    /// Why not.
    failures: Vec<String>,
}

impl Environment {
    async fn open(
        args: &Args,
        choices: &[TargetChoice],
        upstream: Upstream,
    ) -> anyhow::Result<Self> {
        let expected = upstream.answer().await?;
        let (mut targets, mut failures) = (Vec::new(), Vec::new());
        for choice in choices {
            let opened = Box::pin(choice.open(args, &upstream, &expected)).await;
            if let Err(error) = &opened {
                failures.push(format!("{} was not measured: {error:#}", choice.name()));
            }
            targets.push(opened.ok());
        }
        Ok(Self {
            upstream,
            targets,
            failures,
        })
    }
}

impl Args {
    fn levels(&self) -> Vec<LoadLevel> {
        let mut levels = Vec::new();
        let traffic = &self.traffic;
        if traffic.loads.contains(&Traffic::Http) {
            let counts = traffic.connections.iter();
            levels.extend(counts.map(|count| LoadLevel::Http(count.get())));
        }
        if traffic.loads.contains(&Traffic::Bulk) {
            let size = traffic.size.as_u64();
            levels.extend([LoadLevel::Download(size), LoadLevel::Upload(size)]);
        }
        levels
    }

    /// The target that ratios are to: nginx, else the least that any proxy costs, else the first that runs.
    fn base(
        &self,
        names: &[String],
        environments: &[Environment],
        report: &mut Report,
    ) -> anyhow::Result<String> {
        if let Some(base) = &self.base {
            let all = names.join(", ");
            if !names.contains(base) {
                bail!("--base {base}: no such target; there are {all}");
            }
            return Ok(base.clone());
        }
        let targets = environments.iter().take(1).flat_map(|all| &all.targets);
        let opened = names
            .iter()
            .zip(targets)
            .filter(|(_, opened)| opened.is_some());
        let opened: Vec<_> = opened.map(|(name, _)| name.as_str()).collect();
        let is_opened = |name: &&str| opened.contains(name);
        let base = BASES
            .into_iter()
            .find(is_opened)
            .or_else(|| opened.first().copied());
        let base = base.unwrap_or(BASES[0]);
        if base != BASES[0] {
            report.warn(format!(
                "ratios are to {base}, since nginx is not among the targets"
            ));
        }
        Ok(base.to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::Run;

    fn run(seconds: f64, timeouts: u64) -> Run {
        let mut run = Run {
            completed: 100,
            seconds: 2.0,
            rate: 100.0 / seconds,
            cpu_us_per_request: Some(seconds * 1e6),
            ..Run::default()
        };
        if timeouts > 0 {
            run.errors.insert("timeout".to_owned(), timeouts);
        }
        run
    }

    #[test]
    fn known_rounds_give_known_ratios() {
        let names = ["ours", "base", "dead"].map(str::to_owned);
        let levels = [LoadLevel::Http(64), LoadLevel::Http(1)];
        let mut results = Results::new(&levels, &names);
        for (ours, base) in [(10e-6, 20e-6), (30e-6, 40e-6), (12e-6, 20e-6)] {
            results.cells[0][0].add(run(ours, 1), vec![Note::warning("busy")]);
            results.cells[0][1].add(run(base, 0), Vec::new());
            results.cells[1][0].add(run(ours / 2.0, 0), Vec::new());
        }
        let mut report = Report::new("compare", "ratios");
        results.fill("base", &mut report);
        let table = &report.tables[0];
        assert_eq!(table.title, "small GET, 64 connections");
        assert_eq!(table.columns[..3], ["target", "CPU/request", "× base"]);
        assert_eq!(table.rows[0][..3], ["ours", "12.0 µs", "0.60 (0.50–0.75)"]);
        assert_eq!(table.rows[1][..3], ["base", "20.0 µs", "1.00"]);
        // A target that could not be measured has a row too.
        assert_eq!(table.rows[2][..3], ["dead", "–", "–"]);
        let errors: Vec<_> = table.rows.iter().flat_map(|row| row.last()).collect();
        assert_eq!(errors, ["3", "0", "not measured"]);
        let verdict = "ours: 0.60 (0.50–0.75) × base in CPU/request, small GET, 64 connections";
        assert_eq!(report.verdict().as_deref(), Some(verdict));
        // The rounds together are a run; what was not measured is none.
        let names: Vec<_> = report.runs.iter().map(|run| run.name.as_str()).collect();
        let [first, second] =
            ["ours", "base"].map(|name| format!("small GET, 64 connections, {name}"));
        assert_eq!(names, [&first, &second, "small GET, 1 connection, ours"]);
        assert_eq!(
            report.charts[0].series[0].points,
            [(1.0, 6e-6), (64.0, 12e-6)]
        );
        let notes: Vec<_> = report.notes.iter().map(|note| note.text.as_str()).collect();
        let expected = [
            format!("{first}: of 303, 3 failed with timeout"),
            format!("{first}: busy (in 3 of 3 rounds)"),
        ];
        assert_eq!(notes, expected);
    }
}
