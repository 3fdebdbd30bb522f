//! What a scenario found out: one value, which `text`, `markdown` and `html` render, and serde writes as JSON.
//!
//! A scenario fills a [`Report`] and knows nothing of how it is shown. The renderers know nothing of
//! scenarios: they see runs, tables, charts and notes. Durations are seconds, sizes bytes, unless a
//! name or a unit says otherwise.

pub(crate) mod format;
pub(crate) mod html;
pub mod latency;
pub mod markdown;
pub mod tables;
pub mod text;
mod verdict;

use std::{collections::BTreeMap, fs, thread, time::SystemTime};

use serde::Serialize;

use crate::report::latency::Latencies;

/// Everything that one call of the program measured.
#[derive(Debug, Default, Clone, Serialize)]
pub struct Report {
    /// The subcommand, such as `http`.
    pub scenario: String,
    /// One line for people: what was measured, against what.
    pub title: String,
    /// When it began, RFC 3339, UTC.
    pub started: String,
    /// Version of this program.
    pub version: String,
    /// Where it ran.
    pub machine: Machine,
    /// The settings that shaped the load, in the order in which a person would ask for them.
    pub settings: Vec<Setting>,
    /// What was measured, one entry for each target or level of load.
    pub runs: Vec<Run>,
    /// Figures that are more than one run's: ratios, cost for each tunnel, steps of a scale.
    pub tables: Vec<Table>,
    /// Lines to be drawn.
    pub charts: Vec<Chart>,
    /// What a reader must know before believing the figures.
    pub notes: Vec<Note>,
}

/// The machine that all programs shared.
#[derive(Debug, Default, Clone, Serialize)]
pub struct Machine {
    /// Processors that this process may use.
    pub cores: usize,
    /// Model of the processor, as the system names it.
    pub processor: String,
    /// The system and its release.
    pub system: String,
}

/// One setting as the user would write it.
#[derive(Debug, Clone, Serialize)]
pub struct Setting {
    /// Name of the flag, without dashes.
    pub name: String,
    /// Its value.
    pub value: String,
}

/// One load over one target for one stretch of time, warm-up excluded.
#[derive(Debug, Default, Clone, Serialize)]
pub struct Run {
    /// The target, and the level of load if there is more than one.
    pub name: String,
    /// Length of the measured stretch, seconds.
    pub seconds: f64,
    /// Requests (messages, calls, events) that ended well.
    pub completed: u64,
    /// The rate of those, for each second.
    pub rate: f64,
    /// Body bytes sent to the target.
    pub bytes_up: u64,
    /// Body bytes that came back.
    pub bytes_down: u64,
    /// How long a request took; none where the scenario has no requests.
    pub latency: Option<Latency>,
    /// What failed, by kind. A kind that never happened is absent.
    pub errors: BTreeMap<String, u64>,
    /// What the programs used, by role (`load generator`, `tunnel server`, ...).
    pub usage: BTreeMap<String, Usage>,
    /// CPU of all roles but the load generator and the upstream, microseconds for each completed
    /// request; none where no process of the target is known.
    pub cpu_us_per_request: Option<f64>,
    /// One entry for each interval of the run.
    pub timeline: Vec<Interval>,
    /// Whether the load generator's own CPU was the limit, so that the figures are its own.
    pub generator_bound: bool,
    /// What `latency` was made of, so that the latencies of rounds can be put together.
    #[serde(skip)]
    pub histogram: Option<Latencies>,
}

/// Summary of a histogram of latencies. All values are seconds.
#[derive(Debug, Clone, Serialize)]
pub struct Latency {
    /// How many were recorded.
    pub count: u64,
    /// The shortest.
    pub min: f64,
    /// The mean.
    pub mean: f64,
    /// The standard deviation.
    pub deviation: f64,
    /// Half took no longer.
    pub p50: f64,
    /// Nine of ten took no longer.
    pub p90: f64,
    /// 99 of 100 took no longer.
    pub p99: f64,
    /// 999 of 1,000 took no longer.
    pub p999: f64,
    /// The longest.
    pub max: f64,
    /// The curve: pairs of quantile (0 to 1) and seconds, from the median's neighbourhood to the end.
    pub curve: Vec<(f64, f64)>,
}

/// What the processes of one role used during a run.
#[derive(Debug, Clone, Serialize)]
pub struct Usage {
    /// How many processes have this role.
    pub processes: usize,
    /// User and system time, seconds.
    pub cpu_seconds: f64,
    /// Highest sum of resident memory seen, bytes.
    pub peak_rss: u64,
    /// Resident memory when the run ended, bytes.
    pub rss: u64,
}

/// A slice of a run.
#[derive(Debug, Default, Clone, Serialize)]
pub struct Interval {
    /// Its end, seconds since the run began.
    pub at: f64,
    /// Completed in it, for each second.
    pub rate: f64,
    /// Failed in it, for each second.
    pub error_rate: f64,
    /// Body bytes both ways, for each second.
    pub bytes_per_second: f64,
    /// Median latency, seconds; zero when nothing completed.
    pub p50: f64,
    /// 99th percentile, seconds; zero when nothing completed.
    pub p99: f64,
}

/// A table for people; the cells are already text.
#[derive(Debug, Clone, Serialize)]
pub struct Table {
    /// What it shows.
    pub title: String,
    /// Heads of the columns; the first column names the row.
    pub columns: Vec<String>,
    /// As many cells in each row as there are columns.
    pub rows: Vec<Vec<String>>,
}

/// Lines over one pair of axes.
#[derive(Debug, Clone, Serialize)]
pub struct Chart {
    /// What it shows.
    pub title: String,
    /// The horizontal axis.
    pub x: Axis,
    /// The vertical axis.
    pub y: Axis,
    /// The lines, in the order of the legend.
    pub series: Vec<Series>,
}

/// One axis of a chart.
#[derive(Debug, Clone, Serialize)]
pub struct Axis {
    /// What is counted, such as `latency`.
    pub label: String,
    /// How its values are written.
    pub unit: Unit,
    /// How its values are spaced.
    pub scale: Scale,
}

/// How the values of an axis are written for people.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Unit {
    /// A bare number.
    Count,
    /// Bytes, shown as KiB, MiB, ...
    Bytes,
    /// Bytes for each second.
    BytesPerSecond,
    /// For each second.
    PerSecond,
    /// A quantile from 0 to 1, shown as a percentile such as 99.9 %.
    Quantile,
    /// Seconds, shown as us, ms or s.
    Seconds,
}

/// How the values of an axis are spaced.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Scale {
    /// Evenly.
    Linear,
    /// By their logarithm.
    Log,
    /// By how close they are to one: 90, 99, 99.9 % are evenly spaced. For quantiles.
    Tail,
}

/// One line of a chart.
#[derive(Debug, Clone, Serialize)]
pub struct Series {
    /// Name in the legend.
    pub name: String,
    /// Its points, by rising x.
    pub points: Vec<(f64, f64)>,
}

/// Something that a reader must know.
#[derive(Debug, Clone, Serialize)]
pub struct Note {
    /// Whether it takes worth from the figures.
    pub level: NoteLevel,
    /// One sentence or two.
    pub text: String,
}

/// How grave a note is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum NoteLevel {
    /// Helps to read the figures.
    Info,
    /// The figures are not what they seem, such as when the generator was the limit.
    Warning,
}

impl Report {
    /// One without figures yet, that begins now.
    pub fn new(scenario: &str, title: impl Into<String>) -> Self {
        Self {
            scenario: scenario.to_owned(),
            title: title.into(),
            started: humantime::format_rfc3339_seconds(SystemTime::now()).to_string(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            machine: Machine::here(),
            ..Self::default()
        }
    }

    /// Adds what a reader should know.
    pub fn note(&mut self, text: impl Into<String>) {
        self.notes.push(Note {
            level: NoteLevel::Info,
            text: text.into(),
        });
    }

    /// Adds what takes worth from the figures.
    pub fn warn(&mut self, text: impl Into<String>) {
        self.notes.push(Note::warning(text));
    }

    /// Adds the charts that fit any runs: latency by percentile, rate and latency over time.
    pub fn add_standard_charts(&mut self) {
        let y = Axis::new("completed", Unit::PerSecond, Scale::Linear);
        let rate = over_time("Completed over time", y, &self.runs, |interval| {
            interval.rate
        });
        let y = Axis::new("latency", Unit::Seconds, Scale::Log);
        let latency = over_time("99th percentile over time", y, &self.runs, |interval| {
            interval.p99
        });
        let charts = [
            latency_chart("Latency by percentile", &self.runs),
            rate,
            latency,
        ];
        self.charts.extend(charts.into_iter().flatten());
    }

    /// The notes of a level, in the order in which they were added.
    fn notes_of(&self, level: NoteLevel) -> impl Iterator<Item = &Note> {
        self.notes.iter().filter(move |note| note.level == level)
    }

    /// All settings in one line.
    fn settings(&self) -> String {
        let settings = self.settings.iter();
        let settings = settings.map(|setting| format!("{} {}", setting.name, setting.value));
        settings.collect::<Vec<_>>().join(", ")
    }

    /// Whether anything at all was completed.
    pub fn has_completed(&self) -> bool {
        self.runs
            .iter()
            .any(|run| run.completed > 0 || run.bytes_down > 0 || run.bytes_up > 0)
            || (self.runs.is_empty() && !self.tables.is_empty())
    }
}

impl Note {
    /// One that takes worth from the figures.
    pub fn warning(text: impl Into<String>) -> Self {
        Self {
            level: NoteLevel::Warning,
            text: text.into(),
        }
    }
}

impl Table {
    /// A table with a value in each row.
    pub fn of_values<const N: usize>(
        title: impl Into<String>,
        head: &str,
        rows: [(&str, String); N],
    ) -> Self {
        let rows = rows.map(|(name, value)| vec![name.to_owned(), value]);
        Self::new(title, &format!(",{head}"), rows.to_vec())
    }

    /// A table whose columns have these heads, with commas between.
    pub fn new(title: impl Into<String>, heads: &str, rows: Vec<Vec<String>>) -> Self {
        Self {
            title: title.into(),
            columns: heads.split(',').map(str::to_owned).collect(),
            rows,
        }
    }
}

impl Chart {
    /// A chart of those lines of which there are points.
    pub fn new(
        title: impl Into<String>,
        x: Axis,
        y: Axis,
        series: impl IntoIterator<Item = Series>,
    ) -> Self {
        let series = series.into_iter();
        Self {
            title: title.into(),
            x,
            y,
            series: series.filter(|line| !line.points.is_empty()).collect(),
        }
    }

    /// The chart, unless there is nothing to be drawn.
    pub fn if_any(self) -> Option<Self> {
        (!self.series.is_empty()).then_some(self)
    }
}

impl Series {
    /// A line of this name in the legend.
    pub fn new(name: impl Into<String>, points: Vec<(f64, f64)>) -> Self {
        Self {
            name: name.into(),
            points,
        }
    }
}

impl Axis {
    /// One of these three.
    pub fn new(label: &str, unit: Unit, scale: Scale) -> Self {
        Self {
            label: label.to_owned(),
            unit,
            scale,
        }
    }
}

impl Machine {
    /// This one.
    pub fn here() -> Self {
        let processor = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let model = processor.lines().find_map(|line| {
            let (name, value) = line.split_once(':')?;
            (name.trim() == "model name").then(|| value.trim().to_owned())
        });
        let system = rustix::system::uname();
        let name = |text: &std::ffi::CStr| text.to_string_lossy().into_owned();
        Self {
            cores: thread::available_parallelism().map_or(1, usize::from),
            processor: model.unwrap_or_else(|| name(system.machine())),
            system: format!("{} {}", name(system.sysname()), name(system.release())),
        }
    }
}

/// Latency by percentile, a line for each run that has latencies.
pub fn latency_chart(title: impl Into<String>, runs: &[Run]) -> Option<Chart> {
    let x = Axis::new("percentile", Unit::Quantile, Scale::Tail);
    let y = Axis::new("latency", Unit::Seconds, Scale::Log);
    let lines = runs.iter().map(|run| {
        let curve = run.latency.iter().flat_map(|latency| &latency.curve);
        let points = curve.filter(|(at, _)| *at < 1.0).copied();
        Series::new(&run.name, points.collect())
    });
    Chart::new(title, x, y, lines).if_any()
}

/// A figure of the intervals of each run. Latencies that are not known are left out, as they cannot be drawn.
pub fn over_time(title: &str, y: Axis, runs: &[Run], of: fn(&Interval) -> f64) -> Option<Chart> {
    let x = Axis::new("time", Unit::Seconds, Scale::Linear);
    let is_known = |at: f64| at > 0.0 || y.scale != Scale::Log;
    let lines = runs.iter().map(|run| {
        let points = run
            .timeline
            .iter()
            .map(|interval| (interval.at, of(interval)));
        Series::new(
            &run.name,
            points.filter(|point| is_known(point.1)).collect(),
        )
    });
    let lines: Vec<_> = lines.collect();
    Chart::new(title, x, y, lines).if_any()
}
