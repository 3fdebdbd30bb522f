//! The runtime that a credential names, and what the runtimes file says of it.

use std::{fmt::Display, sync::Arc};

use ipnet::IpNet;
use tunnel_directory::{AccountName, NameError, RuntimeLabel, RuntimeName};

use super::refusal::AuthRefusal;
use crate::runtimes::{HostName, RuntimeEntry, RuntimeLimits, Runtimes};

/// The runtime that a credential names, with the limits that its issuer sets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct NamedRuntime {
    pub(super) account: AccountName,
    pub(super) name: RuntimeName,
    pub(super) limits: RuntimeLimits,
    pub(super) allow_from: Option<Vec<IpNet>>,
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

    /// Returns the runtime's entry: that of the runtimes file, or a new one with the host `<label>.<domain>`. Whether the label
    /// of one that no file lists belongs to another such runtime is the directory's to say.
    ///
    /// # Errors
    /// When the label or the host is invalid, or the file gives it to another runtime.
    pub(super) fn entry(
        &self,
        runtimes: &Runtimes,
        domain: &HostName,
    ) -> Result<Arc<RuntimeEntry>, AuthRefusal> {
        let unfit = |error: &dyn Display| AuthRefusal::TokenMalformed(error.to_string());
        let label = self.label().map_err(|error| unfit(&error))?;
        HostName::of_runtime(&label, domain).map_err(|error| unfit(&error))?;
        if let Some(listed) = runtimes.get(&label) {
            return match (&listed.account, &listed.name) == (&self.account, &self.name) {
                true => Ok(merged(listed, self)),
                false => Err(AuthRefusal::RuntimeLabelTaken(label)),
            };
        }
        if runtimes.host_owner(&label).is_some() {
            return Err(AuthRefusal::RuntimeLabelTaken(label));
        }
        Ok(Arc::new(RuntimeEntry {
            account: self.account.clone(),
            name: self.name.clone(),
            label,
            hosts: Vec::new(),
            limits: self.limits,
            allow_from: self.allow_from.clone(),
        }))
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
        let entry = named.entry(&Runtimes::default(), &domain()).unwrap();
        RuntimeEntry::clone(&entry)
    }

    fn domain() -> HostName {
        "d.example".parse().unwrap()
    }

    fn listed(text: &str) -> Runtimes {
        Runtimes::parse(&TomlFile::from_text("r.toml", text), &domain()).unwrap()
    }

    #[test]
    fn the_file_says_whose_a_label_is() {
        let get = |runtimes: &Runtimes, account, name| {
            let named = NamedRuntime::new(account, name).unwrap();
            named.entry(runtimes, &domain())
        };
        let first = get(&Runtimes::default(), "a-b", "c").unwrap();
        assert_eq!(first.label.as_str(), "a-b-c");
        let taken = Err(AuthRefusal::RuntimeLabelTaken(first.label.clone()));
        let file = listed("[[runtime]]\naccount = \"a\"\nname = \"b-c\"\n");
        assert_eq!(get(&file, "a-b", "c"), taken);
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
        let file = listed(
            "[[runtime]]\naccount = \"a\"\nname = \"b\"\nhosts = [\"h.example\"]\n\
             allow_from = [\"192.0.2.0/24\"]\n[runtime.limits]\nexchanges = 5\n",
        );
        let mut named = NamedRuntime::new("a", "b").unwrap();
        let entry = named.entry(&file, &domain()).unwrap();
        assert!(Arc::ptr_eq(&entry, file.iter().next().unwrap()));
        named.limits.exchanges = Some(900);
        named.limits.websockets = Some(7);
        named.allow_from = Some(vec!["10.0.0.0/8".parse().unwrap()]);
        let entry = named.entry(&file, &domain()).unwrap();
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
        let long = long.parse().unwrap();
        let name = "n".repeat(62);
        for (account, name) in [("a", name.as_str()), ("a", "n".repeat(61).as_str())] {
            let named = NamedRuntime::new(account, name).unwrap();
            let refused = named.entry(&Runtimes::default(), &long).unwrap_err();
            assert_eq!(refused.name(), "token_malformed");
        }
    }
}
