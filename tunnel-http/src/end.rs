//! How an exchange ends, and the words for it in the access log, in spans and in filters of the live tail.

use tunnel_proto::problem::Problem;

/// How an exchange ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum End {
    /// The exchange was given up by the side that made the request. This is the end until another one is known.
    Cancelled,
    /// The program was made to stop at once, or its grace period was over.
    CutByStop,
    /// The response was sent to its end.
    Whole,
    /// The response was a long stream, ended in order before it was whole, because its tunnel or the program leaves.
    Moved,
    /// It failed. Boxed, since a problem is rare and larger than everything else.
    Problem(Box<Problem>),
}

impl End {
    /// The words of ends that are no problems.
    pub const WORDS: [&'static str; 4] = ["whole", "moved", "cancelled", "cut_by_stop"];

    /// The word of the log line: of a problem its reason.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::Cancelled => "cancelled",
            Self::CutByStop => "cut_by_stop",
            Self::Whole => "whole",
            Self::Moved => "moved",
            Self::Problem(problem) => problem.reason().name(),
        }
    }

    /// Why it failed, if it did.
    #[must_use]
    pub fn problem(&self) -> Option<&Problem> {
        match self {
            Self::Problem(problem) => Some(problem),
            Self::Cancelled | Self::CutByStop | Self::Whole | Self::Moved => None,
        }
    }
}
