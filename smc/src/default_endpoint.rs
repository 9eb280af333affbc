//! The endpoints of types without an endpoint of their own: one for each runtime of the process.

use std::future::pending;
use std::sync::{Arc, Weak};

use super::builder::Builder;
use super::endpoint::{Endpoint, EndpointInner};
use super::environment::Environment;
use super::negotiate::Never;
use super::runtime::Runtime;
use crate::error::{Error, FallbackCause};
use crate::mutex::Mutex;
use crate::{Domain, add_defaults};

/// The default endpoints, each with what its runtime is identified by. A task of the runtime has
/// the endpoint, so that it is dropped, and its names are removed, when the runtime ends.
pub(crate) struct DefaultEndpoints<K>(Mutex<Vec<(K, Weak<EndpointInner>)>>);

impl<K: PartialEq> DefaultEndpoints<K> {
    pub(crate) const fn new() -> Self {
        Self(Mutex::new(Vec::new()))
    }

    /// The endpoint of a runtime; makes it when there is none.
    ///
    /// # Errors
    ///
    /// As [`build`].
    pub(crate) fn get(
        &self,
        runtime_id: K,
        runtime: impl FnOnce() -> Arc<dyn Runtime>,
    ) -> Result<Endpoint, Error> {
        let mut endpoints = self.0.lock();
        // Runtimes end, and another one may get the same identifier. Those from before a `fork` are
        // the parent's.
        endpoints.retain(|(_, endpoint)| Endpoint::upgrade(endpoint).is_some());
        let known = endpoints.iter().find(|(id, _)| *id == runtime_id);
        if let Some(endpoint) = known.and_then(|(_, endpoint)| Endpoint::upgrade(endpoint)) {
            return Ok(endpoint);
        }
        let endpoint = build(runtime())?;
        endpoints.push((runtime_id, endpoint.downgrade()));
        let kept = endpoint.clone();
        endpoint.spawn(async move {
            let _kept = kept;
            pending::<()>().await;
        });
        Ok(endpoint)
    }
}

/// An endpoint with the defaults and the settings of the environment. Where the default device
/// cannot be made, all its streams are TCP with that cause.
///
/// # Errors
///
/// As [`Builder::build`] of an endpoint without a device.
fn build(runtime: Arc<dyn Runtime>) -> Result<Endpoint, Error> {
    let environment = Environment::of_process();
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
        builder
    };
    let error = match add_defaults(builder(), Domain::default()) {
        Ok(with_device) => match with_device.build() {
            Ok(endpoint) => return Ok(endpoint),
            Err(error) => error,
        },
        Err(error) => error.into(),
    };
    let cause = FallbackCause::NoDefaultDevice(Arc::new(error));
    warn!("default endpoint has no device", cause = cause);
    builder()
        .negotiation(Arc::new(Never::because(cause)))
        .build()
}
