//! The report of a check: its steps and verdict, and their output for people and for scripts.

use std::fmt::Write as _;
use std::time::Duration;

use serde::Serialize;
use serde::ser::SerializeStruct;

use super::idle_probe::IdleReport;
use super::step::{StepReport, StepResult};
use super::text::span;
use super::verdict::Verdict;

/// All steps of a check.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct Report {
    /// The server's URL, if the configuration names one; several are separated by commas.
    pub server: Option<String>,
    /// In the order in which they were taken.
    pub steps: Vec<StepReport>,
    /// The result of the idle probe, if it was asked for.
    pub idle: Option<IdleReport>,
}

/// How the output for people looks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Style {
    /// ASCII only.
    Plain,
    /// Signs and colours, for a terminal.
    Coloured,
}

impl Report {
    /// Whether no step failed.
    pub fn is_ok(&self) -> bool {
        self.steps
            .iter()
            .all(|step| step.result != StepResult::Failed)
    }

    /// The verdict of the first step that failed.
    pub fn verdict(&self) -> Option<&Verdict> {
        let mut steps = self.with(StepResult::Failed);
        steps.find_map(|step| step.verdict.as_ref())
    }

    fn with(&self, result: StepResult) -> impl Iterator<Item = &StepReport> {
        self.steps.iter().filter(move |step| step.result == result)
    }

    /// The verdicts on the steps with this result: one for each advice, and the steps that it is for.
    fn advice(&self, result: StepResult) -> Vec<(&Verdict, Vec<&str>)> {
        let mut all: Vec<(&Verdict, Vec<&str>)> = Vec::new();
        for step in self.with(result) {
            let Some(verdict) = &step.verdict else {
                continue;
            };
            let name = step.name.as_deref().unwrap_or_else(|| step.step.name());
            let is_one = |one: &Verdict| (one.name, &one.advice) == (verdict.name, &verdict.advice);
            match all.iter_mut().find(|(one, _)| is_one(one)) {
                Some((_, steps)) => steps.push(name),
                None => all.push((verdict, vec![name])),
            }
        }
        all
    }

    /// The last lines, for people: what is wrong, and what to do.
    pub fn conclusion(&self, style: Style) -> String {
        let line = |of: &str, colour, (verdict, steps): &(&Verdict, Vec<&str>)| {
            let name = style.paint(verdict.name, colour);
            format!("{of} {name} ({}): {}\n", listed(steps), verdict.advice)
        };
        let failures = self.advice(StepResult::Failed);
        let mut text = match failures.first() {
            Some((verdict, _)) => {
                let name = style.paint(verdict.name, RED);
                let (sentence, advice) = (&verdict.sentence, &verdict.advice);
                format!("\n{name}: {sentence}\nwhat to do: {advice}\n")
            }
            None => {
                let has_warnings = self.with(StepResult::Warning).next().is_some();
                let warnings = if has_warnings {
                    "; see the warnings above"
                } else {
                    ""
                };
                format!("{}: no step failed{warnings}\n", style.paint("ok", GREEN))
            }
        };
        for further in failures.iter().skip(1) {
            text += &line("also", RED, further);
        }
        for warning in &self.advice(StepResult::Warning) {
            text += &line("warning", YELLOW, warning);
        }
        style.fit(text)
    }
}

impl Serialize for Report {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut object = serializer.serialize_struct("Report", 5)?;
        object.serialize_field("ok", &self.is_ok())?;
        object.serialize_field("server", &self.server)?;
        object.serialize_field("steps", &self.steps)?;
        object.serialize_field("verdict", &self.verdict())?;
        match &self.idle {
            Some(idle) => object.serialize_field("idle", idle)?,
            None => object.skip_field("idle")?,
        }
        object.end()
    }
}

const RED: &str = "31";
const GREEN: &str = "32";
const YELLOW: &str = "33";

/// As wide as the longest name of a step.
const NAME_WIDTH: usize = 14;

/// Most steps that an advice names: each of them has a line of its own above.
const NAMED_STEPS: usize = 4;

impl Style {
    fn paint(self, text: &str, colour: &str) -> String {
        match self {
            Self::Plain => text.to_owned(),
            Self::Coloured => format!("\u{1b}[{colour}m{text}\u{1b}[0m"),
        }
    }

    fn mark(self, result: StepResult) -> String {
        let (plain, sign, colour) = match result {
            StepResult::Held => ("ok  ", "✓", GREEN),
            StepResult::Warning => ("warn", "!", YELLOW),
            StepResult::Failed => ("FAIL", "✗", RED),
            StepResult::Skipped => ("-   ", "-", "0"),
        };
        match self {
            Self::Plain => plain.to_owned(),
            Self::Coloured => self.paint(sign, colour),
        }
    }

    /// The lines of one step.
    pub fn step(self, step: &StepReport) -> String {
        let (mark, name) = (self.mark(step.result), step.step.name());
        let mut line = format!("{mark} {name:<NAME_WIDTH$}  ");
        if let Some(name) = &step.name {
            line += &format!("{name}: ");
        }
        line += &step.words;
        if let Some(took) = step.took {
            line += &format!("  ({})", short(took));
        }
        line.push('\n');
        let indent = mark_width(self) + 1 + NAME_WIDTH + 2;
        for (detail, number) in step.details().iter().zip(1..) {
            // Writing into a string cannot fail.
            let _ = writeln!(line, "{:indent$}{number}. {detail}", "");
        }
        self.fit(line)
    }

    /// The text in ASCII, where that is the style: names in certificates may have any characters.
    fn fit(self, text: String) -> String {
        match self {
            Self::Coloured => text,
            Self::Plain if text.is_ascii() => text,
            Self::Plain => (text.replace('…', "...").chars())
                .map(|letter| if letter.is_ascii() { letter } else { '?' })
                .collect(),
        }
    }
}

fn mark_width(style: Style) -> usize {
    match style {
        Style::Plain => 4,
        Style::Coloured => 1,
    }
}

/// The first names of steps, and the number of the others.
fn listed(steps: &[&str]) -> String {
    let names = steps.iter().take(NAMED_STEPS).copied();
    let names = names.collect::<Vec<_>>().join(", ");
    match steps.len().saturating_sub(NAMED_STEPS) {
        0 => names,
        more => format!("{names} and {more} more"),
    }
}

/// A step's time.
fn short(took: Duration) -> String {
    match took < Duration::from_secs(10) {
        true => format!("{:.1} ms", took.as_secs_f64() * 1_000.0),
        false => span(took),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::step::Step;

    fn report() -> Report {
        let verdict = Verdict::new("dns_failure", "no address", "look for a slip");
        Report {
            server: Some("wss://a.test".to_owned()),
            steps: vec![
                StepReport::new(Step::Config, StepResult::Held, "good")
                    .took(Duration::from_micros(1_200)),
                StepReport::failed(Step::Dns, "a.test", verdict),
                StepReport::new(Step::Upstream, StepResult::Skipped, "not checked")
                    .named("default"),
            ],
            idle: None,
        }
    }

    #[test]
    fn people_see_a_line_for_each_step_and_at_last_what_to_do() {
        let report = report();
        let lines: String = report
            .steps
            .iter()
            .map(|step| Style::Plain.step(step))
            .collect();
        assert_eq!(
            lines + &report.conclusion(Style::Plain),
            "ok   config          good  (1.2 ms)\n\
             FAIL dns             a.test\n\
             -    upstream        default: not checked\n\
             \n\
             dns_failure: no address\n\
             what to do: look for a slip\n"
        );
        let coloured = Style::Coloured.step(&report.steps[0]);
        assert!(
            coloured.contains("✓") && coloured.contains("\u{1b}[32m"),
            "{coloured}"
        );
    }

    #[test]
    fn whatever_else_has_failed_has_each_advice_once_with_the_steps_that_it_is_for() {
        let mut report = report();
        let step = |route, name, advice| {
            let verdict = Verdict::new(name, "no", advice);
            StepReport::failed(Step::Upstream, "http://app", verdict).named(route)
        };
        let refused = |route| step(route, "upstream_refused", "start it");
        report
            .steps
            .extend(["a", "b", "c", "d", "e", "f"].map(refused));
        report.steps.extend([
            step("g", "upstream_refused", "mount the socket"),
            StepReport {
                result: StepResult::Warning,
                ..step("h", "upstream_silent", "look there")
            },
            step("i", "upstream_tls", "plain HTTP?"),
        ]);
        let warning = "warning upstream_silent (h): look there\n";
        assert_eq!(
            report.conclusion(Style::Plain),
            format!(
                "\ndns_failure: no address\nwhat to do: look for a slip\n\
                 also upstream_refused (a, b, c, d and 2 more): start it\n\
                 also upstream_refused (g): mount the socket\n\
                 also upstream_tls (i): plain HTTP?\n{warning}"
            )
        );
        report
            .steps
            .retain(|step| step.result != StepResult::Failed);
        assert_eq!(report.verdict(), None);
        assert_eq!(
            report.conclusion(Style::Plain),
            format!("ok: no step failed; see the warnings above\n{warning}")
        );
    }

    #[test]
    fn plain_lines_are_ascii() {
        let step = StepReport::new(Step::Tls, StepResult::Held, "signed by Zürich");
        assert_eq!(
            Style::Plain.step(&step),
            "ok   tls             signed by Z?rich\n"
        );
        assert!(Style::Coloured.step(&step).contains("Zürich"));
    }

    #[test]
    fn scripts_see_the_same() {
        let json: serde_json::Value = serde_json::to_value(report()).unwrap();
        assert_eq!(json["ok"], false);
        assert_eq!(json["server"], "wss://a.test");
        assert_eq!(json["verdict"]["name"], "dns_failure");
        assert_eq!(json["steps"][1]["verdict"], json["verdict"]);
        assert_eq!(json["steps"][2]["name"], "default");
        assert!(json.get("idle").is_none());
        let good = Report::default();
        assert!(
            good.is_ok()
                && good
                    .conclusion(Style::Plain)
                    .starts_with("ok: no step failed")
        );
    }
}
