//! Takes orders from the host over a virtio port and answers them.

use std::ffi::OsStr;
use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use fs_err::{self as fs, File};
use serde_json::{Value, json};

use super::boot;
use super::kernel_log::KernelLog;
use super::resources;
use super::smc;
use crate::jobs::Jobs;
use crate::protocol::{FromGuest, Order, Request};

/// Serves the host until it closes the port.
pub(crate) fn serve() -> Result<()> {
    let mut port = port().context("no port to the host")?;
    // Whatever was sent before a reset ends here.
    port.write_all(b"\n")?;
    let host = Host {
        port: Arc::new(Mutex::new(port.try_clone()?)),
    };
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease")?;
    host.send(&FromGuest::Hello {
        kernel: kernel.trim().to_owned(),
    });
    let mut log = KernelLog::open()?;
    let events = host.clone();
    let jobs = Jobs::new(move |run, event| events.send(&FromGuest::Event { run, event }));
    for line in BufReader::new(port).lines() {
        let line = line.context("port to the host")?;
        let Request { id, order } = serde_json::from_str(&line).context("order")?;
        let result = execute(order, &jobs, &mut log).map_err(|error| format!("{error:#}"));
        host.send(&FromGuest::Answer { id, result });
    }
    Ok(())
}

/// The way to the host, for several threads.
#[derive(Clone, Debug)]
pub(crate) struct Host {
    port: Arc<Mutex<File>>,
}

impl Host {
    pub(crate) fn send(&self, what: &FromGuest) {
        let Ok(mut line) = serde_json::to_vec(what) else {
            return;
        };
        line.push(b'\n');
        let mut port = self.port.lock().unwrap_or_else(PoisonError::into_inner);
        if let Err(error) = port.write_all(&line) {
            eprintln!("interop agent: cannot send to the host: {error}");
        }
    }
}

fn execute(order: Order, jobs: &Jobs, log: &mut KernelLog) -> Result<Value> {
    Ok(match order {
        Order::Exec(argv) => json!(exec(&argv)?),
        Order::Ip(commands) => json!(ip(&commands)?),
        Order::ClearKernelLog => json!(log.clear()?),
        Order::KernelLog => json!(log.lines()?),
        Order::ReadFile(path) => json!(fs::read_to_string(path)?),
        Order::WriteFile { path, text } => json!(fs::write(path, text)?),
        Order::ListDir(path) => {
            let names: std::io::Result<Vec<_>> = fs::read_dir(path)?
                .map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()))
                .collect();
            json!(names?)
        }
        Order::SetUeids(eids) => json!(smc::set_ueids(&eids)?),
        Order::SetPnets(table) => json!(smc::set_pnets(&table)?),
        Order::SmcState => json!(smc::state()?),
        Order::Start { run, job } => json!(jobs.start(run, &job)?),
        Order::Spawn { run, argv, env } => json!(jobs.spawn(run, &argv, env)?),
        Order::Go { run } => json!(jobs.go(run)?),
        Order::Kill { run } => json!(jobs.kill(run)?),
        Order::Resources { run } => {
            let shown = exec(&["rdma", "resource", "show"].map(str::to_owned))?;
            json!(resources::of(jobs.pid(run)?, &shown)?)
        }
        Order::StepClock(seconds) => json!(resources::step_clock(seconds)?),
        Order::PowerOff => boot::power_off(),
    })
}

fn exec(argv: &[String]) -> Result<String> {
    let (program, args) = argv.split_first().context("no program")?;
    let output = Command::new(program)
        .args(args)
        .stdin(Stdio::null())
        .output()
        .with_context(|| program.clone())?;
    let stdout = String::from_utf8_lossy(&output.stdout).into_owned();
    let stderr = String::from_utf8_lossy(&output.stderr);
    ensure!(
        output.status.success(),
        "{}: {}: {stdout}{stderr}",
        argv.join(" "),
        output.status
    );
    Ok(stdout)
}

fn ip(commands: &[String]) -> Result<()> {
    fs::write(BATCH, commands.join("\n") + "\n")?;
    let argv = ["ip", "-batch", BATCH].map(str::to_owned);
    exec(&argv).map(drop).with_context(|| commands.join("; "))
}

/// The device may come a moment after the first process.
fn port() -> Result<File> {
    for _ in 0..TRIES {
        let is_port = |name: &OsStr| name.to_string_lossy().starts_with("vport");
        let mut devices = fs::read_dir("/dev")?.flatten();
        if let Some(device) = devices.find(|device| is_port(&device.file_name())) {
            let path = device.path();
            return Ok(File::options().read(true).write(true).open(path)?);
        }
        thread::sleep(Duration::from_millis(50));
    }
    bail!("no /dev/vport*");
}

/// Where `ip` reads several commands.
const BATCH: &str = "/run/ip-commands";

const TRIES: u32 = 200;
