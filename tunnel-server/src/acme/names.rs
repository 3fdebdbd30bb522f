//! The names, the certificate of each, and what is to be done for it: plain values.

use std::time::{Duration, SystemTime};

use instant_acme::CertificateIdentifier;
use tunnel_ops::tls_files::Identity;

use super::schedule::{self, RenewalWindow, Validity};
use crate::config::AcmeName;

/// All names, in the order of the configuration.
pub(super) struct Names {
    all: Vec<Name>,
}

struct Name {
    name: AcmeName,
    stored: Option<Stored>,
    /// From 0 to 1, drawn for each certificate.
    share: f64,
    window: Option<RenewalWindow>,
    /// When the ACME server is asked again for the window.
    window_at: SystemTime,
    /// Orders that have failed in a row.
    failures: u32,
    /// Nothing is ordered before.
    wait_until: SystemTime,
    problem: Option<String>,
}

/// A certificate with its key, as it is stored.
pub(super) struct Stored {
    identity: Identity,
    validity: Validity,
    /// What the ACME server knows it by.
    id: Option<CertificateIdentifier<'static>>,
}

/// A name as the operator sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct NameState {
    /// The name.
    pub(crate) name: AcmeName,
    /// The end of its certificate; `None` if it has none.
    pub(crate) not_after: Option<SystemTime>,
    /// Why the last order failed.
    pub(crate) problem: Option<String>,
}

impl Stored {
    /// Reads chain and key from PEM text.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let identity = Identity::from_pem(text, text).map_err(|error| error.to_string())?;
        let key = identity.certified_key();
        let first = key.cert.first().ok_or("it has no certificate")?;
        let (_, parsed) =
            x509_parser::parse_x509_certificate(first).map_err(|error| error.to_string())?;
        let seconds = parsed.validity().not_before.timestamp();
        let seconds = Duration::from_secs(u64::try_from(seconds).unwrap_or(0));
        Ok(Self {
            validity: Validity {
                not_before: SystemTime::UNIX_EPOCH + seconds,
                not_after: identity.not_after(),
            },
            id: CertificateIdentifier::try_from(first)
                .ok()
                .map(CertificateIdentifier::into_owned),
            identity,
        })
    }
}

impl Name {
    fn new(name: &AcmeName) -> Self {
        Self {
            name: name.clone(),
            stored: None,
            share: share(),
            window: None,
            window_at: SystemTime::UNIX_EPOCH,
            failures: 0,
            wait_until: SystemTime::UNIX_EPOCH,
            problem: None,
        }
    }

    /// When an order is due, as seen from `now`.
    fn due(&self, now: SystemTime) -> SystemTime {
        // Twice, since clocks are also set by little.
        let is_of_clock = self.wait_until > now + schedule::LONGEST_WAIT * 2;
        let wait_until = match is_of_clock {
            true => SystemTime::UNIX_EPOCH,
            false => self.wait_until,
        };
        let stored = self.stored.as_ref();
        let renewal = stored.map_or(SystemTime::UNIX_EPOCH, |stored| {
            schedule::renewal(stored.validity, self.window, self.share)
        });
        renewal.max(wait_until)
    }

    fn is_valid(&self, now: SystemTime) -> bool {
        let stored = self.stored.as_ref();
        stored.is_some_and(|stored| now < stored.validity.not_after)
    }
}

impl Names {
    pub(super) fn new(names: &[AcmeName]) -> Self {
        Self {
            all: names.iter().map(Name::new).collect(),
        }
    }

    /// Replaces the names; those that stay keep their certificates. What has failed is due again.
    pub(super) fn set(&mut self, names: &[AcmeName]) {
        let mut before = std::mem::take(&mut self.all);
        let next = names.iter().map(|name| {
            let known = before.iter().position(|known| known.name == *name);
            let known = known.map(|index| before.swap_remove(index));
            Name {
                wait_until: SystemTime::UNIX_EPOCH,
                ..known.unwrap_or_else(|| Name::new(name))
            }
        });
        self.all = next.collect();
    }

    pub(super) fn all(&self) -> Vec<AcmeName> {
        self.all.iter().map(|name| name.name.clone()).collect()
    }

    /// The names without a certificate that is valid.
    pub(super) fn invalid(&self, now: SystemTime) -> impl Iterator<Item = &AcmeName> {
        let invalid = self.all.iter().filter(move |name| !name.is_valid(now));
        invalid.map(|name| &name.name)
    }

    pub(super) fn states(&self) -> Vec<NameState> {
        let state = |name: &Name| NameState {
            name: name.name.clone(),
            not_after: name.stored.as_ref().map(|stored| stored.validity.not_after),
            problem: name.problem.clone(),
        };
        self.all.iter().map(state).collect()
    }

    /// The certificates, in the order of the names.
    pub(super) fn identities(&self) -> impl Iterator<Item = (&AcmeName, &Identity)> + Clone {
        self.all.iter().filter_map(|name| {
            let stored = name.stored.as_ref()?;
            Some((&name.name, &stored.identity))
        })
    }

    /// The end of the certificate that ends first; 1970 while a name has none.
    pub(super) fn first_end(&self) -> SystemTime {
        let ends = self.all.iter().map(|name| {
            let stored = name.stored.as_ref();
            stored.map_or(SystemTime::UNIX_EPOCH, |stored| stored.validity.not_after)
        });
        ends.min().unwrap_or(SystemTime::UNIX_EPOCH)
    }

    /// Takes over a certificate; false if the name is not known, or has one that is newer or is that one.
    pub(super) fn take(&mut self, name: &AcmeName, stored: Stored) -> bool {
        let Some(known) = self.of(name) else {
            return false;
        };
        let age = |stored: &Stored| (stored.validity.not_before, stored.validity.not_after);
        if known
            .stored
            .as_ref()
            .is_some_and(|known| age(known) >= age(&stored))
        {
            return false;
        }
        *known = Name {
            stored: Some(stored),
            ..Name::new(name)
        };
        true
    }

    /// When the name's certificate is valid.
    pub(super) fn validity(&self, name: &AcmeName) -> Option<Validity> {
        let found = self.all.iter().find(|known| known.name == *name)?;
        found.stored.as_ref().map(|stored| stored.validity)
    }

    pub(super) fn is_due(&self, name: &AcmeName, now: SystemTime) -> bool {
        let found = self.all.iter().find(|known| known.name == *name);
        found.is_some_and(|name| name.due(now) <= now)
    }

    /// Whether the ACME server is to be asked when to renew.
    pub(super) fn wants_window(&self, name: &AcmeName, now: SystemTime) -> bool {
        let found = self.all.iter().find(|known| known.name == *name);
        found.is_some_and(|name| name.stored.is_some() && name.window_at <= now)
    }

    /// When the next thing is to be done.
    pub(super) fn next(&self, now: SystemTime) -> SystemTime {
        let times = self.all.iter().map(|name| match name.stored.is_some() {
            true => name.due(now).min(name.window_at),
            false => name.due(now),
        });
        times.min().map_or(now, |first| first.max(now))
    }

    /// What the ACME server knows the certificate by that an order replaces: only at the first try, since the server may
    /// refuse an order for just that.
    pub(super) fn replaced(&self, name: &AcmeName) -> Option<CertificateIdentifier<'static>> {
        let found = self.all.iter().find(|known| known.name == *name)?;
        let stored = found.stored.as_ref()?;
        stored.id.clone().filter(|_| found.failures == 0)
    }

    /// Nothing is ordered for this name before `until`.
    pub(super) fn wait(&mut self, name: &AcmeName, until: SystemTime) {
        if let Some(known) = self.of(name) {
            known.wait_until = until;
        }
    }

    /// An order has failed. Returns when the next one is made.
    pub(super) fn on_failure(
        &mut self,
        name: &AcmeName,
        problem: &str,
        retry_at: Option<SystemTime>,
    ) -> SystemTime {
        let now = SystemTime::now();
        let Some(known) = self.of(name) else {
            return now;
        };
        known.failures = known.failures.saturating_add(1);
        known.problem = Some(problem.to_owned());
        let pause = schedule::pause(known.failures, share());
        let (soonest, latest) = (now + pause, now + schedule::LONGEST_WAIT);
        let until = retry_at.map_or(soonest, |at| at.clamp(soonest, latest));
        known.wait_until = until;
        until
    }

    /// The ACME server has said when to renew, or nothing; it is asked again after the pause.
    pub(super) fn on_window(
        &mut self,
        name: &AcmeName,
        window: Option<RenewalWindow>,
        pause: Duration,
    ) {
        if let Some(known) = self.of(name) {
            known.window = window.or(known.window);
            known.window_at = SystemTime::now() + pause;
        }
    }

    fn of(&mut self, name: &AcmeName) -> Option<&mut Name> {
        self.all.iter_mut().find(|known| known.name == *name)
    }
}

/// A random number from 0 to 1.
pub(super) fn share() -> f64 {
    let mut bytes = [0; 4];
    // A system without random numbers has no TLS either.
    let _ = getrandom::fill(&mut bytes);
    f64::from(u32::from_ne_bytes(bytes)) / f64::from(u32::MAX)
}

#[cfg(test)]
mod tests {
    use testkit::ca::Authority;

    use super::*;

    const DAY: Duration = Duration::from_secs(24 * 60 * 60);

    /// A certificate that is valid until then, stored as the ACME server's answer would be.
    fn stored(until_year: i32) -> Stored {
        let issued = Authority::new("test").issue_with(&["a.example"], |params| {
            params.not_before = rcgen::date_time_ymd(2020, 1, 1);
            params.not_after = rcgen::date_time_ymd(until_year, 1, 1);
        });
        let text = format!("{}\n{}", issued.certificate, issued.key);
        Stored::parse(&text).unwrap()
    }

    fn names() -> (Names, AcmeName) {
        let name: AcmeName = "a.example".parse().unwrap();
        (Names::new(std::slice::from_ref(&name)), name)
    }

    #[test]
    fn a_name_without_a_certificate_is_due_at_once_and_after_failures_later() {
        let (mut names, name) = names();
        let now = SystemTime::now();
        assert!(names.is_due(&name, now));
        assert_eq!(names.invalid(now).count(), 1);
        let again = names.on_failure(&name, "refused", None);
        assert!(!names.is_due(&name, now));
        assert_eq!(names.next(now), again);
        assert_eq!(names.states()[0].problem.as_deref(), Some("refused"));
        let wanted = now + DAY;
        assert_eq!(
            names.on_failure(&name, "rate limited", Some(wanted)),
            wanted
        );
    }

    #[test]
    fn a_wait_of_a_clock_that_was_ahead_is_none() {
        let (mut names, name) = names();
        let now = SystemTime::now();
        names.wait(&name, now + 400 * DAY);
        assert!(names.is_due(&name, now));
        assert_eq!(names.next(now), now);
        names.wait(&name, now + DAY);
        assert!(!names.is_due(&name, now));
        // Nor is what an ACME server says.
        let until = names.on_failure(&name, "limited", Some(now + 400 * DAY));
        assert!(until < now + 8 * DAY && !names.is_due(&name, now));
    }

    #[test]
    fn a_newer_certificate_ends_failures_and_an_older_one_counts_for_nothing() {
        let (mut names, name) = names();
        let now = SystemTime::now();
        names.on_failure(&name, "refused", None);
        assert!(names.take(&name, stored(2150)));
        let state = &names.states()[0];
        assert_eq!(
            (state.problem.is_none(), state.not_after.is_some()),
            (true, true)
        );
        assert_eq!(names.invalid(now).count(), 0);
        assert!(!names.is_due(&name, now));
        assert!(!names.take(&name, stored(2149)));
        assert!(!names.take(&"b.example".parse().unwrap(), stored(2151)));
        assert_eq!(names.identities().count(), 1);
    }

    #[test]
    fn an_expired_certificate_is_shown_and_renewed() {
        let (mut names, name) = names();
        assert!(names.take(&name, stored(2021)));
        let now = SystemTime::now();
        assert!(names.is_due(&name, now));
        assert_eq!(
            (names.invalid(now).count(), names.identities().count()),
            (1, 1)
        );
    }

    #[test]
    fn the_acme_server_can_have_it_renewed_earlier() {
        let (mut names, name) = names();
        names.take(&name, stored(2150));
        let now = SystemTime::now();
        assert!(names.wants_window(&name, now));
        names.on_window(&name, None, DAY);
        assert!(!names.wants_window(&name, now) && !names.is_due(&name, now));
        let window = RenewalWindow {
            start: now - DAY,
            end: now,
        };
        names.on_window(&name, Some(window), DAY);
        assert!(names.is_due(&name, now));
    }

    #[test]
    fn names_that_stay_keep_their_certificates() {
        let (mut names, name) = names();
        names.take(&name, stored(2150));
        let other: AcmeName = "*.b.example".parse().unwrap();
        names.set(&[other.clone(), name.clone()]);
        assert_eq!(names.all(), [other.clone(), name]);
        let invalid: Vec<_> = names.invalid(SystemTime::now()).collect();
        assert_eq!(invalid, [&other]);
        assert_eq!(names.first_end(), SystemTime::UNIX_EPOCH);
    }
}
