//! A dial that is watched: what each step sees, for whoever wants to tell a person about it.
//!
//! In a normal run only the log does ([`Logged`]), at the level `debug`.

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

use super::proxy::ProxyAnswer;
use super::step::{Step, StepError};
use crate::config::ProxyUrl;

/// Watches a dial. Each step begins, may see something, and ends; one may come twice, such as the
/// connection to a proxy that closes it after its first answer.
pub(crate) trait Observer: Send {
    /// A step begins.
    fn begins(&mut self, _step: Step) {}

    /// The step that has begun has seen something.
    fn sees(&mut self, _seen: Seen<'_>) {}

    /// A step has ended after this long, with this error if it failed.
    fn ends(&mut self, _step: Step, _took: Duration, _error: Option<&StepError>) {}

    /// Whether certificates are to be shown, those that are refused as well. No TLS session is resumed
    /// then, since peers show none when one is.
    fn wants_chains(&self) -> bool {
        false
    }
}

/// Whoever reads the log watches, if the level is `debug`.
#[derive(Debug)]
pub(crate) struct Logged;

impl Observer for Logged {
    fn sees(&mut self, seen: Seen<'_>) {
        match seen {
            Seen::Way { host, port, proxy } => {
                let proxy = proxy.map(tracing::field::display);
                tracing::debug!(host, port, proxy, "a dial begins");
            }
            Seen::Addresses { host, addresses } => {
                tracing::debug!(host, ?addresses, "a name has addresses");
            }
            Seen::Connected { address, failed } => {
                tracing::debug!(%address, ?failed, "an address is reached");
            }
            Seen::Chain(chain) => tracing::debug!(length = chain.len(), "a peer shows itself"),
            Seen::Tls { version } => tracing::debug!(?version, "TLS is agreed on"),
            Seen::ProxyAnswer(answer) => tracing::debug!(
                words = answer.words,
                schemes = ?answer.schemes,
                login = answer.login,
                "the proxy answers"
            ),
            Seen::UpgradeAnswer {
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

/// What a dial sees.
pub(crate) enum Seen<'a> {
    /// Before the first step: what is dialled, and by which proxy.
    Way {
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
        /// Addresses that were tried before in vain.
        failed: &'a [Attempt],
    },
    /// The certificates that a peer showed, its own first, accepted or not.
    Chain(&'a [CertificateDer<'static>]),
    /// TLS was agreed on.
    Tls {
        /// Its version.
        version: Option<ProtocolVersion>,
    },
    /// The last word of the proxy, good or bad.
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

/// Takes one step after another, each within the same limit, and has them watched.
pub(super) struct Walk<'a> {
    limit: Duration,
    observer: &'a mut dyn Observer,
}

impl<'a> Walk<'a> {
    /// Each step may take as long as `limit`.
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

    /// Tells what has been seen.
    pub(super) fn sees(&mut self, seen: Seen<'_>) {
        self.observer.sees(seen);
    }

    /// Takes one step; `show` tells the observer what came of it.
    pub(super) async fn step<T>(
        &mut self,
        step: Step,
        work: impl Future<Output = io::Result<T>>,
        show: impl FnOnce(&Result<T, StepError>, &mut dyn Observer),
    ) -> Result<T, StepError> {
        let limit = self.limit;
        self.watched(step, within(step, limit, work), show).await
    }

    /// The same for a step that keeps its limit itself, which may be a part of the walk's.
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
