//! The certificates that listeners show, chosen for each handshake by the name that the client asks for.

use std::{collections::HashMap, fmt, sync::Arc};

use arc_swap::ArcSwap;
use rcgen::{CertificateParams, CustomExtension, KeyPair};
use rustls_pki_types::PrivatePkcs8KeyDer;
use tokio_rustls::rustls::{
    self,
    crypto::aws_lc_rs,
    server::{ClientHello, ResolvesServerCert},
    sign::CertifiedKey,
};
use tunnel_ops::tls_files::Identity;

use crate::config::AcmeName;

/// The protocol of a TLS-ALPN-01 handshake (RFC 8737 section 6.2).
pub(crate) const ALPN: &[u8] = b"acme-tls/1";

/// The SHA-256 of a key authorization, which a certificate for TLS-ALPN-01 shows.
pub(super) type Digest = [u8; 32];

/// The certificates in force. A handshake takes no lock.
pub(super) struct Resolver {
    shown: ArcSwap<Shown>,
}

#[derive(Default, Clone)]
struct Shown {
    hosts: HashMap<String, Arc<CertifiedKey>>,
    /// By the domain above the hosts.
    wildcards: HashMap<String, Arc<CertifiedKey>>,
    /// For clients that ask for no name, or for one without a certificate: they then report that instead of a failed
    /// handshake.
    first: Option<Arc<CertifiedKey>>,
    /// By host.
    challenges: HashMap<String, Arc<CertifiedKey>>,
}

/// A certificate for a handshake of TLS-ALPN-01 cannot be made.
#[derive(Debug, thiserror::Error)]
pub(super) enum ChallengeError {
    #[error("cannot make the certificate for the ACME server's handshake: {0}")]
    Make(#[from] rcgen::Error),
    #[error("cannot use the certificate for the ACME server's handshake: {0}")]
    Use(#[from] rustls::Error),
}

impl Resolver {
    pub(super) fn new() -> Arc<Self> {
        Arc::new(Self {
            shown: ArcSwap::default(),
        })
    }

    /// Shows these from the next handshake on; the first is for clients that ask for no name.
    pub(super) fn show<'a>(&self, all: impl Iterator<Item = (&'a AcmeName, &'a Identity)> + Clone) {
        self.shown.rcu(|shown| {
            let mut next = Shown {
                challenges: shown.challenges.clone(),
                first: all
                    .clone()
                    .next()
                    .map(|(_, identity)| identity.certified_key()),
                ..Shown::default()
            };
            for (name, identity) in all.clone() {
                let named = match name.is_wildcard() {
                    true => &mut next.wildcards,
                    false => &mut next.hosts,
                };
                named.insert(name.domain().to_string(), identity.certified_key());
            }
            next
        });
    }

    /// Answers the ACME server's handshake for this host, until it is told not to.
    ///
    /// # Errors
    /// When the certificate cannot be made.
    pub(super) fn set_challenge(&self, host: &str, digest: &Digest) -> Result<(), ChallengeError> {
        let key = challenge_certificate(host, digest)?;
        self.shown.rcu(|shown| {
            let mut next = Shown::clone(shown);
            next.challenges.insert(host.to_owned(), key.clone());
            next
        });
        Ok(())
    }

    pub(super) fn remove_challenge(&self, host: &str) {
        self.shown.rcu(|shown| {
            let mut next = Shown::clone(shown);
            next.challenges.remove(host);
            next
        });
    }
}

impl Shown {
    fn choose(&self, name: Option<&str>, is_challenge: bool) -> Option<Arc<CertifiedKey>> {
        if is_challenge {
            return self.challenges.get(name?).cloned();
        }
        let found = name.and_then(|name| {
            let wildcard = || self.wildcards.get(name.split_once('.')?.1);
            self.hosts.get(name).or_else(wildcard)
        });
        found.or(self.first.as_ref()).cloned()
    }
}

impl ResolvesServerCert for Resolver {
    /// `None` before there is a certificate, which fails the handshake: a certificate that nobody trusts would teach
    /// people to ignore such errors.
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let mut alpn = hello.alpn().into_iter().flatten();
        let is_challenge = alpn.next() == Some(ALPN) && alpn.next().is_none();
        self.shown.load().choose(hello.server_name(), is_challenge)
    }
}

impl fmt::Debug for Resolver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Resolver").finish_non_exhaustive()
    }
}

/// The certificate of RFC 8737 section 3.
fn challenge_certificate(host: &str, digest: &Digest) -> Result<Arc<CertifiedKey>, ChallengeError> {
    let mut params = CertificateParams::new([host.to_owned()])?;
    params.custom_extensions = vec![CustomExtension::new_acme_identifier(digest)];
    let key = KeyPair::generate()?;
    let certificate = params.self_signed(&key)?;
    let key = PrivatePkcs8KeyDer::from(key.serialize_der());
    // Not an `Identity`, whose checks do not know the critical extension.
    let signing = aws_lc_rs::sign::any_supported_type(&key.into())?;
    let chain = vec![certificate.der().clone()];
    Ok(Arc::new(CertifiedKey::new(chain, signing)))
}

#[cfg(test)]
mod tests {
    use testkit::ca::Authority;

    use super::*;

    fn named(name: &str) -> (AcmeName, Identity) {
        let identity = Authority::new("test").issue(&[name]).identity();
        (name.parse().unwrap(), identity)
    }

    fn is(shown: &Resolver, name: Option<&str>, expected: &Identity) -> bool {
        let chosen = shown.shown.load().choose(name, false);
        chosen.is_some_and(|key| key.cert == expected.certified_key().cert)
    }

    #[test]
    fn the_name_decides_and_a_host_comes_before_a_wildcard() {
        let [first, wildcard, host] = ["a.example", "*.t.example", "x.t.example"].map(named);
        let resolver = Resolver::new();
        assert!(
            resolver
                .shown
                .load()
                .choose(Some("a.example"), false)
                .is_none()
        );
        let all = [&first, &wildcard, &host];
        resolver.show(all.into_iter().map(|(name, identity)| (name, identity)));
        assert!(is(&resolver, Some("a.example"), &first.1));
        assert!(is(&resolver, Some("x.t.example"), &host.1));
        assert!(is(&resolver, Some("y.t.example"), &wildcard.1));
        for other in [
            Some("t.example"),
            Some("z.y.t.example"),
            Some("localhost"),
            None,
        ] {
            assert!(is(&resolver, other, &first.1), "{other:?}");
        }
    }

    #[test]
    fn a_challenge_is_shown_to_its_handshake_only() {
        let resolver = Resolver::new();
        let chosen = |is_challenge| {
            let shown = resolver.shown.load();
            shown.choose(Some("a.example"), is_challenge)
        };
        assert!(chosen(true).is_none());
        resolver.set_challenge("a.example", &[7; 32]).unwrap();
        assert!(chosen(false).is_none());
        let key = chosen(true).unwrap();
        let (_, parsed) = x509_parser::parse_x509_certificate(&key.cert[0]).unwrap();
        let mut extensions = parsed.extensions().iter();
        let identifier = extensions
            .find(|extension| extension.oid.to_id_string() == "1.3.6.1.5.5.7.1.31")
            .unwrap();
        assert!(identifier.critical);
        assert!(identifier.value.ends_with(&[7; 32]));
        // A certificate in the meantime leaves it.
        let (name, identity) = named("b.example");
        resolver.show([(&name, &identity)].into_iter());
        assert!(chosen(true).is_some());
        resolver.remove_challenge("a.example");
        assert!(chosen(true).is_none());
    }
}
