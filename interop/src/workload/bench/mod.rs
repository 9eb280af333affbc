//! Measures instead of checking: how long things take, over whatever carries them.

use std::io;
use std::net::SocketAddr;
use std::thread;
use std::time::Instant;

use anyhow::{Context as _, Result, bail};
use serde::{Deserialize, Serialize};

use super::Report;
use super::connection::{Connection, Listener};
use super::run::Maker;

/// A thing to measure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Measure {
    /// Microseconds of a message of that many bytes and its answer, one after the other.
    RoundTrip { size: u64, count: u32 },
    /// Megabytes per second in one direction, in writes of 64 KiB, until the peer has all.
    Bulk { bytes: u64 },
    /// Connections per second that are made, say something, are answered and closed: so many
    /// clients at a time, so many by each of them.
    Connects { clients: u32, each: u32 },
}

impl Measure {
    /// Whether more is better.
    pub(crate) fn is_rate(self) -> bool {
        !matches!(self, Self::RoundTrip { .. })
    }

    /// What is measured, with its unit.
    pub(crate) fn title(self) -> String {
        match self {
            Self::RoundTrip { size, .. } => format!("round trip, {size} B, us"),
            Self::Bulk { .. } => "bulk, 64 KiB writes, MB/s".into(),
            Self::Connects { clients, .. } => format!("connects, {clients} at a time, 1/s"),
        }
    }

    fn take(self, maker: &Maker, to: SocketAddr) -> Result<f64> {
        match self {
            Self::RoundTrip { size, count } => {
                let mut caller = Caller::new(maker, to, size, size)?;
                caller.call()?;
                let started = Instant::now();
                for _ in 0..count {
                    caller.call()?;
                }
                Ok(started.elapsed().as_secs_f64() * 1e6 / f64::from(count))
            }
            Self::Bulk { bytes } => {
                let mut caller = Caller::new(maker, to, bytes, 1)?;
                let started = Instant::now();
                caller.call()?;
                #[expect(clippy::cast_precision_loss, reason = "far below 2^52")]
                let megabytes = bytes as f64 / 1e6;
                Ok(megabytes / started.elapsed().as_secs_f64())
            }
            Self::Connects { clients, each } => {
                let started = Instant::now();
                thread::scope(|scope| {
                    let clients: Vec<_> = (0..clients)
                        .map(|_| {
                            scope.spawn(|| {
                                (0..each).try_for_each(|_| {
                                    Caller::new(maker, to, MESSAGE, MESSAGE)?.call()
                                })
                            })
                        })
                        .collect();
                    clients.into_iter().try_for_each(|client| {
                        client.join().unwrap_or_else(|_| bail!("client panicked"))
                    })
                })?;
                Ok(f64::from(clients * each) / started.elapsed().as_secs_f64())
            }
        }
    }
}

/// The connecting end: takes all measures, one after the other.
pub(super) fn client(maker: &Maker, to: SocketAddr, measures: &[Measure]) -> Result<Report> {
    let mut report = Report::default();
    // The first connection makes the link group.
    let mut first = Caller::new(maker, to, MESSAGE, MESSAGE)?;
    first.call()?;
    report.note_carrier(&*first.conn)?;
    drop(first);
    for measure in measures {
        let value = measure
            .take(maker, to)
            .with_context(|| format!("{measure:?}"))?;
        eprintln!("{}: {value:.0}", measure.title());
        report.measured.push(value);
    }
    Ok(report)
}

/// The listening end: answers all connections until it is killed.
pub(super) fn server(listener: &dyn Listener) -> Result<Report> {
    loop {
        let conn = listener.accept().context("accept")?;
        thread::spawn(move || {
            // The client tells what is wrong.
            let _ = answer(&*conn);
        });
    }
}

/// Takes so many bytes and gives so many, as the first words of the client say, until it ends.
fn answer(conn: &dyn Connection) -> io::Result<()> {
    let mut head = [0; 16];
    read_all(conn, &mut head)?;
    let (take, give) = head.split_at(8);
    let number = |bytes: &[u8]| bytes.try_into().map(u64::from_le_bytes).unwrap_or(0);
    let (take, give) = (number(take), number(give));
    let mut buf = vec![0; CHUNK];
    loop {
        read_many(conn, &mut buf, take)?;
        write_many(conn, &buf, give)?;
    }
}

/// A connection to [`answer`].
struct Caller {
    conn: Box<dyn Connection>,
    ask: u64,
    answer: u64,
    buf: Vec<u8>,
}

impl Caller {
    fn new(maker: &Maker, to: SocketAddr, ask: u64, answer: u64) -> Result<Self> {
        let conn = maker.connect(to).context("connect")?;
        let head = [ask.to_le_bytes(), answer.to_le_bytes()].concat();
        write_many(&*conn, &head, head.len() as u64)?;
        Ok(Self {
            conn,
            ask,
            answer,
            buf: vec![0; CHUNK],
        })
    }

    fn call(&mut self) -> Result<()> {
        write_many(&*self.conn, &self.buf, self.ask)?;
        Ok(read_many(&*self.conn, &mut self.buf, self.answer)?)
    }
}

fn read_all(conn: &dyn Connection, buf: &mut [u8]) -> io::Result<()> {
    let mut at = 0;
    while at < buf.len() {
        match conn.read(&mut buf[at..])? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            count => at += count,
        }
    }
    Ok(())
}

fn read_many(conn: &dyn Connection, buf: &mut [u8], mut left: u64) -> io::Result<()> {
    while left > 0 {
        let len = usize::try_from(left).map_or(buf.len(), |left| left.min(buf.len()));
        match conn.read(&mut buf[..len])? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            count => left -= count as u64,
        }
    }
    Ok(())
}

fn write_many(conn: &dyn Connection, buf: &[u8], mut left: u64) -> io::Result<()> {
    while left > 0 {
        let len = usize::try_from(left).map_or(buf.len(), |left| left.min(buf.len()));
        match conn.write(&buf[..len])? {
            0 => return Err(io::ErrorKind::WriteZero.into()),
            count => left -= count as u64,
        }
    }
    Ok(())
}

const CHUNK: usize = 64 * 1024;

/// What is said on connections that are made to be closed.
const MESSAGE: u64 = 1000;
