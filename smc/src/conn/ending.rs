//! The end of a connection: shutdown, close and abort.

use std::net::Shutdown;
use std::sync::Arc;
use std::time::Duration;

use smc_wire::cdc::{ProducerWord, StateFlags};
use smc_wire::cursor::Cursor;

use super::{Conn, PeerLocality, TransportOps as _, len_usize};
use crate::error::{CloseReason, Error, PeerMisbehaved, Phase};
use crate::log::Destination;
use crate::mem::HEADER_LEN;
use crate::mem::sync::Ordering;
use crate::peer_descriptors::ClosingDescriptor;
use crate::proto::Role;
use crate::proto::conn::rdma::StreamDelivery;
use crate::proto::conn::{Closing, used_length};
use crate::proto::group::GroupEndCause;

impl Conn {
    /// Shuts down writing, behind all written data.
    pub(crate) fn shutdown_write(&self) {
        let flags = self.closing.lock().shutdown_write();
        if let Some(flags) = flags {
            self.has_ended.store(true, Ordering::Release);
            self.ops().publish_flags(self, flags);
            self.wake();
        }
    }

    /// Shuts down both directions, after the reading half has read up to `read`: the peer gets the
    /// final flags, behind all written data unless it has written data that was not read.
    pub(crate) fn shutdown_both(&self, read: Cursor) {
        let unread = self.has_unread(read);
        self.handle_peer_flags();
        let flags = {
            let mut closing = self.closing.lock();
            let flags = closing.shutdown_both(unread);
            if flags.is_some() {
                // Not later: data that arrives from now on may have to be discarded.
                self.read_until
                    .store(ProducerWord { cursor: read }.to_ne(), Ordering::Release);
            }
            flags
        };
        self.has_ended.store(true, Ordering::Release);
        self.publish_final(flags, unread);
        self.wake();
    }

    fn has_unread(&self, read: Cursor) -> bool {
        let written = ProducerWord::from_ne(self.local.producer().load(Ordering::Acquire));
        written.cursor != read
    }

    /// The position up to which received data was read, or discarded since.
    fn read_position(&self) -> Cursor {
        ProducerWord::from_ne(self.read_until.load(Ordering::Acquire)).cursor
    }

    /// Publishes the final flags, if there are new ones.
    fn publish_final(&self, flags: Option<StateFlags>, unread: bool) {
        match (flags, self.rdma()) {
            // The final cursor shows a closing peer that its data was read, however little that is.
            (Some(flags), Some(rdma)) if !unread => {
                rdma.publish_close(|| self.read_position(), flags);
            }
            (Some(flags), _) => self.ops().publish_flags(self, flags),
            (None, _) => {}
        }
    }

    /// The reading half is dropped after it read up to `cursor`, and never more than the first
    /// `high_water` bytes of the ring.
    pub(crate) fn stop_reading(&self, cursor: Cursor, high_water: u32) {
        self.high_water.store(high_water, Ordering::Release);
        self.read_until
            .store(ProducerWord { cursor }.to_ne(), Ordering::Release);
    }

    /// Closes the connection after the application dropped the stream.
    ///
    /// Written data is in the peer's memory, or sent in the background, so this does not wait. The
    /// record stays in the driver's table until the peer has closed, too.
    pub(crate) fn close(self: &Arc<Self>) {
        let unread = self.has_unread(self.read_position());
        let linger = *self.linger.lock();
        let is_reset = linger == Some(Duration::ZERO);
        self.handle_peer_flags();
        let flags = self.closing.lock().close(unread || is_reset);
        self.has_ended.store(true, Ordering::Release);
        match self.rdma() {
            // The final flags of a shutdown are still queued behind data.
            Some(rdma) if flags.is_none() && is_reset && rdma.has_pending() => {
                rdma.publish_flags(self, StateFlags::ABORTED);
            }
            _ => self.publish_final(flags, unread),
        }
        self.reuse.note_close_published();
        self.pass_socket_on();
        self.release_if_closed();
        if !self.closing.lock().is_removable() {
            // Written data of SMC-D is in the peer's memory.
            let linger = linger.filter(|_| self.has_unsent() && !is_reset);
            match self.take_descriptor() {
                true => self.driver.await_peer_close(self, linger),
                false => self.abort(Error::Closed(CloseReason::Aborted)),
            }
        }
    }

    /// After the application dropped the stream: requests a signal of the peer's close.
    pub(crate) fn arm_peer_close(self: &Arc<Self>) {
        self.arm();
        self.watch_tcp();
        self.handle_peer_flags();
    }

    /// Counts the descriptor of a connection whose peer has still to close it. A peer that leaves
    /// many so has only its shares: the one that waits for the longest time ends in place of this,
    /// one with data that is not sent yet only for another such.
    fn take_descriptor(&self) -> bool {
        let (source, has_unsent) = (self.source, self.has_unsent());
        let taken = ClosingDescriptor::take(source, has_unsent).or_else(|| {
            let other = self.driver.longest_closing(source, has_unsent)?;
            other.abort(Error::Closed(CloseReason::Aborted));
            ClosingDescriptor::take(source, has_unsent)
        });
        let is_taken = taken.is_some();
        *self.closing_descriptor.lock() = taken;
        is_taken
    }

    /// Whether data or the end of it is still to be sent. What SMC-D has written is in the peer's
    /// memory.
    pub(crate) fn has_unsent(&self) -> bool {
        self.rdma().is_some_and(|rdma| rdma.has_pending())
    }

    /// For the driver: the linger time after close has passed. What was not sent is dropped, with
    /// an abort instead of the close.
    pub(crate) fn end_linger(&self) {
        if self.rdma().is_some_and(|rdma| rdma.has_pending()) {
            self.abort(Error::TimedOut(Phase::Delivery));
        }
    }

    /// Aborts the connection: the peer is gone, or broke the protocol.
    pub(crate) fn abort(&self, cause: Error) {
        self.terminate(cause, Closing::abort);
    }

    /// The endpoint ends. A stream that was shut down for writing, and delivered, is closed in
    /// order; others are aborted.
    pub(crate) fn end_with_endpoint(&self) {
        // The peer may have ended before.
        self.handle_peer_flags();
        let stop = match self.delivery() {
            StreamDelivery::Done => Closing::abort_or_close,
            StreamDelivery::Pending | StreamDelivery::Lost => Closing::abort,
        };
        self.terminate(Error::Closed(CloseReason::Endpoint), stop);
    }

    fn terminate(&self, cause: Error, stop: impl FnOnce(&mut Closing) -> Option<StateFlags>) {
        let flags = stop(&mut self.closing.lock());
        // Set once: the first cause counts.
        if let (Ok(()), Some(cause)) = (self.failure.set(cause), self.failure.get()) {
            let peer = match self.role {
                Role::Client => Destination::server(&self.peer_addr),
                Role::Server => Destination::client(&self.peer_addr),
            };
            self.span
                .in_scope(|| self.warned.failed("connection", peer, cause));
        }
        self.has_ended.store(true, Ordering::Release);
        match (flags, self.rdma()) {
            (Some(flags), _) => self.ops().publish_flags(self, flags),
            // The close flags may still be queued behind data that cannot be sent.
            (None, Some(rdma)) if rdma.has_pending() => {
                self.closing.lock().discard();
                rdma.publish_flags(self, StateFlags::ABORTED);
            }
            (None, _) => {}
        }
        self.wake();
        self.release_if_closed();
    }

    /// The peer violated the data-path protocol; only this connection is aborted.
    #[cold]
    pub(crate) fn misbehaved(&self, what: PeerMisbehaved) -> Error {
        self.abort(Error::PeerMisbehaved(what));
        self.failure()
    }

    /// The link group has ended.
    pub(crate) fn handle_group_end(&self, cause: GroupEndCause) {
        match cause {
            GroupEndCause::Shutdown => self.end_with_endpoint(),
            // The peer may have closed before.
            _ => self.abort_unreachable(Error::Closed(CloseReason::Aborted)),
        }
    }

    /// Aborts a connection after a look at the peer's updates, which may have ended it: the peer is
    /// unreachable, or its signal is not awaited any more.
    pub(crate) fn abort_unreachable(&self, cause: Error) {
        self.handle_peer_flags();
        self.abort(cause);
    }

    /// Releases the shared resources once both sides have closed.
    pub(super) fn release_if_closed(&self) {
        // The close flags are not delivered while they are pending at a busy device or a link, and
        // the driver retries.
        let is_gone = self.driver.is_gone() && self.rdma().is_none();
        let is_lost = is_gone || self.driver.is_stopped();
        let has_pending = self.ops().has_pending() && !is_lost;
        if !self.closing.lock().is_removable() || has_pending {
            return;
        }
        let membership = self.membership.lock().take();
        if membership.is_none() {
            return;
        }
        drop(membership);
        self.closing_descriptor.lock().take();
        self.span.in_scope(|| match self.failure.get() {
            Some(cause) => debug!("connection has ended", cause = cause),
            None => debug!("connection has ended", cause = "closed by both ends"),
        });
        if self.locality == PeerLocality::Unknown {
            // An orderly end would be one of the stream to a peer that has gone back to TCP.
            let has_aborted = self.closing.lock().has_aborted();
            let _best_effort = match has_aborted {
                true => self.socket.set_linger(Some(Duration::ZERO)),
                false => self.socket.shutdown(Shutdown::Both),
            };
        }
        self.driver.remove(self.key());
        self.pass_socket_on();
    }
}

impl Drop for Conn {
    fn drop(&mut self) {
        let Some(dmb) = self.dmb() else { return };
        let written = ProducerWord::from_ne(self.local.producer().load(Ordering::Acquire)).cursor;
        // The peer can take its producer word back, and reading has made pages resident: the word
        // can only add to the read length.
        let read = self.high_water.load(Ordering::Acquire);
        let used = used_length(self.local_ring, self.read_position(), read, written);
        dmb.set_used(HEADER_LEN.saturating_add(len_usize(used)));
    }
}

/// The application's handle of a connection; dropping the last one closes it.
pub(crate) struct Handle(pub(crate) Arc<Conn>);

impl Drop for Handle {
    fn drop(&mut self) {
        self.0.close();
    }
}
