//! From a TCP connection to a stream: drives the handshake and does the work it asks for.

use std::future::{Future, poll_fn};
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use smc_wire::size::SizeCode;
use smc_wire::types::{DeclineCode, Gid};

use super::carrier::Carrier;
use super::connected::{direct_connection, rdma_connection};
use super::deadlines::Deadline;
use super::driver::Slot;
use super::endpoint::{BY_POLICY, ConnectOptions, Inner, buffer_size};
use super::groups::Membership;
use super::negotiate::{self, Aside, Candidate, Delivery, Precedent, Withdrawn};
use super::rdma::work::{self as rdma, Prepared};
use super::runtime::{Socket, SocketOptions, Unconnected};
use super::stream::Stream;
use crate::config::Policy;
use crate::device::{Attachment, DeviceError, Direct, Dmb};
use crate::error::{Error, FallbackReason, How};
use crate::proto::group::{Cause, DeviceIndex};
use crate::proto::handshake::{
    Client, Config, CrossingDecline, Done, Established, Fallback, Machine, Offer, Output, Path,
    Server, Transport, Work,
};

/// A stream over a TCP connection that nobody wanted SMC for.
pub(crate) fn not_smc(socket: Arc<dyn Socket>) -> Stream {
    Stream::tcp(socket, Vec::new(), BY_POLICY)
}

/// Connects and sets the stream up.
pub(crate) async fn connect(
    endpoint: &Arc<Inner>,
    to: SocketAddr,
    options: &ConnectOptions,
) -> Result<Stream, Error> {
    let policy = options
        .policy
        .unwrap_or_else(|| (endpoint.config.policy)(&to));
    let config = handshake_config(endpoint, options.recv_buffer)?;
    let offer = match policy {
        Policy::Never => Err(BY_POLICY),
        _ => Offer::new(&config, &Path::default()).map_err(FallbackReason::local),
    };
    let declined = match &offer {
        Err(_) if policy != Policy::Never => decline(endpoint, &config),
        _ => None,
    };
    let first = match &offer {
        Ok(offer) => Some(offer.bytes()),
        Err(_) => declined.as_deref(),
    };
    let candidate = match &first {
        Some(_) => endpoint.negotiator.look_up(to).await,
        None => None,
    };
    let early = match (&candidate, &offer) {
        (Some(candidate), Ok(_)) => buffer_early(endpoint, &config, candidate.precedent()).await,
        _ => None,
    };
    let attempt = Attempt {
        endpoint,
        to,
        options,
        config: &config,
        policy,
        offer: &offer,
        candidate: candidate.as_deref(),
    };
    let stream = match attempt.make(first, early).await {
        Err(failed) if failed.was_confirmed => attempt.make(first, None).await,
        made => made,
    };
    let stream = stream.map_err(|failed| failed.error)?;
    match stream.fallback_reason() {
        Some(reason) if policy == Policy::Require => Err(Error::Declined(reason)),
        _ => Ok(stream),
    }
}

/// What connecting once takes.
struct Attempt<'a> {
    endpoint: &'a Arc<Inner>,
    to: SocketAddr,
    options: &'a ConnectOptions,
    config: &'a Arc<Config>,
    policy: Policy,
    offer: &'a Result<Offer, FallbackReason>,
    candidate: Option<&'a dyn Candidate>,
}

/// Why connecting failed.
struct Failed {
    error: Error,
    /// What was confirmed early could not be done. Without that the stream may still be TCP.
    was_confirmed: bool,
}

impl Attempt<'_> {
    async fn make(&self, first: Option<&[u8]>, early: Option<Early>) -> Result<Stream, Failed> {
        let Self {
            endpoint,
            to,
            config,
            ..
        } = *self;
        let (socket, mut announced) = self.open(first, early.as_ref()).await?;
        let delivery = announced
            .as_mut()
            .map_or(Delivery::Plain, |announced| announced.connected(&*socket));
        let stream = match (delivery, self.offer, announced) {
            (Delivery::OnTcp, ..) => {
                let path = path(endpoint, config, &*socket, to);
                let machine = Client::new(endpoint.runtime.now(), Arc::clone(config), &path);
                shake_hands(endpoint, socket, to, machine).await?
            }
            // Whether there is a port for the connection shows only when it is there.
            (Delivery::Plain, Err(_), _)
                if config.rdma.is_some() && self.policy != Policy::Never =>
            {
                not_spoken(socket)
            }
            (_, Err(reason), _) => Stream::tcp(socket, Vec::new(), *reason),
            (Delivery::Delivered, Ok(offer), Some(announced)) => {
                let kept = Kept {
                    early: early.map(|early| early.buffer),
                    ..Kept::default()
                };
                let offer = (Arc::clone(config), offer.clone());
                answered(endpoint, socket, to, offer, announced, kept).await?
            }
            (Delivery::Delivered | Delivery::Plain, ..) => not_spoken(socket),
        };
        Ok(stream)
    }

    /// Opens the TCP connection, with the offer made in between binding and connecting.
    async fn open(
        &self,
        first: Option<&[u8]>,
        early: Option<&Early>,
    ) -> Result<(Arc<dyn Socket>, Announced), Error> {
        let mut announced = None;
        let options = SocketOptions {
            local: self.options.local,
            unbound: self
                .candidate
                .is_none_or(|candidate| !candidate.needs_address()),
            ..SocketOptions::default()
        };
        let mut offer = |socket: &Unconnected<'_>| {
            announced = match (first, self.candidate, early) {
                (Some(first), Some(candidate), Some(early)) => {
                    candidate.offer_early(socket, first, &early.words)
                }
                (Some(first), Some(candidate), None) => candidate.offer(socket, first),
                _ => None,
            };
            Ok(())
        };
        let socket = self
            .endpoint
            .runtime
            .connect(self.to, &options, &mut offer)
            .await?;
        Ok((socket, announced))
    }
}

impl From<Error> for Failed {
    fn from(error: Error) -> Self {
        Self {
            error,
            was_confirmed: false,
        }
    }
}

/// A handshake that begins with its end.
struct Early {
    words: negotiate::Early,
    buffer: EarlyBuffer,
}

/// A receive buffer that was registered before it was asked for.
struct EarlyBuffer {
    device: DeviceIndex,
    peer: Gid,
    size: SizeCode,
    dmb: Arc<dyn Dmb>,
}

/// Registers a buffer, if the handshake is likely to be as the one before.
async fn buffer_early(
    endpoint: &Inner,
    config: &Config,
    precedent: Option<Precedent>,
) -> Option<Early> {
    let precedent = precedent?;
    let (peer, size) = (precedent.server(), precedent.size());
    let mut devices = config.devices.iter();
    let device = devices.find(|device| device.gid == precedent.client())?;
    if size != config.buffer.min(device.max_buffer) {
        return None;
    }
    let device = device.index;
    let registering = direct(endpoint, device)
        .ok()?
        .register(peer, size.byte_len());
    let dmb = registering.await.ok()?;
    Some(Early {
        words: precedent.confirm(dmb.token())?,
        buffer: EarlyBuffer {
            device,
            peer,
            size,
            dmb,
        },
    })
}

/// Sets the stream up on a connection that was accepted.
pub(crate) async fn accept(
    endpoint: &Arc<Inner>,
    socket: Arc<dyn Socket>,
    peer: SocketAddr,
    aside: Option<Box<dyn Aside>>,
) -> Result<Stream, Error> {
    let now = endpoint.runtime.now();
    let config = handshake_config(endpoint, None)?;
    let path = path(endpoint, &config, &*socket, peer);
    let machine = Server::new(now, config, path);
    match aside {
        Some(mut aside) => {
            let mut carrier = Carrier::server(endpoint, &mut *aside);
            let kept = Kept::default();
            let socket = Arc::clone(&socket);
            shake_hands_on(endpoint, &mut carrier, socket, peer, machine, kept).await
        }
        None => shake_hands(endpoint, socket, peer, machine).await,
    }
}

/// Hears a client that speaks CLC and declines: nobody wants SMC for this connection.
pub(crate) async fn decline_all(
    endpoint: &Arc<Inner>,
    socket: Arc<dyn Socket>,
    aside: Option<Box<dyn Aside>>,
) -> Result<Stream, Error> {
    // Without a device of any kind, so that it can only end in a DECLINE.
    let mut config = Config::new(Vec::new());
    (config.host, config.timeouts) = (endpoint.handshake.host, endpoint.handshake.timeouts);
    let mut machine = Server::new(endpoint.runtime.now(), Arc::new(config), Path::default());
    let mut aside = aside;
    let mut carrier = match &mut aside {
        Some(aside) => Carrier::server(endpoint, &mut **aside),
        None => Carrier::Tcp(&*socket),
    };
    let outcome = drive(endpoint, &mut carrier, &mut machine, &mut Kept::default()).await?;
    match outcome {
        Outcome::Tcp(_) => Ok(not_smc(socket)),
        Outcome::Smc(_) => Err(Error::Bug("a handshake without devices came to SMC")),
    }
}

/// A stream for a client that does not speak SMC.
pub(crate) fn not_spoken(socket: Arc<dyn Socket>) -> Stream {
    Stream::tcp(socket, Vec::new(), NOT_SPOKEN)
}

/// What handshakes that begin now may use.
fn handshake_config(endpoint: &Inner, recv_buffer: Option<usize>) -> Result<Arc<Config>, Error> {
    let ports = endpoint.groups.ports();
    let config = ports.config(&*endpoint.runtime, &endpoint.slots, &endpoint.handshake);
    let Some(len) = recv_buffer else {
        return Ok(config);
    };
    let mut config = Config::clone(&config);
    config.buffer = buffer_size(len)?;
    Ok(Arc::new(config))
}

/// What the handshake has to know about a TCP connection.
fn path(endpoint: &Inner, config: &Config, socket: &dyn Socket, peer: SocketAddr) -> Path {
    match &config.rdma {
        Some(_) => {
            let ports = endpoint.groups.ports();
            let local = socket.local_addr().ok();
            ports.path(&*endpoint.runtime, &endpoint.slots, local, peer)
        }
        None => Path::default(),
    }
}

/// What a client sends that has nothing to offer. A server that waits for CLC on TCP has to hear it,
/// or it would take the application's data for rubbish.
fn decline(endpoint: &Inner, config: &Arc<Config>) -> Option<Vec<u8>> {
    let now = endpoint.runtime.now();
    let mut machine = Client::new(now, Arc::clone(config), &Path::default());
    match machine.poll_output() {
        Some(Output::Send(decline)) => Some(decline),
        _ => None,
    }
}

type Announced = Option<Box<dyn negotiate::Offer>>;

/// Goes on after the PROPOSAL was delivered beside TCP.
///
/// The connection may have reached somebody else, who does not know of the offer. So nothing is
/// sent on TCP, and as long as the offer was not taken the stream can still become plain.
async fn answered(
    endpoint: &Arc<Inner>,
    socket: Arc<dyn Socket>,
    to: SocketAddr,
    (config, offer): (Arc<Config>, Offer),
    mut announced: Box<dyn negotiate::Offer>,
    kept: Kept,
) -> Result<Stream, Failed> {
    let Some(aside) = announced.aside() else {
        let why = "a PROPOSAL was delivered, with no way for the answer";
        return Err(Error::Bug(why).into());
    };
    let machine = Client::announced(endpoint.runtime.now(), config, offer);
    let mut carrier = Carrier::client(endpoint, aside, &*socket);
    let shaken = shake_hands_on(
        endpoint,
        &mut carrier,
        Arc::clone(&socket),
        to,
        machine,
        kept,
    );
    match shaken.await {
        Err(_) if announced.withdraw() == Withdrawn::Free => Ok(not_spoken(socket)),
        shaken => shaken.map_err(|error| Failed {
            error,
            was_confirmed: announced.is_confirmed(),
        }),
    }
}

/// Drives a handshake over TCP to its end and makes a stream of what came of it.
async fn shake_hands(
    endpoint: &Arc<Inner>,
    socket: Arc<dyn Socket>,
    peer: SocketAddr,
    machine: impl Machine,
) -> Result<Stream, Error> {
    let mut carrier = Carrier::Tcp(&*socket);
    let kept = Kept::default();
    let socket = Arc::clone(&socket);
    shake_hands_on(endpoint, &mut carrier, socket, peer, machine, kept).await
}

async fn shake_hands_on(
    endpoint: &Arc<Inner>,
    carrier: &mut Carrier<'_>,
    socket: Arc<dyn Socket>,
    peer: SocketAddr,
    mut machine: impl Machine,
    mut kept: Kept,
) -> Result<Stream, Error> {
    let outcome = drive(endpoint, carrier, &mut machine, &mut kept).await?;
    match outcome {
        Outcome::Tcp(fallback) => {
            let early = match (fallback.crossing_possible, &*carrier) {
                (true, Carrier::Tcp(_)) => without_crossing_decline(endpoint, &*socket).await,
                _ => Vec::new(),
            };
            Ok(Stream::tcp(socket, early, fallback.reason))
        }
        Outcome::Smc(established) => {
            let kinship = carrier.kinship();
            let conn = match established.transport {
                Transport::Direct(path) => {
                    direct_connection(endpoint, socket, peer, &established, path, kept, kinship)?
                }
                Transport::Rdma(path) => {
                    rdma_connection(endpoint, socket, peer, &established, path, kept)?
                }
            };
            Ok(Stream::smc(
                conn,
                endpoint.config.polling,
                endpoint.config.trust,
            ))
        }
    }
}

enum Outcome {
    Smc(Box<Established>),
    Tcp(Fallback),
}

/// What the work of a handshake has brought. Dropping it releases all of it.
#[derive(Default)]
pub(super) struct Kept {
    pub(super) attachment: Option<Arc<dyn Attachment>>,
    pub(super) dmb: Option<Arc<dyn Dmb>>,
    pub(super) prepared: Option<Prepared>,
    early: Option<EarlyBuffer>,
    // Last: with the last connection its group may end.
    pub(super) membership: Option<Membership>,
}

/// What a piece of work has brought, and what the machine has to hear of it.
type Brought = (Kept, Done);

async fn drive(
    endpoint: &Arc<Inner>,
    carrier: &mut Carrier<'_>,
    machine: &mut impl Machine,
    kept: &mut Kept,
) -> Result<Outcome, Error> {
    let mut work: Option<Pin<Box<dyn Future<Output = Brought> + Send>>> = None;
    // The group of ours of which the machine knows that it was terminated.
    let mut told = None;
    loop {
        while let Some(output) = machine.poll_output() {
            match output {
                Output::Send(bytes) => {
                    let until = endpoint.runtime.now() + endpoint.handshake.timeouts.message;
                    if let Err(error) = carrier.send(&*endpoint.runtime, until, &bytes).await {
                        machine.handle_io_error(error.into());
                    }
                }
                Output::Work(Work::Register { device, peer, size })
                    if kept.has_early(device, peer, size) =>
                {
                    let done = kept.use_early();
                    machine.handle_done(endpoint.runtime.now(), done);
                }
                Output::Work(asked) => {
                    let prepared = kept.prepared.clone();
                    work = Some(Box::pin(carry_out(Arc::clone(endpoint), asked, prepared)));
                }
                Output::Discard => {
                    work = None;
                    *kept = Kept::default();
                }
                Output::Terminate(group) => endpoint.groups.terminate(group, Cause::OutOfSync),
                Output::Established(established) => {
                    carrier.flush();
                    return Ok(Outcome::Smc(established));
                }
                Output::Fallback(fallback) => {
                    carrier.flush();
                    return Ok(Outcome::Tcp(fallback));
                }
                Output::Abort(error) => return Err(error),
            }
        }
        carrier.flush();
        let group = kept.membership.as_ref().map(|seat| seat.seat().group());
        let group = group.filter(|group| told != Some(*group));
        let mut terminated = group.map(|_| endpoint.groups.listen_terminated());
        if group.is_some_and(|group| endpoint.groups.is_terminating(group)) {
            told = group;
            machine.handle_terminated(endpoint.runtime.now());
            continue;
        }
        let mut timer = machine.poll_timeout().map(|at| endpoint.deadlines.at(at));
        poll_fn(|cx| {
            let listener = terminated.as_mut();
            if listener.is_some_and(|listener| Pin::new(listener).poll(cx).is_ready()) {
                terminated = None;
                return Poll::Ready(());
            }
            poll_input(cx, endpoint, carrier, machine, kept, &mut work, &mut timer)
        })
        .await;
    }
}

/// Waits for whatever comes first and gives it to the machine.
fn poll_input(
    cx: &mut Context<'_>,
    endpoint: &Inner,
    carrier: &mut Carrier<'_>,
    machine: &mut impl Machine,
    kept: &mut Kept,
    work: &mut Option<Pin<Box<dyn Future<Output = Brought> + Send>>>,
    timer: &mut Option<Deadline>,
) -> Poll<()> {
    if let Some(Poll::Ready((brought, done))) = work.as_mut().map(|work| work.as_mut().poll(cx)) {
        *work = None;
        kept.take(brought);
        machine.handle_done(endpoint.runtime.now(), done);
        return Poll::Ready(());
    }
    let wants = machine.wants();
    if wants > 0 {
        let mut buf = [0; READ_MAX];
        let len = wants.min(buf.len());
        let (part, _) = buf.split_at_mut(len);
        match carrier.poll_read(cx, part) {
            Poll::Ready(Ok(0)) => {
                machine.handle_closed();
                return Poll::Ready(());
            }
            Poll::Ready(Ok(count)) => {
                let (read, _) = part.split_at(count.min(len));
                machine.handle_bytes(endpoint.runtime.now(), read);
                return Poll::Ready(());
            }
            Poll::Ready(Err(error)) => {
                machine.handle_io_error(error.into());
                return Poll::Ready(());
            }
            Poll::Pending => {}
        }
    }
    match timer.as_mut().map(|timer| Pin::new(timer).poll(cx)) {
        Some(Poll::Ready(())) => {
            machine.handle_timeout(endpoint.runtime.now());
            Poll::Ready(())
        }
        _ => Poll::Pending,
    }
}

impl Kept {
    /// Whether there is such a buffer already.
    fn has_early(&self, device: DeviceIndex, peer: Gid, size: SizeCode) -> bool {
        let fits =
            |early: &EarlyBuffer| (early.device, early.peer, early.size) == (device, peer, size);
        self.early.as_ref().is_some_and(fits)
    }

    fn use_early(&mut self) -> Done {
        self.dmb = self.early.take().map(|early| early.dmb);
        let gone = DeviceError::Gone("buffer was used already");
        Done::Registered(self.dmb.as_ref().map(|dmb| dmb.token()).ok_or(gone))
    }

    fn take(&mut self, brought: Self) {
        self.attachment = brought.attachment.or_else(|| self.attachment.take());
        self.dmb = brought.dmb.or_else(|| self.dmb.take());
        self.prepared = brought.prepared.or_else(|| self.prepared.take());
        self.membership = brought.membership.or_else(|| self.membership.take());
    }
}

async fn carry_out(endpoint: Arc<Inner>, work: Work, prepared: Option<Prepared>) -> Brought {
    let mut kept = Kept::default();
    let done = match work {
        Work::Reach { device, peer } => Done::Reached(match direct(&endpoint, device) {
            Ok(direct) => direct.reach(peer).await,
            Err(error) => Err(error),
        }),
        Work::Enter { key, intent } => {
            Done::Entered(endpoint.groups.enter(key, intent).await.map(|membership| {
                let seat = membership.seat();
                kept.membership = Some(membership);
                seat
            }))
        }
        Work::Register { device, peer, size } => {
            let dmb = match direct(&endpoint, device) {
                Ok(direct) => direct.register(peer, size.byte_len()).await,
                Err(error) => Err(error),
            };
            Done::Registered(dmb.map(|dmb| {
                let token = dmb.token();
                kept.dmb = Some(dmb);
                token
            }))
        }
        Work::Attach {
            device,
            peer,
            token,
        } => {
            let nocopy = direct(&endpoint, device).map(|direct| direct.nocopy());
            let attachment = match nocopy {
                Ok(Some(nocopy)) => nocopy.attach(peer, token).await,
                Ok(None) => Err(DeviceError::Invalid("device cannot attach")),
                Err(error) => Err(error),
            };
            Done::Attached(attachment.map(|attachment| {
                let len = attachment.region().len();
                kept.attachment = Some(attachment);
                len
            }))
        }
        Work::Open { group, terms } => Done::Opened(endpoint.groups.establish(group, terms)),
        // Those of SMC-R are large, and SMC-D should not pay for that: they have boxes of their own.
        Work::OpenLink {
            group,
            port,
            address,
        } => Done::LinkOpened(Box::pin(rdma::open_link(&endpoint, group, port, &address)).await),
        Work::PrepareRmb { group, link, size } => {
            let rmb = Box::pin(rdma::prepare_rmb(&endpoint, group, link, size)).await;
            Done::RmbPrepared(rmb.map(|(prepared, local)| {
                kept.prepared = Some(prepared);
                local
            }))
        }
        Work::ConfirmRkey { .. } => {
            Done::RkeyConfirmed(Box::pin(rdma::confirm_rkey(prepared.as_ref())).await)
        }
        Work::BindPeer { rmb, .. } => Done::PeerBound(rdma::bind_peer(prepared.as_ref(), &rmb)),
        Work::ConnectLink {
            group,
            peer,
            route,
            terms,
        } => Done::LinkConnected(
            Box::pin(rdma::connect_link(&endpoint, group, peer, route, terms)).await,
        ),
        Work::ConfirmLink { group } => {
            Done::LinkConfirmed(Box::pin(rdma::confirm_link(&endpoint, group)).await)
        }
    };
    (kept, done)
}

pub(super) fn slot(endpoint: &Inner, device: DeviceIndex) -> Result<&Arc<Slot>, DeviceError> {
    match endpoint.slots.get(device.0) {
        Some(slot) if !slot.is_gone() => Ok(slot),
        _ => Err(DeviceError::Gone("device was removed")),
    }
}

fn direct(endpoint: &Inner, device: DeviceIndex) -> Result<&dyn Direct, DeviceError> {
    let fabric = slot(endpoint, device)?.device().fabric();
    fabric.direct().ok_or(NOT_DIRECT)
}

/// Takes a DECLINE that crossed ours off the stream. Returns what else was read.
async fn without_crossing_decline(endpoint: &Inner, socket: &dyn Socket) -> Vec<u8> {
    let mut filter = CrossingDecline::new(endpoint.runtime.now());
    while let Some(until) = filter.poll_timeout() {
        let mut timer = endpoint.runtime.timer(until);
        poll_fn(|cx| {
            let mut buf = [0; READ_MAX];
            let (part, _) = buf.split_at_mut(filter.wants().min(READ_MAX));
            match socket.poll_read(cx, part) {
                Poll::Ready(Ok(0) | Err(_)) => filter.handle_closed(),
                Poll::Ready(Ok(count)) => {
                    // All of it is taken: no more was read than wanted.
                    filter.handle_bytes(part.get(..count).unwrap_or(part));
                }
                Poll::Pending => match timer.as_mut().poll(cx) {
                    Poll::Ready(()) => filter.handle_timeout(endpoint.runtime.now()),
                    Poll::Pending => return Poll::Pending,
                },
            }
            Poll::Ready(())
        })
        .await;
    }
    filter.release().unwrap_or_default()
}

impl From<How> for Error {
    fn from(how: How) -> Self {
        Self::Closed(how)
    }
}

/// A handshake names only devices of the fabric that it is about.
const NOT_DIRECT: DeviceError = DeviceError::Invalid("not an SMC-D device");

/// The reason of streams whose other end does not speak SMC.
const NOT_SPOKEN: FallbackReason = FallbackReason::local(DeclineCode::PEERNOSMC);

/// Longer than any message of the handshake.
const READ_MAX: usize = 1024;
