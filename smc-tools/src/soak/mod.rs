//! `smc soak`: processes that exchange data for a long time while others of them are killed,
//! stopped and deprived of descriptors and memory.
//!
//! A server and clients have faults ([`fault`]); another server with its client, of the same
//! directory, has none, and must not notice. An epoch lasts some seconds. Then all exchanges end
//! ([`exchange`] checks each byte of them), and the processes and their directory are to have what
//! they had after the first epochs ([`census`]). Every fourth epoch is without faults.

mod census;
mod clock;
mod end;
mod ends;
mod exchange;
mod fault;
mod limit;
mod summary;

use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use clap::ValueEnum;
use serde::{Deserialize, Serialize};

pub(crate) use end::run as run_end;

use census::{Baseline, Census};
use clock::Clock;
use end::{Order, Role, Task};
use ends::End;
use fault::Fault;
use summary::Summary;

use crate::runtime::Runtime;
use crate::{child, endpoint, output, values};

/// Arguments of `smc soak`.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "\
A violation is a byte that is wrong or missing, a connection that does not end within a minute, one
that is lost without a fault that ends connections, much more of what a process or the directory of all has
when all are idle than after the first epochs, and throughput that falls below all of the first third of the epochs.
The exit status is 0 if there was none.")]
pub(crate) struct Args {
    /// For how long
    #[arg(long, value_name = "N", default_value_t = 1.0)]
    hours: f64,

    /// For so many epochs in place of a time
    #[arg(long, value_name = "N", conflicts_with = "hours")]
    epochs: Option<u64>,

    /// Seconds of an epoch
    #[arg(long, value_name = "N", default_value_t = 15, value_parser = clap::value_parser!(u64).range(1..=3600))]
    epoch: u64,

    /// What carries the streams
    #[arg(long, value_enum, default_value_t = Transport::Loop)]
    transport: Transport,

    /// The async runtime of all processes; each has one by chance if not given
    #[arg(long, value_enum)]
    runtime: Option<Runtime>,

    /// Client processes with faults
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=64))]
    clients: u32,

    /// Exchanges at a time of each of them
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=1000))]
    tasks: u32,

    /// Bytes to send in each direction after an epoch, for the throughput; with K, M or G
    #[arg(long, value_name = "N", default_value = "64M", value_parser = values::size)]
    measured: u64,

    /// Only this fault, such as `kill-server`; several times for several
    #[arg(long, value_name = "NAME")]
    fault: Vec<Fault>,

    /// Step the clock of this machine too, which is to have no other purpose, by up to a day
    #[arg(long)]
    clock_steps: bool,

    /// Of faults and data; by chance if not given
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
}

/// What carries the streams of a soak.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
enum Transport {
    /// SMC-D between processes
    Loop,
    /// The same over UNIX sockets in place of TCP
    LoopUnix,
    /// SMC-D by an ISM device over memory in a file
    Ism,
}

/// Runs `smc soak`. Gives whether there was no violation.
pub(crate) fn run(args: &Args) -> Result<bool> {
    let dir = child::directory("soak")?;
    let seed = args.seed.unwrap_or_else(|| fastrand::u64(..));
    report(&format!("seed {seed}"));
    let mut soak = Soak::start(args, seed, dir.path())?;
    let start = Instant::now();
    let time = Duration::try_from_secs_f64(args.hours * 3600.0).context("--hours")?;
    loop {
        let is_over = match args.epochs {
            Some(epochs) => soak.summary.epochs >= epochs,
            None => start.elapsed() >= time,
        };
        if is_over {
            break;
        }
        if let Err(error) = soak.epoch() {
            // Without one of the processes there are no further epochs.
            soak.summary.violations.push(format!("{error:#}"));
            break;
        }
    }
    let mut summary = soak.finish();
    summary.elapsed = start.elapsed();
    summary.check_rates();
    output::print(&summary.text())?;
    Ok(summary.violations.is_empty())
}

struct Soak<'a> {
    args: &'a Args,
    dir: &'a Path,
    rng: fastrand::Rng,
    /// Those with faults.
    server: End,
    at: String,
    clients: Vec<End>,
    /// Those without.
    other_server: End,
    other_at: String,
    other_client: End,
    /// The faults that this machine allows.
    possible: Vec<Fault>,
    clock: Option<Clock>,
    /// Of the directory.
    baseline: Baseline,
    summary: Summary,
}

impl<'a> Soak<'a> {
    fn start(args: &'a Args, seed: u64, dir: &'a Path) -> Result<Self> {
        let mut rng = fastrand::Rng::with_seed(seed);
        let mut server = End::start("server", task(args, dir, &mut rng, server_role("server")))?;
        let other = task(args, dir, &mut rng, server_role("other"));
        let mut other_server = End::start("server without faults", other)?;
        let other = task(args, dir, &mut rng, Role::Client);
        let other_client = End::start("client without faults", other)?;
        let clients = (1..=args.clients).map(|number| {
            let task = task(args, dir, &mut rng, Role::Client);
            End::start(&format!("client {number}"), task)
        });
        let clients = clients.collect::<Result<_>>()?;
        let clock = args.clock_steps.then(Clock::open);
        let clock = clock.and_then(|opened| match opened {
            Ok(clock) => Some(clock),
            Err(error) => {
                report(&format!("skipped: steps of the clock: {error:#}"));
                None
            }
        });
        let mut possible = Fault::ALL.to_vec();
        possible.retain(|fault| {
            let is_wanted = args.fault.is_empty() || args.fault.contains(fault);
            is_wanted && (clock.is_some() || *fault != Fault::StepClock)
        });
        ensure!(!possible.is_empty(), "no fault is left");
        Ok(Self {
            clients,
            at: server.listen()?,
            server,
            other_at: other_server.listen()?,
            other_server,
            other_client,
            args,
            dir,
            rng,
            possible,
            clock,
            baseline: Baseline::default(),
            summary: Summary::default(),
        })
    }

    fn epoch(&mut self) -> Result<()> {
        let faults = Fault::random_set(&self.possible, self.summary.epochs, &mut self.rng);
        self.summary.epochs += 1;
        let exchange = Order::Exchange {
            at: self.other_at.clone(),
            tasks: 1,
            seed: self.rng.u64(..),
        };
        self.other_client.order(&exchange)?;
        for index in 0..self.clients.len() {
            self.start_exchanges(index)?;
        }
        let end = Instant::now() + Duration::from_secs(self.args.epoch);
        let mut next_fault = Instant::now() + fault::pause(&mut self.rng);
        while Instant::now() < end {
            thread::sleep(Duration::from_millis(5));
            let now = Instant::now();
            for end in self.clients.iter_mut().chain([&mut self.server]) {
                end.go_on(Some(now))?;
                end.take_reports();
            }
            if now >= next_fault && !faults.is_empty() {
                let fault = faults[self.rng.usize(0..faults.len())];
                self.inflict(fault)?;
                next_fault = Instant::now() + fault::pause(&mut self.rng);
            }
        }
        self.settle(&faults)
    }

    fn start_exchanges(&mut self, index: usize) -> Result<()> {
        let exchange = Order::Exchange {
            at: self.at.clone(),
            tasks: self.args.tasks,
            seed: self.rng.u64(..),
        };
        self.clients[index].order(&exchange)
    }

    fn inflict(&mut self, fault: Fault) -> Result<()> {
        let index = self.rng.usize(0..self.clients.len());
        let time = fault.duration(&mut self.rng);
        match fault {
            Fault::KillClient => {
                let task = task(self.args, self.dir, &mut self.rng, Role::Client);
                self.clients[index].kill_and_restart(task)?;
                self.start_exchanges(index)?;
            }
            Fault::KillServer => {
                let task = self.server.task().clone();
                self.server.kill_and_restart(task)?;
                self.listen()?;
            }
            // A stopped process cannot be asked.
            Fault::RestartListener if self.server.is_stopped() => return Ok(()),
            Fault::RestartListener => self.listen()?,
            Fault::StopClient => self.clients[index].stop_until(Instant::now() + time)?,
            Fault::StopServer => self.server.stop_until(Instant::now() + time)?,
            Fault::LimitClient(what) => self.clients[index].limit(what, time)?,
            Fault::LimitServer(what) => self.server.limit(what, time)?,
            Fault::StepClock => {
                if let Some(clock) = &mut self.clock {
                    clock.step(&mut self.rng)?;
                }
            }
        }
        self.summary.add_fault(fault);
        Ok(())
    }

    /// Has the server listen anew, and tells clients where.
    fn listen(&mut self) -> Result<()> {
        self.at = self.server.listen()?;
        for client in &mut self.clients {
            client.order(&Order::At(self.at.clone()))?;
        }
        Ok(())
    }

    /// Ends the exchanges of an epoch, and checks what is left.
    fn settle(&mut self, faults: &[Fault]) -> Result<()> {
        for end in self.clients.iter_mut().chain([&mut self.server]) {
            end.go_on(None)?;
        }
        let is_calm = !faults.iter().any(|fault| fault.ends_connections());
        for end in &mut self.clients {
            let counts = end.quiesce()?;
            self.summary.clients.add(counts);
            if is_calm {
                end.expect_none_lost(counts);
            }
        }
        let counts = self.server.quiesce()?;
        self.summary.servers.add(counts);
        if is_calm {
            self.server.expect_none_lost(counts);
        }
        let counts = self.other_client.quiesce()?;
        self.summary.others.add(counts);
        self.other_client.expect_none_lost(counts);
        let counts = self.other_server.quiesce()?;
        self.other_server.expect_none_lost(counts);

        let rate = self
            .other_client
            .measure(&self.other_at, self.args.measured)?;
        self.other_client.quiesce()?;
        self.other_server.quiesce()?;
        self.summary.rates.push(rate);
        let mut idle = String::new();
        for end in self.clients.iter_mut().chain([
            &mut self.server,
            &mut self.other_client,
            &mut self.other_server,
        ]) {
            idle = end.check_census()?.to_string();
            self.summary.violations.append(&mut end.violations);
        }
        let (census, is_accepted) = self.baseline.check(|| Census::of_directory(self.dir))?;
        if !is_accepted {
            let most = self.baseline.most();
            let what = format!("the directory has {census}, and at most {most} before");
            self.summary.violations.push(what);
        }
        let names: Vec<_> = faults.iter().map(ToString::to_string).collect();
        let names = match names.is_empty() {
            true => "no faults".to_owned(),
            false => names.join(", "),
        };
        report(&format!(
            "epoch {}: {names}; {} connections, {} lost so far; {:.0} MB/s; a server without \
             faults has {idle}; the directory has {census}; {} violations",
            self.summary.epochs,
            self.summary.clients.whole,
            self.summary.clients.lost,
            rate / 1e6,
            self.summary.violations.len()
        ));
        Ok(())
    }

    /// Ends all processes in order.
    fn finish(self) -> Summary {
        let mut summary = self.summary;
        let clients = self.clients.into_iter().chain([self.other_client]);
        for end in clients.chain([self.server, self.other_server]) {
            match end.finish() {
                Ok(mut violations) => summary.violations.append(&mut violations),
                Err(error) => summary.violations.push(format!("{error:#}")),
            }
        }
        summary
    }
}

fn server_role(name: &str) -> Role {
    Role::Server(format!("{name}.sock"))
}

/// A process with settings by chance.
fn task(args: &Args, dir: &Path, rng: &mut fastrand::Rng, role: Role) -> Task {
    // As many numbers for each transport, so that a seed has the same faults.
    let runtimes = [Runtime::Smol, Runtime::Tokio, Runtime::TokioMt];
    let buffers = [16 << 10, 64 << 10, 256 << 10];
    let buffer = buffers[rng.usize(0..buffers.len())];
    let has_buffer = rng.bool();
    let by_chance = runtimes[rng.usize(0..runtimes.len())];
    let runtime = args.runtime.unwrap_or(by_chance);
    Task {
        role,
        transport: args.transport,
        runtime,
        dir: dir.to_owned(),
        // The memory of an ISM fabric is one for all.
        buffer: (has_buffer || args.transport == Transport::Ism).then_some(buffer),
        memory: (rng.u32(0..6) == 0).then_some(MEMORY_SHORT),
    }
}

fn report(line: &str) {
    endpoint::report("smc soak", line);
}

/// A limit of memory that some connections do not fit into.
const MEMORY_SHORT: usize = 8 << 20;
