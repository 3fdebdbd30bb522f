//! How much of a slow link the streams used.

use super::{
    observe::{Observed, Shared, mean},
    summary::rate_or_none,
};
use crate::{
    relay::Link,
    report::{
        Chart, Report, Series, Table,
        format::{NONE, seconds},
    },
};

/// Windows of TCP and of the multiplexer must have grown by then: the share is measured from here.
const GROWN: f64 = 2.0;

/// Adds the table about the link, and the link's rate to the chart of throughput.
pub(super) fn add(
    report: &mut Report,
    shared: &Shared,
    link: Link,
    observed: &Observed,
    chart: &mut Chart,
) {
    let end = observed.begin + observed.seconds;
    let full = link.rate.map(|rate| rate.bytes());
    let flows = shared.flows.iter().enumerate().map(|(number, flow)| {
        let early = mean(&observed.samples, number, 0.0, GROWN.min(end));
        let grown = mean(&observed.samples, number, GROWN, end);
        let share = grown.zip(full).map(|(grown, full)| grown / full);
        vec![
            flow.direction.name().to_owned(),
            seconds(2.0 * link.delay.as_secs_f64()),
            rate_or_none(full),
            rate_or_none(early),
            rate_or_none(grown),
            share.map_or_else(
                || NONE.to_owned(),
                |share| format!("{:.1} %", share * 100.0),
            ),
        ]
    });
    let columns = [
        "link",
        "round trip",
        "rate",
        "first 2 s",
        "after 2 s",
        "share of the link after 2 s",
    ];
    let title = "What the streams reached of the link between tunnel client and tunnel server";
    let table = Table::new(title, &columns, flows.collect());
    report.tables.push(table);
    if end <= GROWN {
        report
            .warn("the streams ended within two seconds, before the link could be full: move more");
    }
    if let Some(full) = full {
        let line = vec![(0.0, full), (end, full)];
        chart.series.push(Series::new("the link", line));
    }
}
