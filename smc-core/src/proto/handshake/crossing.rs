//! Detection of a DECLINE that crosses the local one (docs/spec/handshake.md).

use std::time::{Duration, Instant};

use smc_wire::clc::{ClcType, Decline, Eyecatcher, Frame, HEADER_LEN, TRAILER_LEN};

use crate::proto::after;

/// Keeps a DECLINE that crossed the local one on the wire away from the application.
///
/// To be put in front of a stream after a [`Fallback`](super::Fallback) with `crossing_possible`.
/// For one second the first bytes received are held back as long as they could be the beginning
/// of a DECLINE. If they are one, they are dropped; anything else is released untouched, and
/// so is an incomplete message when the second has passed or the peer closes.
///
/// A DECLINE is never followed by anything before the stream's own data, so read no more than
/// [`bytes_needed`](Self::bytes_needed) bytes while it is not zero, and pass them to
/// [`handle_bytes`](Self::handle_bytes); then hand on what [`release`](Self::release) gives.
#[derive(Debug)]
pub struct CrossingDecline {
    buffered: Vec<u8>,
    /// None when it is decided.
    deadline: Option<Instant>,
}

impl CrossingDecline {
    /// To be made when the local DECLINE is sent.
    #[must_use]
    pub fn new(now: Instant) -> Self {
        Self {
            buffered: Vec::new(),
            deadline: Some(after(now, CROSSING_WAIT)),
        }
    }

    /// How many bytes to read at most; zero when it is decided.
    #[must_use]
    pub fn bytes_needed(&self) -> usize {
        match self.deadline {
            Some(_) => self.end().saturating_sub(self.buffered.len()),
            None => 0,
        }
    }

    /// Bytes received; returns how many were taken.
    pub fn handle_bytes(&mut self, bytes: &[u8]) -> usize {
        let before = bytes.len();
        let mut rest = bytes;
        while !rest.is_empty() && self.deadline.is_some() {
            let (now, later) = rest
                .split_at_checked(self.bytes_needed())
                .unwrap_or((rest, &[]));
            self.buffered.extend_from_slice(now);
            rest = later;
            match self.after_decline() {
                AfterDecline::Undecided => {}
                AfterDecline::Decline => {
                    self.buffered.clear();
                    self.deadline = None;
                }
                AfterDecline::Data => self.deadline = None,
            }
        }
        before.saturating_sub(rest.len())
    }

    /// The peer closed, or reading failed: what was held back is all there is.
    pub fn handle_closed(&mut self) {
        self.deadline = None;
    }

    /// Time has passed.
    pub fn handle_timeout(&mut self, now: Instant) {
        if self.deadline.is_some_and(|deadline| deadline <= now) {
            self.deadline = None;
        }
    }

    /// When [`handle_timeout`](Self::handle_timeout) has to be called; `None` when it is decided.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.deadline
    }

    /// The bytes that belong to the application, in front of everything that was not taken. `None`
    /// while it is not decided.
    pub fn release(&mut self) -> Option<Vec<u8>> {
        match self.deadline {
            Some(_) => None,
            None => Some(std::mem::take(&mut self.buffered)),
        }
    }

    fn end(&self) -> usize {
        match Frame::peek(&self.buffered) {
            Ok(Some(frame)) => frame.length(),
            _ => HEADER_LEN,
        }
    }

    fn after_decline(&self) -> AfterDecline {
        let frame = match Frame::peek(&self.buffered) {
            Ok(None) => return AfterDecline::Undecided,
            Ok(Some(frame)) if frame.header().kind == ClcType::Decline => frame,
            _ => return AfterDecline::Data,
        };
        if ![Decline::LEN_V1, Decline::LEN_V2].contains(&frame.length()) {
            return AfterDecline::Data;
        }
        if self.buffered.len() < frame.length() {
            return AfterDecline::Undecided;
        }
        // A strict check: to drop application data is worse than to pass a DECLINE on.
        match self
            .buffered
            .last_chunk::<TRAILER_LEN>()
            .copied()
            .and_then(Eyecatcher::from_bytes)
        {
            Some(_) => AfterDecline::Decline,
            None => AfterDecline::Data,
        }
    }
}

enum AfterDecline {
    Undecided,
    Decline,
    Data,
}

/// How long after the local DECLINE the peer's may come.
const CROSSING_WAIT: Duration = Duration::from_secs(1);
