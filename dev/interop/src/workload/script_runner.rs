//! Works a script off on one connection.

use std::io;
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};

use super::Step;
use super::connection::Connection;
use super::pattern::Pattern;
use super::run::SyncPoints;

/// A connection with what has gone over it so far.
pub(crate) struct ScriptRunner<'a> {
    conn: Box<dyn Connection>,
    sync_points: &'a SyncPoints,
    outgoing: Flow,
    incoming: Flow,
}

/// Bytes of one direction.
struct Flow {
    pattern: Pattern,
    at: u64,
}

impl<'a> ScriptRunner<'a> {
    /// `is_client`: whether this end has connected.
    pub(crate) fn new(
        conn: Box<dyn Connection>,
        is_client: bool,
        sync_points: &'a SyncPoints,
    ) -> io::Result<Self> {
        let client = if is_client {
            conn.local_addr()?
        } else {
            conn.peer_addr()?
        };
        let port = client.port().into();
        let (client, server) = (Pattern::of_client(port), Pattern::of_server(port));
        let (outgoing, incoming) = if is_client {
            (client, server)
        } else {
            (server, client)
        };
        Ok(Self {
            conn,
            sync_points,
            outgoing: Flow {
                pattern: outgoing,
                at: 0,
            },
            incoming: Flow {
                pattern: incoming,
                at: 0,
            },
        })
    }

    /// Does everything, then closes. Gives the bytes sent and received.
    pub(crate) fn run(mut self, steps: &[Step]) -> (u64, u64, Result<()>) {
        let result = steps.iter().try_for_each(|step| {
            self.step(step).with_context(|| {
                format!(
                    "{step:?} at {} sent, {} received",
                    self.outgoing.at, self.incoming.at
                )
            })
        });
        (self.outgoing.at, self.incoming.at, result)
    }

    fn step(&mut self, step: &Step) -> Result<()> {
        let conn = &*self.conn;
        match step {
            Step::Send(bytes) => self.outgoing.send(conn, *bytes)?,
            Step::Receive(bytes) => self.incoming.receive(conn, *bytes, CHUNK)?,
            Step::ReceiveSlowly {
                bytes,
                chunk,
                pause,
            } => {
                let mut left = *bytes;
                while left > 0 {
                    let now = left.min(*chunk);
                    self.incoming.receive(conn, now, CHUNK)?;
                    thread::sleep(Duration::from_millis(*pause));
                    left -= now;
                }
            }
            Step::Exchange(bytes) => {
                let writer = conn.share()?;
                let (outgoing, incoming) = (&mut self.outgoing, &mut self.incoming);
                thread::scope(|scope| {
                    let sending = scope.spawn(move || outgoing.send(&*writer, *bytes));
                    let received = incoming.receive(conn, *bytes, CHUNK);
                    let sent = sending.join().unwrap_or_else(|_| bail!("sender panicked"));
                    received.and(sent)
                })?;
            }
            Step::Echo { size, count } => {
                for _ in 0..*count {
                    self.outgoing.send(conn, *size)?;
                    self.incoming.receive(conn, *size, CHUNK)?;
                }
            }
            Step::EchoBack { size, count } => {
                for _ in 0..*count {
                    self.incoming.receive(conn, *size, CHUNK)?;
                    self.outgoing.send(conn, *size)?;
                }
            }
            Step::Urgent => {
                let mut byte = [0];
                self.outgoing.pattern.fill(self.outgoing.at, &mut byte);
                conn.urgent(byte[0])?;
                self.outgoing.at += 1;
            }
            Step::Finish => conn.finish()?,
            Step::End => {
                let mut byte = [0];
                ensure!(conn.read(&mut byte)? == 0, "data instead of the end");
            }
            Step::Broken => broken(conn)?,
            Step::Abort => conn.peek()?,
            Step::Block(millis) => conn.block_runtime(Duration::from_millis(*millis)),
            Step::Pause(millis) => thread::sleep(Duration::from_millis(*millis)),
            Step::Mark(name) => self.sync_points.mark(name),
            Step::Gate(name) => self.sync_points.gate(name),
        }
        Ok(())
    }
}

impl Flow {
    fn send(&mut self, conn: &dyn Connection, bytes: u64) -> Result<()> {
        let end = self.at + bytes;
        let mut buf = vec![0; CHUNK];
        while self.at < end {
            let len = len_of(end - self.at);
            self.pattern.fill(self.at, &mut buf[..len]);
            let mut rest = &buf[..len];
            while !rest.is_empty() {
                let count = match conn.write(rest) {
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                    other => other.context("write")?,
                };
                ensure!(count > 0, "nothing was written");
                self.at += count as u64;
                rest = &rest[count..];
            }
        }
        Ok(())
    }

    fn receive(&mut self, conn: &dyn Connection, bytes: u64, chunk: usize) -> Result<()> {
        let end = self.at + bytes;
        let (mut buf, mut scratch) = (vec![0; chunk], Vec::new());
        while self.at < end {
            let len = len_of(end - self.at);
            let count = match conn.read(&mut buf[..len]) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                other => other.context("read")?,
            };
            ensure!(count > 0, "end of stream");
            if let Some(at) = self
                .pattern
                .difference(self.at, &buf[..count], &mut scratch)
            {
                bail!("wrong byte at position {at}");
            }
            self.at += count as u64;
        }
        Ok(())
    }
}

fn broken(conn: &dyn Connection) -> Result<()> {
    let mut buf = vec![0; CHUNK];
    loop {
        let read = conn.read(&mut buf);
        if conn.is_broken(&read) {
            return Ok(());
        }
        let count = read.context("read")?;
        ensure!(count > 0, "an orderly end instead of a break-off");
    }
}

fn len_of(left: u64) -> usize {
    usize::try_from(left).map_or(CHUNK, |left| left.min(CHUNK))
}

/// Twice the usual receive buffer, so that rings are filled to the brim.
const CHUNK: usize = 128 * 1024;
