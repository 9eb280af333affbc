//! Publishing to the peer: payload, and the two words of its CDC block.

use std::io::IoSlice;
use std::sync::{Arc, MutexGuard, PoisonError};

use smc_wire::cdc::{ConsumerWord, ProducerFlags, ProducerWord, StateFlags};
use smc_wire::cursor::{Cursor, Ring};
use smc_wire::types::DmbToken;

use super::super::rdma::RdmaConn;
use super::{Conn, len_u32, len_usize};
use crate::device::{Attachment, Signal, SubmitError};
use crate::error::{CloseReason, Error, Phase};
use crate::mem::sync::Ordering;
use crate::mem::{CopyMode, Element, HEADER_LEN};

/// The consumer word for the peer.
#[derive(Default)]
pub(super) struct Consumer {
    word: ConsumerWord,
    /// The device was busy for it, and the driver retries.
    is_pending: bool,
}

/// The peer's element, which this side writes.
pub(crate) enum PeerElement {
    /// Mapped: written by stores.
    Mapped {
        /// The memory.
        element: Element,
        /// Keeps it mapped and signals the peer.
        attachment: Arc<dyn Attachment>,
        /// Its payload part.
        ring: Ring,
    },
    /// Written by the device.
    Moved {
        /// The peer's token of it.
        token: DmbToken,
        /// Start of the element in the peer's buffer, in bytes.
        base: u32,
        /// Its payload part.
        ring: Ring,
    },
    /// SMC-R: written by links from the staging ring.
    Rdma(Arc<RdmaConn>),
    /// Unreachable since the end of set-up: only data that the peer has written can be read.
    Lost {
        /// Its payload part.
        ring: Ring,
    },
}

impl Conn {
    /// Copies payload into the peer's ring at `at`, in this mode where it is mapped; the caller has
    /// checked the space.
    pub(crate) fn write_payload(
        &self,
        mode: CopyMode,
        at: u32,
        data: &[u8],
    ) -> Result<(), SubmitError> {
        match &self.peer {
            PeerElement::Mapped { element, .. } => element
                .write_with(mode, len_usize(at), data)
                .map_err(|_| SubmitError::OutOfBounds),
            PeerElement::Moved { token, base, ring } => {
                let until_end = len_usize(ring.size().saturating_sub(at)).min(data.len());
                let (first, second) = data.split_at(until_end);
                let start = base.saturating_add(len_u32(HEADER_LEN));
                self.move_data(*token, start.saturating_add(at), first, Signal::No)?;
                if second.is_empty() {
                    return Ok(());
                }
                self.move_data(*token, start, second, Signal::No)
            }
            PeerElement::Rdma(_) => Err(NOT_DIRECT),
            PeerElement::Lost { .. } => Err(SubmitError::PeerGone),
        }
    }

    /// Publishes the producer cursor and signals the peer. Only the writing half does.
    pub(crate) fn publish_producer(&self, cursor: Cursor) {
        let word = ProducerWord { cursor }.to_ne();
        let result = match &self.peer {
            PeerElement::Mapped {
                element,
                attachment,
                ..
            } => {
                element.producer().store(word, Ordering::Release);
                attachment.signal()
            }
            PeerElement::Moved { token, base, .. } => {
                self.producer.store(word, Ordering::SeqCst);
                if self.is_deferred_to_driver() {
                    return self.publish_without_driver();
                }
                self.move_word(*token, *base, ProducerWord::OFFSET, word)
            }
            PeerElement::Rdma(_) => Err(NOT_DIRECT),
            PeerElement::Lost { .. } => Err(SubmitError::PeerGone),
        };
        match result {
            Ok(()) => {}
            Err(SubmitError::WouldBlock) => {
                self.producer_pending.store(1, Ordering::SeqCst);
                self.schedule_retry();
            }
            Err(error) => self.handle_submit_error(error),
        }
    }

    /// Publishes the consumer cursor and signals the peer.
    pub(crate) fn publish_consumer(&self, cursor: Cursor) {
        match &self.peer {
            PeerElement::Rdma(rdma) => rdma.publish_consumer(cursor),
            _ => self.publish(true, |word| word.cursor = cursor),
        }
    }

    /// Sets the flag for a writer that waits for any space, or clears both flags for one that
    /// waits; the next signal carries it.
    pub(crate) fn publish_blocked(&self, blocked: bool) {
        self.publish(false, |word| match blocked {
            true => word.producer_flags.insert(ProducerFlags::WRITER_BLOCKED),
            false => word.producer_flags.remove(BLOCKED_FLAGS),
        });
    }

    /// Requests an update: the writer waits for more space than the peer has published, however
    /// little was read since.
    pub(crate) fn request_update(&self) {
        self.publish(true, |word| word.producer_flags.insert(BLOCKED_FLAGS));
    }

    pub(super) fn publish_flags(&self, flags: StateFlags) {
        match &self.peer {
            PeerElement::Rdma(rdma) => rdma.publish_flags(flags),
            _ => self.publish(true, |word| word.state_flags.insert(flags)),
        }
    }

    /// Changes the consumer word and publishes it, not before the producer word.
    ///
    /// Both halves and closing do so, each for a part of the word, and the peer must never see an
    /// older word after a newer one: that takes a lock. It is held for one store, and only when the
    /// window is updated, the ring is full, or a direction ends.
    fn publish(&self, signal: bool, change: impl Fn(&mut ConsumerWord)) {
        let result = {
            let mut consumer = self.consumer();
            change(&mut consumer.word);
            if consumer.is_pending || self.producer_pending.load(Ordering::SeqCst) > 0 {
                consumer.is_pending = true;
                None
            } else {
                let result = self.store_consumer(consumer.word);
                consumer.is_pending = result == Err(SubmitError::WouldBlock);
                Some(result)
            }
        };
        let Some(result) = result else {
            return self.publish_without_driver();
        };
        let result = match (result, &self.peer) {
            (Ok(()), PeerElement::Mapped { attachment, .. }) if signal => attachment.signal(),
            (result, _) => result,
        };
        match result {
            Ok(()) => {}
            Err(SubmitError::WouldBlock) => {
                self.consumer().is_pending = true;
                self.schedule_retry();
            }
            Err(error) => self.handle_submit_error(error),
        }
    }

    fn store_consumer(&self, word: ConsumerWord) -> Result<(), SubmitError> {
        let word = word.to_ne();
        match &self.peer {
            PeerElement::Mapped { element, .. } => {
                element.consumer().store(word, Ordering::Release);
                Ok(())
            }
            PeerElement::Moved { token, base, .. } => {
                self.move_word(*token, *base, ConsumerWord::OFFSET, word)
            }
            PeerElement::Rdma(_) => Err(NOT_DIRECT),
            PeerElement::Lost { .. } => Err(SubmitError::PeerGone),
        }
    }

    fn move_word(
        &self,
        token: DmbToken,
        base: u32,
        at: usize,
        word: u64,
    ) -> Result<(), SubmitError> {
        self.move_data(
            token,
            base.saturating_add(len_u32(at)),
            &word.to_ne_bytes(),
            Signal::Yes,
        )
    }

    fn move_data(
        &self,
        token: DmbToken,
        at: u32,
        data: &[u8],
        signal: Signal,
    ) -> Result<(), SubmitError> {
        let Some(direct) = self.driver.device().fabric().direct() else {
            return Err(SubmitError::UnknownToken);
        };
        direct.move_data(token, at, &[IoSlice::new(data)], signal)
    }

    /// The device refused data: the connection is aborted, unless the peer ended it before.
    #[cold]
    pub(crate) fn handle_submit_error(&self, error: SubmitError) {
        self.handle_peer_flags();
        let cause = match error {
            SubmitError::Device(error) => Error::Device(*error),
            _ => Error::Closed(CloseReason::Aborted),
        };
        self.abort(cause);
    }

    /// The driver has an older producer word pending. It stores the newest one, and notices this
    /// one by the count.
    fn is_deferred_to_driver(&self) -> bool {
        let counted = |pending: u32| (pending > 0).then(|| pending.wrapping_add(1).max(1));
        self.producer_pending
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, counted)
            .is_ok()
    }

    pub(crate) fn has_pending(&self) -> bool {
        if let PeerElement::Rdma(rdma) = &self.peer {
            return rdma.has_pending();
        }
        self.producer_pending.load(Ordering::SeqCst) > 0 || self.consumer().is_pending
    }

    /// For the driver: retries the words that the device was busy for, in order, and wakes the
    /// writer.
    pub(crate) fn retry_pending(&self) -> RetryResult {
        let has_pending = self.has_pending();
        let retried = match self.try_publish_pending() {
            Err(SubmitError::WouldBlock) => RetryResult::Busy,
            Err(error) => {
                self.clear_pending();
                self.handle_submit_error(error);
                self.release_if_closed();
                RetryResult::Nothing
            }
            Ok(()) => {
                self.release_if_closed();
                self.driver.note_delivery();
                if has_pending {
                    RetryResult::Accepted
                } else {
                    RetryResult::Nothing
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
        self.clear_pending();
        self.release_if_closed();
        self.driver.note_delivery();
    }

    /// Number of retries of the driver at a busy device.
    pub(crate) fn retries(&self) -> u32 {
        self.retries.load(Ordering::Acquire)
    }

    fn clear_pending(&self) {
        self.producer_pending.store(0, Ordering::SeqCst);
        self.consumer().is_pending = false;
    }

    /// The device was busy for data, or for a word: the driver retries, and wakes the writer.
    pub(crate) fn schedule_retry(&self) {
        self.driver
            .schedule_retry(self.key(), self.producer.load(Ordering::SeqCst));
        self.publish_without_driver();
    }

    /// Publishes pending words if the driver has ended.
    pub(crate) fn publish_without_driver(&self) {
        if self.driver.is_stopped() && self.has_pending() {
            let _asked = self.retry_pending();
        }
    }

    fn try_publish_pending(&self) -> Result<(), SubmitError> {
        loop {
            let pending = self.producer_pending.load(Ordering::SeqCst);
            if pending == 0 {
                break;
            }
            let word = self.producer.load(Ordering::SeqCst);
            match &self.peer {
                PeerElement::Mapped { attachment, .. } => attachment.signal()?,
                PeerElement::Moved { token, base, .. } => {
                    self.move_word(*token, *base, ProducerWord::OFFSET, word)?;
                }
                PeerElement::Rdma(_) => return Err(NOT_DIRECT),
                PeerElement::Lost { .. } => return Err(SubmitError::PeerGone),
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
            let mut consumer = self.consumer();
            if !consumer.is_pending {
                return Ok(());
            }
            self.store_consumer(consumer.word)?;
            consumer.is_pending = false;
        }
        match &self.peer {
            PeerElement::Mapped { attachment, .. } => attachment
                .signal()
                .inspect_err(|_| self.consumer().is_pending = true),
            PeerElement::Moved { .. } | PeerElement::Rdma(_) | PeerElement::Lost { .. } => Ok(()),
        }
    }

    fn consumer(&self) -> MutexGuard<'_, Consumer> {
        self.consumer.lock().unwrap_or_else(PoisonError::into_inner)
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

/// Flags of a blocked writer: for any space, and for all free space.
const BLOCKED_FLAGS: ProducerFlags =
    ProducerFlags::WRITER_BLOCKED.union(ProducerFlags::UPDATE_REQUESTED);

/// SMC-R does not publish by words in the peer's memory.
const NOT_DIRECT: SubmitError = SubmitError::UnknownToken;
