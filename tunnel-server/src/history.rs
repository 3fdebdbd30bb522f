//! What is remembered of a runtime, whether it is online or not: why it is offline, and what it has carried.
//!
//! Kept in memory, from the start of the server or from the moment at which the runtime became known. Only the last of
//! each kind is kept.

use std::{ops::Add, sync::Arc, time::Duration};

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tunnel_proto::problem::Reason;

use crate::{auth::CredentialView, timestamp::Timestamp};

/// What is remembered of a runtime.
#[derive(Debug, Default)]
pub struct History(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    remembered: Remembered,
    /// Whether the last refused client has proven its credential.
    is_proven: bool,
    /// When a refusal was news.
    reported: Option<Timestamp>,
    /// Refusals since then.
    left_out: u64,
}

/// What is remembered of a runtime, at one moment.
#[derive(Debug, Clone, Default)]
pub struct Remembered {
    /// How the last session has ended.
    pub session_end: Option<Arc<EndedSession>>,
    /// The last tunnel client that was refused.
    pub refusal: Option<Arc<RefusedDial>>,
    /// The last problem that an exchange was answered with.
    pub problem: Option<(Reason, Timestamp)>,
    /// What was carried by series that have ended.
    pub carried: Carried,
}

/// A session that has ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EndedSession {
    /// When it ended.
    pub at: Timestamp,
    /// Its id, as in the logs of both ends.
    pub session: String,
    /// Why it ended, as a stable name.
    pub reason: String,
    /// Why it ended, for people.
    pub detail: String,
    /// The address that it was dialled from.
    pub peer: String,
    /// Version of the tunnel client.
    pub client_version: String,
}

/// A tunnel client that was refused. A field that is absent is unknown.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RefusedDial {
    /// When it was refused.
    pub at: Timestamp,
    /// Why, as a stable name.
    pub reason: String,
    /// Why, for people, and what to do about it.
    pub detail: String,
    /// The address that it dialled from.
    pub peer: String,
    /// The credential that it presented.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub credential: Option<CredentialView>,
    /// Its instance.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub instance: Option<String>,
    /// Version of the tunnel client.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client_version: Option<String>,
}

/// What a runtime has carried.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Carried {
    /// Answered requests.
    pub requests: u64,
    /// Bytes of request bodies sent to it.
    pub bytes_in: u64,
    /// Bytes of response bodies received from it.
    pub bytes_out: u64,
}

/// How long a refusal like the last one is no news.
const REPEATED_WITHIN: Duration = Duration::from_secs(60);

/// Least time between two refusals that are news, whatever their reasons: a client chooses what is wrong with its dial.
const NEWS_EACH: Duration = Duration::from_secs(10);

/// How long the refusal of a client that has proven its credential is kept while others only name its id: the time in which
/// its owner looks for it.
const PROVEN_KEPT: Duration = Duration::from_secs(60 * 60);

impl History {
    /// What is remembered now.
    #[must_use]
    pub fn get(&self) -> Remembered {
        self.0.lock().remembered.clone()
    }

    /// A session has ended.
    pub(crate) fn on_session_end(&self, ended: EndedSession) {
        self.0.lock().remembered.session_end = Some(Arc::new(ended));
    }

    /// A tunnel client was refused; `is_proven` says whether it has shown the secret of its credential, and not only its id.
    /// If that is news, returns how many refusals before it were not: the client dials and is refused as before, or the last
    /// news was a moment ago.
    pub(crate) fn on_refusal(&self, refused: RefusedDial, is_proven: bool) -> Option<u64> {
        let mut state = self.0.lock();
        let before = state.remembered.refusal.as_ref();
        let is_new = before.is_none_or(|before| {
            (&refused.reason, &refused.credential) != (&before.reason, &before.credential)
                || before.at.age() >= REPEATED_WITHIN
        });
        let is_kept = !is_proven
            && state.is_proven
            && before.is_some_and(|before| before.at.age() < PROVEN_KEPT);
        if !is_kept {
            state.remembered.refusal = Some(Arc::new(refused));
            state.is_proven = is_proven;
        }
        let is_allowed = state.reported.is_none_or(|at| at.age() >= NEWS_EACH);
        if !(is_new && is_allowed) {
            state.left_out += 1;
            return None;
        }
        state.reported = Some(Timestamp::now());
        Some(std::mem::take(&mut state.left_out))
    }

    /// An exchange was answered with a problem.
    pub(crate) fn on_problem(&self, reason: Reason) {
        self.0.lock().remembered.problem = Some((reason, Timestamp::now()));
    }

    /// Series of the runtime end, which have counted this.
    pub(crate) fn on_series_end(&self, carried: Carried) {
        let mut state = self.0.lock();
        state.remembered.carried = state.remembered.carried + carried;
    }
}

impl Add for Carried {
    type Output = Self;

    fn add(self, more: Self) -> Self {
        Self {
            requests: self.requests + more.requests,
            bytes_in: self.bytes_in + more.bytes_in,
            bytes_out: self.bytes_out + more.bytes_out,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use super::*;

    fn refused(reason: &str, at: Timestamp) -> RefusedDial {
        RefusedDial {
            at,
            reason: reason.to_owned(),
            detail: String::new(),
            peer: "192.0.2.1:1".to_owned(),
            credential: None,
            instance: None,
            client_version: None,
        }
    }

    fn ago(time: Duration) -> Timestamp {
        Timestamp::from(SystemTime::now() - time)
    }

    /// As if the last news were so long ago.
    fn report_at(history: &History, time: Duration) {
        history.0.lock().reported = Some(ago(time));
    }

    #[test]
    fn a_refusal_is_news_until_it_repeats_itself() {
        let history = History::default();
        let now = Timestamp::now();
        let on_refusal = |reason, at| {
            report_at(&history, NEWS_EACH);
            history.on_refusal(refused(reason, at), true)
        };
        assert_eq!(on_refusal("token_expired", now), Some(0));
        assert_eq!(on_refusal("token_expired", now), None);
        assert_eq!(on_refusal("credential_revoked", now), Some(1));
        on_refusal("credential_revoked", ago(REPEATED_WITHIN));
        assert_eq!(on_refusal("credential_revoked", now), Some(1));
        let last = history.get().refusal.unwrap();
        assert_eq!((&*last.reason, last.at), ("credential_revoked", now));
    }

    #[test]
    fn a_client_with_another_fault_each_time_makes_no_more_news() {
        let history = History::default();
        let reasons = ["token_refused", "token_malformed"];
        let mut dial = |number: usize| {
            history.on_refusal(refused(reasons[number % 2], Timestamp::now()), false)
        };
        let news = (0..1_000).filter_map(&mut dial).count();
        assert_eq!(news, 1);
        report_at(&history, NEWS_EACH);
        assert_eq!(dial(1_000), Some(999));
    }

    #[test]
    fn whoever_knows_only_an_id_hides_no_refusal_of_its_owner() {
        let history = History::default();
        let of_owner = refused("token_expired", Timestamp::now());
        history.on_refusal(of_owner.clone(), true);
        history.on_refusal(refused("token_refused", Timestamp::now()), false);
        assert_eq!(history.get().refusal.as_deref(), Some(&of_owner));
        history.on_refusal(refused("token_expired", ago(PROVEN_KEPT)), true);
        history.on_refusal(refused("token_refused", Timestamp::now()), false);
        assert_eq!(history.get().refusal.unwrap().reason, "token_refused");
    }
}
