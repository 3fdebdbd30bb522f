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

/// The faults of a configuration, at least one. Its `Display` has one line for each.
#[derive(Debug)]
pub struct Faults<F>(Vec<F>);

impl<F> Faults<F> {
    /// An error of these faults, which are at least one.
    pub fn new(faults: Vec<F>) -> Self {
        Self(faults)
    }

    /// The faults, in the order in which they were found.
    pub fn faults(&self) -> &[F] {
        &self.0
    }

    /// Takes the faults out.
    pub fn into_vec(self) -> Vec<F> {
        self.0
    }
}

impl<F: From<ConfigFileError>> From<ConfigFileError> for Faults<F> {
    fn from(error: ConfigFileError) -> Self {
        Self(vec![error.into()])
    }
}

impl<F: fmt::Display> fmt::Display for Faults<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, fault) in self.0.iter().enumerate() {
            let separator = if index == 0 { "" } else { "\n" };
            write!(f, "{separator}{fault}")?;
        }
        Ok(())
    }
}

impl<F: fmt::Debug + fmt::Display> std::error::Error for Faults<F> {}
