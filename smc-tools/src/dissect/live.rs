//! Frames from a network interface, by a packet socket.
//!
//! The kernel takes off the header of the interface's own kind, so that there is one form of frame
//! for all kinds of interface: that of Linux cooked captures.

use std::env;
use std::io::{self, IoSliceMut};
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};

use nix::errno::Errno;
use nix::ifaddrs::getifaddrs;
use nix::sys::socket::sockopt::{RcvBuf, RcvBufForce, ReceiveTimestampns, RxqOvfl};
use nix::sys::socket::{
    AddressFamily, ControlMessageOwned, LinkAddr, MsgFlags, SockFlag, SockProtocol, SockType, bind,
    recvmsg, setsockopt, socket,
};
use nix::sys::time::TimeSpec;
use thiserror::Error;

use super::capture::{CaptureError, Frame, Frames, Timestamp};
use super::link;
use super::watch::Watch;

/// An interface, or all of them, from which frames are captured.
#[derive(Debug)]
pub(super) struct Live<'a> {
    name: String,
    socket: OwnedFd,
    /// Index of the interface; none for all.
    interface: Option<usize>,
    watch: &'a Watch,
    /// Where a frame is received, behind space for a header.
    buffer: Vec<u8>,
    control: Vec<u8>,
    /// Frames so far.
    count: u64,
    lost: u32,
    /// Packets until the next look for a request to end.
    budget: u32,
}

impl<'a> Live<'a> {
    /// Begins to capture.
    pub(super) fn open(name: &str, watch: &'a Watch) -> Result<Self, LiveError> {
        let interface = find(name)?;
        let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
        let socket = socket(
            AddressFamily::Packet,
            SockType::Datagram,
            flags,
            SockProtocol::EthAll,
        )
        .map_err(|error| match error {
            Errno::EPERM | Errno::EACCES => LiveError::NotAllowed(program()),
            error => LiveError::Socket(error),
        })?;
        setsockopt(&socket, ReceiveTimestampns, &true).map_err(LiveError::Socket)?;
        setsockopt(&socket, RxqOvfl, &1).map_err(LiveError::Socket)?;
        // More than the limit of the system takes another capability; less loses more frames.
        let _best_effort = setsockopt(&socket, RcvBufForce, &RECEIVE_BUFFER)
            .or_else(|_| setsockopt(&socket, RcvBuf, &RECEIVE_BUFFER));
        if let Some(address) = interface {
            bind(socket.as_raw_fd(), &address).map_err(LiveError::Socket)?;
        }
        Ok(Self {
            name: name.to_owned(),
            socket,
            interface: interface.map(|address| address.ifindex()),
            watch,
            buffer: vec![0; HEADER + MAX_PACKET],
            control: nix::cmsg_space!(TimeSpec, u32),
            count: 0,
            lost: 0,
            budget: 0,
        })
    }

    /// Frames that the kernel had no space for, as of the last frame.
    pub(super) fn lost(&self) -> u32 {
        self.lost
    }

    /// Receives a packet into the buffer, if there is one that counts.
    fn receive(&mut self) -> Result<Option<Packet>, Errno> {
        let (header, space) = self.buffer.split_at_mut(HEADER);
        let mut parts = [IoSliceMut::new(space)];
        // With this flag the kernel gives the length of the packet, not of what fits.
        let received = recvmsg::<LinkAddr>(
            self.socket.as_raw_fd(),
            &mut parts,
            Some(&mut self.control),
            MsgFlags::MSG_TRUNC,
        )?;
        let mut time = None;
        for message in received.cmsgs()? {
            match message {
                ControlMessageOwned::ScmTimestampns(at) => time = Some(at),
                ControlMessageOwned::RxqOvfl(lost) => self.lost = lost,
                _ => {}
            }
        }
        let Some(from) = received.address else {
            return Ok(None);
        };
        // Packets of other interfaces come until the socket is bound.
        let is_other = self.interface.is_some_and(|it| it != from.ifindex());
        // The loopback interface shows each packet twice: when it is sent, and when it arrives.
        let is_repeated = from.hatype() == LOOPBACK && from.pkttype() == OUTGOING;
        if is_other || is_repeated {
            return Ok(None);
        }
        if let Some(protocol) = header.last_chunk_mut() {
            // In network byte order already.
            *protocol = from.protocol().to_ne_bytes();
        }
        Ok(Some(Packet {
            len: received.bytes,
            time,
        }))
    }

    fn error(&self, error: Errno) -> io::Error {
        match error {
            Errno::ENETDOWN => io::Error::other(format!(
                "the interface is down or removed; bring it up: ip link set {} up",
                self.name
            )),
            error => error.into(),
        }
    }
}

impl Frames for Live<'_> {
    fn next_frame(&mut self) -> Result<Option<Frame<'_>>, CaptureError> {
        // It ends with a frame, or when the user ends it.
        let packet = loop {
            if self.budget == 0 {
                self.budget = BUDGET;
                match self.watch.wait(self.socket.as_fd()) {
                    Ok(true) => {}
                    Ok(false) => return Ok(None),
                    Err(error) => return Err(CaptureError::live(error)),
                }
            }
            self.budget -= 1;
            match self.receive() {
                Ok(Some(packet)) => break packet,
                Ok(None) | Err(Errno::EINTR) => {}
                Err(Errno::EAGAIN) => self.budget = 0,
                Err(error) => return Err(CaptureError::live(self.error(error))),
            }
        };
        self.count = self.count.saturating_add(1);
        let captured = packet.len.min(MAX_PACKET);
        let time = packet.time;
        Ok(Some(Frame {
            number: self.count,
            time: time.map(|time| Timestamp::exact(time.tv_sec(), time.tv_nsec())),
            link: link::LINUX_SLL,
            data: self.buffer.get(..HEADER + captured).unwrap_or_default(),
            missing: packet.len - captured,
        }))
    }
}

/// A packet in the buffer.
struct Packet {
    /// Bytes on the wire.
    len: usize,
    time: Option<TimeSpec>,
}

/// Why frames cannot be captured.
#[derive(Debug, Error)]
pub(super) enum LiveError {
    /// The process has not the right to do it.
    #[error(
        "capturing takes the capability CAP_NET_RAW: run it as root, or once as root: \
         setcap cap_net_raw+ep {0}"
    )]
    NotAllowed(String),
    /// There are other interfaces.
    #[error("there is no such interface; there are {0}, and `any` for all of them")]
    NoInterface(String),
    /// The interfaces cannot be listed.
    #[error("cannot list the interfaces: {0}")]
    List(Errno),
    /// Anything else.
    #[error("cannot capture: {0}")]
    Socket(Errno),
}

/// The interface with this name; none for all of them.
fn find(name: &str) -> Result<Option<LinkAddr>, LiveError> {
    let mut names = Vec::new();
    for interface in getifaddrs().map_err(LiveError::List)? {
        // Each interface has one such address, and possibly others.
        let address = interface.address;
        let Some(address) = address.as_ref().and_then(|it| it.as_link_addr()) else {
            continue;
        };
        if interface.interface_name == name {
            return Ok(Some(*address));
        }
        names.push(interface.interface_name);
    }
    match name {
        ALL => Ok(None),
        _ => Err(LiveError::NoInterface(names.join(", "))),
    }
}

/// The path of this program, for a command line.
fn program() -> String {
    let path = env::current_exe();
    path.map_or_else(|_| "smc".to_owned(), |path| path.display().to_string())
}

/// The name that stands for all interfaces.
const ALL: &str = "any";
/// Bytes of the header of a cooked frame, of which only the protocol at its end is set.
const HEADER: usize = 16;
/// More than a packet has that is segmented by the interface.
const MAX_PACKET: usize = 256 << 10;
/// Bytes that the kernel keeps for a process that is late.
const RECEIVE_BUFFER: usize = 16 << 20;
/// Packets that are received without a look for a request to end.
const BUDGET: u32 = 64;
/// Type of the loopback interface (`ARPHRD_LOOPBACK`).
const LOOPBACK: u16 = 772;
/// Type of a packet that this host sends (`PACKET_OUTGOING`).
const OUTGOING: u8 = 4;
