//! Spans of exchanges, for an OpenTelemetry collector.
//!
//! ```text
//!   request ─▶ Tracer::trace ─▶ Trace ─▶ attempts ─▶ end ─▶ spans ─▶ queue ─▶ Exporter ─▶ collector
//!                   └── None: off, or not sampled
//! ```
//!
//! An exchange has one span of the kind SERVER, and below it one of the kind CLIENT for each attempt to forward it. Both
//! are made when the exchange has ended, from what its record knows, and are put into a bounded queue: no exchange waits
//! for the collector. Names and attributes are those of OpenTelemetry's semantic conventions for HTTP; what these have no
//! name for begins with `tunnel.`.

mod export;
mod settings;
mod span;

use std::fmt;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::time::Instant;

use self::export::SpanQueue;
pub use self::export::{Exporter, Exporting, SpanCounters};
pub use self::settings::{
    CollectorUrl, GivenTracing, Ratio, TracerFault, TracerSettings, TracingChoice,
};
use self::span::Attempt;
pub use self::span::{AttemptTarget, TracedEnd, TracedRequest};
use super::TraceParent;

/// Most attempts of one exchange that have a span of their own. More upstreams than that are hardly ever tried.
const ATTEMPTS: usize = 16;

/// Traces exchanges, or does not. Clones share everything; the default is off.
#[derive(Debug, Clone, Default)]
pub struct Tracer(Option<Arc<Tracing>>);

#[derive(Debug)]
struct Tracing {
    sampler: Sampler,
    queue: SpanQueue,
}

/// Which exchanges are traced.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Sampler {
    /// Whether the sampled flag of a request's `traceparent` decides, if there is one.
    pub follows_parent: bool,
    /// The part of all other exchanges that is traced, from 0 to 1.
    pub ratio: f64,
}

/// The trace of one exchange that is sampled. Clones share it.
#[derive(Clone)]
pub struct Trace(Arc<TracedExchange>);

struct TracedExchange {
    queue: SpanQueue,
    ids: Ids,
    state: Mutex<TraceState>,
}

/// The ids of the spans of one exchange.
#[derive(Debug, Clone, Copy)]
struct Ids {
    trace: u128,
    /// The span of the sender of the request; `None` at the root of a trace.
    parent: Option<u64>,
    /// The span of the exchange.
    server: u64,
    /// The span of its first attempt, known before the attempt begins.
    first_attempt: u64,
}

#[derive(Debug, Default)]
struct TraceState {
    request: span::RequestAttributes,
    attempts: Vec<Attempt>,
}

impl Tracer {
    /// A tracer that puts the spans of the sampled exchanges into this queue.
    fn new(sampler: Sampler, queue: SpanQueue) -> Self {
        Self(Some(Arc::new(Tracing { sampler, queue })))
    }

    /// The trace of an exchange that begins; `None` if it is not traced. `received` is the `traceparent` of its request,
    /// looked up only where that matters.
    #[must_use]
    pub fn trace(&self, received: impl FnOnce() -> Option<TraceParent>) -> Option<Trace> {
        let tracing = self.0.as_ref()?;
        let ids = tracing.sampler.sample(received())?;
        Some(Trace(Arc::new(TracedExchange {
            queue: tracing.queue.clone(),
            ids,
            state: Mutex::default(),
        })))
    }
}

impl Sampler {
    /// The ids of an exchange that is sampled. The ratio compares the lower part of the trace id, as the SDKs of
    /// OpenTelemetry do, so that programs with equal ratios choose the same traces.
    fn sample(self, received: Option<TraceParent>) -> Option<Ids> {
        let decided = received.filter(|_| self.follows_parent);
        let (trace, parent) = match received {
            Some(received) => (received.trace_number(), Some(received.parent_number())),
            None => (rand::random::<u128>().max(1), None),
        };
        let is_sampled = match decided {
            Some(parent) => parent.is_sampled(),
            None => self.includes(trace),
        };
        is_sampled.then(|| Ids {
            trace,
            parent,
            server: span_id(),
            first_attempt: span_id(),
        })
    }

    fn includes(self, trace: u128) -> bool {
        const RANGE: f64 = (1_u64 << 63) as f64;
        let drawn = (trace as u64) >> 1;
        self.ratio >= 1.0 || drawn < (self.ratio * RANGE) as u64
    }
}

/// A span id; zero is not one.
fn span_id() -> u64 {
    rand::random::<u64>().max(1)
}

impl Trace {
    /// The span of the exchange, as a log names it.
    #[must_use]
    pub fn context(&self) -> TraceParent {
        TraceParent::sampled(self.0.ids.trace, self.0.ids.server)
    }

    /// The `traceparent` of the first attempt, for a head that is written before it begins.
    #[must_use]
    pub fn first_attempt(&self) -> TraceParent {
        TraceParent::sampled(self.0.ids.trace, self.0.ids.first_attempt)
    }

    /// Whether the trace begins here. A received `tracestate` belongs to no trace then, and is not sent on (W3C Trace
    /// Context section 3.3).
    #[must_use]
    pub fn is_root(&self) -> bool {
        self.0.ids.parent.is_none()
    }

    /// What is known of the request.
    pub fn on_request(&self, request: &TracedRequest<'_>) {
        self.0.state.lock().request = request.attributes();
    }

    /// Begins to forward the request to this target, and returns the `traceparent` that goes along. An attempt before it
    /// ends.
    pub fn on_attempt(&self, target: AttemptTarget<'_>) -> TraceParent {
        let mut state = self.0.state.lock();
        let now = Instant::now();
        if let Some(last) = state.attempts.last_mut() {
            last.on_end(now);
        }
        let id = match state.attempts.len() {
            0 => self.0.ids.first_attempt,
            1..ATTEMPTS => span_id(),
            _ => return self.context(),
        };
        state.attempts.push(Attempt::new(id, now, &target));
        TraceParent::sampled(self.0.ids.trace, id)
    }

    /// The request of the current attempt is sent once more, with the `traceparent` that it has. `target` is where to.
    pub fn on_repeated(&self, target: AttemptTarget<'_>) {
        if let Some(last) = self.0.state.lock().attempts.last_mut() {
            last.on_repeated(&target);
        }
    }

    /// The current attempt has failed, for this reason.
    pub fn on_attempt_failed(&self, reason: &'static str) {
        if let Some(last) = self.0.state.lock().attempts.last_mut() {
            last.on_failed(reason);
        }
    }

    /// The head of the response has been received, or made.
    pub fn on_head(&self) {
        self.0.state.lock().request.on_head();
    }

    /// The exchange has ended: its spans are put into the queue. An attempt that has not failed ends with it.
    pub fn end(&self, end: &TracedEnd<'_>) {
        let state = std::mem::take(&mut *self.0.state.lock());
        self.0.queue.send(end.spans(self.0.ids, state));
    }
}

impl fmt::Debug for Trace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Trace").field(&self.context()).finish()
    }
}

#[cfg(test)]
mod tests;
