//! One connection: both ends send bytes that follow from a seed, and check what they receive.

use std::io::{self, ErrorKind};
use std::pin::pin;
use std::time::Duration;

use futures::future::{Either, select};
use futures_lite::future::{or, zip};
use serde::{Deserialize, Serialize};
use smc::{OwnedReadHalf, OwnedWriteHalf, Stream};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use crate::runtime::Runtime;

/// What both ends do. The client sends it first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Exchange {
    seed: u64,
    /// Bytes of the client and of the server.
    lengths: [u64; 2],
    /// After how many of its bytes an end resets the connection; [`NEVER`] if it does not.
    resets: [u64; 2],
}

/// An end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Side {
    Client,
    Server,
}

/// How a connection ended. Everything that was received was as it should be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ending {
    /// Both ends received all bytes, and the end of the stream.
    Whole,
    /// By a reset that was arranged.
    Reset,
    /// The peer or its process was lost.
    Lost,
    /// An end of it lacked memory.
    Starved,
    /// Before the client sent anything: it had no answer in time, and has connected again.
    Unused,
}

/// What no fault is a reason for.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
pub(super) enum Violation {
    #[error("byte {at} of {len} is {found:#04x} in place of {expected:#04x}: {origin}")]
    WrongByte {
        at: u64,
        len: u64,
        found: u8,
        expected: u8,
        origin: String,
    },
    #[error("more than {len} bytes")]
    TooMany { len: u64 },
    #[error("the end of the stream after {got} bytes of {len}")]
    Short { got: u64, len: u64 },
    #[error("no end within {0:?}")]
    Hang(Duration),
    #[error("an error that no process and no network is a reason for: {0}")]
    Error(String),
}

impl Exchange {
    /// One that follows from a seed: mostly short, some long, some with a reset.
    pub(super) fn random(seed: u64) -> Self {
        let mut rng = fastrand::Rng::with_seed(seed);
        let mut length = || match rng.u32(0..10) {
            0 => 0,
            1..=5 => rng.u64(1..2_000),
            6..=8 => rng.u64(2_000..200_000),
            _ => rng.u64(200_000..4_000_000),
        };
        let lengths = [length(), length()];
        let mut resets = [NEVER; 2];
        if rng.u32(0..8) == 0 {
            let side = rng.usize(0..2);
            resets[side] = rng.u64(0..=lengths[side]);
        }
        Self {
            seed,
            lengths,
            resets,
        }
    }

    /// One that sends so many bytes in each direction.
    pub(super) fn of_length(seed: u64, len: u64) -> Self {
        Self {
            seed,
            lengths: [len; 2],
            resets: [NEVER; 2],
        }
    }

    /// Its seed, without the highest bit: bytes do not depend on that.
    pub(super) fn name(&self) -> String {
        format!("{:x}", self.seed << 1 >> 1)
    }

    fn encoded(&self) -> [u8; HEADER] {
        let [up, down] = self.lengths;
        let [client, server] = self.resets;
        let mut bytes = [0; HEADER];
        for (to, word) in bytes
            .chunks_exact_mut(8)
            .zip([self.seed, up, down, client, server])
        {
            to.copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }

    fn decode(bytes: &[u8; HEADER]) -> Self {
        let mut words = [0; HEADER / 8];
        for (word, bytes) in words.iter_mut().zip(bytes.chunks_exact(8)) {
            let bytes = bytes.try_into().unwrap_or_default();
            *word = u64::from_le_bytes(bytes);
        }
        let [seed, up, down, client, server] = words;
        Self {
            seed,
            lengths: [up, down],
            resets: [client, server],
        }
    }
}

/// Has an exchange as a client. Returns how it ended, and how many bytes were received.
pub(super) async fn request(
    runtime: Runtime,
    stream: Stream,
    exchange: Exchange,
) -> Result<(Ending, u64), Violation> {
    bounded(runtime, async {
        let is_smc = stream.mode().is_smc();
        let (read, mut write) = stream.into_split();
        match write.write_all(&exchange.encoded()).await {
            Ok(()) => converse(exchange, Side::Client, is_smc, read, write).await,
            Err(error) => lost(&error).map(|ending| (ending, 0)),
        }
    })
    .await
}

/// Has the exchange that the client asks for.
pub(super) async fn answer(runtime: Runtime, stream: Stream) -> Result<(Ending, u64), Violation> {
    bounded(runtime, async {
        let is_smc = stream.mode().is_smc();
        let (mut read, write) = stream.into_split();
        let mut header = [0; HEADER];
        let mut len = 0;
        while len < HEADER {
            len += match read.read(&mut header[len..]).await {
                Ok(0) if len == 0 => return Ok((Ending::Unused, 0)),
                Ok(0) => return Ok((Ending::Lost, 0)),
                Ok(count) => count,
                Err(error) if len == 0 => return lost(&error).map(|_| (Ending::Unused, 0)),
                Err(error) => return lost(&error).map(|ending| (ending, 0)),
            };
        }
        converse(Exchange::decode(&header), Side::Server, is_smc, read, write).await
    })
    .await
}

/// Fails as a hang what does not end in time.
pub(super) async fn bounded<T>(
    runtime: Runtime,
    work: impl Future<Output = Result<T, Violation>>,
) -> Result<T, Violation> {
    let late = async {
        runtime.sleep(HANG).await;
        Err(Violation::Hang(HANG))
    };
    or(work, late).await
}

async fn converse(
    exchange: Exchange,
    side: Side,
    is_smc: bool,
    mut read: OwnedReadHalf,
    mut write: OwnedWriteHalf,
) -> Result<(Ending, u64), Violation> {
    let own = side as usize;
    let peer = 1 - own;
    let len = exchange.lengths[own];
    let reset_at = exchange.resets[own];
    if reset_at != NEVER {
        // The peer's bytes are taken meanwhile, so that it does not wait for space.
        let mut received = 0;
        let sent = {
            let sending = pin!(send(&mut write, exchange.seed, side, reset_at.min(len)));
            let receiving = receive(&mut read, &exchange, side, is_smc, &mut received);
            let receiving = pin!(async {
                let received = receiving.await;
                match received {
                    Err(violation) => Err(violation),
                    Ok(_) => std::future::pending().await,
                }
            });
            match select(sending, receiving).await {
                Either::Left((sent, _)) => sent,
                Either::Right((Err::<(), _>(violation), _)) => return Err(violation),
                Either::Right((Ok(()), _)) => Ok(()),
            }
        };
        // Dropped by itself the writing half ends the stream in order.
        let whole = read
            .reunite(write)
            .map_err(|error| Violation::Error(error.to_string()))?;
        return match sent.and_then(|()| whole.set_zero_linger()) {
            Ok(()) => Ok((Ending::Reset, received)),
            Err(error) => lost(&error).map(|ending| (ending, received)),
        };
    }
    let mut received = 0;
    let sending = async {
        send(&mut write, exchange.seed, side, len).await?;
        write.shutdown().await
    };
    let receiving = receive(&mut read, &exchange, side, is_smc, &mut received);
    let (sent, ended) = zip(sending, receiving).await;
    let ended = ended?;
    let is_reset = exchange.resets[peer] != NEVER;
    let ending = match sent {
        Ok(()) => ended,
        Err(error) => lost(&error)?,
    };
    match ending {
        Ending::Lost if is_reset => Ok((Ending::Reset, received)),
        ending => Ok((ending, received)),
    }
}

async fn send(write: &mut OwnedWriteHalf, seed: u64, side: Side, len: u64) -> io::Result<()> {
    let mut rng = fastrand::Rng::with_seed(seed ^ side as u64);
    let mut piece = vec![0; PIECE];
    let mut at = 0;
    while at < len {
        let most = usize::try_from(len - at).unwrap_or(PIECE).min(PIECE);
        let piece = &mut piece[..rng.usize(1..=most)];
        fill(seed, side, at, piece);
        write.write_all(piece).await?;
        at += piece.len() as u64;
    }
    Ok(())
}

/// Receives to the end. That of an SMC stream is the end of all bytes; where TCP is left, a process
/// that is killed ends its streams in order.
async fn receive(
    read: &mut OwnedReadHalf,
    exchange: &Exchange,
    side: Side,
    is_smc: bool,
    received: &mut u64,
) -> Result<Ending, Violation> {
    let (from, len) = match side {
        Side::Client => (Side::Server, exchange.lengths[1]),
        Side::Server => (Side::Client, exchange.lengths[0]),
    };
    let mut expected = vec![0; PIECE];
    let mut piece = vec![0; PIECE];
    loop {
        let count = match read.read(&mut piece).await {
            Ok(0) if *received == len => return Ok(Ending::Whole),
            Ok(0) if !is_smc => return Ok(Ending::Lost),
            Ok(0) => {
                let got = *received;
                return Err(Violation::Short { got, len });
            }
            Ok(count) => count,
            Err(error) => return lost(&error),
        };
        let (piece, expected) = (&piece[..count], &mut expected[..count]);
        fill(exchange.seed, from, *received, expected);
        check(piece, expected, *received, len)?;
        *received += count as u64;
    }
}

/// Compares a piece of the stream that begins at a position.
fn check(piece: &[u8], expected: &[u8], at: u64, len: u64) -> Result<(), Violation> {
    if let Some(wrong) = piece.iter().zip(expected).position(|(one, two)| one != two) {
        return Err(Violation::WrongByte {
            at: at + wrong as u64,
            len,
            found: piece[wrong],
            expected: expected[wrong],
            origin: origin(piece, at, wrong),
        });
    }
    match at + piece.len() as u64 > len {
        true => Err(Violation::TooMany { len }),
        false => Ok(()),
    }
}

/// Which exchange bytes belong to that are not those expected at a position, from `wrong` on.
fn origin(piece: &[u8], at: u64, wrong: usize) -> String {
    if let (0, Some(header)) = (at, piece.first_chunk()) {
        let exchange = Exchange::decode(header);
        if Exchange::random(exchange.seed) == exchange {
            return format!("the request of exchange {}", exchange.name());
        }
    }
    let position = (at + wrong as u64).next_multiple_of(8);
    let words = piece.get((position - at) as usize..).unwrap_or_default();
    let mut words = words.chunks_exact(8);
    let mut key = |index| {
        let word = words.next()?.try_into().ok()?;
        Some(unmix(u64::from_le_bytes(word)) ^ step(index))
    };
    match (key(position / 8), key(position / 8 + 1)) {
        (Some(key), Some(next)) if key == next => {
            let from = if key % 2 == 0 { "client" } else { "server" };
            format!("of the {from} of exchange {:x}", key / 2)
        }
        _ => {
            let end = piece.len().min(wrong + HEADER);
            format!("of no exchange, {:02x?}", &piece[wrong..end])
        }
    }
}

/// The bytes of a stream from a position on.
fn fill(seed: u64, from: Side, at: u64, bytes: &mut [u8]) {
    let key = seed.wrapping_mul(2).wrapping_add(from as u64);
    let word = |index: u64| mix(key ^ step(index)).to_le_bytes();
    let skipped = (at % 8) as usize;
    let first = word(at / 8);
    let (begin, rest) = bytes.split_at_mut(((8 - skipped) % 8).min(bytes.len()));
    begin.copy_from_slice(&first[skipped..][..begin.len()]);
    let mut index = at.div_ceil(8);
    let mut words = rest.chunks_exact_mut(8);
    for to in &mut words {
        to.copy_from_slice(&word(index));
        index += 1;
    }
    let end = words.into_remainder();
    let last = word(index);
    end.copy_from_slice(&last[..end.len()]);
}

/// The finaliser of SplitMix64.
fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// The inverse of [`mix`].
fn unmix(mut z: u64) -> u64 {
    z ^= (z >> 31) ^ (z >> 62);
    z = z.wrapping_mul(0x3196_42b2_d24d_8ec3);
    z ^= (z >> 27) ^ (z >> 54);
    z = z.wrapping_mul(0x96de_1b17_3f11_9089);
    z ^ (z >> 30) ^ (z >> 60)
}

/// What tells one word of a stream from the others.
fn step(index: u64) -> u64 {
    index.wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

/// How a stream ended whose call failed.
fn lost(error: &io::Error) -> Result<Ending, Violation> {
    match error.kind() {
        ErrorKind::ConnectionReset
        | ErrorKind::ConnectionAborted
        | ErrorKind::BrokenPipe
        | ErrorKind::NotConnected => Ok(Ending::Lost),
        ErrorKind::OutOfMemory => Ok(Ending::Starved),
        _ => Err(Violation::Error(error.to_string())),
    }
}

/// Bytes of an exchange's description on the wire.
const HEADER: usize = 40;

/// No reset.
const NEVER: u64 = u64::MAX;

/// Longest write and read.
const PIECE: usize = 64 * 1024;

/// How long a connection may take: all but stopped processes are through within a second.
pub(super) const HANG: Duration = Duration::from_secs(60);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_exchange_is_sent_as_it_is() {
        for seed in 0..1000 {
            let exchange = Exchange::random(seed);
            assert_eq!(Exchange::decode(&exchange.encoded()), exchange);
        }
        let resets = (0..1000).filter(|&seed| Exchange::random(seed).resets != [NEVER; 2]);
        assert!((50..300).contains(&resets.count()));
    }

    #[test]
    fn bytes_depend_on_their_position_alone() {
        let mut whole = vec![0; 1000];
        fill(7, Side::Client, 0, &mut whole);
        for at in 0..100 {
            let mut part = vec![0; 1000 - at];
            fill(7, Side::Client, at as u64, &mut part);
            assert_eq!(part, whole[at..]);
        }
        for (at, len) in [(1, 3), (5, 3), (5, 4), (7, 1), (8, 8), (0, 7)] {
            let mut part = vec![0; len];
            fill(7, Side::Client, at as u64, &mut part);
            assert_eq!(part, whole[at..at + len], "{at} {len}");
        }
        let mut other = vec![0; 1000];
        fill(7, Side::Server, 0, &mut other);
        assert_ne!(whole, other);
    }

    #[test]
    fn bytes_of_another_exchange_are_attributed() {
        let other = Exchange::random(8 | 1 << 63);
        let mut bytes = vec![0; 100];
        for (side, name) in [(Side::Client, "client"), (Side::Server, "server")] {
            fill(other.seed, side, 50, &mut bytes);
            let found = origin(&bytes, 50, 3);
            assert_eq!(found, format!("of the {name} of exchange 8"));
        }
        assert_eq!(origin(&other.encoded(), 0, 0), "the request of exchange 8");
        assert_eq!(origin(&[7; 20], 48, 18), "of no exchange, [07, 07]");
    }

    #[test]
    fn a_byte_that_was_changed_lost_or_added_is_a_violation() {
        let mut sent = vec![0; 100];
        fill(3, Side::Server, 50, &mut sent);
        check(&sent, &sent, 50, 150).unwrap();
        let mut changed = sent.clone();
        changed[99] ^= 1;
        let wrong = check(&changed, &sent, 50, 150).unwrap_err();
        assert!(
            matches!(wrong, Violation::WrongByte { at: 149, .. }),
            "{wrong}"
        );
        let lost = check(&sent[1..], &sent, 50, 150).unwrap_err();
        assert!(
            matches!(lost, Violation::WrongByte { at: 50, .. }),
            "{lost}"
        );
        let more = check(&sent, &sent, 50, 149).unwrap_err();
        assert_eq!(more, Violation::TooMany { len: 149 });
    }
}
