//! Atomic writes of files.

use std::fs::{self, File, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt, fchown};
use std::path::Path;

/// What to do about an existing file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Existing {
    /// Keep it: writing fails.
    Keep,
    /// Replace it, with its mode and owner.
    Replace,
    /// Replace its text; the new file gets its mode and owner.
    Update,
}

/// Writes `text` to a temporary file beside `path` and renames it. A new file gets `mode`.
pub(crate) fn write(path: &Path, text: &str, mode: u32, existing: Existing) -> io::Result<()> {
    let folder = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    let mut file = tempfile::NamedTempFile::new_in(folder)?;
    file.write_all(text.as_bytes())?;
    let before = match existing {
        Existing::Update => fs::metadata(path).ok(),
        Existing::Keep | Existing::Replace => None,
    };
    if let Some(before) = &before {
        let own = file.as_file().metadata()?;
        if (own.uid(), own.gid()) != (before.uid(), before.gid()) {
            // Otherwise the file would belong to the user that runs this, and the server might not be able to
            // read it.
            fchown(file.as_file(), Some(before.uid()), Some(before.gid()))?;
        }
    }
    let mode = before.map_or(mode, |before| before.mode() & 0o7777);
    file.as_file()
        .set_permissions(Permissions::from_mode(mode))?;
    file.as_file().sync_all()?;
    match existing {
        Existing::Keep => file.persist_noclobber(path),
        Existing::Replace | Existing::Update => file.persist(path),
    }
    .map_err(|error| error.error)?;
    // The rename must survive a power cut, too.
    File::open(folder)?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().mode() & 0o777
    }

    #[test]
    fn a_new_file_gets_its_mode_and_an_updated_one_keeps_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("f");
        write(&path, "one", 0o600, Existing::Update).unwrap();
        assert_eq!(mode(&path), 0o600);
        fs::set_permissions(&path, Permissions::from_mode(0o640)).unwrap();
        write(&path, "two", 0o600, Existing::Update).unwrap();
        assert_eq!(
            (mode(&path), fs::read_to_string(&path).unwrap().as_str()),
            (0o640, "two")
        );
        write(&path, "three", 0o600, Existing::Replace).unwrap();
        assert_eq!(mode(&path), 0o600);
    }

    #[test]
    fn an_existing_file_can_be_kept_and_no_other_file_is_left() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("f");
        write(&path, "one", 0o644, Existing::Keep).unwrap();
        let error = write(&path, "two", 0o644, Existing::Keep).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::AlreadyExists);
        assert_eq!(fs::read_to_string(&path).unwrap(), "one");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }
}
