//! SMC streams over the loop device and ISM devices, and those that have fallen back to TCP.

use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::FileTypeExt as _;
use std::path::Path;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use smc::{Domain, Endpoint, Mode, Policy, Stream, UnixListener};
use smc_core::device::{Device, RoceKind};
use smc_core::negotiate::{Assume, Negotiation};
use smc_negotiate_local::Local;
use smc_transport_ism::{FabricAddress, IsmDevice};
use smc_transport_loop::LoopDevice;
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _};

use super::super::plan::{Cell, Site};
use super::trust::trust_peer;
use super::{Accept, Connect, Kind};
use crate::endpoint::rdma_device;

/// Opens SMC streams.
pub(in crate::bench) struct Connector {
    endpoint: Endpoint,
    to: String,
    kind: Kind,
    is_demo: bool,
}

impl Connector {
    pub(in crate::bench) fn new(carried: &Carried, cell: &Cell, address: &str) -> Result<Self> {
        Ok(Self {
            endpoint: carried.endpoint.clone(),
            to: address.to_owned(),
            kind: cell.transport,
            is_demo: carried.is_demo,
        })
    }
}

impl Connect for Connector {
    type Stream = Stream;

    async fn connect(&self) -> Result<Stream> {
        let stream = match self.kind {
            Kind::LoopUnix => self.endpoint.connect_unix(&self.to).await,
            _ => self.endpoint.connect(&self.to).await,
        };
        let stream = stream.map_err(io::Error::from);
        let stream = stream.with_context(|| format!("connect to {}", self.to))?;
        let is_wanted = match stream.mode() {
            // On a fabric of the user's choice.
            mode if self.is_demo => mode.is_smc(),
            Mode::SmcD { nocopy, .. } => {
                self.kind != Kind::Fallback && *nocopy == is_in_place(self.kind)
            }
            Mode::Tcp { .. } => self.kind == Kind::Fallback,
            _ => false,
        };
        ensure!(is_wanted, "the stream is {}", stream.mode());
        set_nodelay(&stream, self.kind)?;
        Ok(stream)
    }

    fn path(&self, stream: &Stream) -> String {
        match stream.recv_buffer_size() {
            Some(len) => format!("{}, receive ring of {len} bytes", stream.mode()),
            None => stream.mode().to_string(),
        }
    }

    /// In place the message is made anew each time; other senders have it in their cache.
    async fn put(&self, stream: &mut Stream, data: &[u8]) -> io::Result<()> {
        if self.kind != Kind::LoopInplace {
            return stream.write_all(data).await;
        }
        // A message is one piece; of a ring that is short for it, a quarter at a time.
        let ring = stream.peer_recv_buffer_size().unwrap_or(data.len());
        let mut left = data.len();
        while left > 0 {
            let len = left.min((ring / 4).max(1));
            let mut space = stream.reserve_exact(len).await?;
            let make = |piece: &mut [u8]| {
                std::hint::black_box(piece).fill(std::hint::black_box(MADE));
            };
            match len < LONG {
                true => make(space.as_mut_slice()),
                false => space.fill_with(|_, piece| make(piece))?,
            }
            space.commit(len).await?;
            left -= len;
        }
        Ok(())
    }
}

/// Takes SMC streams in.
pub(in crate::bench) struct Listener {
    listener: ListenerKind,
    kind: Kind,
}

enum ListenerKind {
    Tcp(smc::Listener),
    Unix(UnixListener),
}

impl Listener {
    pub(in crate::bench) async fn bind(carried: &Carried, cell: &Cell, dir: &Path) -> Result<Self> {
        let Carried { endpoint, at, .. } = carried;
        let kind = cell.transport;
        let listener = if kind == Kind::LoopUnix {
            let path = dir.join("bench.sock");
            let listener = endpoint.bind_unix(&path);
            ListenerKind::Unix(listener.with_context(|| format!("bind to {}", path.display()))?)
        } else {
            let listener = endpoint.bind(*at).await;
            ListenerKind::Tcp(listener.with_context(|| format!("bind to {at}"))?)
        };
        Ok(Self { listener, kind })
    }
}

impl Accept for Listener {
    type Stream = Stream;

    async fn accept(&self) -> io::Result<Stream> {
        let stream = match &self.listener {
            ListenerKind::Tcp(listener) => listener.accept().await?.0,
            ListenerKind::Unix(listener) => listener.accept().await?.0,
        };
        set_nodelay(&stream, self.kind)?;
        Ok(stream)
    }

    fn address(&self) -> Result<String> {
        Ok(match &self.listener {
            ListenerKind::Tcp(listener) => listener.local_addr()?.to_string(),
            ListenerKind::Unix(listener) => listener.local_addr()?.to_string(),
        })
    }

    /// In place looks at each byte once, which is what copying them does too.
    async fn take(&self, stream: &mut Stream, buf: &mut [u8]) -> io::Result<usize> {
        if self.kind != Kind::LoopInplace {
            return stream.read(buf).await;
        }
        let bytes = stream.fill_buf().await?;
        let count = bytes.len().min(buf.len());
        std::hint::black_box(sum(&bytes[..count]));
        stream.consume(count);
        Ok(count)
    }
}

/// Asks that nothing waits for more data.
fn set_nodelay(stream: &Stream, kind: Kind) -> io::Result<()> {
    match kind {
        Kind::LoopUnix => Ok(()),
        _ => stream.set_nodelay(true),
    }
}

/// One pass over the bytes.
fn sum(bytes: &[u8]) -> u64 {
    let words = bytes.chunks_exact(8);
    let rest = words.remainder().iter().copied().map(u64::from);
    let words = words.filter_map(|word| Some(u64::from_ne_bytes(word.try_into().ok()?)));
    words.chain(rest).fold(0, u64::wrapping_add)
}

/// From this length on a reservation is filled in pieces.
const LONG: usize = 16 * 1024;

/// What data made in place is of.
const MADE: u8 = 0x5a;

/// An endpoint, whose devices are needed for as long as there are streams.
pub(in crate::bench) struct Carried {
    pub(in crate::bench) endpoint: Endpoint,
    /// Where its listeners have to be, on any port.
    at: SocketAddr,
    device: Option<Weak<dyn Device>>,
    is_demo: bool,
}

impl Carried {
    pub(in crate::bench) fn open(cell: &Cell, dir: &Path) -> Result<Self> {
        let mut builder = cell.runtime.endpoint()?;
        if let Some(len) = ring(cell) {
            builder = builder.recv_buffer(len);
        }
        if let Some(len) = cell.site.as_ref().and_then(|site| site.buffer) {
            builder = builder.send_buffer(len);
        }
        if let Some(window) = cell.settings.polling {
            builder = builder.polling(window);
        }
        let mut at = cell.settings.any_port();
        let is_demo = cell.site.is_some();
        if cell.transport == Kind::Fallback {
            return Ok(Self {
                endpoint: builder.policy(Policy::Never).build()?,
                at,
                device: None,
                is_demo,
            });
        }
        if cell.transport == Kind::LoopInplace {
            builder = builder.trust_peers(trust_peer());
        }
        let device = device(cell, dir)?;
        let going = Arc::downgrade(&device);
        if let Some(rdma) = device.operations().rdma() {
            let mut addresses = rdma.addresses().into_iter();
            let address = addresses.find_map(|address| match address.kind {
                RoceKind::V2 => address.gid.ipv4(),
                _ => None,
            });
            let address = address.context("the device has no RoCE v2 GID with an IPv4 address")?;
            at.set_ip(address.into());
            builder = builder.ueid("SMC-DEMO".parse()?);
        }
        let negotiation: Arc<dyn Negotiation> = match (&cell.settings.apart, &cell.site) {
            // The two know of each other.
            (Some(_), _) => Arc::new(Assume::new()),
            _ if cell.transport == Kind::Rdma => Arc::new(Assume::new()),
            (None, Some(_)) => Arc::new(Local::new()),
            (None, None) => Arc::new(Local::in_domain(Domain::directory(dir))),
        };
        Ok(Self {
            endpoint: builder.device(device).negotiation(negotiation).build()?,
            at,
            device: Some(going),
            is_demo,
        })
    }

    /// In a demonstration waits until the last words of connections are sent and the device has
    /// taken its name back, which happens in tasks that end with the process. Other names are in a
    /// directory that is removed.
    pub(in crate::bench) async fn part(self) {
        if !self.is_demo {
            return;
        }
        self.endpoint.close().await;
        drop(self.endpoint);
        let until = Instant::now() + PARTING;
        while self
            .device
            .as_ref()
            .is_some_and(|device| device.strong_count() > 0)
            && Instant::now() < until
        {
            std::thread::sleep(Duration::from_micros(100));
            futures_lite::future::yield_now().await;
        }
    }
}

/// What carries the streams: this is the one place that knows how a device is made.
fn device(cell: &Cell, dir: &Path) -> Result<Arc<dyn Device>> {
    let in_place = is_in_place(cell.transport);
    if let Some(site) = &cell.site {
        return device_of(site, cell.transport, dir);
    }
    if !is_ism(cell.transport) {
        let device = LoopDevice::builder()
            .domain(Domain::directory(dir))
            .nocopy(in_place);
        return Ok(Arc::new(device.build()?));
    }
    let buffers = 2 * cell.case.connections();
    let len = ring(cell).unwrap_or(RING_MAX) * 2 * buffers;
    let place = match &cell.settings.apart {
        None => FabricAddress::directory(dir.join("ism"))
            .with_len(len.max(ISM_MEMORY) / 16 * 17)
            .with_nocopy(in_place),
        Some(apart) => match &apart.ism_server {
            Some(path) => FabricAddress::server(path),
            None => FabricAddress::guest(),
        },
    };
    let device = IsmDevice::builder(place).max_dmbs(buffers.max(ISM_BUFFERS));
    Ok(Arc::new(device.build()?))
}

/// The same for a demonstration, which uses what applications use.
fn device_of(site: &Site, kind: Kind, dir: &Path) -> Result<Arc<dyn Device>> {
    let in_place = is_in_place(kind);
    if kind == Kind::Rdma {
        return rdma_device(site.device.as_deref());
    }
    if !is_ism(kind) {
        let device = LoopDevice::builder().nocopy(in_place).build();
        return Ok(Arc::new(device.context("cannot open the loop device")?));
    }
    let path = site.fabric.clone().unwrap_or_else(|| dir.join("fabric"));
    let is_socket = fs_err::metadata(&path).is_ok_and(|found| found.file_type().is_socket());
    let place = if is_socket {
        FabricAddress::server(path)
    } else {
        FabricAddress::directory(path).with_nocopy(in_place)
    };
    let device = IsmDevice::builder(place).build();
    Ok(Arc::new(device.context("cannot open the ISM device")?))
}

/// Receive ring to ask for; `None` for the default. The memory of an ISM fabric is one for all, and
/// the first one would take what the others need.
fn ring(cell: &Cell) -> Option<usize> {
    if let Some(site) = &cell.site {
        return site.buffer;
    }
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

/// How long parting may take.
const PARTING: Duration = Duration::from_secs(1);
/// Memory of an ISM fabric, unless connections need more: what a container has of it by default is
/// twice as much.
const ISM_MEMORY: usize = 32 << 20;
/// Buffers of an ISM device, unless connections need more.
const ISM_BUFFERS: usize = 1920;
/// Receive rings: the shortest that there is, and the default.
const RING_MIN: usize = 16 << 10;
const RING_MAX: usize = 1 << 20;
