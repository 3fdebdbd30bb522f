//! The trace of a request that another node has forwarded.

use http::{header::HOST, request::Parts};
use tunnel_http::access_log::{self, AccessLog, ExchangeRecord, Forwarded, LoggedRequest};
use tunnel_ops::telemetry::TraceParent;
use tunnel_ops::telemetry::tracer::{AttemptTarget, Tracer};
use tunnel_proto::{exchange::Protocol, fields::X_REQUEST_ID};

use super::Note;

/// The record of a forwarded request that is traced. Its spans are made when this is dropped.
pub(super) struct TracedRelay {
    pub(super) record: ExchangeRecord,
    runtime: String,
}

impl TracedRelay {
    /// Begins with the head of the request; `None` if it is not traced. Boxed, since few are.
    pub(super) fn begin(tracer: &Tracer, head: &Parts, note: &Note) -> Option<Box<Self>> {
        let trace = tracer.trace(|| access_log::trace(head))?;
        let mut record = ExchangeRecord::begin();
        let peer = note.address.to_string();
        let request = LoggedRequest {
            method: head.method.as_str(),
            scheme: head.uri.scheme_str(),
            host: head.headers.get(HOST).and_then(|host| host.to_str().ok()),
            path: head.uri.path(),
            is_upgrade: head.extensions.get::<Protocol>().is_some(),
            request_id: head.headers.get(X_REQUEST_ID),
            trace: None,
            peer: Some(&peer),
        };
        record.log(&AccessLog::off(), Some(trace), &request);
        Some(Box::new(Self {
            record,
            runtime: note.label.clone(),
        }))
    }

    /// The request is sent through a session. Returns the `traceparent` that goes along, and whether a received `tracestate`
    /// does.
    pub(super) fn on_sent(&self) -> Option<(TraceParent, bool)> {
        let trace = self.record.trace()?;
        Some((trace.on_attempt(AttemptTarget::Tunnel), !trace.is_root()))
    }
}

impl Drop for TracedRelay {
    fn drop(&mut self) {
        self.record.write(Forwarded {
            runtime: Some(&self.runtime),
            route: None,
            request_bytes: 0,
        });
    }
}
