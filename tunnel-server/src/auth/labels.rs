//! The account and runtime that each label belongs to, for runtimes that are not in the runtimes file.
//!
//! `a-b` + `c` and `a` + `b-c` have one label. The runtimes file cannot list both. Of unlisted runtimes the first one keeps
//! the label until the server stops, so that no runtime can receive the requests of another one that is offline.

use std::collections::HashMap;
use std::sync::Arc;

use ipnet::IpNet;
use parking_lot::Mutex;

use super::refusal::AuthRefusal;
use crate::runtimes::{
    AccountName, HostName, NameError, RuntimeEntry, RuntimeLabel, RuntimeLimits, RuntimeName,
    Runtimes,
};

/// Most stored labels. A full table removes those that are not in use.
const MOST_LABELS: usize = 100_000;

/// The runtime that a credential names, with the limits that its issuer sets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct NamedRuntime {
    pub(super) account: AccountName,
    pub(super) name: RuntimeName,
    pub(super) limits: RuntimeLimits,
    pub(super) allow_from: Option<Vec<IpNet>>,
}

/// The labels in use.
pub(super) struct Labels {
    domain: HostName,
    known: Mutex<HashMap<RuntimeLabel, Arc<RuntimeEntry>>>,
}

impl NamedRuntime {
    /// Parses both names.
    pub(super) fn new(account: &str, name: &str) -> Result<Self, NameError> {
        Ok(Self {
            account: account.parse()?,
            name: name.parse()?,
            limits: RuntimeLimits::default(),
            allow_from: None,
        })
    }

    /// The label of both names.
    pub(super) fn label(&self) -> Result<RuntimeLabel, NameError> {
        RuntimeLabel::new(&self.account, &self.name)
    }

    fn matches(&self, entry: &RuntimeEntry) -> bool {
        entry.account == self.account && entry.name == self.name
    }
}

impl Labels {
    pub(super) fn new(domain: HostName) -> Self {
        Self {
            domain,
            known: Mutex::new(HashMap::new()),
        }
    }

    /// The number of stored labels.
    pub(super) fn len(&self) -> usize {
        self.known.lock().len()
    }

    /// Returns the runtime's entry: that of the runtimes file, or a new one with the host `<label>.<domain>`.
    ///
    /// # Errors
    /// When the label or the host is invalid, the label belongs to another runtime, or all stored labels are in use.
    pub(super) fn entry(
        &self,
        runtimes: &Runtimes,
        named: &NamedRuntime,
    ) -> Result<Arc<RuntimeEntry>, AuthRefusal> {
        let unfit = |error: NameError| AuthRefusal::TokenMalformed(error.to_string());
        let label = named.label().map_err(unfit)?;
        HostName::of_runtime(&label, &self.domain).map_err(unfit)?;
        if let Some(listed) = runtimes.get(&label) {
            return match named.matches(listed) {
                true => Ok(merged(listed, named)),
                false => Err(AuthRefusal::RuntimeLabelTaken(label)),
            };
        }
        if runtimes.host_owner(&label).is_some() {
            return Err(AuthRefusal::RuntimeLabelTaken(label));
        }
        self.unlisted(label, named)
    }

    fn unlisted(
        &self,
        label: RuntimeLabel,
        named: &NamedRuntime,
    ) -> Result<Arc<RuntimeEntry>, AuthRefusal> {
        let new = RuntimeEntry {
            account: named.account.clone(),
            name: named.name.clone(),
            label: label.clone(),
            hosts: Vec::new(),
            limits: named.limits,
            allow_from: named.allow_from.clone(),
        };
        let mut known = self.known.lock();
        if let Some(entry) = known.get(&label) {
            if !named.matches(entry) {
                return Err(AuthRefusal::RuntimeLabelTaken(label));
            }
            if **entry == new {
                return Ok(entry.clone());
            }
        } else if known.len() >= MOST_LABELS {
            known.retain(|_, entry| Arc::strong_count(entry) > 1);
            if known.len() >= MOST_LABELS {
                return Err(AuthRefusal::AuthBusy);
            }
        }
        let entry = Arc::new(new);
        known.insert(label, entry.clone());
        Ok(entry)
    }
}

/// Merges the limits and networks of a listed runtime with the issuer's. The file's values have precedence.
fn merged(listed: &Arc<RuntimeEntry>, named: &NamedRuntime) -> Arc<RuntimeEntry> {
    let limits = listed.limits.or(named.limits);
    let allow_from = listed.allow_from.as_ref().or(named.allow_from.as_ref());
    if limits == listed.limits && allow_from == listed.allow_from.as_ref() {
        return listed.clone();
    }
    Arc::new(RuntimeEntry {
        limits,
        allow_from: allow_from.cloned(),
        ..RuntimeEntry::clone(listed)
    })
}

#[cfg(test)]
pub(super) mod tests {
    use tunnel_ops::config_file::TomlFile;

    use super::*;

    pub(in crate::auth) fn entry(account: &str, name: &str) -> RuntimeEntry {
        let named = NamedRuntime::new(account, name).unwrap();
        let labels = Labels::new("d.example".parse().unwrap());
        let entry = labels.entry(&Runtimes::default(), &named).unwrap();
        RuntimeEntry::clone(&entry)
    }

    fn listed(text: &str) -> Runtimes {
        let domain = "d.example".parse().unwrap();
        Runtimes::parse(&TomlFile::from_text("r.toml", text), &domain).unwrap()
    }

    #[test]
    fn a_label_stays_with_its_owner() {
        let labels = Labels::new("d.example".parse().unwrap());
        let get = |runtimes: &Runtimes, account, name| {
            labels.entry(runtimes, &NamedRuntime::new(account, name).unwrap())
        };
        let none = Runtimes::default();
        let first = get(&none, "a-b", "c").unwrap();
        assert_eq!(first.label.as_str(), "a-b-c");
        let taken = Err(AuthRefusal::RuntimeLabelTaken(first.label.clone()));
        assert_eq!(get(&none, "a", "b-c"), taken, "another runtime has it");
        assert!(Arc::ptr_eq(&get(&none, "a-b", "c").unwrap(), &first));
        drop(first);
        assert_eq!(
            get(&none, "a", "b-c"),
            taken,
            "also while its owner has no session"
        );
        let file = listed("[[runtime]]\naccount = \"a\"\nname = \"b-c\"\n");
        assert_eq!(get(&file, "a-b", "c"), taken, "the file takes precedence");
        assert!(get(&file, "a", "b-c").is_ok());
        let host =
            listed("[[runtime]]\naccount = \"x\"\nname = \"y\"\nhosts = [\"a-b-c.d.example\"]\n");
        assert_eq!(
            get(&host, "a-b", "c"),
            taken,
            "it is another runtime's host"
        );
    }

    #[test]
    fn a_listed_runtime_gets_its_entry_and_the_issuer_fills_the_gaps() {
        let labels = Labels::new("d.example".parse().unwrap());
        let file = listed(
            "[[runtime]]\naccount = \"a\"\nname = \"b\"\nhosts = [\"h.example\"]\n\
             allow_from = [\"192.0.2.0/24\"]\n[runtime.limits]\nexchanges = 5\n",
        );
        let mut named = NamedRuntime::new("a", "b").unwrap();
        let entry = labels.entry(&file, &named).unwrap();
        assert!(Arc::ptr_eq(&entry, file.iter().next().unwrap()));
        named.limits.exchanges = Some(900);
        named.limits.websockets = Some(7);
        named.allow_from = Some(vec!["10.0.0.0/8".parse().unwrap()]);
        let entry = labels.entry(&file, &named).unwrap();
        assert_eq!(
            (entry.limits.exchanges, entry.limits.websockets),
            (Some(5), Some(7))
        );
        assert_eq!(entry.allow_from, file.iter().next().unwrap().allow_from);
        assert_eq!(entry.hosts.len(), 1);
    }

    #[test]
    fn a_host_that_cannot_be_is_refused() {
        let long = vec!["d".repeat(63); 3].join(".");
        let labels = Labels::new(long.parse().unwrap());
        let name = "n".repeat(62);
        for (account, name) in [("a", name.as_str()), ("a", "n".repeat(61).as_str())] {
            let named = NamedRuntime::new(account, name).unwrap();
            let refused = labels.entry(&Runtimes::default(), &named).unwrap_err();
            assert_eq!(refused.name(), "token_malformed");
        }
    }
}
