//! Whom a peer's certificate may come from: the system's roots, and CA files and folders.
//!
//! In come names of files and folders; out come [`Roots`], read anew whenever they are asked for,
//! since such files are replaced while a client runs. The system's own are read once: they change
//! with the machine's image.

use std::fs;
use std::path::{Path, PathBuf};

use tunnel_ops::tls_files::{Roots, TlsFilesError};

/// Most files that are read of one folder: far more than anybody trusts by name, and a bound for
/// whoever names the wrong folder.
const FILES_IN_FOLDER: usize = 1000;

/// Largest file of a folder that is read; longer ones hold no certificates.
const FILE_BYTES: u64 = 4 * 1024 * 1024;

/// Roots that stay as they are, and files that may change.
#[derive(Debug, Clone)]
pub struct Trust {
    fixed: Roots,
    files: Vec<PathBuf>,
    folders: Vec<PathBuf>,
}

impl Trust {
    /// The certificates in these files and folders, PEM, beside the system's or instead of them.
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

    /// Reads the files and folders as they are now.
    ///
    /// # Errors
    /// When a file is not good, a folder holds no certificate, or nobody is trusted at all.
    pub fn load(&self) -> Result<Roots, TlsFilesError> {
        let mut roots = self.fixed.and_files(&self.files)?;
        for folder in &self.folders {
            roots = roots.and_files(certificates_in(folder)?)?;
        }
        roots.checked()
    }
}

impl From<Roots> for Trust {
    /// These, whatever happens to files.
    fn from(fixed: Roots) -> Self {
        Self {
            fixed,
            files: Vec::new(),
            folders: Vec::new(),
        }
    }
}

/// The files of a folder that hold certificates, in the order of their names. Hidden ones are left
/// out: Kubernetes keeps each file of a volume twice, once behind a hidden link.
fn certificates_in(folder: &Path) -> Result<Vec<PathBuf>, TlsFilesError> {
    let unreadable = |source| TlsFilesError::Unreadable {
        origin: folder.to_owned(),
        source,
    };
    let mut files = Vec::new();
    for entry in fs::read_dir(folder).map_err(unreadable)? {
        let entry = entry.map_err(unreadable)?;
        let is_hidden = entry.file_name().as_encoded_bytes().starts_with(b".");
        if !is_hidden && holds_certificates(&entry.path()) {
            files.push(entry.path());
        }
        if files.len() > FILES_IN_FOLDER {
            let problem = format!("more than {FILES_IN_FOLDER} files with certificates");
            return Err(unreadable(std::io::Error::other(problem)));
        }
    }
    if files.is_empty() {
        return Err(TlsFilesError::NoCertificate {
            origin: folder.to_owned(),
        });
    }
    files.sort_unstable();
    Ok(files)
}

/// Other files may lie beside, such as a README; what cannot be read is told when it is taken.
fn holds_certificates(path: &Path) -> bool {
    let Ok(metadata) = fs::metadata(path) else {
        return false;
    };
    if !metadata.is_file() || metadata.len() > FILE_BYTES {
        return false;
    }
    match fs::read(path) {
        Ok(bytes) => {
            let marker = b"-----BEGIN CERTIFICATE-----";
            bytes.windows(marker.len()).any(|part| part == marker)
        }
        Err(_) => true,
    }
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
        let damaged = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
        fs::write(folder.path().join("bad.pem"), damaged).unwrap();
        let error = empty.load().unwrap_err().to_string();
        assert!(error.contains("bad.pem: holds a damaged"), "{error}");
        let nobody = Trust::new(false, Vec::new(), Vec::new());
        assert!(matches!(nobody.load(), Err(TlsFilesError::NoRoots)));
        let away = Trust::new(false, Vec::new(), vec!["/nowhere".into()]);
        let error = away.load().unwrap_err().to_string();
        assert!(error.starts_with("/nowhere: cannot be read"), "{error}");
    }
}
