//! One of the two processes of a measurement.

use std::io::Write as _;
use std::path::PathBuf;
use std::pin::pin;
use std::thread;

use anyhow::{Context as _, Result};
use futures::channel::oneshot;
use futures::future::{Either, select};
use serde::{Deserialize, Serialize};

use super::figure::{Figure, Sample};
use super::meter::{self, Meter};
use super::pair::Outcome;
#[cfg(feature = "peers")]
use super::peers;
use super::plan::Cell;
use super::runtime::Runtime;
use super::transport::smc::{self, Carried};
use super::transport::{Accept, InPlace, Kind, tcp, unix};
use super::workload;

/// Arguments of a process that `smc bench` starts.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Args {
    /// What to do, in JSON
    task: String,
}

/// What a process has to do.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Task {
    pub(super) cell: Cell,
    /// A directory that only the two processes know.
    pub(super) dir: PathBuf,
    pub(super) role: Role,
}

/// Which of the two it is.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Role {
    Server,
    Client {
        /// Where the server listens.
        address: String,
        /// Number of the server's process, unless that is in another machine.
        server: Option<u32>,
    },
}

/// The first line of a server.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Ready {
    /// Clients can connect there.
    At(String),
    /// It cannot be measured, and why.
    Skip(String),
}

/// Runs one end.
pub(crate) fn run(args: &Args) -> Result<bool> {
    let task = serde_json::from_str(&args.task).context("not a task")?;
    perform(task)?;
    Ok(true)
}

fn perform(task: Task) -> Result<()> {
    let Task { cell, dir, role } = task;
    if let Some([client, server]) = cell.settings.pin {
        meter::pin(if matches!(role, Role::Server) {
            server
        } else {
            client
        })?;
    }
    let descriptors = meter::raise_descriptors()?;
    let needed = workload::descriptors(&cell);
    if descriptors < needed {
        let why = format!("takes {needed} descriptors and the limit is {descriptors} (ulimit -Hn)");
        return report(&Ready::Skip(why));
    }
    let runtime = cell.runtime;
    match role {
        Role::Server => runtime.block_on(serve(cell, dir)),
        Role::Client { address, server } => {
            let meter = Meter::new(server)?;
            let measured = runtime.block_on(drive(cell, dir, address, meter));
            report(&match measured {
                Ok(mut sample) => {
                    if !meter.sees_both() {
                        sample.figures.remove(&Figure::Cpu);
                    }
                    Outcome::Measured(sample)
                }
                Err(error) if is_overloaded(&error) => Outcome::Overloaded(format!("{error:#}")),
                Err(error) => Outcome::Failed(format!("{error:#}")),
            })
        }
    }
}

/// Whether there was no port left.
fn is_overloaded(error: &anyhow::Error) -> bool {
    use std::io::ErrorKind::{AddrInUse, AddrNotAvailable};

    let kinds = error
        .chain()
        .filter_map(|cause| cause.downcast_ref::<std::io::Error>());
    kinds
        .map(std::io::Error::kind)
        .any(|kind| matches!(kind, AddrInUse | AddrNotAvailable))
}

/// The client's part, by what the streams are.
async fn drive(cell: Cell, dir: PathBuf, address: String, meter: Meter) -> Result<Sample> {
    match (cell.transport, cell.runtime) {
        (Kind::Tcp, Runtime::Smol) => {
            let tcp = tcp::SmolConnector::new(&address, &cell.settings)?;
            workload::drive(&cell, tcp, meter).await
        }
        (Kind::Tcp, Runtime::Tokio | Runtime::TokioMt) => {
            let tcp = tcp::TokioConnector::new(&address, &cell.settings)?;
            workload::drive(&cell, tcp, meter).await
        }
        (Kind::Unix, Runtime::Smol) => {
            let unix = unix::SmolConnector::new(&address, &cell.settings);
            workload::drive(&cell, unix, meter).await
        }
        (Kind::Unix, Runtime::Tokio | Runtime::TokioMt) => {
            let unix = unix::TokioConnector::new(&address, &cell.settings);
            workload::drive(&cell, unix, meter).await
        }
        #[cfg(feature = "peers")]
        (Kind::Iceoryx2, _) => peers::iceoryx2::drive(&cell, &dir, meter),
        (kind, _) => {
            let carried = Carried::open(&cell, &dir)?;
            let measured = if kind == Kind::LoopInplace {
                let smc = smc::Connector::<InPlace>::new(&carried, &cell, &address)?;
                workload::drive(&cell, smc, meter).await
            } else {
                let smc = smc::Connector::<::smc::Stream>::new(&carried, &cell, &address)?;
                workload::drive(&cell, smc, meter).await
            };
            carried.part().await;
            measured
        }
    }
}

/// The server's part.
async fn serve(cell: Cell, dir: PathBuf) -> Result<()> {
    match (cell.transport, cell.runtime) {
        (Kind::Tcp, Runtime::Smol) => {
            until_ended(&cell, tcp::SmolListener::bind(&cell.settings)?).await
        }
        (Kind::Tcp, Runtime::Tokio | Runtime::TokioMt) => {
            until_ended(&cell, tcp::TokioListener::bind(&cell.settings)?).await
        }
        (Kind::Unix, Runtime::Smol) => {
            until_ended(&cell, unix::SmolListener::bind(&dir, &cell.settings)?).await
        }
        (Kind::Unix, Runtime::Tokio | Runtime::TokioMt) => {
            until_ended(&cell, unix::TokioListener::bind(&dir, &cell.settings)?).await
        }
        #[cfg(feature = "peers")]
        (Kind::Iceoryx2, _) => {
            let ended = stdin_ended();
            let server = peers::iceoryx2::Server::start(&cell, &dir)?;
            report(&Ready::At(String::new()))?;
            let _gone = ended.await;
            server.stop()
        }
        (kind, _) => {
            let carried = Carried::open(&cell, &dir)?;
            let served = if kind == Kind::LoopInplace {
                until_ended(&cell, smc::Listener::<InPlace>::bind(&carried).await?).await
            } else {
                until_ended(&cell, smc::Listener::<::smc::Stream>::bind(&carried).await?).await
            };
            carried.part().await;
            served
        }
    }
}

/// Reports where it listens, and serves until standard input ends.
async fn until_ended<A: Accept>(cell: &Cell, at: A) -> Result<()> {
    let ended = stdin_ended();
    report(&Ready::At(at.address()?))?;
    match select(pin!(workload::serve(cell, at)), ended).await {
        Either::Left((failed, _)) => failed,
        Either::Right(_) => Ok(()),
    }
}

/// Reports to the parent.
fn report(what: &impl Serialize) -> Result<()> {
    let mut line = serde_json::to_string(what)?;
    line.push('\n');
    let mut out = std::io::stdout().lock();
    out.write_all(line.as_bytes())
        .and_then(|()| out.flush())
        .context("cannot send to the parent")
}

/// The parent holds the other end of standard input; this process ends with it.
fn stdin_ended() -> oneshot::Receiver<()> {
    let (ended, receiver) = oneshot::channel();
    thread::spawn(|| {
        // Whatever comes of it, the parent is gone.
        let _ended = std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
        let _ignored = ended.send(());
    });
    receiver
}
