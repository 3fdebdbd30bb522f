//! What the client proves itself by: which files were named, checked together.
//!
//! In comes a [`Source`]; out come the paths, once all that is needed could be read from them: better
//! to fail now than at the first dial.

use std::path::PathBuf;

use tunnel_ops::tls_files::Identity;

use super::{ConfigFault, Source, or_fault, required, setting};
use crate::token_file;

/// A certificate chain and the key that belongs to it, PEM.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CertificateFiles {
    /// The chain, the client's own certificate first.
    pub cert: PathBuf,
    /// Its key.
    pub key: PathBuf,
}

/// Reads the token's file and the certificate's, of which at least one has to be there; `None` when something is wrong.
pub(super) fn check(
    source: &Source,
    faults: &mut Vec<ConfigFault>,
) -> Option<Option<CertificateFiles>> {
    let certificate = certificate(source, faults)?;
    if source.token_file.is_some() || certificate.is_none() {
        let purpose = "the file that holds the token, unless --client-cert is given";
        let path = source.token_file.as_ref();
        let path = required(faults, path, &setting::token_file, purpose)?;
        or_fault(faults, token_file::read(path))?;
    }
    Some(certificate)
}

fn certificate(source: &Source, faults: &mut Vec<ConfigFault>) -> Option<Option<CertificateFiles>> {
    let (alone, problem) = match (&source.client_cert, &source.client_key) {
        (None, None) => return Some(None),
        (Some(cert), Some(key)) => {
            or_fault(faults, Identity::load(cert, key))?;
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
