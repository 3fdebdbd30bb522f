//! Observers of a dial: the details of each step, for the report of a check and for the log.
//!
//! In a normal run the only observer is [`Logged`], at the level `debug`.

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use http::{HeaderMap, StatusCode};
use rustls::ProtocolVersion;
use rustls_pki_types::CertificateDer;
use tokio::time::Instant;
use tunnel_ops::connect::Attempt;
use tunnel_ops::connect::step::{ended_within, within};
use tunnel_proto::control::millis;

use super::proxy_error::ProxyResponse;
use super::step::StepError;
use crate::config::ProxyUrl;
use crate::step::Step;

/// Observes a dial. Each step begins, may have observations, and ends. A step may occur twice, such as the connection to
/// a proxy that closes it after its first response.
pub(crate) trait Observer: Send {
    /// A step begins.
    fn begins(&mut self, _step: Step) {}

    /// The current step has observed something.
    fn observe(&mut self, _observation: Observation<'_>) {}

    /// A step has ended after this long, with this error if it failed.
    fn ends(&mut self, _step: Step, _took: Duration, _error: Option<&StepError>) {}

    /// Whether the observer wants certificates, refused ones too. Then no TLS session is resumed, since peers send no
    /// certificates when one is.
    fn wants_chains(&self) -> bool {
        false
    }
}

/// Logs the observations at the level `debug`.
#[derive(Debug)]
pub(crate) struct Logged;

impl Observer for Logged {
    fn observe(&mut self, observation: Observation<'_>) {
        match observation {
            Observation::Target { host, port, proxy } => {
                let proxy = proxy.map(tracing::field::display);
                tracing::debug!(host, port, proxy, "dialling");
            }
            Observation::Addresses { host, addresses } => {
                tracing::debug!(host, ?addresses, "resolved");
            }
            Observation::Connected { address, failed } => {
                tracing::debug!(%address, ?failed, "connected");
            }
            Observation::Chain(chain) => {
                tracing::debug!(length = chain.len(), "received the certificates of a peer")
            }
            Observation::Tls { version } => tracing::debug!(?version, "TLS handshake complete"),
            Observation::ProxyResponse(response) => tracing::debug!(
                words = response.text,
                schemes = ?response.schemes,
                login = response.login,
                "the proxy responded"
            ),
            Observation::UpgradeResponse {
                status,
                fields,
                text,
            } => tracing::debug!(
                status = status.as_u16(),
                fields = fields.len(),
                bytes = text.len(),
                "the server responded"
            ),
        }
    }

    fn ends(&mut self, step: Step, took: Duration, error: Option<&StepError>) {
        tracing::debug!(
            step = step.name(),
            took_ms = millis(took),
            attempts = error.map(|error| error.attempts().len()),
            certificate = error
                .and_then(StepError::certificate)
                .map(tracing::field::debug),
            is_well = error.is_none(),
            "step of a dial ended"
        );
    }
}

/// An observation in a dial.
pub(crate) enum Observation<'a> {
    /// Before the first step: the target, and the proxy.
    Target {
        /// The host that is dialled; an IPv6 address has no brackets.
        host: &'a str,
        /// Its port.
        port: u16,
        /// The proxy, if the dial uses one.
        proxy: Option<&'a ProxyUrl>,
    },
    /// The addresses of a name, in the order in which they are tried.
    Addresses {
        /// The name, or an IP address.
        host: &'a str,
        /// Its addresses.
        addresses: &'a [SocketAddr],
    },
    /// A TCP connection.
    Connected {
        /// The address of the peer.
        address: SocketAddr,
        /// Attempts that failed before.
        failed: &'a [Attempt],
    },
    /// The certificates of a peer, its own first, accepted or not.
    Chain(&'a [CertificateDer<'static>]),
    /// A TLS handshake succeeded.
    Tls {
        /// Its version.
        version: Option<ProtocolVersion>,
    },
    /// The last response of the proxy, whether it accepts or refuses.
    ProxyResponse(&'a ProxyResponse),
    /// The response to the request for a session.
    UpgradeResponse {
        /// Its status.
        status: StatusCode,
        /// Its fields.
        fields: &'a HeaderMap,
        /// The beginning of its content, if it is not a 101.
        text: &'a [u8],
    },
}

/// Runs the steps of a dial with a time-out for each, and calls the observer.
pub(super) struct StepRunner<'a> {
    limit: Duration,
    observer: &'a mut dyn Observer,
}

impl<'a> StepRunner<'a> {
    /// `limit` is the time-out of each step.
    pub(super) fn new(limit: Duration, observer: &'a mut dyn Observer) -> Self {
        Self { limit, observer }
    }

    /// The time-out of each step.
    pub(super) fn limit(&self) -> Duration {
        self.limit
    }

    /// Whether the observer wants certificates.
    pub(super) fn wants_chains(&self) -> bool {
        self.observer.wants_chains()
    }

    /// Passes an observation to the observer.
    pub(super) fn observe(&mut self, observation: Observation<'_>) {
        self.observer.observe(observation);
    }

    /// Runs one step; `notify` passes its result to the observer.
    pub(super) async fn step<T>(
        &mut self,
        step: Step,
        work: impl Future<Output = io::Result<T>>,
        notify: impl FnOnce(&Result<T, StepError>, &mut dyn Observer),
    ) -> Result<T, StepError> {
        let limit = self.limit;
        self.observed(step, within(step, limit, work), notify).await
    }

    /// Runs a step whose work has the time-out `limit` of its own, which may be shorter than that of the others.
    pub(super) async fn step_with_limit<T>(
        &mut self,
        step: Step,
        limit: Duration,
        work: impl Future<Output = io::Result<T>>,
        notify: impl FnOnce(&Result<T, StepError>, &mut dyn Observer),
    ) -> Result<T, StepError> {
        let ended = async { ended_within(step, limit, work.await) };
        self.observed(step, ended, notify).await
    }

    async fn observed<T>(
        &mut self,
        step: Step,
        work: impl Future<Output = Result<T, StepError>>,
        notify: impl FnOnce(&Result<T, StepError>, &mut dyn Observer),
    ) -> Result<T, StepError> {
        let began = Instant::now();
        self.observer.begins(step);
        let ended = work.await;
        notify(&ended, self.observer);
        self.observer
            .ends(step, began.elapsed(), ended.as_ref().err());
        ended
    }
}
