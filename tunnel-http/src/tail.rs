//! The live tail: the exchanges of a program, each at its end, for operators who are watching.
//!
//! ```text
//!   access_log ──at its end──▶ Tails ──what passes its filter──▶ ring of each Tail ──▶ stream ──▶ follow, row
//! ```
//!
//! What is shown of an exchange is what its line in the access log says. Nothing is recorded unless somebody reads: an
//! exchange that nobody watches costs one relaxed load. A reader that the ring has overtaken misses exchanges, and is
//! told how many; no exchange waits for a reader.

mod filter;
mod row;
pub mod stream;
pub mod watch;

use std::{
    collections::VecDeque,
    mem,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, SystemTime},
};

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tokio::sync::Notify;

pub use self::filter::{EndWord, FilterError, StatusMatch, TailFilter};

/// Tails that may be open at once, as many as event streams: each costs every exchange that is watched a comparison.
pub const MAX_TAILS: usize = 32;

/// Tails that may be open at once for one runtime, so that one leaves room for others.
pub const MAX_RUNTIME_TAILS: usize = 8;

/// Exchanges that are kept for a reader that is behind: about a second of a busy runtime.
pub const RING: usize = 1_024;

/// Bytes that are kept for a reader that is behind: a ring of usual exchanges has half of it, and of long paths fewer are kept.
const RING_BYTES: usize = 1024 * 1024;

/// Most exchanges that a reader gets at once.
const BATCH: usize = 64;

/// One exchange at its end, or a request that was refused before there was an exchange. The names and values are those of
/// its JSON line in the access log. An absent field is unknown or does not apply.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct ExchangeView {
    /// When it ended, in UTC to the microsecond.
    pub timestamp: String,
    /// The method.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub method: Option<String>,
    /// The host, without its port.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
    /// The path, without its query.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// Whether an upgrade was requested.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub upgrade: Option<bool>,
    /// The label of the host's runtime: of the tunnel server.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub runtime: Option<String>,
    /// The name of the route: of the tunnel client.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub route: Option<String>,
    /// The status of the response.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<u16>,
    /// How it ended: `whole`, `moved`, `cancelled`, `cut_by_stop`, or the reason of its problem.
    pub end: String,
    /// The program that met the problem: `tunnel-server` or `tunnel-client`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hop: Option<String>,
    /// What happened, for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub detail: Option<String>,
    /// Bytes of the request's content that were forwarded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request_bytes: Option<u64>,
    /// Bytes of the response's content.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub response_bytes: Option<u64>,
    /// From its first byte to its end, in milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub duration_ms: Option<f64>,
    /// The request's id.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request_id: Option<String>,
    /// The trace that the request belongs to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trace_id: Option<String>,
    /// The platform client's address, if it is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub peer: Option<String>,
}

impl ExchangeView {
    /// Estimate of its memory.
    fn weight(&self) -> usize {
        let texts = [
            &self.method,
            &self.host,
            &self.path,
            &self.runtime,
            &self.route,
            &self.hop,
            &self.detail,
            &self.request_id,
            &self.trace_id,
            &self.peer,
        ];
        let texts = texts
            .iter()
            .map(|text| text.as_ref().map_or(0, String::len));
        size_of::<Self>() + self.timestamp.len() + self.end.len() + texts.sum::<usize>()
    }

    /// It ends now.
    pub(crate) fn end_now(&mut self) {
        self.timestamp = humantime::format_rfc3339_micros(SystemTime::now()).to_string();
    }

    /// Its time from the first byte to the end.
    pub(crate) fn took(&mut self, time: Duration) {
        // Whole microseconds, so that it has no digits that are noise of a float.
        self.duration_ms = Some(time.as_micros() as f64 / 1_000.0);
    }
}

/// All open tails of a program.
#[derive(Debug, Default)]
pub struct Tails {
    /// Whether there is a tail: read for each exchange.
    is_read: AtomicBool,
    open: ArcSwap<Vec<Arc<Shared>>>,
    /// Held while a tail is opened or closed.
    changing: Mutex<()>,
}

/// As many tails are open as may be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{limit} tails are open{}, which is the limit: close one, or try again later", if *.of_runtime { " for this runtime" } else { "" })]
pub struct TooManyTails {
    limit: usize,
    of_runtime: bool,
}

/// A reader of exchanges, from its beginning until it is dropped.
#[derive(Debug)]
pub struct Tail {
    tails: Arc<Tails>,
    shared: Arc<Shared>,
}

/// What a reader gets.
#[derive(Debug, Clone, PartialEq)]
pub enum Tailed {
    /// An exchange has ended.
    Exchange(Arc<ExchangeView>),
    /// So many exchanges are missing here, because the reader was too slow.
    Missed(u64),
}

#[derive(Debug)]
struct Shared {
    /// The label of the runtime whose exchanges are read; `None` for all exchanges.
    runtime: Option<Box<str>>,
    filter: TailFilter,
    ring: Mutex<Ring>,
    pushed: Notify,
}

#[derive(Debug, Default)]
struct Ring {
    kept: VecDeque<Arc<ExchangeView>>,
    bytes: usize,
    missed: u64,
}

impl Tails {
    /// Reads the exchanges that begin from now on: those of the runtime with this label, or of all, that pass the filter.
    ///
    /// # Errors
    /// When too many tails are open.
    pub fn open(
        self: &Arc<Self>,
        runtime: Option<&str>,
        filter: TailFilter,
    ) -> Result<Tail, TooManyTails> {
        let _changing = self.changing.lock();
        let open = self.open.load();
        let too_many = |limit, of_runtime| Err(TooManyTails { limit, of_runtime });
        if open.len() >= MAX_TAILS {
            return too_many(MAX_TAILS, false);
        }
        let of_runtime = open
            .iter()
            .filter(|tail| tail.runtime.as_deref() == runtime);
        if runtime.is_some() && of_runtime.count() >= MAX_RUNTIME_TAILS {
            return too_many(MAX_RUNTIME_TAILS, true);
        }
        let shared = Arc::new(Shared {
            runtime: runtime.map(Into::into),
            filter,
            ring: Mutex::default(),
            pushed: Notify::new(),
        });
        let all = open.iter().cloned().chain([shared.clone()]).collect();
        self.open.store(Arc::new(all));
        self.is_read.store(true, Ordering::Relaxed);
        Ok(Tail {
            tails: self.clone(),
            shared,
        })
    }

    /// The number of open tails.
    #[must_use]
    pub fn count(&self) -> usize {
        self.open.load().len()
    }

    /// Whether anybody reads.
    #[must_use]
    pub fn is_read(&self) -> bool {
        self.is_read.load(Ordering::Relaxed)
    }

    /// Whether anybody reads exchanges of the runtime with this label, or of none.
    pub(crate) fn is_read_for(&self, runtime: Option<&str>) -> bool {
        self.is_read() && self.open.load().iter().any(|tail| tail.is_of(runtime))
    }

    /// Gives an exchange to those who read its like.
    pub(crate) fn record(&self, view: ExchangeView) {
        let view = Arc::new(view);
        for tail in self.open.load().iter() {
            if tail.is_of(view.runtime.as_deref()) && tail.filter.passes(&view) {
                tail.push(view.clone());
            }
        }
    }

    fn close(&self, closed: &Arc<Shared>) {
        let _changing = self.changing.lock();
        let open = self.open.load();
        let left = open.iter().filter(|tail| !Arc::ptr_eq(tail, closed));
        let left: Vec<_> = left.cloned().collect();
        self.is_read.store(!left.is_empty(), Ordering::Relaxed);
        self.open.store(Arc::new(left));
    }
}

impl Shared {
    fn is_of(&self, runtime: Option<&str>) -> bool {
        self.runtime.is_none() || self.runtime.as_deref() == runtime
    }

    fn push(&self, view: Arc<ExchangeView>) {
        let mut ring = self.ring.lock();
        ring.bytes += view.weight();
        ring.kept.push_back(view);
        while ring.kept.len() > RING || ring.bytes > RING_BYTES {
            let Some(oldest) = ring.kept.pop_front() else {
                break;
            };
            ring.bytes -= oldest.weight();
            ring.missed += 1;
        }
        drop(ring);
        self.pushed.notify_one();
    }
}

impl Tail {
    /// Waits for the next exchanges and returns them, and before them how many are missing. Cancel-safe.
    pub async fn next(&mut self) -> Vec<Tailed> {
        loop {
            let batch = self.batch();
            if !batch.is_empty() {
                return batch;
            }
            // Keeps a permit of a push that came between.
            self.shared.pushed.notified().await;
        }
    }

    fn batch(&mut self) -> Vec<Tailed> {
        let mut ring = self.shared.ring.lock();
        let missed = mem::take(&mut ring.missed);
        let count = ring.kept.len().min(BATCH);
        let exchanges: Vec<_> = ring.kept.drain(..count).collect();
        ring.bytes -= exchanges.iter().map(|view| view.weight()).sum::<usize>();
        drop(ring);
        let missed = (missed > 0).then_some(Tailed::Missed(missed));
        let exchanges = exchanges.into_iter().map(Tailed::Exchange);
        missed.into_iter().chain(exchanges).collect()
    }
}

impl Drop for Tail {
    fn drop(&mut self) {
        self.tails.close(&self.shared);
    }
}

#[cfg(test)]
mod tests;
