//! The endpoints of types without an endpoint of their own: one for each runtime of the process.

use std::future::pending;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use super::builder::Builder;
use super::endpoint::{Endpoint, EndpointInner};
use super::environment::Environment;
use super::negotiate::Never;
use super::runtime::Runtime;
use crate::device::DeviceError;
use crate::error::{Error, FallbackCause};
use crate::mutex::Mutex;
use crate::{Domain, add_defaults, process};

/// The default endpoints, each with what its runtime is identified by.
pub(crate) struct DefaultEndpoints<K>(Mutex<Vec<(Key<K>, Arc<Slot>)>>);

/// A runtime, and the process: a child by `fork` makes its own endpoints.
type Key<K> = (K, i32);

/// The endpoint of a runtime. While it is made this is locked, so that only tasks of that runtime
/// wait.
#[derive(Default)]
struct Slot(Mutex<DefaultEndpoint>);

#[derive(Default)]
enum DefaultEndpoint {
    #[default]
    None,
    /// A task of the runtime has it, so that it is dropped, and its names are removed, when the
    /// runtime ends.
    WithDevice(Weak<EndpointInner>),
    /// Its device could not be made, which is tried again after this time.
    WithoutDevice(Endpoint, Instant),
}

impl<K: PartialEq> DefaultEndpoints<K> {
    pub(crate) const fn new() -> Self {
        Self(Mutex::new(Vec::new()))
    }

    /// The endpoint of a runtime; makes it when there is none.
    ///
    /// # Errors
    ///
    /// As [`Builder::build`] of an endpoint without a device.
    pub(crate) fn get(
        &self,
        runtime_id: K,
        runtime: impl FnOnce() -> Arc<dyn Runtime>,
    ) -> Result<Endpoint, Error> {
        let process = process::current().as_raw_nonzero().get();
        let slot = self.slot((runtime_id, process));
        let mut default = slot.0.lock();
        // Another runtime may have had the identifier.
        if let Some(endpoint) = default.get() {
            return Ok(endpoint);
        }
        let (endpoint, made) = make(runtime())?;
        *default = made;
        Ok(endpoint)
    }

    fn slot(&self, key: Key<K>) -> Arc<Slot> {
        let mut slots = self.0.lock();
        if let Some((_, slot)) = slots.iter().find(|(known, _)| *known == key) {
            return Arc::clone(slot);
        }
        let slot = Arc::<Slot>::default();
        // Runtimes end.
        let (used, unused): (Vec<_>, Vec<_>) = std::mem::take(&mut *slots)
            .into_iter()
            .partition(|(_, slot)| slot.is_used());
        *slots = used;
        slots.push((key, Arc::clone(&slot)));
        // Dropping an endpoint may take long.
        drop(slots);
        drop(unused);
        slot
    }
}

impl Slot {
    /// Whether the endpoint is of use, or being made.
    fn is_used(self: &Arc<Self>) -> bool {
        Arc::strong_count(self) > 1
            || match &*self.0.lock() {
                DefaultEndpoint::None => false,
                DefaultEndpoint::WithDevice(endpoint) => endpoint.strong_count() > 0,
                DefaultEndpoint::WithoutDevice(endpoint, _) => endpoint.is_open(),
            }
    }
}

impl DefaultEndpoint {
    /// The endpoint, unless one has to be made.
    fn get(&self) -> Option<Endpoint> {
        match self {
            Self::None => None,
            Self::WithDevice(endpoint) => Endpoint::upgrade(endpoint).filter(Endpoint::is_open),
            Self::WithoutDevice(endpoint, until) => {
                let is_current = endpoint.is_open() && endpoint.now() < *until;
                is_current.then(|| endpoint.clone())
            }
        }
    }
}

/// Makes an endpoint with the defaults and the settings of the environment. Where its device cannot
/// be made, all streams of the endpoint are TCP with that cause.
///
/// # Errors
///
/// As [`Builder::build`] of an endpoint without a device; as [`Environment::of_process`].
fn make(runtime: Arc<dyn Runtime>) -> Result<(Endpoint, DefaultEndpoint), Error> {
    let environment = Environment::of_process().map_err(DeviceError::from)?;
    let builder = || {
        let mut builder = Builder::new()
            .runtime(Arc::clone(&runtime))
            .policy_rule(environment.policy_rule());
        if let Some(len) = environment.recv_buffer {
            builder = builder.recv_buffer(len);
        }
        if let Some(window) = environment.polling {
            builder = builder.polling(window);
        }
        if let Some(is_on) = environment.socket_reuse {
            builder = builder.socket_reuse(is_on);
        }
        builder
    };
    let with_device = add_defaults(builder(), Domain::default()).map_err(Error::from);
    let error = match with_device.and_then(Builder::build) {
        Ok(endpoint) => {
            let kept = endpoint.clone();
            endpoint.spawn(async move {
                let _kept = kept;
                pending::<()>().await;
            });
            let made = DefaultEndpoint::WithDevice(endpoint.downgrade());
            return Ok((endpoint, made));
        }
        Err(error) => error,
    };
    let cause = FallbackCause::NoDefaultDevice(Arc::new(error));
    warn!("default endpoint has no device", cause = cause);
    let endpoint = builder()
        .negotiation(Arc::new(Never::because(cause)))
        .build()?;
    let made = DefaultEndpoint::WithoutDevice(endpoint.clone(), runtime.now() + DEVICE_RETRY_DELAY);
    Ok((endpoint, made))
}

/// How long an endpoint is used whose device could not be made. A lack of descriptors or memory
/// passes, and an attempt can block for two seconds.
const DEVICE_RETRY_DELAY: Duration = Duration::from_secs(10);
