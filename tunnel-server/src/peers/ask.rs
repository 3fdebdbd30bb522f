//! What the operator asks one node, asked of all others too.
//!
//! ```text
//!   admin API ─▶ Peers::ask_all ═══link═══▶ relay ─▶ answer ─▶ the other node's admin API
//! ```
//!
//! An admin request is an exchange on a link whose note is [`NOTE`]. The other node answers for itself alone. It needs no
//! admin token: the node that asks has checked it, and has shown by its certificate that it is a server node.

use std::{future::pending, time::Duration};

use axum::{Router, body::Body};
use bytes::Bytes;
use futures_util::future::join_all;
use http::{Method, Request, Response, StatusCode, header::CONTENT_LENGTH};
use http_body_util::{BodyExt, Full, Limited};
use tokio::time::timeout;
use tower_service::Service;
use tunnel_directory::NodeName;
use tunnel_proto::{
    exchange::{HeadEncoder, RecvBody, open},
    problem::{Hop, Problem, Reason},
    session::Session,
};

use super::Peers;

/// The note of an admin request.
pub(super) const NOTE: &str = "admin 1";

/// How long another node may take to answer: it is near.
const ANSWER: Duration = Duration::from_secs(2);

/// Largest content of an admin request, in bytes, as for the admin listener.
const REQUEST_BYTES: usize = 64 * 1024;

/// Largest answer, in bytes: far above that of a full page of runtimes.
const ANSWER_BYTES: usize = 8 * 1024 * 1024;

/// What other nodes have answered.
#[derive(Debug, Default)]
pub(crate) struct Answers {
    /// The status and the content of each answer.
    pub(crate) given: Vec<(StatusCode, Bytes)>,
    /// The nodes that gave no answer in time.
    pub(crate) missing: Vec<NodeName>,
}

impl Peers {
    /// Sends an admin request to all other nodes at once, and waits for their answers.
    pub(crate) async fn ask_all(&self, method: &Method, path: &str, content: &Bytes) -> Answers {
        let nodes = self.sessions().into_iter();
        let asked = nodes.map(|(name, session)| async move {
            let answer = async { ask(&session?, method, path, content.clone()).await };
            (name, timeout(ANSWER, answer).await.ok().flatten())
        });
        let mut answers = Answers::default();
        for (name, answer) in join_all(asked).await {
            match answer {
                Some(answer) => answers.given.push(answer),
                None => answers.missing.push(name),
            }
        }
        answers
    }

    /// All other nodes, and the session of the link to each, if there is one.
    pub(crate) fn sessions(&self) -> Vec<(NodeName, Option<Session>)> {
        let own = self.directory.incarnation();
        let links = self.links.lock();
        let nodes = self.directory.nodes().into_iter();
        let others = nodes.filter(|(_, incarnation, _)| *incarnation != own);
        let sessions = others.map(|(name, ..)| {
            let session = links.get(&name).and_then(|link| link.any_session());
            (name, session)
        });
        sessions.collect()
    }
}

async fn ask(
    session: &Session,
    method: &Method,
    path: &str,
    content: Bytes,
) -> Option<(StatusCode, Bytes)> {
    let (parts, body) = send(session, method, path, content).await?.into_parts();
    let content = Limited::new(body, ANSWER_BYTES).collect().await.ok()?;
    Some((parts.status, content.to_bytes()))
}

/// Sends an admin request to the node at the other end of a link, and waits for the head of its answer, whose content
/// may have no end. `None` if there is no answer in time, or one other than 200.
pub(crate) async fn open_stream(session: &Session, path: &str) -> Option<RecvBody> {
    let answer = send(session, &Method::GET, path, Bytes::new());
    let answer = timeout(ANSWER, answer).await.ok()??;
    (answer.status() == StatusCode::OK).then(|| answer.into_body())
}

async fn send(
    session: &Session,
    method: &Method,
    path: &str,
    content: Bytes,
) -> Option<Response<RecvBody>> {
    let mut head = HeadEncoder::new(method, "http", "admin", path, None);
    let length = content.len();
    if length > 0 {
        head.field(
            &CONTENT_LENGTH,
            itoa::Buffer::new().format(length).as_bytes(),
        );
    }
    let head = head.finish().forwarded(NOTE, "");
    let body = Full::new(content).map_err(|never| -> Problem { match never {} });
    let opened = open(session).await.ok()?;
    let response = opened.carry(&head, body, |_, _| {}, pending()).await;
    response.ok()
}

/// Answers an admin request of another node by this one's API.
///
/// # Errors
/// When its content does not arrive, or is too large.
pub(super) async fn answer(
    mut api: Router,
    request: Request<RecvBody>,
) -> Result<Response<Body>, Problem> {
    let (parts, content) = request.into_parts();
    let content = Limited::new(content, REQUEST_BYTES).collect().await;
    let content = content
        .map_err(|error| Problem::new(Hop::Server, Reason::RequestIncomplete, error.to_string()))?;
    let mut asked = Request::new(Body::from(content.to_bytes()));
    *asked.method_mut() = parts.method;
    *asked.uri_mut() = parts.uri;
    let Ok(response) = api.call(asked).await;
    Ok(response)
}
