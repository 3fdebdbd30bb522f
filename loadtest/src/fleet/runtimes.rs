//! The runtimes of many simulated clients, and the tokens that go with them.

use std::path::PathBuf;

use http::HeaderValue;

use crate::stack::{ACCOUNT, DOMAIN, files::Files};

/// The runtimes of one run.
#[derive(Debug)]
pub struct Runtimes {
    count: u64,
    /// The tokens, one in each line.
    pub tokens: PathBuf,
    /// The token of the runtime that no simulated client has.
    pub single: PathBuf,
}

impl Runtimes {
    /// Creates so many runtimes, and one more for a real client.
    ///
    /// # Errors
    /// The directory cannot be written.
    pub fn create(files: &Files, count: u64) -> anyhow::Result<Self> {
        let names = (0..count).map(name).chain(["real".to_owned()]);
        let mut tokens = files.create_runtimes(names)?;
        let single = tokens.pop().unwrap_or_default();
        Ok(Self {
            count,
            tokens: files.write("fleet.tokens", &tokens.join("\n"))?,
            single: files.write("real.token", &single)?,
        })
    }

    /// The hosts of all runtimes, as platform clients name them.
    ///
    /// # Errors
    /// Never, as names are made here.
    pub fn hosts(&self) -> anyhow::Result<Vec<HeaderValue>> {
        let host = |number| HeaderValue::try_from(format!("{ACCOUNT}-{}.{DOMAIN}", name(number)));
        Ok((0..self.count).map(host).collect::<Result<_, _>>()?)
    }
}

fn name(number: u64) -> String {
    format!("r{number}")
}
