//! Managed runtimes and revocations at several nodes, over an etcd that is restored and emptied.
//!
//! ```text
//!   seed ─▶ what happens next: a call of the admin API, a step of a node, a fault ─▶ nodes: `tunnel-directory`'s replica
//!                                                                                    etcd: the model
//!                                                                                    truth: what was answered
//! ```
//!
//! In: a seed. Out: what did not hold. A runtime, its tokens and its revocations disappear only by a call of the admin API, and
//! what was removed or revoked stays so, as long as a node lives that knows of it.

mod node;
mod text;
mod truth;

use std::time::{Duration, Instant};

use testkit::random::Random;
use tunnel_directory::{
    managed::{Pair, RevokedCredentials},
    shared::{Call, EtcdAnswer},
};
use tunnel_etcd::{RequestOp, TxnRequest};

use self::{
    node::{Node, RANGE},
    truth::Truth,
};
use crate::etcd::{Etcd, Outcome, Snapshot};

/// Labels of runtimes: few, so that nodes change one at once.
const LABELS: [&str; 3] = ["acme-dev", "acme-prod", "globex-prod"];

/// Rounds in which all nodes do what they have to do, after which all know one state.
const ROUNDS: usize = 40;

/// Which nodes and faults there are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mix {
    /// All nodes run this version, and etcd loses what it has.
    Current,
    /// Nodes of a version without removals change runtimes, too; etcd loses nothing.
    Mixed,
}

struct World {
    etcd: Etcd,
    now: Instant,
    now_ms: u64,
    random: Random,
    nodes: Vec<Node>,
    snapshots: Vec<Snapshot>,
    /// How often etcd has lost something.
    losses: u64,
    truth: Truth,
    mix: Mix,
    next: u64,
    trace: Vec<String>,
}

/// Runs so many steps of this seed.
///
/// # Errors
/// What did not hold, with all that happened before.
#[expect(
    clippy::disallowed_methods,
    reason = "only differences matter: nothing compares it with a clock"
)]
pub fn run(seed: u64, steps: usize, mix: Mix) -> Result<(), String> {
    let mut random = Random::new(seed);
    let nodes = 2 + random.below(3);
    let mut world = World {
        etcd: Etcd::new(1, seed),
        now: Instant::now(),
        now_ms: 1_700_000_000_000,
        nodes: (0..nodes).map(|number| Node::new(number, seed)).collect(),
        random,
        snapshots: Vec::new(),
        losses: 0,
        truth: Truth::default(),
        mix,
        next: 0,
        trace: Vec::new(),
    };
    let result = world.run(steps);
    result.map_err(|fault| {
        let trace = world.trace.join("\n");
        format!("seed {seed}, {mix:?}:\n{trace}\n{fault}")
    })
}

impl World {
    fn run(&mut self, steps: usize) -> Result<(), String> {
        for _ in 0..steps {
            let node = self.random.below(self.nodes.len());
            let time = 1 + self.random_number(400);
            self.pass(time);
            match self.random.below(100) {
                0..40 => self.learn(node)?,
                40..65 => self.write(node)?,
                65..92 => self.admin(node)?,
                _ => self.fault(node),
            }
        }
        for node in &mut self.nodes {
            node.is_paused = false;
        }
        for _ in 0..ROUNDS {
            for node in 0..self.nodes.len() {
                self.learn(node)?;
                self.write(node)?;
                self.learn(node)?;
            }
            self.pass(2_000);
        }
        for node in &self.nodes {
            node.check_settled()?;
            self.truth.check(node, self.mix)?;
            if node.texts() != self.nodes[0].texts() {
                return Err("nodes know different documents".to_owned());
            }
        }
        Ok(())
    }

    fn random_number(&mut self, bound: usize) -> u64 {
        u64::try_from(self.random.below(bound)).unwrap_or(0)
    }

    fn pass(&mut self, milliseconds: u64) {
        self.now += Duration::from_millis(milliseconds);
        self.now_ms += milliseconds;
    }

    fn say(&mut self, line: String) {
        let revision = self.etcd.revision();
        self.trace.push(format!("{revision:>5} {line}"));
    }

    /// A node lists, or gets what its watch has to report.
    fn learn(&mut self, node: usize) -> Result<(), String> {
        if self.nodes[node].is_paused {
            return Ok(());
        }
        let was_listed = self.nodes[node].is_watching();
        self.nodes[node].learn(&mut self.etcd, self.now, self.now_ms)?;
        if !was_listed {
            self.nodes[node].losses = self.losses;
            self.say(format!("n{node} lists {:?}", self.nodes[node].texts()));
        }
        self.truth.check_kept(&mut self.nodes[node])
    }

    /// A node writes what etcd has not. The answer may be lost.
    fn write(&mut self, node: usize) -> Result<(), String> {
        if self.nodes[node].is_paused {
            return Ok(());
        }
        let Some(txn) = self.nodes[node].replica.next_write(self.now) else {
            return Ok(());
        };
        let made = self.commit(txn)?;
        self.say(format!("n{node} writes again: {made:?}"));
        let known = made.filter(|_| self.random.below(10) > 0);
        self.nodes[node].replica.on_written(known, self.now);
        Ok(())
    }

    /// The revision of a transaction; `None` if a condition did not hold.
    fn commit(&mut self, txn: TxnRequest) -> Result<Option<i64>, String> {
        match self.etcd.call(0, &Call::Txn(txn), self.now) {
            Outcome::Answered(Ok(EtcdAnswer::Txn(answer))) => {
                Ok(answer.succeeded.then(|| answer.revision()))
            }
            other => Err(format!("etcd does not write: {other:?}")),
        }
    }

    /// A call of the admin API.
    fn admin(&mut self, node: usize) -> Result<(), String> {
        if self.nodes[node].is_paused || !self.nodes[node].is_watching() {
            return Ok(());
        }
        let label = self.random.pick(&LABELS);
        self.next += 1;
        let (name, what) = (self.next, self.random.below(10));
        if self.mix == Mix::Mixed && node % 2 == 1 {
            return self.older_admin(node, label, name, what);
        }
        if what == 9 {
            return self.revoke(node, label, name);
        }
        let before = self.nodes[node].replica.document(label).map(str::to_owned);
        let Some(edit) = self.truth.edit(label, before.as_deref(), name, what) else {
            return Ok(());
        };
        let txn = self.nodes[node].change(label, edit.next.as_deref(), self.now_ms, name);
        let replica = &self.nodes[node].replica;
        let (position, listings) = (replica.position(), replica.listings());
        if edit.next.is_none() {
            self.truth.removal_begins(label);
        }
        let Some(revision) = self.commit(txn)? else {
            return Ok(());
        };
        self.say(format!("n{node} {label}: {:?}", edit.next));
        // Without an answer it may have been done.
        self.learn(node)?;
        let replica = &self.nodes[node].replica;
        let is_of_now = revision > position || replica.listings() > listings;
        if is_of_now && replica.position() >= revision {
            self.truth.answered(label, &edit, before.as_deref());
        }
        Ok(())
    }

    /// A node of a version without removals: it has read what etcd has, and changes that.
    fn older_admin(
        &mut self,
        node: usize,
        label: &str,
        name: u64,
        what: usize,
    ) -> Result<(), String> {
        let key = format!("{RANGE}/{label}");
        let found = self.etcd.keys(&key).find(|(found, _)| *found == key);
        let before = found.map(|(_, value)| String::from_utf8_lossy(value).into_owned());
        let Some(edit) = self.truth.edit(label, before.as_deref(), name, what) else {
            return Ok(());
        };
        let write = match &edit.next {
            Some(text) => RequestOp::put(key, text.clone(), 0),
            None => {
                self.truth.removal_begins(label);
                RequestOp::delete(key)
            }
        };
        let txn = TxnRequest {
            success: vec![write, RequestOp::put(format!("{RANGE}/"), "", 0)],
            ..TxnRequest::default()
        };
        self.commit(txn)?;
        self.say(format!("older n{node} {label}: {:?}", edit.next));
        // It knows it, but only until it lists what is left after a loss: another node has to.
        if self.nodes[node].is_watching() && self.nodes[node].losses == self.losses {
            self.learn(node)?;
            self.truth.answered(label, &edit, before.as_deref());
        }
        Ok(())
    }

    fn revoke(&mut self, node: usize, label: &str, name: u64) -> Result<(), String> {
        let (pair, id) = (pair(label)?, format!("credential-{name}"));
        let more = RevokedCredentials::of_id(&id, None);
        self.nodes[node].replica.revoke(&pair, &more);
        self.say(format!("n{node} revokes {id} of {label}"));
        self.truth.revoked.push((pair, more));
        Ok(())
    }

    fn fault(&mut self, node: usize) {
        match self.random.below(10) {
            0..=4 if self.mix == Mix::Mixed => {}
            0 | 1 => {
                self.snapshots.push(self.etcd.snapshot());
                self.say("snapshot".to_owned());
            }
            2 => {
                self.etcd.empty(self.now);
                self.lost("etcd is emptied");
            }
            3 | 4 if !self.snapshots.is_empty() => {
                let at = self.random.below(self.snapshots.len());
                self.etcd.restore(&self.snapshots[at], self.now);
                self.lost("etcd is restored");
            }
            5 => {
                self.etcd.compact();
                self.nodes[node].end_watch(&mut self.etcd);
                self.say(format!("n{node} loses its watch"));
            }
            6 => {
                self.nodes[node].is_paused = !self.nodes[node].is_paused;
                self.say(format!("n{node} paused: {}", self.nodes[node].is_paused));
            }
            7 => self.delete_by_hand(),
            8 => self.restart(node),
            9 => self.bump(),
            _ => {}
        }
    }

    fn lost(&mut self, what: &str) {
        self.losses += 1;
        self.say(what.to_owned());
    }

    fn delete_by_hand(&mut self) {
        let keys: Vec<String> = self
            .etcd
            .keys(RANGE)
            .map(|(key, _)| key.to_owned())
            .collect();
        if keys.is_empty() || self.mix == Mix::Mixed {
            return;
        }
        let key = keys[self.random.below(keys.len())].clone();
        // A removal that is lost is not seen by a node that makes its label again at once.
        if key.contains("-removed/") {
            return;
        }
        self.losses += 1;
        self.say(format!("{key} is deleted by hand"));
        let txn = TxnRequest {
            success: vec![RequestOp::delete(key)],
            ..TxnRequest::default()
        };
        // The model has no fault that refuses it.
        let _ = self.commit(txn);
    }

    /// Replaces a process, if another one knows all that this one knows.
    fn restart(&mut self, node: usize) {
        let known = |node: &Node| (node.losses, node.replica.position());
        let own = &self.nodes[node];
        let is_known = own.replica.is_written() && own.losses == self.losses;
        let mut others = self.nodes.iter().enumerate();
        let has_other = others
            .any(|(other, it)| other != node && it.losses == own.losses && known(it) >= known(own));
        if !is_known || !has_other || !own.is_watching() {
            return;
        }
        self.nodes[node].end_watch(&mut self.etcd);
        self.next += 1;
        self.nodes[node] = Node::new(node, self.next);
        self.say(format!("n{node} is restarted"));
    }

    /// Revisions become greater than any node has seen, as after a restore with `--bump-revision`.
    fn bump(&mut self) {
        for _ in 0..100 {
            let txn = TxnRequest {
                success: vec![RequestOp::put("/tunnel/v1/other", "", 0)],
                ..TxnRequest::default()
            };
            let _ = self.commit(txn);
        }
        self.say("greater revisions".to_owned());
    }
}

fn pair(label: &str) -> Result<Pair, String> {
    let name = label.replace('-', "/");
    let pair = name.parse();
    pair.map_err(|()| format!("{name} is no name"))
}

#[cfg(test)]
mod tests;
