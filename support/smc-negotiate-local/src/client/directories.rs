//! The directories that are searched for listeners.

use std::collections::HashSet;
use std::fs::symlink_metadata;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use smc_core::error::FallbackCause;
use smc_ipc::Domain;

use super::MAX_LISTENERS;
use crate::directory::{Directory, ListenerEntry};

/// The directories of one user that are searched for listeners.
#[derive(Debug)]
pub(super) struct Directories {
    domain: Domain,
    owner: u32,
    /// The directories of the domain, as of a moment ago.
    known: Vec<Directory>,
    searched: Arc<[PathBuf]>,
    /// Why none of them can be used, if that is so.
    unusable: Option<FallbackCause>,
    until: Option<Instant>,
}

impl Directories {
    pub(super) fn new(domain: Domain, owner: u32) -> Self {
        Self {
            domain,
            owner,
            known: Vec::new(),
            searched: Arc::default(),
            unusable: None,
            until: None,
        }
    }

    /// The directories of the domain, with what is known of those that were there before.
    fn refresh(&mut self, now: Instant) {
        if self.until.is_some_and(|until| now < until) {
            return;
        }
        self.until = Some(now + DIRECTORIES_LIFETIME);
        let unusable = self.domain.unusable_of(self.owner);
        self.unusable = unusable.map(FallbackCause::from);
        let mut old = std::mem::take(&mut self.known);
        let paths = self.domain.search_paths_of(self.owner).into_iter();
        self.known.extend(paths.map(|path| {
            let at = old.iter().position(|known| **known.path() == *path);
            at.map_or_else(|| Directory::new(path), |at| old.swap_remove(at))
        }));
        let paths = self
            .known
            .iter()
            .map(|directory| directory.path().to_path_buf());
        self.searched = paths.collect();
    }

    /// Listeners that may get connections to `to`, at least one, or why there is none.
    pub(super) fn listeners_at(
        &mut self,
        to: SocketAddr,
        now: Instant,
    ) -> Result<Found, FallbackCause> {
        self.refresh(now);
        let mut listeners: Vec<NamedListener> = Vec::new();
        // The same listener may be in several directories.
        let mut names = HashSet::new();
        let mut unread = None;
        for directory in &mut self.known {
            let path = Arc::clone(directory.path());
            let entries = match directory.entries(&self.domain) {
                Ok(entries) => entries,
                Err(error) => {
                    unread = Some(FallbackCause::Os(error));
                    continue;
                }
            };
            for entry in entries {
                let fits = entry.port == to.port() && entry.scope.covers(to.ip());
                if fits && names.insert(Arc::clone(entry)) {
                    listeners.push((Arc::clone(&path), Arc::clone(entry)));
                }
            }
        }
        for (dir, entry) in listeners.iter().take(MAX_LISTENERS) {
            // A name that the kernel has in its cache is connected to without a lock.
            let _ = symlink_metadata(dir.join(entry.to_string()));
        }
        let searched = Arc::clone(&self.searched);
        match listeners.is_empty() {
            true => Err(unread
                .or_else(|| self.unusable.clone())
                .unwrap_or(FallbackCause::NotAnnounced { searched })),
            false => Ok(Found {
                listeners,
                searched,
            }),
        }
    }
}

/// A listener and the directory of its name.
pub(super) type NamedListener = (Arc<Path>, Arc<ListenerEntry>);

/// Listeners that were found, at least one.
#[derive(Debug)]
pub(super) struct Found {
    pub(super) listeners: Vec<NamedListener>,
    pub(super) searched: Arc<[PathBuf]>,
}

/// Upper limit of the time until a listener in a new directory is found.
const DIRECTORIES_LIFETIME: Duration = Duration::from_secs(1);
