//! Tests with several processes: a test runs its own program again, in a role.
//!
//! One test of the program, by its name, is the entry point of all roles: where [`Role::current`]
//! is `None` it has nothing to do.

use std::ffi::OsStr;
use std::fmt::Display;
use std::io::{self, BufRead as _, BufReader, ErrorKind, Write as _};
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::path::Path;
use std::process::{Child as StdChild, Command, ExitStatus, Stdio};
use std::str::FromStr;
use std::sync::LazyLock;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;
use std::{env, fmt};

use rustix::fs::{Mode, OFlags, open};
use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};

use crate::wait::TIMEOUT;

/// The name that entry points have in common.
pub const ENTRY: &str = "helper_process";

/// A command that runs one test of this program.
///
/// # Panics
///
/// If the program is not to be found.
pub fn command(test: &str) -> Command {
    command_by::<&str>(&[], test)
}

/// The same by way of another program, such as `ip netns exec NAME`.
///
/// # Panics
///
/// As [`command`].
pub fn command_by<S: AsRef<OsStr>>(launcher: &[S], test: &str) -> Command {
    let program = program();
    let mut command = match launcher.split_first() {
        Some((first, rest)) => {
            let mut command = Command::new(first);
            command.args(rest).arg(program);
            command
        }
        None => Command::new(program),
    };
    command.args([test, "--exact", "--include-ignored", "--nocapture"]);
    command
}

/// The path of this program, for any user: by a descriptor that children inherit, since the folder
/// of the program may be closed to other users or hidden by a mount.
pub(crate) fn program() -> String {
    static PROGRAM: LazyLock<OwnedFd> = LazyLock::new(|| {
        open("/proc/self/exe", OFlags::PATH, Mode::empty()).expect("the file of this program")
    });
    format!("/proc/self/fd/{}", PROGRAM.as_raw_fd())
}

/// Runs the calling test in a process of its own, for what holds for a whole process. True there;
/// false when that process has ended.
///
/// # Panics
///
/// If the test fails there.
pub fn is_alone() -> bool {
    run_alone(|_| {}).is_none()
}

/// As [`is_alone`], where `prepare` has changed the command, such as by variables of the
/// environment. `None` there; what it wrote to standard error when that process has ended.
///
/// # Panics
///
/// If the test fails there.
pub fn run_alone(prepare: impl FnOnce(&mut Command)) -> Option<String> {
    if Role::current().is_some_and(|role| role.name() == ALONE) {
        return None;
    }
    let name = thread::current()
        .name()
        .expect("the name of a test")
        .to_owned();
    let mut command = command(&name);
    prepare(command.env(ROLE, ALONE).stdout(Stdio::inherit()));
    let output = command.output().expect("the process starts");
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{errors}");
    Some(errors)
}

/// Another process that runs a test of this program in a role. Dropping it kills it.
pub struct Child {
    process: StdChild,
    lines: Receiver<String>,
}

impl Child {
    /// Starts a role of the test [`ENTRY`], with arguments that are separated by spaces.
    ///
    /// # Panics
    ///
    /// If it does not start.
    pub fn start(role: &str, args: impl Display) -> Self {
        Self::spawn(command(ENTRY), role, args)
    }

    /// Starts a role by a command that runs a test of this program.
    ///
    /// # Panics
    ///
    /// If it does not start.
    pub fn spawn(mut command: Command, role: &str, args: impl Display) -> Self {
        command.env(ROLE, role).env(ARGS, args.to_string());
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        // A child of another test, just forked, may still have a copy of the program open for
        // writing.
        let mut process = loop {
            match command.spawn() {
                Err(error) if error.kind() == ErrorKind::ExecutableFileBusy => thread::yield_now(),
                started => break started.expect("the process starts"),
            }
        };
        let output = BufReader::new(process.stdout.take().expect("is piped"));
        let (sender, lines) = channel();
        thread::spawn(move || {
            for line in output.lines().map_while(Result::ok) {
                // Lines of the test runner have no mark, and may be before one on the same line.
                if let Some((_, sent)) = line.split_once(MARK) {
                    let _closed = sender.send(sent.trim().to_owned());
                }
            }
        });
        Self { process, lines }
    }

    /// The next line that the role sends.
    ///
    /// # Panics
    ///
    /// If the role ends before, or none comes in time.
    pub fn recv(&mut self) -> String {
        self.try_recv(TIMEOUT).expect("a line of the process")
    }

    /// The next line that the role sends.
    ///
    /// # Errors
    ///
    /// `Disconnected` when the role has ended, `Timeout` when none comes for so long.
    pub fn try_recv(&mut self, time: Duration) -> Result<String, RecvTimeoutError> {
        self.lines.recv_timeout(time)
    }

    /// The next line that the role sends, as what it stands for.
    ///
    /// # Panics
    ///
    /// If it stands for nothing of this type, or as [`Child::recv`].
    pub fn parse<T: FromStr<Err: fmt::Debug>>(&mut self) -> T {
        self.recv().parse().expect("a line of the expected form")
    }

    /// Sends a line to the role.
    ///
    /// # Panics
    ///
    /// If the role has ended.
    pub fn send(&mut self, line: impl Display) {
        let stdin = self.process.stdin.as_mut().expect("is piped");
        writeln!(stdin, "{line}").expect("the role listens");
    }

    /// The number of the process.
    pub fn id(&self) -> u32 {
        self.process.id()
    }

    /// Stops the process, and waits until all of its threads stand still, which takes a moment.
    ///
    /// # Panics
    ///
    /// If it has ended.
    pub fn stop(&self) {
        self.signal(Signal::STOP);
        let pid = Pid::from_child(&self.process);
        let stopped = waitpid(Some(pid), WaitOptions::UNTRACED).expect("is a child");
        assert!(stopped.is_some_and(|(_, status)| status.stopped()));
    }

    /// Lets a stopped process continue.
    ///
    /// # Panics
    ///
    /// If it has ended.
    pub fn resume(&self) {
        self.signal(Signal::CONT);
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.process), signal).expect("is a child");
    }

    /// Ends the process with SIGKILL and waits until it is gone.
    pub fn kill(mut self) {
        self.end();
    }

    /// Kills the process without waiting for its end.
    ///
    /// # Panics
    ///
    /// If the system refuses that.
    pub fn start_kill(&mut self) {
        self.process.kill().expect("is a child");
    }

    /// Lets the role end by itself, as [`Role::recv`] gives `None` then.
    ///
    /// # Panics
    ///
    /// If it fails.
    pub fn finish(self) {
        assert!(self.wait().success(), "the role failed");
    }

    /// The same, whatever the role ends with.
    ///
    /// # Panics
    ///
    /// If the system does not tell.
    pub fn wait(mut self) -> ExitStatus {
        drop(self.process.stdin.take());
        self.process.wait().expect("is a child")
    }

    fn end(&mut self) {
        let _ended = self.process.kill();
        let _reaped = self.process.wait();
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        self.end();
    }
}

impl fmt::Debug for Child {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Child").field(&self.id()).finish()
    }
}

/// What this process is to do, as another process has started it.
#[derive(Clone, Debug)]
pub struct Role {
    name: String,
    args: Vec<String>,
}

impl Role {
    /// The role of this process; `None` in a process of tests.
    pub fn current() -> Option<Self> {
        let args = env::var(ARGS).unwrap_or_default();
        Some(Self {
            name: env::var(ROLE).ok()?,
            args: args.split_whitespace().map(str::to_owned).collect(),
        })
    }

    /// The name of the role.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The arguments.
    pub fn args(&self) -> &[String] {
        &self.args
    }

    /// An argument.
    ///
    /// # Panics
    ///
    /// If there are fewer.
    pub fn arg(&self, at: usize) -> &str {
        &self.args[at]
    }

    /// The first argument, where that is a directory.
    ///
    /// # Panics
    ///
    /// If there is no argument.
    pub fn dir(&self) -> &Path {
        Path::new(self.arg(0))
    }

    /// Sends a line to the process that has started this one: whole, or not at all where this
    /// process is killed meanwhile.
    ///
    /// # Panics
    ///
    /// If there is no output.
    pub fn send(&self, line: impl Display) {
        let line = format!("{MARK}{line}\n");
        io::stdout().write_all(line.as_bytes()).expect("an output");
    }

    /// The next line from there; `None` when the role is to end.
    ///
    /// # Panics
    ///
    /// If the input cannot be read.
    pub fn recv(&self) -> Option<String> {
        let mut line = String::new();
        let count = io::stdin().read_line(&mut line).expect("can be read");
        (count > 0).then(|| line.trim().to_owned())
    }

    /// The next line from there, as what it stands for.
    ///
    /// # Panics
    ///
    /// If there is none, or it stands for nothing of this type.
    pub fn parse<T: FromStr<Err: fmt::Debug>>(&self) -> T {
        let line = self.recv().expect("a line");
        line.parse().expect("a line of the expected form")
    }

    /// Waits until the process that has started this one wants it to end, or has ended itself.
    pub fn stay(&self) {
        while self.recv().is_some() {}
    }
}

const ALONE: &str = "alone";
const ROLE: &str = "SMC_TEST_ROLE";
const ARGS: &str = "SMC_TEST_ARGS";
const MARK: &str = "@@ ";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn helper_process() {
        let Some(role) = Role::current() else { return };
        assert_eq!((role.name(), role.arg(1)), ("adds", "2"));
        while let Some(line) = role.recv() {
            role.send(line.parse::<u32>().unwrap() + 1);
        }
    }

    #[test]
    fn a_role_answers_until_it_is_to_end() {
        let mut child = Child::spawn(command("process::tests::helper_process"), "adds", "1 2");
        for number in [1, 41] {
            child.send(number);
            assert_eq!(child.parse::<u32>(), number + 1);
        }
        child.stop();
        child.send(7);
        assert!(child.try_recv(Duration::from_millis(20)).is_err());
        child.resume();
        assert_eq!(child.recv(), "8");
        child.finish();
    }
}
