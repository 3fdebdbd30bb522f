//! Observes an exchange: metrics during it, and one line of the access log, and its spans, at its end.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use http::StatusCode;
use http::header::HOST;
use http::request::Parts;
use tunnel_http::access_log::{self, AccessLog, ExchangeRecord, Forwarded, LoggedRequest};
use tunnel_ops::telemetry::tracer::Trace;
use tunnel_proto::exchange::Protocol;
use tunnel_proto::fields::X_REQUEST_ID;
use tunnel_proto::problem::Problem;
use tunnel_routing::Route;
use tunnel_routing::upstream::Progress;

use crate::metrics::Metrics;

/// Observes one exchange until this is dropped.
pub(crate) struct Observation {
    metrics: Arc<Metrics>,
    record: ExchangeRecord,
    progress: Arc<Progress>,
    /// The route that takes the request; `None` before it is known, or if no route takes the request.
    route: Option<Arc<Route>>,
}

impl Observation {
    /// Begins with a request.
    pub(super) fn new(metrics: Arc<Metrics>, progress: Arc<Progress>) -> Self {
        metrics.open.inc();
        Self {
            metrics,
            record: ExchangeRecord::begin(),
            progress,
            route: None,
        }
    }

    /// Writes a line of the access log at the end, if it is enabled, and makes spans if there is a trace. `peer` is the
    /// platform client's address, which is known only without a tunnel.
    pub(super) fn log(
        &mut self,
        log: &AccessLog,
        trace: Option<Trace>,
        request: &Parts,
        peer: Option<IpAddr>,
    ) {
        if log.is_on() || trace.is_some() {
            let own = trace.as_ref().map(Trace::context);
            let host = request.headers.get(HOST);
            let peer = peer.map(|peer| peer.to_string());
            let request = LoggedRequest {
                method: request.method.as_str(),
                scheme: request.uri.scheme_str(),
                host: host.and_then(|host| host.to_str().ok()),
                path: request.uri.path(),
                is_upgrade: request.extensions.get::<Protocol>().is_some(),
                request_id: request.headers.get(X_REQUEST_ID),
                trace: own.or_else(|| access_log::trace(request)),
                peer: peer.as_deref(),
            };
            self.record.log(log, trace, &request);
        }
    }

    /// A route takes the request.
    pub(super) fn on_route(&mut self, route: Arc<Route>) -> &Route {
        self.route.insert(route)
    }

    /// The response's head is received. `waited` is the time spent waiting for the upstream.
    pub(super) fn on_head(&mut self, status: StatusCode, waited: Duration) {
        self.record.on_status(status);
        self.metrics
            .on_head(self.record.elapsed().saturating_sub(waited));
    }

    /// Bytes of the response's content are sent.
    pub(super) fn on_bytes(&mut self, length: usize) {
        self.record.on_bytes(length);
        self.count_bytes(length as u64);
    }

    /// The exchange fails.
    pub(crate) fn on_problem(&mut self, problem: &Problem) {
        self.record.on_problem(problem);
    }

    /// The record of the exchange.
    pub(crate) fn record(&mut self) -> &mut ExchangeRecord {
        &mut self.record
    }

    /// Counts bytes of the response in the metrics.
    pub(crate) fn count_bytes(&self, bytes: u64) {
        self.metrics.bytes_out.inc_by(bytes);
    }

    /// The response is whole.
    pub(super) fn on_whole(&mut self) {
        self.record.on_whole();
    }
}

impl Drop for Observation {
    fn drop(&mut self) {
        let status = self.record.status();
        self.metrics.open.dec();
        self.metrics.on_end(status, self.record.elapsed());
        if let Some(problem) = self.record.end().problem() {
            self.metrics.on_problem(problem);
        }
        if let Some(route) = &self.route {
            route.metrics().on_end(status);
        }
        self.record.write(Forwarded {
            runtime: None,
            route: self.route.as_ref().map(|route| route.name()),
            request_bytes: self.progress.bytes(),
        });
    }
}

#[cfg(test)]
mod tests {
    use tunnel_proto::problem::{Hop, Reason};

    use super::*;

    fn begin(metrics: &Arc<Metrics>) -> Observation {
        let progress = Arc::new(Progress::new(metrics.bytes_in.clone()));
        Observation::new(Arc::clone(metrics), progress)
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
