//! Runs any program in a guest, for what needs an RDMA device and has none.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, Result};
use clap::Args;

use crate::lab::{self, Lab, Version};
use crate::protocol::{Event, Order};
use crate::runner;

#[derive(Debug, Args)]
pub(crate) struct GuestArgs {
    /// Seconds after which it has hung
    #[arg(long, default_value_t = 600)]
    limit: u64,
    /// A variable of its environment
    #[arg(long, value_name = "NAME=VALUE", value_parser = variable)]
    env: Vec<(String, String)>,
    /// The program; the libraries that it needs come with it
    program: PathBuf,
    /// What it is given
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    args: Vec<String>,
}

/// Boots, runs it, and prints its output. Whether it ended well is the result.
pub(crate) fn run(args: &GuestArgs) -> Result<bool> {
    let program = args.program.canonicalize();
    let program = program.with_context(|| args.program.display().to_string())?;
    let mut lab = Lab::boot_with([Version::V6_12; 2], &[&program])?;
    runner::after_boot(&mut lab)?;
    runner::give_devices(&mut lab, DEVICES)?;
    let mut argv = vec![lab::in_guest(&program)?];
    argv.extend_from_slice(&args.args);
    let env = args.env.clone();
    let order = Order::Spawn {
        run: RUN,
        argv,
        env,
    };
    lab.order::<()>(GUEST, order)?;
    lab.wait(RUN, Duration::from_secs(args.limit), |event| match event {
        Event::Ended(code) => Some(*code == Some(0)),
        _ => None,
    })
}

fn variable(text: &str) -> Result<(String, String), &'static str> {
    let (name, value) = text.split_once('=').ok_or("not NAME=VALUE")?;
    Ok((name.to_owned(), value.to_owned()))
}

const GUEST: usize = 0;

const RUN: u32 = 0;

/// RDMA devices of the guest.
const DEVICES: usize = 2;
