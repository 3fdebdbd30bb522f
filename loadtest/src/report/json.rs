//! The report for programs: one JSON object with every figure.

use crate::report::Report;

/// The whole report, indented, with a line feed at its end.
///
/// # Errors
/// Never, as it stands: every value of a report has a form in JSON.
pub fn render(report: &Report) -> serde_json::Result<String> {
    Ok(serde_json::to_string_pretty(report)? + "\n")
}
