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
    /// The processors that the programs take for hostile peers that send what a line carries.
    pub processors: f64,
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
        let mut processors = 0.0;
        for _ in 0..plan.rounds {
            processors += self.run(&stand, plan).await / plan.rounds as f64;
        }
        let (grown, sent, received) = (stand.grown(rest), stand.sent(), stand.received());
        Outcome {
            grown,
            seen: stand.finish().await,
            processors,
            sent,
            received,
        }
    }

    /// Runs all phases once, the flood last: programs need a while to recover. Returns the processors that the programs
    /// take beside hostile peers, more than without.
    pub async fn run(&self, stand: &Stand, plan: Plan) -> f64 {
        let mut hostile = None;
        let mut processors = 0.0;
        for (phase, time) in [(Phase::Beside, plan.beside), (Phase::Flood, plan.flood)] {
            // A client does not come back to a hostile server that has lost its session.
            if hostile.take_if(|_| !stand.keeps_session()).is_some() || phase == Phase::Beside {
                stand.set(Phase::Flood);
                sleep(SETTLE).await;
                stand.set(Phase::Quiet);
                let quiet = processors_during(stand, plan.quiet).await;
                if phase == Phase::Beside {
                    processors -= quiet;
                }
            }
            stand.set(phase);
            hostile.get_or_insert_with(|| stand.hostile(&self.attack, self.protocol));
            let taken = processors_during(stand, time).await;
            if phase == Phase::Beside {
                processors += taken;
            }
        }
        drop(hostile);
        stand.set(Phase::Flood);
        sleep(SETTLE).await;
        processors.max(0.0)
    }
}

/// How many processors the programs take in the next `time`.
async fn processors_during(stand: &Stand, time: Duration) -> f64 {
    let before = stand.cpu_time();
    sleep(time).await;
    let taken = stand.cpu_time().saturating_sub(before);
    match time.is_zero() {
        true => 0.0,
        false => taken.as_secs_f64() / time.as_secs_f64(),
    }
}
