//! The hostile peer: its device, and the handshakes that it does correctly before it does not.

use std::fmt;
use std::io::{self, IoSlice, Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use rustix::net::sockopt::set_socket_linger;
use smc_core::device::{Attachment, Direct, Dmb, Signal, SubmitError};
use smc_core::wire::cdc::{CdcD, ConsumerWord, ProducerWord, StateFlags};
use smc_core::wire::clc::{
    AcceptConfirm, AcceptKind, Body, DirectEnd, Frame, HEADER_LEN, Message, Terms,
};
use smc_core::wire::cursor::{Cursor, Ring};
use smc_core::wire::size::SizeCode;
use smc_wire::types::{DeclineCode, DmbToken, Gid};

use super::super::fixture::{
    OrFail, SMALL, Stop, Verdict, ensure, eventually, fail, load, skip, wait,
};
use super::super::node::{Node, until_taken};
use super::super::provider::{Kill, Provider};
use crate::Rng;
use crate::streams::patterned;
use crate::world::{answer_from, messages, proposal_from};

/// What an attacker knows of its victim, and of the victim's other peers.
#[derive(Clone, Debug)]
pub(super) struct Target {
    /// Where the victim listens, with an endpoint that assumes that each client supports SMC, and
    /// sends back what it reads.
    pub(super) address: SocketAddr,
    /// Its device.
    pub(super) victim: Gid,
    /// Buffers of connections of others, with the device that each belongs to.
    pub(super) others: Vec<(Gid, DmbToken)>,
}

/// A peer with an ordinary device that keeps to no rule.
pub(super) struct Attacker<'p> {
    provider: &'p dyn Provider,
    node: Option<Node>,
    kill: Option<Kill>,
    target: Target,
    invite: Option<Invite<'p>>,
    pub(super) rng: Rng,
}

/// Has the victim connect to an address.
pub(super) type Invite<'p> = Box<dyn Fn(SocketAddr) + 'p>;

impl<'p> Attacker<'p> {
    pub(super) fn with_node(
        provider: &'p dyn Provider,
        (node, kill): (Node, Option<Kill>),
        target: Target,
    ) -> Self {
        Self {
            provider,
            node: Some(node),
            kill,
            target,
            invite: None,
            rng: Rng::new(0x0bad_5eed),
        }
    }

    /// With a victim that connects where it is asked to.
    pub(super) fn with_invite(mut self, invite: Invite<'p>) -> Self {
        self.invite = Some(invite);
        self
    }

    /// Whether the device is still there.
    pub(super) fn has_device(&self) -> bool {
        self.node.is_some()
    }

    /// Takes the device off the fabric, as if the process had been killed.
    pub(super) fn vanish(&mut self) -> Verdict {
        match (self.node.take(), self.kill.take()) {
            (Some(node), Some(kill)) => {
                kill(node.into_device());
                Ok(())
            }
            _ => skip("the provider cannot kill a device"),
        }
    }

    /// How long anything may take.
    pub(super) fn timeout(&self) -> Duration {
        self.provider.effort().timeout
    }

    pub(super) fn victim(&self) -> Gid {
        self.target.victim
    }

    pub(super) fn others(&self) -> &[(Gid, DmbToken)] {
        &self.target.others
    }

    pub(super) fn node(&self) -> Result<&Node, Stop> {
        self.node
            .as_ref()
            .map_or_else(|| fail("the device is gone"), Ok)
    }

    pub(super) fn direct(&self) -> Result<&dyn Direct, Stop> {
        Ok(self.node()?.direct())
    }

    /// A set-up call, while the device is drained.
    pub(super) fn wait<T: Send>(
        &self,
        what: &str,
        call: impl Future<Output = T> + Send,
    ) -> Result<T, Stop> {
        wait(self.provider, [self.node.as_ref(), None, None], what, call)
    }

    /// Drains the device until the condition holds.
    pub(super) fn eventually(
        &self,
        what: &str,
        condition: impl FnMut() -> Result<bool, Stop>,
    ) -> Verdict {
        eventually(self.timeout(), what, condition, || {
            if let Some(node) = &self.node {
                node.forget()?;
            }
            thread::sleep(Duration::from_micros(50));
            Ok(())
        })
    }

    /// A buffer for a device, of the smallest size.
    pub(super) fn register(&self, peer: Gid) -> Result<Arc<dyn Dmb>, Stop> {
        let registered = self.wait("register", self.direct()?.register(peer, SMALL))?;
        registered.or_fail("register")
    }

    /// A TCP connection to the victim.
    pub(super) fn connect(&self) -> Result<Tcp, Stop> {
        let stream = TcpStream::connect(self.target.address).or_fail("connect")?;
        self.tcp(stream)
    }

    /// A TCP connection of the victim, which is about to begin a handshake.
    pub(super) fn invite(&self) -> Result<Tcp, Stop> {
        let Some(invite) = &self.invite else {
            return skip("the victim connects to nothing");
        };
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).or_fail("bind")?;
        listener.set_nonblocking(true).or_fail("bind")?;
        invite(listener.local_addr().or_fail("bind")?);
        let mut accepted = None;
        self.eventually("the victim connects", || {
            accepted = listener.accept().ok();
            Ok(accepted.is_some())
        })?;
        let stream = accepted.map(|(stream, _)| stream);
        stream.map_or_else(|| fail("no connection"), |stream| self.tcp(stream))
    }

    fn tcp(&self, stream: TcpStream) -> Result<Tcp, Stop> {
        let timeout = Some(self.timeout());
        stream.set_nonblocking(false).or_fail("socket")?;
        stream.set_read_timeout(timeout).or_fail("socket")?;
        stream.set_write_timeout(timeout).or_fail("socket")?;
        Ok(Tcp(stream))
    }

    /// A handshake as client, up to the ACCEPT. The victim may decline while it still has the
    /// buffers of connections that have ended.
    pub(super) fn propose(&self) -> Result<Accepted, Stop> {
        let mut accepted = None;
        self.eventually("the victim accepts a connection", || {
            let mut tcp = self.connect()?;
            tcp.send(&proposal_from(self.direct()?))
                .or_fail("PROPOSAL")?;
            let message = tcp.message().or_fail("ACCEPT")?;
            accepted = match Message::parse(&message).or_fail("ACCEPT")? {
                Message::Accept(AcceptConfirm {
                    terms,
                    body: Body::D(end),
                    ..
                }) => Some(Accepted { tcp, terms, end }),
                Message::Decline(decline) if decline.diagnosis == DeclineCode::MEM => None,
                Message::Decline(decline) => return fail(decline.diagnosis.to_string()),
                other => return fail(format!("{} in place of ACCEPT", other.kind())),
            };
            Ok(accepted.is_some())
        })?;
        accepted.map_or_else(|| fail("no connection"), Ok)
    }

    /// A whole handshake as client.
    pub(super) fn open(&self) -> Result<Connection, Stop> {
        self.propose()?.confirm(self)
    }

    /// Moves bytes into a buffer, and signals. Drains the device while it is busy.
    pub(super) fn put(
        &self,
        (owner, token): (Gid, DmbToken),
        at: usize,
        bytes: &[u8],
    ) -> Result<Result<(), SubmitError>, Stop> {
        let (node, at) = (self.node()?, u32::try_from(at).or_fail("offset of a move")?);
        let data = [IoSlice::new(bytes)];
        until_taken(self.timeout(), || {
            let moved = node
                .direct()
                .move_data(owner, token, at, &data, Signal::Yes);
            if moved == Err(SubmitError::WouldBlock) {
                // What a drain reports does not matter.
                let _drained = node.forget();
            }
            moved
        })
    }

    /// Maps a buffer, if the device can.
    pub(super) fn attach(
        &self,
        (owner, token): (Gid, DmbToken),
    ) -> Result<Option<Arc<dyn Attachment>>, Stop> {
        let Some(nocopy) = self.direct()?.nocopy() else {
            return Ok(None);
        };
        Ok(self.wait("attach", nocopy.attach(owner, token))?.ok())
    }

    /// A buffer that is not this peer's can be neither written nor mapped.
    pub(super) fn expect_refused(&self, buffer: (Gid, DmbToken)) -> Verdict {
        let moved = self.put(buffer, CdcD::LEN, &[0xee; 64])?;
        ensure!(moved.is_err(), "a move to {:?} is taken", buffer);
        ensure!(self.attach(buffer)?.is_none(), "{:?} can be mapped", buffer);
        Ok(())
    }
}

impl fmt::Debug for Attacker<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Attacker")
            .field("node", &self.node)
            .field("target", &self.target)
            .finish_non_exhaustive()
    }
}

/// A TCP connection, which ends by a reset: no port stays in use.
pub(super) struct Tcp(TcpStream);

impl Tcp {
    pub(super) fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.0.write_all(bytes)
    }

    /// The next message of the handshake.
    pub(super) fn message(&mut self) -> io::Result<Vec<u8>> {
        let mut message = vec![0; HEADER_LEN];
        self.0.read_exact(&mut message)?;
        let frame = Frame::peek(&message).map_err(io::Error::other)?;
        let length = frame.map_or(HEADER_LEN, |frame| frame.length());
        message.resize(length, 0);
        self.0.read_exact(&mut message[HEADER_LEN..])?;
        Ok(message)
    }

    /// Waits until the victim has ended the connection.
    pub(super) fn await_end(&mut self) -> Verdict {
        let mut bytes = [0; 512];
        loop {
            match self.0.read(&mut bytes) {
                Ok(1..) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    return fail("not in time: the victim ends the connection");
                }
                Ok(0) | Err(_) => return Ok(()),
            }
        }
    }

    /// Gives the victim a moment to answer, or to end the connection. It may do neither.
    pub(super) fn await_answer(&mut self) {
        let _set = self.0.set_read_timeout(Some(Duration::from_millis(20)));
        let _answer = self.message();
    }
}

impl Drop for Tcp {
    fn drop(&mut self) {
        let _ended = set_socket_linger(&self.0, Some(Duration::ZERO));
    }
}

/// A handshake that is at its ACCEPT.
pub(super) struct Accepted {
    pub(super) tcp: Tcp,
    pub(super) terms: Terms,
    /// The victim's device and buffer.
    pub(super) end: DirectEnd,
}

impl Accepted {
    /// A CONFIRM that goes with the ACCEPT, and names this buffer.
    pub(super) fn confirmation(
        &self,
        attacker: &Attacker<'_>,
        dmb: DmbToken,
    ) -> Result<AcceptConfirm, Stop> {
        let device = attacker.direct()?;
        let mut confirm = answer_from(device, AcceptKind::Confirm, dmb, SizeCode::MIN);
        if let (
            Terms::V2 { eid, first_contact },
            Terms::V2 {
                eid: ours,
                first_contact: our_contact,
            },
        ) = (&self.terms, &mut confirm.terms)
        {
            *ours = *eid;
            if first_contact.is_none() {
                *our_contact = None;
            }
        }
        Ok(confirm)
    }

    /// The victim's buffer.
    pub(super) fn buffer(&self) -> (Gid, DmbToken) {
        (self.end.gid, self.end.dmb)
    }

    /// The rest of a correct handshake.
    pub(super) fn confirm(mut self, attacker: &Attacker<'_>) -> Result<Connection, Stop> {
        let own = attacker.register(self.end.gid)?;
        let confirm = self.confirmation(attacker, own.token())?;
        self.tcp
            .send(&messages::bytes(&confirm))
            .or_fail("CONFIRM")?;
        Ok(Connection {
            buffer: self.buffer(),
            ring: self.end.size.ring_d(),
            tcp: self.tcp,
            own,
            written: Cursor::START,
            echoed: Cursor::START,
        })
    }
}

/// An SMC-D connection with the victim.
pub(super) struct Connection {
    pub(super) tcp: Tcp,
    own: Arc<dyn Dmb>,
    /// The victim's buffer, and the ring in it.
    pub(super) buffer: (Gid, DmbToken),
    pub(super) ring: Ring,
    pub(super) written: Cursor,
    /// How much of it the victim should have sent back.
    echoed: Cursor,
}

impl Connection {
    /// Stores bytes in the victim's buffer, and signals. What becomes of it does not matter: the
    /// victim may have ended the connection.
    pub(super) fn store(&self, attacker: &Attacker<'_>, at: usize, bytes: &[u8]) -> Verdict {
        attacker.put(self.buffer, at, bytes).map(drop)
    }

    pub(super) fn store_producer(&self, attacker: &Attacker<'_>, cursor: Cursor) -> Verdict {
        let word = ProducerWord { cursor }.to_ne();
        self.store(attacker, ProducerWord::OFFSET, &word.to_ne_bytes())
    }

    pub(super) fn store_consumer(&self, attacker: &Attacker<'_>, word: ConsumerWord) -> Verdict {
        self.store(attacker, ConsumerWord::OFFSET, &word.to_ne().to_ne_bytes())
    }

    /// Sends bytes as a peer does that keeps to the rules, before the end of the ring.
    pub(super) fn send(&mut self, attacker: &Attacker<'_>, len: u32) -> Verdict {
        let at = CdcD::LEN + self.written.count as usize;
        self.store(attacker, at, &patterned(len as usize))?;
        self.written = self.ring.advance(self.written, len);
        self.store_producer(attacker, self.written)
    }

    /// Sends bytes, and waits until they have come back, in the first ring of either end.
    pub(super) fn exchange(&mut self, attacker: &Attacker<'_>, len: u32) -> Verdict {
        self.send(attacker, len)?;
        self.echoed = SizeCode::MIN.ring_d().advance(self.echoed, len);
        attacker.eventually("the victim sends back what it was sent", || {
            Ok(self.peer_producer()? == self.echoed)
        })
    }

    /// How far the victim has written.
    pub(super) fn peer_producer(&self) -> Result<Cursor, Stop> {
        let word = load(&*self.own, ProducerWord::OFFSET)?;
        Ok(ProducerWord::from_ne(word).cursor)
    }

    /// How far the victim has published to have read.
    pub(super) fn peer_consumer(&self) -> Result<Cursor, Stop> {
        let word = load(&*self.own, ConsumerWord::OFFSET)?;
        Ok(ConsumerWord::from_ne(word).cursor)
    }

    /// Waits until the victim has ended the connection, while this end does not.
    pub(super) fn await_end(&self, attacker: &Attacker<'_>) -> Verdict {
        attacker.eventually("the victim ends the connection", || {
            let word = ConsumerWord::from_ne(load(&*self.own, ConsumerWord::OFFSET)?);
            let ended = StateFlags::CLOSED | StateFlags::ABORTED;
            let is_freed = attacker.put(self.buffer, 0, &[])?.is_err();
            Ok(word.state_flags.intersects(ended) || is_freed)
        })
    }
}
