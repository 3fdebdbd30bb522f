//! One query to the name servers, after the hosts file and along the search list.
//!
//! hickory queries the records of one full name; which names are tried, and what their answers mean, is decided here:
//! hickory's own search takes a later "no such name" as the answer even if an earlier name got none, and callers treat
//! the two differently.

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

use super::answer::{DnsAnswer, LookUpError};
use super::silent::SilentDomains;

/// The files that configure the look-up.
const FILES: [&str; 2] = ["/etc/resolv.conf", "/etc/hosts"];
/// Least time between two checks of the files, and how long an answer of the hosts file holds.
const FILES_CHECK: Duration = Duration::from_secs(5);
/// Bounds of the wait for one answer; a query that was lost is sent again in this time. `timeout:0` means the shortest,
/// as it does to glibc.
const ANSWER_WAIT: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(2));
/// Longest wait for the answers for one full name, with all queries that are sent again: less than a connection may take
/// by default, so that the error names what was silent.
const NAME_WAIT: Duration = Duration::from_secs(4);
/// How long to wait for the second address family when the first has an answer: some name servers drop queries for
/// IPv6.
const OTHER_FAMILY_WAIT: Duration = Duration::from_millis(300);
/// Most addresses that are taken from an answer.
const ADDRESSES: usize = 64;

/// Queries name servers.
pub(super) struct Stub {
    /// The configured name servers; empty for the system's.
    servers: Vec<SocketAddr>,
    /// Made by the first query.
    setup: Mutex<Option<LoadedSetup>>,
}

/// The setup, and the state of the files it was read from.
struct LoadedSetup {
    setup: Arc<Setup>,
    /// When the files were checked, and their modification times then.
    checked: Instant,
    files: [Option<SystemTime>; FILES.len()],
}

/// How names are looked up.
struct Setup {
    hosts: Hosts,
    search: Vec<Name>,
    silent: Mutex<SilentDomains>,
    ndots: usize,
    /// The resolver, or why there is none.
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
    pub(super) async fn query(&self, name: &str) -> Result<DnsAnswer, LookUpError> {
        self.setup().query(name).await
    }

    /// The answer of the hosts file alone.
    pub(super) fn in_hosts(&self, name: &str) -> Option<DnsAnswer> {
        self.setup().in_hosts(&Name::from_ascii(name).ok()?)
    }

    /// The current setup.
    fn setup(&self) -> Arc<Setup> {
        let now = Instant::now();
        let mut current = self.setup.lock();
        if let Some(current) = &mut *current {
            let is_due = now.saturating_duration_since(current.checked) >= FILES_CHECK;
            current.checked = if is_due { now } else { current.checked };
            if !is_due || current.files == modification_times() {
                return Arc::clone(&current.setup);
            }
            tracing::info!("the system's name servers or hosts have changed, and are read again");
        }
        // Before the files are read, so that a later change is noticed.
        let files = modification_times();
        let setup = Arc::new(Setup::new(&self.servers));
        *current = Some(LoadedSetup {
            setup: Arc::clone(&setup),
            checked: now,
            files,
        });
        setup
    }
}

/// The modification times of the system's files.
fn modification_times() -> [Option<SystemTime>; FILES.len()] {
    FILES.map(|file| {
        std::fs::metadata(file)
            .and_then(|data| data.modified())
            .ok()
    })
}

impl Setup {
    /// Reads the system's files; `servers` replace its name servers if there are any.
    fn new(servers: &[SocketAddr]) -> Self {
        let hosts = Hosts::from_system().unwrap_or_default();
        match (system(), servers) {
            (Ok(system), _) => Self::with(hosts, system, servers),
            (Err(error), []) => {
                let why = format!("the system names no name servers ({error}): set dns_server");
                Self {
                    hosts,
                    search: Vec::new(),
                    silent: Mutex::default(),
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

    /// A setup from these files; `servers` replace their name servers if there are any.
    fn with(
        hosts: Hosts,
        (config, mut options): (ResolverConfig, ResolverOpts),
        servers: &[SocketAddr],
    ) -> Self {
        options.timeout = options.timeout.clamp(ANSWER_WAIT.0, ANSWER_WAIT.1);
        // hickory's cache drops an answer when its TTL ends; `cached.rs` must still serve it while name servers fail.
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
            silent: Mutex::default(),
            ndots: options.ndots,
            resolver: resolver(servers, options),
        }
    }

    /// The addresses of a name.
    async fn query(&self, name: &str) -> Result<DnsAnswer, LookUpError> {
        let name = Name::from_ascii(name).map_err(|error| failed(&error))?;
        if let Some(found) = self.in_hosts(&name) {
            return Ok(found);
        }
        let resolver = self.resolver.as_ref().map_err(LookUpError::clone)?;
        let mut worst = LookUpError::NotFound;
        for Candidate { name, domain } in candidates(&name, &self.search, self.ndots) {
            let is_silent = |domain| self.silent.lock().has(domain, Instant::now());
            if domain.as_ref().is_some_and(is_silent) {
                continue;
            }
            let mut search = domain.map(|domain| SearchQuery::new(self, domain));
            let answer = timeout(NAME_WAIT, query_one(resolver, name.clone())).await;
            let answer = answer.unwrap_or(Err(LookUpError::TimedOut));
            if let (Err(LookUpError::TimedOut), Some(search)) = (&answer, &mut search) {
                if search.end_silent() {
                    continue;
                }
                return Err(LookUpError::SearchTimedOut(name.to_string().into()));
            }
            if let Some(search) = search {
                search.end_answered();
            }
            match answer {
                Err(LookUpError::NotFound) => {}
                // The meaning of a name must not depend on lost answers: the next candidate may be
                // another service.
                Err(LookUpError::TimedOut) => return Err(LookUpError::TimedOut),
                // A server that fails for one domain may know the next: the system tries on, too.
                Err(error) => worst = error,
                found => return found,
            }
        }
        Err(worst)
    }

    /// The answer of the hosts file.
    fn in_hosts(&self, name: &Name) -> Option<DnsAnswer> {
        let lookup = |record_type| {
            let query = Query::query(name.clone(), record_type);
            self.hosts.lookup_static_host(&query)
        };
        let found = [lookup(RecordType::A), lookup(RecordType::AAAA)];
        let addresses: Vec<_> = found.iter().flatten().flat_map(addresses).collect();
        (!addresses.is_empty()).then_some(DnsAnswer {
            addresses,
            ttl: FILES_CHECK,
            is_partial: false,
        })
    }
}

/// A query for a name in a search domain that may be left out.
struct SearchQuery<'a> {
    setup: &'a Setup,
    domain: Name,
    since: Instant,
    has_ended: bool,
}

impl<'a> SearchQuery<'a> {
    fn new(setup: &'a Setup, domain: Name) -> Self {
        Self {
            setup,
            domain,
            since: Instant::now(),
            has_ended: false,
        }
    }

    fn end_answered(mut self) {
        self.has_ended = true;
        self.setup.silent.lock().on_answer(&self.domain);
    }

    /// No name server has answered. Returns whether the domain is left out from now on.
    fn end_silent(&mut self) -> bool {
        self.has_ended = true;
        let is_silent = (self.setup.silent.lock()).on_silence(&self.domain, Instant::now());
        if is_silent {
            tracing::warn!(
                domain = %self.domain,
                "no name server answers for names in this search domain: names with a dot are looked up without it for \
                 a minute"
            );
        }
        is_silent
    }
}

/// Whoever waits may have less time than a silent name server takes.
impl Drop for SearchQuery<'_> {
    fn drop(&mut self) {
        if !self.has_ended && self.since.elapsed() >= ANSWER_WAIT.0 {
            self.end_silent();
        }
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

/// The system's name servers, search list and options. Entries of the search list that are no names are left out, as
/// glibc does; hickory takes them for an error.
fn system() -> Result<(ResolverConfig, ResolverOpts), NetError> {
    system_conf::read_system_conf().or_else(|error| {
        let file = std::fs::read(FILES[0]).map_err(|_| error)?;
        system_conf::parse_resolv_conf(with_names_alone(&String::from_utf8_lossy(&file)))
    })
}

/// A resolv.conf without the entries of its search list that are no names.
fn with_names_alone(file: &str) -> String {
    let line = |line: &str| {
        let mut words = line.split_whitespace();
        match words.next() {
            Some(keyword @ ("search" | "domain")) => {
                let names = words.filter(|word| Name::from_str_relaxed(word).is_ok());
                let names: Vec<_> = names.collect();
                match names.is_empty() {
                    true => String::new(),
                    false => format!("{keyword} {}\n", names.join(" ")),
                }
            }
            _ => format!("{line}\n"),
        }
    };
    file.lines().map(line).collect()
}

/// A full name that a name may stand for.
struct Candidate {
    name: Name,
    /// The search domain, if it is left out while it is silent.
    domain: Option<Name>,
}

/// The full names that a name may stand for, in the order in which they are tried (resolv.conf(5)): a name with enough
/// dots is tried as it is first.
///
/// A domain is left out while it is silent only for a name with a dot, and if it is not one of the cluster's, where a
/// lost answer must not lead to another service.
fn candidates(name: &Name, search: &[Name], ndots: usize) -> Vec<Candidate> {
    let mut whole = name.clone();
    whole.set_fqdn(true);
    let whole = Candidate {
        name: whole,
        domain: None,
    };
    if name.is_fqdn() {
        return vec![whole];
    }
    let dots = usize::from(name.num_labels()).saturating_sub(1);
    // A candidate that is too long is left out.
    let found = search.iter().filter_map(|domain| {
        let mut found = name.clone().append_domain(domain).ok()?;
        found.set_fqdn(true);
        let may_be_left_out = dots > 0 && !is_of_cluster(domain, search);
        Some(Candidate {
            name: found,
            domain: may_be_left_out.then(|| domain.clone()),
        })
    });
    let mut names: Vec<_> = found.collect();
    names.insert(if dots >= ndots { 0 } else { names.len() }, whole);
    names
}

/// Whether a domain of a pod's search list is one of the cluster's: `svc.cluster.local` is in the list, whatever the
/// cluster's domain is.
fn is_of_cluster(domain: &Name, search: &[Name]) -> bool {
    let is_services = |one: &&Name| one.iter().next() == Some(b"svc");
    let mut roots = search.iter().filter(is_services).map(Name::base_name);
    roots.any(|root| root.zone_of(domain))
}

/// Queries both address families of a full name.
async fn query_one(resolver: &TokioResolver, name: Name) -> Result<DnsAnswer, LookUpError> {
    let mut asking_v4 = pin!(resolver.lookup(name.clone(), RecordType::A));
    let mut asking_v6 = pin!(resolver.lookup(name, RecordType::AAAA));
    let (v4, v6) = tokio::select! {
        v4 = &mut asking_v4 => {
            let v4 = found(v4);
            let v6 = other_family(&v4, asking_v6).await;
            (v4, v6)
        }
        v6 = &mut asking_v6 => {
            let v6 = found(v6);
            (other_family(&v6, asking_v4).await, v6)
        }
    };
    match (v4, v6) {
        (Ok(mut v4), Ok(v6)) => {
            v4.addresses.extend(v6.addresses);
            v4.ttl = v4.ttl.min(v6.ttl);
            Ok(v4)
        }
        // One family is enough; only an answer says that the other has none.
        (Ok(found), Err(error)) | (Err(error), Ok(found)) => Ok(DnsAnswer {
            is_partial: error != LookUpError::NotFound,
            ..found
        }),
        // Only two equal answers say that there is none.
        (Err(LookUpError::NotFound), Err(error)) | (Err(error), Err(_)) => Err(error),
    }
}

/// The answer for the second family, with a short wait if the first has addresses.
async fn other_family(
    first: &Result<DnsAnswer, LookUpError>,
    querying: impl Future<Output = Result<Lookup, NetError>>,
) -> Result<DnsAnswer, LookUpError> {
    if first.is_err() {
        return found(querying.await);
    }
    let answer = timeout(OTHER_FAMILY_WAIT, querying).await;
    answer.map_or(Err(LookUpError::TimedOut), found)
}

fn found(looked_up: Result<Lookup, NetError>) -> Result<DnsAnswer, LookUpError> {
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
    // The TTLs of aliases count too.
    let seconds = lookup.answers().iter().map(|record| record.ttl).min();
    Ok(DnsAnswer {
        addresses,
        ttl: Duration::from_secs(seconds.unwrap_or_default().into()),
        is_partial: false,
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
    use testkit::names::{NameServer, Reply};

    fn names(name: &str, ndots: usize) -> Vec<String> {
        let search: Vec<_> = ["ns.svc.cluster.local", "svc.cluster.local", "cluster.local"]
            .map(|domain| Name::from_ascii(domain).unwrap())
            .into();
        let name = Name::from_ascii(name).unwrap();
        let names = candidates(&name, &search, ndots);
        names.iter().map(|one| one.name.to_string()).collect()
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

    /// The resolver configuration of a pod.
    fn cluster(server: &NameServer) -> Setup {
        let text = "search ns.svc.cluster.local svc.cluster.local cluster.local\n\
                    nameserver 192.0.2.1\noptions ndots:5 timeout:1 attempts:1\n";
        let system = system_conf::parse_resolv_conf(text).unwrap();
        let mut hosts = Hosts::default();
        let text = "10.0.0.9 listed\nfd00::9 listed\n";
        hosts.read_hosts_conf(text.as_bytes()).unwrap();
        Setup::with(hosts, system, &[server.address()])
    }

    async fn query(setup: &Setup, name: &str) -> Result<(Vec<String>, u64), LookUpError> {
        let found = setup.query(name).await?;
        let addresses = found.addresses.iter().map(ToString::to_string);
        Ok((addresses.collect(), found.ttl.as_secs()))
    }

    #[tokio::test]
    async fn a_clusters_names_are_found_as_the_system_finds_them() {
        let server = NameServer::start().await;
        let setup = cluster(&server);
        server.set("app.ns.svc.cluster.local", &["10.0.0.1", "fd00::1"], 30);
        server.set("app.other.svc.cluster.local", &["10.0.0.2"], 5);
        server.set("api.example.test", &["192.0.2.7"], 600);
        let both = (vec!["10.0.0.1".to_owned(), "fd00::1".to_owned()], 30);
        assert_eq!(query(&setup, "app").await.unwrap(), both);
        assert_eq!(server.asked("app.ns.svc.cluster.local"), 1);
        assert_eq!(server.asked("app"), 0);
        for name in ["app.other", "app.other.svc", "app.other.svc.cluster.local."] {
            let found = query(&setup, name).await.unwrap();
            assert_eq!(found, (vec!["10.0.0.2".to_owned()], 5), "{name}");
        }
        let outside = query(&setup, "api.example.test").await.unwrap();
        assert_eq!(outside, (vec!["192.0.2.7".to_owned()], 600));
        assert_eq!(server.asked("api.example.test.ns.svc.cluster.local"), 1);
        assert_eq!(query(&setup, "nobody").await, Err(LookUpError::NotFound));
        // Names of container networks often have one.
        server.set("my_app", &["10.0.0.3"], 5);
        assert_eq!(query(&setup, "my_app").await.unwrap().0, ["10.0.0.3"]);
    }

    #[tokio::test]
    async fn the_hosts_file_comes_first() {
        let server = NameServer::start().await;
        let setup = cluster(&server);
        server.set("listed.ns.svc.cluster.local", &["10.0.0.1"], 30);
        let (addresses, _) = query(&setup, "listed").await.unwrap();
        assert_eq!(addresses, ["10.0.0.9", "fd00::9"]);
    }

    #[tokio::test]
    async fn an_answer_that_is_missing_is_no_answer() {
        let server = NameServer::start().await;
        let setup = cluster(&server);
        // Somebody else's, further down the list.
        server.set("app.cluster.local", &["10.6.6.6"], 30);
        server.set_reply("app.ns.svc.cluster.local", Reply::Silence);
        assert_eq!(query(&setup, "app").await, Err(LookUpError::TimedOut));
        // A server that fails is passed over, but what follows it does not mean "not there".
        server.set_reply("gone.ns.svc.cluster.local", Reply::Failure);
        let failed = query(&setup, "gone").await.unwrap_err();
        assert!(matches!(failed, LookUpError::Failed(_)), "{failed:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_search_domain_that_stays_silent_is_left_out() {
        let server = NameServer::start().await;
        let text = "search ns.svc.cluster.local svc.cluster.local cluster.local corp\n\
                    nameserver 192.0.2.1\noptions ndots:5 timeout:1 attempts:1\n";
        let system = system_conf::parse_resolv_conf(text).unwrap();
        let setup = Setup::with(Hosts::default(), system, &[server.address()]);
        server.set("api.example.test", &["192.0.2.7"], 600);
        server.set_reply("api.example.test.corp", Reply::Silence);
        let error = query(&setup, "api.example.test").await.unwrap_err();
        assert!(
            error.to_string().contains("api.example.test.corp."),
            "{error}"
        );
        for _ in 0..2 {
            let found = query(&setup, "api.example.test").await.unwrap();
            assert_eq!(found.0, ["192.0.2.7"]);
        }
        // The cluster's own domains, and names without a dot, are never looked up in part.
        server.set("a.b.cluster.local", &["10.6.6.6"], 600);
        server.set_reply("a.b.svc.cluster.local", Reply::Silence);
        server.set_reply("app.corp", Reply::Silence);
        // Who has less time than that notices it, too.
        server.set("api.example.org", &["192.0.2.8"], 600);
        server.set_reply("api.example.org.corp", Reply::Silence);
        let setup = Setup::with(
            Hosts::default(),
            system_conf::parse_resolv_conf(text).unwrap(),
            &[server.address()],
        );
        for _ in 0..2 {
            let hurried = timeout(ANSWER_WAIT.0, setup.query("api.example.org")).await;
            assert!(hurried.is_err());
        }
        let found = query(&setup, "api.example.org").await.unwrap();
        assert_eq!(found.0, ["192.0.2.8"]);
        for name in ["a.b", "app"] {
            for _ in 0..3 {
                let error = query(&setup, name).await;
                assert_eq!(error, Err(LookUpError::TimedOut), "{name}");
            }
        }
    }

    #[tokio::test]
    async fn what_is_odd_in_a_resolv_conf_is_read_as_glibc_reads_it() {
        let server = NameServer::start().await;
        server.set("app.example.test", &["10.0.0.1"], 5);
        let text = "search -bad..name example.test\nnameserver 192.0.2.1\noptions timeout:0\n";
        assert!(system_conf::parse_resolv_conf(text).is_err());
        let system = system_conf::parse_resolv_conf(with_names_alone(text)).unwrap();
        let setup = Setup::with(Hosts::default(), system, &[server.address()]);
        assert_eq!(query(&setup, "app").await.unwrap().0, ["10.0.0.1"]);
    }

    #[tokio::test]
    async fn an_answer_that_is_half_missing_says_so() {
        let server = NameServer::start().await;
        let setup = cluster(&server);
        let addresses = vec!["10.0.0.1".parse().unwrap(), "fd00::1".parse().unwrap()];
        let name = "app.ns.svc.cluster.local";
        server.set_reply(name, Reply::OnlyIpv6(addresses, 300));
        let found = setup.query("app").await.unwrap();
        assert!(found.is_partial);
        assert_eq!(found.addresses, ["fd00::1".parse::<IpAddr>().unwrap()]);
        server.set(name, &["fd00::1"], 300);
        assert!(
            !setup.query("app").await.unwrap().is_partial,
            "there is no other"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_server_that_drops_questions_for_ipv6_costs_little_time() {
        let server = NameServer::start().await;
        let setup = cluster(&server);
        let addresses = vec!["10.0.0.1".parse().unwrap()];
        server.set_reply(
            "app.ns.svc.cluster.local",
            Reply::SilentOnIpv6(addresses, 300),
        );
        let start = Instant::now();
        let found = setup.query("app").await.unwrap();
        assert!(
            start.elapsed() <= OTHER_FAMILY_WAIT,
            "{:?}",
            start.elapsed()
        );
        assert_eq!((found.addresses.len(), found.is_partial), (1, true));
    }

    #[test]
    fn a_last_dot_keeps_a_name_as_it_is() {
        assert_eq!(names("app.example.", 5), ["app.example."]);
    }
}
