//! The families whose series have labels of small sets, and so exist from the start.

use prometheus::{IntCounter, IntCounterVec, IntGaugeVec};
use tunnel_ops::metrics::Families;
use tunnel_proto::problem::{Hop, Reason};

/// The causes for which connections of each listener are refused.
const REFUSED_CONNECTIONS: [(&str, &[&str]); 2] = [
    (
        "public",
        &[
            "max_connections",
            "max_connections_per_address",
            "proxy_protocol",
            "tls",
            "first_byte",
            "stopping",
        ],
    ),
    (
        "tunnel",
        &[
            "max_connections",
            "max_connections_per_address",
            "max_handshakes",
            "proxy_protocol",
            "silent",
            "tls",
        ],
    ),
];

pub(super) fn connections(new: &mut Families) -> prometheus::Result<IntGaugeVec> {
    let listeners = REFUSED_CONNECTIONS.map(|(listener, _)| listener);
    new.gauges_of("connections", "Open connections", "listener", listeners)
}

pub(super) fn connections_refused(new: &mut Families) -> prometheus::Result<IntCounterVec> {
    let family = new.counters(
        "connections_refused_total",
        "Connections that ended before their first request",
        &["listener", "cause"],
    )?;
    for (listener, causes) in REFUSED_CONNECTIONS {
        for cause in causes {
            family.get_metric_with_label_values(&[listener, cause])?;
        }
    }
    Ok(family)
}

pub(super) fn problems(new: &mut Families) -> prometheus::Result<IntCounterVec> {
    let family = new.counters(
        "problems_total",
        "Answers that the tunnel itself made, by problem",
        &["reason", "hop"],
    )?;
    for reason in Reason::ALL {
        for hop in [Hop::Server, Hop::Client] {
            family.get_metric_with_label_values(&[reason.name(), hop.name()])?;
        }
    }
    Ok(family)
}

pub(super) fn takeovers(new: &mut Families) -> prometheus::Result<IntCounter> {
    let help = "Runtimes that a newer instance took over";
    new.counter("takeovers_total", help)
}

pub(super) fn access_log_lost(new: &mut Families) -> prometheus::Result<IntCounter> {
    new.counter(
        "access_log_lost_lines_total",
        "Access-log lines that their target did not take, or not in time",
    )
}

pub(super) fn tls_handshakes(new: &mut Families) -> prometheus::Result<[IntCounter; 2]> {
    let help = "TLS handshakes of tunnel clients: full or resumed";
    let family = new.counters("tls_handshakes_total", help, &["kind"])?;
    Ok(["full", "resumed"].map(|kind| family.with_label_values(&[kind])))
}
