//! Where the kernel has to be asked so that no change of a file is missed.
//!
//! In come the paths of files; out comes a wake-up after anything that could have changed one of
//! them. A file's own watch would die with its inode, so the folders are watched: the one the file
//! lies in, every one on the way that holds a symlink, and where something is still missing, the one in
//! which it would appear. Without the kernel's help nothing wakes, and a warning says so once.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use notify::event::{AccessKind, Event, EventKind};
use notify::{RecommendedWatcher, RecursiveMode, Watcher};
use parking_lot::Mutex;
use tokio::sync::Notify;

/// Symlinks followed on the way to one file: as many as Linux does.
const MAX_SYMLINKS: usize = 40;

/// Attempts at a picture that does not change while it is taken; the events that changed it come
/// anyway.
const MAX_ROUNDS: usize = 4;

type Open = fn(&Arc<Bell>) -> notify::Result<RecommendedWatcher>;

/// The watched folders.
pub(super) struct Folders {
    bell: Arc<Bell>,
    open: Open,
    watcher: Option<RecommendedWatcher>,
    watched: BTreeMap<PathBuf, Inode>,
    /// Whether the last attempt failed, so that it is told once.
    is_blind: bool,
}

/// What the watcher's thread reaches.
#[derive(Debug, Default)]
pub(super) struct Bell {
    rung: Notify,
    /// Names that matter: a busy neighbour in the same folder wakes nobody.
    names: Mutex<BTreeSet<OsString>>,
}

/// Device and number.
type Inode = (u64, u64);

/// What a look at the file system shows: the folders to watch, and the names in them that matter.
#[derive(Debug, Default, PartialEq, Eq)]
struct Trail {
    folders: BTreeMap<PathBuf, Inode>,
    names: BTreeSet<OsString>,
}

impl Folders {
    /// Watches nothing yet.
    pub(super) fn new() -> Self {
        Self::with_kernel(|bell| {
            let bell = Arc::clone(bell);
            notify::recommended_watcher(move |event| bell.on_event(event))
        })
    }

    pub(super) fn with_kernel(open: Open) -> Self {
        Self {
            bell: Arc::default(),
            open,
            watcher: None,
            watched: BTreeMap::new(),
            is_blind: false,
        }
    }

    /// Returns after something has happened to a watched file, or to the way to it. Cancel safe.
    pub(super) async fn touched(&self) {
        self.bell.rung.notified().await;
    }

    /// Watches what leads to these files as it is now.
    pub(super) fn follow<'a>(&mut self, files: impl Iterator<Item = &'a Path> + Clone) {
        let mut trail = Trail::of(files.clone());
        for _ in 0..MAX_ROUNDS {
            let watched = self.watch(&trail);
            self.tell(watched);
            // What changed before its folder was watched was told to nobody.
            let now = Trail::of(files.clone());
            if now == trail {
                break;
            }
            trail = now;
        }
    }

    fn watch(&mut self, trail: &Trail) -> notify::Result<()> {
        *self.bell.names.lock() = trail.names.clone();
        let watcher = match &mut self.watcher {
            Some(watcher) => watcher,
            none => none.insert((self.open)(&self.bell)?),
        };
        self.watched.retain(|folder, inode| {
            let stays = trail.folders.get(folder) == Some(inode);
            if !stays {
                // An error says that the folder and its watch are gone already.
                let _ = watcher.unwatch(folder);
            }
            stays
        });
        let mut result = Ok(());
        for (folder, inode) in &trail.folders {
            // Those that are watched, too: it costs little, and the watcher drops a watch by itself
            // when an old folder of that name goes away.
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

    fn tell(&mut self, watched: notify::Result<()>) {
        match watched {
            Err(error) if !self.is_blind => {
                tracing::warn!(
                    %error,
                    "the kernel does not tell of all changes of files, they are noticed within a minute: \
                     raise fs.inotify.max_user_watches or max_user_instances"
                );
                self.is_blind = true;
            }
            Err(_) => {}
            Ok(()) => self.is_blind = false,
        }
    }
}

impl fmt::Debug for Folders {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Folders")
            .field("watched", &self.watched)
            .field("is_blind", &self.is_blind)
            .finish_non_exhaustive()
    }
}

impl Bell {
    fn on_event(&self, event: notify::Result<Event>) {
        if event.is_ok_and(|event| !self.matters(&event)) {
            return;
        }
        self.rung.notify_one();
    }

    fn matters(&self, event: &Event) -> bool {
        // Reading a file, as we do, opens it; only a writer's close is news.
        if let EventKind::Access(AccessKind::Open(_) | AccessKind::Read) = event.kind {
            return false;
        }
        let names = self.names.lock();
        event.paths.is_empty()
            || (event.paths.iter())
                .any(|path| path.file_name().is_none_or(|name| names.contains(name)))
    }
}

impl Trail {
    fn of<'a>(files: impl Iterator<Item = &'a Path>) -> Self {
        let mut trail = Self::default();
        for file in files {
            trail.lead_to(file);
        }
        trail
    }

    /// Goes the way that the kernel would go to this file.
    fn lead_to(&mut self, file: &Path) {
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
        // The folder itself may be moved away.
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
        notify::ErrorKind::PathNotFound => true,
        notify::ErrorKind::Io(error) => error.kind() == std::io::ErrorKind::NotFound,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::time::timeout;

    use super::*;

    #[tokio::test]
    async fn what_is_missing_is_watched_where_it_would_appear_step_by_step() {
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
            let seen = timeout(Duration::from_secs(20), folders.touched()).await;
            assert!(seen.is_ok(), "step {number} was not seen");
        }
    }

    #[test]
    fn symlinks_in_a_circle_end() {
        let scene = tempfile::tempdir().unwrap();
        let (one, two) = (scene.path().join("one"), scene.path().join("two"));
        std::os::unix::fs::symlink(&two, &one).unwrap();
        std::os::unix::fs::symlink(&one, &two).unwrap();
        let trail = Trail::of([one.as_path()].into_iter());
        assert!(trail.names.contains(OsStr::new("two")));
    }
}
