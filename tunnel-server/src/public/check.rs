//! The strict check of what platform clients send, and the head that goes on to the tunnel client: what
//! both programs do alike, with this one's names.

use http::{HeaderValue, request::Parts};
use tunnel_http::outgoing;
use tunnel_http::{check::CheckedRequest, check::Checker, outgoing::Origin, outgoing::ViaName};
use tunnel_ops::telemetry::RequestId;
use tunnel_proto::{
    exchange::{EncodedHead, HeadEncoder},
    problem::{Hop, Problem},
};

const CHECKER: Checker = Checker {
    hop: Hop::Server,
    needs_host: true,
};

/// Checks a request.
///
/// # Errors
/// With the answer to one that is refused.
pub fn check(parts: &Parts) -> Result<CheckedRequest<'_>, Problem> {
    let protocol = parts.extensions.get::<hyper::ext::Protocol>();
    CHECKER.check(parts, protocol.map(AsRef::as_ref))
}

/// The head to send on, and the id that the request has in all logs.
///
/// # Errors
/// When the request was here before.
pub fn outgoing(
    checked: &CheckedRequest<'_>,
    origin: &Origin,
    via: &ViaName,
    sends_via: bool,
) -> Result<(EncodedHead, HeaderValue), Problem> {
    let mut head = HeadEncoder::new(
        &checked.method,
        origin.scheme(),
        checked.authority,
        &checked.path,
        checked.upgrade,
    );
    let new_id = || {
        HeaderValue::from_str(RequestId::new().as_str()).unwrap_or(HeaderValue::from_static("-"))
    };
    let id = outgoing::outgoing(checked, origin, via, sends_via, new_id, &mut head)?;
    Ok((head.finish(), id))
}
