//! The number of this process, without a system call each time.

use std::cell::RefCell;

use rustix::process::{Pid, getpid};

use crate::mem::WipedOnFork;

/// As `getpid(2)`. The number is read once per thread, into memory that the kernel zeroes in a
/// child process of `fork`, which reads its own number then.
#[must_use]
pub fn current() -> Pid {
    let known = |memory: &RefCell<Option<WipedOnFork>>| {
        let mut memory = memory.borrow_mut();
        let word = memory.as_mut()?.bytes().first_chunk_mut()?;
        if let Some(pid) = Pid::from_raw(i32::from_ne_bytes(*word)) {
            return Some(pid);
        }
        let pid = getpid();
        *word = pid.as_raw_nonzero().get().to_ne_bytes();
        Some(pid)
    };
    // There can be no such memory, or the thread is at its end.
    let known = PROCESS.try_with(known).ok().flatten();
    known.unwrap_or_else(getpid)
}

thread_local! {
    /// The number as `i32`; 0 until it was read.
    static PROCESS: RefCell<Option<WipedOnFork>> =
        RefCell::new(WipedOnFork::new(size_of::<i32>()).ok());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_thread_reads_the_number_of_the_process() {
        let other = std::thread::spawn(|| [current(), current()]);
        assert_eq!([current(), current()], [getpid(); 2]);
        assert_eq!(other.join().unwrap(), [getpid(); 2]);
    }
}
