//! The platform's answers, parsed strictly.
//!
//! An answer with an unknown field is not used, because a misspelt limit must not become no limit. A wrong answer about
//! one token does not make the platform unreachable. Nor does a missing answer or a 5xx, unless it concerns tokens that
//! were approved ([`super::breaker`]). A platform that limits the rate of queries (429) is busy, since clients with
//! invalid tokens can cause that.

use std::time::Duration;

use bytes::Bytes;
use http::StatusCode;
use serde::Deserialize;
use tunnel_ops::config_value::Network;
use tunnel_ops::settings::SettingValue;

use crate::auth::credential::printable;
use crate::auth::labels::NamedRuntime;
use crate::runtimes::RawLimits;
use tunnel_ops::https::RequestError;

/// Longest time that an answer may be valid.
const MOST_SECONDS: u64 = 365 * 24 * 60 * 60;

/// Longest reason and detail of a denial that are logged.
const REASON_CHARS: usize = 64;
const DETAIL_CHARS: usize = 300;

/// A shorter token may be part of any text, so it is not removed from logged text.
const SECRET_CHARS: usize = 6;

/// The result of a query.
#[derive(Debug)]
pub(super) enum PlatformReply {
    /// The token is valid.
    Approved(Answer),
    /// The token is not valid (401, 403), with the platform's reason. This text and those below are safe to log.
    Denied(String),
    /// Another 4xx, which may not be about the token, with the platform's reason.
    Rejected(String),
    /// The platform limits the rate of queries (408, 429).
    Busy(StatusCode),
    /// An answer that cannot be used, and reason.
    Unusable(String),
    /// No answer or a 5xx, and reason. The token may be the cause.
    NoAnswer(String),
    /// No connection to the platform, and reason.
    NoConnection(String),
}

/// The platform's answer for a valid token.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) named: NamedRuntime,
    /// The token's public id.
    pub(super) id: Option<String>,
    /// How long the answer is valid, from the time it was given.
    pub(super) valid_for: Option<Duration>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawAnswer {
    account: String,
    runtime: String,
    id: Option<String>,
    #[serde(default)]
    limits: RawLimits,
    allow_from: Option<Vec<Network>>,
    expires_in: Option<u64>,
}

#[derive(Default, Deserialize)]
struct RawRefusal {
    reason: Option<String>,
    detail: Option<String>,
}

impl PlatformReply {
    pub(super) fn of(answer: Result<(StatusCode, Bytes), RequestError>, token: &str) -> Self {
        let (status, body) = match answer {
            Ok((status, body)) => (status, Ok(body)),
            Err(error @ RequestError::TooLarge { status, .. }) => (status, Err(error.to_string())),
            Err(error) => {
                let fault = without(&error.to_string(), token);
                return match error {
                    RequestError::NoConnection(_) => Self::NoConnection(fault),
                    _ => Self::NoAnswer(fault),
                };
            }
        };
        match status {
            StatusCode::OK => match body.and_then(|json| Answer::parse(&json)) {
                Ok(answer) => Self::Approved(answer),
                Err(fault) => Self::Unusable(without(&fault, token)),
            },
            StatusCode::REQUEST_TIMEOUT | StatusCode::TOO_MANY_REQUESTS => Self::Busy(status),
            status if status.is_server_error() => Self::NoAnswer(format!("the answer is {status}")),
            status if status.is_client_error() => {
                let reason = reason_text(&body.unwrap_or_default(), token);
                match status {
                    StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => Self::Denied(reason),
                    status => Self::Rejected(format!("it answered {status}{reason}")),
                }
            }
            status => Self::Unusable(format!("it is {status}")),
        }
    }
}

impl Answer {
    /// # Errors
    /// When it cannot be used: reason, as text.
    pub(super) fn parse(json: &[u8]) -> Result<Self, String> {
        let raw: RawAnswer =
            serde_json::from_slice(json).map_err(|error| format!("it is malformed: {error}"))?;
        let mut named = NamedRuntime::new(&raw.account, &raw.runtime)
            .map_err(|error| format!("it is malformed: {error}"))?;
        named.limits = raw.limits.into();
        named.allow_from = raw.allow_from.map(SettingValue::plain);
        if raw.expires_in == Some(0) {
            return Err("it is malformed: `expires_in` is 0".into());
        }
        let valid_for = raw.expires_in.map(|seconds| seconds.min(MOST_SECONDS));
        Ok(Self {
            named,
            id: raw.id,
            valid_for: valid_for.map(Duration::from_secs),
        })
    }
}

/// The reason and the detail of a denial as text that is safe to log: empty, or beginning with `: `.
fn reason_text(json: &[u8], token: &str) -> String {
    let raw: RawRefusal = serde_json::from_slice(json).unwrap_or_default();
    let parts = [(raw.reason, REASON_CHARS), (raw.detail, DETAIL_CHARS)];
    parts
        .into_iter()
        .filter_map(|(text, most)| Some((text?, most)))
        .map(|(text, most)| format!(": {}", printable(&cut_out(&text, token), most)))
        .collect()
}

/// The text without the token, bounded and printable.
fn without(text: &str, token: &str) -> String {
    printable(&cut_out(text, token), DETAIL_CHARS)
}

fn cut_out(text: &str, token: &str) -> String {
    match token.len() < SECRET_CHARS {
        true => text.to_owned(),
        false => text.replace(token, "(the token)"),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_whole_answer_is_read() {
        let answer = Answer::parse(
            br#"{"account": "acme", "runtime": "prod", "id": "t-7", "expires_in": 600,
                "limits": {"exchanges": 5, "upload_rate": "1MiB"}, "allow_from": ["192.0.2.7"]}"#,
        )
        .unwrap();
        assert_eq!(answer.named.label().unwrap().as_str(), "acme-prod");
        assert_eq!(answer.id.as_deref(), Some("t-7"));
        assert_eq!(answer.valid_for, Some(Duration::from_secs(600)));
        assert_eq!(answer.named.limits.exchanges, Some(5));
        assert_eq!(answer.named.limits.upload_rate, Some(1 << 20));
        assert_eq!(answer.named.allow_from.unwrap().len(), 1);
        let bare = Answer::parse(br#"{"account": "a", "runtime": "b"}"#).unwrap();
        assert_eq!((bare.valid_for, bare.named.allow_from), (None, None));
    }

    #[test]
    fn what_is_not_understood_is_not_used() {
        for bad in [
            "",
            "{}",
            "[]",
            r#"{"account": "A", "runtime": "b"}"#,
            r#"{"account": "a", "runtime": "b", "allow_form": []}"#,
            r#"{"account": "a", "runtime": "b", "limits": {"exchange": 1}}"#,
            r#"{"account": "a", "runtime": "b", "allow_from": ["x"]}"#,
            r#"{"account": "a", "runtime": "b", "expires_in": 0}"#,
            r#"{"account": "a", "runtime": "b", "expires_in": -1}"#,
        ] {
            assert!(Answer::parse(bad.as_bytes()).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_refusal_is_shown_without_the_token_and_without_tricks() {
        let json =
            br#"{"reason": "unpaid", "detail": "token s3cr3t-x\u001b[31m is of a closed account"}"#;
        assert_eq!(
            reason_text(json, "s3cr3t-x"),
            ": unpaid: token (the token)?[31m is of a closed account"
        );
        assert_eq!(reason_text(b"<html>", "s3cr3t-x"), "");
        let long = serde_json::json!({ "detail": "x".repeat(5000) }).to_string();
        assert_eq!(
            reason_text(long.as_bytes(), "s3cr3t-x").len(),
            DETAIL_CHARS + 2
        );
    }

    #[test]
    fn a_fault_of_one_token_does_not_count_as_an_outage() {
        let reply = |status: u16, body: &str| {
            let body = Bytes::from(body.to_owned());
            PlatformReply::of(Ok((status.try_into().unwrap(), body)), "s3cr3t-x")
        };
        for status in [408, 429] {
            assert!(
                matches!(reply(status, "{}"), PlatformReply::Busy(_)),
                "{status}"
            );
        }
        for status in [500, 502, 503, 599] {
            assert!(
                matches!(reply(status, "{}"), PlatformReply::NoAnswer(_)),
                "{status}"
            );
        }
        let timeout = Err(RequestError::Deadline);
        assert!(matches!(
            PlatformReply::of(timeout, "s3cr3t-x"),
            PlatformReply::NoAnswer(_)
        ));
        let unconnected = Err(RequestError::NoConnection("refused".into()));
        assert!(matches!(
            PlatformReply::of(unconnected, "s3cr3t-x"),
            PlatformReply::NoConnection(_)
        ));
        for status in [401, 403] {
            let PlatformReply::Denied(reason) = reply(status, r#"{"reason": "gone"}"#) else {
                panic!("{status} is no denial");
            };
            assert_eq!(reason, ": gone");
        }
        for (status, expected) in [
            (400, "it answered 400 Bad Request: gone"),
            (404, "it answered 404 Not Found: gone"),
            (422, "it answered 422 Unprocessable Entity: gone"),
        ] {
            let PlatformReply::Rejected(reason) = reply(status, r#"{"reason": "gone"}"#) else {
                panic!("{status} may not be about the token");
            };
            assert_eq!(reason, expected);
        }
        for (status, body) in [
            (200, "<html>"),
            (200, r#"{"account": "s3cr3t-x!", "runtime": "b"}"#),
            (204, ""),
            (302, ""),
            (700, ""),
        ] {
            let PlatformReply::Unusable(reason) = reply(status, body) else {
                panic!("{status} is clear");
            };
            assert!(!reason.contains("s3cr3t"), "{reason}");
        }
        let large = |status| {
            let (status, most) = (StatusCode::try_from(status).unwrap(), 7);
            PlatformReply::of(Err(RequestError::TooLarge { status, most }), "s3cr3t-x")
        };
        assert!(matches!(large(200), PlatformReply::Unusable(_)));
        assert!(matches!(large(403), PlatformReply::Denied(..)));
        assert!(matches!(large(500), PlatformReply::NoAnswer(_)));
    }

    proptest! {
        #[test]
        fn no_answer_makes_it_panic(text in "(\\{\"account\":)?\\PC{0,80}") {
            let _ = Answer::parse(text.as_bytes());
            let _ = reason_text(text.as_bytes(), &text);
        }
    }
}
