//! One of the two processes of a measurement.

use std::path::{Path, PathBuf};
use std::pin::pin;
use std::thread;

use anyhow::Result;
use futures::channel::oneshot;
use futures::future::{Either, select};
use serde::{Deserialize, Serialize};

use super::figure::{Figure, Sample};
use super::meter::{self, Meter};
use super::pair::Outcome;
#[cfg(feature = "peers")]
use super::peers;
use super::plan::Cell;
use super::transport::smc::{self, Carried};
use super::transport::socket::{self, Native, SmolTcp, SmolUnix, TokioTcp, TokioUnix};
use super::transport::{Accept, Kind};
use super::workload;
use crate::child::{self, report};
use crate::runtime::Runtime;

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
pub(crate) fn run(args: &child::Args) -> Result<bool> {
    let task = args.task()?;
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
        (Kind::Tcp, Runtime::Smol) => drive_native::<SmolTcp>(&cell, address, meter).await,
        (Kind::Tcp, _) => drive_native::<TokioTcp>(&cell, address, meter).await,
        (Kind::Unix, Runtime::Smol) => drive_native::<SmolUnix>(&cell, address, meter).await,
        (Kind::Unix, _) => drive_native::<TokioUnix>(&cell, address, meter).await,
        #[cfg(feature = "peers")]
        (Kind::Iceoryx2, _) => peers::iceoryx2::drive(&cell, &dir, meter),
        #[cfg(feature = "peers")]
        (Kind::IpcChannel, _) => peers::ipc_channel::drive(&cell, address, meter),
        _ => {
            let carried = Carried::open(&cell, &dir)?;
            let to = smc::Connector::new(&carried, &cell, &address)?;
            let measured = workload::drive(&cell, to, meter).await;
            carried.part().await;
            measured
        }
    }
}

async fn drive_native<S: Native>(cell: &Cell, address: String, meter: Meter) -> Result<Sample> {
    let to = socket::Connector::<S>::new(address, &cell.settings);
    workload::drive(cell, to, meter).await
}

/// The server's part.
async fn serve(cell: Cell, dir: PathBuf) -> Result<()> {
    match (cell.transport, cell.runtime) {
        (Kind::Tcp, Runtime::Smol) => serve_native::<SmolTcp>(&cell, &dir).await,
        (Kind::Tcp, _) => serve_native::<TokioTcp>(&cell, &dir).await,
        (Kind::Unix, Runtime::Smol) => serve_native::<SmolUnix>(&cell, &dir).await,
        (Kind::Unix, _) => serve_native::<TokioUnix>(&cell, &dir).await,
        #[cfg(feature = "peers")]
        (Kind::Iceoryx2, _) => {
            let ended = stdin_ended();
            let server = peers::iceoryx2::Server::start(&cell, &dir)?;
            report(&Ready::At(String::new()))?;
            let _gone = ended.await;
            server.stop()
        }
        #[cfg(feature = "peers")]
        (Kind::IpcChannel, _) => {
            let ended = stdin_ended();
            report(&Ready::At(peers::ipc_channel::serve(&cell)?))?;
            let _gone = ended.await;
            Ok(())
        }
        _ => {
            let carried = Carried::open(&cell, &dir)?;
            let served =
                until_ended(&cell, smc::Listener::bind(&carried, &cell, &dir).await?).await;
            carried.part().await;
            served
        }
    }
}

async fn serve_native<S: Native>(cell: &Cell, dir: &Path) -> Result<()> {
    until_ended(cell, socket::Listener::<S>::bind(dir, &cell.settings)?).await
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
