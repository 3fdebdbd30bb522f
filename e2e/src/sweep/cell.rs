//! One cell of the sweep: one shape at one place over one protocol.

use std::time::Duration;

use tokio::time::sleep;

use super::{
    Attack, Place, Protocol, Shape,
    neighbour::{Phase, Seen},
    stand::{Grown, Stand},
};

/// Until those of a hostile phase are gone.
const SETTLE: Duration = Duration::from_millis(100);

/// How long each phase is.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// How often the two hostile phases come.
    pub rounds: usize,
    /// Without hostile peers.
    pub quiet: Duration,
    /// With hostile peers that send as much as they can.
    pub flood: Duration,
    /// With hostile peers that send what a line carries.
    pub beside: Duration,
    /// How many small requests each neighbour sends in a second.
    pub per_second: u32,
}

/// A shape at a place over a protocol, where it is something there.
pub struct Cell {
    shape: &'static str,
    protocol: Protocol,
    attack: Attack,
}

/// What came of a cell.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// By how much the programs have grown at most.
    pub grown: Grown,
    /// What the neighbours saw.
    pub seen: Seen,
    /// Bytes that hostile platform clients have sent.
    pub sent: u64,
    /// Bytes of their requests that the upstream has received.
    pub received: u64,
}

impl Cell {
    /// The cell; `None` where the shape is nothing there.
    pub fn new(shape: &Shape, place: Place, protocol: Protocol) -> Option<Self> {
        Some(Self {
            shape: shape.name,
            protocol,
            attack: (shape.attack)(place, protocol)?,
        })
    }

    /// Its names, for messages.
    pub fn name(&self) -> String {
        format!("{}, {}", self.shape, self.protocol.name())
    }

    /// What it needs.
    pub fn attack(&self) -> &Attack {
        &self.attack
    }

    /// Runs it on a stand of its own.
    pub async fn measure(&self, place: Place, plan: Plan) -> Outcome {
        let stand = Stand::start(place, self.attack.stage, plan.per_second).await;
        // Connections are opened, and caches filled.
        sleep(SETTLE).await;
        let rest = stand.rest();
        for _ in 0..plan.rounds {
            self.run(&stand, plan).await;
        }
        let (grown, sent, received) = (stand.grown(rest), stand.sent(), stand.received());
        Outcome {
            grown,
            seen: stand.finish().await,
            sent,
            received,
        }
    }

    /// Runs all phases once, the flood last: programs need a while to recover.
    pub async fn run(&self, stand: &Stand, plan: Plan) {
        let mut hostile = None;
        for (phase, time) in [(Phase::Beside, plan.beside), (Phase::Flood, plan.flood)] {
            // A client does not come back to a hostile server that has lost its session.
            if hostile.take_if(|_| !stand.keeps_session()).is_some() || phase == Phase::Beside {
                stand.set(Phase::Flood);
                sleep(SETTLE).await;
                stand.set(Phase::Quiet);
                sleep(plan.quiet).await;
            }
            stand.set(phase);
            hostile.get_or_insert_with(|| stand.hostile(&self.attack, self.protocol));
            sleep(time).await;
        }
        drop(hostile);
        stand.set(Phase::Flood);
        sleep(SETTLE).await;
    }
}
