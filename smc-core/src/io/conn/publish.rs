//! What we say to the peer: payload, and the two words of its CDC block.

use std::io::IoSlice;
use std::sync::{Arc, MutexGuard, PoisonError};

use smc_wire::cdc::{ConsumerWord, ProducerFlags, ProducerWord, StateFlags};
use smc_wire::cursor::{Cursor, Ring};
use smc_wire::types::DmbToken;

use super::super::rdma::Staged;
use super::{Conn, len_u32, len_usize};
use crate::device::{Attachment, Signal, SubmitError};
use crate::error::{CloseReason, Error, Phase};
use crate::mem::sync::Ordering;
use crate::mem::{By, Element, HEADER_LEN};

/// What the peer should see as consumer word.
#[derive(Default)]
pub(super) struct Consumer {
    word: ConsumerWord,
    /// The device was too busy for it, and the driver tries again.
    is_owed: bool,
}

/// The peer's element, which we write.
pub(crate) enum PeerElement {
    /// Mapped: we write it ourselves.
    Mapped {
        /// The memory.
        element: Element,
        /// Keeps it mapped and tells the peer.
        attachment: Arc<dyn Attachment>,
        /// Its payload part.
        ring: Ring,
    },
    /// The device moves data there.
    Moved {
        /// What the peer calls it.
        token: DmbToken,
        /// Start of the element in the peer's buffer, in bytes.
        base: u32,
        /// Its payload part.
        ring: Ring,
    },
    /// SMC-R: links write there what was staged.
    Staged(Arc<Staged>),
    /// It could not be reached any more when set-up ended: there is only what the peer has written.
    Lost {
        /// Its payload part.
        ring: Ring,
    },
}

impl Conn {
    /// Copies payload into the peer's ring at `at`, by this way where it is mapped; the caller knows
    /// that it fits.
    pub(crate) fn put(&self, by: By, at: u32, data: &[u8]) -> Result<(), SubmitError> {
        match &self.peer {
            PeerElement::Mapped { element, .. } => element
                .write_by(by, len_usize(at), data)
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
            PeerElement::Staged(_) => Err(NOT_HERE),
            PeerElement::Lost { .. } => Err(SubmitError::PeerGone),
        }
    }

    /// Shows the peer how far we have written, and tells it. Only the writing half does.
    pub(crate) fn say_producer(&self, cursor: Cursor) {
        let word = ProducerWord { cursor }.to_ne();
        let said = match &self.peer {
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
                if self.is_left_to_driver() {
                    return self.say_without_driver();
                }
                self.move_word(*token, *base, ProducerWord::OFFSET, word)
            }
            PeerElement::Staged(_) => Err(NOT_HERE),
            PeerElement::Lost { .. } => Err(SubmitError::PeerGone),
        };
        match said {
            Ok(()) => {}
            Err(SubmitError::WouldBlock) => {
                self.producer_owed.store(1, Ordering::SeqCst);
                self.ask_again();
            }
            Err(error) => self.submit_failed(error),
        }
    }

    /// Shows the peer how far we have read, and tells it.
    pub(crate) fn say_consumer(&self, cursor: Cursor) {
        match &self.peer {
            PeerElement::Staged(staged) => staged.say_consumer(cursor),
            _ => self.say(true, |word| word.cursor = cursor),
        }
    }

    /// Sets the flag for a writer that waits for any space, or clears both flags for one that
    /// waits; the next signal tells of it.
    pub(crate) fn say_blocked(&self, blocked: bool) {
        self.say(false, |word| match blocked {
            true => word.producer_flags.insert(ProducerFlags::WRITER_BLOCKED),
            false => word.producer_flags.remove(WAITS),
        });
    }

    /// Tells the peer that the writer waits for more space than it knows of: the peer shows all
    /// that it has read, however little that is.
    pub(crate) fn ask_for_space(&self) {
        self.say(true, |word| word.producer_flags.insert(WAITS));
    }

    pub(super) fn say_flags(&self, flags: StateFlags) {
        match &self.peer {
            PeerElement::Staged(staged) => staged.say_flags(flags),
            _ => self.say(true, |word| word.state_flags.insert(flags)),
        }
    }

    /// Changes the consumer word and stores it at the peer, not before the producer word.
    ///
    /// Both halves and closing do so, each for a part of the word, and the peer must never see an
    /// older word after a newer one: that takes a lock. It is held for one store, and only when
    /// the window is updated, the ring is full, or something ends.
    fn say(&self, signal: bool, change: impl Fn(&mut ConsumerWord)) {
        let said = {
            let mut consumer = self.consumer();
            change(&mut consumer.word);
            if consumer.is_owed || self.producer_owed.load(Ordering::SeqCst) > 0 {
                consumer.is_owed = true;
                None
            } else {
                let said = self.store_consumer(consumer.word);
                consumer.is_owed = said == Err(SubmitError::WouldBlock);
                Some(said)
            }
        };
        let Some(said) = said else {
            return self.say_without_driver();
        };
        let said = match (said, &self.peer) {
            (Ok(()), PeerElement::Mapped { attachment, .. }) if signal => attachment.signal(),
            (said, _) => said,
        };
        match said {
            Ok(()) => {}
            Err(SubmitError::WouldBlock) => {
                self.consumer().is_owed = true;
                self.ask_again();
            }
            Err(error) => self.submit_failed(error),
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
            PeerElement::Staged(_) => Err(NOT_HERE),
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
        let Some(direct) = self.slot.device().fabric().direct() else {
            return Err(SubmitError::UnknownToken);
        };
        direct.move_data(token, at, &[IoSlice::new(data)], signal)
    }

    /// The device would not take data: the connection is over, unless the peer ended it before.
    #[cold]
    pub(crate) fn submit_failed(&self, error: SubmitError) {
        self.note_peer();
        let cause = match error {
            SubmitError::Device(error) => Error::Device(*error),
            _ => Error::Closed(CloseReason::Aborted),
        };
        self.kill(cause);
    }

    /// The driver owes the peer an older producer word. It stores the newest it finds, and is told
    /// of this one by the count.
    fn is_left_to_driver(&self) -> bool {
        let counted = |owed: u32| (owed > 0).then(|| owed.wrapping_add(1).max(1));
        self.producer_owed
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, counted)
            .is_ok()
    }

    pub(crate) fn is_owing(&self) -> bool {
        if let PeerElement::Staged(staged) = &self.peer {
            return staged.is_owing();
        }
        self.producer_owed.load(Ordering::SeqCst) > 0 || self.consumer().is_owed
    }

    /// For the driver: stores the words that the device was too busy for, in their order, and
    /// lets the writer try again.
    pub(crate) fn say_again(&self) -> Asked {
        let is_owing = self.is_owing();
        let asked = match self.try_say_again() {
            Err(SubmitError::WouldBlock) => Asked::Refused,
            Err(error) => {
                self.owe_nothing();
                self.submit_failed(error);
                self.finish_if_over();
                Asked::Nothing
            }
            Ok(()) => {
                self.finish_if_over();
                self.slot.note_delivery();
                if is_owing {
                    Asked::Taken
                } else {
                    Asked::Nothing
                }
            }
        };
        // Writers may wait for a place of their own, or until nothing is owed.
        self.times_asked.fetch_add(1, Ordering::Release);
        self.writer.wake();
        self.changed.notify(usize::MAX);
        asked
    }

    /// For the driver: the device had its time to take what it is owed, or data of the writer. The
    /// connection is over, and the device is owed the last word.
    pub(crate) fn give_up(&self) {
        self.lose(Error::TimedOut(Phase::Device));
    }

    /// For the driver: the peer cannot be told any more that the connection is over.
    pub(crate) fn forget_last_word(&self) {
        self.owe_nothing();
        self.finish_if_over();
        self.slot.note_delivery();
    }

    /// How often the driver has asked a busy device again.
    pub(crate) fn times_asked(&self) -> u32 {
        self.times_asked.load(Ordering::Acquire)
    }

    fn owe_nothing(&self) {
        self.producer_owed.store(0, Ordering::SeqCst);
        self.consumer().is_owed = false;
    }

    /// The device was too busy for data, or for a word: the driver asks it again, and wakes the
    /// writer.
    pub(crate) fn ask_again(&self) {
        self.slot
            .owe(self.key(), self.producer.load(Ordering::SeqCst));
        self.say_without_driver();
    }

    /// Says what is owed if the driver has ended and does not.
    pub(crate) fn say_without_driver(&self) {
        if self.slot.is_abandoned() && self.is_owing() {
            let _asked = self.say_again();
        }
    }

    fn try_say_again(&self) -> Result<(), SubmitError> {
        loop {
            let owed = self.producer_owed.load(Ordering::SeqCst);
            if owed == 0 {
                break;
            }
            let word = self.producer.load(Ordering::SeqCst);
            match &self.peer {
                PeerElement::Mapped { attachment, .. } => attachment.signal()?,
                PeerElement::Moved { token, base, .. } => {
                    self.move_word(*token, *base, ProducerWord::OFFSET, word)?;
                }
                PeerElement::Staged(_) => return Err(NOT_HERE),
                PeerElement::Lost { .. } => return Err(SubmitError::PeerGone),
            }
            let none =
                self.producer_owed
                    .compare_exchange(owed, 0, Ordering::SeqCst, Ordering::SeqCst);
            if none.is_ok() {
                break;
            }
        }
        {
            let mut consumer = self.consumer();
            if !consumer.is_owed {
                return Ok(());
            }
            self.store_consumer(consumer.word)?;
            consumer.is_owed = false;
        }
        match &self.peer {
            PeerElement::Mapped { attachment, .. } => attachment
                .signal()
                .inspect_err(|_| self.consumer().is_owed = true),
            PeerElement::Moved { .. } | PeerElement::Staged(_) | PeerElement::Lost { .. } => Ok(()),
        }
    }

    fn consumer(&self) -> MutexGuard<'_, Consumer> {
        self.consumer.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What came of asking a busy device again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Asked {
    /// It has taken all words that it was owed.
    Taken,
    /// It is as busy as before.
    Refused,
    /// There was no word for it; there may be data, which the writer has.
    Nothing,
}

/// Flags of a writer that waits: for any space, and for all that there is.
const WAITS: ProducerFlags = ProducerFlags::WRITER_BLOCKED.union(ProducerFlags::UPDATE_REQUESTED);

/// What is staged does not go through words in the peer's memory.
const NOT_HERE: SubmitError = SubmitError::UnknownToken;
