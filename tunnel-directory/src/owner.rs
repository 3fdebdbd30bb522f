//! Which runtime a label belongs to: a part of its claim.
//!
//! `a-b` + `c` and `a` + `b-c` have one label, and no file may list either. The label belongs to the runtime that has
//! claimed it, as long as a claim, its record, or what a node or an earlier process holds says so; the other runtime is
//! refused. A runtime that is listed in the runtimes file or by the admin API gets its label in any case, also from one that
//! has claimed it.

use tunnel_proto::handshake::InstanceId;

use crate::{
    claim::{ClaimRefusal, OnConflict},
    names::{AccountName, RuntimeLabel, RuntimeName},
};

/// The runtime that a label belongs to: the length of the account's name, with which the label begins, tells it from all
/// others of that label.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Owner(u8);

/// A session that wants a runtime.
#[derive(Debug, Clone, Copy)]
pub struct Claimant<'a> {
    /// The label of the runtime.
    pub label: &'a RuntimeLabel,
    /// The account that the credential names.
    pub account: &'a AccountName,
    /// The runtime's name within the account.
    pub name: &'a RuntimeName,
    /// Whether the runtimes file or the admin API lists the runtime, so that its label is its own.
    pub is_listed: bool,
    /// The instance that the session belongs to.
    pub instance: &'a InstanceId,
    /// What happens when another instance holds the runtime.
    pub on_conflict: OnConflict,
}

/// By what right a session may have a label.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Right {
    /// The label is its runtime's, or nobody's.
    Own(OnConflict),
    /// The label is another runtime's, and is taken from it.
    Overruling,
}

impl Owner {
    /// The runtime of this account.
    pub(crate) fn of(account: &AccountName) -> Self {
        // A label has at most 63 octets.
        Self(u8::try_from(account.as_str().len()).unwrap_or(u8::MAX))
    }

    /// The owner of a label by the names in a record; `None` if they do not make this label, or are missing.
    pub(crate) fn named(label: &RuntimeLabel, account: &str, runtime: &str) -> Option<Self> {
        let (account, runtime) = (account.parse().ok()?, runtime.parse().ok()?);
        let named = RuntimeLabel::new(&account, &runtime).ok()?;
        (named == *label).then(|| Self::of(&account))
    }

    /// Account and name of the runtime.
    pub(crate) fn names(self, label: &RuntimeLabel) -> Option<(AccountName, RuntimeName)> {
        let (account, rest) = label.as_str().split_at_checked(self.0.into())?;
        let name = rest.strip_prefix('-')?;
        Some((account.parse().ok()?, name.parse().ok()?))
    }
}

impl Claimant<'_> {
    /// The runtime of the session.
    pub(crate) fn owner(&self) -> Owner {
        Owner::of(self.account)
    }

    /// The session's right to its label, which belongs to `owner` if that is known.
    ///
    /// # Errors
    /// When the label belongs to another runtime.
    pub(crate) fn right(&self, owner: Option<Owner>) -> Result<Right, ClaimRefusal> {
        let is_own = owner.is_none_or(|owner| owner == self.owner());
        match (is_own, self.is_listed) {
            (true, _) => Ok(Right::Own(self.on_conflict)),
            (false, true) => Ok(Right::Overruling),
            (false, false) => Err(ClaimRefusal::LabelTaken(self.label.clone())),
        }
    }
}

impl Right {
    /// What happens to the instance that holds the label: one of another runtime does not keep it.
    pub(crate) fn on_conflict(self) -> OnConflict {
        match self {
            Self::Own(on_conflict) => on_conflict,
            Self::Overruling => OnConflict::Supersede,
        }
    }
}

#[cfg(test)]
mod tests {
    use tunnel_proto::handshake::InstanceSecret;

    use super::*;
    use crate::fixtures::Runtime;

    #[test]
    fn a_label_is_its_owners_alone_unless_another_runtime_is_listed() {
        let (first, second) = (Runtime::new("a-b", "c"), Runtime::new("a", "b-c"));
        assert_eq!(first.label, second.label);
        let secret = InstanceSecret::from_random([1; 16]);
        fn claimant<'a>(
            runtime: &'a Runtime,
            instance: &'a InstanceId,
            is_listed: bool,
        ) -> Claimant<'a> {
            Claimant {
                is_listed,
                ..runtime.claimant(instance, OnConflict::Reject)
            }
        }
        let claimant = |runtime, is_listed| claimant(runtime, secret.id(), is_listed);
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
