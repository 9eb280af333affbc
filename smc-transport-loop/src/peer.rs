//! One peer: both directions between its device and the local one.

use std::os::fd::AsFd;
use std::sync::Arc;

use rustix::io::Errno;
use rustix::net::{Shutdown, shutdown};
use smc_core::device::DeviceError;
use smc_core::mem::Taken;
use smc_core::mem::sync::{AtomicBool, Ordering};
use smc_core::mutex::Mutex;
use smc_core::quota::Permit;
use smc_ipc::Credentials;
use smc_ipc::passed::{Passed, PeerFile, PeerSocket};
use smc_wire::size::SizeCode;
use smc_wire::types::Gid;

use crate::channel::{self, Message, ReceivedMessage};
use crate::doorbell::Doorbell;
use crate::local_buffers::{LocalBuffers, NewMemory};
use crate::mappings::{MappingPermit, Mappings};
use crate::peer_buffers::PeerBuffers;
use crate::region::{Mapping, os};
use crate::released::Released;
use crate::send_queue::WakeList;

/// A peer's device, or the local one as its own peer.
#[derive(Debug)]
pub(crate) struct Peer {
    pub(crate) gid: Gid,
    /// Number in tags of the doorbell.
    pub(crate) id: u64,
    /// Of the process that listens at the GID; `None` for the local device itself.
    pub(crate) credentials: Option<Credentials>,
    /// The local buffers for the peer.
    pub(crate) local: Arc<LocalBuffers>,
    /// The peer's buffers that this device writes.
    incoming: Mutex<Option<Incoming>>,
    /// The eventfd that the peer writes; `None` for the local device itself.
    eventfd: Option<Arc<PeerFile>>,
    gone: AtomicBool,
    /// Taken once it is closed; `None` for the local device itself.
    pub(crate) descriptors: Mutex<Option<Permit>>,
    /// For [`ActivePeers`](crate::active::ActivePeers) only.
    pub(crate) poll_state: PollState,
}

/// The state of a peer in the driver's polling.
#[derive(Debug, Default)]
pub(crate) struct PollState {
    /// The peer is polled at each drain.
    pub(crate) listed: AtomicBool,
    /// The doorbell is armed, and the peer has not rung since.
    pub(crate) armed: AtomicBool,
}

/// The state of the peer's buffers, and the channel from the peer.
#[derive(Debug)]
pub(crate) struct Incoming {
    /// `None` for the local device itself.
    pub(crate) channel: Option<Arc<PeerSocket>>,
    pub(crate) buffers: PeerBuffers,
    /// Limits what is mapped for peers, by user.
    pub(crate) mappings: Arc<Mappings>,
    /// The user of the peer.
    pub(crate) user: u32,
}

/// The result of receiving from a peer.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ReceiveOutcome {
    /// A message was received. A full channel has no message for a signal.
    pub(crate) received: bool,
    /// The channel was closed, or a message was invalid.
    pub(crate) has_ended: bool,
    /// There are more messages than were received.
    pub(crate) more: bool,
}

impl Peer {
    pub(crate) fn new(
        gid: Gid,
        id: u64,
        credentials: Option<Credentials>,
        local: LocalBuffers,
        eventfd: Option<Arc<PeerFile>>,
        descriptors: Option<Permit>,
    ) -> Self {
        Self {
            gid,
            id,
            credentials,
            local: Arc::new(local),
            incoming: Mutex::new(None),
            eventfd,
            gone: AtomicBool::new(false),
            descriptors: Mutex::new(descriptors),
            poll_state: PollState::default(),
        }
    }

    pub(crate) fn is_gone(&self) -> bool {
        self.gone.load(Ordering::Acquire)
    }

    /// Sets the channel from the peer; returns it if there is one already.
    pub(crate) fn set_incoming(&self, incoming: Incoming) -> Result<(), Box<Incoming>> {
        let mut slot = self.incoming.lock();
        if self.is_gone() || slot.is_some() {
            return Err(Box::new(incoming));
        }
        *slot = Some(incoming);
        Ok(())
    }

    /// Gives new memory to the local device itself as its own peer.
    pub(crate) fn install(&self, new: NewMemory) {
        if let Some(incoming) = &mut *self.incoming.lock() {
            incoming
                .buffers
                .install(new.index, new.number, Ok(new.mapping));
        }
    }

    /// Scans changed slots of the peer's signal page, about so many.
    pub(crate) fn scan(&self, most: usize) -> Taken {
        let mut incoming = self.incoming.lock();
        let incoming = incoming.as_mut();
        incoming.map_or_else(Taken::default, |incoming| incoming.buffers.scan(most))
    }

    /// Reads what the peer has sent, at most so many messages. The caller scans its signal page
    /// afterwards.
    pub(crate) fn receive(&self, limit: usize) -> ReceiveOutcome {
        let mut outcome = ReceiveOutcome::default();
        let mut slot = self.incoming.lock();
        let Some(Incoming {
            channel: Some(channel),
            buffers,
            mappings,
            user,
        }) = &mut *slot
        else {
            return outcome;
        };
        outcome.more = true;
        for _ in 0..limit {
            match channel::receive(channel) {
                ReceivedMessage::Message(
                    Message::Memory { index, number, len },
                    [Some(file), _],
                ) => {
                    // First, so that memory that replaces other memory fits.
                    drop(buffers.remove_memory(index));
                    buffers.install(index, number, adopt(file, len, || mappings.take(*user)));
                    outcome.received = true;
                }
                ReceivedMessage::Message(Message::Notify, _) => outcome.received = true,
                ReceivedMessage::Nothing => {
                    outcome.more = false;
                    break;
                }
                ReceivedMessage::Closed
                | ReceivedMessage::Garbage
                | ReceivedMessage::Message(..) => {
                    // Also notifies the driver if another call has received it.
                    let _ = shutdown(&channel, Shutdown::Both);
                    outcome.has_ended = true;
                    outcome.more = false;
                    break;
                }
            }
        }
        outcome
    }

    /// Ends everything between the two devices and closes its descriptors.
    pub(crate) fn close(&self, doorbell: &Doorbell, released: &Released) -> WakeList {
        self.gone.store(true, Ordering::Release);
        let wakes = self.local.close(released);
        if let Some(eventfd) = &self.eventfd {
            doorbell.unwatch_peer(eventfd);
        }
        if let Some(mut incoming) = self.incoming.lock().take() {
            incoming.buffers.notifier.close();
            incoming.buffers.mark_gone();
            if let Some(channel) = &incoming.channel {
                doorbell.unwatch_channel(channel);
            }
        }
        wakes
    }
}

fn adopt(
    file: Passed,
    len: u64,
    permit: impl FnOnce() -> Result<MappingPermit, DeviceError>,
) -> Result<Arc<Mapping>, DeviceError> {
    let file = match file {
        Passed::File(file) => file,
        Passed::Lost => return Err(os("receive the peer's memory file", Errno::MFILE)),
        _ => return Err(DeviceError::PeerMisbehaved("descriptor is no memory file")),
    };
    let len = usize::try_from(len).ok().filter(|len| is_dmb_len(*len));
    let len = len.ok_or(DeviceError::PeerMisbehaved("buffer has no DMB size"))?;
    let mapping = Mapping::adopt(file.as_fd(), len, permit()?)?;
    // Else each buffer of another user would take a thread, and count as a descriptor that waits.
    file.close_mapped();
    Ok(mapping)
}

/// Whether a length is one of the DMB sizes, 2^(14 + n).
pub(crate) fn is_dmb_len(len: usize) -> bool {
    SizeCode::for_len(len).is_some_and(|code| code.byte_len() == len)
}
