//! The phases: where small requests go, and what runs beside them.

use std::fmt;

use crate::scenario::fairness::place::Place;

/// Where requests go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Spot {
    /// The tunnel that is measured.
    Tunnel,
    /// Another tunnel of the same server.
    Neighbour,
    /// The upstream itself.
    Direct,
}

impl Spot {
    /// Where the large requests go while the small ones go here.
    pub(super) fn beside(self) -> Self {
        match self {
            Self::Tunnel | Self::Neighbour => Self::Tunnel,
            Self::Direct => Self::Direct,
        }
    }
}

/// What runs beside small requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Beside {
    /// Nothing.
    Nothing,
    /// Downloads of a steady rate.
    Paced,
    /// Downloads as fast as they come.
    Unthrottled,
    /// Downloads that are hardly read.
    SlowReaders,
    /// One way in which a tunnel asks for more than it may.
    Limit(Limit),
}

/// What a tunnel at its limits wants too much of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Limit {
    /// Bytes a second down.
    Downloads,
    /// Bytes a second up.
    Uploads,
    /// Exchanges begun in a second.
    Requests,
    /// Exchanges open at once.
    Exchanges,
    /// WebSockets open at once.
    WebSockets,
    /// Bytes of a request's head.
    Heads,
}

impl Limit {
    /// All of them.
    pub(super) const ALL: [Self; 6] = [
        Self::Downloads,
        Self::Uploads,
        Self::Requests,
        Self::Exchanges,
        Self::WebSockets,
        Self::Heads,
    ];

    fn name(self) -> &'static str {
        match self {
            Self::Downloads => "downloads above its rate",
            Self::Uploads => "uploads above its rate",
            Self::Requests => "requests above its rate",
            Self::Exchanges => "open exchanges above its number",
            Self::WebSockets => "WebSockets above their number",
            Self::Heads => "heads above their size",
        }
    }
}

/// One row of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Phase {
    /// Where the small requests go.
    pub(super) spot: Spot,
    /// What runs beside them.
    pub(super) beside: Beside,
}

impl fmt::Display for Phase {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let beside = match self.beside {
            Beside::Nothing => "unloaded",
            Beside::Paced => "paced downloads",
            Beside::Unthrottled => "unthrottled downloads",
            Beside::SlowReaders => "slow readers",
            Beside::Limit(limit) => limit.name(),
        };
        match self.spot {
            Spot::Tunnel => formatter.write_str(beside),
            Spot::Neighbour => write!(formatter, "{beside}, neighbour"),
            Spot::Direct => write!(formatter, "{beside}, direct"),
        }
    }
}

/// A neighbour beside a tunnel at its limits, in each way; the first is the unloaded one.
pub(super) fn at_limits() -> Vec<Phase> {
    let phase = |beside| Phase {
        spot: Spot::Neighbour,
        beside,
    };
    let limits = Limit::ALL.map(|limit| phase(Beside::Limit(limit)));
    [phase(Beside::Nothing)].into_iter().chain(limits).collect()
}

/// All phases that can be measured there; the first of each spot's is the unloaded one.
pub(super) fn all(place: &Place, direct: bool) -> Vec<Phase> {
    let phase = |spot, beside| Phase { spot, beside };
    let mut phases = vec![
        phase(Spot::Tunnel, Beside::Nothing),
        phase(Spot::Tunnel, Beside::Paced),
    ];
    if place.has_neighbour() {
        phases.push(phase(Spot::Neighbour, Beside::Nothing));
        phases.push(phase(Spot::Neighbour, Beside::Paced));
    }
    phases.push(phase(Spot::Tunnel, Beside::Unthrottled));
    phases.push(phase(Spot::Tunnel, Beside::SlowReaders));
    if direct {
        let beside = [
            Beside::Nothing,
            Beside::Paced,
            Beside::Unthrottled,
            Beside::SlowReaders,
        ];
        phases.extend(beside.map(|beside| phase(Spot::Direct, beside)));
    }
    phases
}
