//! Nodes whose way to etcd fails, that are started again, and whose etcd loses leases or history: when all is well again,
//! they agree, and nothing is left behind.

use std::collections::BTreeSet;

use super::{
    world::{Reach, World},
    *,
};

/// Something that happens.
#[derive(Debug, Clone)]
enum Fault {
    /// An instance dials a node, for a runtime.
    Dial(usize, usize, u8),
    /// A session ends.
    End(usize),
    /// A node's way to etcd changes.
    Reach(usize, u8),
    /// A node is started again.
    Restart(usize),
    /// All leases end.
    EndLeases,
    /// etcd forgets its history.
    Compact,
    /// Time goes by, in tenths of a second.
    Wait(u64),
}

fn faults() -> impl Strategy<Value = Vec<Fault>> {
    let fault = prop_oneof![
        8 => (0..3_usize, 0..3_usize, 0..3_u8).prop_map(|(node, runtime, by)| Fault::Dial(node, runtime, by)),
        4 => (0..8_usize).prop_map(Fault::End),
        3 => (0..3_usize, 0..3_u8).prop_map(|(node, reach)| Fault::Reach(node, reach)),
        1 => (0..3_usize).prop_map(Fault::Restart),
        1 => Just(Fault::EndLeases),
        1 => Just(Fault::Compact),
        8 => (0..80_u64).prop_map(Fault::Wait),
    ];
    proptest::collection::vec(fault, 1..60)
}

struct Scene {
    world: World,
    /// The sessions that are there, each with the node that it is at and its instance.
    sessions: Vec<(usize, GrantedClaim)>,
    last_claim: u64,
    last_run: u64,
}

impl Scene {
    fn new() -> Self {
        let mut scene = Self {
            world: World::new(),
            sessions: Vec::new(),
            last_claim: 0,
            last_run: 0,
        };
        for number in 0..3 {
            scene.start(number);
        }
        scene.run(Duration::from_secs(1));
        scene
    }

    fn start(&mut self, number: usize) {
        self.last_run += 1;
        self.world.add(&format!("n{number}"), self.last_run);
        let new = self.world.nodes.pop().unwrap();
        let at = number.min(self.world.nodes.len());
        self.world.nodes.insert(at, new);
    }

    fn runtime(number: usize) -> Runtime {
        Runtime::new("acme", ["a", "b", "c"][number])
    }

    fn apply(&mut self, fault: &Fault) {
        let now = self.world.now();
        match *fault {
            Fault::Dial(node, runtime, by) => {
                self.last_claim += 1;
                let (id, instance) = (ClaimId(self.last_claim), instance(by));
                let runtime = Self::runtime(runtime);
                let claimant = runtime.claimant(&instance, OnConflict::Supersede);
                let directory = &mut self.world.nodes[node].node;
                if let ClaimProgress::Answered(Ok(granted)) = directory.claim(id, claimant, now) {
                    self.supersede(node, &granted.label, &granted.claim);
                    self.sessions.push((node, granted));
                }
            }
            Fault::End(which) if !self.sessions.is_empty() => {
                let (node, granted) = self.sessions.swap_remove(which % self.sessions.len());
                let directory = &mut self.world.nodes[node].node;
                directory.on_release(&granted.label, granted.serial, now);
            }
            Fault::End(_) => {}
            Fault::Reach(node, reach) => {
                let reach = [Reach::All, Reach::None, Reach::SilentWatch][usize::from(reach)];
                self.world.nodes[node].reach = reach;
            }
            Fault::Restart(node) => {
                self.world.nodes.remove(node);
                self.sessions.retain(|(at, _)| *at != node);
                self.start(node);
            }
            Fault::EndLeases => self.world.end_leases(),
            Fault::Compact => self.world.compacted = self.world.store.revision,
            Fault::Wait(tenths) => self.run(Duration::from_millis(100 * tenths)),
        }
        self.run(Duration::ZERO);
    }

    /// Lets time go by. Sessions that are superseded end.
    fn run(&mut self, time: Duration) {
        self.world.run(time);
        loop {
            let mut newer = Vec::new();
            for (number, running) in self.world.nodes.iter_mut().enumerate() {
                for output in std::mem::take(&mut running.outputs) {
                    match output {
                        Output::ClaimAnswer(_, Ok(granted)) => {
                            newer.push((number, granted.label.clone(), granted.claim.clone()));
                            self.sessions.push((number, granted));
                        }
                        Output::NewerClaim(label, claim) => newer.push((number, label, claim)),
                        Output::Failed(error) => panic!("{error}"),
                        _ => {}
                    }
                }
            }
            if newer.is_empty() {
                return;
            }
            for (number, label, claim) in newer {
                self.supersede(number, &label, &claim);
            }
            self.world.run(Duration::ZERO);
        }
    }

    /// Ends the sessions of other instances at a node, by a claim that is not older than theirs.
    fn supersede(&mut self, number: usize, label: &RuntimeLabel, by: &Claim) {
        let now = self.world.now();
        let is_older = |(at, granted): &mut (usize, GrantedClaim)| {
            let is_other = granted.claim.instance != by.instance;
            *at == number && granted.label == *label && is_other && granted.claim.epoch <= by.epoch
        };
        for (_, older) in self.sessions.extract_if(.., is_older) {
            let directory = &mut self.world.nodes[number].node;
            directory.on_release(label, older.serial, now);
        }
    }

    fn heal(&mut self) {
        for running in &mut self.world.nodes {
            running.reach = Reach::All;
        }
        self.run(Duration::from_secs(60));
    }

    fn check(&self) {
        let mut expected = BTreeSet::new();
        for (node, granted) in &self.sessions {
            let run = self.world.nodes[*node].node.run();
            let NodeRun { node, incarnation } = run;
            expected.insert(format!("{node}/{incarnation}/{}", granted.label));
        }
        let living: BTreeSet<String> = self
            .world
            .nodes
            .iter()
            .map(|running| {
                let NodeRun { node, incarnation } = running.node.run();
                format!("{node}/{incarnation}/")
            })
            .collect();
        let held = self.world.keys("held").into_iter();
        let is_living = |key: &String| living.iter().any(|run| key.starts_with(run));
        let held: BTreeSet<String> = held.filter(is_living).collect();
        assert_eq!(held, expected, "records of what is held");
        for number in 0..3 {
            let label = Self::runtime(number).label;
            let of_label = self
                .sessions
                .iter()
                .filter(|(_, granted)| granted.label == label);
            let instances: Vec<_> = of_label
                .map(|(_, granted)| &granted.claim.instance)
                .collect();
            assert!(
                instances.iter().all(|instance| *instance == instances[0]),
                "one instance"
            );
            let mut claims = self
                .world
                .nodes
                .iter()
                .map(|running| running.node.current(label.as_str()));
            let first = claims.next().unwrap();
            assert!(claims.all(|claim| claim == first), "one claim");
            if let Some(instance) = instances.first() {
                assert_eq!(first.map(|claim| claim.instance).as_ref(), Some(*instance));
            }
        }
        for running in &self.world.nodes {
            assert_eq!(running.node.state(), EtcdState::Ok);
        }
        assert_eq!(self.world.keys("node"), ["n0", "n1", "n2"]);
        assert!(self.world.keys("challenge").is_empty());
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    #[test]
    fn nodes_agree_when_all_is_well_again(faults in faults()) {
        let mut scene = Scene::new();
        for fault in &faults {
            scene.apply(fault);
        }
        scene.heal();
        scene.check();
        let now = scene.world.now();
        for (node, granted) in std::mem::take(&mut scene.sessions) {
            let directory = &mut scene.world.nodes[node].node;
            directory.on_release(&granted.label, granted.serial, now);
        }
        scene.run(Duration::from_secs(1));
        scene.check();
        for running in &scene.world.nodes {
            assert_eq!(running.node.len().0, 0, "nothing is held");
        }
    }
}
