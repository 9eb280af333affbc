//! A virtual machine as a process of QEMU.

use std::io;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::Sender;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use fs_err as fs;
use serde_json::json;

use super::agent::Agent;
use super::folder::Folder;
use super::image::Image;
use super::qmp::Qmp;
use crate::protocol::{FromGuest, Order};

/// A machine with its connections.
pub(crate) struct Machine {
    process: Child,
    /// It was meant to end.
    is_off: bool,
    agent: Agent,
    qmp: Qmp,
    kernel: String,
    console: PathBuf,
}

impl Machine {
    /// Starts a machine. Machine 0 lays the wire, machine 1 takes its other end.
    pub(crate) fn start(
        index: usize,
        image: &Image,
        folder: &Folder,
        qemu_args: &[String],
        inbox: Sender<(usize, FromGuest)>,
    ) -> Result<Self> {
        let file = |what: &str| folder.path().join(format!("{what}-{index}"));
        let socket = |what: &str| folder.socket(&format!("{what}-{index}"));
        let (agent, qmp, console) = (socket("agent"), socket("qmp"), file("console"));
        // Sockets of a machine that was killed.
        for socket in [&agent, &qmp] {
            let _ = fs::remove_file(socket);
        }
        let wire = folder.socket("wire");
        let server = if index == 0 { "on" } else { "off" };
        let listening = |at: &Path| format!("{},server=on,wait=off", at.display());
        // A machine must not outlive this process, however it ends.
        let mut command = Command::new("setpriv");
        command
            .args(["--pdeathsig", "KILL", "qemu-system-x86_64"])
            .args("-nodefaults -no-user-config -no-reboot -display none".split(' '))
            .args("-machine q35 -accel tcg,thread=multi -smp 1 -m 768".split(' '))
            .args(["-cpu", CPU])
            .arg("-kernel")
            .arg(&image.vmlinuz)
            .arg("-initrd")
            .arg(&image.initrd)
            .args(["-append", &format!("{CMDLINE} hostname=interop-{index}")])
            .args(["-serial", &format!("file:{}", console.display())])
            .args(["-qmp", &format!("unix:{}", listening(&qmp))])
            .args(["-device", "virtio-serial-pci"])
            .args([
                "-chardev",
                &format!("socket,id=agent,path={}", listening(&agent)),
            ])
            .args(["-device", "virtserialport,chardev=agent,name=agent"])
            .arg("-netdev")
            .arg(format!(
                "stream,id={WIRE},server={server},addr.type=unix,addr.path={}",
                wire.display()
            ))
            .args(["-netdev", &format!("hubport,id=h,hubid=0,netdev={WIRE}")]);
        for nic in 0..NICS {
            // Without `status` the guest is not notified when it is cut off.
            let device = format!(
                "virtio-net-pci,netdev=n{nic},mac=52:54:00:00:0{index}:0{nic},romfile=,status=off"
            );
            command
                .args(["-netdev", &format!("hubport,id=n{nic},hubid=0")])
                .args(["-device", &device]);
        }
        command.args(qemu_args);
        if index == 1 {
            await_path(&wire)?;
        }
        let process = command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::from(fs::File::create(file("qemu"))?.into_file()))
            .spawn()
            .context("cannot start setpriv (package util-linux)")?;
        let mut process = KillOnDrop(Some(process));
        let connected = (|| {
            let agent = Agent::new(connect(&agent)?, index, inbox)?;
            anyhow::Ok((agent, Qmp::new(connect(&qmp)?)?))
        })();
        let (agent, qmp) = connected.with_context(|| {
            let words = fs::read_to_string(file("qemu")).unwrap_or_default();
            format!("QEMU reports: {}", words.trim())
        })?;
        Ok(Self {
            process: process.0.take().context("just started")?,
            is_off: false,
            agent,
            qmp,
            kernel: String::new(),
            console,
        })
    }

    pub(crate) fn booted(&mut self, kernel: String) {
        self.kernel = kernel;
    }

    pub(crate) fn kernel(&self) -> &str {
        &self.kernel
    }

    pub(crate) fn send(&mut self, id: u64, order: Order) -> Result<()> {
        self.agent.send(id, order)
    }

    /// Cuts an interface off, or connects it again.
    pub(crate) fn set_cable(&mut self, nic: usize, whole: bool) -> Result<()> {
        let arguments = json!({ "name": format!("n{nic}"), "up": whole });
        self.qmp.execute("set_link", &arguments)
    }

    /// Presses the reset button. Its agent comes back as after a boot.
    #[cfg(feature = "ism")]
    pub(crate) fn reset(&mut self) -> Result<()> {
        self.end_at_reset(false)?;
        self.qmp.execute("system_reset", &json!({}))
    }

    /// Whether a reset ends the machine, as it has to after a panic.
    #[cfg(feature = "ism")]
    pub(crate) fn end_at_reset(&mut self, ends: bool) -> Result<()> {
        let action = if ends { "shutdown" } else { "reset" };
        self.qmp.execute("set-action", &json!({ "reboot": action }))
    }

    pub(crate) fn record(&mut self, to: &Path) -> Result<()> {
        let arguments = json!({
            "qom-type": "filter-dump",
            "id": DUMP,
            "netdev": WIRE,
            "file": to,
            "maxlen": CAPTURED,
        });
        self.qmp.execute("object-add", &arguments)
    }

    pub(crate) fn stop_recording(&mut self) -> Result<()> {
        self.qmp.execute("object-del", &json!({ "id": DUMP }))
    }

    pub(crate) fn console(&self) -> String {
        let bytes = fs::read(&self.console).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// How it has ended, unless it was meant to.
    pub(crate) fn ended(&mut self) -> io::Result<Option<ExitStatus>> {
        if self.is_off {
            return Ok(None);
        }
        self.process.try_wait()
    }

    /// CPU time of the host that the machine has taken, whatever else goes on there.
    pub(crate) fn cpu_time(&self) -> Duration {
        let tasks = fs::read_dir(format!("/proc/{}/task", self.process.id()));
        let nanos = tasks.into_iter().flatten().flatten().filter_map(|task| {
            let text = fs::read_to_string(task.path().join("schedstat")).ok()?;
            text.split(' ').next()?.parse::<u64>().ok()
        });
        Duration::from_nanos(nanos.sum())
    }

    /// There is nothing in a guest that a switch-off could harm. QEMU is killed.
    pub(crate) fn stop(&mut self) {
        self.is_off = true;
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Ends a machine whose connections could not be made.
struct KillOnDrop(Option<Child>);

impl Drop for KillOnDrop {
    fn drop(&mut self) {
        if let Some(mut process) = self.0.take() {
            let _ = process.kill();
            let _ = process.wait();
        }
    }
}

fn connect(path: &Path) -> Result<UnixStream> {
    await_path(path)?;
    let deadline = Instant::now() + START_TIME;
    loop {
        match UnixStream::connect(path) {
            Ok(stream) => return Ok(stream),
            Err(error) if Instant::now() > deadline => {
                return Err(error).with_context(|| format!("connect to {}", path.display()));
            }
            Err(_) => thread::sleep(Duration::from_millis(5)),
        }
    }
}

/// Waits until another process has made its socket.
fn await_path(path: &Path) -> Result<()> {
    let deadline = Instant::now() + START_TIME;
    while !path.exists() {
        anyhow::ensure!(
            Instant::now() < deadline,
            "{} does not appear",
            path.display()
        );
        thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}

/// Interfaces of each machine, all in one network.
pub(crate) const NICS: usize = 3;

/// The way from machine to machine.
const WIRE: &str = "wire";

const DUMP: &str = "dump";

/// Without a fifth level of page tables, which only costs time, and without CMPXCHG16B: a kernel
/// whose allocator uses it has crashed with an address in the flags register.
const CPU: &str = "max,la57=off,cx16=off";

/// Quiet, because the console is slow; a panic ends the machine. A guest's kernel has to watch its
/// clock: one that it calibrated on a busy host has run at 2.7 times the speed, unwatched, and its
/// timers with it. A virtual IOMMU is used where there is one.
const CMDLINE: &str = "console=ttyS0 quiet loglevel=4 panic=-1 oops=panic net.ifnames=0 \
    random.trust_cpu=on mitigations=off audit=0 apparmor=0 intel_iommu=on";

/// Bytes of each frame that are recorded: all of any message, the beginning of data.
const CAPTURED: u32 = 600;

const START_TIME: Duration = Duration::from_secs(10);
