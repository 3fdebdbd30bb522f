//! Every metric of a client, with its help text; made once, so that counting is one atomic add.
//!
//! No label ever comes from a request: all series are there from the start, but for those of routes,
//! which come and go with the configuration.

use std::sync::Arc;
use std::time::Duration;

use http::StatusCode;
use prometheus::core::{Collector, Desc};
use prometheus::proto::MetricFamily;
use prometheus::{Histogram, HistogramOpts, IntCounter, IntCounterVec, IntGauge, Opts, Registry};
use tokio::runtime::Handle;
use tunnel_proto::memory::MemoryAccount;
use tunnel_proto::problem::{Problem, Reason};
use tunnel_routing::metrics::{RoutingMetrics, STATUS_CLASSES, status_class};

/// Results of a dial, in the order of life.
const DIAL_RESULTS: [&str; 13] = [
    "accepted",
    "token",
    "certificate",
    "proxy_resolve",
    "proxy_connect",
    "proxy_tls",
    "proxy_ask",
    "resolve",
    "connect",
    "tls",
    "upgrade",
    "refused",
    "unwelcome",
];

/// Bounds of the times of exchanges and round trips, in seconds: from a quick local answer to a long
/// stream.
const DURATIONS: [f64; 12] = [
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 5.0, 30.0, 300.0,
];

/// Bounds of the client's own part of an exchange, in seconds: a few tens of microseconds when all is
/// well.
const OWN_DURATIONS: [f64; 9] = [
    0.000_01, 0.000_025, 0.000_05, 0.000_1, 0.000_25, 0.001, 0.005, 0.025, 0.1,
];

/// All metrics of a client.
#[derive(Debug)]
pub(crate) struct Metrics {
    registry: Registry,
    /// Sessions that the server has welcomed, and that do not leave.
    pub(crate) sessions: IntGauge,
    /// Exchanges that are open.
    pub(crate) open: IntGauge,
    /// 1 while `serve` takes connections, else 0.
    pub(crate) listening: IntGauge,
    /// Connections that `serve` has refused since as many as allowed were open.
    pub(crate) connections_refused: IntCounter,
    /// Bytes of requests' content, sent to upstreams.
    pub(crate) bytes_in: IntCounter,
    /// Bytes of responses' content, received from them.
    pub(crate) bytes_out: IntCounter,
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

/// Counts the tasks of whoever reads the metrics, which is the client itself: it has one thread for all.
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

/// Shows what an account holds.
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

/// What is in force, and how the last reloads went.
#[derive(Debug)]
struct Configuration {
    /// Taken, and refused.
    reloads: [IntCounter; 2],
    version: IntGauge,
    last_reload_succeeded: IntGauge,
}

impl Metrics {
    /// All of them, at zero, in a registry of their own.
    ///
    /// # Errors
    /// Never with the names below; they are checked by the library.
    pub(crate) fn new() -> Result<Self, prometheus::Error> {
        let all = Registry::new();
        let reasons: Vec<_> = Reason::ALL.iter().map(|reason| reason.name()).collect();
        let bytes = opts(
            "bytes_total",
            "bytes of content; in is towards the upstream",
        );
        let bytes = registered(&all, IntCounterVec::new(bytes, &["direction"])?)?;
        let tasks = IntGauge::with_opts(opts("tasks", "tasks that have not ended"))?;
        all.register(Box::new(Tasks(tasks)))?;
        Ok(Self {
            sessions: gauge(
                &all,
                "sessions",
                "sessions that the server has welcomed, and that do not leave",
            )?,
            open: gauge(&all, "open_exchanges", "exchanges that are open")?,
            listening: gauge(&all, "listening", "1 while serve takes connections, else 0")?,
            connections_refused: counter(
                &all,
                "connections_refused_total",
                "connections that serve refused since max-connections were open",
            )?,
            bytes_in: bytes.get_metric_with_label_values(&["in"])?,
            bytes_out: bytes.get_metric_with_label_values(&["out"])?,
            round_trip: histogram(
                &all,
                "round_trip_seconds",
                "round-trip time that pings through a session showed",
                &DURATIONS,
            )?,
            duration: histogram(
                &all,
                "exchange_duration_seconds",
                "time from an exchange's request to the end of its response",
                &DURATIONS,
            )?,
            own_duration: histogram(
                &all,
                "own_duration_seconds",
                "time up to a response's head that was not spent waiting for the upstream",
                &OWN_DURATIONS,
            )?,
            dials: counters(
                &all,
                "dials_total",
                "dials by result",
                "result",
                &DIAL_RESULTS,
            )?,
            exchanges: counters(
                &all,
                "exchanges_total",
                "exchanges that have ended, by the class of their status",
                "status",
                &STATUS_CLASSES,
            )?,
            problems: counters(
                &all,
                "problems_total",
                "exchanges that failed, by reason",
                "reason",
                &reasons,
            )?,
            configuration: Configuration::new(&all)?,
            routes: RoutingMetrics::new(&all)?,
            registry: all,
        })
    }

    /// An account of `limit` bytes whose bytes are shown.
    ///
    /// # Errors
    /// Never the first time.
    pub(crate) fn memory(&self, limit: u64) -> Result<Arc<MemoryAccount>, prometheus::Error> {
        let memory = MemoryAccount::new(usize::try_from(limit).unwrap_or(usize::MAX));
        let help = "bytes that were received and not sent on yet";
        let gauge = IntGauge::with_opts(opts("buffered_bytes", help))?;
        self.registry.register(Box::new(Buffered {
            memory: Arc::clone(&memory),
            gauge,
        }))?;
        Ok(memory)
    }

    /// What the admin listener shows.
    pub(crate) fn registry(&self) -> Registry {
        self.registry.clone()
    }

    /// A dial came to its end.
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

    /// A response's head is there, after this much time of our own.
    pub(crate) fn on_head(&self, own: Duration) {
        self.own_duration.observe(own.as_secs_f64());
    }

    /// Something failed.
    pub(crate) fn on_problem(&self, problem: &Problem) {
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

    /// Those of the routes.
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

impl Configuration {
    /// The first configuration, which was good.
    fn new(all: &Registry) -> Result<Self, prometheus::Error> {
        let reloads = opts("config_reloads_total", "reloads of the configuration");
        let reloads = registered(all, IntCounterVec::new(reloads, &["result"])?)?;
        let version = gauge(
            all,
            "config_version",
            "counts the configurations taken over since the start",
        )?;
        let last_reload_succeeded = gauge(
            all,
            "config_last_reload_succeeded",
            "whether the configuration was good when it was last read: 1 or 0",
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

fn opts(name: &str, help: &str) -> Opts {
    Opts::new(format!("tunnel_client_{name}"), help)
}

fn registered<C: Collector + Clone + 'static>(
    registry: &Registry,
    metric: C,
) -> Result<C, prometheus::Error> {
    registry.register(Box::new(metric.clone()))?;
    Ok(metric)
}

fn counter(registry: &Registry, name: &str, help: &str) -> Result<IntCounter, prometheus::Error> {
    registered(registry, IntCounter::with_opts(opts(name, help))?)
}

fn gauge(registry: &Registry, name: &str, help: &str) -> Result<IntGauge, prometheus::Error> {
    registered(registry, IntGauge::with_opts(opts(name, help))?)
}

fn histogram(
    registry: &Registry,
    name: &str,
    help: &str,
    bounds: &[f64],
) -> Result<Histogram, prometheus::Error> {
    let opts = HistogramOpts::from(opts(name, help)).buckets(bounds.to_vec());
    registered(registry, Histogram::with_opts(opts)?)
}

/// A family with one label, all of its series made at once, in the order of the values.
fn counters(
    registry: &Registry,
    name: &str,
    help: &str,
    label: &str,
    values: &[&str],
) -> Result<Vec<IntCounter>, prometheus::Error> {
    let family = registered(registry, IntCounterVec::new(opts(name, help), &[label])?)?;
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
