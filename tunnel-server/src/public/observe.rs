//! One exchange under observation: metrics as it goes, and one line of the access log, and its spans, at its end.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use http::StatusCode;
use prometheus::IntCounter;
use tunnel_directory::NodeName;
use tunnel_http::access_log::{AccessLog, ExchangeRecord, Forwarded, LoggedRequest, Observer};
use tunnel_ops::telemetry::tracer::{AttemptTarget, Trace};
use tunnel_proto::{
    exchange::BodyError,
    problem::{Fault, Hop, Problem},
};

use super::PublicListener;
use crate::{
    budget::{Permit, shaper::Shaper},
    metrics::RuntimeMetrics,
    tunnel::Tunnel,
};

/// One exchange under observation, until this is dropped.
pub(crate) struct Observation {
    listener: Arc<PublicListener>,
    record: ExchangeRecord,
    /// Through what it is forwarded; `None` before that.
    carrier: Option<ObservedCarrier>,
    /// The runtime's permit for it; `None` before it has one, and after it has failed.
    permit: Option<Permit>,
    /// What is sent of the request's content, if it has any.
    upload: Option<Arc<Upload>>,
}

/// What an exchange is forwarded through.
enum ObservedCarrier {
    /// A tunnel of this node.
    Tunnel(Arc<Tunnel>),
    /// Another node; the series are those of the runtime at this one.
    Node(Arc<RuntimeMetrics>),
}

impl ObservedCarrier {
    fn runtime(&self) -> &RuntimeMetrics {
        match self {
            Self::Tunnel(tunnel) => &tunnel.metrics,
            Self::Node(runtime) => runtime,
        }
    }
}

/// What is sent of a request's content, or of an upgraded connection's bytes.
pub(super) struct Upload {
    /// The runtime's counter of all such bytes.
    counter: IntCounter,
    bytes: AtomicU64,
}

impl Upload {
    /// Counts bytes that are on their way to the runtime.
    pub(super) fn on_sent(&self, length: usize) {
        let length = length as u64;
        self.counter.inc_by(length);
        self.bytes.fetch_add(length, Ordering::Relaxed);
    }
}

impl Observation {
    /// Begins to observe an exchange.
    pub(super) fn new(listener: Arc<PublicListener>) -> Self {
        Self {
            listener,
            record: ExchangeRecord::begin(),
            carrier: None,
            permit: None,
            upload: None,
        }
    }

    /// Has a line written, and spans made, at the end; see [`ExchangeRecord::log`].
    pub(super) fn log(
        &mut self,
        log: &AccessLog,
        trace: Option<Trace>,
        request: &LoggedRequest<'_>,
    ) {
        self.record.log(log, trace, request);
    }

    /// Whether a line is written at the end.
    pub(super) fn is_logged(&self) -> bool {
        self.record.is_logged()
    }

    /// The exchange holds this permit until it is over.
    pub(super) fn on_permitted(&mut self, permit: Permit) {
        self.permit = Some(permit);
    }

    /// The requested upgrade is not granted.
    pub(super) fn on_not_upgraded(&mut self) {
        self.permit.iter_mut().for_each(Permit::not_upgraded);
    }

    /// The request has content. What is sent of it is reported to the returned value.
    pub(super) fn on_upload(&mut self, counter: IntCounter) -> Arc<Upload> {
        let upload = Upload {
            counter,
            bytes: AtomicU64::new(0),
        };
        self.upload.insert(Arc::new(upload)).clone()
    }

    /// What delays the bytes that the runtime gets.
    pub(super) fn upload_shaper(&self) -> Option<Arc<Shaper>> {
        self.permit.as_ref().map(|permit| permit.upload().clone())
    }

    /// What delays the bytes that the runtime sends.
    pub(super) fn download_shaper(&self) -> Option<Arc<Shaper>> {
        self.permit.as_ref().map(|permit| permit.download().clone())
    }

    /// The exchange is about to be sent through this tunnel.
    pub(super) fn on_routed(&mut self, tunnel: Arc<Tunnel>) {
        self.on_carrier(ObservedCarrier::Tunnel(tunnel), AttemptTarget::Tunnel);
    }

    /// The tunnel through which it was sent last.
    pub(super) fn tunnel(&self) -> Option<&Tunnel> {
        match &self.carrier {
            Some(ObservedCarrier::Tunnel(tunnel)) => Some(tunnel),
            _ => None,
        }
    }

    /// The exchange is about to be sent to another node, of this name, that holds the runtime with these series.
    pub(super) fn on_forwarded(&mut self, runtime: Arc<RuntimeMetrics>, node: &NodeName) {
        let target = AttemptTarget::Node(node.as_str());
        self.on_carrier(ObservedCarrier::Node(runtime), target);
    }

    fn on_carrier(&mut self, carrier: ObservedCarrier, target: AttemptTarget<'_>) {
        carrier.runtime().traffic().open.inc();
        let before = self.carrier.replace(carrier);
        if let Some(trace) = self.record.trace() {
            match &before {
                // The head that is sent names the first attempt.
                Some(_) => trace.on_repeated(target),
                None => {
                    trace.on_attempt(target);
                }
            }
        }
        match before {
            // Sent once more.
            Some(before) => before.runtime().traffic().open.dec(),
            None => {
                let own_duration = self.record.elapsed().as_secs_f64();
                self.listener.metrics.own_duration.observe(own_duration);
            }
        }
    }

    /// The answer's status is known.
    pub(super) fn on_status(&mut self, status: StatusCode) {
        self.record.on_status(status);
    }

    /// The response is this problem.
    pub(super) fn on_problem(&mut self, problem: &Problem) {
        self.record.on_problem(problem);
        // A platform client that reads a refusal slowly holds no permit.
        self.permit = None;
        if let Some(carrier) = &self.carrier {
            carrier.runtime().history().on_problem(problem.reason());
        }
    }
}

impl Observer<BodyError> for Observation {
    const HOP: Hop = Hop::Server;

    fn record(&mut self) -> &mut ExchangeRecord {
        &mut self.record
    }

    fn count_bytes(&mut self, bytes: u64) {
        if let Some(carrier) = &self.carrier {
            carrier.runtime().traffic().bytes_out.inc_by(bytes);
        }
    }

    fn problem(error: &BodyError) -> Option<Problem> {
        Some(error.problem(Hop::Server))
    }
}

impl Drop for Observation {
    fn drop(&mut self) {
        if self.listener.lifecycle.is_cut() {
            self.record.on_cut_by_stop();
        }
        let (record, metrics) = (&mut self.record, &self.listener.metrics);
        metrics.duration.observe(record.elapsed().as_secs_f64());
        if let Some(problem) = record.end().problem() {
            metrics.count_problem(problem);
            if problem.reason().fault() == Fault::Tunnel {
                tracing::debug!(%problem, "an exchange failed in the tunnel");
            }
        }
        let runtime = self.carrier.as_ref().map(ObservedCarrier::runtime);
        if let Some(runtime) = runtime {
            runtime.traffic().open.dec();
            if let Some(status) = record.status() {
                runtime.count_answer(status);
            }
        }
        let upload = self.upload.as_ref();
        record.write(Forwarded {
            route: None,
            request_bytes: upload.map_or(0, |upload| upload.bytes.load(Ordering::Relaxed)),
        });
    }
}
