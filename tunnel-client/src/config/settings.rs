//! The table of the client's settings.
//!
//! From it come flags, environment variables, keys of the configuration file, help, defaults, bounds, what a reload takes
//! over, and the reference page. Values are parsed here, with one error wherever they were given; whether they
//! fit together is for [`super::Config`] and [`super::ServeConfig`].
//!
//! There is no flag for the token itself: other users of the machine can see a program's flags.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use tunnel_http::answer::ProblemDetail;
use tunnel_ops::admin::AdminHost;
use tunnel_ops::config_value::{
    BoundedSize, Count, DurationFrom, DurationText, ListenAddress, Network, OptionalListenAddress,
    PositiveDuration, SizeFrom,
};
use tunnel_ops::settings::{self, OneOrMore, OneOrMorePaths};
use tunnel_ops::telemetry::tracer::{CollectorUrl, Ratio};
use tunnel_ops::telemetry::{AccessLogTarget, LogFilter, LogFormat};
use tunnel_proto::session::DEFAULT_PING_INTERVAL;
use tunnel_routing::config::{CONNECT_TIMEOUT, HEAD_TIMEOUT, RawRoute, UpstreamHttp};
use tunnel_routing::url::UpstreamUrl;

use super::dns_server::DnsServer;
use super::no_proxy::NoProxy;
use super::proxy::ProxyChoice;
use super::reach::{ConnectTo, HostField, TlsName};
use super::url::ServerUrl;
use super::{OnRefusal, TellRoutes};

/// The file to read, and what flags and environment say.
pub type Given = settings::Given<Source>;

tunnel_ops::settings! {
    variables "TUNNEL_CLIENT_";
    /// Every setting as a flag, an environment variable or the file gave it.
    given Source;
    /// Every setting as it counts, but for those that are read into something else.
    settings Settings;
    file_only {
        /// The routes.
        route: Vec<RawRoute>;
    }
    common {
        server, token_file, upstream, ca_file, proxy, sessions, on_refusal, listen, admin_listen, log_level
    }

    "Server and credential" {
        /// The server to dial, such as wss://tunnel.example.com
        ///
        /// May be given several times, for nodes that have an address each: the sessions of a client go to different ones, and
        /// one that fails is left for the next
        server: OneOrMore<ServerUrl>, given "required", "URL", Restart;
        /// The regular file that holds the token; read again when it changes
        token_file: PathBuf, else "required unless --client-cert is given", "FILE", Restart;
        /// Certificate chain of the client, PEM; read again when it changes
        client_cert: PathBuf, given "", "FILE", Restart;
        /// Key of the client's certificate, PEM
        client_key: PathBuf, given "required with --client-cert", "FILE", Restart;
        /// CA certificates that the server may be signed by, PEM; read again at each dial
        ///
        /// May be given several times
        ca_file: OneOrMorePaths, given "", "FILE", Restart;
        /// Folder with CA certificates that the server may be signed by, PEM; read again at each dial
        ///
        /// May be given several times
        ca_dir: OneOrMorePaths, given "", "FOLDER", Restart;
        /// Trust the system's CA certificates as well
        ///
        /// `false`: only those of `--ca-file` and `--ca-dir`
        system_roots: bool = true, "BOOL", Restart;
        /// Name that is sent in TLS (SNI) and checked in the server's certificate
        server_name: TlsName, else "the URL's host unless set", "NAME", Restart;
        /// Host that is named in the request for a session
        host_header: HostField, else "the URL's host unless set", "HOST", Restart;
        /// Dial this host instead of the URL's: HOST or HOST:PORT
        connect_to: ConnectTo, else "the URL's host unless set", "HOST", Restart;
    }
    "Proxy" {
        /// Proxy through which the server is dialled: http://, https://, socks5:// or socks5h://, or none
        proxy: ProxyChoice, given "HTTPS_PROXY, ALL_PROXY unless set", "URL", Restart;
        /// File that holds user:password for the proxy; read again at each dial
        proxy_auth_file: PathBuf, given "", "FILE", Restart;
        /// Servers that are dialled without a proxy: names, domains, addresses, networks, or *
        no_proxy: Vec<NoProxy>, given "NO_PROXY unless set", "HOST", Restart;
        /// CA certificates that an https proxy may be signed by, PEM; read again at each dial
        ///
        /// May be given several times
        proxy_ca_file: OneOrMorePaths, given "", "FILE", Restart;
        /// Folder with CA certificates that an https proxy may be signed by, PEM; read again at each dial
        ///
        /// May be given several times
        proxy_ca_dir: OneOrMorePaths, given "", "FOLDER", Restart;
        /// Trust the system's CA certificates for an https proxy as well
        proxy_system_roots: bool = true, "BOOL", Restart;
    }
    "Tunnel" {
        /// Sessions kept with the server at once
        sessions: Count<1, 8> = 2, "NUMBER", Restart;
        // Each time costs a dial.
        /// Longest time that a session is used before another one replaces it
        max_session_age: DurationFrom<60_000>, else "for as long as it lasts unless set", "TIME", Restart;
        /// Networks that the runtime may be reached from, within what the server allows
        allow_from: Vec<Network>, else "any unless set", "CIDR", Restart;
        /// Which part of the routes is reported to the server
        ///
        /// `names`: name, conditions, and whether it is up; `full`: the upstreams' URLs as well. The server's operator
        /// sees it
        tell_routes: TellRoutes = TellRoutes::Names, "WHAT", Restart;
        /// Time for each step of the dial: name, connection, proxy, TLS, upgrade
        dial_timeout: PositiveDuration = Duration::from_secs(10), "TIME", Restart;
        // Short after a single failure; the doubling spares a server that refuses.
        /// Longest wait before the first new dial; it doubles with each failure
        ///
        /// While dials find no server, waits are at most 2 s (or this setting, if longer), and after an outage of more than 32 s
        /// at most a sixteenth of it
        redial_base: PositiveDuration = Duration::from_secs(1), "TIME", Restart;
        /// Longest wait before any new dial
        redial_cap: PositiveDuration = Duration::from_secs(30), "TIME", Restart;
        /// How long a session must last to reset the waits; one that the server drains: --redial-base
        redial_stable: DurationText = Duration::from_secs(60), "TIME", Restart;
        /// What to do after a final refusal
        ///
        /// It applies when no session is left. A token that is not known is a final refusal after 5 min; a takeover by
        /// another instance never is
        on_refusal: OnRefusal = OnRefusal::Exit, "ACTION", Restart;
        /// Longest wait after a refusal, or after another instance took over
        ///
        /// Waits before the next dial begin with 5 to 10 s (15 to 30 s after a takeover) and double
        refusal_wait: PositiveDuration = Duration::from_secs(5 * 60), "TIME", Restart;
        // A session that is silent for two of them is dead.
        /// Time between pings on a session
        ping_interval: DurationFrom<100> = DEFAULT_PING_INTERVAL, "TIME", Restart;
    }
    "Upstreams" {
        /// The local service that answers what no route takes: http://, https:// or h2c:// with host and
        /// port, unix:/path, or a port of this machine
        upstream: UpstreamUrl, else "required unless the file has routes", "URL", AtOnce;
        /// CA certificates that an https upstream may be signed by, beside the system's, PEM
        ///
        /// Also for routes that name none
        upstream_ca_file: PathBuf, else "", "FILE", AtOnce;
        /// Name servers that resolve upstreams' names, address and port
        dns_server: Vec<DnsServer>, else "the system's unless set", "ADDRESS", Restart;
        /// Time for each step of connecting to the upstream: name, TCP, TLS
        upstream_connect_timeout: PositiveDuration = CONNECT_TIMEOUT, "TIME", AtOnce;
        /// Time for the head of the upstream's response
        upstream_head_timeout: PositiveDuration = HEAD_TIMEOUT, "TIME", AtOnce;
        /// The version of HTTP for https upstreams; auto is HTTP/1.1, and HTTP/2 for gRPC
        ///
        /// With `auto` it is HTTP/1.1, where each exchange has a connection to itself; HTTP/2 for gRPC and Connect's streams, and for
        /// all requests where the upstream refuses HTTP/1.1. Also for routes that name none
        upstream_http: UpstreamHttp = UpstreamHttp::Auto, "VERSION", AtOnce;
        // As many as a busy client has exchanges at once. What a burst leaves is closed within 45 s, so that a high bound
        // costs little, and a lower one would have connections made anew all the time.
        /// Most idle connections that are kept to each upstream
        ///
        /// There are as many as the load needed in the last half minute
        upstream_idle_pool: Count<0, 65_536> = 1_024, "NUMBER", Restart;
        /// What platform clients of serve, and pages on a route with cors, learn of a failure: its reason alone, or full details such as the addresses of upstreams
        ///
        /// The access log has the details of each failure. What else passes through a tunnel is shown by the server's own setting
        problem_detail: ProblemDetail = ProblemDetail::Reason, "DETAIL", Restart;
        // A quarter of the client's memory in `deploy/kubernetes/sidecar.yaml`.
        /// Memory for received bytes of requests and responses that are not sent on yet
        max_buffered_size: SizeFrom<1024> = 64 << 20, "SIZE", Restart;
    }
    "Listener of serve" {
        /// Of serve: the address to listen on
        ///
        /// HTTP/1.1, and HTTP/2 with prior knowledge
        listen: ListenAddress = SocketAddr::from((Ipv4Addr::UNSPECIFIED, 8080)), "ADDRESS", Restart;
        /// Of serve: certificate chain for TLS, PEM; read again when it changes
        listen_cert: PathBuf, given "plain HTTP unless set", "FILE", Restart;
        /// Of serve: key of that certificate, PEM
        listen_key: PathBuf, given "required with --listen-cert", "FILE", Restart;
        /// Of serve: networks of ingress controllers, whose X-Forwarded-*, X-Real-IP and Forwarded are trusted
        ///
        /// Their values are extended; those of other peers are removed, with every field that begins with `X-Forwarded-`
        trusted_proxies: Vec<Network> = Vec::new(), "CIDR", Restart;
        /// Of serve: HTML page that browsers get for a failure instead of the built-in one
        ///
        /// A template with the placeholders `{{status}}`, `{{title}}`, `{{message}}`, `{{advice}}`, `{{reason}}`, `{{request_id}}` and `{{retry_after}}`
        problem_page: PathBuf, else "", "FILE", Restart;
        /// Of serve: add Via to requests; nginx compresses nothing for those that have it
        via: bool = false, "BOOL", Restart;
        /// Of serve: connections at once
        ///
        /// More are closed at once
        max_connections: Count<1, 65536> = 1_024, "NUMBER", Restart;
        /// Of serve: exchanges at once
        ///
        /// Upgraded connections are among them; more get 503
        max_exchanges: Count<1, 65536> = 1_024, "NUMBER", Restart;
        // With the most connections, all of which send incomplete heads, 64 MiB until the time-out of a head.
        /// Of serve: largest head of a request
        max_head_size: BoundedSize<8, 128> = 64 * 1024, "SIZE", Restart;
        /// Of serve: time for a request's head, from its first byte
        ///
        /// And for a TLS handshake
        request_head_timeout: PositiveDuration = Duration::from_secs(30), "TIME", Restart;
        // Longer than an ingress controller keeps a connection, so that it is the one that closes it.
        /// Of serve: longest silence before a request on a connection
        ///
        /// The first request too; let it be longer than the ingress controller's own
        keep_alive_timeout: PositiveDuration = Duration::from_secs(3 * 60), "TIME", Restart;
        // More than the 600 s of Google's load balancers, so that they close connections first.
        /// Of serve: longest silence before a request on a connection of --trusted-proxies
        ///
        /// Let it be longer than the proxies keep idle connections: a proxy loses the request that it sends while this one closes
        trusted_keep_alive_timeout: PositiveDuration = Duration::from_secs(620), "TIME", Restart;
        /// Of serve: longest silence within a request's body until its answer begins, and longest time without reading an answer
        ///
        /// A gRPC call may be silent for longer. Also the longest silence of one direction of an upgraded connection after the other has ended. A
        /// peer that reads nothing for this time while data waits for it, in an answer or on an upgraded connection, is cut: a gRPC
        /// client that pauses for minutes with a full window needs a longer time
        body_idle_timeout: PositiveDuration = Duration::from_secs(60), "TIME", Restart;
        // An ingress controller notices "not ready" meanwhile.
        /// Of serve: how long it still accepts connections after a signal to stop
        ///
        /// Part of `--grace-period`, and at most half of it: a longer time is shortened to that
        drain_delay: DurationText = Duration::ZERO, "TIME", Restart;
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
    "Operation" {
        /// Address for metrics, health and readiness, or "off"
        admin_listen: OptionalListenAddress = Some(SocketAddr::from((Ipv4Addr::LOCALHOST, 9091))), "ADDRESS", Restart;
        /// Name that requests to the admin listener may have in Host, beside localhost and IP addresses
        admin_host: Vec<AdminHost> = Vec::new(), "HOST", Restart;
        // 5 s less than Kubernetes gives.
        /// How long exchanges may take to end when the client stops
        grace_period: DurationText = Duration::from_secs(25), "TIME", Restart;
        /// Where a line for each exchange is written: stderr, the absolute path of a file, or off
        ///
        /// A file is opened again after it was moved or deleted, as a rotation of logs does
        access_log: AccessLogTarget = AccessLogTarget::Stderr, "TARGET", Restart;
        /// How log lines are written
        log_format: LogFormat = LogFormat::Text, "FORMAT", Restart;
        /// What is logged: off, error, warn, info, debug or trace, or by part: info,tunnel_client=debug
        log_level: LogFilter = LogFilter::default(), "LEVEL", Restart;
    }
}
