//! The SMC-D side of a connection: its DMB, the peer's, and what is published there.

use std::io::IoSlice;
use std::sync::Arc;

use smc_wire::cdc::{ConsumerWord, ProducerFlags, ProducerWord, StateFlags};
use smc_wire::cursor::{Cursor, Ring};
use smc_wire::types::{DmbToken, Features, Gid};

use super::super::device_driver::DeviceDriver;
use super::super::stream::Mode;
use super::{Conn, Parts, PeerLocality, TransportConn, TransportOps, len_u32, len_usize};
use crate::device::{Attachment, Charge, DeviceError, Dmb, Signal, SubmitError};
use crate::error::{CloseReason, Error, PeerMisbehaved, Phase};
use crate::info::{Flags, PublishedWords};
use crate::mem::sync::{AtomicU32, AtomicU64, Ordering};
use crate::mem::{Element, HEADER_LEN};
use crate::mutex::Mutex;
use crate::negotiate::Credentials;
use crate::proto::conn::UPDATE_FLAGS;
use crate::proto::handshake::{DirectParams, Established, PeerAccess};

/// The two buffers of an SMC-D connection.
///
/// Two words are published to the peer: the producer word belongs to the writing half alone; the
/// consumer word is composed by both halves and by closing.
pub(crate) struct DirectConn {
    /// The local receive buffer.
    pub(crate) dmb: Arc<dyn Dmb>,
    pub(crate) peer: PeerDmb,
    /// The payload part of the peer's element.
    pub(crate) peer_ring: Ring,
    /// Bytes at its start that were sent with the PROPOSAL.
    pub(crate) sent_early: u32,
    /// The producer word that early data has left in the local element, in place of the peer.
    received_early: u64,
    allows_rewind: bool,
    /// The process at the other end of the handshake is known to own the peer's device, and not
    /// only to be of the same user.
    pub(crate) has_proven_owner: bool,
    /// The producer word that was published last, if a device moves it.
    producer: AtomicU64,
    /// Not zero: the device was busy, and the driver retries the producer word.
    producer_pending: AtomicU32,
    consumer: Mutex<Consumer>,
    /// For the peer's buffer.
    charge: Option<PeerCharge>,
}

/// The peer's element, which this side writes.
pub(crate) enum PeerDmb {
    /// Mapped: written by stores.
    Mapped {
        /// The memory.
        element: Element,
        /// Keeps it mapped and signals the peer.
        attachment: Arc<dyn Attachment>,
    },
    /// Written by the device.
    Moved {
        /// The driver of the device.
        driver: Arc<DeviceDriver>,
        /// The peer's device.
        peer: Gid,
        /// The peer's token of it.
        token: DmbToken,
        /// Start of the element in the peer's buffer, in bytes.
        base: u32,
    },
    /// Unreachable since the end of set-up: only data that the peer has written can be read.
    Lost,
}

/// The consumer word for the peer.
#[derive(Default)]
struct Consumer {
    word: ConsumerWord,
    /// The device was busy for it, and the driver retries.
    is_pending: bool,
}

/// The buffers that a set-up acquires for an SMC-D connection.
#[derive(Default)]
pub(crate) struct DirectBuffers {
    /// The peer's buffer, or why it could not be attached.
    pub(crate) attachment: Option<Result<Arc<dyn Attachment>, DeviceError>>,
    /// The local receive buffer.
    pub(crate) dmb: Option<Arc<dyn Dmb>>,
    /// The charge of the peer's buffer.
    pub(crate) charge: Charge,
    /// The producer word that early data has left in the receive buffer.
    received_early: u64,
}

impl DirectBuffers {
    /// Stores the first bytes of the stream, which were received with the PROPOSAL, as if the peer
    /// had written them. It writes behind them, and not before it has received ACCEPT.
    pub(crate) fn store_early(&mut self, bytes: &[u8]) -> Result<(), Error> {
        let too_long = |_| Error::Bug("early data is longer than the buffer");
        let dmb = self.dmb.as_ref();
        let dmb = dmb.ok_or(Error::Bug("early data without a place for it"))?;
        let element = Element::new(dmb.region().clone()).map_err(too_long)?;
        element.write(0, bytes).map_err(too_long)?;
        // It does not fill the ring.
        let producer = ProducerWord {
            cursor: Cursor {
                wrap: 0,
                count: len_u32(bytes.len()),
            },
        };
        self.received_early = producer.to_ne();
        let word = element.producer();
        word.store(self.received_early, Ordering::Release);
        Ok(())
    }
}

impl Parts {
    /// The parts of an SMC-D connection, and why it was lost. `process` is at the other end of the
    /// handshake.
    pub(crate) fn direct(
        driver: &Arc<DeviceDriver>,
        established: &Established,
        params: DirectParams,
        buffers: DirectBuffers,
        locality: PeerLocality,
        process: Option<Credentials>,
    ) -> Result<(Self, Option<Error>), Error> {
        let dmb = buffers
            .dmb
            .ok_or(Error::Bug("handshake ended without a buffer"))?;
        let local = dmb
            .region()
            .part(0, params.local_size.byte_len())
            .and_then(Element::new);
        let local =
            local.map_err(|_| DeviceError::Invalid("device registered too short a buffer"))?;
        let ring = params.peer_buffer.size.ring_d();
        let sent_early = len_u32(params.sent);
        let producer = ProducerWord {
            cursor: ring.advance(Cursor::START, sent_early),
        };
        if locality == PeerLocality::Unknown && established.group_features.intersects(NAMED_ONCE) {
            // A server has done so before it took early data.
            let _is_new = driver.claim_buffer(params.peer, params.peer_buffer.token);
        }
        let charge = PeerCharge::new(buffers.charge, driver, &params);
        let (peer, lost) = match &charge {
            Ok(_) => peer_dmb(driver, &params, buffers.attachment)?,
            Err(error) => (PeerDmb::Lost, Some(Error::Device(error.clone()))),
        };
        let mode = Mode::SmcD {
            version: established.version,
            release: established.release,
            // Also with a peer that has ended before its buffer was mapped.
            nocopy: params.access != PeerAccess::Moved,
            device: Arc::clone(&driver.name),
            chid: params.chid,
            peer: params.peer,
            eid: established.eid,
            vendor_features: established.vendor_features,
        };
        let direct = driver.device.operations().direct();
        let direct = Arc::new(DirectConn {
            dmb,
            peer,
            peer_ring: ring,
            sent_early,
            received_early: buffers.received_early,
            allows_rewind: direct.is_some_and(|direct| direct.allows_rewind()),
            has_proven_owner: process.is_some_and(|process| {
                let owner = direct.map(|direct| direct.process(params.peer));
                process.pid != 0 && owner == Some(Ok(Some(process)))
            }),
            producer: AtomicU64::new(producer.to_ne()),
            producer_pending: AtomicU32::new(0),
            consumer: Mutex::default(),
            charge: charge.ok(),
        });
        let parts = Self {
            local,
            local_ring: params.local_size.ring_d(),
            transport: TransportConn::Direct(direct),
            mode,
            driver: Arc::clone(driver),
            drivers: None,
            locality,
        };
        Ok((parts, lost))
    }
}

/// How the peer's buffer is written; if it is lost, why.
fn peer_dmb(
    driver: &Arc<DeviceDriver>,
    params: &DirectParams,
    attachment: Option<Result<Arc<dyn Attachment>, DeviceError>>,
) -> Result<(PeerDmb, Option<Error>), Error> {
    let buffer = &params.peer_buffer;
    let why = match (params.access, attachment) {
        (PeerAccess::Attached, Some(Ok(attachment))) => {
            let (at, len) = (buffer.offset(), buffer.size.byte_len());
            let element = attachment.region().part(at, len).and_then(Element::new);
            let element = element.map_err(|_| PeerMisbehaved::BadBuffer)?;
            let mapped = PeerDmb::Mapped {
                element,
                attachment,
            };
            return Ok((mapped, None));
        }
        (PeerAccess::Moved, _) => {
            let moved = PeerDmb::Moved {
                driver: Arc::clone(driver),
                peer: params.peer,
                token: buffer.token,
                base: len_u32(buffer.offset()),
            };
            return Ok((moved, None));
        }
        (_, Some(Ok(_) | Err(DeviceError::Unreachable { .. }))) => {
            Error::Closed(CloseReason::Aborted)
        }
        (_, Some(Err(error))) if error.is_peer_gone() => Error::Closed(CloseReason::Aborted),
        (_, Some(Err(error))) => Error::Device(error),
        (_, None) => Error::TimedOut(Phase::Device),
    };
    Ok((PeerDmb::Lost, Some(why)))
}

impl DirectConn {
    /// Publishes the producer cursor and signals the peer. Only the writing half does.
    #[inline(always)]
    pub(crate) fn publish_producer(&self, conn: &Conn, cursor: Cursor) {
        let word = ProducerWord { cursor }.to_ne();
        let result = match &self.peer {
            PeerDmb::Mapped {
                element,
                attachment,
            } => {
                element.producer().store(word, Ordering::Release);
                attachment.signal()
            }
            peer => {
                self.producer.store(word, Ordering::SeqCst);
                if self.defer_to_driver() {
                    return conn.publish_without_driver();
                }
                peer.store(ProducerWord::OFFSET, word, Signal::Yes)
            }
        };
        if let Err(error) = result {
            if error == SubmitError::WouldBlock {
                self.producer_pending.store(1, Ordering::SeqCst);
            }
            conn.handle_submit_error(error);
        }
    }

    /// Sets WRITER_BLOCKED, or clears it together with UPDATE_REQUESTED. Sends no signal: the next
    /// producer word does.
    pub(crate) fn publish_blocked(&self, conn: &Conn, blocked: bool) {
        self.publish(conn, Signal::No, |word| match blocked {
            true => word.producer_flags.insert(ProducerFlags::WRITER_BLOCKED),
            false => word.producer_flags.remove(BLOCKED_FLAGS),
        });
    }

    /// Requests an update: the writer waits for more space than the peer has published, however
    /// little was read since.
    pub(crate) fn request_update(&self, conn: &Conn) {
        self.publish(conn, Signal::Yes, |word| {
            word.producer_flags.insert(BLOCKED_FLAGS);
        });
    }

    /// Changes the consumer word and publishes it; while the producer word waits for a busy device,
    /// the consumer word waits behind it.
    ///
    /// Both halves and closing do so, each for a part of the word, and the peer must never see an
    /// older word after a newer one: that takes a lock. It is held for one store, and only when the
    /// window is updated, the ring is full, or a direction ends.
    fn publish(&self, conn: &Conn, signal: Signal, change: impl Fn(&mut ConsumerWord)) {
        let result = {
            let mut consumer = self.consumer.lock();
            change(&mut consumer.word);
            if consumer.is_pending || self.producer_pending.load(Ordering::SeqCst) > 0 {
                consumer.is_pending = true;
                None
            } else {
                let word = consumer.word.to_ne();
                let result = self.peer.store(ConsumerWord::OFFSET, word, signal);
                consumer.is_pending = result == Err(SubmitError::WouldBlock);
                Some(result)
            }
        };
        let Some(mut result) = result else {
            return conn.publish_without_driver();
        };
        if signal == Signal::Yes {
            result = result.and_then(|()| self.peer.signal());
        }
        if let Err(error) = result {
            if error == SubmitError::WouldBlock {
                self.consumer.lock().is_pending = true;
            }
            conn.handle_submit_error(error);
        }
    }

    /// Counts this producer word if the driver has an older one pending; it then stores the newest.
    /// Returns whether that is so.
    fn defer_to_driver(&self) -> bool {
        let counted = |pending: u32| (pending > 0).then(|| pending.wrapping_add(1).max(1));
        self.producer_pending
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, counted)
            .is_ok()
    }
}

impl TransportOps for DirectConn {
    fn published_words(&self) -> PublishedWords {
        let producer = match &self.peer {
            PeerDmb::Mapped { element, .. } => element.producer().load(Ordering::Acquire),
            PeerDmb::Moved { .. } | PeerDmb::Lost => self.producer.load(Ordering::SeqCst),
        };
        let word = self.consumer.lock().word;
        PublishedWords {
            producer: ProducerWord::from_ne(producer).cursor,
            consumer: word.cursor,
            flags: Flags {
                producer: word.producer_flags,
                state: word.state_flags,
            },
        }
    }

    fn peer_token(&self) -> Option<u64> {
        self.charge.as_ref().map(|charge| charge.token.0)
    }

    fn peer_ring(&self) -> Ring {
        self.peer_ring
    }

    fn allows_rewind(&self) -> bool {
        self.allows_rewind
    }

    fn arm(&self) {
        self.dmb.arm();
    }

    fn poll_device(&self, _driver: &DeviceDriver) -> bool {
        true
    }

    fn is_update_requested(&self, flags: ProducerFlags) -> bool {
        flags.intersects(UPDATE_FLAGS)
    }

    fn take_update_request(&self) -> bool {
        false
    }

    fn restore_update_request(&self) {}

    fn publish_consumer(&self, conn: &Conn, cursor: Cursor) {
        self.publish(conn, Signal::Yes, |word| word.cursor = cursor);
    }

    fn publish_flags(&self, conn: &Conn, flags: StateFlags) {
        self.publish(conn, Signal::Yes, |word| word.state_flags.insert(flags));
    }

    fn has_pending(&self) -> bool {
        self.producer_pending.load(Ordering::SeqCst) > 0 || self.consumer.lock().is_pending
    }

    fn has_received(&self, local: &Element) -> bool {
        local.producer().load(Ordering::Acquire) != self.received_early
            || local.consumer().load(Ordering::Acquire) != 0
    }

    fn publish_pending(&self) -> Result<(), SubmitError> {
        loop {
            let pending = self.producer_pending.load(Ordering::SeqCst);
            if pending == 0 {
                break;
            }
            match &self.peer {
                PeerDmb::Mapped { attachment, .. } => attachment.signal()?,
                peer => {
                    let word = self.producer.load(Ordering::SeqCst);
                    peer.store(ProducerWord::OFFSET, word, Signal::Yes)?;
                }
            }
            let none = self.producer_pending.compare_exchange(
                pending,
                0,
                Ordering::SeqCst,
                Ordering::SeqCst,
            );
            if none.is_ok() {
                break;
            }
        }
        {
            let mut consumer = self.consumer.lock();
            if !consumer.is_pending {
                return Ok(());
            }
            let word = consumer.word.to_ne();
            self.peer.store(ConsumerWord::OFFSET, word, Signal::Yes)?;
            consumer.is_pending = false;
        }
        let signalled = self.peer.signal();
        signalled.inspect_err(|_| self.consumer.lock().is_pending = true)
    }

    fn clear_pending(&self) {
        self.producer_pending.store(0, Ordering::SeqCst);
        self.consumer.lock().is_pending = false;
    }
}

impl PeerDmb {
    /// Has the device copy payload into the peer's ring at `at`; the caller has checked the space.
    pub(crate) fn move_payload(&self, ring: Ring, at: u32, data: &[u8]) -> Result<(), SubmitError> {
        let [until_end, _] = ring.spans(at, len_u32(data.len()));
        let (first, second) = data.split_at(len_usize(until_end.len));
        let start = len_u32(HEADER_LEN);
        self.move_data(start.saturating_add(at), first, Signal::No)?;
        if second.is_empty() {
            return Ok(());
        }
        self.move_data(start, second, Signal::No)
    }

    /// Stores a word of the CDC block. With this signal, a device that moves it signals the peer as
    /// well; a mapped element needs [`PeerDmb::signal`] behind it.
    fn store(&self, at: usize, word: u64, signal: Signal) -> Result<(), SubmitError> {
        match self {
            Self::Mapped { element, .. } => {
                element.word(at).store(word, Ordering::Release);
                Ok(())
            }
            _ => self.move_data(len_u32(at), &word.to_ne_bytes(), signal),
        }
    }

    /// Signals the peer after [`PeerDmb::store`], which has done so if a device moves the word.
    fn signal(&self) -> Result<(), SubmitError> {
        match self {
            Self::Mapped { attachment, .. } => attachment.signal(),
            Self::Moved { .. } | Self::Lost => Ok(()),
        }
    }

    /// Has the device write to the element, which is not mapped.
    fn move_data(&self, at: u32, data: &[u8], signal: Signal) -> Result<(), SubmitError> {
        let Self::Moved {
            driver,
            peer,
            token,
            base,
        } = self
        else {
            return Err(SubmitError::PeerGone);
        };
        let direct = driver.device.operations().direct();
        let direct = direct.ok_or(SubmitError::UnknownToken)?;
        direct.move_data(
            *peer,
            *token,
            base.saturating_add(at),
            &[IoSlice::new(data)],
            signal,
        )
    }
}

/// Retries at a busy device.
impl Conn {
    /// The device refused data or a word. If it is busy, the driver retries, and wakes the writer;
    /// otherwise the connection is aborted, unless the peer ended it before: as reset if the peer's
    /// buffer is gone and its device is not (docs/spec/data-path.md#smc-d).
    #[cold]
    pub(crate) fn handle_submit_error(&self, error: SubmitError) {
        let cause = match error {
            SubmitError::WouldBlock => return self.schedule_retry(),
            SubmitError::Device(error) => Error::Device(*error),
            SubmitError::UnknownToken | SubmitError::OutOfBounds => {
                Error::Closed(CloseReason::Reset)
            }
            _ => Error::Closed(CloseReason::Aborted),
        };
        self.handle_peer_flags();
        self.abort(cause);
    }

    fn schedule_retry(&self) {
        if let TransportConn::Direct(direct) = &self.transport {
            let written = direct.producer.load(Ordering::SeqCst);
            self.driver.schedule_retry(self.key(), written);
        }
        self.publish_without_driver();
    }

    /// For the driver: retries the words that the device was busy for, in order, and wakes the
    /// writer.
    pub(crate) fn retry_pending(&self) -> RetryResult {
        let has_pending = self.ops().has_pending();
        let retried = match self.ops().publish_pending() {
            Err(SubmitError::WouldBlock) => RetryResult::Busy,
            Err(error) => {
                self.ops().clear_pending();
                self.handle_submit_error(error);
                self.release_if_closed();
                RetryResult::Nothing
            }
            Ok(()) => {
                self.release_if_closed();
                self.driver.groups.notify_ended();
                match has_pending {
                    true => RetryResult::Accepted,
                    false => RetryResult::Nothing,
                }
            }
        };
        // Writers may wait for device capacity, or until no word is pending.
        self.retries.fetch_add(1, Ordering::Release);
        self.writer.wake();
        self.changed.notify(usize::MAX);
        retried
    }

    /// For the driver: the device stayed busy until the timeout. The connection is aborted, and
    /// only the abort flag is retried.
    pub(crate) fn handle_busy_timeout(&self) {
        self.abort_unreachable(Error::TimedOut(Phase::Device));
    }

    /// For the driver: gives up publishing the abort flag.
    pub(crate) fn drop_pending(&self) {
        self.ops().clear_pending();
        self.release_if_closed();
        self.driver.groups.notify_ended();
    }

    /// Number of retries of the driver at a busy device.
    pub(crate) fn retries(&self) -> u32 {
        self.retries.load(Ordering::Acquire)
    }

    /// Publishes pending words if the driver has ended.
    pub(crate) fn publish_without_driver(&self) {
        if self.driver.is_stopped() && self.ops().has_pending() {
            let _result = self.retry_pending();
        }
    }
}

/// The result of a retry at a busy device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RetryResult {
    /// It accepted all pending words.
    Accepted,
    /// It is still busy.
    Busy,
    /// No word was pending; the writer may have data.
    Nothing,
}

/// A PROPOSAL may be repeated in a link group with one of these, so that its buffer is remembered.
/// Only another process that sees the messages can do so: those on side channels and UNIX sockets
/// are not seen.
const NAMED_ONCE: Features = Features::EARLY_DATA.union(Features::FAST_OPEN);

/// Flags of a blocked writer: for any space, and for all free space.
const BLOCKED_FLAGS: ProducerFlags =
    ProducerFlags::WRITER_BLOCKED.union(ProducerFlags::UPDATE_REQUESTED);

/// The charge of the peer's buffer of an SMC-D connection: the system charges its pages to the
/// process that writes them first.
///
/// When this is dropped, the charge stays until the peer has released the buffer.
struct PeerCharge {
    /// Taken when dropped.
    charge: Option<Charge>,
    driver: Arc<DeviceDriver>,
    peer: Gid,
    token: DmbToken,
}

impl PeerCharge {
    /// For the peer's buffer, whose length is known by now. A client's is not longer than the local
    /// one, for which memory was checked.
    fn new(
        mut charge: Charge,
        driver: &Arc<DeviceDriver>,
        params: &DirectParams,
    ) -> Result<Self, DeviceError> {
        charge.resize(params.peer_buffer.size.byte_len())?;
        Ok(Self {
            charge: Some(charge),
            driver: Arc::clone(driver),
            peer: params.peer,
            token: params.peer_buffer.token,
        })
    }
}

impl Drop for PeerCharge {
    fn drop(&mut self) {
        let (driver, peer, token) = (Arc::downgrade(&self.driver), self.peer, self.token);
        let is_registered = move || {
            let driver = driver.upgrade();
            driver.is_some_and(|driver| {
                let direct = driver.device.operations().direct();
                direct.is_some_and(|direct| direct.is_registered(peer, token))
            })
        };
        if let Some(charge) = self.charge.take() {
            let buffer = (Arc::as_ptr(&self.driver).addr(), token);
            charge.defer_while(buffer, is_registered);
        }
    }
}
