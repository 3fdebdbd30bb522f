//! Instances, requests and sweeps that use one runtime's slot concurrently, in the thread schedules of a race checker
//! (shuttle).
//!
//! The registry, the directory and the tunnel are the real ones; only the order in which threads get their locks is
//! chosen by the checker. A thread that waits forever fails the test too. A failure prints its schedule, which
//! `shuttle::replay` runs again.

use futures_util::FutureExt;
use shuttle::{
    Config, Runner,
    future::block_on,
    scheduler::{DfsScheduler, PctScheduler, RandomScheduler, Scheduler},
    thread,
};
use tokio::{io::DuplexStream, runtime, time::advance};
use tunnel_proto::session::{Driver, SessionEvents};

use super::{
    tests::{entry, instance, live_session, request},
    *,
};
use crate::lock::without_after;

/// Bytes of stack for each thread: builds with debug information need more than usual.
const STACK: usize = 512 * 1024;

/// Number of random schedules for a scenario that has too many to try all.
const ORDERS: usize = 3_000;

/// Number of thread switches in schedules of the second kind, which find most faults.
const SWITCHES: usize = 3;

/// Runs a scenario in the schedules of the scheduler. Time is paused.
fn check(scheduler: impl Scheduler + 'static, scenario: fn()) {
    let runtime = runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .unwrap();
    let _entered = runtime.enter();
    let mut config = Config::new();
    config.stack_size = STACK;
    let tried = Runner::new(scheduler, config).run(scenario);
    assert!(tried > 0);
}

/// Runs a scenario in random schedules, and in schedules with few thread switches.
fn check_often(scenario: fn()) {
    check(RandomScheduler::new(ORDERS), scenario);
    check(PctScheduler::new(SWITCHES, ORDERS / 2), scenario);
}

/// Runs a scenario in every possible schedule.
fn check_all(scenario: fn()) {
    without_after(|| check(DfsScheduler::new(None, false), scenario));
}

/// One runtime, and what was observed of it.
struct Scene {
    registry: Arc<Registry>,
    entry: Arc<RuntimeEntry>,
    slot: Arc<Slot>,
    /// All tunnels so far.
    tunnels: parking_lot::Mutex<Vec<Arc<Tunnel>>>,
    /// The claim of the latest tunnel that took exchanges.
    served: parking_lot::Mutex<Option<Epoch>>,
}

/// A session that has joined.
struct Joined {
    membership: Membership,
    _live: (SessionEvents, Driver<DuplexStream>),
}

impl Scene {
    fn new() -> Arc<Self> {
        let registry = Registry::new(Metrics::new().unwrap(), Events::new("t"));
        let entry = entry();
        Arc::new(Self {
            slot: registry.list(&entry),
            registry,
            entry,
            tunnels: parking_lot::Mutex::default(),
            served: parking_lot::Mutex::default(),
        })
    }

    fn join(&self, number: u8, on_conflict: OnConflict) -> Result<Joined, JoinRefusal> {
        let (session, events, driver) = live_session();
        let instance = instance(number);
        let request = request(&self.entry, &instance, &session, on_conflict);
        let membership = block_on(self.registry.join(request))?;
        let mut tunnels = self.tunnels.lock();
        tunnels.push(membership.tunnel().clone());
        drop(tunnels);
        Ok(Joined {
            membership,
            _live: (events, driver),
        })
    }

    fn newest(&self, number: u8) -> Option<Joined> {
        match self.join(number, OnConflict::Supersede) {
            Ok(joined) => Some(joined),
            Err(JoinRefusal::Claim(ClaimRefusal::Superseded { by })) => {
                assert_ne!(by, instance(number), "superseded by itself");
                None
            }
            Err(refusal) => panic!("{refusal}"),
        }
    }

    /// Checks what must be true at any time.
    fn precheck(&self) {
        let state = self.slot.state.lock();
        let present = state.tunnel.as_ref();
        let known = self.tunnels.lock().clone();
        let is_present = |tunnel: &Arc<Tunnel>| present.is_some_and(|it| Arc::ptr_eq(it, tunnel));
        for older in known.iter().filter(|tunnel| !is_present(tunnel)) {
            assert!(older.session().is_none(), "an older tunnel takes exchanges");
        }
        let Some(present) = present else { return };
        let epoch = present.claim().epoch;
        let current = self.registry.directory.current(&self.slot.label);
        let current = current.expect("a tunnel stands without a claim");
        assert!(current.epoch >= epoch);
        let before = self.served.lock().replace(epoch);
        assert!(before <= Some(epoch), "an older instance is back");
    }

    /// Checks what must be true when all instances have left.
    fn assert_empty(&self) {
        self.precheck();
        assert!(self.slot.tunnel().is_none());
        assert!(self.slot.online_since().is_none());
        assert!(self.registry.directory.is_empty());
        assert_eq!(self.registry.metrics.sessions.get(), 0);
        let tunnels = self.tunnels.lock().clone();
        assert!(tunnels.iter().all(|tunnel| tunnel.session_count() == 0));
    }

    /// Whether a tunnel got the directive to be superseded.
    fn is_superseded(&self, joined: &Joined) -> bool {
        let order = joined.membership.directive(0).now_or_never();
        matches!(order, Some(Directive::Superseded { .. }))
    }
}

/// Begins threads, one for each number, and waits for them.
fn each<T: Send + 'static>(scene: &Arc<Scene>, numbers: &[u8], act: fn(&Scene, u8) -> T) -> Vec<T> {
    let begin = |number: &u8| {
        let (scene, number) = (scene.clone(), *number);
        thread::spawn(move || act(&scene, number))
    };
    let threads: Vec<_> = numbers.iter().map(begin).collect();
    threads
        .into_iter()
        .map(|thread| thread.join().unwrap())
        .collect()
}

#[test]
fn instances_that_join_and_leave_are_removed_entirely() {
    check_often(|| {
        let scene = Scene::new();
        each(&scene, &[1, 2, 3], |scene, number| {
            let _ = block_on(scene.registry.precheck(
                &scene.entry,
                &instance(number),
                OnConflict::Supersede,
            ));
            let first = scene.newest(number);
            scene.precheck();
            let second = scene.newest(number);
            scene.precheck();
            drop(first);
            scene.precheck();
            drop(second);
            scene.precheck();
        });
        scene.assert_empty();
    });
}

#[test]
fn the_newest_claim_holds_the_runtime_and_late_leaves_do_not_touch_it() {
    check_often(|| {
        let scene = Scene::new();
        let joined = each(&scene, &[1, 2, 3], |scene, number| {
            let joined = scene.newest(number);
            scene.precheck();
            joined
        });
        let mut joined: Vec<_> = joined.into_iter().flatten().collect();
        joined.sort_by_key(|joined| joined.membership.tunnel().claim().epoch);
        let newest = joined.pop().expect("no instance has the runtime");
        assert!(!scene.is_superseded(&newest));
        assert!(joined.iter().all(|older| scene.is_superseded(older)));
        let leaving = joined
            .into_iter()
            .map(|older| thread::spawn(move || drop(older)));
        let leaving: Vec<_> = leaving.collect();
        scene.precheck();
        for thread in leaving {
            thread.join().unwrap();
        }
        let (tunnel, _) = scene.slot.online().expect("the newest has it");
        assert!(Arc::ptr_eq(&tunnel, newest.membership.tunnel()));
        assert_eq!(scene.registry.directory.len(), 1);
        drop(newest);
        scene.assert_empty();
    });
}

#[test]
fn sessions_of_one_instance_are_one_tunnel_while_one_of_them_is_there() {
    check_often(|| {
        let scene = Scene::new();
        each(&scene, &[1, 1, 1], |scene, number| {
            for _ in 0..2 {
                let joined = scene.newest(number).expect("no other instance claims it");
                assert!(!scene.is_superseded(&joined));
                assert!(scene.slot.online().is_some());
                scene.precheck();
            }
        });
        scene.assert_empty();
    });
}

#[test]
fn an_older_instance_that_is_kept_is_never_superseded() {
    check_often(|| {
        let scene = Scene::new();
        each(&scene, &[1, 2, 3], |scene, number| {
            match scene.join(number, OnConflict::Reject) {
                Ok(joined) => {
                    scene.precheck();
                    let tunnel = scene.slot.tunnel().expect("it has joined");
                    assert!(Arc::ptr_eq(&tunnel, joined.membership.tunnel()));
                    assert!(!scene.is_superseded(&joined));
                }
                Err(JoinRefusal::Claim(ClaimRefusal::Held { holder })) => {
                    assert_ne!(holder, instance(number));
                }
                Err(refusal) => panic!("{refusal}"),
            }
        });
        scene.assert_empty();
    });
}

/// A thread that is not woken would wait forever.
#[test]
fn a_superseded_session_is_notified() {
    check_often(|| {
        let scene = Scene::new();
        let older = scene.newest(1).expect("no other instance claims it");
        let leaving = thread::spawn(move || {
            let order = block_on(older.membership.directive(0));
            assert_eq!(order, Directive::Superseded { by: instance(2) });
            assert!(older.membership.tunnel().session().is_none());
        });
        let newer = scene.newest(2);
        leaving.join().unwrap();
        drop(newer);
        scene.assert_empty();
    });
}

#[test]
fn a_request_that_waits_is_woken_when_a_session_joins() {
    check_often(|| {
        let scene = Scene::new();
        let waiting = [(); 2].map(|()| {
            let slot = scene.slot.clone();
            thread::spawn(move || {
                let online = block_on(slot.online_within(RETURN_WINDOW, None, || 0)).unwrap();
                assert!(online.is_some());
            })
        });
        let joined = each(&scene, &[1, 2], |scene, number| scene.newest(number));
        for thread in waiting {
            thread.join().unwrap();
        }
        drop(joined);
        scene.assert_empty();
    });
}

#[test]
fn a_sweep_never_removes_the_slot_of_an_online_runtime() {
    check_often(|| {
        let registry = Registry::new(Metrics::new().unwrap(), Events::new("t"));
        let sweeping = registry.clone();
        let sweeping = thread::spawn(move || {
            for _ in 0..2 {
                block_on(advance(RETURN_WINDOW * 2));
                sweeping.sweep();
            }
        });
        let others = registry.clone();
        let listing = thread::spawn(move || {
            others.list(&entry());
            others.keep_listed(|_| false);
        });
        let (entry, instance) = (entry(), instance(1));
        for _ in 0..2 {
            let (session, events, driver) = live_session();
            let request = request(&entry, &instance, &session, OnConflict::Supersede);
            let membership = block_on(registry.join(request)).unwrap();
            let slot = registry.slot("acme-prod").expect("it is online");
            let (tunnel, _) = slot.online().expect("it has joined");
            assert!(Arc::ptr_eq(&tunnel, membership.tunnel()));
            drop((membership, events, driver));
        }
        sweeping.join().unwrap();
        listing.join().unwrap();
        assert!(registry.directory.is_empty());
        block_on(advance(RETURN_WINDOW * 2));
        registry.sweep();
        assert!(registry.slots().is_empty());
    });
}

#[test]
fn a_leave_and_a_takeover_leave_the_newer_instance_in_every_schedule() {
    check_all(|| {
        let scene = Scene::new();
        let older = scene.newest(1);
        let leaving = thread::spawn(move || drop(older));
        let newer = scene.newest(2).expect("it is the newest");
        leaving.join().unwrap();
        let (tunnel, _) = scene.slot.online().expect("the newest has it");
        assert!(Arc::ptr_eq(&tunnel, newer.membership.tunnel()));
        drop(newer);
        scene.assert_empty();
    });
}

#[test]
fn a_wait_and_a_join_end_with_a_session_in_every_schedule() {
    check_all(|| {
        let scene = Scene::new();
        let slot = scene.slot.clone();
        let waiting = thread::spawn(move || {
            let online = block_on(slot.online_within(RETURN_WINDOW, None, || 0)).unwrap();
            assert!(online.is_some());
        });
        let joined = scene.newest(1);
        waiting.join().unwrap();
        drop(joined);
        scene.assert_empty();
    });
}

#[test]
fn two_claims_that_end_are_both_removed_in_every_schedule() {
    check_all(|| {
        let directory = Arc::new(Directory::default());
        let newer = directory.clone();
        let hold = |directory: &Directory, number| {
            let (entry, instance) = (entry(), instance(number));
            let claimant = entry.claimant(false, &instance, OnConflict::Supersede);
            block_on(directory.claim(claimant))
        };
        let newer = thread::spawn(move || hold(&newer, 2).map(drop));
        let older = hold(&directory, 1);
        let epoch = older.as_ref().ok().map(|held| held.claim().epoch);
        drop(older);
        newer.join().unwrap().unwrap();
        assert!(directory.is_empty());
        let again = hold(&directory, 1).unwrap();
        assert!(Some(again.claim().epoch) > epoch);
    });
}
