//! What is recorded of one exchange: metrics as it goes, one access-log line at its end.

use std::sync::Arc;

use bytes::Bytes;
use http::{HeaderValue, Method, StatusCode};
use http_body::Frame;
use tokio::time::Instant;
use tunnel_ops::telemetry::TraceParent;
use tunnel_proto::{
    exchange::BodyError,
    problem::{Fault, Hop, Problem},
};

use crate::{metrics::Metrics, tunnel::Tunnel};

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
    /// `None` when there is no access log.
    subject: Option<Box<Subject>>,
    began: Instant,
    /// `None` until there is an answer.
    status: Option<StatusCode>,
    bytes_out: u64,
    end: End,
}

enum End {
    /// The platform client went away before the answer's end.
    Abandoned,
    Whole,
    /// Rare, and larger than all the rest.
    Problem(Box<Problem>),
}

impl Observation {
    /// Begins to observe an exchange.
    pub(super) fn new(metrics: Arc<Metrics>) -> Self {
        Self {
            metrics,
            tunnel: None,
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

    /// The exchange is about to be sent through this tunnel.
    pub(super) fn on_routed(&mut self, tunnel: Arc<Tunnel>) {
        tunnel.metrics.traffic().open.inc();
        if let Some(before) = self.tunnel.replace(tunnel) {
            // Sent once more.
            before.metrics.traffic().open.dec();
            return;
        }
        self.metrics
            .own_duration
            .observe(self.began.elapsed().as_secs_f64());
    }

    /// The answer's status is known.
    pub(super) fn on_status(&mut self, status: StatusCode) {
        self.status = Some(status);
    }

    /// The tunnel answers by itself.
    pub(super) fn on_problem(&mut self, problem: &Problem) {
        self.status = Some(problem.status());
        self.end = End::Problem(Box::new(problem.clone()));
    }

    pub(super) fn on_frame(&mut self, frame: &Frame<Bytes>) {
        if let Some(data) = frame.data_ref() {
            let length = data.len() as u64;
            self.bytes_out += length;
            if let Some(tunnel) = &self.tunnel {
                tunnel.metrics.traffic().bytes_out.inc_by(length);
            }
        }
    }

    pub(super) fn on_error(&mut self, error: &BodyError) {
        self.end = End::Problem(Box::new(error.problem(Hop::Server)));
    }

    pub(super) fn on_end(&mut self) {
        if matches!(self.end, End::Abandoned) {
            self.end = End::Whole;
        }
    }

    fn write_log(&self, subject: &Subject) {
        let problem = match &self.end {
            End::Problem(problem) => Some(problem),
            End::Abandoned | End::Whole => None,
        };
        let end = match (&self.end, problem) {
            (_, Some(problem)) => problem.reason().name(),
            (End::Whole, _) => "whole",
            _ => "abandoned",
        };
        let runtime = self
            .tunnel
            .as_ref()
            .map(|tunnel| tunnel.metrics.label().as_str());
        tracing::info!(
            target: "access",
            request_id = subject.request_id.to_str().unwrap_or_default(),
            trace_id = subject.trace.as_ref().map(TraceParent::trace_id),
            runtime,
            method = subject.method.as_str(),
            host = &*subject.host,
            path = &*subject.path,
            status = self.status.map(|status| status.as_u16()),
            response_bytes = self.bytes_out,
            duration_ms = self.began.elapsed().as_secs_f64() * 1_000.0,
            peer = %subject.peer,
            end,
            detail = problem.map(|problem| problem.detail()),
            "exchange"
        );
    }
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
