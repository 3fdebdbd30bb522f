//! Asks many runtimes in turn, by their hosts, over few connections.

use std::{
    cell::RefCell,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use futures_util::{StreamExt as _, stream};
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
    let template = target.template(Method::GET, None)?;
    let written = hosts.iter().map(|host| {
        let mut template = template.clone();
        template.headers.insert(HOST, host.clone());
        Written::new(&template, &[])
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
}

/// Sends each request once, over so many connections. Gives how many were answered, and what
/// failed; a connection that cannot be made counts as a failure of the request that it was for.
pub async fn once_each(
    public: SocketAddr,
    requests: Arc<[Written]>,
    connections: usize,
) -> (u64, Errors) {
    let client = &InTurn::new(public, requests);
    let resting = &RefCell::new(Vec::new());
    let ask = async |number| {
        let kept = resting.borrow_mut().pop();
        let mut connection = match kept {
            Some(connection) => connection,
            None => client.dialer.minimal().await?,
        };
        let moved = client.ask(&mut connection, number).await?;
        resting.borrow_mut().push(connection);
        Ok(moved)
    };
    let asked = stream::iter(0..client.requests.len()).map(|number| timeout(TIMEOUT, ask(number)));
    let (mut answered, mut errors) = (0, Errors::default());
    let mut asked = std::pin::pin!(asked.buffer_unordered(connections));
    while let Some(done) = asked.next().await {
        match done.unwrap_or_else(|_| Err(Failure::fatal(Kind::Timeout))) {
            Ok(_) => answered += 1,
            Err(failure) => errors.add(failure.kind, 1),
        }
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

    fn is_open(connection: &mut MinimalClient) -> bool {
        connection.is_open()
    }
}
