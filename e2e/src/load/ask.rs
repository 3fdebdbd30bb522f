//! Short exchanges of a load: GET on a kept connection, POST on a new one.

use http::{Request, Response, header};
use http_body_util::{BodyExt, Full};
use hyper::{body::Incoming, client::conn::http1};
use hyper_util::rt::TokioIo;
use tokio::{net::TcpStream, task::JoinSet};

use super::{End, Worker, patiently};
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
    /// What it was made for: another entry wants another.
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

    /// Asks; the head of the answer comes back.
    pub(super) async fn send(
        &mut self,
        mut request: Request<Body>,
    ) -> hyper::Result<Response<Incoming>> {
        let host = self.authority.parse().unwrap();
        request.headers_mut().insert(header::HOST, host);
        self.sender.ready().await?;
        self.sender.send_request(request).await
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
    let answer = patiently(async {
        let response = match kept
            .as_mut()
            .filter(|kept| kept.authority == entry.authority())
        {
            Some(connection) => connection.send(get_of(&target)).await.ok(),
            None => None,
        };
        let response = match response {
            Some(response) => response,
            None => {
                // A server may close a connection that rests; who asks at that moment asks again
                // on a new one, as every client does (RFC 9112 section 9.3.1).
                if kept.is_some() {
                    worker.again();
                }
                let connection = kept.insert(Connection::open(entry).await?);
                let sent = connection.send(get_of(&target)).await;
                sent.map_err(|error| format!("{error:?}"))?
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
    let answer = patiently(async {
        let body = Full::new(content).boxed_unsync();
        let request = Request::post("/upload").body(body).unwrap();
        let mut connection = Connection::open(entry).await?;
        let response = connection.send(request).await;
        whole(response.map_err(|error| format!("{error:?}"))?).await
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
