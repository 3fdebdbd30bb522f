//! The verdict on this machine's clock.

use super::{Verdict, verdicts};
use crate::check::evidence::Evidence;
use crate::check::text::{moment, span};

/// The clock explains the failure.
pub(in crate::check) fn clock_off(evidence: &Evidence, what: &str) -> Verdict {
    let off = match evidence.clock {
        Some(clock) if clock.is_off() => {
            let whose = match clock.is_servers {
                true => "the server's clock",
                false => "the clock of what answers there",
            };
            let side = if clock.is_ahead() {
                "behind"
            } else {
                "ahead of"
            };
            let (there, difference) = (moment(clock.there), span(clock.difference()));
            format!("; {whose} says {there}, which is {difference} {side} it")
        }
        _ => String::new(),
    };
    verdicts! {
        "clock_off" "{what}{off}"
        "set this machine's clock, and keep it set by NTP (`timedatectl set-ntp true`); a container has the clock of its \
         host"
    }
}
