//! Certificates that the server gets and renews by ACME (RFC 8555), a certificate for each name.
//!
//! ```text
//!   store: folder or etcd ─▶ Acme: names with certificates ─▶ resolver ─▶ handshakes of the listeners
//!         ▲                    │ due (schedule), with the lock
//!         └──── certificate ── order: account, hook or handshake ◀──▶ ACME server
//! ```
//!
//! One task orders for all names, one after the other. With etcd each node follows what the others store, and answers the
//! ACME server's handshakes for all.

mod hook;
mod http;
mod names;
mod order;
mod resolver;
mod schedule;
mod store;

use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use tokio::{
    sync::{Notify, watch},
    time::sleep,
};
use tokio_rustls::rustls::server::ResolvesServerCert;
use tunnel_etcd::Client;
use tunnel_ops::https::HttpsClient;
use tunnel_ops::{
    task::Owned,
    tls_files::{ServerCertificate, TlsFilesError},
};

use self::{
    http::AcmeHttp,
    names::{Names, Stored, share},
    order::{OrderError, Orders},
    resolver::Resolver,
    store::{Change, EtcdStore, FolderStore, Key, Lock, Store, StoreError},
};
pub(crate) use self::{names::NameState, resolver::ALPN};
use crate::{
    config::{AcmeName, AcmeSettings, Config},
    events::{Event, EventKind},
    metrics::Metrics,
};

/// Time for one answer of the ACME server.
const ANSWER_TIME: Duration = Duration::from_secs(30);

/// Longest time between two looks at what is due, so that a clock that was set is noticed.
const LOOK_EACH: Duration = Duration::from_secs(10 * 60);

/// Time until a node that found the lock taken looks again.
const LOCKED_PAUSE: Duration = Duration::from_secs(15);

/// Time until etcd is followed again after a failure.
const FOLLOW_PAUSE: Duration = Duration::from_secs(1);

/// Time between two questions when a certificate is to be renewed, unless the ACME server says.
const WINDOW_EACH: Duration = Duration::from_secs(6 * 60 * 60);

/// Bounds of the time that the ACME server says.
const WINDOW_LEAST: Duration = Duration::from_secs(60 * 60);
const WINDOW_MOST: Duration = Duration::from_secs(24 * 60 * 60);

/// The certificates, and what orders them.
pub(crate) struct Acme {
    settings: ArcSwap<AcmeSettings>,
    store: Store,
    https: HttpsClient,
    resolver: Arc<Resolver>,
    names: Mutex<Names>,
    /// The listeners that show them.
    listeners: Vec<&'static str>,
    metrics: Arc<Metrics>,
    events: Arc<crate::events::Events>,
    /// Names or certificates have changed.
    changed: Notify,
    stop: Stop,
}

/// The request to order nothing more.
struct Stop(watch::Sender<bool>);

/// The tasks of [`Acme`], which end when this is dropped.
pub(crate) struct AcmeTasks {
    ordering: Owned<()>,
    _following: Option<Owned<()>>,
}

impl Stop {
    /// Resolves once it is requested.
    async fn requested(&self) {
        let mut stop = self.0.subscribe();
        // The sender is in `self`.
        let _ = stop.wait_for(|is_requested| *is_requested).await;
    }
}

impl AcmeTasks {
    /// Resolves when what proves a name was removed, after [`Acme::stop`].
    pub(crate) async fn ended(self) {
        if let Err(error) = self.ordering.await {
            tracing::error!(%error, "the orders of certificates have ended");
        }
    }
}

impl Acme {
    /// The certificates of this configuration, none of which is read yet; `None` if it has no ACME server. `etcd` is where
    /// several nodes share them.
    ///
    /// # Errors
    /// When the CA file cannot be used.
    pub(crate) fn new(
        config: &Config,
        etcd: Option<Client>,
        metrics: Arc<Metrics>,
        events: Arc<crate::events::Events>,
    ) -> Result<Option<Arc<Self>>, TlsFilesError> {
        let Some(settings) = &config.acme else {
            return Ok(None);
        };
        let server = server_name(&settings.directory);
        let store = match (etcd, &config.shared_directory) {
            (Some(client), Some(shared)) => {
                let prefix = &config.settings.etcd_prefix;
                let node = shared.node.to_string();
                Store::Etcd(EtcdStore::new(client, prefix, &server, node))
            }
            _ => {
                let folder = settings.folder.clone().unwrap_or_default();
                Store::Folder(FolderStore::new(&folder, &server))
            }
        };
        let is_plain = !config.settings.tunnel_tls;
        let others = [
            ("tunnel", is_plain || config.tunnel_tls.is_some()),
            ("public", config.public_tls.is_some()),
        ];
        let listeners = others.into_iter().filter(|(_, is_other)| !is_other);
        Ok(Some(Arc::new(Self {
            https: HttpsClient::new(settings.ca_file.as_deref(), ANSWER_TIME)?,
            store,
            resolver: Resolver::new(),
            names: Mutex::new(Names::new(&settings.names)),
            listeners: listeners.map(|(listener, _)| listener).collect(),
            settings: ArcSwap::from_pointee(settings.clone()),
            metrics,
            events,
            changed: Notify::new(),
            stop: Stop(watch::Sender::new(false)),
        })))
    }

    /// What the listeners show.
    pub(crate) fn certificate(&self) -> ServerCertificate {
        let resolver: Arc<dyn ResolvesServerCert> = self.resolver.clone();
        ServerCertificate::Resolved(resolver)
    }

    /// Uses these settings from now on. If they have changed, what has failed is tried again at once.
    pub(crate) fn set(&self, settings: &AcmeSettings) {
        if **self.settings.load() == *settings {
            return;
        }
        self.settings.store(Arc::new(settings.clone()));
        self.names.lock().set(&settings.names);
        self.show();
        self.changed.notify_one();
    }

    /// The names and their certificates.
    pub(crate) fn states(&self) -> Vec<NameState> {
        self.names.lock().states()
    }

    /// A name without a valid certificate that is proven without this server; `None` if there is none. The ACME server has
    /// to reach a server that proves a name itself, so that this one is ready without.
    pub(crate) fn missing(&self) -> Option<AcmeName> {
        let settings = self.settings.load();
        let is_awaited =
            |name: &AcmeName| settings.challenge_of(name) == crate::config::AcmeChallenge::Dns;
        let names = self.names.lock();
        names
            .invalid(SystemTime::now())
            .find(|name| is_awaited(name))
            .cloned()
    }

    /// Reads the certificates that are stored, before the listeners need them.
    pub(crate) async fn load(&self) {
        let names = self.names.lock().all();
        for name in names {
            if let Err(error) = self.read(&name).await {
                tracing::error!(%name, %error, "the stored certificate cannot be read");
            }
        }
        let names = self.names.lock();
        for name in names.invalid(SystemTime::now()) {
            tracing::warn!(%name, "there is no valid certificate yet: TLS handshakes fail until there is one");
        }
    }

    /// Starts its tasks, which end when the result is dropped.
    pub(crate) fn start(self: &Arc<Self>) -> AcmeTasks {
        let is_shared = self.store.etcd().is_some();
        AcmeTasks {
            ordering: Owned::spawn("acme", keep(self.clone())),
            _following: is_shared.then(|| Owned::spawn("acme-follow", follow(self.clone()))),
        }
    }

    /// Orders nothing more, and gives up an order. What proves a name is still removed, see [`AcmeTasks::ended`].
    pub(crate) fn stop(&self) {
        self.stop.0.send_replace(true);
    }

    /// Takes over what is stored for a name.
    async fn read(&self, name: &AcmeName) -> Result<(), StoreError> {
        if let Some(text) = self.store.get(Key::Certificate(name)).await? {
            self.take(name, &text);
        }
        Ok(())
    }

    /// Takes over a certificate with its key, unless there is a newer one.
    fn take(&self, name: &AcmeName, text: &str) {
        let stored = match Stored::parse(text) {
            Ok(stored) => stored,
            Err(error) => {
                tracing::error!(%name, %error, "a stored certificate cannot be used");
                return;
            }
        };
        if self.names.lock().take(name, stored) {
            tracing::info!(%name, "a certificate is in use");
            self.show();
            self.changed.notify_one();
        }
    }

    /// Has listeners and metrics show what there is.
    fn show(&self) {
        let names = self.names.lock();
        self.resolver.show(names.identities());
        let first_end = names.first_end();
        for listener in &self.listeners {
            self.metrics.set_certificate_expiry(listener, first_end);
        }
    }

    /// Orders what is due. Returns when to look again.
    async fn round(&self) -> SystemTime {
        let names = self.names.lock().all();
        for name in names {
            if *self.stop.0.borrow() {
                break;
            }
            if self.names.lock().is_due(&name, SystemTime::now()) {
                Box::pin(self.renew(&name)).await;
            } else if self.names.lock().wants_window(&name, SystemTime::now()) {
                tokio::select! {
                    () = Box::pin(self.ask_window(&name)) => {}
                    () = self.stop.requested() => break,
                }
            }
        }
        let next = self.names.lock().next(SystemTime::now());
        next.min(SystemTime::now() + LOOK_EACH)
    }

    /// Orders a certificate for this name, unless another node or process does.
    async fn renew(&self, name: &AcmeName) {
        let lock = match self.store.lock().await {
            Ok(Some(lock)) => lock,
            Ok(None) => {
                tracing::debug!(%name, "another server orders");
                let pause = LOCKED_PAUSE + LOCKED_PAUSE.mul_f64(share());
                return self.names.lock().wait(name, SystemTime::now() + pause);
            }
            Err(error) => return self.on_failure(name, &error.into(), None),
        };
        let http = AcmeHttp::new(self.https.clone());
        let result = self.order(name, &http, &lock).await;
        lock.release().await;
        match result {
            Ok(()) | Err(OrderError::Stopped) => {}
            Err(error) => {
                let retry_at = match error {
                    // Another one would be no better.
                    OrderError::OutOfTime(_) => Some(SystemTime::now() + schedule::LONGEST_PAUSE),
                    _ => http.retry_at(),
                };
                self.on_failure(name, &error, retry_at);
            }
        }
    }

    async fn order(&self, name: &AcmeName, http: &AcmeHttp, lock: &Lock) -> Result<(), OrderError> {
        // Another server may have been faster.
        self.read(name).await?;
        if !self.names.lock().is_due(name, SystemTime::now()) {
            return Ok(());
        }
        let mut orders = self.last_orders(name).await?;
        let now = SystemTime::now();
        let allowed = schedule::next_allowed(&orders, now);
        if allowed > now {
            tracing::warn!(
                %name, at = %humantime::format_rfc3339_seconds(allowed),
                "many orders of this name: the next one waits, since ACME servers limit them"
            );
            self.names.lock().wait(name, allowed);
            return Ok(());
        }
        let settings = self.settings.load_full();
        let ordering = Orders {
            stop: &self.stop,
            settings: &settings,
            store: &self.store,
            resolver: &self.resolver,
            http,
        };
        let account = tokio::select! {
            account = ordering.account() => account?,
            () = lock.lost() => return Err(OrderError::LockLost),
            () = self.stop.requested() => return Err(OrderError::Stopped),
        };
        orders.push(now);
        self.store.put(Key::Orders(name), lines(&orders)).await?;
        let replaced = self.names.lock().replaced(name);
        let mut proofs = Vec::new();
        let ordered = ordering.certificate(&account, name, replaced, lock, &mut proofs);
        // In use and stored before the name's proof is removed, which may take minutes and is cut by a stop.
        let result = match ordered.await {
            Ok(text) => self.keep_certificate(name, text).await,
            Err(error) => Err(error),
        };
        ordering.remove(proofs, lock).await;
        result
    }

    /// Stores a certificate that was obtained, and puts it in use.
    async fn keep_certificate(&self, name: &AcmeName, text: String) -> Result<(), OrderError> {
        Stored::parse(&text).map_err(OrderError::Certificate)?;
        self.store.put(Key::Certificate(name), text.clone()).await?;
        self.take(name, &text);
        let names = self.names.lock();
        let validity = names.validity(name);
        if let Some(validity) = validity.filter(|_| names.is_due(name, SystemTime::now())) {
            return Err(OrderError::OutOfTime(validity));
        }
        drop(names);
        self.metrics.on_acme_order(true);
        let event = Event::new(EventKind::Certificate);
        self.events.report(event.detail(name.to_string()));
        tracing::info!(%name, "a certificate was obtained");
        Ok(())
    }

    /// The times of the last orders of a name, by whatever server.
    async fn last_orders(&self, name: &AcmeName) -> Result<Vec<SystemTime>, StoreError> {
        let text = self.store.get(Key::Orders(name)).await?;
        let seconds = text.iter().flat_map(|text| text.lines());
        let times = seconds.filter_map(|line| {
            let seconds = Duration::from_secs(line.trim().parse().ok()?);
            SystemTime::UNIX_EPOCH.checked_add(seconds)
        });
        let mut orders = times.collect();
        schedule::forget_old(&mut orders, SystemTime::now());
        Ok(orders)
    }

    fn on_failure(&self, name: &AcmeName, error: &OrderError, retry_at: Option<SystemTime>) {
        let at = self
            .names
            .lock()
            .on_failure(name, &error.to_string(), retry_at);
        self.metrics.on_acme_order(false);
        let event = Event::new(EventKind::Certificate).reason("failed");
        self.events.report(event.detail(format!("{name}: {error}")));
        tracing::error!(
            %name, %error, again = %humantime::format_rfc3339_seconds(at),
            "no certificate was obtained, trying again"
        );
    }

    /// Asks the ACME server when the certificate is to be renewed (RFC 9773).
    async fn ask_window(&self, name: &AcmeName) {
        let settings = self.settings.load_full();
        let http = AcmeHttp::new(self.https.clone());
        let ordering = Orders {
            stop: &self.stop,
            settings: &settings,
            store: &self.store,
            resolver: &self.resolver,
            http: &http,
        };
        let id = self.names.lock().replaced(name);
        let asked = async {
            let account = ordering.known_account().await?;
            Ok::<_, OrderError>(match id.as_ref().zip(account) {
                Some((id, account)) => Some(account.renewal_info(id).await?),
                None => None,
            })
        };
        let (window, pause) = match asked.await {
            Ok(Some((info, pause))) => {
                let window = schedule::RenewalWindow {
                    start: info.suggested_window.start.into(),
                    end: info.suggested_window.end.into(),
                };
                (Some(window), pause.clamp(WINDOW_LEAST, WINDOW_MOST))
            }
            Ok(None) => (None, WINDOW_EACH),
            Err(error) => {
                tracing::debug!(%name, %error, "no renewal information");
                (None, WINDOW_EACH)
            }
        };
        self.names.lock().on_window(name, window, pause);
    }
}

/// Orders and renews until it is stopped.
async fn keep(acme: Arc<Acme>) {
    loop {
        let next = acme.round().await;
        let wait = next.duration_since(SystemTime::now()).unwrap_or_default();
        tokio::select! {
            biased;
            () = acme.stop.requested() => return,
            () = sleep(wait) => {}
            () = acme.changed.notified() => {}
        }
    }
}

/// Takes over what other nodes store until it is dropped.
async fn follow(acme: Arc<Acme>) {
    let apply = |change| match change {
        Change::Certificate(name, text) => acme.take(&name, &text),
        Change::Challenge(host, Some(digest)) => {
            if let Err(error) = acme.resolver.set_challenge(&host, &digest) {
                tracing::error!(host, %error, "cannot answer the ACME server for another node");
            }
        }
        Change::Challenge(host, None) => acme.resolver.remove_challenge(&host),
    };
    while let Some(etcd) = acme.store.etcd() {
        if let Err(error) = etcd.follow(apply).await {
            tracing::debug!(%error, "cannot follow the certificates in etcd");
        }
        sleep(FOLLOW_PAUSE).await;
    }
}

/// The ACME server in the name of a folder and of keys: host, port and path of its directory.
fn server_name(directory: &str) -> String {
    let (_, place) = directory.split_once("://").unwrap_or(("", directory));
    let plain = |letter: char| match letter {
        'a'..='z' | 'A'..='Z' | '0'..='9' | '.' | '-' => letter,
        _ => '_',
    };
    place.chars().map(plain).collect()
}

fn lines(times: &[SystemTime]) -> String {
    let seconds = times.iter().map(|time| {
        let since = time.duration_since(SystemTime::UNIX_EPOCH);
        format!("{}\n", since.unwrap_or_default().as_secs())
    });
    seconds.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_acme_server_has_a_place_of_its_own() {
        for (url, name) in [
            ("https://ca.example/directory", "ca.example_directory"),
            (
                "https://localhost:14000/a/../b?c",
                "localhost_14000_a_.._b_c",
            ),
        ] {
            assert_eq!(server_name(url), name);
        }
    }
}
