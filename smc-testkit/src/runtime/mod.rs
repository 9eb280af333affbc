//! A runtime without a clock, threads or sockets, for tests that run the same way every time.
//!
//! [`VirtualRuntime`] runs tasks on the calling thread, in an order that its seed decides. Time is
//! virtual: when nothing can run it jumps to the next timer, so a test of a ten-minute timeout
//! takes no time. TCP connections are queues in memory with latency and fragmentation. When neither
//! a task nor a timer is left, the run ends with an error that names what each task waits for
//! ([`Stall`]), instead of hanging.
//!
//! ```
//! use std::time::Duration;
//! use smc_core::runtime::Runtime;
//! use smc_testkit::runtime::VirtualRuntime;
//!
//! let runtime = VirtualRuntime::new(7);
//! let handle = runtime.handle();
//! let before = handle.now();
//! runtime.block_on(handle.timer(before + Duration::from_secs(600)));
//! assert!(handle.now() >= before + Duration::from_secs(600));
//! ```
//!
//! It has no reactor: descriptors cannot be watched, so devices have to use
//! [`Doorbell::Waker`](smc_core::device::Doorbell::Waker), as
//! [`MemDevice`](crate::memory_device::MemDevice) does.

mod executor;
mod fast_open;
mod net;
mod options;
mod pipe;
mod socket;

pub use executor::Stall;
pub use fast_open::SynDelivery;
pub use options::Options;

use std::fmt;
use std::future::Future;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use smc_core::runtime::{
    Acceptor, BeforeConnect, BeforeListen, NetworkInterface, NetworkRoute, PnetEntry, Runtime,
    Socket, SocketOptions, Task, Timer, Watch,
};

use executor::{Core, Group};
use net::{CopiedBytes, Net, Order};

/// A deterministic single-threaded runtime.
///
/// Dropping it drops all its tasks.
pub struct VirtualRuntime {
    core: Arc<Core>,
    net: Arc<Net>,
}

impl VirtualRuntime {
    /// A runtime whose every choice follows from `seed`.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self::with_options(seed, Options::default())
    }

    /// The same with other options.
    #[must_use]
    pub fn with_options(seed: u64, options: Options) -> Self {
        let core = Arc::new(Core::new(seed, options));
        let net = Arc::new(Net::new(Arc::clone(&core)));
        Self { core, net }
    }

    /// What endpoints take.
    #[must_use]
    pub fn handle(&self) -> Arc<dyn Runtime> {
        self.handle_for(Group::ALL)
    }

    /// What an endpoint takes whose runtime is to end before those of others.
    #[must_use]
    pub fn ending(&self) -> Arc<EndingRuntime> {
        self.handle_for(self.core.fresh_group())
    }

    fn handle_for(&self, group: Group) -> Arc<EndingRuntime> {
        Arc::new(EndingRuntime {
            core: Arc::clone(&self.core),
            net: Arc::clone(&self.net),
            group,
        })
    }

    /// Runs a future to its end, and all spawned tasks meanwhile. They stay for the next call.
    ///
    /// # Panics
    ///
    /// With the text of the [`Stall`] when the future cannot come to its end.
    pub fn block_on<T>(&self, future: impl Future<Output = T>) -> T {
        match self.try_block_on(future) {
            Ok(result) => result,
            Err(stall) => panic!("{stall}"),
        }
    }

    /// Runs a future to its end.
    ///
    /// # Errors
    ///
    /// [`Stall`] when nothing can run any more, or something runs without end.
    pub fn try_block_on<T>(&self, future: impl Future<Output = T>) -> Result<T, Stall> {
        executor::run(&self.core, future)
    }

    /// Lets tasks run for a span of virtual time.
    ///
    /// # Panics
    ///
    /// When something runs without end.
    pub fn run_for(&self, time: Duration) {
        let handle = self.handle();
        self.block_on(handle.timer(handle.now() + time));
    }

    /// Starts a task under a name, which a [`Stall`] contains.
    pub fn spawn_named(
        &self,
        name: impl Into<String>,
        task: impl Future<Output = ()> + Send + 'static,
    ) {
        self.core.spawn(name.into(), Group::ALL, Box::pin(task));
    }

    /// Virtual time since the start.
    #[must_use]
    pub fn elapsed(&self) -> Duration {
        self.core.elapsed()
    }

    /// Gives the virtual host an interface with this address; it has none before. All endpoints on
    /// this runtime see it, whatever host they play.
    ///
    /// What is in the subnet of an interface is reached by it, everything else over a router at the
    /// interface that has the packet's source.
    pub fn add_interface(&self, name: &str, address: IpAddr, bits: u8) {
        self.net.add_interface(name, address, bits);
    }

    /// How often the interfaces were read.
    #[must_use]
    pub fn interface_reads(&self) -> usize {
        self.net.interface_reads()
    }

    /// Puts an interface into a VLAN.
    pub fn set_vlan(&self, name: &str, vlan: u16) {
        self.net.set_vlan(name, vlan);
    }

    /// Puts an interface into a physical network, as `smc_pnet` does.
    pub fn set_pnet_id(&self, name: &str, pnet_id: &str) {
        self.net.set_pnet_id(name, pnet_id);
    }

    /// Stacks an interface on another one, as a bond on its port.
    pub fn set_base(&self, name: &str, base: &str) {
        self.net.set_base(name, base);
    }

    /// Resets every TCP connection that has this address at one of its ends; gives their number.
    pub fn cut(&self, address: SocketAddr) -> usize {
        self.net.cut(|end| end == address)
    }

    /// The same for all addresses of a host.
    pub fn cut_host(&self, host: IpAddr) -> usize {
        self.net.cut(|end| end.ip() == host)
    }

    /// Ends all TCP sockets of a host, as when its process is killed: connections are reset, and
    /// its listeners are there no longer.
    pub fn end_host(&self, host: IpAddr) {
        self.net.end_listeners(host);
        self.cut_host(host);
    }

    /// Lets the next TCP connection to a listener lose all that one end sends behind so many bytes:
    /// the other end reads an end of the stream there.
    pub fn truncate_next(&self, to: SocketAddr, is_client: bool, len: usize) {
        self.net.order(to, Order::Truncate { is_client, len });
    }

    /// Decides how the next SYN with data reaches a listener (TCP Fast Open). Returns the address
    /// of its client, once there is one.
    ///
    /// A client has data in its SYN from its second connection with
    /// [`fast_open`](SocketOptions::fast_open) on, if the listener has that option as well.
    #[must_use]
    pub fn deliver_next_syn(
        &self,
        to: SocketAddr,
        delivery: SynDelivery,
    ) -> Arc<OnceLock<SocketAddr>> {
        self.net.deliver_syn(to, delivery)
    }

    /// Copies what the client sends on the next TCP connection to a listener.
    #[must_use]
    pub fn copy_next(&self, to: SocketAddr) -> Arc<Mutex<Vec<u8>>> {
        let copy = CopiedBytes::default();
        self.net.order(to, Order::Copy(Arc::clone(&copy)));
        copy
    }

    /// Drops all tasks, and resets all connections. Nothing runs on it any more.
    pub fn close(&self) {
        self.core.close();
        self.net.close();
    }

    /// Moves the clock on at once, as when the machine was suspended. All timers until then are
    /// late.
    pub fn jump(&self, by: Duration) {
        self.core.jump(by);
    }

    /// The number of tasks that were spawned and have not ended.
    #[must_use]
    pub fn task_count(&self) -> usize {
        self.core.task_count()
    }
}

impl Drop for VirtualRuntime {
    fn drop(&mut self) {
        // Tasks hold handles, which own the tasks: this breaks the cycle.
        self.close();
    }
}

impl fmt::Debug for VirtualRuntime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("VirtualRuntime")
            .field("elapsed", &self.elapsed())
            .finish_non_exhaustive()
    }
}

/// The runtime as an endpoint sees it, which can end while the [`VirtualRuntime`] goes on, as one
/// of two runtimes in a process.
///
/// Its timers and sockets go on as well.
pub struct EndingRuntime {
    core: Arc<Core>,
    net: Arc<Net>,
    group: Group,
}

impl EndingRuntime {
    /// Drops all tasks and takes no more. Not to be called by one of them.
    pub fn end(&self) {
        self.core.end(self.group);
    }

    /// Lets no task run until [`resume`](Self::resume), as if the process were stopped. Time, other
    /// tasks and what is on its way to this one go on.
    pub fn pause(&self) {
        self.core.set_paused(self.group, true);
    }

    /// Lets the tasks run again.
    pub fn resume(&self) {
        self.core.set_paused(self.group, false);
    }
}

#[async_trait]
impl Runtime for EndingRuntime {
    fn now(&self) -> Instant {
        self.core.now()
    }

    fn timer(&self, at: Instant) -> Timer {
        Box::pin(self.core.timer(at))
    }

    fn spawn(&self, task: Task) {
        self.core.spawn(String::new(), self.group, task);
    }

    async fn resolve(&self, host: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
        Net::resolve(host, port)
    }

    async fn connect(
        &self,
        to: SocketAddr,
        options: &SocketOptions,
        before: &mut BeforeConnect<'_>,
    ) -> io::Result<Arc<dyn Socket>> {
        self.net.connect(to, options, before).await
    }

    fn source(&self, to: SocketAddr) -> Option<IpAddr> {
        Some(Net::source(to))
    }

    fn bind(
        &self,
        at: SocketAddr,
        options: &SocketOptions,
        before: &mut BeforeListen<'_>,
    ) -> io::Result<Arc<dyn Acceptor>> {
        self.net.bind(at, options, before)
    }

    fn interfaces(&self) -> Vec<NetworkInterface> {
        self.net.read_interfaces()
    }

    fn pnet_table(&self) -> Vec<PnetEntry> {
        self.net.pnet_table()
    }

    fn route(&self, from: IpAddr, to: IpAddr, by: Option<u32>) -> Option<NetworkRoute> {
        self.net.route(from, to, by)
    }

    fn unprotected_mtu(&self, _from: IpAddr, _to: IpAddr) -> Option<u32> {
        Some(socket::MTU)
    }

    fn watch(&self, _fd: BorrowedFd<'_>) -> io::Result<Box<dyn Watch>> {
        Err(io::Error::new(
            io::ErrorKind::Unsupported,
            "the virtual runtime has no reactor; use devices with a waker as doorbell",
        ))
    }
}

impl fmt::Debug for EndingRuntime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("VirtualRuntime").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
