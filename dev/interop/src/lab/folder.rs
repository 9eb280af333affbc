//! The folders of one lab: large files beside the kernels, sockets where paths are short.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use fs_err as fs;
use tempfile::TempDir;

/// Folders that go with the lab. Captures that are kept have been moved out before.
#[derive(Debug)]
pub(crate) struct Folder {
    large: TempDir,
    sockets: TempDir,
}

impl Folder {
    pub(crate) fn new(home: &Path) -> Result<Self> {
        fs::create_dir_all(home)?;
        let prefix = format!("{PREFIX}{}-", std::process::id());
        let new = |place: &Path| {
            remove_abandoned(place);
            TempDir::with_prefix_in(&prefix, place)
                .with_context(|| format!("new folder in {}", place.display()))
        };
        Ok(Self {
            large: new(home)?,
            sockets: new(&std::env::temp_dir())?,
        })
    }

    pub(crate) fn path(&self) -> &Path {
        self.large.path()
    }

    /// A path for a socket has at most some hundred bytes.
    pub(crate) fn socket(&self, name: &str) -> PathBuf {
        self.sockets.path().join(name)
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

const PREFIX: &str = "smc-interop-";
