//! Every verdict as a table: a failure with its evidence, and the verdict's name.

mod responses;
mod upstreams;

use std::io::{Error, ErrorKind};
use std::time::{Duration, SystemTime};

use rustls::{AlertDescription, CertificateError, Error as TlsError, InvalidMessage};
use rustls::{OtherError, PeerIncompatible};
use tunnel_ops::connect::{AllFailed, Attempt};
use tunnel_proto::close::CloseReason;
use tunnel_proto::handshake::Refusal;

use super::*;
use crate::check::certificate::CertificateEvidence;
use crate::check::evidence::{ClockEvidence, Evidence, ResponseEvidence};
use crate::check::session::SessionFailure;
use crate::check::token::{TokenEvidence, TokenKind};
use crate::check::trust::{CaFileFault, TrustFailure};
use crate::config::LoginError;
use crate::dial::proxy_error::{ProxyError, ProxyResponse};
use crate::dial::{Crowded, StepError};
use crate::step::Step;
use crate::token_file::TokenFileError;

const HOST: &str = "tunnel.example.com";
const DAY: Duration = Duration::from_secs(24 * 60 * 60);
const LIMIT: Duration = Duration::from_secs(10);

fn now() -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_secs(1_800_000_000)
}

fn evidence(change: impl FnOnce(&mut Evidence)) -> Evidence {
    let mut evidence = Evidence::new(HOST, 443, now());
    change(&mut evidence);
    evidence
}

fn certificate(issuer: &str, change: impl FnOnce(&mut CertificateEvidence)) -> CertificateEvidence {
    let mut made = CertificateEvidence {
        subject: format!("CN={HOST}"),
        issuer: format!("CN={issuer}"),
        issuer_name: issuer.to_owned(),
        not_before: now() - DAY,
        not_after: now() + DAY,
        names: vec![HOST.to_owned()],
        is_self_signed: false,
        is_authority: false,
        is_logged: false,
    };
    change(&mut made);
    made
}

fn answered(status: u16, change: impl FnOnce(&mut ResponseEvidence)) -> ResponseEvidence {
    let mut response = ResponseEvidence {
        status,
        ..ResponseEvidence::default()
    };
    change(&mut response);
    response
}

fn refusal(reason: &str) -> Refusal {
    Refusal {
        reason: reason.to_owned(),
        detail: format!("the server's words about {reason}"),
        fatal: true,
    }
}

/// The clock is so much behind the server's.
fn behind(by: Duration) -> ClockEvidence {
    ClockEvidence {
        here: now(),
        there: now() + by,
        is_servers: true,
    }
}

#[track_caller]
fn check(verdict: Verdict, name: &str) -> Verdict {
    assert_eq!(verdict.name, name, "{verdict:?}");
    assert!(
        verdict.sentence.len() > 20 && verdict.advice.len() > 20,
        "{verdict:?}"
    );
    verdict
}

/// This step fails with this error.
fn failed(step: Step, error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> StepError {
    StepError::Failed(step, Error::other(error))
}

fn invalid(step: Step, error: CertificateError) -> StepError {
    failed(step, TlsError::InvalidCertificate(error))
}

fn unreached(step: Step, kinds: &[ErrorKind]) -> StepError {
    let attempts = kinds.iter().map(|kind| Attempt {
        address: "192.0.2.7:443".parse().unwrap(),
        error: (*kind).into(),
    });
    failed(step, AllFailed::new(attempts.collect()))
}

#[test]
fn files_of_this_machine() {
    check(config(&["--server is missing".into()]), "config_invalid");
    check(identity("no key"), "certificate_file_unusable");
    let path = || "token".into();
    let unreadable = |kind: ErrorKind| TokenFileError::Unreadable {
        path: path(),
        source: kind.into(),
    };
    for (error, name) in [
        (TokenFileError::TokenItself, "token_file_is_token"),
        (unreadable(ErrorKind::NotFound), "token_file_missing"),
        (
            unreadable(ErrorKind::PermissionDenied),
            "token_file_unreadable",
        ),
        (
            TokenFileError::NotAFile { path: path() },
            "token_file_irregular",
        ),
        (TokenFileError::Empty { path: path() }, "token_file_empty"),
        (
            TokenFileError::NotAToken { path: path() },
            "token_file_malformed",
        ),
    ] {
        check(token_file(&error), name);
    }
}

/// The advice on a mistyped path is not about certificates.
#[test]
fn ca_files_that_are_none() {
    for (fault, sentence, advice) in [
        (
            CaFileFault::Missing,
            "/etc/ca.pem that `ca_file` in line 3 of c.toml names does not exist",
            "for a slip",
        ),
        (
            CaFileFault::Unreadable,
            "cannot be read: its words",
            "let the user",
        ),
        (CaFileFault::Folder, "is a folder", "--ca-dir"),
        (CaFileFault::File, "is a file", "--ca-file"),
        (CaFileFault::Empty, "is empty", "into it"),
        (CaFileFault::Key, "private key", "the CA's certificate"),
        (CaFileFault::Der, "DER", "openssl"),
        (
            CaFileFault::NoCertificate,
            "holds no CA certificate",
            "another file",
        ),
        (CaFileFault::Damaged, "damaged", "complete file"),
        (CaFileFault::NoRoots, "its words", "ca-certificates"),
    ] {
        let failure = TrustFailure {
            fault,
            path: "/etc/ca.pem".to_owned(),
            named_by: "`ca_file` in line 3 of c.toml".to_owned(),
            text: "its words".to_owned(),
        };
        let verdict = check(trust(&failure), "trust_unusable");
        assert!(verdict.sentence.contains(sentence), "{verdict:?}");
        assert!(verdict.advice.contains(advice), "{verdict:?}");
    }
}

#[test]
fn names_that_have_no_address() {
    for (host, text, hint) in [
        (
            "tunnel.example.con",
            "Name or service not known",
            "tunnel.example.com meant",
        ),
        ("tunnel", "Name or service not known", "no dot"),
        (
            "tunnel.platform.svc",
            "Name or service not known",
            "name of a cluster",
        ),
        (HOST, "Name or service not known", "check the spelling"),
        (
            HOST,
            "Temporary failure in name resolution",
            "no name server",
        ),
        // As musl says it.
        (HOST, "Try again", "no name server"),
    ] {
        let none = evidence(|evidence| {
            evidence.host = host.to_owned();
            evidence.proxy_host = host.to_owned();
        });
        for (at, name) in [
            (Step::Dns, "dns_failure"),
            (Step::ProxyDns, "proxy_dns_failure"),
        ] {
            let verdict = check(step(&none, &failed(at, text)), name);
            assert!(verdict.advice.contains(hint), "{verdict:?}");
        }
    }
    let by_proxy = evidence(|evidence| evidence.proxy = Some("http://proxy:3128".into()));
    let verdict = step(&by_proxy, &failed(Step::Dns, ""));
    assert!(!verdict.advice.contains("--proxy"));
}

#[test]
fn addresses_that_are_not_reached() {
    let none = evidence(|_| {});
    for (kinds, server, proxy) in [
        (
            &[ErrorKind::ConnectionRefused][..],
            "connect_refused",
            "proxy_connect_refused",
        ),
        (
            &[ErrorKind::TimedOut],
            "connect_timeout",
            "proxy_connect_timeout",
        ),
        (
            &[ErrorKind::NetworkUnreachable],
            "connect_unreachable",
            "proxy_unreachable",
        ),
        // IPv6 without a route says little beside IPv4 that does not answer.
        (
            &[ErrorKind::NetworkUnreachable, ErrorKind::TimedOut],
            "connect_timeout",
            "proxy_connect_timeout",
        ),
        (
            &[ErrorKind::TimedOut, ErrorKind::ConnectionRefused],
            "connect_refused",
            "proxy_connect_refused",
        ),
    ] {
        for (at, name) in [(Step::Tcp, server), (Step::ProxyTcp, proxy)] {
            check(step(&none, &unreached(at, kinds)), name);
        }
    }
    let no_address = failed(Step::Tcp, "the name has no address");
    check(step(&none, &no_address), "connect_unreachable");
}

#[test]
fn steps_that_take_too_long() {
    let none = evidence(|_| {});
    for (at, name) in [
        (Step::Dns, "dns_timeout"),
        (Step::ProxyDns, "dns_timeout"),
        (Step::Tcp, "connect_timeout"),
        (Step::ProxyTcp, "proxy_connect_timeout"),
        (Step::Proxy, "proxy_timeout"),
        (Step::ProxyTls, "proxy_tls"),
        (Step::Tls, "tls_timeout"),
        (Step::Upgrade, "upgrade_timeout"),
    ] {
        check(step(&none, &StepError::TimedOut(at, LIMIT)), name);
    }
}

#[test]
fn proxies_that_refuse() {
    let by_proxy = evidence(|evidence| evidence.proxy = Some("http://proxy:3128".into()));
    let answer = |status: u16, words: &str| ProxyResponse {
        status: Some(status.try_into().unwrap()),
        text: words.to_owned(),
        schemes: vec!["Basic realm=\"corp\"".to_owned()],
        login: None,
    };
    let login = || answer(407, "407 login, please");
    for (error, name) in [
        (ProxyError::LoginRequired(login()), "proxy_login"),
        (ProxyError::LoginSchemeUnsupported(login()), "proxy_login"),
        (ProxyError::LoginRefused(login()), "proxy_login"),
        (ProxyError::LoginSuppressed(login(), LIMIT), "proxy_login"),
        (
            ProxyError::Login(LoginError::NotALogin {
                path: "login".into(),
            }),
            "proxy_login",
        ),
        (ProxyError::NotAProxy("no HTTP".into()), "not_a_proxy"),
    ] {
        let verdict = check(step(&by_proxy, &failed(Step::Proxy, error)), name);
        assert!(
            verdict.sentence.contains("http://proxy:3128"),
            "{verdict:?}"
        );
    }
    let cut = failed(Step::Proxy, "connection reset");
    check(step(&by_proxy, &cut), "not_a_proxy");
    let wanted = failed(Step::Proxy, ProxyError::LoginRequired(login()));
    assert!(step(&by_proxy, &wanted).sentence.contains("corp"));
    let refused = |status, words| {
        let refused = ProxyError::Refused(answer(status, words));
        let verdict = step(&by_proxy, &failed(Step::Proxy, refused));
        check(verdict, "proxy_refused")
    };
    let denied = refused(403, "403 Forbidden by policy");
    assert!(denied.sentence.contains("Forbidden by policy") && denied.advice.contains("CONNECT"));
    let away = refused(502, "502");
    assert!(away.advice.contains("does not reach it"), "{away:?}");
}

#[test]
fn certificates_that_nobody_here_trusts() {
    let unknown = invalid(Step::Tls, CertificateError::UnknownIssuer);
    let shows = |own: CertificateEvidence| evidence(|evidence| evidence.chain = vec![own]);
    let private = shows(certificate("Corp Root", |_| {}));
    let verdict = check(step(&private, &unknown), "tls_inspection");
    assert!(verdict.sentence.contains("Corp Root"), "{verdict:?}");
    assert!(verdict.advice.contains("--ca-file"), "{verdict:?}");
    let zscaler = check(
        step(
            &shows(certificate("Zscaler Intermediate Root CA", |_| {})),
            &unknown,
        ),
        "tls_inspection",
    );
    assert!(
        zscaler
            .sentence
            .starts_with("zscaler on the way inspects TLS"),
        "{zscaler:?}"
    );
    let alone = certificate(HOST, |own| own.is_self_signed = true);
    let verdict = check(step(&shows(alone.clone()), &unknown), "tls_self_signed");
    assert!(verdict.advice.contains("--ca-file"), "{verdict:?}");
    authorities_shown_as_servers(alone);
    // The name that is asked for is the last of many.
    let shared = certificate("Corp Root", |own| {
        own.names = (1..12).map(|n| format!("site{n}.test")).collect();
        own.names.push(HOST.to_owned());
    });
    check(step(&shows(shared.clone()), &unknown), "tls_inspection");
    let public = CertificateEvidence {
        is_logged: true,
        ..shared
    };
    check(step(&shows(public), &unknown), "tls_chain_incomplete");
    let public = certificate("Public CA", |own| own.is_logged = true);
    check(step(&shows(public), &unknown), "tls_chain_incomplete");
    let other = certificate("Portal", |own| own.names = vec!["portal.test".into()]);
    check(step(&shows(other.clone()), &unknown), "tls_name_mismatch");
    let portal = evidence(|evidence| {
        evidence.chain = vec![other];
        evidence.probe = Some(answered(302, |page| {
            page.location = Some("https://portal.test/login".into());
        }));
    });
    let portal = check(step(&portal, &unknown), "captive_portal");
    assert!(portal.sentence.contains("portal.test"), "{portal:?}");
    check(step(&evidence(|_| {}), &unknown), "tls_inspection");
    // --connect-to changes the address that is dialled, not the name in the ClientHello.
    let elsewhere = evidence(|evidence| {
        evidence.host = "127.0.0.1".to_owned();
        evidence.chain = private.chain.clone();
    });
    let verdict = check(step(&elsewhere, &unknown), "tls_inspection");
    let left_out = format!("have {HOST} exempted");
    assert!(verdict.advice.contains(&left_out), "{verdict:?}");
    let of_proxy = invalid(Step::ProxyTls, CertificateError::UnknownIssuer);
    check(step(&private, &of_proxy), "proxy_tls");
}

/// TLS does not come to who signed such a one.
fn authorities_shown_as_servers(alone: CertificateEvidence) {
    let other = OtherError(std::sync::Arc::new(Error::other("CaUsedAsEndEntity")));
    let unfit = invalid(Step::Tls, CertificateError::Other(other));
    let own = CertificateEvidence {
        is_authority: true,
        ..alone
    };
    let shows = |chain: Vec<CertificateEvidence>| evidence(|evidence| evidence.chain = chain);
    let verdict = check(step(&shows(vec![own.clone()]), &unfit), "tls_self_signed");
    assert!(verdict.advice.contains("CA:FALSE"), "{verdict:?}");
    let other_name = CertificateEvidence {
        names: vec!["other.test".to_owned()],
        ..own.clone()
    };
    check(step(&shows(vec![other_name]), &unfit), "tls_name_mismatch");
    let verdict = check(
        step(&shows(vec![own.clone(), own]), &unfit),
        "tls_certificate",
    );
    assert!(verdict.sentence.contains("that of a CA"), "{verdict:?}");
    let usual = certificate("Public", |_| {});
    check(step(&shows(vec![usual]), &unfit), "tls_certificate");
}

#[test]
fn certificates_that_are_not_good() {
    let of = |error| invalid(Step::Tls, error);
    let named = evidence(|evidence| {
        evidence.chain = vec![certificate("Public", |own| {
            own.names = vec!["other.test".into()]
        })];
    });
    let verdict = check(
        step(&named, &of(CertificateError::NotValidForName)),
        "tls_name_mismatch",
    );
    assert!(verdict.sentence.contains("other.test"), "{verdict:?}");
    check(step(&named, &of(CertificateError::Revoked)), "tls_revoked");
    check(
        step(&named, &of(CertificateError::BadSignature)),
        "tls_ca_replaced",
    );
    check(
        step(&named, &of(CertificateError::BadEncoding)),
        "tls_certificate",
    );
}

#[test]
fn certificates_out_of_their_time_are_told_from_a_clock_that_is_off() {
    let expired = invalid(Step::Tls, CertificateError::Expired);
    let early = invalid(Step::Tls, CertificateError::NotValidYet);
    let old = certificate("Public", |own| own.not_after = now() - DAY / 2);
    let new = certificate("Public", |own| own.not_before = now() + DAY / 2);
    for (own, error, clock, name) in [
        // The server's clock says the same: the certificate it is.
        (&old, &expired, Some(behind(Duration::ZERO)), "tls_expired"),
        (&old, &expired, None, "tls_expired"),
        (
            &new,
            &early,
            Some(behind(Duration::ZERO)),
            "tls_not_yet_valid",
        ),
        // By the server's clock it is good.
        (&new, &early, Some(behind(DAY)), "clock_off"),
        (&new, &early, None, "clock_off"),
        // It is not good by either clock.
        (&old, &expired, Some(behind(DAY)), "tls_expired"),
    ] {
        let evidence = evidence(|evidence| {
            evidence.chain = vec![own.clone()];
            evidence.clock = clock;
        });
        check(step(&evidence, error), name);
    }
    let ahead = ClockEvidence {
        here: now(),
        there: now() - DAY,
        is_servers: true,
    };
    let evidence = evidence(|evidence| {
        evidence.chain = vec![certificate("Public", |own| {
            own.not_before = now() - DAY * 2;
            own.not_after = now() - DAY / 2;
        })];
        evidence.clock = Some(ahead);
    });
    let verdict = check(step(&evidence, &expired), "clock_off");
    assert!(verdict.sentence.contains("1 day behind it"), "{verdict:?}");
}

#[test]
fn tls_that_fails_otherwise() {
    let none = evidence(|_| {});
    let alert = TlsError::AlertReceived;
    for (error, name) in [
        (
            TlsError::InvalidMessage(InvalidMessage::InvalidContentType),
            "not_tls",
        ),
        (
            alert(AlertDescription::HandshakeFailure),
            "tls_handshake_failure",
        ),
        (
            TlsError::PeerIncompatible(PeerIncompatible::ServerDoesNotSupportTls12Or13),
            "tls_version",
        ),
        (alert(AlertDescription::ProtocolVersion), "tls_version"),
        (
            alert(AlertDescription::UnrecognisedName),
            "tls_name_unknown",
        ),
        (
            alert(AlertDescription::NoApplicationProtocol),
            "upgrade_stripped",
        ),
        (TlsError::NoApplicationProtocol, "upgrade_stripped"),
        (
            alert(AlertDescription::CertificateRequired),
            "certificate_refused",
        ),
        (alert(AlertDescription::InternalError), "tls_failed"),
        (TlsError::DecryptError, "tls_failed"),
    ] {
        let proxy = failed(Step::ProxyTls, error.clone());
        check(step(&none, &proxy), "proxy_tls");
        check(step(&none, &failed(Step::Tls, error)), name);
    }
    let cut = |at| StepError::Failed(at, ErrorKind::UnexpectedEof.into());
    check(step(&none, &cut(Step::Tls)), "tls_cut");
    let retry_after = Duration::from_secs(7);
    let crowded = StepError::Failed(Step::Tls, Error::other(Crowded { retry_after }));
    let verdict = check(step(&none, &crowded), "server_busy");
    assert!(verdict.sentence.contains("in 7 s"), "{verdict:?}");
    check(step(&none, &cut(Step::ProxyTls)), "proxy_tls");
}

#[test]
fn what_speaks_no_tls_is_a_portal_only_if_it_says_so() {
    let not_tls = TlsError::InvalidMessage(InvalidMessage::InvalidContentType);
    let not_tls = failed(Step::Tls, not_tls);
    let to = |location: &str| {
        let location = location.to_owned();
        answered(302, |page| page.location = Some(location))
    };
    let html = || answered(200, |page| page.is_html = true);
    let problem = answered(503, |answer| {
        answer.refusal = Some(refusal("runtime_offline"));
        answer.is_public = true;
    });
    for (port, plain, name) in [
        (443, None, "not_tls"),
        (443, Some(to("http://portal.test/login")), "captive_portal"),
        (443, Some(html()), "captive_portal"),
        (443, Some(answered(511, |_| {})), "captive_portal"),
        (80, Some(to("http://portal.test/login")), "captive_portal"),
        // A web site, or a service that is being worked on.
        (3000, Some(html()), "not_tls"),
        (80, Some(to("https://tunnel.example.com/")), "not_tls"),
        (
            80,
            Some(to("https://www.tunnel.example.com:8443/")),
            "not_tls",
        ),
        (443, Some(answered(400, |_| {})), "not_tls"),
        (8080, Some(problem), "public_listener"),
    ] {
        let evidence = evidence(|evidence| {
            evidence.port = port;
            evidence.probe = plain;
        });
        check(step(&evidence, &not_tls), name);
    }
    let by_proxy = evidence(|evidence| evidence.proxy = Some("http://proxy:3128".to_owned()));
    let verdict = check(step(&by_proxy, &not_tls), "not_tls");
    assert!(
        verdict.sentence.contains("http://proxy:3128"),
        "{verdict:?}"
    );
}

#[test]
fn a_redirect_is_compared_with_the_name_and_not_with_what_is_dialled() {
    let unknown = invalid(Step::Tls, CertificateError::UnknownIssuer);
    for (name, location, is_elsewhere) in [
        (HOST, "https://tunnel.example.com:8443/x", false),
        (HOST, "https://user@Tunnel.Example.com./x", false),
        (HOST, "/login", false),
        (HOST, "//portal.test/", true),
        (HOST, "https://portal.test", true),
        ("::1", "https://[::1]:8443/x", false),
        ("::1", "https://[::2]/x", true),
    ] {
        let evidence = evidence(|evidence| {
            // By --connect-to.
            evidence.host = "192.0.2.7".to_owned();
            evidence.name = name.to_owned();
            evidence.chain = vec![certificate("Corp Root", |own| {
                own.names = vec![name.to_owned()]
            })];
            evidence.probe = Some(answered(302, |page| {
                page.location = Some(location.to_owned())
            }));
        });
        let expected = match is_elsewhere {
            true => "captive_portal",
            false => "tls_inspection",
        };
        check(step(&evidence, &unknown), expected);
    }
}

#[test]
fn a_token_out_of_its_time_is_told_from_a_clock_that_is_off() {
    let token = |expires| TokenEvidence {
        path: "token".into(),
        kind: TokenKind::Jwt { issuer: None },
        not_before: None,
        expires: Some(expires),
        is_readable_by_all: false,
    };
    for (expires, clock, name) in [
        (now() + DAY / 2, Some(behind(DAY)), "clock_off"),
        (now() - DAY, Some(behind(DAY)), "token_expired"),
        (
            now() + DAY / 2,
            Some(behind(Duration::from_secs(2))),
            "token_expired",
        ),
        (now() - DAY, None, "token_expired"),
    ] {
        let evidence = evidence(|evidence| {
            evidence.token = Some(token(expires));
            evidence.clock = clock;
            evidence.response = Some(answered(401, |answer| {
                answer.refusal = Some(refusal("token_expired"));
            }));
        });
        check(response::refused(&evidence), name);
    }
}

#[test]
fn a_token_that_is_not_good_by_this_clock_may_be_by_the_server_s() {
    let token = |not_before, expires| {
        Some(TokenEvidence {
            path: "token".into(),
            kind: TokenKind::Jwt { issuer: None },
            not_before,
            expires,
            is_readable_by_all: false,
        })
    };
    let ahead = ClockEvidence {
        here: now(),
        there: now() - DAY,
        is_servers: true,
    };
    let (old, new) = (Some(now() - DAY / 2), Some(now() + DAY / 2));
    for (token, clock, name) in [
        (token(None, old), None, "token_expired"),
        (token(None, old), Some(behind(DAY)), "token_expired"),
        (token(None, old), Some(ahead), "clock_off"),
        (token(new, None), None, "token_not_yet_valid"),
        (token(new, None), Some(behind(DAY)), "clock_off"),
        // What a page says of the time is no reason to doubt this clock.
        (
            token(None, old),
            Some(ClockEvidence {
                is_servers: false,
                ..ahead
            }),
            "token_expired",
        ),
    ] {
        let evidence = evidence(|evidence| {
            evidence.token = token;
            evidence.clock = clock;
        });
        assert!(!evidence.is_token_in_time());
        check(token_time(&evidence), name);
    }
    let just = evidence(|evidence| evidence.token = token(None, Some(now() - LIMIT)));
    assert!(just.is_token_in_time(), "it may still be taken");
    let far = evidence(|evidence| evidence.clock = Some(behind(DAY)));
    check(clock_off(&far, "the clock is off"), "clock_off");
}

#[test]
fn sessions_that_do_not_begin() {
    let none = evidence(|_| {});
    let no_echo = SessionFailure::NoEcho(LIMIT);
    check(session(&none, &no_echo), "echo_failed");
    for (reason, name) in [
        (CloseReason::Wedged, "echo_failed"),
        (CloseReason::Other(1006), "echo_failed"),
        (CloseReason::ProtocolError, "echo_failed"),
        (CloseReason::Conflict, "runtime_conflict"),
        (CloseReason::Revoked, "credential_revoked"),
        (CloseReason::Expired, "token_expired"),
        (CloseReason::Drained, "server_busy"),
    ] {
        let failure = SessionFailure::Ended(reason);
        check(session(&none, &failure), name);
    }
    check(conflict(&refusal("runtime_held")), "runtime_conflict");
}
