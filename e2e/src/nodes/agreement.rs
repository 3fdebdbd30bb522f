//! Whether all nodes and etcd say the same of who holds which runtime.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Debug,
    time::Duration,
};

use serde_json::Value;
use tokio::time::{Instant, sleep};

use super::{Nodes, PREFIX, name};

/// What a node says of a runtime.
#[derive(Debug, PartialEq, Eq)]
struct Held {
    instance: String,
    epoch: u64,
}

/// What stands in etcd.
struct Records(BTreeMap<String, Value>);

impl Records {
    /// The records of this kind, by the rest of their keys.
    fn of(&self, kind: &str) -> impl Iterator<Item = (&str, &Value)> {
        let records = self.0.iter();
        records.filter_map(move |(key, value)| Some((key.strip_prefix(kind)?, value)))
    }

    /// `NAME/INCARNATION` of each node.
    fn nodes(&self) -> BTreeSet<String> {
        let nodes = self.of("node/");
        nodes
            .map(|(node, record)| format!("{node}/{}", text(&record["incarnation"])))
            .collect()
    }

    /// The records of what is held: by which node, and the runtime.
    fn held(&self) -> impl Iterator<Item = (&str, &str)> {
        self.of("held/").filter_map(|(key, _)| key.rsplit_once('/'))
    }
}

impl Nodes {
    /// What is not as it has to be once all nodes run and nothing happens any more: each node's sessions, what it knows of
    /// the others, and the records in etcd are of one instance and one claim for each runtime. `None` if nothing is.
    ///
    /// # Panics
    /// When a node or etcd does not answer.
    pub async fn disagreement(&self) -> Option<String> {
        let records = self.records().await;
        let names: BTreeSet<_> = (0..self.nodes.len()).map(name).collect();
        let keys: BTreeSet<_> = records
            .of("node/")
            .map(|(node, _)| node.to_owned())
            .collect();
        let mut all = differ("keys of nodes", &keys, &names);
        let mut runtimes: BTreeMap<String, BTreeMap<String, Held>> = BTreeMap::new();
        let mut others = Vec::new();
        for number in 0..self.nodes.len() {
            let own = name(number);
            let admin = self.server(number).admin();
            let status: Value = admin.get("/api/v1/status").await.json();
            let known = texts(&status["nodes"], |node| &node["name"]);
            all.extend(differ(&format!("nodes that {own} knows"), &known, &names));
            let page: Value = admin.get("/api/v1/runtimes?scope=node").await.json();
            for runtime in page["runtimes"].as_array().into_iter().flatten() {
                let label = text(&runtime["label"]);
                let holders = runtimes.entry(label.clone()).or_default();
                if runtime["instance"].is_string() {
                    let held = Held {
                        instance: text(&runtime["instance"]),
                        epoch: runtime["epoch"].as_u64().unwrap_or(0),
                    };
                    holders.insert(own.clone(), held);
                }
                let mut known = texts(&runtime["nodes"], |node| node);
                known.remove(&own);
                others.push((own.clone(), label, known));
            }
        }
        for (own, label, known) in others {
            let holders = runtimes[&label].keys().filter(|holder| **holder != own);
            let what = format!("nodes that hold {label} as {own} knows");
            all.extend(differ(&what, &known, &holders.cloned().collect()));
        }
        let living = records.nodes();
        for (label, holders) in &runtimes {
            all.extend(disagreement_about(label, holders, &records, &living));
        }
        (!all.is_empty()).then(|| all.join("\n"))
    }

    /// Waits until nothing disagrees, and returns how long that took.
    ///
    /// # Panics
    /// When something still does after this time.
    pub async fn wait_agreement(&self, limit: Duration) -> Duration {
        let start = Instant::now();
        while let Some(disagreement) = self.disagreement().await {
            let in_time = start.elapsed() < limit;
            assert!(in_time, "no agreement within {limit:?}:\n{disagreement}");
            sleep(Duration::from_millis(20)).await;
        }
        start.elapsed()
    }

    /// Records of what is held by nodes, or by runs of them, that are no more.
    pub async fn void_records(&self) -> Vec<String> {
        let records = self.records().await;
        let living = records.nodes();
        let held = records.held().filter(|(node, _)| !living.contains(*node));
        held.map(|(node, label)| format!("{node}/{label}"))
            .collect()
    }

    /// The epoch and the instance by which a runtime is held at some node.
    pub async fn held(&self, label: &str) -> Option<(u64, String)> {
        let path = format!("/api/v1/runtimes/{label}?scope=node");
        for node in &self.nodes {
            let admin = node.server.as_ref()?.admin();
            let runtime: Value = admin.get(&path).await.json();
            if runtime["instance"].is_string() {
                return Some((runtime["epoch"].as_u64()?, text(&runtime["instance"])));
            }
        }
        None
    }

    /// The ids of a runtime's sessions at all nodes.
    pub async fn sessions(&self, label: &str) -> BTreeSet<String> {
        let path = format!("/api/v1/runtimes/{label}?scope=node");
        let mut all = BTreeSet::new();
        for number in 0..self.nodes.len() {
            let runtime: Value = self.server(number).admin().get(&path).await.json();
            all.extend(texts(&runtime["sessions"], |session| &session["id"]));
        }
        all
    }

    /// All records of one revision of etcd.
    async fn records(&self) -> Records {
        let text = self.etcd.ctl(&["get", "--prefix", PREFIX]).await;
        let mut lines = text.lines();
        let mut records = BTreeMap::new();
        // A value of ours has no line break.
        while let (Some(key), Some(value)) = (lines.next(), lines.next()) {
            let key = key.strip_prefix(PREFIX).unwrap().to_owned();
            records.insert(key, serde_json::from_str(value).unwrap());
        }
        Records(records)
    }
}

/// What does not fit together about a runtime, of which these nodes have sessions.
fn disagreement_about(
    label: &str,
    holders: &BTreeMap<String, Held>,
    records: &Records,
    living: &BTreeSet<String>,
) -> Vec<String> {
    let mut all = Vec::new();
    if let Some(first) = holders.values().next() {
        if holders.values().any(|held| held != first) {
            all.push(format!("{label} is held in several ways: {holders:?}"));
        }
        let claim = records.0.get(&format!("claim/{label}"));
        let instance = claim.map(|claim| text(&claim["instance"]));
        let held = Some(first.instance.clone());
        all.extend(differ(&format!("claim of {label}"), &instance, &held));
    }
    let held = records
        .held()
        .filter(|(node, its)| *its == label && living.contains(*node));
    let nodes = held.filter_map(|(node, _)| Some(node.split_once('/')?.0.to_owned()));
    let what = format!("records of nodes that hold {label}");
    all.extend(differ(
        &what,
        &nodes.collect(),
        &holders.keys().cloned().collect::<BTreeSet<_>>(),
    ));
    all
}

fn differ<T: PartialEq + Debug>(what: &str, found: &T, wanted: &T) -> Vec<String> {
    match found == wanted {
        true => Vec::new(),
        false => vec![format!("{what}: {found:?} instead of {wanted:?}")],
    }
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

fn texts(list: &Value, of: fn(&Value) -> &Value) -> BTreeSet<String> {
    list.as_array()
        .into_iter()
        .flatten()
        .map(|item| text(of(item)))
        .collect()
}
