//! squid, a forward proxy of many corporate networks: plain or over TLS, with or without a login.

use std::{
    fs,
    net::{IpAddr, SocketAddr},
    os::unix::fs::{PermissionsExt, chown},
    path::Path,
};

use tempfile::TempDir;

use super::port::on_free_port;
use crate::{
    ca::Certificate,
    deadline::{SOON, eventually},
    program::{NOBODY, Program, as_nobody, is_root},
    secrets,
};

/// The user name that squid accepts where it requires a login.
pub const USER: &str = "runtime";

/// The password of [`USER`]. Has a colon, and characters that a URL must encode.
pub const PASSWORD: &str = "op:en/ses@me";

/// The hash of [`PASSWORD`] by `crypt` with SHA-512.
pub(super) const PASSWORD_HASH: &str = "$6$abcdefgh$O1u88Ut2Vtg1OR8Bnv4gr0tzlK17fAREqNnuugKpBcOy29vELnFv6uwMgR4ZbQ5OPt122qrvWoIj7FOoznZ5I1";

/// The MD5 hash of user, [`REALM`] and password (RFC 7616).
const DIGEST_HASH: &str = "bdc3b0d4a8b9641989416f8f9afeea16";

/// The realm of squid's challenges.
pub const REALM: &str = "the way out";

/// The login that squid requires.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Login {
    /// None.
    #[default]
    None,
    /// `Basic`, RFC 7617.
    Basic,
    /// `Digest`, RFC 7616.
    Digest,
}

/// What a squid is started with.
#[derive(Clone, Debug, Default)]
pub struct SquidOptions {
    /// The login that it requires.
    pub login: Login,
    /// Its certificate, if clients speak TLS to it.
    pub certificate: Option<Certificate>,
    /// Names that only the proxy can resolve.
    pub hosts: Vec<(String, IpAddr)>,
    /// Refuses all requests.
    pub denies: bool,
}

/// A running squid.
#[derive(Debug)]
pub struct Squid {
    address: SocketAddr,
    is_tls: bool,
    program: Program,
    directory: TempDir,
}

impl Squid {
    /// Starts one.
    ///
    /// # Panics
    /// When squid is not installed or refuses its configuration.
    pub async fn start(options: &SquidOptions) -> Self {
        on_free_port("squid", async |address| {
            let directory = tempfile::tempdir().unwrap();
            write_files(directory.path(), address, options);
            let mut command = as_nobody("squid");
            remove_shared_memory(address);
            command.args(["-N", "-d1", "-n", &service_name(address), "-f"]);
            command.arg(directory.path().join("squid.conf"));
            let program = Program::start("squid", &mut command);
            let verdict = program.log().wait_for("squid to start", SOON, |line| {
                let text = line.text();
                let taken = text.contains("in use") || text.contains("Unable to open HTTP");
                let accepting = text.contains("Accepting") && text.contains("connections at");
                (taken || accepting).then_some(!taken)
            });
            verdict.await.then_some(Self {
                address,
                is_tls: options.certificate.is_some(),
                program,
                directory,
            })
        })
        .await
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Its URL without a login.
    pub fn url(&self) -> String {
        self.url_with("")
    }

    /// Its URL with the login that it accepts.
    pub fn login_url(&self) -> String {
        let password = PASSWORD
            .replace(':', "%3A")
            .replace('/', "%2F")
            .replace('@', "%40");
        secrets::keep("the proxy's password", PASSWORD);
        secrets::keep("the proxy's password in a URL", &password);
        self.url_with(&format!("{USER}:{password}@"))
    }

    fn url_with(&self, login: &str) -> String {
        if self.is_tls {
            format!("https://{login}localhost:{}", self.address.port())
        } else {
            format!("http://{login}{}", self.address)
        }
    }

    /// Its access log up to now: a line for each request that has ended, allowed or refused.
    pub fn access(&self) -> Vec<String> {
        let text = fs::read_to_string(self.directory.path().join("access.log"));
        let text = text.unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    }

    /// Waits for a request in its access log that has this text in its line. A tunnel is logged
    /// when it ends.
    ///
    /// # Panics
    /// When there is none for long.
    pub async fn wait_access(&self, pattern: &str) -> String {
        let what = format!("{pattern:?} in squid's access log");
        let found = async || {
            self.access()
                .into_iter()
                .find(|line| line.contains(pattern))
        };
        eventually(SOON, &what, found).await
    }
}

impl Drop for Squid {
    fn drop(&mut self) {
        self.program.kill();
        remove_shared_memory(self.address);
        if std::thread::panicking() {
            eprintln!("--- squid saw\n{}", self.access().join("\n"));
        }
    }
}

/// The service name of a squid: two with one name would use the shared memory of each other.
fn service_name(address: SocketAddr) -> String {
    format!("e2e{}", address.port())
}

/// Removes the shared memory that a killed squid of this name has left.
fn remove_shared_memory(address: SocketAddr) {
    let name = format!("{}-", service_name(address));
    for entry in fs::read_dir("/dev/shm").into_iter().flatten().flatten() {
        if entry.file_name().to_string_lossy().starts_with(&name) {
            drop(fs::remove_file(entry.path()));
        }
    }
}

fn write_files(directory: &Path, address: SocketAddr, options: &SquidOptions) {
    let place = directory.display();
    let mut listen = format!("http_port {address}");
    if let Some(certificate) = &options.certificate {
        // squid runs as the user `nobody`, which cannot read other directories.
        fs::copy(&certificate.certificate, directory.join("proxy.pem")).unwrap();
        fs::copy(&certificate.key, directory.join("proxy.key")).unwrap();
        listen =
            format!("https_port {address} tls-cert={place}/proxy.pem tls-key={place}/proxy.key");
    }
    let programs = "/usr/lib/squid";
    let login = match options.login {
        Login::None => String::new(),
        Login::Basic => format!(
            "auth_param basic program {programs}/basic_ncsa_auth {place}/users\n\
             auth_param basic realm {REALM}\n"
        ),
        Login::Digest => format!(
            "auth_param digest program {programs}/digest_file_auth -c {place}/users\n\
             auth_param digest realm {REALM}\n"
        ),
    };
    let rule = match (options.denies, options.login) {
        (true, _) => "http_access deny all",
        (false, Login::None) => "http_access allow all",
        (false, _) => {
            "acl known proxy_auth REQUIRED\nhttp_access allow known\nhttp_access deny all"
        }
    };
    let hosts = options.hosts.iter();
    let hosts: String = hosts
        .map(|(name, address)| format!("{address} {name}\n"))
        .collect();
    let user = match options.login {
        Login::Digest => format!("{USER}:{REALM}:{DIGEST_HASH}\n"),
        _ => format!("{USER}:{PASSWORD_HASH}\n"),
    };
    let files = [
        ("hosts", format!("127.0.0.1 localhost\n{hosts}")),
        ("users", user),
        (
            "squid.conf",
            format!(
                "{listen}\n{login}{rule}\nhosts_file {place}/hosts\npid_filename none\n\
                 cache deny all\npinger_enable off\nvisible_hostname squid.test\n\
                 max_filedescriptors 1024\ncoredump_dir none\n\
                 cache_log {place}/cache.log\naccess_log stdio:{place}/access.log\n"
            ),
        ),
    ];
    for (name, text) in files {
        fs::write(directory.join(name), text).unwrap();
    }
    if is_root() {
        fs::set_permissions(directory, fs::Permissions::from_mode(0o755)).unwrap();
        chown(directory, Some(NOBODY), Some(NOBODY)).unwrap();
        for entry in fs::read_dir(directory).unwrap() {
            chown(entry.unwrap().path(), Some(NOBODY), Some(NOBODY)).unwrap();
        }
    }
}
