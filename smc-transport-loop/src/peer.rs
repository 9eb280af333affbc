//! One peer: both directions between its device and ours.

use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex};

use rustix::io::Errno;
use rustix::net::{Shutdown, shutdown};
use smc_core::device::{DeviceError, Event};
use smc_core::io::negotiate::Credentials;
use smc_core::io::negotiate::passed::{Passed, PeerSocket};
use smc_core::mem::sync::{AtomicBool, Ordering};
use smc_wire::size::SizeCode;
use smc_wire::types::Gid;

use crate::channel::{self, Descriptors, Message, Received};
use crate::doorbell::Doorbell;
use crate::lock;
use crate::outbox::Wakes;
use crate::region::{Mapping, os};
use crate::registry::{NewMemory, Owner, Permit, Permits};
use crate::remote::Remote;

/// A peer's device, or our own as its own peer.
#[derive(Debug)]
pub(crate) struct Peer {
    pub(crate) gid: Gid,
    /// Number in tags of the doorbell.
    pub(crate) id: u64,
    /// Of the process that listens at the GID; `None` for our own device.
    pub(crate) credentials: Option<Credentials>,
    /// Our buffers for the peer.
    pub(crate) owner: Arc<Owner>,
    /// The peer's buffers for us.
    incoming: Mutex<Option<Incoming>>,
    /// What the peer rings; `None` for our own device.
    eventfd: Option<Arc<OwnedFd>>,
    gone: AtomicBool,
    /// For the bell of `owner`; `None` for our own device.
    _permit: Option<Permit>,
    /// For [`Active`](crate::active::Active) only.
    pub(crate) care: Care,
}

/// How the driver looks after a peer.
#[derive(Debug, Default)]
pub(crate) struct Care {
    /// It does so at each drain.
    pub(crate) listed: AtomicBool,
    /// The peer was asked to ring, and has not since.
    pub(crate) armed: AtomicBool,
}

/// What the peer told us, and where it talks to us.
#[derive(Debug)]
pub(crate) struct Incoming {
    /// `None` for our own device.
    pub(crate) channel: Option<PeerSocket>,
    pub(crate) remote: Remote,
    /// Limits what is mapped for all peers.
    pub(crate) mappings: Arc<Permits>,
}

/// What listening to a peer led to.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Heard {
    /// It said something; if there was no room for more, that it signalled.
    pub(crate) anything: bool,
    /// It closed the channel, died, or broke the rules.
    pub(crate) dead: bool,
    /// It has said more than was listened to.
    pub(crate) more: bool,
}

impl Peer {
    pub(crate) fn new(
        gid: Gid,
        id: u64,
        credentials: Option<Credentials>,
        owner: Owner,
        eventfd: Option<Arc<OwnedFd>>,
        permit: Option<Permit>,
    ) -> Self {
        Self {
            gid,
            id,
            credentials,
            owner: Arc::new(owner),
            incoming: Mutex::new(None),
            eventfd,
            gone: AtomicBool::new(false),
            _permit: permit,
            care: Care::default(),
        }
    }

    pub(crate) fn is_gone(&self) -> bool {
        self.gone.load(Ordering::Acquire)
    }

    /// Takes over the channel on which the peer talks to us; gives it back if there is one.
    pub(crate) fn set_incoming(&self, incoming: Incoming) -> Result<(), Box<Incoming>> {
        let mut place = lock(&self.incoming);
        if self.is_gone() || place.is_some() {
            return Err(Box::new(incoming));
        }
        *place = Some(incoming);
        Ok(())
    }

    /// Gives new memory to our own device as its own peer.
    pub(crate) fn install(&self, new: NewMemory) {
        if let Some(incoming) = &mut *lock(&self.incoming) {
            incoming
                .remote
                .install(new.index, new.number, Ok(new.mapping));
        }
    }

    /// Learns what changed in the peer's bell.
    pub(crate) fn look(&self) {
        if let Some(incoming) = &mut *lock(&self.incoming) {
            incoming.remote.look();
        }
    }

    /// Reads what the peer has sent.
    pub(crate) fn listen(&self) -> Heard {
        let mut heard = Heard::default();
        let mut place = lock(&self.incoming);
        let Some(Incoming {
            channel: Some(channel),
            remote,
            mappings,
        }) = &mut *place
        else {
            return heard;
        };
        heard.more = true;
        for _ in 0..MAX_MESSAGES {
            match channel::receive(&*channel) {
                Received::Message(Message::Memory { index, number, len }, files) => {
                    // First, so that memory that takes the place of other memory fits.
                    remote.forget(index);
                    remote.install(index, number, adopt(files, len, mappings));
                    heard.anything = true;
                }
                Received::Message(Message::Look, _) => heard.anything = true,
                Received::Nothing => {
                    heard.more = false;
                    break;
                }
                Received::Closed | Received::Garbage | Received::Message(..) => {
                    // Also rings if another call than the driver's came to know.
                    let _ = shutdown(&*channel, Shutdown::Both);
                    heard.dead = true;
                    heard.more = false;
                    break;
                }
            }
        }
        remote.look();
        heard
    }

    /// Reports what the peer signalled; false if there is nothing.
    pub(crate) fn collect(&self, events: &mut Vec<Event>) -> bool {
        self.owner.collect(events)
    }

    /// Ends everything between the two devices and closes its descriptors.
    pub(crate) fn close(&self, doorbell: &Doorbell) -> Wakes {
        self.gone.store(true, Ordering::Release);
        let wakes = self.owner.close();
        if let Some(eventfd) = &self.eventfd {
            doorbell.forget_peer(eventfd);
        }
        if let Some(mut incoming) = lock(&self.incoming).take() {
            incoming.remote.ringer().close();
            incoming.remote.bury();
            if let Some(channel) = &incoming.channel {
                doorbell.forget_channel(channel);
            }
        }
        wakes
    }
}

fn adopt(
    [file, _]: Descriptors,
    len: u64,
    mappings: &Arc<Permits>,
) -> Result<Arc<Mapping>, DeviceError> {
    let file = match file {
        Some(Passed::File(file)) => file,
        Some(Passed::Lost) => return Err(os("receive the peer's memory file", Errno::MFILE)),
        Some(_) => return Err(DeviceError::PeerMisbehaved("descriptor is no memory file")),
        None => return Err(DeviceError::PeerMisbehaved("memory came without its file")),
    };
    let len = usize::try_from(len).ok().filter(|len| is_dmb_len(*len));
    let len = len.ok_or(DeviceError::PeerMisbehaved("buffer has no DMB size"))?;
    Mapping::adopt(std::os::fd::AsFd::as_fd(&file), len, mappings.take()?)
}

/// Whether a length is one of the DMB sizes, 2^(14 + n).
pub(crate) fn is_dmb_len(len: usize) -> bool {
    SizeCode::for_len(len).is_some_and(|code| code.byte_len() == len)
}

/// A peer that talks without end must not hold the driver; the rest is read next time.
const MAX_MESSAGES: usize = 4096;
