//! One question to the name servers, by way of the hosts file and the search list.
//!
//! hickory asks for the records of one whole name at a time; which names are tried, and what their
//! answers come to, is decided here: its own search takes a later "no such name" for an answer
//! even when the name before it got none, and the two mean different things to whoever has
//! connections to it.

use std::future::Future;
use std::net::{IpAddr, SocketAddr};
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use hickory_resolver::config::{NameServerConfig, ResolverConfig, ResolverOpts};
use hickory_resolver::lookup::Lookup;
use hickory_resolver::net::runtime::TokioRuntimeProvider;
use hickory_resolver::net::{DnsError, NetError};
use hickory_resolver::proto::op::{Query, ResponseCode};
use hickory_resolver::proto::rr::{Name, RecordType};
use hickory_resolver::{Hosts, TokioResolver, system_conf};
use parking_lot::Mutex;
use tokio::time::{Instant, timeout};

use super::{Found, LookUpError};

/// The files that say where and how to ask.
const FILES: [&str; 2] = ["/etc/resolv.conf", "/etc/hosts"];
/// How often they are looked at, at most; and for how long an answer of the hosts file holds.
const LOOK: Duration = Duration::from_secs(5);
/// Longest wait for one answer: a question that was lost is sent again while somebody still waits.
const ANSWER_WAIT: Duration = Duration::from_secs(2);
/// How long the answer for one kind of addresses is waited for when those of the other are there:
/// some name servers drop the questions for IPv6.
const OTHER_KIND_WAIT: Duration = Duration::from_millis(300);
/// Most addresses that are taken of an answer.
const ADDRESSES: usize = 64;

/// Asks name servers.
pub(super) struct Stub {
    /// Those that the configuration names; none means the system's.
    servers: Vec<SocketAddr>,
    /// Made by the first question.
    setup: Mutex<Option<Current>>,
}

/// How to ask, as of the system's files.
struct Current {
    setup: Arc<Setup>,
    /// When the files were looked at, and what they were then.
    looked: Instant,
    files: [Option<SystemTime>; FILES.len()],
}

/// How to ask.
struct Setup {
    hosts: Hosts,
    search: Vec<Name>,
    ndots: usize,
    /// Or why there is none.
    resolver: Result<TokioResolver, LookUpError>,
}

impl Stub {
    pub(super) fn new(servers: &[SocketAddr]) -> Self {
        Self {
            servers: servers.to_vec(),
            setup: Mutex::default(),
        }
    }

    /// The addresses of a name.
    pub(super) async fn ask(&self, name: &str) -> Result<Found, LookUpError> {
        self.setup().ask(name).await
    }

    /// What the hosts file alone says of a name.
    pub(super) fn in_hosts(&self, name: &str) -> Option<Found> {
        self.setup().in_hosts(&Name::from_ascii(name).ok()?)
    }

    /// How to ask now.
    fn setup(&self) -> Arc<Setup> {
        let now = Instant::now();
        let mut current = self.setup.lock();
        if let Some(current) = &mut *current {
            let is_due = now.saturating_duration_since(current.looked) >= LOOK;
            current.looked = if is_due { now } else { current.looked };
            if !is_due || current.files == changed() {
                return Arc::clone(&current.setup);
            }
            tracing::info!("the system's name servers or hosts have changed, and are read again");
        }
        // Before they are read: what changes meanwhile is read again.
        let files = changed();
        let setup = Arc::new(Setup::new(&self.servers));
        *current = Some(Current {
            setup: Arc::clone(&setup),
            looked: now,
            files,
        });
        setup
    }
}

/// When the system's files were changed last.
fn changed() -> [Option<SystemTime>; FILES.len()] {
    FILES.map(|file| {
        std::fs::metadata(file)
            .and_then(|data| data.modified())
            .ok()
    })
}

impl Setup {
    /// Reads the system's files; the name servers are these, if there are any.
    fn new(servers: &[SocketAddr]) -> Self {
        let hosts = Hosts::from_system().unwrap_or_default();
        match (system_conf::read_system_conf(), servers) {
            (Ok(system), _) => Self::with(hosts, system, servers),
            (Err(error), []) => {
                let why = format!("the system names no name servers ({error}): set dns_server");
                Self {
                    hosts,
                    search: Vec::new(),
                    ndots: 1,
                    resolver: Err(LookUpError::Failed(why.into())),
                }
            }
            (Err(_), _) => {
                let none = ResolverConfig::from_parts(None, Vec::new(), Vec::new());
                Self::with(hosts, (none, ResolverOpts::default()), servers)
            }
        }
    }

    /// As these files say, but with these name servers, if there are any.
    fn with(
        hosts: Hosts,
        (config, mut options): (ResolverConfig, ResolverOpts),
        servers: &[SocketAddr],
    ) -> Self {
        options.timeout = options.timeout.min(ANSWER_WAIT);
        // What is known is kept elsewhere, with rules of its own.
        options.cache_size = 0;
        let mut search = config.search;
        if search.is_empty() {
            search.extend(config.domain);
        }
        let servers = match servers {
            [] => config.name_servers,
            servers => servers.iter().map(name_server).collect(),
        };
        Self {
            hosts,
            search,
            ndots: options.ndots,
            resolver: resolver(servers, options),
        }
    }

    /// The addresses of a name.
    async fn ask(&self, name: &str) -> Result<Found, LookUpError> {
        let name = Name::from_ascii(name).map_err(|error| failed(&error))?;
        if let Some(found) = self.in_hosts(&name) {
            return Ok(found);
        }
        let resolver = self.resolver.as_ref().map_err(LookUpError::clone)?;
        let mut worst = LookUpError::NotFound;
        for candidate in candidates(&name, &self.search, self.ndots) {
            match ask_one(resolver, candidate).await {
                Err(LookUpError::NotFound) => {}
                // What a name means must not depend on which answers were lost on the way: the next
                // one may be somebody else's.
                Err(LookUpError::TimedOut) => return Err(LookUpError::TimedOut),
                // A server that cannot tell of one domain may know the next: so does the system.
                Err(error) => worst = error,
                found => return found,
            }
        }
        Err(worst)
    }

    /// What the hosts file says of a name.
    fn in_hosts(&self, name: &Name) -> Option<Found> {
        let of = |record_type| {
            let query = Query::query(name.clone(), record_type);
            self.hosts.lookup_static_host(&query)
        };
        let lookups = [of(RecordType::A), of(RecordType::AAAA)];
        let addresses: Vec<_> = lookups.iter().flatten().flat_map(addresses).collect();
        (!addresses.is_empty()).then_some(Found {
            addresses,
            ttl: LOOK,
            is_half: false,
        })
    }
}

fn resolver(
    servers: Vec<NameServerConfig>,
    options: ResolverOpts,
) -> Result<TokioResolver, LookUpError> {
    let config = ResolverConfig::from_parts(None, Vec::new(), servers);
    let mut builder = TokioResolver::builder_with_config(config, TokioRuntimeProvider::default());
    *builder.options_mut() = options;
    builder.build().map_err(|error| failed(&error))
}

fn name_server(address: &SocketAddr) -> NameServerConfig {
    let mut server = NameServerConfig::udp_and_tcp(address.ip());
    for connection in &mut server.connections {
        connection.port = address.port();
    }
    server
}

/// The whole names that a name may stand for, in the order in which they are tried (resolv.conf(5)):
/// one with enough dots is tried as it is first.
fn candidates(name: &Name, search: &[Name], ndots: usize) -> Vec<Name> {
    let mut whole = name.clone();
    whole.set_fqdn(true);
    if name.is_fqdn() {
        return vec![whole];
    }
    let dots = usize::from(name.num_labels()).saturating_sub(1);
    // Too long a name is none.
    let found = search.iter().filter_map(|domain| {
        let mut found = name.clone().append_domain(domain).ok()?;
        found.set_fqdn(true);
        Some(found)
    });
    let mut names: Vec<_> = found.collect();
    names.insert(if dots >= ndots { 0 } else { names.len() }, whole);
    names
}

/// Asks for both kinds of addresses of a whole name.
async fn ask_one(resolver: &TokioResolver, name: Name) -> Result<Found, LookUpError> {
    let mut asking_v4 = pin!(resolver.lookup(name.clone(), RecordType::A));
    let mut asking_v6 = pin!(resolver.lookup(name, RecordType::AAAA));
    let (v4, v6) = tokio::select! {
        v4 = &mut asking_v4 => {
            let v4 = found(v4);
            let v6 = other_kind(&v4, asking_v6).await;
            (v4, v6)
        }
        v6 = &mut asking_v6 => {
            let v6 = found(v6);
            (other_kind(&v6, asking_v4).await, v6)
        }
    };
    match (v4, v6) {
        (Ok(mut v4), Ok(v6)) => {
            v4.addresses.extend(v6.addresses);
            v4.ttl = v4.ttl.min(v6.ttl);
            Ok(v4)
        }
        // One kind is enough to go on with; that there is none of the other only an answer says.
        (Ok(found), Err(error)) | (Err(error), Ok(found)) => Ok(Found {
            is_half: error != LookUpError::NotFound,
            ..found
        }),
        // Only two that agree say that there is none.
        (Err(LookUpError::NotFound), Err(error)) | (Err(error), Err(_)) => Err(error),
    }
}

/// The addresses of the second kind, for which the wait is short when the first answer has some.
async fn other_kind(
    first: &Result<Found, LookUpError>,
    asking: impl Future<Output = Result<Lookup, NetError>>,
) -> Result<Found, LookUpError> {
    if first.is_err() {
        return found(asking.await);
    }
    let answered = timeout(OTHER_KIND_WAIT, asking).await;
    answered.map_or(Err(LookUpError::TimedOut), found)
}

fn found(looked_up: Result<Lookup, NetError>) -> Result<Found, LookUpError> {
    let lookup = looked_up.map_err(|error| match &error {
        NetError::Timeout => LookUpError::TimedOut,
        NetError::Dns(DnsError::NoRecordsFound(none)) => match none.response_code {
            ResponseCode::NXDomain | ResponseCode::NoError => LookUpError::NotFound,
            _ => failed(&error),
        },
        _ => failed(&error),
    })?;
    let addresses: Vec<_> = addresses(&lookup).take(ADDRESSES).collect();
    if addresses.is_empty() {
        return Err(LookUpError::NotFound);
    }
    // Those of the aliases on the way count too.
    let seconds = lookup.answers().iter().map(|record| record.ttl).min();
    Ok(Found {
        addresses,
        ttl: Duration::from_secs(seconds.unwrap_or_default().into()),
        is_half: false,
    })
}

fn addresses(lookup: &Lookup) -> impl Iterator<Item = IpAddr> {
    let records = lookup.answers().iter();
    records.filter_map(|record| record.data.ip_addr())
}

fn failed(error: &dyn std::error::Error) -> LookUpError {
    LookUpError::Failed(error.to_string().into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::upstream::tests::dns::{NameServer, Said};

    fn names(name: &str, ndots: usize) -> Vec<String> {
        let search: Vec<_> = ["ns.svc.cluster.local", "svc.cluster.local", "cluster.local"]
            .map(|domain| Name::from_ascii(domain).unwrap())
            .into();
        let name = Name::from_ascii(name).unwrap();
        let names = candidates(&name, &search, ndots);
        names.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn names_with_few_dots_are_searched_first() {
        assert_eq!(
            names("app", 5),
            [
                "app.ns.svc.cluster.local.",
                "app.svc.cluster.local.",
                "app.cluster.local.",
                "app."
            ]
        );
        assert_eq!(names("app.other", 5)[1], "app.other.svc.cluster.local.");
        assert_eq!(names("a.b.c.d.e.f", 5)[0], "a.b.c.d.e.f.");
        assert_eq!(names("a.b.c.d.e.f", 5).len(), 4);
        assert_eq!(names("api.example", 1)[0], "api.example.");
    }

    /// A cluster's way to ask.
    fn cluster(server: &NameServer) -> Setup {
        let text = "search ns.svc.cluster.local svc.cluster.local cluster.local\n\
                    nameserver 192.0.2.1\noptions ndots:5 timeout:1 attempts:1\n";
        let system = system_conf::parse_resolv_conf(text).unwrap();
        let mut hosts = Hosts::default();
        let text = "10.0.0.9 listed\nfd00::9 listed\n";
        hosts.read_hosts_conf(text.as_bytes()).unwrap();
        Setup::with(hosts, system, &[server.address()])
    }

    async fn asked(setup: &Setup, name: &str) -> Result<(Vec<String>, u64), LookUpError> {
        let found = setup.ask(name).await?;
        let addresses = found.addresses.iter().map(ToString::to_string);
        Ok((addresses.collect(), found.ttl.as_secs()))
    }

    #[tokio::test]
    async fn a_clusters_names_are_found_as_the_system_finds_them() {
        let server = NameServer::start().await;
        let setup = cluster(&server);
        server.say_addresses("app.ns.svc.cluster.local", &["10.0.0.1", "fd00::1"], 30);
        server.say_addresses("app.other.svc.cluster.local", &["10.0.0.2"], 5);
        server.say_addresses("api.example.test", &["192.0.2.7"], 600);
        let both = (vec!["10.0.0.1".to_owned(), "fd00::1".to_owned()], 30);
        assert_eq!(asked(&setup, "app").await.unwrap(), both);
        assert_eq!(server.asked("app.ns.svc.cluster.local"), 1);
        assert_eq!(server.asked("app"), 0);
        for name in ["app.other", "app.other.svc", "app.other.svc.cluster.local."] {
            let found = asked(&setup, name).await.unwrap();
            assert_eq!(found, (vec!["10.0.0.2".to_owned()], 5), "{name}");
        }
        let outside = asked(&setup, "api.example.test").await.unwrap();
        assert_eq!(outside, (vec!["192.0.2.7".to_owned()], 600));
        assert_eq!(server.asked("api.example.test.ns.svc.cluster.local"), 1);
        assert_eq!(asked(&setup, "nobody").await, Err(LookUpError::NotFound));
        // Names of container networks often have one.
        server.say_addresses("my_app", &["10.0.0.3"], 5);
        assert_eq!(asked(&setup, "my_app").await.unwrap().0, ["10.0.0.3"]);
    }

    #[tokio::test]
    async fn the_hosts_file_comes_first() {
        let server = NameServer::start().await;
        let setup = cluster(&server);
        server.say_addresses("listed.ns.svc.cluster.local", &["10.0.0.1"], 30);
        let (addresses, _) = asked(&setup, "listed").await.unwrap();
        assert_eq!(addresses, ["10.0.0.9", "fd00::9"]);
    }

    #[tokio::test]
    async fn an_answer_that_is_missing_is_no_answer() {
        let server = NameServer::start().await;
        let setup = cluster(&server);
        // Somebody else's, further down the list.
        server.say_addresses("app.cluster.local", &["10.6.6.6"], 30);
        server.say("app.ns.svc.cluster.local", Said::Silence);
        assert_eq!(asked(&setup, "app").await, Err(LookUpError::TimedOut));
        // A server that cannot tell is passed over, but what follows it does not mean "not there".
        server.say("gone.ns.svc.cluster.local", Said::Failure);
        let failed = asked(&setup, "gone").await.unwrap_err();
        assert!(matches!(failed, LookUpError::Failed(_)), "{failed:?}");
    }

    #[tokio::test]
    async fn an_answer_that_is_half_missing_says_so() {
        let server = NameServer::start().await;
        let setup = cluster(&server);
        let addresses = vec!["10.0.0.1".parse().unwrap(), "fd00::1".parse().unwrap()];
        let name = "app.ns.svc.cluster.local";
        server.say(name, Said::OnlyIpv6(addresses, 300));
        let found = setup.ask("app").await.unwrap();
        assert!(found.is_half);
        assert_eq!(found.addresses, ["fd00::1".parse::<IpAddr>().unwrap()]);
        server.say_addresses(name, &["fd00::1"], 300);
        assert!(
            !setup.ask("app").await.unwrap().is_half,
            "there is no other"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_server_that_drops_questions_for_ipv6_costs_little_time() {
        let server = NameServer::start().await;
        let setup = cluster(&server);
        let addresses = vec!["10.0.0.1".parse().unwrap()];
        server.say(
            "app.ns.svc.cluster.local",
            Said::SilentOnIpv6(addresses, 300),
        );
        let start = Instant::now();
        let found = setup.ask("app").await.unwrap();
        assert!(start.elapsed() <= OTHER_KIND_WAIT, "{:?}", start.elapsed());
        assert_eq!((found.addresses.len(), found.is_half), (1, true));
    }

    #[test]
    fn a_last_dot_keeps_a_name_as_it_is() {
        assert_eq!(names("app.example.", 5), ["app.example."]);
    }
}
