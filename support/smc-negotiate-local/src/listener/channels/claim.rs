//! Claiming the offer of a connection that was accepted.

use std::cell::OnceCell;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{Shutdown, shutdown};
use smc_core::error::{FallbackCause, Refusal};
use smc_core::mem::sync::AtomicBool;
use smc_core::negotiate::Credentials;

use super::{ClientNetns, ListenerChannels};
use crate::mailbox::{Announcement, Generation, Slot};
use crate::sock_diag::{SockDiag, SocketInfo};

/// The canonical addresses of client and server.
pub(crate) type Pair = (SocketAddr, SocketAddr);

/// A connection that was announced and accepted. Its client may still withdraw the offer.
#[derive(Debug)]
pub(crate) struct Claimed {
    pub(crate) channel: u64,
    pub(crate) slot: Slot,
    pub(crate) generation: Generation,
    pub(crate) client: Credentials,
    /// The client is a process of the listener's user.
    pub(crate) own: bool,
    pub(crate) has_ended: Arc<AtomicBool>,
}

/// The result of the check of an announcement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verification {
    Verified,
    /// It may be right.
    NotVerified,
    /// The connection is that of another socket, or of another user.
    False,
}

impl ListenerChannels {
    /// Finds the announcement of a connection that was accepted, and claims it. Ends channels that
    /// have announced the connection of another socket.
    pub(crate) fn claim(&mut self, pair: Pair, now: Instant) -> Option<Claimed> {
        let client_socket = OnceCell::new();
        let mut refused = 0;
        for position in (0..self.recent.len()).rev() {
            let key = *self.recent.get(position)?;
            // A client has one offer for a connection; further ones would cost the search time.
            if let Some((slot, generation, announcement)) = self.offer(key, pair) {
                let result = self.verify(key, &announcement, now, &client_socket);
                let is_fit = result == Verification::Verified && self.is_alive(key);
                if is_fit && slot.claim(generation) {
                    // The channel of the latest connection is searched first.
                    self.recent.remove(position);
                    self.recent.push(key);
                    // An offer before this one may have been refused.
                    self.cause = None;
                    let channel = self.channels.get(&key)?;
                    return Some(Claimed {
                        channel: key,
                        slot,
                        generation,
                        client: channel.client,
                        own: channel.own,
                        has_ended: Arc::clone(&channel.has_ended),
                    });
                }
                self.cause = Some(FallbackCause::Refused(Refusal::Identity));
                if result == Verification::False {
                    slot.refuse(generation, Refusal::Identity);
                    self.recent.remove(position);
                    self.disconnect(key);
                } else if refused < MAX_REFUSED {
                    self.refuse_offer(key, &slot, generation, Refusal::Identity);
                    refused += 1;
                }
            }
        }
        None
    }

    /// Disconnects a client. Its channel ends with the next poll, which finds the end of it.
    fn disconnect(&self, channel: u64) {
        if let Some(channel) = self.channels.get(&channel) {
            let _ = shutdown(&channel.fd, Shutdown::Both);
        }
    }

    /// Why the last connection that was searched was not claimed, if that is known.
    pub(crate) fn take_cause(&mut self) -> Option<FallbackCause> {
        let shortage = || self.shortage.recent().cloned().map(FallbackCause::Os);
        let unpublished = || {
            let publication = self.publication.as_ref()?;
            publication.error().cloned().map(FallbackCause::from)
        };
        self.cause.take().or_else(shortage).or_else(unpublished)
    }

    /// Refuses the offers for this connection.
    pub(crate) fn refuse(&mut self, pair: Pair, why: Refusal) {
        let offers = self.recent.iter().filter_map(|key| {
            let (slot, generation, _) = self.offer(*key, pair)?;
            Some((*key, slot, generation))
        });
        for (key, slot, generation) in offers.take(MAX_REFUSED) {
            self.refuse_offer(key, &slot, generation, why);
        }
    }

    fn refuse_offer(&self, channel: u64, slot: &Slot, generation: Generation, why: Refusal) {
        slot.refuse(generation, why);
        self.notify(channel, slot);
    }

    /// What a client offers for a connection.
    fn offer(&self, channel: u64, (from, to): Pair) -> Option<(Slot, Generation, Announcement)> {
        let mailbox = self.channels.get(&channel)?.mailbox.as_ref()?;
        mailbox.find(from.port()).find_map(|slot| {
            let (generation, announcement) = slot.offered()?;
            let fits = (announcement.from, announcement.to) == (from, to);
            fits.then_some((slot, generation, announcement))
        })
    }

    /// Whether an announced connection is accepted as the client's own.
    ///
    /// Clients of the listener's user are trusted: with a false announcement they get a connection
    /// that they cannot use, because the other process gets no byte of the handshake. For other
    /// users the socket at the other end has to be the announced one, to belong to the user, and to
    /// be connected: where the other end is not in this namespace, the kernel finds a listening
    /// socket with the address. Of a closed socket the kernel does not know the owner. It is asked
    /// for `client_socket` once for each connection, however many announcements of it there are.
    fn verify(
        &mut self,
        channel: u64,
        announcement: &Announcement,
        now: Instant,
        client_socket: &OnceCell<Option<SocketInfo>>,
    ) -> Verification {
        let Some(channel) = self.channels.get(&channel) else {
            return Verification::NotVerified;
        };
        let is_verified = match &channel.netns {
            ClientNetns::Unknown => false,
            ClientNetns::Other(proven) => proven
                .get(&announcement.to.ip())
                .is_some_and(|(from, until)| *from == announcement.from.ip() && *until > now),
            ClientNetns::Same if channel.own => true,
            ClientNetns::Same => {
                let uid = channel.client.uid;
                let Announcement { from, to, .. } = *announcement;
                let find = |diag: &mut SockDiag| diag.find(from, to).ok().flatten();
                let found = *client_socket.get_or_init(|| self.diag.as_mut().and_then(find));
                let open = found.filter(|it| !it.is_closed());
                if open.is_some_and(|it| it.cookie != announcement.cookie || it.uid != uid) {
                    return Verification::False;
                }
                open.is_some_and(|it| it.is_established())
            }
        };
        match is_verified {
            true => Verification::Verified,
            false => Verification::NotVerified,
        }
    }

    /// Whether a client's channel is open. The memory does not show the end of a client, and its
    /// port may belong to another process by now.
    fn is_alive(&self, channel: u64) -> bool {
        let Some(channel) = self.channels.get(&channel) else {
            return false;
        };
        let mut ends = [PollFd::new(&channel.fd, PollFlags::empty())];
        poll(&mut ends, Some(&Timespec::default())).is_ok_and(|ended| ended == 0)
    }
}

/// Offers for one connection that are refused with a message. One client has a right one; others
/// than these find out by their timeouts.
const MAX_REFUSED: usize = 8;
