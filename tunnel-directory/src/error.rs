//! Why a node cannot take part in a shared directory.

use crate::node::NodeName;

/// Why a node cannot take part.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DirectoryError {
    /// The records are of a later version.
    #[error(
        "the records under this prefix have format {found}, and this version reads up to {known}: update this server"
    )]
    Format {
        /// Their format.
        found: u32,
        /// The newest format of this version.
        known: u32,
    },
    /// Another program has this key, which is the one of the cluster's record.
    #[error(
        "the value of {0} in etcd is not this server's: give all server nodes another --etcd-prefix, or remove the key"
    )]
    Foreign(String),
    /// Another living node has the name.
    #[error("another server node runs under the name {0}: give each node its own --node")]
    NameTaken(NodeName),
    /// User, password or role do not allow it.
    #[error("etcd does not allow it: {0}")]
    Denied(String),
}
