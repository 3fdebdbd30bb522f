//! The output of `tunnel-client check --json`.

use std::fmt;

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

    /// The verdict's name; none when every step held.
    pub fn verdict(&self) -> Option<&str> {
        self.report["verdict"]["name"].as_str()
    }

    /// The first step that failed.
    pub fn failed(&self) -> Option<&str> {
        let steps = self.report["steps"].as_array()?;
        let failed = steps.iter().find(|step| step["result"] == "failed")?;
        failed["step"].as_str()
    }

    /// The result of the step with this name: `held`, `warning`, `failed` or `skipped`.
    pub fn result(&self, step: &str) -> Option<&str> {
        let steps = self.report["steps"].as_array()?;
        let found = steps.iter().find(|found| found["step"] == step)?;
        found["result"].as_str()
    }

    /// The verdict on the upstream of the route with this name; none when it held.
    ///
    /// # Panics
    /// When there is no such step.
    pub fn upstream(&self, route: &str) -> Option<&str> {
        let steps = self.report["steps"].as_array().unwrap();
        let is_it = |step: &&Value| step["step"] == "upstream" && step["name"] == route;
        let found = steps.iter().find(is_it);
        let found = found.unwrap_or_else(|| panic!("{route} was not looked at: {self}"));
        found["verdict"]["name"].as_str()
    }

    /// # Panics
    /// When a step did not hold, or the program says otherwise by its exit code.
    pub fn assert_held(&self) {
        assert_eq!(self.verdict(), None, "{self}");
        assert_eq!(self.ended.code, Some(0), "{self}");
        assert_eq!(self.report["ok"], true, "{self}");
    }

    /// # Panics
    /// When it was not this step that failed, for this reason, or nothing says what to do.
    pub fn assert_failed(&self, step: &str, verdict: &str) {
        assert_eq!(self.verdict(), Some(verdict), "{self}");
        assert_eq!(self.failed(), Some(step), "{self}");
        assert_eq!(self.ended.code, Some(1), "{self}");
        assert_eq!(self.report["ok"], false, "{self}");
        for words in ["sentence", "advice"] {
            let said = self.report["verdict"][words].as_str();
            assert!(said.is_some_and(|words| words.len() > 10), "{self}");
        }
    }
}

impl fmt::Display for Checked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#}\n{}", self.report, self.ended.err)
    }
}
