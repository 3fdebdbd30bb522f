//! All faults of a configuration, reported together.

use std::{fmt, path::Path};

use crate::config_file::ConfigFileError;

/// A file at fault.
#[derive(Debug, Clone, Copy)]
pub struct FaultyFile<'a> {
    /// Its path.
    pub path: &'a Path,
    /// How the key of the setting ends that is most likely meant, if several name the file; empty where any may be.
    pub key_end: &'static str,
}

impl<'a> From<&'a Path> for FaultyFile<'a> {
    fn from(path: &'a Path) -> Self {
        Self { path, key_end: "" }
    }
}

/// Most faults that a text lists. Who corrects a file reads it from the top, and a file that is wrong as a whole has a
/// fault in each line.
pub const LISTED: usize = 20;

/// The faults of a configuration, at least one. Its `Display` has one line for each of the first [`LISTED`], and one for
/// the number of the others.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Faults<F> {
    faults: Vec<F>,
    /// How many were found beside these.
    left_out: usize,
}

/// Collects the faults of a file of any length: the first [`LISTED`] are kept, the others are counted.
#[derive(Debug)]
pub struct FaultCollector<F>(Faults<F>);

impl<F> Faults<F> {
    /// An error of these faults, which are at least one.
    pub fn new(faults: Vec<F>) -> Self {
        let left_out = 0;
        Self { faults, left_out }
    }

    /// The faults, in the order in which they were found.
    pub fn faults(&self) -> &[F] {
        &self.faults
    }

    /// Takes the faults out.
    pub fn into_vec(self) -> Vec<F> {
        self.faults
    }
}

impl<F> FaultCollector<F> {
    /// Adds a fault, which is made only if it is kept: to locate one costs time.
    pub fn add(&mut self, fault: impl FnOnce() -> F) {
        match self.0.faults.len() < LISTED {
            true => self.0.faults.push(fault()),
            false => self.0.left_out += 1,
        }
    }

    /// The value, if there is no fault.
    ///
    /// # Errors
    /// With the faults, if there are any.
    pub fn finish<T>(self, value: T) -> Result<T, Faults<F>> {
        match self.0.faults.is_empty() {
            true => Ok(value),
            false => Err(self.0),
        }
    }
}

impl<F> Default for FaultCollector<F> {
    fn default() -> Self {
        Self(Faults::new(Vec::new()))
    }
}

impl<F: From<ConfigFileError>> From<ConfigFileError> for Faults<F> {
    fn from(error: ConfigFileError) -> Self {
        Self::new(vec![error.into()])
    }
}

impl<F: fmt::Display> fmt::Display for Faults<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, fault) in self.faults.iter().take(LISTED).enumerate() {
            let separator = if index == 0 { "" } else { "\n" };
            write!(f, "{separator}{fault}")?;
        }
        match self.left_out + self.faults.len().saturating_sub(LISTED) {
            0 => Ok(()),
            1 => write!(f, "\nand 1 more fault"),
            more => write!(f, "\nand {more} more faults"),
        }
    }
}

impl<F: fmt::Debug + fmt::Display> std::error::Error for Faults<F> {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_faults_are_listed_and_the_others_counted() {
        let mut collector = FaultCollector::default();
        for number in 1..=LISTED + 2 {
            collector.add(|| number);
        }
        let collected = collector.finish(()).unwrap_err();
        assert_eq!(collected.faults().len(), LISTED);
        for faults in [collected, Faults::new((1..=LISTED + 2).collect())] {
            let text = faults.to_string();
            let lines: Vec<&str> = text.lines().collect();
            assert_eq!(lines.len(), LISTED + 1);
            assert_eq!(lines[LISTED - 1..], ["20", "and 2 more faults"]);
        }
        let text = Faults::new((0..=LISTED).collect()).to_string();
        assert!(text.ends_with("\nand 1 more fault"), "{text}");
        assert!(FaultCollector::<usize>::default().finish(()).is_ok());
    }
}
