//! Where a check's steps go: into the report, and at once to the caller.

use super::report::Report;
use super::step::{StepReport, path};
use super::verdict::Verdict;
use crate::step::Step;

/// An event of a check in progress.
#[derive(Debug)]
#[non_exhaustive]
pub enum Event<'a> {
    /// A step has ended.
    Step(&'a StepReport),
    /// A line about a step that takes long.
    Progress(&'a str),
}

/// Keeps the report, and passes each step on to the caller.
pub(super) struct Reporter<'n> {
    pub(super) report: Report,
    /// The steps of the path to the server that are still to be reported.
    pub(super) path: Vec<Step>,
    /// The server that the steps are about, if there are several.
    server: Option<String>,
    notify: &'n mut (dyn FnMut(Event<'_>) + Send),
}

impl<'n> Reporter<'n> {
    pub(super) fn new(notify: &'n mut (dyn FnMut(Event<'_>) + Send)) -> Self {
        Self {
            report: Report::default(),
            path: path(None),
            server: None,
            notify,
        }
    }

    /// The steps of the path that follow are about this server, one of several.
    pub(super) fn begin_server(&mut self, server: String) {
        self.server = Some(server);
    }

    /// Reports a step.
    pub(super) fn step(&mut self, mut step: StepReport) {
        step.name = step.name.or_else(|| self.server.clone());
        (self.notify)(Event::Step(&step));
        self.report.steps.push(step);
    }

    /// Reports a step that failed.
    pub(super) fn failed(&mut self, step: Step, words: impl Into<String>, verdict: Verdict) {
        self.step(StepReport::failed(step, words, verdict));
    }

    /// The path to the server ends here: hops without a report were not reached.
    pub(super) fn path_ends(&mut self) {
        let steps = std::mem::take(&mut self.path);
        self.not_reached(&steps);
        self.server = None;
    }

    /// Reports those of these steps as not reached that have no report.
    pub(super) fn not_reached(&mut self, steps: &[Step]) {
        for step in steps {
            let is_it = |report: &StepReport| {
                report.step == *step && (self.server.is_none() || report.name == self.server)
            };
            let is_reported = self.report.steps.iter().any(is_it);
            if !is_reported {
                self.step(StepReport::not_reached(*step));
            }
        }
    }

    pub(super) fn progress(&mut self, line: &str) {
        (self.notify)(Event::Progress(line));
    }
}
