use std::fmt::Debug;
use std::sync::Arc;

use async_trait::async_trait;
use smc_wire::types::{DmbToken, Gid};

use super::{DeviceError, PeerEvent, SubmitError};
use crate::mem::Region;

/// Optional ability: the peer's buffer can be mapped, so that it serves as our send buffer.
#[async_trait]
pub trait Nocopy: Send + Sync + Debug {
    /// Maps a buffer that `peer` registered for us. Dropping the result detaches it.
    ///
    /// The peer registered the buffer before it told us the token, so this does not wait for the
    /// peer.
    ///
    /// # Errors
    ///
    /// [`DeviceError::Unreachable`] or [`DeviceError::PeerGone`] when the peer is not there,
    /// [`DeviceError::Invalid`] for a token that is not a buffer for us,
    /// [`DeviceError::PeerMisbehaved`] when what the peer offers is not safe to map.
    async fn attach(&self, peer: Gid, token: DmbToken) -> Result<Arc<dyn Attachment>, DeviceError>;
}

/// A mapped buffer of the peer.
pub trait Attachment: Send + Sync + Debug {
    /// The peer's memory, all of the buffer, aligned to 8. It outlives the peer.
    fn region(&self) -> &Region;

    /// Tells the peer that its buffer was written: like [`super::Signal::Yes`].
    ///
    /// Cheap while the peer is awake. Everything written before is visible to whoever is told.
    ///
    /// # Errors
    ///
    /// [`SubmitError::PeerGone`] when there is nobody left to tell.
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
