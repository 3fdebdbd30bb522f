//! Verdicts on this machine's files: configuration, CA files, token file, client certificate.

use super::{Verdict, clock_off, verdicts};
use crate::check::evidence::Evidence;
use crate::check::text::moment;
use crate::check::trust::{CaFileFault, TrustFailure};
use crate::token_file::TokenFileError;

/// A configuration with these faults.
pub(in crate::check) fn config(faults: &[String]) -> Verdict {
    let faults = faults.join("; ");
    verdicts! {
        "config_invalid" "the configuration is not valid: {faults}"
        "correct what is named; `tunnel-client validate` with the same flags confirms the result"
    }
}

/// No peer's certificate can be verified, for want of CA certificates.
pub(in crate::check) fn trust(failure: &TrustFailure) -> Verdict {
    let TrustFailure {
        fault,
        path,
        named_by,
        text,
    } = failure;
    let by = match named_by.is_empty() {
        true => String::new(),
        false => format!(" that {named_by} names"),
    };
    verdicts! { fault;
        CaFileFault::Missing => "trust_unusable" "the CA file {path}{by} does not exist"
            "check the path for a slip: one in the configuration file is relative to that file's folder, one in a flag to \
             the folder in which the program is started; in a cluster, check whether the volume is mounted there"
        CaFileFault::Unreadable => "trust_unusable" "the CA file{by} cannot be read: {text}"
            "let the user that runs this program read it"
        CaFileFault::Folder => "trust_unusable" "{path}{by} as a CA file is a folder"
            "name the file in it, or the folder by --ca-dir (of a proxy: --proxy-ca-dir)"
        CaFileFault::File => "trust_unusable" "{path}{by} as a folder of CA files is a file"
            "name the file by --ca-file (of a proxy: --proxy-ca-file), or the folder that it is in"
        CaFileFault::Empty => "trust_unusable" "the CA file {path}{by} is empty"
            "put the CA's certificate into it in PEM form, or name another file"
        CaFileFault::Key => "trust_unusable" "{path}{by} as a CA file holds a private key and no certificate"
            "name the CA's certificate; only the CA itself needs its key"
        CaFileFault::Der => "trust_unusable" "the CA file {path}{by} holds a certificate in DER form, not in PEM form"
            "convert it: openssl x509 -inform der -in FILE -out ca.pem"
        CaFileFault::NoCertificate => "trust_unusable" "{path}{by} holds no CA certificate"
            "check whether another file was meant; a PEM file has `-----BEGIN CERTIFICATE-----`"
        CaFileFault::Damaged => "trust_unusable" "the CA file {path}{by} holds a damaged certificate"
            "copy the complete file again"
        CaFileFault::NoRoots | CaFileFault::Other => "trust_unusable" "no certificate can be verified: {text}"
            "give a PEM file with the CA's certificate by --ca-file, or install the system's CA certificates (often the \
             package ca-certificates)"
    }
}

/// A token file that gives no token.
pub(in crate::check) fn token_file(error: &TokenFileError) -> Verdict {
    let path = (error.path()).map_or_else(String::new, |path| path.display().to_string());
    verdicts! { error;
        TokenFileError::TokenItself =>
            "token_file_is_token" "the token itself was given in place of the path of its file"
            "put it into a file and name that; others on this machine may have seen it, so have it replaced"
        TokenFileError::Unreadable { source, .. } if source.kind() == std::io::ErrorKind::NotFound =>
            "token_file_missing" "the token file `{path}` does not exist"
            "put the token into that file, or name another by --token-file; in a cluster, check whether the secret is \
             mounted where the flag says"
        TokenFileError::Unreadable { source, .. } =>
            "token_file_unreadable" "the token file `{path}` cannot be read: {source}"
            "let the user that runs this program read it"
        TokenFileError::NotAFile { .. } =>
            "token_file_irregular" "the token file `{path}` is a pipe, a folder or a device"
            "put the token into a regular file: it is read again at each dial, which a pipe such as `<(…)` allows once"
        TokenFileError::Empty { .. } =>
            "token_file_empty" "the token file `{path}` is empty"
            "put the token into it"
        TokenFileError::NotAToken { .. } =>
            "token_file_malformed" "the token file `{path}` holds something else than one token"
            "put the token into it, alone, on one line, without quotes"
    }
}

/// A token that is not valid now by this machine's clock; by the server's clock it may be.
pub(in crate::check) fn token_time(evidence: &Evidence) -> Verdict {
    let now = moment(evidence.now);
    let Some(token) = &evidence.token else {
        return clock_off(evidence, "the token is not valid now");
    };
    let server_clock = (evidence.clock).filter(|clock| clock.is_servers && clock.is_off());
    let is_valid_there = server_clock.is_some_and(|clock| {
        let then = clock.there_at(evidence.now);
        !token.is_expired(then) && !token.is_early(then)
    });
    if is_valid_there {
        let what = format!("by this machine's clock, {now}, the token is not valid now");
        return clock_off(evidence, &what);
    }
    if let Some(end) = token.expires.filter(|end| *end <= evidence.now) {
        let end = moment(end);
        return verdicts! {
            "token_expired" "the token expired at {end}; this machine's clock says {now}"
            "ask the operator of the server for a new token, and put it into the token file"
        };
    }
    let begin = moment(token.not_before.unwrap_or(evidence.now));
    verdicts! {
        "token_not_yet_valid" "the token is valid from {begin} on; this machine's clock says {now}"
        "wait until then; if it should be valid already, the clock of this machine or of the token's issuer is off"
    }
}

/// Files of the client's certificate that cannot be used.
pub(in crate::check) fn identity(text: &str) -> Verdict {
    verdicts! {
        "certificate_file_unusable" "the client certificate cannot be used: {text}"
        "give a certificate and its own key by --client-cert and --client-key"
    }
}
