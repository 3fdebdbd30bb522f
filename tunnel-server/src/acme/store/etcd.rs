//! Keys in etcd, which all nodes watch.

use std::future::ready;
use std::time::Duration;

use base64::prelude::{BASE64_STANDARD, Engine};
use bytes::Bytes;
use tokio::time::{Instant, sleep};
use tunnel_etcd::{
    Client, Compare, EtcdError, Followed, KeyValue, Lease, RangeRequest, RequestOp, TxnRequest,
    prefix_end,
};

use super::{Key, StoreError};
use crate::{acme::resolver::Digest, config::AcmeName};

/// Life of the lock without renewal: a node that has died keeps others from ordering for so long.
const TTL: Duration = Duration::from_secs(30);

/// Time that the watches of other nodes may take to show a change.
const SPREAD: Duration = Duration::from_secs(1);

/// The keys of one ACME server.
#[derive(Debug)]
pub(in super::super) struct EtcdStore {
    client: Client,
    /// What its keys begin with.
    prefix: String,
    node: String,
}

/// The lock's lease, which challenges end with, too.
#[derive(Debug)]
pub(in super::super) struct EtcdLock {
    client: Client,
    prefix: String,
    lease: Lease,
}

/// A change that a node has made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in super::super) enum Change {
    /// A certificate with its key was stored.
    Certificate(AcmeName, String),
    /// The ACME server's handshakes for this host are to be answered by this; by nothing, if it is `None`.
    Challenge(String, Option<Digest>),
}

impl EtcdStore {
    /// The keys of this ACME server below the prefix of all keys.
    pub(in super::super) fn new(client: Client, prefix: &str, server: &str, node: String) -> Self {
        Self {
            client,
            prefix: format!("{prefix}acme/{server}/"),
            node,
        }
    }

    fn key(&self, key: Key<'_>) -> String {
        let prefix = &self.prefix;
        match key {
            Key::Account => format!("{prefix}account"),
            Key::Certificate(name) => format!("{prefix}certificate/{name}"),
            Key::Orders(name) => format!("{prefix}orders/{name}"),
        }
    }

    pub(super) async fn get(&self, key: Key<'_>) -> Result<Option<String>, StoreError> {
        let key = self.key(key);
        let request = RangeRequest {
            key: key.clone().into(),
            ..RangeRequest::default()
        };
        let read = self.client.range(request).await?;
        let text = read.kvs.into_iter().next().map(|kv| kv.value.to_vec());
        let text = text.map(String::from_utf8).transpose();
        text.map_err(|_| StoreError::NoText(key))
    }

    pub(super) async fn put(&self, key: Key<'_>, text: String) -> Result<(), StoreError> {
        let put = TxnRequest {
            success: vec![RequestOp::put(self.key(key), text, 0)],
            ..TxnRequest::default()
        };
        self.client.txn(put).await?;
        Ok(())
    }

    pub(super) async fn lock(&self) -> Result<Option<EtcdLock>, StoreError> {
        let lease = self.client.grant(TTL).await?;
        let key = format!("{}lock", self.prefix);
        let take = TxnRequest {
            compare: vec![Compare::mod_revision(key.clone(), 0)],
            success: vec![RequestOp::put(key, self.node.clone(), lease.id)],
            ..TxnRequest::default()
        };
        let lock = EtcdLock {
            client: self.client.clone(),
            prefix: self.prefix.clone(),
            lease,
        };
        match self.client.txn(take).await {
            Ok(taken) if taken.succeeded => Ok(Some(lock)),
            Ok(_) => {
                lock.release().await;
                Ok(None)
            }
            Err(error) => {
                // It may have been taken.
                lock.release().await;
                Err(error.into())
            }
        }
    }

    /// Tells all that is stored, and then what nodes change.
    ///
    /// # Errors
    /// When etcd does not answer any more: call it again.
    pub(in super::super) async fn follow(
        &self,
        mut on_change: impl FnMut(Change),
    ) -> Result<(), EtcdError> {
        let prefix = Bytes::from(self.prefix.clone());
        let end = prefix_end(self.prefix.as_bytes());
        let mut told = |kv: &KeyValue, is_delete| {
            if let Some(change) = self.change(kv, is_delete) {
                on_change(change);
            }
        };
        let tell = |followed| {
            match followed {
                Followed::Listed { keys, .. } => keys.iter().for_each(|kv| told(kv, false)),
                Followed::Changed { events, .. } => {
                    for event in &events {
                        if let Some(kv) = &event.kv {
                            told(kv, event.is_delete());
                        }
                    }
                }
            }
            ready(())
        };
        self.client.follow((prefix, end), tell).await
    }

    /// What a key that was written or deleted says; `None` for one that concerns no other node, or is not known.
    fn change(&self, kv: &KeyValue, is_delete: bool) -> Option<Change> {
        let key = std::str::from_utf8(&kv.key).ok()?;
        let (kind, name) = key.strip_prefix(&self.prefix)?.split_once('/')?;
        match kind {
            "certificate" if !is_delete => {
                let text = String::from_utf8(kv.value.to_vec()).ok()?;
                Some(Change::Certificate(name.parse().ok()?, text))
            }
            "challenge" => {
                let digest = match is_delete {
                    true => None,
                    false => Some(BASE64_STANDARD.decode(&kv.value).ok()?.try_into().ok()?),
                };
                Some(Change::Challenge(name.to_owned(), digest))
            }
            _ => None,
        }
    }
}

impl EtcdLock {
    /// Renews the lease until that fails for as long as it lives.
    pub(super) async fn lost(&self) {
        let mut renewed = Instant::now();
        loop {
            sleep(TTL / 6).await;
            let sent = Instant::now();
            match self.client.keep_alive(self.lease.id).await {
                Ok(_) => renewed = sent,
                Err(EtcdError::LeaseEnded) => return,
                Err(_) if renewed.elapsed() > TTL * 2 / 3 => return,
                Err(error) => tracing::debug!(%error, "cannot renew the lock for orders"),
            }
        }
    }

    pub(super) async fn share_challenge(
        &self,
        host: &str,
        digest: &Digest,
    ) -> Result<Duration, EtcdError> {
        let key = format!("{}challenge/{host}", self.prefix);
        let put = TxnRequest {
            success: vec![RequestOp::put(
                key,
                BASE64_STANDARD.encode(digest),
                self.lease.id,
            )],
            ..TxnRequest::default()
        };
        self.client.txn(put).await?;
        Ok(SPREAD)
    }

    /// Lets other nodes order. If etcd does not answer, they wait for the end of the lease.
    pub(super) async fn release(self) {
        if let Err(error) = self.client.revoke(self.lease.id).await {
            tracing::debug!(%error, "cannot release the lock for orders");
        }
    }
}
