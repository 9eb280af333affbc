//! Numbers that nobody can guess, for tokens, names and nonces.

use std::cell::RefCell;
use std::io;

use rustix::io::Errno;
use rustix::rand::{GetRandomFlags, getrandom};
use smc_wire::types::Gid;

/// Random bytes of the system, at most 256. Mostly without a system call.
///
/// # Errors
///
/// When the system has no randomness to give.
pub fn bytes<const N: usize>() -> io::Result<[u8; N]> {
    STOCK.with_borrow_mut(|stock| {
        if stock.left < N {
            fill(&mut stock.bytes)?;
            stock.left = stock.bytes.len();
        }
        stock.left = stock.left.saturating_sub(N);
        let taken = stock.bytes.get_mut(stock.left..);
        let taken = taken.and_then(|rest| rest.first_chunk_mut());
        // Nothing is left behind that would tell what was given out.
        taken
            .map(|taken| std::mem::replace(taken, [0; N]))
            .ok_or_else(|| io::ErrorKind::InvalidInput.into())
    })
}

/// A name for an emulated SMC-D device.
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

fn fill(bytes: &mut [u8; 256]) -> io::Result<()> {
    loop {
        // As many come in one piece, once the system has collected enough randomness.
        match getrandom(&mut *bytes, GetRandomFlags::empty()) {
            Ok(_) => return Ok(()),
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// Random bytes that nobody has had yet, so that not each number is a system call.
struct Stock {
    bytes: [u8; 256],
    left: usize,
}

thread_local! {
    static STOCK: RefCell<Stock> = const {
        RefCell::new(Stock {
            bytes: [0; 256],
            left: 0,
        })
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_differ_also_beyond_one_stock() {
        let mut seen = std::collections::BTreeSet::new();
        assert!((0..1000).all(|_| seen.insert(bytes::<16>().unwrap())));
        assert!(bytes::<300>().is_err());
    }

    #[test]
    fn names_of_devices_have_two_halves() {
        assert!(is_emulated_gid(emulated_gid().unwrap()));
        assert!(!is_emulated_gid(Gid::emulated(1)));
        assert!(!is_emulated_gid(Gid::emulated(1 << 64)));
    }
}
