//! What a load measured: what each group recorded, what each role used, and whether to believe it.

use std::collections::BTreeMap;

use crate::{
    load::ThreadUse,
    report::{Note, NoteLevel, Report, Run, Usage, usage::cpu_us_per_request},
};

/// A load thread that ran for this share of the time was busy: what is left goes to the kernel's
/// switches between threads.
pub const BUSY: f64 = 0.95;

/// A load thread that waited for a processor for this share of the time sent late.
const WAITED: f64 = 0.25;

/// Everything that one load measured.
#[derive(Debug)]
pub struct Outcome {
    /// One for each group, in the order in which they were added. What programs used is in each of them, since it
    /// is known for all groups together.
    pub runs: Vec<Run>,
    /// What to know about the figures.
    pub notes: Vec<Note>,
    /// One for each load thread.
    pub threads: Vec<ThreadUse>,
}

impl Outcome {
    /// Of these groups. Of all `workers`, `missing` were not ready when the warm-up began.
    pub(super) fn new(
        groups: impl IntoIterator<Item = (Run, Vec<Note>)>,
        usage: BTreeMap<String, Usage>,
        threads: Vec<ThreadUse>,
        (workers, missing): (usize, usize),
    ) -> Self {
        let (mut runs, of_groups): (Vec<_>, Vec<_>) = groups.into_iter().unzip();
        let names: Vec<_> = runs.iter().map(|run: &Run| run.name.as_str()).collect();
        let names = names.join(", ");
        let is_bound = !threads.is_empty() && threads.iter().all(|thread| thread.ran >= BUSY);
        let mut notes: Vec<Note> = note_on_threads(&names, is_bound, &threads)
            .into_iter()
            .collect();
        if missing > 0 {
            let there = workers.saturating_sub(missing);
            notes.push(Note::warning(format!(
                "{names}: only {there} of {workers} connections were there when the warm-up \
                 began; the others came later or never"
            )));
        }
        let gone = usage.iter().filter(|(_, usage)| usage.processes == 0);
        let gone = gone.map(|(role, _)| Note::warning(format!("{role}: its processes have ended")));
        notes.extend(gone);
        notes.extend(of_groups.into_iter().flatten());
        let completed = runs.iter().map(|run| run.completed).sum();
        for run in &mut runs {
            run.usage.clone_from(&usage);
            run.cpu_us_per_request = cpu_us_per_request(&usage, completed);
            run.generator_bound = is_bound;
        }
        Self {
            runs,
            notes,
            threads,
        }
    }

    /// The first group.
    pub fn into_run(self) -> (Run, Vec<Note>) {
        let run = self.runs.into_iter().next();
        (run.unwrap_or_default(), self.notes)
    }
}

/// Whether the threads had time left, and processors to run on.
fn note_on_threads(names: &str, is_bound: bool, threads: &[ThreadUse]) -> Option<Note> {
    let count = threads.len().max(1) as f64;
    let ran = threads.iter().map(|thread| thread.ran).sum::<f64>() / count;
    let waited = threads.iter().map(|thread| thread.waited).sum::<f64>() / count;
    let (level, text) = if is_bound {
        let text = format!(
            "{names}: the load generator was the limit (its threads ran {:.0} % of the time): the \
             target may be faster than this; give it more --threads on a machine with more cores, \
             or less load",
            ran * 100.0
        );
        (NoteLevel::Warning, text)
    } else if waited >= WAITED {
        let text = format!(
            "{names}: all processors were busy: the load generator ran {:.0} % of the time and \
             waited {:.0} % for a processor, which is part of the latencies",
            ran * 100.0,
            waited * 100.0
        );
        (NoteLevel::Info, text)
    } else {
        return None;
    };
    Some(Note { level, text })
}

impl Report {
    /// Adds a run for each group of a load, and what to know about them.
    pub fn add(&mut self, outcome: Outcome) {
        self.runs.extend(outcome.runs);
        self.notes.extend(outcome.notes);
    }
}
