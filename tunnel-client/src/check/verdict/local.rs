//! Verdicts on what stands on this machine: configuration, token file, certificate files.

use super::{Verdict, tls};
use crate::check::facts::{Facts, TrustFault, TrustTrouble};
use crate::check::token::{TokenFault, TokenTrouble};
use crate::check::words::moment;

pub(super) fn config(faults: &[String]) -> Verdict {
    Verdict::new(
        "config_invalid",
        format!("the configuration is not good: {}", faults.join("; ")),
        "mend what is named; `tunnel-client validate` with the same flags says when all is well",
    )
}

pub(super) fn trust(trouble: &TrustTrouble) -> Verdict {
    let TrustTrouble {
        kind,
        path,
        named_by,
        text,
    } = trouble;
    let by = match named_by.is_empty() {
        true => String::new(),
        false => format!(" that {named_by} names"),
    };
    let (sentence, advice) = match kind {
        TrustFault::Missing => (
            format!("the CA file {path}{by} does not exist"),
            "look for a slip in the path: one in the configuration file counts from that file's folder, one in a flag \
             from where the program is started; in a cluster, look whether the volume is mounted there",
        ),
        TrustFault::Unreadable => (
            format!("the CA file{by} cannot be read: {text}"),
            "let the user that this program runs as read it",
        ),
        TrustFault::Folder => (
            format!("{path}{by} as a CA file is a folder"),
            "name the file in it, or the folder by --ca-dir (of a proxy: --proxy-ca-dir)",
        ),
        TrustFault::File => (
            format!("{path}{by} as a folder of CA files is a file"),
            "name it by --ca-file (of a proxy: --proxy-ca-file)",
        ),
        TrustFault::Empty => (
            format!("the CA file {path}{by} is empty"),
            "put the CA's certificate into it, PEM, or name another file",
        ),
        TrustFault::Key => (
            format!("{path}{by} as a CA file holds a private key, and no certificate"),
            "name the CA's certificate; nobody but the CA needs its key",
        ),
        TrustFault::Binary => (
            format!("the CA file {path}{by} holds a certificate in DER form, not in PEM"),
            "make PEM of it: openssl x509 -inform der -in FILE -out ca.pem",
        ),
        TrustFault::NoCertificate => (
            format!("{path}{by} holds no CA certificate"),
            "is it another file than was meant? give a PEM file, with `-----BEGIN CERTIFICATE-----`",
        ),
        TrustFault::Damaged => (
            format!("the CA file {path}{by} holds a damaged certificate"),
            "copy the file again, whole",
        ),
        TrustFault::Nobody | TrustFault::Other => (
            format!("nobody's certificate can be checked: {text}"),
            "give a PEM file with the CA's certificate by --ca-file, or install the system's CA certificates (often \
             the package ca-certificates)",
        ),
    };
    Verdict::new("trust_unusable", sentence, advice)
}

pub(super) fn token(trouble: &TokenTrouble) -> Verdict {
    let path = trouble.path.display();
    match &trouble.kind {
        TokenFault::TokenItself => Verdict::new(
            "token_file_is_token",
            "the token itself was given where its file is to be named".to_owned(),
            "put it into a file and name that; others on this machine may have seen it, so have it replaced",
        ),
        TokenFault::Missing => Verdict::new(
            "token_file_missing",
            format!("the token file {path} is not there"),
            "put the token into that file, or name another by --token-file; in a cluster, look whether the secret is \
             mounted where the flag says",
        ),
        TokenFault::Unreadable(text) => Verdict::new(
            "token_file_unreadable",
            format!("the token file {path} cannot be read: {text}"),
            "let the user that this program runs as read it",
        ),
        TokenFault::NotAFile => Verdict::new(
            "token_file_irregular",
            format!("the token file {path} is a pipe, a folder or a device"),
            "put the token into a regular file: it is read anew at each dial, which a pipe such as `<(…)` gives once",
        ),
        TokenFault::Empty => Verdict::new(
            "token_file_empty",
            format!("the token file {path} is empty"),
            "put the token into it",
        ),
        TokenFault::NotAToken => Verdict::new(
            "token_file_malformed",
            format!("the token file {path} holds something else than one token"),
            "put the token into it, on one line and alone, without quotes",
        ),
    }
}

/// By this machine's clock the token is not good now; by the server's it may be.
pub(super) fn token_time(facts: &Facts) -> Verdict {
    let now = moment(facts.now);
    let Some(token) = &facts.token else {
        return tls::clock_off(facts, "the token is not good now");
    };
    let there = (facts.clock).filter(|clock| clock.is_servers && clock.is_off());
    let is_good_there = there.is_some_and(|clock| {
        let then = clock.there_at(facts.now);
        !token.is_expired(then) && !token.is_early(then)
    });
    if is_good_there {
        let what = format!("by this machine's clock, {now}, the token is not good now");
        return tls::clock_off(facts, &what);
    }
    match (
        token.expires.filter(|end| *end <= facts.now),
        token.not_before,
    ) {
        (Some(end), _) => Verdict::new(
            "token_expired",
            format!(
                "the token ran out at {}; this machine's clock says {now}",
                moment(end)
            ),
            "ask whoever runs the server for a new token, and put it into the token file",
        ),
        (None, begin) => Verdict::new(
            "token_not_yet_valid",
            format!(
                "the token is good from {} on; this machine's clock says {now}",
                moment(begin.unwrap_or(facts.now))
            ),
            "wait until then; if it should be good already, the clock of this machine or of the token's issuer is off",
        ),
    }
}

pub(super) fn identity(text: &str) -> Verdict {
    Verdict::new(
        "certificate_file_unusable",
        format!("the client's certificate cannot be used: {text}"),
        "give the certificate and the key that were made together by --client-cert and --client-key",
    )
}
