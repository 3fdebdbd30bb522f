//! One load over one target, once: the figures of a round.

use std::{fmt, path::Path, sync::Arc, time::Duration};

use http::{Method, StatusCode};
use tokio::time::{Instant, timeout};

use crate::{
    client::{
        body::Outgoing,
        http1::Http1,
        minimal::{MinimalClient, Written},
    },
    load::{BUSY, Load, LoadArgs, Pace},
    measure::{
        Slice,
        errors::{Failure, Kind},
        usage::{Meter, cpu_us_per_request, scheduled},
    },
    progress::Progress,
    report::{Note, Unit, format},
    scenario::{
        http::Requests,
        rounds::{Figure, Sample},
    },
    target::Target,
};

/// What goes over a connection before a transfer is measured, so that its windows have grown.
const WARM: u64 = 64 << 20;

/// How many of the bytes of a whole transfer go before it at most: one of so many.
const WARM_SHARE: u64 = 8;

const GIB: f64 = (1u64 << 30) as f64;

const REQUESTS: &[Figure] = &[
    Figure::new("CPU/request", Unit::Seconds),
    Figure::new("rate", Unit::PerSecond),
    Figure::new("p50", Unit::Seconds),
    Figure::new("p99", Unit::Seconds),
];

const TRANSFER: &[Figure] = &[
    Figure::new("throughput", Unit::BytesPerSecond),
    Figure::new("CPU/GiB", Unit::Seconds),
];

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
    /// The figures of its samples, in their order.
    pub(super) fn figures(self) -> &'static [Figure] {
        match self {
            Self::Http(_) => REQUESTS,
            Self::Download(_) | Self::Upload(_) => TRANSFER,
        }
    }
}

impl fmt::Display for Level {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bytes = |size: &u64| format::bytes(*size as f64);
        match self {
            Self::Http(1) => formatter.write_str("small GET, 1 connection"),
            Self::Http(count) => write!(formatter, "small GET, {count} connections"),
            Self::Download(size) => write!(formatter, "download of {}", bytes(size)),
            Self::Upload(size) => write!(formatter, "upload of {}", bytes(size)),
        }
    }
}

/// Takes one sample. What fails is part of it.
pub(super) async fn take(
    level: Level,
    target: &Target,
    load: &LoadArgs,
    progress: &Progress,
) -> anyhow::Result<Sample> {
    match level {
        Level::Http(connections) => requests(target, connections, load, progress).await,
        Level::Download(size) | Level::Upload(size) => {
            progress.message(format::bytes(size as f64));
            Ok(transfer(target, level, size, load.timeout).await)
        }
    }
}

async fn requests(
    target: &Target,
    connections: usize,
    args: &LoadArgs,
    progress: &Progress,
) -> anyhow::Result<Sample> {
    let mut load = Load::new(args.stretch(), args.threads.into());
    let client = Arc::new(Requests::new(target, Method::GET, None, 0)?);
    load.requests("small requests", connections, Pace::Closed, client);
    let outcome = load.run(progress, &target.roles).await?;
    let mut sample = Sample {
        notes: outcome.notes(),
        generator_bound: outcome.generator_bound(),
        ..Sample::default()
    };
    for recording in outcome.recordings {
        let total = recording.total;
        let cost = cpu_us_per_request(&outcome.usage, total.completed);
        let any = |value: f64| (total.completed > 0).then_some(value);
        sample.figures = vec![
            cost.map(|microseconds| microseconds / 1e6),
            any(total.completed as f64 / recording.seconds),
            any(total.latencies.quantile(0.5)),
            any(total.latencies.quantile(0.99)),
        ];
        sample.seconds = recording.seconds;
        sample.counts = total;
    }
    sample.usage = outcome.usage;
    Ok(sample)
}

/// A transfer is made on the control thread itself, which has nothing else to do meanwhile.
async fn transfer(target: &Target, level: Level, size: u64, limit: Duration) -> Sample {
    let mut sample = Sample::default();
    let longest = longest(limit, size);
    let mut connection = match timeout(limit, Connection::open(target, level)).await {
        Ok(Ok(connection)) => connection,
        Ok(Err(failure)) => return failed(sample, failure.kind),
        Err(_) => return failed(sample, Kind::ConnectTimeout),
    };
    // What fails here fails again below, and is counted there.
    drop(timeout(longest, connection.transfer(target, warm_size(size))).await);
    let meter = Meter::start(target.roles.clone());
    let ran = own_time();
    let begun = Instant::now();
    let moved = timeout(longest, connection.transfer(target, size)).await;
    let seconds = begun.elapsed().as_secs_f64();
    let ran = own_time().saturating_sub(ran).as_secs_f64();
    sample.usage = meter.finish();
    sample.seconds = seconds;
    if let Err(failure) = moved.unwrap_or_else(|_| Err(Failure::fatal(Kind::Timeout))) {
        return failed(sample, failure.kind);
    }
    let (bytes_up, bytes_down) = match level {
        Level::Upload(_) => (size, 0),
        Level::Http(_) | Level::Download(_) => (0, size),
    };
    sample.counts = Slice {
        completed: 1,
        bytes_up,
        bytes_down,
        ..Slice::default()
    };
    if ran >= seconds * BUSY {
        sample.generator_bound = true;
        let text = "the load generator was the limit: the target may be faster than this";
        sample.notes.push(Note::warning(text));
    }
    let cost = cpu_us_per_request(&sample.usage, 1);
    let cost = cost.map(|microseconds| microseconds / 1e6 / (size as f64 / GIB));
    sample.figures = vec![Some(size as f64 / seconds), cost];
    sample
}

fn failed(mut sample: Sample, kind: Kind) -> Sample {
    sample.counts.errors.add(kind, 1);
    sample
}

/// The size of the transfer before the measured one.
pub(super) fn warm_size(size: u64) -> u64 {
    (size / WARM_SHARE).min(WARM)
}

/// The longest that a transfer may take: slower than 10 MiB/s is given up.
fn longest(limit: Duration, size: u64) -> Duration {
    limit.max(Duration::from_secs(size / (10 << 20)))
}

/// A connection for transfers one way.
enum Connection {
    Down(Box<MinimalClient>),
    Up(Box<Http1>),
}

impl Connection {
    async fn open(target: &Target, level: Level) -> Result<Self, Failure> {
        Ok(match level {
            Level::Upload(_) => Self::Up(Box::new(target.dialer.http1().await?)),
            _ => Self::Down(Box::new(target.dialer.minimal().await?)),
        })
    }

    /// Makes one transfer; fails when not all of it arrives.
    async fn transfer(&mut self, target: &Target, size: u64) -> Result<(), Failure> {
        let prefix = target.uri().path();
        let template = |method, path: &str| {
            let template = target.template(method, Some(&below(prefix, path)));
            template.map_err(|_| Failure::fatal(Kind::Other("wrong_path")))
        };
        let (is_whole, otherwise) = match self {
            Self::Down(connection) => {
                let request = Written::new(&template(Method::GET, &format!("/bytes/{size}"))?, &[]);
                let answer = connection.exchange(&request).await?;
                is_ok(answer.status)?;
                (answer.length == size, Kind::BodyShort)
            }
            Self::Up(connection) => {
                let request = template(Method::POST, "/upload")?.request(Outgoing::repeated(size));
                let (head, mut rest) = connection.send(request).await?.into_parts();
                is_ok(head.status.as_u16())?;
                let mut count = Vec::new();
                while let Some(piece) = connection.frame(&mut rest).await? {
                    count.extend_from_slice(&piece);
                }
                // The upstream answers how much it got.
                let count = String::from_utf8_lossy(&count).trim().parse();
                (count == Ok(size), Kind::Other("wrong_count"))
            }
        };
        is_whole
            .then_some(())
            .ok_or_else(|| Failure::fatal(otherwise))
    }
}

fn is_ok(status: u16) -> Result<(), Failure> {
    let failure = Failure::fatal(Kind::Status(status));
    (status == StatusCode::OK.as_u16())
        .then_some(())
        .ok_or(failure)
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
        assert_eq!(longest(limit, 1 << 20), limit);
        assert_eq!(longest(limit, 10 << 30), Duration::from_secs(1024));
        assert_eq!(warm_size(1 << 30), 64 << 20);
        assert_eq!(warm_size(800), 100);
    }
}
