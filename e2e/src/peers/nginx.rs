//! nginx, as an upstream or as a gateway, with a configuration of the test's own.
//!
//! One process without a master, so that its end is nginx's end. It cannot take a free port by
//! itself: one is sought and tried again when somebody else was faster.

use std::{
    fs,
    net::{SocketAddr, TcpListener},
    path::{Path, PathBuf},
    process::Command,
};

use tempfile::TempDir;

use crate::{deadline::SOON, entry::Entry, program::Program};

/// How often another port is tried.
const ATTEMPTS: usize = 20;

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

    /// A server with these `location` blocks; relative paths in them are the directory's.
    ///
    /// # Panics
    /// When nginx is not there or does not like the configuration.
    pub async fn start(locations: &str) -> Self {
        let directory = tempfile::tempdir().unwrap();
        fs::create_dir(directory.path().join("files")).unwrap();
        for _ in 0..ATTEMPTS {
            let address = free_address();
            let file = write_configuration(directory.path(), address, locations);
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
            if verdict.await {
                return Self {
                    program,
                    address,
                    directory,
                };
            }
        }
        panic!("nginx found no free port in {ATTEMPTS} attempts");
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

fn free_address() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap()
}

fn write_configuration(directory: &Path, address: SocketAddr, locations: &str) -> PathBuf {
    let text = format!(
        "daemon off; master_process off; pid nginx.pid; error_log stderr notice;\n\
         events {{ worker_connections 512; }}\n\
         http {{\n\
         access_log off; default_type application/octet-stream; client_max_body_size 0;\n\
         large_client_header_buffers 16 64k; absolute_redirect off;\n\
         client_body_temp_path body; proxy_temp_path proxy; fastcgi_temp_path fastcgi;\n\
         uwsgi_temp_path uwsgi; scgi_temp_path scgi;\n\
         map $http_upgrade $onward {{ default upgrade; '' ''; }}\n\
         server {{ listen {address}; {locations}\n}}\n\
         }}\n"
    );
    let file = directory.join("nginx.conf");
    fs::write(&file, text).unwrap();
    file
}
