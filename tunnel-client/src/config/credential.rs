//! Checks which files hold the client's credential.
//!
//! In: a [`Source`]. Out: the paths, after the files could be read, so that a fault is found at the start and not at the
//! first dial.

use std::path::PathBuf;

use tunnel_ops::tls_files::Identity;

use super::{ConfigFault, Source, or_fault, required, setting};
use crate::token_file;

/// The files of a certificate chain and its key, PEM.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CertificateFiles {
    /// The chain, the client's own certificate first.
    pub cert: PathBuf,
    /// Its key.
    pub key: PathBuf,
}

/// Reads the files of the token and the certificate, one of which is required; `None` after a fault.
pub(super) fn check(
    source: &Source,
    faults: &mut Vec<ConfigFault>,
) -> Option<Option<CertificateFiles>> {
    let certificate = certificate(source, faults);
    if source.token_file.is_some() || matches!(certificate, Some(None)) {
        let purpose = "the file that holds the token, unless --client-cert is given";
        let path = source.token_file.as_ref();
        let path = required(faults, path, &setting::token_file, purpose)?;
        or_fault(faults, token_file::read(path))?;
    }
    certificate
}

fn certificate(source: &Source, faults: &mut Vec<ConfigFault>) -> Option<Option<CertificateFiles>> {
    let (alone, problem) = match (&source.client_cert, &source.client_key) {
        (None, None) => return Some(None),
        (Some(cert), Some(key)) => {
            Identity::load_or_fault(cert, key, faults)?;
            let (cert, key) = (cert.clone(), key.clone());
            return Some(Some(CertificateFiles { cert, key }));
        }
        (Some(_), None) => (
            &setting::client_cert,
            "its key is missing: give --client-key as well",
        ),
        (None, Some(_)) => (
            &setting::client_key,
            "its certificate is missing: give --client-cert as well",
        ),
    };
    faults.push(source.fault(alone, problem));
    None
}
