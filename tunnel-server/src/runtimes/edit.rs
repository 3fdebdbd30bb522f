//! Changes of a runtimes file's text that preserve the rest of it, comments included.
//!
//! In: the text, and what to add or to revoke. Out: the new text. Reads and writes no file; the result must be checked
//! with [`super::Runtimes::parse`].

use toml_edit::{
    Array, ArrayOfTables, DocumentMut, InlineTable, Item, Table, TableLike, TomlError, Value, value,
};
use tunnel_directory::{AccountName, RuntimeName};

use super::{HostName, Moment};
use crate::token::{Token, TokenId};

/// A token to add to a runtime, which is added too if it is missing.
#[derive(Debug, Clone, Copy)]
pub struct TokenAddition<'a> {
    /// Whose runtime.
    pub account: &'a AccountName,
    /// Which of its runtimes.
    pub runtime: &'a RuntimeName,
    /// Hosts to add to those of the runtime.
    pub hosts: &'a [HostName],
    /// The token. Only its id and hash are written.
    pub token: &'a Token,
    /// When the token was created.
    pub created: Option<Moment>,
    /// When the token expires.
    pub expires: Option<Moment>,
    /// A note for people.
    pub note: Option<&'a str>,
}

/// Tokens to revoke.
#[derive(Debug, Clone, Copy)]
pub struct TokenRevocation<'a> {
    /// Whose runtime.
    pub account: &'a AccountName,
    /// Which of its runtimes.
    pub runtime: &'a RuntimeName,
    /// The token; `None` means all tokens of the runtime.
    pub id: Option<TokenId>,
}

/// The result of a revocation.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Revoked {
    /// The tokens that this revocation has revoked.
    pub now: Vec<String>,
    /// The tokens that were revoked already.
    pub before: Vec<String>,
}

/// Why the text cannot be changed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EditError {
    /// It is not TOML.
    #[error("not TOML: {0}")]
    NotToml(#[from] TomlError),
    /// The TOML form of this key cannot be edited.
    #[error("`{0}` is not a list of tables: write it as `[[{0}]]`")]
    NotTables(&'static str),
    /// The runtime is not listed.
    #[error("no runtime `{runtime}` of account `{account}` is listed")]
    NoRuntime {
        /// The given account.
        account: AccountName,
        /// The given runtime.
        runtime: RuntimeName,
    },
    /// The runtime has no token, or not this one.
    #[error("runtime `{runtime}` of account `{account}` has no token{}{}", if .id.is_some() { " " } else { "" }, .id.as_ref().map_or("", TokenId::as_str))]
    NoToken {
        /// The given account.
        account: AccountName,
        /// The given runtime.
        runtime: RuntimeName,
        /// The given token.
        id: Option<TokenId>,
    },
    /// The hosts are not a list.
    #[error("`hosts` is not a list")]
    NotAList,
}

/// Returns the text with the token's id and hash added.
pub fn add_token(text: &str, addition: &TokenAddition<'_>) -> Result<String, EditError> {
    let mut document: DocumentMut = text.parse()?;
    let runtimes = document
        .entry("runtime")
        .or_insert_with(|| Item::ArrayOfTables(ArrayOfTables::new()));
    let runtimes = runtimes
        .as_array_of_tables_mut()
        .ok_or(EditError::NotTables("runtime"))?;
    let found = runtimes
        .iter()
        .position(|runtime| is_runtime(runtime, addition.account, addition.runtime));
    let index = match found {
        Some(index) => index,
        None => {
            runtimes.push(new_runtime(addition));
            runtimes.len() - 1
        }
    };
    if let Some(runtime) = runtimes.get_mut(index) {
        add_hosts(runtime, addition.hosts)?;
        add_token_table(runtime, addition)?;
    }
    Ok(document.to_string())
}

/// Returns the text with the tokens marked as revoked. They are not removed, so that a client that still uses one gets
/// that reason.
pub fn revoke_tokens(
    text: &str,
    revocation: &TokenRevocation<'_>,
) -> Result<(String, Revoked), EditError> {
    let TokenRevocation {
        account,
        runtime,
        id,
    } = *revocation;
    let mut document: DocumentMut = text.parse()?;
    let runtimes = match document.get_mut("runtime") {
        Some(runtimes) => runtimes
            .as_array_of_tables_mut()
            .ok_or(EditError::NotTables("runtime"))?,
        None => &mut ArrayOfTables::new(),
    };
    let found = runtimes
        .iter_mut()
        .find(|table| is_runtime(table, account, runtime))
        .ok_or_else(|| EditError::NoRuntime {
            account: account.clone(),
            runtime: runtime.clone(),
        })?;
    let mut revoked = Revoked::default();
    for token in tokens_of(found)? {
        let listed = token.get("id").and_then(Item::as_str).unwrap_or_default();
        if id.is_some_and(|id| id.as_str() != listed) {
            continue;
        }
        let listed = listed.to_owned();
        match mark_revoked(token) {
            true => revoked.now.push(listed),
            false => revoked.before.push(listed),
        }
    }
    if revoked == Revoked::default() {
        return Err(EditError::NoToken {
            account: account.clone(),
            runtime: runtime.clone(),
            id,
        });
    }
    Ok((document.to_string(), revoked))
}

/// The tokens of a runtime, in either TOML form.
fn tokens_of(runtime: &mut Table) -> Result<Vec<&mut dyn TableLike>, EditError> {
    let not_tables = EditError::NotTables("runtime.token");
    match runtime.get_mut("token") {
        None => Ok(Vec::new()),
        Some(Item::ArrayOfTables(tables)) => Ok(tables
            .iter_mut()
            .map(|table| table as &mut dyn TableLike)
            .collect()),
        Some(Item::Value(Value::Array(list))) => list
            .iter_mut()
            .map(|value| {
                let table = value.as_inline_table_mut();
                table.map(|table| table as &mut dyn TableLike)
            })
            .collect::<Option<_>>()
            .ok_or(not_tables),
        Some(_) => Err(not_tables),
    }
}

/// Marks a token as revoked; returns `false` if it was already.
pub(crate) fn mark_revoked(token: &mut dyn TableLike) -> bool {
    match token.get_mut("revoked").and_then(Item::as_value_mut) {
        Some(value) if value.as_bool() == Some(true) => return false,
        Some(value) => {
            // Keeps a comment on the line.
            let decor = value.decor().clone();
            *value = true.into();
            *value.decor_mut() = decor;
        }
        None => {
            token.insert("revoked", value(true));
        }
    }
    true
}

fn is_runtime(table: &Table, account: &AccountName, runtime: &RuntimeName) -> bool {
    let is = |key: &str, wanted: &str| table.get(key).and_then(Item::as_str) == Some(wanted);
    is("account", account.as_str()) && is("name", runtime.as_str())
}

fn new_runtime(addition: &TokenAddition<'_>) -> Table {
    let mut runtime = Table::new();
    runtime.insert("account", value(addition.account.as_str()));
    runtime.insert("name", value(addition.runtime.as_str()));
    runtime
}

fn add_hosts(runtime: &mut Table, hosts: &[HostName]) -> Result<(), EditError> {
    if hosts.is_empty() {
        return Ok(());
    }
    let listed = runtime
        .entry("hosts")
        .or_insert_with(|| value(Array::new()));
    let listed = listed.as_array_mut().ok_or(EditError::NotAList)?;
    for host in hosts {
        let has = |listed: &Value| {
            listed
                .as_str()
                .is_some_and(|listed| listed.eq_ignore_ascii_case(host.as_str()))
        };
        if !listed.iter().any(has) {
            listed.push(host.as_str());
        }
    }
    Ok(())
}

fn add_token_table(runtime: &mut Table, addition: &TokenAddition<'_>) -> Result<(), EditError> {
    let tokens = runtime
        .entry("token")
        .or_insert_with(|| Item::ArrayOfTables(ArrayOfTables::new()));
    // A file with inline tables gets another inline table.
    if let Some(list) = tokens.as_array_mut() {
        let mut token = InlineTable::new();
        fill_token(&mut token, addition);
        list.push(token);
        return Ok(());
    }
    let mut token = Table::new();
    fill_token(&mut token, addition);
    tokens
        .as_array_of_tables_mut()
        .ok_or(EditError::NotTables("runtime.token"))?
        .push(token);
    Ok(())
}

fn fill_token(table: &mut dyn TableLike, addition: &TokenAddition<'_>) {
    let hash: String = addition
        .token
        .sha256()
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    table.insert("id", value(addition.token.id().as_str()));
    table.insert("sha256", value(hash));
    for (key, moment) in [("created", addition.created), ("expires", addition.expires)] {
        if let Some(moment) = moment.and_then(Moment::to_toml) {
            table.insert(key, value(moment));
        }
    }
    if let Some(note) = addition.note {
        table.insert("note", value(note));
    }
}

#[cfg(test)]
mod tests {
    use tunnel_ops::config_file::TomlFile;

    use super::*;
    use crate::runtimes::Runtimes;

    const FILE: &str = "\
# Runtimes of this server.

[[runtime]]
account = \"acme\" # since 2020
name = \"prod\"
hosts = [
  \"argo.example.com\", # the old one
]

[[runtime.token]]
id = \"0123456789abcdef\"
sha256 = \"9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08\"

[[runtime]]
account = \"acme\"
name = \"test\"
# The end.
";

    fn add(text: &str, account: &str, runtime: &str, hosts: &[&str]) -> (String, Token) {
        let token = Token::generate().unwrap();
        let hosts: Vec<HostName> = hosts.iter().map(|host| host.parse().unwrap()).collect();
        let (account, runtime) = (account.parse().unwrap(), runtime.parse().unwrap());
        let addition = TokenAddition {
            account: &account,
            runtime: &runtime,
            hosts: &hosts,
            token: &token,
            created: Some("2026-01-01T00:00:00Z".parse().unwrap()),
            expires: Some("2027-01-01T00:00:00Z".parse().unwrap()),
            note: Some("Ann's"),
        };
        (add_token(text, &addition).unwrap(), token)
    }

    fn parse(text: &str) -> Runtimes {
        Runtimes::parse(
            &TomlFile::from_text("r.toml", text),
            &"tunnels.localhost".parse().unwrap(),
        )
        .unwrap()
    }

    /// Checks that all lines are still there, in order.
    #[track_caller]
    fn check_kept(before: &str, after: &str) {
        let mut after = after.lines();
        for line in before.lines() {
            assert!(after.any(|kept| kept == line), "lost: {line}");
        }
    }

    #[test]
    fn a_token_goes_to_its_runtime_and_all_else_is_kept() {
        let (text, token) = add(FILE, "acme", "prod", &[]);
        check_kept(FILE, &text);
        let runtimes = parse(&text);
        let (entry, listed) = runtimes.token(token.id()).unwrap();
        assert_eq!(entry.label.as_str(), "acme-prod");
        assert_eq!(listed.sha256, token.sha256());
        assert!(
            text.contains("created = 2026-01-01T00:00:00Z\nexpires = 2027-01-01T00:00:00Z\n"),
            "{text}"
        );
        assert_eq!(runtimes.token_count(), 2);
        assert!(
            text.find(token.id().as_str()) < text.find("name = \"test\""),
            "beside its runtime: {text}"
        );
        assert!(!text.contains(token.expose()));
    }

    #[test]
    fn a_missing_runtime_is_added() {
        let (text, token) = add(FILE, "other", "prod", &["x.example"]);
        check_kept(FILE, &text);
        let runtimes = parse(&text);
        let entry = runtimes.token(token.id()).unwrap().0;
        assert_eq!(entry.label.as_str(), "other-prod");
        assert_eq!(entry.hosts.len(), 1);
        assert_eq!(runtimes.iter().len(), 3);
    }

    #[test]
    fn an_empty_file_becomes_a_whole_one() {
        let (text, token) = add("", "acme", "prod", &[]);
        assert!(
            text.starts_with(
                "[[runtime]]\naccount = \"acme\"\nname = \"prod\"\n\n[[runtime.token]]\nid = "
            ),
            "{text}"
        );
        assert!(parse(&text).token(token.id()).is_some());
        let (again, _) = add(&text, "acme", "prod", &[]);
        assert_eq!(parse(&again).token_count(), 2);
        assert_eq!(parse(&again).iter().len(), 1);
    }

    #[test]
    fn hosts_are_added_once() {
        let (text, _) = add(
            FILE,
            "acme",
            "prod",
            &["argo.example.com", "new.example.com"],
        );
        let runtimes = parse(&text);
        let hosts: Vec<&str> = runtimes
            .iter()
            .next()
            .unwrap()
            .hosts
            .iter()
            .map(HostName::as_str)
            .collect();
        assert_eq!(hosts, ["argo.example.com", "new.example.com"]);
        assert!(text.contains("# the old one"), "{text}");
    }

    #[test]
    fn tables_in_one_line_stay_so() {
        let hash = "00".repeat(32);
        let file = format!(
            "[[runtime]]\naccount = \"a\"\nname = \"b\"\ntoken = [{{ id = \"0123456789abcdef\", sha256 = \"{hash}\" }}]\n"
        );
        let (text, _) = add(&file, "a", "b", &[]);
        assert_eq!(parse(&text).token_count(), 2);
        assert_eq!(text.lines().count(), 4);
    }

    #[test]
    fn a_form_that_cannot_be_edited_is_refused() {
        let token = Token::generate().unwrap();
        let (account, runtime) = ("a".parse().unwrap(), "b".parse().unwrap());
        let addition = TokenAddition {
            account: &account,
            runtime: &runtime,
            hosts: &[],
            token: &token,
            created: None,
            expires: None,
            note: None,
        };
        assert!(matches!(
            add_token("runtime = [", &addition),
            Err(EditError::NotToml(_))
        ));
        let inline = "runtime = [{ account = \"a\", name = \"b\" }]";
        assert!(matches!(
            add_token(inline, &addition),
            Err(EditError::NotTables("runtime"))
        ));
    }

    fn revoke(text: &str, runtime: &str, id: Option<&str>) -> Result<(String, Revoked), EditError> {
        let (account, runtime) = ("acme".parse().unwrap(), runtime.parse().unwrap());
        revoke_tokens(
            text,
            &TokenRevocation {
                account: &account,
                runtime: &runtime,
                id: id.map(|id| id.parse().unwrap()),
            },
        )
    }

    #[test]
    fn one_token_or_all_of_a_runtime_are_marked_and_all_else_is_kept() {
        let (file, other) = add(FILE, "acme", "prod", &[]);
        let (text, revoked) = revoke(&file, "prod", Some("0123456789abcdef")).unwrap();
        check_kept(&file, &text);
        assert_eq!(revoked.now, ["0123456789abcdef"]);
        let listed = |text: &str| -> Vec<bool> {
            parse(text)
                .tokens()
                .map(|(_, token)| token.revoked)
                .collect()
        };
        assert_eq!(listed(&text), [true, false]);
        let (text, revoked) = revoke(&text, "prod", None).unwrap();
        check_kept(&file, &text);
        assert_eq!(revoked.now, [other.id().as_str()]);
        assert_eq!(revoked.before, ["0123456789abcdef"]);
        assert_eq!(listed(&text), [true, true]);
    }

    #[test]
    fn tokens_in_one_line_are_marked_there_and_a_comment_stays() {
        let hash = "00".repeat(32);
        let file = format!(
            "[[runtime]]\naccount = \"acme\"\nname = \"b\"\ntoken = [{{ id = \"0123456789abcdef\", sha256 = \"{hash}\" }}]\n"
        );
        let (text, _) = revoke(&file, "b", None).unwrap();
        assert!(parse(&text).tokens().all(|(_, token)| token.revoked));
        assert_eq!(text.lines().count(), 4);
        let file = format!(
            "[[runtime]]\naccount = \"acme\"\nname = \"b\"\n[[runtime.token]]\nid = \"0123456789abcdef\"\nsha256 = \"{hash}\"\nrevoked = false # still good\n"
        );
        let (text, _) = revoke(&file, "b", None).unwrap();
        assert!(text.ends_with("revoked = true # still good\n"), "{text}");
    }

    #[test]
    fn an_unlisted_token_cannot_be_revoked() {
        let text = |result: Result<_, EditError>| result.unwrap_err().to_string();
        for empty in ["", FILE] {
            assert_eq!(
                text(revoke(empty, "stage", None)),
                "no runtime `stage` of account `acme` is listed"
            );
        }
        assert_eq!(
            text(revoke(FILE, "test", None)),
            "runtime `test` of account `acme` has no token"
        );
        assert_eq!(
            text(revoke(FILE, "prod", Some("aaaaaaaaaaaaaaaa"))),
            "runtime `prod` of account `acme` has no token aaaaaaaaaaaaaaaa"
        );
    }
}
