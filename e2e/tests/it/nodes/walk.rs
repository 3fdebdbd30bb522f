//! Random steps in the lives of three nodes, of their etcd and of the network between all of them, and of clients that take
//! the runtimes from each other meanwhile.
//!
//! After each few steps all is mended. Then each runtime has one instance, which serves it through each node; all nodes and
//! etcd say so, by an epoch that has not fallen; and a new instance takes over. In the end nothing is left of nodes that are
//! gone. `E2E_NODES_STEPS` sets the number of steps, `E2E_NODES_SEED` repeats a run, as far as time allows.

use std::{collections::BTreeMap, net::SocketAddr, path::PathBuf, time::Duration};

use e2e::{
    client::Client,
    deadline::{SOON, eventually},
    entry::Entry,
    nodes::{APP, Nodes, OTHER, THIRD},
    program::Signal,
    random::Random,
    relay::Relay,
    upstream::Upstream,
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    task::JoinSet,
    time::{Instant, sleep, timeout},
};

/// Steps of an ordinary run, which takes some minutes.
const STEPS: usize = 240;

/// Steps between two times at which all is mended.
const PHASE: usize = 20;

/// Of a run that is short.
const SEED: u64 = 2138;

/// Nodes, and members of etcd.
const COUNT: usize = 3;

const LABELS: [&str; 3] = [APP, OTHER, THIRD];

/// Clients of a runtime at once: the newest, and those that it has superseded.
const CLIENTS: usize = 3;

/// Time until all is well after it was mended: clients that stand by dial each 30 s.
const QUIET: Duration = Duration::from_secs(45);

/// Time in which each request is answered, also while nodes stand still.
const ANSWER: Duration = Duration::from_secs(40);

/// Two looks of the sweep, and some more.
const SWEPT: Duration = Duration::from_secs(150);

/// What a request may be answered while things are broken.
const EXPECTED: [u16; 4] = [200, 502, 503, 504];

#[derive(Clone, Copy, Debug)]
enum Step {
    /// A new instance of a runtime comes.
    Claim,
    /// The newest instance of a runtime is killed.
    Kill,
    /// The clients that dial the load balancer lose their connections.
    CutClients,
    Ask,
    KillNode,
    StartNode,
    StopNode,
    ContinueNode,
    KillMember,
    StopMember,
    MendMember,
    /// All members are away for some time.
    EtcdAway,
    /// etcd is restored from a snapshot of when all was well.
    Restore,
    /// Other nodes do not reach a node any more.
    CutPeers,
    MendPeers,
    /// A node does not reach etcd any more.
    CutEtcd,
    MendEtcd,
}

/// Each as often as it stands here.
const LOTS: [Step; 29] = [
    Step::Claim,
    Step::Claim,
    Step::Claim,
    Step::Claim,
    Step::Claim,
    Step::Kill,
    Step::CutClients,
    Step::CutClients,
    Step::Ask,
    Step::Ask,
    Step::Ask,
    Step::Ask,
    Step::Ask,
    Step::Ask,
    Step::KillNode,
    Step::StartNode,
    Step::StopNode,
    Step::ContinueNode,
    Step::ContinueNode,
    Step::KillMember,
    Step::StopMember,
    Step::MendMember,
    Step::MendMember,
    Step::EtcdAway,
    Step::Restore,
    Step::CutPeers,
    Step::MendPeers,
    Step::CutEtcd,
    Step::MendEtcd,
];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Runs,
    Stands,
    IsKilled,
}

/// A client with an upstream of its own, by which its instance is known.
struct Instance {
    client: Client,
    upstream: Upstream,
}

struct Walk {
    // Dropped in this order: clients before the nodes.
    instances: BTreeMap<&'static str, Vec<Instance>>,
    nodes: Nodes,
    node_states: [State; COUNT],
    member_states: [State; COUNT],
    /// Whether a node reaches etcd.
    reaches_etcd: [bool; COUNT],
    /// Of etcd, when all was well.
    snapshot: Option<PathBuf>,
    balancer: Relay,
    random: Random,
    /// Requests that are under way, and the statuses of those that were answered; 0 where the node was lost.
    asked: JoinSet<u16>,
    answered: BTreeMap<u16, usize>,
    /// Counts requests that are told from others.
    marks: usize,
    taken: BTreeMap<String, usize>,
    /// Of each runtime, when all was well.
    held: BTreeMap<&'static str, (u64, String)>,
}

impl Walk {
    async fn start(random: Random) -> Self {
        let nodes = Nodes::start(COUNT).await;
        Self {
            instances: LABELS.map(|label| (label, Vec::new())).into(),
            snapshot: None,
            balancer: nodes.balancer().await,
            nodes,
            node_states: [State::Runs; COUNT],
            member_states: [State::Runs; COUNT],
            reaches_etcd: [true; COUNT],
            random,
            asked: JoinSet::new(),
            answered: BTreeMap::new(),
            marks: 0,
            taken: BTreeMap::new(),
            held: BTreeMap::new(),
        }
    }

    async fn step(&mut self) {
        loop {
            let step = self.random.pick(&LOTS);
            let number = self.random.below(COUNT);
            let start = Instant::now();
            let is_done = timeout(3 * SOON, self.take(step, number)).await;
            if is_done.unwrap_or_else(|_| panic!("{step:?} of {number} does not end")) {
                eprintln!("{step:?} {number}: {:?}", start.elapsed());
                *self.taken.entry(format!("{step:?}")).or_default() += 1;
                return self.pause().await;
            }
        }
    }

    /// Mostly short, so that faults meet; at times long enough for sessions and links to be given up, or for leases to end.
    async fn pause(&mut self) {
        let (least, range) = match self.random.below(60) {
            0 => (22_000, 1_000),
            1..=5 => (2_000, 4_000),
            _ => (0, 300),
        };
        let pause = least + self.random.below(range);
        sleep(Duration::from_millis(pause.try_into().unwrap())).await;
    }

    /// Takes a step, if it fits to what is.
    async fn take(&mut self, step: Step, number: usize) -> bool {
        let label = LABELS[number];
        match step {
            Step::Claim => {
                let address = self.random_address();
                self.claim(label, address).await;
            }
            Step::Kill => return self.instances.get_mut(label).unwrap().pop().is_some(),
            Step::CutClients => self.balancer.cut(),
            Step::Ask => return self.ask(label, number),
            Step::KillNode | Step::StartNode | Step::StopNode | Step::ContinueNode => {
                return self.change_node(step, number).await;
            }
            Step::KillMember | Step::StopMember | Step::MendMember => {
                return self.change_member(step, number);
            }
            Step::EtcdAway => self.etcd_is_away().await,
            Step::Restore => return self.restore().await,
            Step::CutPeers => cut(self.nodes.from_peers(number), self.random.below(2) == 0),
            Step::MendPeers => self.nodes.from_peers(number).resume(),
            Step::CutEtcd => {
                let is_silent = self.random.below(2) == 0;
                for way in self.nodes.to_etcd(number) {
                    cut(way, is_silent);
                }
                self.reaches_etcd[number] = false;
            }
            Step::MendEtcd => self.mend_etcd(number),
        }
        true
    }

    async fn change_node(&mut self, step: Step, number: usize) -> bool {
        let state = self.node_states[number];
        let others = self
            .node_states
            .iter()
            .filter(|state| **state == State::Runs);
        let is_last = state == State::Runs && others.count() == 1;
        let next = match (step, state) {
            (Step::KillNode, State::Runs | State::Stands) if !is_last => {
                self.nodes.kill(number);
                State::IsKilled
            }
            (Step::StopNode, State::Runs) if !is_last => {
                self.nodes.signal(number, Signal::STOP);
                State::Stands
            }
            (Step::ContinueNode, State::Stands) => {
                self.nodes.signal(number, Signal::CONT);
                State::Runs
            }
            // A node starts with etcd only.
            (Step::StartNode, State::IsKilled)
                if self.reaches_etcd[number] && self.members_that_run() >= 2 =>
            {
                self.nodes.start_again(number).await;
                State::Runs
            }
            _ => return false,
        };
        self.node_states[number] = next;
        true
    }

    fn change_member(&mut self, step: Step, number: usize) -> bool {
        let next = match (step, self.member_states[number]) {
            (Step::KillMember, State::Runs) => {
                self.nodes.etcd_mut().kill(number);
                State::IsKilled
            }
            (Step::StopMember, State::Runs) => {
                self.nodes.etcd().signal(number, Signal::STOP);
                State::Stands
            }
            (Step::MendMember, State::Stands) => {
                self.nodes.etcd().signal(number, Signal::CONT);
                State::Runs
            }
            (Step::MendMember, State::IsKilled) => {
                self.nodes.etcd_mut().begin_again(number);
                State::Runs
            }
            _ => return false,
        };
        self.member_states[number] = next;
        true
    }

    fn members_that_run(&self) -> usize {
        let states = self.member_states.iter();
        states.filter(|state| **state == State::Runs).count()
    }

    async fn etcd_is_away(&mut self) {
        for member in 0..COUNT {
            self.change_member(Step::KillMember, member);
        }
        let time = 500 + self.random.below(3_000);
        sleep(Duration::from_millis(time.try_into().unwrap())).await;
        for member in 0..COUNT {
            self.change_member(Step::MendMember, member);
        }
    }

    async fn restore(&mut self) -> bool {
        let Some(snapshot) = self.snapshot.clone() else {
            return false;
        };
        self.nodes.etcd_mut().restore(&snapshot, &[]).await;
        self.member_states = [State::Runs; COUNT];
        true
    }

    fn mend_etcd(&mut self, number: usize) {
        for way in self.nodes.to_etcd(number) {
            way.resume();
        }
        self.reaches_etcd[number] = true;
    }

    /// Where a client dials: the load balancer, or one node.
    fn random_address(&mut self) -> SocketAddr {
        match self.random.below(2 * COUNT) {
            number if number < COUNT => self.nodes.server(number).tunnel_address(),
            _ => self.balancer.address(),
        }
    }

    /// Starts a new instance, and ends one that is not ready if there are many.
    async fn claim(&mut self, label: &'static str, address: SocketAddr) {
        let upstream = Upstream::start().await;
        let options = self.nodes.client_options(label, address, &upstream);
        let client = Client::start(&options).await;
        let instances = self.instances.get_mut(label).unwrap();
        if instances.len() >= CLIENTS {
            let mut ended = 0;
            while ended + 1 < instances.len() && instances[ended].is_ready().await {
                ended += 1;
            }
            instances.remove(ended);
        }
        instances.push(Instance { client, upstream });
    }

    /// Sends a request, whose answer is awaited later, through a node that runs.
    fn ask(&mut self, label: &str, number: usize) -> bool {
        let at = self.random.below(COUNT);
        let number = (number + at) % COUNT;
        if self.node_states[number] == State::Runs {
            let entry = self.nodes.entry(number, label);
            self.asked.spawn(status(entry, "/".to_owned()));
        }
        self.node_states[number] == State::Runs
    }

    /// Everything runs, and reaches everything.
    async fn mend(&mut self) {
        for number in 0..COUNT {
            self.nodes.from_peers(number).resume();
            self.mend_etcd(number);
            self.change_member(Step::MendMember, number);
        }
        let nodes = &self.nodes;
        eventually(SOON, "etcd to answer", async || {
            (!nodes.keys("cluster").await.is_empty()).then_some(())
        })
        .await;
        for number in 0..COUNT {
            self.change_node(Step::ContinueNode, number).await;
            self.change_node(Step::StartNode, number).await;
            self.nodes.server(number).admin().wait_ready(true).await;
        }
        self.nodes.wait_linked().await;
    }

    /// Mends all, and checks that all is well after that.
    async fn check(&mut self) {
        let start = Instant::now();
        self.mend().await;
        eprintln!("mended after {:?}", start.elapsed());
        for label in LABELS {
            if self.instances[label].is_empty() {
                self.claim(label, self.balancer.address()).await;
            }
        }
        let start = Instant::now();
        for label in LABELS {
            let what = format!("{label} to be held");
            let nodes = &self.nodes;
            eventually(QUIET, &what, async || nodes.held(label).await).await;
        }
        self.nodes.wait_agreement(QUIET).await;
        for label in LABELS {
            self.keep_one(label).await;
        }
        self.nodes.wait_agreement(SOON).await;
        for label in LABELS {
            self.assert_one_serves(label).await;
        }
        eprintln!("well after {:?}", start.elapsed());
        self.snapshot = Some(self.nodes.etcd().snapshot().await);
        while let Some(answered) = self.asked.join_next().await {
            *self.answered.entry(answered.unwrap()).or_default() += 1;
        }
        let label = self.random.pick(&LABELS);
        let address = self.random_address();
        self.claim(label, address).await;
        let newest = self.instances[label].last().unwrap();
        newest.client.admin().wait_ready(true).await;
        let older = self.instances[label].first().unwrap();
        older.client.admin().wait_ready(false).await;
        let took = self.nodes.wait_agreement(SOON).await;
        eprintln!("taken over; all knew {took:?} later");
        self.assert_one_serves(label).await;
    }

    /// Waits until one instance of a runtime is ready, and ends the others: those that stand by may take the runtime again if
    /// it was free meanwhile.
    async fn keep_one(&mut self, label: &'static str) {
        let instances = self.instances.get_mut(label).unwrap();
        let what = format!("one instance of {label} to be ready");
        let ready = eventually(QUIET, &what, async || {
            let mut ready = Vec::new();
            for (index, instance) in instances.iter().enumerate() {
                if instance.is_ready().await {
                    ready.push(index);
                }
            }
            (ready.len() == 1).then(|| ready[0])
        });
        let ready = ready.await;
        instances.swap(0, ready);
        instances.truncate(1);
    }

    /// The newest instance serves a runtime through each node, by an epoch that has not fallen.
    async fn assert_one_serves(&mut self, label: &'static str) {
        let upstream = &self.instances[label].last().unwrap().upstream;
        for number in 0..COUNT {
            self.marks += 1;
            let path = format!("/mark-{}", self.marks);
            let status = status(self.nodes.entry(number, label), path.clone()).await;
            assert_eq!(status, 200, "{label} through node {number}");
            let requests = upstream.requests();
            let is_served = requests.iter().any(|request| request.target == path);
            assert!(
                is_served,
                "{label} is served by another instance through node {number}"
            );
        }
        let (epoch, instance) = self.nodes.held(label).await.unwrap();
        let held = self.held.insert(label, (epoch, instance.clone()));
        if let Some((before, earlier)) = held {
            let is_greater = epoch > before || epoch == before && instance == earlier;
            assert!(
                is_greater,
                "{label}: {before} of {earlier}, then {epoch} of {instance}"
            );
        }
    }

    /// In the end nothing is left of former runs of nodes, and then of those that stop in order.
    async fn assert_nothing_left(mut self) {
        let nodes = &self.nodes;
        let start = Instant::now();
        eventually(SWEPT, "records of former nodes to go", async || {
            let void = nodes.void_records().await;
            sleep(Duration::from_millis(500)).await;
            void.is_empty().then_some(())
        })
        .await;
        eprintln!("swept after {:?}", start.elapsed());
        self.instances.clear();
        for number in 0..COUNT {
            let server = self.nodes.server_mut(number);
            assert_eq!(server.program_mut().stop().await, Some(0));
        }
        for kind in ["node/", "held/", "challenge/"] {
            assert_eq!(self.nodes.keys(kind).await, [""; 0]);
        }
    }

    /// What was drawn, and what the requests were answered.
    fn assert_answers(&self) {
        eprintln!("steps: {:?}\nanswers: {:?}", self.taken, self.answered);
        let mut statuses = self.answered.keys().filter(|status| **status != 0);
        assert!(
            statuses.all(|status| EXPECTED.contains(status)),
            "{:?}",
            self.answered
        );
    }
}

impl Instance {
    async fn is_ready(&self) -> bool {
        self.client.admin().status("/readyz").await == 200
    }
}

/// Lets nothing pass, with a sign or without.
fn cut(way: &Relay, is_silent: bool) {
    if is_silent {
        way.stall();
    } else {
        way.refuse();
        way.cut();
    }
}

/// The status of a request; 0 if its node is lost in the middle.
async fn status(entry: Entry, path: String) -> u16 {
    let asked = async {
        let mut socket = TcpStream::connect(entry.address()).await.ok()?;
        let authority = entry.authority();
        let head = format!("GET {path} HTTP/1.1\r\nHost: {authority}\r\nConnection: close\r\n\r\n");
        socket.write_all(head.as_bytes()).await.ok()?;
        let mut answer = String::new();
        socket.read_to_string(&mut answer).await.ok()?;
        answer.split(' ').nth(1)?.parse().ok()
    };
    let answered = timeout(ANSWER, asked).await;
    answered.expect("an answer, or an end").unwrap_or(0)
}

/// Goes so many steps.
async fn walk(steps: usize, random: Random) -> Walk {
    let mut walk = Walk::start(random).await;
    for step in 0..steps {
        walk.step().await;
        if (step + 1) % PHASE == 0 || step + 1 == steps {
            walk.check().await;
        }
    }
    walk.assert_answers();
    walk
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "takes minutes: e2e/run-cluster runs it"]
async fn after_any_random_steps_one_instance_serves_each_runtime() {
    let (steps, random) = Random::of_test("NODES", STEPS);
    walk(steps, random).await.assert_nothing_left().await;
}

/// The steps are the same ones each time; what meets them is not.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_some_random_steps_one_instance_serves_each_runtime() {
    walk(PHASE + PHASE / 2, Random::new(SEED)).await;
}
