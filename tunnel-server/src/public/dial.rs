//! A tunnel client that dials at the public listener, by a name of `--tunnel-host`.
//!
//! ```text
//!   HTTP/1.1 request for a host of --tunnel-host ─▶ check, authenticate (connect/request.rs) ─▶ 101 ─▶ session
//! ```
//!
//! Used where only the request says that its connection is a tunnel client's: without TLS, by another name or none in
//! TLS, and where a runtime has the host, too.

use std::{convert::Infallible, sync::Arc};

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt, Full};
use tunnel_http::{http1::InFlight, received::ReceivedBody};

use super::{
    Connection, PublicListener,
    answer::ResponseBody,
    upgraded::{GrantedSession, GrantedUpgrade},
};
use crate::connect::{
    TunnelListener,
    request::{Dial, Outcome, respond, too_many_connections},
};

impl PublicListener {
    /// What serves a request of HTTP/1 if it is a tunnel client's.
    pub(super) fn dialled<B>(&self, request: &Request<B>) -> Option<Arc<TunnelListener>> {
        let is_runtime = |host: &str| self.router.is_runtime(host);
        let tunnel = self.tunnel.as_ref()?;
        (tunnel.takes(request, is_runtime)).then(|| tunnel.clone())
    }
}

/// Answers a tunnel client. If it is accepted, its connection becomes a session.
pub(super) async fn serve(
    connection: Arc<Connection>,
    tunnel: Arc<TunnelListener>,
    request: Request<ReceivedBody>,
    in_flight: InFlight,
) -> Result<Response<ResponseBody>, Infallible> {
    let peer = &connection.peer;
    let client = (!connection.client.is_trusted).then_some(connection.client.address);
    let Some(place) = tunnel.place(client) else {
        connection.not_upgraded();
        let response = too_many_connections(&tunnel, &request);
        return Ok(own_response(response, in_flight).await);
    };
    let dial = Dial {
        client: peer.address.into(),
        is_trusted: connection.client.is_trusted,
        is_protected: connection.client.is_tls || peer.is_private,
        is_by_host: true,
        certificates: &connection.certificates,
        permit: place.permit(),
        gate: None,
    };
    let (response, outcome) = respond(&tunnel, &request, &dial).await;
    let response = own_response(response, in_flight).await;
    match outcome {
        Outcome::Refused(refused, client) => {
            connection.not_upgraded();
            refused.report(&tunnel, client, &connection.certificates);
        }
        Outcome::Admitted(admitted) => {
            let session = GrantedSession::new(tunnel, admitted, place);
            // From now on it is no platform client's.
            drop(peer.place.lock().take());
            connection.upgrade(GrantedUpgrade::Session(Box::new(session)), None);
        }
    }
    Ok(response)
}

/// A response of the tunnel listener as one of this listener.
async fn own_response(
    response: Response<Full<Bytes>>,
    in_flight: InFlight,
) -> Response<ResponseBody> {
    let (head, content) = response.into_parts();
    // Content in memory, which cannot fail.
    let content = content.collect().await.unwrap_or_default().to_bytes();
    let mut response = Response::from_parts(head, ResponseBody::own(content));
    response.body_mut().observe(None, Some(in_flight));
    response
}
