//! The fixture of a check: the devices, and calls that wait the way a driver does.

use std::fmt;
use std::future::Future;
use std::panic::resume_unwind;
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::thread;
use std::time::{Duration, Instant};

use smc_core::device::{Attachment, DeviceError, Dmb, Event, Nocopy, Signal, SubmitError};
use smc_core::mem::Region;
use smc_core::mem::sync::Ordering;
use smc_wire::types::{DmbToken, Gid};

use super::node::{FabricKind, Node};
use super::provider::{Between, Effort, Extras, Kill, Pair, Provider, Remove, Skip};

/// How a check ends.
pub(super) type Verdict = Result<(), Stop>;

/// Why a check ends before its end.
#[derive(Debug)]
pub(super) enum Stop {
    Skip(String),
    Fail(String),
}

/// Fails the check with a sentence on what went wrong.
pub(super) fn fail<T>(why: impl Into<String>) -> Result<T, Stop> {
    Err(Stop::Fail(why.into()))
}

/// Leaves the check out.
pub(super) fn skip<T>(why: impl Into<String>) -> Result<T, Stop> {
    Err(Stop::Skip(why.into()))
}

/// Fails the check unless the condition holds.
macro_rules! ensure {
    ($condition:expr, $($text:tt)+) => {
        if !$condition {
            return $crate::conformance::fixture::fail(format!($($text)+));
        }
    };
}
pub(super) use ensure;

/// Turns an error into a failed check that states what was tried.
pub(super) trait OrFail<T> {
    fn or_fail(self, what: &str) -> Result<T, Stop>;
}

impl<T, E: fmt::Display> OrFail<T> for Result<T, E> {
    fn or_fail(self, what: &str) -> Result<T, Stop> {
        self.map_err(|error| Stop::Fail(format!("{what}: {error}")))
    }
}

/// The devices of one check.
pub(super) struct Fixture<'p> {
    pub(super) provider: &'p dyn Provider,
    pub(super) third: Option<Node>,
    pub(super) between: Option<Between>,
    kind: FabricKind,
    local: Node,
    peer: Peer,
    /// Behind a lock so that threads of a check can share the fixture.
    extras: Mutex<Extras>,
}

/// The device at the other end.
enum Peer {
    Other(Node),
    /// The one device has to do.
    Same,
    Killed,
}

impl Peer {
    /// The peer, if it is a device of its own.
    fn other(&self) -> Option<&Node> {
        match self {
            Self::Other(node) => Some(node),
            _ => None,
        }
    }
}

impl<'p> Fixture<'p> {
    pub(super) fn new(provider: &'p dyn Provider, kind: FabricKind) -> Result<Self, Stop> {
        Self::over(provider, kind, provider.pair())
    }

    /// Devices with few buffers, if the provider can make them.
    pub(super) fn with_limit(&self, dmbs: usize) -> Result<Self, Stop> {
        Self::over(
            self.provider,
            self.kind,
            self.provider.pair_with_limit(dmbs),
        )
    }

    /// Devices with few queue pairs, if the provider can make them.
    pub(super) fn with_links(&self, links: usize) -> Result<Self, Stop> {
        Self::over(
            self.provider,
            self.kind,
            self.provider.pair_with_links(links),
        )
    }

    fn over(
        provider: &'p dyn Provider,
        kind: FabricKind,
        pair: impl Future<Output = Result<Pair, Skip>> + Send,
    ) -> Result<Self, Stop> {
        let pair = run(provider, pair).map_err(|why| Stop::Skip(why.to_string()))?;
        let timeout = provider.effort().timeout;
        let node = |device| Node::new(device, kind, timeout);
        let is_alone = Arc::ptr_eq(&pair.local, &pair.peer);
        Ok(Self {
            provider,
            kind,
            third: pair.third.map(node).transpose()?,
            between: pair.between,
            local: node(pair.local)?,
            peer: if is_alone {
                Peer::Same
            } else {
                Peer::Other(node(pair.peer)?)
            },
            extras: Mutex::new(pair.extras),
        })
    }

    /// The device that most checks use.
    pub(super) fn local(&self) -> &Node {
        &self.local
    }

    /// The device at the other end.
    pub(super) fn peer(&self) -> &Node {
        match &self.peer {
            Peer::Other(node) => node,
            Peer::Same => &self.local,
            Peer::Killed => panic!("a check that kills the peer does not use it afterwards"),
        }
    }

    /// The peer moves data into a buffer of the own device, as [`Node::try_put`].
    pub(super) fn try_put(
        &self,
        to: DmbToken,
        at: usize,
        data: &[&[u8]],
        signal: Signal,
    ) -> Result<Result<(), SubmitError>, Stop> {
        self.peer()
            .try_put(self.local().gid(), to, at, data, signal)
    }

    /// The peer moves data into a buffer of the own device; anything but success fails the check.
    pub(super) fn put(&self, to: DmbToken, at: usize, data: &[u8], signal: Signal) -> Verdict {
        self.peer().put(self.local().gid(), to, at, data, signal)
    }

    pub(super) fn extras(&mut self) -> &mut Extras {
        self.extras
            .get_mut()
            .unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn effort(&self) -> Effort {
        self.provider.effort()
    }

    pub(super) fn timeout(&self) -> Duration {
        self.effort().timeout
    }

    /// A third device, or the check does not apply.
    pub(super) fn third(&self) -> Result<&Node, Stop> {
        self.third
            .as_ref()
            .map_or_else(|| skip("the provider gave no third device"), Ok)
    }

    /// The nocopy ability of a device, or the check does not apply.
    pub(super) fn nocopy<'n>(&self, node: &'n Node) -> Result<&'n dyn Nocopy, Stop> {
        node.direct()
            .nocopy()
            .map_or_else(|| skip("the device has no nocopy"), Ok)
    }

    /// Ends the peer's device.
    pub(super) fn kill_peer(&mut self) -> Verdict {
        if self.extras().kill.is_none() {
            return skip("the provider cannot kill a device");
        }
        let (peer, kill) = self.take_peer()?;
        if let Some(kill) = kill {
            kill(peer.into_device());
        }
        Ok(())
    }

    /// The peer's device, and how to end it.
    pub(super) fn take_peer(&mut self) -> Result<(Node, Option<Kill>), Stop> {
        let kill = self.extras().kill.take();
        match std::mem::replace(&mut self.peer, Peer::Killed) {
            Peer::Other(node) => Ok((node, kill)),
            _ => skip("there is only one device"),
        }
    }

    /// Removes the own device, which says so.
    pub(super) fn remove_local(&self, remove: Remove) -> Verdict {
        let device = self.local.device();
        remove(device);
        let mut has_said = false;
        self.eventually("the device reports that it is gone", || {
            let result = device.drain(&mut |event| has_said |= event == Event::DeviceGone);
            Ok(has_said || result.is_err())
        })?;
        // None of what follows may panic, and none of it may look like success.
        let _ = device.drain(&mut |_| {});
        let _ = device.arm();
        Ok(())
    }

    /// Runs something on several threads, while this one is the consumer of all devices.
    pub(super) fn on_threads(&self, count: u8, work: impl Fn(u8) -> Verdict + Sync) -> Verdict {
        let work = &work;
        thread::scope(|scope| {
            let threads: Vec<_> = (0..count)
                .map(|thread| scope.spawn(move || work(thread)))
                .collect();
            while threads.iter().any(|thread| !thread.is_finished()) {
                self.drain_all()?;
                thread::yield_now();
            }
            threads
                .into_iter()
                .try_for_each(|thread| thread.join().unwrap_or_else(|panic| resume_unwind(panic)))
        })
    }

    /// Whether the peer is the same device.
    pub(super) fn is_alone(&self) -> bool {
        matches!(self.peer, Peer::Same)
    }

    /// Runs a set-up call while all devices are drained, as their drivers would.
    pub(super) fn wait<T: Send>(
        &self,
        what: &str,
        call: impl Future<Output = T> + Send,
    ) -> Result<T, Stop> {
        wait(self.provider, self.nodes(), what, call)
    }

    pub(super) fn reach(&self, from: &Node, to: Gid) -> Result<Result<(), DeviceError>, Stop> {
        self.wait("reach", from.direct().reach(to))
    }

    /// A buffer of `owner` that `writer` may write, and has reached.
    pub(super) fn buffer(
        &self,
        owner: &Node,
        writer: &Node,
        len: usize,
    ) -> Result<Arc<dyn Dmb>, Stop> {
        let dmb = self.wait("register", owner.direct().register(writer.gid(), len))?;
        let dmb = dmb.or_fail("register")?;
        self.reach(writer, owner.gid())?.or_fail("reach")?;
        Ok(dmb)
    }

    /// A small local buffer that the peer may write.
    pub(super) fn local_buffer(&self) -> Result<Arc<dyn Dmb>, Stop> {
        self.buffer(self.local(), self.peer(), SMALL)
    }

    pub(super) fn local_buffers(&self, count: usize) -> Result<Vec<Arc<dyn Dmb>>, Stop> {
        (0..count).map(|_| self.local_buffer()).collect()
    }

    pub(super) fn try_attach(
        &self,
        who: &Node,
        owner: Gid,
        token: DmbToken,
    ) -> Result<Result<Arc<dyn Attachment>, DeviceError>, Stop> {
        let nocopy = self.nocopy(who)?;
        self.wait("attach", nocopy.attach(owner, token))
    }

    /// The peer's view of a local buffer.
    pub(super) fn attach(&self, dmb: &dyn Dmb) -> Result<Arc<dyn Attachment>, Stop> {
        self.try_attach(self.peer(), self.local.gid(), dmb.token())?
            .or_fail("attach")
    }

    /// Drains all devices until the condition holds.
    pub(super) fn eventually(
        &self,
        what: &str,
        condition: impl FnMut() -> Result<bool, Stop>,
    ) -> Verdict {
        eventually(self.timeout(), what, condition, || {
            self.drain_all()?;
            thread::yield_now();
            Ok(())
        })
    }

    /// Drains all devices once.
    pub(super) fn drain_all(&self) -> Verdict {
        let mut nodes = self.nodes().into_iter().flatten();
        nodes.try_for_each(|node| node.drain().map(drop))
    }

    fn nodes(&self) -> [Option<&Node>; 3] {
        [Some(&self.local), self.peer.other(), self.third.as_ref()]
    }
}

/// Does something until the condition holds.
pub(super) fn eventually(
    timeout: Duration,
    what: &str,
    mut condition: impl FnMut() -> Result<bool, Stop>,
    mut meanwhile: impl FnMut() -> Verdict,
) -> Verdict {
    let deadline = Instant::now() + timeout;
    while !condition()? {
        ensure!(Instant::now() < deadline, "not in time: {what}");
        meanwhile()?;
    }
    Ok(())
}

/// Runs a future through the provider and brings back what it gave.
pub(super) fn run<T: Send>(provider: &dyn Provider, future: impl Future<Output = T> + Send) -> T {
    let mut result = None;
    provider.block_on(pin!(async {
        result = Some(future.await);
    }));
    result.expect("`Provider::block_on` runs its task to the end")
}

/// Runs a set-up call while devices are drained, as their drivers would.
pub(super) fn wait<T: Send>(
    provider: &dyn Provider,
    nodes: [Option<&Node>; 3],
    what: &str,
    call: impl Future<Output = T> + Send,
) -> Result<T, Stop> {
    let driven = Driven {
        call: pin!(call),
        nodes,
        deadline: Instant::now() + provider.effort().timeout,
    };
    run(provider, driven).map_or_else(|| fail(format!("{what} does not end")), Ok)
}

/// A call with all devices drained whenever it has to wait; `None` when time is up.
struct Driven<'n, F> {
    call: Pin<&'n mut F>,
    nodes: [Option<&'n Node>; 3],
    deadline: Instant,
}

impl<F: Future> Future for Driven<'_, F> {
    type Output = Option<F::Output>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        if let Poll::Ready(result) = self.call.as_mut().poll(context) {
            return Poll::Ready(Some(result));
        }
        if Instant::now() >= self.deadline {
            return Poll::Ready(None);
        }
        for node in self.nodes.into_iter().flatten() {
            // A device that fails to drain shows in the check itself.
            let _ = node.drain();
        }
        // Drivers would wait for the doorbells; looking again soon does as well, and lets the
        // runtime and the devices' own threads get on.
        thread::park_timeout(Duration::from_micros(20));
        context.waker().wake_by_ref();
        Poll::Pending
    }
}

/// Copies bytes out of a region.
pub(super) fn bytes(region: &Region, at: usize, len: usize) -> Result<Vec<u8>, Stop> {
    let mut to = vec![0; len];
    region.copy_out(at, &mut to).or_fail("read of a buffer")?;
    Ok(to)
}

/// The whole content of a region.
pub(super) fn content(region: &Region) -> Result<Vec<u8>, Stop> {
    bytes(region, 0, region.len())
}

/// A word of a buffer.
pub(super) fn load(dmb: &dyn Dmb, at: usize) -> Result<u64, Stop> {
    let word = dmb.region().load(at, Ordering::Acquire);
    word.or_fail("load of a word")
}

/// The shortest DMB size, 2^14.
pub(super) const SMALL: usize = 1 << 14;
