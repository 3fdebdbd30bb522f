//! What is recorded of one exchange: its metrics as it goes, and one line of the access log at its
//! end, whatever that end is.
//!
//! The line never has a query, a field's value other than the host and the two ids, or any content.

use std::sync::Arc;
use std::time::Duration;

use http::header::HOST;
use http::request::Parts;
use http::{HeaderValue, Method, StatusCode, Uri};
use tokio::time::Instant;
use tunnel_ops::telemetry::{TRACE_PARENT, TraceParent};
use tunnel_proto::exchange::Protocol;
use tunnel_proto::fields::X_REQUEST_ID;
use tunnel_proto::problem::{Hop, NOT_TAKEN_DETAIL, Problem, Reason};
use tunnel_routing::Route;
use tunnel_routing::upstream::Progress;

use crate::metrics::Metrics;

/// One exchange on record, from its request to the moment when this is dropped.
pub(super) struct Record {
    metrics: Arc<Metrics>,
    began: Instant,
    progress: Arc<Progress>,
    /// Until it is known, and where none takes the request: none.
    route: Option<Arc<Route>>,
    status: Option<StatusCode>,
    response_bytes: u64,
    end: End,
    /// `None` when there is no access log.
    line: Option<Box<Line>>,
}

/// How an exchange ended.
enum End {
    /// The tunnel server gave it up, or has not got all of it yet.
    Cancelled,
    /// Both messages are whole.
    Whole,
    /// Something failed.
    Problem(Problem),
}

/// What the access log says of a request.
struct Line {
    method: Method,
    host: Option<HeaderValue>,
    uri: Uri,
    is_upgrade: bool,
    request_id: Option<HeaderValue>,
    trace: Option<TraceParent>,
}

impl Record {
    /// Begins with a request.
    pub(super) fn begin(
        metrics: Arc<Metrics>,
        request: &Parts,
        progress: Arc<Progress>,
        has_access_log: bool,
    ) -> Self {
        metrics.open.inc();
        let is_logged = has_access_log && is_enabled();
        Self {
            metrics,
            began: Instant::now(),
            progress,
            route: None,
            status: None,
            response_bytes: 0,
            end: End::Cancelled,
            line: is_logged.then(|| Box::new(Line::new(request))),
        }
    }

    /// A route takes the request.
    pub(super) fn on_route(&mut self, route: Arc<Route>) -> &Route {
        self.route.insert(route)
    }

    /// The response's head is there; `waited` of the time was the upstream's.
    pub(super) fn on_head(&mut self, status: StatusCode, waited: Duration) {
        self.status = Some(status);
        self.metrics
            .on_head(self.began.elapsed().saturating_sub(waited));
    }

    /// A part of the response's content goes on.
    pub(super) fn on_bytes(&mut self, bytes: usize) {
        self.response_bytes += bytes as u64;
        self.metrics.bytes_out.inc_by(bytes as u64);
    }

    /// The exchange fails.
    pub(super) fn on_problem(&mut self, problem: &Problem) {
        self.metrics.on_problem(problem);
        self.status = self.status.or_else(|| Some(problem.status()));
        self.end = End::Problem(problem.clone());
    }

    /// The platform client took nothing of the response for too long.
    pub(super) fn on_not_taken(&mut self) {
        if !matches!(self.end, End::Problem(_)) {
            let problem = Problem::new(Hop::Client, Reason::NotTaken, NOT_TAKEN_DETAIL);
            self.on_problem(&problem);
        }
    }

    /// The response is whole.
    pub(super) fn on_whole(&mut self) {
        if matches!(self.end, End::Cancelled) {
            self.end = End::Whole;
        }
    }
}

impl Drop for Record {
    fn drop(&mut self) {
        let total = self.began.elapsed();
        let request_bytes = self.progress.bytes();
        self.metrics.open.dec();
        self.metrics.on_end(self.status, total);
        if let Some(route) = &self.route {
            route.metrics().on_end(self.status);
        }
        if let Some(line) = &self.line {
            self.log(line, total, request_bytes);
        }
    }
}

impl Record {
    fn log(&self, line: &Line, total: Duration, request_bytes: u64) {
        let (end, detail) = match &self.end {
            End::Cancelled => ("cancelled", None),
            End::Whole => ("whole", None),
            End::Problem(problem) => (problem.reason().name(), Some(problem.detail())),
        };
        tracing::info!(
            target: "access",
            method = line.method.as_str(),
            host = line.host.as_ref().and_then(|host| host.to_str().ok()).unwrap_or_default(),
            path = line.uri.path(),
            upgrade = line.is_upgrade,
            route = self.route.as_ref().map(|route| route.name()),
            status = self.status.map(|status| status.as_u16()),
            end,
            detail,
            request_bytes,
            response_bytes = self.response_bytes,
            duration_ms = total.as_secs_f64() * 1_000.0,
            request_id = line.request_id.as_ref().and_then(|id| id.to_str().ok()),
            trace_id = line.trace.as_ref().map(TraceParent::trace_id),
            "exchange"
        );
    }
}

fn trace(request: &Parts) -> Option<TraceParent> {
    let trace = request.headers.get(TRACE_PARENT)?;
    TraceParent::parse(trace.as_bytes())
}

/// Whether anybody reads the access log.
fn is_enabled() -> bool {
    tracing::enabled!(target: "access", tracing::Level::INFO)
}

impl Line {
    fn new(request: &Parts) -> Self {
        Self {
            method: request.method.clone(),
            host: request.headers.get(HOST).cloned(),
            uri: request.uri.clone(),
            is_upgrade: request.extensions.get::<Protocol>().is_some(),
            request_id: request.headers.get(X_REQUEST_ID).cloned(),
            trace: trace(request),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::Request;

    fn begin(metrics: &Arc<Metrics>) -> Record {
        let (head, ()) = Request::get("http://a.test/")
            .body(())
            .unwrap()
            .into_parts();
        let progress = Arc::new(Progress::new(metrics.bytes_in.clone()));
        Record::begin(Arc::clone(metrics), &head, progress, false)
    }

    fn value(metrics: &Metrics, series: &str) -> f64 {
        let text = prometheus::TextEncoder::new();
        let text = text.encode_to_string(&metrics.registry().gather()).unwrap();
        let line = text.lines().find(|line| line.starts_with(series)).unwrap();
        line.rsplit(' ').next().unwrap().parse().unwrap()
    }

    #[test]
    fn each_end_counts_once() {
        let metrics = Arc::new(Metrics::new().unwrap());
        let mut whole = begin(&metrics);
        whole.on_head(StatusCode::OK, Duration::ZERO);
        whole.on_whole();
        let mut failed = begin(&metrics);
        failed.on_problem(&Problem::new(Hop::Client, Reason::DnsTimeout, ""));
        failed.on_whole();
        let cancelled = begin(&metrics);
        assert_eq!(value(&metrics, "tunnel_client_open_exchanges"), 3.0);
        drop((whole, failed, cancelled));
        assert_eq!(value(&metrics, "tunnel_client_open_exchanges"), 0.0);
        for status in ["2xx", "5xx", "cancelled"] {
            let series = format!("tunnel_client_exchanges_total{{status=\"{status}\"}}");
            assert_eq!(value(&metrics, &series), 1.0, "{status}");
        }
        let problems = "tunnel_client_problems_total{reason=\"dns_timeout\"}";
        assert_eq!(value(&metrics, problems), 1.0);
    }
}
