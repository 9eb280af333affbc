//! Measures with blocking connections, a thread for each.

use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Instant;

use anyhow::{Context as _, Result, bail};

use super::super::Report;
use super::super::connection::{Connection, Listener};
use super::super::run::{Maker, SyncPoints};
use super::requests::{Requests, begins_with_clc, is_clc};
use super::{
    AFTER, BEFORE, CHUNK, HTTP_REQUEST, MESSAGE, MESSAGE_LEN, Measure, ROUND_TRIPS, ReceiverLoad,
    RequestSizes, SHORT, SIZES_LEN, expect_http_response, first_write, http_response,
    in_round_trips, is_http, one_way, part, receiver_load, start_stops, work,
};

/// The connecting end: takes all measures, one after the other.
pub(in crate::workload) fn client(
    maker: &Maker,
    to: SocketAddr,
    measures: &[Measure],
    sync_points: &SyncPoints,
) -> Result<Report> {
    let mut report = Report::default();
    // The first connection makes the link group.
    let mut first = Caller::new(maker, to, MESSAGE)?;
    first.call()?;
    report.note_carrier(&*first.conn)?;
    drop(first);
    for measure in measures {
        sync_points.gate(BEFORE);
        let values = take(*measure, maker, to).with_context(|| format!("{measure:?}"))?;
        sync_points.gate(AFTER);
        report.note_values(*measure, values);
    }
    Ok(report)
}

fn take(measure: Measure, maker: &Maker, to: SocketAddr) -> Result<Vec<f64>> {
    let started = match measure {
        Measure::RoundTrip { size, count } => {
            let sizes = RequestSizes {
                request: size,
                answer: size,
            };
            let mut caller = Caller::new(maker, to, sizes)?;
            caller.call()?;
            let started = Instant::now();
            for _ in 0..count {
                caller.call()?;
            }
            started
        }
        Measure::Bulk { bytes } => {
            let sizes = RequestSizes {
                request: bytes,
                answer: 1,
            };
            let mut caller = Caller::new(maker, to, sizes)?;
            let started = Instant::now();
            caller.call()?;
            started
        }
        Measure::Connects { clients, each } => {
            let started = Instant::now();
            at_a_time(clients, each, || Caller::new(maker, to, MESSAGE)?.call())?;
            started
        }
        Measure::Http { clients, each } => {
            let started = Instant::now();
            at_a_time(clients, each, || request_http(maker, to))?;
            started
        }
        Measure::SetUp { count } => {
            let (mut set_ups, mut round_trips) = (Vec::new(), Vec::new());
            let mut caller = Caller::new(maker, to, SHORT)?;
            caller.call()?;
            for _ in 0..ROUND_TRIPS {
                let started = Instant::now();
                caller.call()?;
                round_trips.push(started.elapsed());
            }
            drop(caller);
            for _ in 0..count {
                let started = Instant::now();
                Caller::new(maker, to, SHORT)?.call()?;
                set_ups.push(started.elapsed());
            }
            return Ok(vec![in_round_trips(set_ups, round_trips)]);
        }
        Measure::Requests { .. } => bail!("sockets of the kernel have no early data"),
        Measure::Messages {
            connections, each, ..
        } => return messages(measure, maker, to, connections, each),
    };
    Ok(vec![measure.value(started.elapsed())])
}

/// Does it so many times by each of so many threads.
fn at_a_time(clients: u32, each: u32, once: impl Fn() -> Result<()> + Sync) -> Result<()> {
    let once = &once;
    thread::scope(|scope| {
        let clients: Vec<_> = (0..clients)
            .map(|_| scope.spawn(move || (0..each).try_for_each(|_| once())))
            .collect();
        clients
            .into_iter()
            .try_for_each(|client| client.join().unwrap_or_else(|_| bail!("panicked")))
    })
}

/// [`Measure::Messages`]
fn messages(
    measure: Measure,
    maker: &Maker,
    to: SocketAddr,
    connections: u32,
    each: u32,
) -> Result<Vec<f64>> {
    let mut callers = Vec::new();
    for _ in 0..connections {
        callers.push(Caller::new(maker, to, one_way(each))?);
    }
    let mut other = Caller::new(maker, to, SHORT)?;
    other.call()?;
    let is_over = &AtomicBool::new(false);
    let started = Instant::now();
    let (took, round_trips) = thread::scope(|scope| {
        let senders = callers.into_iter().map(|mut caller| {
            let sender = thread::Builder::new().stack_size(STACK);
            sender.spawn_scoped(scope, move || caller.send_messages(each))
        });
        let senders = senders.collect::<io::Result<Vec<_>>>()?;
        let round_trips = scope.spawn(move || {
            let mut all = Vec::new();
            while !is_over.load(Ordering::Relaxed) {
                let started = Instant::now();
                other.call()?;
                all.push(started.elapsed());
            }
            anyhow::Ok(all)
        });
        let mut sent = senders
            .into_iter()
            .map(|sender| sender.join().unwrap_or_else(|_| bail!("panicked")));
        let sent = sent.try_for_each(|sent| sent);
        let took = started.elapsed();
        is_over.store(true, Ordering::Relaxed);
        let round_trips = round_trips.join().unwrap_or_else(|_| bail!("panicked"));
        sent?;
        anyhow::Ok((took, round_trips?))
    })?;
    Ok(measure.message_values(took, round_trips))
}

/// The listening end: answers all connections until it is killed.
pub(in crate::workload) fn server(listener: &dyn Listener, measures: &[Measure]) -> Result<Report> {
    match receiver_load(measures) {
        ReceiverLoad::None => {}
        ReceiverLoad::Busy => {
            thread::spawn(|| {
                loop {
                    work();
                    thread::yield_now();
                }
            });
        }
        ReceiverLoad::Stopped => start_stops()?,
    }
    let requests = Arc::new(Mutex::new(Requests::default()));
    loop {
        let conn = listener.accept().context("accept")?;
        let requests = Arc::clone(&requests);
        thread::spawn(move || {
            // The client reports what is wrong.
            let _ = answer(&*conn, &requests);
        });
    }
}

/// Receives and sends as the client requests, until it ends.
fn answer(conn: &dyn Connection, requests: &Mutex<Requests>) -> io::Result<()> {
    let mut head = [0; SIZES_LEN];
    let mut at = 0;
    while at < head.len() {
        at += some(conn.read(&mut head[at..])?)?;
    }
    if is_clc(head) {
        let len = (head.len() as u64) + read_to_end(conn);
        if let Ok(mut requests) = requests.lock() {
            requests.add_clc(len);
        }
        return Err(begins_with_clc());
    }
    if is_http(head) {
        return answer_http(conn);
    }
    let sizes = RequestSizes::from_bytes(head);
    let mut buf = vec![0; CHUNK];
    loop {
        read_many(conn, &mut buf, sizes.request)?;
        if let Ok(mut requests) = requests.lock() {
            requests.answer(&mut buf, sizes.request);
        }
        write_many(conn, &buf, sizes.answer)?;
    }
}

/// Reads the rest of a request, and closes the connection behind its response.
fn answer_http(conn: &dyn Connection) -> io::Result<()> {
    let mut rest = [0; HTTP_REQUEST.len() - SIZES_LEN];
    let len = rest.len() as u64;
    read_many(conn, &mut rest, len)?;
    let response = http_response();
    write_many(conn, &response, response.len() as u64)
}

/// One request on a connection of its own.
fn request_http(maker: &Maker, to: SocketAddr) -> Result<()> {
    let conn = maker.connect(to).context("connect")?;
    write_many(&*conn, HTTP_REQUEST, HTTP_REQUEST.len() as u64)?;
    let (mut buf, mut len) = (vec![0; CHUNK], 0);
    loop {
        match conn.read(&mut buf[len..])? {
            0 => break,
            more => len += more,
        }
    }
    expect_http_response(&buf[..len])
}

/// A connection to [`answer`].
struct Caller {
    conn: Box<dyn Connection>,
    sizes: RequestSizes,
    is_first: bool,
    buf: Vec<u8>,
}

impl Caller {
    fn new(maker: &Maker, to: SocketAddr, sizes: RequestSizes) -> Result<Self> {
        let conn = maker.connect(to).context("connect")?;
        Ok(Self {
            conn,
            sizes,
            is_first: true,
            buf: vec![0; CHUNK],
        })
    }

    fn call(&mut self) -> Result<()> {
        let mut left = self.sizes.request;
        if std::mem::take(&mut self.is_first) {
            let (first, behind) = first_write(self.sizes);
            let mut at = 0;
            while at < first.len() {
                at += some(self.conn.write(&first[at..])?)?;
            }
            left = behind;
        }
        write_many(&*self.conn, &self.buf, left)?;
        Ok(read_many(&*self.conn, &mut self.buf, self.sizes.answer)?)
    }
}

impl Caller {
    /// Writes each message by itself, and reads the answer to them all.
    fn send_messages(&mut self, count: u32) -> Result<()> {
        self.conn.write(&self.sizes.to_bytes())?;
        for _ in 0..count {
            write_many(&*self.conn, &self.buf[..MESSAGE_LEN], MESSAGE_LEN as u64)?;
        }
        Ok(read_many(&*self.conn, &mut self.buf, self.sizes.answer)?)
    }
}

fn read_many(conn: &dyn Connection, buf: &mut [u8], mut left: u64) -> io::Result<()> {
    while left > 0 {
        let len = part(buf.len(), left);
        left -= some(conn.read(&mut buf[..len])?)? as u64;
    }
    Ok(())
}

/// Reads to the end, or to an error. Returns how many bytes there were.
fn read_to_end(conn: &dyn Connection) -> u64 {
    let (mut buf, mut len) = (vec![0; CHUNK], 0);
    loop {
        match conn.read(&mut buf) {
            Ok(0) | Err(_) => return len,
            Ok(count) => len += count as u64,
        }
    }
}

fn write_many(conn: &dyn Connection, buf: &[u8], mut left: u64) -> io::Result<()> {
    while left > 0 {
        let len = part(buf.len(), left);
        left -= some(conn.write(&buf[..len])?)? as u64;
    }
    Ok(())
}

fn some(count: usize) -> io::Result<usize> {
    match count {
        0 => Err(io::ErrorKind::UnexpectedEof.into()),
        count => Ok(count),
    }
}

/// Of a thread that sends messages.
const STACK: usize = 128 * 1024;
