//! Opening channels to peers.
//!
//! The socket of a device is looked up and connected to on a
//! [thread](smc_ipc::thread): its user can have either take any time.

use std::collections::BTreeMap;
use std::future::{Future as _, poll_fn};
use std::os::fd::AsFd;
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::sockopt::set_socket_send_buffer_size;
use smc_core::device::DeviceError;
use smc_core::mem::sync::{AtomicBool, Ordering};
use smc_core::mutex::Mutex;
use smc_core::quota::Permit;
use smc_ipc::Credentials;
use smc_ipc::doorbell::new_eventfd;
use smc_ipc::passed::{PeerFile, PeerSocket};
use smc_ipc::runtime_dir::Connected;
use smc_ipc::thread::Answer;
use smc_wire::types::Gid;

use super::{CHANNEL_BUFFER, DESCRIPTORS_PER_PEER, PEER_CHARGE, Peers, new_signal_page};
use crate::channel::{self, Message};
use crate::directory::socket_name;
use crate::doorbell::{Doorbell, EventSource};
use crate::local_buffers::LocalBuffers;
use crate::peer::Peer;
use crate::region::Mapping;
use crate::send_queue::{SendPath, SendQueue, WakeList};
use crate::signal_page;

/// Why a channel could not be opened.
#[derive(Debug)]
pub(crate) enum OpenError {
    /// The peer has too many connections to accept; it may help to try again.
    Busy,
    Failed(DeviceError),
}

impl From<DeviceError> for OpenError {
    fn from(error: DeviceError) -> Self {
        Self::Failed(error)
    }
}

/// Has the driver run set-up.
#[derive(Debug)]
pub(super) struct SetupWaker {
    is_woken: AtomicBool,
    doorbell: Arc<Doorbell>,
}

impl SetupWaker {
    pub(super) fn new(doorbell: &Arc<Doorbell>) -> Arc<Self> {
        Arc::new(Self {
            is_woken: AtomicBool::new(false),
            doorbell: Arc::clone(doorbell),
        })
    }

    /// Whether it was woken since the last call.
    pub(super) fn take(&self) -> bool {
        self.is_woken.swap(false, Ordering::AcqRel)
    }
}

impl Wake for SetupWaker {
    fn wake(self: Arc<Self>) {
        self.is_woken.store(true, Ordering::Release);
        self.doorbell.notify_self();
    }
}

/// Tasks that wait for connections, or to try again, and until when.
#[derive(Debug, Default)]
pub(super) struct WaitingTasks(Mutex<BTreeMap<u64, (Instant, Waker)>>);

impl WaitingTasks {
    /// Removes those that have waited for too long.
    pub(super) fn remove_expired(&self, now: Instant) -> WakeList {
        let mut expired = WakeList::new();
        self.0.lock().retain(|_, (until, waker)| {
            if *until > now {
                return true;
            }
            expired.push(waker.clone());
            false
        });
        expired
    }

    /// When the next one has waited for too long.
    pub(super) fn next_expiry(&self) -> Option<Instant> {
        self.0.lock().values().map(|(until, _)| *until).min()
    }
}

/// Removes a task that waits no more.
struct WaitingTask<'a>(&'a WaitingTasks, u64);

impl Drop for WaitingTask<'_> {
    fn drop(&mut self) {
        let _waker = self.0.0.lock().remove(&self.1);
    }
}

impl Peers {
    /// Opens the local channel to a peer, if there is none yet. Gives up after a second, if the
    /// driver runs; a peer that has too many connections to accept is asked again a few times until
    /// then.
    pub(crate) async fn open(&self, gid: Gid) -> Result<Arc<Peer>, DeviceError> {
        let until = Instant::now() + CONNECT_WITHIN;
        let mut delay = BUSY_DELAY;
        loop {
            match self.try_open(gid, until).await {
                Ok(peer) => return Ok(peer),
                Err(OpenError::Failed(error)) => return Err(error),
                Err(OpenError::Busy) => {}
            }
            let next = Instant::now() + delay;
            if next >= until {
                let why = "it does not accept connections";
                return Err(DeviceError::Unreachable { peer: gid, why });
            }
            self.wait_until(next, |_| Poll::<()>::Pending).await;
            delay *= 2;
        }
    }

    async fn try_open(&self, gid: Gid, until: Instant) -> Result<Arc<Peer>, OpenError> {
        if let Some(peer) = self.find(gid) {
            return Ok(peer);
        }
        let mut answer = self.connect(gid);
        let connected = self.wait_until(until, |cx| Pin::new(&mut answer).poll(cx));
        let opened = self.establish(gid, connected.await.unwrap_or(Err(Errno::TIMEDOUT)), None);
        self.wake();
        opened
    }

    /// Connects to the socket of a device.
    pub(super) fn connect(&self, gid: Gid) -> Answer<Connected> {
        let user = self.user_of(gid);
        self.domain.begin_connect(user, &socket_name(gid))
    }

    /// Waits until something is ready, or for a time that the driver measures: `None` then.
    async fn wait_until<T>(
        &self,
        until: Instant,
        mut poll: impl FnMut(&mut Context<'_>) -> Poll<T>,
    ) -> Option<T> {
        let task = WaitingTask(&self.waiting, self.new_id());
        poll_fn(|cx: &mut Context<'_>| {
            if let Poll::Ready(result) = poll(cx) {
                return Poll::Ready(Some(result));
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Poll::Ready(None);
            }
            let waiting = (until, cx.waker().clone());
            let _old = task.0.0.lock().insert(task.1, waiting);
            self.publication.lock().wake_after(left);
            Poll::Pending
        })
        .await
    }

    /// A peer to which the channel is open. Another thread may be opening it now.
    pub(super) fn find_opened(&self, gid: Gid) -> Option<Arc<Peer>> {
        let _opening = self.opening.lock();
        self.find(gid)
    }

    /// Makes a connection to a device the channel to a peer, unless there is one by now.
    /// `descriptors` are those of the peer, if they are taken already.
    pub(super) fn establish(
        &self,
        gid: Gid,
        connected: Result<Connected, Errno>,
        descriptors: Option<Permit>,
    ) -> Result<Arc<Peer>, OpenError> {
        let _opening = self.opening.lock();
        if let Some(peer) = self.find(gid) {
            return Ok(peer);
        }
        let (path, socket) = match connected {
            Ok(Connected { path, socket, .. }) => (path, socket),
            Err(errno) => (socket_name(gid).into(), Err(errno)),
        };
        let socket = socket.map_err(|errno| self.connect_failed(gid, &path, errno))?;
        self.open_channel(gid, socket, &path, descriptors)
    }

    fn connect_failed(&self, gid: Gid, path: &Path, errno: Errno) -> OpenError {
        let unreachable = |why| DeviceError::Unreachable { peer: gid, why };
        let error = match errno {
            Errno::AGAIN => return OpenError::Busy,
            // Then it is more likely that the peer cannot use it either.
            Errno::NOENT => match self.directory() {
                Ok(_) => unreachable("no such device in the runtime directory"),
                Err(error) => error.into(),
            },
            Errno::CONNREFUSED => {
                self.remove_if_stale(gid);
                unreachable("its process has ended")
            }
            Errno::ACCESS | Errno::PERM => {
                let name = socket_name(gid);
                let why = format!("{name} of the runtime directory may not be used");
                DeviceError::NotPermitted(why.into())
            }
            errno => DeviceError::os_at("connect to peer device", path, &errno.into()),
        };
        error.into()
    }

    fn open_channel(
        &self,
        gid: Gid,
        mut channel: PeerSocket,
        path: &Path,
        descriptors: Option<Permit>,
    ) -> Result<Arc<Peer>, OpenError> {
        let user = self.user_of(gid);
        let credentials = Credentials::of_peer(&channel)
            .map_err(|error| DeviceError::os("identify peer device", &error))?;
        if credentials.uid != user || !self.domain.allows(user) {
            let why = format!("the peer device {gid} belongs to user {}", credentials.uid);
            return Err(DeviceError::NotPermitted(why.into()).into());
        }
        channel.set_allowed();
        let channel = Arc::new(channel);
        let descriptors = match descriptors {
            Some(taken) => taken,
            None => self.take_descriptors(user, DESCRIPTORS_PER_PEER)?,
        };
        // On failure more descriptors may be in flight.
        let _ = set_socket_send_buffer_size(&channel, CHANNEL_BUFFER);
        let permit = self.mappings.take(user)?;
        permit.charge_within_limit(PEER_CHARGE)?;
        let (mapping, file) = Mapping::create(signal_page::LEN, permit, user)?;
        let signal_page = new_signal_page(&mapping)?;
        let eventfd = new_eventfd().map_err(DeviceError::from)?;
        let eventfd = Arc::new(PeerFile::shared(eventfd, &channel));
        let hello = Message::Hello { gid: self.gid };
        match channel::send(&channel, hello, &[file.as_fd(), eventfd.as_fd()]) {
            Ok(()) => {}
            Err(Errno::PIPE | Errno::CONNRESET) => {
                let why = "it refuses the connection";
                return Err(DeviceError::Unreachable { peer: gid, why }.into());
            }
            Err(error) => {
                let operation = "send HELLO to peer device";
                return Err(DeviceError::os_at(operation, path, &error.into()).into());
            }
        }

        let id = self.new_id();
        let doorbell = Arc::clone(&self.doorbell);
        let send_queue = SendQueue::new(doorbell, id, user, Arc::clone(&channel));
        let send_path = SendPath::Channel(Arc::new(send_queue));
        let local = LocalBuffers::new(
            signal_page,
            send_path,
            self.pool_limits,
            self.account.clone(),
        );
        let peer = Peer::new(
            gid,
            id,
            Some(credentials),
            local,
            Some(Arc::clone(&eventfd)),
            Some(descriptors),
        );
        let peer = Arc::new(peer);
        // First watched, then entered: other tasks send to a peer that they find, and have the
        // channel watched for space.
        if let Err(error) = self
            .doorbell
            .watch_channel(&channel, EventSource::Outgoing, id)
        {
            self.close(&peer);
            return Err(error.into());
        }
        // First entered, then watched: an edge for an unknown number would be lost.
        self.insert(&peer);
        if let Err(error) = self.doorbell.watch_peer(&eventfd, id) {
            self.remove(&peer);
            self.close(&peer);
            return Err(error.into());
        }
        Ok(peer)
    }
}

/// How long a task or a channel waits for a connection to a device.
pub(super) const CONNECT_WITHIN: Duration = Duration::from_secs(1);
/// How long a task waits before it connects again to a device that has too many connections to
/// accept; then twice as long each time. A connection takes a thread some 50 µs, which another user
/// can cause.
const BUSY_DELAY: Duration = Duration::from_millis(1);
