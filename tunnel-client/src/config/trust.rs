//! The trusted roots for a peer's certificate: the system's, and those of CA files and folders.
//!
//! In: paths of files and folders. Out: [`Roots`], read at each call, since the files may change while a client runs. The
//! system's roots are read once, since they change with the machine's image.

use std::fs;
use std::path::{Path, PathBuf};

use tunnel_ops::settings::OneOrMorePaths;
use tunnel_ops::settings::SettingOrigin;
use tunnel_ops::tls_files::{Roots, TlsFilesError};

use super::{ConfigFault, or_fault};

/// Most entries of one folder: far more than CA folders have, and a bound if the wrong folder is named.
const ENTRIES: usize = 1000;

/// Largest file of a folder that is read; larger ones are not certificates.
const FILE_BYTES: u64 = 4 * 1024 * 1024;

/// Fixed roots, and files that may change.
#[derive(Debug, Clone)]
pub struct Trust {
    fixed: Roots,
    files: Vec<PathBuf>,
    folders: Vec<PathBuf>,
}

impl Trust {
    /// The certificates in these files and folders, PEM, with or without those of the system.
    pub fn new(system: bool, files: Vec<PathBuf>, folders: Vec<PathBuf>) -> Self {
        let fixed = match system {
            true => Roots::system(),
            false => Roots::none(),
        };
        Self {
            fixed,
            files,
            folders,
        }
    }

    /// Whether there are no files.
    pub(crate) fn is_fixed(&self) -> bool {
        self.files.is_empty() && self.folders.is_empty()
    }

    /// Reads the files and folders. Blocks.
    ///
    /// # Errors
    /// When a file cannot be used, a folder holds no certificate, or there is no root.
    pub fn load(&self) -> Result<Roots, TlsFilesError> {
        let mut roots = self.fixed.and_files(&self.files)?;
        for folder in &self.folders {
            roots = and_folder(&roots, folder)?;
        }
        roots.checked()
    }
}

impl From<Roots> for Trust {
    /// These roots, without files.
    fn from(fixed: Roots) -> Self {
        Self {
            fixed,
            files: Vec::new(),
            folders: Vec::new(),
        }
    }
}

/// The trusted roots by these settings. The setting about the system's certificates is given with its place.
pub(super) fn check(
    (system, system_place): (bool, SettingOrigin),
    files: Option<&OneOrMorePaths>,
    folders: Option<&OneOrMorePaths>,
    faults: &mut Vec<ConfigFault>,
) -> Option<Trust> {
    let list = |paths: Option<&OneOrMorePaths>| {
        let paths = paths.map(|paths| paths.as_slice().to_vec());
        paths.unwrap_or_default()
    };
    let trust = Trust::new(system, list(files), list(folders));
    if !system && trust.is_fixed() {
        let problem =
            "no CA is trusted without the system's certificates: name a CA file or folder as well"
                .to_owned();
        faults.push(ConfigFault::Value {
            place: system_place,
            problem,
        });
        return None;
    }
    let before = faults.len();
    for file in &trust.files {
        or_fault(faults, Roots::none().and_files([file]));
    }
    for folder in &trust.folders {
        or_fault(faults, and_folder(&Roots::none(), folder));
    }
    if faults.len() > before {
        return None;
    }
    // What is left: there may be no root at all.
    or_fault(faults, trust.load())?;
    Some(trust)
}

/// Adds the certificates in the files of a folder, in the order of their names. Hidden files are left out: Kubernetes keeps
/// each file of a volume twice, once behind a hidden link.
fn and_folder(roots: &Roots, folder: &Path) -> Result<Roots, TlsFilesError> {
    let unreadable = |source| TlsFilesError::Unreadable {
        origin: folder.to_owned(),
        source,
    };
    let mut paths = Vec::new();
    for entry in fs::read_dir(folder).map_err(unreadable)? {
        if paths.len() == ENTRIES {
            let problem = format!("more than {ENTRIES} entries, is it the right folder?");
            return Err(unreadable(std::io::Error::other(problem)));
        }
        paths.push(entry.map_err(unreadable)?.path());
    }
    paths.sort_unstable();
    let mut all = None;
    for path in paths.iter().filter(|path| !is_hidden(path)) {
        if let Some(pem) = certificates_in(path)? {
            let before = all.as_ref().unwrap_or(roots);
            all = Some(before.and_pem(path, &pem)?);
        }
    }
    all.ok_or_else(|| TlsFilesError::NoCertificate {
        origin: folder.to_owned(),
    })
}

fn is_hidden(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default();
    name.as_encoded_bytes().starts_with(b".")
}

/// The content of a file, if it holds certificates. A folder may have other files, such as a README.
fn certificates_in(path: &Path) -> Result<Option<Vec<u8>>, TlsFilesError> {
    let Ok(metadata) = fs::metadata(path) else {
        return Ok(None);
    };
    if !metadata.is_file() || metadata.len() > FILE_BYTES {
        return Ok(None);
    }
    let pem = fs::read(path).map_err(|source| TlsFilesError::Unreadable {
        origin: path.to_owned(),
        source,
    })?;
    let marker = b"-----BEGIN CERTIFICATE-----";
    let holds_some = pem.windows(marker.len()).any(|part| part == marker);
    Ok(holds_some.then_some(pem))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    fn certificate() -> String {
        let made = rcgen::generate_simple_self_signed(["a".to_owned()]).unwrap();
        made.cert.pem()
    }

    fn roots(certificates: &[&String]) -> Roots {
        let all: Vec<_> = certificates.iter().map(|pem| pem.as_str()).collect();
        Roots::from_pem(&all.concat()).unwrap()
    }

    #[test]
    fn files_and_folders_are_read_anew_each_time() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        let (one, two, three) = (certificate(), certificate(), certificate());
        fs::write(path("one.pem"), &one).unwrap();
        fs::create_dir(path("more")).unwrap();
        fs::write(path("more/two.crt"), &two).unwrap();
        fs::write(path("more/README"), "no certificate").unwrap();
        let trust = Trust::new(false, vec![path("one.pem")], vec![path("more")]);
        assert_eq!(trust.load().unwrap(), roots(&[&one, &two]));
        fs::write(path("more/three.pem"), &three).unwrap();
        fs::write(path("one.pem"), &three).unwrap();
        assert_eq!(trust.load().unwrap(), roots(&[&three, &three, &two]));
    }

    #[test]
    fn a_volume_of_kubernetes_is_a_folder_like_any_other() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        let (one, two) = (certificate(), certificate());
        for (data, pem) in [("..2025", &one), ("..2026", &two)] {
            fs::create_dir(path(data)).unwrap();
            fs::write(path(data).join("ca.crt"), pem).unwrap();
        }
        symlink("..2025", path("..data")).unwrap();
        symlink("..data/ca.crt", path("ca.crt")).unwrap();
        let trust = Trust::new(false, Vec::new(), vec![folder.path().to_owned()]);
        assert_eq!(trust.load().unwrap(), roots(&[&one]));
        symlink("..2026", path("..data_tmp")).unwrap();
        fs::rename(path("..data_tmp"), path("..data")).unwrap();
        assert_eq!(trust.load().unwrap(), roots(&[&two]));
    }

    #[test]
    fn what_is_not_good_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let empty = Trust::new(false, Vec::new(), vec![folder.path().to_owned()]);
        let error = empty.load().unwrap_err().to_string();
        assert!(error.contains("holds no certificate"), "{error}");
        for file in 0..ENTRIES {
            fs::write(folder.path().join(format!("{file:04}")), "").unwrap();
        }
        let error = empty.load().unwrap_err().to_string();
        assert!(error.contains("holds no certificate"), "{error}");
        let damaged = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
        fs::write(folder.path().join("bad.pem"), damaged).unwrap();
        let error = empty.load().unwrap_err().to_string();
        assert!(error.contains("more than 1000 entries"), "{error}");
        fs::remove_file(folder.path().join("0000")).unwrap();
        let error = empty.load().unwrap_err().to_string();
        assert!(error.contains("bad.pem: holds a damaged"), "{error}");
        let none = Trust::new(false, Vec::new(), Vec::new());
        assert!(matches!(none.load(), Err(TlsFilesError::NoRoots)));
        let away = Trust::new(false, Vec::new(), vec!["/nowhere".into()]);
        let error = away.load().unwrap_err().to_string();
        assert!(error.starts_with("/nowhere: cannot be read"), "{error}");
    }
}
