//! Instances, requests and clean-ups that come to one runtime's place at once, in every order that a
//! checker of races (shuttle) finds for them.
//!
//! What is tried is the registry, the directory and the tunnel themselves: all but the order in which
//! threads get their locks is as in the program. A thread that waits for something which never comes
//! fails a test too. A failure prints its schedule, which `shuttle::replay` runs again.

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
    tests::{entry, instance, joining, live_session},
    *,
};
use crate::lock::without_after;

/// Bytes of stack for each thread: builds with debug information need more than usual.
const STACK: usize = 512 * 1024;

/// Orders that are tried of what has too many for all.
const ORDERS: usize = 3_000;

/// Changes of thread that the orders of the second kind consist of, where most faults hide.
const SWITCHES: usize = 3;

/// Runs a scenario in the orders that the scheduler gives. Time stands still.
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

/// In so many random orders, and in so many with few changes of thread.
fn check_often(scenario: fn()) {
    check(RandomScheduler::new(ORDERS), scenario);
    check(PctScheduler::new(SWITCHES, ORDERS / 2), scenario);
}

/// In every order in which threads can get their locks.
fn check_all(scenario: fn()) {
    without_after(|| check(DfsScheduler::new(None, false), scenario));
}

/// One runtime, and what was seen of it.
struct Scene {
    registry: Arc<Registry>,
    entry: Arc<RuntimeEntry>,
    slot: Arc<Slot>,
    /// Every tunnel that there was.
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
        let joining = joining(&self.entry, &instance, &session, on_conflict);
        let membership = block_on(self.registry.join(joining))?;
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

    /// What has to be true at any time.
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
        let standing = self.registry.directory.standing(&self.slot.label);
        let standing = standing.expect("a tunnel stands without a claim");
        assert!(standing.epoch >= epoch);
        let before = self.served.lock().replace(epoch);
        assert!(before <= Some(epoch), "an older instance is back");
    }

    /// What has to be true when everybody has left.
    fn assert_empty(&self) {
        self.precheck();
        assert!(self.slot.tunnel().is_none());
        assert!(self.slot.online_since().is_none());
        assert!(self.registry.directory.is_empty());
        assert_eq!(self.registry.metrics.sessions.get(), 0);
        let tunnels = self.tunnels.lock().clone();
        assert!(tunnels.iter().all(|tunnel| tunnel.session_count() == 0));
    }

    /// Whether a tunnel was told to give way.
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
fn instances_that_come_and_go_leave_nothing_behind() {
    check_often(|| {
        let scene = Scene::new();
        each(&scene, &[1, 2, 3], |scene, number| {
            let _ = block_on(scene.registry.precheck(
                &scene.slot.label,
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
        let newest = joined.pop().expect("nobody has the runtime");
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
                let joined = scene.newest(number).expect("nobody else wants it");
                assert!(!scene.is_superseded(&joined));
                assert!(scene.slot.online().is_some());
                scene.precheck();
            }
        });
        scene.assert_empty();
    });
}

#[test]
fn where_the_older_instance_is_kept_it_is_never_told_to_go() {
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

/// A thread that is not woken would wait for ever.
#[test]
fn a_superseded_session_hears_of_it() {
    check_often(|| {
        let scene = Scene::new();
        let older = scene.newest(1).expect("nobody else wants it");
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
fn whoever_waits_for_a_runtime_is_woken_when_a_session_joins() {
    check_often(|| {
        let scene = Scene::new();
        let waiting = [(); 2].map(|()| {
            let slot = scene.slot.clone();
            thread::spawn(move || {
                let online = block_on(slot.online_within(RETURNING, None, || 0)).unwrap();
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
fn a_clean_up_never_takes_the_place_of_a_runtime_that_is_there() {
    check_often(|| {
        let registry = Registry::new(Metrics::new().unwrap(), Events::new("t"));
        let sweeping = registry.clone();
        let sweeping = thread::spawn(move || {
            for _ in 0..2 {
                block_on(advance(RETURNING * 2));
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
            let joining = joining(&entry, &instance, &session, OnConflict::Supersede);
            let membership = block_on(registry.join(joining)).unwrap();
            let slot = registry.slot("acme-prod").expect("it is online");
            let (tunnel, _) = slot.online().expect("it has joined");
            assert!(Arc::ptr_eq(&tunnel, membership.tunnel()));
            drop((membership, events, driver));
        }
        sweeping.join().unwrap();
        listing.join().unwrap();
        assert!(registry.directory.is_empty());
        block_on(advance(RETURNING * 2));
        registry.sweep();
        assert!(registry.slots().is_empty());
    });
}

#[test]
fn a_leave_and_a_takeover_in_every_order_leave_the_newer_instance() {
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
fn a_wait_and_a_join_in_every_order_end_with_a_session() {
    check_all(|| {
        let scene = Scene::new();
        let slot = scene.slot.clone();
        let waiting = thread::spawn(move || {
            let online = block_on(slot.online_within(RETURNING, None, || 0)).unwrap();
            assert!(online.is_some());
        });
        let joined = scene.newest(1);
        waiting.join().unwrap();
        drop(joined);
        scene.assert_empty();
    });
}

#[test]
fn of_two_claims_that_come_and_go_none_is_left_in_any_order() {
    check_all(|| {
        let directory = Arc::new(Directory::default());
        let newer = directory.clone();
        let hold = |directory: &Directory, number| {
            let (entry, instance) = (entry(), instance(number));
            let claim = directory.claim(&entry.label, &instance, OnConflict::Supersede);
            block_on(claim)
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
