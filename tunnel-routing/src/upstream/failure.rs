//! Errors between the client and an upstream, as problems for the platform client.

use std::error::Error;
use std::io;

use tunnel_http::http2::GoAway;
use tunnel_proto::exchange::AsProblem;
use tunnel_proto::problem::{Hop, Problem, Reason};

use super::http1::{ContentError, ResponseError};
use super::outgoing_body::content_problem;

const BREAKS_HTTP: &str = "the upstream's answer breaks HTTP";
const LEFT: &str = "the upstream ended a connection of many requests because of one of them";
const NO_ANSWER: &str = "the upstream ended the connection before it answered";

/// The content of a response broke off or failed.
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

impl From<h2::Error> for UpstreamBodyError {
    fn from(error: h2::Error) -> Self {
        let reason = if is_invalid(&error) {
            Reason::ResponseInvalid
        } else {
            Reason::ResponseIncomplete
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
            return Self(content_problem(error));
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

/// The problem of a request without a response over HTTP/2, whose content has not failed.
/// `left` is why the upstream has left the connection, if it has.
pub(super) fn no_response(error: &h2::Error, left: Option<&GoAway>) -> Problem {
    if is_invalid(error) {
        return upstream(Reason::ResponseInvalid, BREAKS_HTTP, error);
    }
    match left {
        Some(GoAway { code, debug }) if *code != 0 => {
            let detail = format!("{LEFT}: {} {debug}", h2::Reason::from(*code));
            Problem::new(Hop::Client, Reason::ConnectionTerminated, detail)
        }
        _ => upstream(Reason::ConnectionTerminated, NO_ANSWER, error),
    }
}

/// The problem of a request without a response over HTTP/1.1.
pub(super) fn response_error(error: &ResponseError) -> Problem {
    match error {
        ResponseError::Content(error) => content_problem(error),
        ResponseError::Head(error) => upstream(Reason::ResponseInvalid, BREAKS_HTTP, error),
        ResponseError::Io(_) | ResponseError::Ended => {
            upstream(Reason::ConnectionTerminated, NO_ANSWER, error)
        }
    }
}

/// Whether the upstream has certainly not acted on the request (RFC 9113 sections 6.8 and 8.7): it refused the stream, or
/// its GOAWAY says that it has seen none of it. `h2` gives the error of a GOAWAY to the streams above its last one alone.
pub(super) fn is_untouched(error: &h2::Error) -> bool {
    error.is_remote() && (error.is_go_away() || error.reason() == Some(h2::Reason::REFUSED_STREAM))
}

/// Whether the whole connection is lost, broken or left by the upstream, and not only one request.
pub(super) fn is_lost(error: &h2::Error) -> bool {
    error.is_io() || error.is_go_away()
}

/// Whether the upstream broke the protocol, not the connection.
fn is_invalid(error: &h2::Error) -> bool {
    // A remote reset or an orderly end is the decision of the upstream; other errors are found on this side.
    !error.is_io() && !error.is_remote() && error.reason() != Some(h2::Reason::NO_ERROR)
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
