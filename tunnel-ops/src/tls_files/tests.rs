//! Tests of reading TLS files, and of handshakes with the resulting configurations.

use std::io;
use std::time::Duration;

use rcgen::{CertifiedKey as Made, generate_simple_self_signed};
use rustls::HandshakeKind;
use rustls::pki_types::ServerName;

use super::*;

mod clients;

struct Pair {
    cert: String,
    key: String,
}

fn pair() -> Pair {
    let Made { cert, signing_key } = generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    Pair {
        cert: cert.pem(),
        key: signing_key.serialize_pem(),
    }
}

#[track_caller]
fn refused(cert: &str, key: &str) -> String {
    Identity::from_pem(cert, key).unwrap_err().to_string()
}

/// Both ends after a handshake and the session tickets that follow it.
struct Ends {
    client: rustls::ClientConnection,
    server: rustls::ServerConnection,
}

fn handshake(client: &Arc<ClientConfig>, server: &Arc<ServerConfig>) -> io::Result<Ends> {
    let name = ServerName::try_from("localhost").unwrap();
    let mut client = rustls::ClientConnection::new(Arc::clone(client), name).unwrap();
    let mut server = rustls::ServerConnection::new(Arc::clone(server)).unwrap();
    while client.is_handshaking() || server.is_handshaking() {
        let mut flight = Vec::new();
        client.write_tls(&mut flight)?;
        server.read_tls(&mut &flight[..])?;
        server.process_new_packets().map_err(io::Error::other)?;
        let mut flight = Vec::new();
        server.write_tls(&mut flight)?;
        client.read_tls(&mut &flight[..])?;
        client.process_new_packets().map_err(io::Error::other)?;
    }
    Ok(Ends { client, server })
}

fn is_resumed(client: &Arc<ClientConfig>, server: &Arc<ServerConfig>) -> bool {
    let Ends { client, .. } = handshake(client, server).unwrap();
    client.handshake_kind() == Some(HandshakeKind::Resumed)
}

#[test]
fn both_ends_agree_on_protocol_and_trust() {
    let Pair { cert, key } = pair();
    let identity = Identity::from_pem(&cert, &key).unwrap();
    let roots = Roots::from_pem(&cert).unwrap();
    let server = server_config(&identity, &[b"h2", b"http/1.1"], None).unwrap();
    let client = client_config(&roots, None, &[b"http/1.1"]).unwrap();
    let Ends { client, server } = handshake(&client, &server).unwrap();
    assert_eq!(server.alpn_protocol(), Some(&b"http/1.1"[..]));
    assert_eq!(
        client.protocol_version(),
        Some(rustls::ProtocolVersion::TLSv1_3)
    );
}

#[test]
fn a_certificate_of_another_root_is_not_trusted() {
    let (ours, other) = (pair(), pair());
    let identity = Identity::from_pem(&ours.cert, &ours.key).unwrap();
    let roots = Roots::from_pem(&other.cert).unwrap();
    let server = server_config(&identity, &[], None).unwrap();
    assert!(handshake(&client_config(&roots, None, &[]).unwrap(), &server).is_err());
}

#[test]
fn a_returning_client_resumes_its_session() {
    let Pair { cert, key } = pair();
    let identity = Identity::from_pem(&cert, &key).unwrap();
    let server = server_config(&identity, &[b"http/1.1"], None).unwrap();
    let roots = Roots::from_pem(&cert).unwrap();
    let client = client_config(&roots, None, &[b"http/1.1"]).unwrap();
    assert!(!is_resumed(&client, &server));
    assert!(is_resumed(&client, &server));
    assert!(is_resumed(&client, &server), "each time");
}

#[test]
fn a_key_of_another_certificate_is_refused() {
    let error = refused(&pair().cert, &pair().key);
    assert!(
        error.starts_with("key: the key does not belong to the first certificate in certificate"),
        "{error}"
    );
}

#[test]
fn files_with_other_content_are_refused_without_quoting_them() {
    let Pair { cert, key } = pair();
    assert!(refused(&key, &key).starts_with("certificate: holds no certificate"));
    assert!(refused(&cert, &cert).starts_with("key: holds no usable private key"));
    let damaged = key.replacen("\nM", "\n!", 1);
    let error = refused(&cert, &damaged);
    assert!(
        error.starts_with("key: holds no usable private key"),
        "{error}"
    );
    assert!(!error.contains("BEGIN PRIVATE"), "{error}");
    let cut = "-----BEGIN CERTIFICATE-----\nMIIB\n";
    assert!(refused(cut, &key).starts_with("certificate: holds a damaged certificate"));
    let hollow = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
    assert!(refused(hollow, &key).starts_with("certificate: holds a damaged certificate"));
    assert!(
        Roots::from_pem(hollow)
            .unwrap_err()
            .to_string()
            .contains("damaged")
    );
}

/// Made by `openssl x509 -req` without extensions, for 100 years.
const VERSION_1: (&str, &str) = (
    "-----BEGIN CERTIFICATE-----\n\
     MIIBIzCBywIUEXm6j/+Scd+tbypjn3ixJA4Ah7cwCgYIKoZIzj0EAwIwFDESMBAG\n\
     A1UEAwwJbG9jYWxob3N0MCAXDTI2MTEyODAyMjMwMloYDzIxMjYxMTA0MDIyMzAy\n\
     WjAUMRIwEAYDVQQDDAlsb2NhbGhvc3QwWTATBgcqhkjOPQIBBggqhkjOPQMBBwNC\n\
     AARlxYQzvG5aqsf0Pg/wwR7dUrX7FXuUiFqy+KW2lUIlyLtN+Izi1HXXqS0JtsAj\n\
     3RBQCmgDmnMA4UioJZjDK+ezMAoGCCqGSM49BAMCA0cAMEQCICJOFQvph3XOAcct\n\
     2n0LtkV7+keSHzHsZjxXkl7elWBaAiBlSq6x4Rxa5x+aVTdCpO0H/VtsbSyVw3b1\n\
     qB/vZrUuew==\n\
     -----END CERTIFICATE-----\n",
    "-----BEGIN PRIVATE KEY-----\n\
     MIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQgo6qRlRGdEuKvplMU\n\
     /lcH5Ce5wFJJQ1wNo+ClEubwoSehRANCAARlxYQzvG5aqsf0Pg/wwR7dUrX7FXuU\n\
     iFqy+KW2lUIlyLtN+Izi1HXXqS0JtsAj3RBQCmgDmnMA4UioJZjDK+ez\n\
     -----END PRIVATE KEY-----\n",
);

#[test]
fn a_certificate_of_version_1_is_not_called_damaged() {
    let (cert, key) = VERSION_1;
    let error = refused(cert, key);
    assert!(
        error.starts_with("certificate: holds a certificate of X.509 version 1"),
        "{error}"
    );
    // As a root it can be used.
    assert!(Roots::from_pem(cert).is_ok());
}

#[test]
fn each_faulty_file_is_named_once() {
    let (cert, key) = (Path::new("/nowhere/a.pem"), Path::new("/nowhere/a.key"));
    let error = Identity::load(cert, key).unwrap_err().to_string();
    assert!(
        error.starts_with("/nowhere/a.pem: cannot be read"),
        "{error}"
    );
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    fs::write(path("cert"), pair().cert).unwrap();
    fs::write(path("key"), pair().key).unwrap();
    fs::write(path("bad"), "bad").unwrap();
    for (cert, key, expected) in [
        ("bad", "nowhere", &["bad", "nowhere"][..]),
        ("nowhere", "bad", &["nowhere", "bad"]),
        ("nowhere", "key", &["nowhere"]),
        ("cert", "bad", &["bad"]),
        // The key of another one.
        ("cert", "key", &["key"]),
    ] {
        let mut faults: Vec<TlsFilesError> = Vec::new();
        assert!(Identity::load_or_fault(&path(cert), &path(key), &mut faults).is_none());
        let faulty = faults.iter().map(|fault| fault.file().unwrap().path);
        let expected = expected.iter().map(|name| path(name));
        assert!(faulty.eq(expected), "{cert} {key}: {faults:?}");
    }
}

#[test]
fn a_ca_file_adds_to_the_systems_roots() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("ca.pem");
    // Some editors write a byte order mark.
    fs::write(&file, format!("\u{feff}{}", pair().cert)).unwrap();
    assert!(!Roots::load(Some(&file)).unwrap().store.is_empty());
}

#[test]
fn roots_are_combined_from_files_and_must_not_be_empty() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let (one, two) = (pair().cert, pair().cert);
    fs::write(path("one.pem"), &one).unwrap();
    fs::write(path("two.pem"), &two).unwrap();
    let none = Roots::none();
    assert!(matches!(
        none.clone().checked(),
        Err(TlsFilesError::NoRoots)
    ));
    assert!(matches!(none.verifier(), Err(TlsFilesError::NoRoots)));
    let both = none.and_files([path("one.pem"), path("two.pem")]).unwrap();
    assert_eq!(both, Roots::from_pem(&format!("{one}{two}")).unwrap());
    assert!(both.verifier().is_ok() && both.clone().checked().is_ok());
    let bad = none.and_files([path("one.pem"), path("three.pem")]);
    assert!(
        bad.unwrap_err()
            .to_string()
            .contains("three.pem: cannot be read")
    );
    assert_eq!(none, Roots::none(), "the original is unchanged");
}

#[test]
fn debug_shows_no_key() {
    let Pair { cert, key } = pair();
    let identity = Identity::from_pem(&cert, &key).unwrap();
    assert_eq!(format!("{identity:?}"), "Identity { certificates: 1, .. }");
}

#[test]
fn identities_have_an_expiry_and_equality() {
    let mut params = rcgen::CertificateParams::new(["localhost".to_owned()]).unwrap();
    params.not_after = rcgen::date_time_ymd(2033, 5, 18);
    let key = rcgen::KeyPair::generate().unwrap();
    let cert = params.self_signed(&key).unwrap();
    let identity = Identity::from_pem(&cert.pem(), &key.serialize_pem()).unwrap();
    let end = SystemTime::UNIX_EPOCH + Duration::from_secs(1_999_987_200);
    assert_eq!(identity.not_after(), end);
    let again = Identity::from_pem(&cert.pem(), &key.serialize_pem()).unwrap();
    assert_eq!(identity, again);
    let Pair { cert, key } = pair();
    assert_ne!(identity, Identity::from_pem(&cert, &key).unwrap());
}

#[test]
fn an_expired_certificate_does_not_replace_a_valid_one() {
    let until = |year| {
        let mut params = rcgen::CertificateParams::new(["localhost".to_owned()]).unwrap();
        params.not_before = rcgen::date_time_ymd(2019, 1, 1);
        params.not_after = rcgen::date_time_ymd(year, 2, 1);
        let key = rcgen::KeyPair::generate().unwrap();
        let cert = params.self_signed(&key).unwrap();
        Identity::from_pem(&cert.pem(), &key.serialize_pem()).unwrap()
    };
    let (good, over, older) = (until(2999), until(2021), until(2020));
    let live = LiveServerConfig::new(good.clone(), &[], None).unwrap();
    let refusal = live.replace(over.clone(), None).unwrap_err().to_string();
    assert!(
        refusal.contains("expired on 2021-02-01T00:00:00Z"),
        "{refusal}"
    );
    assert_eq!(live.not_after(), Some(good.not_after()));
    // If the current certificate has expired too, nothing is lost.
    let live = LiveServerConfig::new(over, &[], None).unwrap();
    assert!(live.replace(older, None).unwrap());
    assert!(live.replace(good, None).unwrap());
}

#[test]
fn load_only_trusts_no_system_roots() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("ca.pem");
    let ca = pair().cert;
    fs::write(&file, &ca).unwrap();
    let roots = Roots::load_only(&file).unwrap();
    assert_eq!(roots, Roots::from_pem(&ca).unwrap());
    assert_ne!(roots, Roots::from_pem(&pair().cert).unwrap());
    fs::write(&file, "").unwrap();
    let error = Roots::load_only(&file).unwrap_err().to_string();
    assert!(error.contains("ca.pem: holds no certificate"), "{error}");
}
