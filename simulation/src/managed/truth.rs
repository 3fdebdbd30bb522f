//! What was answered, and so has to hold.

use std::collections::{BTreeMap, BTreeSet};

use tunnel_directory::managed::{Pair, RevokedCredentials};

use super::{
    Mix,
    node::Node,
    text::{LIVE, REVOKED, tokens_of},
};

const MADE: &str = "made ";

/// A change of a document.
pub(super) struct Edit {
    /// `None` for its removal.
    pub(super) next: Option<String>,
    added: Option<String>,
    revoked: Option<String>,
}

#[derive(Debug, Default)]
pub(super) struct Truth {
    tokens: BTreeMap<String, Token>,
    /// How many removals of a label have begun.
    removals: BTreeMap<String, usize>,
    pub(super) revoked: Vec<(Pair, RevokedCredentials)>,
}

#[derive(Debug)]
struct Token {
    label: String,
    /// How many removals of the label had begun when its document was made.
    made: usize,
    is_revoked: bool,
    is_removed: bool,
}

impl Truth {
    /// The change by this kind of call, whose number is `name`; `None` if the document does not admit it.
    pub(super) fn edit(
        &self,
        label: &str,
        before: Option<&str>,
        name: u64,
        what: usize,
    ) -> Option<Edit> {
        let next = |next: String| Edit {
            next: Some(next),
            added: None,
            revoked: None,
        };
        match what {
            0 | 1 => {
                let made = before.map_or_else(|| self.removals(label), made);
                let lines = before.into_iter().flat_map(str::lines);
                let tokens = lines.filter(|line| line.starts_with("token "));
                let tokens: String = tokens.map(|line| format!("{line}\n")).collect();
                Some(next(format!("definition {name}\n{MADE}{made}\n{tokens}")))
            }
            2..6 => Some(Edit {
                added: Some(format!("t{name}")),
                ..next(format!("{}token t{name} {LIVE}\n", before?))
            }),
            6 | 7 => {
                let text = before?;
                let live = text.lines().find(|line| line.ends_with(LIVE))?;
                let token = live.split(' ').nth(1)?;
                let revoked = format!("token {token} {REVOKED}");
                Some(Edit {
                    revoked: Some(token.to_owned()),
                    ..next(text.replace(live, &revoked))
                })
            }
            8 => before.map(|_| Edit {
                next: None,
                added: None,
                revoked: None,
            }),
            _ => None,
        }
    }

    /// A removal of a label begins: its tokens may be gone.
    pub(super) fn removal_begins(&mut self, label: &str) {
        *self.removals.entry(label.to_owned()).or_default() += 1;
    }

    fn removals(&self, label: &str) -> usize {
        self.removals.get(label).copied().unwrap_or(0)
    }

    /// A call was answered as done.
    pub(super) fn answered(&mut self, label: &str, edit: &Edit, before: Option<&str>) {
        if let Some(token) = &edit.added {
            let token_state = Token {
                label: label.to_owned(),
                made: before.map_or(0, made),
                is_revoked: false,
                is_removed: false,
            };
            self.tokens.insert(token.clone(), token_state);
        }
        if let Some(token) = edit.revoked.as_ref().and_then(|it| self.tokens.get_mut(it)) {
            token.is_revoked = true;
        }
        if edit.next.is_none() {
            for name in tokens_of(before.unwrap_or_default()).into_keys() {
                if let Some(token) = self.tokens.get_mut(name) {
                    token.is_removed = true;
                }
            }
        }
    }

    /// What a node knows at the end has to be this.
    pub(super) fn check(&self, node: &Node, mix: Mix) -> Result<(), String> {
        let all = node.texts();
        let number = node.number;
        for (name, token) in &self.tokens {
            let text = all.get(token.label.as_str()).copied().unwrap_or_default();
            let state = tokens_of(text).get(name.as_str()).copied();
            let may_be_gone = self.may_be_gone(token);
            let fault = match state {
                None if !may_be_gone => "is lost",
                // A version without removals leaves nothing that a restored etcd could be compared with.
                Some(LIVE) if token.is_removed && mix == Mix::Current => "was removed and lives",
                Some(LIVE) if token.is_revoked => "was revoked and lives",
                _ => continue,
            };
            return Err(format!("n{number}: {name} of {} {fault}", token.label));
        }
        for (pair, more) in &self.revoked {
            let known = node.replica.revoked(pair);
            if known.is_none_or(|known| !known.includes(more)) {
                return Err(format!(
                    "n{number}: a revocation of {pair} is lost: {more:?}"
                ));
            }
        }
        Ok(())
    }

    /// Whatever happens, a node that knew a token knows it, unless its runtime was removed.
    pub(super) fn check_kept(&self, node: &mut Node) -> Result<(), String> {
        let known: BTreeSet<String> = node
            .texts()
            .values()
            .flat_map(|text| tokens_of(text).into_keys().map(str::to_owned))
            .collect();
        for name in node.known.difference(&known) {
            let token = self.tokens.get(name);
            if let Some(token) = token.filter(|token| !self.may_be_gone(token)) {
                let number = node.number;
                return Err(format!("n{number}: {name} of {} is gone", token.label));
            }
        }
        node.known = known;
        Ok(())
    }

    fn may_be_gone(&self, token: &Token) -> bool {
        token.made < self.removals(&token.label)
    }
}

/// How many removals of its label had begun when a document was made.
fn made(text: &str) -> usize {
    let line = text.lines().find_map(|line| line.strip_prefix(MADE));
    line.and_then(|count| count.parse().ok()).unwrap_or(0)
}
