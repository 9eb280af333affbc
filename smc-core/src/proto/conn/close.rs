use smc_wire::cdc::StateFlags;

use crate::proto::table::transitions;

transitions! {
    /// Socket states, with the names that smcss shows (RFC 7609; numbers in [`State::number`]).
    #[non_exhaustive]
    pub enum State {
        /// Before set-up has ended.
        Init = "INIT",
        /// Data both ways.
        Active = "ACTIVE",
        /// We were the first to shut down writing or to close.
        PeerCloseWait1 = "PEERCLOSEWAIT1",
        /// As before, and the peer is done writing.
        PeerCloseWait2 = "PEERCLOSEWAIT2",
        /// The peer was the first to shut down writing or to close.
        AppCloseWait1 = "APPCLOSEWAIT1",
        /// As before, and we shut down writing.
        AppCloseWait2 = "APPCLOSEWAIT2",
        /// The peer closed and we only shut down writing.
        AppFinCloseWait = "APPFINCLOSEWAIT",
        /// We closed and the peer only shut down writing.
        PeerFinCloseWait = "PEERFINCLOSEWAIT",
        /// The link group died.
        PeerAbortWait = "PEERABORTWAIT",
        /// The peer aborted and we have not closed yet.
        ProcessAbort = "PROCESSABORT",
        /// The end.
        Closed = "CLOSED",
    }

    /// Set-up ended with success.
    establish(Init => Active);
    /// The application shuts down writing.
    shutdown_write(Active => PeerCloseWait1, AppCloseWait1 => AppCloseWait2);
    /// The application closes, and the peer has not closed yet.
    close(
        Active => PeerCloseWait1,
        AppCloseWait1 | AppCloseWait2 => PeerFinCloseWait,
        PeerCloseWait1 => PeerCloseWait1,
        PeerCloseWait2 => PeerCloseWait2,
        PeerFinCloseWait => PeerFinCloseWait,
        Init | PeerAbortWait => Closed
    );
    /// The application closes, and the peer has closed or aborted before.
    close_last(
        AppCloseWait1 | AppCloseWait2 | AppFinCloseWait | ProcessAbort | PeerAbortWait => Closed
    );
    /// The peer shut down writing.
    peer_done(
        Init | Active => AppCloseWait1,
        PeerCloseWait1 => PeerCloseWait2
    );
    /// The peer closed, and we have not sent our last word.
    peer_closed(
        Init | Active => AppCloseWait1,
        PeerCloseWait1 | PeerCloseWait2 => AppFinCloseWait,
        AppCloseWait1 => AppCloseWait1,
        AppCloseWait2 => AppCloseWait2
    );
    /// The peer closed after we have sent our last word.
    peer_closed_last(PeerCloseWait1 | PeerCloseWait2 | PeerFinCloseWait => Closed);
    /// The peer aborted, and we have not sent our last word.
    peer_aborted(
        Init | Active | PeerCloseWait1 | PeerCloseWait2 | AppCloseWait1 | AppFinCloseWait
            => ProcessAbort,
        AppCloseWait2 | PeerAbortWait => Closed
    );
    /// The peer aborted after we have sent our last word.
    peer_aborted_last(
        PeerCloseWait1 | PeerCloseWait2 | PeerFinCloseWait | PeerAbortWait => Closed
    );
    /// The link group ended under the connection.
    kill(
        Active | PeerCloseWait1 | PeerCloseWait2 | AppCloseWait1 | AppCloseWait2
            | AppFinCloseWait | PeerFinCloseWait | ProcessAbort => PeerAbortWait
    );
}

impl State {
    /// The number that diagnostics show.
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

/// How a connection comes to its end: what we told the peer, what it told us, and what the
/// application sees of it.
///
/// Flags are levels: they stay set in everything a side sends afterwards.
#[derive(Clone, Debug)]
pub struct Closing {
    state: State,
    sent: StateFlags,
    peer: StateFlags,
    released: bool,
    killed: bool,
}

/// What reading comes to when no data is left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ReadEnd {
    /// More may come.
    Open,
    /// Orderly end of stream.
    Eof,
    /// The peer aborted.
    Reset,
    /// The link group ended.
    Aborted,
}

/// What writing comes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum WriteEnd {
    /// Data is taken.
    Open,
    /// We shut down writing.
    Shut,
    /// The peer closed or aborted: nobody will read.
    Reset,
    /// The link group ended.
    Aborted,
}

impl Closing {
    /// A connection whose set-up has just ended.
    #[must_use]
    pub fn new() -> Self {
        let none = StateFlags::empty();
        Self {
            state: State::Active,
            sent: none,
            peer: none,
            released: false,
            killed: false,
        }
    }

    /// The state, for tools.
    #[must_use]
    pub fn state(&self) -> State {
        self.state
    }

    /// Flags that everything sent to the peer has to carry.
    #[must_use]
    pub fn sent(&self) -> StateFlags {
        self.sent
    }

    /// Flags that the peer has sent.
    #[must_use]
    pub fn peer(&self) -> StateFlags {
        self.peer
    }

    /// Whether the record of the connection can go: both sides have said their last word, or
    /// nobody is left to hear it.
    #[must_use]
    pub fn is_finished(&self) -> bool {
        self.released && self.state == State::Closed
    }

    /// Whether the application has closed.
    #[must_use]
    pub fn is_released(&self) -> bool {
        self.released
    }

    /// Whether the connection ended with its link group, or because it could not go on.
    #[must_use]
    pub fn is_killed(&self) -> bool {
        self.killed
    }

    /// Whether the application has shut down writing.
    #[must_use]
    pub fn is_shut(&self) -> bool {
        // Only that sends this.
        self.sent.contains(StateFlags::SENDING_DONE)
    }

    /// Whether the peer has aborted: it has not read everything, or reads nothing more.
    #[must_use]
    pub fn is_aborted_by_peer(&self) -> bool {
        self.peer.contains(StateFlags::ABORTED)
    }

    /// What the application reads behind the last byte.
    #[must_use]
    pub fn read_end(&self) -> ReadEnd {
        if self.is_aborted_by_peer() {
            ReadEnd::Reset
        } else if self
            .peer
            .intersects(StateFlags::SENDING_DONE | StateFlags::CLOSED)
        {
            ReadEnd::Eof
        } else if self.killed {
            ReadEnd::Aborted
        } else {
            ReadEnd::Open
        }
    }

    /// What the application gets for writing.
    #[must_use]
    pub fn write_end(&self) -> WriteEnd {
        if self.is_shut() || (self.sent.intersects(LAST_WORD) && !self.killed) {
            WriteEnd::Shut
        } else if self.peer.intersects(LAST_WORD) {
            WriteEnd::Reset
        } else if self.killed {
            WriteEnd::Aborted
        } else {
            WriteEnd::Open
        }
    }

    /// The application shuts down writing. Returns the flags to send, if there are new ones.
    pub fn shutdown_write(&mut self) -> Option<StateFlags> {
        self.state.shutdown_write().ok()?;
        self.send(StateFlags::SENDING_DONE)
    }

    /// The application closes. `discard` says that received data was not read, or that it wants
    /// a reset. Returns the flags to send, if there are new ones.
    pub fn close(&mut self, discard: bool) -> Option<StateFlags> {
        if self.released {
            return None;
        }
        self.released = true;
        let before = self.state;
        // In a state without a row closing changes nothing.
        let _unchanged_if_no_row = if self.peer.intersects(LAST_WORD) {
            self.state.close_last()
        } else {
            self.state.close()
        };
        if self.killed || self.sent.intersects(LAST_WORD) {
            return None;
        }
        // A peer that aborts waits for our last word too, in whatever state it found us.
        let discard = discard || matches!(before, State::ProcessAbort | State::Closed);
        self.send(if discard {
            StateFlags::ABORTED
        } else {
            StateFlags::CLOSED
        })
    }

    /// The peer's flags have this value now. Returns whether anything is new.
    pub fn handle_peer(&mut self, flags: StateFlags) -> bool {
        let new = flags.difference(self.peer);
        if new.is_empty() {
            return false;
        }
        self.peer.insert(flags);
        let last = self.released && self.sent.intersects(LAST_WORD);
        // A state without a row for the event has nothing to learn from it.
        let _unchanged_if_no_row = if new.contains(StateFlags::ABORTED) {
            if last {
                self.state.peer_aborted_last()
            } else {
                self.state.peer_aborted()
            }
        } else if new.contains(StateFlags::CLOSED) {
            if last {
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

    /// The link group ended, or the connection cannot go on. Returns the flags to try to send.
    pub fn kill(&mut self) -> Option<StateFlags> {
        self.stop(StateFlags::ABORTED)
    }

    /// As [`Closing::kill`] when the endpoint ends and the peer has everything that was written: a
    /// connection that was shut down for writing is closed in order then, because it is complete.
    pub fn end(&mut self) -> Option<StateFlags> {
        let is_in_order = self.is_shut() && !self.is_aborted_by_peer();
        self.stop(match is_in_order {
            true => StateFlags::CLOSED,
            false => StateFlags::ABORTED,
        })
    }

    fn stop(&mut self, word: StateFlags) -> Option<StateFlags> {
        if self.killed || self.state == State::Closed {
            return None;
        }
        self.killed = true;
        let _only_init_has_no_row = self.state.kill();
        if self.released {
            let _always = self.state.close();
        }
        if self.sent.intersects(LAST_WORD) {
            None
        } else {
            self.send(word)
        }
    }

    fn send(&mut self, flags: StateFlags) -> Option<StateFlags> {
        self.sent.insert(flags);
        Some(self.sent)
    }
}

impl Default for Closing {
    fn default() -> Self {
        Self::new()
    }
}

/// The flags after which a side says nothing new.
const LAST_WORD: StateFlags = StateFlags::CLOSED.union(StateFlags::ABORTED);
