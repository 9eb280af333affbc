//! The loop device and its builder.

use std::fmt;
use std::io::IoSlice;
use std::path::PathBuf;
use std::sync::Arc;

use async_trait::async_trait;
use futures_lite::future::yield_now;
use smc_core::device::{
    Attachment, Device, DeviceError, Direct, Dmb, DmbCount, Doorbell, Event, Identity, Limits,
    MemoryLimit, Nocopy, Operations, Signal, SubmitError,
};
use smc_core::mutex::Mutex;
use smc_ipc::{Credentials, OsError, RuntimeDirError};
use smc_wire::types::{Chid, DmbToken, Gid};

use crate::channel::Message;
use crate::config::Builder;
use crate::peer::{Peer, is_dmb_len};
use crate::peer_buffers::UNKNOWN;
use crate::peers::{Peers, SLOTS_PER_SCAN};
use crate::random;
use crate::send_queue::SendPath;
use crate::signal_page::SLOTS;

/// An SMC-D device whose peers are processes of the same host.
///
/// See the [crate documentation](crate). Dropping the device takes it out of the runtime directory
/// and closes the channels to its peers; buffers and attachments that are left keep their
/// memory.
pub struct LoopDevice {
    identity: Identity,
    limits: Limits,
    nocopy: bool,
    dmbs: Arc<DmbCount>,
    peers: Peers,
    /// Kept for the next drain, so that draining does not allocate.
    events: Mutex<Vec<Event>>,
}

impl LoopDevice {
    /// Options for a device.
    #[must_use]
    pub fn builder() -> Builder {
        Builder::default()
    }

    /// A device with the default options.
    ///
    /// # Errors
    ///
    /// As [`Builder::build`].
    pub fn new() -> Result<Self, DeviceError> {
        Self::builder().build()
    }

    pub(crate) fn with(options: Builder) -> Result<Self, DeviceError> {
        let gid = random::gid(rustix::process::geteuid().as_raw())?;
        Ok(Self {
            dmbs: DmbCount::new(options.limits.max_dmbs),
            peers: Peers::new(gid, &options)?,
            identity: options.identity,
            limits: options.limits,
            nocopy: options.nocopy,
            events: Mutex::default(),
        })
    }

    /// The directory where the device can be found now.
    ///
    /// # Errors
    ///
    /// Why it can be found in none. Until that changes, its streams are TCP.
    pub fn runtime_dir(&self) -> Result<PathBuf, RuntimeDirError> {
        self.peers.directory()
    }

    /// Number of other devices that there is a channel to.
    #[must_use]
    pub fn peers(&self) -> usize {
        self.peers.len()
    }

    /// Number of buffers that are registered now.
    #[must_use]
    pub fn dmbs(&self) -> usize {
        self.dmbs.used()
    }

    /// Passes the events that `take` collects to `sink`. They are collected first: the sink may
    /// call the device, and no lock is held then.
    fn take_events(
        &self,
        sink: &mut dyn FnMut(Event),
        take: impl FnOnce(&mut Vec<Event>) -> Result<(), DeviceError>,
    ) -> Result<(), DeviceError> {
        let mut events = std::mem::take(&mut *self.events.lock());
        let taken = take(&mut events);
        events.drain(..).for_each(sink);
        *self.events.lock() = events;
        taken
    }

    /// `None` if the token is not known yet.
    fn try_attach(
        &self,
        peer: Gid,
        token: DmbToken,
    ) -> Result<Option<Arc<dyn Attachment>>, DeviceError> {
        match self.peers.tokens.find(peer, token) {
            Ok(target) => Ok(Some(Arc::new(target.attach()?))),
            Err(SubmitError::PeerGone) => Err(DeviceError::PeerGone),
            Err(_) => Ok(None),
        }
    }

    fn try_move(
        &self,
        peer: Gid,
        to: DmbToken,
        at: u32,
        data: &[IoSlice<'_>],
        signal: Signal,
    ) -> Result<(), SubmitError> {
        let at = usize::try_from(at).map_err(|_| SubmitError::OutOfBounds)?;
        let target = self.peers.tokens.find(peer, to)?;
        target.write(at, data)?;
        if signal == Signal::Yes {
            target.signal();
        }
        Ok(())
    }
}

impl Device for LoopDevice {
    fn identity(&self) -> &Identity {
        &self.identity
    }

    fn limits(&self) -> Limits {
        self.limits
    }

    fn operations(&self) -> Operations<'_> {
        Operations::Direct(self)
    }

    fn drain(&self, sink: &mut dyn FnMut(Event)) -> Result<(), DeviceError> {
        self.take_events(sink, |events| self.peers.drain(events))
    }

    fn poll(&self, sink: &mut dyn FnMut(Event)) -> Result<(), DeviceError> {
        self.take_events(sink, |events| {
            self.peers.poll(events);
            Ok(())
        })
    }

    fn arm(&self) -> Result<(), DeviceError> {
        self.peers.arm();
        Ok(())
    }

    fn doorbell(&self) -> Doorbell<'_> {
        Doorbell::Fd(self.peers.doorbell.as_fd())
    }

    fn limit_memory(&self, limit: &MemoryLimit) {
        self.peers.account.limit_by(limit);
    }

    fn trim_memory(&self) {
        self.peers.trim();
    }
}

#[async_trait]
impl Direct for LoopDevice {
    fn gid(&self) -> Gid {
        self.peers.gid
    }

    fn chid(&self) -> Chid {
        Chid::LOOPBACK
    }

    async fn reach(&self, peer: Gid) -> Result<(), DeviceError> {
        self.peers.open(peer).await.map(|_| ())
    }

    fn process(&self, peer: Gid) -> Result<Option<Credentials>, DeviceError> {
        let known = self.peers.find(peer).ok_or(DeviceError::PeerGone)?;
        // There is no channel to the local device itself that has the credentials.
        Ok(Some(known.credentials.unwrap_or_else(Credentials::own)))
    }

    fn shortage(&self) -> Option<OsError> {
        self.peers.shortage()
    }

    async fn register(&self, peer: Gid, len: usize) -> Result<Arc<dyn Dmb>, DeviceError> {
        if !is_dmb_len(len) || len > self.limits.max_dmb_len {
            return Err(DeviceError::Invalid("length of a buffer"));
        }
        let permit = self.dmbs.take()?;
        let peer = self.peers.open(peer).await?;
        let (mut dmb, new) = peer.local.register(len, permit)?;
        if let Some(mut new) = new {
            match (&peer.local.send_path, new.file.take()) {
                (SendPath::Channel(send_queue), Some(file)) => {
                    let len = u64::try_from(len).map_err(|_| DeviceError::NoMemory)?;
                    let message = Message::Memory {
                        index: new.index,
                        number: new.number,
                        len,
                    };
                    send_queue.send(message, file)?.await?;
                }
                _ => peer.install(new),
            }
            dmb.set_delivered();
        }
        Ok(Arc::new(dmb))
    }

    fn move_data(
        &self,
        peer: Gid,
        to: DmbToken,
        at: u32,
        data: &[IoSlice<'_>],
        signal: Signal,
    ) -> Result<(), SubmitError> {
        let moved = self.try_move(peer, to, at, data, signal);
        if !matches!(moved, Err(SubmitError::UnknownToken)) {
            return moved;
        }
        // The first use of a buffer: its message has been sent, but not received yet.
        let more = self.peers.receive_for_move(peer)?;
        match self.try_move(peer, to, at, data, signal) {
            // Its message may be behind those that the driver will receive.
            Err(SubmitError::UnknownToken) if more => Err(SubmitError::WouldBlock),
            result => result,
        }
    }

    fn is_registered(&self, peer: Gid, token: DmbToken) -> bool {
        let target = self.peers.tokens.find(peer, token);
        target.is_ok_and(|target| target.is_registered())
    }

    fn allows_rewind(&self) -> bool {
        true
    }

    fn nocopy(&self) -> Option<&dyn Nocopy> {
        self.nocopy.then_some(self as &dyn Nocopy)
    }
}

#[async_trait]
impl Nocopy for LoopDevice {
    async fn attach(&self, peer: Gid, token: DmbToken) -> Result<Arc<dyn Attachment>, DeviceError> {
        if let Some(attached) = self.try_attach(peer, token)? {
            return Ok(attached);
        }
        // Memory that the peer uses again is found in its signal page, other memory in the channel.
        if let Some(known) = self.peers.find(peer) {
            scan_all(&known).await;
            if let Some(attached) = self.try_attach(peer, token)? {
                return Ok(attached);
            }
        }
        let opened = self.peers.open(peer).await;
        // A channel from it is accepted when there is one to it.
        self.peers.receive_pending()?;
        match opened {
            // Its signal page may have changed meanwhile.
            Ok(known) => {
                self.peers.receive_from(&known);
                scan_all(&known).await;
            }
            // It had a channel to this device when it made the buffer.
            Err(DeviceError::Unreachable { .. }) => return Err(DeviceError::PeerGone),
            Err(error) => return Err(error),
        }
        self.try_attach(peer, token)?.ok_or(UNKNOWN)
    }
}

/// Scans the signal page of a peer. Other tasks run meanwhile: all of its slots may have changed.
async fn scan_all(peer: &Peer) {
    for _ in 0..=SLOTS as usize / SLOTS_PER_SCAN {
        if !peer.scan(SLOTS_PER_SCAN).more {
            break;
        }
        yield_now().await;
    }
}

impl fmt::Debug for LoopDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LoopDevice")
            .field("name", &self.identity.name)
            .field("gid", &format_args!("{}", self.peers.gid))
            .field("runtime_dir", &self.runtime_dir())
            .field("nocopy", &self.nocopy)
            .field("limits", &self.limits)
            .field("peers", &self.peers())
            .field("dmbs", &self.dmbs())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use futures_lite::future::block_on;
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    use smc_ipc::Domain;

    use super::*;
    use crate::signal_page::SLOTS;

    fn device(dir: &tempfile::TempDir) -> LoopDevice {
        LoopDevice::builder()
            .domain(Domain::directory(dir.path()))
            .build()
            .unwrap()
    }

    fn drain(device: &LoopDevice) -> usize {
        let mut count = 0;
        device.drain(&mut |_| count += 1).unwrap();
        count
    }

    fn is_readable(device: &LoopDevice) -> bool {
        let doorbell = device.peers.doorbell.as_fd();
        poll(
            &mut [PollFd::from_borrowed_fd(doorbell, PollFlags::IN)],
            Some(&Timespec::default()),
        ) == Ok(1)
    }

    #[test]
    fn the_first_use_of_a_buffer_receives_all_that_was_sent_on_a_channel_accepted_for_it() {
        let dir = tempfile::tempdir().unwrap();
        let (owner, writer) = (device(&dir), device(&dir));
        // More than are received when a channel is accepted.
        let make = || block_on(owner.register(writer.gid(), 1 << 14)).unwrap();
        let dmbs: Vec<_> = (0..8).map(|_| make()).collect();
        // HELLO is received; the channel waits for the one to the owner, which then is made first.
        drain(&writer);
        block_on(writer.reach(owner.gid())).unwrap();
        let data = [IoSlice::new(&[0; 8])];
        let last = dmbs.last().unwrap().token();
        let moved = writer.move_data(owner.gid(), last, 0, &data, Signal::Yes);
        assert_eq!(moved, Ok(()), "its message was sent before");
    }

    #[test]
    fn peers_with_very_many_signals_are_drained_in_turn() {
        let dir = tempfile::tempdir().unwrap();
        let owner = device(&dir);
        let writers = [device(&dir), device(&dir), device(&dir)];
        let buffer = |writer: &LoopDevice| block_on(owner.register(writer.gid(), 1 << 14)).unwrap();
        let dmbs = writers.each_ref().map(buffer);
        while drain(&owner) > 0 {}
        let signal_all = || {
            for writer in &writers {
                let peer = owner.peers.find(writer.gid()).unwrap();
                (0..SLOTS).for_each(|slot| {
                    peer.local.signal_page.set_ready(slot);
                });
                owner.peers.active.add(&peer);
            }
        };
        signal_all();
        let mut signalled = Vec::new();
        for round in 1..=writers.len() {
            owner
                .drain(&mut |event| match event {
                    Event::Signalled(token) => signalled.push(token),
                    other => panic!("{other:?}"),
                })
                .unwrap();
            assert_eq!(signalled.len(), round, "one peer in each drain");
        }
        signalled.sort_unstable();
        let mut tokens = dmbs.each_ref().map(|dmb| dmb.token());
        tokens.sort_unstable();
        assert_eq!(signalled, tokens, "each peer once");
        // Peers that a drain leaves keep the driver awake.
        signal_all();
        owner.arm().unwrap();
        assert_eq!(drain(&owner), 1);
        assert_eq!(drain(&owner), 1);
        assert_eq!(drain(&owner), 1);
    }

    #[test]
    fn a_late_notification_for_an_event_taken_before_leaves_the_doorbell_armed() {
        let dir = tempfile::tempdir().unwrap();
        let device = device(&dir);
        // Its own peer, so that one thread does all steps.
        let dmb = block_on(device.register(device.gid(), 1 << 14)).unwrap();
        let signal = || {
            dmb.arm();
            let data = [IoSlice::new(&[0; 8])];
            device
                .move_data(device.gid(), dmb.token(), 0, &data, Signal::Yes)
                .unwrap();
        };
        signal();
        while drain(&device) > 0 {}
        device.arm().unwrap();
        while drain(&device) > 0 {
            device.arm().unwrap();
        }
        signal();
        while drain(&device) > 0 {}
        let own = device.peers.own_local();
        let finish_signal = own.signal_page.begin_set_ready(0);
        assert_eq!(drain(&device), 1, "it is handed out already");
        // What a driver does before it sleeps, with the rest of the notification in the middle.
        assert_eq!(drain(&device), 0);
        device.arm().unwrap();
        assert!(finish_signal());
        device.peers.doorbell.notify_self();
        assert_eq!(drain(&device), 0);
        // Woken again, a driver finds nothing and sleeps permanently.
        for round in 0..3 {
            assert_eq!(is_readable(&device), round == 0, "round {round}");
            assert_eq!(drain(&device), 0);
            device.arm().unwrap();
            assert_eq!(drain(&device), 0);
        }
        signal();
        assert!(is_readable(&device), "the next signal does not notify");
    }
}
