//! Folders to watch so that no change of a file is missed.
//!
//! In: the paths of files. Out: a wake-up after any event that could have changed one of them. A watch of a
//! file ends with its inode, so folders are watched: the file's folder, every folder that holds a symlink
//! of its path, and for a missing path component the folder in which it would appear. If the kernel cannot
//! watch, there are no wake-ups, and one warning is logged.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};
use std::sync::{Arc, LazyLock, Weak};

use notify::event::{AccessKind, Event, EventKind};
use notify::{ErrorKind, RecommendedWatcher, RecursiveMode, Watcher};
use parking_lot::Mutex;
use tokio::sync::Notify;

/// Most symlinks followed in the path of one file: the limit of Linux.
const MAX_SYMLINKS: usize = 40;

/// Attempts to get a list of folders that does not change while they are being watched. If all fail, the
/// events of the last change still arrive.
const MAX_ROUNDS: usize = 4;

type OpenWatcher = fn(Listeners) -> notify::Result<RecommendedWatcher>;

/// The watches of this process. Each event is offered to all of them, by the watcher's thread, which locks the list; so
/// the list is never locked around a call of the watcher.
type Listeners = Arc<Mutex<Vec<Weak<FolderEvents>>>>;

/// The one watcher of this process: a user may have only so many (`fs.inotify.max_user_instances`, usually
/// 128 for all programs together).
static SHARED: LazyLock<Arc<SharedWatcher>> = LazyLock::new(|| {
    Arc::new(SharedWatcher::new(|listeners| {
        notify::recommended_watcher(move |event: notify::Result<Event>| {
            let listeners: Vec<_> = listeners.lock().iter().filter_map(Weak::upgrade).collect();
            for listener in listeners {
                listener.on_event(event.as_ref().ok());
            }
        })
    }))
});

/// A watcher that several sets of folders use.
pub(super) struct SharedWatcher {
    open_watcher: OpenWatcher,
    listeners: Listeners,
    state: Mutex<WatcherState>,
}

#[derive(Default)]
struct WatcherState {
    /// `None` while nobody uses it, or if the kernel gives none.
    watcher: Option<RecommendedWatcher>,
    folders: BTreeMap<PathBuf, WatchedFolder>,
    next_user: u64,
}

/// A folder that the kernel watches.
struct WatchedFolder {
    inode: Inode,
    users: BTreeSet<u64>,
}

/// The watched folders of one set of files.
pub(super) struct Folders {
    events: Arc<FolderEvents>,
    shared: Arc<SharedWatcher>,
    user: u64,
    /// Whether the last attempt failed, so that a failure is logged once.
    has_failed: bool,
}

/// The events of one set of files. The part that the watcher's thread uses.
#[derive(Debug, Default)]
pub(super) struct FolderEvents {
    event: Notify,
    /// File names that matter: other files in a watched folder cause no wake-up.
    names: Mutex<BTreeSet<OsString>>,
}

/// Device and inode number.
type Inode = (u64, u64);

/// The folders to watch in the current state of the file system, and the names in them that matter.
#[derive(Debug, Default, PartialEq, Eq)]
struct WatchPlan {
    folders: BTreeMap<PathBuf, Inode>,
    names: BTreeSet<OsString>,
}

impl SharedWatcher {
    pub(super) fn new(open_watcher: OpenWatcher) -> Self {
        Self {
            open_watcher,
            listeners: Arc::default(),
            state: Mutex::default(),
        }
    }

    /// Watches the folders of the plan for `user`, and no longer those that only `user` has watched and the plan does not
    /// have.
    fn watch(&self, user: u64, plan: &WatchPlan) -> notify::Result<()> {
        let mut state = self.state.lock();
        let state = &mut *state;
        state.leave(user, plan);
        let watcher = match &mut state.watcher {
            Some(watcher) => watcher,
            none => none.insert((self.open_watcher)(Arc::clone(&self.listeners))?),
        };
        let mut result = Ok(());
        for (folder, inode) in &plan.folders {
            // Watched folders too: it costs little, and the watcher drops a watch when an old folder with
            // this path is deleted.
            match watcher.watch(folder, RecursiveMode::NonRecursive) {
                Ok(()) => {
                    let watched = state.folders.entry(folder.clone());
                    let watched = watched.or_insert_with(|| WatchedFolder {
                        inode: *inode,
                        users: BTreeSet::new(),
                    });
                    watched.users.insert(user);
                }
                Err(error) if is_missing(&error) => {}
                Err(error) => result = Err(error),
            }
        }
        result
    }
}

impl WatcherState {
    /// Ends the watches that only this user has and that are not in the plan, and those of folders that another folder has
    /// replaced: the next call watches that one.
    fn leave(&mut self, user: u64, plan: &WatchPlan) {
        let Some(watcher) = &mut self.watcher else {
            return;
        };
        self.folders.retain(|folder, watched| {
            let stays = match plan.folders.get(folder) {
                Some(inode) => *inode == watched.inode,
                None => {
                    watched.users.remove(&user);
                    !watched.users.is_empty()
                }
            };
            if !stays {
                // An error means that the folder and its watch no longer exist.
                let _ = watcher.unwatch(folder);
            }
            stays
        });
    }
}

impl Folders {
    /// Watches nothing yet.
    pub(super) fn new() -> Self {
        Self::with_watcher(Arc::clone(&SHARED))
    }

    pub(super) fn with_watcher(shared: Arc<SharedWatcher>) -> Self {
        let events = Arc::<FolderEvents>::default();
        shared.listeners.lock().push(Arc::downgrade(&events));
        let mut state = shared.state.lock();
        let user = state.next_user;
        state.next_user += 1;
        drop(state);
        Self {
            events,
            shared,
            user,
            has_failed: false,
        }
    }

    /// The events of the watched folders.
    pub(super) fn events(&self) -> Arc<FolderEvents> {
        Arc::clone(&self.events)
    }

    /// Watches the folders that these files need now.
    pub(super) fn follow<'a>(&mut self, files: impl Iterator<Item = &'a Path> + Clone) {
        let mut plan = WatchPlan::of(files.clone());
        for _ in 0..MAX_ROUNDS {
            *self.events.names.lock() = plan.names.clone();
            let watched = self.shared.watch(self.user, &plan);
            self.report(watched);
            // A change before its folder was watched caused no event.
            let now = WatchPlan::of(files.clone());
            if now == plan {
                break;
            }
            plan = now;
        }
    }

    fn report(&mut self, watched: notify::Result<()>) {
        match watched {
            Err(error) if !self.has_failed => {
                let is_denied = matches!(
                    &error.kind,
                    ErrorKind::Io(error) if error.kind() == io::ErrorKind::PermissionDenied
                );
                let advice = match is_denied {
                    true => "let this program's user read the folders of the files",
                    false => "raise fs.inotify.max_user_watches or max_user_instances",
                };
                tracing::warn!(
                    folders = ?error.paths,
                    %error,
                    advice,
                    "the kernel does not report all file changes, they are noticed within 5 seconds"
                );
                self.has_failed = true;
            }
            Err(_) => {}
            Ok(()) => self.has_failed = false,
        }
    }
}

impl Drop for Folders {
    fn drop(&mut self) {
        let mut listeners = self.shared.listeners.lock();
        listeners.retain(|listener| !std::ptr::eq(listener.as_ptr(), &raw const *self.events));
        drop(listeners);
        let mut state = self.shared.state.lock();
        state.leave(self.user, &WatchPlan::default());
        if state.folders.is_empty() {
            state.watcher = None;
        }
    }
}

impl fmt::Debug for Folders {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Folders")
            .field("user", &self.user)
            .field("has_failed", &self.has_failed)
            .finish_non_exhaustive()
    }
}

impl FolderEvents {
    /// Returns after an event on a watched file or a component of its path. Cancel safe.
    pub(super) async fn touched(&self) {
        self.event.notified().await;
    }

    /// `None` says that events may be lost.
    fn on_event(&self, event: Option<&Event>) {
        if event.is_none_or(|event| self.matters(event)) {
            self.event.notify_one();
        }
    }

    fn matters(&self, event: &Event) -> bool {
        // Reading, which this program does itself, opens a file; only the close by a writer matters.
        if let EventKind::Access(AccessKind::Open(_) | AccessKind::Read) = event.kind {
            return false;
        }
        let names = self.names.lock();
        event.paths.is_empty()
            || (event.paths.iter())
                .any(|path| path.file_name().is_none_or(|name| names.contains(name)))
    }
}

impl WatchPlan {
    fn of<'a>(files: impl Iterator<Item = &'a Path>) -> Self {
        let mut plan = Self::default();
        for file in files {
            plan.add_file(file);
        }
        plan
    }

    /// Resolves the path of a file as the kernel does, and adds the folders on it.
    fn add_file(&mut self, file: &Path) {
        let absolute = std::path::absolute(file);
        let file = absolute.as_deref().unwrap_or(file);
        let mut ahead: VecDeque<OsString> = names(file).collect();
        let mut at = PathBuf::from("/");
        let mut symlinks = 0;
        while let Some(name) = ahead.pop_front() {
            if name == ".." {
                at.pop();
                continue;
            }
            let entry = at.join(&name);
            let found = fs::symlink_metadata(&entry);
            let is_symlink = found.as_ref().is_ok_and(|found| found.is_symlink());
            if is_symlink || found.is_err() || ahead.is_empty() {
                self.add(&at, &name);
            }
            if is_symlink && symlinks < MAX_SYMLINKS {
                symlinks += 1;
                let Ok(target) = fs::read_link(&entry) else {
                    return;
                };
                if target.is_absolute() {
                    at = PathBuf::from("/");
                }
                for name in names(&target).rev() {
                    ahead.push_front(name);
                }
            } else if found.is_ok_and(|found| found.is_dir()) {
                at = entry;
            } else {
                return;
            }
        }
    }

    fn add(&mut self, folder: &Path, name: &OsStr) {
        self.names.insert(name.to_owned());
        // The folder itself may be renamed.
        self.names.extend(folder.file_name().map(OsStr::to_owned));
        if let Ok(found) = fs::metadata(folder) {
            let inode = (found.dev(), found.ino());
            self.folders.insert(folder.to_owned(), inode);
        }
    }
}

fn names(path: &Path) -> impl DoubleEndedIterator<Item = OsString> {
    path.components().filter_map(|part| match part {
        Component::Normal(name) => Some(name.to_owned()),
        Component::ParentDir => Some(OsString::from("..")),
        Component::CurDir | Component::RootDir | Component::Prefix(_) => None,
    })
}

fn is_missing(error: &notify::Error) -> bool {
    match &error.kind {
        ErrorKind::PathNotFound => true,
        ErrorKind::Io(error) => error.kind() == io::ErrorKind::NotFound,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Duration;

    use tokio::time::timeout;

    use super::*;

    #[tokio::test]
    async fn missing_components_are_watched_where_they_would_appear() {
        let scene = tempfile::tempdir().unwrap();
        let folder = scene.path().join("x/y");
        let file = folder.join("a");
        let steps: [&dyn Fn(); 3] = [
            &|| fs::create_dir(scene.path().join("x")).unwrap(),
            &|| fs::create_dir(&folder).unwrap(),
            &|| fs::write(&file, "1").unwrap(),
        ];
        let mut folders = Folders::new();
        let events = folders.events();
        for (number, step) in steps.into_iter().enumerate() {
            folders.follow([file.as_path()].into_iter());
            step();
            let event = timeout(Duration::from_secs(20), events.touched()).await;
            assert!(event.is_ok(), "step {number} caused no event");
        }
    }

    #[tokio::test]
    async fn sets_of_files_share_a_watcher_and_none_loses_a_folder_that_another_leaves() {
        static OPENED: AtomicUsize = AtomicUsize::new(0);
        let shared = Arc::new(SharedWatcher::new(|listeners| {
            OPENED.fetch_add(1, Ordering::Relaxed);
            (SHARED.open_watcher)(listeners)
        }));
        let scene = tempfile::tempdir().unwrap();
        let (one, other) = (scene.path().join("one"), scene.path().join("other"));
        let mut first = Folders::with_watcher(Arc::clone(&shared));
        let mut second = Folders::with_watcher(Arc::clone(&shared));
        first.follow([one.as_path()].into_iter());
        second.follow([other.as_path()].into_iter());
        drop(first);
        fs::write(&other, "1").unwrap();
        let event = timeout(Duration::from_secs(20), second.events().touched()).await;
        assert!(event.is_ok());
        assert_eq!(OPENED.load(Ordering::Relaxed), 1);
        drop(second);
        assert!(shared.state.lock().watcher.is_none());
        assert!(shared.listeners.lock().is_empty());
    }

    #[test]
    fn circular_symlinks_end() {
        let scene = tempfile::tempdir().unwrap();
        let (one, two) = (scene.path().join("one"), scene.path().join("two"));
        std::os::unix::fs::symlink(&two, &one).unwrap();
        std::os::unix::fs::symlink(&one, &two).unwrap();
        let plan = WatchPlan::of([one.as_path()].into_iter());
        assert!(plan.names.contains(OsStr::new("two")));
    }
}
