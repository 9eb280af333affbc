//! Two virtual machines in one network, and functions that inject faults.

mod agent;
mod cpio;
mod folder;
mod image;
mod impairment;
mod kernel;
mod machine;
mod qmp;

use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use serde::de::DeserializeOwned;
use serde_json::Value;

use folder::Folder;
use image::Image;
pub(crate) use image::{find, in_guest};
pub(crate) use kernel::Version;
use machine::Machine;
pub(crate) use machine::NICS;

use crate::protocol::{Event, FromGuest, Order};

/// Two guests that have booted.
pub(crate) struct Lab {
    machines: [Machine; 2],
    #[cfg_attr(
        not(feature = "ism"),
        allow(dead_code, reason = "others' machines last")
    )]
    restart: RestartParameters,
    inbox: Receiver<(usize, FromGuest)>,
    /// Events that came while an answer was waited for.
    early: Vec<(usize, u32, Event)>,
    last_id: u64,
    folder: Folder,
}

/// Parameters for another start of a machine.
#[cfg_attr(
    not(feature = "ism"),
    allow(dead_code, reason = "others' machines last")
)]
struct RestartParameters {
    images: [Image; 2],
    qemu_args: [Vec<String>; 2],
    sender: Sender<(usize, FromGuest)>,
}

/// An event of a side of a scenario.
#[derive(Debug)]
pub(crate) struct SideEvent {
    pub(crate) run: u32,
    pub(crate) event: Event,
}

impl Lab {
    /// Boots two guests with these kernels.
    ///
    /// A boot that never reached the agent is repeated: software emulation now and then loses a
    /// guest that early. Nothing else ever is.
    pub(crate) fn boot(kernels: [Version; 2]) -> Result<Self> {
        Self::boot_with(kernels, &[])
    }

    /// The same with further programs of the host in their `/bin`.
    pub(crate) fn boot_with(kernels: [Version; 2], programs: &[&Path]) -> Result<Self> {
        Self::boot_with_args(kernels, programs, &[const { Vec::new() }; 2])
    }

    /// The same with further arguments for QEMU.
    pub(crate) fn boot_with_args(
        kernels: [Version; 2],
        programs: &[&Path],
        qemu_args: &[Vec<String>; 2],
    ) -> Result<Self> {
        let home = home()?;
        let mut last = None;
        for attempt in 0..BOOTS {
            let folder = Folder::new(&home)?;
            let prepare = |version| image::prepare(&home, folder.path(), version, programs);
            let image = prepare(kernels[0])?;
            let images = if kernels[0] == kernels[1] {
                [image.clone(), image]
            } else {
                [image, prepare(kernels[1])?]
            };
            match Self::boot_once(images, folder, qemu_args) {
                Ok(lab) => return Ok(lab),
                Err(error) => {
                    println!("boot {attempt} did not reach the agent: {error:#}");
                    last = Some(error);
                }
            }
        }
        Err(last.unwrap_or_else(|| anyhow::anyhow!("no boot was tried")))
    }

    fn boot_once(images: [Image; 2], folder: Folder, qemu_args: &[Vec<String>; 2]) -> Result<Self> {
        let (sender, inbox) = channel();
        let start = |index: usize| {
            let sender = sender.clone();
            Machine::start(index, &images[index], &folder, &qemu_args[index], sender)
        };
        let mut lab = Self {
            machines: [start(0)?, start(1)?],
            restart: RestartParameters {
                images,
                qemu_args: qemu_args.clone(),
                sender,
            },
            inbox,
            early: Vec::new(),
            last_id: 0,
            folder,
        };
        lab.await_agents(2)?;
        Ok(lab)
    }

    fn await_agents(&mut self, mut waiting: usize) -> Result<()> {
        let deadline = Instant::now() + BOOT_TIME;
        while waiting > 0 {
            match self.next(deadline)? {
                Some((index, FromGuest::Hello { kernel })) => {
                    self.machines[index].booted(kernel);
                    waiting -= 1;
                }
                Some((from, FromGuest::Event { run, event })) => {
                    self.early.push((from, run, event));
                }
                Some(_) => {}
                None => bail!("no word from a guest within {BOOT_TIME:?}"),
            }
        }
        Ok(())
    }

    /// The release of a guest's kernel.
    pub(crate) fn kernel(&self, guest: usize) -> &str {
        self.machines[guest].kernel()
    }

    /// Where captures and logs of this lab go.
    pub(crate) fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Has the agent of a guest do something.
    pub(crate) fn order<T: DeserializeOwned>(&mut self, guest: usize, order: Order) -> Result<T> {
        self.last_id += 1;
        let id = self.last_id;
        let what = format!("{order:?}");
        self.machines[guest].send(id, order)?;
        let deadline = Instant::now() + ANSWER_TIME;
        loop {
            match self.next(deadline)? {
                Some((from, FromGuest::Answer { id: of, result })) if from == guest && of == id => {
                    let value: Value = result
                        .map_err(anyhow::Error::msg)
                        .with_context(|| format!("{} cannot {what}", name(guest)))?;
                    return Ok(serde_json::from_value(value)?);
                }
                Some((from, FromGuest::Event { run, event })) => {
                    self.early.push((from, run, event));
                }
                Some(_) => {}
                None => bail!("{} did not answer {what}", name(guest)),
            }
        }
    }

    /// Runs a program in a guest to its end.
    pub(crate) fn exec(&mut self, guest: usize, command: &str) -> Result<String> {
        let argv = command.split_whitespace().map(str::to_owned).collect();
        self.order(guest, Order::Exec(argv))
    }

    /// Runs commands of `ip` in a guest, in one process: starting one takes longer than what it
    /// does.
    pub(crate) fn ip(&mut self, guest: usize, commands: Vec<String>) -> Result<()> {
        self.order(guest, Order::Ip(commands))
    }

    /// What the kernel of a guest has reported since [`Order::ClearKernelLog`].
    pub(crate) fn kernel_log(&mut self, guest: usize) -> Result<String> {
        self.order(guest, Order::KernelLog)
    }

    /// The next event of any side. `None` when nothing happened until the deadline.
    pub(crate) fn next_event(&mut self, deadline: Instant) -> Result<Option<SideEvent>> {
        if !self.early.is_empty() {
            let (_, run, event) = self.early.remove(0);
            return Ok(Some(SideEvent { run, event }));
        }
        loop {
            match self.next(deadline)? {
                Some((_, FromGuest::Event { run, event })) => {
                    return Ok(Some(SideEvent { run, event }));
                }
                Some(_) => {}
                None => return Ok(None),
            }
        }
    }

    /// Waits for an event of a run that gives something. Its log is printed, its report and its end
    /// are too early; events of others are of no interest.
    pub(crate) fn wait<T>(
        &mut self,
        run: u32,
        time: Duration,
        wanted: impl Fn(&Event) -> Option<T>,
    ) -> Result<T> {
        let deadline = Instant::now() + time;
        while let Some(seen) = self.next_event(deadline)? {
            if seen.run != run {
                continue;
            }
            if let Some(found) = wanted(&seen.event) {
                return Ok(found);
            }
            match seen.event {
                Event::Log(words) => println!("{words}"),
                Event::Report(report) => bail!("reported too early: {report:?}"),
                Event::Ended(code) => bail!("ended too early: {code:?}"),
                _ => {}
            }
        }
        bail!("not done after {time:?}")
    }

    /// Cuts an interface off so that neither guest is notified, or connects it again.
    pub(crate) fn set_cable(&mut self, guest: usize, nic: usize, whole: bool) -> Result<()> {
        self.machines[guest].set_cable(nic, whole)
    }

    /// Starts to record everything between the guests.
    pub(crate) fn record(&mut self, to: &Path) -> Result<()> {
        self.machines[0].record(to)
    }

    /// Stops to record.
    pub(crate) fn stop_recording(&mut self) -> Result<()> {
        self.machines[0].stop_recording()
    }

    /// CPU time that a guest has taken so far.
    pub(crate) fn cpu_time(&self, guest: usize) -> Duration {
        self.machines[guest].cpu_time()
    }

    /// What a guest's kernel has written to its console.
    pub(crate) fn console(&self, guest: usize) -> String {
        self.machines[guest].console()
    }

    fn next(&mut self, deadline: Instant) -> Result<Option<(usize, FromGuest)>> {
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            match self.inbox.recv_timeout(left.min(LOOK_AFTER)) {
                Ok(message) => return Ok(Some(message)),
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {
                    for (index, machine) in self.machines.iter_mut().enumerate() {
                        if let Some(status) = machine.ended()? {
                            bail!("{} has ended: {status}", name(index));
                        }
                    }
                    if left.is_zero() {
                        return Ok(None);
                    }
                }
            }
        }
    }
}

/// Machines that do not last as long as the lab.
#[cfg(feature = "ism")]
impl Lab {
    /// Resets a machine, and waits until it has booted.
    pub(crate) fn reset(&mut self, guest: usize) -> Result<()> {
        self.machines[guest].reset()?;
        // One that is lost while it boots resets itself.
        self.await_agents(1)?;
        self.machines[guest].end_at_reset(true)
    }

    /// Kills the process that is the machine.
    pub(crate) fn kill(&mut self, guest: usize) {
        self.machines[guest].stop();
    }

    /// Starts a machine that was killed, and waits until it has booted; as often as for the first
    /// boot.
    ///
    /// The wire between the machines is whole again only if this is machine 1.
    pub(crate) fn restart(&mut self, guest: usize) -> Result<()> {
        for attempt in 1.. {
            self.machines[guest].stop();
            let image = &self.restart.images[guest];
            let qemu_args = &self.restart.qemu_args[guest];
            let sender = self.restart.sender.clone();
            self.machines[guest] = Machine::start(guest, image, &self.folder, qemu_args, sender)?;
            match self.await_agents(1) {
                Err(error) if attempt < BOOTS => {
                    println!("boot {attempt} did not reach the agent: {error:#}");
                }
                done => return done,
            }
        }
        Ok(())
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        for machine in &mut self.machines {
            machine.stop();
        }
    }
}

/// What a guest is called in messages.
pub(crate) fn name(guest: usize) -> &'static str {
    ["guest A", "guest B"]
        .get(guest)
        .copied()
        .unwrap_or("guest")
}

pub(crate) fn own_program() -> Result<PathBuf> {
    std::env::current_exe().context("path of this program")
}

/// Where kernels, images and captures are kept: `SMC_INTEROP_DIR`, otherwise beside the program
/// in the target folder.
pub(crate) fn home() -> Result<PathBuf> {
    if let Some(folder) = std::env::var_os("SMC_INTEROP_DIR") {
        return Ok(folder.into());
    }
    let program = own_program()?;
    let target = program.parent().and_then(Path::parent);
    Ok(target
        .context("the program is in no target folder; set SMC_INTEROP_DIR")?
        .join("interop"))
}

const BOOTS: u32 = 3;

const BOOT_TIME: Duration = Duration::from_secs(90);

/// Deleting a device under load takes a while.
const ANSWER_TIME: Duration = Duration::from_secs(60);

const LOOK_AFTER: Duration = Duration::from_millis(200);
