//! The files of a result: known to be writable before anything is measured, written at its end.
//!
//! What is there already stays until then, so a run that fails leaves neither an empty file nor
//! half of one.

use std::{
    fs::{self, OpenOptions, Permissions},
    io::Write as _,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
};

use anyhow::Context as _;
use tempfile::NamedTempFile;

/// What a new file may be used for, before the user's mask.
const MODE: u32 = 0o666;

/// A file that is to be written.
#[derive(Debug)]
pub(crate) struct OutputFile {
    path: PathBuf,
    /// In the same directory; gone when it is dropped. None where a device or a pipe is written to.
    temporary: Option<NamedTempFile>,
}

impl OutputFile {
    /// Makes sure that it can be written.
    ///
    /// # Errors
    /// It cannot.
    pub(crate) fn open(file: &Path) -> anyhow::Result<Self> {
        let cannot = || format!("cannot write {}", file.display());
        let found = fs::metadata(file);
        if found.as_ref().is_ok_and(|found| !found.is_file()) {
            OpenOptions::new()
                .write(true)
                .open(file)
                .with_context(cannot)?;
            return Ok(Self {
                path: file.to_owned(),
                temporary: None,
            });
        }
        // Where it is a link, what it leads to is replaced.
        let path = match found {
            Ok(_) => file.canonicalize().with_context(cannot)?,
            Err(_) => file.to_owned(),
        };
        let directory = match path.parent() {
            Some(parent) if parent != Path::new("") => parent,
            _ => Path::new("."),
        };
        let temporary = tempfile::Builder::new()
            .prefix(".loadtest-")
            .permissions(Permissions::from_mode(MODE))
            .tempfile_in(directory)
            .with_context(cannot)?;
        Ok(Self {
            path,
            temporary: Some(temporary),
        })
    }

    /// Writes all of it.
    ///
    /// # Errors
    /// It cannot be written.
    pub(crate) fn write(self, text: &str) -> anyhow::Result<()> {
        let Self { path, temporary } = self;
        let written = match temporary {
            None => fs::write(&path, text),
            Some(mut file) => file
                .write_all(text.as_bytes())
                .and_then(|()| file.persist(&path).map(drop).map_err(|error| error.error)),
        };
        written.with_context(|| format!("cannot write {}", path.display()))
    }
}

#[cfg(test)]
mod tests {
    use tempfile::TempDir;

    use super::*;

    #[test]
    fn what_was_there_stays_until_the_end() {
        let directory = TempDir::new().unwrap();
        let path = directory.path().join("report.json");
        drop(OutputFile::open(&path).unwrap());
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0);
        OutputFile::open(&path).unwrap().write("first").unwrap();
        let second = OutputFile::open(&path).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "first");
        second.write("second").unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "second");
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1);
    }

    #[test]
    fn what_is_no_file_is_written_to_in_place() {
        let null = Path::new("/dev/null");
        OutputFile::open(null).unwrap().write("gone").unwrap();
        assert!(!fs::metadata(null).unwrap().is_file());
        assert!(OutputFile::open(Path::new("missing/directory/file")).is_err());
    }
}
