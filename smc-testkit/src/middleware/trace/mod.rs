//! Devices that record what happens at them.

mod direct;
mod rdma;
mod record;

pub use record::{Record, What};

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use smc_core::device::{Device, DeviceError, Event};

use super::delegate_device;

/// Passes calls of a device and its events to a sink.
///
/// Getters are not recorded, nor drains that brought nothing, nor reads and writes of shared
/// memory, which no device sees.
pub struct Trace {
    inner: Arc<dyn Device>,
    log: Log,
}

impl Trace {
    /// Passes every record to `sink`, in the thread of the call.
    #[must_use]
    pub fn new(
        inner: Arc<dyn Device>,
        sink: impl Fn(&Record) + Send + Sync + 'static,
    ) -> Arc<Self> {
        let device = Arc::from(inner.identity().name.as_str());
        Arc::new(Self {
            inner,
            log: Log {
                device,
                sink: Arc::new(sink),
            },
        })
    }

    /// Keeps all records, to be checked later.
    #[must_use]
    pub fn with_journal(inner: Arc<dyn Device>) -> (Arc<Self>, Journal) {
        let journal = Journal::default();
        let sink = journal.clone();
        let trace = Self::new(inner, move |record| sink.records().push(record.clone()));
        (trace, journal)
    }
}

/// Records kept by [`Trace::with_journal`]. Clones are the same journal.
#[derive(Clone, Debug, Default)]
pub struct Journal(Arc<Mutex<Vec<Record>>>);

impl Journal {
    /// Takes what was recorded since the last call.
    #[must_use]
    pub fn take(&self) -> Vec<Record> {
        std::mem::take(&mut *self.records())
    }

    fn records(&self) -> MutexGuard<'_, Vec<Record>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[derive(Clone)]
struct Log {
    device: Arc<str>,
    sink: Arc<dyn Fn(&Record) + Send + Sync>,
}

impl Log {
    fn record(&self, what: What) {
        (self.sink)(&Record {
            device: Arc::clone(&self.device),
            what,
        });
    }

    /// Records this when the result is dropped.
    fn until(&self, what: What) -> Released {
        let log = self.clone();
        Released { what, log }
    }
}

/// Records the end of an object when it is dropped.
struct Released {
    what: What,
    log: Log,
}

impl Drop for Released {
    fn drop(&mut self) {
        self.log.record(self.what.clone());
    }
}

impl fmt::Debug for Trace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Trace").field(&self.inner).finish()
    }
}

impl Device for Trace {
    delegate_device!();

    fn drain(&self, sink: &mut dyn FnMut(Event)) -> Result<(), DeviceError> {
        let result = self.inner.drain(&mut |event| {
            self.log.record(What::Reported(event.clone()));
            sink(event);
        });
        result.inspect_err(|error| self.log.record(What::DrainFailed(error.clone())))
    }

    fn arm(&self) -> Result<(), DeviceError> {
        self.log.record(What::Armed);
        self.inner.arm()
    }
}

/// A traced device has the properties of the inner one.
macro_rules! debug_as_inner {
    ($($type:ident)*) => { $(
        impl std::fmt::Debug for $type {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                self.inner.fmt(f)
            }
        }
    )* };
}
use debug_as_inner;
