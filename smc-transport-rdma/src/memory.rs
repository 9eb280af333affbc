//! Registered memory.

use std::any::Any;
use std::io;
use std::sync::Arc;

use sideway::ibverbs::AccessFlags;
use smc_core::device::{Access, DeviceError, Mr, Piece, SubmitError, Write};
use smc_core::mem::Region;
use smc_wire::types::{Rkey, RmbAddr};

use crate::device::Parts;
use crate::verbs::{Registered, Span, WriteRequest};

/// Memory registered with one device.
#[derive(Debug)]
pub(crate) struct Memory {
    registered: Registered,
    parts: Arc<Parts>,
}

impl Memory {
    pub(crate) fn new(
        parts: &Arc<Parts>,
        region: &Region,
        access: Access,
    ) -> Result<Self, DeviceError> {
        let access = match access {
            Access::Local => AccessFlags::LocalWrite,
            Access::RemoteWrite => AccessFlags::LocalWrite | AccessFlags::RemoteWrite,
        };
        let registered = Registered::new(parts.domain(), region.clone(), access);
        Ok(Self {
            registered: registered.map_err(|error| not_registered(&error))?,
            parts: Arc::clone(parts),
        })
    }

    fn span(&self, piece: Piece) -> Result<Span, SubmitError> {
        let end = u64::from(piece.at) + u64::from(piece.len);
        if end > self.region().len() as u64 {
            return Err(SubmitError::OutOfBounds);
        }
        Ok(self.registered.span(u64::from(piece.at), piece.len))
    }
}

impl Mr for Memory {
    fn region(&self) -> &Region {
        self.registered.region()
    }

    fn rkey(&self) -> Rkey {
        Rkey(self.registered.rkey())
    }

    fn addr(&self) -> RmbAddr {
        RmbAddr(self.registered.addr())
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

/// Checks a write of a link on this device. `None` if there is nothing to write.
pub(crate) fn request(
    parts: &Arc<Parts>,
    write: &Write<'_>,
) -> Result<Option<WriteRequest>, SubmitError> {
    let memory = write.from.as_any().downcast_ref::<Memory>();
    let memory = memory
        .filter(|memory| Arc::ptr_eq(&memory.parts, parts))
        .ok_or(SubmitError::Device(DeviceError::Invalid(
            "memory is registered with another device",
        )))?;
    let mut request = WriteRequest {
        rkey: write.rkey.0,
        to: write.to.0,
        ..WriteRequest::default()
    };
    for piece in [write.first, write.second] {
        let span = memory.span(piece)?;
        if let Some(slot) = request.from.get_mut(usize::from(request.spans)) {
            if span.len > 0 {
                *slot = span;
                request.spans += 1;
            }
        }
    }
    Ok((request.spans > 0).then_some(request))
}

/// Why memory could not be registered.
pub(crate) fn not_registered(error: &io::Error) -> DeviceError {
    match error
        .raw_os_error()
        .map(rustix::io::Errno::from_raw_os_error)
    {
        Some(rustix::io::Errno::NOMEM | rustix::io::Errno::AGAIN) => DeviceError::NoMemory,
        Some(rustix::io::Errno::NOSPC) => DeviceError::Exhausted,
        _ => DeviceError::os("registering memory", error),
    }
}
