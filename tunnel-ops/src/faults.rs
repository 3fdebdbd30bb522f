//! Everything that is wrong with a configuration, told at once.

use std::fmt;

use crate::config_file::ConfigFileError;

/// All faults that were found; at least one.
#[derive(Debug)]
pub struct Faults<F>(Vec<F>);

impl<F> Faults<F> {
    /// All of these.
    pub fn new(faults: Vec<F>) -> Self {
        Self(faults)
    }

    /// The faults, in the order in which they were found.
    pub fn faults(&self) -> &[F] {
        &self.0
    }

    /// The faults themselves.
    pub fn into_vec(self) -> Vec<F> {
        self.0
    }
}

impl<F: From<ConfigFileError>> From<ConfigFileError> for Faults<F> {
    fn from(error: ConfigFileError) -> Self {
        Self(vec![error.into()])
    }
}

/// One fault a line.
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
