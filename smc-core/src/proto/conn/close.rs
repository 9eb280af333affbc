//! The close sequence of a connection (docs/spec/closing.md).

use smc_wire::cdc::StateFlags;

use crate::proto::table::transitions;

transitions! {
    /// Socket states, with the names that `smcss` shows (RFC 7609; numbers in
    /// [`ConnState::number`]).
    pub enum ConnState {
        /// Before the end of connection set-up.
        Init = "INIT",
        /// Data flows in both directions.
        Active = "ACTIVE",
        /// This side was the first to shut down writing or to close.
        PeerCloseWait1 = "PEERCLOSEWAIT1",
        /// As `PeerCloseWait1`, and the peer has shut down writing.
        PeerCloseWait2 = "PEERCLOSEWAIT2",
        /// The peer was the first to shut down writing or to close.
        AppCloseWait1 = "APPCLOSEWAIT1",
        /// As `AppCloseWait1`, and this side has shut down writing.
        AppCloseWait2 = "APPCLOSEWAIT2",
        /// The peer closed; this side only shut down writing.
        AppFinCloseWait = "APPFINCLOSEWAIT",
        /// This side closed; the peer only shut down writing.
        PeerFinCloseWait = "PEERFINCLOSEWAIT",
        /// The link group was terminated.
        PeerAbortWait = "PEERABORTWAIT",
        /// The peer aborted, and this side has not closed yet.
        ProcessAbort = "PROCESSABORT",
        /// The connection is closed.
        Closed = "CLOSED",
    }

    /// Connection set-up succeeded.
    establish(Init => Active);
    /// The application shuts down writing.
    shutdown_write(Active => PeerCloseWait1, AppCloseWait1 => AppCloseWait2);
    /// The application closes, or shuts down both directions, before the peer has closed.
    close(
        Active => PeerCloseWait1,
        AppCloseWait1 | AppCloseWait2 => PeerFinCloseWait,
        PeerCloseWait1 => PeerCloseWait1,
        PeerCloseWait2 => PeerCloseWait2,
        PeerFinCloseWait => PeerFinCloseWait,
        Init | PeerAbortWait => Closed
    );
    /// The application closes, or shuts down both directions, after the peer has closed or aborted.
    close_last(
        AppCloseWait1 | AppCloseWait2 | AppFinCloseWait | ProcessAbort | PeerAbortWait => Closed
    );
    /// The peer shut down writing.
    peer_done(
        Init | Active => AppCloseWait1,
        PeerCloseWait1 => PeerCloseWait2
    );
    /// The peer closed, and the application has not. In `PeerFinCloseWait` it has shut down both
    /// directions.
    peer_closed(
        Init | Active => AppCloseWait1,
        PeerCloseWait1 | PeerCloseWait2 => AppFinCloseWait,
        AppCloseWait1 => AppCloseWait1,
        AppCloseWait2 => AppCloseWait2,
        PeerFinCloseWait => Closed
    );
    /// The peer closed after the application did, and this side has sent its final flags.
    peer_closed_last(PeerCloseWait1 | PeerCloseWait2 | PeerFinCloseWait => Closed);
    /// The peer aborted, and this side has not sent its final flags.
    peer_aborted(
        Init | Active | PeerCloseWait1 | PeerCloseWait2 | AppCloseWait1 | AppFinCloseWait
            => ProcessAbort,
        AppCloseWait2 | PeerAbortWait => Closed
    );
    /// The peer aborted after this side sent its final flags.
    peer_aborted_last(
        PeerCloseWait1 | PeerCloseWait2 | PeerFinCloseWait | PeerAbortWait => Closed
    );
    /// The link group of the connection was terminated.
    aborted(
        Active | PeerCloseWait1 | PeerCloseWait2 | AppCloseWait1 | AppCloseWait2
            | AppFinCloseWait | PeerFinCloseWait | ProcessAbort => PeerAbortWait
    );
}

impl ConnState {
    /// The number that diagnostic tools show.
    #[must_use]
    pub const fn number(self) -> u8 {
        match self {
            Self::Init => 2,
            Self::Active => 1,
            Self::PeerCloseWait1 => 20,
            Self::PeerCloseWait2 => 21,
            Self::AppCloseWait1 => 22,
            Self::AppCloseWait2 => 23,
            Self::AppFinCloseWait => 24,
            Self::PeerFinCloseWait => 25,
            Self::PeerAbortWait => 26,
            Self::ProcessAbort => 27,
            Self::Closed => 7,
        }
    }
}

/// State of the close sequence of a connection: the flags sent, the flags received, and the results
/// that the application gets.
///
/// Flags are levels: once set, a flag is set in every later message.
#[derive(Clone, Debug)]
pub struct Closing {
    state: ConnState,
    /// Flags that every message to the peer has to contain.
    pub(super) sent: StateFlags,
    peer: StateFlags,
    app_closed: bool,
    /// The application has shut down writing, alone or with reading.
    is_shut: bool,
    /// This side has ended the connection, in order or not.
    has_ended_here: bool,
    /// This side has ended the connection before the peer had ended sending: an end that the peer
    /// states later may be one of data that it has discarded.
    is_cut_off: bool,
}

/// Result of reading when no data is left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadEnd {
    /// More data may arrive.
    Open,
    /// Orderly end of stream.
    Eof,
    /// The peer aborted.
    Reset,
    /// The link group ended.
    Aborted,
}

/// Result of writing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteEnd {
    /// Data is accepted.
    Open,
    /// This side has shut down writing.
    Shut,
    /// The peer closed in order and reads no more data.
    PeerClosed,
    /// The peer aborted.
    Reset,
    /// The link group ended.
    Aborted,
}

impl Default for Closing {
    /// A connection whose set-up has just completed.
    fn default() -> Self {
        let none = StateFlags::empty();
        Self {
            state: ConnState::Active,
            sent: none,
            peer: none,
            app_closed: false,
            is_shut: false,
            has_ended_here: false,
            is_cut_off: false,
        }
    }
}

impl Closing {
    /// The state, for diagnostic tools.
    #[must_use]
    pub fn state(&self) -> ConnState {
        self.state
    }

    /// Whether the record of the connection can be removed: both sides have sent their final flags,
    /// or there is no peer left to send them to.
    #[must_use]
    pub fn is_removable(&self) -> bool {
        self.app_closed && self.state == ConnState::Closed
    }

    /// Whether both sides have closed in order, and the record can be removed.
    #[must_use]
    pub fn has_ended_in_order(&self) -> bool {
        let is_orderly = |flags: StateFlags| flags & FINAL_FLAGS == StateFlags::CLOSED;
        self.is_removable()
            && !self.has_ended_here
            && is_orderly(self.sent)
            && is_orderly(self.peer)
    }

    /// Whether the application has closed.
    #[must_use]
    pub fn is_app_closed(&self) -> bool {
        self.app_closed
    }

    /// Whether this side has ended the connection: with its link group, or because of an error.
    #[must_use]
    pub fn has_ended_here(&self) -> bool {
        self.has_ended_here
    }

    /// Whether it has done so with an abort, not in order.
    #[must_use]
    pub fn has_aborted(&self) -> bool {
        self.has_ended_here && self.sent.contains(StateFlags::ABORTED)
    }

    /// Whether the application has shut down writing, alone or with reading.
    #[must_use]
    pub fn is_shut(&self) -> bool {
        self.is_shut
    }

    /// Whether the application has closed or shut down both directions: it reads no more data.
    #[must_use]
    pub fn has_ended_reading(&self) -> bool {
        let is_shut_for_both = self.is_shut && self.sent.intersects(FINAL_FLAGS);
        self.app_closed || (is_shut_for_both && !self.has_ended_here)
    }

    /// Whether the application has shut down both directions with received data unread.
    #[must_use]
    pub fn is_shut_by_abort(&self) -> bool {
        self.is_shut && !self.has_ended_here && self.sent.contains(StateFlags::ABORTED)
    }

    /// Whether the peer has aborted: it has not read everything, or reads no more data.
    #[must_use]
    pub fn is_aborted_by_peer(&self) -> bool {
        self.peer.contains(StateFlags::ABORTED)
    }

    /// Result of a read behind the last byte.
    #[must_use]
    pub fn read_end(&self) -> ReadEnd {
        if self.is_aborted_by_peer() {
            ReadEnd::Reset
        } else if self.has_peer_ended_sending() && !self.is_cut_off {
            ReadEnd::Eof
        } else if self.has_ended_here {
            ReadEnd::Aborted
        } else {
            ReadEnd::Open
        }
    }

    fn has_peer_ended_sending(&self) -> bool {
        let ends = StateFlags::SENDING_DONE | StateFlags::CLOSED;
        self.peer.intersects(ends)
    }

    /// Result of a write.
    #[must_use]
    pub fn write_end(&self) -> WriteEnd {
        if self.is_shut || (self.sent.intersects(FINAL_FLAGS) && !self.has_ended_here) {
            WriteEnd::Shut
        } else if self.is_aborted_by_peer() {
            WriteEnd::Reset
        } else if self.peer.contains(StateFlags::CLOSED) {
            WriteEnd::PeerClosed
        } else if self.has_ended_here {
            WriteEnd::Aborted
        } else {
            WriteEnd::Open
        }
    }

    /// The application shuts down writing. Returns the flags to send, if there are new ones.
    pub fn shutdown_write(&mut self) -> Option<StateFlags> {
        self.state.shutdown_write().ok()?;
        self.is_shut = true;
        self.send(StateFlags::SENDING_DONE)
    }

    /// The application shuts down both directions: the peer gets the final flags, as by a close,
    /// and the record stays until the application closes. `discard` is true if received data was
    /// not read. Returns the flags to send, if there are new ones.
    pub fn shutdown_both(&mut self, discard: bool) -> Option<StateFlags> {
        if self.app_closed || self.has_ended_here {
            return None;
        }
        self.is_shut = true;
        self.finish(discard)
    }

    /// The application closes. `discard` is true if received data was not read, or if the
    /// application asks for a reset. Returns the flags to send, if there are new ones.
    pub fn close(&mut self, discard: bool) -> Option<StateFlags> {
        if self.app_closed {
            return None;
        }
        self.app_closed = true;
        self.finish(discard)
    }

    /// Sends the final flags, if they were not sent before.
    fn finish(&mut self, discard: bool) -> Option<StateFlags> {
        let before = self.state;
        // In a state without a row for it, a close changes nothing.
        let _unchanged_if_no_row = if self.peer.intersects(FINAL_FLAGS) {
            self.state.close_last()
        } else {
            self.state.close()
        };
        if self.has_ended_here || self.sent.intersects(FINAL_FLAGS) {
            return None;
        }
        // A peer that aborts waits for the final flags of this side too, whatever the state was.
        let discard = discard || matches!(before, ConnState::ProcessAbort | ConnState::Closed);
        self.send(if discard {
            StateFlags::ABORTED
        } else {
            StateFlags::CLOSED
        })
    }

    /// Flags received from the peer. Returns whether any of them is new.
    pub fn handle_peer(&mut self, flags: StateFlags) -> bool {
        let new = flags.difference(self.peer);
        if new.is_empty() {
            return false;
        }
        self.peer.insert(flags);
        let is_final = self.sent.intersects(FINAL_FLAGS);
        // A state without a row for the event is not changed by it.
        let _unchanged_if_no_row = if new.contains(StateFlags::ABORTED) {
            if is_final {
                self.state.peer_aborted_last()
            } else {
                self.state.peer_aborted()
            }
        } else if new.contains(StateFlags::CLOSED) {
            if is_final && self.app_closed {
                self.state.peer_closed_last()
            } else {
                self.state.peer_closed()
            }
        } else if new.contains(StateFlags::SENDING_DONE) {
            self.state.peer_done()
        } else {
            return true;
        };
        true
    }

    /// The link group was terminated, or the connection failed. Returns the flags to send, if
    /// possible.
    pub fn abort(&mut self) -> Option<StateFlags> {
        self.stop(StateFlags::ABORTED)
    }

    /// As [`Closing::abort`], when the endpoint shuts down and the peer has received everything
    /// that was written: a connection whose writing was shut down is complete, so it is closed in
    /// order.
    pub fn abort_or_close(&mut self) -> Option<StateFlags> {
        let is_in_order = self.is_shut && !self.is_aborted_by_peer();
        self.stop(match is_in_order {
            true => StateFlags::CLOSED,
            false => StateFlags::ABORTED,
        })
    }

    /// What was written before the close, and the close itself, are not delivered: this side has
    /// aborted after it.
    pub fn discard(&mut self) {
        self.sent.insert(StateFlags::ABORTED);
    }

    fn stop(&mut self, flags: StateFlags) -> Option<StateFlags> {
        if self.has_ended_here || self.state == ConnState::Closed {
            return None;
        }
        self.has_ended_here = true;
        self.is_cut_off = !self.has_peer_ended_sending();
        let _only_init_has_no_row = self.state.aborted();
        if self.app_closed {
            let _always = self.state.close();
        }
        if self.sent.intersects(FINAL_FLAGS) {
            None
        } else {
            self.send(flags)
        }
    }

    fn send(&mut self, flags: StateFlags) -> Option<StateFlags> {
        self.sent.insert(flags);
        Some(self.sent)
    }
}

/// The flags after which a side sends nothing new.
const FINAL_FLAGS: StateFlags = StateFlags::CLOSED.union(StateFlags::ABORTED);
