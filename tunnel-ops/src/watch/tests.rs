//! Tests of change detection with real files and the real kernel.

use std::fs;
use std::os::unix::fs::symlink;

use tempfile::TempDir;
use tokio::time::timeout;

use super::folders::SharedWatcher;
use super::*;

/// Far longer than the detection of a change takes, so that a missed change fails the test.
const TIMEOUT: Duration = Duration::from_secs(20);

struct Scene {
    folder: TempDir,
}

impl Scene {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        Self { folder }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn write(&self, name: &str, text: &str) {
        fs::create_dir_all(self.path(name).parent().unwrap()).unwrap();
        fs::write(self.path(name), text).unwrap();
    }

    fn rename(&self, from: &str, to: &str) {
        fs::rename(self.path(from), self.path(to)).unwrap();
    }

    fn watch(&self, names: &[&str]) -> FileWatch {
        FileWatch::new(names.iter().map(|name| self.path(name))).unwrap()
    }

    /// Checks that the next change is of exactly these files, and not requested by a signal.
    async fn check(&self, watch: &mut FileWatch, names: &[&str]) {
        let change = timeout(TIMEOUT, watch.changed())
            .await
            .expect("the change was missed");
        let files = names.iter().map(|name| self.path(name)).collect();
        let expected = Change {
            files,
            is_requested: false,
        };
        assert_eq!(change, expected);
    }
}

#[tokio::test]
async fn a_write_in_place_is_reported_once() {
    let scene = Scene::new();
    scene.write("a", "1");
    scene.write("b", "1");
    let mut watch = scene.watch(&["a", "b"]);
    scene.write("a", "2");
    scene.write("a", "3");
    scene.check(&mut watch, &["a"]).await;
    scene.write("b", "2");
    scene.check(&mut watch, &["b"]).await;
}

#[tokio::test]
async fn every_replacement_by_a_rename_is_reported() {
    let scene = Scene::new();
    scene.write("a", "1");
    let mut watch = scene.watch(&["a"]);
    for text in ["2", "3"] {
        scene.write("new", text);
        scene.rename("new", "a");
        scene.check(&mut watch, &["a"]).await;
    }
}

#[tokio::test]
async fn a_kubernetes_volume_update_is_one_change() {
    let scene = Scene::new();
    let publish = |version: &str| {
        scene.write(&format!("..{version}/a"), version);
        scene.write(&format!("..{version}/b"), version);
        symlink(format!("..{version}"), scene.path("..data_tmp")).unwrap();
        scene.rename("..data_tmp", "..data");
    };
    publish("2024_1");
    symlink("..data/a", scene.path("a")).unwrap();
    symlink("..data/b", scene.path("b")).unwrap();
    let mut watch = scene.watch(&["a", "b"]);
    for (version, old) in [("2024_2", "2024_1"), ("2024_3", "2024_2")] {
        publish(version);
        fs::remove_dir_all(scene.path(&format!("..{old}"))).unwrap();
        scene.check(&mut watch, &["a", "b"]).await;
    }
}

#[tokio::test]
async fn a_replaced_symlink_anywhere_in_the_path_is_a_change() {
    let scene = Scene::new();
    scene.write("v1/deep/a", "1");
    scene.write("v2/deep/a", "2");
    symlink(scene.path("v1"), scene.path("now")).unwrap();
    let mut watch = scene.watch(&["now/deep/a"]);
    symlink("v2", scene.path("next")).unwrap();
    scene.rename("next", "now");
    scene.check(&mut watch, &["now/deep/a"]).await;
    scene.write("v2/deep/a", "3");
    scene.check(&mut watch, &["now/deep/a"]).await;
}

#[tokio::test]
async fn a_folder_may_be_replaced() {
    let scene = Scene::new();
    scene.write("folder/a", "1");
    scene.write("other/a", "2");
    let mut watch = scene.watch(&["folder/a"]);
    scene.rename("folder", "old");
    scene.rename("other", "folder");
    scene.check(&mut watch, &["folder/a"]).await;
    scene.write("folder/a", "3");
    scene.check(&mut watch, &["folder/a"]).await;
}

#[tokio::test]
async fn deletion_and_creation_are_changes() {
    let scene = Scene::new();
    scene.write("a", "1");
    let mut watch = scene.watch(&["a"]);
    fs::remove_file(scene.path("a")).unwrap();
    scene.check(&mut watch, &["a"]).await;
    scene.write("a", "1");
    scene.check(&mut watch, &["a"]).await;
}

#[tokio::test]
async fn a_file_may_appear_later_with_its_folders() {
    let scene = Scene::new();
    let mut watch = scene.watch(&["x/y/a"]);
    scene.write("x/y/a", "1");
    scene.check(&mut watch, &["x/y/a"]).await;
}

#[tokio::test]
async fn touching_a_file_and_changing_its_neighbour_are_no_changes() {
    let scene = Scene::new();
    scene.write("a", "1");
    scene.write("b", "1");
    let mut watch = scene.watch(&["a", "b"]);
    scene.write("a", "1");
    scene.write("neighbour", "1");
    let far = SystemTime::UNIX_EPOCH;
    let file = fs::File::options().append(true).open(scene.path("a"));
    file.unwrap().set_modified(far).unwrap();
    scene.write("b", "2");
    // The touch came first, so it would be reported here if it counted.
    scene.check(&mut watch, &["b"]).await;
}

#[tokio::test]
async fn replacing_the_set_of_files_loses_no_change() {
    let scene = Scene::new();
    scene.write("a", "1");
    scene.write("b", "1");
    let mut watch = scene.watch(&["a"]);
    scene.write("a", "2");
    let paths = [scene.path("a"), scene.path("elsewhere/c")];
    watch.set_paths(move || paths).await;
    scene.check(&mut watch, &["a"]).await;
    scene.write("elsewhere/c", "1");
    scene.check(&mut watch, &["elsewhere/c"]).await;
    let paths = [scene.path("b")];
    watch.set_paths(move || paths).await;
    scene.write("a", "3");
    scene.write("b", "2");
    scene.check(&mut watch, &["b"]).await;
}

#[tokio::test]
async fn dropping_the_future_loses_no_change() {
    let scene = Scene::new();
    scene.write("a", "1");
    let mut watch = scene.watch(&["a"]);
    scene.write("a", "2");
    // Dropped while it waits: before the event, within the burst, or after it.
    for _ in 0..200 {
        let early = timeout(Duration::ZERO, watch.changed()).await;
        if early.is_ok() {
            return;
        }
        tokio::task::yield_now().await;
    }
    scene.check(&mut watch, &["a"]).await;
}

/// Under paused time only the timer can detect the change.
#[tokio::test(start_paused = true)]
async fn without_notifications_changes_are_detected_within_seconds() {
    let scene = Scene::new();
    scene.write("a", "1");
    let failing = SharedWatcher::new(|_| Err(notify::Error::new(notify::ErrorKind::MaxFilesWatch)));
    let folders = Folders::with_watcher(Arc::new(failing));
    let mut watch = FileWatch::with_folders([scene.path("a")], folders).unwrap();
    for text in ["2", "3"] {
        let start = Instant::now();
        scene.write("a", text);
        let change = watch.changed().await;
        assert_eq!(change.files, [scene.path("a")]);
        let waited = start.elapsed();
        assert!(
            waited <= Duration::from_secs(5) + Duration::from_millis(1),
            "{waited:?}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_burst_ends_after_a_quiet_time_and_within_half_a_second() {
    let first = Instant::now();
    let mut burst = Burst { first, last: first };
    assert_eq!(burst.end() - first, QUIET);
    for tenth in 1..100 {
        burst.last = first + QUIET / 10 * tenth;
        assert!(burst.end() - first <= LONGEST_BURST);
    }
    assert_eq!(burst.end() - first, LONGEST_BURST);
}

#[test]
fn a_stamp_counts_once_the_next_change_has_another() {
    let scene = Scene::new();
    scene.write("a", "1");
    let stamp = Stamp::of(&scene.path("a")).unwrap();
    let now = SystemTime::now();
    assert!(!stamp.is_certain(now));
    assert!(stamp.is_certain(now + STAMP_AGE + Duration::from_secs(1)));
    scene.write("a", "12");
    assert_ne!(Stamp::of(&scene.path("a")), Some(stamp));
}

#[tokio::test]
async fn only_regular_files_are_read() {
    assert!(read(Path::new("/dev/zero")).is_err());
    assert!(read(Path::new("/")).is_err());
}
