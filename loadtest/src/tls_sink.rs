//! What the TLS library alone can do: accepts, does the handshake, keeps the connection.
//!
//! The measure for the handshakes and the memory of a tunnel server: same library, same provider,
//! same certificate, same tickets, and nothing above it. It is a child process, as the tunnel
//! server is, so that both are accounted alike.

use std::{
    io::{self, Write},
    net::{SocketAddr, TcpListener as StdListener},
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    thread,
    time::Duration,
};

use anyhow::{Context as _, bail};
use rustls::{ServerConfig, crypto::aws_lc_rs};
use rustls_pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject as _};
use tokio::{
    io::AsyncReadExt as _,
    net::{TcpListener, TcpSocket, TcpStream},
    runtime::{Builder, LocalOptions},
    task::JoinSet,
    time::sleep,
};
use tokio_rustls::TlsAcceptor;

/// Between two lines that tell how many handshakes there were. They also show that somebody still
/// reads them.
const TELL: Duration = Duration::from_millis(500);

/// Accepting goes on after a failure, such as too many open files, but not in a busy loop.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Connections that wait to be accepted.
const BACKLOG: u32 = 4096;

/// Flags of `loadtest tls-sink`.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// Where to listen
    #[arg(long, value_name = "IP:PORT", default_value = "127.0.0.1:0")]
    pub listen: SocketAddr,
    /// Certificate chain, PEM
    #[arg(long, value_name = "FILE")]
    pub cert: PathBuf,
    /// Its key, PEM
    #[arg(long, value_name = "FILE")]
    pub key: PathBuf,
    /// Threads that accept
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=64))]
    pub threads: u16,
}

/// Accepts until the process is ended, or nobody reads what it tells any more.
///
/// # Errors
/// The certificate is not usable, or it cannot listen there.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let acceptor = TlsAcceptor::from(config(args)?);
    let listener = listen(args.listen);
    let listener = listener.with_context(|| format!("cannot listen on {}", args.listen))?;
    tell(format_args!("listening on {}", listener.local_addr()?))?;
    let handshakes = Arc::new(AtomicU64::new(0));
    let mut running = Vec::new();
    for _ in 0..args.threads {
        let (listener, acceptor) = (listener.try_clone()?, acceptor.clone());
        let handshakes = handshakes.clone();
        let thread = thread::Builder::new().name("tls-sink".to_owned());
        let work = move || accept_all(listener, &acceptor, &handshakes);
        running.push(thread.spawn(work).context("cannot start a thread")?);
    }
    loop {
        thread::sleep(TELL);
        if running.iter().any(thread::JoinHandle::is_finished) {
            bail!("a thread has ended");
        }
        tell(format_args!("handshakes {}", handshakes.load(Relaxed)))?;
    }
}

/// With room for as many waiting connections as the tunnel server has.
fn listen(address: SocketAddr) -> io::Result<StdListener> {
    let runtime = Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let socket = match address {
            SocketAddr::V4(_) => TcpSocket::new_v4()?,
            SocketAddr::V6(_) => TcpSocket::new_v6()?,
        };
        socket.set_reuseaddr(true)?;
        socket.bind(address)?;
        socket.listen(BACKLOG)?.into_std()
    })
}

fn tell(line: std::fmt::Arguments<'_>) -> anyhow::Result<()> {
    let mut out = io::stdout().lock();
    writeln!(out, "{line}")
        .and_then(|()| out.flush())
        .context("nobody listens to the TLS sink")
}

/// As the tunnel server sets it up.
fn config(args: &Args) -> anyhow::Result<Arc<ServerConfig>> {
    let chain: Result<Vec<_>, _> = CertificateDer::pem_file_iter(&args.cert)
        .with_context(|| format!("--cert {}", args.cert.display()))?
        .collect();
    let chain = chain.with_context(|| format!("--cert {}", args.cert.display()))?;
    let key = PrivateKeyDer::from_pem_file(&args.key);
    let key = key.with_context(|| format!("--key {}", args.key.display()))?;
    let mut config = ServerConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
        .with_protocol_versions(&[&rustls::version::TLS13])?
        .with_no_client_auth()
        .with_single_cert(chain, key)
        .context("the certificate and its key do not fit")?;
    config.ticketer = aws_lc_rs::Ticketer::new()?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(Arc::new(config))
}

fn accept_all(
    listener: StdListener,
    acceptor: &TlsAcceptor,
    handshakes: &Arc<AtomicU64>,
) -> anyhow::Result<()> {
    let runtime = Builder::new_current_thread()
        .enable_all()
        .build_local(LocalOptions::default())
        .context("cannot start a runtime")?;
    runtime.block_on(async {
        let listener = TcpListener::from_std(listener)?;
        let mut connections = JoinSet::new();
        loop {
            match listener.accept().await {
                Ok((stream, _)) => {
                    connections.spawn_local(one(stream, acceptor.clone(), handshakes.clone()));
                }
                Err(_) => sleep(ACCEPT_PAUSE).await,
            }
            while connections.try_join_next().is_some() {}
        }
    })
}

async fn one(stream: TcpStream, acceptor: TlsAcceptor, handshakes: Arc<AtomicU64>) {
    drop(stream.set_nodelay(true));
    // Who failed knows it: the dialler counts.
    let Ok(mut stream) = Box::pin(acceptor.accept(stream)).await else {
        return;
    };
    handshakes.fetch_add(1, Relaxed);
    while stream.read_u8().await.is_ok() {}
}
