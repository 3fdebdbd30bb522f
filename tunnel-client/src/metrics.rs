//! All metrics of a client, with help texts. Series are made once, so that counting is one atomic add.
//!
//! No label is taken from a request. All series exist from the start, except those of routes, which depend on the
//! configuration.

use std::sync::Arc;
use std::time::Duration;

use http::StatusCode;
use prometheus::core::{Collector, Desc};
use prometheus::proto::MetricFamily;
use prometheus::{Histogram, IntCounter, IntCounterVec, IntGauge, Registry};
use tokio::runtime::Handle;
use tunnel_ops::metrics::{Families, Family};
use tunnel_ops::telemetry::tracer::SpanCounters;
use tunnel_proto::memory::MemoryAccount;
use tunnel_proto::problem::{Problem, Reason};
use tunnel_routing::metrics::{RoutingMetrics, STATUS_CLASSES, status_class};

use crate::recent_problems::RecentProblems;
use crate::step::Step;

/// Results of a dial, in the order of its steps.
const DIAL_RESULTS: [&str; 14] = [
    "accepted",
    Step::Token.name(),
    Step::Certificate.name(),
    Step::ProxyDns.name(),
    Step::ProxyTcp.name(),
    Step::ProxyTls.name(),
    Step::Proxy.name(),
    Step::Dns.name(),
    Step::Tcp.name(),
    Step::Tls.name(),
    Step::Upgrade.name(),
    "refused",
    "elsewhere",
    "unwelcome",
];

/// Bounds of the times of exchanges and round trips, in seconds: from a quick local answer to a long
/// stream.
const DURATIONS: [f64; 12] = [
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 5.0, 30.0, 300.0,
];

/// Bounds of the client's own part of an exchange, in seconds: usually tens of microseconds.
const OWN_DURATIONS: [f64; 9] = [
    0.000_01, 0.000_025, 0.000_05, 0.000_1, 0.000_25, 0.001, 0.005, 0.025, 0.1,
];

/// All metrics of a client.
#[derive(Debug)]
pub(crate) struct Metrics {
    families: Families,
    /// Sessions that the server has welcomed, and that do not leave.
    pub(crate) sessions: IntGauge,
    /// Open exchanges.
    pub(crate) open: IntGauge,
    /// 1 while `serve` accepts connections, else 0.
    pub(crate) listening: IntGauge,
    /// Connections that `serve` has refused because the most allowed were open.
    pub(crate) connections_refused: IntCounter,
    /// Lines of the access log that were lost.
    pub(crate) access_log_lost: IntCounter,
    /// Spans, by what became of them.
    pub(crate) spans: SpanCounters,
    /// Bytes of requests' content, sent to upstreams.
    pub(crate) bytes_in: IntCounter,
    /// Bytes of responses' content, received from upstreams.
    pub(crate) bytes_out: IntCounter,
    /// The last problems, which `problems_total` only counts.
    pub(crate) recent_problems: RecentProblems,
    buffered: IntGauge,
    round_trip: Histogram,
    duration: Histogram,
    own_duration: Histogram,
    dials: Vec<IntCounter>,
    exchanges: Vec<IntCounter>,
    /// In the order of [`Reason::ALL`].
    problems: Vec<IntCounter>,
    configuration: Configuration,
    routes: Arc<RoutingMetrics>,
}

/// Counts the tasks of the tokio runtime in which the metrics are read, which is the client's only one.
struct Tasks(IntGauge);

impl Collector for Tasks {
    fn desc(&self) -> Vec<&Desc> {
        self.0.desc()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        let alive = Handle::try_current().map(|own| own.metrics().num_alive_tasks());
        let alive = i64::try_from(alive.unwrap_or_default());
        self.0.set(alive.unwrap_or(i64::MAX));
        self.0.collect()
    }
}

/// Reads the bytes of a memory account.
struct Buffered {
    memory: Arc<MemoryAccount>,
    gauge: IntGauge,
}

impl Collector for Buffered {
    fn desc(&self) -> Vec<&Desc> {
        self.gauge.desc()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        let held = i64::try_from(self.memory.held());
        self.gauge.set(held.unwrap_or(i64::MAX));
        self.gauge.collect()
    }
}

/// The version of the configuration, and the results of reloads.
#[derive(Debug)]
struct Configuration {
    /// Applied, and refused.
    reloads: [IntCounter; 2],
    version: IntGauge,
    last_reload_succeeded: IntGauge,
}

impl Metrics {
    /// All metrics, at zero, in a new registry.
    ///
    /// # Errors
    /// When a name is not valid, which those below are.
    pub(crate) fn new() -> Result<Self, prometheus::Error> {
        let mut families = Families::new("tunnel_client");
        let new = &mut families;
        new.process(env!("CARGO_PKG_VERSION"))?;
        let reasons: Vec<_> = Reason::ALL.iter().map(|reason| reason.name()).collect();
        let bytes = new.counters(
            "bytes_total",
            "Bytes of bodies; in is towards the upstream",
            &["direction"],
        )?;
        let tasks = Tasks(new.unregistered_gauge("tasks", "Tasks that have not ended")?);
        Ok(Self {
            sessions: new.gauge("sessions", "Welcomed sessions that do not leave")?,
            open: new.gauge("open_exchanges", "Open exchanges")?,
            listening: new.gauge("listening", "1 while serve accepts connections, else 0")?,
            connections_refused: new.counter(
                "connections_refused_total",
                "Connections that serve closed because max-connections were open",
            )?,
            access_log_lost: new.counter(
                "access_log_lost_lines_total",
                "Access-log lines that their target did not take, or not in time",
            )?,
            spans: SpanCounters::new(new)?,
            bytes_in: bytes.get_metric_with_label_values(&["in"])?,
            bytes_out: bytes.get_metric_with_label_values(&["out"])?,
            recent_problems: RecentProblems::default(),
            buffered: new
                .unregistered_gauge("buffered_bytes", "Received bytes that were not sent on yet")?,
            round_trip: new.histogram("round_trip_seconds", "Round trips of pings", &DURATIONS)?,
            duration: new.histogram(
                "exchange_duration_seconds",
                "From the request to the end of its response",
                &DURATIONS,
            )?,
            own_duration: new.histogram(
                "own_duration_seconds",
                "To the response's head, without dialling and waiting for the upstream",
                &OWN_DURATIONS,
            )?,
            dials: series(
                &new.counters(
                    "dials_total",
                    "Dials by result: accepted, the failed step, refused, elsewhere or unwelcome",
                    &["result"],
                )?,
                &DIAL_RESULTS,
            )?,
            exchanges: series(
                &new.counters(
                    "exchanges_total",
                    "Ended exchanges, by status class or cancelled",
                    &["status"],
                )?,
                &STATUS_CLASSES,
            )?,
            problems: series(
                &new.counters(
                    "problems_total",
                    "Failures of the client, by problem",
                    &["reason"],
                )?,
                &reasons,
            )?,
            configuration: Configuration::new(new)?,
            routes: RoutingMetrics::new(new)?,
            families: registered(families, tasks)?,
        })
    }

    /// A memory account of `limit` bytes with a metric of its bytes.
    ///
    /// # Errors
    /// When this is called a second time.
    pub(crate) fn memory(&self, limit: u64) -> Result<Arc<MemoryAccount>, prometheus::Error> {
        let memory = MemoryAccount::new(usize::try_from(limit).unwrap_or(usize::MAX));
        let buffered = Buffered {
            memory: Arc::clone(&memory),
            gauge: self.buffered.clone(),
        };
        self.families.registry().register(Box::new(buffered))?;
        Ok(memory)
    }

    /// The registry for the admin listener.
    pub(crate) fn registry(&self) -> Registry {
        self.families.registry().clone()
    }

    /// A dial has ended.
    pub(crate) fn on_dial(&self, result: &str) {
        let index = DIAL_RESULTS.iter().position(|known| *known == result);
        if let Some(counter) = index.and_then(|index| self.dials.get(index)) {
            counter.inc();
        }
    }

    /// A session measured its round trip.
    pub(crate) fn on_round_trip(&self, time: Duration) {
        self.round_trip.observe(time.as_secs_f64());
    }

    /// A response's head is received; `own` is the client's own part of the time.
    pub(crate) fn on_head(&self, own: Duration) {
        self.own_duration.observe(own.as_secs_f64());
    }

    /// A problem occurred.
    pub(crate) fn on_problem(&self, problem: &Problem) {
        self.recent_problems.add(problem);
        let reason = problem.reason();
        let index = Reason::ALL.iter().position(|known| *known == reason);
        if let Some(counter) = index.and_then(|index| self.problems.get(index)) {
            counter.inc();
        }
    }

    /// An exchange has ended; `None` when it was cancelled before there was a status.
    pub(crate) fn on_end(&self, status: Option<StatusCode>, total: Duration) {
        self.duration.observe(total.as_secs_f64());
        if let Some(counter) = self.exchanges.get(status_class(status)) {
            counter.inc();
        }
    }

    /// The number of ended exchanges.
    pub(crate) fn ended(&self) -> u64 {
        self.exchanges.iter().map(IntCounter::get).sum()
    }

    /// The metrics of the routes.
    pub(crate) fn routes(&self) -> &Arc<RoutingMetrics> {
        &self.routes
    }

    /// The configuration was read again.
    pub(crate) fn on_reload(&self, is_good: bool) {
        let [taken, refused] = &self.configuration.reloads;
        let reloads = if is_good { taken } else { refused };
        reloads.inc();
        let succeeded = &self.configuration.last_reload_succeeded;
        succeeded.set(i64::from(is_good));
        if is_good {
            self.configuration.version.inc();
        }
    }
}

/// All families, for the reference page.
///
/// # Errors
/// When a name is not valid, which those above are.
pub fn families() -> Result<Vec<Family>, prometheus::Error> {
    Ok(Metrics::new()?.families.list().to_vec())
}

impl Configuration {
    /// For the first configuration.
    fn new(new: &mut Families) -> Result<Self, prometheus::Error> {
        let reloads = new.counters(
            "config_reloads_total",
            "Reloads of the table of routes: taken or refused",
            &["result"],
        )?;
        let version = new.gauge(
            "config_version",
            "1 at the start, and one more for each table of routes taken over",
        )?;
        let last_reload_succeeded = new.gauge(
            "config_last_reload_succeeded",
            "1, or 0 while the files are faulty",
        )?;
        version.set(1);
        last_reload_succeeded.set(1);
        Ok(Self {
            reloads: [
                reloads.get_metric_with_label_values(&["taken"])?,
                reloads.get_metric_with_label_values(&["refused"])?,
            ],
            version,
            last_reload_succeeded,
        })
    }
}

/// Registers a collector with the families.
fn registered(
    families: Families,
    collector: impl Collector + 'static,
) -> Result<Families, prometheus::Error> {
    families.registry().register(Box::new(collector))?;
    Ok(families)
}

/// The series of a family with one label, in the order of `values`.
fn series(family: &IntCounterVec, values: &[&str]) -> Result<Vec<IntCounter>, prometheus::Error> {
    values
        .iter()
        .map(|value| family.get_metric_with_label_values(&[*value]))
        .collect()
}

#[cfg(test)]
mod tests {
    use prometheus::TextEncoder;
    use tunnel_proto::problem::Hop;

    use super::*;

    fn text(metrics: &Metrics) -> String {
        TextEncoder::new()
            .encode_to_string(&metrics.registry().gather())
            .unwrap()
    }

    #[test]
    fn each_event_counts_in_its_own_series() {
        let metrics = Metrics::new().unwrap();
        metrics.on_dial("refused");
        metrics.on_problem(&Problem::new(Hop::Client, Reason::DnsError, ""));
        metrics.on_end(Some(StatusCode::NOT_FOUND), Duration::from_millis(3));
        metrics.on_end(None, Duration::ZERO);
        metrics.on_head(Duration::from_micros(20));
        metrics.on_round_trip(Duration::from_millis(40));
        let text = text(&metrics);
        for line in [
            "tunnel_client_dials_total{result=\"refused\"} 1",
            "tunnel_client_problems_total{reason=\"dns_error\"} 1",
            "tunnel_client_exchanges_total{status=\"4xx\"} 1",
            "tunnel_client_exchanges_total{status=\"cancelled\"} 1",
            "tunnel_client_exchange_duration_seconds_bucket{le=\"0.005\"} 2",
            "tunnel_client_own_duration_seconds_bucket{le=\"0.000025\"} 1",
            "tunnel_client_round_trip_seconds_bucket{le=\"0.05\"} 1",
        ] {
            assert!(
                text.lines().any(|found| found == line),
                "{line} is missing in\n{text}"
            );
        }
    }

    #[test]
    fn reloads_are_counted() {
        let metrics = Metrics::new().unwrap();
        metrics.on_reload(true);
        metrics.on_reload(false);
        let text = text(&metrics);
        for line in [
            "tunnel_client_config_version 2",
            "tunnel_client_config_last_reload_succeeded 0",
            "tunnel_client_config_reloads_total{result=\"refused\"} 1",
        ] {
            assert!(text.contains(line), "{line}");
        }
    }

    #[test]
    fn all_series_are_there_before_anything_happens() {
        let text = text(&Metrics::new().unwrap());
        for reason in Reason::ALL {
            let line = format!(
                "tunnel_client_problems_total{{reason=\"{}\"}} 0",
                reason.name()
            );
            assert!(text.contains(&line), "{line}");
        }
    }
}
