//! Waiting for input until the user ends the program.

use std::cell::Cell;
use std::io;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::time::Duration;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};

/// The requests to end: Ctrl-C, SIGTERM, and the end of the process that reads standard output.
#[derive(Debug)]
pub(super) struct Watch {
    signals: SignalFd,
    is_over: Cell<bool>,
}

impl Watch {
    /// Takes both signals from here on; they no longer end the process.
    pub(super) fn new() -> io::Result<Self> {
        let ends: SigSet = [Signal::SIGINT, Signal::SIGTERM].into_iter().collect();
        ends.thread_block()?;
        Ok(Self {
            signals: SignalFd::with_flags(&ends, SfdFlags::SFD_CLOEXEC)?,
            is_over: Cell::new(false),
        })
    }

    /// Whether there was a request to end.
    pub(super) fn is_over(&self) -> bool {
        self.is_over.get()
    }

    /// Waits until `input` has data or is at its end; false after a request to end.
    pub(super) fn wait(&self, input: BorrowedFd<'_>) -> io::Result<bool> {
        let input = PollFd::new(input, PollFlags::POLLIN);
        self.poll(Some(input), PollTimeout::NONE)
    }

    /// Waits for some time; false after a request to end.
    pub(super) fn pause(&self, time: Duration) -> io::Result<bool> {
        self.poll(None, time.try_into().unwrap_or(PollTimeout::MAX))
    }

    fn poll(&self, input: Option<PollFd<'_>>, timeout: PollTimeout) -> io::Result<bool> {
        let out = io::stdout();
        let signals = PollFd::new(self.signals.as_fd(), PollFlags::POLLIN);
        // Without events only an error is reported: the reader of a pipe has closed it.
        let out = PollFd::new(out.as_fd(), PollFlags::empty());
        let mut all = vec![signals, out];
        all.extend(input);
        match poll(&mut all, timeout) {
            Ok(_) => {}
            Err(Errno::EINTR) => return Ok(!self.is_over()),
            Err(error) => return Err(error.into()),
        }
        let has = |at: usize, flags| {
            let found = all.get(at).and_then(PollFd::revents);
            found.is_some_and(|found: PollFlags| found.intersects(flags))
        };
        if has(0, PollFlags::POLLIN) || has(1, PollFlags::POLLERR) {
            self.is_over.set(true);
        }
        Ok(!self.is_over())
    }
}
