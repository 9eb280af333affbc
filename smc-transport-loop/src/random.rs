//! Numbers that nobody can guess.

use rustix::io::Errno;
use rustix::rand::{GetRandomFlags, getrandom};
use smc_core::device::DeviceError;
use smc_wire::types::{DmbToken, Gid};

use crate::region::os;

/// A name for a buffer.
pub(crate) fn token() -> Result<DmbToken, DeviceError> {
    loop {
        // Zero means "none" in a bell.
        let token = u64::from_ne_bytes(bytes()?);
        if token != 0 {
            return Ok(DmbToken(token));
        }
    }
}

/// A name for a device.
pub(crate) fn gid() -> Result<Gid, DeviceError> {
    loop {
        // With a half of zero it would look like a native GID, or like none.
        let gid = Gid::emulated(u128::from_ne_bytes(bytes()?));
        if gid.hi().0 != 0 && gid.lo().0 != 0 {
            return Ok(gid);
        }
    }
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
