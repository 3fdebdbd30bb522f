//! Many runtimes at once: the file that the tunnel server reads, and the tokens that go with it.
//!
//! What `tunnel-server token create` does for one runtime is done here for thousands. The tokens
//! are good for this run's server only, and lie in the run's own directory.

use std::{
    fmt::Write as _,
    fs,
    path::{Path, PathBuf},
};

use anyhow::Context as _;
use http::HeaderValue;
use sha2::{Digest as _, Sha256};

use crate::stack::{ACCOUNT, DOMAIN, files::Files};

/// Letters of a token's secret, and how many of them it has.
const LETTERS: &[u8; 62] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
const SECRET_LETTERS: usize = 43;

/// The runtimes of one run.
#[derive(Debug)]
pub struct Runtimes {
    count: u64,
    tokens: PathBuf,
    single: PathBuf,
}

impl Runtimes {
    /// Writes the runtimes file of `files` anew: so many runtimes, with a token each, and one more
    /// for a real client.
    ///
    /// # Errors
    /// The directory cannot be written.
    pub fn write(files: &Files, count: u64) -> anyhow::Result<Self> {
        let mut runtimes = String::new();
        let mut tokens = String::new();
        for number in 0..count {
            let token = Token::draw()?;
            token.add_to(&mut runtimes, &name(number))?;
            writeln!(tokens, "{}", token.text)?;
        }
        let single = Token::draw()?;
        single.add_to(&mut runtimes, "real")?;
        let written = Self {
            count,
            tokens: files.directory().join("fleet.tokens"),
            single: files.directory().join("real.token"),
        };
        put(&files.runtimes(), &runtimes)?;
        put(&written.tokens, &tokens)?;
        put(&written.single, &single.text)?;
        Ok(written)
    }

    /// The tokens, one in each line.
    pub fn tokens(&self) -> &Path {
        &self.tokens
    }

    /// The token of the runtime that no simulated client has.
    pub fn single_token(&self) -> &Path {
        &self.single
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

fn put(file: &Path, text: &str) -> anyhow::Result<()> {
    fs::write(file, text).with_context(|| format!("cannot write {}", file.display()))
}

/// A token in the form that the tunnel server knows.
struct Token {
    id: String,
    text: String,
}

impl Token {
    fn draw() -> anyhow::Result<Self> {
        let id = format!("{:016x}", getrandom::u64()?);
        let mut random = [0; SECRET_LETTERS];
        getrandom::fill(&mut random)?;
        // Not quite even, which does not matter for a token that lives for minutes.
        let letters = random
            .iter()
            .filter_map(|byte| LETTERS.get(usize::from(*byte) % 62));
        let secret: String = letters.map(|letter| char::from(*letter)).collect();
        Ok(Self {
            text: format!("tnlrt_{id}_{secret}"),
            id,
        })
    }

    fn add_to(&self, file: &mut String, runtime: &str) -> std::fmt::Result {
        writeln!(
            file,
            "[[runtime]]\naccount = \"{ACCOUNT}\"\nname = \"{runtime}\""
        )?;
        writeln!(file, "[[runtime.token]]\nid = \"{}\"", self.id)?;
        file.push_str("sha256 = \"");
        for byte in Sha256::digest(&self.text) {
            write!(file, "{byte:02x}")?;
        }
        file.push_str("\"\n");
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_has_the_servers_form_and_its_sum() {
        let token = Token::draw().unwrap();
        let (id, secret) = token.text["tnlrt_".len()..].split_once('_').unwrap();
        assert_eq!((id, id.len(), secret.len()), (token.id.as_str(), 16, 43));
        assert!(secret.bytes().all(|letter| letter.is_ascii_alphanumeric()));
        assert_ne!(Token::draw().unwrap().text, token.text);

        // The sum of a known text, so that it is SHA-256 of the whole token and in hexadecimal.
        let known = Token {
            id: "0123456789abcdef".to_owned(),
            text: "test".to_owned(),
        };
        let mut file = String::new();
        known.add_to(&mut file, "r7").unwrap();
        let expected = "[[runtime]]\naccount = \"load\"\nname = \"r7\"\n[[runtime.token]]\n\
             id = \"0123456789abcdef\"\nsha256 = \
             \"9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08\"\n";
        assert_eq!(file, expected);
    }
}
