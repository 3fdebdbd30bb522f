//! gRPC of all four kinds by tonic at both ends, with what makes it gRPC: trailers, details,
//! deadlines, cancellation.

use std::time::Duration;

use e2e::{
    deadline::{SOON, within},
    grpc::{self, DETAILS, GrpcClient, GrpcUpstream, Say},
    system::System,
};
use tokio::sync::mpsc;
use tokio_stream::{StreamExt, wrappers::ReceiverStream};
use tonic::{Code, Request};

const SECOND: Duration = Duration::from_secs(1);

async fn usual() -> (GrpcUpstream, System, GrpcClient) {
    let upstream = GrpcUpstream::start().await;
    let system = System::start(&upstream.url()).await;
    let client = grpc::client(&system.entry());
    (upstream, system, client)
}

fn say(text: &str) -> Say {
    Say {
        text: text.to_owned(),
        ..Say::default()
    }
}

#[tokio::test]
async fn one_message_and_one_answer() {
    let (upstream, _system, mut client) = usual().await;
    let mut request = Request::new(say("hello"));
    request
        .metadata_mut()
        .insert("x-who", "platform".parse().unwrap());
    assert_eq!(
        client.once(request).await.unwrap().into_inner().text,
        "hello"
    );
    let metadata = upstream.wait_called("Once").await;
    for (name, value) in [("x-who", "platform"), ("te", "trailers")] {
        assert!(
            metadata.contains(&(name.to_owned(), value.to_owned())),
            "{metadata:?}"
        );
    }
}

#[tokio::test]
async fn streams_of_messages_either_way() {
    let (_upstream, _system, mut client) = usual().await;
    let texts: Vec<String> = (0..1_000).map(|number| number.to_string()).collect();
    let messages: Vec<Say> = texts.iter().map(|text| say(text)).collect();
    let gathered = client
        .gather(tokio_stream::iter(messages))
        .await
        .unwrap()
        .into_inner();
    assert_eq!((gathered.text, gathered.number), (texts.join(" "), 1_000));

    let many = client
        .many(Say {
            count: 1_000,
            ..say("x")
        })
        .await
        .unwrap()
        .into_inner();
    let numbers: Vec<_> = many.map(|said| said.unwrap().number).collect().await;
    assert_eq!(numbers, (0..1_000).collect::<Vec<_>>());
}

#[tokio::test]
async fn a_conversation_goes_back_and_forth_on_one_stream() {
    let (_upstream, _system, mut client) = usual().await;
    let (messages, stream) = mpsc::channel(1);
    messages.send(say("0")).await.unwrap();
    let mut answers = client
        .chat(ReceiverStream::new(stream))
        .await
        .unwrap()
        .into_inner();
    for number in 1..50 {
        let said = within(SOON, "an answer", answers.message())
            .await
            .unwrap()
            .unwrap();
        assert_eq!(said.text, (number - 1).to_string());
        messages.send(say(&number.to_string())).await.unwrap();
    }
    drop(messages);
    assert_eq!(answers.message().await.unwrap().unwrap().text, "49");
    assert!(
        within(SOON, "the end", answers.message())
            .await
            .unwrap()
            .is_none()
    );
}

#[tokio::test]
async fn a_failure_keeps_its_code_details_and_metadata() {
    let (_upstream, _system, mut client) = usual().await;
    let failing = Say {
        fail_with: Code::FailedPrecondition as i32,
        ..say("not so: 50 % ü")
    };
    let at_once = client.once(failing.clone()).await.unwrap_err();
    let mut stream = client
        .many(Say {
            count: 2,
            ..failing
        })
        .await
        .unwrap()
        .into_inner();
    let later = loop {
        match stream.message().await {
            Ok(said) => assert!(said.is_some(), "the stream ended without its status"),
            Err(status) => break status,
        }
    };
    for status in [at_once, later] {
        assert_eq!(status.code(), Code::FailedPrecondition);
        assert_eq!(
            (status.message(), status.details()),
            ("not so: 50 % ü", DETAILS)
        );
        assert_eq!(status.metadata().get("x-reason").unwrap(), "as you asked");
        let raw = status
            .metadata()
            .get_bin("x-raw-bin")
            .unwrap()
            .to_bytes()
            .unwrap();
        assert_eq!(raw, DETAILS);
    }
}

#[tokio::test]
async fn a_deadline_and_a_cancellation_reach_the_upstream() {
    let (upstream, _system, mut client) = usual().await;
    let mut held = Request::new(Say {
        hold: true,
        ..say("held")
    });
    held.set_timeout(Duration::from_millis(300));
    let status = within(SOON, "the deadline", client.once(held))
        .await
        .unwrap_err();
    let code = status.code();
    assert!(
        matches!(code, Code::DeadlineExceeded | Code::Cancelled),
        "{status:?}"
    );
    let metadata = upstream.wait_called("Once").await;
    assert!(
        metadata.iter().any(|(name, _)| name == "grpc-timeout"),
        "{metadata:?}"
    );
    upstream.wait_given_up("Once", SECOND).await;

    let mut endless = client
        .many(Say {
            every_ms: 10,
            ..say("x")
        })
        .await
        .unwrap()
        .into_inner();
    endless.message().await.unwrap();
    drop(endless);
    upstream.wait_given_up("Many", SECOND).await;
}

#[tokio::test]
async fn a_runtime_that_is_gone_fails_a_call_and_says_why() {
    let (_upstream, mut system, mut client) = usual().await;
    assert!(client.once(say("a")).await.is_ok());
    system.kill_client("demo-app");
    // A call that meets the session's end is lost with it: this test is of the time after.
    let server = system.server().admin();
    server
        .wait_metric("tunnel_server_sessions", &[], |count| count == 0.0)
        .await;
    let status = within(SOON, "an answer", client.once(say("b")))
        .await
        .unwrap_err();
    let problem = status
        .metadata()
        .get("proxy-status")
        .unwrap()
        .to_str()
        .unwrap();
    assert!(problem.contains("destination_unavailable"), "{status:?}");
}
