//! What a registry hands to the process that takes its server's listeners over: who holds which runtime.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::Registry;
use crate::{
    directory::HandedClaim,
    runtimes::{RuntimeEntry, RuntimeLabel, RuntimeLimits},
};

/// A runtime that an instance holds.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct HandedRuntime {
    account: String,
    runtime: String,
    claim: HandedClaim,
}

impl Registry {
    /// The runtimes that are held.
    pub(crate) fn handed(&self) -> Vec<HandedRuntime> {
        let claims = self.directory.handed().into_iter();
        let runtimes = claims.filter_map(|(label, claim)| {
            let slot = self.slot(label.as_str())?;
            let entry = slot.entry();
            Some(HandedRuntime {
                account: entry.account.to_string(),
                runtime: entry.name.to_string(),
                claim,
            })
        });
        runtimes.collect()
    }

    /// Takes over runtimes that are held at another process, whose clients are about to come. Also one that only a
    /// credential has named is known from now on, so that its requests wait for its client.
    pub(crate) fn expect(&self, runtimes: Vec<HandedRuntime>) {
        for HandedRuntime {
            account,
            runtime,
            claim,
        } in runtimes
        {
            let (Ok(account), Ok(name)) = (account.parse(), runtime.parse()) else {
                continue;
            };
            let Ok(label) = RuntimeLabel::new(&account, &name) else {
                continue;
            };
            let entry = Arc::new(RuntimeEntry {
                account,
                name,
                label: label.clone(),
                hosts: Vec::new(),
                limits: RuntimeLimits::default(),
                allow_from: None,
            });
            self.slot_of(&mut self.slots.write(), &entry);
            self.directory.expect(label, claim);
        }
    }
}
