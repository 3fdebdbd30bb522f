//! Why a CA file cannot be used: a slip in its path, a file of another kind, or a damaged certificate.
//!
//! In: the error of reading it, and the settings that name such files. Out: the kind of fault; nothing of the file's
//! content.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use tunnel_ops::settings::{GivenSettings, OneOrMorePaths};
use tunnel_ops::tls_files::TlsFilesError;

use crate::config::{Source, setting};

/// Bytes of a file that are read to tell its kind.
const PROBED_BYTES: u64 = 64 * 1024;

/// Why no peer's certificate can be verified.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct TrustFailure {
    pub(super) fault: CaFileFault,
    /// The file or folder, and the setting that names it; empty where there is none.
    pub(super) path: String,
    pub(super) named_by: String,
    /// The error as a sentence.
    pub(super) text: String,
}

/// What is wrong with a CA file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CaFileFault {
    Missing,
    Unreadable,
    /// A folder, where a file is needed.
    Folder,
    /// A file, where a folder is needed.
    File,
    Empty,
    /// A private key.
    Key,
    /// A certificate in DER form.
    Der,
    NoCertificate,
    Damaged,
    /// No CA is trusted at all.
    NoRoots,
    Other,
}

/// What is wrong, and which setting names the file.
pub(super) fn failure(error: &TlsFilesError, source: &Source) -> TrustFailure {
    let (fault, origin) = match error {
        TlsFilesError::Unreadable { origin, source } => (unreadable(source), Some(origin)),
        TlsFilesError::NoCertificate { origin } => (content(origin), Some(origin)),
        TlsFilesError::DamagedCertificate { origin } => (CaFileFault::Damaged, Some(origin)),
        TlsFilesError::NoRoots => (CaFileFault::NoRoots, None),
        _ => (CaFileFault::Other, None),
    };
    TrustFailure {
        fault,
        path: origin.map_or_else(String::new, |path| path.display().to_string()),
        named_by: origin
            .and_then(|path| named_by(path, source))
            .unwrap_or_default(),
        text: error.to_string(),
    }
}

fn unreadable(error: &io::Error) -> CaFileFault {
    match error.kind() {
        io::ErrorKind::NotFound => CaFileFault::Missing,
        io::ErrorKind::IsADirectory => CaFileFault::Folder,
        io::ErrorKind::NotADirectory => CaFileFault::File,
        _ => CaFileFault::Unreadable,
    }
}

/// The kind of a file that has no certificate in PEM form.
fn content(path: &Path) -> CaFileFault {
    let mut begin = Vec::new();
    let read = File::open(path).and_then(|file| file.take(PROBED_BYTES).read_to_end(&mut begin));
    if read.is_err() {
        return CaFileFault::NoCertificate;
    }
    let holds = |words: &[u8]| begin.windows(words.len()).any(|part| part == words);
    match begin.first() {
        None => CaFileFault::Empty,
        // DER begins with a sequence that has a length of two bytes.
        Some(0x30) if begin.get(1) == Some(&0x82) => CaFileFault::Der,
        _ if holds(b"PRIVATE KEY-----") => CaFileFault::Key,
        _ if begin.iter().all(u8::is_ascii_whitespace) => CaFileFault::Empty,
        _ => CaFileFault::NoCertificate,
    }
}

/// The setting that names this file or its folder.
fn named_by(path: &Path, source: &Source) -> Option<String> {
    let upstream = source.upstream_ca_file.clone();
    let upstream = upstream.map(|path| OneOrMorePaths::from(vec![path]));
    let settings = [
        (&setting::ca_file, &source.ca_file),
        (&setting::ca_dir, &source.ca_dir),
        (&setting::proxy_ca_file, &source.proxy_ca_file),
        (&setting::proxy_ca_dir, &source.proxy_ca_dir),
        (&setting::upstream_ca_file, &upstream),
    ];
    let names_it =
        |paths: &OneOrMorePaths| paths.as_slice().iter().any(|named| path.starts_with(named));
    let (setting, _) =
        (settings.into_iter()).find(|(_, paths)| paths.as_ref().is_some_and(names_it))?;
    Some(source.origin(setting).mention())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use tunnel_ops::tls_files::Roots;

    use super::*;

    #[test]
    fn a_file_that_is_no_ca_file_is_known_by_its_kind() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("ca.pem");
        let source = Source {
            ca_file: Some(vec![path.clone()].into()),
            ..Source::default()
        };
        let fault = || {
            let error = Roots::none().and_files([&path]).unwrap_err();
            let failure = failure(&error, &source);
            assert_eq!(failure.named_by, "--ca-file");
            assert!(failure.path.ends_with("ca.pem"));
            failure.fault
        };
        assert_eq!(fault(), CaFileFault::Missing);
        fs::create_dir(&path).unwrap();
        assert_eq!(fault(), CaFileFault::Folder);
        fs::remove_dir(&path).unwrap();
        let made = rcgen::generate_simple_self_signed(["a".to_owned()]).unwrap();
        let damaged = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
        for (content, kind) in [
            (b" \n".to_vec(), CaFileFault::Empty),
            (b"tnlrt_1_secret".to_vec(), CaFileFault::NoCertificate),
            (
                made.signing_key.serialize_pem().into_bytes(),
                CaFileFault::Key,
            ),
            (made.cert.der().to_vec(), CaFileFault::Der),
            (damaged.into(), CaFileFault::Damaged),
        ] {
            fs::write(&path, content).unwrap();
            assert_eq!(fault(), kind);
        }
    }
}
