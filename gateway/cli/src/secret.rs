//! The token secret of `tidegate dev`: made once, kept in the data folder, readable by its owner only.

use anyhow::{Context, bail};
use std::io::{Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// Random bytes in a secret, before hexadecimal.
const SECRET_BYTES: usize = 32;

fn path(data: &Path) -> PathBuf {
    data.join("jwt-secret")
}

/// The secret of this data folder; made if there is none yet.
///
/// # Errors
/// When the file cannot be read or written.
pub fn of_dev(data: &Path) -> anyhow::Result<String> {
    if let Some(secret) = read(data)? {
        return Ok(secret);
    }
    let mut bytes = [0u8; SECRET_BYTES];
    std::fs::File::open("/dev/urandom")
        .and_then(|mut source| source.read_exact(&mut bytes))
        .context("read random bytes")?;
    let secret: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    let path = path(data);
    let mut file = std::fs::OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&path)
        .with_context(|| format!("create {}", path.display()))?;
    file.write_all(secret.as_bytes()).with_context(|| format!("write {}", path.display()))?;
    Ok(secret)
}

/// The secret given, else that of `tidegate dev`.
///
/// # Errors
/// When there is neither.
pub fn given_or_dev(given: Option<&str>, data: &Path) -> anyhow::Result<String> {
    match (given, read(data)?) {
        (Some(secret), _) => Ok(secret.to_owned()),
        (None, Some(secret)) => Ok(secret),
        (None, None) => bail!(
            "no secret: set TIDEGATE_JWT_SECRET, or run `tidegate dev` first (looked in {})",
            path(data).display()
        ),
    }
}

fn read(data: &Path) -> anyhow::Result<Option<String>> {
    let path = path(data);
    match std::fs::read_to_string(&path) {
        Ok(secret) => Ok(Some(secret.trim().to_owned())),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error).with_context(|| format!("read {}", path.display())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_is_made_once_and_only_its_owner_reads_it() {
        use std::os::unix::fs::PermissionsExt;
        let dir = tempfile::tempdir().expect("a folder");
        let first = of_dev(dir.path()).expect("made");
        assert_eq!(first.len(), 2 * SECRET_BYTES);
        assert_eq!(of_dev(dir.path()).expect("read"), first);
        assert_eq!(given_or_dev(None, dir.path()).expect("found"), first);
        assert_eq!(given_or_dev(Some("other"), dir.path()).expect("given"), "other");
        let mode = std::fs::metadata(path(dir.path())).expect("exists").permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
    }
}
