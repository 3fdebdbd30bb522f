//! Names of nodes, and of their incarnations.

use std::{fmt, str::FromStr, sync::Arc};

/// Longest name, as of a DNS name.
const NAME_BYTES: usize = 253;

/// The name of a node among those that share a directory, such as a pod's name.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeName(Arc<str>);

/// The text is no name of a node.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is no name of a node: use lower-case letters, digits, hyphens and dots")]
pub struct BadNodeName(String);

/// One run of a server process, named at random: a node that starts again under its name is another one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Incarnation(u64);

/// One process of a node. Its records name it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeRun {
    /// The node.
    pub node: NodeName,
    /// The process.
    pub incarnation: Incarnation,
}

impl NodeName {
    /// The name.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for NodeName {
    type Err = BadNodeName;

    fn from_str(text: &str) -> Result<Self, BadNodeName> {
        let is_allowed = |byte: u8| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.');
        let is_edge = |byte: Option<u8>| byte.is_some_and(|byte| byte.is_ascii_alphanumeric());
        let mut bytes = text.bytes();
        match text.len() <= NAME_BYTES
            && text.bytes().all(is_allowed)
            && is_edge(bytes.next())
            && is_edge(text.bytes().next_back())
        {
            true => Ok(Self(text.into())),
            false => Err(BadNodeName(text.to_owned())),
        }
    }
}

impl fmt::Display for NodeName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

impl fmt::Debug for NodeName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&*self.0, f)
    }
}

tunnel_ops::text_value!(NodeName);

impl Incarnation {
    /// The incarnation of this random number.
    #[must_use]
    pub fn new(random: u64) -> Self {
        Self(random)
    }
}

impl FromStr for Incarnation {
    type Err = std::num::ParseIntError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        u64::from_str_radix(text, 16).map(Self)
    }
}

impl fmt::Display for Incarnation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_pods() {
        for good in ["n1", "tunnel-server-0", "a.b", "7"] {
            assert!(good.parse::<NodeName>().is_ok(), "{good}");
        }
        for bad in ["", "-a", "a.", "A", "a/b", "a b", &"a".repeat(254)] {
            assert!(bad.parse::<NodeName>().is_err(), "{bad}");
        }
    }

    #[test]
    fn an_incarnation_is_read_as_it_is_written() {
        let incarnation = Incarnation::new(0xab);
        assert_eq!(incarnation.to_string(), "00000000000000ab");
        assert_eq!(incarnation.to_string().parse(), Ok(incarnation));
    }
}
