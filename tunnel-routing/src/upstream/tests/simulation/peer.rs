//! The upstream of a simulation: it speaks HTTP/2 in frames, and does at random what an upstream may do.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use testkit::http2::{Frame, PREFACE};
use testkit::random::Random;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until};

use super::{Habits, content, number_of};

/// How long a stream that the client has reset keeps its place, at least.
const RESET_HOLD: Duration = Duration::from_secs(5);

/// Empty frames within a second: fewer than the client takes for a flood.
const EMPTY_FRAMES: usize = 80;

/// Frames that wait when the peer reads slowly.
const UNREAD_FRAMES: usize = 4;

/// What the upstream has seen and done, for the verdict.
pub(super) struct World {
    pub(super) random: Random,
    pub(super) habits: Habits,
    pub(super) exchanges: HashMap<u32, Deliveries>,
    /// When connections were ended, or broken, without regard to what was open on them.
    pub(super) kills: Vec<Instant>,
    pub(super) open_connections: usize,
    pub(super) faults: Vec<String>,
}

/// The requests of one exchange that the upstream has read.
#[derive(Debug, Default)]
pub(super) struct Deliveries {
    /// Whether asking twice does harm.
    pub(super) is_unsafe: bool,
    /// Whether it gets a connection to itself.
    pub(super) is_hazardous: bool,
    pub(super) all: Vec<Delivery>,
    /// Whether the upstream has cut the exchange after its head.
    pub(super) is_cut: bool,
    /// Whether it is never answered.
    pub(super) is_ignored: bool,
    /// Whether content follows the agreement of the upstream.
    pub(super) is_upgrade: bool,
    /// Bytes of its content.
    pub(super) length: usize,
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Delivery {
    connection: usize,
    stream: u32,
    /// Whether the upstream has said that it did not act on it.
    pub(super) is_refused: bool,
    /// Whether the upstream has ended its stream or connection.
    pub(super) is_over: bool,
}

/// What becomes of a stream, at its time.
#[derive(Debug, Clone)]
enum Action {
    Send(Frame),
    /// The response begins.
    Head(u32, bool),
    Reset(u32, u32),
    /// More window for a stream, or for the connection.
    Window(u32, u32),
    Settings,
    /// With the last stream, if it is not to be drawn.
    GoAway(Option<u32>),
    /// The socket is closed, whatever is unread.
    Kill,
    /// A frame that ends the connection, since it breaks HTTP/2.
    Violation,
    /// Nothing is read for this time.
    Pause(Duration),
    /// What came with a request was read, and the reset of the exchange before it.
    CheckSharing,
}

/// One stream from the upstream's side.
#[derive(Debug)]
struct Stream {
    number: u32,
    received: usize,
    has_request_ended: bool,
    has_begun: bool,
}

struct Connection {
    world: Arc<Mutex<World>>,
    number: usize,
    output: OwnedWriteHalf,
    streams: BTreeMap<u32, Stream>,
    /// Streams with answers that wait for the end of the request.
    waiting: HashMap<u32, Vec<(Duration, Action)>>,
    due: BTreeMap<(Instant, u64), Action>,
    count: u64,
    highest: u32,
    left: Option<u32>,
    is_broken: bool,
    /// Streams that it allows at once, where that does not change, and once the client has acknowledged it.
    allowed: Option<usize>,
    most: Option<usize>,
    /// When the client has reset streams.
    resets: VecDeque<Instant>,
    /// When it has sent empty frames in the last second.
    empty: VecDeque<Instant>,
}

/// Serves all connections.
pub(super) async fn serve_all(listener: UnixListener, world: Arc<Mutex<World>>) {
    let mut tasks = JoinSet::new();
    for number in 0.. {
        let Ok((stream, _)) = listener.accept().await else {
            return;
        };
        world.lock().open_connections += 1;
        tasks.spawn(serve(number, stream, Arc::clone(&world)));
    }
}

async fn serve(number: usize, stream: UnixStream, world: Arc<Mutex<World>>) {
    let (mut input, output) = stream.into_split();
    let (frames_in, mut frames) = mpsc::channel(UNREAD_FRAMES);
    let mut connection = Connection {
        world,
        number,
        output,
        streams: BTreeMap::new(),
        waiting: HashMap::new(),
        due: BTreeMap::new(),
        count: 0,
        highest: 0,
        left: None,
        is_broken: false,
        allowed: None,
        most: None,
        resets: VecDeque::new(),
        empty: VecDeque::new(),
    };
    let reading = async move {
        let mut preface = [0; PREFACE.len()];
        if input.read_exact(&mut preface).await.is_err() {
            return;
        }
        while let Some(frame) = frame(&mut input).await {
            if frames_in.send(frame).await.is_err() {
                return;
            }
        }
    };
    tokio::select! {
        () = connection.run(&mut frames) => {}
        () = async { reading.await; std::future::pending().await } => {}
    }
    connection.on_end();
}

async fn frame(input: &mut OwnedReadHalf) -> Option<Frame> {
    let mut head = [0; 9];
    input.read_exact(&mut head).await.ok()?;
    let mut payload = vec![0; u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize];
    input.read_exact(&mut payload).await.ok()?;
    Some(Frame {
        kind: head[3],
        flags: head[4],
        stream: u32::from_be_bytes([head[5], head[6], head[7], head[8]]),
        payload,
    })
}

impl Connection {
    async fn run(&mut self, frames: &mut mpsc::Receiver<Frame>) {
        self.plan();
        loop {
            let due = self.due.first_key_value().map(|((due, _), _)| *due);
            let next = async {
                match due {
                    Some(due) => sleep_until(due).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                biased;
                () = next => {
                    let Some((_, action)) = self.due.pop_first() else { return };
                    if !self.act(action).await {
                        return;
                    }
                }
                frame = frames.recv() => {
                    let Some(frame) = frame else { return };
                    if !self.on_frame(frame).await {
                        return;
                    }
                }
            }
            let is_done = self.left.is_some_and(|last| {
                last != u32::MAX >> 1 && self.streams.range(..=last).next().is_none()
            });
            if is_done {
                // It lingers, as servers do, until the client has ended the connection.
                self.left = Some(0);
                while frames.recv().await.is_some() {}
                return;
            }
        }
    }

    fn at(&mut self, delay: Duration, action: Action) {
        self.count += 1;
        self.due
            .insert((Instant::now() + delay, self.count), action);
    }

    /// Draws what becomes of the connection.
    fn plan(&mut self) {
        let world = Arc::clone(&self.world);
        let mut world = world.lock();
        let habits = world.habits;
        let random = &mut world.random;
        let settings = if habits.is_late {
            millis(random, 3_000)
        } else {
            Duration::ZERO
        };
        self.at(settings, Action::Settings);
        if habits.changes_settings {
            for _ in 0..random.below(4) {
                self.at(settings + millis(random, 20_000), Action::Settings);
            }
        }
        if habits.leaves && random.below(2) == 0 {
            let at = millis(random, 15_000);
            if random.below(2) == 0 {
                self.at(at, Action::GoAway(Some(u32::MAX >> 1)));
                self.at(at + millis(random, 2_000), Action::GoAway(None));
            } else {
                self.at(at, Action::GoAway(None));
            }
        }
        if habits.dies && random.below(2) == 0 {
            let latest = random.pick(&[50, 20_000]);
            let end = [Action::Kill, Action::Violation][random.below(2)].clone();
            self.at(millis(random, latest), end);
        }
        if habits.is_slow {
            for _ in 0..random.below(5) {
                let pause = Action::Pause(millis(random, 4_000));
                self.at(millis(random, 20_000), pause);
            }
        }
    }

    /// Does what is due; `false` when the connection has ended.
    async fn act(&mut self, action: Action) -> bool {
        match action {
            Action::Send(frame) => {
                let is_open = self.streams.contains_key(&frame.stream);
                !is_open || self.is_flood(&frame) || self.send_message(&frame).await
            }
            Action::Head(id, is_last) => self.begin(id, is_last).await,
            Action::Reset(id, code) => self.reset(id, code).await,
            Action::Window(id, bytes) => self.give(id, bytes).await,
            Action::Settings => {
                let settings = self.settings();
                self.send(&settings).await
            }
            Action::Violation => self.violate().await,
            Action::GoAway(last) => self.leave(last).await,
            Action::Kill => {
                self.world.lock().kills.push(Instant::now());
                false
            }
            Action::CheckSharing => {
                self.check_sharing();
                true
            }
            Action::Pause(time) => {
                sleep(time).await;
                true
            }
        }
    }

    /// Gives window, and some more to a stream later.
    async fn give(&mut self, id: u32, bytes: u32) -> bool {
        let wants = |stream: &Stream| !stream.has_request_ended;
        if id != 0 && !self.streams.get(&id).is_some_and(wants) {
            return true;
        }
        let again = {
            let world = &mut *self.world.lock();
            let bytes = u32::try_from(1 + world.random.below(8_000)).unwrap();
            let again = (millis(&mut world.random, 1_000), Action::Window(id, bytes));
            (!world.habits.is_stingy && id != 0).then_some(again)
        };
        if let Some((delay, action)) = again {
            self.at(delay, action);
        }
        let update = Frame::new(Frame::WINDOW_UPDATE, 0, id, &bytes.to_be_bytes());
        self.send(&update).await
    }

    /// Whether this is an empty frame too many.
    fn is_flood(&mut self, frame: &Frame) -> bool {
        if !frame.payload.is_empty() || frame.flags & Frame::END_STREAM != 0 {
            return false;
        }
        let now = Instant::now();
        self.empty.retain(|at| now < *at + Duration::from_secs(1));
        self.empty.push_back(now);
        self.empty.len() > EMPTY_FRAMES
    }

    fn settings(&mut self) -> Frame {
        let mut world = self.world.lock();
        let habits = world.habits;
        let random = &mut world.random;
        let mut payload = Vec::new();
        let mut set = |id: u16, value: u32| {
            payload.extend(id.to_be_bytes());
            payload.extend(value.to_be_bytes());
        };
        if random.below(2) == 0 {
            let most = random.pick(&[1, 2, 5, 100, 1_000]);
            set(3, most);
            let is_constant = !habits.changes_settings && !habits.is_slow;
            self.allowed = is_constant.then_some(most as usize);
        }
        if habits.is_stingy {
            set(4, 0);
        } else if random.below(2) == 0 {
            set(4, random.pick(&[0, 1, 100, 65_535, 1 << 20]));
        }
        if random.below(4) == 0 {
            set(6, random.pick(&[4_000, 16_384]));
        }
        set(8, 1);
        // No dynamic table: paths are read without one.
        set(1, 0);
        Frame::new(Frame::SETTINGS, 0, 0, &payload)
    }

    /// Breaks HTTP/2.
    async fn violate(&mut self) -> bool {
        let frames = [
            Frame::new(Frame::DATA, 0, 0, b"of no stream"),
            Frame::new(Frame::SETTINGS, Frame::ACK, 0, b"not empty"),
            Frame::new(Frame::HEADERS, Frame::END_HEADERS, 1, &[0xff; 30]),
            Frame::new(Frame::CONTINUATION, 0, 1, b"of nothing"),
            Frame::new(Frame::WINDOW_UPDATE, 0, 0, &[0; 4]),
        ];
        self.is_broken = true;
        let frame = {
            let mut world = self.world.lock();
            world.kills.push(Instant::now());
            self.on_over(&mut world);
            frames[world.random.below(frames.len())].clone()
        };
        self.send(&frame).await
    }

    async fn begin(&mut self, id: u32, is_last: bool) -> bool {
        let Some(stream) = self.streams.get_mut(&id) else {
            return true;
        };
        stream.has_begun = true;
        let name = stream.number.to_string();
        let mut block = vec![0x88];
        literal(&mut block, "x-number", &name);
        let flags = Frame::END_HEADERS | if is_last { Frame::END_STREAM } else { 0 };
        let head = Frame::new(Frame::HEADERS, flags, id, &block);
        let is_hinting = self.world.lock().random.below(6) == 0;
        if is_hinting {
            // 103 Early Hints.
            let hints = b"\x08\x03103";
            let hints = Frame::new(Frame::HEADERS, Frame::END_HEADERS, id, hints);
            if !self.send(&hints).await {
                return false;
            }
        }
        self.send_message(&head).await
    }

    async fn reset(&mut self, id: u32, code: u32) -> bool {
        const REFUSED_STREAM: u32 = 7;
        let Some(stream) = self.streams.remove(&id) else {
            return true;
        };
        if let Some(exchange) = self.world.lock().exchanges.get_mut(&stream.number) {
            for delivery in &mut exchange.all {
                if (delivery.connection, delivery.stream) == (self.number, id) {
                    delivery.is_refused |= code == REFUSED_STREAM && !stream.has_begun;
                    delivery.is_over = true;
                }
            }
            exchange.is_cut |= code != REFUSED_STREAM || stream.has_begun;
        }
        self.send(&Frame::new(Frame::RST_STREAM, 0, id, &code.to_be_bytes()))
            .await
    }

    /// Sends GOAWAY. Streams above the last one are dropped.
    async fn leave(&mut self, last: Option<u32>) -> bool {
        let (last, code) = {
            let mut world = self.world.lock();
            let begun = self.streams.iter().filter(|(_, stream)| stream.has_begun);
            let least = begun.map(|(id, _)| *id).max().unwrap_or(0);
            let seen: Vec<_> = self
                .streams
                .keys()
                .copied()
                .filter(|id| *id > least)
                .collect();
            let random = &mut world.random;
            let drawn = match random.below(3) {
                0 => least,
                1 => self.highest,
                _ => random.pick(&[&seen[..], &[least]].concat()),
            };
            (last.unwrap_or(drawn), [0, 0, 2, 11][random.below(4)])
        };
        let code = if last == u32::MAX >> 1 { 0 } else { code };
        self.left = Some(last);
        let dropped = self.streams.split_off(&(last.saturating_add(1)));
        for (id, stream) in dropped {
            self.on_dropped(id, stream.number);
        }
        let payload = [last.to_be_bytes(), u32::to_be_bytes(code)].concat();
        self.send(&Frame::new(Frame::GOAWAY, 0, 0, &payload)).await
    }

    fn on_dropped(&self, id: u32, number: u32) {
        if let Some(exchange) = self.world.lock().exchanges.get_mut(&number) {
            for delivery in &mut exchange.all {
                if (delivery.connection, delivery.stream) == (self.number, id) {
                    (delivery.is_refused, delivery.is_over) = (true, true);
                }
            }
        }
    }

    async fn on_frame(&mut self, frame: Frame) -> bool {
        let id = frame.stream;
        let is_end = frame.flags & Frame::END_STREAM != 0;
        match frame.kind {
            Frame::HEADERS if id > self.highest => self.on_request(id, &frame.payload, is_end),
            Frame::HEADERS if is_end => self.on_request_end(id),
            Frame::DATA => {
                if let Some(stream) = self.streams.get_mut(&id) {
                    let expected = content(stream.number, stream.received, frame.payload.len());
                    if expected != frame.payload {
                        let fault = format!("{} has content of another", stream.number);
                        self.world.lock().faults.push(fault);
                    }
                    stream.received += frame.payload.len();
                }
                if !frame.payload.is_empty() {
                    // All content counts for the connection, that of streams which are over, too.
                    let bytes = u32::try_from(frame.payload.len()).unwrap();
                    let delay = millis(&mut self.world.lock().random, 300);
                    self.at(delay, Action::Window(0, bytes));
                }
                if is_end {
                    self.on_request_end(id);
                }
            }
            Frame::RST_STREAM if self.streams.remove(&id).is_some() => {
                self.resets.push_back(Instant::now());
            }
            Frame::PING if frame.flags & Frame::ACK == 0 => {
                let ack = Frame::new(Frame::PING, Frame::ACK, 0, &frame.payload);
                return self.send(&ack).await;
            }
            Frame::SETTINGS if frame.flags & Frame::ACK != 0 => self.most = self.allowed,
            Frame::SETTINGS => {
                return self
                    .send(&Frame::new(Frame::SETTINGS, Frame::ACK, 0, &[]))
                    .await;
            }
            Frame::GOAWAY => {
                let code = &frame.payload[4..8];
                if code != [0; 4] && !self.is_broken {
                    let debug = String::from_utf8_lossy(&frame.payload[8..]);
                    let fault = format!("the client ends a connection: {code:?} {debug}");
                    self.world.lock().faults.push(fault);
                }
            }
            _ => {}
        }
        true
    }

    fn on_request(&mut self, id: u32, block: &[u8], is_end: bool) {
        self.highest = id;
        let Some(number) = path(block).and_then(|path| number_of(&path)) else {
            self.world
                .lock()
                .faults
                .push(format!("no path: {block:x?}"));
            return;
        };
        let is_refused = self.left.is_some_and(|last| id > last);
        self.on_delivery(id, number, is_refused);
        if is_refused {
            return;
        }
        let stream = Stream {
            number,
            received: 0,
            has_request_ended: is_end,
            has_begun: false,
        };
        self.streams.insert(id, stream);
        if !self.world.lock().habits.is_slow {
            self.at(Duration::from_millis(1), Action::CheckSharing);
        }
        let (is_early, is_upgrade, mut actions, window, stingy_length) = {
            let mut world = self.world.lock();
            let habits = world.habits;
            let is_upgrade =
                (world.exchanges.get(&number)).is_some_and(|exchange| exchange.is_upgrade);
            let actions = draw(&mut world.random, habits, (id, number), is_upgrade);
            let window = millis(&mut world.random, 500);
            let is_early = world.random.below(4) == 0;
            let Some(exchange) = world.exchanges.get_mut(&number) else {
                return;
            };
            exchange.is_ignored = actions.is_empty();
            let length = u32::try_from(exchange.length).unwrap();
            let stingy_length = (habits.is_stingy && length > 0).then_some(length);
            let is_early = is_early && !is_upgrade;
            (is_early, is_upgrade, actions, window, stingy_length)
        };
        if let Some(length) = stingy_length {
            self.at(window, Action::Window(id, length));
        } else if !is_end {
            self.at(window, Action::Window(id, 1));
        }
        if is_early || is_end {
            self.schedule(actions);
        } else if is_upgrade && !actions.is_empty() {
            let rest = actions.split_off(1);
            self.schedule(actions);
            self.waiting.insert(id, rest);
        } else {
            self.waiting.insert(id, actions);
        }
    }

    fn schedule(&mut self, actions: Vec<(Duration, Action)>) {
        for (delay, action) in actions {
            self.at(delay, action);
        }
    }

    fn on_request_end(&mut self, id: u32) {
        if let Some(stream) = self.streams.get_mut(&id) {
            stream.has_request_ended = true;
        }
        let actions = self.waiting.remove(&id).unwrap_or_default();
        self.schedule(actions);
    }

    /// Checks that no exchange shares a connection for which the upstream might end it.
    fn check_sharing(&self) {
        let mut world = self.world.lock();
        let numbers: Vec<_> = self.streams.values().map(|stream| stream.number).collect();
        let exchanges = &world.exchanges;
        let is_hazardous = |number: &u32| exchanges[number].is_hazardous;
        if numbers.len() > 1 && numbers.iter().any(is_hazardous) {
            world.faults.push(format!("{numbers:?} share a connection"));
        }
    }

    /// Checks that the upstream may get this request, perhaps again.
    fn on_delivery(&mut self, id: u32, number: u32, is_refused: bool) {
        let mut world = self.world.lock();
        let World {
            exchanges, faults, ..
        } = &mut *world;
        let now = Instant::now();
        self.resets.retain(|at| now < *at + RESET_HOLD);
        let taken = self.streams.len() + self.resets.len();
        if self.most.is_some_and(|most| taken >= most) {
            faults.push(format!("{number} is one too many: {taken}"));
        }
        let Some(exchange) = exchanges.get_mut(&number) else {
            return faults.push(format!("{number} was not asked"));
        };
        let touched = exchange.all.iter().filter(|delivery| !delivery.is_refused);
        let touched: Vec<_> = touched.copied().collect();
        let may_repeat = match touched[..] {
            _ if is_refused => true,
            [] => true,
            // A lost connection may be read later than the one that takes its place.
            [before] => (before.is_over || self.is_broken) && !exchange.is_unsafe,
            _ => false,
        };
        if !may_repeat || exchange.all.len() > 4 {
            faults.push(format!("{number} is repeated: {exchange:?}"));
        }
        exchange.all.push(Delivery {
            connection: self.number,
            stream: id,
            is_refused,
            is_over: is_refused || self.is_broken,
        });
    }

    /// Sends a frame of a response. With its end the rest of the request is read and dropped.
    async fn send_message(&mut self, frame: &Frame) -> bool {
        if frame.flags & Frame::END_STREAM != 0 {
            self.streams.remove(&frame.stream);
        }
        self.send(frame).await
    }

    async fn send(&mut self, frame: &Frame) -> bool {
        self.output.write_all(&frame.bytes()).await.is_ok()
    }

    fn on_end(&mut self) {
        let mut world = self.world.lock();
        world.open_connections -= 1;
        self.on_over(&mut world);
    }

    /// Nothing more comes on any stream.
    fn on_over(&self, world: &mut World) {
        for exchange in world.exchanges.values_mut() {
            let all = exchange.all.iter_mut();
            for delivery in all.filter(|delivery| delivery.connection == self.number) {
                delivery.is_over = true;
            }
        }
    }
}

/// Draws the answer of a stream; nothing for a request that is never answered.
fn draw(
    random: &mut Random,
    habits: Habits,
    (id, number): (u32, u32),
    is_upgrade: bool,
) -> Vec<(Duration, Action)> {
    const CODES: [u32; 6] = [0, 1, 2, 7, 8, 11];
    let mut at = millis(random, 2_000);
    let mut actions = Vec::new();
    let resets = habits.resets && random.below(4) == 0;
    if habits.ignores && random.below(10) == 0 {
        return actions;
    }
    if resets && random.below(2) == 0 {
        return vec![(at, Action::Reset(id, random.pick(&CODES)))];
    }
    let pieces = random.below(6) + usize::from(is_upgrade);
    let has_trailers = random.below(3) == 0 && !is_upgrade;
    actions.push((at, Action::Head(id, pieces == 0 && !has_trailers)));
    let mut sent = 0;
    for piece in 0..pieces {
        let most = random.pick(&[1, 1, 500]);
        at += millis(random, most);
        if random.below(4) == 0 {
            let empty = Action::Send(Frame::new(Frame::DATA, 0, id, &[]));
            let count = random.pick(&[1, 15]);
            actions.extend(std::iter::repeat_n((at, empty), count));
        }
        let length = random.pick(&[1, 20, 300, 8_000]);
        let is_last = piece + 1 == pieces && !has_trailers && !resets;
        let flags = if is_last { Frame::END_STREAM } else { 0 };
        let data = Frame::new(Frame::DATA, flags, id, &content(number, sent, length));
        sent += length;
        actions.push((at, Action::Send(data)));
    }
    if resets {
        actions.push((
            at + millis(random, 500),
            Action::Reset(id, random.pick(&CODES)),
        ));
        return actions;
    }
    if has_trailers {
        let mut block = Vec::new();
        literal(&mut block, "x-end", &number.to_string());
        let flags = Frame::END_STREAM | Frame::END_HEADERS;
        actions.push((
            at,
            Action::Send(Frame::new(Frame::HEADERS, flags, id, &block)),
        ));
    }
    actions
}

/// A random time below this number of milliseconds.
pub(super) fn millis(random: &mut Random, most: usize) -> Duration {
    Duration::from_millis(u64::try_from(random.below(most)).unwrap())
}

/// Appends a field to a block, as a literal that is not indexed (RFC 7541 section 6.2.2).
fn literal(block: &mut Vec<u8>, name: &str, value: &str) {
    block.push(0);
    for text in [name, value] {
        block.push(u8::try_from(text.len()).unwrap());
        block.extend(text.as_bytes());
    }
}

/// The path of a request in a block, of which Huffman's code is read for [`super::DIGITS`] and the slash alone.
fn path(mut block: &[u8]) -> Option<String> {
    const PATH: usize = 4;
    while let Some(&first) = block.first() {
        let prefix = match first {
            0x80.. => 7,
            0x40.. => 6,
            0x20.. => 5,
            _ => 4,
        };
        let index = integer(&mut block, prefix)?;
        if prefix == 7 || prefix == 5 {
            continue;
        }
        if index == 0 {
            string(&mut block)?;
        }
        let value = string(&mut block)?;
        if index == PATH {
            return huffman(value);
        }
    }
    None
}

/// Takes an integer with a prefix of this many bits (RFC 7541 section 5.1).
fn integer(block: &mut &[u8], prefix: u32) -> Option<usize> {
    let most = (1 << prefix) - 1;
    let (first, mut rest) = block.split_first()?;
    let mut value = usize::from(*first) & most;
    let mut shift = 0;
    while value >= most {
        let (next, after) = rest.split_first()?;
        rest = after;
        value += usize::from(next & 0x7f) << shift;
        shift += 7;
        if next & 0x80 == 0 {
            break;
        }
    }
    *block = rest;
    Some(value)
}

/// Takes a string without decoding it.
fn string<'a>(block: &mut &'a [u8]) -> Option<&'a [u8]> {
    let length = integer(block, 7)?;
    let (value, rest) = block.split_at_checked(length)?;
    *block = rest;
    Some(value)
}

fn huffman(value: &[u8]) -> Option<String> {
    const SLASH: &str = "011000";
    let bits: String = value.iter().map(|byte| format!("{byte:08b}")).collect();
    let bits = bits.strip_prefix(SLASH)?.as_bytes();
    // The rest is padding.
    let codes = bits
        .chunks_exact(5)
        .map(|code| code.iter().fold(0, |code, bit| 2 * code + bit - b'0'));
    let digits = codes.map_while(|code| super::DIGITS.get(usize::from(code)).copied());
    Some(digits.map(char::from).collect())
}
