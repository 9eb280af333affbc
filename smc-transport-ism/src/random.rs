//! Unpredictable numbers.

use smc_core::device::DeviceError;
use smc_core::random::bytes;

/// 64 random bits.
pub(crate) fn word() -> Result<u64, DeviceError> {
    bytes().map(u64::from_ne_bytes).map_err(failed)
}

/// 128 random bits, for a fabric.
pub(crate) fn id() -> Result<u128, DeviceError> {
    bytes().map(u128::from_ne_bytes).map_err(failed)
}

pub(crate) fn failed(error: std::io::Error) -> DeviceError {
    DeviceError::os("get random bytes", &error)
}
