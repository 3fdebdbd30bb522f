//! Observers of a dial: what each step finds, for the report of a check and for the log.
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

use super::proxy_error::ProxyAnswer;
use super::step::{Step, StepError};
use crate::config::ProxyUrl;

/// Observes a dial. Each step begins, may have observations, and ends. A step may come twice, such as the connection to a
/// proxy that closes it after its first answer.
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
                tracing::debug!(host, port, proxy, "a dial begins");
            }
            Observation::Addresses { host, addresses } => {
                tracing::debug!(host, ?addresses, "a name has addresses");
            }
            Observation::Connected { address, failed } => {
                tracing::debug!(%address, ?failed, "connected");
            }
            Observation::Chain(chain) => {
                tracing::debug!(length = chain.len(), "a peer sent its certificates")
            }
            Observation::Tls { version } => tracing::debug!(?version, "TLS is agreed on"),
            Observation::ProxyAnswer(answer) => tracing::debug!(
                words = answer.text,
                schemes = ?answer.schemes,
                login = answer.login,
                "the proxy answers"
            ),
            Observation::UpgradeAnswer {
                status,
                fields,
                text,
            } => tracing::debug!(
                status = status.as_u16(),
                fields = fields.len(),
                bytes = text.len(),
                "the server answers"
            ),
        }
    }

    fn ends(&mut self, step: Step, took: Duration, error: Option<&StepError>) {
        tracing::debug!(
            step = step.name(),
            ?took,
            attempts = error.map(|error| error.attempts().len()),
            certificate = error
                .and_then(StepError::certificate)
                .map(tracing::field::debug),
            is_well = error.is_none(),
            "a step of a dial has ended"
        );
    }
}

/// What a dial observes.
pub(crate) enum Observation<'a> {
    /// Before the first step: what is dialled, and by which proxy.
    Target {
        /// The host that stands for the server, an IPv6 address without brackets.
        host: &'a str,
        /// Its port.
        port: u16,
        /// The proxy on the way.
        proxy: Option<&'a ProxyUrl>,
    },
    /// The addresses of a name, in the order in which they are tried.
    Addresses {
        /// The name, or an address that is its own.
        host: &'a str,
        /// Its addresses.
        addresses: &'a [SocketAddr],
    },
    /// A connection.
    Connected {
        /// To whom.
        address: SocketAddr,
        /// Attempts that failed before.
        failed: &'a [Attempt],
    },
    /// The certificates of a peer, its own first, accepted or not.
    Chain(&'a [CertificateDer<'static>]),
    /// TLS was agreed on.
    Tls {
        /// Its version.
        version: Option<ProtocolVersion>,
    },
    /// The last answer of the proxy, whether it accepts or refuses.
    ProxyAnswer(&'a ProxyAnswer),
    /// The answer to the request for a session.
    UpgradeAnswer {
        /// Its status.
        status: StatusCode,
        /// Its fields.
        fields: &'a HeaderMap,
        /// The beginning of its body, if it is no 101.
        text: &'a [u8],
    },
}

/// Takes the steps of a dial, each within one limit, and calls the observer.
pub(super) struct Walk<'a> {
    limit: Duration,
    observer: &'a mut dyn Observer,
}

impl<'a> Walk<'a> {
    /// `limit` is the time-out of each step.
    pub(super) fn new(limit: Duration, observer: &'a mut dyn Observer) -> Self {
        Self { limit, observer }
    }

    /// The limit of each step.
    pub(super) fn limit(&self) -> Duration {
        self.limit
    }

    /// Whether certificates are to be shown.
    pub(super) fn wants_chains(&self) -> bool {
        self.observer.wants_chains()
    }

    /// Passes an observation on.
    pub(super) fn observe(&mut self, observation: Observation<'_>) {
        self.observer.observe(observation);
    }

    /// Takes one step; `show` passes its result on to the observer.
    pub(super) async fn step<T>(
        &mut self,
        step: Step,
        work: impl Future<Output = io::Result<T>>,
        show: impl FnOnce(&Result<T, StepError>, &mut dyn Observer),
    ) -> Result<T, StepError> {
        let limit = self.limit;
        self.watched(step, within(step, limit, work), show).await
    }

    /// Takes a step that keeps its own limit, which may be shorter than that of the others.
    pub(super) async fn step_with_limit<T>(
        &mut self,
        step: Step,
        limit: Duration,
        work: impl Future<Output = io::Result<T>>,
        show: impl FnOnce(&Result<T, StepError>, &mut dyn Observer),
    ) -> Result<T, StepError> {
        let ended = async { ended_within(step, limit, work.await) };
        self.watched(step, ended, show).await
    }

    async fn watched<T>(
        &mut self,
        step: Step,
        work: impl Future<Output = Result<T, StepError>>,
        show: impl FnOnce(&Result<T, StepError>, &mut dyn Observer),
    ) -> Result<T, StepError> {
        let began = Instant::now();
        self.observer.begins(step);
        let ended = work.await;
        show(&ended, self.observer);
        self.observer
            .ends(step, began.elapsed(), ended.as_ref().err());
        ended
    }
}
