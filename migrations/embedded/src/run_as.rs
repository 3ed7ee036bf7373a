//! Whom PostgreSQL runs as. It refuses root, so a root process lends it an unprivileged user.

use std::ffi::{CStr, CString};
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use crate::error::{Context, Error};

/// Names the user that PostgreSQL runs as when this process is root.
pub const USER_VARIABLE: &str = "TIDEGATE_PG_USER";

/// An unprivileged user of this machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunAs {
    name: String,
    uid: u32,
    gid: u32,
}

/// Whether this process is root, which PostgreSQL refuses to be.
pub fn is_root() -> bool {
    effective_uid() == 0
}

pub(crate) fn effective_uid() -> u32 {
    // SAFETY: takes nothing, cannot fail.
    unsafe { libc::geteuid() }
}

impl RunAs {
    /// The user that PostgreSQL must be run as: `None` unless this process is root.
    ///
    /// `TIDEGATE_PG_USER` if set, else `postgres`, else `nobody`.
    pub fn choose() -> Result<Option<Self>, Error> {
        if !is_root() {
            return Ok(None);
        }
        if let Some(name) = std::env::var_os(USER_VARIABLE).filter(|name| !name.is_empty()) {
            let name = name.to_string_lossy();
            return match lookup(&name) {
                Some(user) if user.uid != 0 => Ok(Some(user)),
                Some(_) => Err(no_user(format!("{USER_VARIABLE} names {name}, which is root itself"))),
                None => Err(no_user(format!("{USER_VARIABLE} names {name}, which does not exist"))),
            };
        }
        match ["postgres", "nobody"].into_iter().filter_map(lookup).find(|user| user.uid != 0) {
            Some(user) => Ok(Some(user)),
            None => Err(no_user(format!(
                "neither postgres nor nobody exists; create a user and name it in {USER_VARIABLE}"
            ))),
        }
    }

    /// The user's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The user's numeric id.
    pub fn uid(&self) -> u32 {
        self.uid
    }

    /// Makes a command run as this user, in its group alone: the standard library clears the
    /// supplementary groups whenever root changes the user id.
    pub(crate) fn apply(&self, command: &mut Command) {
        command.gid(self.gid).uid(self.uid);
    }

    pub(crate) fn give(&self, path: &Path) -> Result<(), Error> {
        std::os::unix::fs::lchown(path, Some(self.uid), Some(self.gid))
            .context(|| format!("give {} to user {}", path.display(), self.name))
    }

    /// Checks that this user may pass through every folder down to `path`, by their mode bits.
    pub(crate) fn check_reaches(&self, path: &Path) -> Result<(), Error> {
        let full = path.canonicalize().context(|| format!("resolve {}", path.display()))?;
        let mut folders: Vec<&Path> = full.ancestors().collect();
        folders.reverse();
        for folder in folders {
            let meta = folder.metadata().context(|| format!("look at {}", folder.display()))?;
            let bit = match () {
                () if meta.uid() == self.uid => 0o100,
                () if meta.gid() == self.gid => 0o010,
                () => 0o001,
            };
            if meta.is_dir() && meta.mode() & bit == 0 {
                return Err(Error::NotTraversable {
                    path: full.clone(),
                    blocked_by: folder.to_owned(),
                    user: self.name.clone(),
                });
            }
        }
        Ok(())
    }
}

fn no_user(why: String) -> Error {
    Error::NoUnprivilegedUser { why }
}

fn lookup(name: &str) -> Option<RunAs> {
    let c_name = CString::new(name).ok()?;
    let mut buffer = vec![0; 16 * 1024];
    // SAFETY: an all-zero passwd is a valid value (null pointers and zero ids) that the call fills in.
    let mut entry: libc::passwd = unsafe { std::mem::zeroed() };
    let mut found = std::ptr::null_mut();
    // SAFETY: all pointers are valid for the call, the length is the buffer's, and `found` is checked.
    let code = unsafe {
        libc::getpwnam_r(c_name.as_ptr(), &mut entry, buffer.as_mut_ptr(), buffer.len(), &mut found)
    };
    if code != 0 || found.is_null() {
        return None;
    }
    // SAFETY: the call succeeded, so pw_name points at a string inside `buffer`, which is still alive.
    let name = unsafe { CStr::from_ptr(entry.pw_name) }.to_string_lossy().into_owned();
    Some(RunAs { name, uid: entry.pw_uid, gid: entry.pw_gid })
}
