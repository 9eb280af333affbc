//! Random numbers that cannot be guessed.

use smc_core::device::DeviceError;
use smc_core::random::{bytes, emulated_gid, is_emulated_gid};
use smc_wire::types::{DmbToken, Gid};

use crate::directory::USER_BITS;

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

/// A name for a device of this user: 96 random bits and the user's number, see
/// [`user_of`](crate::directory::user_of).
pub(crate) fn gid(user: u32) -> Result<Gid, DeviceError> {
    loop {
        let random = emulated_gid().map_err(failed)?.to_u128();
        let gid = Gid::emulated(random & !USER_BITS | u128::from(user));
        if is_emulated_gid(gid) {
            return Ok(gid);
        }
    }
}

fn failed(error: std::io::Error) -> DeviceError {
    DeviceError::os("get random bytes", &error)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::directory::user_of;

    #[test]
    fn a_gid_contains_the_user_and_is_never_the_same() {
        for user in [0, 1, 1000, u32::MAX] {
            let [first, second] = [(); 2].map(|()| gid(user).unwrap());
            assert_eq!((user_of(first), user_of(second)), (user, user));
            assert_ne!(first, second);
            assert!(is_emulated_gid(first));
        }
    }
}
