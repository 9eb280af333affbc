//! The memory of a link for its messages, in one registration:
//!
//! ```text
//! | heads: 64 bytes per receive | spills: 16 of 8 KiB | short sends | long sends: 16 of 8 KiB |
//!
//! | receives of 8 KiB, if they are contiguous          | short sends | long sends: 16 of 8 KiB |
//! ```
//!
//! A receive has the first 44 bytes of a message, all that there usually is, in its head, and the
//! rest in one of the spills. Receives are used in the order in which they were posted, and each
//! is posted again right after it was used, so 16 long messages in a row do not overwrite each
//! other. The protocol allows one. Devices whose receives take a single span have contiguous ones
//! instead, each as long as the longest message.

use std::sync::Arc;

use sideway::ibverbs::AccessFlags;
use sideway::ibverbs::protection_domain::ProtectionDomain;
use smc_core::device::{DeviceError, Inbound, LinkFailure, MESSAGE_MAX, SHORT_LEN, SubmitError};
use smc_core::mem::Region;

use crate::device::Depths;
use crate::memory::not_registered;
use crate::verbs::{self, Registered};

/// The memory of a link for its messages.
#[derive(Debug)]
pub(crate) struct Buffers {
    memory: Registered,
    is_contiguous: bool,
    pub(crate) receives: u32,
    sends: u32,
}

impl Buffers {
    pub(crate) fn new(domain: &Arc<ProtectionDomain>, depths: Depths) -> Result<Self, DeviceError> {
        let len = buffers_len(depths);
        // It has its pages for itself: they may be kept out of child processes.
        let region = Region::try_anonymous(usize::try_from(len).unwrap_or(usize::MAX))?;
        let memory = Registered::new(domain, region, AccessFlags::LocalWrite)
            .map_err(|error| not_registered(&error))?;
        Ok(Self {
            memory,
            is_contiguous: depths.is_contiguous,
            receives: depths.receives,
            sends: depths.sends,
        })
    }

    /// Where a message goes that takes this receive.
    pub(crate) fn receive(&self, index: u32) -> [verbs::Span; 2] {
        if self.is_contiguous {
            let whole = self.memory.span(self.head_at(index), MESSAGE_MAX as u32);
            return [whole, verbs::Span::default()];
        }
        let head = self.memory.span(self.head_at(index), SHORT_LEN as u32);
        let rest = (MESSAGE_MAX - SHORT_LEN) as u32;
        [head, self.memory.span(self.spill_at(index), rest)]
    }

    /// The message that took a receive.
    pub(crate) fn message(&self, index: u32, len: u32) -> Result<Inbound, LinkFailure> {
        const STRAY: LinkFailure = LinkFailure::QueuePair("a completion makes no sense");
        let len = len as usize;
        if index >= self.receives || len > MESSAGE_MAX {
            return Err(STRAY);
        }
        let region = self.memory.region();
        let copy = |at: u64, to: &mut [u8]| region.copy_out(at as usize, to).map_err(|_| STRAY);
        if len <= SHORT_LEN {
            let mut short = [0; SHORT_LEN];
            copy(self.head_at(index), &mut short[..len])?;
            return Ok(Inbound::new(&short[..len]));
        }
        let mut long = vec![0; len].into_boxed_slice();
        let (head, rest) = long.split_at_mut(SHORT_LEN);
        copy(self.head_at(index), head)?;
        copy(self.rest_at(index), rest)?;
        Ok(Inbound::Long(long))
    }

    pub(crate) fn short(&self, number: u32, message: &[u8]) -> Result<verbs::Span, SubmitError> {
        let at = self.shorts_at() + u64::from(number % self.sends) * SLOT;
        self.outgoing(at, message)
    }

    pub(crate) fn long(&self, number: u32, message: &[u8]) -> Result<verbs::Span, SubmitError> {
        let at = self.longs_at() + u64::from(number % LONGS) * LONG;
        self.outgoing(at, message)
    }

    fn outgoing(&self, at: u64, message: &[u8]) -> Result<verbs::Span, SubmitError> {
        let region = self.memory.region();
        region
            .copy_in(at as usize, message)
            .map_err(|_| SubmitError::OutOfBounds)?;
        Ok(self.memory.span(at, message.len() as u32))
    }

    fn head_at(&self, index: u32) -> u64 {
        u64::from(index) * if self.is_contiguous { LONG } else { SLOT }
    }

    /// What is behind the head in a long message.
    fn rest_at(&self, index: u32) -> u64 {
        match self.is_contiguous {
            true => self.head_at(index) + SHORT_LEN as u64,
            false => self.spill_at(index),
        }
    }

    fn spill_at(&self, index: u32) -> u64 {
        u64::from(self.receives) * SLOT + u64::from(index % LONGS) * LONG
    }

    fn shorts_at(&self) -> u64 {
        receives_len(self.is_contiguous, self.receives)
    }

    fn longs_at(&self) -> u64 {
        self.shorts_at() + u64::from(self.sends) * SLOT
    }
}

/// Bytes that the messages of a link take.
pub(crate) fn buffers_len(depths: Depths) -> u64 {
    let receives = receives_len(depths.is_contiguous, depths.receives);
    receives + u64::from(depths.sends) * SLOT + u64::from(LONGS) * LONG
}

fn receives_len(is_contiguous: bool, count: u32) -> u64 {
    match is_contiguous {
        true => u64::from(count) * LONG,
        false => u64::from(count) * SLOT + u64::from(LONGS) * LONG,
    }
}

/// Long messages, in each direction, that can be under way: as many as posts may be outstanding.
pub(crate) const LONGS: u32 = smc_core::device::SENDS_MAX as u32;

/// A buffer for a short message: 44 bytes in a cache line.
const SLOT: u64 = 64;

/// A buffer for a long one.
const LONG: u64 = MESSAGE_MAX as u64;
