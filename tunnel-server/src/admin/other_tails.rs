//! The tails of other nodes, for a reader of this one.
//!
//! ```text
//!   this node's reader ◀── queue ◀─┬─ follow ═══link═══ the tail of node B
//!                                  └─ follow ═══link═══ the tail of node C
//! ```
//!
//! Each other node is asked for its own tail. One that does not answer, or whose stream has ended, is asked again. A reader
//! that is too slow fills the queue, and then the links' windows; what it misses is missed, and counted, at each node.

use std::{collections::HashSet, sync::Arc, time::Duration};

use futures_util::{Stream, stream};
use http_body_util::BodyExt;
use tokio::{
    sync::mpsc,
    task::JoinSet,
    time::{Instant, MissedTickBehavior, interval, timeout},
};
use tunnel_directory::NodeName;
use tunnel_http::tail::stream::{EXCHANGE, MISSED, UNANSWERED};
use tunnel_ops::{
    admin::{Event, EventParser, HEARTBEAT},
    task::Owned,
};
use tunnel_proto::session::Session;

use crate::peers::{Peers, open_stream};

/// Time between two looks at which nodes there are, and until one that does not answer is asked again.
const LOOK: Duration = Duration::from_secs(2);

/// Longest silence of another node: two of its heartbeats.
const SILENCE: Duration = HEARTBEAT.saturating_mul(2);

/// Events of other nodes that wait for the reader.
const QUEUE: usize = 64;

/// The events of all other nodes at this path. A node that does not answer, or does not any more, is
/// named, and again only after it has answered.
pub(super) fn events(peers: Arc<Peers>, path: String) -> impl Stream<Item = Event> + Send {
    let (sender, receiver) = mpsc::channel(QUEUE);
    let following = Owned::spawn("other-tails", follow_all(peers, path.into(), sender));
    stream::unfold((receiver, following), async |(mut receiver, following)| {
        let event = receiver.recv().await?;
        Some((event, (receiver, following)))
    })
}

async fn follow_all(peers: Arc<Peers>, path: Arc<str>, sender: mpsc::Sender<Event>) {
    let mut look = interval(LOOK);
    look.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut followed: HashSet<NodeName> = HashSet::new();
    let mut unanswered: HashSet<NodeName> = HashSet::new();
    let mut following = JoinSet::new();
    loop {
        tokio::select! {
            _ = look.tick() => {
                let nodes = peers.sessions();
                unanswered.retain(|name| nodes.iter().any(|(node, _)| node == name));
                for (name, session) in nodes {
                    if followed.insert(name.clone()) {
                        following.spawn(follow(name, session, path.clone(), sender.clone()));
                    }
                }
            }
            Some(Ok((name, has_answered))) = following.join_next() => {
                followed.remove(&name);
                if has_answered {
                    unanswered.remove(&name);
                }
                if unanswered.insert(name.clone()) && sender.send(event_of(&name)).await.is_err() {
                    return;
                }
            }
        }
    }
}

fn event_of(unanswered: &NodeName) -> Event {
    let data = serde_json::json!({ UNANSWERED: [unanswered.to_string()] });
    Event::default().event(UNANSWERED).data(data.to_string())
}

/// Sends on the events of one node, until its stream ends. Also returns whether there was a stream for a while: a node that
/// stops ends each at once.
async fn follow(
    name: NodeName,
    session: Option<Session>,
    path: Arc<str>,
    sender: mpsc::Sender<Event>,
) -> (NodeName, bool) {
    let opened = match &session {
        Some(session) => open_stream(session, &path).await,
        None => None,
    };
    let Some(mut body) = opened else {
        return (name, false);
    };
    let opened = Instant::now();
    let mut parser = EventParser::default();
    while let Ok(Some(Ok(frame))) = timeout(SILENCE, body.frame()).await {
        let Ok(data) = frame.into_data() else {
            continue;
        };
        if parser.receive(&data).is_err() {
            break;
        }
        while let Some(event) = parser.next_event() {
            if ![EXCHANGE, MISSED].contains(&&*event.name) {
                continue;
            }
            let event = Event::default().event(event.name).data(event.data);
            if sender.send(event).await.is_err() {
                break;
            }
        }
    }
    (name, opened.elapsed() > LOOK)
}
