//! The load of a cluster: requests that go to all nodes that are ready in turn, as a load balancer sends them, and what
//! became of them in each period.

use std::{
    convert::Infallible,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use futures_util::future::{join_all, try_join_all};
use http::HeaderValue;
use parking_lot::Mutex;
use tokio::time::{Instant, sleep, timeout};

use crate::{
    client::{
        minimal::RequestConnection,
        template::{PAUSE, within},
    },
    load::{BodyBytes, Client},
    measure::errors::{Failure, FailureCounts, FailureKind},
    scenario::http::Requests,
    stack::child::is_ready,
};

/// Between two probes of a node.
const PROBE_EACH: Duration = Duration::from_millis(100);

/// A node that does not answer a probe for so long is not ready.
const PROBE_LIMIT: Duration = Duration::from_millis(500);

/// Connections over which each node is asked once for each runtime.
const ASKING: usize = 16;

/// Where a node answers: platform clients, and probes.
#[derive(Clone, Copy, Debug)]
pub(super) struct NodeAddresses {
    pub(super) public: SocketAddr,
    pub(super) admin: SocketAddr,
}

/// Sends each request to the next node that is ready, for that node's next runtime.
pub(super) struct Balancer {
    hosts: Vec<HeaderValue>,
    nodes: Mutex<Vec<BalancedNode>>,
    /// How many requests were sent.
    sent: AtomicUsize,
    /// Longest time for one request.
    limit: Duration,
    record: Mutex<Record>,
}

#[derive(Clone)]
struct BalancedNode {
    requests: Arc<Requests>,
    admin: SocketAddr,
    is_ready: bool,
    /// Whether the fault has met it, and it has not come back.
    is_lost: bool,
}

/// The answers and failures of the present period.
struct Record {
    answered_at: Instant,
    period: Period,
}

/// What became of the requests that ended within a period.
#[derive(Debug, Default)]
pub(super) struct Period {
    pub(super) answered: u64,
    /// Longest time in which no request was answered.
    pub(super) longest_gap: Duration,
    /// What failed at nodes that were there.
    pub(super) failed: FailureCounts,
    /// What failed at a node that the fault had met.
    pub(super) failed_at_lost: FailureCounts,
}

impl Balancer {
    /// For these nodes, which are ready, and these runtimes' hosts.
    ///
    /// # Errors
    /// As [`Requests::in_turn`].
    pub(super) async fn new(
        nodes: &[NodeAddresses],
        hosts: Vec<HeaderValue>,
        limit: Duration,
    ) -> anyhow::Result<Self> {
        let balanced = nodes.iter().map(|node| BalancedNode::new(*node, &hosts));
        Ok(Self {
            nodes: Mutex::new(try_join_all(balanced).await?),
            hosts,
            sent: AtomicUsize::new(0),
            limit,
            record: Mutex::new(Record {
                answered_at: Instant::now(),
                period: Period::default(),
            }),
        })
    }

    /// The fault meets this node: what fails at it from here on is counted apart.
    pub(super) fn lose(&self, number: usize) {
        self.change(number, |node| node.is_lost = true);
    }

    /// The node is back, with these addresses.
    ///
    /// # Errors
    /// As [`Requests::in_turn`].
    pub(super) async fn regain(&self, number: usize, node: NodeAddresses) -> anyhow::Result<()> {
        let balanced = BalancedNode::new(node, &self.hosts).await?;
        self.change(number, |node| *node = balanced);
        Ok(())
    }

    fn change(&self, number: usize, change: impl FnOnce(&mut BalancedNode)) {
        if let Some(node) = self.nodes.lock().get_mut(number) {
            change(node);
        }
    }

    /// Probes each node for as long as this is polled.
    pub(super) async fn probe(&self) -> Infallible {
        loop {
            let admins: Vec<_> = self.nodes.lock().iter().map(|node| node.admin).collect();
            let probes = admins
                .iter()
                .map(|admin| timeout(PROBE_LIMIT, is_ready(*admin)));
            let ready = join_all(probes).await;
            for (node, ready) in self.nodes.lock().iter_mut().zip(ready) {
                node.is_ready = matches!(ready, Ok(Ok(true)));
            }
            sleep(PROBE_EACH).await;
        }
    }

    /// Ends a period, and returns what became of its requests.
    pub(super) fn end_period(&self) -> Period {
        let mut record = self.record.lock();
        record.end_gap();
        std::mem::take(&mut record.period)
    }

    /// Waits until each node that is not lost has answered a request for each runtime.
    pub(super) async fn all_served(&self) {
        let nodes = self.nodes.lock().clone();
        let present = nodes.into_iter().filter(|node| !node.is_lost);
        let asking = present.map(|node| async move {
            while node.requests.once_each(ASKING).await.1.total() > 0 {
                sleep(PAUSE).await;
            }
        });
        join_all(asking).await;
    }

    /// The number of the node to which the next request goes, and the node.
    fn next(&self) -> Option<(usize, BalancedNode)> {
        let nodes = self.nodes.lock();
        let ready = || nodes.iter().enumerate().filter(|(_, node)| node.is_ready);
        let turn = self.sent.fetch_add(1, Relaxed) % ready().count().max(1);
        let (number, node) = ready().nth(turn)?;
        Some((number, node.clone()))
    }

    /// Sends the next request to this node, over a connection that rests or a new one.
    async fn ask(
        &self,
        (number, node): &(usize, BalancedNode),
        connection: &mut Option<RequestConnection>,
    ) -> Result<BodyBytes, Failure> {
        if !connection.as_mut().is_some_and(RequestConnection::is_open) {
            let made = node.requests.connect(0).await;
            // A load balancer leaves a node that takes no connection until it answers a probe.
            let made = made.inspect_err(|_| self.change(*number, |node| node.is_ready = false));
            *connection = Some(made?);
        }
        match connection {
            Some(connection) => node.requests.exchange(connection).await,
            None => Err(FailureKind::ConnectFailed.into()),
        }
    }

    fn on_failure(&self, (number, node): &(usize, BalancedNode), kind: FailureKind) {
        let nodes = self.nodes.lock();
        let is_lost = node.is_lost || nodes.get(*number).is_some_and(|node| node.is_lost);
        drop(nodes);
        let period = &mut self.record.lock().period;
        match is_lost {
            true => period.failed_at_lost.add(kind, 1),
            false => period.failed.add(kind, 1),
        }
    }
}

impl BalancedNode {
    async fn new(node: NodeAddresses, hosts: &[HeaderValue]) -> anyhow::Result<Self> {
        Ok(Self {
            requests: Arc::new(Requests::in_turn(node.public, hosts).await?),
            admin: node.admin,
            is_ready: true,
            is_lost: false,
        })
    }
}

impl Record {
    /// Nothing was answered since the last answer, or the period's begin.
    fn end_gap(&mut self) {
        let now = Instant::now();
        let gap = now - self.answered_at;
        self.period.longest_gap = self.period.longest_gap.max(gap);
        self.answered_at = now;
    }
}

impl Client for Balancer {
    /// One for each node, by its number.
    type Connection = Vec<Option<RequestConnection>>;

    async fn connect(&self, _worker: usize) -> Result<Self::Connection, Failure> {
        let nodes = self.nodes.lock().len();
        Ok(std::iter::repeat_with(|| None).take(nodes).collect())
    }

    async fn exchange(&self, connections: &mut Self::Connection) -> Result<BodyBytes, Failure> {
        let Some(node) = self.next() else {
            sleep(PAUSE).await;
            let kind = FailureKind::Other("no_node_ready");
            self.record.lock().period.failed.add(kind, 1);
            return Err(Failure::harmless(kind));
        };
        let connection = connections.get_mut(node.0);
        let connection = connection.ok_or(FailureKind::NotSent)?;
        let answer = within(self.limit, self.ask(&node, connection)).await;
        match answer {
            Ok(bytes) => {
                let mut record = self.record.lock();
                record.end_gap();
                record.period.answered += 1;
                Ok(bytes)
            }
            Err(failure) => {
                self.on_failure(&node, failure.kind);
                // The connections to the other nodes are good.
                Err(Failure::harmless(failure.kind))
            }
        }
    }
}
