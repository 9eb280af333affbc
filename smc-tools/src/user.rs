//! A command as another user.

use std::ffi::CString;

use anyhow::{Context as _, Result, ensure};
use nix::unistd::{
    Gid, Uid, User, geteuid, getgroups, getresgid, getresuid, initgroups, setgroups, setresgid,
    setresuid,
};

use crate::output::Usage;

/// Makes this process permanently one of a user: user, group and supplementary groups. The
/// environment stays. Returns a description.
///
/// # Errors
///
/// [`Usage`] for a user who does not exist, and for any user but root.
pub(crate) fn become_user(name: &str) -> Result<String> {
    if !geteuid().is_root() {
        return Err(Usage::new("--user takes root").into());
    }
    let found = User::from_name(name).context("cannot look up the user")?;
    let found = match (found, name.parse()) {
        (Some(user), _) => Ok(user),
        // The largest number stands for no change.
        (None, Ok(uid)) if uid != u32::MAX => {
            let user = User::from_uid(Uid::from_raw(uid)).context("cannot look up the user")?;
            user.ok_or(uid)
        }
        _ => return Err(Usage::new(format!("there is no user {name:?}")).into()),
    };
    let (uid, gid, text) = match found {
        Ok(user) => {
            let text = format!("{} ({})", user.name, user.uid);
            let name = CString::new(user.name).context("the name of the user")?;
            initgroups(&name, user.gid).context("cannot set the groups of the user")?;
            (user.uid, user.gid, text)
        }
        // A user of a container, of whom this host knows nothing else.
        Err(uid) => {
            let gid = Gid::from_raw(uid);
            setgroups(&[gid]).context("cannot set the groups of the user")?;
            let text = format!("{uid}, who is not in the list of users");
            (Uid::from_raw(uid), gid, text)
        }
    };
    setresgid(gid, gid, gid).context("cannot set the group of the user")?;
    setresuid(uid, uid, uid).context("cannot become the user")?;
    let (users, own) = (getresuid()?, getresgid()?);
    let users = [users.real, users.effective, users.saved];
    let own = [own.real, own.effective, own.saved];
    ensure!(
        users == [uid; 3] && own == [gid; 3],
        "this process has not become the user"
    );
    let groups: Vec<_> = getgroups()?.iter().map(ToString::to_string).collect();
    let groups = groups.join(", ");
    Ok(format!(
        "{text}, group {gid}, supplementary groups {groups}; environment of the caller"
    ))
}
