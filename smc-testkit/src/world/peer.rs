//! The other end of the TCP connection: a bare socket that follows a script.
//!
//! Messages go where the handshake goes: on TCP, or on the way beside it, if there is one.

use std::future::poll_fn;
use std::io::{self, IoSlice};
use std::net::{Shutdown, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use smc_core::runtime::{Acceptor, Runtime, Socket, SocketOptions};
use smc_core::wire::clc::{ClcType, Message};

use super::messages;
use super::side_channel::SideChannelPipe;

/// What a scripted peer does next.
#[derive(Clone, Debug)]
#[expect(clippy::exhaustive_enums, reason = "tests write all of them")]
pub enum Step {
    /// Takes one message of this type off the stream.
    Takes(ClcType),
    /// Writes a message.
    Sends(Vec<u8>),
    /// Writes a message, or the first part of one, a byte at a time.
    SendsSlowly(Vec<u8>),
    /// Writes a message and application data behind it, in one segment where both go over TCP.
    SendsWith(Vec<u8>, &'static [u8]),
    /// Writes application data.
    SendsFirst(&'static [u8]),
    /// Writes application data, a byte at a time.
    SendsFirstSlowly(&'static [u8]),
    /// Ends the way beside TCP and nothing else.
    LetsGo,
    /// Closes the connection.
    HangsUp,
    /// Resets the connection.
    Resets,
}

/// A TCP socket without any SMC.
#[derive(Debug)]
pub struct Raw {
    rt: Arc<dyn Runtime>,
    socket: Arc<dyn Socket>,
    side_channel: Option<SideChannelPipe>,
}

/// A TCP listener without any SMC.
#[derive(Debug)]
pub struct RawListener {
    rt: Arc<dyn Runtime>,
    acceptor: Arc<dyn Acceptor>,
}

impl RawListener {
    pub(super) fn new(rt: &Arc<dyn Runtime>, at: SocketAddr) -> Self {
        let acceptor = rt.bind(at, &SocketOptions::default(), &mut |_| Ok(()));
        Self {
            rt: Arc::clone(rt),
            acceptor: acceptor.unwrap(),
        }
    }

    /// Its socket.
    pub fn acceptor(&self) -> &dyn Acceptor {
        &*self.acceptor
    }

    /// The next connection.
    ///
    /// # Panics
    ///
    /// If it cannot be accepted.
    pub async fn accept(&self) -> Raw {
        let (socket, _) = poll_fn(|cx| self.acceptor.poll_accept(cx)).await.unwrap();
        Raw {
            rt: Arc::clone(&self.rt),
            socket,
            side_channel: None,
        }
    }
}

/// How a stream ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_enums, reason = "there is no other end")]
pub enum StreamEnd {
    /// In order.
    Closed,
    /// By a reset.
    Reset,
}

impl Raw {
    pub(super) async fn connect(rt: &Arc<dyn Runtime>, to: SocketAddr) -> Self {
        let options = SocketOptions::default();
        let socket = rt.connect(to, &options, &mut |_| Ok(())).await.unwrap();
        Self {
            rt: Arc::clone(rt),
            socket,
            side_channel: None,
        }
    }

    /// Goes on with the handshake beside TCP.
    #[must_use]
    pub fn beside(self, side_channel: SideChannelPipe) -> Self {
        Self {
            side_channel: Some(side_channel),
            ..self
        }
    }

    /// Follows a script. Gives the socket back, unless the script ended the connection.
    ///
    /// # Panics
    ///
    /// If it cannot go on as written.
    pub async fn follow(mut self, script: &[Step]) -> Option<Self> {
        for step in script {
            match step {
                Step::Takes(kind) => {
                    let message = self.message().await;
                    let message = Message::parse(&message).unwrap();
                    assert_eq!(message.kind(), *kind);
                }
                Step::Sends(bytes) => self.send_handshake(bytes).await,
                Step::SendsSlowly(bytes) => {
                    for byte in bytes {
                        self.send_handshake(&[*byte]).await;
                        self.pause().await;
                    }
                }
                Step::SendsWith(bytes, data) if self.side_channel.is_some() => {
                    self.send_handshake(bytes).await;
                    self.send(data).await;
                }
                Step::SendsWith(bytes, data) => self.send(&[bytes, *data].concat()).await,
                Step::SendsFirst(data) => self.send(data).await,
                Step::SendsFirstSlowly(data) => {
                    for byte in *data {
                        self.send(&[*byte]).await;
                        self.pause().await;
                    }
                }
                Step::LetsGo => self.side_channel = None,
                Step::HangsUp => return None,
                Step::Resets => {
                    self.socket.set_linger(Some(Duration::ZERO)).unwrap();
                    return None;
                }
            }
        }
        Some(self)
    }

    async fn pause(&self) {
        let pause = Duration::from_micros(200);
        self.rt.timer(self.rt.now() + pause).await;
    }

    /// Writes a part of the handshake.
    async fn send_handshake(&self, bytes: &[u8]) {
        match &self.side_channel {
            Some(side_channel) => side_channel.deliver(bytes),
            None => self.send(bytes).await,
        }
    }

    /// Writes all of it on TCP.
    ///
    /// # Panics
    ///
    /// If the connection has ended.
    pub async fn send(&self, bytes: &[u8]) {
        let mut rest = bytes;
        while !rest.is_empty() {
            let wrote = poll_fn(|cx| self.socket.poll_write(cx, &[IoSlice::new(rest)]));
            rest = &rest[wrote.await.unwrap()..];
        }
    }

    /// Reads exactly one message of the handshake.
    ///
    /// # Panics
    ///
    /// If none comes.
    pub async fn message(&self) -> Vec<u8> {
        if let Some(side_channel) = &self.side_channel {
            return side_channel.message().await;
        }
        messages::message(async |part| self.read(part).await.unwrap()).await
    }

    /// Reads so many bytes.
    ///
    /// # Panics
    ///
    /// If fewer come.
    pub async fn exactly(&self, count: usize) -> Vec<u8> {
        messages::exactly(count, async |part| self.read(part).await.unwrap()).await
    }

    /// Reads everything that still comes on TCP.
    ///
    /// # Panics
    ///
    /// If the stream ends neither in order nor by a reset.
    pub async fn rest(&self) -> (Vec<u8>, StreamEnd) {
        let mut all = Vec::new();
        let mut part = [0; 4096];
        loop {
            match self.read(&mut part).await {
                Ok(0) => return (all, StreamEnd::Closed),
                Ok(count) => all.extend(&part[..count]),
                Err(error) if error.kind() == io::ErrorKind::ConnectionReset => {
                    return (all, StreamEnd::Reset);
                }
                Err(error) => panic!("{error}"),
            }
        }
    }

    /// Reads to the end, before which nothing comes any more.
    ///
    /// # Panics
    ///
    /// If something comes.
    pub async fn expect_end(&self) {
        assert_eq!(self.rest().await.0, b"");
    }

    /// The same, and the end is a reset.
    ///
    /// # Panics
    ///
    /// If something comes, or an end in order.
    pub async fn expect_reset(&self) {
        assert_eq!(self.rest().await, (Vec::new(), StreamEnd::Reset));
    }

    /// Ends writing.
    ///
    /// # Panics
    ///
    /// If the connection has ended.
    pub fn finish(&self) {
        self.socket.shutdown(Shutdown::Write).unwrap();
    }

    /// The socket.
    pub fn socket(&self) -> &dyn Socket {
        &*self.socket
    }

    /// The address of the other end.
    ///
    /// # Panics
    ///
    /// If the connection has ended.
    pub fn peer_addr(&self) -> SocketAddr {
        self.socket.peer_addr().unwrap()
    }

    /// The own address.
    ///
    /// # Panics
    ///
    /// If the runtime does not tell.
    pub fn local_addr(&self) -> SocketAddr {
        self.socket.local_addr().unwrap()
    }

    async fn read(&self, part: &mut [u8]) -> io::Result<usize> {
        poll_fn(|cx| self.socket.poll_read(cx, part)).await
    }
}
