//! Further processes of this program, which a command starts, and what they report.

use std::io::{self, BufRead as _, BufReader, Read, Write as _};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, TrySendError};
use std::thread;

use anyhow::{Context as _, Result};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tempfile::TempDir;

/// Arguments of a process that a command starts.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Args {
    /// What to do, in JSON
    task: String,
}

impl Args {
    pub(crate) fn task<T: DeserializeOwned>(&self) -> Result<T> {
        serde_json::from_str(&self.task).context("not a task")
    }
}

/// Reports to the parent, as a process that [`start`] has started.
pub(crate) fn report(what: &impl Serialize) -> Result<()> {
    let line = serde_json::to_string(what)?;
    writeln!(io::stdout(), "{line}").context("cannot send to the parent")
}

/// Starts this program with a subcommand and its task, in JSON, and with these variables in its
/// environment too. Returns the process, which has a pipe for standard input, and the lines of its
/// standard output.
pub(crate) fn start(
    subcommand: &str,
    task: &impl Serialize,
    errors: Stdio,
    environment: &[(&str, &str)],
) -> Result<(Child, mpsc::Receiver<io::Result<String>>)> {
    let program = std::env::current_exe().context("cannot find the program itself")?;
    let mut child = Command::new(program)
        .arg(subcommand)
        .arg(serde_json::to_string(task)?)
        .envs(environment.iter().copied())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(errors)
        .spawn()
        .context("cannot start a process")?;
    let stdout = child.stdout.take().context("no standard output")?;
    Ok((child, lines_of(stdout)))
}

/// A directory for the processes of a command: in memory, where there is such a place, as a file
/// there is what ISM devices share. The name has the number of this process, so that one that was
/// left behind can be distinguished from one in use.
pub(crate) fn directory(command: &str) -> Result<TempDir> {
    let prefix = format!("smc-{command}-{}-", std::process::id());
    TempDir::with_prefix_in(&prefix, "/dev/shm")
        .or_else(|_| TempDir::with_prefix(&prefix))
        .context("cannot make a directory for the processes")
}

/// The lines of an output, which is read even if they are not, so that the process never waits for
/// this one. Nothing is read behind a line that is too long, and lines are dropped when too many
/// wait to be taken: it may be the output of an agent on another machine.
pub(crate) fn lines_of(output: impl Read + Send + 'static) -> mpsc::Receiver<io::Result<String>> {
    let (sender, receiver) = mpsc::sync_channel(LINES_MAX);
    thread::spawn(move || {
        let mut output = BufReader::new(output);
        loop {
            let mut line = String::new();
            match output.by_ref().take(LINE_MAX).read_line(&mut line) {
                Ok(0) | Err(_) => return,
                Ok(_) => {}
            }
            let is_whole = line.ends_with('\n');
            if !is_whole && line.len() as u64 == LINE_MAX {
                let text = format!("a line of {LINE_MAX} bytes or more");
                let error = io::Error::new(io::ErrorKind::InvalidData, text);
                let _unread = sender.try_send(Err(error));
                return;
            }
            let line = line.trim_end_matches(['\r', '\n']).to_owned();
            if let Err(TrySendError::Disconnected(_)) = sender.try_send(Ok(line)) {
                return;
            }
        }
    });
    receiver
}

/// Bytes of a line: far more than a result with all its latencies has.
const LINE_MAX: u64 = 16 << 20;

/// Lines that wait to be taken: a process has one or two.
const LINES_MAX: usize = 16;

#[cfg(test)]
mod tests {
    use super::*;

    /// Tells that all before it was read.
    struct AtEnd(mpsc::Sender<()>);

    impl Read for AtEnd {
        fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
            let _told_before = self.0.send(());
            Ok(0)
        }
    }

    #[test]
    fn lines_are_bounded_in_length_and_number() {
        let long = io::repeat(b'x');
        let lines = lines_of(io::Cursor::new("first\r\nsecond\n").chain(long));
        let all: Vec<_> = lines.iter().collect();
        let [Ok(first), Ok(second), Err(error)] = &*all else {
            panic!("{all:?}");
        };
        assert_eq!((&**first, &**second), ("first", "second"));
        assert_eq!(error.to_string(), "a line of 16777216 bytes or more");
        let (sender, is_read) = mpsc::channel();
        let many = io::Cursor::new("x\n".repeat(1000)).chain(AtEnd(sender));
        let lines = lines_of(many);
        is_read.recv().unwrap();
        assert_eq!(lines.iter().count(), LINES_MAX);
        let last = lines_of(io::Cursor::new("no end"));
        assert_eq!(last.recv().unwrap().unwrap(), "no end");
    }
}
