//! Numbers that nobody can guess.

use rustix::io::Errno;
use rustix::rand::{GetRandomFlags, getrandom};
use smc_core::device::DeviceError;
use smc_wire::types::Gid;

use crate::region::os;

/// 64 random bits.
pub(crate) fn word() -> Result<u64, DeviceError> {
    bytes().map(u64::from_ne_bytes)
}

/// 128 random bits, for a fabric.
pub(crate) fn id() -> Result<u128, DeviceError> {
    bytes().map(u128::from_ne_bytes)
}

/// A name for a device.
pub(crate) fn gid() -> Result<Gid, DeviceError> {
    loop {
        let gid = Gid::emulated(id()?);
        if is_emulated(gid) {
            return Ok(gid);
        }
    }
}

/// Whether a GID can be that of an emulated device: with a half of zero it would look like that of
/// a native one, or like none.
pub(crate) fn is_emulated(gid: Gid) -> bool {
    gid.hi().0 != 0 && gid.lo().0 != 0
}

fn bytes<const N: usize>() -> Result<[u8; N], DeviceError> {
    let mut bytes = [0; N];
    loop {
        // Up to 256 bytes come in one piece, once the system has collected enough randomness.
        match getrandom(&mut bytes, GetRandomFlags::empty()) {
            Ok(_) => return Ok(bytes),
            Err(Errno::INTR) => {}
            Err(error) => return Err(os("get random bytes", error)),
        }
    }
}
