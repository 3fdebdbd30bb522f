//! Control messages: announcements between the two ends, separate from the exchanges.
//!
//! Each is one JSON object in one WebSocket text message, identified by its `type`. Unknown types and
//! unknown keys are ignored, so that the two ends may differ in version. A control message never asks the
//! tunnel client to reach an address, and never carries anything of an exchange.

mod routes;

use std::time::Duration;

use serde::{Deserialize, Serialize};

pub use self::routes::{RouteState, RouteSummary, RoutesSummary};
use crate::{handshake::Refusal, limits};

/// One control message.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "kebab-case")]
pub enum Control {
    /// First message of the tunnel client.
    Hello {
        /// Version of the tunnel client program.
        version: String,
    },
    /// First message of the tunnel server; the session is usable from here on.
    Welcome {
        /// The runtime's label.
        runtime: String,
        /// The session's id at the server, for logs at both ends.
        session: String,
        /// Version of the tunnel server program.
        version: String,
        /// Name of the server node, if it is one of several.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        node: Option<String>,
        /// Where platform clients reach the runtime, for people.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        url: Option<String>,
    },
    /// First message of the tunnel server on a session that only checks the path, instead of `welcome`: the
    /// probe was accepted.
    Checked {
        /// The account of the runtime that the credential names.
        account: String,
        /// The runtime's label.
        runtime: String,
        /// The session's id at the server, for logs at both ends.
        session: String,
        /// Version of the tunnel server program.
        version: String,
        /// Name of the server node, if it is one of several.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        node: Option<String>,
        /// Instance id of the current holder of the runtime, if there is one.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        holder: Option<String>,
        /// Why another instance would be refused the runtime now, if it would be.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        conflict: Option<Refusal>,
        /// Time until the credential expires, in milliseconds; absent if it never does.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        expires_in_ms: Option<u64>,
    },
    /// The sender leaves. A tunnel client takes no new exchange on this session and ends it when the open
    /// ones are complete. A tunnel server asks the client to open another session, and ends this one itself
    /// once it is no longer needed.
    Drain {
        /// From a server: the range, in milliseconds, from which the client should choose its random delay
        /// before it dials again.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        spread_ms: Option<u64>,
    },
    /// From a tunnel client that has received `drain`: it has another session, which the server should
    /// prefer. This one stays until the tunnel server ends it.
    Moved,
    /// The sender has pinged the other end and receives nothing, or receives something again. If only one
    /// direction of the path is lost, the other end cannot detect this itself.
    Unheard {
        /// Whether something is received again.
        is_over: bool,
    },
    /// A newer instance holds the runtime; this session takes no new exchange.
    Superseded {
        /// Instance id of the newer holder.
        instance: String,
    },
    /// The credential is no longer valid; the session ends.
    Revoked {
        /// Why, for a person.
        #[serde(default)]
        detail: String,
    },
    /// From the tunnel server: the credential of this session expires. The server accepts a newer one by
    /// `refresh-token` until then, and for a grace period after.
    Expiring {
        /// Time until it expires, in milliseconds; 0 if it has.
        in_ms: u64,
    },
    /// A newer credential for this session, from the tunnel client.
    RefreshToken {
        /// The bearer token.
        token: String,
    },
    /// The tunnel server has accepted `refresh-token`: the session uses the new credential.
    Refreshed {
        /// Time until it expires, in milliseconds; absent if it never does.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        expires_in_ms: Option<u64>,
    },
    /// The tunnel server has refused `refresh-token`: the session keeps the earlier credential for as long
    /// as that is valid.
    RefreshRefused {
        /// The name of a [`RefusalReason`](crate::refusal::RefusalReason), possibly one that is unknown to
        /// this version.
        reason: String,
        /// Why, for a person.
        #[serde(default)]
        detail: String,
    },
    /// The routes of a tunnel client, for display: sent after the welcome, and when they change.
    Routes(RoutesSummary),
    /// Only on a link between two server nodes: what the sender knows of the directory that they share. The text is
    /// theirs.
    Node {
        /// The report.
        report: String,
    },
    /// Any type that is unknown to this version.
    #[serde(other)]
    Unknown,
}

/// Why a text message is not a valid control message.
#[derive(Debug, thiserror::Error)]
pub enum ControlError {
    /// Longer than [`limits::CONTROL_BYTES`].
    #[error("control message of {0} bytes, at most {max} are allowed", max = limits::CONTROL_BYTES)]
    TooLarge(usize),
    /// Not a JSON object with a `type`, or a known type with wrong fields.
    #[error("unreadable control message: {0}")]
    Malformed(#[source] serde_json::Error),
}

/// A time in whole milliseconds, as messages have it.
#[must_use]
pub fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

impl Control {
    /// Reads the text of one message.
    ///
    /// # Errors
    /// When it is too large, is not JSON, or lacks a field that its type requires.
    pub fn decode(text: &str) -> Result<Self, ControlError> {
        if text.len() > limits::CONTROL_BYTES {
            return Err(ControlError::TooLarge(text.len()));
        }
        serde_json::from_str(text).map_err(ControlError::Malformed)
    }

    /// The text of one message.
    #[must_use]
    pub fn encode(&self) -> String {
        // Serialising plain strings and numbers into memory cannot fail.
        serde_json::to_string(self).unwrap_or_default()
    }

    /// The value of `type` in the message.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::Hello { .. } => "hello",
            Self::Welcome { .. } => "welcome",
            Self::Checked { .. } => "checked",
            Self::Drain { .. } => "drain",
            Self::Moved => "moved",
            Self::Unheard { .. } => "unheard",
            Self::Superseded { .. } => "superseded",
            Self::Revoked { .. } => "revoked",
            Self::Expiring { .. } => "expiring",
            Self::RefreshToken { .. } => "refresh-token",
            Self::Refreshed { .. } => "refreshed",
            Self::RefreshRefused { .. } => "refresh-refused",
            Self::Routes(_) => "routes",
            Self::Node { .. } => "node",
            Self::Unknown => "unknown",
        }
    }
}

/// Shows only the type, so that no token reaches a log.
impl std::fmt::Debug for Control {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Control({})", self.name())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn unknown_types_and_keys_are_ignored() {
        let unknown = Control::decode(r#"{"type":"sing","song":1}"#).unwrap();
        assert_eq!(unknown, Control::Unknown);
        let more = Control::decode(r#"{"type":"drain","colour":"red"}"#).unwrap();
        assert_eq!(more, Control::Drain { spread_ms: None });
    }

    #[test]
    fn a_known_type_without_its_fields_is_refused() {
        assert!(matches!(
            Control::decode(r#"{"type":"refresh-token"}"#),
            Err(ControlError::Malformed(_))
        ));
    }

    #[test]
    fn debug_output_does_not_contain_the_token() {
        let control = Control::RefreshToken {
            token: "secret".into(),
        };
        assert!(!format!("{control:?}").contains("secret"));
    }

    proptest! {
        #[test]
        fn round_trip(version in ".*", session in ".*", spread in proptest::option::of(any::<u64>())) {
            for control in [
                Control::Hello { version: version.clone() },
                Control::Welcome {
                    runtime: "a-b".into(),
                    session: session.clone(),
                    version: version.clone(),
                    node: spread.map(|_| version.clone()),
                    url: spread.map(|_| session.clone()),
                },
                Control::Checked {
                    account: "a".into(),
                    runtime: "a-b".into(),
                    session: session.clone(),
                    version: version.clone(),
                    node: spread.map(|_| session.clone()),
                    holder: spread.map(|_| session.clone()),
                    conflict: spread.map(|_| Refusal {
                        reason: session.clone(),
                        detail: version.clone(),
                        fatal: false,
                    }),
                    expires_in_ms: spread,
                },
                Control::Drain { spread_ms: spread },
                Control::Moved,
                Control::Unheard { is_over: spread.is_some() },
                Control::Refreshed { expires_in_ms: spread },
                Control::RefreshRefused { reason: session.clone(), detail: version.clone() },
            ] {
                prop_assert_eq!(Control::decode(&control.encode()).unwrap(), control);
            }
        }

        #[test]
        fn damaged_input_never_panics(text in ".{0,200}") {
            let _ = Control::decode(&text);
        }
    }
}
