//! What is recorded of one exchange: metrics as it goes, one access-log line at its end.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use http::{HeaderValue, Method, StatusCode};
use http_body::Frame;
use prometheus::IntCounter;
use tokio::time::Instant;
use tunnel_ops::telemetry::TraceParent;
use tunnel_proto::{
    exchange::BodyError,
    problem::{Fault, Hop, NOT_TAKEN_DETAIL, Problem, Reason},
};

use crate::{
    budget::{Permit, shaper::Shaper},
    metrics::Metrics,
    tunnel::Tunnel,
};

/// What the access log says of a request.
pub(super) struct Subject {
    pub(super) method: Method,
    pub(super) host: Box<str>,
    /// Without the query, which may hold credentials.
    pub(super) path: Box<str>,
    pub(super) request_id: HeaderValue,
    pub(super) trace: Option<TraceParent>,
    pub(super) peer: std::net::IpAddr,
}

/// One exchange under observation; recorded when dropped.
pub(super) struct Observation {
    metrics: Arc<Metrics>,
    /// The tunnel that carries it, once there is one.
    tunnel: Option<Arc<Tunnel>>,
    /// Its place among those that are open, once it has one.
    permit: Option<Permit>,
    /// What is sent of its body, if it has any.
    upload: Option<Arc<Upload>>,
    /// `None` when there is no access log.
    subject: Option<Box<Subject>>,
    began: Instant,
    /// `None` until there is an answer.
    status: Option<StatusCode>,
    bytes_out: u64,
    end: End,
}

/// What is sent of a request's body, or of an upgraded connection's bytes.
pub(super) struct Upload {
    /// The runtime's.
    counter: IntCounter,
    bytes: AtomicU64,
    shaper: Option<Arc<Shaper>>,
}

enum End {
    /// The platform client went away before the answer's end.
    Abandoned,
    Whole,
    /// Ended in order before it was whole, because who carried it left.
    Moved,
    /// Rare, and larger than all the rest.
    Problem(Box<Problem>),
}

impl Upload {
    /// Counts bytes that are on their way to the runtime.
    pub(super) fn on_sent(&self, length: usize) {
        let length = length as u64;
        self.counter.inc_by(length);
        self.bytes.fetch_add(length, Ordering::Relaxed);
    }

    /// What delays them.
    pub(super) fn shaper(&self) -> Option<&Arc<Shaper>> {
        self.shaper.as_ref()
    }
}

impl Observation {
    /// Begins to observe an exchange.
    pub(super) fn new(metrics: Arc<Metrics>) -> Self {
        Self {
            metrics,
            tunnel: None,
            permit: None,
            upload: None,
            subject: None,
            began: Instant::now(),
            status: None,
            bytes_out: 0,
            end: End::Abandoned,
        }
    }

    /// Has a line written at the end.
    pub(super) fn log(&mut self, subject: Subject) {
        self.subject = Some(Box::new(subject));
    }

    /// Whether a line is written at the end.
    pub(super) fn is_logged(&self) -> bool {
        self.subject.is_some()
    }

    /// The exchange has its place among those that are open, until it is over.
    pub(super) fn on_permitted(&mut self, permit: Permit) {
        self.permit = Some(permit);
    }

    /// The upgrade that was asked for is not granted.
    pub(super) fn on_not_upgraded(&mut self) {
        self.permit.iter_mut().for_each(Permit::not_upgraded);
    }

    /// The request has a body, of which this is to be told what is sent.
    pub(super) fn on_upload(&mut self, counter: IntCounter) -> Arc<Upload> {
        let shaper = self.permit.as_ref().map(|permit| permit.upload().clone());
        let upload = Upload {
            counter,
            bytes: AtomicU64::new(0),
            shaper,
        };
        self.upload.insert(Arc::new(upload)).clone()
    }

    /// What delays the bytes that the runtime sends.
    pub(super) fn download(&self) -> Option<&Arc<Shaper>> {
        self.permit.as_ref().map(Permit::download)
    }

    /// The exchange is about to be sent through this tunnel.
    pub(super) fn on_routed(&mut self, tunnel: Arc<Tunnel>) -> &Tunnel {
        tunnel.metrics.traffic().open.inc();
        match &self.tunnel {
            // Sent once more.
            Some(before) => before.metrics.traffic().open.dec(),
            None => {
                let own_duration = self.began.elapsed().as_secs_f64();
                self.metrics.own_duration.observe(own_duration);
            }
        }
        self.tunnel.insert(tunnel)
    }

    /// The answer's status is known.
    pub(super) fn on_status(&mut self, status: StatusCode) {
        self.status = Some(status);
    }

    /// The tunnel answers by itself.
    pub(super) fn on_problem(&mut self, problem: &Problem) {
        self.status = Some(problem.status());
        // Whoever reads a refusal slowly holds nobody's place.
        self.permit = None;
        if let Some(tunnel) = &self.tunnel {
            tunnel.on_problem(problem.reason());
        }
        self.end = End::Problem(Box::new(problem.clone()));
    }

    pub(super) fn on_frame(&mut self, frame: &Frame<Bytes>) {
        if let Some(data) = frame.data_ref() {
            self.on_received(data.len());
        }
    }

    /// Bytes of the answer are on their way to the platform client.
    pub(super) fn on_received(&mut self, length: usize) {
        let length = length as u64;
        self.bytes_out += length;
        if let Some(tunnel) = &self.tunnel {
            tunnel.metrics.traffic().bytes_out.inc_by(length);
        }
    }

    pub(super) fn on_error(&mut self, error: &BodyError) {
        self.end = End::Problem(Box::new(error.problem(Hop::Server)));
    }

    /// The platform client took nothing of what there was for it, and was given up.
    pub(super) fn on_not_taken(&mut self) {
        if !matches!(self.end, End::Problem(_)) {
            let problem = Problem::new(Hop::Server, Reason::NotTaken, NOT_TAKEN_DETAIL);
            self.end = End::Problem(Box::new(problem));
        }
    }

    pub(super) fn on_end(&mut self) {
        if matches!(self.end, End::Abandoned) {
            self.end = End::Whole;
        }
    }

    /// The stream was ended in order, before it was whole.
    pub(super) fn on_moved(&mut self) {
        self.end = End::Moved;
    }

    fn write_log(&self, subject: &Subject) {
        let problem = match &self.end {
            End::Problem(problem) => Some(problem),
            End::Abandoned | End::Whole | End::Moved => None,
        };
        let end = match (&self.end, problem) {
            (_, Some(problem)) => problem.reason().name(),
            (End::Whole, _) => "whole",
            (End::Moved, _) => "moved",
            _ => "abandoned",
        };
        let runtime = self
            .tunnel
            .as_ref()
            .map(|tunnel| tunnel.metrics.label().as_str());
        let upload = self.upload.as_ref();
        let request_bytes = upload.map_or(0, |upload| upload.bytes.load(Ordering::Relaxed));
        tracing::info!(
            target: "access",
            request_id = subject.request_id.to_str().unwrap_or_default(),
            trace_id = subject.trace.as_ref().map(TraceParent::trace_id),
            runtime,
            method = subject.method.as_str(),
            host = &*subject.host,
            path = &*subject.path,
            status = self.status.map(|status| status.as_u16()),
            request_bytes,
            response_bytes = self.bytes_out,
            duration_ms = milliseconds(self.began.elapsed()),
            peer = %subject.peer,
            end,
            detail = problem.map(|problem| problem.detail()),
            "exchange"
        );
    }
}

/// Whole microseconds, so that no digits of a float's noise are written.
fn milliseconds(time: Duration) -> f64 {
    time.as_micros() as f64 / 1_000.0
}

impl Drop for Observation {
    fn drop(&mut self) {
        self.metrics
            .duration
            .observe(self.began.elapsed().as_secs_f64());
        if let End::Problem(problem) = &self.end {
            self.metrics.count_problem(problem);
            if problem.reason().fault() == Fault::Tunnel {
                tracing::debug!(%problem, "an exchange failed in the tunnel");
            }
        }
        if let Some(tunnel) = &self.tunnel {
            tunnel.metrics.traffic().open.dec();
            if let Some(status) = self.status {
                tunnel.metrics.count_answer(status);
            }
        }
        if let Some(subject) = &self.subject {
            self.write_log(subject);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_written_without_noise() {
        for micros in [0, 1, 7, 1_234, 299_999, 1_000_003, 86_400_000_001] {
            let text = milliseconds(Duration::from_nanos(micros * 1_000 + 999)).to_string();
            let digits = text.split_once('.').map_or(0, |(_, digits)| digits.len());
            assert!(digits <= 3, "{text}");
        }
        assert_eq!(
            milliseconds(Duration::from_micros(1_234)).to_string(),
            "1.234"
        );
    }
}
