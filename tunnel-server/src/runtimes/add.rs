//! Adds the runtime of one document to others, unless it conflicts with one of them.
//!
//! The rules are those of the runtimes file, which [`super::file`] checks for all its runtimes at once.

use std::sync::Arc;

use tunnel_directory::RuntimeLabel;

use super::{HostName, RuntimeEntry, Runtimes};
use crate::token::TokenId;

/// Why a runtime cannot stand beside the others.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Conflict {
    /// Another runtime has the label.
    #[error("account `{}`, name `{}` has the label `{}` already", .0.account, .0.name, .0.label)]
    Label(Arc<RuntimeEntry>),
    /// Another runtime has the host.
    #[error("the host `{host}` belongs to the runtime `{owner}`")]
    Host {
        /// The host.
        host: HostName,
        /// The runtime.
        owner: RuntimeLabel,
    },
    /// One of the two has a host at or below the other's host under the domain.
    #[error("a host of the runtime `{user}` is in the domain of the runtime `{owner}`")]
    Domain {
        /// The runtime with the host.
        user: RuntimeLabel,
        /// The runtime with the label.
        owner: RuntimeLabel,
    },
    /// Another runtime has a token with this id.
    #[error("the runtime `{owner}` has a token with the id {id}")]
    Token {
        /// The id.
        id: TokenId,
        /// The runtime.
        owner: RuntimeLabel,
    },
}

impl Runtimes {
    /// Adds runtimes, read alone, if none of them conflicts with one that is there.
    ///
    /// # Errors
    /// The first conflict. Nothing is added then.
    pub fn add(&mut self, more: &Self) -> Result<(), Conflict> {
        for entry in more.iter() {
            if let Some(other) = self.get(&entry.label) {
                return Err(Conflict::Label(other.clone()));
            }
        }
        self.check_beside(more)?;
        let (entries, tokens) = (self.entries.len(), self.tokens.len());
        let labels = more.labels.iter();
        self.labels
            .extend(labels.map(|(label, at)| (label.clone(), at + entries)));
        let hosts = more.hosts.iter();
        self.hosts
            .extend(hosts.map(|(host, at)| (host.clone(), at + entries)));
        let labels = more.host_labels.iter();
        self.host_labels
            .extend(labels.map(|(label, at)| (label.clone(), at + entries)));
        let ids = more.token_ids.iter();
        self.token_ids
            .extend(ids.map(|(id, at)| (*id, at + tokens)));
        let listed = more.tokens.iter();
        self.tokens
            .extend(listed.map(|(at, token)| (at + entries, token.clone())));
        self.entries.extend(more.iter().cloned());
        Ok(())
    }

    /// Checks that runtimes can be added, or can replace those of the same account and name.
    ///
    /// # Errors
    /// The first conflict.
    pub fn check_beside(&self, more: &Self) -> Result<(), Conflict> {
        let entry = |runtimes: &Self, at: usize| runtimes.entries.get(at).cloned();
        for new in more.iter() {
            let own = self.get(&new.label);
            if let Some(other) =
                own.filter(|it| (&it.account, &it.name) != (&new.account, &new.name))
            {
                return Err(Conflict::Label(other.clone()));
            }
            let user = self.host_owner(&new.label);
            if let Some(user) = user.filter(|user| user.label != new.label) {
                let (user, owner) = (user.label.clone(), new.label.clone());
                return Err(Conflict::Domain { user, owner });
            }
        }
        for (host, at) in &more.hosts {
            let owner = self.hosts.get(host).and_then(|at| entry(self, *at));
            let new = entry(more, *at);
            if let Some((owner, _)) = owner
                .zip(new)
                .filter(|(owner, new)| owner.label != new.label)
            {
                let (host, owner) = (host.clone(), owner.label.clone());
                return Err(Conflict::Host { host, owner });
            }
        }
        for (label, at) in &more.host_labels {
            let owner = self.labels.get(&**label).and_then(|at| entry(self, *at));
            let user = entry(more, *at);
            if let Some((owner, user)) = owner
                .zip(user)
                .filter(|(owner, user)| owner.label != user.label)
            {
                let (user, owner) = (user.label.clone(), owner.label.clone());
                return Err(Conflict::Domain { user, owner });
            }
        }
        for (new, token) in more.tokens() {
            if let Some((owner, _)) = self
                .token(token.id)
                .filter(|(owner, _)| owner.label != new.label)
            {
                let (id, owner) = (token.id, owner.label.clone());
                return Err(Conflict::Token { id, owner });
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use tunnel_ops::config_file::TomlFile;

    use super::*;
    use crate::runtimes::RuntimesError;

    const HASH: &str = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08";

    fn parse(text: &str) -> Result<Runtimes, RuntimesError> {
        let file = TomlFile::from_text("r.toml", text);
        Runtimes::parse(&file, &"t.example".parse().unwrap())
    }

    /// Documents of few names, so that many conflict.
    fn document() -> impl Strategy<Value = String> {
        let name = || prop::sample::select(vec!["a", "b", "a-b", "b-a"]);
        let host = prop::sample::select(vec![
            "x.example",
            "y.example",
            "a-b.t.example",
            "x.a-b.t.example",
            "x.b-a.t.example",
        ]);
        let hosts = prop::collection::hash_set(host, 0..3);
        (name(), name(), hosts, prop::option::of(0..3_u8)).prop_map(
            |(account, name, hosts, token)| {
                let listed: Vec<_> = hosts.into_iter().collect();
                let mut text = format!(
                    "[[runtime]]\naccount = \"{account}\"\nname = \"{name}\"\nhosts = {listed:?}\n"
                );
                if let Some(id) = token {
                    text += &format!(
                        "[[runtime.token]]\nid = \"000000000000000{id}\"\nsha256 = \"{HASH}\"\n"
                    );
                }
                text
            },
        )
    }

    proptest! {
        /// What is added one by one is what a file of it all would have, and what is left out would make that file faulty.
        #[test]
        fn one_by_one_has_the_rules_of_one_file(documents in prop::collection::vec(document(), 1..8)) {
            let (mut text, mut runtimes) = (String::new(), Runtimes::default());
            for document in documents {
                // Faulty alone, as by hosts of its own domain.
                let Ok(one) = parse(&document) else { continue };
                let together = format!("{text}{document}");
                match runtimes.add(&one) {
                    Ok(()) => text = together,
                    Err(conflict) => prop_assert!(parse(&together).is_err(), "{conflict}: {together}"),
                }
                let strict = parse(&text).unwrap();
                prop_assert!(runtimes.iter().eq(strict.iter()));
                prop_assert!(runtimes.tokens().eq(strict.tokens()));
                for entry in strict.iter() {
                    prop_assert_eq!(runtimes.get(&entry.label), Some(entry));
                    let ids = |runtimes: &Runtimes| runtimes.tokens_of(&entry.label).count();
                    prop_assert_eq!(ids(&runtimes), ids(&strict));
                }
                for (_, token) in strict.tokens() {
                    prop_assert_eq!(runtimes.token(token.id), strict.token(token.id));
                }
            }
        }
    }

    #[test]
    fn a_runtime_may_replace_itself_and_no_other() {
        let runtime = |account: &str, name: &str, host: &str| {
            let head = format!("[[runtime]]\naccount = \"{account}\"\nname = \"{name}\"\n");
            parse(&format!("{head}hosts = [\"{host}\"]\n")).unwrap()
        };
        let mut runtimes = runtime("a", "b", "x.example");
        runtimes.add(&runtime("c", "d", "y.example")).unwrap();
        let check = |next: &Runtimes| {
            runtimes
                .check_beside(next)
                .map_err(|error| error.to_string())
        };
        assert_eq!(check(&runtime("a", "b", "x.example")), Ok(()));
        assert_eq!(check(&runtime("a", "b", "z.example")), Ok(()));
        let taken = "the host `y.example` belongs to the runtime `c-d`";
        assert_eq!(check(&runtime("a", "b", "y.example")), Err(taken.into()));
        let inside = "a host of the runtime `a-b` is in the domain of the runtime `c-d`";
        assert_eq!(
            check(&runtime("a", "b", "c-d.t.example")),
            Err(inside.into())
        );
    }
}
