//! What programs use while a load runs: begins and ends with its window.

use std::collections::BTreeMap;

use crate::{
    measure::usage::{Meter, Roles},
    report::Usage,
};

/// What programs use, from the window's begin to its end.
pub(super) struct Observed<'a> {
    roles: &'a Roles,
    meter: Option<Meter>,
    ended: bool,
    usage: BTreeMap<String, Usage>,
}

impl<'a> Observed<'a> {
    pub(super) fn new(roles: &'a Roles) -> Self {
        Self {
            roles,
            meter: None,
            ended: false,
            usage: BTreeMap::new(),
        }
    }

    pub(super) fn is_waiting(&self) -> bool {
        self.meter.is_none() && !self.ended
    }

    pub(super) fn is_on(&self) -> bool {
        self.meter.is_some()
    }

    pub(super) fn begin(&mut self) {
        self.meter = Some(Meter::start(self.roles.clone()));
    }

    pub(super) fn sample(&mut self) {
        if let Some(meter) = &mut self.meter {
            meter.sample();
        }
    }

    pub(super) fn end(&mut self) {
        self.ended = true;
        if let Some(meter) = self.meter.take() {
            self.usage = meter.finish();
        }
    }

    /// What was used; nothing before the end.
    pub(super) fn usage(self) -> BTreeMap<String, Usage> {
        self.usage
    }
}
