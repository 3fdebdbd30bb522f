//! nginx, started with a configuration made here: as the upstream, and as two hops with TLS between.
//!
//! Each is one process without a master, which is one worker. The pair is set up for what it is
//! compared with: connections are kept, bodies are streamed rather than stored, TLS is 1.3.

use std::{
    env,
    fs::{self, File},
    net::{SocketAddr, TcpListener},
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use anyhow::{Context as _, bail};
use tempfile::TempDir;

use crate::{measure::usage::UPSTREAM, stack::child::Child};

/// Starting takes milliseconds, unless something is wrong.
const START_LIMIT: Duration = Duration::from_secs(10);

/// Between finding a free port and taking it somebody else may be faster.
const TRIES: usize = 3;

/// A running nginx. It ends when this is dropped, and its directory goes with it.
#[derive(Debug)]
pub(super) struct Nginx {
    /// The process.
    pub(super) child: Child,
    /// Where it listens.
    pub(super) address: SocketAddr,
    _directory: TempDir,
}

/// Where the program is, if installed.
pub(super) fn program() -> Option<PathBuf> {
    installed("nginx")
}

/// Where a program of this name is, if installed.
pub(super) fn installed(name: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    // Servers are often where only an administrator's shell looks.
    let more = ["/usr/sbin", "/usr/local/sbin"].map(PathBuf::from);
    let found = env::split_paths(&path)
        .chain(more)
        .map(|directory| directory.join(name));
    found.into_iter().find(|file| file.is_file())
}

/// A port that nobody uses now.
pub(super) fn free_address() -> anyhow::Result<SocketAddr> {
    let listener = TcpListener::bind(("127.0.0.1", 0)).context("cannot find a free port")?;
    Ok(listener.local_addr()?)
}

/// An upstream: a small answer at `/`, a file of zeros at `/bytes/SIZE`. Uploads go on to `sink`.
pub(super) async fn upstream(
    size: u64,
    sink: SocketAddr,
    listen: Option<SocketAddr>,
) -> anyhow::Result<Nginx> {
    let directory = directory()?;
    let files = directory.path().join("bytes");
    fs::create_dir(&files)?;
    for size in [size, super::sample::warm_size(size)] {
        // A file with a hole costs no disk; what is read are zeros.
        File::create(files.join(size.to_string()))?.set_len(size)?;
    }
    // The one who serves the files may be another user than the one who made them.
    open_to_all(directory.path())?;
    start(UPSTREAM, directory, listen, |address, directory| {
        upstream_server(address, directory, sink)
    })
    .await
}

/// Two hops: the first takes the requests, the second is reached by TLS and asks `upstream`.
pub(super) async fn pair(upstream: SocketAddr) -> anyhow::Result<(Nginx, Nginx)> {
    let directory = directory()?;
    let names = vec!["localhost".to_owned()];
    let made = rcgen::generate_simple_self_signed(names).context("cannot make a certificate")?;
    fs::write(directory.path().join("server.pem"), made.cert.pem())?;
    fs::write(
        directory.path().join("server.key"),
        made.signing_key.serialize_pem(),
    )?;
    let second = start("nginx", directory, None, |address, directory| {
        second_hop(address, directory, upstream)
    })
    .await?;
    let inner = second.address;
    let first = start("nginx", self::directory()?, None, |address, _| {
        first_hop(address, inner)
    });
    Ok((first.await?, second))
}

fn directory() -> anyhow::Result<TempDir> {
    TempDir::with_prefix("loadtest-nginx-").context("cannot make a directory")
}

fn open_to_all(directory: &Path) -> anyhow::Result<()> {
    use std::os::unix::fs::PermissionsExt as _;
    fs::set_permissions(directory, fs::Permissions::from_mode(0o755))?;
    Ok(())
}

async fn start(
    role: &str,
    directory: TempDir,
    listen: Option<SocketAddr>,
    server: impl Fn(SocketAddr, &Path) -> String,
) -> anyhow::Result<Nginx> {
    let Some(program) = program() else {
        bail!("nginx is not installed");
    };
    let mut tried = 0;
    loop {
        tried += 1;
        let address = listen.map_or_else(free_address, Ok)?;
        let file = directory.path().join("nginx.conf");
        let path = directory.path();
        fs::write(&file, configuration(path, &server(address, path)))?;
        let mut command = Command::new(&program);
        command.arg("-p").arg(path).arg("-c").arg(&file);
        let child = Child::start(role, command)?;
        // It says so when all its listeners are there.
        let find = |line: &str| line.contains("using the \"").then_some(());
        match child.wait_line("that it runs", START_LIMIT, find).await {
            Ok(()) => {
                return Ok(Nginx {
                    child,
                    address,
                    _directory: directory,
                });
            }
            Err(error) if tried == TRIES || !error.to_string().contains("bind()") => {
                return Err(error);
            }
            Err(_) => {}
        }
    }
}

fn configuration(directory: &Path, server: &str) -> String {
    let directory = directory.display();
    format!(
        "daemon off;
master_process off;
pid {directory}/nginx.pid;
error_log stderr notice;
events {{ worker_connections 16384; }}
http {{
    access_log off;
    keepalive_requests 1000000000;
    keepalive_timeout 600s;
    client_max_body_size 0;
    client_body_temp_path {directory}/client_body;
    proxy_temp_path {directory}/proxy;
    proxy_http_version 1.1;
    proxy_set_header Connection \"\";
    proxy_set_header Host $http_host;
    proxy_request_buffering off;
    proxy_max_temp_file_size 0;
{server}}}
"
    )
}

fn upstream_server(address: SocketAddr, directory: &Path, sink: SocketAddr) -> String {
    let directory = directory.display();
    format!(
        "    sendfile on;
    default_type application/octet-stream;
    server {{
        listen {address} backlog=4096;
        location = / {{ return 200 \"ok\"; }}
        location /bytes/ {{ alias {directory}/bytes/; }}
        location /upload {{ proxy_pass http://{sink}; }}
    }}
"
    )
}

fn first_hop(address: SocketAddr, second: SocketAddr) -> String {
    format!(
        "    upstream next {{
        server {second};
        keepalive 512;
        keepalive_requests 1000000000;
        keepalive_timeout 600s;
    }}
    server {{
        listen {address} backlog=4096;
        location / {{
            proxy_pass https://next;
            proxy_ssl_protocols TLSv1.3;
            proxy_ssl_session_reuse on;
        }}
    }}
"
    )
}

fn second_hop(address: SocketAddr, directory: &Path, upstream: SocketAddr) -> String {
    let directory = directory.display();
    format!(
        "    upstream next {{
        server {upstream};
        keepalive 512;
        keepalive_requests 1000000000;
        keepalive_timeout 600s;
    }}
    server {{
        listen {address} ssl backlog=4096;
        ssl_certificate {directory}/server.pem;
        ssl_certificate_key {directory}/server.key;
        ssl_protocols TLSv1.3;
        location / {{ proxy_pass http://next; }}
    }}
"
    )
}
