//! Upstreams that send exactly the bytes of a script, which may break every rule of HTTP.
//!
//! A [`ScriptedUpstream`] hands each connection to the test's script as a [`ScriptedConnection`].
//! Everything that the scripts read is in the upstream's record.

use std::{
    net::SocketAddr,
    ops::{Deref, DerefMut},
    sync::Arc,
    time::Duration,
};

use tokio::sync::{Mutex, mpsc};

use crate::{
    deadline::SOON,
    http1::{Content, End, Head, RawConnection},
    listener::Listener,
    record::Record,
};

/// A listener on loopback that runs a script on each connection.
pub struct ScriptedUpstream {
    listener: Listener,
    record: Arc<Record<ScriptEvent>>,
}

/// What a script reports of its connection.
#[derive(Clone, Debug)]
pub enum ScriptEvent {
    /// A connection came.
    Connection,
    /// A request head came.
    Head(Head),
    /// A request's content ended, completely or not.
    Content(Content),
    /// The connection ended.
    Ended(End),
    /// A note of the test's script, see [`ScriptedConnection::note`].
    Note(String),
}

/// A connection, and the record to report to.
pub struct ScriptedConnection {
    raw: RawConnection,
    record: Arc<Record<ScriptEvent>>,
    /// How many connections came before it.
    pub number: usize,
}

impl ScriptedUpstream {
    /// Listens on a free port and runs `script` for each connection; the connection ends when the
    /// script does.
    pub async fn start<F>(script: impl Fn(ScriptedConnection) -> F + Send + 'static) -> Self
    where
        F: Future<Output = ()> + Send + 'static,
    {
        Self::start_at("127.0.0.1:0".parse().unwrap(), script).await
    }

    /// Listens on this address.
    pub async fn start_at<F>(
        address: SocketAddr,
        script: impl Fn(ScriptedConnection) -> F + Send + 'static,
    ) -> Self
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let record = Arc::new(Record::default());
        let reports = record.clone();
        let mut numbers = 0..;
        let listener = Listener::at(address, move |socket| {
            reports.push(ScriptEvent::Connection);
            script(ScriptedConnection {
                raw: RawConnection::new(socket),
                record: reports.clone(),
                number: numbers.next().unwrap(),
            })
        });
        Self {
            listener: listener.await,
            record,
        }
    }

    /// Answers every request on a connection with these bytes, after its content was read.
    pub async fn answering(response: impl AsRef<[u8]> + Clone + Send + Sync + 'static) -> Self {
        Self::start(move |mut connection| {
            let response = response.clone();
            async move {
                while let Ok(head) = connection.head().await {
                    connection.content(&head).await;
                    connection.send(&response).await;
                }
            }
        })
        .await
    }

    /// Answers the first request on a connection with these bytes, then closes it.
    pub async fn answering_once(
        response: impl AsRef<[u8]> + Clone + Send + Sync + 'static,
    ) -> Self {
        Self::start(move |mut connection| {
            let response = response.clone();
            async move {
                if let Ok(head) = connection.head().await {
                    connection.content(&head).await;
                    connection.send(&response).await;
                }
            }
        })
        .await
    }

    /// Answers with these bytes as soon as a head is there, reading no content, and closes.
    pub async fn answering_early(
        response: impl AsRef<[u8]> + Clone + Send + Sync + 'static,
    ) -> Self {
        Self::start(move |mut connection| {
            let response = response.clone();
            async move {
                if connection.head().await.is_ok() {
                    connection.send(&response).await;
                    connection.finish().await;
                    connection.ended(Duration::from_secs(60)).await;
                }
            }
        })
        .await
    }

    /// Sends `100 Continue` if the request expects it, then reads the content and answers `200`.
    pub async fn continuing() -> Self {
        Self::start(|mut connection| async move {
            while let Ok(head) = connection.head().await {
                if head.value("expect").is_some() {
                    connection.send("HTTP/1.1 100 Continue\r\n\r\n").await;
                }
                connection.content(&head).await;
                connection
                    .send("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
                    .await;
            }
        })
        .await
    }

    /// Reads a head and never answers; records when the other side gives up.
    pub async fn silent() -> Self {
        Self::start(|mut connection| async move {
            if connection.head().await.is_ok() {
                connection.ended(Duration::from_secs(600)).await;
            }
        })
        .await
    }

    /// The address it listens on.
    pub fn address(&self) -> SocketAddr {
        self.listener.address
    }

    /// The address as a value of `--upstream`.
    pub fn url(&self) -> String {
        format!("http://{}", self.listener.address)
    }

    /// What the scripts reported.
    pub fn record(&self) -> &Record<ScriptEvent> {
        &self.record
    }

    /// How many connections have come.
    pub fn connections(&self) -> usize {
        let seen = self.record.all();
        let connections = seen
            .iter()
            .filter(|seen| matches!(seen, ScriptEvent::Connection));
        connections.count()
    }

    /// Waits until more than `count` connections have come.
    pub async fn more_connections(&self, count: usize) {
        let mut left = count;
        let next = |event: &ScriptEvent| {
            let is_last = matches!(event, ScriptEvent::Connection) && left == 0;
            left -= usize::from(matches!(event, ScriptEvent::Connection) && !is_last);
            is_last.then_some(())
        };
        self.record
            .wait_for("another connection at the upstream", SOON, next)
            .await;
    }

    /// The next request head after `mark` entries of the record.
    pub async fn wait_head(&self, mark: usize) -> Head {
        let head = |event: &ScriptEvent| match event {
            ScriptEvent::Head(head) => Some(head.clone()),
            _ => None,
        };
        self.record
            .wait_for_after(mark, "a request at the upstream", SOON, head)
            .await
    }

    /// The end of a connection that a script was waiting for.
    pub async fn wait_ended(&self, limit: Duration) -> End {
        let ended = |event: &ScriptEvent| match event {
            ScriptEvent::Ended(end) => Some(*end),
            _ => None,
        };
        self.record
            .wait_for("the upstream to see a hang-up", limit, ended)
            .await
    }

    /// The first content of a request, with its end.
    pub async fn wait_content(&self) -> Content {
        let content = |event: &ScriptEvent| match event {
            ScriptEvent::Content(content) => Some(content.clone()),
            _ => None,
        };
        self.record
            .wait_for("a content at the upstream", SOON, content)
            .await
    }
}

/// An upstream that reports each request, and answers it when the test says so.
pub async fn slow() -> (ScriptedUpstream, mpsc::Receiver<()>, mpsc::Sender<()>) {
    let (asked_in, asked) = mpsc::channel(8);
    let (answer, answers) = mpsc::channel::<()>(8);
    let answers = Arc::new(Mutex::new(answers));
    let upstream = ScriptedUpstream::start(move |mut connection| {
        let (asked_in, answers) = (asked_in.clone(), answers.clone());
        async move {
            connection.head().await.unwrap();
            asked_in.send(()).await.unwrap();
            answers.lock().await.recv().await;
            connection
                .send("HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nlate")
                .await;
        }
    })
    .await;
    (upstream, asked, answer)
}

impl ScriptedConnection {
    /// Reads a request head; waits as long as the connection lasts, since a pooled connection may
    /// rest between requests.
    ///
    /// # Errors
    /// How the connection ended instead.
    pub async fn head(&mut self) -> Result<Head, End> {
        let head = self.raw.unbounded_head().await?;
        self.record.push(ScriptEvent::Head(head.clone()));
        Ok(head)
    }

    /// Reads the content of the request with this head.
    pub async fn content(&mut self, head: &Head) -> Content {
        let content = self.raw.content(head.request_framing()).await;
        self.record.push(ScriptEvent::Content(content.clone()));
        content
    }

    /// Waits until the other side is gone.
    pub async fn ended(&mut self, limit: Duration) {
        let end = self.raw.wait_end(limit).await;
        self.record.push(ScriptEvent::Ended(end));
    }

    /// The connection without its record: what the test reads from it is not recorded.
    pub fn into_raw(self) -> RawConnection {
        self.raw
    }

    /// Adds a note to the record, for the test.
    pub fn note(&self, text: impl Into<String>) {
        self.record.push(ScriptEvent::Note(text.into()));
    }
}

impl Deref for ScriptedConnection {
    type Target = RawConnection;

    fn deref(&self) -> &RawConnection {
        &self.raw
    }
}

impl DerefMut for ScriptedConnection {
    fn deref_mut(&mut self) -> &mut RawConnection {
        &mut self.raw
    }
}
