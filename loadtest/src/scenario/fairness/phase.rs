//! The phases: where small requests go, and what runs beside them.

use std::fmt;

use http::Method;

use crate::load::LoadModel;

/// Where requests go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Destination {
    /// The tunnel that is measured.
    Tunnel,
    /// Another tunnel of the same server.
    Neighbour,
    /// The upstream itself.
    Direct,
}

impl Destination {
    /// Where the large requests go while the small ones go here.
    pub(super) fn beside(self) -> Self {
        match self {
            Self::Tunnel | Self::Neighbour => Self::Tunnel,
            Self::Direct => Self::Direct,
        }
    }
}

/// What runs beside small requests.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum BackgroundLoad {
    Nothing,
    /// Downloads of a steady rate.
    Paced,
    /// Downloads as fast as they come.
    Unthrottled,
    /// Downloads that are hardly read.
    SlowReaders,
    /// A load that goes beyond one limit of the tunnel.
    Limit(&'static Limit),
}

/// A load of twice what a tunnel at its limits may, in one respect.
#[derive(Debug, PartialEq)]
pub(super) struct Limit {
    name: &'static str,
    pub(super) method: Method,
    pub(super) path: &'static str,
    pub(super) upload: u64,
    /// Size of a large field.
    pub(super) field: usize,
    pub(super) is_websocket: bool,
    pub(super) connections: usize,
    pub(super) pace: LoadModel,
}

/// Limits of the server: bytes a second each way, exchanges begun in a second, exchanges open at once (no more
/// than it lets one address have however few are left), WebSockets open at once, bytes of a head.
const BYTES: u64 = 16 << 20;
const RATE: u32 = 500;
const EXCHANGES: usize = 16;
const WEBSOCKETS: usize = 16;
const HEAD: usize = 8 << 10;

/// Connections of a load whose number is not the limit.
const CONNECTIONS: usize = 16;

const GET: Limit = Limit {
    name: "",
    method: Method::GET,
    path: "/",
    upload: 0,
    field: 0,
    is_websocket: false,
    connections: CONNECTIONS,
    pace: LoadModel::Open(RATE as f64),
};

const LIMITS: &[Limit] = &[
    Limit {
        name: "downloads above its rate",
        path: "/bytes/1048576",
        pace: LoadModel::Closed,
        ..GET
    },
    Limit {
        name: "uploads above its rate",
        method: Method::POST,
        path: "/upload",
        // Half a second of what is allowed, shared by all connections.
        upload: BYTES / (2 * CONNECTIONS as u64),
        pace: LoadModel::Closed,
        ..GET
    },
    Limit {
        name: "requests above its rate",
        pace: LoadModel::Open(2.0 * RATE as f64),
        ..GET
    },
    Limit {
        name: "open exchanges above its number",
        // Goes on for as long as the phase does.
        path: "/pace?rate=1",
        connections: 2 * EXCHANGES,
        ..GET
    },
    Limit {
        name: "WebSockets above their number",
        path: "/echo",
        is_websocket: true,
        connections: 2 * WEBSOCKETS,
        ..GET
    },
    Limit {
        name: "heads above their size",
        field: 2 * HEAD,
        ..GET
    },
];

/// The server's flags that set the limits.
pub(super) fn limit_flags() -> [String; 6] {
    [
        format!("--limit-download-rate={BYTES}B"),
        format!("--limit-upload-rate={BYTES}B"),
        format!("--limit-exchange-rate={RATE}"),
        format!("--limit-exchanges={EXCHANGES}"),
        format!("--limit-websockets={WEBSOCKETS}"),
        format!("--limit-head-size={HEAD}B"),
    ]
}

/// One row of the table.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Phase {
    /// Where the small requests go.
    pub(super) destination: Destination,
    pub(super) beside: BackgroundLoad,
}

impl fmt::Display for Phase {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self.beside {
            BackgroundLoad::Nothing => "unloaded",
            BackgroundLoad::Paced => "paced downloads",
            BackgroundLoad::Unthrottled => "unthrottled downloads",
            BackgroundLoad::SlowReaders => "slow readers",
            BackgroundLoad::Limit(limit) => limit.name,
        })?;
        formatter.write_str(match self.destination {
            Destination::Tunnel => "",
            Destination::Neighbour => ", neighbour",
            Destination::Direct => ", direct",
        })
    }
}

/// A neighbour beside a tunnel at its limits, in each way; the first is the unloaded one.
pub(super) fn at_limits() -> Vec<Phase> {
    let limits = LIMITS.iter().map(BackgroundLoad::Limit);
    let beside = std::iter::once(BackgroundLoad::Nothing).chain(limits);
    let phase = |beside| Phase {
        destination: Destination::Neighbour,
        beside,
    };
    beside.map(phase).collect()
}

/// All phases that can be measured; the first of each destination is the unloaded one.
pub(super) fn all(has_neighbour: bool, direct: bool) -> Vec<Phase> {
    use BackgroundLoad::{Nothing, Paced, SlowReaders, Unthrottled};
    let at = |destination, kinds: &[BackgroundLoad]| {
        let kinds = kinds.iter().map(|beside| Phase {
            destination,
            beside: *beside,
        });
        kinds.collect::<Vec<_>>()
    };
    let mut phases = at(Destination::Tunnel, &[Nothing, Paced]);
    if has_neighbour {
        phases.extend(at(Destination::Neighbour, &[Nothing, Paced]));
    }
    phases.extend(at(Destination::Tunnel, &[Unthrottled, SlowReaders]));
    if direct {
        phases.extend(at(
            Destination::Direct,
            &[Nothing, Paced, Unthrottled, SlowReaders],
        ));
    }
    phases
}
