//! What a client asks for at the start of a stream, and what both ends do then.

use std::io;

use anyhow::{Context as _, Result, bail, ensure};
use futures_lite::future::{try_zip, yield_now};
use futures_lite::{AsyncReadExt as _, AsyncWriteExt as _};
use smc::Stream;
use smc_testkit::Rng;

/// A job for a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Job {
    /// Say everything back, and close after the end.
    Echo,
    /// Send and receive so many bytes at once, in large pieces.
    Exchange { seed: u64, len: u64 },
    /// Send and receive bytes at once, how many and in what pieces follows from the seed.
    Random { seed: u64 },
    /// Use the stream as the stream model wants it.
    Play { seed: u64 },
    /// Say here what came of the stream that is used so.
    Testify { seed: u64 },
    /// Close with data unread.
    Abort,
    /// Send something and be aborted.
    BeAborted,
}

impl Job {
    pub(super) async fn ask(self, stream: &mut Stream) -> io::Result<()> {
        let (kind, seed, len) = match self {
            Self::Echo => (0, 0, 0),
            Self::Exchange { seed, len } => (1, seed, len),
            Self::Random { seed } => (2, seed, 0),
            Self::Abort => (3, 0, 0),
            Self::BeAborted => (4, 0, 0),
            Self::Play { seed } => (5, seed, 0),
            Self::Testify { seed } => (6, seed, 0),
        };
        let words = [kind, seed, len].map(u64::to_le_bytes);
        stream.write_all(&words.concat()).await
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
            5 => Self::Play { seed },
            6 => Self::Testify { seed },
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

/// Sends and receives bytes of a seed at once, closes, and wants the end.
pub(super) async fn exchange(stream: Stream, end: End, seed: u64, len: u64) -> Result<()> {
    let plan = |_: &mut Rng| PIECE;
    both_ways(stream, end, seed, [len; 2], plan).await
}

/// The same with lengths and pieces as the seed wants.
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
    let (to_peer, to_us) = match end {
        End::Client => (seed, !seed),
        End::Server => (!seed, seed),
    };
    let (mut from, mut to) = stream.into_split();
    let sending = async {
        let mut rng = Rng::new(to_peer ^ 1);
        let (mut at, mut buf) = (0, Vec::new());
        while at < ours {
            buf.resize(len_of(ours - at, piece(&mut rng)), 0);
            fill(to_peer, at, &mut buf);
            to.write_all(&buf).await.context("write")?;
            at += buf.len() as u64;
            if rng.below(8) == 0 {
                yield_now().await;
            }
        }
        to.close().await.context("close")
    };
    let receiving = async {
        let mut rng = Rng::new(to_us ^ 2);
        let (mut at, mut buf, mut expected) = (0, Vec::new(), Vec::new());
        loop {
            buf.resize(piece(&mut rng), 0);
            let count = from.read(&mut buf).await.context("read")?;
            if count == 0 {
                ensure!(at == theirs, "the end after {at} of {theirs} bytes");
                return Ok(());
            }
            expected.resize(count, 0);
            fill(to_us, at, &mut expected);
            ensure!(buf[..count] == expected, "wrong bytes around position {at}");
            at += count as u64;
        }
    };
    try_zip(sending, receiving).await.map(|_| ())
}

fn len_of(left: u64, piece: usize) -> usize {
    usize::try_from(left).map_or(piece, |left| left.min(piece))
}

/// The bytes of a seed from a position: a word for every eight of them.
fn fill(seed: u64, at: u64, buf: &mut [u8]) {
    let mut at = at;
    let mut rest = buf;
    while !rest.is_empty() {
        let mut word = (seed ^ (at / 8)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        word ^= word >> 29;
        let bytes = word.wrapping_mul(0xbf58_476d_1ce4_e5b9).to_le_bytes();
        let from = (at % 8) as usize;
        let count = rest.len().min(8 - from);
        let (now, later) = rest.split_at_mut(count);
        now.copy_from_slice(&bytes[from..from + count]);
        at += count as u64;
        rest = later;
    }
}

const PIECE: usize = 128 << 10;
