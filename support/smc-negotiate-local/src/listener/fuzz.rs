//! Entry points of fuzz targets: names, packets, mailboxes and the channels of a listener.
//!
//! The public interface leads to these through TCP connections, tasks and clocks, so that an input
//! would not have the same result each time.

use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::time::Instant;

use smc_core::error::Refusal;
use smc_core::mem::sync::Ordering;
use smc_core::quota::{Permit, mappings};
use smc_ipc::Domain;
use smc_ipc::channel::{Received, receive, send};
use smc_ipc::passed::PeerSocket;
use smc_ipc::runtime_dir::Publication;

use super::channels::{Claimed, ListenerChannels};
use crate::directory::{ListenerEntry, Scope};
use crate::early::EarlyConfirm;
use crate::mailbox::{self, Announcement, Direction, Generation, Mailbox, OfferState, Slot};
use crate::message::{MAX_LEN, ToClient, ToListener};
use crate::netns::NetNs;

/// Length of a mailbox.
pub const LEN: usize = mailbox::LEN;
/// Slots of a mailbox.
pub const SLOTS: u32 = mailbox::SLOTS;

/// The name of a listener as it is written from what was parsed.
#[must_use]
pub fn listener_name(name: &str) -> Option<String> {
    ListenerEntry::parse(name).map(|entry| entry.to_string())
}

/// A packet to a listener, encoded again.
#[must_use]
pub fn packet_to_listener(packet: &[u8]) -> Option<Vec<u8>> {
    ToListener::parse(packet).map(ToListener::encode)
}

/// A packet to a client, encoded again.
#[must_use]
pub fn packet_to_client(packet: &[u8]) -> Option<Vec<u8>> {
    ToClient::parse(packet).map(ToClient::encode)
}

/// A listener without a TCP socket, its channels and the offers that it has claimed.
#[derive(Debug)]
pub struct FuzzListener {
    channels: ListenerChannels,
    name: String,
    to: SocketAddr,
    begin: Instant,
    claimed: Vec<FuzzOffer>,
}

/// The side of a slot that has an offer.
#[derive(Debug)]
pub struct FuzzOffer {
    slot: Slot,
    generation: Generation,
    /// Bytes that were read of the other side.
    read: usize,
}

/// A client's channel with its mailbox, whose memory the target can write.
#[derive(Debug)]
pub struct FuzzClient {
    channel: PeerSocket,
    mailbox: Mailbox,
    file: OwnedFd,
}

impl FuzzListener {
    /// Announced in a directory of this user.
    #[must_use]
    pub fn new(dir: &Path) -> Self {
        let to: SocketAddr = ([127, 0, 0, 1], 80).into();
        let entry = ListenerEntry {
            shared: false,
            port: to.port(),
            scope: Scope::One(to.ip()),
            netns: NetNs::current().expect("a network namespace"),
            cookie: 1,
            salt: 1,
        };
        let name = entry.to_string();
        let publication = Publication::new(Domain::directory(dir), name.clone());
        let publication = publication.expect("a directory of this user");
        Self {
            channels: ListenerChannels::new(entry, publication, to).expect("descriptors"),
            name,
            to,
            begin: Instant::now(),
            claimed: Vec::new(),
        }
    }

    /// A client that has sent nothing yet.
    #[must_use]
    pub fn connect(&self, dir: &Path) -> FuzzClient {
        let channel = Domain::directory(dir).connect(&self.name);
        let (mailbox, file) = Mailbox::create(permit()).expect("memory");
        FuzzClient {
            channel: channel.expect("the listener is announced"),
            mailbox,
            file,
        }
    }

    /// Receives what clients have sent. Returns how many answers probes got.
    pub fn collect(&mut self) -> usize {
        let mut probes = 0;
        loop {
            let collected = self.channels.collect();
            for probe in &collected.probes {
                probes += 1;
                self.channels.end_probe(probe, Some(probe.to), self.begin);
            }
            if !collected.more {
                return probes;
            }
        }
    }

    /// A connection from this address was accepted. Returns whether an offer for it was claimed.
    pub fn accept(&mut self, from: SocketAddr) -> bool {
        let claimed = self.channels.claim((from, self.to), self.begin);
        self.channels.heartbeat(self.begin);
        let Some(Claimed {
            slot, generation, ..
        }) = claimed
        else {
            return false;
        };
        self.claimed.push(FuzzOffer {
            slot,
            generation,
            read: 0,
        });
        true
    }

    /// Refuses the offers for a connection.
    pub fn refuse(&mut self, from: SocketAddr) {
        self.channels.refuse((from, self.to), Refusal::Policy);
    }

    /// The offers that were claimed.
    pub fn claimed(&mut self) -> &mut Vec<FuzzOffer> {
        &mut self.claimed
    }

    /// Whether no client is left.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.channels.is_empty()
    }
}

impl FuzzOffer {
    /// Reads what the client has written.
    pub fn read(&mut self, len: usize) -> Option<Vec<u8>> {
        self.read_from(Direction::FromClient, len)
    }

    /// Reads the answer of the listener.
    pub fn read_answer(&mut self, len: usize) -> Option<Vec<u8>> {
        self.read_from(Direction::FromListener, len)
    }

    fn read_from(&mut self, direction: Direction, len: usize) -> Option<Vec<u8>> {
        let mut bytes = vec![0; len];
        let read = self.slot.read(direction, self.read, &mut bytes)?;
        self.read += read;
        bytes.truncate(read);
        Some(bytes)
    }

    /// Writes a part of the answer, and takes the offer. Returns whether it was still there.
    pub fn answer(&self, message: &[u8]) -> bool {
        let written = self.slot.write(Direction::FromListener, message);
        written.is_ok() && self.slot.take(self.generation)
    }

    /// Withdraws the offer. Returns whether it had no answer.
    pub fn withdraw(&self) -> bool {
        self.slot.withdraw(self.generation)
    }

    /// Whether the offer was taken, and withdrawn.
    #[must_use]
    pub fn state(&self) -> (bool, bool) {
        let state = self.slot.state(self.generation);
        let is_withdrawn = matches!(state, OfferState::Withdrawn | OfferState::Cancelled);
        (state == OfferState::Taken, is_withdrawn)
    }

    /// Whether the early CONFIRM of the slot is for this ACCEPT, and is this CONFIRM; nothing
    /// without an early CONFIRM.
    #[must_use]
    pub fn early(&self, accept: &[u8], confirm: &[u8]) -> Option<(bool, bool)> {
        let early = self.slot.early()?;
        Some((early.expects(accept), early.is_same_confirm(confirm)))
    }

    /// Ends the listener's direction.
    pub fn close(&self) {
        self.slot.close(Direction::FromListener);
        let _ = self.slot.needs_wake(Direction::FromListener);
    }
}

impl FuzzClient {
    /// HELLO with the mailbox.
    pub fn introduce(&self) {
        let netns = NetNs::current().expect("a network namespace");
        self.send(&ToListener::Hello { netns }.encode(), true);
    }

    /// Any packet, with the file of the mailbox or without. A full queue loses it.
    pub fn send(&self, packet: &[u8], has_file: bool) {
        let file = has_file.then(|| self.file.as_fd());
        let _full = send(&self.channel, packet, file.as_slice());
    }

    /// The next packet of the listener; nothing when it has sent none or has ended the channel.
    #[must_use]
    pub fn receive(&self) -> Option<Vec<u8>> {
        let mut packet = [0; MAX_LEN];
        match receive(&self.channel, &mut packet, 1) {
            Received::Packet(packet, _) => Some(packet.to_vec()),
            _ => None,
        }
    }

    /// Makes an offer in a slot below [`SLOTS`].
    #[must_use]
    pub fn offer(
        &self,
        number: u32,
        (from, to): (SocketAddr, SocketAddr),
        message: &[u8],
        early: Option<(&[u8], &[u8])>,
    ) -> Option<FuzzOffer> {
        let slot = self.mailbox.slot(number)?;
        let announcement = Announcement {
            cookie: 0,
            from,
            to,
        };
        let early = early.map(|(accept, confirm)| EarlyConfirm {
            accept: accept.to_vec(),
            confirm: confirm.to_vec(),
        });
        let generation = slot.offer(announcement, message, early.as_ref())?;
        self.mailbox.insert(from.port(), number).then_some(())?;
        Some(FuzzOffer {
            slot,
            generation,
            read: 0,
        })
    }

    /// Removes the slot of an offer from the index.
    pub fn remove(&self, port: u16, number: u32) {
        self.mailbox.remove(port, number);
    }

    /// Writes a word of the mailbox, at a multiple of 8 below [`LEN`].
    pub fn set_word(&self, at: usize, word: u64) {
        self.mailbox.word(at).store(word, Ordering::SeqCst);
    }

    /// Reads a word of the mailbox.
    #[must_use]
    pub fn word(&self, at: usize) -> u64 {
        self.mailbox.word(at).load(Ordering::SeqCst)
    }
}

fn permit() -> Permit {
    let user = rustix::process::geteuid().as_raw();
    mappings::take(user).expect("a target has few mappings")
}
