//! All parts of the demo in one process, started in the order of their dependencies and stopped
//! together.
//!
//! The demo makes a CA and a token of its own. Only the token is written to disk, since a tunnel client reads it from a
//! file; its directory is removed when the demo ends.

use std::{fs, net::SocketAddr, path::Path, time::Duration};

use anyhow::{Context, anyhow};
use demo::SampleUpstream;
use tempfile::TempDir;
use tokio::sync::oneshot;
use tunnel_client::{client::Client, config as client_config, upstream_advice::upstream_advice};
use tunnel_http::access_log::AccessLog;
use tunnel_ops::{
    config_file::TomlFile,
    signals::Shutdown,
    tls_files::{Identity, Roots},
};
use tunnel_server::{
    certs, config as server_config,
    runtimes::{
        HostName, Runtimes,
        edit::{TokenAddition, add_token},
    },
    server::{BindError, Server},
    token::Token,
};

use crate::{cli::Cli, display::Display, probe};

/// The only runtime, reached at `demo-app.<domain>`.
const ACCOUNT: &str = "demo";
const RUNTIME: &str = "app";

/// A free port on loopback.
pub(crate) const FREE: SocketAddr = SocketAddr::V4(std::net::SocketAddrV4::new(
    std::net::Ipv4Addr::LOCALHOST,
    0,
));

/// How long open streams may last when the demo ends: short, since a person has pressed Ctrl-C.
const GRACE: Duration = Duration::from_secs(1);

/// The credentials of server and client.
pub(crate) struct Credentials {
    certificates: certs::Certificates,
    runtimes: Runtimes,
    /// Holds the token's file.
    directory: TempDir,
}

/// The parts of the demo, in the order in which they start: each needs the address of the one before.
struct Parts {
    sample: Option<SampleUpstream>,
    server: Server,
    client: Client,
    /// Kept until the end, because the client reads its token at each dial.
    _credentials: Credentials,
}

/// Starts everything and runs it until Ctrl-C.
pub(crate) async fn run(cli: &Cli, display: &Display) -> anyhow::Result<()> {
    let shutdown = Shutdown::on_signals().context("cannot listen for Ctrl-C")?;
    let Parts {
        sample,
        server,
        client,
        _credentials,
    } = Parts::start(cli, display.access_log()).await?;
    let (addresses, host) = (server.addresses(), host());
    let welcome = async {
        tokio::select! {
            result = probe::first_request(addresses.public, &host) => result?,
            () = shutdown.requested() => return Ok(()),
        }
        display.welcome(&host, addresses.public, cli.upstream.as_deref());
        if let Some(upstream) = &cli.upstream
            && let Some(advice) = upstream_advice(&upstream.parse()?).await
        {
            display.say(&format!("{upstream}: {advice}"));
        }
        anyhow::Ok(())
    };
    let (tunnel_ended, end) = oneshot::channel::<()>();
    let tunnel = async {
        let _tunnel_ended = tunnel_ended;
        // Boxed, since the client's future is large, and this future would reserve space for it twice.
        let client = Box::pin(client.run(shutdown.clone()));
        tokio::try_join!(
            async {
                server
                    .run(shutdown.clone())
                    .await
                    .context("the server failed")
            },
            async { client.await.context("the client failed") },
            welcome,
        )
    };
    // The sample ends last, since it answers the requests that the tunnel still carries while it drains.
    let upstream = async {
        if let Some(sample) = sample {
            sample.run(async { drop(end.await) }).await;
        }
    };
    let (result, ()) = tokio::join!(tunnel, upstream);
    display.say("the demo has ended");
    result.map(drop)
}

impl Parts {
    async fn start(cli: &Cli, access_log: AccessLog) -> anyhow::Result<Self> {
        let domain = HostName::default_domain();
        let credentials = Credentials::make(&domain)?;
        let (sample, upstream) = upstream(cli).await?;
        let config = server_configuration(cli.public_listen, &credentials, domain)?;
        let server = Server::bind(config, access_log).await;
        let server = server.map_err(|error| match error {
            BindError::Listen {
                listener: "public", ..
            } => {
                anyhow!("{error}; try --public-listen 127.0.0.1:0, which takes a free port")
            }
            error => anyhow!(error),
        })?;
        let dial = server.addresses().tunnel;
        let config = client_configuration(&credentials, dial, &upstream)?;
        // The server's access log is enough.
        let client = Client::new(config, AccessLog::off())?;
        Ok(Self {
            sample,
            server,
            client,
            _credentials: credentials,
        })
    }
}

/// The sample service, unless there is one of the user's own, and the URL of the service.
pub(crate) async fn upstream(cli: &Cli) -> anyhow::Result<(Option<SampleUpstream>, String)> {
    if let Some(url) = &cli.upstream {
        return Ok((None, url.clone()));
    }
    let sample = SampleUpstream::bind(FREE).await;
    let sample = sample.context("cannot start the sample service")?;
    let url = format!("http://{}", sample.address());
    Ok((Some(sample), url))
}

impl Credentials {
    pub(crate) fn make(domain: &HostName) -> anyhow::Result<Self> {
        let names = ["localhost".to_owned(), "127.0.0.1".to_owned()];
        let certificates = certs::generate(&names, 1)?;
        let token = Token::generate().context("cannot get random bytes for the token")?;
        let addition = TokenAddition {
            account: &ACCOUNT.parse()?,
            runtime: &RUNTIME.parse()?,
            hosts: &[],
            token: &token,
            created: None,
            expires: None,
            note: None,
        };
        let file = TomlFile::from_text(Path::new("demo"), add_token("", &addition)?);
        let runtimes = Runtimes::parse(&file, domain)?;
        let directory = tempfile::tempdir().context("cannot make a directory for the token")?;
        let this = Self {
            certificates,
            runtimes,
            directory,
        };
        fs::write(this.token_file(), token.expose()).context("cannot write the token")?;
        Ok(this)
    }

    fn token_file(&self) -> std::path::PathBuf {
        self.directory.path().join("token")
    }
}

pub(crate) fn server_configuration(
    public_listen: SocketAddr,
    credentials: &Credentials,
    domain: HostName,
) -> anyhow::Result<server_config::Config> {
    let certificates = &credentials.certificates;
    let identity = Identity::from_pem(&certificates.server_pem, &certificates.server_key)?;
    let runtimes = credentials.runtimes.clone();
    let mut config = server_config::Config::new(identity, runtimes, domain);
    config.settings.tunnel_listen = FREE;
    config.settings.public_listen = public_listen;
    config.settings.admin_listen = FREE;
    config.settings.grace_period = GRACE;
    config.settings.shards = 1;
    Ok(config)
}

pub(crate) fn client_configuration(
    credentials: &Credentials,
    server: SocketAddr,
    upstream: &str,
) -> anyhow::Result<client_config::Config> {
    let roots = Roots::from_pem(&credentials.certificates.ca_pem)?;
    let server = format!("wss://{server}").parse()?;
    let upstream: client_config::UpstreamUrl = upstream.parse().context("--upstream")?;
    let is_https = upstream.scheme() == client_config::UpstreamScheme::Https;
    let mut config = client_config::Config::new(server, roots, credentials.token_file(), upstream);
    if is_https {
        config.upstream_roots = Some(Roots::load(None)?);
    }
    config.settings.admin_listen = None;
    config.settings.grace_period = GRACE;
    Ok(config)
}

/// The host of the runtime.
pub(crate) fn host() -> String {
    format!("{ACCOUNT}-{RUNTIME}.{}", HostName::default_domain())
}
