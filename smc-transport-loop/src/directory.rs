//! Names of devices in the runtime directory.
//!
//! Every device listens on a socket `d-<GID>.sock`, as
//! [`Publication`](smc_ipc::runtime_dir::Publication) does it.

use smc_wire::types::Gid;

/// The user whose device has this GID. The process at a GID of a domain with several users has to
/// be one of that user, so a user cannot take the GIDs of another one.
pub(crate) fn user_of(gid: Gid) -> u32 {
    let [.., a, b, c, d] = gid.to_u128().to_be_bytes();
    u32::from_be_bytes([a, b, c, d])
}

pub(crate) fn socket_name(gid: Gid) -> String {
    format!("{PREFIX}{:032x}{SUFFIX}", gid.to_u128())
}

pub(crate) fn is_socket_name(name: &str) -> bool {
    let gid = name
        .strip_prefix(PREFIX)
        .and_then(|name| name.strip_suffix(SUFFIX));
    gid.is_some_and(|gid| gid.len() == 32 && u128::from_str_radix(gid, 16).is_ok())
}

/// The bits of a GID that contain the user.
pub(crate) const USER_BITS: u128 = u32::MAX as u128;
const PREFIX: &str = "d-";
const SUFFIX: &str = ".sock";
