//! One load over one target, once: the run of a round.

use std::{fmt, path::Path, sync::Arc, time::Duration};

use http::Method;
use tokio::time::Instant;

use super::Args;
use crate::{
    client::{
        body::Outgoing,
        connection::Connection,
        minimal::{MinimalClient, Written},
        template::{Template, within},
    },
    load::{BUSY, Load, Pace},
    measure::{
        errors::{Failure, Kind},
        usage::{Meter, scheduled},
    },
    progress::Progress,
    report::{
        Note, Run, format,
        tables::{CPU_PER_GIB, CPU_PER_REQUEST, Figure, P50, P99, RATE, THROUGHPUT},
    },
    scenario::http::Requests,
    target::Target,
};

/// What goes over a connection before a transfer is measured, so that its windows have grown.
const WARM: u64 = 64 << 20;

/// How many of the bytes of a whole transfer go before it at most: one of so many.
const WARM_SHARE: u64 = 8;

/// More of the answer to an upload is not read: it is no count.
const LONGEST_COUNT: usize = 64;

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
    /// The figures of its table.
    pub(super) fn figures(self) -> &'static [Figure] {
        match self {
            Self::Http(_) => &[CPU_PER_REQUEST, RATE, P50, P99],
            Self::Download(_) | Self::Upload(_) => &[THROUGHPUT, CPU_PER_GIB],
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

/// Measures one level over a target once. What fails is part of the run.
pub(super) async fn measure(
    level: Level,
    target: &Target,
    args: &Args,
    progress: &Progress,
) -> anyhow::Result<(Run, Vec<Note>)> {
    let size = match level {
        Level::Http(connections) => {
            let mut load = Load::new(args.load.stretch(), args.load.threads.into());
            let client = Requests::new(target.template(Method::GET, None)?, 0)?;
            let name = "small requests";
            load.requests(name, connections, Pace::Closed, Arc::new(client));
            return Ok(load.run(progress, &target.roles).await?.into_run());
        }
        Level::Download(size) | Level::Upload(size) => size,
    };
    progress.message(format::bytes(size as f64));
    let is_upload = matches!(level, Level::Upload(_));
    let transfer = |size| Transfer::new(target, is_upload, size);
    let (warm, transfer) = (transfer(warm_size(size))?, transfer(size)?);
    Ok(transfer.measure(&warm, target, args.load.timeout).await)
}

/// The size of the transfer before the measured one.
pub(super) fn warm_size(size: u64) -> u64 {
    (size / WARM_SHARE).min(WARM)
}

/// The longest that a transfer may take: slower than 10 MiB/s is given up.
fn longest(limit: Duration, size: u64) -> Duration {
    limit.max(Duration::from_secs(size / (10 << 20)))
}

/// A transfer one way. It is made on the control thread itself, which has nothing else to do meanwhile.
struct Transfer {
    template: Template,
    is_upload: bool,
    size: u64,
}

/// What a transfer goes over.
enum TransferConnection {
    Down(Box<MinimalClient>),
    Up(Connection),
}

impl Transfer {
    fn new(target: &Target, is_upload: bool, size: u64) -> anyhow::Result<Self> {
        let (method, path) = match is_upload {
            true => (Method::POST, "/upload".to_owned()),
            false => (Method::GET, format!("/bytes/{size}")),
        };
        let path = below(target.uri().path(), &path);
        Ok(Self {
            template: target.template(method, Some(&path))?,
            is_upload,
            size,
        })
    }

    /// The run of this transfer, after another over the same connection.
    async fn measure(&self, warm: &Self, target: &Target, limit: Duration) -> (Run, Vec<Note>) {
        let mut run = Run::default();
        let mut notes = Vec::new();
        let longest = longest(limit, self.size);
        let mut connection = match within(limit, self.connect()).await {
            Ok(connection) => connection,
            Err(failure) => {
                run.errors.insert(failure.to_string(), 1);
                return (run, notes);
            }
        };
        // What fails here fails again below, and is counted there.
        let _ = within(longest, warm.make(&mut connection)).await;
        let meter = Meter::start(target.roles.clone());
        let ran = own_time();
        let begun = Instant::now();
        let made = within(longest, self.make(&mut connection)).await;
        run.seconds = begun.elapsed().as_secs_f64();
        let ran = own_time().saturating_sub(ran).as_secs_f64();
        run.usage = meter.finish();
        if let Err(failure) = made {
            run.errors.insert(failure.to_string(), 1);
            return (run, notes);
        }
        run.completed = 1;
        let moved = match self.is_upload {
            true => &mut run.bytes_up,
            false => &mut run.bytes_down,
        };
        *moved = self.size;
        if ran >= run.seconds * BUSY {
            run.generator_bound = true;
            let text = "the load generator was the limit: the target may be faster than this";
            notes.push(Note::warning(text));
        }
        (run, notes)
    }

    async fn connect(&self) -> Result<TransferConnection, Failure> {
        let dialer = &self.template.dialer;
        Ok(if self.is_upload {
            TransferConnection::Up(dialer.connect(false).await?)
        } else {
            TransferConnection::Down(Box::new(dialer.minimal().await?))
        })
    }

    /// Makes the transfer; fails when not all of it arrives.
    async fn make(&self, connection: &mut TransferConnection) -> Result<(), Failure> {
        let is_whole = match connection {
            TransferConnection::Down(connection) => {
                let request = Written::new(&self.template, &[]);
                let answer = connection.exchange(&request).await?;
                if answer.status != 200 {
                    return Err(Failure::fatal(Kind::Status(answer.status)));
                }
                answer.length == self.size
            }
            TransferConnection::Up(connection) => {
                let request = self.template.request(Outgoing::repeated(self.size));
                let answer = connection.send(request).await?;
                if answer.status() != 200 {
                    return Err(Failure::fatal(Kind::Status(answer.status().as_u16())));
                }
                // The upstream answers how much it got.
                let count = connection
                    .collect(answer.into_body(), LONGEST_COUNT)
                    .await?;
                String::from_utf8_lossy(&count).trim().parse() == Ok(self.size)
            }
        };
        let kind = if self.is_upload {
            Kind::Other("wrong_count")
        } else {
            Kind::BodyShort
        };
        is_whole.then_some(()).ok_or_else(|| Failure::fatal(kind))
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
        assert_eq!(longest(limit, 1 << 20), limit);
        assert_eq!(longest(limit, 10 << 30), Duration::from_secs(1024));
        assert_eq!(warm_size(1 << 30), 64 << 20);
        assert_eq!(warm_size(800), 100);
    }
}
