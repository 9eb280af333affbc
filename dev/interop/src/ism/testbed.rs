//! Where scenarios run: this host with an ivshmem server, and two guests.

use std::fmt;
use std::io::{BufRead as _, BufReader};
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use smc_testkit::port::HeldPort;
use smc_transport_ism::Server;
use tempfile::TempDir;

use crate::jobs::Jobs;
use crate::lab::{Lab, NICS, Version, own_program};
use crate::protocol::{Event, Order};

/// Where a side runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum At {
    Host,
    GuestA,
    GuestB,
}

impl fmt::Display for At {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Host => "host",
            Self::GuestA => "guest A",
            Self::GuestB => "guest B",
        })
    }
}

/// A server that runs.
#[derive(Debug)]
pub(super) struct Served {
    pub(super) side: u32,
    at: At,
    listen: String,
}

/// Booted guests, and what goes on.
pub(super) struct Testbed {
    lab: Lab,
    /// Has the ivshmem server's socket.
    _folder: TempDir,
    path: PathBuf,
    nocopy: bool,
    vfio: bool,
    serving: Option<Serving>,
    /// Sides on this host, and their events.
    jobs: Jobs,
    receiver: Receiver<(u32, Event)>,
    /// Events of sides that were not consumed yet.
    received: Vec<(u32, Event)>,
    /// Where each side runs, by its number.
    sides: Vec<At>,
    /// By which ports of this host the servers in each guest are reached.
    ports: [Forwarded; 2],
    /// Ports of servers on this host.
    own_ports: Vec<HeldPort>,
    /// Of the last server in each guest.
    servers: [u16; 2],
    verbose: bool,
}

impl Testbed {
    pub(super) fn boot(nocopy: bool, vfio: bool, verbose: bool) -> Result<Self> {
        let folder = TempDir::with_prefix("smc-ism-").context("folder for a socket")?;
        let path = folder.path().join("server.sock");
        let serving = Some(Serving::start(&path, nocopy, vfio)?);
        let ports = [held_ports()?, held_ports()?];
        let qemu_args =
            [0, 1].map(|guest| qemu_args(&path, vfio, &forwarded(&ports[guest]), DEVICES[guest]));
        let mut lab = Lab::boot_with_args([Version::V6_12; 2], &[], &qemu_args)?;
        for guest in 0..2 {
            set_up(&mut lab, guest, vfio)?;
        }
        let (sender, receiver) = channel();
        let jobs = Jobs::new(move |side, event| {
            let _ = sender.send((side, event));
        });
        Ok(Self {
            lab,
            _folder: folder,
            path,
            nocopy,
            vfio,
            serving,
            jobs,
            receiver,
            received: Vec::new(),
            sides: Vec::new(),
            ports,
            own_ports: Vec::new(),
            servers: [0; 2],
            verbose,
        })
    }

    /// Presses the reset button of a guest, and waits until it is back.
    pub(super) fn reset(&mut self, at: At) -> Result<()> {
        self.lab.reset(guest(at))?;
        set_up(&mut self.lab, guest(at), self.vfio)
    }

    /// Kills a guest's QEMU.
    pub(super) fn kill_machine(&mut self, at: At) {
        self.lab.kill(guest(at));
    }

    /// Boots a guest whose QEMU was killed.
    pub(super) fn restart_machine(&mut self, at: At) -> Result<()> {
        self.lab.restart(guest(at))?;
        set_up(&mut self.lab, guest(at), self.vfio)
    }

    /// Ends the ivshmem server. Gives whether it could report it: with guests that are interrupted
    /// it is killed.
    pub(super) fn end_server(&mut self) -> bool {
        let ended = self.serving.take();
        matches!(ended, Some(Serving::Here(..)))
    }

    /// Starts another ivshmem server where the last one was.
    pub(super) fn start_server(&mut self) -> Result<()> {
        self.serving = Some(Serving::start(&self.path, self.nocopy, self.vfio)?);
        Ok(())
    }

    /// Starts a server, and waits until it listens.
    pub(super) fn serve(&mut self, at: At, time: Duration) -> Result<Served> {
        let listen = match at {
            At::Host => {
                let port = HeldPort::of(Ipv4Addr::LOCALHOST).context("no free port")?;
                let listen = port.addr().to_string();
                self.own_ports.push(port);
                listen
            }
            At::GuestA | At::GuestB => {
                let number = &mut self.servers[guest(at)];
                *number = (*number + 1) % SERVERS;
                format!("0.0.0.0:{}", PORT + *number)
            }
        };
        let side = self.start(at, &["serve", &listen])?;
        self.await_line(side, "listening", time)?;
        Ok(Served { side, at, listen })
    }

    /// Where a client finds a server.
    pub(super) fn way(&self, client: At, server: &Served) -> Result<String> {
        let (_, port) = server.listen.rsplit_once(':').context("no port")?;
        Ok(match (client, server.at) {
            (At::Host, At::Host) => server.listen.clone(),
            (At::Host, at) => {
                let number = usize::from(port.parse::<u16>()? - PORT);
                self.ports[guest(at)][number].addr().to_string()
            }
            (_, At::Host) => format!("{OUTSIDE}:{port}"),
            (_, at) => format!("{}:{port}", ADDRESSES[guest(at)]),
        })
    }

    /// Starts a side; gives its number.
    pub(super) fn start(&mut self, at: At, what: &[&str]) -> Result<u32> {
        let side = u32::try_from(self.sides.len())?;
        let program = match at {
            At::Host => own_program()?.display().to_string(),
            At::GuestA | At::GuestB => "/init".to_owned(),
        };
        let mut argv = vec![program, "ism-side".to_owned()];
        if at == At::Host {
            argv.push(format!("--socket={}", self.path.display()));
        }
        argv.extend(what.iter().map(|word| (*word).to_owned()));
        let env = Vec::new();
        match at {
            At::Host => self.jobs.spawn(side, &argv, env)?,
            at => {
                let order = Order::Spawn {
                    run: side,
                    argv,
                    env,
                };
                self.lab.order::<()>(guest(at), order)?;
            }
        }
        self.sides.push(at);
        Ok(side)
    }

    /// Lets a side go on that waits for it.
    pub(super) fn go(&mut self, side: u32) -> Result<()> {
        match self.place(side)? {
            At::Host => self.jobs.go(side),
            at => self.lab.order(guest(at), Order::Go { run: side }),
        }
    }

    /// Kills a side as the out-of-memory killer would.
    pub(super) fn kill(&mut self, side: u32) -> Result<()> {
        match self.place(side)? {
            At::Host => self.jobs.kill(side),
            at => self.lab.order(guest(at), Order::Kill { run: side }),
        }
    }

    fn place(&self, side: u32) -> Result<At> {
        let at = self.sides.get(usize::try_from(side)?);
        at.copied().context("no such side")
    }

    /// Kills all that runs, after a scenario that went wrong.
    pub(super) fn clear(&mut self) {
        for side in 0..u32::try_from(self.sides.len()).unwrap_or(0) {
            // Most have ended.
            let _ = self.kill(side);
        }
    }

    /// Waits for a line of a side with this beginning.
    pub(super) fn await_line(&mut self, side: u32, start: &str, time: Duration) -> Result<()> {
        let deadline = Instant::now() + time;
        loop {
            match self.next(side, deadline)? {
                Some(Event::Log(line)) if line.starts_with(start) => return Ok(()),
                Some(Event::Log(line)) => self.print(side, &line),
                Some(Event::Ended(code)) => {
                    bail!("the side has ended ({code:?}) without '{start}'")
                }
                Some(_) => {}
                None => bail!("no '{start}' within {time:?}"),
            }
        }
    }

    /// Prints the output of a side until it ends. Gives its exit code.
    pub(super) fn show_until_end(&mut self, side: u32, time: Duration) -> Result<Option<i32>> {
        let deadline = Instant::now() + time;
        loop {
            match self.next(side, deadline)? {
                Some(Event::Log(line)) => println!("          {line}"),
                Some(Event::Ended(code)) => return Ok(code),
                Some(_) => {}
                None => bail!("not done within {time:?}"),
            }
        }
    }

    fn print(&self, side: u32, line: &str) {
        if self.verbose {
            println!("    {side:>3}   {line}");
        }
    }

    /// The next event of a side; those of others are kept.
    fn next(&mut self, side: u32, deadline: Instant) -> Result<Option<Event>> {
        loop {
            self.received.extend(self.receiver.try_iter());
            let at = self.received.iter().position(|(from, _)| *from == side);
            if let Some(at) = at {
                return Ok(Some(self.received.remove(at).1));
            }
            if Instant::now() > deadline {
                return Ok(None);
            }
            let soon = Instant::now() + LOOK_AGAIN;
            if let Some(seen) = self.lab.next_event(soon)? {
                self.received.push((seen.run, seen.event));
            }
        }
    }
}

/// A server.
pub(super) enum Serving {
    /// With its thread. It ends in order.
    Here(Arc<Server>, Option<JoinHandle<()>>),
    /// A process, which is killed.
    Apart(Child),
}

impl Serving {
    pub(super) fn start(path: &Path, nocopy: bool, is_apart: bool) -> Result<Self> {
        if is_apart {
            return Self::start_apart(path, nocopy);
        }
        let server = Arc::new(server(path, nocopy)?);
        let running = Arc::clone(&server);
        let thread = thread::spawn(move || {
            if let Err(error) = running.run() {
                println!("the ivshmem server has failed: {error}");
            }
        });
        Ok(Self::Here(server, Some(thread)))
    }

    fn start_apart(path: &Path, nocopy: bool) -> Result<Self> {
        let mut command = Command::new(own_program()?);
        command.args(["ism-side", "keep-memory"]).arg(path);
        command.args(nocopy.then_some("--nocopy"));
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("cannot start a server")?;
        let mut line = String::new();
        let stdout = child.stdout.take().context("no stdout")?;
        BufReader::new(stdout)
            .read_line(&mut line)
            .context("read from the server")?;
        ensure!(!line.is_empty(), "the server has ended at once");
        Ok(Self::Apart(child))
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        match self {
            Self::Here(server, thread) => {
                server.stop();
                if let Some(thread) = thread.take() {
                    let _ = thread.join();
                }
            }
            Self::Apart(child) => {
                let _ = child.kill();
                let _ = child.wait();
            }
        }
    }
}

/// A server of its own process. It ends with the process that started it.
pub(super) fn keep_memory(path: &Path, nocopy: bool) -> Result<()> {
    let server = Arc::new(server(path, nocopy)?);
    let receiver = Arc::clone(&server);
    thread::spawn(move || {
        let _ = std::io::stdin().read_line(&mut String::new());
        receiver.stop();
    });
    println!("listening");
    Ok(server.run()?)
}

fn server(path: &Path, nocopy: bool) -> Result<Server> {
    let server = Server::builder(path).len(MEMORY).nocopy(nocopy).bind();
    server.with_context(|| format!("ivshmem server at {}", path.display()))
}

/// Arguments of QEMU for what a guest has besides: ivshmem devices, and a network with the host, by
/// its backend.
pub(super) fn qemu_args(server: &Path, vfio: bool, way: &str, devices: usize) -> Vec<String> {
    let mut args = Vec::new();
    let mut add = |option: &str, value: String| args.extend([option.to_owned(), value]);
    // With a single CPU, QEMU emulates fences and atomic instructions as if no other process
    // else had the memory.
    add("-smp", "1,maxcpus=2".to_owned());
    if vfio {
        add("-device", "intel-iommu,intremap=on".to_owned());
    }
    add("-netdev", format!("{way},id=host"));
    let mac = "mac=52:54:00:00:00:0f";
    add(
        "-device",
        format!("virtio-net-pci,netdev=host,{mac},romfile="),
    );
    for device in 0..devices {
        let path = server.display();
        add("-chardev", format!("socket,id=ism{device},path={path}"));
        let chardev = format!("chardev=ism{device}");
        add("-device", format!("ivshmem-doorbell,{chardev},vectors=1"));
    }
    args
}

/// A backend that needs no privileges: ports of this host are some of the guest.
fn forwarded(ports: &Forwarded) -> String {
    let forward = |(outside, inside): (&HeldPort, _)| {
        format!(",hostfwd=tcp:{}-{INSIDE}:{inside}", outside.addr())
    };
    let forwards: Vec<_> = ports.iter().zip(PORT..).map(forward).collect();
    format!("user{}", forwards.concat())
}

/// Held, as QEMU takes them a moment later, and again when it is started again.
fn held_ports() -> Result<Forwarded> {
    let ports: std::io::Result<Vec<_>> = (0..SERVERS)
        .map(|_| HeldPort::of(Ipv4Addr::LOCALHOST))
        .collect();
    ports.context("no free ports")
}

/// One for each server that can be in a guest at a time.
type Forwarded = Vec<HeldPort>;

/// Gives a guest that has just booted its addresses, and its devices the driver that they need.
fn set_up(lab: &mut Lab, guest: usize, vfio: bool) -> Result<()> {
    // The network between a guest and its host has fixed addresses.
    for command in [
        "ip link set lo up".to_owned(),
        format!("ip addr add {}/24 dev eth0", ADDRESSES[guest]),
        "ip link set eth0 up".to_owned(),
        format!("ip addr add {INSIDE}/24 dev {}", to_host()),
        format!("ip link set {} up", to_host()),
    ] {
        lab.exec(guest, &command)?;
    }
    if vfio {
        bind_to_vfio(lab, guest)?;
    }
    Ok(())
}

/// The guest's interface to its host: the one that [`qemu_args`] adds to those of the lab.
pub(super) fn to_host() -> String {
    format!("eth{NICS}")
}

/// Gives a guest's ivshmem devices to vfio-pci.
pub(super) fn bind_to_vfio(lab: &mut Lab, guest: usize) -> Result<()> {
    let addresses: Vec<String> = lab.order(guest, Order::ListDir(PCI.to_owned()))?;
    for address in addresses {
        let file = |name: &str| format!("{PCI}/{address}/{name}");
        let id: String = lab.order(guest, Order::ReadFile(file("modalias")))?;
        if !id.starts_with(IVSHMEM) {
            continue;
        }
        for (path, text) in [
            (file("driver_override"), "vfio-pci".to_owned()),
            ("/sys/bus/pci/drivers_probe".to_owned(), address.clone()),
        ] {
            lab.order::<()>(guest, Order::WriteFile { path, text })?;
        }
    }
    Ok(())
}

fn guest(at: At) -> usize {
    usize::from(at == At::GuestB)
}

const PCI: &str = "/sys/bus/pci/devices";
/// Vendor and device.
const IVSHMEM: &str = "pci:v00001AF4d00001110";
/// Of the guests to each other.
const ADDRESSES: [&str; 2] = ["10.9.0.1", "10.9.0.2"];
/// Of a guest and its host to each other, as QEMU wants them.
const INSIDE: &str = "10.0.2.15";
const OUTSIDE: &str = "10.0.2.2";
const PORT: u16 = 7000;
/// Servers that can be in a guest at a time.
const SERVERS: u16 = 4;
/// ivshmem devices of each guest: one for each process that is there at a time.
const DEVICES: [usize; 2] = [6, 2];
const MEMORY: usize = 64 << 20;
const LOOK_AGAIN: Duration = Duration::from_millis(20);
