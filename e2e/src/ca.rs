//! Certificates in files, for child processes; made at test time. `testkit/src/ca.rs` makes them in memory.
//!
//! A [`Ca`] issues certificates for names, good ones and, on purpose, bad ones. The files lie in
//! the directory that the test names; keys never leave it.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use rcgen::{SerialNumber, date_time_ymd};
use rustls::{ClientConfig, RootCertStore, ServerConfig, crypto::aws_lc_rs};
use rustls_pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject};
use testkit::ca::{Authority, CertifiedKey};

/// A certificate authority that nobody else trusts.
#[derive(Debug)]
pub struct Ca {
    authority: Authority,
    directory: PathBuf,
}

/// A certificate and its key, as files.
#[derive(Clone, Debug)]
pub struct Certificate {
    /// PEM file of the certificate.
    pub certificate: PathBuf,
    /// PEM file of the private key.
    pub key: PathBuf,
}

impl Ca {
    /// Makes an authority that writes its files, `ca.pem` first, into `directory`.
    pub fn new(directory: &Path) -> Self {
        Self::named(directory, "e2e throw-away authority")
    }

    /// Makes an authority with this common name.
    pub fn named(directory: &Path, name: &str) -> Self {
        let ca = Self {
            authority: Authority::new(name),
            directory: directory.to_owned(),
        };
        std::fs::write(ca.file(), ca.authority.pem()).unwrap();
        ca
    }

    /// PEM file of the authority's own certificate.
    pub fn file(&self) -> PathBuf {
        self.directory.join("ca.pem")
    }

    /// A certificate for `names` (DNS names or addresses), in files called after `name`.
    pub fn issue(&self, name: &str, names: &[&str]) -> Certificate {
        self.write(name, &self.authority.issue(names))
    }

    /// A certificate that was good once and is no longer.
    pub fn issue_expired(&self, name: &str, names: &[&str]) -> Certificate {
        let issued = self.authority.issue_with(names, |params| {
            params.not_before = date_time_ymd(2020, 1, 1);
            params.not_after = date_time_ymd(2021, 1, 1);
        });
        self.write(name, &issued)
    }

    /// A certificate that is good now, and was not before the year 2025.
    pub fn issue_young(&self, name: &str, names: &[&str]) -> Certificate {
        let issued = self.authority.issue_with(names, |params| {
            params.not_before = date_time_ymd(2025, 1, 1);
        });
        self.write(name, &issued)
    }

    /// A certificate with this serial number, for [`Ca::revoking`].
    pub fn issue_numbered(&self, name: &str, names: &[&str], serial: u64) -> Certificate {
        let issued = self.authority.issue_with(names, |params| {
            params.serial_number = Some(SerialNumber::from(serial));
        });
        self.write(name, &issued)
    }

    /// The revocation list of these serial numbers, PEM.
    pub fn revoking(&self, serials: &[u64]) -> String {
        self.authority.revocation_list(serials)
    }

    /// A TLS client's configuration that trusts this authority and nobody else.
    ///
    /// # Panics
    /// When the authority's own certificate cannot be used, which is a fault of this crate.
    pub fn client_config(&self) -> ClientConfig {
        let mut roots = RootCertStore::empty();
        let authority = CertificateDer::from_pem_file(self.file()).unwrap();
        roots.add(authority).unwrap();
        ClientConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth()
    }

    fn write(&self, name: &str, issued: &CertifiedKey) -> Certificate {
        let files = Certificate {
            certificate: self.directory.join(format!("{name}.pem")),
            key: self.directory.join(format!("{name}.key")),
        };
        std::fs::write(&files.certificate, &issued.certificate).unwrap();
        std::fs::write(&files.key, &issued.key).unwrap();
        files
    }
}

impl Certificate {
    /// A TLS server's configuration that shows this certificate and speaks the `alpn` protocols.
    ///
    /// # Panics
    /// When the files are gone.
    pub fn server_config(&self, alpn: &[&str]) -> ServerConfig {
        let chain = CertificateDer::pem_file_iter(&self.certificate).unwrap();
        let chain = chain.collect::<Result<Vec<_>, _>>().unwrap();
        let key = PrivateKeyDer::from_pem_file(&self.key).unwrap();
        let mut config =
            ServerConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
                .with_safe_default_protocol_versions()
                .unwrap()
                .with_no_client_auth()
                .with_single_cert(chain, key)
                .unwrap();
        config.alpn_protocols = alpn
            .iter()
            .map(|protocol| protocol.as_bytes().to_vec())
            .collect();
        config
    }
}
