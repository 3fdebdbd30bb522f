//! The credential that a session uses, and the one to offer to the server next.
//!
//! ```text
//!   another credential ─▶ offered ── accepted ──▶ the session uses it
//!         │  (one at a time)  └───── refused ──▶ offered again after a pause, if the reason is passing
//!         └─ queued until the last offer is answered
//! ```
//!
//! Pure: in come events and times, out come the offers to send. An answer does not name its credential, so that only one
//! offer may be open.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use tunnel_proto::refusal::{Finality, RefusalReason};

use crate::credential::Credential;

/// Bounds of the pause before a refused credential is offered again; the pause doubles each time.
const PAUSE: (Duration, Duration) = (Duration::from_secs(5), Duration::from_secs(5 * 60));

/// The credentials of one session.
#[derive(Debug)]
pub(super) struct Offers {
    /// Sent at the dial, or accepted since.
    current: Arc<Credential>,
    /// Sent, and not answered yet.
    offered: Option<Arc<Credential>>,
    /// To be sent when the open offer is answered.
    queued: Option<Arc<Credential>>,
    /// Refused for a passing reason, and when to offer it again.
    refused: Option<(Instant, Arc<Credential>)>,
    /// The next pause.
    pause: Duration,
}

/// The server's answer to an offer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RefreshOutcome {
    /// The session uses it from now on.
    Accepted,
    /// Refused for a reason that may pass.
    RefusedForNow,
    /// Refused until the credential changes, or SIGHUP.
    Refused,
}

impl RefreshOutcome {
    /// A refusal with this reason name. An unknown reason may pass.
    pub(super) fn refused(reason: &str) -> Self {
        match RefusalReason::from_name(reason).map(RefusalReason::finality) {
            Some(Finality::Final) => Self::Refused,
            Some(Finality::Passing | Finality::Pending) | None => Self::RefusedForNow,
        }
    }
}

impl Offers {
    /// For a session that was dialled with this credential.
    pub(super) fn new(current: Arc<Credential>) -> Self {
        Self {
            current,
            offered: None,
            queued: None,
            refused: None,
            pause: PAUSE.0,
        }
    }

    /// The credential that the session uses.
    pub(super) fn current(&self) -> &Arc<Credential> {
        &self.current
    }

    /// The credential that the session uses once all offers are accepted.
    pub(super) fn latest(&self) -> &Credential {
        let latest = self.queued.as_ref().or(self.offered.as_ref());
        latest.unwrap_or(&self.current)
    }

    /// The session is to use another credential. Returns the one to send now.
    pub(super) fn want(&mut self, credential: Arc<Credential>) -> Option<Arc<Credential>> {
        let refused = self.refused.take();
        if !refused.is_some_and(|(_, refused)| refused.is_same(&credential)) {
            self.pause = PAUSE.0;
        }
        let Some(offered) = &self.offered else {
            return self.offer(credential);
        };
        self.queued = (!offered.is_same(&credential)).then_some(credential);
        None
    }

    /// The server has answered. Returns the credential to send now.
    pub(super) fn on_answer(
        &mut self,
        answer: RefreshOutcome,
        now: Instant,
    ) -> Option<Arc<Credential>> {
        let offered = self.offered.take()?;
        match answer {
            RefreshOutcome::Accepted => {
                self.current = offered;
                self.pause = PAUSE.0;
            }
            RefreshOutcome::RefusedForNow if self.queued.is_none() => {
                self.refused = Some((now + self.pause, offered));
                self.pause = (self.pause * 2).min(PAUSE.1);
            }
            RefreshOutcome::RefusedForNow | RefreshOutcome::Refused => {}
        }
        let next = self.queued.take()?;
        self.pause = PAUSE.0;
        self.offer(next)
    }

    /// When a refused credential is to be offered again.
    pub(super) fn retry_at(&self) -> Option<Instant> {
        self.refused.as_ref().map(|(at, _)| *at)
    }

    /// The time of [`Self::retry_at`] has come. Returns the credential to send now.
    pub(super) fn retry(&mut self) -> Option<Arc<Credential>> {
        let (_, refused) = self.refused.take()?;
        self.offer(refused)
    }

    fn offer(&mut self, credential: Arc<Credential>) -> Option<Arc<Credential>> {
        if self.current.is_same(&credential) {
            return None;
        }
        self.offered = Some(Arc::clone(&credential));
        Some(credential)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use secrecy::ExposeSecret;

    use super::*;
    use crate::credential::{CredentialFiles, Credentials};

    const SECOND: Duration = Duration::from_secs(1);

    /// A credential with each of these tokens.
    fn credentials<const N: usize>(tokens: [&str; N]) -> [Arc<Credential>; N] {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("token");
        let files = CredentialFiles {
            token: Some(path.clone()),
            certificate: None,
        };
        let credentials = Credentials::new(files);
        tokens.map(|token| {
            fs::write(&path, token).unwrap();
            credentials.read().unwrap()
        })
    }

    fn token(credential: Option<Arc<Credential>>) -> Option<String> {
        credential.map(|credential| credential.token().unwrap().expose_secret().to_owned())
    }

    #[test]
    fn an_answer_is_about_the_one_offer_that_is_under_way() {
        let [one, two, three] = credentials(["1", "2", "3"]);
        let now = Instant::now();
        let mut offers = Offers::new(one);
        assert_eq!(token(offers.want(two)).as_deref(), Some("2"));
        assert_eq!(token(offers.want(Arc::clone(&three))), None, "held back");
        assert!(offers.latest().is_same(&three));
        let next = offers.on_answer(RefreshOutcome::Refused, now);
        assert_eq!(token(next).as_deref(), Some("3"));
        assert_eq!(
            token(Some(Arc::clone(offers.current()))).as_deref(),
            Some("1")
        );
        assert_eq!(token(offers.on_answer(RefreshOutcome::Accepted, now)), None);
        assert!(offers.current().is_same(&three));
        assert_eq!(
            token(offers.on_answer(RefreshOutcome::Accepted, now)),
            None,
            "of nothing"
        );
    }

    #[test]
    fn only_the_latest_is_held_back_and_only_if_it_is_another() {
        let [one, two, three] = credentials(["1", "2", "3"]);
        let now = Instant::now();
        let mut offers = Offers::new(Arc::clone(&one));
        offers.want(Arc::clone(&two));
        offers.want(three);
        offers.want(Arc::clone(&two));
        assert_eq!(token(offers.on_answer(RefreshOutcome::Accepted, now)), None);
        // Back to the first while the third is under way.
        let mut offers = Offers::new(Arc::clone(&one));
        offers.want(two);
        offers.want(Arc::clone(&one));
        assert_eq!(token(offers.on_answer(RefreshOutcome::Refused, now)), None);
        assert!(offers.current().is_same(&one));
    }

    /// A token that reaches the client before the server's list is taken once the list has it.
    #[test]
    fn only_what_a_person_has_to_change_is_not_offered_again() {
        for reason in RefusalReason::ALL {
            let expected = match reason.finality() {
                Finality::Final => RefreshOutcome::Refused,
                Finality::Passing | Finality::Pending => RefreshOutcome::RefusedForNow,
            };
            assert_eq!(
                RefreshOutcome::refused(reason.name()),
                expected,
                "{reason:?}"
            );
        }
        for reason in [
            "token_refused",
            "refresh_too_often",
            "auth_unclear",
            "of_a_newer_server",
        ] {
            assert_eq!(
                RefreshOutcome::refused(reason),
                RefreshOutcome::RefusedForNow,
                "{reason}"
            );
        }
    }

    /// As SIGHUP has it: the latest credential is latest again.
    #[test]
    fn what_was_refused_is_offered_at_once_when_it_is_wanted_again() {
        for answer in [RefreshOutcome::RefusedForNow, RefreshOutcome::Refused] {
            let [one, two] = credentials(["1", "2"]);
            let mut offers = Offers::new(one);
            offers.want(Arc::clone(&two));
            assert_eq!(token(offers.on_answer(answer, Instant::now())), None);
            assert!(!offers.latest().is_same(&two));
            assert_eq!(token(offers.want(two)).as_deref(), Some("2"));
            assert_eq!(offers.retry_at(), None);
        }
    }

    #[test]
    fn what_is_refused_for_now_is_offered_again_after_growing_pauses() {
        let [one, two, three] = credentials(["1", "2", "3"]);
        let now = Instant::now();
        let mut offers = Offers::new(one);
        offers.want(two);
        for seconds in [5, 10, 20, 40, 80, 160, 300, 300] {
            assert_eq!(
                token(offers.on_answer(RefreshOutcome::refused("auth_busy"), now)),
                None
            );
            assert_eq!(offers.retry_at(), Some(now + seconds * SECOND));
            assert_eq!(token(offers.retry()).as_deref(), Some("2"));
            assert_eq!(offers.retry_at(), None);
        }
        offers.on_answer(RefreshOutcome::RefusedForNow, now);
        assert_eq!(token(offers.want(three)).as_deref(), Some("3"), "at once");
        offers.on_answer(RefreshOutcome::RefusedForNow, now);
        assert_eq!(offers.retry_at(), Some(now + 5 * SECOND));
        offers.retry();
        offers.on_answer(RefreshOutcome::refused("runtime_differs"), now);
        assert_eq!(offers.retry_at(), None, "that does not pass");
    }
}
