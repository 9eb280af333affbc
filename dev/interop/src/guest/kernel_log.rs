//! What the kernel of a guest reports, without a program for it: starting one takes an emulated
//! machine longer than most of what it is started for.

use std::io;
use std::os::fd::OwnedFd;

use rustix::fs::{Mode, OFlags, open};
use rustix::io::{Errno, read};

/// The log since it was cleared.
#[derive(Debug)]
pub(super) struct KernelLog {
    device: OwnedFd,
    lines: String,
}

impl KernelLog {
    pub(super) fn open() -> io::Result<Self> {
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
        Ok(Self {
            device: open("/dev/kmsg", flags, Mode::empty())?,
            lines: String::new(),
        })
    }

    /// Forgets what has been reported so far.
    pub(super) fn clear(&mut self) -> io::Result<()> {
        self.receive()?;
        self.lines.clear();
        Ok(())
    }

    /// What has been reported since, one message a line.
    pub(super) fn lines(&mut self) -> io::Result<&str> {
        self.receive()?;
        Ok(&self.lines)
    }

    /// Each read gives one record, until there are no more.
    fn receive(&mut self) -> io::Result<()> {
        let mut record = [0; LONGEST];
        loop {
            match read(&self.device, &mut record) {
                Ok(0) | Err(Errno::AGAIN) => return Ok(()),
                Ok(len) => {
                    let record = String::from_utf8_lossy(&record[..len]);
                    self.lines.push_str(&message(&record));
                    self.lines.push('\n');
                }
                Err(Errno::INTR) => {}
                // Records were overwritten before they were read.
                Err(Errno::PIPE) => self.lines.push_str("(messages were lost)\n"),
                Err(error) => return Err(error.into()),
            }
        }
    }
}

/// The time and the text of a record, which may have properties on lines of their own.
fn message(record: &str) -> String {
    let first = record.lines().next().unwrap_or_default();
    let Some((fields, text)) = first.split_once(';') else {
        return first.to_owned();
    };
    let micros = fields.split(',').nth(2).and_then(|time| time.parse().ok());
    let micros: u64 = micros.unwrap_or(0);
    format!(
        "[{:5}.{:06}] {text}",
        micros / 1_000_000,
        micros % 1_000_000
    )
}

/// As the kernel defines it, with some room.
const LONGEST: usize = 8192;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_its_time_and_its_text() {
        let record = "4,512,7001234,-;WARNING: CPU: 0; PID: 1\n SUBSYSTEM=net\n DEVICE=n2\n";
        assert_eq!(message(record), "[    7.001234] WARNING: CPU: 0; PID: 1");
        assert_eq!(message("without fields"), "without fields");
    }
}
