//! A connector: the service that clients of frameworks dial by.

use std::future::Future;
use std::io;
use std::net::IpAddr;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tower_service::Service;

use crate::connect_options::ConnectOptions;
use crate::endpoint::Endpoint;
use crate::target::IntoTarget;
use crate::tokio::TcpStream;

/// Dials SMC connections for clients of frameworks: a [`tower_service::Service`] of targets, and
/// with feature `hyper-util` one of URIs, for hyper-util's legacy client and for tonic's
/// `connect_with_connector`. The settings that both have are named as those of hyper-util's
/// `HttpConnector`, so that it takes that one's place by `use smc::Connector as HttpConnector`.
///
/// Of a URI it uses host and port; the default ports are 80 and, for `https` and `wss`, 443. It
/// makes no TLS, and refuses all schemes but `http` and `ws` unless a connector of a TLS crate that
/// wraps it is said to make it ([`Connector::enforce_http`]).
#[derive(Clone, Debug)]
pub struct Connector {
    endpoint: Option<Endpoint>,
    options: ConnectOptions,
    pub(super) enforce_http: bool,
    nodelay: bool,
}

impl Default for Connector {
    fn default() -> Self {
        Self {
            endpoint: None,
            options: ConnectOptions::default(),
            enforce_http: true,
            nodelay: false,
        }
    }
}

impl Connector {
    /// Connects with the default endpoint of the tokio runtime that a connection is made on
    /// ([`smc::tokio::endpoint`](crate::tokio::endpoint)).
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Connects with this endpoint.
    #[must_use]
    pub fn with_endpoint(endpoint: Endpoint) -> Self {
        Self {
            endpoint: Some(endpoint),
            ..Self::default()
        }
    }

    /// Whether URIs with another scheme than `http` and `ws` are refused, most of which take TLS.
    /// `true` unless set: switch it off where this is wrapped in a connector that makes TLS.
    pub fn enforce_http(&mut self, is_enforced: bool) {
        self.enforce_http = is_enforced;
    }

    /// Sets the options of the connections, in place of all that were set before.
    pub fn set_options(&mut self, options: ConnectOptions) {
        self.options = options;
    }

    /// Sets [`ConnectOptions::timeout`]: the longest time for a connection with its handshake.
    pub fn set_connect_timeout(&mut self, time: Option<Duration>) {
        self.options.timeout = time;
    }

    /// Sets [`ConnectOptions::local`] to a free port of this address.
    pub fn set_local_address(&mut self, addr: Option<IpAddr>) {
        self.options.local = addr.map(|addr| (addr, 0).into());
    }

    /// Sets `TCP_NODELAY` of the streams, which has an effect on those that are TCP.
    pub fn set_nodelay(&mut self, nodelay: bool) {
        self.nodelay = nodelay;
    }

    /// Connects to a target.
    ///
    /// # Errors
    ///
    /// As [`Endpoint::connect`] and [`TcpStream::set_nodelay`](crate::Stream::set_nodelay);
    /// `InvalidInput` outside of a tokio runtime.
    pub async fn connect(&self, to: impl IntoTarget) -> io::Result<TcpStream> {
        let endpoint = match &self.endpoint {
            Some(endpoint) => endpoint.clone(),
            None => crate::tokio::endpoint()?,
        };
        let stream = endpoint.connect_with(to, &self.options).await?;
        if self.nodelay {
            stream.set_nodelay(true)?;
        }
        Ok(stream.into())
    }
}

impl<T: IntoTarget + Send + 'static> Service<T> for Connector {
    type Response = TcpStream;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<TcpStream>> + Send>>;

    fn poll_ready(&mut self, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, to: T) -> Self::Future {
        let connector = self.clone();
        Box::pin(async move { connector.connect(to).await })
    }
}
