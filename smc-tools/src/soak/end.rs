//! A process of the soak: a server that answers exchanges, or a client that makes them.
//!
//! Its orders are lines of standard input, its events lines of standard output, in JSON.

use std::io::BufRead as _;
use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use futures::StreamExt as _;
use futures::channel::{mpsc, oneshot};
use futures_lite::future::or;
use serde::{Deserialize, Serialize};
use smc::device::Device;
use smc::{Domain, Endpoint, Stream};
use smc_negotiate_local::Local;
use smc_transport_ism::{FabricAddress, IsmDevice};
use smc_transport_loop::LoopDevice;

use super::Transport;
use super::exchange::{self, Ending, Exchange, HANG, Violation};
use super::limit::{self, Limit, Limited};
use crate::child::{self, report};
use crate::runtime::Runtime;

/// What a process is.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Task {
    pub(super) role: Role,
    pub(super) transport: Transport,
    pub(super) runtime: Runtime,
    /// Of the soak.
    pub(super) dir: PathBuf,
    /// Receive buffer; the default if there is none.
    pub(super) buffer: Option<usize>,
    /// All memory of buffers; the default if there is none.
    pub(super) memory: Option<usize>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Role {
    /// Listens, at a path of this name where the transport has paths.
    Server(String),
    Client,
}

/// What the parent has a process do.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) enum Order {
    /// A server's: ends its listener, and has a new one.
    Listen,
    /// A client's: goes on with exchanges, so many at a time, until `Quiesce`. Each follows from
    /// the seed.
    Exchange { at: String, tasks: u32, seed: u64 },
    /// A client's: where the server is now.
    At(String),
    /// Has nothing of that to spare for this time.
    Limit { what: Limited, millis: u64 },
    /// Ends what is under way, and gives back what is kept for later connections.
    Quiesce,
    /// A client's: sends so many bytes in each direction on one connection.
    Measure { at: String, bytes: u64 },
}

/// What a process reports.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) enum Event {
    /// The process has started.
    Started,
    /// A server listens there.
    Listening(String),
    Violation(String),
    Quiet(Counts),
    /// The seconds that it took.
    Measured(f64),
}

/// What a process did since the last report.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Counts {
    /// Connections that ended as was arranged.
    pub(super) whole: u64,
    pub(super) reset: u64,
    /// Those whose peer was lost.
    pub(super) lost: u64,
    /// Those that ended for want of memory.
    pub(super) starved: u64,
    /// Those that a server has accepted whose client has not waited for it.
    pub(super) unused: u64,
    /// Connections that did not come about.
    pub(super) refused: u64,
    /// Of the connections those without SMC.
    pub(super) fallback: u64,
    /// Bytes that were received and were right.
    pub(super) bytes: u64,
}

impl Counts {
    pub(super) fn add(&mut self, other: Self) {
        self.whole += other.whole;
        self.reset += other.reset;
        self.lost += other.lost;
        self.starved += other.starved;
        self.unused += other.unused;
        self.refused += other.refused;
        self.fallback += other.fallback;
        self.bytes += other.bytes;
    }
}

/// Runs a process of the soak.
pub(crate) fn run(args: &child::Args) -> Result<bool> {
    let task: Task = args.task()?;
    task.runtime.block_on(perform(task))?;
    Ok(true)
}

async fn perform(task: Task) -> Result<()> {
    limit::grow_heap();
    let mut orders = orders();
    let device = device(&task)?;
    let mut builder = task.runtime.endpoint()?.device(Arc::clone(&device));
    if let Some(len) = task.buffer {
        builder = builder.recv_buffer(len);
    }
    if let Some(bytes) = task.memory {
        builder = builder.memory_limit(bytes);
    }
    let negotiation = Arc::new(Local::in_domain(Domain::directory(&task.dir)));
    let process = Arc::new(Process {
        runtime: task.runtime,
        endpoint: builder.negotiation(negotiation).build()?,
        device,
        transport: task.transport,
        state: Mutex::default(),
        descriptors: Mutex::new(Limit::new(Limited::Descriptors)?),
        memory: Mutex::new(Limit::new(Limited::Memory)?),
        active: AtomicU64::new(0),
        is_stopping: AtomicBool::new(false),
    });
    report(&Event::Started)?;
    let mut listening = None;
    while let Some(order) = orders.next().await {
        match order? {
            Order::Listen => {
                let Role::Server(name) = &task.role else {
                    bail!("not a server");
                };
                drop(listening.take());
                listening = Some(process.listen(&task.dir.join(name)).await?);
            }
            Order::Exchange { at, tasks, seed } => {
                process.start(at, tasks, seed);
            }
            Order::At(at) => process.state().at = at,
            Order::Limit { what, millis } => process.limit(what, millis)?,
            Order::Quiesce => {
                process.quiesce().await;
                let counts = std::mem::take(&mut process.state().counts);
                report(&Event::Quiet(counts))?;
            }
            Order::Measure { at, bytes } => process.measure(&at, bytes).await?,
        }
    }
    drop(listening);
    process.endpoint.close().await;
    Ok(())
}

struct Process {
    runtime: Runtime,
    endpoint: Endpoint,
    device: Arc<dyn Device>,
    transport: Transport,
    state: Mutex<State>,
    descriptors: Mutex<Limit>,
    memory: Mutex<Limit>,
    /// Exchanges under way, and tasks that make them.
    active: AtomicU64,
    is_stopping: AtomicBool,
}

#[derive(Default)]
struct State {
    counts: Counts,
    /// The server.
    at: String,
}

/// A listener and its task, which end together.
type Listening = oneshot::Sender<()>;

impl Process {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn listen(self: &Arc<Self>, path: &std::path::Path) -> Result<Listening> {
        enum Any {
            Tcp(smc::Listener),
            Unix(smc::UnixListener),
        }
        let (listener, at) = match self.transport {
            Transport::LoopUnix => {
                let _absent = fs_err::remove_file(path);
                let listener = self.endpoint.bind_unix(path)?;
                (Any::Unix(listener), path.display().to_string())
            }
            Transport::Loop | Transport::Ism => {
                let listener = self.endpoint.bind((Ipv4Addr::LOCALHOST, 0)).await?;
                let at = listener.local_addr()?.to_string();
                (Any::Tcp(listener), at)
            }
        };
        let (listening, ended) = oneshot::channel::<()>();
        let process = Arc::clone(self);
        self.runtime.detach(async move {
            let serving = async {
                loop {
                    let accepted = match &listener {
                        Any::Tcp(listener) => listener.accept().await.map(|(stream, _)| stream),
                        Any::Unix(listener) => listener.accept().await.map(|(stream, _)| stream),
                    };
                    match accepted {
                        Ok(stream) => process.serve(stream),
                        // Without descriptors there are none for a while.
                        Err(_error) => process.runtime.sleep(RETRY).await,
                    }
                }
            };
            or(serving, async { _ = ended.await }).await;
        });
        report(&Event::Listening(at))?;
        Ok(listening)
    }

    fn serve(self: &Arc<Self>, stream: Stream) {
        let process = Arc::clone(self);
        self.active.fetch_add(1, Ordering::AcqRel);
        self.runtime.detach(async move {
            let (is_smc, name) = (stream.mode().is_smc(), format!("{stream:?}"));
            let ended = exchange::answer(process.runtime, stream).await;
            process.count(is_smc, &name, ended);
            process.active.fetch_sub(1, Ordering::AcqRel);
        });
    }

    fn start(self: &Arc<Self>, at: String, tasks: u32, seed: u64) {
        self.state().at = at;
        self.is_stopping.store(false, Ordering::Release);
        let mut seeds = fastrand::Rng::with_seed(seed);
        for _ in 0..tasks {
            let process = Arc::clone(self);
            let mut rng = fastrand::Rng::with_seed(seeds.u64(..));
            self.active.fetch_add(1, Ordering::AcqRel);
            self.runtime.detach(async move {
                while !process.is_stopping.load(Ordering::Acquire) {
                    process.exchange(Exchange::random(rng.u64(..))).await;
                }
                process.active.fetch_sub(1, Ordering::AcqRel);
            });
        }
    }

    async fn exchange(&self, exchange: Exchange) {
        let at = self.state().at.clone();
        let connecting = async { Ok(self.connect(&at).await) };
        match exchange::bounded(self.runtime, connecting).await {
            Ok(Ok(stream)) => {
                let is_smc = stream.mode().is_smc();
                let name = format!("{stream:?} with exchange {}", exchange.name());
                let ended = exchange::request(self.runtime, stream, exchange).await;
                self.count(is_smc, &name, ended);
            }
            Ok(Err(_error)) => {
                self.state().counts.refused += 1;
                self.runtime.sleep(RETRY).await;
            }
            Err(why) => violation(&format!("connect to {at}: {why}")),
        }
    }

    async fn connect(&self, at: &str) -> std::io::Result<Stream> {
        match self.transport {
            Transport::LoopUnix => self.endpoint.connect_unix(at).await,
            Transport::Loop | Transport::Ism => self.endpoint.connect(at).await,
        }
        .map_err(Into::into)
    }

    fn count(&self, is_smc: bool, name: &str, ended: Result<(Ending, u64), Violation>) {
        let mut state = self.state();
        let counts = &mut state.counts;
        counts.fallback += u64::from(!is_smc);
        match ended {
            Ok((ending, bytes)) => {
                counts.bytes += bytes;
                match ending {
                    Ending::Whole => counts.whole += 1,
                    Ending::Reset => counts.reset += 1,
                    Ending::Lost => counts.lost += 1,
                    Ending::Starved => counts.starved += 1,
                    Ending::Unused => counts.unused += 1,
                }
            }
            Err(why) => violation(&format!("{name}: {why}")),
        }
    }

    /// Leaves little of something for this time.
    fn limit(self: &Arc<Self>, what: Limited, millis: u64) -> Result<()> {
        let time = Duration::from_millis(millis);
        self.limit_of(what).lower(Instant::now() + time)?;
        let process = Arc::clone(self);
        self.runtime.detach(async move {
            process.runtime.sleep(time).await;
            process.restore(what, Some(Instant::now()));
        });
        Ok(())
    }

    fn restore(&self, what: Limited, at: Option<Instant>) {
        if let Err(error) = self.limit_of(what).restore(at) {
            violation(&format!("{error:#}"));
        }
    }

    fn limit_of(&self, what: Limited) -> MutexGuard<'_, Limit> {
        let limit = match what {
            Limited::Descriptors => &self.descriptors,
            Limited::Memory => &self.memory,
        };
        limit.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until nothing is under way.
    async fn quiesce(&self) {
        self.is_stopping.store(true, Ordering::Release);
        self.restore(Limited::Descriptors, None);
        self.restore(Limited::Memory, None);
        let until = Instant::now() + 2 * HANG;
        while self.active.load(Ordering::Acquire) > 0 {
            if Instant::now() > until {
                let active = self.active.load(Ordering::Acquire);
                return violation(&format!("{active} exchanges do not end"));
            }
            self.runtime.sleep(RETRY).await;
        }
        self.device.trim_memory();
    }

    /// One warms the path up.
    async fn measure(&self, at: &str, bytes: u64) -> Result<()> {
        let mut seconds = 0.0;
        for bytes in [bytes / 8, bytes] {
            let stream = self.connect(at).await.context("connect to measure")?;
            let start = Instant::now();
            let exchange = Exchange::of_length(7, bytes);
            let (ending, _) = exchange::request(self.runtime, stream, exchange).await?;
            anyhow::ensure!(ending == Ending::Whole, "the measured stream was lost");
            seconds = start.elapsed().as_secs_f64();
        }
        report(&Event::Measured(seconds))
    }
}

fn device(task: &Task) -> Result<Arc<dyn Device>> {
    Ok(match task.transport {
        Transport::Loop | Transport::LoopUnix => {
            let domain = Domain::directory(&task.dir);
            Arc::new(LoopDevice::builder().domain(domain).build()?)
        }
        Transport::Ism => {
            let fabric = FabricAddress::directory(task.dir.join("ism")).with_len(ISM_MEMORY);
            Arc::new(IsmDevice::builder(fabric).build()?)
        }
    })
}

/// The orders of the parent, which ends this process by closing standard input.
fn orders() -> mpsc::UnboundedReceiver<Result<Order>> {
    let (sender, receiver) = mpsc::unbounded();
    thread::spawn(move || {
        for line in std::io::stdin().lock().lines() {
            let order = line
                .context("standard input")
                .and_then(|line| serde_json::from_str(&line).context("not an order"));
            if sender.unbounded_send(order).is_err() {
                return;
            }
        }
    });
    receiver
}

fn violation(what: &str) {
    // Without the parent nothing reads it, and this process ends.
    let _gone = report(&Event::Violation(what.to_owned()));
}

/// Pause after a failure, and between looks at what goes on.
const RETRY: Duration = Duration::from_millis(2);

/// Memory of an ISM fabric.
const ISM_MEMORY: usize = 64 << 20;
