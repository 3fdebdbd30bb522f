//! What a load measured: what each group recorded, what each role used, and whether to believe it.

use std::collections::BTreeMap;

use crate::{
    load::ThreadUse,
    measure::Recording,
    report::{Level, Note, Report, Run, Usage, usage::cpu_us_per_request},
};

/// A load thread that ran for this share of the time was busy: what is left goes to the kernel's
/// switches between threads.
pub const BUSY: f64 = 0.95;

/// A load thread that waited for a processor for this share of the time sent late.
const WAITED: f64 = 0.25;

/// Everything that one load measured.
#[derive(Debug)]
pub struct Outcome {
    /// One for each group, in the order in which they were added.
    pub recordings: Vec<Recording>,
    /// By role, over the window.
    pub usage: BTreeMap<String, Usage>,
    /// One for each load thread.
    pub threads: Vec<ThreadUse>,
    /// Workers of all groups.
    pub workers: usize,
    /// How many of them were not ready when the warm-up began.
    pub missing: usize,
}

impl Outcome {
    /// Whether the load threads had no time left, so that the figures are theirs.
    pub fn generator_bound(&self) -> bool {
        !self.threads.is_empty() && self.threads.iter().all(|thread| thread.ran >= BUSY)
    }

    /// The first group as a run of this name.
    pub fn into_run(mut self, name: impl Into<String>) -> (Option<Run>, Vec<Note>) {
        self.recordings.truncate(1);
        if let Some(recording) = self.recordings.first_mut() {
            recording.name = name.into();
        }
        let (runs, notes) = self.into_runs();
        (runs.into_iter().next(), notes)
    }

    /// Each group as a run with the group's name, and what to know about them. What programs used
    /// is the same in all: it cannot be told apart.
    pub fn into_runs(self) -> (Vec<Run>, Vec<Note>) {
        let notes = self.notes();
        let generator_bound = self.generator_bound();
        let completed = self.recordings.iter().map(|group| group.total.completed);
        let cost = cpu_us_per_request(&self.usage, completed.sum());
        let usage = self.usage;
        let runs = self.recordings.into_iter().map(|recording| {
            let name = recording.name.clone();
            let mut run = recording.into_run(name);
            run.usage.clone_from(&usage);
            run.cpu_us_per_request = cost;
            run.generator_bound = generator_bound;
            run
        });
        (runs.collect(), notes)
    }

    /// What to know about the figures.
    pub fn notes(&self) -> Vec<Note> {
        let names: Vec<_> = self
            .recordings
            .iter()
            .map(|group| group.name.as_str())
            .collect();
        let names = names.join(", ");
        let mut notes = Vec::new();
        let count = self.threads.len().max(1) as f64;
        let ran = self.threads.iter().map(|thread| thread.ran).sum::<f64>() / count;
        let waited = self.threads.iter().map(|thread| thread.waited).sum::<f64>() / count;
        if self.generator_bound() {
            let text = format!(
                "{names}: the load generator was the limit (its threads ran {:.0} % of the time): \
                 the target may be faster than this; give it more --threads on a machine with \
                 more cores, or less load",
                ran * 100.0
            );
            notes.push(Note::warning(text));
        } else if waited >= WAITED {
            let text = format!(
                "{names}: all processors were busy: the load generator ran {:.0} % of the time \
                 and waited {:.0} % for a processor, which is part of the latencies",
                ran * 100.0,
                waited * 100.0
            );
            notes.push(Note {
                level: Level::Info,
                text,
            });
        }
        if self.missing > 0 {
            let (all, there) = (self.workers, self.workers.saturating_sub(self.missing));
            notes.push(Note::warning(format!(
                "{names}: only {there} of {all} connections were there when the warm-up began; \
                 the others came later or never"
            )));
        }
        for (role, usage) in &self.usage {
            if usage.processes == 0 {
                notes.push(Note::warning(format!("{role}: its processes have ended")));
            }
        }
        for group in &self.recordings {
            let total = group.total.completed + group.total.errors.total();
            if group.total.late * 100 > total {
                let text = format!(
                    "{}: {:.1} % of the requests were sent more than 1 ms later than planned \
                     because the processors were busy, which is part of their latency",
                    group.name,
                    group.total.late as f64 * 100.0 / total as f64
                );
                notes.push(Note::warning(text));
            }
            let beyond = group.total.latencies.beyond();
            if beyond > 0 {
                let text = format!(
                    "{}: {beyond} latencies were longer than two minutes and count as two minutes",
                    group.name
                );
                notes.push(Note::warning(text));
            }
        }
        notes
    }
}

impl Report {
    /// Adds a run for each group of a load, and what to know about them.
    pub fn add(&mut self, outcome: Outcome) {
        let (runs, notes) = outcome.into_runs();
        self.runs.extend(runs);
        self.notes.extend(notes);
    }
}
