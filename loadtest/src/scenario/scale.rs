//! One scenario over a list of levels: how cost grows with connections, body sizes, tunnels.
//!
//! The scenario and its flags stand last on the command line; `--over connections=1,8,64` runs it
//! once for each level with `--connections=1`, `--connections=8` and so on. So anything that is a
//! flag of any scenario can be scaled, and a self-contained target is started anew for each level.

use std::{collections::BTreeSet, str::FromStr};

use anyhow::{Context as _, bail, ensure};
use bytesize::ByteSize;
use clap::Parser as _;

use crate::{
    progress::Progress,
    report::{
        self, Note, NoteLevel, Report, Run, Scale, Unit,
        tables::{CPU_PER_REQUEST, Figure, P50, P99, PEAK_MEMORY, RATE, THROUGHPUT},
    },
    scenario::{
        Scenario,
        rounds::{self, Rounds},
    },
};

/// What is scaled when no scenario is named.
const DEFAULT: [&str; 4] = ["http", "--self-contained", "--duration", "5s"];

/// Flags of `loadtest scale`.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// A flag of the scenario and its levels, such as connections=1,8,64,256 or body-size=0,1KiB
    #[arg(long, value_name = "FLAG=LEVEL,...")]
    pub over: Axis,
    /// Rounds: in each, every level comes once
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=1000))]
    pub rounds: u16,
    /// The scenario and its flags, last on the line [default: http --self-contained --duration 5s]
    #[arg(
        value_name = "SCENARIO",
        trailing_var_arg = true,
        allow_hyphen_values = true
    )]
    pub command: Vec<String>,
}

/// Measures.
///
/// # Errors
/// The scenario's flags are wrong, or one of its levels cannot be measured.
pub async fn run(args: Args, progress: &Progress) -> anyhow::Result<Report> {
    let command = match args.command.is_empty() {
        true => DEFAULT.map(str::to_owned).to_vec(),
        false => args.command,
    };
    let Axis { flag, levels, .. } = &args.over;
    // All are parsed before the first is run: a wrong level must not cost a measurement.
    let scenarios = (levels.iter()).map(|level| scenario(&command, flag, &level.text));
    let scenarios = scenarios.collect::<anyhow::Result<Vec<_>>>()?;
    let name = command.first().map_or("", String::as_str);
    let mut report = Report::new("scale", format!("{name} over {flag}"));

    let mut results = Results::new(&args.over);
    let labels = levels.iter().map(|level| format!("{flag} {}", level.text));
    let labels: Vec<_> = labels.collect();
    let measure = async |number: usize| {
        let measured = Box::pin(scenarios[number].clone().run(progress)).await;
        let measured = measured.with_context(|| labels[number].clone())?;
        results.add(number, measured, &mut report);
        // One that has none at its first level has none at any.
        let is_empty = results.names().is_empty();
        ensure!(!is_empty, "{name} has no runs that could be scaled");
        Ok(())
    };
    rounds::interleave(args.rounds, &labels, progress, measure).await?;
    results.fill(&mut report);
    if args.rounds > 1 {
        report.note(rounds::meaning(args.rounds.into()));
        report.note("each run is all rounds of a level together");
    }
    Ok(report)
}

/// A command line with a scenario alone.
#[derive(clap::Parser)]
#[command(name = "loadtest")]
struct Line {
    #[command(subcommand)]
    scenario: Scenario,
}

/// The scenario at one level, from the words of the command line.
fn scenario(command: &[String], flag: &str, level: &str) -> anyhow::Result<Scenario> {
    let words = std::iter::once("loadtest".to_owned()).chain(command.iter().cloned());
    let words = words.chain([format!("--{flag}={level}")]);
    match Line::try_parse_from(words).map(|line| line.scenario) {
        Ok(Scenario::Scale(_)) => bail!("scale cannot scale itself"),
        Ok(scenario) => Ok(scenario),
        Err(error) => bail!(
            "{error}flags of scale and of the result (--json, --report, --markdown, --quiet) stand \
             before the scenario"
        ),
    }
}

/// Levels that lie further apart than this are spaced by their logarithm.
const WIDE: f64 = 10.0;

/// A flag and its levels.
#[derive(Clone, Debug, PartialEq)]
pub struct Axis {
    /// Its name, without dashes.
    flag: String,
    /// The levels, in the order in which they were written.
    levels: Vec<Level>,
    unit: Unit,
}

/// One level.
#[derive(Clone, Debug, PartialEq)]
struct Level {
    /// As it was written.
    text: String,
    /// Its place on the axis.
    value: f64,
}

impl Axis {
    /// The axis of a chart. Zero has no place on a logarithmic one.
    fn of_chart(&self) -> report::Axis {
        let values = self.levels.iter().map(|level| level.value);
        let above = values.clone().filter(|value| *value > 0.0);
        let (low, high) = (above.fold(f64::MAX, f64::min), values.fold(0.0, f64::max));
        let is_wide = high > low * WIDE;
        let scale = if is_wide { Scale::Log } else { Scale::Linear };
        report::Axis::new(&self.flag, self.unit, scale)
    }
}

impl FromStr for Axis {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (flag, levels) = text.split_once('=').unwrap_or((text, ""));
        let flag = flag.trim().trim_start_matches('-');
        let texts = levels.split(',').map(str::trim);
        let texts: Vec<_> = texts.filter(|level| !level.is_empty()).collect();
        if flag.is_empty() || texts.is_empty() {
            let usage = "levels are written FLAG=LEVEL,LEVEL, such as connections=1,8,64";
            return Err(usage.to_owned());
        }
        // One unit for all, so that they share an axis: the first that all of them can be read in.
        let levels = |unit: Unit| {
            let levels = texts.iter().map(|text| Level::read(text, unit));
            levels.collect::<Option<_>>().map(|levels| (unit, levels))
        };
        let mut units = [Unit::Count, Unit::Seconds, Unit::Bytes].into_iter();
        let (unit, levels) = units.find_map(levels).ok_or_else(|| {
            format!(
                "{flag}: levels are all numbers, all sizes such as 10KiB, or all times such as 5ms"
            )
        })?;
        let flag = flag.to_owned();
        Ok(Self { flag, levels, unit })
    }
}

impl Level {
    fn read(text: &str, unit: Unit) -> Option<Self> {
        let value = match unit {
            Unit::Bytes => text.parse::<ByteSize>().ok()?.as_u64() as f64,
            Unit::Seconds => humantime::parse_duration(text).ok()?.as_secs_f64(),
            _ => text.parse().ok()?,
        };
        let text = text.to_owned();
        (value.is_finite() && value >= 0.0).then_some(Self { text, value })
    }
}

/// The first is the cost, beside which its ratio to the first level stands.
const FIGURES: [Figure; 6] = [CPU_PER_REQUEST, RATE, P50, P99, THROUGHPUT, PEAK_MEMORY];

/// How many of the figures are drawn.
const DRAWN: usize = 4;

/// The runs of all levels.
struct Results<'a> {
    axis: &'a Axis,
    /// By level, then by round: all runs of one report.
    levels: Vec<Vec<Vec<Run>>>,
    told: BTreeSet<String>,
}

impl<'a> Results<'a> {
    /// Without runs yet.
    fn new(axis: &'a Axis) -> Self {
        Self {
            axis,
            levels: vec![Vec::new(); axis.levels.len()],
            told: BTreeSet::new(),
        }
    }

    /// Adds the next round of a level, by its number. Its notes go to the report, each once.
    fn add(&mut self, level: usize, measured: Report, report: &mut Report) {
        self.levels[level].push(measured.runs);
        let name = &self.axis.levels[level].text;
        for Note { level, text } in measured.notes {
            let text_here = format!("{} {name}: {text}", self.axis.flag);
            let is_new = self.told.insert(text);
            // What is a warning at one level may be none at another; what only informs is not.
            let is_new_here = self.told.insert(text_here.clone());
            if is_new || (level == NoteLevel::Warning && is_new_here) {
                let text = text_here;
                report.notes.push(Note { level, text });
            }
        }
    }

    /// A table and the runs of all levels for each run of the scenario, and a chart for each figure.
    fn fill(&self, report: &mut Report) {
        let (names, flag) = (self.names(), &self.axis.flag);
        let mut by_name = Vec::new();
        for (number, name) in names.iter().enumerate() {
            let levels = self.levels.iter().map(|rounds| of_run(rounds, number));
            let levels: Vec<_> = levels.collect();
            let rows = self.axis.levels.iter().zip(&levels);
            let rows = rows.map(|(level, rounds)| (level.text.clone(), rounds, levels.first()));
            let rows: Vec<_> = rows.collect();
            let title = format!("{name} by {flag}");
            let table = rounds::table(title, flag, &FIGURES, (1, "× first"), &rows);
            report.tables.push(table.with_errors(&rows));
            for (level, rounds, _) in rows.iter().filter(|(_, rounds, _)| !rounds.is_empty()) {
                let run = rounds.run(format!("{flag} {level}, {name}"));
                report.runs.push(run);
            }
            by_name.push((name, levels));
        }
        let charts = FIGURES.iter().take(DRAWN).filter_map(|figure| {
            let lines = by_name.iter().map(|(name, levels)| {
                let levels = self.axis.levels.iter().zip(levels);
                let points = levels.map(|(level, rounds)| (level.value, rounds.median(figure)));
                (*name, points.collect())
            });
            let title = format!("{} by {flag}", figure.title);
            rounds::chart(title, figure, self.axis.of_chart(), lines)
        });
        report.charts.extend(charts);
    }

    /// Names of the runs: those of the report with most of them. A name that holds the level, and so
    /// is another at each level, gets an `N` in its place.
    fn names(&self) -> Vec<String> {
        let levels = self.axis.levels.iter().zip(&self.levels);
        let reports =
            levels.flat_map(|(level, rounds)| rounds.iter().map(move |runs| (level, runs)));
        let most = reports.max_by_key(|(_, runs)| runs.len());
        let named = most.into_iter().flat_map(|(level, runs)| {
            runs.iter().enumerate().map(|(number, run)| {
                let all = self.levels.iter().flatten();
                let mut others = all.filter_map(|runs| runs.get(number));
                match others.all(|other| other.name == run.name) {
                    true => run.name.clone(),
                    false => run.name.replace(&level.text, "N"),
                }
            })
        });
        named.collect()
    }
}

/// The rounds of one level, of the run with this number.
fn of_run(rounds: &[Vec<Run>], number: usize) -> Rounds {
    let mut all = Rounds::default();
    for run in rounds.iter().filter_map(|runs| runs.get(number)) {
        all.add(run.clone(), Vec::new());
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &str) -> Vec<String> {
        line.split_whitespace().map(str::to_owned).collect()
    }

    fn error(line: &str, flag: &str, level: &str) -> String {
        scenario(&words(line), flag, level).unwrap_err().to_string()
    }

    #[test]
    fn a_level_becomes_a_flag() {
        let Scenario::Http(args) =
            scenario(&words("http --url http://a"), "connections", "7").unwrap()
        else {
            panic!("http became another scenario");
        };
        assert_eq!(args.connections.get(), 7);
    }

    #[test]
    fn what_cannot_be_scaled_is_refused() {
        assert!(error("http --url http://a", "colour", "red").contains("--colour"));
        assert!(error("http --url http://a -c 3", "connections", "7").contains("multiple times"));
        assert!(error("http --url http://a", "connections", "x").contains("invalid value 'x'"));
        assert!(error("http --url http://a --json f", "connections", "7").contains("before"));
        assert!(
            error("scale --over a=1", "rounds", "2").contains("cannot"),
            "not itself"
        );
        assert!(error("upstream", "answer-size", "2").contains("unrecognized subcommand"));
    }

    fn values(text: &str) -> (Unit, Vec<f64>) {
        let axis: Axis = text.parse().unwrap();
        (
            axis.unit,
            axis.levels.iter().map(|level| level.value).collect(),
        )
    }

    #[test]
    fn levels_share_a_unit() {
        assert_eq!(
            values("connections=1, 8,64"),
            (Unit::Count, vec![1.0, 8.0, 64.0])
        );
        assert_eq!(
            values("body-size=0,1KiB,1MiB"),
            (Unit::Bytes, vec![0.0, 1024.0, 1_048_576.0])
        );
        assert_eq!(values("--delay=5ms,1s"), (Unit::Seconds, vec![0.005, 1.0]));
    }

    #[test]
    fn wide_levels_are_spaced_by_their_logarithm() {
        let scale = |text: &str| text.parse::<Axis>().unwrap().of_chart().scale;
        assert_eq!(scale("connections=1,8,64"), Scale::Log);
        assert_eq!(scale("shards=1,2,4"), Scale::Linear);
        assert_eq!(scale("body-size=0,1KiB,1MiB"), Scale::Log);
        assert_eq!(scale("body-size=0"), Scale::Linear);
    }

    #[test]
    fn errors_say_how_it_is_written() {
        for (text, expected) in [
            ("connections", "FLAG=LEVEL"),
            ("=1,2", "FLAG=LEVEL"),
            ("connections=,", "FLAG=LEVEL"),
            ("connections=1,many", "all numbers"),
            ("connections=1,-2", "all numbers"),
        ] {
            let error = text.parse::<Axis>().unwrap_err();
            assert!(error.contains(expected), "{text}: {error}");
        }
    }

    fn report(name: &str, cost: f64, completed: u64) -> Report {
        let mut run = Run {
            name: name.to_owned(),
            seconds: 2.0,
            completed,
            rate: completed as f64 / 2.0,
            cpu_us_per_request: Some(cost),
            ..Run::default()
        };
        run.errors.insert("timeout".to_owned(), 1);
        let mut report = Report::new("http", "test");
        report.runs.push(run);
        report.note("always so");
        report.warn("bad");
        report
    }

    #[test]
    fn cost_is_told_by_level_and_against_the_first() {
        let axis = "connections=1,100".parse().unwrap();
        let mut results = Results::new(&axis);
        let mut whole = Report::new("scale", "test");
        assert!(results.names().is_empty());
        for (level, cost, completed) in [
            (0, 10.0, 20),
            (1, 5.0, 40),
            (0, 20.0, 20),
            (1, 12.0, 60),
            (0, 10.0, 20),
            (1, 6.0, 80),
        ] {
            results.add(level, report("a", cost, completed), &mut whole);
        }
        results.fill(&mut whole);
        let rows = &whole.tables[0].rows;
        assert_eq!(rows[0][..4], ["1", "10.0 µs", "1.00", "10/s"]);
        // Within the rounds: the second was slow for both levels.
        assert_eq!(rows[1][..4], ["100", "6.00 µs", "0.60 (0.50–0.60)", "30/s"]);
        assert_eq!(whole.runs[1].name, "connections 100, a");
        assert_eq!(rows[0].last().unwrap(), "3");
        let points = &whole.charts[0].series[0].points;
        assert_eq!(points[..], [(1.0, 10e-6), (100.0, 6e-6)]);
        assert_eq!(whole.charts.len(), 2, "there are no latencies");
        let notes: Vec<_> = whole.notes.iter().map(|note| note.text.as_str()).collect();
        let expected = [
            "connections 1: always so",
            "connections 1: bad",
            "connections 100: bad",
        ];
        assert_eq!(notes, expected);
    }

    #[test]
    fn names_that_hold_the_level_become_one() {
        let axis = "tunnels=1,100".parse().unwrap();
        let mut results = Results::new(&axis);
        let mut whole = Report::new("scale", "test");
        for (level, name) in [(0, "over 1 tunnels"), (1, "over 100 tunnels")] {
            results.add(level, report(name, 1.0, 1), &mut whole);
        }
        results.fill(&mut whole);
        assert_eq!(whole.tables[0].title, "over N tunnels by tunnels");
    }
}
