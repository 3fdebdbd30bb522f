//! What one runtime may use at most, and all of them together: as permits that return themselves.
//!
//! In come a checked request and the limits as they are now; out comes a [`Permit`] that is held for
//! as long as the exchange lives, or the refusal that names the limit. A [`Budget`] stays with its
//! runtime's place in the registry, so that it outlives sessions and reloads. Without limits nothing
//! here takes a lock, and nothing here ever waits: shaping ([`shaper`]) only says for how long.

pub mod rate;
pub mod shaper;
pub mod sources;

use std::{
    net::IpAddr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use arc_swap::ArcSwapOption;
use ipnet::IpNet;
use parking_lot::Mutex;
use tunnel_proto::problem::{Hop, Problem, Reason};

use self::{rate::Rate, shaper::Shaper};
use crate::runtimes::RuntimeLimits;

/// What `Retry-After` says of limits on what is open at once: exchanges end all the time.
const OPEN_RETRY: Duration = Duration::from_secs(1);

/// The same of a full waiting room, which empties when the runtime is back or the wait is over.
const WAITING_RETRY: Duration = Duration::from_secs(5);

/// How many may wait for one runtime before the configuration has said so.
const WAITING: usize = 256;

/// What all runtimes of this node may use together, and what each may whose own limits do not say.
#[derive(Debug)]
pub struct NodeBudget {
    open: Count,
    max_waiting: AtomicUsize,
    defaults: Mutex<RuntimeLimits>,
}

/// What one runtime may use, and what it uses now.
#[derive(Debug)]
pub struct Budget {
    node: Arc<NodeBudget>,
    /// As listed for this runtime, without the defaults.
    own: Mutex<RuntimeLimits>,
    exchanges: Count,
    websockets: Count,
    head_bytes: AtomicUsize,
    rate: Rate,
    upload: Arc<Shaper>,
    download: Arc<Shaper>,
    waiting: AtomicUsize,
    /// Where it may be reached from; `None` means from anywhere.
    allow_from: ArcSwapOption<Vec<IpNet>>,
}

/// An exchange's place among those that are open; given back when dropped.
#[derive(Debug)]
pub struct Permit {
    budget: Arc<Budget>,
    is_upgrade: bool,
}

/// A place among the requests that wait for a runtime to come back; given back when dropped.
#[derive(Debug)]
pub struct Waiting<'a>(&'a AtomicUsize);

/// Things of which so many may be there at once.
#[derive(Debug)]
struct Count {
    open: AtomicUsize,
    /// `usize::MAX` for as many as there are.
    max: AtomicUsize,
}

impl NodeBudget {
    /// Changes the limits; what is counted stays. Each [`Budget`] has to be told to
    /// [`refresh`](Budget::refresh) afterwards.
    pub fn set(&self, max_open: usize, max_waiting: usize, defaults: RuntimeLimits) {
        self.open.max.store(max_open, Ordering::Relaxed);
        self.max_waiting.store(max_waiting, Ordering::Relaxed);
        *self.defaults.lock() = defaults;
    }

    /// Exchanges that are open now, of all runtimes.
    #[must_use]
    pub fn open(&self) -> usize {
        self.open.now()
    }
}

impl Default for NodeBudget {
    fn default() -> Self {
        Self {
            open: Count::unlimited(),
            max_waiting: AtomicUsize::new(WAITING),
            defaults: Mutex::default(),
        }
    }
}

impl Budget {
    /// The budget of a runtime that has no limits of its own yet.
    #[must_use]
    pub fn new(node: Arc<NodeBudget>) -> Arc<Self> {
        let budget = Self {
            node,
            own: Mutex::default(),
            exchanges: Count::unlimited(),
            websockets: Count::unlimited(),
            head_bytes: AtomicUsize::new(usize::MAX),
            rate: Rate::default(),
            upload: Arc::default(),
            download: Arc::default(),
            waiting: AtomicUsize::new(0),
            allow_from: ArcSwapOption::empty(),
        };
        budget.refresh();
        Arc::new(budget)
    }

    /// Changes the runtime's own limits in place; what is counted stays.
    pub fn set(&self, own: RuntimeLimits) {
        *self.own.lock() = own;
        self.refresh();
    }

    /// Applies the node's defaults as they are now.
    pub fn refresh(&self) {
        let own = self.own.lock();
        let limits = own.or(*self.node.defaults.lock());
        self.exchanges.limit(limits.exchanges);
        self.websockets.limit(limits.websockets);
        let head_bytes = limits.head_bytes.unwrap_or(usize::MAX);
        self.head_bytes.store(head_bytes, Ordering::Relaxed);
        self.rate.set(limits.exchange_rate);
        self.upload.set(limits.upload_rate);
        self.download.set(limits.download_rate);
    }

    /// Changes where the runtime may be reached from; `None` means from anywhere.
    pub fn set_allow_from(&self, networks: Option<Vec<IpNet>>) {
        self.allow_from.store(networks.map(Arc::new));
    }

    /// Whether the runtime's own list lets this address in.
    ///
    /// # Errors
    /// With the refusal, when it does not.
    pub fn admit(&self, address: IpAddr) -> Result<(), Problem> {
        match &*self.allow_from.load() {
            Some(networks) => sources::admit(networks, address),
            None => Ok(()),
        }
    }

    /// Begins an exchange. `head_bytes` is asked only when heads have a limit here.
    ///
    /// # Errors
    /// With the refusal that names the limit which is reached. Nothing is counted then.
    pub fn enter(
        self: &Arc<Self>,
        is_upgrade: bool,
        head_bytes: impl FnOnce() -> usize,
    ) -> Result<Permit, Problem> {
        let max = self.head_bytes.load(Ordering::Relaxed);
        if max != usize::MAX && head_bytes() > max {
            let detail = format!("the runtime's limit `head_size` is {max} bytes");
            return Err(Problem::new(Hop::Server, Reason::HeadTooLarge, detail));
        }
        let full =
            |reason, detail| Problem::new(Hop::Server, reason, detail).retry_after(OPEN_RETRY);
        self.exchanges.enter().map_err(|max| {
            let detail = format!("the runtime's limit `exchanges` is {max} open at once");
            full(Reason::ExchangeLimit, detail)
        })?;
        if let Err(max) = self.node.open.enter() {
            self.exchanges.leave();
            let detail = format!("the server's limit `max-open-exchanges` is {max} open at once");
            return Err(full(Reason::ServerLimit, detail));
        }
        let mut permit = Permit {
            budget: self.clone(),
            is_upgrade: false,
        };
        if is_upgrade {
            self.websockets.enter().map_err(|max| {
                let detail = format!("the runtime's limit `websockets` is {max} open at once");
                full(Reason::WebsocketLimit, detail)
            })?;
            permit.is_upgrade = true;
        }
        // Last, so that what is refused for another reason takes no part of the rate.
        self.rate.take().map_err(|refused| {
            let max = refused.max;
            let detail = format!("the runtime's limit `exchange_rate` is {max} in a second");
            Problem::new(Hop::Server, Reason::ExchangeRateLimit, detail).retry_after(refused.after)
        })?;
        Ok(permit)
    }

    /// Takes a place among the requests that wait for the runtime to come back.
    ///
    /// # Errors
    /// With the refusal, when as many as allowed are waiting.
    pub fn wait(&self) -> Result<Waiting<'_>, Problem> {
        let max = self.node.max_waiting.load(Ordering::Relaxed);
        let place = Waiting(&self.waiting);
        if self.waiting.fetch_add(1, Ordering::AcqRel) < max {
            return Ok(place);
        }
        let detail = format!("the server's limit `max-waiting` is {max} for a runtime");
        Err(Problem::new(Hop::Server, Reason::WaitingLimit, detail).retry_after(WAITING_RETRY))
    }

    /// How many requests wait for the runtime to come back.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.waiting.load(Ordering::Relaxed)
    }

    /// Exchanges that are open now, upgraded connections among them.
    #[must_use]
    pub fn open(&self) -> usize {
        self.exchanges.now()
    }

    /// Upgraded connections that are open now.
    #[must_use]
    pub fn open_websockets(&self) -> usize {
        self.websockets.now()
    }
}

impl Permit {
    /// The upgrade was not granted: it takes no place of an upgraded connection any more.
    pub fn not_upgraded(&mut self) {
        if std::mem::take(&mut self.is_upgrade) {
            self.budget.websockets.leave();
        }
    }

    /// What delays the bytes that are sent to the runtime.
    #[must_use]
    pub fn upload(&self) -> &Arc<Shaper> {
        &self.budget.upload
    }

    /// What delays the bytes that the runtime sends.
    #[must_use]
    pub fn download(&self) -> &Arc<Shaper> {
        &self.budget.download
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.budget.node.open.leave();
        self.budget.exchanges.leave();
        if self.is_upgrade {
            self.budget.websockets.leave();
        }
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Count {
    fn unlimited() -> Self {
        Self {
            open: AtomicUsize::new(0),
            max: AtomicUsize::new(usize::MAX),
        }
    }

    fn limit(&self, max: Option<u32>) {
        let max = max.and_then(|max| usize::try_from(max).ok());
        self.max.store(max.unwrap_or(usize::MAX), Ordering::Relaxed);
    }

    fn now(&self) -> usize {
        self.open.load(Ordering::Relaxed)
    }

    /// Counts one in; with the limit when that is reached.
    fn enter(&self) -> Result<(), usize> {
        let max = self.max.load(Ordering::Relaxed);
        let below = |open: usize| (open < max).then_some(open + 1);
        let entered = self
            .open
            .fetch_update(Ordering::AcqRel, Ordering::Relaxed, below);
        entered.map(drop).map_err(|_| max)
    }

    fn leave(&self) {
        self.open.fetch_sub(1, Ordering::AcqRel);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limited(limits: RuntimeLimits) -> (Arc<NodeBudget>, Arc<Budget>) {
        let node = Arc::new(NodeBudget::default());
        let budget = Budget::new(node.clone());
        budget.set(limits);
        (node, budget)
    }

    fn enter(budget: &Arc<Budget>, is_upgrade: bool) -> Result<Permit, Problem> {
        budget.enter(is_upgrade, || 100)
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
        let large = budget.enter(false, || 1_001);
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
        node.set(2, 1, RuntimeLimits::default());
        let (a, b) = (Budget::new(node.clone()), Budget::new(node.clone()));
        let first = enter(&a, false).unwrap();
        let _second = enter(&b, false).unwrap();
        refused(
            enter(&b, false),
            Reason::ServerLimit,
            "`max-open-exchanges`",
        );
        assert_eq!(b.open(), 1);
        drop(first);
        assert!(enter(&b, true).is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn a_rate_that_refuses_says_when_there_is_room_again() {
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
        node.set(100, 1, defaults);
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
    async fn places_to_wait_are_counted_too() {
        let (node, budget) = limited(RuntimeLimits::default());
        node.set(100, 1, RuntimeLimits::default());
        let first = budget.wait().unwrap();
        let refusal = budget.wait().err().unwrap();
        assert_eq!(refusal.reason(), Reason::WaitingLimit);
        assert!(refusal.detail().contains("`max-waiting`"), "{refusal}");
        drop(first);
        assert!(budget.wait().is_ok());
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
