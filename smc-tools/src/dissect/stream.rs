//! Reassembly of one direction of a TCP connection.
//!
//! Knows sequence numbers, and nothing of SMC. Segments may come in any order, repeated and
//! overlapping; sequence numbers wrap; the capture may have begun late, lack segments, or have
//! segments whose end was not captured. What is held back is bounded in bytes and pieces.

use std::collections::BTreeMap;

use super::message::Mark;

/// The bytes of one direction, as far as they are known.
///
/// Positions count bytes from the first one seen and never wrap.
#[derive(Debug, Default)]
pub(super) struct Stream {
    /// Sequence number and position of the start of `front`; unknown before the first segment.
    start: Option<(u32, i64)>,
    /// Whether earlier bytes may still turn up: no SYN was seen and nothing was consumed.
    floating: bool,
    /// Known bytes without a gap: the first `consumed` of them are of messages that were taken.
    known: Vec<u8>,
    consumed: usize,
    /// Up to this position bytes were on the wire, but not captured.
    lost_until: Option<i64>,
    /// Segments behind a gap, by position.
    later: BTreeMap<i64, Piece>,
    /// Bytes in `later`.
    held: usize,
    /// The frame that contributed to `front` last.
    newest: Mark,
}

/// A segment's payload.
#[derive(Debug)]
struct Piece {
    frame: Mark,
    bytes: Vec<u8>,
    missing: usize,
}

/// Why a segment was not taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Full;

impl Stream {
    /// The SYN of this direction: its data begins behind `sequence`.
    pub(super) fn anchor(&mut self, sequence: u32) {
        let first = sequence.wrapping_add(1);
        match self.start {
            None => self.start = Some((first, 0)),
            // Data that was captured before the SYN.
            Some(_) => {
                let at = self.position(first);
                self.rebase(at, first);
            }
        }
        self.floating = false;
        self.settle();
    }

    /// Whether a SYN with this sequence number belongs to the bytes seen so far.
    pub(super) fn fits(&self, sequence: u32) -> bool {
        match self.start {
            None => true,
            Some((start, _)) if self.floating => {
                start.wrapping_sub(sequence) < WINDOW || sequence.wrapping_sub(start) < WINDOW
            }
            Some(_) => false,
        }
    }

    /// Takes the payload of a segment, of which `missing` bytes at its end were not captured.
    ///
    /// # Errors
    ///
    /// [`Full`] when there is a gap and too much behind it.
    pub(super) fn insert(
        &mut self,
        frame: Mark,
        sequence: u32,
        bytes: &[u8],
        missing: usize,
    ) -> Result<(), Full> {
        if bytes.is_empty() && missing == 0 {
            return Ok(());
        }
        if self.start.is_none() {
            self.start = Some((sequence, 0));
            self.floating = true;
        }
        let at = self.position(sequence);
        if self.floating && at < self.origin() {
            self.rebase(at, sequence);
        }
        let end = at
            .saturating_add(length(bytes.len()))
            .saturating_add(length(missing));
        if end <= self.end() {
            return Ok(());
        }
        if self.held.saturating_add(bytes.len()) > MAX_HELD || self.later.len() >= MAX_PIECES {
            return Err(Full);
        }
        self.hold(
            at,
            Piece {
                frame,
                bytes: bytes.to_vec(),
                missing,
            },
        );
        self.settle();
        Ok(())
    }

    /// The known bytes in front, without a gap.
    pub(super) fn front(&self) -> &[u8] {
        self.known.get(self.consumed..).unwrap_or_default()
    }

    /// The frame that contributed to the front last.
    pub(super) fn newest(&self) -> Mark {
        self.newest
    }

    /// Whether earlier bytes than the front may still turn up.
    pub(super) fn is_floating(&self) -> bool {
        self.floating
    }

    /// Bytes behind the front that will not come, because their frame was cut.
    pub(super) fn lost(&self) -> usize {
        let Some(lost_until) = self.lost_until else {
            return 0;
        };
        let known = self.later.keys().next().copied().unwrap_or(i64::MAX);
        usize::try_from(lost_until.min(known).saturating_sub(self.end())).unwrap_or(0)
    }

    /// Bytes between the front and the next segment, if there is one behind a gap.
    pub(super) fn gap(&self) -> Option<usize> {
        let next = *self.later.keys().next()?;
        Some(usize::try_from(next.saturating_sub(self.end())).unwrap_or(0))
    }

    /// Gives up `count` bytes, known or not, from the start of the front.
    pub(super) fn advance(&mut self, count: usize) {
        let Some((sequence, position)) = self.start else {
            return;
        };
        self.floating = false;
        self.consumed += count.min(self.front().len());
        // Not each time, as a capture may consist of the shortest messages.
        if self.consumed >= self.known.len() / 2 {
            self.known.drain(..self.consumed);
            self.consumed = 0;
        }
        // Sequence numbers are modulo 2^32, so the low bits of the count are what matters.
        let step = (count & 0xFFFF_FFFF) as u32;
        self.start = Some((
            sequence.wrapping_add(step),
            position.saturating_add(length(count)),
        ));
        self.settle();
    }

    fn origin(&self) -> i64 {
        self.start.map_or(0, |(_, position)| position)
    }

    fn end(&self) -> i64 {
        self.origin().saturating_add(length(self.front().len()))
    }

    /// The position of a sequence number: within 2 GiB of the front, as TCP has it.
    fn position(&self, sequence: u32) -> i64 {
        let Some((start, position)) = self.start else {
            return 0;
        };
        position.saturating_add(i64::from(sequence.wrapping_sub(start) as i32))
    }

    /// Lets the stream begin at another position; the front becomes a piece like the others.
    fn rebase(&mut self, position: i64, sequence: u32) {
        if !self.front().is_empty() {
            let bytes = self.front().to_vec();
            self.known.clear();
            self.consumed = 0;
            self.hold(
                self.origin(),
                Piece {
                    frame: self.newest,
                    bytes,
                    missing: 0,
                },
            );
        }
        self.start = Some((sequence, position));
    }

    /// Keeps a piece until the gap before it is filled; of two at one position the longer.
    fn hold(&mut self, at: i64, piece: Piece) {
        let size = |piece: &Piece| (piece.bytes.len(), piece.missing);
        if self
            .later
            .get(&at)
            .is_some_and(|old| size(old) >= size(&piece))
        {
            return;
        }
        self.held = self.held.saturating_add(piece.bytes.len());
        if let Some(old) = self.later.insert(at, piece) {
            self.held = self.held.saturating_sub(old.bytes.len());
        }
    }

    /// Bytes of memory that are held, roughly.
    pub(super) fn memory(&self) -> usize {
        let pieces = self.later.len().saturating_mul(PIECE_LEN);
        let bytes = self.known.capacity().saturating_add(self.held);
        bytes.saturating_add(pieces)
    }

    /// Moves to the front whatever has no gap before it any more.
    fn settle(&mut self) {
        while let Some(&at) = self.later.keys().next() {
            let end = self.end();
            if at > end {
                break;
            }
            let Some(piece) = self.later.remove(&at) else {
                break;
            };
            self.held = self.held.saturating_sub(piece.bytes.len());
            let known = usize::try_from(end.saturating_sub(at)).unwrap_or(usize::MAX);
            if let Some(fresh) = piece.bytes.get(known..) {
                if !fresh.is_empty() {
                    self.known.extend_from_slice(fresh);
                    self.newest = self.newest.max(piece.frame);
                }
            }
            if piece.missing > 0 {
                let whole = length(piece.bytes.len()).saturating_add(length(piece.missing));
                self.lost_until = self.lost_until.max(Some(at.saturating_add(whole)));
                self.newest = self.newest.max(piece.frame);
            }
        }
    }
}

/// Bytes held back behind a gap. A CLC message is far smaller.
const MAX_HELD: usize = 128 << 10;
/// Segments held back behind a gap.
const MAX_PIECES: usize = 4096;
/// What a piece takes beside its bytes.
const PIECE_LEN: usize = 128;
/// How far data captured before its SYN may be from it.
const WINDOW: u32 = 1 << 20;

fn length(len: usize) -> i64 {
    i64::try_from(len).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests;
