//! Which runtime a label belongs to: a part of its claim.
//!
//! `a-b` + `c` and `a` + `b-c` have one label, and no file may list either. The label belongs to the runtime that has
//! claimed it, as long as a claim, its record, or what a node or an earlier process holds says so; the other runtime is
//! refused. A runtime that is listed in the runtimes file or by the admin API gets its label in any case, also from one that
//! has claimed it.

use std::sync::Arc;

use tunnel_proto::handshake::InstanceId;

use super::{ClaimRefusal, OnConflict};
use crate::runtimes::{AccountName, RuntimeEntry, RuntimeLabel, RuntimeName};

/// The runtime that a label belongs to: the length of the account's name, with which the label begins, tells it from all
/// others of that label.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Owner(u8);

/// A session that wants a runtime.
#[derive(Debug, Clone, Copy)]
pub struct Claimant<'a> {
    /// The runtime, as its credential names it.
    pub runtime: &'a Arc<RuntimeEntry>,
    /// The runtimes file or the admin API lists it, so that its label is its own.
    pub is_listed: bool,
    /// The instance that the session belongs to.
    pub instance: &'a InstanceId,
    /// What happens when another instance holds the runtime.
    pub on_conflict: OnConflict,
}

/// By what right a session may have a label.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Right {
    /// The label is its runtime's, or nobody's.
    Own(OnConflict),
    /// The label is another runtime's, and is taken from it.
    Overruling,
}

impl Owner {
    pub(super) fn of(account: &AccountName) -> Self {
        // A label has at most 63 octets.
        Self(u8::try_from(account.as_str().len()).unwrap_or(u8::MAX))
    }

    /// The owner of a label by the names in a record; `None` if they do not make this label, or are missing.
    pub(super) fn named(label: &RuntimeLabel, account: &str, runtime: &str) -> Option<Self> {
        let (account, runtime) = (account.parse().ok()?, runtime.parse().ok()?);
        let named = RuntimeLabel::new(&account, &runtime).ok()?;
        (named == *label).then(|| Self::of(&account))
    }

    /// Account and name of the runtime.
    pub(super) fn names(self, label: &RuntimeLabel) -> Option<(AccountName, RuntimeName)> {
        let (account, rest) = label.as_str().split_at_checked(self.0.into())?;
        let name = rest.strip_prefix('-')?;
        Some((account.parse().ok()?, name.parse().ok()?))
    }
}

impl Claimant<'_> {
    pub(super) fn owner(&self) -> Owner {
        Owner::of(&self.runtime.account)
    }

    /// The session's right to its label, which belongs to `owner` if that is known.
    ///
    /// # Errors
    /// When the label belongs to another runtime.
    pub(super) fn right(&self, owner: Option<Owner>) -> Result<Right, ClaimRefusal> {
        let is_own = owner.is_none_or(|owner| owner == self.owner());
        match (is_own, self.is_listed) {
            (true, _) => Ok(Right::Own(self.on_conflict)),
            (false, true) => Ok(Right::Overruling),
            (false, false) => Err(ClaimRefusal::LabelTaken(self.runtime.label.clone())),
        }
    }
}

impl Right {
    /// What happens to the instance that holds the label: one of another runtime does not keep it.
    pub(super) fn on_conflict(self) -> OnConflict {
        match self {
            Self::Own(on_conflict) => on_conflict,
            Self::Overruling => OnConflict::Supersede,
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use tunnel_proto::handshake::InstanceSecret;

    use super::*;
    use crate::runtimes::RuntimeLimits;

    /// A runtime that no file lists.
    pub(crate) fn unlisted(account: &str, name: &str) -> Arc<RuntimeEntry> {
        let (account, name) = (account.parse().unwrap(), name.parse().unwrap());
        Arc::new(RuntimeEntry {
            label: RuntimeLabel::new(&account, &name).unwrap(),
            account,
            name,
            hosts: Vec::new(),
            limits: RuntimeLimits::default(),
            allow_from: None,
        })
    }

    #[test]
    fn a_label_is_its_owners_alone_unless_another_runtime_is_listed() {
        let (first, second) = (unlisted("a-b", "c"), unlisted("a", "b-c"));
        assert_eq!(first.label, second.label);
        let secret = InstanceSecret::from_random([1; 16]);
        let claimant = |runtime, is_listed| Claimant {
            runtime,
            is_listed,
            instance: secret.id(),
            on_conflict: OnConflict::Reject,
        };
        let owner = Some(Owner::of(&first.account));
        let own = Ok(Right::Own(OnConflict::Reject));
        assert_eq!(claimant(&first, false).right(owner), own);
        assert_eq!(claimant(&first, true).right(owner), own);
        assert_eq!(claimant(&second, false).right(None), own);
        assert_eq!(claimant(&second, true).right(owner), Ok(Right::Overruling));
        assert_eq!(
            claimant(&second, false).right(owner),
            Err(ClaimRefusal::LabelTaken(first.label.clone()))
        );
    }

    #[test]
    fn an_owner_is_read_from_names_that_make_the_label() {
        let label = RuntimeLabel::parse("a-b-c").unwrap();
        let owner = Owner::named(&label, "a-b", "c").unwrap();
        let (account, name) = owner.names(&label).unwrap();
        assert_eq!((account.as_str(), name.as_str()), ("a-b", "c"));
        assert_ne!(Owner::named(&label, "a", "b-c"), Some(owner));
        for (account, name) in [("", ""), ("a", "c"), ("a-b-c", ""), ("A-b", "c")] {
            assert_eq!(Owner::named(&label, account, name), None);
        }
    }
}
