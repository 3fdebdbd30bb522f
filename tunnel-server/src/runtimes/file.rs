//! Parses the text of the runtimes file to checked [`Runtimes`], or reports its faults with their lines.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use serde::Deserialize;
use toml::Spanned;
use tunnel_directory::RuntimeLabel;
use tunnel_ops::config_file::{ConfigFileError, TomlFile};
use tunnel_ops::config_value::{BoundedSize, Count, Network, SizeText};
use tunnel_ops::faults::FaultCollector;
use tunnel_ops::settings::SettingValue;

use super::{HostName, ListedToken, Moment, RuntimeEntry, RuntimeLimits, Runtimes, RuntimesError};
use crate::token::{TokenHash, TokenId};

/// The file as written.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct RawFile {
    #[serde(default)]
    runtime: Vec<RawRuntime>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct RawRuntime {
    account: Spanned<String>,
    name: Spanned<String>,
    #[serde(default)]
    hosts: Vec<Spanned<String>>,
    /// Networks, or single addresses.
    allow_from: Option<Vec<Network>>,
    #[serde(default)]
    limits: RawLimits,
    #[serde(default)]
    token: Vec<RawToken>,
}

/// Limits as written, in the file or in the platform's answer.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct RawLimits {
    exchanges: Option<Count<1, 1_000_000>>,
    exchange_rate: Option<Count<1, 1_000_000>>,
    upload_rate: Option<SizeText>,
    download_rate: Option<SizeText>,
    websockets: Option<Count<0, 1_000_000>>,
    head_size: Option<BoundedSize<1, 128>>,
    waiting: Option<Count<0, 100_000>>,
    waiting_size: Option<SizeText>,
}

impl From<RawLimits> for RuntimeLimits {
    fn from(raw: RawLimits) -> Self {
        Self {
            exchanges: raw.exchanges.map(u32::from),
            exchange_rate: raw.exchange_rate.map(u32::from),
            upload_rate: raw.upload_rate.map(u64::from),
            download_rate: raw.download_rate.map(u64::from),
            websockets: raw.websockets.map(u32::from),
            head_bytes: raw.head_size.map(usize::from),
            waiting: raw.waiting.map(u32::from),
            waiting_bytes: raw.waiting_size.map(u64::from),
        }
    }
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct RawToken {
    id: Spanned<String>,
    sha256: Spanned<String>,
    created: Option<Moment>,
    expires: Option<Moment>,
    #[serde(default)]
    revoked: bool,
    /// A note for people.
    note: Option<String>,
}

/// Checks one file; continues after a fault, so that they are reported together.
struct Checker<'a> {
    file: &'a TomlFile,
    runtimes: Runtimes,
    /// Where each label was first used.
    label_spans: HashMap<RuntimeLabel, Range<usize>>,
    faults: FaultCollector<ConfigFileError>,
}

pub(super) fn parse(file: &TomlFile, domain: &HostName) -> Result<Runtimes, RuntimesError> {
    let raw: RawFile = file.parse()?;
    let mut checker = Checker {
        file,
        runtimes: Runtimes::default(),
        label_spans: HashMap::new(),
        faults: FaultCollector::default(),
    };
    let mut host_spans = Vec::new();
    for runtime in raw.runtime {
        checker.runtime(runtime, domain, &mut host_spans);
    }
    // A host may be below the label of a runtime that follows in the file, so this is checked after all
    // labels.
    for (entry, host, span) in host_spans {
        checker.host_below_domain(entry, &host, span, domain);
    }
    Ok(checker.faults.finish(checker.runtimes)?)
}

impl Checker<'_> {
    fn fault(&mut self, span: Range<usize>, key: &str, problem: impl Into<String>) {
        self.faults.add(|| self.file.error_at(span, key, problem));
    }

    /// Parses a value, or reports a fault at its position.
    fn parse_at<T>(&mut self, value: &Spanned<String>, key: &str) -> Option<T>
    where
        T: std::str::FromStr<Err: ToString>,
    {
        value
            .get_ref()
            .parse()
            .map_err(|error: T::Err| self.fault(value.span(), key, error.to_string()))
            .ok()
    }

    fn runtime(
        &mut self,
        raw: RawRuntime,
        domain: &HostName,
        hosts: &mut Vec<(usize, HostName, Range<usize>)>,
    ) {
        let span = raw.name.span();
        let account = self.parse_at(&raw.account, "account");
        let name = self.parse_at(&raw.name, "name");
        let (Some(account), Some(name)) = (account, name) else {
            return;
        };
        let label = match RuntimeLabel::new(&account, &name) {
            Ok(label) => label,
            Err(error) => return self.fault(span, "name", error.to_string()),
        };
        if let Err(error) = HostName::of_runtime(&label, domain) {
            self.fault(span.clone(), "name", error.to_string());
        }
        if let Some(other) = self.runtimes.get(&label).cloned() {
            return self.label_used_before(&label, &other, span, (account.as_str(), name.as_str()));
        }
        let entry = self.runtimes.entries.len();
        let mut own_hosts = Vec::new();
        for raw_host in &raw.hosts {
            let Some(host) = self.parse_at::<HostName>(raw_host, "hosts") else {
                continue;
            };
            if let Some(other) = self.runtimes.hosts.insert(host.clone(), entry) {
                // This runtime has no entry before all its hosts are read.
                let owner = match self.runtimes.entries.get(other) {
                    Some(other) => format!(": `{}` has it already", other.label),
                    None => " for this runtime".to_owned(),
                };
                self.fault(
                    raw_host.span(),
                    "hosts",
                    format!("`{host}` is listed twice{owner}"),
                );
                continue;
            }
            hosts.push((entry, host.clone(), raw_host.span()));
            own_hosts.push(host);
        }
        for token in &raw.token {
            self.token(entry, token);
        }
        self.label_spans.insert(label.clone(), span);
        self.runtimes.labels.insert(label.clone(), entry);
        self.runtimes.entries.push(Arc::new(RuntimeEntry {
            account,
            name,
            label,
            hosts: own_hosts,
            limits: raw.limits.into(),
            allow_from: raw.allow_from.map(SettingValue::plain),
        }));
    }

    fn label_used_before(
        &mut self,
        label: &RuntimeLabel,
        other: &RuntimeEntry,
        span: Range<usize>,
        (account, name): (&str, &str),
    ) {
        let before = self.label_spans.get(label).cloned().unwrap_or_default();
        let line = self.file.line_of(before.start);
        let (other_account, other_name) = (other.account.as_str(), other.name.as_str());
        let problem = match (account, name) == (other_account, other_name) {
            true => {
                format!("account `{account}`, name `{name}` is listed twice, first in line {line}")
            }
            false => format!(
                "account `{account}`, name `{name}` gives the label `{label}`, and so does account \
                 `{other_account}`, name `{other_name}` in line {line}: rename one of them"
            ),
        };
        self.fault(span, "name", problem);
    }

    fn token(&mut self, entry: usize, raw: &RawToken) {
        let id = raw.id.get_ref().parse::<TokenId>();
        let sha256 = hash_from_hex(raw.sha256.get_ref());
        if id.is_err() {
            self.fault(
                raw.id.span(),
                "token.id",
                "expected 16 lower-case hexadecimal digits",
            );
        }
        if sha256.is_none() {
            // The text is not quoted, since it may be the token itself.
            let expected = "expected a SHA-256 as 64 hexadecimal digits, as `tunnel-server token create` writes it";
            self.fault(raw.sha256.span(), "token.sha256", expected);
        }
        let (Ok(id), Some(sha256)) = (id, sha256) else {
            return;
        };
        let index = self.runtimes.tokens.len();
        if self.runtimes.token_ids.insert(id, index).is_some() {
            self.fault(raw.id.span(), "token.id", format!("`{id}` is listed twice"));
        }
        let token = ListedToken {
            id,
            sha256,
            created: raw.created.map(Into::into),
            expires: raw.expires.map(Into::into),
            revoked: raw.revoked,
            note: raw.note.clone(),
        };
        self.runtimes.tokens.push((entry, token));
    }

    /// Notes which runtime has a host below the domain, under the label directly below the domain. Refuses a host such
    /// as `x.acme-prod.<domain>` of a runtime other than `acme-prod`.
    fn host_below_domain(
        &mut self,
        entry: usize,
        host: &HostName,
        span: Range<usize>,
        domain: &HostName,
    ) {
        let Some(below) = host.below(domain) else {
            return;
        };
        let label = below.rsplit('.').next().unwrap_or(below);
        self.runtimes.host_labels.insert(label.into(), entry);
        let owner = self.runtimes.labels.get(label);
        if owner.is_some_and(|owner| *owner != entry) {
            self.fault(
                span,
                "hosts",
                format!("`{host}` belongs to the domain of the runtime `{label}`"),
            );
        }
    }
}

fn hash_from_hex(text: &str) -> Option<TokenHash> {
    let mut hash = TokenHash::default();
    if text.len() != 2 * hash.len() || !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return None;
    }
    for (byte, digits) in hash.iter_mut().zip(text.as_bytes().chunks_exact(2)) {
        *byte = u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()?;
    }
    Some(hash)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const HASH: &str = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08";

    fn read(text: &str) -> Result<Runtimes, RuntimesError> {
        parse(
            &TomlFile::from_text("r.toml", text),
            &"tunnels.localhost".parse().unwrap(),
        )
    }

    #[track_caller]
    fn check(text: &str, faults: &[&str]) {
        let error = read(text).unwrap_err();
        let given: Vec<String> = error.faults().iter().map(ToString::to_string).collect();
        assert_eq!(given, faults);
    }

    fn runtime(account: &str, name: &str, rest: &str) -> String {
        format!("[[runtime]]\naccount = \"{account}\"\nname = \"{name}\"\n{rest}\n")
    }

    #[test]
    fn malformed_entries_are_reported_with_their_position() {
        check(
            &runtime("acme", "prod", "[runtime.limits]\nupload_rate = 5"),
            &[
                "r.toml:5:15: runtime.limits.upload_rate: a size needs a unit, such as `64KiB` or `1MiB`",
            ],
        );
        // The words are the parser's.
        for (text, span) in [
            (
                "[runtime]\naccount = \"acme\"\nname = \"prod\"\n".to_owned(),
                "r.toml:1:1: runtime: ",
            ),
            (
                runtime("acme", "prod", "hosts = \"a.test\""),
                "r.toml:4:9: runtime.hosts: ",
            ),
            (
                runtime("acme", "prod", "limits = 5"),
                "r.toml:4:10: runtime.limits: ",
            ),
            (
                runtime("acme", "prod", "host = []"),
                "r.toml:4:1: runtime.host: ",
            ),
            (runtime("acme", "prod", "name = \"other\""), "r.toml:4:1: "),
            (
                "[[runtime]]\naccount = \"acme\"\n".to_owned(),
                "r.toml:1:1: runtime: ",
            ),
        ] {
            let error = read(&text).unwrap_err().to_string();
            assert!(error.starts_with(span), "{text}{error}");
        }
    }

    #[test]
    fn a_whole_file_is_read() {
        let text = format!(
            r#"
            [[runtime]]
            account = "acme"
            name = "prod"
            hosts = ["Argo.example.com", "events.example.com"]
            [runtime.limits]
            exchanges = 200
            waiting = 7
            waiting_size = "3MiB"
            [[runtime.token]]
            id = "0123456789abcdef"
            sha256 = "{HASH}"
            note = "Ann's"

            [[runtime]]
            account = "acme"
            name = "test"
            "#
        );
        let runtimes = read(&text).unwrap();
        let labels: Vec<&str> = runtimes.iter().map(|entry| entry.label.as_str()).collect();
        assert_eq!(labels, ["acme-prod", "acme-test"]);
        let (prod, token) = runtimes.token("0123456789abcdef".parse().unwrap()).unwrap();
        assert_eq!(
            prod.hosts.iter().map(HostName::as_str).collect::<Vec<_>>(),
            ["argo.example.com", "events.example.com"]
        );
        assert_eq!(prod.limits.exchanges, Some(200));
        let waiting = (prod.limits.waiting, prod.limits.waiting_bytes);
        assert_eq!(waiting, (Some(7), Some(3 * 1024 * 1024)));
        assert_eq!(token.sha256[..2], [0x9f, 0x86]);
        assert_eq!(runtimes.get(&prod.label), Some(prod));
        assert_eq!(runtimes.token_count(), 1);
        assert!(
            runtimes
                .token("0000000000000000".parse().unwrap())
                .is_none()
        );
        assert_eq!(read("").unwrap().iter().len(), 0);
    }

    #[test]
    fn a_label_conflict_names_both_runtimes() {
        check(
            &format!("{}{}", runtime("a-b", "c", ""), runtime("a", "b-c", "")),
            &[
                "r.toml:7:8: name: account `a`, name `b-c` gives the label `a-b-c`, and so does account `a-b`, name `c` in line 3: rename one of them",
            ],
        );
        check(
            &format!("{}{}", runtime("a", "b", ""), runtime("a", "b", "")),
            &["r.toml:7:8: name: account `a`, name `b` is listed twice, first in line 3"],
        );
    }

    /// A walk through the text for each fault would take many minutes.
    #[test]
    fn a_file_of_many_faults_is_refused_at_once() {
        const FAULTS: usize = 100_000;
        let once = runtime("a", "b", "");
        let inline = ["{account=\"a\",name=\"b\"}"; FAULTS + 1];
        for text in [
            once.repeat(FAULTS + 1),
            format!("runtime = [{}]", inline.join(",")),
        ] {
            let error = read(&text).unwrap_err().to_string();
            let lines: Vec<&str> = error.lines().collect();
            assert_eq!((lines.len(), lines[20]), (21, "and 99980 more faults"));
            assert!(lines[0].ends_with("listed twice, first in line 3") || text.starts_with('r'));
        }
    }

    #[test]
    fn faults_of_names_and_labels_have_their_position() {
        check(
            &runtime("Acme", "p_d", ""),
            &[
                "r.toml:2:11: account: `Acme` is no name: use lower-case letters, digits and hyphens between them",
                "r.toml:3:8: name: `p_d` is no name: use lower-case letters, digits and hyphens between them",
            ],
        );
        let error = read(&runtime(&"a".repeat(40), &"b".repeat(40), ""))
            .unwrap_err()
            .to_string();
        assert!(
            error.starts_with("r.toml:3:8: name: `aaaa") && error.contains("at most 63"),
            "{error}"
        );
    }

    #[test]
    fn a_host_belongs_to_one_runtime() {
        check(
            &format!(
                "{}{}",
                runtime("a", "b", "hosts = [\"x.example\"]"),
                runtime(
                    "c",
                    "d",
                    "hosts = [\"y.example\", \"X.example\", \"y.example\"]"
                ),
            ),
            &[
                "r.toml:8:23: hosts: `x.example` is listed twice: `a-b` has it already",
                "r.toml:8:36: hosts: `y.example` is listed twice for this runtime",
            ],
        );
        check(
            &runtime("a", "b", "hosts = [\"x.example:80\"]"),
            &[
                "r.toml:4:10: hosts: `x.example:80` is no host: leave out the port and the scheme, and give no IP address",
            ],
        );
    }

    #[test]
    fn a_host_in_the_domain_of_another_runtime_is_refused() {
        check(
            &format!(
                "{}{}",
                runtime(
                    "a",
                    "b",
                    "hosts = [\"c-d.tunnels.localhost\", \"x.c-d.tunnels.localhost\"]"
                ),
                runtime("c", "d", ""),
            ),
            &[
                "r.toml:4:10: hosts: `c-d.tunnels.localhost` belongs to the domain of the runtime `c-d`",
                "r.toml:4:35: hosts: `x.c-d.tunnels.localhost` belongs to the domain of the runtime `c-d`",
            ],
        );
        assert!(
            read(&runtime(
                "a",
                "b",
                "hosts = [\"x.a-b.tunnels.localhost\", \"a-b.example\"]"
            ))
            .is_ok()
        );
    }

    #[test]
    fn tokens_are_checked_and_never_repeated_in_a_fault() {
        let token = |id: &str, hash: &str| {
            format!("[[runtime.token]]\nid = \"{id}\"\nsha256 = \"{hash}\"\n")
        };
        check(
            &runtime(
                "a",
                "b",
                &format!(
                    "{}{}",
                    token("0123456789abcdef", HASH),
                    token("0123456789abcdef", HASH)
                ),
            ),
            &["r.toml:8:6: token.id: `0123456789abcdef` is listed twice"],
        );
        check(
            &runtime("a", "b", &token("ABC", "tnlrt_secret")),
            &[
                "r.toml:5:6: token.id: expected 16 lower-case hexadecimal digits",
                "r.toml:6:10: token.sha256: expected a SHA-256 as 64 hexadecimal digits, as `tunnel-server token create` writes it",
            ],
        );
    }

    #[test]
    fn a_token_may_have_an_expiry() {
        let token = |rest: &str| {
            let token =
                format!("[[runtime.token]]\nid = \"0123456789abcdef\"\nsha256 = \"{HASH}\"");
            runtime("a", "b", &format!("{token}\n{rest}"))
        };
        let runtimes = read(&token(
            "created = 2026-01-01T00:00:00Z\nexpires = 2027-01-01T02:00:00+02:00\nrevoked = true\nnote = \"x\"",
        ))
        .unwrap();
        let (_, listed) = runtimes.tokens().next().unwrap();
        assert_eq!(
            listed.expires.map(Moment::from).unwrap().to_string(),
            "2027-01-01T00:00:00Z"
        );
        assert!(listed.created.is_some() && listed.revoked && listed.note.is_some());
        check(
            &token("expires = 2027-01-01"),
            &[
                "r.toml:7:11: runtime.token.expires: expected a moment with its offset, such as `2027-01-01T00:00:00Z`",
            ],
        );
        let quoted = read(&token("expires = \"2027-01-01T00:00:00Z\"")).unwrap_err();
        assert!(quoted.to_string().contains("without quotes"), "{quoted}");
    }

    #[test]
    fn the_owner_of_a_host_below_the_domain_is_known() {
        let text = runtime(
            "a",
            "b",
            "hosts = [\"x.c-d.tunnels.localhost\", \"a.example\"]",
        );
        let runtimes = read(&text).unwrap();
        let label = |account: &str, name: &str| {
            RuntimeLabel::new(&account.parse().unwrap(), &name.parse().unwrap()).unwrap()
        };
        let owner = runtimes.host_owner(&label("c", "d")).unwrap();
        assert_eq!(owner.label.as_str(), "a-b");
        assert!(runtimes.host_owner(&label("e", "f")).is_none());
    }

    #[test]
    fn limits_out_of_range_are_refused() {
        check(
            &runtime("a", "b", "[runtime.limits]\nexchanges = 0"),
            &["r.toml:5:13: runtime.limits.exchanges: expected a whole number from 1 to 1000000"],
        );
    }

    #[test]
    fn a_missing_file_is_named() {
        let error = Runtimes::load(
            std::path::Path::new("/nowhere/r.toml"),
            &"d.example".parse().unwrap(),
        )
        .unwrap_err();
        assert!(
            error
                .to_string()
                .starts_with("/nowhere/r.toml: cannot be read"),
            "{error}"
        );
    }

    proptest! {
        #[test]
        fn a_hash_is_read_as_written(bytes in any::<[u8; 32]>()) {
            let text: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
            prop_assert_eq!(hash_from_hex(&text), Some(bytes));
        }

        #[test]
        fn no_text_makes_it_panic(text in "\\PC{0,64}") {
            let _ = hash_from_hex(&text);
            let _ = read(&text);
        }
    }
}
