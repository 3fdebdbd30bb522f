//! The difference between two tables of routes, for the log: names, and not too many.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use super::{RouteConfig, RouteList};

/// Most names of one kind that are shown; a table may have a thousand.
const NAMES_SHOWN: usize = 10;

/// Names of routes that were added, removed or changed.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct RoutesDifference {
    added: Vec<Arc<str>>,
    removed: Vec<Arc<str>>,
    changed: Vec<Arc<str>>,
}

impl RoutesDifference {
    /// The difference from `before` to `after`. The order of routes does not count; the content of files that routes
    /// name does.
    pub fn between<'a>(
        before: impl IntoIterator<Item = &'a RouteConfig>,
        after: &RouteList,
    ) -> Self {
        let before = before.into_iter().map(|route| (&*route.name, route));
        let mut before: HashMap<&str, &RouteConfig> = before.collect();
        let mut difference = Self::default();
        for route in after {
            let names = match before.remove(&*route.name) {
                None => &mut difference.added,
                Some(other) if !route.equals_but_for_line(other) => &mut difference.changed,
                Some(_) => continue,
            };
            names.push(Arc::clone(&route.name));
        }
        let removed = before.into_values().map(|route| Arc::clone(&route.name));
        difference.removed.extend(removed);
        difference.removed.sort_unstable();
        difference
    }

    /// Whether nothing differs.
    pub fn is_none(&self) -> bool {
        *self == Self::default()
    }
}

impl RouteConfig {
    /// Whether another route is equal, on whatever line.
    fn equals_but_for_line(&self, other: &Self) -> bool {
        let line = other.line;
        let moved = Self {
            line,
            ..self.clone()
        };
        moved == *other
    }
}

impl fmt::Display for RoutesDifference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kinds = [
            ("added", &self.added),
            ("removed", &self.removed),
            ("changed", &self.changed),
        ];
        let mut separator = "";
        for (kind, names) in kinds.into_iter().filter(|(_, names)| !names.is_empty()) {
            let shown = names.get(..NAMES_SHOWN).unwrap_or(names).join(", ");
            write!(f, "{separator}{kind} {shown}")?;
            if let Some(more) = names
                .len()
                .checked_sub(NAMES_SHOWN)
                .filter(|more| *more > 0)
            {
                write!(f, " and {more} more")?;
            }
            separator = "; ";
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(routes: &[(&str, &str)]) -> RouteList {
        let text: String = (routes.iter())
            .map(|(name, upstream)| {
                format!(
                    "[[route]]\nname = \"{name}\"\npath = \"/{name}\"\nupstream = \"{upstream}\"\n"
                )
            })
            .collect();
        RouteList::from_toml("r.toml", &text).unwrap()
    }

    fn between(before: &[(&str, &str)], after: &[(&str, &str)]) -> String {
        RoutesDifference::between(&list(before), &list(after)).to_string()
    }

    #[test]
    fn routes_are_added_removed_and_changed_by_name() {
        let (one, other) = ("http://one", "http://other");
        let before = [("a", one), ("b", one), ("c", one), ("d", one)];
        let after = [("e", one), ("d", one), ("b", other), ("a", one)];
        assert_eq!(
            between(&before, &after),
            "added e; removed c; changed b",
            "the order of the lines is no change"
        );
        assert!(RoutesDifference::between(&list(&before), &list(&before)).is_none());
    }

    #[test]
    fn no_line_of_the_log_is_long() {
        let names: Vec<_> = (0..1_000).map(|number| format!("{number:a>63}")).collect();
        let all: Vec<_> = names
            .iter()
            .map(|name| (name.as_str(), "http://a"))
            .collect();
        let text = between(&[("b", "http://a")], &all);
        assert!(text.len() < 1_000, "{}", text.len());
        assert!(text.contains(" and 990 more; removed b"), "{text}");
    }
}
