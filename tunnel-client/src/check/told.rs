//! Where a check's steps go: into the report, and at once to whoever waits for them.

use super::plan;
use super::report::Report;
use super::step::{StepName, StepReport};

/// What is told while a check goes on.
#[derive(Debug)]
#[non_exhaustive]
pub enum Word<'a> {
    /// A step is over.
    Step(&'a StepReport),
    /// Something that takes long goes on.
    Progress(&'a str),
}

/// Keeps the report, and tells it word by word.
pub(super) struct Told<'t> {
    pub(super) report: Report,
    /// The steps that lead to the server and back.
    pub(super) way: Vec<StepName>,
    tell: &'t mut (dyn FnMut(Word<'_>) + Send),
}

impl<'t> Told<'t> {
    pub(super) fn new(tell: &'t mut (dyn FnMut(Word<'_>) + Send)) -> Self {
        Self {
            report: Report::default(),
            way: plan::steps(None),
            tell,
        }
    }

    /// A step is over.
    pub(super) fn step(&mut self, step: StepReport) {
        (self.tell)(Word::Step(&step));
        self.report.steps.push(step);
    }

    /// What of the way was not told was not reached.
    pub(super) fn way_ends(&mut self) {
        let steps = std::mem::take(&mut self.way);
        self.not_reached(&steps);
    }

    /// Of these steps, those that were not told were not reached.
    pub(super) fn not_reached(&mut self, steps: &[StepName]) {
        for step in steps {
            let is_told = self.report.steps.iter().any(|told| told.step == *step);
            if !is_told {
                self.step(StepReport::not_reached(*step));
            }
        }
    }

    /// Something goes on.
    pub(super) fn progress(&mut self, line: &str) {
        (self.tell)(Word::Progress(line));
    }
}
