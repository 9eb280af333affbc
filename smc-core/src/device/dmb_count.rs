//! The number of buffers of a device, and its limit.

use std::sync::Arc;

use super::DeviceError;
use crate::mem::sync::{AtomicUsize, Ordering};

/// Counts the buffers of a device against [`Limits::max_dmbs`](super::Limits::max_dmbs).
#[derive(Debug)]
pub struct DmbCount {
    used: AtomicUsize,
    max: usize,
}

impl DmbCount {
    /// No buffer, and at most `max`.
    #[must_use]
    pub fn new(max: usize) -> Arc<Self> {
        Arc::new(Self {
            used: AtomicUsize::new(0),
            max,
        })
    }

    /// Number of buffers now.
    #[must_use]
    pub fn used(&self) -> usize {
        self.used.load(Ordering::Relaxed)
    }

    /// Counts one more buffer, until the permit is dropped.
    ///
    /// # Errors
    ///
    /// [`DeviceError::Exhausted`] at the limit.
    pub fn take(self: &Arc<Self>) -> Result<DmbPermit, DeviceError> {
        let one_more = |used| (used < self.max).then_some(used + 1);
        match self
            .used
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_more)
        {
            Ok(_) => Ok(DmbPermit(Arc::clone(self))),
            Err(_) => Err(DeviceError::Exhausted),
        }
    }
}

/// One buffer of a [`DmbCount`].
#[derive(Debug)]
pub struct DmbPermit(Arc<DmbCount>);

impl Drop for DmbPermit {
    fn drop(&mut self) {
        self.0.used.fetch_sub(1, Ordering::Relaxed);
    }
}
