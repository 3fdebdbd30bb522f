//! Probes what answers in place of the server: a request on the path of a dial, without a credential, that asks for no
//! session, and whose response helps to explain why a dial failed.
//!
//! A peer whose certificate is not valid is probed as well: neither token nor certificate of the client is sent, and the
//! response is only shown to a person.

use std::io;
use std::sync::Arc;

use bytes::Bytes;
use http::{HeaderMap, StatusCode};
use rustls::ClientConfig;
use rustls::client::Resumption;
use tokio::io::{AsyncRead, AsyncWrite};
use tunnel_ops::connect;
use tunnel_ops::tls_files::TlsFilesError;

use super::observe::{Logged, Observer, StepRunner};
use super::step::StepError;
use super::{Dialler, tls, upgrade};
use crate::step::Step;

/// How a peer is probed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ProbeMode {
    /// Its certificate has to be valid.
    Verified,
    /// Its certificate is not verified.
    Unverified,
    /// Without TLS.
    Plain,
}

/// The response to a probe: its status, its fields, and the beginning of its content.
pub(crate) type ProbeResponse = (StatusCode, HeaderMap, Bytes);

impl Dialler {
    /// Sends one request without a credential, and returns its response.
    ///
    /// # Errors
    /// When a step fails.
    pub(crate) async fn probe(&self, mode: ProbeMode) -> Result<ProbeResponse, StepError> {
        self.probe_observed(mode, &mut Logged).await
    }

    /// Probes as [`Dialler::probe`] does, with an observer of its steps.
    ///
    /// # Errors
    /// When a step fails.
    pub(crate) async fn probe_observed(
        &self,
        mode: ProbeMode,
        observer: &mut dyn Observer,
    ) -> Result<ProbeResponse, StepError> {
        let mut steps = StepRunner::new(self.limit, observer);
        let (transport, _) = Box::pin(self.reach(&[], &mut steps)).await?;
        let name = &self.server_name;
        let io = match mode {
            ProbeMode::Plain => return self.ask(transport, &mut steps).await,
            ProbeMode::Verified => {
                self.tls
                    .secure(&mut steps, Step::Tls, transport, name, None)
                    .await?
            }
            ProbeMode::Unverified => {
                let handshake = async {
                    let config = unverified_config().map_err(io::Error::other)?;
                    connect::tls::handshake(transport, &config, connect::tls::server_name(name)?)
                        .await
                };
                steps.step(Step::Tls, handshake, |_, _| {}).await?
            }
        };
        self.ask(io, &mut steps).await
    }

    async fn ask<IO>(&self, io: IO, steps: &mut StepRunner<'_>) -> Result<ProbeResponse, StepError>
    where
        IO: AsyncRead + AsyncWrite + Unpin,
    {
        let limit = steps.limit();
        let asking = Box::pin(upgrade::probe(io, &self.host_field, limit));
        let step = steps.step_with_limit(Step::Upgrade, limit, asking, |_, _| {});
        step.await
    }
}

fn unverified_config() -> Result<Arc<ClientConfig>, TlsFilesError> {
    let mut config =
        Arc::unwrap_or_clone(connect::tls::config_without_verification(None, &tls::ALPN)?);
    // A session with an unverified peer is not resumed.
    config.resumption = Resumption::disabled();
    Ok(Arc::new(config))
}
