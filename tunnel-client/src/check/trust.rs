//! Why a CA file is not good: a slip in its path, a file of another kind, or the certificate in it.
//!
//! In: what reading it said, and the settings that name such files. Out: what a verdict needs. Of what is in the
//! file nothing is kept but its kind.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use tunnel_ops::settings::{GivenSettings, OneOrMorePaths};
use tunnel_ops::tls_files::TlsFilesError;

use super::facts::{TrustFault, TrustTrouble};
use crate::config::{Source, setting};

/// How much of a file tells its kind.
const LOOKED_AT: u64 = 64 * 1024;

/// What is wrong, and which setting names the file.
pub(super) fn trouble(error: &TlsFilesError, source: &Source) -> TrustTrouble {
    let (kind, origin) = match error {
        TlsFilesError::Unreadable { origin, source } => (unreadable(source), Some(origin)),
        TlsFilesError::NoCertificate { origin } => (content(origin), Some(origin)),
        TlsFilesError::DamagedCertificate { origin } => (TrustFault::Damaged, Some(origin)),
        TlsFilesError::NoRoots => (TrustFault::Nobody, None),
        _ => (TrustFault::Other, None),
    };
    TrustTrouble {
        kind,
        path: origin.map_or_else(String::new, |path| path.display().to_string()),
        named_by: origin
            .and_then(|path| named_by(path, source))
            .unwrap_or_default(),
        text: error.to_string(),
    }
}

fn unreadable(error: &io::Error) -> TrustFault {
    match error.kind() {
        io::ErrorKind::NotFound => TrustFault::Missing,
        io::ErrorKind::IsADirectory => TrustFault::Folder,
        io::ErrorKind::NotADirectory => TrustFault::File,
        _ => TrustFault::Unreadable,
    }
}

/// What a file holds that holds no certificate as PEM has it.
fn content(path: &Path) -> TrustFault {
    let mut begin = Vec::new();
    let read = File::open(path).and_then(|file| file.take(LOOKED_AT).read_to_end(&mut begin));
    if read.is_err() {
        return TrustFault::NoCertificate;
    }
    let holds = |words: &[u8]| begin.windows(words.len()).any(|part| part == words);
    match begin.first() {
        None => TrustFault::Empty,
        // DER begins with a sequence whose length takes two bytes.
        Some(0x30) if begin.get(1) == Some(&0x82) => TrustFault::Binary,
        _ if holds(b"PRIVATE KEY-----") => TrustFault::Key,
        _ if begin.iter().all(u8::is_ascii_whitespace) => TrustFault::Empty,
        _ => TrustFault::NoCertificate,
    }
}

/// The setting that names this file, or the folder that it is in.
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
    fn a_file_that_is_no_ca_file_is_told_by_its_kind() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("ca.pem");
        let source = Source {
            ca_file: Some(vec![path.clone()].into()),
            ..Source::default()
        };
        let fault = || {
            let error = Roots::none().and_files([&path]).unwrap_err();
            let trouble = trouble(&error, &source);
            assert_eq!(trouble.named_by, "--ca-file");
            assert!(trouble.path.ends_with("ca.pem"));
            trouble.kind
        };
        assert_eq!(fault(), TrustFault::Missing);
        fs::create_dir(&path).unwrap();
        assert_eq!(fault(), TrustFault::Folder);
        fs::remove_dir(&path).unwrap();
        let made = rcgen::generate_simple_self_signed(["a".to_owned()]).unwrap();
        let damaged = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
        for (content, kind) in [
            (b" \n".to_vec(), TrustFault::Empty),
            (b"tnlrt_1_secret".to_vec(), TrustFault::NoCertificate),
            (
                made.signing_key.serialize_pem().into_bytes(),
                TrustFault::Key,
            ),
            (made.cert.der().to_vec(), TrustFault::Binary),
            (damaged.into(), TrustFault::Damaged),
        ] {
            fs::write(&path, content).unwrap();
            assert_eq!(fault(), kind);
        }
    }
}
