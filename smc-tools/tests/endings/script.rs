//! What one end of a connection does, step by step, until it ends.

use std::fmt;
use std::io;
use std::path::PathBuf;
use std::process;
use std::time::Duration;

use futures_lite::{AsyncReadExt as _, AsyncWriteExt as _};
use nix::sys::signal::{Signal, raise};
use serde::{Deserialize, Serialize};
use smc::{Endpoint, Listener, OwnedReadHalf, OwnedWriteHalf, Reservation, Stream};

use smc_testkit::on::On;
use smc_testkit::process::Role;

use crate::world::Fabric;

/// One step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Step {
    /// Connects, or accepts.
    Open,
    /// `write_all`.
    Write(usize),
    /// Writes so many bytes by reservations.
    Commit(usize),
    /// The same by reservations of an exact length.
    CommitExact(usize),
    /// `read_exact`.
    Read(usize),
    /// Reads until the stream ends.
    ReadToEnd,
    /// The same with guards, which are all held until then.
    GuardToEnd,
    /// Shuts writing down.
    Shutdown,
    /// Splits the stream and keeps both halves.
    Split,
    /// Drops the writing half, and splits the stream before if it is whole.
    DropWriter,
    /// Drops the stream.
    Drop,
    /// `Endpoint::close`.
    Close,
    /// Nothing, for so many microseconds.
    Pause(u64),
}

/// How a process ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum End {
    /// Everything is dropped in order.
    Return,
    /// The runtime is shut down first, then everything is dropped.
    Runtime,
    /// `process::exit`, with everything as it is.
    Exit,
    /// `SIGKILL`.
    Kill,
}

impl End {
    pub(crate) const ALL: [Self; 4] = [Self::Return, Self::Runtime, Self::Exit, Self::Kill];

    /// Whether destructors run.
    pub(crate) fn drops(self) -> bool {
        matches!(self, Self::Return | Self::Runtime)
    }
}

/// One end's part.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Part {
    #[serde(with = "by_name")]
    pub(crate) on: On,
    pub(crate) fabric: Fabric,
    pub(crate) dir: PathBuf,
    /// Where to connect to; a listener has none.
    pub(crate) to: Option<String>,
    /// Streams that come and go before the one that matters.
    pub(crate) before: usize,
    pub(crate) steps: Vec<Step>,
    pub(crate) end: End,
}

/// What a step has come to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Done {
    /// It is done.
    Ok,
    /// The same over TCP, in this mode: the peer was gone before the handshake had begun.
    Tcp(String),
    /// So many bytes, then the end of the stream.
    Eof(usize),
    /// So many bytes, then an error.
    Failed(usize, String),
}

/// Plays a part and ends this process, or returns at its orderly end.
pub(crate) fn play(role: &Role, part: &Part) {
    let left = part.on.run_unbounded(async {
        let mut left = Actor::new(role, part).await;
        left.act(role, part).await;
        match part.end {
            End::Return => drop(left),
            End::Runtime => return Some(left),
            End::Exit => process::exit(0),
            End::Kill => raise(Signal::SIGKILL).unwrap(),
        }
        None
    });
    drop(left);
}

struct Actor {
    // In the order in which a program that declares them in the other would drop them.
    writer: Option<OwnedWriteHalf>,
    reader: Option<OwnedReadHalf>,
    stream: Option<Stream>,
    listener: Option<Listener>,
    endpoint: Endpoint,
    /// Bytes of the stream written and read.
    written: usize,
    read: usize,
}

impl Actor {
    async fn new(role: &Role, part: &Part) -> Self {
        let endpoint = part.fabric.endpoint(part.on, &part.dir);
        let listener = match part.to {
            Some(_) => None,
            None => {
                let listener = endpoint.bind("127.0.0.1:0").await.unwrap();
                role.send(listener.local_addr().unwrap());
                Some(listener)
            }
        };
        Self {
            writer: None,
            reader: None,
            stream: None,
            listener,
            endpoint,
            written: 0,
            read: 0,
        }
    }

    async fn act(&mut self, role: &Role, part: &Part) {
        for _ in 0..part.before {
            let mut stream = self.open(part).await.unwrap();
            stream.write_all(b"?").await.unwrap();
            stream.read_exact(&mut [0]).await.unwrap();
        }
        for (at, step) in part.steps.iter().enumerate() {
            let done = self.step(part, *step).await;
            role.send(serde_json::to_string(&(at, done)).unwrap());
        }
    }

    fn split(&mut self) {
        if let Some(stream) = self.stream.take() {
            let (reader, writer) = stream.into_split();
            (self.reader, self.writer) = (Some(reader), Some(writer));
        }
    }

    async fn open(&self, part: &Part) -> io::Result<Stream> {
        let stream = match (&part.to, &self.listener) {
            (Some(to), _) => self.endpoint.connect(to.as_str()).await?,
            (None, Some(listener)) => listener.accept().await?.0,
            (None, None) => unreachable!("an end has an address or a listener"),
        };
        Ok(stream)
    }

    async fn step(&mut self, part: &Part, step: Step) -> Done {
        let result = match step {
            Step::Open => match self.open(part).await {
                Ok(stream) => {
                    let mode = stream.mode();
                    let tcp = (!mode.is_smc()).then(|| mode.to_string());
                    self.stream = Some(stream);
                    (self.written, self.read) = (0, 0);
                    if let Some(tcp) = tcp {
                        return Done::Tcp(tcp);
                    }
                    Ok(())
                }
                Err(error) => Err(error),
            },
            Step::Write(len) => self.write(len).await,
            Step::Commit(len) => self.commit(len, false).await,
            Step::CommitExact(len) => self.commit(len, true).await,
            Step::Read(len) => self.read(len).await,
            Step::ReadToEnd => return self.read_to_end().await,
            Step::GuardToEnd => return self.guard_to_end().await,
            Step::Shutdown => match (&mut self.stream, &mut self.writer) {
                (Some(stream), _) => stream.close().await,
                (None, Some(writer)) => writer.close().await,
                (None, None) => Err(io::ErrorKind::NotConnected.into()),
            },
            Step::Split => {
                self.split();
                Ok(())
            }
            Step::DropWriter => {
                self.split();
                drop(self.writer.take());
                Ok(())
            }
            Step::Drop => {
                drop((self.writer.take(), self.reader.take(), self.stream.take()));
                Ok(())
            }
            Step::Close => {
                self.endpoint.close().await;
                Ok(())
            }
            Step::Pause(micros) => {
                smol::Timer::after(Duration::from_micros(micros)).await;
                Ok(())
            }
        };
        match result {
            Ok(()) => Done::Ok,
            Err(error) => Done::Failed(0, format!("{:?}", error.kind())),
        }
    }

    async fn write(&mut self, len: usize) -> io::Result<()> {
        let side = u8::from(self.listener.is_some());
        let data: Vec<u8> = (self.written..self.written + len)
            .map(|at| pattern(side, at))
            .collect();
        match (&mut self.stream, &mut self.writer) {
            (Some(stream), _) => stream.write_all(&data).await?,
            (None, Some(writer)) => writer.write_all(&data).await?,
            (None, None) => return Err(io::ErrorKind::NotConnected.into()),
        }
        self.written += len;
        Ok(())
    }

    async fn commit(&mut self, len: usize, is_exact: bool) -> io::Result<()> {
        let side = u8::from(self.listener.is_some());
        let until = self.written + len;
        while self.written < until {
            let left = until - self.written;
            let exact = left.min(EXACT_LEN);
            let mut space: Reservation<'_> = match (&mut self.stream, &mut self.writer) {
                (Some(stream), _) if is_exact => stream.reserve_exact(exact).await?,
                (Some(stream), _) => stream.reserve(left).await?,
                (None, Some(writer)) if is_exact => writer.reserve_exact(exact).await?,
                (None, Some(writer)) => writer.reserve(left).await?,
                (None, None) => return Err(io::ErrorKind::NotConnected.into()),
            };
            assert!(!is_exact || space.len() == exact);
            let len = space.len();
            let data: Vec<u8> = (self.written..self.written + len)
                .map(|at| pattern(side, at))
                .collect();
            space.write_at(0, &data)?;
            space.commit(len).await?;
            self.written += len;
        }
        Ok(())
    }

    async fn read(&mut self, len: usize) -> io::Result<()> {
        let mut data = vec![0; len];
        match (&mut self.stream, &mut self.reader) {
            (Some(stream), _) => stream.read_exact(&mut data).await?,
            (None, Some(reader)) => reader.read_exact(&mut data).await?,
            (None, None) => return Err(io::ErrorKind::NotConnected.into()),
        }
        self.check(&data);
        Ok(())
    }

    async fn read_to_end(&mut self) -> Done {
        let mut buf = vec![0; 10_000];
        loop {
            let read = match (&mut self.stream, &mut self.reader) {
                (Some(stream), _) => stream.read(&mut buf).await,
                (None, Some(reader)) => reader.read(&mut buf).await,
                (None, None) => Err(io::ErrorKind::NotConnected.into()),
            };
            match read {
                Ok(0) => return Done::Eof(self.read),
                Ok(len) => self.check(&buf[..len]),
                Err(error) => return Done::Failed(self.read, format!("{:?}", error.kind())),
            }
        }
    }

    async fn guard_to_end(&mut self) -> Done {
        let mut held = Vec::new();
        loop {
            let guard = match (&mut self.stream, &mut self.reader) {
                (Some(stream), _) => stream.read_guard(1000).await,
                (None, Some(reader)) => reader.read_guard(1000).await,
                (None, None) => Err(io::ErrorKind::NotConnected.into()),
            };
            match guard {
                Ok(guard) if guard.is_empty() => return Done::Eof(self.read),
                Ok(guard) => {
                    self.check(&guard);
                    held.push(guard);
                }
                Err(error) => return Done::Failed(self.read, format!("{:?}", error.kind())),
            }
        }
    }

    /// The next bytes of the peer are what it has written.
    fn check(&mut self, data: &[u8]) {
        let side = u8::from(self.listener.is_none());
        for (at, byte) in (self.read..).zip(data) {
            assert_eq!(*byte, pattern(side, at), "byte {at}");
        }
        self.read += data.len();
    }
}

/// Of the reservations of an exact length: not a divisor of a ring, so that some pass its end.
const EXACT_LEN: usize = 3000;

/// Byte `at` of what the client (0) or the server (1) writes.
pub(crate) fn pattern(side: u8, at: usize) -> u8 {
    ((7 * at + 13 * (at >> 8)) & 255) as u8 ^ (side * 0x55)
}

impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&serde_json::to_string(self).map_err(|_| fmt::Error)?)
    }
}

/// What has a name, as a string.
mod by_name {
    use std::fmt::Display;
    use std::str::FromStr;

    use serde::de::Error;
    use serde::{Deserialize as _, Deserializer, Serializer};

    pub(super) fn serialize<S: Serializer>(what: &impl Display, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(what)
    }

    pub(super) fn deserialize<'de, T, D>(from: D) -> Result<T, D::Error>
    where
        T: FromStr<Err = String>,
        D: Deserializer<'de>,
    {
        let name = String::deserialize(from)?;
        name.parse().map_err(D::Error::custom)
    }
}
