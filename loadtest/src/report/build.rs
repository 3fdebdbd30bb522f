//! How scenarios put a report together: its frame, its settings, and the charts that all share.

use std::{fs, thread, time::SystemTime};

use crate::report::{
    Axis, Chart, Interval, Machine, Note, NoteLevel, Report, Run, Scale, Series, Table, Unit,
};

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

    /// All settings in one line.
    pub(super) fn settings(&self) -> String {
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
