//! Forwards an upgrade: over the version of HTTP in which the upstream takes it.

use std::sync::Arc;

use http::{Response, StatusCode};
use tunnel_proto::exchange::Protocol;
use tunnel_proto::problem::{Problem, Reason};

use super::{AttemptError, ForwardError, REPEATS};
use crate::upstream::body::UpstreamBody;
use crate::upstream::http1::{Connection, Framing};
use crate::upstream::http2::Lease;
use crate::upstream::outgoing;
use crate::upstream::outgoing_body::OutgoingBody;
use crate::upstream::routed_request::RoutedRequest;
use crate::upstream::settings::UpstreamHttp;
use crate::upstream::tls::Offer;
use crate::upstream::upgrade::{self, UpgradedConnection};
use crate::upstream::{LinkError, LinkKind, Upstream, response};
use crate::url::UpstreamScheme;

impl Upstream {
    /// Asks for an upgrade. None of the content is touched before the upstream has agreed.
    pub(super) async fn forward_upgrade(
        &self,
        request: &mut RoutedRequest,
        protocol: Protocol,
    ) -> Result<Response<UpstreamBody>, ForwardError> {
        let lease = match self.destination.scheme() {
            UpstreamScheme::H2c => return self.forward_upgrade_http2(request, protocol).await,
            // Most that speak HTTP/2 over TLS still take upgrades over HTTP/1.1 only.
            UpstreamScheme::Https if self.http == UpstreamHttp::Http2 => {
                let lease = self.http2.take();
                lease.filter(|lease| {
                    let settings = lease.settings();
                    settings.enable_connect_protocol
                        && !outgoing::is_hazardous(&request.head, settings.max_header_list_size)
                })
            }
            UpstreamScheme::Http | UpstreamScheme::Https => None,
        };
        if let Some(lease) = lease {
            let upgraded = self.upgrade_http2(request, protocol, lease).await;
            return Ok(upgraded.map_err(|error| error.problem)?);
        }
        let dialled = RoutedRequest::wait(&mut request.waited, self.dial(Offer::Http1)).await;
        let (socket, peer) = match dialled {
            Ok(dialled) => dialled,
            Err(problem)
                if problem.reason() == Reason::ProtocolRefused
                    && self.http != UpstreamHttp::Http1 =>
            {
                return self.forward_upgrade_http2(request, protocol).await;
            }
            Err(problem) => return Err(LinkError::from(problem).into()),
        };
        let connection = self.http1_connection(socket, peer);
        Ok(self.upgrade_http1(request, protocol, connection).await?)
    }

    /// Forwards an upgrade to an upstream that speaks HTTP/2 alone; again, if it has certainly not acted on it.
    async fn forward_upgrade_http2(
        &self,
        request: &mut RoutedRequest,
        protocol: Protocol,
    ) -> Result<Response<UpstreamBody>, ForwardError> {
        let mut repeats = REPEATS;
        loop {
            let link = self.link(request, Offer::Http2).await?;
            let LinkKind::Http2(lease) = link.connection else {
                return Err(upgrade::failed("the upstream does not speak HTTP/2").into());
            };
            if !lease.settings().has_arrived {
                RoutedRequest::wait(&mut request.waited, lease.wait_for_settings()).await;
                if lease.settings().has_arrived && repeats > 0 {
                    // Only now it is known how many streams the connection has.
                    repeats -= 1;
                    continue;
                }
            }
            // A lost connection takes no request; another one is made then.
            if !lease.settings().enable_connect_protocol && !lease.is_left() {
                let detail = "the upstream takes no upgrades over HTTP/2 (RFC 8441)";
                return Err(upgrade::failed(detail).into());
            }
            match self.upgrade_http2(request, protocol, *lease).await {
                Err(error) if error.is_untouched() && repeats > 0 => {
                    repeats -= 1;
                    request.on_attempt_failed(&error.problem);
                    request.on_attempt(self.url());
                }
                upgraded => return Ok(upgraded.map_err(|error| error.problem)?),
            }
        }
    }

    async fn upgrade_http1(
        &self,
        request: &mut RoutedRequest,
        protocol: Protocol,
        mut connection: Box<Connection>,
    ) -> Result<Response<UpstreamBody>, Problem> {
        let (message, key) = upgrade::http1(&request.head, protocol, &self.destination)?;
        let none = OutgoingBody::empty(Arc::clone(&request.progress));
        connection.send(message.method(), none, |out, _| {
            outgoing::write_as_is(out, &message);
            Framing::Length
        });
        let result = self.over_http1(request, &mut connection).await;
        let response = result.map_err(|error| error.problem)?;
        if response.status() != StatusCode::SWITCHING_PROTOCOLS {
            upgrade::check_declined(response.status())?;
            return self.response_http1(response, connection, request);
        }
        let head = upgrade::check_switch(response.into_parts().0.headers, protocol, &key)?;
        let Some((socket, unread)) = connection.into_parts() else {
            return Err(upgrade::failed("the connection is gone"));
        };
        let content = request.take_content();
        let switched = UpgradedConnection::new(socket, unread, content, &self.shared.half_closed);
        let watch = self.watch(request);
        Ok(head.map(|()| UpstreamBody::upgraded(switched).watched(watch)))
    }

    async fn upgrade_http2(
        &self,
        request: &mut RoutedRequest,
        protocol: Protocol,
        lease: Lease,
    ) -> Result<Response<UpstreamBody>, AttemptError> {
        let message = upgrade::http2(
            &request.head,
            protocol,
            &self.destination,
            &request.progress,
        )?;
        let none = OutgoingBody::empty(Arc::clone(&request.progress));
        let (response, exchange) = self.over_http2(request, message, none, lease).await?;
        let (head, stream) = response.into_parts();
        let (status, mut response) = (head.status, Response::from_parts(head, ()));
        if status != StatusCode::OK {
            upgrade::check_declined(status)?;
            return Ok(self.response_http2(response, exchange.content(stream), request)?);
        }
        response::check(&mut response)?;
        let head = upgrade::http2_agreed(response.into_parts().0.headers, &request.head)?;
        let switched = exchange.switch(stream, request.take_content());
        let switched = UpgradedConnection::over_http2(switched, &self.shared.half_closed);
        let watch = self.watch(request);
        Ok(head.map(|()| UpstreamBody::upgraded(switched).watched(watch)))
    }
}
