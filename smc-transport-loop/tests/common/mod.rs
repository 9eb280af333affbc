//! A device that the test drives, and other processes that run a part of this test binary.

#![allow(
    dead_code,
    unreachable_pub,
    missing_docs,
    reason = "shared by several test binaries"
)]

use std::io::{BufRead, BufReader, ErrorKind, IoSlice, Write};
use std::os::fd::AsFd;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::thread::yield_now;
use std::time::{Duration, Instant};

use futures_lite::future::block_on;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use smc_core::Domain;
use smc_core::device::{
    Attachment, Device, DeviceError, Direct, Dmb, Doorbell, Event, Signal, SubmitError,
};
use smc_core::mem::sync::Ordering;
use smc_transport_loop::{Builder, LoopDevice};
use smc_wire::types::{DmbToken, Gid};

/// How long anything may take before it counts as lost.
pub const TIMEOUT: Duration = Duration::from_secs(20);

pub const LEN: usize = 1 << 16;

/// A device, driven by the test while it waits.
pub struct DrivenDevice {
    pub device: LoopDevice,
}

impl DrivenDevice {
    pub fn new(builder: Builder) -> Self {
        Self {
            device: builder.build().expect("device"),
        }
    }

    pub fn in_dir(dir: &Path) -> Self {
        Self::new(LoopDevice::builder().domain(Domain::directory(dir)))
    }

    pub fn gid(&self) -> Gid {
        self.device.gid()
    }

    pub fn register(&self, peer: Gid) -> Arc<dyn Dmb> {
        block_on(self.device.register(peer, LEN)).expect("register")
    }

    pub fn try_attach(
        &self,
        peer: Gid,
        token: DmbToken,
    ) -> Result<Arc<dyn Attachment>, DeviceError> {
        block_on(self.device.nocopy().expect("nocopy").attach(peer, token))
    }

    pub fn attach(&self, peer: Gid, token: DmbToken) -> Arc<dyn Attachment> {
        self.try_attach(peer, token).expect("attach")
    }

    pub fn write(&self, to: DmbToken, at: u32, data: &[u8]) -> Result<(), SubmitError> {
        self.device
            .move_data(to, at, &[IoSlice::new(data)], Signal::Yes)
    }

    pub fn drain(&self) -> Vec<Event> {
        let mut events = Vec::new();
        self.device
            .drain(&mut |event| events.push(event))
            .expect("drain");
        events
    }

    /// Drives the device until `done` returns true for an event; false if time runs out.
    pub fn wait_within(&self, time: Duration, mut done: impl FnMut(Event) -> bool) -> bool {
        let deadline = Instant::now() + time;
        loop {
            for arm in [true, false] {
                if self.drain().into_iter().any(&mut done) {
                    return true;
                }
                if arm {
                    self.device.arm().expect("arm");
                }
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            self.park(left);
        }
    }

    pub fn wait(&self, event: Event) {
        assert!(
            self.wait_within(TIMEOUT, |got| got == event),
            "no {event:?} in time"
        );
    }

    /// Drives the device until the directory holds these names and no others.
    pub fn wait_names(&self, dir: &Path, expected: &[String]) {
        // A process that was killed closes its sockets one after the other.
        let deadline = Instant::now() + TIMEOUT;
        while names(dir) != expected {
            assert!(
                Instant::now() < deadline,
                "{:?} instead of {expected:?}",
                names(dir)
            );
            self.wait_within(Duration::from_millis(5), |_| true);
        }
    }

    /// Waits until the aligned word at `at` differs from `old`, the way a reader does.
    pub fn wait_word(&self, dmb: &dyn Dmb, at: usize, old: u64) -> u64 {
        let deadline = Instant::now() + TIMEOUT;
        loop {
            let look = || dmb.region().load(at, Ordering::Acquire).expect("word");
            if look() != old {
                return look();
            }
            dmb.arm();
            if look() != old {
                return look();
            }
            let left = deadline.saturating_duration_since(Instant::now());
            let token = dmb.token();
            assert!(
                self.wait_within(left, |event| event == Event::Signalled(token)),
                "no signal"
            );
        }
    }

    pub fn device_arm(&self) {
        self.device.arm().expect("arm");
    }

    pub fn park(&self, time: Duration) -> bool {
        let Doorbell::Fd(fd) = self.device.doorbell() else {
            panic!("doorbell is a descriptor")
        };
        let time = Timespec::try_from(time).expect("time");
        let mut fds = [PollFd::from_borrowed_fd(fd.as_fd(), PollFlags::IN)];
        poll(&mut fds, Some(&time)).expect("poll") > 0
    }
}

/// Another process that runs a role of this test binary.
pub struct Helper {
    child: Child,
    lines: BufReader<std::process::ChildStdout>,
}

impl Helper {
    /// Starts `role` with an argument.
    pub fn start(role: &str, dir: &Path) -> Self {
        Self::start_with(role, dir, |_| {})
    }

    pub fn start_with(role: &str, dir: &Path, change: impl FnOnce(&mut Command)) -> Self {
        let mut command = Command::new(std::env::current_exe().expect("own path"));
        command.args([
            "helper_process",
            "--exact",
            "--nocapture",
            "--test-threads=1",
        ]);
        change(&mut command);
        Self::spawn(command, role, dir)
    }

    pub fn spawn(mut command: Command, role: &str, dir: &Path) -> Self {
        command
            .env(ROLE, role)
            .env(DIR, dir)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        // Another test's child, just forked, may still hold a copy of the program for writing.
        let mut child = loop {
            match command.spawn() {
                Err(error) if error.kind() == ErrorKind::ExecutableFileBusy => yield_now(),
                started => break started.expect("start helper process"),
            }
        };
        let lines = BufReader::new(child.stdout.take().expect("piped"));
        Self { child, lines }
    }

    /// The next line from the role.
    pub fn recv(&mut self) -> String {
        let mut line = String::new();
        loop {
            line.clear();
            assert!(
                self.lines.read_line(&mut line).expect("read") > 0,
                "the helper has ended"
            );
            // The test runner's own lines lack the mark, and may be before it on the same line.
            if let Some((_, payload)) = line.split_once(MARK) {
                return payload.trim().to_owned();
            }
        }
    }

    pub fn recv_gid(&mut self) -> Gid {
        self.recv().parse().expect("a GID")
    }

    pub fn recv_token(&mut self) -> DmbToken {
        DmbToken(self.recv().parse().expect("a token"))
    }

    pub fn send(&mut self, line: impl ToString) {
        let stdin = self.child.stdin.as_mut().expect("piped");
        writeln!(stdin, "{}", line.to_string()).expect("helper listens");
    }

    pub fn id(&self) -> u32 {
        self.child.id()
    }

    pub fn signal(&self, signal: rustix::process::Signal) {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, signal).expect("signal helper");
    }

    /// Waits until the process has stopped after [`Kill::STOP`](rustix::process::Signal::STOP).
    pub fn wait_stopped(&self) {
        let path = format!("/proc/{}/stat", self.child.id());
        let is_stopped = || {
            let stat = std::fs::read_to_string(&path).expect("/proc");
            stat.rsplit(") ")
                .next()
                .is_some_and(|rest| rest.starts_with('T'))
        };
        while !is_stopped() {
            yield_now();
        }
    }

    pub fn kill(mut self) {
        self.child.kill().expect("kill helper");
        self.child.wait().expect("reap helper");
    }

    /// Lets the role end by itself.
    pub fn finish(mut self) {
        drop(self.child.stdin.take());
        assert!(
            self.child.wait().expect("reap helper").success(),
            "helper failed"
        );
    }
}

impl Drop for Helper {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The side of a helper.
pub struct Role {
    pub name: String,
    pub dir: std::path::PathBuf,
}

impl Role {
    /// `None` in the process of the tests themselves.
    pub fn current() -> Option<Self> {
        let name = std::env::var(ROLE).ok()?;
        Some(Self {
            name,
            dir: std::env::var_os(DIR)?.into(),
        })
    }

    pub fn send(&self, what: impl ToString) {
        println!("{MARK}{}", what.to_string());
    }

    /// The next line from the test; `None` when it wants the role to end.
    pub fn recv(&self) -> Option<String> {
        let mut line = String::new();
        let count = std::io::stdin().read_line(&mut line).expect("read");
        (count > 0).then(|| line.trim().to_owned())
    }

    pub fn recv_gid(&self) -> Gid {
        self.recv().expect("a line").parse().expect("a GID")
    }

    pub fn recv_token(&self) -> DmbToken {
        DmbToken(self.recv().expect("a line").parse().expect("a token"))
    }
}

/// Names in a directory.
pub fn names(dir: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(dir).expect("directory");
    let name = |entry: std::io::Result<std::fs::DirEntry>| entry.expect("entry").file_name();
    entries
        .map(|entry| name(entry).to_string_lossy().into_owned())
        .collect()
}

pub fn socket_name(gid: Gid) -> String {
    format!("d-{:032x}.sock", gid.to_u128())
}

/// Descriptors that this process has open.
pub fn open_descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").expect("/proc").count()
}

/// Waits until this process has at most so many descriptors open: some are closed by another
/// thread.
pub fn wait_descriptors(most: usize) {
    let deadline = Instant::now() + TIMEOUT;
    while open_descriptors() > most {
        assert!(
            Instant::now() < deadline,
            "{} descriptors are open instead of {most}",
            open_descriptors()
        );
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Mappings of memory files in this process.
pub fn memory_mappings() -> usize {
    let maps = std::fs::read_to_string("/proc/self/maps").expect("/proc");
    maps.lines()
        .filter(|line| line.contains("memfd:smc"))
        .count()
}

const ROLE: &str = "SMC_LOOP_TEST_ROLE";
const DIR: &str = "SMC_LOOP_TEST_DIR";
const MARK: &str = "@@ ";
