//! Metrics of routes: exchanges by route and status. Their series come and go with the configuration.

use std::collections::HashMap;
use std::sync::{Arc, Weak};

use http::StatusCode;
use parking_lot::Mutex;
use prometheus::{IntCounter, IntCounterVec};
use tunnel_ops::metrics::Families;

/// Classes of the end of an exchange: of its status, or `cancelled` for none.
pub const STATUS_CLASSES: [&str; 5] = ["2xx", "3xx", "4xx", "5xx", "cancelled"];

/// The metrics of all routes.
#[derive(Debug)]
pub struct RoutingMetrics {
    exchanges: IntCounterVec,
    /// Routes in a table or held by an exchange.
    routes: Mutex<HashMap<Box<str>, Weak<RouteMetrics>>>,
}

/// The metrics of one route. Its series are removed with the last holder.
#[derive(Debug)]
pub struct RouteMetrics {
    name: Box<str>,
    /// In the order of [`STATUS_CLASSES`].
    exchanges: Vec<IntCounter>,
    all: Weak<RoutingMetrics>,
}

impl RoutingMetrics {
    /// Registers the metrics, without a series so far.
    ///
    /// # Errors
    /// When there is such a family already.
    pub fn new(families: &mut Families) -> Result<Arc<Self>, prometheus::Error> {
        let exchanges = families.counters(
            "route_exchanges_total",
            "Ended exchanges, by route and status class",
            &["route", "status"],
        )?;
        Ok(Arc::new(Self {
            exchanges,
            routes: Mutex::default(),
        }))
    }

    /// The metrics of a route, made if there are none.
    pub fn route(self: &Arc<Self>, name: &str) -> Arc<RouteMetrics> {
        let mut routes = self.routes.lock();
        if let Some(metrics) = routes.get(name).and_then(Weak::upgrade) {
            return metrics;
        }
        let series = |status: &&str| self.exchanges.with_label_values(&[name, *status]);
        let made = Arc::new(RouteMetrics {
            name: name.into(),
            exchanges: STATUS_CLASSES.iter().map(series).collect(),
            all: Arc::downgrade(self),
        });
        routes.insert(name.into(), Arc::downgrade(&made));
        made
    }
}

impl RouteMetrics {
    /// Counts an exchange by this route that has ended; `None` if it was cancelled before there was a status.
    pub fn on_end(&self, status: Option<StatusCode>) {
        if let Some(counter) = self.exchanges.get(status_class(status)) {
            counter.inc();
        }
    }
}

impl Drop for RouteMetrics {
    fn drop(&mut self) {
        let Some(all) = self.all.upgrade() else {
            return;
        };
        let mut routes = all.routes.lock();
        // New metrics of the route may use the series by now.
        if routes
            .get(&self.name)
            .is_some_and(|metrics| metrics.strong_count() == 0)
        {
            routes.remove(&self.name);
            for status in STATUS_CLASSES {
                // Fails only for missing series.
                let _ = all.exchanges.remove_label_values(&[&*self.name, status]);
            }
        }
    }
}

/// The index of a status in [`STATUS_CLASSES`]; `None` for an exchange that was cancelled.
pub fn status_class(status: Option<StatusCode>) -> usize {
    match status {
        Some(status) => usize::from(status.as_u16() / 100).saturating_sub(2),
        None => STATUS_CLASSES.len() - 1,
    }
}

#[cfg(test)]
mod tests {
    use prometheus::TextEncoder;

    use super::*;

    #[test]
    fn the_series_of_a_route_go_with_it() {
        let mut families = Families::new("tunnel_client");
        let metrics = RoutingMetrics::new(&mut families).unwrap();
        let text = || {
            TextEncoder::new()
                .encode_to_string(&families.registry().gather())
                .unwrap()
        };
        let line = "tunnel_client_route_exchanges_total{route=\"app\",status=\"2xx\"} 1";
        let first = metrics.route("app");
        first.on_end(Some(StatusCode::OK));
        let second = metrics.route("app");
        drop(first);
        assert!(text().contains(line));
        drop(second);
        assert!(!text().contains("route=\"app\""));
        assert!(metrics.routes.lock().is_empty());
    }
}
