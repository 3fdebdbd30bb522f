//! Where a check's steps go: into the report, and at once to whoever waits for them.

use super::report::Report;
use super::step::StepReport;

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
    tell: &'t mut (dyn FnMut(Word<'_>) + Send),
}

impl<'t> Told<'t> {
    pub(super) fn new(tell: &'t mut (dyn FnMut(Word<'_>) + Send)) -> Self {
        Self {
            report: Report::default(),
            tell,
        }
    }

    /// A step is over.
    pub(super) fn step(&mut self, step: StepReport) {
        (self.tell)(Word::Step(&step));
        self.report.steps.push(step);
    }

    /// Something goes on.
    pub(super) fn progress(&mut self, line: &str) {
        (self.tell)(Word::Progress(line));
    }
}
