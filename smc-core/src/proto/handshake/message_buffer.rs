//! The bytes of a CLC message that is arriving.

use smc_wire::clc::{ClcType, Frame, HEADER_LEN};

use crate::error::{Error, PeerMisbehaved};

/// Collects the bytes of one message and never takes a byte behind it.
#[derive(Debug, Default)]
pub(super) struct MessageBuffer {
    bytes_kept: Vec<u8>,
    frame: Option<Frame>,
    /// Bytes of the message that were taken, kept or not.
    taken: usize,
}

impl MessageBuffer {
    /// Missing bytes of the message, or of its header while its length is not known.
    pub(super) fn bytes_needed(&self) -> usize {
        let end = self.frame.map_or(HEADER_LEN, |frame| frame.length());
        end.saturating_sub(self.taken)
    }

    /// Takes bytes up to the end of the message. Returns their number, and the message when it is
    /// complete.
    pub(super) fn take(
        &mut self,
        mut bytes: &[u8],
        expected: ClcType,
    ) -> (usize, Result<Option<Vec<u8>>, Error>) {
        let before = bytes.len();
        let result = loop {
            let (now, rest) = bytes
                .split_at_checked(self.bytes_needed())
                .unwrap_or((bytes, &[]));
            bytes = rest;
            self.store(now);
            match self.frame {
                Some(_) if self.bytes_needed() == 0 => {
                    break Ok(Some(std::mem::take(self).bytes_kept));
                }
                Some(_) => break Ok(None),
                None => match self.parse_header(expected) {
                    Ok(true) => {}
                    Ok(false) => break Ok(None),
                    Err(error) => break Err(error),
                },
            }
        };
        (before.saturating_sub(bytes.len()), result)
    }

    /// Stores the known part of the message: unknown extensions at the end of a message are
    /// dropped.
    fn store(&mut self, bytes: &[u8]) {
        let keep = self.frame.map_or(HEADER_LEN, |frame| frame.keep());
        let space = keep.saturating_sub(self.bytes_kept.len());
        self.bytes_kept
            .extend_from_slice(bytes.get(..space).unwrap_or(bytes));
        self.taken = self.taken.saturating_add(bytes.len());
    }

    /// Parses the length once the header is complete. Invalid bytes are rejected at the first one.
    fn parse_header(&mut self, expected: ClcType) -> Result<bool, Error> {
        self.frame = Frame::peek(&self.bytes_kept)?;
        match self.frame.map(|frame| frame.header().kind) {
            Some(kind) if kind == expected || kind == ClcType::Decline => Ok(true),
            Some(_) => Err(PeerMisbehaved::UnexpectedMessage.into()),
            None => Ok(false),
        }
    }
}
