//! gRPC in a load: unary calls on a kept connection, and calls whose answers go on.

use std::error::Error as _;

use tokio::time::timeout;
use tonic::{Code, Status};

use super::{End, TIME_LIMIT, Worker, within_time_limit};
use crate::{
    entry::Entry,
    grpc::{self, GrpcClient, Say},
};

/// A client, and what it was made for.
pub(super) struct Client {
    client: GrpcClient,
    authority: String,
}

pub(super) async fn once(worker: &mut Worker, kept: &mut Option<Client>, entry: &Entry) -> End {
    let client = match kept.take() {
        Some(client) if client.authority == entry.authority() => kept.insert(client),
        _ => kept.insert(Client {
            client: grpc::client(entry),
            authority: entry.authority().to_owned(),
        }),
    };
    let text = worker.text();
    let say = Say {
        text: text.clone(),
        ..Say::default()
    };
    let answer = within_time_limit(async {
        let answer = client.client.once(say).await;
        answer.map_err(|status| describe(&status))
    });
    match answer.await {
        Ok(said) if said.get_ref().text == text => {
            worker.tick();
            End::Whole
        }
        Ok(said) => End::Failed(format!("another answer came: {said:?}")),
        Err(what) => End::Failed(what),
    }
}

pub(super) async fn many(worker: &mut Worker, entry: &Entry) -> End {
    let say = Say {
        text: worker.text(),
        every_ms: u32::try_from(worker.pace.as_millis()).unwrap(),
        ..Say::default()
    };
    let mut client = grpc::client(entry);
    let opened = within_time_limit(async {
        let opened = client.many(say).await;
        opened.map_err(|status| describe(&status))
    });
    let mut answers = match opened.await {
        Ok(opened) => opened.into_inner(),
        Err(what) => return End::Failed(what),
    };
    let mut number = 0;
    loop {
        let message = tokio::select! {
            message = timeout(TIME_LIMIT, answers.message()) => message,
            () = worker.wait_stopped() => return End::Whole,
        };
        match message {
            Err(_) => return End::Failed(format!("no message within {TIME_LIMIT:?}")),
            Ok(Ok(Some(said))) if said.number == number => {
                number += 1;
                worker.tick();
            }
            Ok(Ok(Some(said))) => return End::Failed(format!("not message {number}: {said:?}")),
            Ok(Ok(None)) => return End::Failed("ended as if it were whole".to_owned()),
            // A status that came in trailers has no cause; one that stands for a cut has.
            Ok(Err(status)) if status.code() == Code::Unavailable && status.source().is_none() => {
                return End::ByProtocol;
            }
            Ok(Err(status)) => return End::Failed(describe(&status)),
        }
    }
}

fn describe(status: &Status) -> String {
    let (code, text) = (status.code(), status.message());
    format!("{code:?} {text:?}, because of {:?}", status.source())
}
