//! A capture that grows while it is read.

use std::ffi::OsStr;
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek as _};
use std::os::fd::AsFd as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::time::Duration;

use nix::libc::O_NONBLOCK;

use super::watch::Watch;

/// Reads a file beyond its end, as it grows, and a pipe until its last writer has closed it. A
/// request to end is the end of either.
#[derive(Debug)]
pub(super) struct Follow<'a> {
    file: File,
    /// Has an end that moves, where `poll` does not wait.
    is_regular: bool,
    watch: &'a Watch,
}

impl<'a> Follow<'a> {
    /// Opens a file or a named pipe; `-` is standard input.
    pub(super) fn open(path: &OsStr, watch: &'a Watch) -> io::Result<Self> {
        let file = if path == "-" {
            io::stdin().as_fd().try_clone_to_owned()?.into()
        } else {
            // The open of a named pipe would otherwise wait for a writer, and not for signals.
            let mut options = OpenOptions::new();
            options.read(true).custom_flags(O_NONBLOCK).open(path)?
        };
        Ok(Self {
            is_regular: file.metadata()?.is_file(),
            file,
            watch,
        })
    }

    /// Whether to read: a file at once, a pipe when it has data or no writer any more. False after
    /// a request to end.
    fn is_ready(&self) -> io::Result<bool> {
        match self.is_regular {
            true => self.watch.pause(Duration::ZERO),
            false => self.watch.wait(self.file.as_fd()),
        }
    }

    /// The end of a file as it is now: waits before the next look.
    fn at_end(&mut self) -> io::Result<()> {
        if self.file.metadata()?.len() < self.file.stream_position()? {
            return Err(io::Error::other(
                "the file was made shorter while it was followed: start again",
            ));
        }
        self.watch.pause(PAUSE).map(drop)
    }
}

impl Read for Follow<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        // Data ends it, the last writer of a pipe, or the user.
        while self.is_ready()? {
            match self.file.read(buffer) {
                Ok(0) if self.is_regular => self.at_end()?,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                done => return done,
            }
        }
        Ok(0)
    }
}

/// Between two looks at the end of a file. Not all file systems report that a file has grown.
const PAUSE: Duration = Duration::from_millis(50);
