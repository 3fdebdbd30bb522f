//! Every verdict as a table: what was seen, and what it is called.

mod answers;
mod upstreams;

use std::io::ErrorKind;
use std::time::{Duration, SystemTime};

use rustls::CertificateError;
use tunnel_proto::close::CloseReason;
use tunnel_proto::handshake::Refusal;

use super::*;
use crate::check::certificate::CertificateFacts;
use crate::check::facts::{
    Act, AnswerFacts, ClockFacts, Leg, ProxyRefusal, ProxyTrouble, TlsTrouble, Tried, TrustFault,
    TrustTrouble,
};
use crate::check::token::{TokenFacts, TokenFault, TokenKind, TokenTrouble};

const HOST: &str = "tunnel.example.com";
const DAY: Duration = Duration::from_secs(24 * 60 * 60);
const LIMIT: Duration = Duration::from_secs(10);

fn now() -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_secs(1_800_000_000)
}

fn facts(change: impl FnOnce(&mut Facts)) -> Facts {
    let mut facts = Facts::new(HOST, 443, now());
    change(&mut facts);
    facts
}

fn certificate(issuer: &str, change: impl FnOnce(&mut CertificateFacts)) -> CertificateFacts {
    let mut made = CertificateFacts {
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

fn answered(status: u16, change: impl FnOnce(&mut AnswerFacts)) -> AnswerFacts {
    let mut answer = AnswerFacts {
        status,
        ..AnswerFacts::default()
    };
    change(&mut answer);
    answer
}

fn refusal(reason: &str) -> Refusal {
    Refusal {
        reason: reason.to_owned(),
        detail: format!("the server's words about {reason}"),
        fatal: true,
    }
}

/// The clock is so much behind the server's.
fn behind(by: Duration) -> ClockFacts {
    ClockFacts {
        here: now(),
        there: now() + by,
        is_servers: true,
    }
}

#[track_caller]
fn check(facts: &Facts, trouble: &Trouble, name: &str) -> Verdict {
    let verdict = verdict(facts, trouble);
    assert_eq!(verdict.name, name, "{verdict:?}\n{facts:?}\n{trouble:?}");
    // Whoever is stuck is told something, and what to do.
    assert!(
        verdict.sentence.len() > 20 && verdict.advice.len() > 20,
        "{verdict:?}"
    );
    verdict
}

#[test]
fn what_stands_on_this_machine() {
    let none = facts(|_| {});
    check(
        &none,
        &Trouble::Config(vec!["--server is missing".into()]),
        "config_invalid",
    );
    trust_in_a_file_that_is_none(&none);
    check(
        &none,
        &Trouble::Identity("no key".into()),
        "certificate_file_unusable",
    );
    for (kind, name) in [
        (TokenFault::TokenItself, "token_file_is_token"),
        (TokenFault::Missing, "token_file_missing"),
        (
            TokenFault::Unreadable("permission denied".into()),
            "token_file_unreadable",
        ),
        (TokenFault::NotAFile, "token_file_irregular"),
        (TokenFault::Empty, "token_file_empty"),
        (TokenFault::NotAToken, "token_file_malformed"),
    ] {
        let path = "token".into();
        check(&none, &Trouble::Token(TokenTrouble { path, kind }), name);
    }
}

/// Whoever mistypes a path is not sent to look for a certificate.
#[track_caller]
fn trust_in_a_file_that_is_none(none: &Facts) {
    for (kind, sentence, advice) in [
        (
            TrustFault::Missing,
            "/etc/ca.pem that `ca_file` in line 3 of c.toml names does not exist",
            "a slip in the path",
        ),
        (
            TrustFault::Unreadable,
            "cannot be read: its words",
            "let the user",
        ),
        (TrustFault::Folder, "is a folder", "--ca-dir"),
        (TrustFault::File, "is a file", "--ca-file"),
        (TrustFault::Empty, "is empty", "into it"),
        (TrustFault::Key, "private key", "the CA's certificate"),
        (TrustFault::Binary, "DER", "openssl"),
        (
            TrustFault::NoCertificate,
            "holds no CA certificate",
            "another file",
        ),
        (TrustFault::Damaged, "damaged", "copy the file"),
        (TrustFault::Nobody, "its words", "ca-certificates"),
    ] {
        let trouble = TrustTrouble {
            kind,
            path: "/etc/ca.pem".to_owned(),
            named_by: "`ca_file` in line 3 of c.toml".to_owned(),
            text: "its words".to_owned(),
        };
        let verdict = check(none, &Trouble::Trust(trouble), "trust_unusable");
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
        (HOST, "Name or service not known", "slip"),
        (
            HOST,
            "Temporary failure in name resolution",
            "no name server",
        ),
        // As musl says it.
        (HOST, "Try again", "no name server"),
    ] {
        let none = facts(|facts| facts.host = host.to_owned());
        for (leg, name) in [
            (Leg::Server, "dns_failure"),
            (Leg::Proxy, "proxy_dns_failure"),
        ] {
            let (host, text) = (host.to_owned(), text.to_owned());
            let verdict = check(&none, &Trouble::Unresolved { leg, host, text }, name);
            assert!(verdict.advice.contains(hint), "{verdict:?}");
        }
    }
    let by_proxy = facts(|facts| facts.proxy = Some("http://proxy:3128".into()));
    let trouble = Trouble::Unresolved {
        leg: Leg::Server,
        host: HOST.into(),
        text: String::new(),
    };
    assert!(!verdict(&by_proxy, &trouble).advice.contains("--proxy"));
}

#[test]
fn addresses_that_are_not_reached() {
    let tried = |kinds: &[ErrorKind]| {
        let tried = kinds.iter().map(|kind| Tried {
            address: "192.0.2.7:443".into(),
            kind: *kind,
            text: kind.to_string(),
        });
        tried.collect::<Vec<_>>()
    };
    let none = facts(|_| {});
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
        // IPv6 that leads nowhere says little beside IPv4 that does not answer.
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
        for (leg, name) in [(Leg::Server, server), (Leg::Proxy, proxy)] {
            check(
                &none,
                &Trouble::Unreached {
                    leg,
                    tried: tried(kinds),
                },
                name,
            );
        }
    }
}

#[test]
fn steps_that_take_too_long() {
    let none = facts(|_| {});
    for (leg, act, name) in [
        (Leg::Server, Act::Resolve, "dns_timeout"),
        (Leg::Proxy, Act::Resolve, "dns_timeout"),
        (Leg::Server, Act::Connect, "connect_timeout"),
        (Leg::Proxy, Act::Connect, "proxy_connect_timeout"),
        (Leg::Proxy, Act::AskProxy, "proxy_timeout"),
        (Leg::Proxy, Act::Tls, "proxy_tls"),
        (Leg::Server, Act::Tls, "tls_timeout"),
        (Leg::Server, Act::Ask, "upgrade_timeout"),
    ] {
        check(&none, &Trouble::TimedOut(leg, act, LIMIT), name);
    }
}

#[test]
fn proxies_that_say_no() {
    let by_proxy = facts(|facts| facts.proxy = Some("http://proxy:3128".into()));
    let said = |kind, status, words: &str| {
        Trouble::Proxy(ProxyTrouble {
            kind,
            status,
            words: words.to_owned(),
            schemes: vec!["Basic realm=\"corp\"".to_owned()],
        })
    };
    for (kind, name) in [
        (ProxyRefusal::LoginWanted, "proxy_login"),
        (ProxyRefusal::LoginUnknown, "proxy_login"),
        (ProxyRefusal::LoginRefused, "proxy_login"),
        (ProxyRefusal::LoginUnreadable, "proxy_login"),
        (ProxyRefusal::NotAProxy, "not_a_proxy"),
    ] {
        let verdict = check(&by_proxy, &said(kind, Some(407), "407 login, please"), name);
        assert!(
            verdict.sentence.contains("http://proxy:3128"),
            "{verdict:?}"
        );
    }
    let wanted = said(ProxyRefusal::LoginWanted, Some(407), "407");
    assert!(verdict(&by_proxy, &wanted).sentence.contains("corp"));
    let denied = said(ProxyRefusal::Other, Some(403), "403 Forbidden by policy");
    let denied = check(&by_proxy, &denied, "proxy_refused");
    assert!(denied.sentence.contains("Forbidden by policy") && denied.advice.contains("CONNECT"));
    let away = check(
        &by_proxy,
        &said(ProxyRefusal::Other, Some(502), "502"),
        "proxy_refused",
    );
    assert!(away.advice.contains("does not reach it"), "{away:?}");
}

#[test]
fn certificates_that_nobody_here_trusts() {
    let unknown = Trouble::Certificate(Leg::Server, CertificateError::UnknownIssuer);
    let shows = |own: CertificateFacts| facts(|facts| facts.chain = vec![own]);
    let private = shows(certificate("Corp Root", |_| {}));
    let verdict = check(&private, &unknown, "tls_inspection");
    assert!(verdict.sentence.contains("Corp Root"), "{verdict:?}");
    assert!(verdict.advice.contains("--ca-file"), "{verdict:?}");
    let zscaler = check(
        &shows(certificate("Zscaler Intermediate Root CA", |_| {})),
        &unknown,
        "tls_inspection",
    );
    assert!(
        zscaler.sentence.starts_with("zscaler on the way opens TLS"),
        "{zscaler:?}"
    );
    let alone = certificate(HOST, |own| own.is_self_signed = true);
    let verdict = check(&shows(alone.clone()), &unknown, "tls_self_signed");
    assert!(verdict.advice.contains("--ca-file"), "{verdict:?}");
    authorities_shown_as_servers(alone);
    // The name that is asked for is the last of many.
    let shared = certificate("Corp Root", |own| {
        own.names = (1..12).map(|n| format!("site{n}.test")).collect();
        own.names.push(HOST.to_owned());
    });
    check(&shows(shared.clone()), &unknown, "tls_inspection");
    let public = CertificateFacts {
        is_logged: true,
        ..shared
    };
    check(&shows(public), &unknown, "tls_chain_incomplete");
    let public = certificate("Public CA", |own| own.is_logged = true);
    check(&shows(public), &unknown, "tls_chain_incomplete");
    let other = certificate("Portal", |own| own.names = vec!["portal.test".into()]);
    check(&shows(other.clone()), &unknown, "tls_name_mismatch");
    let portal = facts(|facts| {
        facts.chain = vec![other];
        facts.plain = Some(answered(302, |page| {
            page.location = Some("https://portal.test/login".into());
        }));
    });
    let portal = check(&portal, &unknown, "captive_portal");
    assert!(portal.sentence.contains("portal.test"), "{portal:?}");
    check(&facts(|_| {}), &unknown, "tls_inspection");
    // --connect-to changes the address that is dialled, not the name in the ClientHello.
    let elsewhere = facts(|facts| {
        facts.host = "127.0.0.1".to_owned();
        facts.chain = private.chain.clone();
    });
    let verdict = check(&elsewhere, &unknown, "tls_inspection");
    let left_out = format!("have {HOST} left out");
    assert!(verdict.advice.contains(&left_out), "{verdict:?}");
    let of_proxy = Trouble::Certificate(Leg::Proxy, CertificateError::UnknownIssuer);
    check(&private, &of_proxy, "proxy_tls");
}

/// TLS does not come to who signed such a one.
fn authorities_shown_as_servers(alone: CertificateFacts) {
    let other = rustls::OtherError(std::sync::Arc::new(std::io::Error::other(
        "CaUsedAsEndEntity",
    )));
    let unfit = Trouble::Certificate(Leg::Server, CertificateError::Other(other));
    let own = CertificateFacts {
        is_authority: true,
        ..alone
    };
    let shows = |chain: Vec<CertificateFacts>| facts(|facts| facts.chain = chain);
    let verdict = check(&shows(vec![own.clone()]), &unfit, "tls_self_signed");
    assert!(verdict.advice.contains("CA:FALSE"), "{verdict:?}");
    let other_name = CertificateFacts {
        names: vec!["other.test".to_owned()],
        ..own.clone()
    };
    check(&shows(vec![other_name]), &unfit, "tls_name_mismatch");
    let verdict = check(&shows(vec![own.clone(), own]), &unfit, "tls_certificate");
    assert!(verdict.sentence.contains("made as a CA's"), "{verdict:?}");
    let usual = certificate("Public", |_| {});
    check(&shows(vec![usual]), &unfit, "tls_certificate");
}

#[test]
fn certificates_that_are_not_good() {
    let of = |error| Trouble::Certificate(Leg::Server, error);
    let named = facts(|facts| {
        facts.chain = vec![certificate("Public", |own| {
            own.names = vec!["other.test".into()]
        })];
    });
    let verdict = check(
        &named,
        &of(CertificateError::NotValidForName),
        "tls_name_mismatch",
    );
    assert!(verdict.sentence.contains("other.test"), "{verdict:?}");
    check(&named, &of(CertificateError::Revoked), "tls_revoked");
    check(
        &named,
        &of(CertificateError::BadSignature),
        "tls_ca_replaced",
    );
    check(
        &named,
        &of(CertificateError::BadEncoding),
        "tls_certificate",
    );
}

#[test]
fn certificates_out_of_their_time_are_told_from_a_clock_that_is_off() {
    let expired = Trouble::Certificate(Leg::Server, CertificateError::Expired);
    let early = Trouble::Certificate(Leg::Server, CertificateError::NotValidYet);
    let old = certificate("Public", |own| own.not_after = now() - DAY / 2);
    let new = certificate("Public", |own| own.not_before = now() + DAY / 2);
    for (own, trouble, clock, name) in [
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
        let seen = facts(|facts| {
            facts.chain = vec![own.clone()];
            facts.clock = clock;
        });
        check(&seen, trouble, name);
    }
    let ahead = ClockFacts {
        here: now(),
        there: now() - DAY,
        is_servers: true,
    };
    let seen = facts(|facts| {
        facts.chain = vec![certificate("Public", |own| {
            own.not_before = now() - DAY * 2;
            own.not_after = now() - DAY / 2;
        })];
        facts.clock = Some(ahead);
    });
    let verdict = check(&seen, &expired, "clock_off");
    assert!(verdict.sentence.contains("1day behind it"), "{verdict:?}");
}

#[test]
fn tls_that_fails_otherwise() {
    let none = facts(|_| {});
    for (trouble, name) in [
        (TlsTrouble::NotTls, "not_tls"),
        (
            TlsTrouble::Handshake("HandshakeFailure".into()),
            "tls_handshake_failure",
        ),
        (
            TlsTrouble::Version("no common version".into()),
            "tls_version",
        ),
        (TlsTrouble::NameUnknown, "tls_name_unknown"),
        (TlsTrouble::NoHttp1, "upgrade_stripped"),
        (
            TlsTrouble::Identity("CertificateRequired".into()),
            "certificate_refused",
        ),
        (TlsTrouble::Cut, "tls_cut"),
        (TlsTrouble::Other("bad record".into()), "tls_failed"),
    ] {
        check(&none, &Trouble::Tls(Leg::Server, trouble.clone()), name);
        check(&none, &Trouble::Tls(Leg::Proxy, trouble), "proxy_tls");
    }
}

#[test]
fn what_speaks_no_tls_is_a_portal_only_if_it_says_so() {
    let not_tls = Trouble::Tls(Leg::Server, TlsTrouble::NotTls);
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
        let seen = facts(|facts| {
            facts.port = port;
            facts.plain = plain;
        });
        check(&seen, &not_tls, name);
    }
}

#[test]
fn a_redirect_is_compared_with_the_name_and_not_with_what_is_dialled() {
    let unknown = Trouble::Certificate(Leg::Server, CertificateError::UnknownIssuer);
    for (name, location, is_elsewhere) in [
        (HOST, "https://tunnel.example.com:8443/x", false),
        (HOST, "https://user@Tunnel.Example.com./x", false),
        (HOST, "/login", false),
        (HOST, "//portal.test/", true),
        (HOST, "https://portal.test", true),
        ("::1", "https://[::1]:8443/x", false),
        ("::1", "https://[::2]/x", true),
    ] {
        let seen = facts(|facts| {
            // By --connect-to.
            facts.host = "192.0.2.7".to_owned();
            facts.name = name.to_owned();
            facts.chain = vec![certificate("Corp Root", |own| {
                own.names = vec![name.to_owned()]
            })];
            facts.plain = Some(answered(302, |page| {
                page.location = Some(location.to_owned())
            }));
        });
        let expected = match is_elsewhere {
            true => "captive_portal",
            false => "tls_inspection",
        };
        check(&seen, &unknown, expected);
    }
}

#[test]
fn a_token_out_of_its_time_is_told_from_a_clock_that_is_off() {
    let token = |expires| TokenFacts {
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
        let seen = facts(|facts| {
            facts.token = Some(token(expires));
            facts.clock = clock;
            facts.answer = Some(answered(401, |answer| {
                answer.refusal = Some(refusal("token_expired"));
            }));
        });
        check(&seen, &Trouble::Refused, name);
    }
}

#[test]
fn a_token_that_is_not_good_by_this_clock_may_be_by_the_server_s() {
    let token = |not_before, expires| {
        Some(TokenFacts {
            path: "token".into(),
            kind: TokenKind::Jwt { issuer: None },
            not_before,
            expires,
            is_readable_by_all: false,
        })
    };
    let ahead = ClockFacts {
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
            Some(ClockFacts {
                is_servers: false,
                ..ahead
            }),
            "token_expired",
        ),
    ] {
        let seen = facts(|facts| {
            facts.token = token;
            facts.clock = clock;
        });
        assert!(!seen.is_token_in_time());
        check(&seen, &Trouble::TokenTime, name);
    }
    let just = facts(|facts| facts.token = token(None, Some(now() - LIMIT)));
    assert!(just.is_token_in_time(), "it may still be taken");
    let far = facts(|facts| facts.clock = Some(behind(DAY)));
    check(&far, &Trouble::Clock, "clock_off");
}

#[test]
fn sessions_that_do_not_begin() {
    let none = facts(|_| {});
    check(&none, &Trouble::NoEcho(LIMIT), "echo_failed");
    for (reason, name) in [
        (CloseReason::Wedged, "echo_failed"),
        (CloseReason::Other(1006), "echo_failed"),
        (CloseReason::ProtocolError, "echo_failed"),
        (CloseReason::Conflict, "runtime_conflict"),
        (CloseReason::Revoked, "credential_revoked"),
        (CloseReason::Expired, "token_expired"),
        (CloseReason::Drained, "server_busy"),
    ] {
        check(&none, &Trouble::Ended(reason), name);
    }
    check(
        &none,
        &Trouble::Conflict(refusal("runtime_held")),
        "runtime_conflict",
    );
}
