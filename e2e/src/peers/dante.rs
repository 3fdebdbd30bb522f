//! dante, a SOCKS5 server that asks for a name and a password.
//!
//! It looks both up in the system's own files, so it is given others: `/etc/passwd`,
//! `/etc/shadow` and `/etc/hosts` are replaced for it alone, in a mount namespace of its own. That
//! needs root.

use std::{
    fs,
    net::{IpAddr, SocketAddr},
    path::Path,
    process::Command,
};

use tempfile::TempDir;

use super::port::on_free_port;
use crate::{
    deadline::SOON,
    peers::squid::{PASSWORD, PASSWORD_HASH, USER},
    program::{Program, is_root},
    secrets,
};

/// Where the system has what dante is given of its own.
const REPLACED: [&str; 3] = ["passwd", "shadow", "hosts"];

/// A running dante.
#[derive(Debug)]
pub struct Dante {
    address: SocketAddr,
    program: Program,
    _directory: TempDir,
}

impl Dante {
    /// Starts one that lets [`USER`] through with [`PASSWORD`], and knows these names beside the
    /// system's.
    ///
    /// # Errors
    /// That this machine does not allow it.
    ///
    /// # Panics
    /// When dante is not there or does not like its configuration.
    pub async fn start(hosts: &[(String, IpAddr)]) -> Result<Self, String> {
        if !is_root() {
            return Err("dante looks passwords up in files that only root can replace".to_owned());
        }
        let started = on_free_port("dante", async |address| {
            let directory = tempfile::tempdir().unwrap();
            write_files(directory.path(), address, hosts);
            let mounts = REPLACED.map(|name| format!("mount --bind {name} /etc/{name}"));
            let script = format!("{} && exec danted -f danted.conf", mounts.join(" && "));
            let mut command = Command::new("unshare");
            command.args(["--mount", "--propagation", "private", "sh", "-c", &script]);
            command.current_dir(directory.path());
            let program = Program::start("dante", &mut command);
            let verdict = program.log().wait_for("dante to start", SOON, |line| {
                let text = line.text();
                let taken = text.contains("Address already in use");
                (taken || text.contains("running")).then_some(!taken)
            });
            verdict.await.then_some(Self {
                address,
                program,
                _directory: directory,
            })
        });
        Ok(started.await)
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Its URL with this scheme (`socks5` or `socks5h`), user and password.
    pub fn url(&self, scheme: &str, password: &str) -> String {
        let password = password
            .replace(':', "%3A")
            .replace('/', "%2F")
            .replace('@', "%40");
        format!("{scheme}://{USER}:{password}@{}", self.address)
    }

    /// Its URL with this scheme and the login that it accepts.
    pub fn login_url(&self, scheme: &str) -> String {
        secrets::keep("the proxy's password", PASSWORD);
        self.url(scheme, PASSWORD)
    }

    /// The process, which writes a line for each connection.
    pub fn program(&self) -> &Program {
        &self.program
    }
}

fn write_files(directory: &Path, address: SocketAddr, hosts: &[(String, IpAddr)]) {
    let configuration = format!(
        "logoutput: stderr\n\
         internal: {} port = {}\nexternal: 127.0.0.1\n\
         user.privileged: root\nuser.unprivileged: nobody\n\
         clientmethod: none\nsocksmethod: username\n\
         client pass {{ from: 0/0 to: 0/0 log: error }}\n\
         socks pass {{ from: 0/0 to: 0/0 log: error connect disconnect }}\n",
        address.ip(),
        address.port()
    );
    fs::write(directory.join("danted.conf"), configuration).unwrap();
    let hosts = hosts.iter();
    let hosts: String = hosts
        .map(|(name, address)| format!("{address} {name}\n"))
        .collect();
    let more = [
        format!("{USER}:x:64999:65534::/nonexistent:/usr/sbin/nologin\n"),
        format!("{USER}:{PASSWORD_HASH}:19000:0:99999:7:::\n"),
        hosts,
    ];
    for (name, more) in REPLACED.iter().zip(more) {
        let system = fs::read_to_string(format!("/etc/{name}")).unwrap();
        // Only the password that was made for tests is there for anybody to read.
        let system = if *name == "shadow" {
            String::new()
        } else {
            system
        };
        fs::write(directory.join(name), format!("{system}{more}")).unwrap();
    }
}
