//! Reasons for the end of a session, as WebSocket close codes, and what the tunnel client does after each.
//!
//! Codes 4000-4999 are for private use (RFC 6455 section 7.4.2). Both ends use this one table.

/// Why one end closed a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum CloseReason {
    /// The tunnel client is shutting down and its exchanges are complete.
    Left,
    /// The tunnel server is draining and the exchanges of this session are complete.
    Drained,
    /// A newer instance holds the runtime.
    Superseded,
    /// The credential of this session was revoked or no longer permits it.
    Revoked,
    /// The other end broke the protocol.
    ProtocolError,
    /// Nothing was received from the other end for too long.
    Dead,
    /// The server has no room for this session now.
    Overloaded,
    /// An internal error of the sender.
    Internal,
    /// The credential of this session expired and was not renewed.
    Expired,
    /// An older instance holds the runtime, and the server is configured to keep it.
    Conflict,
    /// The tunnel client answers pings but accepts no exchange.
    Wedged,
    /// An operator of the server ended the session.
    Disconnected,
    /// Any other code, for instance one sent by a proxy on the path (1001, 1011, …).
    Other(u16),
}

/// The code for a connection that broke without a close frame; never sent (RFC 6455 section 7.1.5).
const ABNORMAL: u16 = 1006;

/// What a tunnel client does when a session has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AfterClose {
    /// Dial again at once, after only a small random delay.
    Redial,
    /// Dial again after the usual, growing delay.
    Wait,
    /// Do not dial again unless configured to: an operator has to act.
    Stop,
}

impl CloseReason {
    /// Whether an end planned it: for a stop, a move or a renewal.
    #[must_use]
    pub fn is_planned(self) -> bool {
        matches!(self, Self::Left | Self::Drained)
    }

    /// The connection broke without a close frame.
    pub const CONNECTION_LOST: Self = Self::Other(ABNORMAL);

    /// One reason of each name.
    pub const ALL: [Self; 14] = [
        Self::Left,
        Self::Drained,
        Self::Superseded,
        Self::Revoked,
        Self::ProtocolError,
        Self::Dead,
        Self::Overloaded,
        Self::Internal,
        Self::Expired,
        Self::Conflict,
        Self::Wedged,
        Self::Disconnected,
        Self::CONNECTION_LOST,
        Self::Other(1000),
    ];

    /// The close code on the wire.
    #[must_use]
    pub fn code(self) -> u16 {
        match self {
            Self::Left => 4000,
            Self::Drained => 4001,
            Self::Superseded => 4002,
            Self::Revoked => 4003,
            Self::ProtocolError => 4004,
            Self::Dead => 4005,
            Self::Overloaded => 4006,
            Self::Internal => 4007,
            Self::Expired => 4008,
            Self::Conflict => 4009,
            Self::Wedged => 4010,
            Self::Disconnected => 4011,
            Self::Other(code) => code,
        }
    }

    /// The reason with this close code.
    #[must_use]
    pub fn from_code(code: u16) -> Self {
        match code {
            4000 => Self::Left,
            4001 => Self::Drained,
            4002 => Self::Superseded,
            4003 => Self::Revoked,
            4004 => Self::ProtocolError,
            4005 => Self::Dead,
            4006 => Self::Overloaded,
            4007 => Self::Internal,
            4008 => Self::Expired,
            4009 => Self::Conflict,
            4010 => Self::Wedged,
            4011 => Self::Disconnected,
            other => Self::Other(other),
        }
    }

    /// The name in logs, metrics and the text of the close frame.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Left => "left",
            Self::Drained => "drained",
            Self::Superseded => "superseded",
            Self::Revoked => "revoked",
            Self::ProtocolError => "protocol_error",
            Self::Dead => "dead",
            Self::Overloaded => "overloaded",
            Self::Internal => "internal",
            Self::Expired => "expired",
            Self::Conflict => "conflict",
            Self::Wedged => "wedged",
            Self::Disconnected => "disconnected",
            Self::Other(ABNORMAL) => "connection_lost",
            Self::Other(_) => "other",
        }
    }

    /// What the tunnel client does next.
    #[must_use]
    pub fn after(self) -> AfterClose {
        match self {
            Self::Drained | Self::Dead | Self::Left | Self::Wedged => AfterClose::Redial,
            // For `Expired`: the token's file may have been replaced in the meantime.
            Self::ProtocolError
            | Self::Overloaded
            | Self::Internal
            | Self::Expired
            | Self::Conflict
            | Self::Disconnected
            | Self::Other(_) => AfterClose::Wait,
            Self::Superseded | Self::Revoked => AfterClose::Stop,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_round_trips() {
        for code in 1000..=4999 {
            let reason = CloseReason::from_code(code);
            assert_eq!(reason.code(), code);
            assert!(
                CloseReason::ALL
                    .iter()
                    .any(|listed| listed.name() == reason.name())
            );
        }
    }

    #[test]
    fn only_a_lost_permission_stops_the_client() {
        let stopping: Vec<u16> = (4000..=4020)
            .filter(|code| CloseReason::from_code(*code).after() == AfterClose::Stop)
            .collect();
        assert_eq!(stopping, [4002, 4003]);
    }
}
