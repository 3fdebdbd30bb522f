//! What the TLS library alone can do: accepts, does the handshake, keeps the connection.
//!
//! The measure for the handshakes and the memory of a tunnel server: same library, same provider,
//! same certificate, same tickets, and nothing above it. It is a child process, as the tunnel
//! server is, so that both are accounted alike.

use std::{net::TcpListener as StdListener, path::PathBuf, sync::Arc, thread};

use anyhow::{Context as _, anyhow};
use rustls::{ServerConfig, crypto::aws_lc_rs};
use rustls_pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject as _};
use tokio::{
    io::AsyncReadExt as _,
    net::{TcpListener, TcpStream},
};
use tokio_rustls::TlsAcceptor;

use crate::serve::{self, FREE_PORT};

/// Flags of `loadtest tls-sink`.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
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

/// Accepts until the process is ended.
///
/// # Errors
/// The certificate is not usable, or it cannot listen there.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let acceptor = TlsAcceptor::from(config(args)?);
    let listener = serve::on_this_thread(async { Ok(serve::listen(FREE_PORT)?.into_std()?) })?;
    serve::announce(listener.local_addr()?)?;
    let mut running = Vec::new();
    for _ in 0..args.threads {
        let (listener, acceptor) = (listener.try_clone()?, acceptor.clone());
        let thread = thread::Builder::new().name("tls-sink".to_owned());
        let work = move || accept_all(listener, &acceptor);
        running.push(thread.spawn(work).context("cannot start a thread")?);
    }
    for thread in running {
        thread.join().map_err(|_| anyhow!("a thread panicked"))??;
    }
    Ok(())
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

fn accept_all(listener: StdListener, acceptor: &TlsAcceptor) -> anyhow::Result<()> {
    serve::on_this_thread(async {
        let listener = TcpListener::from_std(listener)?;
        serve::each(listener, |stream| one(stream, acceptor.clone())).await;
        Ok(())
    })
}

async fn one(stream: TcpStream, acceptor: TlsAcceptor) {
    // Who failed knows it: the dialler counts.
    let Ok(mut stream) = Box::pin(acceptor.accept(stream)).await else {
        return;
    };
    while stream.read_u8().await.is_ok() {}
}
