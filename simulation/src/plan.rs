//! What happens to the world in one run: faults, each with its time.

use std::time::Duration;

use testkit::random::Random;

/// One run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// Decides delays and the choices of balancers and clients.
    pub seed: u64,
    /// Server nodes.
    pub nodes: usize,
    /// Members of etcd.
    pub members: usize,
    /// Clients, each of a runtime of its own.
    pub clients: usize,
    /// Clients dial a balancer, or else each node by its own name.
    pub has_balancer: bool,
    /// The faults, by the time since the beginning.
    pub faults: Vec<(Duration, Fault)>,
}

/// One fault. What lasts is healed after its time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The process of a node ends at once, and is started again later.
    CrashNode(usize, Duration),
    /// A node leaves in order, and is started again later.
    ReplaceNode(usize, Duration),
    /// The process of a node stands still.
    PauseNode(usize, Duration),
    /// A node reaches no member of etcd.
    CutFromEtcd(usize, Duration),
    /// Nothing gets from one node to another.
    CutLink(usize, usize, Duration),
    /// Nothing gets from a node to any other, or back.
    CutLinks(usize, Duration),
    /// A member of etcd does not run.
    StopMember(usize, Duration),
    /// A member of etcd reaches no other.
    CutMember(usize, Duration),
    /// No member of etcd runs.
    StopEtcd(Duration),
    /// All processes of etcd stand still.
    FreezeEtcd(Duration),
    /// etcd takes no writes.
    FillEtcd(Duration),
    /// Calls of etcd and their answers take so much longer.
    SlowEtcd(Duration, Duration),
    /// etcd forgets its history.
    Compact,
    /// The state of etcd is kept for [`Fault::Restore`].
    Snapshot,
    /// etcd goes back to the last snapshot.
    Restore,
    /// etcd loses everything.
    Empty,
    /// A client is replaced by a new process, which is another instance.
    RestartClient(usize),
    /// A client ends, and is started again later.
    StopClient(usize, Duration),
    /// A second instance runs with the credential of a client for some time.
    SecondInstance(usize, Duration),
    /// A client of another account runs for some time, whose runtime has the same label.
    Stranger(usize, Duration),
}

/// Time in which faults begin.
const FAULTY: u64 = 60_000;

/// Longest time of a fault, in milliseconds.
const LONGEST: usize = 40_000;

impl Plan {
    /// The plan of a seed: one to six faults.
    #[must_use]
    pub fn draw(seed: u64) -> Self {
        let mut random = Random::new(seed);
        let mut plan = Self {
            seed,
            nodes: 2 + random.below(2),
            members: random.pick(&[1, 3, 3]),
            clients: 1 + random.below(3),
            has_balancer: random.below(4) > 0,
            faults: Vec::new(),
        };
        for _ in 0..=random.below(6) {
            let at = Duration::from_millis(15_000 + random.next_number() % FAULTY);
            let fault = plan.draw_fault(&mut random);
            plan.faults.push((at, fault));
        }
        plan.faults.sort_by_key(|(at, _)| *at);
        plan
    }

    fn draw_fault(&self, random: &mut Random) -> Fault {
        // Most faults are short: half of them last less than a tenth of the longest.
        let longest = random.pick(&[1_000, 4_000, 4_000, LONGEST]);
        let lasts = Duration::from_millis(1 + random.below(longest) as u64);
        let node = random.below(self.nodes);
        let other = (node + 1 + random.below(self.nodes - 1)) % self.nodes;
        let member = random.below(self.members);
        let client = random.below(self.clients);
        match random.below(22) {
            0 => Fault::CrashNode(node, lasts),
            1 => Fault::ReplaceNode(node, lasts),
            2 => Fault::PauseNode(node, lasts),
            3 => Fault::CutFromEtcd(node, lasts),
            4 => Fault::CutLink(node, other, lasts),
            5 => Fault::StopMember(member, lasts),
            6 => Fault::CutMember(member, lasts),
            7 => Fault::StopEtcd(lasts),
            8 => Fault::FreezeEtcd(lasts),
            9 => Fault::FillEtcd(lasts),
            10 => Fault::SlowEtcd(Duration::from_millis(random.below(700) as u64), lasts),
            11 => Fault::Compact,
            12 => Fault::Snapshot,
            13 => Fault::Restore,
            14 => Fault::Empty,
            15 | 16 => Fault::RestartClient(client),
            17 | 18 => Fault::StopClient(client, lasts),
            20 => Fault::Stranger(client, lasts),
            19 => Fault::CutLinks(node, lasts * random.pick(&[1, 3])),
            _ => Fault::SecondInstance(client, lasts),
        }
    }
}

impl Fault {
    /// How long it lasts.
    #[must_use]
    pub fn lasts(&self) -> Duration {
        match *self {
            Self::CrashNode(_, lasts)
            | Self::ReplaceNode(_, lasts)
            | Self::PauseNode(_, lasts)
            | Self::CutFromEtcd(_, lasts)
            | Self::CutLink(_, _, lasts)
            | Self::CutLinks(_, lasts)
            | Self::StopMember(_, lasts)
            | Self::CutMember(_, lasts)
            | Self::StopEtcd(lasts)
            | Self::FreezeEtcd(lasts)
            | Self::FillEtcd(lasts)
            | Self::SlowEtcd(_, lasts)
            | Self::StopClient(_, lasts)
            | Self::SecondInstance(_, lasts)
            | Self::Stranger(_, lasts) => lasts,
            Self::Compact
            | Self::Snapshot
            | Self::Restore
            | Self::Empty
            | Self::RestartClient(_) => Duration::ZERO,
        }
    }
}
