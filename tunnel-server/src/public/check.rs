//! The strict check of requests of platform clients, and the head that is forwarded to the tunnel client. Both are those of
//! `tunnel-http`, with this server's names.

use http::HeaderValue;

use tunnel_http::{
    check::{CheckedRequest, Checker},
    outgoing::{ForwardedClient, ViaName, write_fields},
};
use tunnel_ops::telemetry::tracer::Trace;
use tunnel_proto::{
    exchange::{EncodedHead, HeadEncoder},
    problem::{Hop, Problem},
};

/// Checks a request.
pub const CHECKER: Checker = Checker {
    hop: Hop::Server,
    needs_host: true,
};

/// The head to forward, and the id of the request in all logs. `trace` is that of an exchange that is traced.
///
/// # Errors
/// When the request has been forwarded by this server before.
pub fn forwarded_head(
    checked: &CheckedRequest<'_>,
    client: &ForwardedClient,
    via: &ViaName,
    sends_via: bool,
    trace: Option<&Trace>,
) -> Result<(EncodedHead, HeaderValue), Problem> {
    let mut head = HeadEncoder::new(
        &checked.method,
        client.scheme(),
        checked.authority,
        &checked.path,
        checked.upgrade,
    );
    let id = write_fields(checked, client, via, sends_via, trace, &mut head)?;
    Ok((head.finish(), id))
}
