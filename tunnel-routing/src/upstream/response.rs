//! Checks the response of an upstream, and reduces it to what is forwarded.
//!
//! An upstream may be hostile or broken: hyper accepts responses that a gateway must not forward (RFC 9110 section
//! 6.4, RFC 9112 sections 6.1 and 6.3). Out comes a head of which every field may be forwarded, or the problem; a
//! connection with such a problem is not used again.

use http::header::{CONTENT_LENGTH, TRANSFER_ENCODING};
use http::{HeaderMap, HeaderValue, Method, Response, StatusCode};
use tunnel_proto::problem::{Hop, Problem, Reason};
use tunnel_proto::{fields, limits};

/// Reduces a head to what is forwarded, except for connection-specific fields, which never enter the tunnel. After an
/// error the head is useless.
pub(super) fn check<B>(response: &mut Response<B>) -> Result<(), Problem> {
    let status = response.status();
    check_status(status)?;
    let headers = response.headers_mut();
    check_framing(headers)?;
    for name in fields::nominated(headers) {
        headers.remove(name);
    }
    if headers.len() > limits::FIELDS {
        return Err(invalid("more fields than allowed"));
    }
    if headers.values().any(has_space_around) {
        return Err(invalid("a field value with white space around it"));
    }
    if status == StatusCode::NO_CONTENT {
        // A 204 or 304 has no content whose length it could be (RFC 9110 section 8.6).
        headers.remove(CONTENT_LENGTH);
    }
    Ok(())
}

/// Refuses a response over HTTP/2 that ended with its head although it declares content (RFC 9113 section 8.1.1). h2
/// counts content that comes, but not its absence.
pub(super) fn check_declared(
    response: &Response<()>,
    has_ended: bool,
    method: &Method,
) -> Result<(), Problem> {
    let has_no_content = *method == Method::HEAD || response.status() == StatusCode::NOT_MODIFIED;
    if has_no_content || !has_ended {
        return Ok(());
    }
    match fields::content_length(response.headers()) {
        Ok(None | Some(0)) => Ok(()),
        _ => Err(invalid("a content-length and no content")),
    }
}

fn check_status(status: StatusCode) -> Result<(), Problem> {
    if status == StatusCode::SWITCHING_PROTOCOLS {
        let detail = "the upstream switched protocols without a request to do so";
        return Err(Problem::new(Hop::Client, Reason::UpgradeFailed, detail));
    }
    if !(200..=599).contains(&status.as_u16()) {
        return Err(invalid(format!("status {}", status.as_u16())));
    }
    Ok(())
}

/// Refuses framing that two parsers could read differently.
fn check_framing(headers: &HeaderMap) -> Result<(), Problem> {
    fields::content_length(headers).map_err(|error| invalid(error.to_string()))?;
    let mut codings = headers.get_all(TRANSFER_ENCODING).iter();
    let Some(coding) = codings.next() else {
        return Ok(());
    };
    if headers.contains_key(CONTENT_LENGTH) {
        return Err(invalid("both transfer-encoding and content-length"));
    }
    // Another coding would have to be decoded before the field may be removed.
    if codings.next().is_some() || !coding.as_bytes().eq_ignore_ascii_case(b"chunked") {
        return Err(invalid("a transfer-encoding other than chunked"));
    }
    Ok(())
}

/// Whether a value has white space around it, which HTTP/1.1 cannot carry and HTTP/2 must not (RFC 9113 section
/// 8.2.1).
fn has_space_around(value: &HeaderValue) -> bool {
    let is_space = |byte: Option<&u8>| matches!(byte, Some(b' ' | b'\t'));
    is_space(value.as_bytes().first()) || is_space(value.as_bytes().last())
}

fn invalid(what: impl std::fmt::Display) -> Problem {
    Problem::new(
        Hop::Client,
        Reason::ResponseInvalid,
        format!("the upstream's answer has {what}"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn checked(status: u16, fields: &[(&str, &str)]) -> Result<Response<()>, Reason> {
        let mut response = Response::builder().status(status);
        for (name, value) in fields {
            response = response.header(*name, *value);
        }
        let mut response = response.body(()).unwrap();
        check(&mut response).map_err(|problem| problem.reason())?;
        Ok(response)
    }

    /// In alphabetical order: that of the fields says nothing (RFC 9110 section 5.3).
    fn names(response: &Response<()>) -> Vec<&str> {
        let names = response.headers().keys();
        let names = names.filter(|name| !fields::is_connection_specific(name));
        let mut names: Vec<_> = names.map(|name| name.as_str()).collect();
        names.sort_unstable();
        names
    }

    #[test]
    fn a_status_is_final_and_known_to_all() {
        for status in [200, 204, 299, 304, 404, 500, 599] {
            assert_eq!(checked(status, &[]).unwrap().status().as_u16(), status);
        }
        for status in [100, 103, 199, 600, 999] {
            assert_eq!(
                checked(status, &[]).unwrap_err(),
                Reason::ResponseInvalid,
                "{status}"
            );
        }
        assert_eq!(checked(101, &[]).unwrap_err(), Reason::UpgradeFailed);
    }

    #[test]
    fn framing_that_can_be_read_in_two_ways_is_refused() {
        for fields in [
            &[("content-length", "1"), ("transfer-encoding", "chunked")][..],
            &[("content-length", "1, 1")],
            &[("content-length", "1"), ("content-length", "1")],
            &[("content-length", "+1")],
            &[("transfer-encoding", "gzip, chunked")],
            &[("transfer-encoding", "gzip")],
            &[
                ("transfer-encoding", "chunked"),
                ("transfer-encoding", "chunked"),
            ],
        ] {
            assert_eq!(
                checked(200, fields).unwrap_err(),
                Reason::ResponseInvalid,
                "{fields:?}"
            );
        }
        assert!(names(&checked(200, &[("transfer-encoding", "Chunked")]).unwrap()).is_empty());
    }

    #[test]
    fn fields_of_the_connection_end_here_and_all_others_go_on() {
        let response = checked(
            200,
            &[
                ("connection", "close, x-hop"),
                ("x-hop", "1"),
                ("keep-alive", "timeout=5"),
                ("upgrade", "h2c"),
                ("proxy-authenticate", "Basic"),
                ("set-cookie", "a=1"),
                ("server", "x"),
                ("set-cookie", "b=2"),
                ("content-length", "7"),
            ],
        )
        .unwrap();
        assert_eq!(names(&response), ["content-length", "server", "set-cookie"]);
        let cookies: Vec<_> = response.headers().get_all("set-cookie").iter().collect();
        assert_eq!(cookies, ["a=1", "b=2"]);
    }

    #[test]
    fn nothing_has_no_length() {
        assert!(names(&checked(204, &[("content-length", "5")]).unwrap()).is_empty());
        assert_eq!(
            names(&checked(304, &[("content-length", "5")]).unwrap()),
            ["content-length"]
        );
    }

    #[test]
    fn what_the_wire_cannot_carry_is_refused() {
        assert_eq!(
            checked(200, &[("a", " b")]).unwrap_err(),
            Reason::ResponseInvalid
        );
        let many = vec![("a", "b"); limits::FIELDS + 1];
        assert_eq!(checked(200, &many).unwrap_err(), Reason::ResponseInvalid);
    }
}
