//! One server node: its directory, and in place of its driver what the world does for it: calls of etcd with their time-outs,
//! the watch, links to other nodes, sessions.

mod calls;
mod links;
mod moving;
mod sessions;

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use tunnel_directory::{
    AccountName, Epoch, NodeName, NodeRun, Rebalance, RuntimeLabel, Spread, WithoutDirectory,
    shared::{
        CallId, ClaimId, NodeSettings, Now, Output, ReportingLink, SentReports, SharedDirectory,
        WatchId,
    },
};
use tunnel_proto::handshake::InstanceId;

use super::{
    Event, World,
    names::{Address, DialId, DialResult, Heal, LinkId, SessionEnd, SessionId},
};
use crate::etcd::{self, PREFIX};

/// Time until a node that cannot take part any more is started again.
const RESTART: Duration = Duration::from_secs(2);

/// A node.
pub(crate) struct Node {
    pub(crate) name: NodeName,
    run: u64,
    pub(crate) process: Option<Process>,
    /// The process stands still, and these wait for it.
    pub(crate) held: Option<Vec<Event>>,
    /// Links on which this node sends reports, by the receiver.
    pub(crate) links: BTreeMap<usize, Link>,
    /// The process is to be started again when it has left.
    pub(crate) restart_after: Option<Duration>,
}

pub(crate) struct Link {
    id: LinkId,
    sent: SentReports,
    carried: Instant,
}

/// A process of a node.
pub(crate) struct Process {
    pub(crate) directory: SharedDirectory,
    /// The member of the next call.
    preferred: usize,
    calls: BTreeMap<CallId, usize>,
    watch: Option<(WatchId, Option<etcd::WatchId>)>,
    timer: Option<Instant>,
    receiving: BTreeMap<LinkId, ReportingLink>,
    pub(crate) sessions: BTreeMap<SessionId, Session>,
    /// When runtimes were last online, as far as the process has noticed.
    pub(crate) last_online: BTreeMap<RuntimeLabel, Instant>,
    pending: BTreeMap<ClaimId, (DialId, InstanceId)>,
    pub(crate) is_leaving: bool,
    rebalance: Rebalance,
    spreads: BTreeMap<RuntimeLabel, Spread>,
}

/// A session at a node.
#[derive(Clone, Debug)]
pub(crate) struct Session {
    pub(crate) dial: DialId,
    pub(crate) instance: InstanceId,
    pub(crate) label: RuntimeLabel,
    pub(crate) account: AccountName,
    pub(crate) epoch: Epoch,
    serial: u64,
    /// When it was welcomed.
    pub(crate) since: Instant,
    /// It takes nothing new: another instance has the runtime, or the node leaves.
    pub(crate) is_draining: bool,
    /// Its client is to have a session at another node instead.
    is_moving: bool,
}

impl Node {
    pub(crate) fn new(number: usize) -> Self {
        let name = format!("n{number}");
        Self {
            name: name.parse().unwrap_or_else(|_| panic!("{name} is a name")),
            run: 0,
            process: None,
            held: None,
            links: BTreeMap::new(),
            restart_after: None,
        }
    }

    /// Whether clients are sent here by a balancer that knows the node's state.
    pub(crate) fn is_ready(&self) -> bool {
        let process = self.process.as_ref();
        process.is_some_and(|process| {
            process.directory.is_ready()
                && !process.is_leaving
                && process.directory.standing().reason_to_leave().is_none()
        })
    }
}

impl Process {
    /// The process of a node that this one knows.
    fn run_of(&self, name: &NodeName) -> Option<NodeRun> {
        let mut nodes = self.directory.nodes().into_iter();
        let (node, incarnation, _) = nodes.find(|(node, ..)| node == name)?;
        Some(NodeRun { node, incarnation })
    }
}

impl World {
    pub(crate) fn address(&self, node: usize) -> Address {
        let run = self.nodes[node].run;
        Address { node, run }
    }

    /// Keeps an event for a process that stands still.
    pub(crate) fn hold_if_paused(&mut self, event: Event) -> Option<Event> {
        let held = event
            .reaches()
            .and_then(|node| self.nodes[node].held.as_mut());
        match held {
            Some(held) => {
                held.push(event);
                None
            }
            None => Some(event),
        }
    }

    pub(crate) fn start_node(&mut self, number: usize) {
        let random = self.random.next_number();
        let now = self.now;
        let node = &mut self.nodes[number];
        node.run += 1;
        node.restart_after = None;
        let settings = NodeSettings {
            name: node.name.clone(),
            peer: Some(format!("{}:7000", node.name)),
            zone: None,
            without_directory: WithoutDirectory::Accept,
        };
        node.process = Some(Process {
            directory: SharedDirectory::new(settings, PREFIX, random, now),
            preferred: number % self.etcd.members(),
            calls: BTreeMap::new(),
            watch: None,
            timer: None,
            receiving: BTreeMap::new(),
            sessions: BTreeMap::new(),
            last_online: BTreeMap::new(),
            pending: BTreeMap::new(),
            is_leaving: false,
            rebalance: Rebalance::new(now),
            spreads: BTreeMap::new(),
        });
        let at = self.address(number);
        self.input(at, |_, _| ());
    }

    /// Ends the process of a node at once: its sessions and links are lost.
    pub(crate) fn end_node(&mut self, number: usize) {
        let node = &mut self.nodes[number];
        let Some(process) = node.process.take() else {
            return;
        };
        node.held = None;
        node.links.clear();
        if let Some((_, Some(watch))) = process.watch {
            self.etcd.end_watch(watch);
        }
        for session in process.sessions.into_values() {
            let delay = self.within(20);
            self.after(delay, Event::SessionEnded(session.dial, SessionEnd::Lost));
        }
        for (dial, _) in process.pending.into_values() {
            let delay = self.within(20);
            self.after(delay, Event::DialEnds(dial, DialResult::Unreachable));
        }
        for other in 0..self.nodes.len() {
            let link = self.nodes[other].links.remove(&number);
            drop(link);
            self.end_receiving(other, |link| link.from == number);
        }
    }

    /// Gives an input to the directory of a node, and does what it decides.
    pub(crate) fn input<T>(
        &mut self,
        at: Address,
        input: impl FnOnce(&mut SharedDirectory, Now) -> T,
    ) -> Option<T> {
        let now = self.input_time();
        let node = &mut self.nodes[at.node];
        let process = node.process.as_mut().filter(|_| node.run == at.run)?;
        let result = input(&mut process.directory, now);
        while let Some(process) = self.nodes[at.node].process.as_mut()
            && let Some(output) = process.directory.poll_output()
        {
            self.output(at, output);
        }
        self.set_timer(at);
        Some(result)
    }

    fn set_timer(&mut self, at: Address) {
        let Some(process) = self.nodes[at.node].process.as_mut() else {
            return;
        };
        let due = process.directory.next_deadline();
        if process.timer.is_none_or(|timer| due < timer) {
            process.timer = Some(due);
            let delay = due.saturating_duration_since(self.now);
            self.after(delay, Event::NodeTimer(at, due));
        }
    }

    pub(crate) fn on_timer(&mut self, at: Address, due: Instant) {
        let node = &mut self.nodes[at.node];
        let Some(process) = node.process.as_mut().filter(|_| node.run == at.run) else {
            return;
        };
        if process.timer != Some(due) {
            return;
        }
        process.timer = None;
        self.input(at, |directory, now| {
            directory.notice_pause(now);
            directory.on_time(now);
        });
    }

    fn output(&mut self, at: Address, output: Output) {
        match output {
            Output::Call(id, call) => self.call(at, id, call),
            Output::Watch {
                id, member, start, ..
            } => self.watch(at, id, member, start),
            Output::EndWatch(id) => self.end_watch(at, id),
            Output::RequestProgress(id) => {
                let delay = self.way_to_etcd();
                self.after(delay, Event::ProgressAsked(at, id));
            }
            Output::ClaimAnswer(id, answer) => self.on_claim_answer(at, id, answer),
            Output::NewerClaim(label, claim) => self.on_newer_claim(at, &label, &claim),
            Output::Failed(error) => {
                self.say(&format!("n{} cannot take part: {error}", at.node));
                self.end_node(at.node);
                self.after(RESTART, Event::Heal(Heal::StartNode(at.node)));
            }
            Output::Departed => {
                let restart = self.nodes[at.node].restart_after;
                self.end_node(at.node);
                if let Some(delay) = restart {
                    self.after(delay, Event::Heal(Heal::StartNode(at.node)));
                }
            }
            Output::State(state) => self.say(&format!("n{} is {state:?}", at.node)),
            Output::Isolated(is) => self.say(&format!("n{} is isolated: {is}", at.node)),
            Output::Log(line) => self.say(&format!("n{}: {line:?}", at.node)),
            Output::RuntimeChanged(label) => self.note_online(at, &label),
            Output::Ready
            | Output::CaughtUp
            | Output::LeaseLeft(_)
            | Output::Position(_)
            | Output::Relisted
            | Output::ClaimResult(_)
            | Output::Unavailable(_) => {}
        }
    }
}
