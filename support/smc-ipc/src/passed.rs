//! Descriptors that peers pass over UNIX sockets, closed without blocking the caller.
//!
//! Closing the last descriptor of a file can block without a limit that this process controls: a
//! TCP socket that lingers, a file of a FUSE file system. The same holds for descriptors in unread
//! packets when the socket is closed. Nor is an eventfd closed at once: the last close of one takes
//! the mutex of each epoll set that watches it, and a process can hold the mutex of its own set for
//! any time. The last file that is open on a mount can end the mount, with all mounts below it. And
//! the last close of a memory file, or the end of its last mapping, wakes all who watch the file,
//! which takes time for each of up to millions of epoll entries.
//! So only files of `memfd_create(2)` that a process of the own user has are closed in place, and
//! those that are mapped ([`PeerFile`]). All else is closed, or unmapped ([`PeerMemory`]), by
//! threads of their own, and no call that could block is made on it.
//!
//! A socket over which no descriptor is to be passed can have the kernel refuse them
//! ([`refuse_descriptors`]), where that is new enough.
//!
//! Descriptors that wait to be closed are counted by the user who passed them; those of all users
//! who are not allowed together. At 64 descriptors of a user, or as many eventfds and memory files
//! as are a quarter of the descriptors that the process may have, nothing more is received from
//! this user, and their connections are refused. While the descriptors of all users are half of
//! those that the process may have, no connection is accepted ([`has_descriptors`]).

mod closing;
mod file;
mod listener;
mod memory;
mod reserve;

pub use closing::{has_descriptors, is_behind};
pub use file::PeerFile;
pub use listener::Listener;
pub use memory::PeerMemory;
pub use reserve::{NotAccepted, Reserve, accept};

use std::fmt;
use std::io::{self, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::OnceLock;

use nix::libc;
use nix::sys::socket::{setsockopt, sockopt};
use rustix::fs::{AtFlags, FileType, StatxFlags, statx};
use rustix::io::{Errno, retry_on_intr};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, Shutdown, SocketType, recv,
    recvmsg, shutdown,
    sockopt::{set_socket_oobinline, socket_type},
};

use self::closing::{Content, MAX_WAITING, Share, close_elsewhere, is_full};
use crate::{Credentials, is_own_user};

/// A UNIX socket to an untrusted process, of the type `SOCK_SEQPACKET` or `SOCK_STREAM`.
///
/// Dropping it ends the connection, for all processes that share the socket, and never blocks,
/// whatever was passed over it and not received. It ends at once with a user who may be a peer.
/// With all other users another thread ends it: each system call that wakes a peer costs time for
/// each epoll set that watches the peer's socket, of which there can be millions.
pub struct PeerSocket {
    /// Taken when dropped.
    socket: Option<OwnedFd>,
    /// Read at the first use: the socket may not be connected before.
    user: OnceLock<u32>,
    /// As of [`is_stream`]. Read at the first use.
    is_stream: OnceLock<bool>,
    /// The user may be a peer.
    is_allowed: bool,
    /// Nothing can be passed over it.
    refuses_descriptors: bool,
}

impl From<OwnedFd> for PeerSocket {
    fn from(socket: OwnedFd) -> Self {
        Self {
            socket: Some(socket),
            user: OnceLock::new(),
            is_stream: OnceLock::new(),
            is_allowed: false,
            refuses_descriptors: false,
        }
    }
}

impl PeerSocket {
    /// Counts what the peer passes to its user alone. To be called once it is known that this user
    /// may be a peer: until then it is counted to all users who are not allowed, unless the user is
    /// that of this process.
    pub fn set_allowed(&mut self) {
        self.is_allowed = true;
    }

    /// Nothing was passed over it, nor can be: [`refuse_descriptors`] was successful with it before
    /// it was connected, or with the socket that it was accepted from before that listened. The
    /// socket of a user who may be a peer is then closed as any other one is: what was not read
    /// resets the connection.
    pub fn set_refuses_descriptors(&mut self) {
        self.refuses_descriptors = true;
    }

    /// The user at the other end.
    fn user(&self) -> u32 {
        *self.user.get_or_init(|| user_of(self.as_fd()))
    }

    fn is_stream(&self) -> Result<bool, Errno> {
        if let Some(is_stream) = self.is_stream.get() {
            return Ok(*is_stream);
        }
        let is_stream = is_stream(self)?;
        Ok(*self.is_stream.get_or_init(|| is_stream))
    }

    /// What it counts to that descriptors of the peer wait to be closed.
    fn share(&self) -> Share {
        match self.user() {
            user if self.is_allowed || is_own_user(user) => Share::User(user),
            _ => Share::NotAllowed,
        }
    }

    /// Has another thread send these bytes, if there are any, and end the connection.
    fn refuse(&mut self, refusal: Vec<u8>) {
        let share = self.share();
        if let Some(socket) = self.socket.take() {
            close_elsewhere(Content::Refused(socket, refusal), share);
        }
    }

    /// Whether nothing can be received from this user now, because too much of what they have
    /// passed waits to be closed.
    fn is_of_no_use(&self) -> bool {
        is_full(|| self.share())
    }
}

impl AsFd for PeerSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        let socket = self.socket.as_ref().expect("taken by `drop` alone");
        socket.as_fd()
    }
}

impl Drop for PeerSocket {
    fn drop(&mut self) {
        if self.socket.is_none() {
            return;
        }
        let share = self.share();
        if share == Share::NotAllowed {
            return self.refuse(Vec::new());
        }
        let Some(socket) = self.socket.take() else {
            return;
        };
        if self.refuses_descriptors {
            return;
        }
        // From here on nothing can be added to what is unread.
        let ended = shutdown(&socket, Shutdown::Both);
        if ended.is_err() || !is_emptied(&socket) {
            close_elsewhere(Content::Unread(socket), share);
        }
    }
}

impl fmt::Debug for PeerSocket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("PeerSocket").field(&self.socket).finish()
    }
}

/// A packet that was received.
#[derive(Debug)]
#[non_exhaustive]
pub struct Packet {
    /// Bytes of it in the buffer; 0 also at the end of the connection.
    pub len: usize,
    /// There were more bytes than fit the buffer.
    pub is_cut: bool,
    /// Descriptors that came with it, in order.
    pub passed: Vec<Passed>,
}

impl Packet {
    /// Whether it came with more descriptors than `most`, or with one that no protocol here passes.
    /// End the connection then.
    #[must_use]
    pub fn is_overloaded(&self, most: usize) -> bool {
        let is_unsuitable = |passed: &Passed| matches!(passed, Passed::Unsuitable);
        self.passed.len() > most || self.passed.iter().any(is_unsuitable)
    }
}

/// A descriptor that came with a packet.
#[derive(Debug)]
#[non_exhaustive]
pub enum Passed {
    /// A memory file or an eventfd.
    File(PeerFile),
    /// Of another kind. It is closed, or will be soon.
    Unsuitable,
    /// One or more, the last of a packet, for which this process has no descriptors left
    /// (`RLIMIT_NOFILE`). The packet is still unread, so end the connection.
    Lost,
}

/// Receives a packet without waiting.
///
/// # Errors
///
/// As `recvmsg(2)`; [`WouldBlock`](io::ErrorKind::WouldBlock) if there is nothing now. If too many
/// descriptors that this user has passed wait to be closed: the connection has to be ended then.
pub fn receive(socket: &PeerSocket, buf: &mut [u8]) -> io::Result<Packet> {
    if socket.is_of_no_use() {
        let user = socket.user();
        let why =
            format!("{MAX_WAITING} descriptors that user {user} has passed are not closed yet");
        return Err(io::Error::other(why));
    }
    // A descriptor for which this process has no number is closed by the call that receives the
    // packet, and closing may wait. A packet that stays in the queue keeps what came with it, so it
    // is peeked at, and taken from the queue by a call of its own.
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(SCM_MAX_FD))];
    let mut control = RecvAncillaryBuffer::new(&mut []);
    let mut receive = |control: &mut RecvAncillaryBuffer<'_>, more| {
        let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC | more;
        let mut once =
            || retry_on_intr(|| recvmsg(socket, &mut [IoSliceMut::new(buf)], control, flags));
        match once() {
            // The other side closed with unread packets. Its own ones come behind this.
            Err(Errno::CONNRESET) => once(),
            received => received,
        }
    };
    // Not of a stream, of which a look shows what came with later bytes.
    let is_stream = socket.is_stream()?;
    let without_rights = match is_stream {
        true => None,
        false => {
            let next = receive(&mut control, RecvFlags::PEEK)?;
            Some(next).filter(|next| !next.flags.contains(ReturnFlags::CTRUNC))
        }
    };
    let received = match without_rights {
        Some(received) => received,
        None => {
            control = RecvAncillaryBuffer::new(&mut space);
            let more = match is_stream {
                true => RecvFlags::empty(),
                false => RecvFlags::PEEK,
            };
            receive(&mut control, more)?
        }
    };
    // `space` was sufficient, so this process has no descriptors left.
    let has_lost = received.flags.contains(ReturnFlags::CTRUNC);
    if !is_stream && !has_lost {
        retry_on_intr(|| recv(socket, &mut [0; 1][..], RecvFlags::DONTWAIT))?;
    }
    let (mut passed, mut unsuitable) = (Vec::new(), Vec::new());
    for message in control.drain() {
        let RecvAncillaryMessage::ScmRights(rights) = message else {
            continue;
        };
        let share = socket.share();
        for fd in rights {
            match PeerFile::received(fd, share) {
                Ok(file) => passed.push(Passed::File(file)),
                Err(fd) => {
                    passed.push(Passed::Unsuitable);
                    unsuitable.push(fd);
                }
            }
        }
    }
    if !unsuitable.is_empty() {
        close_elsewhere(Content::Passed(unsuitable), socket.share());
    }
    if has_lost {
        passed.push(Passed::Lost);
    }
    Ok(Packet {
        len: received.bytes,
        is_cut: received.flags.contains(ReturnFlags::TRUNC),
        passed,
    })
}

/// Has the kernel refuse what is passed over a UNIX socket, and over those that are accepted from
/// it (`SO_PASSRIGHTS`, Linux 6.16): the peer's call fails. Returns whether the kernel does so. To
/// be called before the socket is connected or listens.
#[must_use]
pub fn refuse_descriptors(socket: &impl AsFd) -> bool {
    // There the number has another meaning.
    let has_other_numbers = cfg!(any(target_arch = "sparc", target_arch = "sparc64"));
    !has_other_numbers && setsockopt(socket, PassRights, &0).is_ok()
}

/// Whether descriptors can be passed.
#[derive(Clone, Copy, Debug)]
struct PassRights;

nix::setsockopt_impl!(
    PassRights,
    libc::SOL_SOCKET,
    SO_PASSRIGHTS,
    libc::c_int,
    sockopt::SetStruct<'_, libc::c_int>
);

const SO_PASSRIGHTS: libc::c_int = 83;

/// Whether a descriptor can be an eventfd: its file has no type. Neither its file system nor
/// another user can block this.
///
/// Others without a type are epoll sets, timers and the like. A write to these fails, or concerns
/// only the peer that has passed them. `/proc/self/fd` would distinguish them, but any user can
/// hold the lock of `/proc/<pid>`.
#[must_use]
pub fn is_eventfd(fd: BorrowedFd<'_>) -> bool {
    let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
    statx(fd, "", flags, StatxFlags::TYPE)
        .is_ok_and(|stat| FileType::from_raw_mode(stat.stx_mode.into()) == FileType::Unknown)
}

/// Whether a socket is a stream. What comes with an urgent byte of it (`MSG_OOB`) is received in
/// its place from then on: a look would pass over the byte, and a call that receives would drop it.
fn is_stream(socket: impl AsFd) -> Result<bool, Errno> {
    let is_stream = socket_type(&socket)? == SocketType::STREAM;
    if is_stream {
        set_socket_oobinline(socket, true)?;
    }
    Ok(is_stream)
}

/// The user at the other end; `u32::MAX` if the system does not report it.
fn user_of(socket: BorrowedFd<'_>) -> u32 {
    Credentials::of_peer(&socket).map_or(u32::MAX, |peer| peer.uid)
}

/// Receives what is left in a socket that was shut down, up to a packet with descriptors; whether
/// that was all. Receives few packets only: the peer decides how many there are, and the caller is
/// an executor.
///
/// No descriptor is received: without a free one here, the system would close it in this call.
fn is_emptied(socket: &OwnedFd) -> bool {
    // Every packet carries a time from now on, so empty ones differ from the end.
    if setsockopt(socket, sockopt::ReceiveTimestamp, &true).is_err() {
        return false;
    }
    let space = match is_stream(socket) {
        // Its bytes have none.
        Ok(true) => 0,
        Ok(false) => TIME_SPACE,
        Err(_) => return false,
    };
    let mut bytes = [0; UNREAD_LEN];
    let mut received = 0;
    for _ in 0..MAX_PEEKS {
        let next = match peek(socket, &mut bytes, space) {
            // The other side closed with unread data, which is reported once.
            Err(Errno::INTR | Errno::CONNRESET) => continue,
            Err(Errno::NOTCONN) => return true,
            Err(_) => return false,
            Ok((_, is_cut)) if is_cut => return false,
            Ok((len, _)) => len,
        };
        if next == 0 && !has_more(socket) {
            return true;
        }
        if received == MAX_UNREAD {
            return false;
        }
        received += 1;
        // No more than was peeked at: what follows in a stream may have come with descriptors.
        if recv(socket, &mut bytes[..next], RecvFlags::DONTWAIT).is_err() {
            return false;
        }
    }
    false
}

/// Whether there is a packet, if only an empty one, in a socket whose packets carry times.
fn has_more(socket: &OwnedFd) -> bool {
    peek(socket, &mut [0], 0) != Ok((0, false))
}

/// Peeks at the next packet, or at the next bytes of a stream. Returns their number, and whether
/// more came with them than fits the space. All of it stays in the queue, so nothing is closed.
fn peek(socket: &OwnedFd, bytes: &mut [u8], space: usize) -> Result<(usize, bool), Errno> {
    let flags = RecvFlags::DONTWAIT | RecvFlags::PEEK;
    let mut times = [MaybeUninit::uninit(); TIME_SPACE];
    let mut control = RecvAncillaryBuffer::new(&mut times[..space]);
    let next = recvmsg(socket, &mut [IoSliceMut::new(bytes)], &mut control, flags)?;
    Ok((next.bytes, next.flags.contains(ReturnFlags::CTRUNC)))
}

/// Descriptors that a packet can carry.
const SCM_MAX_FD: usize = 253;

/// Packets that are received to close a socket; more are left to a thread.
const MAX_UNREAD: usize = 2;

/// One for each of these packets, for the end, and for errors that are reported once.
const MAX_PEEKS: usize = MAX_UNREAD + 4;

/// Bytes of a stream that are received at a time to close it.
const UNREAD_LEN: usize = 4096;

/// Control space for a packet's time, which is as long as credentials, and for no descriptor.
const TIME_SPACE: usize = rustix::cmsg_space!(ScmCredentials(1));

#[cfg(test)]
mod tests;
