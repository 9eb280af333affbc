//! A transport of one's own: SMC-D between endpoints of one process.
//!
//! Run it with `cargo run -p smc-examples --bin custom_device`.
//!
//! A device has an identity, registers buffers, moves data into the buffers of its peers, reports
//! what its peers signalled, and has a doorbell. That is all there is to it; what follows is the
//! whole transport, in safe code. The tests at the end run the conformance suite on it.

use std::collections::HashMap;
use std::error::Error;
use std::hash::{BuildHasher, RandomState};
use std::io::IoSlice;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use atomic_waker::AtomicWaker;
use futures_lite::{AsyncReadExt, AsyncWriteExt, future, io};
use smc::Builder;
use smc::Local;
use smc::device::{
    Device, DeviceError, Direct, Dmb, Doorbell, Event, Identity, Limits, Operations, Signal,
    SubmitError,
};
use smc::mem::Region;
use smc::wire::types::{Chid, DmbToken, Gid};

fn main() -> Result<(), Box<dyn Error>> {
    let hub = Arc::new(Hub::default());
    smol::block_on(async {
        let endpoint = |name| {
            let local = Arc::new(Local::new());
            let builder = Builder::smol().negotiation(local);
            builder.device(hub.device(name)).build()
        };
        let (server, client) = (endpoint("hub0")?, endpoint("hub1")?);
        let listener = server.bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;

        let echo = async {
            let (stream, _) = listener.accept().await?;
            let (reader, mut writer) = stream.into_split();
            io::copy(io::BufReader::new(reader), &mut writer).await?;
            writer.close().await?;
            Ok::<_, Box<dyn Error>>(())
        };
        let client = async {
            let mut stream = client.connect(address).await?;
            println!("connected: {}", stream.mode());
            stream.write_all(b"through a custom device").await?;
            stream.close().await?;
            let mut answer = String::new();
            stream.read_to_string(&mut answer).await?;
            println!("answer: {answer}");
            Ok(())
        };
        future::try_zip(echo, client).await.map(|_| ())
    })
}

/// The fabric of the devices: those attached, and the buffers that may be written.
#[derive(Debug, Default)]
struct Hub {
    members: Mutex<HashMap<Gid, Arc<Inbox>>>,
    buffers: Mutex<HashMap<DmbToken, Arc<Buffer>>>,
}

/// Pending events of one device.
#[derive(Debug)]
struct Inbox {
    gid: Gid,
    events: Mutex<Vec<Event>>,
    waker: AtomicWaker,
}

#[derive(Debug)]
struct Buffer {
    token: DmbToken,
    region: Region,
    owner: Arc<Inbox>,
    writer: Gid,
}

impl Hub {
    fn device(self: &Arc<Self>, name: &str) -> Arc<HubDevice> {
        // The second half of the GID must not be zero: this identifies emulated devices.
        let gid = Gid::new(random(), random() | 1);
        let inbox = Arc::new(Inbox {
            gid,
            events: Mutex::default(),
            waker: AtomicWaker::new(),
        });
        lock(&self.members).insert(gid, Arc::clone(&inbox));
        Arc::new(HubDevice {
            identity: Identity::new(name),
            hub: Arc::clone(self),
            inbox,
        })
    }
}

impl Inbox {
    /// Every event rings, so there is nothing to arm. Signals of one buffer are one event.
    fn push(&self, event: Event) {
        let mut events = lock(&self.events);
        if !events.contains(&event) {
            events.push(event);
        }
        drop(events);
        self.waker.wake();
    }
}

#[derive(Debug)]
struct HubDevice {
    identity: Identity,
    hub: Arc<Hub>,
    inbox: Arc<Inbox>,
}

impl Device for HubDevice {
    fn identity(&self) -> &Identity {
        &self.identity
    }

    fn limits(&self) -> Limits {
        Limits::new(MAX_BUFFERS, 1 << 20)
    }

    fn operations(&self) -> Operations<'_> {
        Operations::Direct(self)
    }

    fn drain(&self, sink: &mut dyn FnMut(Event)) -> Result<(), DeviceError> {
        let events = std::mem::take(&mut *lock(&self.inbox.events));
        events.into_iter().for_each(sink);
        Ok(())
    }

    fn arm(&self) -> Result<(), DeviceError> {
        Ok(())
    }

    fn doorbell(&self) -> Doorbell<'_> {
        Doorbell::Waker(&self.inbox.waker)
    }
}

#[async_trait]
impl Direct for HubDevice {
    fn gid(&self) -> Gid {
        self.inbox.gid
    }

    fn chid(&self) -> Chid {
        Chid(0xff20)
    }

    async fn reach(&self, peer: Gid) -> Result<(), DeviceError> {
        if lock(&self.hub.members).contains_key(&peer) {
            return Ok(());
        }
        Err(DeviceError::Unreachable {
            peer,
            why: "not on this hub",
        })
    }

    async fn register(&self, peer: Gid, len: usize) -> Result<Arc<dyn Dmb>, DeviceError> {
        self.reach(peer).await?;
        if len > self.limits().max_dmb_len {
            return Err(DeviceError::Invalid("longer than a buffer can be"));
        }
        let mut buffers = lock(&self.hub.buffers);
        let own = buffers
            .values()
            .filter(|buffer| buffer.owner.gid == self.gid())
            .count();
        if own >= MAX_BUFFERS {
            return Err(DeviceError::Exhausted);
        }
        // 64 random bits do not collide while a process runs.
        let token = DmbToken(random());
        let (region, owner) = (Region::anonymous(len), Arc::clone(&self.inbox));
        let buffer = Arc::new(Buffer {
            token,
            region,
            owner,
            writer: peer,
        });
        buffers.insert(token, Arc::clone(&buffer));
        Ok(Arc::new(HubDmb {
            hub: Arc::clone(&self.hub),
            buffer,
        }))
    }

    fn move_data(
        &self,
        peer: Gid,
        to: DmbToken,
        at: u32,
        data: &[IoSlice<'_>],
        signal: Signal,
    ) -> Result<(), SubmitError> {
        let buffer = lock(&self.hub.buffers).get(&to).cloned();
        let buffer =
            buffer.filter(|buffer| buffer.owner.gid == peer && buffer.writer == self.gid());
        let buffer = buffer.ok_or(SubmitError::UnknownToken)?;
        // All or nothing: the bounds of the whole come before the first byte.
        let mut at = usize::try_from(at).map_err(|_| SubmitError::OutOfBounds)?;
        let len = data.iter().map(|slice| slice.len()).sum();
        buffer
            .region
            .part(at, len)
            .map_err(|_| SubmitError::OutOfBounds)?;
        for slice in data {
            buffer
                .region
                .copy_in(at, slice)
                .map_err(|_| SubmitError::OutOfBounds)?;
            at += slice.len();
        }
        if signal == Signal::Yes {
            buffer.owner.push(Event::Signalled(to));
        }
        Ok(())
    }
}

impl Drop for HubDevice {
    fn drop(&mut self) {
        let gid = self.gid();
        lock(&self.hub.members).remove(&gid);
        lock(&self.hub.buffers).retain(|_, buffer| buffer.owner.gid != gid);
        lock(&self.hub.members)
            .values()
            .for_each(|inbox| inbox.push(Event::PeerGone(gid)));
    }
}

/// A registered buffer; dropping it takes it off the hub.
#[derive(Debug)]
struct HubDmb {
    hub: Arc<Hub>,
    buffer: Arc<Buffer>,
}

impl Dmb for HubDmb {
    fn token(&self) -> DmbToken {
        self.buffer.token
    }

    fn region(&self) -> &Region {
        &self.buffer.region
    }
}

impl Drop for HubDmb {
    fn drop(&mut self) {
        lock(&self.hub.buffers).remove(&self.buffer.token);
    }
}

/// 64 bits that cannot be guessed: the standard library keys its hash maps with them.
fn random() -> u64 {
    RandomState::new().hash_one(0)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

const MAX_BUFFERS: usize = 64;

#[cfg(test)]
mod tests {
    use smc_testkit::conformance::{Pair, Provider, Skip};

    use super::*;

    struct HubProvider;

    #[async_trait]
    impl Provider for HubProvider {
        async fn pair(&self) -> Result<Pair, Skip> {
            let hub = Arc::new(Hub::default());
            Ok(Pair::new(hub.device("hub0"), hub.device("hub1"))
                .with_third(hub.device("hub2"))
                .with_kill(drop::<Arc<dyn Device>>))
        }
    }

    smc_testkit::conformance_suite!(HubProvider);
}
