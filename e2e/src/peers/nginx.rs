//! nginx, as an upstream or as a gateway, with a configuration of the test's own.
//!
//! One process without a master, so that its end is nginx's end.

mod router;

use std::{
    fs,
    net::{IpAddr, SocketAddr},
    path::{Path, PathBuf},
    process::Command,
};

use tempfile::TempDir;

use super::port::on_free_port;
use crate::{ca::Certificate, deadline::SOON, entry::Entry, program::Program};

pub use router::{RouterUpstreams, ZONE};

/// How the process runs.
const PROCESS: &str = "daemon off; master_process off; pid nginx.pid; error_log stderr notice;\n\
    events { worker_connections 512; }";

/// The module of `stream`, where Debian has it.
const STREAM_MODULE: &str = "/usr/lib/nginx/modules/ngx_stream_module.so";

/// Directives that all configurations have, so that nginx adds no limit of its own.
const USUAL: &str = "client_max_body_size 0; large_client_header_buffers 16 64k;\n\
    absolute_redirect off; map $http_upgrade $onward { default upgrade; '' ''; }";

/// What a load balancer does with requests for an upgrade.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Upgrades {
    /// It removes the fields of an upgrade, as nginx does by default.
    Strips,
    /// It passes them.
    Passes,
    /// It passes them, and cuts connections that were idle for this many seconds.
    PassesWhileNotIdleFor(u32),
}

/// A running nginx.
#[derive(Debug)]
pub struct Nginx {
    program: Program,
    address: SocketAddr,
    directory: TempDir,
}

impl Nginx {
    /// An upstream: `/files/` serves what lies in [`Nginx::files`], `/echo` answers what was
    /// asked, `/moved` redirects, and everything else goes to the upstream at `proxied`, if any.
    pub async fn upstream(proxied: Option<SocketAddr>) -> Self {
        let others = match proxied {
            Some(address) => format!(
                "location / {{ proxy_pass http://{address}; proxy_http_version 1.1;\n\
                 proxy_set_header Host $http_host; proxy_buffering off;\n\
                 proxy_request_buffering off; }}"
            ),
            None => "location / { return 404; }".to_owned(),
        };
        Self::start(&format!(
            "location /files/ {{ root .; etag on; }}\n\
             location = /echo {{ default_type text/plain;\n\
             return 200 \"$request_method $request_uri $server_protocol $http_host\\n\"; }}\n\
             location = /moved {{ return 302 /echo?moved; }}\n{others}"
        ))
        .await
    }

    /// A gateway before `target`, asked for `host`, as a platform may have one. It adds itself to
    /// `X-Forwarded-For` and passes WebSockets.
    pub async fn gateway(target: SocketAddr, host: &str) -> Self {
        Self::start(&format!(
            "location / {{ proxy_pass http://{target}; proxy_http_version 1.1;\n\
             proxy_set_header Host {host}; proxy_buffering off; proxy_request_buffering off;\n\
             proxy_set_header X-Forwarded-For $proxy_add_x_forwarded_for;\n\
             proxy_set_header Upgrade $http_upgrade; proxy_set_header Connection $onward; }}"
        ))
        .await
    }

    /// A gateway before `target` that speaks HTTP/2 without TLS, and has the limits that nginx has by default.
    pub async fn http2(target: SocketAddr) -> Self {
        Self::configured(|address| {
            format!(
                "server {{ listen {address} http2; location / {{ proxy_pass http://{target};\n\
                 proxy_http_version 1.1; proxy_buffering off; }} }}"
            )
        })
        .await
    }

    /// A captive portal: it redirects every request to a login page, over TLS with this certificate or in plain text.
    pub async fn portal(certificate: Option<&Certificate>) -> Self {
        let login = "return 302 http://login.portal.test/;";
        Self::configured(|address| match certificate {
            None => format!("{USUAL}\nserver {{ listen {address}; {login} }}"),
            Some(Certificate { certificate, key }) => format!(
                "{USUAL}\nserver {{ listen {address} ssl; {login}\n\
                 ssl_certificate {}; ssl_certificate_key {}; }}",
                certificate.display(),
                key.display()
            ),
        })
        .await
    }

    /// A gateway that requires client certificates of the CA in this file.
    pub async fn wanting_certificates(certificate: &Certificate, authority: &Path) -> Self {
        let Certificate { certificate, key } = certificate;
        Self::configured(|address| {
            format!(
                "{USUAL}\nserver {{ listen {address} ssl; return 204;\n\
                 ssl_certificate {}; ssl_certificate_key {};\n\
                 ssl_client_certificate {}; ssl_verify_client on; }}",
                certificate.display(),
                key.display(),
                authority.display()
            )
        })
        .await
    }

    /// A load balancer that ends TLS with this certificate before the TLS server at `target`.
    pub async fn balancer(
        target: SocketAddr,
        certificate: &Certificate,
        upgrades: Upgrades,
    ) -> Self {
        let (chain, key) = (&certificate.certificate, &certificate.key);
        let (passes, seconds) = match upgrades {
            Upgrades::Strips => (false, 3600),
            Upgrades::Passes => (true, 3600),
            Upgrades::PassesWhileNotIdleFor(seconds) => (true, seconds),
        };
        let upgrade = if passes {
            "proxy_set_header Upgrade $http_upgrade; proxy_set_header Connection $onward;"
        } else {
            ""
        };
        Self::configured(|address| {
            format!(
                "{USUAL}\nserver {{ listen {address} ssl;\n\
                 ssl_certificate {}; ssl_certificate_key {};\n\
                 location / {{ proxy_pass https://{target}; proxy_http_version 1.1;\n\
                 proxy_set_header Host $http_host; proxy_read_timeout {seconds}s;\n{upgrade} }} }}",
                chain.display(),
                key.display()
            )
        })
        .await
    }

    /// A load balancer that passes TCP to `target` from the address `from`, with a PROXY header.
    pub async fn passing(target: SocketAddr, from: IpAddr) -> Self {
        Self::of_file(|address| {
            format!(
                "load_module {STREAM_MODULE}; {PROCESS}\n\
                 stream {{ server {{ listen {address}; proxy_pass {target}; proxy_bind {from};\n\
                 proxy_protocol on; proxy_timeout 60s; }} }}\n"
            )
        })
        .await
    }

    /// A load balancer that ends TLS with this certificate before plain HTTP at `target`, to which it connects from the
    /// address `from`, and names its clients in fields.
    pub async fn terminating(target: SocketAddr, from: IpAddr, certificate: &Certificate) -> Self {
        let Certificate { certificate, key } = certificate;
        Self::configured(|address| {
            format!(
                "{USUAL}\nserver {{ listen {address} ssl http2;\n\
                 ssl_certificate {}; ssl_certificate_key {};\n\
                 location / {{ proxy_pass http://{target}; proxy_bind {from}; proxy_http_version 1.1;\n\
                 proxy_set_header Host $http_host; proxy_read_timeout 60s;\n\
                 proxy_set_header X-Forwarded-For $proxy_add_x_forwarded_for;\n\
                 proxy_set_header X-Forwarded-Proto $scheme;\n\
                 proxy_set_header Upgrade $http_upgrade; proxy_set_header Connection $onward; }} }}",
                certificate.display(),
                key.display()
            )
        })
        .await
    }

    /// A server with these `location` blocks; relative paths in them are the directory's.
    ///
    /// # Panics
    /// When nginx is not there or does not like the configuration.
    pub async fn start(locations: &str) -> Self {
        Self::configured(|address| format!("{USUAL}\nserver {{ listen {address}; {locations}\n}}"))
            .await
    }

    /// An nginx whose `http` block this is, for the address it is to listen on.
    ///
    /// # Panics
    /// As [`Nginx::start`].
    async fn configured(http: impl Fn(SocketAddr) -> String) -> Self {
        Self::of_file(|address| file_with(&http(address))).await
    }

    /// An nginx whose configuration file this is.
    async fn of_file(text: impl Fn(SocketAddr) -> String) -> Self {
        on_free_port("nginx", async |address| {
            let directory = tempfile::tempdir().unwrap();
            fs::create_dir(directory.path().join("files")).unwrap();
            let file = directory.path().join("nginx.conf");
            fs::write(&file, text(address)).unwrap();
            let mut command = Command::new(program_file());
            // An early log beside the compiled-in one, which only root may write.
            command
                .args(["-e", "stderr", "-p"])
                .arg(directory.path())
                .arg("-c")
                .arg(file);
            let program = Program::start("nginx", &mut command);
            let verdict = program.log().wait_for("nginx to start", SOON, |line| {
                let text = line.text();
                let taken = text.contains("Address already in use");
                // Notices of the event loop come after all listeners are bound.
                (taken || text.contains("using the \"")).then_some(!taken)
            });
            verdict.await.then_some(Self {
                program,
                address,
                directory,
            })
        })
        .await
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The address as a tunnel client's `--upstream` wants it.
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// nginx, without a tunnel before it.
    pub fn entry(&self) -> Entry {
        Entry::direct(self.address)
    }

    /// The process.
    pub fn program(&self) -> &Program {
        &self.program
    }

    /// The directory that `/files/` shows.
    pub fn files(&self) -> PathBuf {
        self.directory.path().join("files")
    }
}

/// Debian's nginx lies where only root's search path leads.
fn program_file() -> &'static Path {
    let usual = Path::new("/usr/sbin/nginx");
    if usual.exists() {
        usual
    } else {
        Path::new("nginx")
    }
}

fn file_with(http: &str) -> String {
    format!(
        "{PROCESS}\n\
         http {{\n\
         access_log off; default_type application/octet-stream;\n\
         client_body_temp_path body; proxy_temp_path proxy; fastcgi_temp_path fastcgi;\n\
         uwsgi_temp_path uwsgi; scgi_temp_path scgi;\n\
         {http}\n\
         }}\n"
    )
}
