//! Loop devices for endpoints, and devices that the test drives itself.

#![allow(
    dead_code,
    unreachable_pub,
    missing_docs,
    reason = "shared by several test binaries"
)]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

pub mod hostile;

use std::fs::set_permissions;
use std::future::Future;
use std::io::IoSlice;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use futures_lite::future::block_on;
use rustix::process::geteuid;
use smc::{Domain, Endpoint, Stream};
use smc_core::device::{
    Attachment, Device, DeviceError, Direct, Dmb, Doorbell, Event, Signal, SubmitError,
};
use smc_core::mem::sync::Ordering;
use smc_ipc::thread::{Lock, start as start_job};
use smc_negotiate_local::Local;
use smc_testkit::on::On;
use smc_testkit::process::{Child, ENTRY, Role, command};
use smc_testkit::wait::TIMEOUT;
use smc_testkit::{streams, unix};
use smc_transport_loop::{Builder, LoopDevice};
use smc_wire::types::{DmbToken, Gid};
use tempfile::TempDir;

pub const LEN: usize = 1 << 16;

/// A runtime, a runtime directory of its own and a kind of device.
#[derive(Clone, Debug)]
pub struct World {
    pub on: On,
    pub nocopy: bool,
    dir: Arc<TempDir>,
}

impl World {
    pub fn new(on: On, nocopy: bool) -> Self {
        let dir = Arc::new(TempDir::new().unwrap());
        Self { on, nocopy, dir }
    }

    pub fn run<F: Future<Output = ()>>(on: On, nocopy: bool, scenario: impl FnOnce(Self) -> F) {
        on.run(scenario(Self::new(on, nocopy)));
    }

    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    pub fn device(&self) -> Builder {
        device(self.dir()).nocopy(self.nocopy)
    }

    pub fn builder(&self) -> smc::Builder {
        builder(self.on, self.nocopy, self.dir())
    }

    pub fn endpoint(&self) -> Endpoint {
        self.builder().build().unwrap()
    }

    /// Two endpoints with one stream between them: the client's and the server's end.
    pub async fn pair(&self) -> (Stream, Stream) {
        streams::pair(&self.endpoint(), &self.endpoint()).await
    }
}

pub fn device(dir: impl AsRef<Path>) -> Builder {
    LoopDevice::builder().domain(Domain::directory(dir.as_ref()))
}

pub fn builder(on: On, nocopy: bool, dir: &Path) -> smc::Builder {
    let device = device(dir).nocopy(nocopy).build().unwrap();
    without_device(on, dir).device(Arc::new(device))
}

pub fn without_device(on: On, dir: &Path) -> smc::Builder {
    on.endpoint().negotiation(local(Domain::directory(dir)))
}

/// Negotiation between the processes of a domain.
pub fn local(domain: Domain) -> Arc<Local> {
    Arc::new(Local::in_domain(domain))
}

/// A device, driven by the test while it waits.
pub struct DrivenDevice {
    pub device: LoopDevice,
}

impl DrivenDevice {
    pub fn new(builder: Builder) -> Self {
        Self {
            device: builder.build().unwrap(),
        }
    }

    pub fn in_dir(dir: &Path) -> Self {
        Self::new(device(dir))
    }

    /// Two devices that are peers.
    pub fn pair(dir: &TempDir) -> (Self, Self) {
        (Self::in_dir(dir.path()), Self::in_dir(dir.path()))
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

    pub fn write(&self, peer: Gid, to: DmbToken, at: u32, data: &[u8]) -> Result<(), SubmitError> {
        self.device
            .move_data(peer, to, at, &[IoSlice::new(data)], Signal::Yes)
    }

    pub fn drain(&self) -> Vec<Event> {
        let mut events = Vec::new();
        self.device
            .drain(&mut |event| events.push(event))
            .expect("drain");
        events
    }

    /// Handles new channels, whose devices are looked up on the threads of these users.
    pub fn accept_of(&self, users: &[u32]) {
        self.drain();
        for user in users {
            let (end, has_ended) = channel::<()>();
            start_job(Lock::DirectoriesOf(*user), move || drop(end)).expect("a thread");
            assert!(has_ended.recv().is_err());
        }
        self.drain();
    }

    /// The same for peers of the own user.
    pub fn accept(&self) {
        self.accept_of(&[geteuid().as_raw()]);
    }

    pub fn reach(&self, peer: Gid) {
        block_on(self.device.reach(peer)).expect("reach");
    }

    pub fn arm(&self) {
        self.device.arm().expect("arm");
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
                    self.arm();
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
            let is_signalled = self.wait_within(left, |event| event == Event::Signalled(token));
            assert!(is_signalled, "no signal");
        }
    }

    pub fn park(&self, time: Duration) -> bool {
        let Doorbell::Fd(fd) = self.device.doorbell() else {
            panic!("doorbell is a descriptor")
        };
        unix::is_readable(fd, time)
    }
}

/// Another process that runs a role of this test binary.
pub fn start(role: &str, dir: &TempDir) -> Child {
    Child::start(role, dir.path().display())
}

/// The same as another user.
pub fn start_as(user: u32, role: &str, dir: &TempDir) -> Child {
    let mut command = command(ENTRY);
    command.uid(user).gid(user).current_dir("/");
    Child::spawn(command, role, dir.path().display())
}

/// A role: has a device, and a buffer for each request.
pub fn idle(role: &Role) {
    let device = DrivenDevice::in_dir(role.dir());
    role.send(device.gid());
    while let Some(line) = role.recv() {
        let dmb = device.register(line.parse().unwrap());
        role.send(dmb.token().0);
        // Kept until the process ends.
        std::mem::forget(dmb);
    }
}

/// A directory that users can share.
pub fn shared_dir() -> TempDir {
    let dir = TempDir::new().unwrap();
    set_permissions(dir.path(), PermissionsExt::from_mode(0o1777)).unwrap();
    dir
}

/// Names in a directory.
pub fn names(dir: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(dir).unwrap();
    entries
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect()
}

/// Where the socket of a device is.
pub fn socket_path(dir: &Path, gid: Gid) -> PathBuf {
    dir.join(socket_name(gid))
}

pub fn socket_name(gid: Gid) -> String {
    format!("d-{:032x}.sock", gid.to_u128())
}

/// Runs a scenario on both runtimes, with mapped buffers and with moved data.
#[allow(unused_macros, reason = "not every test file has scenarios")]
macro_rules! scenarios {
    ($($name:ident)+) => { scenarios! { by $crate::common::World::run; $($name)+ } };
    (by $run:path; $($name:ident)+) => {
        mod tokio_nocopy { $( #[test] fn $name() { $run(smc_testkit::on::On::Tokio, true, super::$name); } )+ }
        mod tokio_copy { $( #[test] fn $name() { $run(smc_testkit::on::On::Tokio, false, super::$name); } )+ }
        mod smol_nocopy { $( #[test] fn $name() { $run(smc_testkit::on::On::Smol, true, super::$name); } )+ }
        mod smol_copy { $( #[test] fn $name() { $run(smc_testkit::on::On::Smol, false, super::$name); } )+ }
    };
}
