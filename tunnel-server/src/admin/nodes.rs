//! The views of server nodes that share a directory.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use tunnel_directory::{NodeName, RuntimeLabel};

use crate::directory::Directory;

/// One server node, as it says of itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeView {
    /// Its name.
    pub name: String,
    /// Version of its program.
    pub version: String,
    /// `serving`, `leaving`, or what a node of a later version says.
    pub state: String,
    /// The number of runtimes that it held when it last wrote its key.
    pub runtimes: u64,
    /// Where other nodes connect; absent if they cannot.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub peer: Option<String>,
    /// The zone that it lies in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub zone: Option<Arc<str>>,
    /// The number of other nodes to which it had a link when it last wrote its key; absent if it does not say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub links: Option<u64>,
}

/// All nodes, by name; none if this server stands alone.
pub(super) fn views(directory: &Directory) -> Vec<NodeView> {
    let nodes = directory.shared().map(|shared| shared.nodes());
    let nodes = nodes.unwrap_or_default().into_iter();
    let views = nodes.map(|(name, _, record)| NodeView {
        name: name.to_string(),
        version: record.version,
        state: record.state.name().to_owned(),
        runtimes: record.sessions,
        peer: record.peer,
        zone: record.zone,
        links: record.links,
    });
    let mut views: Vec<_> = views.collect();
    views.sort_unstable_by(|a, b| a.name.cmp(&b.name));
    views
}

/// The names of the other nodes; none if this server stands alone.
pub(super) fn others(directory: &Directory) -> Vec<NodeName> {
    let Some(shared) = directory.shared() else {
        return Vec::new();
    };
    let own = shared.incarnation();
    let others = shared.nodes().into_iter();
    let others = others.filter(|(_, incarnation, _)| *incarnation != own);
    others.map(|(name, ..)| name).collect()
}

/// The names of the other nodes that hold a runtime.
pub(super) fn holders(directory: &Directory, label: &RuntimeLabel) -> Vec<String> {
    let shared = directory.shared();
    let held = shared.and_then(|shared| shared.holders(label.as_str()));
    let holders = held.map(|(_, holders)| holders).unwrap_or_default();
    let names = holders.into_iter().map(|holder| holder.node.to_string());
    names.collect()
}
