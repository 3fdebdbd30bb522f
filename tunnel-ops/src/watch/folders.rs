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
use std::sync::Arc;

use notify::event::{AccessKind, Event, EventKind};
use notify::{ErrorKind, RecommendedWatcher, RecursiveMode, Watcher};
use parking_lot::Mutex;
use tokio::sync::Notify;

/// Most symlinks followed in the path of one file: the limit of Linux.
const MAX_SYMLINKS: usize = 40;

/// Attempts to get a list of folders that does not change while they are being watched. If all fail, the
/// events of the last change still arrive.
const MAX_ROUNDS: usize = 4;

type OpenWatcher = fn(&Arc<Notifier>) -> notify::Result<RecommendedWatcher>;

/// The watched folders.
pub(super) struct Folders {
    notifier: Arc<Notifier>,
    open_watcher: OpenWatcher,
    watcher: Option<RecommendedWatcher>,
    watched: BTreeMap<PathBuf, Inode>,
    /// Whether the last attempt failed, so that a failure is logged once.
    has_failed: bool,
}

/// The part that the watcher's thread uses.
#[derive(Debug, Default)]
pub(super) struct Notifier {
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

impl Folders {
    /// Watches nothing yet.
    pub(super) fn new() -> Self {
        Self::with_kernel(|notifier| {
            let notifier = Arc::clone(notifier);
            notify::recommended_watcher(move |event| notifier.on_event(event))
        })
    }

    pub(super) fn with_kernel(open_watcher: OpenWatcher) -> Self {
        Self {
            notifier: Arc::default(),
            open_watcher,
            watcher: None,
            watched: BTreeMap::new(),
            has_failed: false,
        }
    }

    /// Returns after an event on a watched file or a component of its path. Cancel safe.
    pub(super) async fn touched(&self) {
        self.notifier.event.notified().await;
    }

    /// Watches the folders that these files need now.
    pub(super) fn follow<'a>(&mut self, files: impl Iterator<Item = &'a Path> + Clone) {
        let mut plan = WatchPlan::of(files.clone());
        for _ in 0..MAX_ROUNDS {
            let watched = self.watch(&plan);
            self.report(watched);
            // A change before its folder was watched caused no event.
            let now = WatchPlan::of(files.clone());
            if now == plan {
                break;
            }
            plan = now;
        }
    }

    fn watch(&mut self, plan: &WatchPlan) -> notify::Result<()> {
        *self.notifier.names.lock() = plan.names.clone();
        let watcher = match &mut self.watcher {
            Some(watcher) => watcher,
            none => none.insert((self.open_watcher)(&self.notifier)?),
        };
        self.watched.retain(|folder, inode| {
            let stays = plan.folders.get(folder) == Some(inode);
            if !stays {
                // An error means that the folder and its watch no longer exist.
                let _ = watcher.unwatch(folder);
            }
            stays
        });
        let mut result = Ok(());
        for (folder, inode) in &plan.folders {
            // Watched folders too: it costs little, and the watcher drops a watch when an old folder with
            // this path is deleted.
            match watcher.watch(folder, RecursiveMode::NonRecursive) {
                Ok(()) => {
                    self.watched.insert(folder.clone(), *inode);
                }
                Err(error) if is_missing(&error) => {}
                Err(error) => result = Err(error),
            }
        }
        result
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
                    "the kernel does not report all file changes, they are noticed within a minute"
                );
                self.has_failed = true;
            }
            Err(_) => {}
            Ok(()) => self.has_failed = false,
        }
    }
}

impl fmt::Debug for Folders {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Folders")
            .field("watched", &self.watched)
            .field("has_failed", &self.has_failed)
            .finish_non_exhaustive()
    }
}

impl Notifier {
    fn on_event(&self, event: notify::Result<Event>) {
        if event.is_ok_and(|event| !self.matters(&event)) {
            return;
        }
        self.event.notify_one();
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
        for (number, step) in steps.into_iter().enumerate() {
            folders.follow([file.as_path()].into_iter());
            step();
            let event = timeout(Duration::from_secs(20), folders.touched()).await;
            assert!(event.is_ok(), "step {number} caused no event");
        }
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
