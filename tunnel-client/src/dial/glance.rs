//! A look at whoever answers in the server's place: the same way, but no session is asked for, and nothing is
//! shown that is worth anything.
//!
//! For whoever wants to know why a dial has failed. One who cannot prove who he is is looked at as well, since
//! he is told nothing and believed in nothing that matters: neither token nor certificate of the client goes
//! there, and what comes back is words for a person.

use std::io;
use std::sync::Arc;

use bytes::Bytes;
use http::{HeaderMap, StatusCode};
use rustls::ClientConfig;
use rustls::client::Resumption;
use tunnel_ops::connect;
use tunnel_ops::tls_files::TlsFilesError;

use super::observe::{Logged, Observer, Walk};
use super::step::{Step, StepError};
use super::{Dialler, tls, upgrade};

/// How whoever answers is looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Look {
    /// He has to prove that he is the server.
    Proven,
    /// He need not.
    Unproven,
    /// Without TLS, which he does not speak.
    Plain,
}

/// An answer to nobody in particular: its status, its fields, and the beginning of its content.
pub(crate) type Glance = (StatusCode, HeaderMap, Bytes);

impl Dialler {
    /// Asks for no session, without a credential, and returns what is answered.
    ///
    /// # Errors
    /// As a dial fails.
    pub(crate) async fn glance(&self, look: Look) -> Result<Glance, StepError> {
        self.glance_observed(look, &mut Logged).await
    }

    /// The same, while somebody watches.
    ///
    /// # Errors
    /// As a dial fails.
    pub(crate) async fn glance_observed(
        &self,
        look: Look,
        observer: &mut dyn Observer,
    ) -> Result<Glance, StepError> {
        let mut walk = Walk::new(self.limit, observer);
        let (link, _) = Box::pin(self.reach(&mut walk)).await?;
        let (name, limit) = (&self.server_name, walk.limit());
        let io = match look {
            Look::Plain => {
                let asking = Box::pin(upgrade::look(link, &self.host_field, limit));
                let asked = walk.step_with_limit(Step::Upgrade, limit, asking, |_, _| {});
                return asked.await;
            }
            Look::Proven => {
                self.tls
                    .secure(&mut walk, Step::Tls, link, name, None)
                    .await?
            }
            Look::Unproven => {
                let handshake = async {
                    let config = unproven_config().map_err(io::Error::other)?;
                    connect::tls::handshake(link, &config, connect::tls::server_name(name)?).await
                };
                walk.step(Step::Tls, handshake, |_, _| {}).await?
            }
        };
        let asking = Box::pin(upgrade::look(io, &self.host_field, limit));
        let asked = walk.step_with_limit(Step::Upgrade, limit, asking, |_, _| {});
        asked.await
    }
}

fn unproven_config() -> Result<Arc<ClientConfig>, TlsFilesError> {
    let mut config = Arc::unwrap_or_clone(connect::tls::unchecked(None, &tls::ALPN)?);
    // Nobody is to be known again by it.
    config.resumption = Resumption::disabled();
    Ok(Arc::new(config))
}
