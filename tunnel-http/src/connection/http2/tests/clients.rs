//! Connections on which clients do anything that they may.

use std::collections::VecDeque;

use h2::client::SendRequest;
use http::{HeaderMap, Method, StatusCode};
use http_body_util::BodyExt;
use proptest::prelude::*;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};
use tokio::task::JoinSet;

use super::*;

/// What a client sends and takes, and what it is answered.
#[derive(Debug, Clone)]
struct Plan {
    /// Lengths of the frames of the request's content.
    upload: Vec<usize>,
    upload_end: UploadEnd,
    received: Received,
    answer: Vec<usize>,
    answer_end: AnswerEnd,
    /// Before the answer, in milliseconds.
    delay: u64,
    taken: Taken,
    /// When the client asks, in milliseconds.
    start: u64,
    /// How much later it is done with all, in milliseconds.
    until: u64,
    is_upgrade: bool,
}

impl Plan {
    /// Whether the client has all of the answer in the end, unless the connection ends before.
    fn is_due(&self) -> bool {
        let is_sent = !matches!(self.upload_end, UploadEnd::Reset | UploadEnd::Open);
        let is_answered = match self.is_upgrade {
            true => self.upload_end == UploadEnd::Whole && self.answer_end != AnswerEnd::Failure,
            false => !matches!(self.answer_end, AnswerEnd::Failure | AnswerEnd::Endless),
        };
        // Nobody waits longer for a peer.
        let is_in_time = self.until > self.delay + 10_000;
        is_sent && is_answered && is_in_time && self.taken == Taken::All
    }
}

/// A connection.
#[derive(Debug, Clone)]
struct Line {
    /// Of a stream, for answers.
    window: u32,
    /// What the network holds, in bytes.
    room: usize,
    end: LineEnd,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum LineEnd {
    /// After all requests.
    Late,
    /// The program stops at this time, in milliseconds.
    Stop(u64),
    /// The client is gone at this time, in milliseconds.
    Lost(u64),
}

fn line() -> impl Strategy<Value = Line> {
    let window = prop_oneof![Just(500_u32), Just(65_535), Just(1 << 20)];
    let room = prop_oneof![Just(64_usize), Just(5_000), Just(1 << 20)];
    let end = prop_oneof![
        Just(LineEnd::Late),
        (0_u64..5_000).prop_map(LineEnd::Stop),
        (0_u64..5_000).prop_map(LineEnd::Lost)
    ];
    (window, room, end).prop_map(|(window, room, end)| Line { window, room, end })
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum UploadEnd {
    WithRequest,
    Whole,
    Trailers,
    Reset,
    Open,
}

/// What the gateway does with the content.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Received {
    Dropped,
    First,
    Whole,
    /// Read beside the answer.
    Later,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum AnswerEnd {
    Known,
    Later,
    Trailers,
    Failure,
    Endless,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Taken {
    All,
    First,
    Nothing,
    /// Dropped when its head is there.
    Dropped,
    /// The request is cancelled at once.
    Cancelled,
}

fn lengths() -> impl Strategy<Value = Vec<usize>> {
    let length = prop_oneof![
        4 => Just(1_usize),
        4 => 1_usize..40,
        2 => 1_usize..5_000,
        2 => 10_000_usize..70_000,
    ];
    let many = prop_oneof![8 => Just(1_usize), 2 => Just(30), 1 => Just(1_500)];
    proptest::collection::vec((length, many), 0..6).prop_map(|lengths| {
        let repeat =
            |(length, many)| std::iter::repeat_n(length, if length < 40 { many } else { 1 });
        lengths.into_iter().flat_map(repeat).collect()
    })
}

fn plan() -> impl Strategy<Value = Plan> {
    use {AnswerEnd as A, Received as R, Taken as T, UploadEnd as U};
    let upload_end = prop_oneof![
        Just(U::WithRequest),
        Just(U::Whole),
        Just(U::Trailers),
        Just(U::Reset),
        Just(U::Open)
    ];
    let received = prop_oneof![
        Just(R::Dropped),
        Just(R::First),
        Just(R::Whole),
        Just(R::Later)
    ];
    let answer_end = prop_oneof![
        Just(A::Known),
        Just(A::Later),
        Just(A::Trailers),
        Just(A::Failure),
        Just(A::Endless)
    ];
    let taken = prop_oneof![
        Just(T::All),
        Just(T::First),
        Just(T::Nothing),
        Just(T::Dropped),
        Just(T::Cancelled)
    ];
    let time = || prop_oneof![Just(0_u64), 0_u64..20, 0_u64..100_000];
    (
        (lengths(), upload_end, received),
        (lengths(), answer_end, time()),
        (taken, time(), time(), proptest::bool::weighted(0.15)),
    )
        .prop_map(
            |(
                (upload, upload_end, received),
                (answer, answer_end, delay),
                (taken, start, until, is_upgrade),
            )| Plan {
                upload,
                upload_end,
                received,
                answer,
                answer_end,
                delay,
                taken,
                start: start.min(5_000),
                until,
                is_upgrade,
            },
        )
}

#[derive(Debug, thiserror::Error)]
#[error("the content failed")]
struct Failed;

/// The content of an answer, and what is held until its end.
struct Answer {
    lengths: VecDeque<usize>,
    end: AnswerEnd,
    received: Option<ReceivedBody>,
    _alive: Arc<()>,
}

impl Body for Answer {
    type Data = Bytes;
    type Error = Failed;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Failed>>> {
        if let Some(received) = &mut self.received {
            while let Poll::Ready(frame) = Pin::new(&mut *received).poll_frame(cx) {
                if !matches!(frame, Some(Ok(_))) {
                    self.received = None;
                    break;
                }
            }
        }
        if let Some(length) = self.lengths.pop_front() {
            return Poll::Ready(Some(Ok(Frame::data(vec![7; length].into()))));
        }
        match std::mem::replace(&mut self.end, AnswerEnd::Later) {
            AnswerEnd::Known | AnswerEnd::Later => Poll::Ready(None),
            AnswerEnd::Trailers => Poll::Ready(Some(Ok(Frame::trailers(trailers())))),
            AnswerEnd::Failure => Poll::Ready(Some(Err(Failed))),
            AnswerEnd::Endless => {
                self.end = AnswerEnd::Endless;
                Poll::Pending
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.end == AnswerEnd::Known && self.lengths.is_empty()
    }
}

fn trailers() -> HeaderMap {
    let mut trailers = HeaderMap::new();
    trailers.insert("x-end", "1".parse().unwrap());
    trailers
}

/// Reads content to its end: its length, and whether it has trailers; `None` if it was cut.
async fn read(mut body: ReceivedBody) -> Option<(usize, bool)> {
    let (mut length, mut has_trailers) = (0, false);
    while let Some(frame) = body.frame().await {
        match frame.ok()?.into_data() {
            Ok(data) => length += data.len(),
            Err(_) => has_trailers = true,
        }
    }
    Some((length, has_trailers))
}

async fn answer(plan: Plan, mut body: ReceivedBody, alive: Arc<()>) -> Response<Answer> {
    let mut kept = None;
    let reply = body.reply().unwrap();
    let hint = || reply.send_informational(StatusCode::EARLY_HINTS, HeaderMap::new());
    hint();
    match plan.received {
        Received::Dropped => drop(body),
        Received::First => drop(body.frame().await),
        Received::Later => kept = Some(body),
        Received::Whole => {
            let read = read(body).await;
            let is_whole =
                plan.upload_end != UploadEnd::Reset && plan.upload_end != UploadEnd::Open;
            if let Some((length, has_trailers)) = read {
                assert!(is_whole, "a cut is an end");
                let sent = match plan.upload_end {
                    UploadEnd::WithRequest => 0,
                    _ => plan.upload.iter().sum(),
                };
                assert_eq!(length, sent);
                assert_eq!(has_trailers, plan.upload_end == UploadEnd::Trailers);
            }
        }
    }
    sleep(Duration::from_millis(plan.delay)).await;
    hint();
    Response::new(Answer {
        lengths: plan.answer.into(),
        end: plan.answer_end,
        received: kept,
        _alive: alive,
    })
}

/// Sends back what comes over an upgraded stream, with the halves in tasks of their own.
fn echo(body: &mut ReceivedBody, plan: &Plan, tasks: &Tasks, alive: &Arc<()>) {
    let upgraded = body.on_upgrade().unwrap();
    let (is_cut, alive, own) = (
        plan.answer_end == AnswerEnd::Failure,
        alive.clone(),
        tasks.clone(),
    );
    tasks.spawn(async move {
        let Ok(upgraded) = upgraded.await else {
            return;
        };
        let (mut reader, mut writer) = tokio::io::split(upgraded);
        let (sender, mut receiver) = mpsc::channel::<Vec<u8>>(1);
        let also_alive = alive.clone();
        own.spawn(async move {
            let _alive = also_alive;
            while let Some(bytes) = receiver.recv().await {
                if writer.write_all(&bytes).await.is_err() {
                    return;
                }
            }
            if !is_cut {
                let _ = writer.shutdown().await;
            }
        });
        let _alive = alive;
        let mut bytes = vec![0; 4_000];
        while let Ok(length @ 1..) = reader.read(&mut bytes).await {
            if sender.send(bytes[..length].to_vec()).await.is_err() {
                return;
            }
        }
    });
}

async fn send(mut stream: h2::SendStream<Bytes>, plan: &Plan) -> Option<h2::SendStream<Bytes>> {
    for length in &plan.upload {
        let mut left = Bytes::from(vec![7; *length]);
        while !left.is_empty() {
            stream.reserve_capacity(left.len());
            let capacity = poll_fn(|cx| stream.poll_capacity(cx)).await?.ok()?;
            let piece = left.split_to(capacity.min(left.len()));
            stream.send_data(piece, false).ok()?;
        }
    }
    match plan.upload_end {
        UploadEnd::WithRequest => None,
        UploadEnd::Whole => {
            let _ = stream.send_data(Bytes::new(), true);
            None
        }
        UploadEnd::Trailers => {
            let _ = stream.send_trailers(trailers());
            None
        }
        UploadEnd::Reset => {
            stream.send_reset(h2::Reason::CANCEL);
            None
        }
        UploadEnd::Open => Some(stream),
    }
}

async fn take(mut body: RecvStream, plan: &Plan) -> Result<Option<RecvStream>, h2::Error> {
    let mut received = 0;
    loop {
        match plan.taken {
            Taken::Nothing => return Ok(Some(body)),
            Taken::Dropped | Taken::Cancelled => return Ok(None),
            Taken::First | Taken::All => {}
        }
        let Some(data) = body.data().await else {
            break;
        };
        let length = data?.len();
        received += length;
        body.flow_control().release_capacity(length)?;
        if plan.taken == Taken::First {
            return Ok(None);
        }
    }
    let trailers = body.trailers().await?;
    if plan.is_upgrade {
        let is_whole = plan.upload_end == UploadEnd::Whole;
        assert!(!is_whole || received == plan.upload.iter().sum::<usize>());
    } else {
        assert_eq!(received, plan.answer.iter().sum::<usize>());
        assert_eq!(trailers.is_some(), plan.answer_end == AnswerEnd::Trailers);
        assert!(plan.answer_end != AnswerEnd::Failure, "a cut is an end");
    }
    Ok(None)
}

/// Does what the plan says, for as long as it says. Fails with the error of an answer that was due.
async fn ask(number: usize, plan: Plan, requests: SendRequest<Bytes>) -> Result<(), h2::Error> {
    sleep(Duration::from_millis(plan.start)).await;
    let mut request = Request::new(());
    *request.uri_mut() = format!("http://a/{number}").parse().unwrap();
    let mut is_whole = plan.upload_end == UploadEnd::WithRequest;
    if plan.is_upgrade {
        is_whole = false;
        *request.method_mut() = Method::CONNECT;
        let websocket = h2::ext::Protocol::from_static("websocket");
        request.extensions_mut().insert(websocket);
    }
    let mut requests = requests.ready().await?;
    let (response, stream) = requests.send_request(request, is_whole)?;
    drop(requests);
    if plan.taken == Taken::Cancelled {
        return Ok(());
    }
    let result = parking_lot::Mutex::new(None);
    let exchange = async {
        let taking = async {
            let taken = async { take(response.await?.into_body(), &plan).await }.await;
            match taken {
                Ok(held) => {
                    *result.lock() = Some(Ok(()));
                    held
                }
                Err(error) => {
                    *result.lock() = Some(Err(error));
                    None
                }
            }
        };
        let sending = async {
            match is_whole {
                true => None,
                false => send(stream, &plan).await,
            }
        };
        let held = tokio::join!(sending, taking);
        poll_fn(|_| Poll::<()>::Pending).await;
        drop(held);
    };
    let _ = timeout(Duration::from_millis(plan.until), exchange).await;
    match plan.is_due() {
        true => result.into_inner().expect("an answer never ends"),
        false => Ok(()),
    }
}

/// Serves a connection whose requests name their plans.
async fn serve(
    near: DuplexStream,
    plans: Vec<Plan>,
    stopping: Shutdown,
    tasks: Tasks,
    alive: Arc<()>,
) {
    let answer = |mut request: Request<ReceivedBody>| {
        let number = request.uri().path()[1..].parse::<usize>().ok();
        let plan = number.and_then(|number| plans.get(number));
        if let Some(plan) = plan.filter(|plan| plan.is_upgrade) {
            echo(request.body_mut(), plan, &tasks, &alive);
        }
        let answered = plan.cloned().map(|mut plan| {
            if plan.is_upgrade {
                plan.received = Received::Dropped;
                plan.answer.clear();
                plan.answer_end = AnswerEnd::Known;
            }
            answer(plan, request.into_body(), alive.clone())
        });
        async move {
            match answered {
                Some(answered) => Ok(answered.await),
                None => poll_fn(|_| Poll::Pending).await,
            }
        }
    };
    http2(near, bounds(), &tasks, &stopping, answer).await;
}

/// Asks for all plans. Errors that the end of the line does not cause are failures.
async fn ask_all(plans: Vec<Plan>, requests: &SendRequest<Bytes>, end: LineEnd) {
    let mut asking = JoinSet::new();
    for (number, plan) in plans.into_iter().enumerate() {
        asking.spawn(ask(number, plan, requests.clone()));
    }
    while let Some(asked) = asking.join_next().await {
        let Err(error) = asked.unwrap() else {
            continue;
        };
        let is_refused = error.reason() == Some(h2::Reason::REFUSED_STREAM);
        match end {
            LineEnd::Late => panic!("an answer was cut: {error}"),
            LineEnd::Stop(_) => assert!(
                error.is_go_away() || is_refused || error.is_io(),
                "{error:?}"
            ),
            LineEnd::Lost(_) => {}
        }
    }
}

/// Takes as many windows as a connection that gives back no less than half of its own has at least.
async fn take_windows(requests: &SendRequest<Bytes>) {
    let mut uploads = Vec::new();
    for _ in 0..CONNECTION_WINDOWS / 2 {
        let request = Request::post("http://a/none").body(()).unwrap();
        let mut requests = requests.clone().ready().await.unwrap();
        let (response, mut content) = requests.send_request(request, false).unwrap();
        content.reserve_capacity(64 * 1024);
        let whole = async {
            while content.capacity() < 64 * 1024 {
                poll_fn(|cx| content.poll_capacity(cx))
                    .await
                    .unwrap()
                    .unwrap();
            }
        };
        timeout(Duration::from_secs(1), whole)
            .await
            .expect("a window is lost");
        uploads.push((response, content));
    }
    for (_, content) in &mut uploads {
        content.send_reset(h2::Reason::CANCEL);
    }
}

/// Has the plans done on one connection, after which it is as in the beginning.
async fn run(plans: Vec<Plan>, line: Line) {
    let (near, far) = tokio::io::duplex(line.room);
    let (trigger, stopping) = Shutdown::manual();
    let tasks = Tasks::default();
    let alive = Arc::new(());
    let served = serve(near, plans.clone(), stopping, tasks.clone(), alive.clone());
    let serving = Owned::spawn("serving", served);
    let mut client = h2::client::Builder::new();
    client.initial_window_size(line.window);
    client.initial_connection_window_size(1 << 26);
    let (requests, mut connection) = client.handshake::<_, Bytes>(far).await.unwrap();
    let mut pings = connection.ping_pong().unwrap();
    let peer = Owned::spawn("peer", async move {
        let lost = async {
            match line.end {
                LineEnd::Lost(time) => sleep(Duration::from_millis(time)).await,
                _ => poll_fn(|_| Poll::Pending).await,
            }
        };
        tokio::select! {
            over = connection => over,
            () = lost => Ok(()),
        }
    });
    pings.ping(Ping::opaque()).await.unwrap();
    let stop = async {
        if let LineEnd::Stop(time) = line.end {
            sleep(Duration::from_millis(time)).await;
            trigger.request();
        }
    };
    tokio::join!(ask_all(plans, &requests, line.end), stop);
    // Content that nobody wants is discarded for two seconds.
    sleep(Duration::from_secs(3)).await;
    assert!(tasks.is_empty(), "something still runs");
    let held = if serving.is_finished() { 1 } else { 2 };
    assert_eq!(Arc::strong_count(&alive), held, "something is still held");
    if line.end == LineEnd::Late {
        take_windows(&requests).await;
        trigger.request();
    }
    timeout(Duration::from_secs(3), serving)
        .await
        .expect("it goes on")
        .expect("serving");
    drop(requests);
    timeout(Duration::from_secs(3), peer)
        .await
        .unwrap()
        .unwrap()
        .unwrap();
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Of more than twenty requests that come together with their cancellation h2 ends the connection.
    #[test]
    fn whatever_clients_do_leaves_nothing_behind(
        plans in proptest::collection::vec(plan(), 1..20),
        line in line(),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .start_paused(true)
            .build()
            .unwrap();
        runtime.block_on(run(plans, line));
    }
}
