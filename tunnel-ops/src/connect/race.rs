//! Races the addresses of both families (RFC 8305), so that one that leads nowhere costs a quarter of a second instead
//! of the whole step.
//!
//! ```text
//!   2001:db8::1  ├────────────────────────────────────── (nothing)
//!   192.0.2.1        ├─────── refused
//!   2001:db8::2              ├──── connected: the others are dropped
//!                └ 250 ms ┘  └ at once after a failure
//! ```
//!
//! In: addresses, the limit of the step, and the attempt to make for each. Out: the first attempt that succeeds, or
//! why each failed. Nothing here knows sockets.

use std::error::Error;
use std::fmt;
use std::future::{Future, poll_fn};
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::Poll;
use std::time::Duration;

use tokio::time::{Instant, sleep_until};

/// Time between two attempts, as RFC 8305 section 5 recommends; less if the limit of the step would not reach all
/// addresses.
const ATTEMPT_DELAY: Duration = Duration::from_millis(250);

/// Most addresses that an error names.
const NAMED: usize = 4;

/// A failed attempt.
#[derive(Debug)]
pub struct Attempt {
    /// The address.
    pub address: SocketAddr,
    /// Why; of kind [`io::ErrorKind::TimedOut`] if nothing came back within the limit of the step.
    pub error: io::Error,
}

/// The connection to the first address that accepted.
pub struct Connected<T> {
    /// What the attempt has made.
    pub stream: T,
    /// Its address.
    pub address: SocketAddr,
    /// The attempts that failed before it, in that order.
    pub failed: Vec<Attempt>,
}

/// No address was reached.
#[derive(Debug)]
pub struct AllFailed(Vec<Attempt>);

/// The order in which addresses are tried: IPv6 and IPv4 alternate, IPv6 first, each family in the order of the
/// resolver, without duplicates.
pub fn order(addresses: impl IntoIterator<Item = SocketAddr>) -> Vec<SocketAddr> {
    let (six, four): (Vec<_>, Vec<_>) = addresses.into_iter().partition(SocketAddr::is_ipv6);
    let (mut six, mut four) = (six.into_iter(), four.into_iter());
    let mut ordered = Vec::with_capacity(six.len() + four.len());
    loop {
        let turn = [six.next(), four.next()];
        if turn == [None, None] {
            return ordered;
        }
        for address in turn.into_iter().flatten() {
            if !ordered.contains(&address) {
                ordered.push(address);
            }
        }
    }
}

/// Tries the addresses in this order, each after a short time or a failure of the one before, until one attempt
/// succeeds, all have failed, or the limit is over. The other attempts are dropped.
pub(super) async fn race<T, F>(
    addresses: &[SocketAddr],
    limit: Duration,
    attempt: impl Fn(SocketAddr) -> F,
) -> Result<Connected<T>, AllFailed>
where
    F: Future<Output = io::Result<T>>,
{
    let end = Instant::now() + limit;
    let count = u32::try_from(addresses.len()).unwrap_or(u32::MAX);
    let delay = ATTEMPT_DELAY.min(limit / count.saturating_add(1));
    let mut waiting = addresses.iter().copied();
    let mut running = Vec::new();
    let mut failed = Vec::new();
    loop {
        if let Some(address) = waiting.next() {
            running.push((address, Box::pin(attempt(address))));
        } else if running.is_empty() {
            return Err(AllFailed::new(failed));
        }
        let next = match waiting.len() {
            0 => end,
            _ => end.min(Instant::now() + delay),
        };
        tokio::select! {
            biased;
            (address, ended) = first(&mut running) => match ended {
                Ok(stream) => return Ok(Connected { stream, address, failed }),
                Err(error) => failed.push(Attempt { address, error }),
            },
            () = sleep_until(next) => if Instant::now() >= end {
                let unanswered = running.into_iter().map(|(address, _)| Attempt {
                    address,
                    error: io::ErrorKind::TimedOut.into(),
                });
                failed.extend(unanswered);
                return Err(AllFailed::new(failed));
            },
        }
    }
}

/// Waits for the first attempt that ends, and removes it.
async fn first<T, F>(running: &mut Vec<(SocketAddr, Pin<Box<F>>)>) -> (SocketAddr, io::Result<T>)
where
    F: Future<Output = io::Result<T>>,
{
    poll_fn(|cx| {
        for index in 0..running.len() {
            let Some((address, attempt)) = running.get_mut(index) else {
                break;
            };
            if let Poll::Ready(ended) = attempt.as_mut().poll(cx) {
                let address = *address;
                running.remove(index);
                return Poll::Ready((address, ended));
            }
        }
        Poll::Pending
    })
    .await
}

impl AllFailed {
    /// No address was reached by these attempts.
    #[must_use]
    pub fn new(attempts: Vec<Attempt>) -> Self {
        Self(attempts)
    }

    /// The attempts, in the order in which they failed.
    pub fn attempts(&self) -> &[Attempt] {
        &self.0
    }

    /// The kind of error for all: a refusal says more than a missing answer.
    fn kind(&self) -> io::ErrorKind {
        let kinds = || self.0.iter().map(|attempt| attempt.error.kind());
        if kinds().any(|kind| kind == io::ErrorKind::ConnectionRefused) {
            return io::ErrorKind::ConnectionRefused;
        }
        kinds()
            .next_back()
            .unwrap_or(io::ErrorKind::AddrNotAvailable)
    }
}

impl fmt::Display for AllFailed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() {
            return f.write_str("none of the name's addresses may be dialled");
        }
        for (index, Attempt { address, error }) in self.0.iter().take(NAMED).enumerate() {
            let separator = if index == 0 { "" } else { ", " };
            match error.kind() {
                io::ErrorKind::TimedOut => write!(f, "{separator}{address}: no answer")?,
                _ => write!(f, "{separator}{address}: {error}")?,
            }
        }
        match self.0.len().checked_sub(NAMED) {
            None | Some(0) => Ok(()),
            Some(more) => write!(f, ", and {more} more"),
        }
    }
}

impl Error for AllFailed {
    /// The error of the last attempt.
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        let last = self.0.last()?;
        Some(&last.error)
    }
}

impl From<AllFailed> for io::Error {
    fn from(all: AllFailed) -> Self {
        Self::new(all.kind(), all)
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use proptest::prelude::*;
    use tokio::time::sleep;

    use super::*;

    const LIMIT: Duration = Duration::from_secs(10);

    fn address(text: &str) -> SocketAddr {
        format!("{text}:443").parse().unwrap()
    }

    fn addresses(texts: &[&str]) -> Vec<SocketAddr> {
        texts.iter().map(|text| address(text)).collect()
    }

    /// What happens to the attempt at an address: after so many milliseconds it succeeds or is refused;
    /// one that is not here never ends.
    type Fates<'a> = &'a [(&'a str, u64, bool)];

    /// Runs a race; when each attempt began, in milliseconds, and how it ended.
    async fn run(texts: &[&str], fates: Fates<'_>) -> (Vec<u64>, Result<String, AllFailed>, u64) {
        let began = Instant::now();
        let elapsed = || u64::try_from(began.elapsed().as_millis()).unwrap();
        let starts = RefCell::new(Vec::new());
        let connected = race(&addresses(texts), LIMIT, |tried| {
            starts.borrow_mut().push(elapsed());
            let fate = fates.iter().find(|(text, ..)| address(text) == tried);
            async move {
                let Some((text, after, succeeds)) = fate else {
                    return std::future::pending().await;
                };
                sleep(Duration::from_millis(*after)).await;
                match succeeds {
                    true => Ok((*text).to_owned()),
                    false => Err(io::ErrorKind::ConnectionRefused.into()),
                }
            }
        })
        .await;
        (
            starts.take(),
            connected.map(|connected| connected.stream),
            elapsed(),
        )
    }

    #[test]
    fn families_take_turns_and_ipv6_begins() {
        let ordered = order(addresses(&[
            "10.0.0.1", "10.0.0.2", "[::1]", "10.0.0.1", "10.0.0.3", "[::2]",
        ]));
        assert_eq!(
            ordered,
            addresses(&["[::1]", "10.0.0.1", "[::2]", "10.0.0.2", "10.0.0.3"])
        );
        assert_eq!(order([]), []);
    }

    #[tokio::test(start_paused = true)]
    async fn what_answers_at_once_is_the_only_one_tried() {
        let (starts, connected, took) = run(&["[::1]", "10.0.0.1"], &[("[::1]", 200, true)]).await;
        assert_eq!(
            (starts, connected.unwrap().as_str(), took),
            (vec![0], "[::1]", 200)
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_way_that_leads_nowhere_costs_a_quarter_of_a_second() {
        let texts = ["[::1]", "10.0.0.1", "[::2]"];
        let (starts, connected, took) = run(&texts, &[("10.0.0.1", 50, true)]).await;
        assert_eq!(
            (starts, connected.unwrap().as_str(), took),
            (vec![0, 250], "10.0.0.1", 300)
        );
        // The one that was first may still win.
        let (_, connected, took) =
            run(&texts, &[("[::1]", 400, true), ("10.0.0.1", 500, true)]).await;
        assert_eq!((connected.unwrap().as_str(), took), ("[::1]", 400));
    }

    #[tokio::test(start_paused = true)]
    async fn the_next_follows_a_failure_at_once() {
        let fates = [
            ("[::1]", 10, false),
            ("10.0.0.1", 20, false),
            ("[::2]", 5, true),
        ];
        let (starts, connected, took) = run(&["[::1]", "10.0.0.1", "[::2]"], &fates).await;
        assert_eq!(
            (starts, connected.unwrap().as_str(), took),
            (vec![0, 10, 30], "[::2]", 35)
        );
    }

    #[tokio::test(start_paused = true)]
    async fn when_all_fail_each_is_named_and_why() {
        let fates = [("10.0.0.1", 20, false)];
        let (starts, lost, took) = run(&["[::1]", "10.0.0.1"], &fates).await;
        let error = io::Error::from(lost.unwrap_err());
        assert_eq!((starts, took), (vec![0, 250], 10_000));
        assert_eq!(
            error.to_string(),
            "10.0.0.1:443: connection refused, [::1]:443: no answer"
        );
        assert_eq!(error.kind(), io::ErrorKind::ConnectionRefused);
        let (_, lost, _) = run(&["[::1]"], &[]).await;
        assert_eq!(
            io::Error::from(lost.unwrap_err()).kind(),
            io::ErrorKind::TimedOut
        );
        let (_, lost, took) = run(&[], &[]).await;
        assert_eq!(
            (lost.unwrap_err().kind(), took),
            (io::ErrorKind::AddrNotAvailable, 0)
        );
    }

    #[tokio::test(start_paused = true)]
    async fn of_many_all_are_tried_within_the_limit_and_few_are_named() {
        let texts: Vec<_> = (0..99).map(|last| format!("10.0.0.{last}")).collect();
        let texts: Vec<_> = texts.iter().map(String::as_str).collect();
        let (starts, lost, took) = run(&texts, &[]).await;
        assert_eq!((starts.len(), took), (99, 10_000));
        let text = lost.unwrap_err().to_string();
        assert!(
            text.ends_with("10.0.0.3:443: no answer, and 95 more"),
            "{text}"
        );
    }

    proptest! {
        #[test]
        fn the_order_loses_none_and_never_delays_a_family(
            families in proptest::collection::vec(any::<(bool, u8)>(), 0..20)
        ) {
            let given: Vec<SocketAddr> = families
                .iter()
                .map(|(six, last)| match six {
                    true => address(&format!("[fd00::{last:x}]")),
                    false => address(&format!("10.0.0.{last}")),
                })
                .collect();
            let ordered = order(given.clone());
            prop_assert!(given.iter().all(|address| ordered.contains(address)));
            let mut once = ordered.clone();
            once.sort();
            once.dedup();
            prop_assert_eq!(once.len(), ordered.len());
            for family in [SocketAddr::is_ipv4, SocketAddr::is_ipv6] {
                let mut of_family: Vec<_> = given.iter().copied().filter(family).collect();
                let mut seen = Vec::new();
                of_family.retain(|address| !seen.contains(address) && { seen.push(*address); true });
                let kept: Vec<_> = ordered.iter().copied().filter(family).collect();
                prop_assert_eq!(kept, of_family);
            }
        }
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn the_cause_is_known_of_an_attempt_without_a_descriptor() {
        // EMFILE and ECONNREFUSED.
        for (errno, expected) in [(24, true), (111, false)] {
            let attempt = Attempt {
                address: address("127.0.0.1"),
                error: io::Error::from_raw_os_error(errno),
            };
            let error = io::Error::from(AllFailed(vec![attempt]));
            assert_eq!(crate::descriptors::is_exhausted(&error), expected);
        }
    }
}
