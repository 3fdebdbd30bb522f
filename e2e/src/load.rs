//! A steady load of every kind of exchange, and a report of each failure.
//!
//! ```text
//!   Load::start ─▶ workers: GET, POST, events, WebSocket, gRPC call, gRPC stream
//!        mark ───▶ timeline ◀── failures              finish ─▶ Report
//! ```
//!
//! Each worker has one exchange at a time, at a set pace, and checks that the answer is the one to its request. A short
//! exchange must be answered completely. A long stream continues until it is ended: by its protocol (between two events,
//! by a WebSocket close with 1001, by gRPC's UNAVAILABLE in trailers), after which the worker begins it again at once, as
//! good clients do; or by a cut, which is a failure. A test records its actions by [`Load::mark`], so that the report
//! shows which failure came after which action. The requests are for the paths of an [`crate::upstream::Upstream`].

mod ask;
mod call;
mod report;
mod subscribe;

use std::{fmt, sync::Arc, time::Duration};

use parking_lot::Mutex;
use tokio::{
    sync::watch,
    task::JoinSet,
    time::{Instant, sleep, timeout},
};

use self::report::Tally;
pub use self::report::{Counts, Failure, Report};
use crate::{
    deadline::{SOON, eventually},
    entry::Entry,
};

/// The number of a worker in its load, from 0.
type WorkerNumber = usize;

/// How long an answer, or the next message of a stream, may take before that is a failure.
const TIME_LIMIT: Duration = Duration::from_secs(20);

/// The kind of a worker's exchanges.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExchangeKind {
    /// A GET on a connection that is kept, as browsers do.
    Get,
    /// A POST with content, each on a connection of its own.
    Post,
    /// Server-Sent Events.
    Events,
    /// Messages that are echoed on a WebSocket.
    WebSocket,
    /// A unary gRPC call.
    Call,
    /// A gRPC call whose answers go on.
    Stream,
}

/// How many workers of each kind, and how fast they are.
#[derive(Clone, Debug)]
pub struct Plan {
    workers: Vec<(ExchangeKind, usize)>,
    pace: Duration,
}

/// A load that goes on until [`Load::finish`].
#[derive(Debug)]
pub struct Load {
    shared: Arc<Shared>,
    workers: JoinSet<()>,
}

/// The streams that workers had open at one moment, one of each worker: by how many of its streams had
/// been ended by protocol until then.
#[derive(Debug)]
pub struct OpenStreams(Vec<(WorkerNumber, u64)>);

/// How an exchange ended.
enum End {
    /// Completely; a stream because the load ends.
    Whole,
    /// The tunnel ended it, in the way of its protocol.
    ByProtocol,
    /// Otherwise, with what was observed.
    Failed(String),
}

#[derive(Debug)]
struct Shared {
    entry: Mutex<Entry>,
    stopped: watch::Sender<bool>,
    tally: Mutex<Tally>,
}

/// What a worker needs: the entry for its requests, and the report.
struct Worker {
    shared: Arc<Shared>,
    number: WorkerNumber,
    kind: ExchangeKind,
    pace: Duration,
    stopped: watch::Receiver<bool>,
    /// When the last whole answer or message came, or the current exchange began.
    last: Instant,
}

impl ExchangeKind {
    /// Every kind.
    pub const ALL: [Self; 6] = [
        Self::Get,
        Self::Post,
        Self::Events,
        Self::WebSocket,
        Self::Call,
        Self::Stream,
    ];
}

impl fmt::Display for ExchangeKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Get => "GET",
            Self::Post => "POST",
            Self::Events => "events",
            Self::WebSocket => "WebSocket",
            Self::Call => "gRPC call",
            Self::Stream => "gRPC stream",
        })
    }
}

impl Plan {
    /// Two workers of every kind.
    pub fn every_kind() -> Self {
        Self {
            workers: ExchangeKind::ALL.map(|kind| (kind, 2)).to_vec(),
            pace: Duration::from_millis(20),
        }
    }

    /// Each worker waits so long after an exchange, and between two messages.
    #[must_use]
    pub fn paced(self, pace: Duration) -> Self {
        Self { pace, ..self }
    }

    /// This many workers of these kinds, and none of others.
    pub fn only(kinds: &[ExchangeKind], workers: usize) -> Self {
        Self {
            workers: kinds.iter().map(|kind| (*kind, workers)).collect(),
            ..Self::every_kind()
        }
    }
}

impl Load {
    /// Starts the workers, which ask at `entry`.
    pub fn start(entry: Entry, plan: &Plan) -> Self {
        let kinds: Vec<_> = (plan.workers.iter())
            .flat_map(|(kind, count)| std::iter::repeat_n(*kind, *count))
            .collect();
        let shared = Arc::new(Shared {
            entry: Mutex::new(entry),
            stopped: watch::Sender::new(false),
            tally: Mutex::new(Tally::new(&kinds)),
        });
        let mut workers = JoinSet::new();
        for (number, kind) in kinds.into_iter().enumerate() {
            let worker = Worker {
                shared: shared.clone(),
                number,
                kind,
                pace: plan.pace,
                stopped: shared.stopped.subscribe(),
                last: Instant::now(),
            };
            workers.spawn(worker.run());
        }
        Self { shared, workers }
    }

    /// Records what the test does now; the report shows it between the failures.
    pub fn mark(&self, what: &str) {
        self.shared.tally.lock().mark(what);
    }

    /// Sends all later requests to another entry, as a load balancer would.
    pub fn lead_to(&self, entry: Entry) {
        *self.shared.entry.lock() = entry;
    }

    /// Waits until each kind has had this many more answers or messages, and each worker one of them.
    ///
    /// # Panics
    /// When that takes long; the message has the report.
    pub async fn wait_progress(&self, ticks: u64) {
        let before = self.report();
        let limit = Instant::now() + SOON;
        loop {
            let lacking = self.report().lacks_since(&before, ticks);
            let Some(kind) = lacking else { return };
            let in_time = Instant::now() < limit;
            assert!(in_time, "{kind} makes no progress\n{}", self.report());
            sleep(Duration::from_millis(5)).await;
        }
    }

    /// The streams of these kinds that are open now. Each worker has had [`Load::wait_progress`] before.
    pub fn open_streams(&self, kinds: &[ExchangeKind]) -> OpenStreams {
        let report = self.report();
        let workers = report.workers().filter(|(_, kind, _)| kinds.contains(kind));
        OpenStreams(
            workers
                .map(|(number, _, counts)| (number, counts.by_protocol))
                .collect(),
        )
    }

    /// Waits until each of these streams was ended by its protocol.
    ///
    /// # Panics
    /// When one is not; the message has the report.
    pub async fn wait_ended_by_protocol(&self, open: &OpenStreams) {
        let what = "each open stream to be ended by its protocol";
        let ended = async || {
            let report = self.report();
            let has_ended = |(number, before): &(WorkerNumber, u64)| {
                report.worker(*number).by_protocol > *before
            };
            open.0.iter().all(has_ended).then_some(())
        };
        let waited = timeout(SOON, eventually(2 * SOON, what, ended)).await;
        assert!(
            waited.is_ok(),
            "{what}: not within {SOON:?}\n{}",
            self.report()
        );
    }

    /// What happened so far with this kind.
    pub fn counts(&self, kind: ExchangeKind) -> Counts {
        self.shared.tally.lock().counts(kind)
    }

    /// What happened so far.
    pub fn report(&self) -> Report {
        self.shared.tally.lock().report()
    }

    /// Waits until the workers have ended their exchanges, and returns the report.
    ///
    /// # Panics
    /// When a worker panicked, which is a fault of this crate.
    pub async fn finish(mut self) -> Report {
        self.shared.stopped.send_replace(true);
        while let Some(ended) = self.workers.join_next().await {
            ended.unwrap();
        }
        self.report()
    }
}

impl Worker {
    async fn run(mut self) {
        let mut kept = KeptConnections::default();
        while !*self.stopped.borrow() {
            self.last = Instant::now();
            self.shared.tally.lock().begin(self.number);
            let entry = self.shared.entry.lock().clone();
            let end = match self.kind {
                ExchangeKind::Get => ask::get(&mut self, &mut kept.connection, &entry).await,
                ExchangeKind::Post => ask::post(&mut self, &entry).await,
                ExchangeKind::Events => subscribe::events(&mut self, &entry).await,
                ExchangeKind::WebSocket => subscribe::websocket(&mut self, &entry).await,
                ExchangeKind::Call => call::once(&mut self, &mut kept.client, &entry).await,
                ExchangeKind::Stream => call::many(&mut self, &entry).await,
            };
            let was_by_protocol = matches!(end, End::ByProtocol);
            self.shared.tally.lock().end(self.number, end);
            if !was_by_protocol {
                sleep(self.pace).await;
            }
        }
    }

    /// A whole answer or message has come.
    fn tick(&mut self) {
        let waited = self.last.elapsed();
        self.last = Instant::now();
        self.shared.tally.lock().tick(self.number, waited);
    }

    /// A kept connection was closed before anything of a request was sent on it.
    fn again(&self) {
        self.shared.tally.lock().again(self.number);
    }

    /// Something to send, different each time.
    fn text(&self) -> String {
        let report = self.shared.tally.lock();
        let own = report.counts_of(self.number);
        format!("{}-{}-{}", self.number, own.begun, own.ticks)
    }

    /// Returns when the load is to end.
    async fn wait_stopped(&mut self) {
        // The sender outlives the workers.
        drop(self.stopped.wait_for(|stopped| *stopped).await);
    }
}

/// The connections that a worker keeps from one exchange to the next.
#[derive(Default)]
struct KeptConnections {
    connection: Option<ask::Connection>,
    client: Option<call::Client>,
}

/// What `future` gives, or that it took too long.
async fn within_time_limit<T>(
    future: impl Future<Output = Result<T, String>>,
) -> Result<T, String> {
    match timeout(TIME_LIMIT, future).await {
        Ok(result) => result,
        Err(_) => Err(format!("no answer within {TIME_LIMIT:?}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{relay::Relay, upstream::Upstream};

    #[tokio::test]
    async fn every_kind_makes_progress_and_none_fails_without_a_reason() {
        let upstream = Upstream::start().await;
        let load = Load::start(upstream.entry(), &Plan::every_kind());
        load.wait_progress(5).await;
        let report = load.finish().await;
        report.assert_none_failed();
        for kind in ExchangeKind::ALL {
            assert!(report.counts(kind).whole >= 1, "{report}");
        }
    }

    #[tokio::test]
    async fn a_cut_is_a_failure_of_whatever_was_under_way() {
        let upstream = Upstream::start().await;
        let relay = Relay::start(upstream.address()).await;
        let kinds = [
            ExchangeKind::Events,
            ExchangeKind::WebSocket,
            ExchangeKind::Stream,
        ];
        let plan = Plan::only(&kinds, 1);
        let load = Load::start(Entry::direct(relay.address()), &plan);
        load.wait_progress(3).await;
        load.mark("the path is cut");
        relay.cut();
        load.wait_progress(3).await;
        let report = load.finish().await;
        for kind in kinds {
            let counts = report.counts(kind);
            assert_eq!((counts.failed, counts.by_protocol), (1, 0), "{report}");
        }
        let text = report.to_string();
        assert!(text.contains("the path is cut"), "{text}");
    }
}
