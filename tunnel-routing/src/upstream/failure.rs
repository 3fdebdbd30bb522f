//! What went wrong between the client and an upstream, as the problem that the platform client is
//! told.

use std::error::Error;
use std::io;

use tunnel_http::received::ReceiveError;
use tunnel_proto::exchange::{AsProblem, BodyError};
use tunnel_proto::problem::{Hop, Problem, Reason};

use super::http1::{ContentError, NoAnswer};

const BREAKS_HTTP: &str = "the upstream's answer breaks HTTP";
const NO_ANSWER: &str = "the upstream ended the connection before it answered";

/// A response's content that broke off, or failed otherwise.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct UpstreamBodyError(Problem);

impl AsProblem for UpstreamBodyError {
    fn as_problem(&self) -> Problem {
        self.0.clone()
    }
}

impl From<Problem> for UpstreamBodyError {
    fn from(problem: Problem) -> Self {
        Self(problem)
    }
}

impl From<ReceiveError> for UpstreamBodyError {
    fn from(error: ReceiveError) -> Self {
        let reason = match &error {
            ReceiveError::Failed(error) if is_invalid(error) => Reason::ResponseInvalid,
            ReceiveError::Failed(_) | ReceiveError::Reset => Reason::ResponseIncomplete,
        };
        Self(upstream(
            reason,
            "the upstream's response broke off",
            &error,
        ))
    }
}

impl From<ContentError> for UpstreamBodyError {
    fn from(error: ContentError) -> Self {
        if let ContentError::Request(error) = &error {
            return Self(no_content(error));
        }
        let what = "the upstream's response broke off";
        Self(upstream(Reason::ResponseIncomplete, what, &error))
    }
}

impl From<io::Error> for UpstreamBodyError {
    fn from(error: io::Error) -> Self {
        let what = "the upstream's upgraded connection broke off";
        Self(upstream(Reason::ResponseIncomplete, what, &error))
    }
}

/// A request that got no response over HTTP/2, and whose content has not failed.
pub(super) fn no_response(error: &hyper::Error) -> Problem {
    if is_invalid(error) {
        return upstream(Reason::ResponseInvalid, BREAKS_HTTP, error);
    }
    upstream(Reason::ConnectionTerminated, NO_ANSWER, error)
}

/// A request that got no response over HTTP/1.1.
pub(super) fn no_answer(error: &NoAnswer) -> Problem {
    match error {
        NoAnswer::Content(error) => no_content(error),
        NoAnswer::Head(error) => upstream(Reason::ResponseInvalid, BREAKS_HTTP, error),
        NoAnswer::Io(_) | NoAnswer::Ended => {
            upstream(Reason::ConnectionTerminated, NO_ANSWER, error)
        }
    }
}

/// The platform client, or the tunnel, ended the request: the upstream is not to blame.
pub(super) fn no_content(error: &BodyError) -> Problem {
    match error {
        BodyError::Aborted(problem) => problem.clone(),
        _ => Problem::new(Hop::Client, Reason::RequestIncomplete, error.to_string()),
    }
}

/// Whether the upstream has surely done nothing about a request (RFC 9113 section 8.7): it refused
/// the stream, or began to leave before the stream came.
pub(super) fn is_untouched(error: &hyper::Error) -> bool {
    source::<h2::Error>(error).is_some_and(|error| {
        let has_left = error.is_go_away() && error.reason() == Some(h2::Reason::NO_ERROR);
        error.is_remote() && (has_left || error.reason() == Some(h2::Reason::REFUSED_STREAM))
    })
}

/// Whether the connection is lost for all who use it, be it broken or left by the upstream, rather
/// than one request.
pub(super) fn is_lost(error: &hyper::Error) -> bool {
    let is_left = |error: &h2::Error| error.is_go_away() && error.is_remote();
    // hyper takes the error of the connection below out of that of HTTP/2.
    source::<io::Error>(error).is_some() || source::<h2::Error>(error).is_some_and(is_left)
}

/// The upstream broke the protocol, rather than the connection.
fn is_invalid(error: &hyper::Error) -> bool {
    let of_http2 = |error: &h2::Error| {
        // What it resets, or ends in order, is its decision; the rest is what ours had to end.
        !error.is_io() && !error.is_remote() && error.reason() != Some(h2::Reason::NO_ERROR)
    };
    error.is_parse() || source::<h2::Error>(error).is_some_and(of_http2)
}

fn upstream(reason: Reason, what: &str, error: &(dyn Error + 'static)) -> Problem {
    let mut detail = format!("{what}: {error}");
    let mut cause = error.source();
    while let Some(error) = cause {
        detail.push_str(": ");
        detail.push_str(&error.to_string());
        cause = error.source();
    }
    Problem::new(Hop::Client, reason, detail)
}

fn source<E: Error + 'static>(error: &hyper::Error) -> Option<&E> {
    let mut cause = error.source();
    while let Some(error) = cause {
        if let Some(found) = error.downcast_ref() {
            return Some(found);
        }
        cause = error.source();
    }
    None
}
