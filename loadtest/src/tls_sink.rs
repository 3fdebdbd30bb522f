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
    net::{TcpListener, TcpStream},
};
use tokio_rustls::TlsAcceptor;

use crate::serve;

/// Between two lines that tell how many handshakes there were. They also show that somebody still
/// reads them.
const TELL: Duration = Duration::from_millis(500);

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

/// Accepts until the process is ended, or its output is closed.
///
/// # Errors
/// The certificate is not usable, or it cannot listen there.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let acceptor = TlsAcceptor::from(config(args)?);
    let listener = serve::on_this_thread(async { Ok(serve::listen(args.listen)?.into_std()?) });
    let listener = listener.with_context(|| format!("cannot listen on {}", args.listen))?;
    write_line(format_args!(
        "listening on http://{}",
        listener.local_addr()?
    ))?;
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
        write_line(format_args!("handshakes {}", handshakes.load(Relaxed)))?;
    }
}

fn write_line(line: std::fmt::Arguments<'_>) -> anyhow::Result<()> {
    let mut out = io::stdout().lock();
    writeln!(out, "{line}")
        .and_then(|()| out.flush())
        .context("cannot write how many handshakes there were")
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
    serve::on_this_thread(async {
        let listener = TcpListener::from_std(listener)?;
        serve::each(listener, |stream| {
            one(stream, acceptor.clone(), handshakes.clone())
        })
        .await;
        Ok(())
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
