//! The metric families of a program: made and registered in one place, which also lists what they are.

#[cfg(target_os = "linux")]
use prometheus::process_collector::ProcessCollector;
use prometheus::{
    Histogram, HistogramOpts, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Opts, Registry,
    Result, core::Collector,
};

use crate::build;

/// One metric family, as the reference page lists it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Family {
    /// Its name, with the program's prefix.
    pub name: String,
    /// `gauge`, `counter` or `histogram`.
    pub kind: &'static str,
    /// The names of its labels.
    pub labels: Vec<String>,
    /// What it shows, in one clause.
    pub help: String,
}

/// Makes metric families in a registry of its own, and lists them. Their names all begin with one prefix.
///
/// A method fails when the registry already has a family of that name, or the library refuses the name.
#[derive(Debug)]
pub struct Families {
    prefix: &'static str,
    registry: Registry,
    list: Vec<Family>,
}

impl Families {
    /// No families yet; `prefix` is put in front of each name, with an underscore.
    #[must_use]
    pub fn new(prefix: &'static str) -> Self {
        Self {
            prefix,
            registry: Registry::new(),
            list: Vec::new(),
        }
    }

    /// Where the families are registered.
    #[must_use]
    pub fn registry(&self) -> &Registry {
        &self.registry
    }

    /// Every family that was made, in the order of making.
    #[must_use]
    pub fn list(&self) -> &[Family] {
        &self.list
    }

    /// A gauge without labels.
    pub fn gauge(&mut self, name: &str, help: &str) -> Result<IntGauge> {
        let gauge = self.unregistered_gauge(name, help)?;
        self.registered(gauge)
    }

    /// A gauge with labels.
    pub fn gauges(&mut self, name: &str, help: &str, labels: &[&str]) -> Result<IntGaugeVec> {
        let gauges = self.unregistered_gauges(name, help, labels)?;
        self.registered(gauges)
    }

    /// A gauge with one label of a few known values, all of which are there from the start.
    pub fn gauges_of(
        &mut self,
        name: &str,
        help: &str,
        label: &str,
        values: impl IntoIterator<Item = &'static str>,
    ) -> Result<IntGaugeVec> {
        let gauges = self.gauges(name, help, &[label])?;
        for value in values {
            gauges.get_metric_with_label_values(&[value])?;
        }
        Ok(gauges)
    }

    /// A gauge for a collector that sets it whenever it is read; the caller registers the collector.
    pub fn unregistered_gauge(&mut self, name: &str, help: &str) -> Result<IntGauge> {
        IntGauge::with_opts(self.listed("gauge", name, help, &[]))
    }

    /// Gauges with labels, for a collector that sets them whenever they are read; the caller registers the collector.
    pub fn unregistered_gauges(
        &mut self,
        name: &str,
        help: &str,
        labels: &[&str],
    ) -> Result<IntGaugeVec> {
        IntGaugeVec::new(self.listed("gauge", name, help, labels), labels)
    }

    /// A counter without labels.
    pub fn counter(&mut self, name: &str, help: &str) -> Result<IntCounter> {
        let options = self.listed("counter", name, help, &[]);
        self.registered(IntCounter::with_opts(options)?)
    }

    /// A counter with labels.
    pub fn counters(&mut self, name: &str, help: &str, labels: &[&str]) -> Result<IntCounterVec> {
        let options = self.listed("counter", name, help, labels);
        self.registered(IntCounterVec::new(options, labels)?)
    }

    /// A counter with one label of a few known values, all of which are there from the start: the first increment of a
    /// series that appears with it is not seen by `increase` and `rate`.
    pub fn counters_of(
        &mut self,
        name: &str,
        help: &str,
        label: &str,
        values: impl IntoIterator<Item = &'static str>,
    ) -> Result<IntCounterVec> {
        let counters = self.counters(name, help, &[label])?;
        for value in values {
            counters.get_metric_with_label_values(&[value])?;
        }
        Ok(counters)
    }

    /// Version and commit of the program, and what it uses as a process: `process_…`, without the prefix, which are the names that
    /// all exporters use. Those are there on Linux only.
    pub fn process(&mut self, version: &str) -> Result<()> {
        let info = self.gauges(
            "build_info",
            "1; the labels have version and commit of the program",
            &["version", "commit"],
        )?;
        info.get_metric_with_label_values(&[version, build::commit()])?
            .set(1);
        #[cfg(target_os = "linux")]
        self.registry
            .register(Box::new(ProcessCollector::for_self()))?;
        Ok(())
    }

    /// A histogram without labels; `bounds` are the upper bounds of its buckets.
    pub fn histogram(&mut self, name: &str, help: &str, bounds: &[f64]) -> Result<Histogram> {
        let options = HistogramOpts::from(self.listed("histogram", name, help, &[]));
        self.registered(Histogram::with_opts(options.buckets(bounds.to_vec()))?)
    }

    fn listed(&mut self, kind: &'static str, name: &str, help: &str, labels: &[&str]) -> Opts {
        self.list.push(Family {
            name: format!("{}_{name}", self.prefix),
            kind,
            labels: labels.iter().map(|&label| label.to_owned()).collect(),
            help: help.to_owned(),
        });
        Opts::new(name, help).namespace(self.prefix)
    }

    fn registered<C: Collector + Clone + 'static>(&self, family: C) -> Result<C> {
        self.registry.register(Box::new(family.clone()))?;
        Ok(family)
    }
}
