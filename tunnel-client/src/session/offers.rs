//! Which credential a session goes by, and which one the server is to be offered next.
//!
//! ```text
//!   another credential ─▶ offered ── taken ─────▶ the session goes by it
//!         │  (one at a time)  └──── refused ──▶ offered again after a pause, if the reason passes
//!         └─ held back until the last is answered
//! ```
//!
//! Pure: in comes what happens and when, out comes what to send. An answer does not say which
//! credential it is about, so that no two may be on their way at once.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use tunnel_proto::refusal::{Finality, RefusalReason};

use crate::credential::Credential;

/// Bounds of the pause before a credential is offered again; it doubles each time.
const PAUSE: (Duration, Duration) = (Duration::from_secs(5), Duration::from_secs(5 * 60));

/// The credentials of one session.
#[derive(Debug)]
pub(super) struct Offers {
    /// Shown at the dial, or taken since.
    own: Arc<Credential>,
    /// Sent, and neither taken nor refused yet.
    offered: Option<Arc<Credential>>,
    /// To be sent when that one is answered.
    held_back: Option<Arc<Credential>>,
    /// Refused for now, and when to offer it again.
    refused: Option<(Instant, Arc<Credential>)>,
    /// The next pause.
    pause: Duration,
}

/// How the server answers an offer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Answer {
    /// The session goes on by it.
    Taken,
    /// Not now; it may be another time.
    NotNow,
    /// Not before the credential changes, or SIGHUP.
    Refused,
}

impl Answer {
    /// A refusal for the reason with this name. One that this version does not know may pass.
    pub(super) fn refused(reason: &str) -> Self {
        match RefusalReason::from_name(reason).map(RefusalReason::finality) {
            Some(Finality::Final) => Self::Refused,
            Some(Finality::Passing | Finality::Pending) | None => Self::NotNow,
        }
    }
}

impl Offers {
    /// For a session that was begun with this credential.
    pub(super) fn new(own: Arc<Credential>) -> Self {
        Self {
            own,
            offered: None,
            held_back: None,
            refused: None,
            pause: PAUSE.0,
        }
    }

    /// What the session goes by.
    pub(super) fn own(&self) -> &Arc<Credential> {
        &self.own
    }

    /// What it goes by once all is answered, as far as the server takes it.
    pub(super) fn wanted(&self) -> &Credential {
        let wanted = self.held_back.as_ref().or(self.offered.as_ref());
        wanted.unwrap_or(&self.own)
    }

    /// The session is to go by another credential. What to send now.
    pub(super) fn want(&mut self, credential: Arc<Credential>) -> Option<Arc<Credential>> {
        let refused = self.refused.take();
        if !refused.is_some_and(|(_, refused)| refused.is_same(&credential)) {
            self.pause = PAUSE.0;
        }
        let Some(offered) = &self.offered else {
            return self.offer(credential);
        };
        self.held_back = (!offered.is_same(&credential)).then_some(credential);
        None
    }

    /// The server has answered. What to send now.
    pub(super) fn on_answer(&mut self, answer: Answer, now: Instant) -> Option<Arc<Credential>> {
        let offered = self.offered.take()?;
        match answer {
            Answer::Taken => {
                self.own = offered;
                self.pause = PAUSE.0;
            }
            Answer::NotNow if self.held_back.is_none() => {
                self.refused = Some((now + self.pause, offered));
                self.pause = (self.pause * 2).min(PAUSE.1);
            }
            Answer::NotNow | Answer::Refused => {}
        }
        let next = self.held_back.take()?;
        self.pause = PAUSE.0;
        self.offer(next)
    }

    /// When something is to be offered again.
    pub(super) fn again_at(&self) -> Option<Instant> {
        self.refused.as_ref().map(|(at, _)| *at)
    }

    /// That moment has come. What to send now.
    pub(super) fn again(&mut self) -> Option<Arc<Credential>> {
        let (_, refused) = self.refused.take()?;
        self.offer(refused)
    }

    fn offer(&mut self, credential: Arc<Credential>) -> Option<Arc<Credential>> {
        if self.own.is_same(&credential) {
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
        assert!(offers.wanted().is_same(&three));
        let next = offers.on_answer(Answer::Refused, now);
        assert_eq!(token(next).as_deref(), Some("3"));
        assert_eq!(token(Some(Arc::clone(offers.own()))).as_deref(), Some("1"));
        assert_eq!(token(offers.on_answer(Answer::Taken, now)), None);
        assert!(offers.own().is_same(&three));
        assert_eq!(
            token(offers.on_answer(Answer::Taken, now)),
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
        assert_eq!(token(offers.on_answer(Answer::Taken, now)), None);
        // Back to the first while the third is under way.
        let mut offers = Offers::new(Arc::clone(&one));
        offers.want(two);
        offers.want(Arc::clone(&one));
        assert_eq!(token(offers.on_answer(Answer::Refused, now)), None);
        assert!(offers.own().is_same(&one));
    }

    /// A token that reaches the client before the server's list is taken once the list has it.
    #[test]
    fn only_what_a_person_has_to_change_is_not_offered_again() {
        for reason in RefusalReason::ALL {
            let expected = match reason.finality() {
                Finality::Final => Answer::Refused,
                Finality::Passing | Finality::Pending => Answer::NotNow,
            };
            assert_eq!(Answer::refused(reason.name()), expected, "{reason:?}");
        }
        for reason in [
            "token_refused",
            "refresh_too_often",
            "auth_unclear",
            "of_a_newer_server",
        ] {
            assert_eq!(Answer::refused(reason), Answer::NotNow, "{reason}");
        }
    }

    /// As SIGHUP has it: the latest credential is wanted again.
    #[test]
    fn what_was_refused_is_offered_at_once_when_it_is_wanted_again() {
        for answer in [Answer::NotNow, Answer::Refused] {
            let [one, two] = credentials(["1", "2"]);
            let mut offers = Offers::new(one);
            offers.want(Arc::clone(&two));
            assert_eq!(token(offers.on_answer(answer, Instant::now())), None);
            assert!(!offers.wanted().is_same(&two));
            assert_eq!(token(offers.want(two)).as_deref(), Some("2"));
            assert_eq!(offers.again_at(), None);
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
                token(offers.on_answer(Answer::refused("auth_busy"), now)),
                None
            );
            assert_eq!(offers.again_at(), Some(now + seconds * SECOND));
            assert_eq!(token(offers.again()).as_deref(), Some("2"));
            assert_eq!(offers.again_at(), None);
        }
        offers.on_answer(Answer::NotNow, now);
        assert_eq!(token(offers.want(three)).as_deref(), Some("3"), "at once");
        offers.on_answer(Answer::NotNow, now);
        assert_eq!(offers.again_at(), Some(now + 5 * SECOND));
        offers.again();
        offers.on_answer(Answer::refused("runtime_differs"), now);
        assert_eq!(offers.again_at(), None, "that does not pass");
    }
}
