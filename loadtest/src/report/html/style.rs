//! Which colour and which dash each line has: the same name looks the same in every chart.
//!
//! In go the names of all lines of the page; out come the classes that `report.html` colours. Names
//! that share what comes before their first comma, such as `ours, 64 connections` and `ours, 256
//! connections`, are one family: they share a colour and differ by dash.

use crate::report::Run;

/// Colours that `report.html` has for light and for dark, `c0` and up. They can be told apart by
/// people with any of the common kinds of colour blindness; red is left to errors.
const COLOURS: usize = 7;
/// Dashes that can be told apart, `d0` (none) and up.
const DASHES: usize = 4;

/// The families of the runs, in the order of their colours; none where there is nothing to compare.
#[derive(Debug)]
pub(super) struct Families<'a>(Vec<&'a str>);

impl<'a> Families<'a> {
    /// The families of all runs.
    pub(super) fn of(runs: &'a [Run]) -> Self {
        let mut families = Vec::new();
        for run in runs {
            let family = family(&run.name);
            if !families.contains(&family) {
                families.push(family);
            }
        }
        let is_comparison = families.len() > 1;
        Self(if is_comparison { families } else { Vec::new() })
    }

    /// Classes for the lines of one chart, in their order.
    pub(super) fn classes(&self, names: &[&str]) -> Vec<String> {
        let mut looks: Vec<_> = names
            .iter()
            .map_while(|name| self.look(names, name))
            .collect();
        let are_alike = (looks.iter().enumerate())
            .any(|(index, look)| look.1 >= DASHES || looks[..index].contains(look));
        if are_alike || looks.len() < names.len() {
            // Where families do not tell the lines apart, each line has a colour of its own.
            looks = (0..names.len())
                .map(|index| (index % COLOURS, index / COLOURS % DASHES))
                .collect();
        }
        (looks.into_iter())
            .map(|(colour, dash)| format!("c{colour} d{dash}"))
            .collect()
    }

    /// Colour by family; dash by the place within the family and by how often colours came round.
    fn look(&self, names: &[&str], name: &str) -> Option<(usize, usize)> {
        let family = family(name);
        let index = self.0.iter().position(|known| *known == family)?;
        let siblings = names.iter().filter(|other| self::family(other) == family);
        let place = siblings.take_while(|other| **other != name).count();
        Some((index % COLOURS, index / COLOURS + place))
    }
}

/// The names without what all have in common after the comma.
pub(super) fn short<'a>(names: &[&'a str]) -> Vec<&'a str> {
    let rest = |name: &'a str| &name[family(name).len()..];
    let first = names.first().map(|name| rest(name));
    if names.iter().all(|name| Some(rest(name)) == first) {
        return names.iter().map(|name| family(name)).collect();
    }
    names.to_vec()
}

/// What comes before the first comma.
fn family(name: &str) -> &str {
    name.split(',').next().unwrap_or(name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::html::sample;

    fn families(names: &'static [&'static str]) -> Families<'static> {
        let runs: Vec<Run> = names.iter().map(|name| sample::run(name)).collect();
        Families::of(Box::leak(runs.into_boxed_slice()))
    }

    #[test]
    fn a_family_shares_its_colour_in_every_chart() {
        let families = families(&["ours, 64", "ours, 256", "nginx, 64", "nginx, 256"]);
        let one = families.classes(&["nginx, 64", "ours, 64"]);
        assert_eq!(one, ["c1 d0", "c0 d0"]);
        let both = families.classes(&["ours, 64", "ours, 256", "nginx, 64", "nginx, 256"]);
        assert_eq!(both, ["c0 d0", "c0 d1", "c1 d0", "c1 d1"]);
        assert_eq!(families.classes(&["nginx", "ours"]), ["c1 d0", "c0 d0"]);
    }

    #[test]
    fn lines_that_are_no_runs_have_a_colour_each() {
        for runs in [&["ours, 1", "ours, 2"][..], &["ours", "nginx"]] {
            let classes = families(runs).classes(&["p50", "p99", "ours, 1"]);
            assert_eq!(classes, ["c0 d0", "c1 d0", "c2 d0"]);
        }
    }

    #[test]
    fn what_all_names_end_with_need_not_be_said_at_each_line() {
        assert_eq!(short(&["ours, 64", "nginx, 64"]), ["ours", "nginx"]);
        assert_eq!(short(&["ours, 64", "ours, 256"]), ["ours, 64", "ours, 256"]);
        assert_eq!(short(&["p50", "p99"]), ["p50", "p99"]);
    }

    #[test]
    fn no_two_lines_of_a_chart_look_alike() {
        let names: Vec<String> = (0..24).map(|index| format!("line {index}")).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let mut classes = families(&["a", "b"]).classes(&names);
        classes.sort();
        classes.dedup();
        assert_eq!(classes.len(), 24);
    }
}
