//! From what was seen to what is wrong and what to do about it, by name.
//!
//! ```text
//!   facts + where the way ended ─▶ local     configuration, token and certificate files
//!                                  way       names, connections, proxies
//!                                  tls       certificates, versions, what is no TLS
//!                                  answer    refusals of a tunnel server, and answers of anybody else
//!                                  upstream  what routes lead to            ─▶ Verdict
//! ```
//!
//! Pure: the same facts have the same verdict. A name never changes, since scripts go by it; the sentences
//! may. They say what was seen before what it means, so that whoever knows better is not misled.

mod answer;
mod local;
mod tls;
mod upstream;
mod way;

use serde::Serialize;

use super::facts::{Facts, Trouble};

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

/// What this trouble means, as far as all that was seen tells.
pub(super) fn verdict(facts: &Facts, trouble: &Trouble) -> Verdict {
    match trouble {
        Trouble::Config(faults) => local::config(faults),
        Trouble::Trust(text) => local::trust(text),
        Trouble::Token(trouble) => local::token(trouble),
        Trouble::Identity(text) => local::identity(text),
        Trouble::TimedOut(leg, act, limit) => way::timed_out(facts, *leg, *act, *limit),
        Trouble::Unresolved { leg, host, text } => way::unresolved(facts, *leg, host, text),
        Trouble::Unreached { leg, tried } => way::unreached(facts, *leg, tried),
        Trouble::Proxy(trouble) => way::proxy(facts, trouble),
        Trouble::Certificate(leg, error) => tls::certificate(facts, *leg, error),
        Trouble::Tls(leg, trouble) => tls::failed(facts, *leg, trouble),
        Trouble::NoAnswer(text) => answer::none(facts, text),
        Trouble::Refused => answer::refused(facts),
        Trouble::NotATunnel => answer::not_a_tunnel(facts),
        Trouble::NoEcho(limit) => answer::no_echo(facts, *limit),
        Trouble::Ended(reason) => answer::ended(facts, *reason),
        Trouble::Conflict(refusal) => answer::conflict(refusal),
        Trouble::TokenTime => local::token_time(facts),
        Trouble::Clock => tls::clock_off(facts, "this machine's clock is not the server's"),
        Trouble::Upstream(trouble) => upstream::failed(trouble),
    }
}

#[cfg(test)]
mod tests;
