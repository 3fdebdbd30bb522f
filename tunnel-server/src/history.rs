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
pub struct History(Mutex<Remembered>);

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

impl History {
    /// What is remembered now.
    #[must_use]
    pub fn get(&self) -> Remembered {
        self.0.lock().clone()
    }

    /// A session has ended.
    pub(crate) fn on_session_end(&self, ended: EndedSession) {
        self.0.lock().session_end = Some(Arc::new(ended));
    }

    /// A tunnel client was refused. Returns whether that is news, which it is not again and again while the client dials
    /// and is refused as before.
    pub(crate) fn on_refusal(&self, refused: RefusedDial) -> bool {
        let refused = Arc::new(refused);
        let before = self.0.lock().refusal.replace(refused.clone());
        before.is_none_or(|before| {
            (&refused.reason, &refused.credential) != (&before.reason, &before.credential)
                || before.at.age() >= REPEATED_WITHIN
        })
    }

    /// An exchange was answered with a problem.
    pub(crate) fn on_problem(&self, reason: Reason) {
        self.0.lock().problem = Some((reason, Timestamp::now()));
    }

    /// Series of the runtime end, which have counted this.
    pub(crate) fn on_series_end(&self, carried: Carried) {
        let total = &mut self.0.lock().carried;
        *total = *total + carried;
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

    #[test]
    fn a_refusal_is_news_until_it_repeats_itself() {
        let history = History::default();
        let now = Timestamp::now();
        assert!(history.on_refusal(refused("token_expired", now)));
        assert!(!history.on_refusal(refused("token_expired", now)));
        assert!(history.on_refusal(refused("credential_revoked", now)));
        let long_ago = Timestamp::from(SystemTime::now() - REPEATED_WITHIN);
        history.on_refusal(refused("credential_revoked", long_ago));
        assert!(history.on_refusal(refused("credential_revoked", now)));
        let last = history.get().refusal.unwrap();
        assert_eq!((&*last.reason, last.at), ("credential_revoked", now));
    }
}
