use std::fmt;
use std::io::IoSlice;
use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use smc_core::device::{
    Attachment, Device, DeviceError, Direct, Dmb, Doorbell, Event, Fabric, Identity, Limits,
    Nocopy, PeerEvent, PeerEvents, Signal, SubmitError,
};
use smc_core::mem::Region;
use smc_wire::types::{Chid, DmbToken, Eid, Gid};

/// Tells a sink what is asked of a device and what it reports.
///
/// Getters are not told, nor drains that brought nothing, nor reads and writes of shared memory,
/// which no device sees.
pub struct Trace {
    inner: Arc<dyn Device>,
    log: Log,
}

impl Trace {
    /// Tells every record to `sink`, in the thread of the call.
    #[must_use]
    pub fn new(
        inner: Arc<dyn Device>,
        sink: impl Fn(&Record) + Send + Sync + 'static,
    ) -> Arc<Self> {
        let device = Arc::from(inner.identity().name.as_str());
        Arc::new(Self {
            inner,
            log: Log {
                device,
                sink: Arc::new(sink),
            },
        })
    }

    /// Keeps all records, to be looked at later.
    #[must_use]
    pub fn with_journal(inner: Arc<dyn Device>) -> (Arc<Self>, Journal) {
        let journal = Journal::default();
        let sink = journal.clone();
        (
            Self::new(inner, move |record| sink.push(record.clone())),
            journal,
        )
    }
}

/// Records kept by [`Trace::with_journal`]. Clones are the same journal.
#[derive(Clone, Debug, Default)]
pub struct Journal(Arc<Mutex<Vec<Record>>>);

impl Journal {
    /// Takes what was recorded since the last call.
    #[must_use]
    pub fn take(&self) -> Vec<Record> {
        std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn push(&self, record: Record) {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(record);
    }
}

/// One thing that happened at a device. `Display` is one line.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Record {
    /// The device's name.
    pub device: Arc<str>,
    /// What happened.
    pub what: What,
}

/// What happened at a device.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum What {
    /// [`Direct::reach`] ended.
    #[non_exhaustive]
    Reached {
        /// Whom it was about.
        peer: Gid,
        /// How it ended.
        result: Result<(), DeviceError>,
    },
    /// [`Direct::register`] ended.
    #[non_exhaustive]
    Registered {
        /// Who may write.
        peer: Gid,
        /// Length asked for, in bytes.
        len: usize,
        /// The token, or why there is none.
        result: Result<DmbToken, DeviceError>,
    },
    /// A buffer was dropped.
    Unregistered(DmbToken),
    /// A buffer was armed.
    BufferArmed(DmbToken),
    /// [`Direct::move_data`] was called.
    #[non_exhaustive]
    Moved {
        /// Into which buffer.
        to: DmbToken,
        /// Offset in bytes.
        at: u32,
        /// Length of all slices, in bytes.
        len: usize,
        /// Whether the peer was to be told.
        signal: Signal,
        /// Whether it was taken.
        result: Result<(), SubmitError>,
    },
    /// [`Nocopy::attach`] ended.
    #[non_exhaustive]
    Attached {
        /// Whose buffer.
        peer: Gid,
        /// Which buffer.
        token: DmbToken,
        /// How it ended.
        result: Result<(), DeviceError>,
    },
    /// An attachment was dropped.
    Detached(DmbToken),
    /// [`Attachment::signal`] was called.
    #[non_exhaustive]
    Signalled {
        /// Which buffer.
        token: DmbToken,
        /// Whether anybody was told.
        result: Result<(), SubmitError>,
    },
    /// [`PeerEvents::signal_event`] was called.
    #[non_exhaustive]
    EventSent {
        /// To whom.
        peer: Gid,
        /// What.
        event: PeerEvent,
        /// Whether it was sent.
        result: Result<(), SubmitError>,
    },
    /// [`Device::drain`] reported an event.
    Reported(Event),
    /// [`Device::drain`] failed.
    DrainFailed(DeviceError),
    /// [`Device::arm`] was called.
    Armed,
}

impl fmt::Display for Record {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ", self.device)?;
        match &self.what {
            What::Reached { peer, result } => {
                write!(f, "reach {peer}{}", Outcome(result))
            }
            What::Registered { peer, len, result } => {
                write!(f, "register {len} bytes for {peer}")?;
                match result {
                    Ok(token) => write!(f, ": {token}"),
                    Err(error) => write!(f, ": {error}"),
                }
            }
            What::Unregistered(token) => write!(f, "unregister {token}"),
            What::BufferArmed(token) => write!(f, "arm {token}"),
            What::Moved {
                to,
                at,
                len,
                signal,
                result,
            } => {
                let signal = if *signal == Signal::Yes {
                    " and signal"
                } else {
                    ""
                };
                write!(
                    f,
                    "move {len} bytes to {to} at {at}{signal}{}",
                    Outcome(result)
                )
            }
            What::Attached {
                peer,
                token,
                result,
            } => {
                write!(f, "attach {token} of {peer}{}", Outcome(result))
            }
            What::Detached(token) => write!(f, "detach {token}"),
            What::Signalled { token, result } => write!(f, "signal {token}{}", Outcome(result)),
            What::EventSent {
                peer,
                event,
                result,
            } => {
                write!(f, "send {event:?} to {peer}{}", Outcome(result))
            }
            What::Reported(Event::Signalled(token)) => write!(f, "<- signalled {token}"),
            What::Reported(Event::BufferGone(token)) => write!(f, "<- buffer {token} gone"),
            What::Reported(Event::PeerGone(gid)) => write!(f, "<- peer {gid} gone"),
            What::Reported(Event::Peer { from, event }) => write!(f, "<- {event:?} from {from}"),
            What::Reported(event) => write!(f, "<- {event:?}"),
            What::DrainFailed(error) => write!(f, "<- {error}"),
            What::Armed => write!(f, "arm"),
        }
    }
}

/// Nothing if it went well.
struct Outcome<'a, E>(&'a Result<(), E>);

impl<E: fmt::Display> fmt::Display for Outcome<'_, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0
            .as_ref()
            .map_or_else(|error| write!(f, ": {error}"), |()| Ok(()))
    }
}

#[derive(Clone)]
struct Log {
    device: Arc<str>,
    sink: Arc<dyn Fn(&Record) + Send + Sync>,
}

impl Log {
    fn tell(&self, what: What) {
        (self.sink)(&Record {
            device: Arc::clone(&self.device),
            what,
        });
    }
}

impl fmt::Debug for Trace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Trace").field(&self.inner).finish()
    }
}

impl Device for Trace {
    fn identity(&self) -> &Identity {
        self.inner.identity()
    }

    fn limits(&self) -> Limits {
        self.inner.limits()
    }

    fn fabric(&self) -> Fabric<'_> {
        match self.inner.fabric() {
            Fabric::Direct(_) => Fabric::Direct(self),
            other => other,
        }
    }

    fn drain(&self, sink: &mut dyn FnMut(Event)) -> Result<(), DeviceError> {
        let result = self.inner.drain(&mut |event| {
            self.log.tell(What::Reported(event.clone()));
            sink(event);
        });
        result.inspect_err(|error| self.log.tell(What::DrainFailed(error.clone())))
    }

    fn arm(&self) -> Result<(), DeviceError> {
        self.log.tell(What::Armed);
        self.inner.arm()
    }

    fn doorbell(&self) -> Doorbell<'_> {
        self.inner.doorbell()
    }
}

#[async_trait]
impl Direct for Trace {
    fn gid(&self) -> Gid {
        super::direct(&*self.inner).gid()
    }

    fn chid(&self) -> Chid {
        super::direct(&*self.inner).chid()
    }

    fn seid(&self) -> Option<Eid> {
        super::direct(&*self.inner).seid()
    }

    async fn reach(&self, peer: Gid) -> Result<(), DeviceError> {
        let result = super::direct(&*self.inner).reach(peer).await;
        self.log.tell(What::Reached {
            peer,
            result: result.clone(),
        });
        result
    }

    async fn register(&self, peer: Gid, len: usize) -> Result<Arc<dyn Dmb>, DeviceError> {
        let result = super::direct(&*self.inner).register(peer, len).await;
        let told = result.as_ref().map(|dmb| dmb.token()).map_err(Clone::clone);
        self.log.tell(What::Registered {
            peer,
            len,
            result: told,
        });
        Ok(Arc::new(TracedDmb {
            inner: result?,
            log: self.log.clone(),
        }))
    }

    fn move_data(
        &self,
        to: DmbToken,
        at: u32,
        data: &[IoSlice<'_>],
        signal: Signal,
    ) -> Result<(), SubmitError> {
        let result = super::direct(&*self.inner).move_data(to, at, data, signal);
        let len = data.iter().map(|slice| slice.len()).sum();
        self.log.tell(What::Moved {
            to,
            at,
            len,
            signal,
            result: result.clone(),
        });
        result
    }

    fn nocopy(&self) -> Option<&dyn Nocopy> {
        super::direct(&*self.inner)
            .nocopy()
            .map(|_| self as &dyn Nocopy)
    }

    fn peer_events(&self) -> Option<&dyn PeerEvents> {
        super::direct(&*self.inner)
            .peer_events()
            .map(|_| self as &dyn PeerEvents)
    }
}

#[async_trait]
impl Nocopy for Trace {
    async fn attach(&self, peer: Gid, token: DmbToken) -> Result<Arc<dyn Attachment>, DeviceError> {
        let result = super::nocopy(&*self.inner).attach(peer, token).await;
        let told = result.as_ref().map(|_| ()).map_err(Clone::clone);
        self.log.tell(What::Attached {
            peer,
            token,
            result: told,
        });
        Ok(Arc::new(TracedAttachment {
            inner: result?,
            token,
            log: self.log.clone(),
        }))
    }
}

impl PeerEvents for Trace {
    fn signal_event(&self, peer: Gid, event: PeerEvent) -> Result<(), SubmitError> {
        let result = super::peer_events(&*self.inner).signal_event(peer, event);
        self.log.tell(What::EventSent {
            peer,
            event,
            result: result.clone(),
        });
        result
    }
}

struct TracedDmb {
    inner: Arc<dyn Dmb>,
    log: Log,
}

impl Dmb for TracedDmb {
    fn token(&self) -> DmbToken {
        self.inner.token()
    }

    fn region(&self) -> &Region {
        self.inner.region()
    }

    fn arm(&self) {
        self.log.tell(What::BufferArmed(self.token()));
        self.inner.arm();
    }
}

impl Drop for TracedDmb {
    fn drop(&mut self) {
        self.log.tell(What::Unregistered(self.token()));
    }
}

impl fmt::Debug for TracedDmb {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}

struct TracedAttachment {
    inner: Arc<dyn Attachment>,
    token: DmbToken,
    log: Log,
}

impl Attachment for TracedAttachment {
    fn region(&self) -> &Region {
        self.inner.region()
    }

    fn signal(&self) -> Result<(), SubmitError> {
        let result = self.inner.signal();
        self.log.tell(What::Signalled {
            token: self.token,
            result: result.clone(),
        });
        result
    }
}

impl Drop for TracedAttachment {
    fn drop(&mut self) {
        self.log.tell(What::Detached(self.token));
    }
}

impl fmt::Debug for TracedAttachment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}
