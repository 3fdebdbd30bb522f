//! The limits of one runtime, and of all of them together, as permits.
//!
//! In: a checked request and the current limits. Out: a [`Permit`], held until the exchange ends, or the refusal that
//! names the limit. A [`Budget`] belongs to its runtime's slot in the registry, so that it outlives sessions and reloads.
//! Without limits no lock is taken, and nothing here waits: shaping ([`shaper`]) only returns for how long to wait.

pub(crate) mod pace;
pub mod rate;
pub mod shaper;
pub mod sources;
pub mod usage;
pub mod waiting;

use std::{
    net::IpAddr,
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};

use arc_swap::ArcSwapOption;
use ipnet::IpNet;
use parking_lot::Mutex;
use tunnel_proto::{
    memory::{HeldHead, MemoryAccount},
    problem::{Hop, Problem, Reason},
};

use self::{
    rate::{Rate, RateExceeded},
    shaper::Shaper,
    usage::{Counted, Free, Share, Usage, WaitingShare},
    waiting::{WaitingFull, WaitingPermit, WaitingRoom},
};
use crate::runtimes::RuntimeLimits;

/// `Retry-After` for limits on concurrent exchanges, which end frequently.
const OPEN_RETRY: Duration = Duration::from_secs(1);

/// `Retry-After` for a full waiting room, which empties when the runtime is back or the wait is over.
const WAITING_RETRY: Duration = Duration::from_secs(5);

/// The number of the next budget.
static NUMBER: AtomicU64 = AtomicU64::new(0);

/// One runtime may use this fraction, a quarter, of the node's memory for received bytes, so that a few runtimes at their
/// limit leave memory for the others.
const MEMORY_SHARE: usize = 4;

/// The long heads of a runtime's open requests may hold this fraction, a sixteenth, of its memory for received bytes, so
/// that no stream has to be reset for them; with the default settings 16 MiB, as much as its client allows.
const HEADS_SHARE: usize = 16;

/// The usage and limits of all runtimes of this node together, and the default limits of one runtime.
#[derive(Debug)]
pub struct NodeBudget {
    open: Count,
    websockets: Count,
    rate: Rate,
    waiting: WaitingRoom,
    memory: Arc<MemoryAccount>,
    defaults: Mutex<RuntimeLimits>,
}

/// The limits of all runtimes of one node together; `None` means no limit.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct NodeLimits {
    /// Exchanges open at once.
    pub exchanges: Option<u32>,
    /// Exchanges begun in a second.
    pub exchange_rate: Option<u32>,
    /// Upgraded connections open at once.
    pub websockets: Option<u32>,
    /// Requests that wait for a runtime to come back.
    pub waiting: Option<u32>,
    /// The memory of those requests together, in bytes.
    pub waiting_bytes: Option<u64>,
    /// Received bytes of answers that platform clients have not taken yet. One runtime may hold a quarter.
    pub buffered_bytes: Option<u64>,
}

/// The limits and the usage of one runtime.
#[derive(Debug)]
pub struct Budget {
    /// Unique to this budget.
    number: u64,
    node: Arc<NodeBudget>,
    /// The runtime's own limits, without the defaults.
    own: Mutex<RuntimeLimits>,
    exchanges: Count,
    websockets: Count,
    head_bytes: AtomicUsize,
    rate: Rate,
    upload: Arc<Shaper>,
    download: Arc<Shaper>,
    waiting: WaitingRoom,
    memory: Arc<MemoryAccount>,
    /// The number of server nodes that share the limits.
    holders: AtomicUsize,
    /// The source networks that are allowed; `None` means any.
    allow_from: ArcSwapOption<Vec<IpNet>>,
}

/// The permit of one open exchange; returned when dropped.
#[derive(Debug)]
pub struct Permit {
    budget: Arc<Budget>,
    /// The share of its address; `None` if addresses are not counted.
    share: Option<Share>,
    is_upgrade: bool,
}

/// The permit of one request to wait for its runtime to come back; returned when dropped.
#[derive(Debug)]
pub struct Waiting<'a> {
    _own: WaitingPermit<'a>,
    _node: WaitingPermit<'a>,
    _share: Option<WaitingShare>,
}

/// The count of the long head of an open request, which ends when this is dropped.
#[derive(Debug)]
pub struct CountedHead {
    _held: HeldHead,
    share: Option<(Share, usize)>,
}

impl Drop for CountedHead {
    fn drop(&mut self) {
        if let Some((share, bytes)) = &self.share {
            share.leave(Counted::HeadBytes, *bytes);
        }
    }
}

/// A count of things or bytes with a limit.
#[derive(Debug)]
struct Count {
    open: AtomicUsize,
    /// `usize::MAX` means no limit.
    max: AtomicUsize,
}

impl NodeBudget {
    /// Changes the limits and keeps the counts. Each [`Budget`] has to be [refreshed](Budget::refresh) afterwards.
    pub fn set(&self, limits: NodeLimits, defaults: RuntimeLimits) {
        self.open.limit(limits.exchanges.map(u64::from));
        self.websockets.limit(limits.websockets.map(u64::from));
        self.rate.set(limits.exchange_rate);
        self.waiting.limit(limits.waiting, limits.waiting_bytes);
        let buffered = limits.buffered_bytes.map(usize::try_from);
        let buffered = buffered.and_then(Result::ok).unwrap_or(usize::MAX);
        self.memory.set_limit(buffered);
        *self.defaults.lock() = defaults;
    }

    /// Received bytes of answers that platform clients have not taken yet, of all runtimes.
    #[must_use]
    pub fn buffered(&self) -> usize {
        self.memory.held()
    }

    /// The account of received bytes of all runtimes.
    pub(crate) fn memory(&self) -> &Arc<MemoryAccount> {
        &self.memory
    }

    /// The number of open exchanges of all runtimes.
    #[must_use]
    pub fn open(&self) -> usize {
        self.open.now()
    }

    /// The number of open upgraded connections of all runtimes.
    #[must_use]
    pub fn websockets(&self) -> usize {
        self.websockets.now()
    }

    /// What is used of the limits on what is open, waits or is buffered, and these limits, for people. Without those that have
    /// no limit; the rate is left out, of which nothing is used between two requests.
    pub(crate) fn used(&self) -> Vec<(&'static str, (usize, usize))> {
        let buffered = (self.memory.held(), self.memory.limit());
        let [requests, waiting_bytes] = self.waiting.used();
        let mut used = vec![
            ("open exchanges", self.open.used()),
            ("upgraded connections", self.websockets.used()),
            ("waiting requests", requests),
            ("waiting bytes", waiting_bytes),
            ("buffered bytes", buffered),
        ];
        used.retain(|(_, (_, limit))| *limit != usize::MAX);
        used
    }
}

impl Default for NodeBudget {
    fn default() -> Self {
        Self {
            open: Count::unlimited(),
            websockets: Count::unlimited(),
            rate: Rate::default(),
            waiting: WaitingRoom::unlimited(),
            memory: MemoryAccount::new(usize::MAX),
            defaults: Mutex::default(),
        }
    }
}

impl Budget {
    /// The budget of a runtime that has no limits of its own yet.
    #[must_use]
    pub fn new(node: Arc<NodeBudget>) -> Arc<Self> {
        let memory = MemoryAccount::within(&node.memory, usize::MAX);
        let budget = Self {
            number: NUMBER.fetch_add(1, Ordering::Relaxed),
            node,
            own: Mutex::default(),
            exchanges: Count::unlimited(),
            websockets: Count::unlimited(),
            head_bytes: AtomicUsize::new(usize::MAX),
            rate: Rate::default(),
            upload: Arc::default(),
            download: Arc::default(),
            waiting: WaitingRoom::unlimited(),
            memory,
            holders: AtomicUsize::new(1),
            allow_from: ArcSwapOption::empty(),
        };
        budget.refresh();
        Arc::new(budget)
    }

    /// Changes the runtime's own limits and keeps the counts.
    pub fn set(&self, own: RuntimeLimits) {
        *self.own.lock() = own;
        self.refresh();
    }

    /// Applies the node's current defaults.
    pub fn refresh(&self) {
        let own = self.own.lock();
        let limits = own.or(*self.node.defaults.lock());
        let holders = self.holders.load(Ordering::Relaxed) as u64;
        let part = |limit: u64| limit.div_ceil(holders.max(1));
        let small = |limit: u32| u32::try_from(part(limit.into())).unwrap_or(limit);
        self.exchanges
            .limit(limits.exchanges.map(|limit| part(limit.into())));
        self.websockets
            .limit(limits.websockets.map(|limit| part(limit.into())));
        self.waiting.limit(limits.waiting, limits.waiting_bytes);
        let head_bytes = limits.head_bytes.unwrap_or(usize::MAX);
        self.head_bytes.store(head_bytes, Ordering::Relaxed);
        self.memory
            .set_limit(self.node.memory.limit() / MEMORY_SHARE);
        self.rate.set(limits.exchange_rate.map(small));
        self.upload.set(limits.upload_rate.map(part));
        self.download.set(limits.download_rate.map(part));
    }

    /// So many server nodes share the limits on exchanges, upgraded connections and rates; each has an equal part, rounded up.
    pub(crate) fn share(&self, holders: usize) {
        if self.holders.swap(holders, Ordering::Relaxed) != holders {
            self.refresh();
        }
    }

    /// The account of bytes that the runtime's sessions have received and platform clients have not taken yet.
    #[must_use]
    pub fn memory(&self) -> &Arc<MemoryAccount> {
        &self.memory
    }

    /// Changes the source networks that are allowed; `None` means any.
    pub fn set_allow_from(&self, networks: Option<Vec<IpNet>>) {
        self.allow_from.store(networks.map(Arc::new));
    }

    /// Checks an address against the runtime's own list of source networks.
    ///
    /// # Errors
    /// When it is not in the list.
    pub fn admit(&self, address: IpAddr) -> Result<(), Problem> {
        match &*self.allow_from.load() {
            Some(networks) => sources::admit(networks, address),
            None => Ok(()),
        }
    }

    /// Begins an exchange for the address of `usage`. `head_bytes` is computed only if there is a limit on heads.
    ///
    /// # Errors
    /// With the refusal that names the exceeded limit. Nothing is counted then.
    pub fn enter(
        self: &Arc<Self>,
        is_upgrade: bool,
        usage: Option<&Arc<Usage>>,
        head_bytes: impl FnOnce() -> usize,
    ) -> Result<Permit, Problem> {
        let max = self.head_bytes.load(Ordering::Relaxed);
        if max != usize::MAX && head_bytes() > max {
            let detail = format!("the runtime's limit `head_size` is {max} bytes");
            return Err(Problem::new(Hop::Server, Reason::HeadTooLarge, detail));
        }
        self.exchanges.enter(1).map_err(|max| {
            let detail = format!("the runtime's limit `exchanges` is {max} open at once");
            limit_reached(Reason::ExchangeLimit, detail)
        })?;
        if let Err(max) = self.node.open.enter(1) {
            self.exchanges.leave(1);
            let detail = format!("the server's limit `max-open-exchanges` is {max} open at once");
            return Err(limit_reached(Reason::ServerLimit, detail));
        }
        let mut permit = Permit {
            budget: self.clone(),
            share: None,
            is_upgrade: false,
        };
        if let Some(usage) = usage {
            let free = Free {
                runtime: self.exchanges.free(),
                node: self.node.open.free(),
            };
            let share = usage.at(self.number);
            share.enter(Counted::Exchange, 1, free)?;
            permit.share = Some(share);
        }
        if is_upgrade {
            permit.enter_websocket()?;
        }
        // Last, so that exchanges that are refused for another reason do not count for a rate; and the runtime's rate
        // first, so that a runtime over its own rate does not use up the rate of all.
        self.rate.take().map_err(|refused| {
            let detail = |max| format!("the runtime's limit `exchange_rate` is {max} in a second");
            rate_exceeded(Reason::ExchangeRateLimit, refused, detail)
        })?;
        self.node.rate.take().map_err(|refused| {
            let detail =
                |max| format!("the server's limit `max-exchange-rate` is {max} in a second");
            rate_exceeded(Reason::ServerLimit, refused, detail)
        })?;
        Ok(permit)
    }

    /// Counts the outgoing head of an open request, for the address of `usage`, unless it is short.
    ///
    /// # Errors
    /// When the heads of the runtime's requests, or the address's part of them, would be more than they may.
    pub fn hold_head(
        &self,
        usage: Option<&Arc<Usage>>,
        bytes: usize,
    ) -> Result<Option<CountedHead>, Problem> {
        let most = self.memory.limit() / HEADS_SHARE;
        let held = self.memory.hold_head(bytes, most).map_err(|full| {
            let detail = format!("{full}: {most} bytes of the runtime's memory");
            limit_reached(Reason::MemoryLimit, detail)
        })?;
        let Some(held) = held else {
            return Ok(None);
        };
        let share = usage.map(|usage| {
            let free = Free {
                runtime: most.saturating_sub(self.memory.heads()),
                node: usize::MAX,
            };
            let share = usage.at(self.number);
            share.enter(Counted::HeadBytes, bytes, free)?;
            Ok((share, bytes))
        });
        Ok(Some(CountedHead {
            _held: held,
            share: share.transpose()?,
        }))
    }

    /// Counts an upgraded connection, here and at the node.
    fn enter_websocket(&self) -> Result<(), Problem> {
        self.websockets.enter(1).map_err(|max| {
            let detail = format!("the runtime's limit `websockets` is {max} open at once");
            limit_reached(Reason::WebsocketLimit, detail)
        })?;
        self.node.websockets.enter(1).map_err(|max| {
            self.websockets.leave(1);
            let detail = format!("the server's limit `max-open-websockets` is {max} open at once");
            limit_reached(Reason::ServerLimit, detail)
        })
    }

    fn leave_websocket(&self) {
        self.node.websockets.leave(1);
        self.websockets.leave(1);
    }

    /// Acquires a permit to wait for the runtime to come back, for a request that holds `bytes` of memory
    /// ([`waiting::weight`]).
    ///
    /// # Errors
    /// With the refusal that names the exceeded limit of this runtime, of the node, or of the address.
    pub fn wait(&self, bytes: usize, usage: Option<&Arc<Usage>>) -> Result<Waiting<'_>, Problem> {
        let own = self.waiting.enter(bytes).map_err(|full| match full {
            WaitingFull::Requests(max) => {
                waiting_limit_reached(format!("the runtime's limit `waiting` is {max} requests"))
            }
            WaitingFull::Bytes(max) => {
                waiting_limit_reached(format!("the runtime's limit `waiting_size` is {max} bytes"))
            }
        })?;
        let node = self.node.waiting.enter(bytes).map_err(|full| match full {
            WaitingFull::Requests(max) => waiting_limit_reached(format!(
                "the server's limit `max-waiting` is {max} requests"
            )),
            WaitingFull::Bytes(max) => waiting_limit_reached(format!(
                "the server's limit `max-waiting-size` is {max} bytes"
            )),
        })?;
        let share = usage.map(|usage| {
            let (own, node) = (self.waiting.free(), self.node.waiting.free());
            let free = |runtime, node| Free { runtime, node };
            let (requests, left) = (free(own.0, node.0), free(own.1, node.1));
            WaitingShare::enter(usage.at(self.number), bytes, requests, left)
        });
        Ok(Waiting {
            _own: own,
            _node: node,
            _share: share.transpose()?,
        })
    }

    /// The number of requests that wait for the runtime to come back.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.waiting.now()
    }

    /// The number of open exchanges, including upgraded connections.
    #[must_use]
    pub fn open(&self) -> usize {
        self.exchanges.now()
    }

    /// The number of open upgraded connections.
    #[must_use]
    pub fn open_websockets(&self) -> usize {
        self.websockets.now()
    }
}

impl Permit {
    /// The upgrade was refused: returns the permit of an upgraded connection.
    pub fn not_upgraded(&mut self) {
        if std::mem::take(&mut self.is_upgrade) {
            self.budget.leave_websocket();
            if let Some(share) = &self.share {
                share.leave(Counted::Websocket, 1);
            }
        }
    }

    /// Acquires the permit of an upgraded connection.
    fn enter_websocket(&mut self) -> Result<(), Problem> {
        let budget = &self.budget;
        budget.enter_websocket()?;
        if let Some(share) = &self.share {
            let free = Free {
                runtime: budget.websockets.free(),
                node: budget.node.websockets.free(),
            };
            let entered = share.enter(Counted::Websocket, 1, free);
            entered.inspect_err(|_| budget.leave_websocket())?;
        }
        self.is_upgrade = true;
        Ok(())
    }

    /// The shaper of the bytes to the runtime.
    #[must_use]
    pub fn upload(&self) -> &Arc<Shaper> {
        &self.budget.upload
    }

    /// The shaper of the bytes from the runtime.
    #[must_use]
    pub fn download(&self) -> &Arc<Shaper> {
        &self.budget.download
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.not_upgraded();
        self.budget.node.open.leave(1);
        self.budget.exchanges.leave(1);
        if let Some(share) = &self.share {
            share.leave(Counted::Exchange, 1);
        }
    }
}

/// The refusal for an exceeded limit on concurrent use.
fn limit_reached(reason: Reason, detail: String) -> Problem {
    Problem::new(Hop::Server, reason, detail).retry_after(OPEN_RETRY)
}

fn rate_exceeded(
    reason: Reason,
    refused: RateExceeded,
    detail: impl FnOnce(u32) -> String,
) -> Problem {
    Problem::new(Hop::Server, reason, detail(refused.max)).retry_after(refused.after)
}

fn waiting_limit_reached(detail: String) -> Problem {
    Problem::new(Hop::Server, Reason::WaitingLimit, detail).retry_after(WAITING_RETRY)
}

impl Count {
    fn unlimited() -> Self {
        Self {
            open: AtomicUsize::new(0),
            max: AtomicUsize::new(usize::MAX),
        }
    }

    fn limit(&self, max: Option<u64>) {
        let max = max.and_then(|max| usize::try_from(max).ok());
        self.max.store(max.unwrap_or(usize::MAX), Ordering::Relaxed);
    }

    fn now(&self) -> usize {
        self.open.load(Ordering::Relaxed)
    }

    /// How much is used, and the limit.
    fn used(&self) -> (usize, usize) {
        (self.now(), self.max.load(Ordering::Relaxed))
    }

    /// How many more there may be.
    fn free(&self) -> usize {
        self.max.load(Ordering::Relaxed).saturating_sub(self.now())
    }

    /// Counts `many` more; fails with the limit if they would exceed it.
    fn enter(&self, many: usize) -> Result<(), usize> {
        let max = self.max.load(Ordering::Relaxed);
        let below = |open: usize| open.checked_add(many).filter(|open| *open <= max);
        let entered = self
            .open
            .fetch_update(Ordering::AcqRel, Ordering::Relaxed, below);
        entered.map(drop).map_err(|_| max)
    }

    fn leave(&self, many: usize) {
        self.open.fetch_sub(many, Ordering::AcqRel);
    }
}

#[cfg(test)]
mod tests {
    use tunnel_http::permits::AddressState;

    use super::*;

    #[test]
    fn long_heads_hold_a_part_of_the_memory_and_an_address_a_part_of_that() {
        const HEAD_BYTES: usize = 100 * 1024;
        let node = Arc::new(NodeBudget::default());
        node.set(
            NodeLimits {
                buffered_bytes: Some(1 << 30),
                ..NodeLimits::default()
            },
            RuntimeLimits::default(),
        );
        let budget = Budget::new(node.clone());
        let most = (1 << 30) / MEMORY_SHARE / HEADS_SHARE;
        let mut held = Vec::new();
        let mut fill = |usage: &Arc<Usage>| {
            let before = held.len();
            let refused = loop {
                match budget.hold_head(Some(usage), HEAD_BYTES) {
                    Ok(head) => held.push(head.unwrap()),
                    Err(problem) => break problem,
                }
            };
            assert!(budget.hold_head(Some(usage), 4_000).unwrap().is_none());
            (held.len() - before, refused.reason())
        };
        let usage = || Arc::new(Usage::new(&Arc::default()));
        let first = usage();
        let (count, reason) = fill(&first);
        assert_eq!(reason, Reason::AddressLimit);
        assert!((count * HEAD_BYTES).abs_diff(most / 2) <= 2 * HEAD_BYTES);
        let (count, _) = fill(&usage());
        assert!(count * HEAD_BYTES >= most / 5, "{count}");
        while let Ok(head) = budget.hold_head(None, HEAD_BYTES) {
            held.push(head.unwrap());
        }
        assert!(node.buffered() <= most);
        let refused = budget.hold_head(None, HEAD_BYTES).unwrap_err();
        assert_eq!(refused.reason(), Reason::MemoryLimit);
        held.clear();
        assert_eq!((node.buffered(), budget.memory.heads()), (0, 0));
        assert!(budget.hold_head(Some(&first), HEAD_BYTES).is_ok());
    }

    fn limited(limits: RuntimeLimits) -> (Arc<NodeBudget>, Arc<Budget>) {
        let node = Arc::new(NodeBudget::default());
        let budget = Budget::new(node.clone());
        budget.set(limits);
        (node, budget)
    }

    fn enter(budget: &Arc<Budget>, is_upgrade: bool) -> Result<Permit, Problem> {
        budget.enter(is_upgrade, None, || 100)
    }

    #[track_caller]
    fn refused(result: Result<Permit, Problem>, reason: Reason, limit: &str) {
        let problem = result.err().unwrap();
        assert_eq!(problem.reason(), reason);
        assert!(problem.detail().contains(limit), "{problem}");
        assert_eq!(
            problem.retry_after_value().is_none(),
            reason == Reason::HeadTooLarge
        );
    }

    #[tokio::test]
    async fn each_limit_is_named_and_a_refusal_counts_nothing() {
        let (node, budget) = limited(RuntimeLimits {
            exchanges: Some(3),
            websockets: Some(1),
            head_bytes: Some(1_000),
            ..RuntimeLimits::default()
        });
        let websocket = enter(&budget, true).unwrap();
        refused(enter(&budget, true), Reason::WebsocketLimit, "`websockets`");
        let large = budget.enter(false, None, || 1_001);
        refused(large, Reason::HeadTooLarge, "`head_size`");
        let others = [enter(&budget, false), enter(&budget, false)];
        refused(enter(&budget, false), Reason::ExchangeLimit, "`exchanges`");
        assert_eq!(
            (budget.open(), budget.open_websockets(), node.open()),
            (3, 1, 3)
        );
        // An upgrade that is refused is an exchange like any other.
        let mut refused = websocket;
        refused.not_upgraded();
        refused.not_upgraded();
        assert_eq!((budget.open(), budget.open_websockets()), (3, 0));
        drop((refused, others));
        assert_eq!(
            (budget.open(), budget.open_websockets(), node.open()),
            (0, 0, 0)
        );
    }

    #[tokio::test]
    async fn the_node_has_a_limit_for_all_runtimes_together() {
        let node = Arc::new(NodeBudget::default());
        let limits = NodeLimits {
            exchanges: Some(2),
            websockets: Some(1),
            ..NodeLimits::default()
        };
        node.set(limits, RuntimeLimits::default());
        let (a, b) = (Budget::new(node.clone()), Budget::new(node.clone()));
        let first = enter(&a, false).unwrap();
        let second = enter(&b, false).unwrap();
        refused(
            enter(&b, false),
            Reason::ServerLimit,
            "`max-open-exchanges`",
        );
        assert_eq!(b.open(), 1);
        drop(first);
        let websocket = enter(&b, true).unwrap();
        drop(second);
        refused(
            enter(&a, true),
            Reason::ServerLimit,
            "`max-open-websockets`",
        );
        assert_eq!((a.open(), a.open_websockets(), node.open()), (0, 0, 1));
        assert!(enter(&a, false).is_ok());
        drop(websocket);
        assert!(enter(&a, true).is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn a_runtime_over_its_own_rate_does_not_use_up_the_rate_of_all() {
        let node = Arc::new(NodeBudget::default());
        let limits = NodeLimits {
            exchange_rate: Some(4),
            ..NodeLimits::default()
        };
        node.set(limits, RuntimeLimits::default());
        let (a, b) = (Budget::new(node.clone()), Budget::new(node));
        a.set(RuntimeLimits {
            exchange_rate: Some(2),
            ..RuntimeLimits::default()
        });
        for number in 0..100 {
            assert_eq!(enter(&a, false).is_ok(), number < 2);
        }
        assert!(enter(&b, false).is_ok() && enter(&b, false).is_ok());
        refused(enter(&b, false), Reason::ServerLimit, "`max-exchange-rate`");
        assert_eq!(b.open(), 0);
        tokio::time::sleep(Duration::from_millis(1_100)).await;
        assert!(enter(&b, false).is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn a_refusal_by_rate_says_when_to_try_again() {
        let (_, budget) = limited(RuntimeLimits {
            exchange_rate: Some(2),
            ..RuntimeLimits::default()
        });
        for _ in 0..2 {
            drop(enter(&budget, false).unwrap());
        }
        let refusal = enter(&budget, false);
        assert_eq!(budget.open(), 0);
        let after = refusal.as_ref().err().unwrap().retry_after_value().unwrap();
        assert_eq!(after, "1");
        refused(refusal, Reason::ExchangeRateLimit, "`exchange_rate`");
        tokio::time::sleep(Duration::from_millis(1_100)).await;
        assert!(enter(&budget, false).is_ok());
    }

    #[tokio::test]
    async fn limits_change_in_place_and_the_defaults_fill_in() {
        let node = Arc::new(NodeBudget::default());
        let budget = Budget::new(node.clone());
        let open: Vec<Permit> = (0..3).map(|_| enter(&budget, false).unwrap()).collect();
        let defaults = RuntimeLimits {
            exchanges: Some(2),
            ..RuntimeLimits::default()
        };
        node.set(NodeLimits::default(), defaults);
        budget.refresh();
        refused(enter(&budget, false), Reason::ExchangeLimit, "2");
        budget.set(RuntimeLimits {
            exchanges: Some(4),
            ..RuntimeLimits::default()
        });
        let _fourth = enter(&budget, false).unwrap();
        refused(enter(&budget, false), Reason::ExchangeLimit, "4");
        drop(open);
        assert_eq!(budget.open(), 1);
    }

    #[tokio::test]
    async fn nodes_that_hold_a_runtime_have_an_equal_part_of_its_limits() {
        let (_node, budget) = limited(RuntimeLimits {
            exchanges: Some(10),
            websockets: Some(0),
            ..RuntimeLimits::default()
        });
        for (holders, most) in [(1, 10), (2, 5), (3, 4), (20, 1), (1, 10)] {
            budget.share(holders);
            let open: Vec<_> = (0..most).map(|_| enter(&budget, false).unwrap()).collect();
            refused(
                enter(&budget, false),
                Reason::ExchangeLimit,
                &most.to_string(),
            );
            drop(open);
            refused(enter(&budget, true), Reason::WebsocketLimit, "0");
        }
    }

    #[tokio::test]
    async fn waiting_requests_are_bounded_per_runtime_and_in_all() {
        let node = Arc::new(NodeBudget::default());
        let (a, b) = (Budget::new(node.clone()), Budget::new(node.clone()));
        let own = RuntimeLimits {
            waiting: Some(2),
            waiting_bytes: Some(1_000),
            ..RuntimeLimits::default()
        };
        a.set(own);
        let all = NodeLimits {
            waiting: Some(3),
            waiting_bytes: Some(2_000),
            ..NodeLimits::default()
        };
        node.set(all, RuntimeLimits::default());
        let refused = |budget: &Arc<Budget>, bytes, limit| {
            let refusal = budget.wait(bytes, None).err().unwrap();
            assert_eq!(refusal.reason(), Reason::WaitingLimit);
            assert!(refusal.detail().contains(limit), "{refusal}");
            assert_eq!(refusal.retry_after_value().unwrap(), "5");
        };
        let first = a.wait(600, None).unwrap();
        refused(&a, 401, "`waiting_size`");
        let second = a.wait(400, None).unwrap();
        refused(&a, 0, "`waiting`");
        refused(&b, 1_001, "`max-waiting-size`");
        let third = b.wait(1_000, None).unwrap();
        refused(&b, 0, "`max-waiting`");
        assert_eq!((a.waiting(), b.waiting()), (2, 1));
        drop((first, second));
        assert!(b.wait(1_000, None).is_ok());
        drop(third);
        assert_eq!((a.waiting(), b.waiting(), node.waiting.now()), (0, 0, 0));
    }

    #[tokio::test]
    async fn one_address_leaves_half_of_the_waiting_permits_to_others() {
        let (_node, budget) = limited(RuntimeLimits {
            waiting: Some(64),
            waiting_bytes: Some(64_000),
            ..RuntimeLimits::default()
        });
        let [one, other] = [(); 2].map(|()| Arc::new(Usage::new(&Arc::default())));
        for (bytes, most) in [(0, 32), (2_000, 16)] {
            let mut held: Vec<_> = (0..most)
                .map(|_| budget.wait(bytes, Some(&one)).unwrap())
                .collect();
            let refused = budget.wait(bytes, Some(&one)).unwrap_err();
            assert_eq!(refused.reason(), Reason::AddressLimit);
            assert!(refused.detail().contains("waiting"), "{refused}");
            assert!(budget.wait(bytes, Some(&other)).is_ok());
            held.pop();
            assert!(budget.wait(bytes, Some(&one)).is_ok());
        }
        assert_eq!(budget.waiting(), 0);
    }

    #[test]
    fn permits_of_many_threads_all_come_back_and_never_pass_the_limit() {
        let (node, budget) = limited(RuntimeLimits {
            exchanges: Some(3),
            websockets: Some(2),
            ..RuntimeLimits::default()
        });
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let budget = &budget;
                scope.spawn(move || {
                    for round in 0..20_000 {
                        let permit = enter(budget, (thread + round) % 2 == 0);
                        assert!(budget.open() <= 3 && budget.open_websockets() <= 2);
                        drop(permit);
                    }
                });
            }
        });
        assert_eq!(
            (budget.open(), budget.open_websockets(), node.open()),
            (0, 0, 0)
        );
        let all: Vec<_> = (0..3).map(|_| enter(&budget, false).unwrap()).collect();
        assert_eq!(all.len(), 3);
    }
}
