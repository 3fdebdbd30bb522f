//! The runtimes file: which runtimes there are, at which hosts, with which limits and tokens.
//!
//! In comes a TOML file; out comes a [`Runtimes`] in which no two runtimes share a label, a host or
//! a token, or every fault in the file with its line. Whether a runtime has a tunnel is not known
//! here.

use std::collections::HashMap;
use std::fmt;
use std::path::Path;
use std::sync::Arc;

use tunnel_ops::config_file::{ConfigFileError, TomlFile};

use crate::token::{TokenHash, TokenId};

pub mod edit;
mod file;
mod name;

pub use self::name::{AccountName, HostName, NameError, RuntimeLabel, RuntimeName};

/// All runtimes that this server serves.
#[derive(Debug, Clone, Default)]
pub struct Runtimes {
    entries: Vec<Arc<RuntimeEntry>>,
    labels: HashMap<RuntimeLabel, usize>,
    tokens: HashMap<TokenId, Credential>,
}

/// One runtime, as listed.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct RuntimeEntry {
    /// Whose it is.
    pub account: AccountName,
    /// Its name within the account.
    pub name: RuntimeName,
    /// Both as one DNS label; the runtime's first host is `<label>.<domain>`.
    pub label: RuntimeLabel,
    /// Its hosts beside `<label>.<domain>`.
    pub hosts: Vec<HostName>,
    /// What it may use at most.
    pub limits: RuntimeLimits,
}

/// What one runtime may use at most; nothing set means the server's own limit.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct RuntimeLimits {
    /// Exchanges open at once on one session, 1 to 4096.
    pub exchanges: Option<u32>,
}

/// Every fault found in a runtimes file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RuntimesError(Vec<ConfigFileError>);

#[derive(Clone)]
struct Credential {
    entry: usize,
    sha256: TokenHash,
}

impl Runtimes {
    /// Reads the file. `domain` is the one under which every runtime has its first host.
    pub fn load(path: &Path, domain: &HostName) -> Result<Self, RuntimesError> {
        Self::parse(&TomlFile::read(path)?, domain)
    }

    /// The same from text.
    pub fn parse(file: &TomlFile, domain: &HostName) -> Result<Self, RuntimesError> {
        file::parse(file, domain)
    }

    /// The runtimes in the order of the file.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &Arc<RuntimeEntry>> {
        self.entries.iter()
    }

    /// The runtime with this label.
    pub fn get(&self, label: &RuntimeLabel) -> Option<&Arc<RuntimeEntry>> {
        self.entries.get(*self.labels.get(label)?)
    }

    /// The runtime that the token with this id belongs to, and the token's hash.
    pub fn token(&self, id: TokenId) -> Option<(&Arc<RuntimeEntry>, &TokenHash)> {
        let credential = self.tokens.get(&id)?;
        Some((self.entries.get(credential.entry)?, &credential.sha256))
    }

    /// How many tokens there are, over all runtimes.
    pub fn token_count(&self) -> usize {
        self.tokens.len()
    }
}

impl RuntimesError {
    /// The faults in the order of the file.
    pub fn faults(&self) -> &[ConfigFileError] {
        &self.0
    }
}

impl From<ConfigFileError> for RuntimesError {
    fn from(fault: ConfigFileError) -> Self {
        Self(vec![fault])
    }
}

impl fmt::Display for RuntimesError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, fault) in self.0.iter().enumerate() {
            let separator = if index == 0 { "" } else { "\n" };
            write!(f, "{separator}{fault}")?;
        }
        Ok(())
    }
}

impl std::error::Error for RuntimesError {}

impl fmt::Debug for Credential {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Credential")
            .field("entry", &self.entry)
            .finish_non_exhaustive()
    }
}
