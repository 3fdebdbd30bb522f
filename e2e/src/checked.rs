//! What `tunnel-client check --json` said.

use serde_json::Value;

use crate::program::Ended;

/// The whole of it.
#[derive(Clone, Debug)]
pub struct Checked {
    /// The program's own end.
    pub ended: Ended,
    /// What it wrote, as JSON.
    pub report: Value,
}

impl Checked {
    /// # Panics
    /// When the program wrote no JSON.
    pub(crate) fn new(ended: Ended) -> Self {
        let report = serde_json::from_str(&ended.out);
        let report = report.unwrap_or_else(|error| panic!("{error}: {ended:?}"));
        Self { ended, report }
    }
}
