//! Names of devices in the runtime directory.
//!
//! Every device listens on a socket `d-<GID>.sock`, as
//! [`Publication`](smc_core::io::negotiate::runtime_dir::Publication) does it.

use smc_wire::types::Gid;

pub(crate) fn socket_name(gid: Gid) -> String {
    format!("{PREFIX}{:032x}{SUFFIX}", gid.to_u128())
}

pub(crate) fn is_socket_name(name: &str) -> bool {
    let gid = name
        .strip_prefix(PREFIX)
        .and_then(|name| name.strip_suffix(SUFFIX));
    gid.is_some_and(|gid| gid.len() == 32 && u128::from_str_radix(gid, 16).is_ok())
}

const PREFIX: &str = "d-";
const SUFFIX: &str = ".sock";
