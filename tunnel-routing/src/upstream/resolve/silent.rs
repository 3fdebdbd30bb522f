//! Search domains for which no name server answers: a corporate domain whose servers a cluster does not reach.
//!
//! In: what came of the candidates of names, and the time. Out: which domains are left out of the search for a while. No
//! clock, no network.

use std::collections::HashMap;
use std::time::Duration;

use hickory_resolver::proto::rr::Name;
use tokio::time::Instant;

/// Look-ups in a row without an answer after which a domain is silent. One alone may have been lost.
const LOST: u32 = 2;
/// How long a silent domain is left out.
const LEFT_OUT: Duration = Duration::from_secs(60);

/// The domains without an answer; at most those of the search list.
#[derive(Debug, Default)]
pub(super) struct SilentDomains(HashMap<Name, Silence>);

#[derive(Debug)]
struct Silence {
    /// Look-ups without an answer, in a row.
    lost: u32,
    last: Instant,
}

impl SilentDomains {
    /// Whether a domain is left out of the search.
    pub(super) fn has(&self, domain: &Name, now: Instant) -> bool {
        let silence = self.0.get(domain);
        silence.is_some_and(|silence| silence.lost >= LOST && now < silence.last + LEFT_OUT)
    }

    /// Records that no name server answered for a name in this domain. Returns whether the domain is silent, so that the
    /// search goes on without it.
    pub(super) fn on_silence(&mut self, domain: &Name, now: Instant) -> bool {
        let silence = self
            .0
            .entry(domain.clone())
            .or_insert(Silence { lost: 0, last: now });
        silence.lost = silence.lost.saturating_add(1);
        silence.last = now;
        silence.lost >= LOST
    }

    /// Records an answer for a name in this domain.
    pub(super) fn on_answer(&mut self, domain: &Name) {
        self.0.remove(domain);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_domain_is_left_out_after_two_look_ups_without_an_answer() {
        let (mut silent, now) = (SilentDomains::default(), Instant::now());
        let domain = Name::from_ascii("corp").unwrap();
        assert!(!silent.on_silence(&domain, now) && !silent.has(&domain, now));
        silent.on_answer(&domain);
        assert!(!silent.on_silence(&domain, now));
        assert!(silent.on_silence(&domain, now) && silent.has(&domain, now));
        // Then one look-up tries it again.
        let later = now + LEFT_OUT;
        assert!(!silent.has(&domain, later));
        assert!(silent.on_silence(&domain, later) && silent.has(&domain, later));
        silent.on_answer(&domain);
        assert!(!silent.has(&domain, later));
    }
}
