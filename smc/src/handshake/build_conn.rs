//! Builds a connection from the result of a handshake.

use std::net::{Shutdown, SocketAddr};
use std::sync::Arc;

use super::executor::{HandshakeResources, driver};
use crate::conn::{Conn, DirectConn, Parts, Path, PeerDmb, PeerLocality, len_u32};
use crate::device::{Attachment, DeviceError};
use crate::device_driver::DeviceDriver;
use crate::endpoint::EndpointInner;
use crate::error::{CloseReason, Error, PeerMisbehaved, Phase};
use crate::mem::Element;
use crate::memory_limit::PeerCharge;
use crate::proto::group::GroupState;
use crate::proto::handshake::{DirectPath, Established, PeerAccess, RdmaPath, Transport};
use crate::runtime::Socket;
use crate::stream::Mode;

/// Builds a connection and hands it to the driver of its device. A connection that was lost before
/// ends behind the data that its peer has written.
pub(super) fn build_conn(
    endpoint: &EndpointInner,
    socket: Arc<dyn Socket>,
    peer_addr: SocketAddr,
    established: &Established,
    resources: &mut HandshakeResources,
    locality: PeerLocality,
) -> Result<Arc<Conn>, Error> {
    let (parts, lost) = match established.transport {
        Transport::Direct(path) => direct(endpoint, established, path, resources, locality)?,
        Transport::Rdma(path) => rdma(endpoint, established, path, resources)?,
    };
    let membership = resources.membership.take().ok_or(NO_RESOURCE)?;
    let conn = Conn::new(parts, socket, peer_addr, membership);
    if let Some(rdma) = conn.rdma() {
        rdma.set_conn(&conn);
    }
    conn.driver.add_conn(&conn);
    // The group may have ended before the driver knew of the connection.
    let state = endpoint.groups.info(conn.group).map(|group| group.state);
    let is_ended = state.is_none_or(|state| state == GroupState::Terminating);
    let lost = lost.or_else(|| is_ended.then_some(Error::Closed(CloseReason::Aborted)));
    if let Some(why) = lost {
        // Notifies a peer that still exists.
        let _best_effort = conn.socket.shutdown(Shutdown::Both);
        conn.abort_unreachable(why);
    }
    Ok(conn)
}

/// The parts of an SMC-D connection, and why it was lost.
fn direct(
    endpoint: &EndpointInner,
    established: &Established,
    path: DirectPath,
    resources: &mut HandshakeResources,
    locality: PeerLocality,
) -> Result<(Parts, Option<Error>), Error> {
    let driver = driver(endpoint, path.device)?;
    let dmb = resources.dmb.take().ok_or(NO_RESOURCE)?;
    let local = dmb
        .region()
        .part(0, path.local_size.byte_len())
        .and_then(Element::new);
    let local = local.map_err(|_| DeviceError::Invalid("device registered too short a buffer"))?;
    let ring = path.peer_buffer.size.ring_d();
    // A client's buffer is not larger than the local one, for which memory was checked.
    let peer_len = path.peer_buffer.size.byte_len();
    let charge = std::mem::take(&mut resources.charge);
    let charge = PeerCharge::new(charge, peer_len, driver, path.peer_buffer.token);
    let attachment = resources.attachment.take();
    let (peer, lost) = match &charge {
        Ok(_) => peer_dmb(driver, &path, attachment)?,
        Err(error) => (PeerDmb::Lost, Some(Error::Device(error.clone()))),
    };
    let mode = Mode::SmcD {
        version: established.version,
        release: established.release,
        nocopy: path.access == PeerAccess::Attached,
        device: Arc::clone(&driver.name),
        chid: path.chid,
        peer: path.peer,
        eid: established.eid,
    };
    let parts = Parts {
        local,
        local_ring: path.local_size.ring_d(),
        path: Path::Direct(DirectConn::new(dmb, peer, ring, charge.ok())),
        mode,
        driver: Arc::clone(driver),
        drivers: None,
        locality,
    };
    Ok((parts, lost))
}

/// How the peer's buffer is written; if it is lost, why.
fn peer_dmb(
    driver: &Arc<DeviceDriver>,
    path: &DirectPath,
    attachment: Option<Result<Arc<dyn Attachment>, DeviceError>>,
) -> Result<(PeerDmb, Option<Error>), Error> {
    let buffer = &path.peer_buffer;
    let why = match (path.access, attachment) {
        (PeerAccess::Attached, Some(Ok(attachment))) => {
            let (at, len) = (buffer.offset(), buffer.size.byte_len());
            let element = attachment.region().part(at, len).and_then(Element::new);
            let element = element.map_err(|_| PeerMisbehaved::BadBuffer)?;
            let mapped = PeerDmb::Mapped {
                element,
                attachment,
            };
            return Ok((mapped, None));
        }
        (PeerAccess::Moved, _) => {
            let moved = PeerDmb::Moved {
                driver: Arc::clone(driver),
                token: buffer.token,
                base: len_u32(buffer.offset()),
            };
            return Ok((moved, None));
        }
        (_, Some(Ok(_) | Err(DeviceError::Unreachable { .. }))) => {
            Error::Closed(CloseReason::Aborted)
        }
        (_, Some(Err(error))) if error.is_peer_gone() => Error::Closed(CloseReason::Aborted),
        (_, Some(Err(error))) => Error::Device(error),
        (_, None) => Error::TimedOut(Phase::Device),
    };
    Ok((PeerDmb::Lost, Some(why)))
}

/// The parts of an SMC-R connection, and why it was lost. CDC messages that arrived since the peer
/// knows the token are in the RMB already.
fn rdma(
    endpoint: &EndpointInner,
    established: &Established,
    path: RdmaPath,
    resources: &mut HandshakeResources,
) -> Result<(Parts, Option<Error>), Error> {
    // Its device may be gone: then the group fails over to another one, or ends the connection.
    let driver = endpoint.drivers.get(path.device.0).ok_or(NO_SUCH_DEVICE)?;
    let handle = resources.prepared.take().ok_or(NO_RESOURCE)?.handle;
    let lost = (!handle.0.is_bound()).then_some(Error::Closed(CloseReason::Aborted));
    let mode = Mode::SmcR {
        version: established.version,
        release: established.release,
        device: Arc::clone(&driver.name),
        local: path.link.gid,
        peer: path.peer.gid,
        eid: established.eid,
    };
    let parts = Parts {
        local: handle.0.rmb.element.clone(),
        local_ring: handle.0.rmb.size.ring_r(),
        path: Path::Rdma(handle),
        mode,
        driver: Arc::clone(driver),
        drivers: Some(Arc::clone(&endpoint.drivers)),
        locality: PeerLocality::Unknown,
    };
    Ok((parts, lost))
}

const NO_RESOURCE: Error = Error::Bug("handshake ended without a buffer or a link group");
const NO_SUCH_DEVICE: DeviceError = DeviceError::Invalid("endpoint has no such device");
