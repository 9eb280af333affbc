//! Measures with the userspace stack: tasks on one thread, which its devices share.

use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use smc::{Builder, ConnectOptions, Endpoint, ListenOptions, Stream};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::task::JoinSet;

use super::super::run::SyncPoints;
use super::super::{Report, ours};
use super::requests::{Numbered, Requested, Requests, begins_with_clc, is_clc};
use super::{
    AFTER, BEFORE, CHUNK, EARLY_DATA_MAX, HTTP_REQUEST, MESSAGE, MESSAGE_LEN, Measure, ROUND_TRIPS,
    ReceiverLoad, RequestSizes, SHORT, SIZES_LEN, expect_http_response, first_write, http_response,
    in_round_trips, is_http, one_way, part, receiver_load, start_stops, work,
};
use crate::protocol::{End, Job, OurFeatures};

/// One end, until all measures are taken, or until it is killed.
pub(in crate::workload) fn run(job: &Job, sync_points: &'static SyncPoints) -> Result<Report> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    // A task like the others: what is blocked on has a way of its own to be woken.
    let job = job.clone();
    runtime.block_on(async { tokio::spawn(end(job, sync_points)).await })?
}

async fn end(job: Job, sync_points: &SyncPoints) -> Result<Report> {
    let endpoint = ours::endpoint(Builder::tokio(), &job)?;
    match job.end {
        End::Connect(to) => {
            let to = Server {
                endpoint,
                at: to,
                takes_early_data: job.features >= OurFeatures::EarlyData,
            };
            let report = client(&to, &job.measures, sync_points).await;
            to.endpoint.close().await;
            report
        }
        End::Listen(at) => {
            let options = ListenOptions::new().max_early_data(EARLY_DATA_MAX);
            let listener = endpoint
                .bind_with(at, &options)
                .await
                .with_context(|| format!("listen at {at}"))?;
            match receiver_load(&job.measures) {
                ReceiverLoad::None => {}
                ReceiverLoad::Busy => {
                    tokio::spawn(async {
                        loop {
                            work();
                            tokio::task::yield_now().await;
                        }
                    });
                }
                ReceiverLoad::Stopped => start_stops()?,
            }
            sync_points.mark("listening");
            server(&listener).await
        }
    }
}

/// Where the measures are taken.
#[derive(Clone)]
struct Server {
    endpoint: Endpoint,
    at: SocketAddr,
    takes_early_data: bool,
}

/// The connecting end: takes all measures, one after the other.
async fn client(to: &Server, measures: &[Measure], sync_points: &SyncPoints) -> Result<Report> {
    let mut report = Report::default();
    // The first connection makes the link group.
    let mut first = Caller::new(to, MESSAGE).await?;
    first.call().await?;
    report.carriers.push(ours::carrier(first.stream.mode())?);
    drop(first);
    for measure in measures {
        sync_points.gate(BEFORE);
        let taken = take(*measure, to).await;
        sync_points.gate(AFTER);
        let values = taken.with_context(|| format!("{measure:?}"))?;
        report.note_values(*measure, values);
        for device in to.endpoint.stats().devices {
            eprintln!("{}: {:?}", device.device, device.queues);
        }
    }
    Ok(report)
}

async fn take(measure: Measure, to: &Server) -> Result<Vec<f64>> {
    let started = match measure {
        Measure::RoundTrip { size, count } => {
            let sizes = RequestSizes {
                request: size,
                answer: size,
            };
            let mut caller = Caller::new(to, sizes).await?;
            caller.call().await?;
            let started = Instant::now();
            for _ in 0..count {
                caller.call().await?;
            }
            started
        }
        Measure::Bulk { bytes } => {
            let sizes = RequestSizes {
                request: bytes,
                answer: 1,
            };
            let mut caller = Caller::new(to, sizes).await?;
            let started = Instant::now();
            caller.call().await?;
            started
        }
        Measure::Connects { clients, each } | Measure::Http { clients, each } => {
            let is_http = matches!(measure, Measure::Http { .. });
            let started = Instant::now();
            let mut running = JoinSet::new();
            for _ in 0..clients {
                let to = to.clone();
                running.spawn(async move {
                    for _ in 0..each {
                        if is_http {
                            request_http(&to).await?;
                        } else {
                            Caller::new(&to, MESSAGE).await?.call().await?;
                        }
                    }
                    anyhow::Ok(())
                });
            }
            while let Some(ended) = running.join_next().await {
                ended??;
            }
            started
        }
        Measure::SetUp { count } => {
            let (mut set_ups, mut round_trips) = (Vec::new(), Vec::new());
            let mut caller = Caller::new(to, SHORT).await?;
            caller.call().await?;
            for _ in 0..ROUND_TRIPS {
                let started = Instant::now();
                caller.call().await?;
                round_trips.push(started.elapsed());
            }
            drop(caller);
            for _ in 0..count {
                let started = Instant::now();
                Caller::new(to, SHORT).await?.call().await?;
                set_ups.push(started.elapsed());
            }
            return Ok(vec![in_round_trips(set_ups, round_trips)]);
        }
        Measure::Requests { count, len, beside } => {
            let seen = requests(to, count, len, beside).await?;
            return Ok(seen.to_values().to_vec());
        }
        Measure::Messages {
            connections, each, ..
        } => return messages(measure, to, connections, each).await,
    };
    Ok(vec![measure.value(started.elapsed())])
}

/// [`Measure::Requests`]
async fn requests(to: &Server, count: u32, len: u64, beside: bool) -> Result<Requested> {
    let mut seen = Requested::default();
    let (mut failed, mut number) = (0, 0);
    let mut request = async |len| {
        loop {
            number += 1;
            let error = match Caller::numbered(to, number, len).await {
                Ok(mut caller) => {
                    caller.call().await?;
                    return anyhow::Ok(caller);
                }
                Err(error) => error,
            };
            // The server may have it: the next one has a number of its own.
            eprintln!("request {number}: {error:#}");
            failed += 1;
            ensure!(failed <= FAILED_MAX, "{failed} connects have failed");
        }
    };
    for _ in 0..count {
        let other = match beside {
            true => Some(request(SHORT.request).await?),
            false => None,
        };
        let mut caller = request(len).await?;
        caller.expect_no_more().await?;
        seen.taken += f64::from(u8::from(caller.stream.early_data_accepted()));
        seen.over_tcp += f64::from(u8::from(!caller.stream.mode().is_smc()));
        drop((caller, other));
        tokio::time::sleep(PAUSE).await;
    }
    let last = request(SHORT.request).await?;
    let counted = Numbered::of(&last.buf);
    let doubled = counted.doubled;
    ensure!(doubled == 0, "the server has got {doubled} requests twice");
    let value = |count| u32::try_from(count).map(f64::from);
    (seen.clc, seen.clc_len) = (value(counted.clc)?, value(counted.clc_len)?);
    Ok(seen)
}

/// [`Measure::Messages`]
async fn messages(measure: Measure, to: &Server, connections: u32, each: u32) -> Result<Vec<f64>> {
    let mut callers = Vec::new();
    for _ in 0..connections {
        callers.push(Caller::connect(to, one_way(each), None).await?);
    }
    let mut other = Caller::new(to, SHORT).await?;
    other.call().await?;
    let is_over = Arc::new(AtomicBool::new(false));
    let started = Instant::now();
    let mut senders = JoinSet::new();
    for mut caller in callers {
        senders.spawn(async move { caller.send_messages(each).await });
    }
    let over = Arc::clone(&is_over);
    let round_trips = tokio::spawn(async move {
        let mut all = Vec::new();
        while !over.load(Ordering::Relaxed) {
            let started = Instant::now();
            other.call().await?;
            all.push(started.elapsed());
        }
        anyhow::Ok(all)
    });
    while let Some(sent) = senders.join_next().await {
        sent??;
    }
    let took = started.elapsed();
    is_over.store(true, Ordering::Relaxed);
    Ok(measure.message_values(took, round_trips.await??))
}

/// The listening end: answers all connections.
async fn server(listener: &smc::Listener) -> Result<Report> {
    let requests = Arc::new(Mutex::new(Requests::default()));
    loop {
        let (stream, _) = listener.accept().await.context("accept")?;
        let requests = Arc::clone(&requests);
        tokio::spawn(async move {
            match answer(stream, &requests).await {
                // The client has closed the connection.
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {}
                Err(error) => eprintln!("server: {error}"),
                Ok(()) => {}
            }
        });
    }
}

/// Receives and sends as the client requests, until it ends.
async fn answer(mut stream: Stream, requests: &Mutex<Requests>) -> io::Result<()> {
    let mut head = [0; SIZES_LEN];
    stream.read_exact(&mut head).await?;
    if is_clc(head) {
        if let Ok(mut requests) = requests.lock() {
            requests.add_clc(head.len() as u64);
        }
        return Err(begins_with_clc());
    }
    if is_http(head) {
        return answer_http(stream).await;
    }
    let sizes = RequestSizes::from_bytes(head);
    let mut buf = vec![0; CHUNK];
    loop {
        read_many(&mut stream, &mut buf, sizes.request).await?;
        if let Ok(mut requests) = requests.lock() {
            requests.answer(&mut buf, sizes.request);
        }
        write_many(&mut stream, &buf, sizes.answer).await?;
    }
}

/// Reads the rest of a request, and closes the connection behind its response.
async fn answer_http(mut stream: Stream) -> io::Result<()> {
    let mut rest = [0; HTTP_REQUEST.len() - SIZES_LEN];
    stream.read_exact(&mut rest).await?;
    stream.write_all(&http_response()).await
}

/// One request on a connection of its own, with the PROPOSAL if the server takes it there.
async fn request_http(to: &Server) -> Result<()> {
    let mut options = ConnectOptions::new();
    if to.takes_early_data {
        options = options.early_data(HTTP_REQUEST);
    }
    let connected = to.endpoint.connect_with(to.at, &options).await;
    let mut stream = connected.context("connect")?;
    if !to.takes_early_data {
        stream.write_all(HTTP_REQUEST).await?;
    }
    let mut response = Vec::with_capacity(CHUNK);
    stream.read_to_end(&mut response).await?;
    expect_http_response(&response)
}

/// A connection to [`answer`].
struct Caller {
    stream: Stream,
    sizes: RequestSizes,
    /// The connect has sent the first part.
    has_sent: bool,
    has_called: bool,
    buf: Vec<u8>,
}

impl Caller {
    /// With the first request, if the server takes it with the PROPOSAL.
    async fn new(to: &Server, sizes: RequestSizes) -> Result<Self> {
        let (first, _) = first_write(sizes);
        let is_early = to.takes_early_data && first.len() <= EARLY_DATA_MAX;
        Self::connect(to, sizes, is_early.then_some(first)).await
    }

    /// The same with a request of this length that the server counts; the connect sends it in any
    /// case.
    async fn numbered(to: &Server, number: u64, len: u64) -> Result<Self> {
        let sizes = RequestSizes {
            request: len,
            ..SHORT
        };
        let (mut first, _) = first_write(sizes);
        let numbered = Numbered {
            number,
            ..Numbered::default()
        };
        numbered.put(&mut first[SIZES_LEN..]);
        Self::connect(to, sizes, Some(first)).await
    }

    async fn connect(to: &Server, sizes: RequestSizes, early: Option<Vec<u8>>) -> Result<Self> {
        let has_sent = early.is_some();
        let options = early.map_or_else(ConnectOptions::new, |first| {
            ConnectOptions::new().early_data(first)
        });
        let stream = to.endpoint.connect_with(to.at, &options).await;
        Ok(Self {
            stream: stream.context("connect")?,
            sizes,
            has_sent,
            has_called: false,
            buf: vec![0; CHUNK],
        })
    }

    async fn call(&mut self) -> Result<()> {
        let mut left = self.sizes.request;
        if !std::mem::replace(&mut self.has_called, true) {
            let (first, behind) = first_write(self.sizes);
            if !self.has_sent {
                self.stream.write_all(&first).await?;
            }
            left = behind;
        }
        write_many(&mut self.stream, &self.buf, left).await?;
        Ok(read_many(&mut self.stream, &mut self.buf, self.sizes.answer).await?)
    }
}

impl Caller {
    /// Writes each message by itself, and reads the answer to them all. Other tasks have a turn now
    /// and then, as threads have.
    async fn send_messages(&mut self, count: u32) -> Result<()> {
        self.stream.write_all(&self.sizes.to_bytes()).await?;
        for number in 1..=count {
            self.stream.write_all(&self.buf[..MESSAGE_LEN]).await?;
            if number % IN_A_TURN == 0 {
                tokio::task::yield_now().await;
            }
        }
        Ok(read_many(&mut self.stream, &mut self.buf, self.sizes.answer).await?)
    }

    /// The server has got one request.
    async fn expect_no_more(&mut self) -> Result<()> {
        self.stream.shutdown().await?;
        let rest = self.stream.read(&mut self.buf).await;
        ensure!(matches!(rest, Ok(0)), "behind the answer there is {rest:?}");
        Ok(())
    }
}

/// What fits into the buffer is there then.
async fn read_many(stream: &mut Stream, buf: &mut [u8], mut left: u64) -> io::Result<()> {
    let mut at = 0;
    while left > 0 {
        let len = part(buf.len() - at, left);
        match stream.read(&mut buf[at..at + len]).await? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            count => {
                left -= count as u64;
                at = (at + count) % buf.len();
            }
        }
    }
    Ok(())
}

async fn write_many(stream: &mut Stream, buf: &[u8], mut left: u64) -> io::Result<()> {
    while left > 0 {
        let len = part(buf.len(), left);
        stream.write_all(&buf[..len]).await?;
        left -= len as u64;
    }
    Ok(())
}

/// Messages that are written before other tasks have a turn: a thread writes some hundred in its
/// time slice.
const IN_A_TURN: u32 = 16;

/// Connects of [`Measure::Requests`] that may fail, one of them since the server has changed.
const FAILED_MAX: u32 = 3;

/// So that what a connection has had is free for the next one.
const PAUSE: Duration = Duration::from_millis(100);
