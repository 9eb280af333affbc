use std::path::{Path, PathBuf};

use rustix::io::retry_on_intr;
use rustix::rand::{GetRandomFlags, getrandom};

use super::domain::own;

/// The directory of a user: `<parent>/<prefix><uid>`, or that with `-<random>` behind it if another
/// user has taken it.
#[derive(Debug)]
pub(super) struct UserDir<'a> {
    pub(super) parent: &'a Path,
    prefix: &'static str,
    pub(super) uid: u32,
}

impl<'a> UserDir<'a> {
    /// That of the own user in `/tmp`.
    pub(super) fn in_tmp(tmp: &'a Path) -> Self {
        Self {
            parent: tmp,
            prefix: "smc-",
            uid: own(),
        }
    }

    /// That of a user in a shared directory.
    pub(super) fn in_shared(base: &'a Path, uid: u32) -> Self {
        Self {
            parent: base,
            prefix: "",
            uid,
        }
    }

    pub(super) fn path(&self) -> PathBuf {
        self.parent.join(self.name())
    }

    /// One with a random name that was not used yet; `None` without random numbers.
    pub(super) fn new_spare(&self) -> Option<PathBuf> {
        let mut random = [0; size_of::<u64>()];
        retry_on_intr(|| getrandom(&mut random, GetRandomFlags::empty())).ok()?;
        let random = u64::from_ne_bytes(random);
        Some(self.parent.join(format!("{}-{random:016x}", self.name())))
    }

    /// Whether the path is this one's, with or without a random name.
    pub(super) fn has(&self, path: &Path) -> bool {
        let name = path.file_name().and_then(|name| name.to_str());
        path.parent() == Some(self.parent)
            && name.is_some_and(|name| name == self.name() || self.is_spare(name))
    }

    pub(super) fn is_spare(&self, name: &str) -> bool {
        let random = name.strip_prefix(&self.name());
        random
            .and_then(|random| random.strip_prefix('-'))
            .is_some_and(|random| random.len() == 16 && u64::from_str_radix(random, 16).is_ok())
    }

    fn name(&self) -> String {
        format!("{}{}", self.prefix, self.uid)
    }
}
