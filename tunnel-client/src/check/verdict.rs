//! From evidence and a failure to what is wrong and what to do about it, by a stable name.
//!
//! ```text
//!   evidence + failure ─▶ local     configuration, CA files, token file, client certificate
//!                         clock     this machine's clock
//!                         dial      names, connections, proxies
//!                         tls       certificates, versions, clocks, what is not TLS
//!                         response  refusals of a tunnel server, and responses of anything else
//!                         upstream  what routes lead to                      ─▶ Verdict
//! ```
//!
//! Pure functions, most of them tables with rows of a failure, a name, a sentence and advice. Scripts use the names, so
//! a name never changes; sentences and advice may. A sentence says what was observed before what it means, so that a
//! reader who knows better is not misled.

mod clock;
mod dial;
mod local;
mod response;
mod tls;
mod upstream;

use serde::Serialize;

pub(super) use self::clock::clock_off;
pub(super) use self::dial::{dial, step};
pub(super) use self::local::{config, identity, token_file, token_time, trust};
pub(super) use self::response::{conflict, ended, session};
pub(super) use self::upstream::{
    bad_request, no_grpc, not_reached, other_protocol, silent, unhealthy, unusable,
};

/// What is wrong, and what to do about it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Verdict {
    /// A stable name, for scripts.
    pub name: &'static str,
    /// What is wrong, in a sentence.
    pub sentence: String,
    /// What to do about it.
    pub advice: String,
}

impl Verdict {
    pub(super) fn new(
        name: &'static str,
        sentence: impl Into<String>,
        advice: impl Into<String>,
    ) -> Self {
        Self {
            name,
            sentence: sentence.into(),
            advice: advice.into(),
        }
    }
}

/// One verdict, or a table of them: `value; pattern => "name" "sentence" "advice" …`, where the texts may name variables
/// in braces.
macro_rules! verdicts {
    ($name:literal $sentence:literal $advice:literal) => {
        Verdict::new($name, format!($sentence), format!($advice))
    };
    ($value:expr; $($pattern:pat $(if $guard:expr)? =>
        $name:literal $sentence:literal $advice:literal)+) => {
        match $value { $($pattern $(if $guard)? => verdicts!($name $sentence $advice),)+ }
    };
}
use verdicts;

#[cfg(test)]
mod tests;
