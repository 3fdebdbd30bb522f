//! Asks many runtimes in turn, by their hosts, over few connections.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use futures_util::future::join_all;
use http::{HeaderValue, Method, StatusCode, header::HOST};
use tokio::time::timeout;

use crate::{
    client::{
        Dialer,
        minimal::{MinimalClient, Written},
    },
    load::{Client, Moved},
    measure::errors::{Errors, Failure, Kind},
    target::{Manner, Target},
};

/// Longest time for one request of [`once_each`].
const TIMEOUT: Duration = Duration::from_secs(10);

/// Asks one host after another, over connections that stay.
#[derive(Debug)]
pub struct InTurn {
    dialer: Dialer,
    requests: Arc<[Written]>,
    next: AtomicUsize,
}

/// A small request for each of these hosts.
///
/// # Errors
/// The listener's address makes no URL.
pub async fn requests(public: SocketAddr, hosts: &[HeaderValue]) -> anyhow::Result<Arc<[Written]>> {
    let url = format!("http://{public}/").parse()?;
    let target = Target::at(&url, Some(public), &Manner::default()).await?;
    let endpoint = target.endpoint(Method::GET, None)?;
    let written = hosts.iter().map(|host| {
        let mut endpoint = endpoint.clone();
        endpoint.headers.insert(HOST, host.clone());
        Written::new(&endpoint, &[])
    });
    Ok(written.collect())
}

impl InTurn {
    /// Sends these requests, one after another and then from the first again, to this public
    /// listener.
    pub fn new(public: SocketAddr, requests: Arc<[Written]>) -> Self {
        Self {
            dialer: Dialer::new(vec![public], None),
            requests,
            next: AtomicUsize::new(0),
        }
    }

    async fn ask(&self, connection: &mut MinimalClient, number: usize) -> Result<Moved, Failure> {
        let Some(request) = self.requests.get(number % self.requests.len().max(1)) else {
            return Err(Failure::harmless(Kind::NotSent));
        };
        let answer = connection.exchange(request).await?;
        if answer.status != StatusCode::OK.as_u16() {
            return Err(Failure::harmless(Kind::Status(answer.status)));
        }
        Ok(Moved {
            up: 0,
            down: answer.length,
        })
    }

    /// The same over a connection that is made when it is needed.
    async fn ask_over(
        &self,
        connection: &mut Option<MinimalClient>,
        number: usize,
    ) -> Result<Moved, Failure> {
        if connection.as_mut().is_some_and(|open| !open.is_open()) {
            *connection = None;
        }
        let open = match connection.take() {
            Some(open) => open,
            None => self.dialer.minimal().await?,
        };
        self.ask(connection.insert(open), number).await
    }
}

/// Sends each request once, over so many connections. Gives how many were answered, and what
/// failed; a connection that cannot be made counts as a failure of the request that it was for.
pub async fn once_each(
    public: SocketAddr,
    requests: Arc<[Written]>,
    connections: usize,
) -> (u64, Errors) {
    let client = &InTurn::new(public, requests);
    let worker = async || {
        let mut connection = None;
        let (mut answered, mut errors) = (0, Errors::default());
        loop {
            let number = client.next.fetch_add(1, Relaxed);
            if number >= client.requests.len() {
                return (answered, errors);
            }
            let asked = timeout(TIMEOUT, client.ask_over(&mut connection, number)).await;
            match asked.unwrap_or_else(|_| Err(Failure::fatal(Kind::Timeout))) {
                Ok(_) => answered += 1,
                Err(failure) => errors.add(failure.kind, 1),
            }
        }
    };
    let (mut answered, mut errors) = (0, Errors::default());
    for (more, failed) in join_all((0..connections).map(|_| worker())).await {
        answered += more;
        errors.merge(&failed);
    }
    (answered, errors)
}

impl Client for InTurn {
    type Connection = MinimalClient;

    async fn connect(&self, _worker: usize) -> Result<MinimalClient, Failure> {
        self.dialer.minimal().await
    }

    async fn exchange(&self, connection: &mut MinimalClient) -> Result<Moved, Failure> {
        self.ask(connection, self.next.fetch_add(1, Relaxed)).await
    }

    async fn is_open(connection: &mut MinimalClient) -> bool {
        connection.is_open()
    }
}
