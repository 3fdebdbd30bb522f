//! Answers that end with their connection, and are cut.

use bytes::Bytes;
use futures_util::StreamExt;
use http::Response;
use http_body::Frame;
use http_body_util::{BodyExt, StreamBody};
use testkit::http1::End;

use crate::rig::Rig;

const HTTP10: &str = "GET / HTTP/1.0\r\nHost: a\r\n\r\n";

/// A gateway whose answers have no length; they end if they are to.
async fn unbounded(is_endless: bool) -> Rig {
    Rig::answering(move |_| async move {
        let first = futures_util::stream::iter([Ok(Frame::data(Bytes::from_static(b"line")))]);
        let rest = futures_util::stream::pending().take(usize::from(is_endless));
        Response::new(BodyExt::boxed_unsync(StreamBody::new(first.chain(rest))))
    })
    .await
}

#[tokio::test]
async fn an_answer_that_ends_with_its_connection_ends_by_a_reset_when_the_process_does() {
    let rig = unbounded(true).await;
    let mut raw = rig.connect().await;
    raw.send(HTTP10).await;
    assert_eq!(raw.head().await.unwrap().value("content-length"), None);
    assert_eq!(raw.bytes(4).await, b"line");
    rig.kill();
    assert_eq!(raw.closes().await, End::Reset);
}

#[tokio::test]
async fn a_whole_one_ends_in_order() {
    let rig = unbounded(false).await;
    let mut raw = rig.connect().await;
    let answer = raw.ask(HTTP10).await;
    assert_eq!((&*answer.text(), answer.content.end), ("line", End::Clean));
}
