//! The table of the server's settings.
//!
//! It defines flags, environment variables, keys of the configuration file, help, defaults, bounds, what a reload
//! changes, what the effective configuration shows, and the reference page. Values are parsed here, with one syntax for
//! flag, variable and file; [`super::Config`] checks their combinations.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use tunnel_directory::{NodeName, OnConflict, WithoutDirectory};
use tunnel_http::answer::ProblemDetail;
use tunnel_ops::config_value::{
    BoundedSize, Count, DurationFrom, DurationText, ListenAddress, Network, PositiveDuration,
    SizeFrom, SizeText,
};
use tunnel_ops::settings;
use tunnel_ops::telemetry::tracer::{CollectorUrl, Ratio};
use tunnel_ops::telemetry::{AccessLogTarget, LogFilter, LogFormat};
use tunnel_proto::session::DEFAULT_PING_INTERVAL;

use super::acme::{AcmeChallenge, AcmeContact, AcmeDirectory, AcmeName};
use super::credentials::{HttpUrl, JwksSource};
use super::managed::ManagedPlace;
use super::nodes::{EtcdUrl, KeyPrefix};
use super::origin::Origin;
use crate::events::EventKind;
use crate::runtimes::HostName;

/// The path of the configuration file, and the settings of flags and environment.
pub type Given = settings::Given<Source>;

settings! {
    variables "TUNNEL_SERVER_";
    /// The settings as given by flags, environment variables or the file.
    given Source;
    /// The value of every setting. A time of zero means "at once", where it is allowed.
    settings Settings;
    file_only {}
    common {
        domain, runtimes, tls_cert, tls_key, tunnel_listen, public_listen, public_tls_cert, public_tls_key, admin_listen, log_level
    }

    "Listeners" {
        /// Where tunnel clients connect; with --tunnel-host it can be the address of --public-listen
        tunnel_listen: ListenAddress = local(8443), "ADDRESS", Restart;
        /// Name by which tunnel clients connect to the public listener, too
        ///
        /// Such a connection or request is a tunnel client's. If a runtime has the name as its host, only GET /connect with
        /// the tunnel's WebSocket subprotocol is
        tunnel_host: Vec<HostName> = Vec::new(), "HOST", Restart;
        /// Certificate chain of the tunnel listener, PEM
        ///
        /// A changed certificate takes effect at once; adding or removing it, after a restart
        tls_cert: PathBuf, given "required unless --acme-directory is given, or --tunnel-tls is false", "FILE", Depends(is_added_or_removed);
        /// Key of the tunnel listener, PEM
        tls_key: PathBuf, given "required with --tls-cert", "FILE", AtOnce;
        /// Serve tunnel clients over TLS; false takes them in plain HTTP, from --trusted-proxies and this machine only
        ///
        /// For load balancers that terminate TLS. A connection that was not encrypted by what the proxy says in
        /// X-Forwarded-Proto is refused
        tunnel_tls: bool = true, "BOOL", Restart;
        /// Where platform clients connect
        public_listen: ListenAddress = local(8080), "ADDRESS", Restart;
        /// Certificate chain of the public listener, PEM; without it, and without --acme-directory, the listener is plain, or with --tunnel-host has that of --tls-cert
        ///
        /// A changed certificate takes effect at once; adding or removing it, after a restart
        public_tls_cert: PathBuf, given "", "FILE", Depends(is_added_or_removed);
        /// Key of the public listener, PEM
        public_tls_key: PathBuf, given "", "FILE", AtOnce;
        /// Where metrics, health, readiness and the admin API are
        admin_listen: ListenAddress = local(9090), "ADDRESS", Restart;
        /// File with the bearer token that is required for changes through the admin listener; without it nothing can be changed there
        admin_token_file: PathBuf, else "", "FILE", AtOnce;
        /// Host name that requests to the admin listener may use, beside localhost and IP addresses
        admin_host: Vec<HostName> = Vec::new(), "HOST", Restart;
        /// Networks whose X-Forwarded-*, X-Real-IP, Forwarded and PROXY headers are trusted, at both listeners
        ///
        /// Those of other peers are removed, and name no tunnel client
        trusted_proxies: Vec<Network> = Vec::new(), "CIDR", AtOnce;
        /// Expect a PROXY header, version 1 or 2, from the trusted proxies at the public listener
        proxy_protocol: bool = false, "BOOL", AtOnce;
        /// Expect a PROXY header, version 1 or 2, from the trusted proxies at the tunnel listener
        tunnel_proxy_protocol: bool = false, "BOOL", AtOnce;
        /// Export for each runtime of --runtimes whether it is online, to alert on a single one
        runtime_metrics: bool = false, "BOOL", AtOnce;
    }
    "Certificates by ACME" {
        /// ACME server that gives certificates to listeners without --tls-cert or --public-tls-cert: letsencrypt, letsencrypt-staging, or its directory's URL
        ///
        /// Its terms of service are agreed to. The public listener speaks TLS then
        acme_directory: AcmeDirectory, else "certificates come from files", "URL", Restart;
        /// Email address for messages of the ACME server
        acme_contact: Vec<AcmeContact> = Vec::new(), "EMAIL", Restart;
        /// Name that gets a certificate: a host, or a wildcard such as *.tunnels.example.com; without it the wildcard of --domain
        acme_name: Vec<AcmeName> = Vec::new(), "NAME", AtOnce;
        /// How a name that is no wildcard is proven: tls-alpn-01, at its port 443, or dns-01
        acme_challenge: AcmeChallenge = AcmeChallenge::TlsAlpn, "CHALLENGE", AtOnce;
        /// Program that sets and removes records in DNS, called as PROGRAM present|cleanup NAME VALUE
        ///
        /// It has five minutes. Its output is in the log when it fails
        acme_dns_hook: PathBuf, else "required for wildcards and dns-01", "PROGRAM", AtOnce;
        /// Time from the end of --acme-dns-hook until all name servers have the record
        acme_dns_wait: DurationText = Duration::from_secs(30), "TIME", AtOnce;
        /// Folder for the account's key and the certificates with their keys
        acme_dir: PathBuf, else "required without --etcd, where the nodes share them", "DIR", Restart;
        /// CA certificates, PEM, beside the system's, for --acme-directory
        acme_ca_file: PathBuf, else "", "FILE", Restart;
        /// Identifier of the external account that the ACME server requires (EAB)
        acme_eab_kid: String, else "", "ID", Restart;
        /// File with the key of --acme-eab-kid, in base64url
        acme_eab_key_file: PathBuf, else "required with --acme-eab-kid", "FILE", Restart;
    }
    "Runtimes and credentials" {
        /// Each runtime is reached at ACCOUNT-RUNTIME under this domain
        domain: HostName = HostName::default_domain(), "DOMAIN", Restart;
        /// The runtimes and their tokens, TOML
        runtimes: PathBuf, else "required unless --managed-runtimes, --jwks, --auth-url or --client-ca is given", "FILE", AtOnce;
        /// Where the runtimes are kept that the admin API makes: a folder, or etcd, which the nodes of --etcd share
        managed_runtimes: ManagedPlace, else "the admin API makes none", "DIR|etcd", Restart;
        /// Revoked credentials, TOML; they are refused, and sessions that hold one are ended
        revocations: PathBuf, else "", "FILE", AtOnce;
        /// Where revocations by the admin API are kept, which the server writes
        ///
        /// With --etcd they are kept there for all nodes, and this is refused. Without either, and without a folder of
        /// --managed-runtimes, they are forgotten when the server is restarted
        admin_revocations: PathBuf, else "`revocations.json` in the folder of --managed-runtimes", "FILE", Restart;
        /// Keys that JSON Web Tokens are signed with: a file, or an https URL (JWK set, RFC 7517)
        ///
        /// Another file, and other keys in it, take effect at once; a URL, and adding or removing the setting, after a restart
        jwks: JwksSource, else "", "FILE|URL", Depends(jwks_needs_restart);
        /// Issuer (`iss`) that a JSON Web Token must name
        jwt_issuer: String, else "required with --jwks", "TEXT", Restart;
        /// Audience (`aud`) that a JSON Web Token must name
        jwt_audience: String, else "required with --jwks", "TEXT", Restart;
        /// Claim of a JSON Web Token that holds the account
        jwt_account_claim: String = "account".to_owned(), "NAME", Restart;
        /// Claim of a JSON Web Token that holds the runtime
        jwt_runtime_claim: String = "runtime".to_owned(), "NAME", Restart;
        /// How far the clocks of issuer and server may be apart
        jwt_leeway: DurationText = Duration::from_secs(30), "TIME", Restart;
        /// URL at which the platform verifies tokens, with one POST for each
        auth_url: HttpUrl, else "", "URL", Restart;
        /// File with the bearer token by which this server authenticates to the platform
        ///
        /// Another token takes effect at once; removing the setting, after a restart
        auth_token_file: PathBuf, else "", "FILE", Depends(is_gone);
        /// CA certificates, PEM, beside the system's, for --auth-url, --webhook-url and a --jwks URL
        auth_ca_file: PathBuf, else "", "FILE", Restart;
        /// Time for an answer of the platform, or of a --jwks URL
        auth_timeout: PositiveDuration = Duration::from_secs(5), "TIME", Restart;
        /// Most concurrent queries to the platform
        auth_concurrency: Count<1, 10_000> = 64, "NUMBER", Restart;
        /// How long an answer of the platform is cached
        auth_cache: DurationText = Duration::from_secs(10), "TIME", Restart;
        /// How long approved tokens stay valid while the platform is unreachable
        auth_outage: DurationText = Duration::from_secs(60 * 60), "TIME", Restart;
        /// CA certificates, PEM: a client certificate that one of them issued authenticates the runtime that it names
        client_ca: PathBuf, else "", "FILE", AtOnce;
        /// Certificate revocation lists of --client-ca, PEM
        client_crl: PathBuf, else "", "FILE", AtOnce;
        /// How long a session stays open after its credential has expired
        expiry_grace: DurationText = Duration::from_secs(30), "TIME", Restart;
    }
    "Webhook" {
        /// URL of the platform that takes each event, as a signed POST
        webhook_url: HttpUrl, else "", "URL", Restart;
        /// File with the secret that the POSTs are signed with, `whsec_` and base64 (Standard Webhooks)
        webhook_secret_file: PathBuf, else "required with --webhook-url", "FILE", AtOnce;
        /// Kinds of events that are sent
        webhook_events: Vec<EventKind> = vec![EventKind::Online, EventKind::Offline, EventKind::Refused, EventKind::Contested, EventKind::Revoked, EventKind::Expired], "KIND", Restart;
    }
    "Tunnels" {
        /// What happens when a second instance connects for a runtime: supersede the older, or reject the newer
        on_conflict: OnConflict = OnConflict::Supersede, "POLICY", AtOnce;
        /// TLS handshakes and authentications of tunnel clients at once
        max_handshakes: Count<1, 100_000> = 64, "NUMBER", Restart;
        /// Tunnel clients that wait for their handshake; more are refused
        ///
        /// A server that does few handshakes in a second refuses before, so that those who wait have their turn in time
        handshake_queue: Count<0, 1_000_000> = 16_384, "NUMBER", Restart;
        /// Connections of tunnel clients open at once from one address
        max_tunnel_connections_per_address: Count<1, 10_000_000> = 1_000, "NUMBER", AtOnce;
        // A session that is silent for two of them is dead.
        /// Time between pings on a session
        ping_interval: DurationFrom<100> = DEFAULT_PING_INTERVAL, "TIME", AtOnce;
        /// Exchanges open at once on one session
        max_exchanges: Count<1, 4096> = 1_024, "NUMBER", AtOnce;
    }
    "Several server nodes" {
        /// Members of the etcd cluster in which server nodes share who holds which runtime; without it this server stands alone
        ///
        /// With several addresses, separated by commas, the next one is used when one fails
        etcd: Vec<EtcdUrl> = Vec::new(), "URL", Restart;
        /// CA certificates of the members, PEM
        etcd_ca: PathBuf, else "those of the system", "FILE", AtOnce;
        /// Certificate chain that this node shows to etcd, PEM
        etcd_cert: PathBuf, else "", "FILE", AtOnce;
        /// Key of --etcd-cert, PEM
        etcd_key: PathBuf, else "", "FILE", AtOnce;
        /// User of etcd
        etcd_user: String, else "", "NAME", AtOnce;
        /// File with the password of --etcd-user
        etcd_password_file: PathBuf, else "required with --etcd-user", "FILE", AtOnce;
        /// What the keys in etcd begin with; nodes with another prefix know nothing of each other
        etcd_prefix: KeyPrefix = KeyPrefix::usual(), "PREFIX", Restart;
        /// Name of this node, which no other node has
        node: NodeName, else "required with --etcd", "NAME", Restart;
        /// What happens to a new instance of a runtime that nobody holds while etcd cannot be reached
        ///
        /// `accept`: it gets the runtime, and gives way to any claim that was made meanwhile; `refuse`: it waits for etcd
        without_directory: WithoutDirectory = WithoutDirectory::Accept, "POLICY", Restart;
        /// Zone of this node; a request is forwarded within its zone if it can be
        zone: String, else "", "NAME", Restart;
        /// Where other nodes connect, to forward requests to sessions of this one
        peer_listen: ListenAddress, else "requests are not forwarded", "ADDRESS", Restart;
        /// HOST:PORT by which other nodes reach --peer-listen
        peer_advertise: String, else "that of --peer-listen", "HOST:PORT", Restart;
        /// CA of the nodes' certificates, PEM; use it for nothing else
        peer_ca: PathBuf, else "required with --peer-listen", "FILE", AtOnce;
        /// Certificate of this node for the others, PEM; `tunnel-server certs --peer NAME` makes one
        peer_cert: PathBuf, else "required with --peer-listen", "FILE", AtOnce;
        /// Key of --peer-cert, PEM
        peer_key: PathBuf, else "required with --peer-listen", "FILE", AtOnce;
    }
    "Requests" {
        /// Add Via to requests; nginx as an upstream compresses nothing for those that have it
        ///
        /// Via is defined in RFC 9110; nginx's `gzip_proxied` can enable compression for it. Loops are found by another field, `Tunnel-Via`
        via: bool = false, "BOOL", AtOnce;
        /// Origins whose pages may read the responses that the tunnel itself makes
        cors_origin: Vec<Origin> = Vec::new(), "ORIGIN", AtOnce;
        /// What platform clients learn of a failure: its reason alone, or full details such as the addresses of upstreams
        ///
        /// The access log has the details of each failure, under the request id that the answer names
        problem_detail: ProblemDetail = ProblemDetail::Reason, "DETAIL", AtOnce;
        /// HTML page that browsers get for a failure instead of the built-in one
        ///
        /// A template with the placeholders `{{status}}`, `{{title}}`, `{{message}}`, `{{advice}}`, `{{reason}}`, `{{request_id}}` and `{{retry_after}}`
        problem_page: PathBuf, else "", "FILE", AtOnce;
        /// Let upstreams set cookies for --domain and its parents, which browsers send to all runtimes
        allow_shared_cookies: bool = false, "BOOL", AtOnce;
        /// Time for the first byte of a connection
        first_byte_timeout: PositiveDuration = Duration::from_secs(10), "TIME", AtOnce;
        /// Time for a TLS handshake
        tls_handshake_timeout: PositiveDuration = Duration::from_secs(10), "TIME", AtOnce;
        /// Time for a request's head, from its first byte
        request_head_timeout: PositiveDuration = Duration::from_secs(30), "TIME", AtOnce;
        /// Longest silence within a request's body until its answer begins, and longest time without reading an answer
        ///
        /// A gRPC call may be silent for longer. A platform client that reads nothing for this time while data waits for it, in an answer or on an
        /// upgraded connection, is cut: a gRPC client that pauses for minutes with a full window needs a longer time
        body_idle_timeout: PositiveDuration = Duration::from_secs(60), "TIME", AtOnce;
        // More than common load balancers' 60 s, so that they close connections first.
        /// Longest silence between requests on one connection, but for those of --trusted-proxies
        keep_alive_timeout: PositiveDuration = Duration::from_secs(75), "TIME", AtOnce;
        // More than the 600 s of Google's load balancers, so that they close connections first.
        /// Longest silence between requests on one connection of --trusted-proxies
        ///
        /// Let it be longer than the proxies keep idle connections: a proxy loses the request that it sends while the server closes
        trusted_keep_alive_timeout: PositiveDuration = Duration::from_secs(620), "TIME", AtOnce;
        /// How long a request with "Expect: 100-continue" waits for the upstream's 100
        expect_wait: DurationText = Duration::from_secs(1), "TIME", AtOnce;
        /// Connections open at once, on the public and on the tunnel listener each
        max_connections: Count<1, 10_000_000> = 50_000, "NUMBER", AtOnce;
        /// Public connections open at once from one address
        max_connections_per_address: Count<1, 10_000_000> = 1_000, "NUMBER", AtOnce;
        // With the fields that the server adds, the largest head must fit the limit of the wire protocol.
        /// Largest head of a request
        max_head_size: BoundedSize<8, 128> = 128 * 1024, "SIZE", AtOnce;
        /// How long a request waits for a runtime's client to come back
        offline_wait: DurationText = Duration::from_secs(5), "TIME", AtOnce;
    }
    "Limits of the whole server" {
        /// Exchanges open at once on the whole server
        max_open_exchanges: Count<1, 10_000_000> = 100_000, "NUMBER", AtOnce;
        /// Exchanges begun in a second on the whole server
        max_exchange_rate: Count<1, 10_000_000>, else "no limit unless set", "NUMBER", AtOnce;
        /// Upgraded connections open at once on the whole server
        max_open_websockets: Count<0, 10_000_000> = 50_000, "NUMBER", AtOnce;
        /// Requests that wait at once for clients to come back, on the whole server
        max_waiting: Count<0, 1_000_000> = 10_000, "NUMBER", AtOnce;
        /// Memory that the requests of --max-waiting may hold together
        max_waiting_size: SizeText = 256 << 20, "SIZE", AtOnce;
        /// Memory for received bytes of answers that platform clients have not taken yet; one runtime may fill a quarter of it
        max_buffered_size: SizeFrom<1024> = 1 << 30, "SIZE", AtOnce;
    }
    "Default limits of a runtime" {
        /// Exchanges open at once for a runtime without a limit of its own
        limit_exchanges: Count<1, 1_000_000> = 2_048, "NUMBER", AtOnce;
        /// Exchanges begun in a second for a runtime without a limit of its own
        limit_exchange_rate: Count<1, 1_000_000>, else "no limit unless set", "NUMBER", AtOnce;
        /// Bytes in a second to a runtime without a limit of its own
        limit_upload_rate: SizeText, else "no limit unless set", "SIZE", AtOnce;
        /// Bytes in a second from a runtime without a limit of its own
        limit_download_rate: SizeText, else "no limit unless set", "SIZE", AtOnce;
        /// Upgraded connections open at once for a runtime without a limit of its own
        limit_websockets: Count<0, 1_000_000> = 1_024, "NUMBER", AtOnce;
        /// Largest request head for a runtime without a limit of its own
        limit_head_size: BoundedSize<1, 128>, else "--max-head-size unless set", "SIZE", AtOnce;
        /// Requests that wait at once for the client of a runtime without a limit of its own
        limit_waiting: Count<0, 100_000> = 256, "NUMBER", AtOnce;
        /// Memory that the requests of --limit-waiting may hold together
        limit_waiting_size: SizeText = 64 << 20, "SIZE", AtOnce;
    }
    "Stopping" {
        /// How long the server continues to accept after the signal to stop
        ///
        /// It is a part of the grace period
        drain_delay: DurationText = Duration::ZERO, "TIME", AtOnce;
        /// Longest time over which the drain messages to clients are spread
        drain_spread: DurationText = Duration::from_secs(5), "TIME", AtOnce;
        // 5 s less than Kubernetes' default.
        /// How long exchanges may take to end when the server stops
        grace_period: DurationText = Duration::from_secs(25), "TIME", AtOnce;
    }
    "Traces" {
        /// OpenTelemetry collector to which traces are sent, by OTLP over HTTP: http://collector:4318
        ///
        /// `/v1/traces` is added. Without it and the variable nothing is traced. With a collector, the variables
        /// `OTEL_EXPORTER_OTLP_HEADERS`, `OTEL_SERVICE_NAME`, `OTEL_RESOURCE_ATTRIBUTES`, `OTEL_TRACES_SAMPLER` with
        /// `OTEL_TRACES_SAMPLER_ARG`, and `OTEL_SDK_DISABLED` count as OpenTelemetry defines them
        otlp_endpoint: CollectorUrl, else "OTEL_EXPORTER_OTLP_ENDPOINT unless set", "URL", Restart;
        /// File with headers for the collector, such as its credentials, one `Name: value` a line
        otlp_headers_file: PathBuf, else "", "FILE", Restart;
        /// CA certificates, PEM, beside the system's, for an https --otlp-endpoint
        otlp_ca_file: PathBuf, else "", "FILE", Restart;
        /// Part of the exchanges that is traced, of those whose request names no trace; one that does is traced if its sender traces it
        trace_ratio: Ratio, else "0.01, or as OTEL_TRACES_SAMPLER says", "NUMBER", Restart;
    }
    "Process and log" {
        /// Threads that carry traffic; 0 means one for each core
        shards: Count<0, 1024> = 0, "NUMBER", Restart;
        /// Where a line for each exchange is written: stderr, the absolute path of a file, or off
        ///
        /// A file is opened again after it was moved or deleted, as a rotation of logs does
        access_log: AccessLogTarget = AccessLogTarget::Stderr, "TARGET", AtOnce;
        /// How log lines are written
        log_format: LogFormat = LogFormat::Text, "FORMAT", Restart;
        /// What is logged: off, error, warn, info, debug or trace, or by part: info,tunnel_server=debug
        log_level: LogFilter = LogFilter::default(), "LEVEL", AtOnce;
    }
}

/// By default only the local machine can connect.
fn local(port: u16) -> SocketAddr {
    SocketAddr::from((Ipv4Addr::LOCALHOST, port))
}

fn is_added_or_removed(before: Option<&str>, after: Option<&str>) -> bool {
    before.is_none() || after.is_none()
}

fn is_gone(_: Option<&str>, after: Option<&str>) -> bool {
    after.is_none()
}

/// Other keys in a file, or in another file, take effect at once.
fn jwks_needs_restart(before: Option<&str>, after: Option<&str>) -> bool {
    let is_url = |keys: Option<&str>| keys.is_some_and(|keys| keys.contains("://"));
    is_added_or_removed(before, after) || is_url(before) || is_url(after)
}
