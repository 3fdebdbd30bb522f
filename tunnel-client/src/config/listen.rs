//! The checked configuration of `serve`: a listener and what answers behind it, and no tunnel.
//!
//! In comes a [`Source`], as for a tunnel, so that one file does for both. Settings that only a tunnel needs are
//! ignored.

use tunnel_ops::tls_files::Identity;
use tunnel_routing::config::{RouteList, UpstreamOptions};
use tunnel_routing::url::UpstreamUrl;

use super::{
    CertificateFiles, ConfigError, ConfigFault, Settings, Source, check_dns_servers, defaults,
    or_fault, reload, setting,
};

/// Everything that `serve` needs to know.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct ServeConfig {
    /// What each setting stands at. Of those that only a tunnel needs none counts.
    pub settings: Settings,
    /// The certificate that the listener shows, read again when it changes; none for plain HTTP. Default none.
    pub certificate: Option<CertificateFiles>,
    /// All routes, that to the upstream for all the rest among them.
    pub routes: RouteList,
}

impl ServeConfig {
    /// A configuration with all defaults, and one route for everything.
    #[must_use]
    pub fn new(upstream: UpstreamUrl) -> Self {
        let settings = Settings::default();
        let options = UpstreamOptions::of(&defaults(&settings), None);
        Self {
            settings,
            certificate: None,
            routes: RouteList::default().with_default(upstream, options),
        }
    }

    /// Checks everything that was given and that `serve` needs, reading the files it names.
    ///
    /// # Errors
    /// With every fault at once.
    pub fn check(source: &Source) -> Result<Self, ConfigError> {
        let mut faults = Vec::new();
        let certificate = certificate(source, &mut faults);
        check_dns_servers(source, &mut faults);
        match reload::check(source) {
            Ok(routes) if faults.is_empty() => Ok(Self {
                settings: source.settings(),
                certificate,
                routes,
            }),
            Ok(_) => Err(ConfigError::new(faults)),
            Err(more) => {
                faults.extend(more.into_vec());
                Err(ConfigError::new(faults))
            }
        }
    }
}

fn certificate(source: &Source, faults: &mut Vec<ConfigFault>) -> Option<CertificateFiles> {
    let (alone, problem) = match (&source.listen_cert, &source.listen_key) {
        (None, None) => return None,
        (Some(cert), Some(key)) => {
            or_fault(faults, Identity::load(cert, key))?;
            let (cert, key) = (cert.clone(), key.clone());
            return Some(CertificateFiles { cert, key });
        }
        (Some(_), None) => (
            &setting::listen_cert,
            "its key is missing: give --listen-key as well",
        ),
        (None, Some(_)) => (
            &setting::listen_key,
            "its certificate is missing: give --listen-cert as well",
        ),
    };
    faults.push(source.fault(alone, problem));
    None
}
