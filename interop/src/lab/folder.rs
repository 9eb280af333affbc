//! The folders of one lab: large files beside the kernels, sockets where paths are short.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::Result;

/// Folders that go with the lab. Captures that are kept have been moved out before.
#[derive(Debug)]
pub(crate) struct Folder {
    large: PathBuf,
    sockets: PathBuf,
}

impl Folder {
    pub(crate) fn new(home: &Path) -> Result<Self> {
        let number = LABS.fetch_add(1, Ordering::Relaxed);
        let name = format!("{PREFIX}{}-{number}", std::process::id());
        let temp = std::env::temp_dir();
        for place in [home, &temp] {
            remove_abandoned(place);
        }
        let folder = Self {
            large: home.join(&name),
            sockets: temp.join(&name),
        };
        fs::create_dir_all(&folder.large)?;
        fs::create_dir_all(&folder.sockets)?;
        Ok(folder)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.large
    }

    /// A path for a socket has at most some hundred bytes.
    pub(crate) fn socket(&self, name: &str) -> PathBuf {
        self.sockets.join(name)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.large);
        let _ = fs::remove_dir_all(&self.sockets);
    }
}

/// Removes what was left by processes that were killed.
fn remove_abandoned(place: &Path) {
    for entry in fs::read_dir(place).into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let owner = name
            .strip_prefix(PREFIX)
            .and_then(|rest| rest.split_once('-'))
            .map(|(pid, _)| Path::new("/proc").join(pid));
        if owner.is_some_and(|owner| !owner.exists()) {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

static LABS: AtomicU32 = AtomicU32::new(0);

const PREFIX: &str = "smc-interop-";
