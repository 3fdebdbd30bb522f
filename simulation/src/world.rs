//! The world: what happens next, in the order of its time.

mod check;
mod client;
mod faults;
mod names;
mod node;
mod reach;
mod requests;
mod spread;

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    fmt,
    time::{Duration, Instant},
};

use testkit::random::Random;
use tunnel_directory::{
    REBALANCE_INTERVAL,
    shared::{Call, CallId, EtcdAnswer, Now, WatchId},
};
use tunnel_etcd::{EtcdError, WatchReport};

pub use self::check::Violation;
use self::{
    check::History,
    client::Client,
    names::{Address, DialId, DialResult, Heal, LinkId, SessionEnd, SessionId},
    node::Node,
    requests::Requests,
    spread::Spreading,
};
use crate::{
    etcd::{self, Etcd, Snapshot},
    plan::{Fault, Plan},
};

/// Time between two checks of what must hold.
const CHECK_INTERVAL: Duration = Duration::from_millis(50);

/// How long the world goes on after its last fault: faults have healed, and all has come to rest.
const CALM: Duration = Duration::from_secs(90);

/// The time after which nothing of clients that have ended may be left.
const EMPTY: Duration = Duration::from_secs(60);

/// Events that are shown with a violation.
const SHOWN: usize = 100;

/// What came of a plan.
#[derive(Debug)]
pub struct Outcome {
    /// Inputs of nodes and events of the world.
    pub steps: u64,
    /// What did not hold, with the last events before it.
    pub violation: Option<Violation>,
}

/// What happens at a time.
#[derive(Debug)]
pub(crate) enum Event {
    Fault(Fault),
    Heal(Heal),
    /// etcd changes by itself.
    Etcd,
    CallArrives(Address, CallId, usize, Call),
    CallAnswered(Address, CallId, Result<EtcdAnswer, EtcdError>),
    CallTimesOut(Address, CallId),
    WatchBegins(Address, WatchId, usize, i64),
    WatchPolled(Address, WatchId),
    WatchEnded(Address, WatchId, EtcdError),
    ProgressAsked(Address, WatchId),
    ProgressAnswered(Address, WatchId, WatchReport),
    NodeTimer(Address, Instant),
    LinkTick(usize, usize),
    MoveTick(usize),
    ReportArrives(LinkId, String),
    LinkDown(LinkId),
    SlotDials(usize, usize),
    DialDue(usize, u64),
    DialArrives(DialId, usize),
    DialEnds(DialId, DialResult),
    SessionEnds(Address, SessionId),
    SessionEnded(DialId, SessionEnd),
    Check,
}

/// All there is.
pub(crate) struct World {
    pub(crate) now: Instant,
    pub(crate) began: Instant,
    queue: BTreeMap<(Instant, u64), Event>,
    events: u64,
    pub(crate) random: Random,
    pub(crate) etcd: Etcd,
    /// Calls that have reached processes of etcd that stand still.
    pub(crate) frozen: Vec<Event>,
    pub(crate) snapshot: Option<Snapshot>,
    /// What calls of etcd and their answers take in addition.
    pub(crate) etcd_delay: Duration,
    /// When etcd's own change is scheduled.
    etcd_change: Option<Instant>,
    pub(crate) nodes: Vec<Node>,
    pub(crate) cut_from_etcd: BTreeSet<usize>,
    pub(crate) cut_links: BTreeSet<(usize, usize)>,
    /// Nodes without any way to other nodes.
    pub(crate) cut_nodes: BTreeSet<usize>,
    pub(crate) clients: Vec<Client>,
    /// Clients dial a balancer, or else each node by its own name.
    pub(crate) has_balancer: bool,
    /// Counts the dials that the balancer has led to ready nodes.
    pub(crate) balancer_turn: usize,
    pub(crate) last_id: u64,
    pub(crate) history: History,
    pub(crate) requests: Requests,
    pub(crate) spreading: Spreading,
    /// The nodes without a link while others have some, and since when.
    pub(crate) isolated: BTreeMap<usize, Instant>,
    /// Faults that are not healed.
    pub(crate) open_faults: usize,
    end: Instant,
    is_ending: bool,
    trace: VecDeque<String>,
}

impl World {
    #[expect(
        clippy::disallowed_methods,
        reason = "only differences matter: nothing compares it with a clock"
    )]
    pub(crate) fn new(plan: &Plan) -> Self {
        let began = Instant::now();
        let last = plan
            .faults
            .iter()
            .map(|(at, fault)| *at + fault.lasts())
            .max();
        let mut world = Self {
            now: began,
            began,
            queue: BTreeMap::new(),
            events: 0,
            random: Random::new(plan.seed ^ 0x5eed),
            etcd: Etcd::new(plan.members, plan.seed),
            frozen: Vec::new(),
            snapshot: None,
            etcd_delay: Duration::ZERO,
            etcd_change: None,
            nodes: (0..plan.nodes).map(Node::new).collect(),
            cut_from_etcd: BTreeSet::new(),
            cut_links: BTreeSet::new(),
            cut_nodes: BTreeSet::new(),
            clients: Vec::new(),
            has_balancer: plan.has_balancer,
            balancer_turn: 0,
            last_id: 0,
            history: History::new(began),
            requests: Requests::default(),
            spreading: Spreading::default(),
            isolated: BTreeMap::new(),
            open_faults: 0,
            end: began + last.unwrap_or_default() + CALM,
            is_ending: false,
            trace: VecDeque::new(),
        };
        for node in 0..plan.nodes {
            world.start_node(node);
            world.after(REBALANCE_INTERVAL, Event::MoveTick(node));
            for other in (0..plan.nodes).filter(|other| *other != node) {
                world.after(Duration::ZERO, Event::LinkTick(node, other));
            }
        }
        for runtime in 0..plan.clients {
            world.start_client(runtime);
        }
        for (at, fault) in &plan.faults {
            world.after(*at, Event::Fault(*fault));
        }
        world.after(CHECK_INTERVAL, Event::Check);
        world
    }

    /// Runs to the end, or to the first violation.
    pub(crate) fn run(mut self) -> Outcome {
        let mut violation = None;
        while violation.is_none()
            && let Some(((at, _), event)) = self.queue.pop_first()
        {
            self.now = at;
            if at > self.end {
                if self.is_ending {
                    violation = self.check_empty();
                    break;
                }
                self.is_ending = true;
                self.end = at + EMPTY;
                self.stop_all_clients();
            }
            self.note(&event);
            self.handle(event);
            self.follow_etcd();
            violation = self.history.violation.take();
        }
        let trace = std::mem::take(&mut self.trace);
        Outcome {
            steps: self.events,
            violation: violation.map(|(rule, detail)| Violation {
                rule,
                detail,
                at: self.now - self.began,
                trace: trace.into(),
            }),
        }
    }

    fn note(&mut self, event: &Event) {
        if event.is_routine() {
            return;
        }
        if self.trace.len() == SHOWN {
            self.trace.pop_front();
        }
        let at = (self.now - self.began).as_secs_f64();
        self.trace.push_back(format!("{at:>9.3} {event}"));
    }

    /// Adds a line to what is shown with a violation.
    pub(crate) fn say(&mut self, line: &str) {
        let at = (self.now - self.began).as_secs_f64();
        self.trace.push_back(format!("{at:>9.3}    {line}"));
    }

    /// Schedules an event.
    pub(crate) fn after(&mut self, delay: Duration, event: Event) {
        self.events += 1;
        self.queue.insert((self.now + delay, self.events), event);
    }

    /// Up to so many milliseconds.
    pub(crate) fn within(&mut self, milliseconds: usize) -> Duration {
        Duration::from_micros(1 + self.random.below(milliseconds * 1_000) as u64)
    }

    /// The time of an input of a node.
    pub(crate) fn input_time(&self) -> Now {
        let since = self.now - self.began;
        Now {
            instant: self.now,
            wall_ms: 1_700_000_000_000 + u64::try_from(since.as_millis()).unwrap_or(0),
        }
    }

    /// A number that nothing else has.
    pub(crate) fn next_id(&mut self) -> u64 {
        self.last_id += 1;
        self.last_id
    }

    fn handle(&mut self, event: Event) {
        let Some(event) = self.hold_if_paused(event) else {
            return;
        };
        match event {
            Event::Fault(fault) => self.begin_fault(fault),
            Event::Heal(heal) => self.heal(heal),
            Event::Etcd => {
                self.etcd_change = None;
                self.etcd.on_time(self.now);
                self.poll_watches();
            }
            Event::CallArrives(at, id, member, call) => self.on_call(at, id, member, call),
            Event::CallAnswered(at, id, answer) => self.on_call_answer(at, id, answer),
            Event::CallTimesOut(at, id) => self.on_call_timeout(at, id),
            Event::WatchBegins(at, id, member, start) => self.on_watch_begin(at, id, member, start),
            Event::WatchPolled(at, id) => self.on_watch_poll(at, id),
            Event::WatchEnded(at, id, error) => self.on_watch_end(at, id, error),
            Event::ProgressAsked(at, id) => self.on_progress_asked(at, id),
            Event::ProgressAnswered(at, id, report) => {
                self.input(at, |directory, now| {
                    directory.on_watch_report(id, report, now)
                });
            }
            Event::NodeTimer(at, due) => self.on_timer(at, due),
            Event::LinkTick(from, to) => self.on_link_tick(from, to),
            Event::MoveTick(node) => self.on_move_tick(node),
            Event::ReportArrives(link, text) => self.on_report(link, &text),
            Event::LinkDown(link) => self.on_link_down(link),
            Event::SlotDials(client, slot) => self.seek(client, slot),
            Event::DialDue(client, wait) => self.on_dial_due(client, wait),
            Event::DialArrives(dial, node) => self.on_dial(dial, node),
            Event::DialEnds(dial, result) => self.on_dial_end(dial, result),
            Event::SessionEnds(at, session) => self.end_session(at, session),
            Event::SessionEnded(dial, end) => self.on_session_end(dial, end),
            Event::Check => {
                self.check();
                self.check_requests();
                self.check_spread();
                self.check_links();
                self.check_accounts();
                self.after(CHECK_INTERVAL, Event::Check);
            }
        }
    }

    /// Schedules the next change of etcd by itself.
    fn follow_etcd(&mut self) {
        let next = self.etcd.next_change();
        if let Some(at) = next
            && self.etcd_change.is_none_or(|scheduled| at < scheduled)
        {
            self.etcd_change = Some(at);
            self.after(at.saturating_duration_since(self.now), Event::Etcd);
        }
    }
}

impl Event {
    /// Whether most events are of this kind, and nothing is seen of them.
    fn is_routine(&self) -> bool {
        match self {
            Self::Check
            | Self::Etcd
            | Self::LinkTick(..)
            | Self::MoveTick(_)
            | Self::DialDue(..)
            | Self::NodeTimer(..)
            | Self::CallTimesOut(..)
            | Self::WatchPolled(..)
            | Self::ProgressAsked(..)
            | Self::ProgressAnswered(..) => true,
            Self::CallArrives(.., call) => matches!(call, Call::KeepAlive(_)),
            Self::CallAnswered(.., answer) => matches!(answer, Ok(EtcdAnswer::Done)),
            _ => false,
        }
    }

    /// The node that the event reaches, if it is one that a paused process does not notice.
    pub(crate) fn reaches(&self) -> Option<usize> {
        match self {
            Self::CallAnswered(at, ..)
            | Self::CallTimesOut(at, ..)
            | Self::WatchEnded(at, ..)
            | Self::WatchPolled(at, ..)
            | Self::ProgressAnswered(at, ..)
            | Self::NodeTimer(at, ..)
            | Self::SessionEnds(at, ..) => Some(at.node),
            Self::ReportArrives(link, _) | Self::LinkDown(link) => Some(link.to),
            Self::DialArrives(_, node) => Some(*node),
            _ => None,
        }
    }
}

/// Longest text of an event.
const EVENT_BYTES: usize = 160;

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = match self {
            Self::CallArrives(at, id, member, call) => {
                let call = etcd::shown_call(call);
                format!("etcd {member} <- n{} {id:?} {call}", at.node)
            }
            Self::CallAnswered(at, id, Ok(EtcdAnswer::Txn(txn))) => {
                format!("n{} <- {id:?} {}", at.node, etcd::shown_answer(txn))
            }
            Self::CallAnswered(at, id, answer) => format!("n{} <- {id:?} {answer:?}", at.node),
            other => format!("{other:?}"),
        };
        text.truncate(EVENT_BYTES);
        f.write_str(&text)
    }
}
