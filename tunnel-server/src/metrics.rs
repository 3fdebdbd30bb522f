//! The metric families of the tunnel server, and the series of single runtimes. Those of links between nodes are in
//! `peers`, those of events for the platform in `webhook`, those of the shared directory in `directory::metrics`, the gauges
//! of tables in `gauges`.
//!
//! Labels come from the configuration and from the program's tables only, never from a request. A runtime's series begin
//! with its first exchange and end with its tunnel: a [`RuntimeMetrics`] has their handles, and removes the series when its
//! last holder is dropped.

mod families;
mod peers;
mod webhook;

use std::{
    collections::{BTreeMap, HashMap},
    sync::{Arc, OnceLock, Weak},
    time::{Duration, SystemTime},
};

use http::StatusCode;
use parking_lot::Mutex;
use prometheus::{
    Histogram, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Registry,
    core::{Collector, Desc},
    proto::MetricFamily,
};
use tunnel_directory::RuntimeLabel;
use tunnel_ops::metrics::{Families, Family};
use tunnel_ops::telemetry::tracer::SpanCounters;
use tunnel_proto::{
    close::CloseReason,
    problem::{Hop, Problem, Reason},
    refusal::RefusalReason,
};

pub(crate) use self::peers::Forwarding;
pub use self::peers::PeerMetrics;
pub(crate) use self::webhook::{LostEvent, WebhookMetrics};
use crate::{
    auth::Authenticator,
    directory::DirectoryMetrics,
    gauges::{GaugeFamilies, Gauges},
    history::{Carried, History},
};

/// Upper bounds of the duration histograms, in seconds: from the tunnel's own part, which is tens
/// of microseconds, to long polls.
const DURATIONS: &[f64] = &[
    0.000_1, 0.000_25, 0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5,
    5.0, 10.0, 30.0, 60.0, 300.0,
];

/// Status classes of exchanges, by first digit.
const CLASSES: [&str; 5] = ["1xx", "2xx", "3xx", "4xx", "5xx"];

/// All families; one for each server.
pub struct Metrics {
    families: Families,
    /// Live sessions.
    pub sessions: IntGauge,
    /// Session requests by result: `accepted`, `checked`, or the refusal's reason.
    pub handshakes: IntCounterVec,
    handshakes_open: IntGauge,
    /// TLS handshakes of tunnel clients: full, and resumed.
    tls_handshakes: [IntCounter; 2],
    /// Newer credentials for live sessions that were refused, by reason.
    pub refreshes_refused: IntCounterVec,
    /// Ended sessions by close reason.
    pub sessions_ended: IntCounterVec,
    connections: IntGaugeVec,
    /// Connections refused or ended before a request, by listener and cause.
    pub connections_refused: IntCounterVec,
    /// Answers made by the tunnel itself, by reason and hop.
    problems: IntCounterVec,
    /// Time from the checked request until it is sent through a session.
    pub own_duration: Histogram,
    /// Time from the checked request to the end of the response.
    pub duration: Histogram,
    exchanges: IntCounterVec,
    bytes: IntCounterVec,
    open_exchanges: IntGaugeVec,
    round_trip: Histogram,
    configuration: Configuration,
    read: Read,
    /// Lines of the access log that were lost.
    pub access_log_lost: IntCounter,
    /// What becomes of events for the platform.
    pub(crate) webhook: WebhookMetrics,
    /// Spans, by what became of them.
    pub spans: SpanCounters,
    /// Runtimes that a newer instance took over.
    pub takeovers: IntCounter,
    /// The directory that several nodes share.
    pub directory: DirectoryMetrics,
    /// The links to other nodes.
    pub peers: PeerMetrics,
    runtimes: Mutex<HashMap<RuntimeLabel, Weak<RuntimeMetrics>>>,
}

/// The configuration in force, and the results of reloads.
struct Configuration {
    /// Reloads, by result.
    reloads: IntCounterVec,
    version: IntGauge,
    last_reload_succeeded: IntGauge,
    certificate_ends: IntGaugeVec,
    /// Orders of certificates by ACME: `obtained`, `failed`.
    acme_orders: IntCounterVec,
}

/// Gauges whose values are looked up whenever the metrics are read.
struct Read {
    tasks: IntGauge,
    buffered: IntGauge,
    held: IntGaugeVec,
    runtimes: IntGaugeVec,
    runtime_online: IntGaugeVec,
    runtime_last_online: IntGaugeVec,
    platform_away: IntGauge,
    jwks_keys: IntGauge,
}

/// The series of one runtime.
pub struct RuntimeMetrics {
    label: RuntimeLabel,
    metrics: Arc<Metrics>,
    /// What remains of the series when they end.
    history: Arc<History>,
    /// Made with the first exchange, since most runtimes are idle most of the time.
    classes: [OnceLock<IntCounter>; 5],
    traffic: OnceLock<Traffic>,
}

/// The series of what a runtime carries, made with its first exchange.
pub struct Traffic {
    /// Bytes of request bodies sent to the runtime.
    pub bytes_in: IntCounter,
    /// Bytes of response bodies received from it.
    pub bytes_out: IntCounter,
    /// Open exchanges, including upgraded connections.
    pub open: IntGauge,
}

/// Counts one open connection until it is dropped.
#[derive(Debug)]
pub struct OpenConnection(IntGauge);

impl Drop for OpenConnection {
    fn drop(&mut self) {
        self.0.dec();
    }
}

impl Metrics {
    /// Registers all families.
    ///
    /// # Errors
    /// Never with the names here; the library returns a `Result`.
    pub fn new() -> prometheus::Result<Arc<Self>> {
        let mut families = Families::new("tunnel_server");
        let new = &mut families;
        new.process(env!("CARGO_PKG_VERSION"))?;
        let metrics = Arc::new(Self {
            sessions: new.gauge("sessions", "Live sessions")?,
            handshakes: new.counters_of(
                "handshakes_total",
                "Requests for a session: accepted, checked, or the reason of the refusal",
                "result",
                ["accepted", "checked"].into_iter().chain(refusals()),
            )?,
            handshakes_open: new.gauge("handshakes_open", "Handshakes under way")?,
            tls_handshakes: families::tls_handshakes(new)?,
            refreshes_refused: new.counters_of(
                "refreshes_refused_total",
                "Newer tokens of live sessions that were refused",
                "reason",
                refusals(),
            )?,
            sessions_ended: new.counters_of(
                "sessions_ended_total",
                "Ended sessions",
                "reason",
                CloseReason::ALL.map(CloseReason::name),
            )?,
            connections: families::connections(new)?,
            connections_refused: families::connections_refused(new)?,
            problems: families::problems(new)?,
            own_duration: new.histogram(
                "own_duration_seconds",
                "From the checked request until it is on its way through a session",
                DURATIONS,
            )?,
            duration: new.histogram(
                "exchange_duration_seconds",
                "From the checked request to the end of its response",
                DURATIONS,
            )?,
            exchanges: new.counters(
                "exchanges_total",
                "Answered exchanges, by status class",
                &["runtime", "status"],
            )?,
            bytes: new.counters(
                "bytes_total",
                "Bytes of bodies; in is towards the runtime",
                &["runtime", "direction"],
            )?,
            open_exchanges: new.gauges(
                "open_exchanges",
                "Open exchanges, upgraded connections included",
                &["runtime"],
            )?,
            round_trip: new.histogram(
                "round_trip_seconds",
                "Round-trip times of the pings of all sessions",
                DURATIONS,
            )?,
            configuration: Configuration::new(new)?,
            read: Read::new(new)?,
            access_log_lost: families::access_log_lost(new)?,
            webhook: WebhookMetrics::new(new)?,
            spans: SpanCounters::new(new)?,
            takeovers: families::takeovers(new)?,
            directory: DirectoryMetrics::new(new)?,
            peers: PeerMetrics::new(new)?,
            runtimes: Mutex::default(),
            families,
        });
        Ok(metrics)
    }

    /// Every family. `platform_away` and `jwks_keys` are registered only if the configuration accepts tokens of the platform
    /// or JSON Web Tokens.
    #[must_use]
    pub fn families(&self) -> &[Family] {
        self.families.list()
    }

    /// The registry that `/metrics` is made from.
    #[must_use]
    pub fn registry(&self) -> &Registry {
        self.families.registry()
    }

    /// Counts an open connection of a listener until the returned guard is dropped.
    #[must_use]
    pub fn connection(&self, listener: &'static str) -> OpenConnection {
        let gauge = self.connections.with_label_values(&[listener]);
        gauge.inc();
        OpenConnection(gauge)
    }

    /// Counts a connection that has passed the gate, until the returned guard is dropped at the end of its handshake.
    #[must_use]
    pub fn handshake(&self) -> OpenConnection {
        self.handshakes_open.inc();
        OpenConnection(self.handshakes_open.clone())
    }

    /// Counts a TLS handshake of a tunnel client.
    pub fn on_tls_handshake(&self, is_resumed: bool) {
        let [full, resumed] = &self.tls_handshakes;
        let done = if is_resumed { resumed } else { full };
        done.inc();
    }

    /// Records the round-trip time of a session, for all runtimes together: a histogram for each of thousands of runtimes
    /// would be too many series.
    pub fn observe_round_trip(&self, time: Duration) {
        self.round_trip.observe(time.as_secs_f64());
    }

    /// Counts a reload.
    pub fn on_reload(&self, is_good: bool) {
        let result = if is_good { "taken" } else { "refused" };
        self.configuration
            .reloads
            .with_label_values(&[result])
            .inc();
        self.configuration
            .last_reload_succeeded
            .set(i64::from(is_good));
        if is_good {
            self.configuration.version.inc();
        }
    }

    /// Sets the expiry of a listener's certificate.
    pub fn set_certificate_expiry(&self, listener: &'static str, not_after: SystemTime) {
        let seconds = not_after.duration_since(SystemTime::UNIX_EPOCH);
        let seconds = i64::try_from(seconds.unwrap_or_default().as_secs());
        let ends = &self.configuration.certificate_ends;
        ends.with_label_values(&[listener])
            .set(seconds.unwrap_or(i64::MAX));
    }

    /// Counts an order of a certificate by ACME.
    pub(crate) fn on_acme_order(&self, is_obtained: bool) {
        let result = if is_obtained { "obtained" } else { "failed" };
        let orders = &self.configuration.acme_orders;
        orders.with_label_values(&[result]).inc();
    }

    /// Registers the gauges of the platform and of the issuer's keys, if credentials are checked with them.
    ///
    /// # Errors
    /// When it is called twice.
    pub fn register_credentials(
        &self,
        authenticator: &Arc<Authenticator>,
    ) -> prometheus::Result<()> {
        if authenticator.is_platform_away().is_some() {
            let authenticator = authenticator.clone();
            let is_away = move || i64::from(authenticator.is_platform_away() == Some(true));
            self.register(&self.read.platform_away, is_away)?;
        }
        if authenticator.key_count().is_some() {
            let authenticator = authenticator.clone();
            let count = move || authenticator.key_count().unwrap_or_default();
            let count = move || i64::try_from(count()).unwrap_or(i64::MAX);
            self.register(&self.read.jwks_keys, count)?;
        }
        Ok(())
    }

    /// Registers a gauge whose value is computed whenever it is read.
    fn register(
        &self,
        gauge: &IntGauge,
        value: impl Fn() -> i64 + Send + Sync + 'static,
    ) -> prometheus::Result<()> {
        let gauge = gauge.clone();
        self.registry()
            .register(Box::new(ComputedGauge { gauge, value }))
    }

    /// Registers the gauges of a server. `count` is called whenever the metrics are read, and returns `None` when the server
    /// has stopped.
    ///
    /// # Errors
    /// When it is called twice.
    pub(crate) fn show_gauges(
        &self,
        count: impl Fn() -> Option<Gauges> + Send + Sync + 'static,
    ) -> prometheus::Result<()> {
        let families = GaugeFamilies {
            count,
            tasks: self.read.tasks.clone(),
            buffered: self.read.buffered.clone(),
            entries: self.read.held.clone(),
            runtimes: self.read.runtimes.clone(),
            runtime_online: self.read.runtime_online.clone(),
            runtime_last_online: self.read.runtime_last_online.clone(),
        };
        self.registry().register(Box::new(families))
    }

    /// The number of configurations applied since the start, from 1.
    #[must_use]
    pub fn config_version(&self) -> u64 {
        u64::try_from(self.configuration.version.get()).unwrap_or_default()
    }

    /// Counts a problem that the tunnel itself responds with.
    pub fn count_problem(&self, problem: &Problem) {
        let labels = [problem.reason().name(), problem.hop().name()];
        self.problems.with_label_values(&labels).inc();
    }

    /// Exchanges that have ended.
    #[must_use]
    pub fn ended_exchanges(&self) -> u64 {
        self.duration.get_sample_count()
    }

    /// The problems that were counted, by reason.
    #[must_use]
    pub fn problems_by_reason(&self) -> BTreeMap<String, u64> {
        let count = |reason: &Reason| {
            let of_hop = |hop: Hop| {
                let labels = [reason.name(), hop.name()];
                self.problems.with_label_values(&labels).get()
            };
            let count = of_hop(Hop::Server) + of_hop(Hop::Client);
            (count > 0).then(|| (reason.name().to_owned(), count))
        };
        Reason::ALL.iter().filter_map(count).collect()
    }

    /// Handshakes of tunnel clients that are under way.
    #[must_use]
    pub fn open_handshakes(&self) -> i64 {
        self.handshakes_open.get()
    }

    /// The series of a runtime, which are made if it has none.
    #[must_use]
    pub fn runtime(
        self: &Arc<Self>,
        label: &RuntimeLabel,
        history: &Arc<History>,
    ) -> Arc<RuntimeMetrics> {
        let mut runtimes = self.runtimes.lock();
        if let Some(held) = runtimes.get(label).and_then(Weak::upgrade) {
            return held;
        }
        let made = Arc::new(RuntimeMetrics {
            label: label.clone(),
            metrics: self.clone(),
            history: history.clone(),
            classes: Default::default(),
            traffic: OnceLock::new(),
        });
        runtimes.insert(label.clone(), Arc::downgrade(&made));
        made
    }
}

impl Configuration {
    /// The gauges at the start, with the first configuration in force.
    fn new(new: &mut Families) -> prometheus::Result<Self> {
        let families = Self {
            reloads: new.counters_of(
                "config_reloads_total",
                "Reloads of the configuration: taken or refused",
                "result",
                ["taken", "refused"],
            )?,
            version: new.gauge(
                "config_version",
                "1 at the start, and one more for each configuration taken over",
            )?,
            last_reload_succeeded: new.gauge(
                "config_last_reload_succeeded",
                "1, or 0 while the files are faulty",
            )?,
            certificate_ends: new.gauges(
                "certificate_not_after_seconds",
                "End of the listener's certificate in force, in seconds since 1970; of those by ACME the first end, 0 while one is missing",
                &["listener"],
            )?,
            acme_orders: new.counters_of(
                "acme_orders_total",
                "Orders of certificates by ACME: obtained or failed",
                "result",
                ["obtained", "failed"],
            )?,
        };
        families.version.set(1);
        families.last_reload_succeeded.set(1);
        Ok(families)
    }
}

impl Read {
    fn new(new: &mut Families) -> prometheus::Result<Self> {
        Ok(Self {
            tasks: new.unregistered_gauge(
                "tasks",
                "Tasks that have not ended, about three for each connection",
            )?,
            buffered: new.unregistered_gauge(
                "buffered_bytes",
                "Received bytes of answers that platform clients have not taken yet",
            )?,
            held: new.unregistered_gauges("held", "Entries of the server's tables", &["table"])?,
            runtimes: new.unregistered_gauges(
                "runtimes",
                "Known runtimes: online with a session at this node, or offline",
                &["state"],
            )?,
            runtime_online: new.unregistered_gauges(
                "runtime_online",
                "1 while a listed runtime has a session at this node, else 0; only with runtime-metrics",
                &["runtime"],
            )?,
            runtime_last_online: new.unregistered_gauges(
                "runtime_last_online_seconds",
                "When a listed runtime was last online at this node, in seconds since 1970; only with runtime-metrics, and while it is offline",
                &["runtime"],
            )?,
            platform_away: new.unregistered_gauge(
                "platform_away",
                "1 while the platform gives no answer, else 0; only with auth-url",
            )?,
            jwks_keys: new.unregistered_gauge(
                "jwks_keys",
                "Keys that JSON Web Tokens are checked with; only with jwks",
            )?,
        })
    }
}

fn refusals() -> impl Iterator<Item = &'static str> {
    RefusalReason::ALL.iter().map(|reason| reason.name())
}

/// A gauge whose value is computed whenever it is read.
struct ComputedGauge<F> {
    gauge: IntGauge,
    value: F,
}

impl<F: Fn() -> i64 + Send + Sync> Collector for ComputedGauge<F> {
    fn desc(&self) -> Vec<&Desc> {
        self.gauge.desc()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        self.gauge.set((self.value)());
        self.gauge.collect()
    }
}

impl RuntimeMetrics {
    /// The runtime.
    #[must_use]
    pub fn label(&self) -> &RuntimeLabel {
        &self.label
    }

    /// The series of its traffic, which are made if there are none.
    pub fn traffic(&self) -> &Traffic {
        self.traffic.get_or_init(|| {
            let name = self.label.as_str();
            Traffic {
                bytes_in: self.metrics.bytes.with_label_values(&[name, "in"]),
                bytes_out: self.metrics.bytes.with_label_values(&[name, "out"]),
                open: self.metrics.open_exchanges.with_label_values(&[name]),
            }
        })
    }

    /// What is remembered of the runtime.
    #[must_use]
    pub fn history(&self) -> &History {
        &self.history
    }

    /// What these series have counted.
    #[must_use]
    pub fn carried(&self) -> Carried {
        let answers = self.classes.iter().filter_map(OnceLock::get);
        let traffic = self.traffic.get();
        Carried {
            requests: answers.map(IntCounter::get).sum(),
            bytes_in: traffic.map_or(0, |traffic| traffic.bytes_in.get()),
            bytes_out: traffic.map_or(0, |traffic| traffic.bytes_out.get()),
        }
    }

    /// Counts an answered exchange.
    pub fn count_answer(&self, status: StatusCode) {
        let class = usize::from(status.as_u16() / 100).clamp(1, CLASSES.len()) - 1;
        let made = || {
            let labels = [self.label.as_str(), CLASSES[class]];
            self.metrics.exchanges.with_label_values(&labels)
        };
        self.classes[class].get_or_init(made).inc();
    }
}

impl Drop for RuntimeMetrics {
    fn drop(&mut self) {
        let mut runtimes = self.metrics.runtimes.lock();
        // The series may have been made anew since the last holder was dropped.
        if runtimes
            .get(&self.label)
            .is_some_and(|held| held.strong_count() > 0)
        {
            return;
        }
        runtimes.remove(&self.label);
        self.history.on_series_end(self.carried());
        let name = self.label.as_str();
        for class in CLASSES {
            let _ = self.metrics.exchanges.remove_label_values(&[name, class]);
        }
        for direction in ["in", "out"] {
            let _ = self.metrics.bytes.remove_label_values(&[name, direction]);
        }
        let _ = self.metrics.open_exchanges.remove_label_values(&[name]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tunnel_directory::{AccountName, RuntimeName};

    fn label() -> RuntimeLabel {
        let account: AccountName = "acme".parse().unwrap();
        let runtime: RuntimeName = "prod".parse().unwrap();
        RuntimeLabel::new(&account, &runtime).unwrap()
    }

    fn series(metrics: &Metrics) -> usize {
        let families = metrics.registry().gather();
        families
            .iter()
            .flat_map(|family| family.get_metric())
            .filter(|metric| {
                metric
                    .get_label()
                    .iter()
                    .any(|pair| pair.value() == "acme-prod")
            })
            .count()
    }

    #[test]
    fn a_runtimes_series_go_with_the_last_holder_and_what_they_counted_stays() {
        let metrics = Metrics::new().unwrap();
        let history = Arc::new(History::default());
        let first = metrics.runtime(&label(), &history);
        let second = metrics.runtime(&label(), &history);
        first.count_answer(StatusCode::OK);
        assert!(series(&metrics) > 0);
        drop(first);
        assert!(series(&metrics) > 0);
        second.traffic().bytes_in.inc_by(5);
        assert_eq!(history.get().carried, Carried::default());
        drop(second);
        assert_eq!(series(&metrics), 0);
        let carried = Carried {
            requests: 1,
            bytes_in: 5,
            bytes_out: 0,
        };
        assert_eq!(history.get().carried, carried);
    }
}
