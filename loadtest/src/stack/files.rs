//! What the programs of a tunnel are started with: an authority, a certificate, runtimes, tokens.
//! All of it lies in a directory that goes when this does.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, bail};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};
use tempfile::TempDir;

use crate::stack::{ProgramArgs, program};

/// The files of one stack.
#[derive(Debug)]
pub struct Files {
    directory: TempDir,
    server_program: PathBuf,
}

impl Files {
    /// Makes certificates for `localhost` and `127.0.0.1`.
    ///
    /// # Errors
    /// The server's program is not there, or the directory cannot be written.
    pub fn new(args: &ProgramArgs) -> anyhow::Result<Self> {
        let server_program = program(args, "tunnel-server")?;
        let directory = TempDir::with_prefix("loadtest-").context("cannot make a directory")?;
        let files = Self {
            directory,
            server_program,
        };
        files
            .make_certificates()
            .context("cannot make certificates")?;
        Ok(files)
    }

    /// The directory itself.
    pub fn directory(&self) -> &Path {
        self.directory.path()
    }

    /// Certificate of the authority, PEM.
    pub fn authority(&self) -> PathBuf {
        self.directory().join("ca.pem")
    }

    /// Certificate for `localhost` and `127.0.0.1`, PEM.
    pub fn certificate(&self) -> PathBuf {
        self.directory().join("server.pem")
    }

    /// Its key, PEM.
    pub fn key(&self) -> PathBuf {
        self.directory().join("server.key")
    }

    /// The runtimes and the hashes of their tokens.
    pub fn runtimes(&self) -> PathBuf {
        self.directory().join("runtimes.toml")
    }

    /// Adds a runtime by way of the server's program, and gives the file with its token.
    ///
    /// # Errors
    /// The program refuses.
    pub fn create_token(&self, account: &str, runtime: &str) -> anyhow::Result<PathBuf> {
        let mut command = Command::new(&self.server_program);
        command.args([
            "token",
            "create",
            "--account",
            account,
            "--runtime",
            runtime,
        ]);
        command.arg("--runtimes").arg(self.runtimes());
        let output = command
            .output()
            .context("cannot run tunnel-server token create")?;
        if !output.status.success() {
            let complaint = String::from_utf8_lossy(&output.stderr);
            bail!("tunnel-server token create: {}", complaint.trim());
        }
        let path = self.directory().join(format!("{account}-{runtime}.token"));
        fs::write(&path, &output.stdout)?;
        Ok(path)
    }

    fn make_certificates(&self) -> anyhow::Result<()> {
        let mut authority = CertificateParams::default();
        authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        authority
            .distinguished_name
            .push(DnType::CommonName, "loadtest throw-away CA");
        let authority = CertifiedIssuer::self_signed(authority, KeyPair::generate()?)?;
        let names = vec!["localhost".to_owned(), "127.0.0.1".to_owned()];
        let key = KeyPair::generate()?;
        let certificate = CertificateParams::new(names)?.signed_by(&key, &authority)?;
        fs::write(self.authority(), authority.pem())?;
        fs::write(self.certificate(), certificate.pem())?;
        fs::write(self.key(), key.serialize_pem())?;
        Ok(())
    }
}
