//! Values for the tests of this crate.

use std::time::Instant;

use tunnel_proto::handshake::{InstanceId, InstanceSecret};

use crate::{
    claim::OnConflict,
    names::{AccountName, RuntimeLabel, RuntimeName},
    owner::Claimant,
};

/// A runtime with its names.
#[derive(Debug, Clone)]
pub(crate) struct Runtime {
    pub(crate) label: RuntimeLabel,
    pub(crate) account: AccountName,
    pub(crate) name: RuntimeName,
}

impl Runtime {
    pub(crate) fn new(account: &str, name: &str) -> Self {
        let (account, name) = (account.parse().unwrap(), name.parse().unwrap());
        Self {
            label: RuntimeLabel::new(&account, &name).unwrap(),
            account,
            name,
        }
    }

    /// A session of a credential that names the runtime, which no file lists.
    pub(crate) fn claimant<'a>(
        &'a self,
        instance: &'a InstanceId,
        on_conflict: OnConflict,
    ) -> Claimant<'a> {
        Claimant {
            label: &self.label,
            account: &self.account,
            name: &self.name,
            is_listed: false,
            instance,
            on_conflict,
        }
    }
}

pub(crate) fn instance(number: u8) -> InstanceId {
    InstanceSecret::from_random([number; 16]).id().clone()
}

/// The time at which a test begins.
pub(crate) fn start() -> Instant {
    #[expect(
        clippy::disallowed_methods,
        reason = "tests add to this time, and never read the clock again"
    )]
    Instant::now()
}
