//! One message found in a capture, before it is decoded.

use std::fmt;
use std::net::{IpAddr, SocketAddr};

use serde::Serialize;
use smc_wire::pretty;

use super::capture::Timestamp;
use super::describe;

/// A message, with where and when it was seen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Message {
    /// The frame that completed it.
    pub(super) mark: Mark,
    pub(super) src: Address,
    pub(super) dst: Address,
    pub(super) family: Family,
    /// Of a TCP option: whether it is in a SYN/ACK.
    pub(super) is_answer: bool,
    pub(super) bytes: Vec<u8>,
    /// Set when not all of its bytes were captured.
    pub(super) cut: Option<Cut>,
    /// The same bytes were seen before in the same place of the sequence.
    pub(super) retransmission: bool,
}

impl Message {
    /// What the bytes are to be read as.
    pub(super) fn content(&self) -> pretty::Family {
        match self.family {
            Family::TcpOption => pretty::Family::TcpOption,
            Family::Clc => pretty::Family::Clc,
            Family::Llc => pretty::Family::Llc,
            Family::Cdc => pretty::Family::CdcR,
        }
    }

    /// The name of the message; of an option, the segment it is in.
    pub(super) fn kind(&self) -> String {
        match (self.family, self.is_answer) {
            (Family::TcpOption, false) => "SYN".to_owned(),
            (Family::TcpOption, true) => "SYN_ACK".to_owned(),
            _ => describe::kind(self.content(), &self.bytes),
        }
    }
}

/// A frame of the capture.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Mark {
    /// Counted from 1.
    pub(super) frame: u64,
    pub(super) time: Option<Timestamp>,
}

/// One end of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Address {
    /// Address and port of TCP.
    Tcp(SocketAddr),
    /// The sender of a RoCE packet, as long as its queue pair is not known.
    Host(IpAddr),
    /// Address and queue pair of RoCE.
    QueuePair(IpAddr, u32),
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => write!(f, "{address}"),
            Self::Host(ip) => write!(f, "{ip}"),
            Self::QueuePair(ip, number) => write!(f, "{ip} qp {number:#x}"),
        }
    }
}

/// The four kinds of SMC message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Family {
    /// The option in SYN and SYN/ACK
    TcpOption,
    /// The handshake on the TCP connection
    Clc,
    /// Link layer control on a queue pair
    Llc,
    /// Cursors and flags of a connection
    Cdc,
}

/// A message that is there in part only.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Cut {
    /// Bytes captured.
    pub(super) got: usize,
    /// Bytes it has, if that much of it is known.
    pub(super) of: Option<usize>,
}

impl fmt::Display for Cut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.of {
            Some(of) => write!(f, "cut off: {} of {of} bytes are in the capture", self.got),
            None => write!(f, "cut off: only {} bytes are in the capture", self.got),
        }
    }
}
