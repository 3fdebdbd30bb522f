//! Nodes that run as they do in a server, over a store with leases, reads and watches: everything that a node leaves as an
//! output is done, and time goes on from deadline to deadline.

use std::collections::BTreeSet;

use tunnel_etcd::{RangeResponse, ResponseHeader, WatchReport};

use super::{store::Store, *};

/// How a node reaches the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Reach {
    /// At once.
    All,
    /// Calls fail, and nothing is reported.
    None,
    /// Calls are answered, and the watched member says nothing.
    SilentWatch,
}

/// A running node.
pub(super) struct Running {
    pub(super) node: SharedDirectory,
    pub(super) reach: Reach,
    /// The watch, and how many of the world's events it has had.
    watch: Option<(WatchId, usize)>,
    /// Members that were watched.
    pub(super) watched: Vec<usize>,
    /// What was left as outputs, apart from calls and watches.
    pub(super) outputs: Vec<Output>,
}

/// A lease: its keys, and when it ends unless it is renewed.
struct Lease {
    keys: BTreeSet<Vec<u8>>,
    ttl: Duration,
    end: Instant,
}

#[derive(Default)]
pub(super) struct World {
    pub(super) store: Store,
    pub(super) nodes: Vec<Running>,
    /// All changes, each with its revision.
    events: Vec<Event>,
    /// Revisions up to this one are compacted.
    pub(super) compacted: i64,
    leases: BTreeMap<i64, Lease>,
    last_lease: i64,
    pub(super) now: Option<Now>,
    /// How long the inputs of each kind took.
    pub(super) times: BTreeMap<&'static str, Vec<Duration>>,
}

impl World {
    pub(super) fn new() -> Self {
        Self {
            now: Some(Now {
                instant: start(),
                wall_ms: 1_700_000_000_000,
            }),
            ..Self::default()
        }
    }

    pub(super) fn now(&self) -> Now {
        self.now.unwrap()
    }

    pub(super) fn add(&mut self, name: &str, random: u64) -> usize {
        let settings = NodeSettings {
            name: name.parse().unwrap(),
            peer: Some("127.0.0.1:1".to_owned()),
            zone: None,
            without_directory: WithoutDirectory::Accept,
        };
        self.nodes.push(Running {
            node: SharedDirectory::new(settings, "/t/", random, self.now().instant),
            reach: Reach::All,
            watch: None,
            watched: Vec::new(),
            outputs: Vec::new(),
        });
        self.nodes.len() - 1
    }

    /// Lets time go on without anything being done, as for processes that are stopped.
    pub(super) fn skip(&mut self, time: Duration) {
        let now = self.now.as_mut().unwrap();
        now.instant += time;
        now.wall_ms += u64::try_from(time.as_millis()).unwrap();
    }

    /// Does all that is due in this time.
    pub(super) fn run(&mut self, time: Duration) {
        let end = self.now().instant + time;
        for step in 0.. {
            assert!(step < 2_000_000, "something is due without end");
            while self.deliver() {}
            let deadlines = self.nodes.iter();
            let deadlines = deadlines.map(|running| running.node.next_deadline());
            let leases = self.leases.values().map(|lease| lease.end);
            let next = deadlines.chain(leases).min();
            let next = next.map_or(end, |next| next.max(self.now().instant));
            if next > end {
                return self.skip(end - self.now().instant);
            }
            self.skip(next - self.now().instant);
            let now = self.now();
            let over = self
                .leases
                .iter()
                .filter(|(_, lease)| lease.end <= now.instant);
            for lease in over.map(|(lease, _)| *lease).collect::<Vec<_>>() {
                self.end_lease(lease);
            }
            for running in &mut self.nodes {
                if running.node.next_deadline() <= now.instant {
                    measure(&mut self.times, "on_time", || running.node.on_time(now));
                }
            }
        }
    }

    /// Does what the nodes have left as outputs, and reports changes. Returns whether there was anything.
    fn deliver(&mut self) -> bool {
        let mut is_any = false;
        for number in 0..self.nodes.len() {
            while let Some(output) = self.nodes[number].node.poll_output() {
                is_any = true;
                self.perform(number, output);
            }
            is_any |= self.report_events(number);
        }
        is_any
    }

    fn perform(&mut self, number: usize, output: Output) {
        let now = self.now();
        let reach = self.nodes[number].reach;
        match output {
            Output::Call(id, call) => {
                let answer = match reach {
                    Reach::None => Err(unreachable()),
                    Reach::All | Reach::SilentWatch => self.answer(call),
                };
                let node = &mut self.nodes[number].node;
                let input = || node.on_answer(id, answer, now);
                measure(&mut self.times, "on_answer", input);
            }
            Output::Watch {
                id, member, start, ..
            } => {
                let running = &mut self.nodes[number];
                running.watched.push(member);
                if reach == Reach::None {
                    running.node.on_watch_ended(id, unreachable(), now);
                } else if start <= self.compacted {
                    let oldest = self.compacted;
                    let error = EtcdError::Compacted { oldest };
                    running.node.on_watch_ended(id, error, now);
                } else {
                    let before = |event: &Event| event.kv.as_ref().unwrap().mod_revision < start;
                    let had = self.events.partition_point(before);
                    running.watch = Some((id, had));
                }
            }
            Output::EndWatch(_) => self.nodes[number].watch = None,
            Output::RequestProgress(id) if reach == Reach::All => {
                let report = WatchReport::Alive {
                    revision: self.store.revision,
                };
                self.nodes[number].node.on_watch_report(id, report, now);
            }
            Output::RequestProgress(_) => {}
            output => self.nodes[number].outputs.push(output),
        }
    }

    fn report_events(&mut self, number: usize) -> bool {
        self.events.append(&mut self.store.events);
        let (now, running) = (self.now(), &mut self.nodes[number]);
        let Some((id, had)) = running.watch.filter(|_| running.reach == Reach::All) else {
            return false;
        };
        let events = self.events[had..].to_vec();
        let Some(last) = events.last() else {
            return false;
        };
        let up_to = last.kv.as_ref().map(|kv| kv.mod_revision);
        running.watch = Some((id, self.events.len()));
        let report = WatchReport::Events { events, up_to };
        let input = || running.node.on_watch_report(id, report, now);
        measure(&mut self.times, "on_watch_report", input);
        true
    }

    fn answer(&mut self, call: Call) -> Result<EtcdAnswer, EtcdError> {
        let now = self.now().instant;
        Ok(match call {
            Call::Txn(txn) => {
                for operation in &txn.success {
                    if let Some(tunnel_etcd::Request::Put(put)) = &operation.request
                        && put.lease > 0
                    {
                        let lease = self.leases.get_mut(&put.lease);
                        let lease = lease.ok_or(EtcdError::LeaseEnded)?;
                        lease.keys.insert(put.key.to_vec());
                    }
                }
                EtcdAnswer::Txn(self.store.txn(&txn))
            }
            Call::Range(range) => {
                let keys = self
                    .store
                    .keys
                    .range(range.key.to_vec()..range.range_end.to_vec());
                let limit = match range.limit {
                    0 => usize::MAX,
                    limit => usize::try_from(limit).unwrap(),
                };
                let count = keys.clone().count();
                let kvs = keys.map(|(_, kv)| kv.clone()).take(limit);
                EtcdAnswer::Range(RangeResponse {
                    header: Some(ResponseHeader {
                        revision: self.store.revision,
                        ..ResponseHeader::default()
                    }),
                    kvs: match range.count_only {
                        true => Vec::new(),
                        false => kvs.collect(),
                    },
                    more: count > limit,
                    count: i64::try_from(count).unwrap(),
                })
            }
            Call::Grant(ttl) => {
                self.last_lease += 1;
                let lease = Lease {
                    keys: BTreeSet::new(),
                    ttl,
                    end: now + ttl,
                };
                self.leases.insert(self.last_lease, lease);
                EtcdAnswer::Granted(self.last_lease)
            }
            Call::KeepAlive(lease) => {
                let lease = self.leases.get_mut(&lease);
                let lease = lease.ok_or(EtcdError::LeaseEnded)?;
                lease.end = now + lease.ttl;
                EtcdAnswer::Done
            }
            Call::Revoke(lease) => {
                self.end_lease(lease);
                EtcdAnswer::Done
            }
        })
    }

    /// Ends a lease, with the keys on it.
    pub(super) fn end_lease(&mut self, lease: i64) {
        self.store.revision += 1;
        let lease = self.leases.remove(&lease);
        for key in lease.map(|lease| lease.keys).unwrap_or_default() {
            self.store.delete(&key);
        }
    }

    /// Ends all leases.
    pub(super) fn end_leases(&mut self) {
        let leases: Vec<i64> = self.leases.keys().copied().collect();
        for lease in leases {
            self.end_lease(lease);
        }
    }

    /// etcd is emptied, and begins anew.
    pub(super) fn empty(&mut self) {
        self.store = Store::default();
        self.events.clear();
        self.leases.clear();
        self.compacted = 0;
        for running in &mut self.nodes {
            running.watch = running.watch.map(|(id, _)| (id, 0));
        }
    }

    /// Has a node claim a runtime, and runs until it is answered.
    pub(super) fn claim(
        &mut self,
        number: usize,
        runtime: &Runtime,
        by: u8,
    ) -> Result<GrantedClaim, ClaimRefusal> {
        static LAST: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(0);
        let id = ClaimId(LAST.fetch_add(1, std::sync::atomic::Ordering::Relaxed));
        let (now, instance) = (self.now(), instance(by));
        let claimant = runtime.claimant(&instance, OnConflict::Supersede);
        let node = &mut self.nodes[number].node;
        if let ClaimProgress::Answered(answer) = node.claim(id, claimant, now) {
            return answer;
        }
        for _ in 0..100 {
            self.run(Duration::from_millis(100));
            let outputs = &mut self.nodes[number].outputs;
            let is_answer =
                |output: &Output| matches!(output, Output::ClaimAnswer(of, _) if *of == id);
            if let Some(at) = outputs.iter().position(is_answer)
                && let Output::ClaimAnswer(_, answer) = outputs.remove(at)
            {
                return answer;
            }
        }
        panic!("the claim is not answered");
    }

    /// The keys of a kind, without the prefix.
    pub(super) fn keys(&self, kind: &str) -> Vec<String> {
        let keys = self.store.keys.keys();
        let keys = keys.map(|key| String::from_utf8(key.clone()).unwrap());
        let kind = format!("/t/{kind}/");
        keys.filter_map(|key| key.strip_prefix(&kind).map(str::to_owned))
            .collect()
    }
}

impl Running {
    pub(super) fn has(&self, is_it: impl Fn(&Output) -> bool) -> bool {
        self.outputs.iter().any(is_it)
    }
}

fn unreachable() -> EtcdError {
    EtcdError::Unreachable {
        member: "m".to_owned(),
        reason: "cut off".to_owned(),
    }
}

fn measure(
    times: &mut BTreeMap<&'static str, Vec<Duration>>,
    kind: &'static str,
    input: impl FnOnce(),
) {
    let begin = start();
    input();
    times.entry(kind).or_default().push(start() - begin);
}

/// The number of inputs of each kind, and how long they took: the median, the 999th of 1,000, and the longest.
pub(super) fn summary(times: &mut BTreeMap<&'static str, Vec<Duration>>) -> String {
    let mut summary = String::new();
    for (kind, mut times) in std::mem::take(times) {
        times.sort_unstable();
        let at = |share: usize| times[(times.len() - 1) * share / 1_000];
        let (count, median, late, longest) = (times.len(), at(500), at(999), at(1_000));
        summary += &format!("\n  {kind}: {count}, {median:?}, {late:?}, {longest:?}");
    }
    summary
}
