//! Upstreams that say exactly what a script says, byte for byte, and may break every rule.
//!
//! A [`ScriptedUpstream`] hands each connection to the test's script as a [`RawConnection`]. Ready
//! scripts stand below; whatever they were sent is in the upstream's record.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use tokio::{net::TcpListener, task::JoinSet};

use crate::{
    entry::Entry,
    message::{Content, End, Head},
    raw::RawConnection,
    record::Record,
};

/// A listener on loopback that runs a script on each connection.
pub struct ScriptedUpstream {
    address: SocketAddr,
    record: Arc<Record<Seen>>,
    _accepting: JoinSet<()>,
}

/// What a script reports of its connection.
#[derive(Clone, Debug)]
pub enum Seen {
    /// A connection came.
    Connection,
    /// A request head came.
    Head(Head),
    /// A request's content came to its end, whichever that was.
    Content(Content),
    /// The connection ended, in this way.
    Ended(End),
    /// What a script of the test's own wants to say.
    Note(String),
}

/// A connection, and the record to report to.
pub struct Stage {
    /// The connection.
    pub connection: RawConnection,
    record: Arc<Record<Seen>>,
}

impl ScriptedUpstream {
    /// Listens on a free port and runs `script` for each connection; the connection ends when the
    /// script does.
    pub async fn start<F>(script: impl Fn(Stage) -> F + Send + 'static) -> Self
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let record = Arc::new(Record::default());
        let mut accepting = JoinSet::new();
        let reports = record.clone();
        accepting.spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((socket, _)) = listener.accept().await {
                socket.set_nodelay(true).unwrap();
                reports.push(Seen::Connection);
                let connection = RawConnection::new(socket);
                connections.spawn(script(Stage {
                    connection,
                    record: reports.clone(),
                }));
            }
        });
        Self {
            address,
            record,
            _accepting: accepting,
        }
    }

    /// Answers every request on a connection with these bytes, after its content was read.
    pub async fn answering(response: impl AsRef<[u8]> + Clone + Send + Sync + 'static) -> Self {
        Self::start(move |mut stage| {
            let response = response.clone();
            async move {
                while let Ok(head) = stage.head().await {
                    stage.content(&head).await;
                    stage.connection.write(&response).await;
                }
            }
        })
        .await
    }

    /// Answers the first request on a connection with these bytes, then closes it.
    pub async fn answering_once(
        response: impl AsRef<[u8]> + Clone + Send + Sync + 'static,
    ) -> Self {
        Self::start(move |mut stage| {
            let response = response.clone();
            async move {
                if let Ok(head) = stage.head().await {
                    stage.content(&head).await;
                    stage.connection.write(&response).await;
                }
            }
        })
        .await
    }

    /// Answers with these bytes as soon as a head is there, reading no content, and closes.
    pub async fn answering_early(
        response: impl AsRef<[u8]> + Clone + Send + Sync + 'static,
    ) -> Self {
        Self::start(move |mut stage| {
            let response = response.clone();
            async move {
                if stage.head().await.is_ok() {
                    stage.connection.write(&response).await;
                    stage.connection.finish().await;
                    stage.ended(Duration::from_secs(60)).await;
                }
            }
        })
        .await
    }

    /// Sends `100 Continue` to who expects it, then reads the content and answers `200`.
    pub async fn continuing() -> Self {
        Self::start(|mut stage| async move {
            while let Ok(head) = stage.head().await {
                if head.value("expect").is_some() {
                    stage
                        .connection
                        .write("HTTP/1.1 100 Continue\r\n\r\n")
                        .await;
                }
                stage.content(&head).await;
                stage
                    .connection
                    .write("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
                    .await;
            }
        })
        .await
    }

    /// Reads a head and never answers; records when the other side gives up.
    pub async fn silent() -> Self {
        Self::start(|mut stage| async move {
            if stage.head().await.is_ok() {
                stage.ended(Duration::from_secs(600)).await;
            }
        })
        .await
    }

    /// The address it listens on.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The address as a tunnel client's `--upstream` wants it.
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// The upstream without a tunnel before it.
    pub fn entry(&self) -> Entry {
        Entry::direct(self.address)
    }

    /// What the scripts reported.
    pub fn record(&self) -> &Record<Seen> {
        &self.record
    }

    /// The next request head after `mark` entries of the record.
    pub async fn wait_head(&self, mark: usize) -> Head {
        let limit = crate::deadline::SOON;
        let head = |seen: &Seen| match seen {
            Seen::Head(head) => Some(head.clone()),
            _ => None,
        };
        self.record
            .wait_for_after(mark, "a request at the upstream", limit, head)
            .await
    }

    /// The end of a connection that a script was waiting for.
    pub async fn wait_ended(&self, limit: Duration) -> End {
        let ended = |seen: &Seen| match seen {
            Seen::Ended(end) => Some(*end),
            _ => None,
        };
        self.record
            .wait_for("the upstream to see a hang-up", limit, ended)
            .await
    }

    /// The first content of a request, with its end.
    pub async fn wait_content(&self) -> Content {
        let content = |seen: &Seen| match seen {
            Seen::Content(content) => Some(content.clone()),
            _ => None,
        };
        self.record
            .wait_for("a content at the upstream", crate::deadline::SOON, content)
            .await
    }
}

impl Stage {
    /// Reads a request head; waits as long as the connection lasts, since a pooled connection may
    /// rest between requests.
    ///
    /// # Errors
    /// How the connection ended instead.
    pub async fn head(&mut self) -> Result<Head, End> {
        let head = self.connection.read_head_patiently().await?;
        self.record.push(Seen::Head(head.clone()));
        Ok(head)
    }

    /// Reads the content of the request with this head.
    pub async fn content(&mut self, head: &Head) -> Content {
        let content = self.connection.read_request_content(head).await;
        self.record.push(Seen::Content(content.clone()));
        content
    }

    /// Waits until the other side is gone.
    pub async fn ended(&mut self, limit: Duration) {
        let end = self.connection.wait_end(limit).await;
        self.record.push(Seen::Ended(end));
    }

    /// Says something to the test.
    pub fn note(&self, text: impl Into<String>) {
        self.record.push(Seen::Note(text.into()));
    }
}
