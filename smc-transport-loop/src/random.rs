//! Numbers that nobody can guess.

use std::cell::RefCell;

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
    STOCK.with_borrow_mut(|stock| {
        if stock.left < N {
            fill(&mut stock.bytes)?;
            stock.left = stock.bytes.len();
        }
        stock.left -= N;
        let taken = stock.bytes.get_mut(stock.left..);
        let taken = taken.and_then(|rest| rest.first_chunk_mut());
        // Nothing is left behind that would tell what was given out.
        Ok(taken.map_or([0; N], |taken| std::mem::replace(taken, [0; N])))
    })
}

fn fill(bytes: &mut [u8]) -> Result<(), DeviceError> {
    loop {
        // Up to 256 bytes come in one piece, once the system has collected enough randomness.
        match getrandom(&mut *bytes, GetRandomFlags::empty()) {
            Ok(_) => return Ok(()),
            Err(Errno::INTR) => {}
            Err(error) => return Err(os("get random bytes", error)),
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
