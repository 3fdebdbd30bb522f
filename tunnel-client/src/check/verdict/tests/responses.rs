//! Verdicts on responses: of a tunnel server, and of anything else.

use tunnel_proto::refusal::RefusalReason;

use super::*;

#[test]
fn answers_of_somebody_else() {
    let elsewhere =
        |page: &mut ResponseEvidence| page.location = Some("http://portal.test/?to=x".into());
    let here =
        |page: &mut ResponseEvidence| page.location = Some(format!("https://{HOST}:443/login"));
    let html = |page: &mut ResponseEvidence| page.is_html = true;
    let nothing = |_: &mut ResponseEvidence| {};
    for (answer, name) in [
        // Who proves that he is the host that was named is that, and not the network.
        (answered(302, elsewhere), "not_a_tunnel_server"),
        (answered(511, nothing), "captive_portal"),
        (answered(200, html), "not_a_tunnel_server"),
        (answered(302, here), "not_a_tunnel_server"),
        (
            answered(301, |page| page.location = Some("/login".into())),
            "not_a_tunnel_server",
        ),
        (answered(200, nothing), "not_a_tunnel_server"),
        (answered(404, html), "not_a_tunnel_server"),
        (answered(500, nothing), "not_a_tunnel_server"),
        (answered(400, html), "upgrade_stripped"),
        (answered(426, nothing), "upgrade_stripped"),
        (answered(501, nothing), "upgrade_stripped"),
        (answered(407, nothing), "proxy_login"),
        (answered(431, nothing), "refused_on_the_way"),
        (
            answered(400, |answer| answer.is_too_large = true),
            "refused_on_the_way",
        ),
        (answered(401, nothing), "refused_on_the_way"),
        (answered(403, html), "refused_on_the_way"),
        (answered(429, nothing), "server_busy"),
        (answered(502, html), "server_away"),
        (answered(504, nothing), "server_away"),
    ] {
        let evidence = evidence(|evidence| evidence.response = Some(answer));
        check(response::refused(&evidence), name);
    }
    let none = evidence(|_| {});
    check(response::refused(&none), "upgrade_cut");
    check(response::not_a_tunnel(&none), "not_a_tunnel_server");
    let closed = failed(Step::Upgrade, "connection closed");
    check(step(&none, &closed), "upgrade_cut");
    let alert = failed(Step::Upgrade, "received fatal alert: CertificateRequired");
    check(step(&none, &alert), "certificate_refused");
}

#[test]
fn a_server_that_plain_requests_reach_lacks_the_upgrade_or_refuses_the_token() {
    let too_large = |answer: &mut ResponseEvidence| answer.is_too_large = true;
    let html = |answer: &mut ResponseEvidence| answer.is_html = true;
    for (answer, name) in [
        (answered(200, html), "upgrade_stripped"),
        (answered(302, html), "upgrade_stripped"),
        (answered(400, html), "upgrade_stripped"),
        (answered(404, html), "upgrade_stripped"),
        (answered(426, html), "upgrade_stripped"),
        (answered(501, html), "upgrade_stripped"),
        // Of these the token may be the cause, which the other request did not show.
        (answered(400, too_large), "refused_on_the_way"),
        (answered(401, html), "refused_on_the_way"),
        (answered(403, html), "refused_on_the_way"),
        (answered(407, html), "proxy_login"),
        (answered(429, html), "server_busy"),
        (answered(431, html), "refused_on_the_way"),
        (answered(500, html), "refused_on_the_way"),
        (answered(502, html), "refused_on_the_way"),
    ] {
        let status = answer.status.to_string();
        let evidence = evidence(|evidence| {
            evidence.response = Some(answer);
            evidence.probe = Some(answered(426, |plain| {
                plain.refusal = Some(refusal("upgrade_required"));
            }));
        });
        let verdict = check(response::refused(&evidence), name);
        let said = [status.as_str(), "demands a login"];
        let is_said = said.iter().any(|words| verdict.sentence.contains(words));
        assert!(is_said, "{verdict:?}");
        if name != "upgrade_stripped" {
            let told = "without token and Upgrade gets through";
            assert!(verdict.sentence.contains(told), "{verdict:?}");
        }
    }
}

#[test]
fn what_refuses_every_request_does_not_lack_the_upgrade() {
    let by = |server: &'static str, words: &str| {
        let words = words.to_owned();
        answered(400, |answer| {
            answer.server = Some(server.to_owned());
            answer.words = words;
        })
    };
    let wants = "400 Bad Request No required SSL certificate was sent nginx";
    for (plain, name, words) in [
        (
            by("nginx", wants),
            "refused_on_the_way",
            "No required SSL certificate",
        ),
        (by("nginx", "Bad Host"), "refused_on_the_way", "Bad Host"),
        // Another one says no to that, or nobody does.
        (by("envoy", "no"), "upgrade_stripped", "for a WebSocket"),
        (answered(404, |_| {}), "upgrade_stripped", "for a WebSocket"),
    ] {
        let is_certificate = plain.words == wants;
        let evidence = evidence(|evidence| {
            evidence.response = Some(by("nginx", ""));
            evidence.probe = Some(plain);
        });
        let verdict = check(response::refused(&evidence), name);
        assert!(verdict.sentence.contains(words), "{verdict:?}");
        assert_eq!(verdict.advice.contains("--client-cert"), is_certificate);
    }
}

#[test]
fn a_listener_for_platform_clients_is_known_by_any_of_its_words() {
    let problem = |reason: &str| {
        let refusal = refusal(reason);
        answered(503, |answer| {
            answer.refusal = Some(refusal);
            answer.is_public = true;
        })
    };
    for reason in [
        "runtime_offline",
        "runtime_unknown",
        "address_denied",
        "method_not_allowed",
    ] {
        let answering = evidence(|evidence| evidence.response = Some(problem(reason)));
        let verdict = check(response::refused(&answering), "public_listener");
        assert!(verdict.advice.contains("--tunnel-listen"), "{verdict:?}");
        let stripping = evidence(|evidence| {
            evidence.response = Some(answered(404, |_| {}));
            evidence.probe = Some(problem(reason));
        });
        check(response::refused(&stripping), "public_listener");
    }
}

#[test]
fn every_reason_of_the_server_has_a_verdict_of_its_own() {
    for reason in RefusalReason::ALL {
        let evidence = evidence(|evidence| {
            evidence.response = Some(answered(reason.status().as_u16(), |answer| {
                answer.refusal = Some(refusal(reason.name()));
            }));
        });
        let verdict = response::refused(&evidence);
        assert_ne!(verdict.name, "refused", "{reason:?}");
    }
}

#[test]
fn the_server_s_own_words() {
    for (reason, name) in [
        ("upgrade_required", "upgrade_stripped"),
        ("path_unknown", "request_changed"),
        ("greeting_malformed", "request_changed"),
        ("version_unsupported", "version_unsupported"),
        ("handshake_queue", "server_busy"),
        ("server_draining", "server_busy"),
        ("auth_unavailable", "server_busy"),
        ("check_limit", "server_busy"),
        ("directory_unavailable", "server_busy"),
        ("credential_missing", "credential_missing"),
        ("token_refused", "token_unknown"),
        ("token_key_unknown", "token_unknown"),
        ("token_audience", "token_unfit"),
        ("token_signature", "token_unfit"),
        ("token_expired", "token_expired"),
        ("token_not_yet_valid", "token_not_yet_valid"),
        ("credential_revoked", "credential_revoked"),
        ("certificate_untrusted", "certificate_refused"),
        ("runtime_held", "runtime_conflict"),
        ("runtime_contested", "runtime_conflict"),
        ("runtime_label_taken", "runtime_label_taken"),
        ("something_new", "refused"),
    ] {
        let evidence = evidence(|evidence| {
            evidence.response = Some(answered(401, |answer| {
                answer.refusal = Some(refusal(reason))
            }));
        });
        let verdict = check(response::refused(&evidence), name);
        if reason == "runtime_label_taken" {
            assert!(!verdict.advice.contains("stop"), "{verdict:?}");
        }
        if reason != "upgrade_required" {
            assert!(
                verdict.sentence.contains("the server's words"),
                "{verdict:?}"
            );
        }
    }
}
