//! The use of streams: as scheduled, or at random.

use std::future::{Future as _, poll_fn};
use std::net::Shutdown;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::Poll;

use futures_lite::future::or;
use futures_lite::{AsyncReadExt as _, AsyncWriteExt as _};
use smc::Stream;
use smc_core::runtime::Runtime;
use smc_testkit::model::{self, Rules};
use smc_testkit::runtime::EndingRuntime;

use super::connections::{Connection, Verdict, Violation, WriteOp, early_data, lock};
use super::hosts::Host;
use super::run::{LISTENER_TIME, LONG, Run};
use super::schedule::End;

impl Run {
    /// Reads and writes as scheduled.
    pub(crate) async fn use_stream(&self, connection: &Connection, end: End, stream: Stream) {
        let result = {
            let mut writing = pin!(write(connection, end, &stream));
            let mut reading = pin!(read(connection, end, &stream));
            let (mut is_written, mut is_read) = (false, false);
            poll_fn(|cx| {
                if !is_written {
                    match writing.as_mut().poll(cx) {
                        Poll::Ready(Ok(Written::Closes)) => return Poll::Ready(Ok(())),
                        Poll::Ready(Ok(Written::All)) => is_written = true,
                        Poll::Ready(Err(violation)) => return Poll::Ready(Err(violation)),
                        Poll::Pending => {}
                    }
                }
                if !is_read {
                    match reading.as_mut().poll(cx) {
                        Poll::Ready(Ok(())) => is_read = true,
                        Poll::Ready(Err(violation)) => return Poll::Ready(Err(violation)),
                        Poll::Pending => {}
                    }
                }
                match is_written && is_read {
                    true => Poll::Ready(Ok(())),
                    false => Poll::Pending,
                }
            })
            .await
        };
        if let Err(violation) = result {
            self.violate(violation);
        }
        connection.closed(end);
        drop(stream);
    }

    /// Uses both ends at random.
    pub(crate) async fn use_both(
        &self,
        host: &Host,
        connection: &Connection,
        seed: u64,
        stream: Stream,
    ) {
        let number = connection.request.number;
        let has_come = || {
            lock(&self.parked)
                .iter()
                .any(|parked| parked.contains_key(&number))
        };
        let found = self.wait(LISTENER_TIME, has_come).await;
        let server = lock(&self.parked)
            .as_mut()
            .and_then(|parked| parked.remove(&number));
        let (Some(server), true) = (server, found) else {
            // It is checked at the end whether there had to be one.
            return;
        };
        let [client, other] = [stream.mode().is_smc(), server.mode().is_smc()];
        let is_strict =
            !connection.effects.may_fail() && !connection.effects.may_abort(stream.mode());
        // A lost TCP connection is an error of its own for each operation.
        let is_lost = !client && connection.effects.on_tcp;
        // So is a client's buffer that the server's device cannot attach.
        let is_attached = client && self.schedule.setting.network.nocopy;
        let is_unattached = is_attached && connection.effects.on_memory;
        if client != other && !is_strict || is_lost || is_unattached {
            return;
        }
        connection.is_used_at_random.store(true, Ordering::Relaxed);
        self.use_pair(host, connection, seed, (stream, server), is_strict)
            .await;
        connection.is_used_at_random.store(false, Ordering::Relaxed);
    }

    async fn use_pair(
        &self,
        host: &Host,
        connection: &Connection,
        seed: u64,
        (stream, mut server): (Stream, Stream),
        is_strict: bool,
    ) {
        let number = connection.request.number;
        let mut early = vec![0; connection.request.early];
        match server.read_exact(&mut early).await {
            Ok(()) if early == early_data(number, early.len()) => {}
            Ok(()) => {
                let what = connection.description();
                return self.violate(Violation::new("wrong early data", what));
            }
            Err(_) if !is_strict => return,
            Err(error) => {
                let what = format!("{error}: {}", connection.description());
                return self.violate(Violation::new("no early data", what));
            }
        }
        let rules = Rules::relaxed().with_timeout(LONG);
        let rules = match is_strict {
            true => rules,
            false => rules.with_aborts(),
        };
        let runtime: Arc<dyn Runtime> = Arc::<EndingRuntime>::clone(&host.runtime);
        let running = async { Some(model::run(seed, &runtime, (stream, server), rules).await) };
        // An end at a host that has been killed may wait for ever.
        let killed = async {
            let to = connection.request.to;
            let is_killed = || self.has_been_killed(to);
            self.wait(LONG, is_killed).await;
            self.runtime.timer(self.runtime.now() + LONG / 2).await;
            None
        };
        if let Some(Err(violation)) = or(running, killed).await {
            // The two are not the ends of one stream.
            if connection.is_repeated() {
                return;
            }
            let what = format!("{violation}\n{}", connection.description());
            self.violate(Violation::new("random use of a stream", what));
        }
    }
}

/// How the writer of a stream ends.
enum Written {
    All,
    /// The stream is dropped, whatever is to be read.
    Closes,
}

async fn write(
    connection: &Connection,
    end: End,
    mut stream: &Stream,
) -> Result<Written, Violation> {
    let mut is_broken = false;
    loop {
        match connection.next_write(end).await {
            WriteOp::Write(mut left) => {
                while left > 0 && !is_broken {
                    let data = connection.offer(end, left.min(PIECE));
                    let result = stream.write(&data).await;
                    connection.wrote(end, &result)?;
                    left -= result.as_ref().unwrap_or(&0);
                    is_broken = result.is_err();
                }
            }
            WriteOp::Shutdown => shut_down(connection, end, stream)?,
            WriteOp::Close(resets) => {
                if resets {
                    connection.resets(end);
                    if stream.set_zero_linger().is_err() {
                        return Err(Violation::new("linger time cannot be set", ""));
                    }
                }
                return Ok(Written::Closes);
            }
            WriteOp::Finish => {
                shut_down(connection, end, stream)?;
                return Ok(Written::All);
            }
        }
    }
}

fn shut_down(connection: &Connection, end: End, stream: &Stream) -> Verdict {
    connection.shut(end);
    connection.shut_down(end, &stream.shutdown_how(Shutdown::Write))
}

async fn read(connection: &Connection, end: End, mut stream: &Stream) -> Verdict {
    let mut buf = [0; PIECE];
    loop {
        let len = connection.next_read(end).await.min(PIECE);
        let result = stream.read(&mut buf[..len]).await;
        connection.took(end, &buf, &result)?;
        if !matches!(result, Ok(1..)) {
            return Ok(());
        }
    }
}

/// Of one read or write.
const PIECE: usize = 8192;
