//! What the two ends of a connection do, whatever carries it.
//!
//! A [`Script`] is written once and runs over the kernel's AF_SMC sockets, over plain TCP and over
//! the userspace stack. Bytes follow a pattern that depends on connection, direction and position,
//! so the receiver detects at once when one is missing, doubled or from elsewhere.

mod bench;
mod connection;
mod kernel;
#[cfg(feature = "ours")]
mod ours;
mod pattern;
mod run;
mod script_runner;

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::protocol::SocketMode;

pub(crate) use bench::{
    AFTER, BEFORE, EARLY_DATA_MAX, Measure, ReceiverLoad, Requested, stop_parent,
};
#[cfg(feature = "ours")]
pub(crate) use ours::features;
#[cfg(feature = "ism")]
pub(crate) use pattern::Pattern;
pub(crate) use run::run;

/// What an end is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Kind {
    /// The kernel's AF_SMC.
    Kernel,
    /// The userspace stack.
    Ours,
    /// A plain TCP socket.
    Tcp,
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Kernel => "kernel",
            Self::Ours => "ours",
            Self::Tcp => "tcp",
        })
    }
}

/// Connections, and what one end does on each of them.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Script {
    /// Connections that are open at a time.
    pub(crate) connections: u32,
    /// How often that many are opened and closed again.
    pub(crate) rounds: u32,
    pub(crate) steps: Vec<Step>,
}

/// A thing to do on a connection. What was not closed by the last step is closed after it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Step {
    /// Send that many bytes.
    Send(u64),
    /// Receive that many bytes.
    Receive(u64),
    /// Receive that many bytes, so many at a time, with a pause of milliseconds after each.
    ReceiveSlowly { bytes: u64, chunk: u64, pause: u64 },
    /// Send and receive that many bytes, both at once.
    Exchange(u64),
    /// Send a message of `size` bytes and receive as many, `count` times.
    Echo { size: u64, count: u32 },
    /// The other end of `Echo`.
    EchoBack { size: u64, count: u32 },
    /// Send one byte as urgent data.
    Urgent,
    /// Shut writing down.
    Finish,
    /// Nothing may come any more but the end of the stream.
    End,
    /// Wait for the peer to break the connection off; what it sent before does not matter.
    Broken,
    /// Close so that the peer is notified of unread data.
    Abort,
    /// Do nothing for milliseconds.
    Pause(u64),
    /// Keep the async runtime from running tasks for milliseconds.
    Block(u64),
    /// Tell the host, once for all connections, that the script came here.
    Mark(String),
    /// As `Mark`, then wait for the host's go.
    Gate(String),
}

impl Script {
    /// One connection that does this.
    pub(crate) fn one(steps: impl Into<Vec<Step>>) -> Self {
        Self::many(1, steps)
    }

    /// Several connections, open at the same time, that do this.
    pub(crate) fn many(connections: u32, steps: impl Into<Vec<Step>>) -> Self {
        Self {
            connections,
            rounds: 1,
            steps: steps.into(),
        }
    }

    /// All of that several times.
    pub(crate) fn rounds(mut self, rounds: u32) -> Self {
        self.rounds = rounds;
        self
    }
}

/// What a side reports at its end.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Report {
    /// What carried the connections, each different answer once.
    pub(crate) carriers: Vec<Carrier>,
    pub(crate) connections: u32,
    pub(crate) sent: u64,
    pub(crate) received: u64,
    /// What was measured, in the order of the job.
    pub(crate) measured: Vec<f64>,
    /// What went wrong, one line for each connection that failed.
    pub(crate) failures: Vec<String>,
}

/// What carries a connection, and why if it is TCP.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Carrier {
    pub(crate) mode: SocketMode,
    pub(crate) reason: u32,
    pub(crate) peer_reason: u32,
}

impl fmt::Debug for Carrier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{:?} ({:#010x}/{:#010x})",
            self.mode, self.reason, self.peer_reason
        )
    }
}
