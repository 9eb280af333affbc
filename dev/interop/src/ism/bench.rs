//! `smc bench` between this host and a guest, with ISM and TCP over virtio-net in the same run.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use tempfile::TempDir;

use super::testbed::{Serving, bind_to_vfio, qemu_args, to_host};
use crate::lab::{self, Lab, Version};
use crate::protocol::{Event, Order};

/// Boots, and measures. Whether everything could be measured is the result.
pub(super) fn run(nocopy: bool, vfio: bool, rounds: u32) -> Result<bool> {
    let smc = program()?;
    let folder = TempDir::with_prefix("smc-ism-").context("folder for a socket")?;
    let socket = folder.path().join("server.sock");
    let _serving = Serving::start(&socket, nocopy, false)?;
    let interface = format!("smc{}", std::process::id());
    let way = format!("tap,ifname={interface},script=no,downscript=no");
    let qemu_args = qemu_args(&socket, vfio, &way, 1);
    // The second guest has nothing to do.
    let mut lab = Lab::boot_with_args([Version::V6_12; 2], &[&smc], &[qemu_args, Vec::new()])?;
    println!(
        "Linux {} in QEMU without KVM; ISM devices have {}",
        lab.kernel(GUEST),
        if vfio { "interrupts" } else { "no interrupts" }
    );
    lab.exec(GUEST, "ip link set lo up")?;
    let nic = to_host();
    lab.exec(GUEST, &format!("ip addr add {INSIDE}/24 dev {nic}"))?;
    lab.exec(GUEST, &format!("ip link set {nic} up"))?;
    // It is gone when QEMU is.
    ip(&["addr", "add", &format!("{OUTSIDE}/24"), "dev", &interface])?;
    ip(&["link", "set", &interface, "up"])?;
    if vfio {
        bind_to_vfio(&mut lab, GUEST)?;
    }
    let agent = format!("{INSIDE}:7000");
    start_agent(&mut lab, &smc, &agent)?;
    let mut bench = Command::new(&smc);
    bench
        .args(["bench", "rate", "pingpong", "bulk", "--sizes", "64000"])
        .args(["--runtime", "smol", "--time", "1000"])
        .args(["--rounds", &rounds.to_string()])
        .args([
            "--transports",
            if nocopy { "ism,tcp" } else { "ism-copy,tcp" },
        ])
        .args(["--remote", &agent, "--ism-server"])
        .arg(&socket);
    let status = bench.status().with_context(|| format!("{bench:?}"))?;
    Ok(status.success())
}

fn start_agent(lab: &mut Lab, smc: &Path, at: &str) -> Result<()> {
    let argv = [&lab::in_guest(smc)?, "bench-agent", at].map(str::to_owned);
    let order = Order::Spawn {
        run: 0,
        argv: argv.into(),
        env: Vec::new(),
    };
    lab.order::<()>(GUEST, order)?;
    let listening = lab.wait(0, START, |event| match event {
        Event::Log(line) if line.starts_with("listening") => Some(()),
        _ => None,
    });
    listening.context("the agent does not listen")
}

fn ip(args: &[&str]) -> Result<()> {
    let status = Command::new("ip").args(args).status();
    let status = status.context("cannot run ip (package iproute2)")?;
    ensure!(status.success(), "ip {}: {status}", args.join(" "));
    Ok(())
}

/// The `smc` command of the same profile.
fn program() -> Result<PathBuf> {
    let program = lab::own_program()?.with_file_name("smc");
    ensure!(
        program.exists(),
        "there is no {}: cargo build --release -p smc-tools",
        program.display()
    );
    Ok(program)
}

const GUEST: usize = 0;

/// Of the guest and its host to each other.
const INSIDE: &str = "10.93.0.2";
const OUTSIDE: &str = "10.93.0.1";

const START: Duration = Duration::from_secs(60);
