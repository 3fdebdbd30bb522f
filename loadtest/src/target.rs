//! What is measured: any URL, or a tunnel that this program starts itself.

use std::{
    any::Any,
    net::SocketAddr,
    path::{Path, PathBuf},
    sync::Arc,
};

use anyhow::{Context as _, bail, ensure};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Uri, header, uri::PathAndQuery};
use rustls::{
    ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme,
    client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
    crypto::{CryptoProvider, aws_lc_rs, verify_tls12_signature, verify_tls13_signature},
};
use rustls_pki_types::{CertificateDer, ServerName, UnixTime, pem::PemObject as _};

use crate::{
    client::{Dialer, template::Template},
    measure::usage::{self, Roles},
    stack::{Plan, RUNTIME, Stack, StackArgs},
};

/// Flags that name the target.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Target")]
pub struct TargetArgs {
    /// URL to measure, http or https
    #[arg(long, value_name = "URL", required_unless_present = "self_contained")]
    pub url: Option<Uri>,
    /// Start an upstream, a tunnel server and a tunnel client, and measure through them
    #[arg(long, conflicts_with = "url")]
    pub self_contained: bool,
    /// Connect to this address, whatever the URL's host is
    #[arg(long, value_name = "IP:PORT")]
    pub connect_to: Option<SocketAddr>,
    /// How requests are sent to it.
    #[command(flatten)]
    pub client: ClientArgs,
    /// Account the processor time and memory of this process, and of its children, under a role;
    /// repeat for more
    #[arg(long = "pid", value_name = "ROLE=PID", value_parser = parse_pid)]
    pub pids: Vec<(String, u32)>,
    /// The programs of a self-contained run.
    #[command(flatten)]
    pub stack: StackArgs,
}

/// A target that is ready for requests. The programs it started end when it is dropped.
#[derive(Debug)]
pub struct Target {
    /// For people: the URL, or `self-contained`.
    pub name: String,
    /// Makes connections to it.
    pub dialer: Dialer,
    /// Whether to speak HTTP/2.
    pub http2: bool,
    /// The processes whose use is known, the load generator among them.
    pub roles: Roles,
    /// What this program started for it, if anything.
    pub started: Option<Box<dyn Any>>,
    uri: Uri,
    headers: HeaderMap,
}

impl TargetArgs {
    /// Resolves the URL, or starts the programs as planned.
    ///
    /// # Errors
    /// Says what is wrong with the flags, the name, or the programs.
    pub async fn open(&self, plan: Plan<'_>) -> anyhow::Result<Target> {
        if self.self_contained {
            let stack = Box::pin(Stack::start(&self.stack, plan)).await?;
            let runtime = plan.runtimes.first().copied().unwrap_or(RUNTIME);
            let mut target = self.in_stack(&stack, runtime).await?;
            target.started = Some(Box::new(stack));
            return Ok(target);
        }
        let Some(url) = &self.url else {
            bail!("no target: give --url or --self-contained");
        };
        self.at(url, self.connect_to).await
    }

    /// A runtime of a running stack. The stack stays the caller's.
    ///
    /// # Errors
    /// A process of `--pid` is not there.
    pub async fn in_stack(&self, stack: &Stack, runtime: &str) -> anyhow::Result<Target> {
        let public = Some(stack.server.public);
        let mut target = self.at(&stack.url(runtime), public).await?;
        "self-contained".clone_into(&mut target.name);
        target.roles.extend(&stack.roles());
        Ok(target)
    }

    /// A target at another URL, with the headers, protocol, trust and processes of these flags. `connect_to`
    /// is used instead of the URL's host.
    ///
    /// # Errors
    /// The URL is not usable, or its name is unknown.
    pub async fn at(&self, url: &Uri, connect_to: Option<SocketAddr>) -> anyhow::Result<Target> {
        let mut target = Target::at(url, connect_to, &self.client).await?;
        for (role, pid) in &self.pids {
            usage::check(*pid).with_context(|| format!("--pid {role}={pid}: no such process"))?;
            target.roles.add(role, *pid);
        }
        Ok(target)
    }
}

/// How a target is spoken to.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct ClientArgs {
    /// Header to send with each request, such as "authorization: Bearer x"; repeat for more
    #[arg(long = "header", short = 'H', value_name = "NAME: VALUE", value_parser = parse_header)]
    pub headers: Vec<(HeaderName, HeaderValue)>,
    /// Speak HTTP/2: by ALPN over TLS, with prior knowledge without
    #[arg(long)]
    pub http2: bool,
    /// Accept any certificate
    #[arg(long, conflicts_with = "ca")]
    pub insecure: bool,
    /// CA certificates to trust instead of the system's, PEM
    #[arg(long, value_name = "FILE")]
    pub ca: Option<PathBuf>,
}

impl Target {
    /// What is at this address, over HTTP/1.1 without TLS.
    ///
    /// # Errors
    /// Never, as any address makes a URL.
    pub async fn plain(address: SocketAddr) -> anyhow::Result<Self> {
        let url = format!("http://{address}/").parse()?;
        Self::at(&url, Some(address), &ClientArgs::default()).await
    }

    /// What is at this URL. `connect_to` is used instead of the URL's host. Of its processes
    /// nothing is known yet.
    ///
    /// # Errors
    /// The URL is not usable, its name is unknown, or there is no such file of certificates.
    pub async fn at(
        url: &Uri,
        connect_to: Option<SocketAddr>,
        client: &ClientArgs,
    ) -> anyhow::Result<Self> {
        let secure = match url.scheme_str() {
            Some("http") => false,
            Some("https") => true,
            _ => bail!("{url}: a URL starts with http:// or https://"),
        };
        let host = url
            .host()
            .with_context(|| format!("{url}: names no host"))?;
        let host = host.trim_start_matches('[').trim_end_matches(']');
        let port = url.port_u16().unwrap_or(if secure { 443 } else { 80 });
        let addresses = match connect_to {
            Some(address) => vec![address],
            None => {
                let found = tokio::net::lookup_host((host, port)).await;
                let found = found.map(Iterator::collect);
                found.with_context(|| format!("{host}: cannot find the address of this name"))?
            }
        };
        ensure!(!addresses.is_empty(), "{host}: has no address");
        let tls = if secure {
            let trust = match &client.ca {
                _ if client.insecure => Trust::Anybody,
                Some(file) => Trust::Only(read_certificates(file)?),
                None => Trust::system(),
            };
            let name = ServerName::try_from(host.to_owned())
                .with_context(|| format!("{host}: is no name that a certificate can have"))?;
            Some((tls_config(trust, client.http2)?, name))
        } else {
            None
        };
        let mut headers: HeaderMap = client.headers.iter().cloned().collect();
        if !client.http2 && !headers.contains_key(header::HOST) {
            let authority = url.authority().map(ToString::to_string).unwrap_or_default();
            headers.insert(header::HOST, HeaderValue::try_from(authority)?);
        }
        Ok(Self {
            name: url.to_string(),
            dialer: Dialer::new(addresses, tls),
            http2: client.http2,
            roles: Roles::generator(),
            started: None,
            uri: url.clone(),
            headers,
        })
    }

    /// The URL of the requests.
    pub fn uri(&self) -> &Uri {
        &self.uri
    }

    /// Whether the URL names no path of its own. The target is then taken for the sample upstream
    /// behind whatever is measured, and asked for the path that a scenario needs.
    pub fn is_sample(&self) -> bool {
        let path = self.uri.path_and_query();
        path.is_none_or(|path| path.as_str() == "/")
    }

    /// Requests for the URL's own path, or for `sample` at the sample upstream.
    ///
    /// # Errors
    /// As [`Self::template`].
    pub fn sample_template(&self, method: Method, sample: &str) -> anyhow::Result<Template> {
        self.template(method, self.is_sample().then_some(sample))
    }

    /// Requests for `path`, or for the URL's own path if there is none.
    ///
    /// # Errors
    /// The path cannot be one of a URL.
    pub fn template(&self, method: Method, path: Option<&str>) -> anyhow::Result<Template> {
        let path = match path {
            Some(path) => PathAndQuery::try_from(path).context(path.to_owned())?,
            None => self
                .uri
                .path_and_query()
                .cloned()
                .unwrap_or_else(|| PathAndQuery::from_static("/")),
        };
        // HTTP/1.1 sends the path alone; HTTP/2 needs scheme and authority.
        let uri = if self.http2 {
            let mut parts = self.uri.clone().into_parts();
            parts.path_and_query = Some(path);
            Uri::from_parts(parts)?
        } else {
            Uri::from(path)
        };
        Ok(Template {
            dialer: self.dialer.clone(),
            http2: self.http2,
            method,
            uri,
            headers: self.headers.clone(),
        })
    }
}

fn read_certificates(file: &Path) -> anyhow::Result<Vec<CertificateDer<'static>>> {
    let name = || format!("--ca {}", file.display());
    let read = CertificateDer::pem_file_iter(file).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    let certificates = read.with_context(name)?;
    ensure!(!certificates.is_empty(), "{}: holds no certificate", name());
    Ok(certificates)
}

/// `NAME: VALUE`.
fn parse_header(text: &str) -> Result<(HeaderName, HeaderValue), String> {
    let (name, value) = text
        .split_once(':')
        .ok_or("a header is written \"name: value\"")?;
    let name = HeaderName::try_from(name.trim()).map_err(|error| error.to_string())?;
    let value = HeaderValue::try_from(value.trim()).map_err(|error| error.to_string())?;
    Ok((name, value))
}

fn parse_pid(text: &str) -> Result<(String, u32), String> {
    let wrong = || "a process is written ROLE=PID, such as nginx=4711".to_owned();
    let (role, pid) = text.rsplit_once('=').ok_or_else(wrong)?;
    let pid = pid.parse().map_err(|_| wrong())?;
    if role.is_empty() {
        return Err(wrong());
    }
    Ok((role.to_owned(), pid))
}

/// The trusted certificates.
#[derive(Clone, Debug)]
pub enum Trust {
    /// Those of these authorities.
    Only(Vec<CertificateDer<'static>>),
    /// Any certificate: the load is the point, not who takes it.
    Anybody,
}

impl Trust {
    /// That of the system.
    pub fn system() -> Self {
        Self::Only(rustls_native_certs::load_native_certs().certs)
    }
}

/// The TLS settings of a client.
///
/// # Errors
/// No authority is known.
pub fn tls_config(trust: Trust, http2: bool) -> anyhow::Result<Arc<ClientConfig>> {
    let provider = Arc::new(aws_lc_rs::default_provider());
    let builder = ClientConfig::builder_with_provider(provider.clone())
        .with_safe_default_protocol_versions()?;
    let builder = match trust {
        Trust::Anybody => builder
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(Anybody(provider))),
        Trust::Only(authorities) => {
            let mut roots = RootCertStore::empty();
            for authority in authorities {
                let added = roots.add(authority);
                added.context("a CA certificate is not usable")?;
            }
            if roots.is_empty() {
                bail!("no CA certificates are known: give --ca FILE, or --insecure");
            }
            builder.with_root_certificates(roots)
        }
    };
    let mut config = builder.with_no_client_auth();
    let protocol: &[u8] = if http2 { b"h2" } else { b"http/1.1" };
    config.alpn_protocols = vec![protocol.to_vec()];
    Ok(Arc::new(config))
}

/// Accepts any certificate, but checks the handshake's own signature, which costs what it costs.
#[derive(Debug)]
struct Anybody(Arc<CryptoProvider>);

impl ServerCertVerifier for Anybody {
    fn verify_server_cert(
        &self,
        _certificate: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _name: &ServerName<'_>,
        _ocsp: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.0.signature_verification_algorithms;
        verify_tls12_signature(message, certificate, signature, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.0.signature_verification_algorithms;
        verify_tls13_signature(message, certificate, signature, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}
