//! Verdicts on what stands on this machine: configuration, token file, certificate files.

use super::Verdict;
use crate::check::token::{TokenFault, TokenTrouble};

pub(super) fn config(faults: &[String]) -> Verdict {
    Verdict::new(
        "config_invalid",
        format!("the configuration is not good: {}", faults.join("; ")),
        "mend what is named; `tunnel-client validate` with the same flags says when all is well",
    )
}

pub(super) fn trust(text: &str) -> Verdict {
    Verdict::new(
        "trust_unusable",
        format!("nobody's certificate can be checked: {text}"),
        "give a PEM file with the CA's certificate by --ca-file, or install the system's CA certificates (often \
         the package ca-certificates)",
    )
}

pub(super) fn token(trouble: &TokenTrouble) -> Verdict {
    let path = trouble.path.display();
    match &trouble.kind {
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

pub(super) fn identity(text: &str) -> Verdict {
    Verdict::new(
        "certificate_file_unusable",
        format!("the client's certificate cannot be used: {text}"),
        "give the certificate and the key that were made together by --client-cert and --client-key",
    )
}
