//! Random numbers that cannot be guessed.

use smc_core::device::DeviceError;
use smc_core::random::{bytes, emulated_gid};
use smc_wire::types::{DmbToken, Gid};

/// A name for a buffer.
pub(crate) fn token() -> Result<DmbToken, DeviceError> {
    loop {
        // Zero means "none" in a signal page.
        let token = u64::from_ne_bytes(bytes().map_err(failed)?);
        if token != 0 {
            return Ok(DmbToken(token));
        }
    }
}

/// A name for a device.
pub(crate) fn gid() -> Result<Gid, DeviceError> {
    emulated_gid().map_err(failed)
}

fn failed(error: std::io::Error) -> DeviceError {
    DeviceError::os("get random bytes", &error)
}
