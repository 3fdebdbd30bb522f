//! Control messages: what the two ends tell each other beside the exchanges.
//!
//! Each is one JSON object in one WebSocket text message, told apart by its `type`. Unknown types
//! and unknown keys are ignored, so that the two ends may differ in version. A control message
//! never asks the tunnel client to reach an address, and never carries anything of an exchange.

mod routes;

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
    },
    /// First message of the tunnel server on a session that only checks the way, in the place of
    /// `welcome`: the echo has come through.
    Checked {
        /// Whose the runtime is that the credential names.
        account: String,
        /// The runtime's label.
        runtime: String,
        /// The session's id at the server, for logs at both ends.
        session: String,
        /// Version of the tunnel server program.
        version: String,
        /// Instance id of who holds the runtime now, if anybody does.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        holder: Option<String>,
        /// Why another instance would not get the runtime now, if it would not.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        conflict: Option<Refusal>,
        /// Time until the credential runs out, in milliseconds; none when it never does.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        expires_in_ms: Option<u64>,
    },
    /// The sender leaves. A tunnel client takes no new exchange on this session and ends it when the
    /// open ones are done. A tunnel server wants the client to have another session, and ends this one
    /// by itself when nothing needs it any more.
    Drain {
        /// From a server: time over which the client should spread its redial, in milliseconds.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        spread_ms: Option<u64>,
    },
    /// From a tunnel client that was told to drain: it has another session, on which it would rather
    /// be asked. This one stands until the tunnel server ends it.
    Moved,
    /// The sender has asked whether the other end lives, and hears nothing; or it hears something again. Where
    /// only one direction of the path is lost, the other end cannot know this by itself.
    Unheard {
        /// Whether something is heard again.
        is_over: bool,
    },
    /// A newer instance holds the runtime; this session takes no new exchange.
    Superseded {
        /// Instance id of the newer holder.
        instance: String,
    },
    /// The credential is no longer good; the session ends.
    Revoked {
        /// Why, for a person.
        #[serde(default)]
        detail: String,
    },
    /// The credential of this session runs out: from the tunnel server, which takes a newer one by
    /// `refresh-token` until then, and a little longer.
    Expiring {
        /// Time until it does, in milliseconds; 0 when it has.
        in_ms: u64,
    },
    /// A newer credential for this session, from the tunnel client.
    RefreshToken {
        /// The bearer token.
        token: String,
    },
    /// The tunnel server's answer to `refresh-token`: the session goes on by it.
    Refreshed {
        /// Time until it runs out, in milliseconds; none when it never does.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        expires_in_ms: Option<u64>,
    },
    /// The other answer to `refresh-token`: the session goes on by the credential before, for as long
    /// as that is good.
    RefreshRefused {
        /// The name of a [`RefusalReason`](crate::refusal::RefusalReason), which may be one that only the
        /// sender knows.
        reason: String,
        /// Why, for a person.
        #[serde(default)]
        detail: String,
    },
    /// The routes of a tunnel client, for people to look at: after the welcome, and when they change.
    Routes(RoutesSummary),
    /// Any kind that this version does not know.
    #[serde(other)]
    Unknown,
}

/// A text message that is no control message.
#[derive(Debug, thiserror::Error)]
pub enum ControlError {
    /// Longer than [`limits::CONTROL_BYTES`].
    #[error("control message of {0} bytes, at most {max} are allowed", max = limits::CONTROL_BYTES)]
    TooLarge(usize),
    /// Not a JSON object with a `type`, or a known type with wrong fields.
    #[error("control message that cannot be read: {0}")]
    Malformed(#[source] serde_json::Error),
}

impl Control {
    /// Reads the text of one message.
    ///
    /// # Errors
    /// When it is too large, is not JSON, or lacks what its type demands.
    pub fn decode(text: &str) -> Result<Self, ControlError> {
        if text.len() > limits::CONTROL_BYTES {
            return Err(ControlError::TooLarge(text.len()));
        }
        serde_json::from_str(text).map_err(ControlError::Malformed)
    }

    /// The text of one message.
    #[must_use]
    pub fn encode(&self) -> String {
        // Serialising plain strings and numbers into memory has no way to fail.
        serde_json::to_string(self).unwrap_or_default()
    }

    /// The message's type as it stands on the wire.
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
            Self::Unknown => "unknown",
        }
    }
}

/// Names the kind only: a token must not reach a log by way of `{:?}`.
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
    fn unknown_kinds_and_keys_are_ignored() {
        let unknown = Control::decode(r#"{"type":"sing","song":1}"#).unwrap();
        assert_eq!(unknown, Control::Unknown);
        let more = Control::decode(r#"{"type":"drain","colour":"red"}"#).unwrap();
        assert_eq!(more, Control::Drain { spread_ms: None });
    }

    #[test]
    fn a_known_kind_without_its_fields_is_refused() {
        assert!(matches!(
            Control::decode(r#"{"type":"refresh-token"}"#),
            Err(ControlError::Malformed(_))
        ));
    }

    #[test]
    fn the_token_is_not_printed() {
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
                Control::Welcome { runtime: "a-b".into(), session: session.clone(), version: version.clone() },
                Control::Checked {
                    account: "a".into(),
                    runtime: "a-b".into(),
                    session: session.clone(),
                    version: version.clone(),
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
