//! The directories of single users.

use std::path::{Path, PathBuf};

use rustix::io::retry_on_intr;
use rustix::rand::{GetRandomFlags, getrandom};

/// The directories of users in one directory: `<parent>/<prefix><uid>`, or that with `-<random>`
/// behind it where another user has taken it.
#[derive(Clone, Copy, Debug)]
pub(super) struct UserDirs<'a> {
    pub(super) parent: &'a Path,
    prefix: &'static str,
}

impl<'a> UserDirs<'a> {
    /// The directories of users in `/tmp`.
    pub(super) fn in_tmp(tmp: &'a Path) -> Self {
        Self {
            parent: tmp,
            prefix: "smc-",
        }
    }

    /// The directories of users in a shared directory.
    pub(super) fn in_shared(base: &'a Path) -> Self {
        Self {
            parent: base,
            prefix: "",
        }
    }

    pub(super) fn path(self, uid: u32) -> PathBuf {
        self.parent.join(self.name(uid))
    }

    /// One with a random name that was not used yet; `None` without random numbers.
    pub(super) fn new_alternate(self, uid: u32) -> Option<PathBuf> {
        let mut random = [0; size_of::<u64>()];
        retry_on_intr(|| getrandom(&mut random, GetRandomFlags::empty())).ok()?;
        let random = u64::from_ne_bytes(random);
        Some(
            self.parent
                .join(format!("{}-{random:016x}", self.name(uid))),
        )
    }

    /// The user whose directory has this path, with or without a random name.
    pub(super) fn user(self, path: &Path) -> Option<u32> {
        let name = path.file_name().and_then(|name| name.to_str());
        let name = name.filter(|_| path.parent() == Some(self.parent));
        let (uid, random) = self.parse(name?)?;
        random.is_none_or(is_random).then_some(uid)
    }

    /// The user whose directory has this random name.
    pub(super) fn user_of_alternate(self, name: &str) -> Option<u32> {
        let (uid, random) = self.parse(name)?;
        random.is_some_and(is_random).then_some(uid)
    }

    /// The user of a name, and what is behind that. The cost does not depend on how many users
    /// there are.
    fn parse(self, name: &str) -> Option<(u32, Option<&str>)> {
        let name = name.strip_prefix(self.prefix)?;
        let (uid, random) = match name.split_once('-') {
            Some((uid, random)) => (uid, Some(random)),
            None => (name, None),
        };
        let is_written_so = uid == "0" || uid.starts_with(|first| matches!(first, '1'..='9'));
        let uid = uid.parse().ok().filter(|_| is_written_so)?;
        Some((uid, random))
    }

    fn name(self, uid: u32) -> String {
        format!("{}{uid}", self.prefix)
    }
}

fn is_random(part: &str) -> bool {
    part.len() == 16 && u64::from_str_radix(part, 16).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_that_of_one_user_at_most() {
        let dirs = UserDirs::in_tmp(Path::new("/tmp"));
        let random = "0123456789abcdef";
        let user = |name: &str| dirs.user(&dirs.parent.join(name));
        for uid in [0, 7, 1000, u32::MAX] {
            let alternate = format!("smc-{uid}-{random}");
            assert_eq!(dirs.user(&dirs.path(uid)), Some(uid));
            assert_eq!(dirs.user(&dirs.new_alternate(uid).unwrap()), Some(uid));
            assert_eq!(user(&alternate), Some(uid));
            assert_eq!(dirs.user_of_alternate(&alternate), Some(uid));
            assert_eq!(dirs.user_of_alternate(&format!("smc-{uid}")), None);
        }
        for name in [
            "1000",
            "smc-",
            "smc-+1",
            "smc-01",
            "smc-00",
            "smc--1",
            "smc-1-",
            "smc-1-0123456789abcde",
            "smc-1-0123456789abcdeg",
            "smc-4294967296",
        ] {
            assert_eq!(user(name), None, "{name}");
        }
        assert_eq!(dirs.user(Path::new("/var/tmp/smc-1")), None);
    }
}
