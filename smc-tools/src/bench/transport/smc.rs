//! SMC streams over the loop device and ISM devices, and those that have fallen back to TCP.

use std::io;
use std::marker::PhantomData;
use std::net::SocketAddr;
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use anyhow::{Context as _, Result, ensure};
use futures_lite::{AsyncBufRead, AsyncRead, AsyncWrite};
use smc::{Domain, Endpoint, Mode, Policy, Stream};
use smc_core::device::Device;
use smc_core::negotiate::Assume;
use smc_negotiate_local::Local;
use smc_transport_ism::{IsmDevice, Place};
use smc_transport_loop::LoopDevice;

use super::super::plan::Cell;
use super::trust::trust_peer;
use super::{Accept, Connect, Duplex, Kind};

/// An SMC stream with a way to read it.
pub(in crate::bench) trait Reading: Duplex + From<Stream> {
    fn stream(&self) -> &Stream;
}

impl Reading for Stream {
    fn stream(&self) -> &Stream {
        self
    }
}

impl Duplex for Stream {
    type Tokio = Self;

    fn into_tokio(self) -> Self {
        self
    }
}

/// A stream whose bytes are made where the peer will read them, and read where it has put
/// them.
pub(in crate::bench) struct InPlace(Stream);

impl Reading for InPlace {
    fn stream(&self) -> &Stream {
        &self.0
    }
}

impl Duplex for InPlace {
    type Tokio = Stream;

    fn into_tokio(self) -> Stream {
        self.0
    }

    /// Writes each byte once, which is what copying them does too; but here there is no buffer to
    /// copy from, which other senders have in their cache.
    async fn put(&mut self, data: &[u8]) -> io::Result<()> {
        // A message is one piece; of a ring that is short for it, a quarter at a time.
        let ring = self.0.send_buffer_size().unwrap_or(data.len());
        let mut left = data.len();
        while left > 0 {
            let len = left.min((ring / 4).max(1));
            let mut space = self.0.reserve_exact(len).await?;
            std::hint::black_box(space.as_mut_slice()).fill(std::hint::black_box(MADE));
            space.commit(len).await?;
            left -= len;
        }
        Ok(())
    }

    /// Looks at each byte once, which is what copying them does too.
    fn poll_take(&mut self, cx: &mut Context<'_>, buf: &mut [u8]) -> Poll<io::Result<usize>> {
        let mut stream = Pin::new(&mut self.0);
        let bytes = ready!(stream.as_mut().poll_fill_buf(cx))?;
        let count = bytes.len().min(buf.len());
        std::hint::black_box(sum(&bytes[..count]));
        stream.consume(count);
        Poll::Ready(Ok(count))
    }
}

impl From<Stream> for InPlace {
    fn from(stream: Stream) -> Self {
        Self(stream)
    }
}

impl AsyncRead for InPlace {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut [u8],
    ) -> Poll<io::Result<usize>> {
        AsyncRead::poll_read(Pin::new(&mut self.get_mut().0), cx, buf)
    }
}

impl AsyncWrite for InPlace {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        AsyncWrite::poll_write(Pin::new(&mut self.get_mut().0), cx, buf)
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        AsyncWrite::poll_flush(Pin::new(&mut self.get_mut().0), cx)
    }

    fn poll_close(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        AsyncWrite::poll_close(Pin::new(&mut self.get_mut().0), cx)
    }
}

/// One pass over the bytes.
fn sum(bytes: &[u8]) -> u64 {
    let words = bytes.chunks_exact(8);
    let rest = words.remainder().iter().copied().map(u64::from);
    let words = words.filter_map(|word| Some(u64::from_ne_bytes(word.try_into().ok()?)));
    words.chain(rest).fold(0, u64::wrapping_add)
}

/// What data made in place is of.
const MADE: u8 = 0x5a;

/// Opens SMC streams.
pub(in crate::bench) struct Connector<S> {
    endpoint: Endpoint,
    to: SocketAddr,
    kind: Kind,
    reading: PhantomData<fn() -> S>,
}

impl<S: Reading> Connector<S> {
    pub(in crate::bench) fn open(cell: &Cell, dir: &Path, address: &str) -> Result<Self> {
        Ok(Self {
            endpoint: endpoint(cell, dir)?,
            to: address.parse()?,
            kind: cell.transport,
            reading: PhantomData,
        })
    }
}

impl<S: Reading> Connect for Connector<S> {
    type Stream = S;

    async fn connect(&self) -> Result<S> {
        let stream = self.endpoint.connect(self.to).await;
        let stream = stream.map_err(io::Error::from);
        let stream = stream.with_context(|| format!("connect to {}", self.to))?;
        let is_wanted = match stream.mode() {
            Mode::SmcD { nocopy, .. } => {
                self.kind != Kind::Fallback && *nocopy == is_in_place(self.kind)
            }
            Mode::Tcp { .. } => self.kind == Kind::Fallback,
            _ => false,
        };
        ensure!(is_wanted, "the stream is {}", stream.mode());
        stream.set_nodelay(true)?;
        Ok(stream.into())
    }

    fn path(&self, stream: &S) -> String {
        let stream = stream.stream();
        match stream.recv_buffer_size() {
            Some(len) => format!("{}, receive ring of {len} bytes", stream.mode()),
            None => stream.mode().to_string(),
        }
    }
}

/// Takes SMC streams in.
pub(in crate::bench) struct Listener<S> {
    listener: smc::Listener,
    /// Its devices are needed for as long as streams come.
    _endpoint: Endpoint,
    reading: PhantomData<fn() -> S>,
}

impl<S: Reading> Listener<S> {
    pub(in crate::bench) async fn open(cell: &Cell, dir: &Path) -> Result<Self> {
        let (endpoint, at) = (endpoint(cell, dir)?, cell.settings.any_port());
        let listener = endpoint.bind(at).await;
        Ok(Self {
            listener: listener.with_context(|| format!("bind to {at}"))?,
            _endpoint: endpoint,
            reading: PhantomData,
        })
    }
}

impl<S: Reading> Accept for Listener<S> {
    type Stream = S;

    async fn accept(&self) -> io::Result<S> {
        let stream = self.listener.accept().await?.0;
        stream.set_nodelay(true)?;
        Ok(stream.into())
    }

    fn address(&self) -> Result<String> {
        Ok(self.listener.local_addr()?.to_string())
    }
}

fn endpoint(cell: &Cell, dir: &Path) -> Result<Endpoint> {
    let mut builder = cell.runtime.endpoint()?;
    if let Some(len) = ring(cell) {
        builder = builder.recv_buffer(len);
    }
    if let Some(window) = cell.settings.polling {
        builder = builder.polling(window);
    }
    if cell.transport == Kind::Fallback {
        return Ok(builder.policy(Policy::Never).build()?);
    }
    if cell.transport == Kind::LoopInplace {
        builder = builder.trust_peers(trust_peer());
    }
    let builder = builder.device(device(cell, dir)?);
    Ok(match &cell.settings.apart {
        None => builder.negotiation(Arc::new(Local::in_domain(Domain::directory(dir)))),
        // The two know of each other.
        Some(_) => builder.negotiation(Arc::new(Assume::new())),
    }
    .build()?)
}

/// What carries the streams: this is the one place that knows how a device is made.
fn device(cell: &Cell, dir: &Path) -> Result<Arc<dyn Device>> {
    let in_place = is_in_place(cell.transport);
    if !is_ism(cell.transport) {
        let device = LoopDevice::builder()
            .domain(Domain::directory(dir))
            .nocopy(in_place);
        return Ok(Arc::new(device.build()?));
    }
    let buffers = 2 * cell.case.connections();
    let len = ring(cell).unwrap_or(RING_MAX) * 2 * buffers;
    let place = match &cell.settings.apart {
        None => Place::directory(dir.join("ism"))
            .with_len(len.max(ISM_MEMORY) / 16 * 17)
            .with_nocopy(in_place),
        Some(apart) => match &apart.ism_server {
            Some(path) => Place::server(path),
            None => Place::guest(),
        },
    };
    let device = IsmDevice::builder(place).max_dmbs(buffers.max(ISM_BUFFERS));
    Ok(Arc::new(device.build()?))
}

/// Receive ring to ask for; `None` for the default. The memory of an ISM fabric is one for all, and
/// the first one would take what the others need.
fn ring(cell: &Cell) -> Option<usize> {
    let share = ISM_MEMORY / (4 * cell.case.connections());
    let fitting = (share.max(RING_MIN) + 1).next_power_of_two() / 2;
    let fitting = is_ism(cell.transport).then(|| fitting.min(RING_MAX));
    cell.settings.buffer.or(fitting)
}

fn is_ism(kind: Kind) -> bool {
    matches!(kind, Kind::Ism | Kind::IsmCopy)
}

/// Whether the device supports access in place to the peer's buffers.
fn is_in_place(kind: Kind) -> bool {
    !matches!(kind, Kind::LoopCopy | Kind::IsmCopy)
}

/// Memory of an ISM fabric, unless connections need more: what a container has of it by default is
/// twice as much.
const ISM_MEMORY: usize = 32 << 20;
/// Buffers of an ISM device, unless connections need more.
const ISM_BUFFERS: usize = 1920;
/// Receive rings: the shortest that there is, and the default.
const RING_MIN: usize = 16 << 10;
const RING_MAX: usize = 1 << 20;
