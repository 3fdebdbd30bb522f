//! The rows of "Upper bounds with the defaults" in `docs/reference/limits.md`, each with those who reach for it.

use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::{
    Attack, Place, Protocol,
    origin::Exchange,
    peer::{LARGEST_WINDOW, Reads},
    shapes::{answer_in, ask_all, upload_all},
    stand::{Grown, Stand},
    table::{CLIENT, SERVE, SERVER},
};

/// Length of pieces, and of an upload.
const PIECE: usize = 16 * 1024;
const UPLOAD: usize = 1 << 20;

/// Length of a field: forty are a head of 156 KiB, of 160 that are allowed.
const VALUE: usize = 3_900;

/// Answers that a connection asks for, and leaves.
const LEFT: usize = 250;

/// How long programs may take to be full, and how long they do not grow then.
const FULL: Duration = Duration::from_secs(90);
const STILL: Duration = Duration::from_secs(5);

/// A row.
pub struct Bound {
    /// What it is about.
    pub name: &'static str,
    /// What the page says, in bytes.
    pub documented: u64,
    place: Place,
    protocol: Protocol,
    attack: fn() -> Attack,
}

/// All rows.
pub const BOUNDS: [Bound; 5] = [
    Bound {
        name: "server, one runtime whose answers nobody reads",
        documented: SERVER,
        place: Place::Public,
        protocol: Protocol::Http2,
        // More than the 2,048 exchanges that a runtime may have.
        attack: || {
            let attack = Attack::new().by_callers(21, ask_all);
            let attack = attack.that_read(Reads::Nothing, LARGEST_WINDOW);
            attack.answered(|exchange| answer_in(exchange, PIECE, usize::MAX))
        },
    },
    Bound {
        name: "client with that many exchanges, whose content no upstream reads",
        documented: CLIENT,
        place: Place::Upstream,
        protocol: Protocol::Http1,
        attack: || {
            Attack::new().by_callers(21, |peer| async move {
                upload_all(peer, &[], PIECE, UPLOAD).await;
            })
        },
    },
    Bound {
        name: "client with that many exchanges, all answered at the same time with a head of 156 KiB",
        documented: 320 << 20,
        place: Place::Upstream,
        protocol: Protocol::Http1,
        attack: || {
            let attack = Attack::new().by_callers(21, ask_all);
            // What they begin never ends.
            attack.answered(|Exchange { peer, stream }| async move {
                let value = "v".repeat(VALUE);
                peer.answer(stream, &[("x-a", value.as_str()); 40], false)
                    .await;
                std::future::pending().await
            })
        },
    },
    Bound {
        name: "`serve` behind a controller that speaks HTTP/1.1",
        documented: SERVE,
        place: Place::Serve,
        protocol: Protocol::Http1,
        // Some of the 1,024 connections are the neighbours'.
        attack: || {
            Attack::new().by_callers(1_000, |peer| async move {
                upload_all(peer, &[], PIECE, UPLOAD).await;
            })
        },
    },
    Bound {
        name: "`serve`, 1,000 HTTP/2 connections with 250 unread answers each",
        documented: 1_843 << 20,
        place: Place::Serve,
        protocol: Protocol::Http2,
        attack: || {
            let attack = Attack::new().by_callers(1_000, |peer| async move {
                for _ in 0..LEFT {
                    peer.ask("GET", &[], true).await;
                }
            });
            let attack = attack.that_read(Reads::Nothing, LARGEST_WINDOW);
            attack.answered(|Exchange { peer, stream }| async move {
                peer.answer(stream, &[], true).await;
            })
        },
    },
];

impl Bound {
    /// By how much the programs grow until they grow no more.
    pub async fn measure(&self) -> Grown {
        let attack = (self.attack)();
        let stand = Stand::start(self.place, attack.stage, 1).await;
        let rest = stand.rest();
        let hostile = stand.hostile(&attack, self.protocol);
        let began = Instant::now();
        let (mut grown, mut since) = (stand.grown(rest), began);
        while since.elapsed() < STILL && began.elapsed() < FULL {
            sleep(STILL / 10).await;
            let now = stand.grown(rest);
            if now != grown {
                (grown, since) = (now, Instant::now());
            }
        }
        drop(hostile);
        stand.finish().await;
        grown
    }
}
