//! Short exchanges of a load: GET on a kept connection, POST on a new one.

use http::{Request, Response, header};
use http_body_util::{BodyExt, Full};
use hyper::{body::Incoming, client::conn::http1};
use hyper_util::rt::TokioIo;
use tokio::{net::TcpStream, task::JoinSet};

use super::{End, Worker, within_time_limit};
use crate::{
    entry::Entry,
    payload::Payload,
    platform::{Body, empty},
    upstream::{Echo, Received},
};

/// Content of a POST, in bytes: more than one frame of the multiplexer.
const CONTENT: u64 = 20_000;

/// One HTTP/1.1 connection.
pub(super) struct Connection {
    sender: http1::SendRequest<Body>,
    /// The entry that it leads to.
    authority: String,
    _driver: JoinSet<()>,
}

impl Connection {
    pub(super) async fn open(entry: &Entry) -> Result<Self, String> {
        let io = TokioIo::new(dial(entry).await?);
        let handshake = http1::handshake(io).await;
        let (sender, connection) = handshake.map_err(|error| format!("{error:?}"))?;
        let mut driver = JoinSet::new();
        driver.spawn(async move { drop(connection.await) });
        Ok(Self {
            sender,
            authority: entry.authority().to_owned(),
            _driver: driver,
        })
    }

    /// Sends a request and returns the head of the response.
    pub(super) async fn send(
        &mut self,
        mut request: Request<Body>,
    ) -> Result<Response<Incoming>, Unanswered> {
        let host = self.authority.parse().unwrap();
        request.headers_mut().insert(header::HOST, host);
        if self.sender.ready().await.is_err() {
            return Err(Unanswered::NotSent);
        }
        let sent = self.sender.try_send_request(request).await;
        sent.map_err(|mut error| match error.take_message() {
            // It comes back only where nothing of it was written.
            Some(_) => Unanswered::NotSent,
            None => Unanswered::Lost(format!("{:?}", error.into_error())),
        })
    }
}

/// Why a request has no answer.
#[derive(Debug)]
pub(super) enum Unanswered {
    /// The connection was closed before; nothing of the request was sent.
    NotSent,
    /// It was sent, or a part of it; the error.
    Lost(String),
}

impl Unanswered {
    /// On a connection that was opened for this request.
    pub(super) fn on_new_connection(self) -> String {
        match self {
            Self::NotSent => "a new connection was closed before the request".to_owned(),
            Self::Lost(what) => what,
        }
    }
}

/// A TCP connection to a plain entry.
pub(super) async fn dial(entry: &Entry) -> Result<TcpStream, String> {
    let socket = TcpStream::connect(entry.address()).await;
    let socket = socket.map_err(|error| format!("connecting: {error}"))?;
    socket.set_nodelay(true).unwrap();
    Ok(socket)
}

pub(super) async fn get(worker: &mut Worker, kept: &mut Option<Connection>, entry: &Entry) -> End {
    let target = format!("/load?{}", worker.text());
    let answer = within_time_limit(async {
        let reusable = kept
            .as_mut()
            .filter(|kept| kept.authority == entry.authority());
        let sent = match reusable {
            Some(connection) => connection.send(get_of(&target)).await,
            None => {
                let connection = kept.insert(Connection::open(entry).await?);
                let sent = connection.send(get_of(&target)).await;
                return whole(sent.map_err(Unanswered::on_new_connection)?).await;
            }
        };
        let response = match sent {
            Ok(response) => response,
            Err(Unanswered::Lost(what)) => return Err(what),
            Err(Unanswered::NotSent) => {
                // A server may close an idle connection; the request is then sent on a new one, as every client
                // does.
                worker.again();
                let connection = kept.insert(Connection::open(entry).await?);
                let sent = connection.send(get_of(&target)).await;
                sent.map_err(Unanswered::on_new_connection)?
            }
        };
        whole(response).await
    });
    let answer = answer.await;
    let seen = answer.and_then(|body| {
        let echo: Echo = serde_json::from_slice(&body).map_err(|error| error.to_string())?;
        Ok(echo.head.target)
    });
    match seen {
        Ok(seen) if seen == target => {
            worker.tick();
            End::Whole
        }
        Ok(seen) => End::Failed(format!("asked for {target}, answered was {seen}")),
        Err(what) => {
            *kept = None;
            End::Failed(what)
        }
    }
}

fn get_of(target: &str) -> Request<Body> {
    Request::get(target).body(empty()).unwrap()
}

pub(super) async fn post(worker: &mut Worker, entry: &Entry) -> End {
    let payload = Payload::new(CONTENT + worker.last.elapsed().as_micros() as u64 % 100);
    let content = payload.to_bytes();
    let answer = within_time_limit(async {
        let body = Full::new(content).boxed_unsync();
        let request = Request::post("/upload").body(body).unwrap();
        let mut connection = Connection::open(entry).await?;
        let response = connection.send(request).await;
        whole(response.map_err(Unanswered::on_new_connection)?).await
    });
    let received = answer.await.and_then(|body| {
        serde_json::from_slice::<Received>(&body).map_err(|error| error.to_string())
    });
    match received {
        Ok(received) if received.sha256 == payload.sha256() => {
            worker.tick();
            End::Whole
        }
        Ok(received) => End::Failed(format!("other content arrived: {received:?}")),
        Err(what) => End::Failed(what),
    }
}

/// The content of an answer that must be a 200 and whole.
async fn whole(response: Response<Incoming>) -> Result<bytes::Bytes, String> {
    let (head, body) = response.into_parts();
    let body = body.collect().await;
    let body = body.map_err(|error| format!("{} and then {error:?}", head.status))?;
    let body = body.to_bytes();
    if head.status == 200 {
        Ok(body)
    } else {
        Err(format!(
            "{} {}",
            head.status,
            String::from_utf8_lossy(&body)
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        deadline::{SOON, eventually},
        scripted::ScriptedUpstream,
    };

    /// A connection on which one request was answered.
    async fn kept(upstream: &ScriptedUpstream) -> Connection {
        let mut connection = Connection::open(&Entry::direct(upstream.address()))
            .await
            .unwrap();
        let answer = connection.send(get_of("/first")).await.unwrap();
        assert_eq!(whole(answer).await.unwrap(), "ok");
        connection
    }

    #[tokio::test]
    async fn only_a_request_of_which_nothing_was_sent_may_go_again() {
        let answer = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";
        let upstream = ScriptedUpstream::answering_once(answer).await;
        let mut connection = kept(&upstream).await;
        let closed = async || connection.sender.is_closed().then_some(());
        eventually(SOON, "the connection to be closed", closed).await;
        let sent = connection.send(get_of("/second")).await;
        assert!(matches!(sent, Err(Unanswered::NotSent)), "{sent:?}");

        let upstream = ScriptedUpstream::start(move |mut connection| async move {
            connection.head().await.unwrap();
            connection.send(answer).await;
            connection.head().await.unwrap();
        })
        .await;
        let sent = kept(&upstream).await.send(get_of("/second")).await;
        assert!(matches!(sent, Err(Unanswered::Lost(_))), "{sent:?}");
    }
}
