//! Unpredictable random numbers, for tokens, names and nonces.

use std::cell::RefCell;
use std::io;

use rustix::io::Errno;
use rustix::rand::{GetRandomFlags, getrandom};
use smc_wire::types::Gid;

use crate::mem::WipedOnFork;

/// Random bytes of the system, at most 256. Mostly without a system call.
///
/// A child process of `fork` gets other numbers than its parent, and cannot know those of its
/// parent.
///
/// # Errors
///
/// When the system has no randomness.
pub fn bytes<const N: usize>() -> io::Result<[u8; N]> {
    let from_buffer = |buffer: &RefCell<Option<WipedOnFork>>| {
        let mut buffer = buffer.borrow_mut();
        buffer.as_mut().map(|memory| take(memory.bytes()))
    };
    match BUFFER.try_with(from_buffer) {
        Ok(Some(taken)) => taken,
        // There is no buffer, or the thread is ending.
        Ok(None) | Err(_) => {
            let mut bytes = [0; N];
            fill(&mut bytes)?;
            Ok(bytes)
        }
    }
}

/// A GID for an emulated SMC-D device.
///
/// # Errors
///
/// As [`bytes()`].
pub fn emulated_gid() -> io::Result<Gid> {
    loop {
        let gid = Gid::emulated(u128::from_ne_bytes(bytes()?));
        if is_emulated_gid(gid) {
            return Ok(gid);
        }
    }
}

/// Whether a GID can be that of an emulated device: with a half of zero it would look like that of
/// a native one, or like none.
#[must_use]
pub fn is_emulated_gid(gid: Gid) -> bool {
    gid.hi().0 != 0 && gid.lo().0 != 0
}

/// Takes bytes from a buffer, which is refilled first if it has too few. Zeroed memory is an empty
/// buffer.
fn take<const N: usize>(buffer: &mut [u8]) -> io::Result<[u8; N]> {
    let too_many = || io::Error::from(io::ErrorKind::InvalidInput);
    let (left, bytes) = buffer.split_first_chunk_mut().ok_or_else(too_many)?;
    let mut count = usize::from_ne_bytes(*left);
    if count < N {
        fill(bytes)?;
        count = bytes.len();
    }
    count = count.checked_sub(N).ok_or_else(too_many)?;
    *left = count.to_ne_bytes();
    let taken = bytes
        .get_mut(count..)
        .and_then(|rest| rest.first_chunk_mut());
    // Bytes that were given out are erased from the buffer.
    taken
        .map(|taken| std::mem::replace(taken, [0; N]))
        .ok_or_else(too_many)
}

fn fill(bytes: &mut [u8]) -> io::Result<()> {
    if bytes.len() > AT_ONCE {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    loop {
        // Up to this size a call is not interrupted once the system's generator is initialised.
        match getrandom(&mut *bytes, GetRandomFlags::empty()) {
            Ok(_) => return Ok(()),
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// Bytes that the system returns atomically.
const AT_ONCE: usize = 256;

thread_local! {
    /// The number of bytes left, and unused random bytes, so that not each number is a system call.
    static BUFFER: RefCell<Option<WipedOnFork>> =
        RefCell::new(WipedOnFork::new(size_of::<usize>() + AT_ONCE).ok());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_differ_across_refills() {
        let mut seen = std::collections::BTreeSet::new();
        assert!((0..1000).all(|_| seen.insert(bytes::<16>().unwrap())));
        assert!(bytes::<256>().unwrap().iter().any(|byte| *byte != 0));
        assert!(bytes::<300>().is_err());
    }

    #[test]
    fn names_of_devices_have_two_halves() {
        assert!(is_emulated_gid(emulated_gid().unwrap()));
        assert!(!is_emulated_gid(Gid::emulated(1)));
        assert!(!is_emulated_gid(Gid::emulated(1 << 64)));
    }
}
