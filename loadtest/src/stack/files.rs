//! What the programs of a tunnel are started with: a certificate, runtimes, tokens.
//! All of it lies in a directory that goes when this does.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::Context as _;
use sha2::{Digest as _, Sha256};
use tempfile::TempDir;

use crate::stack::{ACCOUNT, ProgramArgs, program};

/// The files of one stack.
#[derive(Debug)]
pub struct Files {
    directory: TempDir,
}

impl Files {
    /// Makes a certificate for `localhost` and `127.0.0.1`.
    ///
    /// # Errors
    /// The server's program is not there, or the directory cannot be written.
    pub fn new(args: &ProgramArgs) -> anyhow::Result<Self> {
        // What cannot be started is said before anything else is.
        program(args, "tunnel-server")?;
        let directory = TempDir::with_prefix("loadtest-").context("cannot make a directory")?;
        make_certificate(directory.path()).context("cannot make a certificate")?;
        Ok(Self { directory })
    }

    /// A file of this name. The certificate, which is its own authority, is `server.pem`, its key `server.key`; the
    /// runtimes with the hashes of their tokens are in `runtimes.toml`.
    pub fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Writes the runtimes file: these runtimes, with a token each. Gives the tokens in the order of the names; they
    /// are good only for a server that reads this file.
    ///
    /// # Errors
    /// The directory cannot be written.
    pub fn create_runtimes(
        &self,
        names: impl IntoIterator<Item = String>,
    ) -> anyhow::Result<Vec<String>> {
        let mut file = String::new();
        let mut tokens = Vec::new();
        for name in names {
            let id = format!("{:016x}", getrandom::u64()?);
            // The server wants 43 letters or digits. What lives for minutes needs no more chance than this.
            let token = format!("tnlrt_{id}_{:043x}", getrandom::u64()?);
            file += &runtime(&name, &id, &token);
            tokens.push(token);
        }
        self.write("runtimes.toml", &file)?;
        Ok(tokens)
    }

    /// Writes a file of this name, and gives its path.
    ///
    /// # Errors
    /// The directory cannot be written.
    pub fn write(&self, name: &str, text: &str) -> anyhow::Result<PathBuf> {
        let file = self.path(name);
        fs::write(&file, text).with_context(|| format!("cannot write {}", file.display()))?;
        Ok(file)
    }
}

/// Makes a certificate for `localhost` and `127.0.0.1` that is its own authority, `server.pem`, and its key,
/// `server.key`.
pub(crate) fn make_certificate(directory: &Path) -> anyhow::Result<()> {
    let names = ["localhost", "127.0.0.1"].map(str::to_owned);
    let made = rcgen::generate_simple_self_signed(names)?;
    fs::write(directory.join("server.pem"), made.cert.pem())?;
    let key = made.signing_key.serialize_pem();
    Ok(fs::write(directory.join("server.key"), key)?)
}

/// A runtime in the form that the tunnel server reads.
fn runtime(name: &str, id: &str, token: &str) -> String {
    let sum = Sha256::digest(token);
    let sum: String = sum.iter().map(|byte| format!("{byte:02x}")).collect();
    format!(
        "[[runtime]]\naccount = \"{ACCOUNT}\"\nname = \"{name}\"\n\
         [[runtime.token]]\nid = \"{id}\"\nsha256 = \"{sum}\"\n"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_runtime_has_the_servers_form_and_the_sum_of_its_token() {
        // The sum of a known text, so that it is SHA-256 of the whole token and in hexadecimal.
        let expected = "[[runtime]]\naccount = \"load\"\nname = \"r7\"\n[[runtime.token]]\n\
             id = \"0123456789abcdef\"\nsha256 = \
             \"9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08\"\n";
        assert_eq!(runtime("r7", "0123456789abcdef", "test"), expected);
    }
}
