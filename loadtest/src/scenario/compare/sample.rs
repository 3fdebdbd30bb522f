//! One load over one target, once: the figures of a round.

use std::{collections::BTreeMap, fmt, path::Path, sync::Arc, time::Duration};

use http::{Method, StatusCode};
use tokio::time::{Instant, timeout};

use crate::{
    client::{
        body::Outgoing,
        http1::Http1,
        lean::{Lean, Written},
    },
    load::{BUSY, Load, LoadArgs, Pace},
    measure::{
        Slice,
        errors::{Failure, Kind},
        usage::{Meter, cpu_us_per_request, scheduled},
    },
    progress::Progress,
    report::{Note, Unit, Usage, format},
    scenario::{
        compare::{
            contender::Contender,
            noise::{Noise, Watch},
        },
        http::Requests,
    },
    target::Target,
};

/// What goes over a connection before a transfer is measured, so that its windows have grown.
const WARM: u64 = 64 << 20;

/// How many of the bytes of a whole transfer go before it at most: one of so many.
const WARM_SHARE: u64 = 8;

const GIB: f64 = (1u64 << 30) as f64;

/// How much is asked of a target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Level {
    /// Small requests over so many connections.
    Http(usize),
    /// So many bytes down.
    Download(u64),
    /// So many bytes up.
    Upload(u64),
}

impl Level {
    /// The figures that it gives, in the order of the table.
    pub(super) fn figures(self) -> &'static [Figure] {
        match self {
            Self::Http(_) => &[Figure::Cost, Figure::Rate, Figure::P50, Figure::P99],
            Self::Download(_) | Self::Upload(_) => &[Figure::Throughput, Figure::CostPerGib],
        }
    }
}

impl fmt::Display for Level {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Http(1) => formatter.write_str("small GET, 1 connection"),
            Self::Http(count) => write!(formatter, "small GET, {count} connections"),
            Self::Download(size) => {
                write!(formatter, "download of {}", format::bytes(*size as f64))
            }
            Self::Upload(size) => write!(formatter, "upload of {}", format::bytes(*size as f64)),
        }
    }
}

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Figure {
    /// Processor time of all processes of the target for each request, seconds.
    Cost,
    /// Requests a second.
    Rate,
    /// Median latency, seconds.
    P50,
    /// 99th percentile, seconds.
    P99,
    /// Bytes a second.
    Throughput,
    /// Processor time of all processes of the target for each GiB, seconds.
    CostPerGib,
}

impl Figure {
    /// The head of its column.
    pub(super) fn title(self) -> &'static str {
        match self {
            Self::Cost => "CPU/request",
            Self::Rate => "rate",
            Self::P50 => "p50",
            Self::P99 => "p99",
            Self::Throughput => "throughput",
            Self::CostPerGib => "CPU/GiB",
        }
    }

    /// How its values are written.
    pub(super) fn unit(self) -> Unit {
        match self {
            Self::Cost | Self::P50 | Self::P99 | Self::CostPerGib => Unit::Seconds,
            Self::Rate => Unit::PerSecond,
            Self::Throughput => Unit::BytesPerSecond,
        }
    }
}

/// The figures of one load over one target in one round.
#[derive(Debug, Default)]
pub(super) struct Sample {
    /// Those that could be measured.
    pub(super) figures: BTreeMap<Figure, f64>,
    /// Everything that was counted; latencies only of requests, not of transfers.
    pub(super) slice: Option<Slice>,
    /// How long was measured.
    pub(super) seconds: f64,
    /// What programs used meanwhile.
    pub(super) usage: BTreeMap<String, Usage>,
    /// What to know about it.
    pub(super) notes: Vec<Note>,
    /// Whether the load generator was the limit.
    pub(super) generator_bound: bool,
}

/// Measures.
pub(super) struct Sampler<'a> {
    load: &'a LoadArgs,
    progress: &'a Progress,
}

impl<'a> Sampler<'a> {
    /// With these flags.
    pub(super) fn new(load: &'a LoadArgs, progress: &'a Progress) -> Self {
        Self { load, progress }
    }

    /// One load over one target. What fails is part of the sample.
    pub(super) async fn take(
        &self,
        level: Level,
        contender: &Contender,
        noise: &mut Noise,
    ) -> anyhow::Result<Sample> {
        let target = &contender.target;
        let watch = Watch::start(&target.roles);
        let sample = match level {
            Level::Http(connections) => Box::pin(self.requests(target, connections)).await?,
            Level::Download(size) => Box::pin(self.transfer(target, Way::Down, size)).await,
            Level::Upload(size) => Box::pin(self.transfer(target, Way::Up, size)).await,
        };
        noise.add(watch);
        Ok(sample)
    }

    async fn requests(&self, target: &Target, connections: usize) -> anyhow::Result<Sample> {
        let mut load = Load::new(self.load.stretch(), self.load.threads.into());
        let client = Requests::new(target, Method::GET, None, 0)?;
        load.requests(
            "small requests",
            connections,
            Pace::Closed,
            Arc::new(client),
        );
        let outcome = load.run(self.progress, &target.roles).await?;
        let mut sample = Sample {
            notes: outcome.notes(),
            generator_bound: outcome.generator_bound(),
            ..Sample::default()
        };
        for recording in outcome.recordings {
            let total = recording.total;
            let cost = cpu_us_per_request(&outcome.usage, total.completed);
            sample.set(Figure::Cost, cost.map(|microseconds| microseconds / 1e6));
            if total.completed > 0 {
                sample.set(
                    Figure::Rate,
                    Some(total.completed as f64 / recording.seconds),
                );
                sample.set(Figure::P50, Some(total.latencies.quantile(0.5)));
                sample.set(Figure::P99, Some(total.latencies.quantile(0.99)));
            }
            sample.seconds = recording.seconds;
            sample.slice = Some(total);
        }
        sample.usage = outcome.usage;
        Ok(sample)
    }

    /// On the control thread itself, which has nothing else to do meanwhile.
    async fn transfer(&self, target: &Target, way: Way, size: u64) -> Sample {
        self.progress.message(format::bytes(size as f64));
        let mut sample = Sample::default();
        let patience = patience(self.load.timeout, size);
        let mut line = match timeout(self.load.timeout, Line::connect(target, way)).await {
            Ok(Ok(line)) => line,
            Ok(Err(failure)) => return sample.failed(failure.kind),
            Err(_) => return sample.failed(Kind::ConnectTimeout),
        };
        // What fails here fails again below, and is counted there.
        drop(timeout(patience, line.transfer(target, warm_size(size))).await);
        let meter = Meter::start(target.roles.clone());
        let ran = own_time();
        let begun = Instant::now();
        let moved = timeout(patience, line.transfer(target, size)).await;
        let seconds = begun.elapsed().as_secs_f64();
        let ran = own_time().saturating_sub(ran).as_secs_f64();
        sample.usage = meter.finish();
        sample.seconds = seconds;
        match moved.unwrap_or_else(|_| Err(Failure::fatal(Kind::Timeout))) {
            Err(failure) => return sample.failed(failure.kind),
            Ok(()) => sample.slice = Some(way.moved(size)),
        }
        if ran >= seconds * BUSY {
            sample.generator_bound = true;
            let text = "the load generator was the limit: the target may be faster than this";
            sample.notes.push(Note::warning(text));
        }
        sample.set(Figure::Throughput, Some(size as f64 / seconds));
        let cost = cpu_us_per_request(&sample.usage, 1);
        let gibs = size as f64 / GIB;
        sample.set(
            Figure::CostPerGib,
            cost.map(|microseconds| microseconds / 1e6 / gibs),
        );
        sample
    }
}

impl Sample {
    /// Keeps what is a figure.
    pub(super) fn set(&mut self, figure: Figure, value: Option<f64>) {
        if let Some(value) = value {
            self.figures.insert(figure, value);
        }
    }

    fn failed(mut self, kind: Kind) -> Self {
        self.slice.get_or_insert_default().errors.add(kind, 1);
        self
    }
}

/// The size of the transfer before the measured one.
pub(super) fn warm_size(size: u64) -> u64 {
    (size / WARM_SHARE).min(WARM)
}

/// The longest that a transfer may take: slower than 10 MiB/s is given up.
fn patience(limit: Duration, size: u64) -> Duration {
    limit.max(Duration::from_secs(size / (10 << 20)))
}

/// Which way the bytes of a transfer go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Down,
    Up,
}

impl Way {
    /// One transfer that ended well.
    fn moved(self, size: u64) -> Slice {
        let (bytes_up, bytes_down) = match self {
            Self::Down => (0, size),
            Self::Up => (size, 0),
        };
        Slice {
            completed: 1,
            bytes_up,
            bytes_down,
            ..Slice::default()
        }
    }
}

/// A connection for transfers.
enum Line {
    Down(Box<Lean>),
    Up(Box<Http1>),
}

impl Line {
    async fn connect(target: &Target, way: Way) -> Result<Self, Failure> {
        Ok(match way {
            Way::Down => Self::Down(Box::new(target.dialer.lean().await?)),
            Way::Up => Self::Up(Box::new(target.dialer.http1().await?)),
        })
    }

    /// One transfer; fails when not all of it arrives.
    async fn transfer(&mut self, target: &Target, size: u64) -> Result<(), Failure> {
        let prefix = target.uri().path();
        let template = |method, path: &str| {
            let template = target.template(method, Some(&below(prefix, path)));
            template.map_err(|_| Failure::fatal(Kind::Other("wrong_path")))
        };
        match self {
            Self::Down(connection) => {
                let request = Written::new(&template(Method::GET, &format!("/bytes/{size}"))?, &[]);
                let answer = connection.exchange(&request).await?;
                is_ok(answer.status)?;
                let is_whole = answer.length == size;
                if is_whole {
                    Ok(())
                } else {
                    Err(Failure::fatal(Kind::BodyShort))
                }
            }
            Self::Up(connection) => {
                let request = template(Method::POST, "/upload")?.request(Outgoing::repeated(size));
                let (head, mut rest) = connection.send(request).await?.into_parts();
                is_ok(head.status.as_u16())?;
                let mut told = Vec::new();
                while let Some(piece) = connection.frame(&mut rest).await? {
                    told.extend_from_slice(&piece);
                }
                // The upstream tells how much it got.
                let told = String::from_utf8_lossy(&told).trim().parse::<u64>();
                let is_whole = told == Ok(size);
                if is_whole {
                    Ok(())
                } else {
                    Err(Failure::fatal(Kind::Other("wrong_count")))
                }
            }
        }
    }
}

fn is_ok(status: u16) -> Result<(), Failure> {
    if status == StatusCode::OK.as_u16() {
        Ok(())
    } else {
        Err(Failure::fatal(Kind::Status(status)))
    }
}

/// The path below that of the target's URL.
fn below(prefix: &str, path: &str) -> String {
    format!("{}{path}", prefix.trim_end_matches('/'))
}

/// How long this thread has run.
fn own_time() -> Duration {
    scheduled(Path::new("/proc/thread-self")).map_or(Duration::ZERO, |(ran, _)| ran)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_lie_below_the_url() {
        assert_eq!(below("/", "/upload"), "/upload");
        assert_eq!(below("/a/b/", "/upload"), "/a/b/upload");
        assert_eq!(below("", "/bytes/1"), "/bytes/1");
    }

    #[test]
    fn large_transfers_are_waited_for() {
        let limit = Duration::from_secs(10);
        assert_eq!(patience(limit, 1 << 20), limit);
        assert_eq!(patience(limit, 10 << 30), Duration::from_secs(1024));
        assert_eq!(warm_size(1 << 30), 64 << 20);
        assert_eq!(warm_size(800), 100);
    }
}
