//! Optional abilities of devices: peer buffers that are mapped, and events between devices.

use std::fmt::Debug;
use std::sync::Arc;

use async_trait::async_trait;
use smc_wire::types::{DmbToken, Gid};

use super::{DeviceError, PeerEvent, SubmitError};
use crate::mem::Region;

/// Optional ability: the peer's buffer can be mapped, so that it serves as the local send buffer.
#[async_trait]
pub trait Nocopy: Send + Sync + Debug {
    /// Maps a buffer that `peer` registered for this device. Dropping the result detaches it.
    ///
    /// The peer registers a buffer before it sends the token, so this does not wait for the peer.
    ///
    /// # Errors
    ///
    /// [`DeviceError::Unreachable`] or [`DeviceError::PeerGone`] when the peer is not there,
    /// [`DeviceError::Invalid`] for a token of no buffer for this device,
    /// [`DeviceError::PeerMisbehaved`] when the peer's buffer is not safe to map.
    async fn attach(&self, peer: Gid, token: DmbToken) -> Result<Arc<dyn Attachment>, DeviceError>;
}

/// A mapped buffer of the peer.
pub trait Attachment: Send + Sync + Debug {
    /// The peer's memory, all of the buffer, aligned to 8. It stays valid when the peer ends.
    fn region(&self) -> &Region;

    /// Signals the peer that its buffer was written: like [`super::Signal::Yes`].
    ///
    /// Cheap while the peer is awake. Earlier writes are visible to the receiver of the signal.
    ///
    /// # Errors
    ///
    /// [`SubmitError::PeerGone`] when the peer's device is gone.
    fn signal(&self) -> Result<(), SubmitError>;
}

/// Optional ability: events from device to device, outside of any buffer.
pub trait PeerEvents: Send + Sync + Debug {
    /// Sends an event; it arrives as [`super::Event::Peer`]. Does not block.
    ///
    /// # Errors
    ///
    /// [`SubmitError`] when it could not be sent.
    fn signal_event(&self, peer: Gid, event: PeerEvent) -> Result<(), SubmitError>;
}
