//! The job that a client requests at the start of a stream, and its execution at both ends.

use std::io;

use anyhow::{Context as _, Result, bail, ensure};
use futures_lite::future::{try_zip, yield_now};
use futures_lite::{AsyncReadExt as _, AsyncWriteExt as _};
use smc::Stream;
use smc_testkit::Rng;

use crate::workload::Pattern;

/// A job for a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Job {
    /// Echo everything, and close after the end.
    Echo,
    /// Send and receive so many bytes at once, in large pieces.
    Exchange { seed: u64, len: u64 },
    /// Send and receive bytes at once, how many and in what pieces follows from the seed.
    Random { seed: u64 },
    /// Use the stream by the stream model.
    Model { seed: u64 },
    /// Report here the result of the stream that is used so.
    SendReport { seed: u64 },
    /// Close with data unread.
    Abort,
    /// Send something and be aborted.
    BeAborted,
}

impl Job {
    pub(super) async fn ask(self, stream: &mut Stream) -> io::Result<()> {
        stream.write_all(&self.bytes()).await
    }

    /// What requests it.
    pub(super) fn bytes(self) -> Vec<u8> {
        let (kind, seed, len) = match self {
            Self::Echo => (0, 0, 0),
            Self::Exchange { seed, len } => (1, seed, len),
            Self::Random { seed } => (2, seed, 0),
            Self::Abort => (3, 0, 0),
            Self::BeAborted => (4, 0, 0),
            Self::Model { seed } => (5, seed, 0),
            Self::SendReport { seed } => (6, seed, 0),
        };
        [kind, seed, len].map(u64::to_le_bytes).concat()
    }

    pub(super) async fn receive(stream: &mut Stream) -> Result<Self> {
        let mut words = [[0; 8]; 3];
        for word in &mut words {
            stream.read_exact(word).await?;
        }
        let [kind, seed, len] = words.map(u64::from_le_bytes);
        Ok(match kind {
            0 => Self::Echo,
            1 => Self::Exchange { seed, len },
            2 => Self::Random { seed },
            3 => Self::Abort,
            4 => Self::BeAborted,
            5 => Self::Model { seed },
            6 => Self::SendReport { seed },
            _ => bail!("no job {kind}"),
        })
    }
}

/// Which end one is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    Client,
    Server,
}

/// Sends and receives bytes of a seed at once, closes, and expects end of stream.
pub(super) async fn exchange(stream: Stream, end: End, seed: u64, len: u64) -> Result<()> {
    let plan = |_: &mut Rng| PIECE;
    both_ways(stream, end, seed, [len; 2], plan).await
}

/// The same with lengths and pieces of the seed.
pub(super) async fn exchange_randomly(stream: Stream, end: End, seed: u64) -> Result<()> {
    let mut rng = Rng::new(seed);
    let lens = [0; 2].map(|_| rng.between(0, 600_000) as u64);
    // Often small, sometimes more than a ring.
    let piece = |rng: &mut Rng| match rng.below(4) {
        0 => rng.between(1, 40),
        1 => rng.between(1, 3_000),
        2 => rng.between(1, 70_000),
        _ => rng.between(1, 400_000),
    };
    both_ways(stream, end, seed, lens, piece).await
}

async fn both_ways(
    stream: Stream,
    end: End,
    seed: u64,
    [from_client, from_server]: [u64; 2],
    piece: impl Fn(&mut Rng) -> usize,
) -> Result<()> {
    let (ours, theirs) = match end {
        End::Client => (from_client, from_server),
        End::Server => (from_server, from_client),
    };
    let (client, server) = (Pattern::of_client(seed), Pattern::of_server(seed));
    let (to_peer, to_local) = match end {
        End::Client => (client, server),
        End::Server => (server, client),
    };
    let (mut from, mut to) = stream.into_split();
    let sending = async {
        let mut rng = Rng::new(seed ^ ((end as u64) << 32));
        let (mut at, mut buf) = (0, Vec::new());
        while at < ours {
            buf.resize(len_of(ours - at, piece(&mut rng)), 0);
            to_peer.fill(at, &mut buf);
            to.write_all(&buf).await.context("write")?;
            at += buf.len() as u64;
            if rng.below(8) == 0 {
                yield_now().await;
            }
        }
        to.close().await.context("close")
    };
    let receiving = async {
        let mut rng = Rng::new(!seed ^ ((end as u64) << 32));
        let (mut at, mut buf, mut expected) = (0, Vec::new(), Vec::new());
        loop {
            buf.resize(piece(&mut rng), 0);
            let count = from.read(&mut buf).await.context("read")?;
            if count == 0 {
                ensure!(at == theirs, "the end after {at} of {theirs} bytes");
                return Ok(());
            }
            if let Some(at) = to_local.difference(at, &buf[..count], &mut expected) {
                bail!("wrong byte at position {at}");
            }
            at += count as u64;
        }
    };
    try_zip(sending, receiving).await.map(|_| ())
}

fn len_of(left: u64, piece: usize) -> usize {
    usize::try_from(left).map_or(piece, |left| left.min(piece))
}

const PIECE: usize = 128 << 10;
