//! The runtimes file: the runtimes with their hosts, limits and tokens.
//!
//! In: a TOML file. Out: a [`Runtimes`] in which no two runtimes share a label, a host or a token, or all faults of the
//! file with their lines. Managed runtimes are added to those of the file, each unless it conflicts. Whether a runtime has a
//! tunnel is not known here.

use std::collections::HashMap;
use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::time::SystemTime;

use ipnet::IpNet;
use tunnel_directory::{AccountName, Claimant, OnConflict, RuntimeLabel, RuntimeName};
use tunnel_ops::config_file::{ConfigFileError, TomlFile};
use tunnel_ops::faults::Faults;
use tunnel_proto::handshake::InstanceId;

use crate::token::{TokenHash, TokenId};

mod add;
pub mod edit;
mod file;
mod host;
mod moment;

pub use self::add::Conflict;
pub(crate) use self::file::RawLimits;
pub use self::host::{HostError, HostName};
pub use self::moment::{Moment, NotAMoment};

/// All runtimes that this server serves.
#[derive(Debug, Clone, Default)]
pub struct Runtimes {
    entries: Vec<Arc<RuntimeEntry>>,
    labels: HashMap<RuntimeLabel, usize>,
    tokens: Vec<(usize, ListedToken)>,
    token_ids: HashMap<TokenId, usize>,
    hosts: HashMap<HostName, usize>,
    /// The labels directly below the domain that hosts of the runtimes lie at or below, with the
    /// runtime that has the host.
    host_labels: HashMap<Box<str>, usize>,
}

/// One token of the runtimes file.
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct ListedToken {
    /// Its public part.
    pub id: TokenId,
    /// SHA-256 of the whole.
    pub sha256: TokenHash,
    /// When it was created, if that is known.
    pub created: Option<SystemTime>,
    /// When it expires.
    pub expires: Option<SystemTime>,
    /// Whether it is revoked.
    pub revoked: bool,
    /// A note for people.
    pub note: Option<String>,
}

/// One runtime of the file, or one that a credential names.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct RuntimeEntry {
    /// The account that it belongs to.
    pub account: AccountName,
    /// Its name within the account.
    pub name: RuntimeName,
    /// Both as one DNS label; the runtime's first host is `<label>.<domain>`.
    pub label: RuntimeLabel,
    /// Its hosts beside `<label>.<domain>`.
    pub hosts: Vec<HostName>,
    /// Its limits.
    pub limits: RuntimeLimits,
    /// The source addresses that are allowed; `None` means any.
    pub allow_from: Option<Vec<IpNet>>,
}

impl RuntimeEntry {
    /// Whether both are entries of one runtime.
    pub(crate) fn is_same_runtime(&self, other: &Self) -> bool {
        (&self.account, &self.name) == (&other.account, &other.name)
    }

    /// A session that wants the runtime.
    pub(crate) fn claimant<'a>(
        &'a self,
        is_listed: bool,
        instance: &'a InstanceId,
        on_conflict: OnConflict,
    ) -> Claimant<'a> {
        Claimant {
            label: &self.label,
            account: &self.account,
            name: &self.name,
            is_listed,
            instance,
            on_conflict,
        }
    }

    /// A runtime that no file lists.
    #[cfg(test)]
    pub(crate) fn unlisted(account: &str, name: &str) -> Arc<Self> {
        let (account, name) = (account.parse().unwrap(), name.parse().unwrap());
        Arc::new(Self {
            label: RuntimeLabel::new(&account, &name).unwrap(),
            account,
            name,
            hosts: Vec::new(),
            limits: RuntimeLimits::default(),
            allow_from: None,
        })
    }
}

/// The limits of one runtime; `None` means the server's default.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct RuntimeLimits {
    /// Exchanges open at once.
    pub exchanges: Option<u32>,
    /// Exchanges begun in a second.
    pub exchange_rate: Option<u32>,
    /// Bytes of bodies in a second towards the runtime.
    pub upload_rate: Option<u64>,
    /// Bytes of bodies in a second from the runtime.
    pub download_rate: Option<u64>,
    /// Upgraded connections open at once.
    pub websockets: Option<u32>,
    /// Largest head of a request, in bytes.
    pub head_bytes: Option<usize>,
    /// Requests that wait for the runtime to come back.
    pub waiting: Option<u32>,
    /// The memory of those requests together, in bytes.
    pub waiting_bytes: Option<u64>,
}

/// The faults found in a runtimes file or revocation list.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(transparent)]
pub struct RuntimesError(#[from] Faults<ConfigFileError>);

impl Runtimes {
    /// Reads the file. `domain` is the one under which every runtime has its first host.
    pub fn load(path: &Path, domain: &HostName) -> Result<Self, RuntimesError> {
        Self::parse(&TomlFile::read(path)?, domain)
    }

    /// Reads the text of a runtimes file.
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

    /// The runtime that the token with this id belongs to, and the token.
    pub fn token(&self, id: TokenId) -> Option<(&Arc<RuntimeEntry>, &ListedToken)> {
        let (entry, token) = self.tokens.get(*self.token_ids.get(&id)?)?;
        Some((self.entries.get(*entry)?, token))
    }

    /// The tokens of the runtime with this label.
    pub fn tokens_of<'a>(
        &'a self,
        label: &RuntimeLabel,
    ) -> impl Iterator<Item = &'a ListedToken> + use<'a> {
        let entry = self.labels.get(label).copied();
        let own = self.tokens.iter();
        own.filter(move |(of, _)| Some(*of) == entry)
            .map(|(_, token)| token)
    }

    /// All tokens with their runtimes, in the order of the file.
    pub fn tokens(&self) -> impl Iterator<Item = (&Arc<RuntimeEntry>, &ListedToken)> {
        self.tokens
            .iter()
            .filter_map(|(entry, token)| Some((self.entries.get(*entry)?, token)))
    }

    /// The runtime whose `hosts` contain `<label>.<domain>` or a host below it. Another runtime must not get this label.
    pub fn host_owner(&self, label: &RuntimeLabel) -> Option<&Arc<RuntimeEntry>> {
        self.entries.get(*self.host_labels.get(label.as_str())?)
    }

    /// The number of tokens of all runtimes.
    pub fn token_count(&self) -> usize {
        self.tokens.len()
    }
}

impl RuntimeLimits {
    /// These limits, with `defaults` for those that are not set.
    #[must_use]
    pub fn or(self, defaults: Self) -> Self {
        Self {
            exchanges: self.exchanges.or(defaults.exchanges),
            exchange_rate: self.exchange_rate.or(defaults.exchange_rate),
            upload_rate: self.upload_rate.or(defaults.upload_rate),
            download_rate: self.download_rate.or(defaults.download_rate),
            websockets: self.websockets.or(defaults.websockets),
            head_bytes: self.head_bytes.or(defaults.head_bytes),
            waiting: self.waiting.or(defaults.waiting),
            waiting_bytes: self.waiting_bytes.or(defaults.waiting_bytes),
        }
    }
}

impl RuntimesError {
    /// The faults in the order of the file, of very many the first ones.
    pub fn faults(&self) -> &[ConfigFileError] {
        self.0.faults()
    }

    /// The file at fault, unless the text says where in it.
    pub(crate) fn file(&self) -> Option<&Path> {
        match self.faults() {
            [fault] if fault.position().is_none() => Some(fault.path()),
            _ => None,
        }
    }
}

impl From<ConfigFileError> for RuntimesError {
    fn from(fault: ConfigFileError) -> Self {
        Self(fault.into())
    }
}

impl fmt::Debug for ListedToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ListedToken")
            .field("id", &self.id)
            .field("expires", &self.expires.map(Moment::from))
            .field("revoked", &self.revoked)
            .finish_non_exhaustive()
    }
}
