//! What a proxy accepts connections from.

use std::io;

use anyhow::{Context as _, Result};
use smc::Endpoint;
use tokio::net::TcpListener;

use super::NAME;
use super::address::Address;
use super::connection::Socket;
use super::unix::{self, BoundPath};
use crate::endpoint;
use crate::serve::Accept;

/// A listening socket.
pub(super) struct Listener {
    socket: Listening,
    /// Its address, with the port that it got.
    address: String,
    _path: Option<BoundPath>,
}

enum Listening {
    Smc(Box<endpoint::Listener>),
    Tcp(TcpListener),
    Unix(unix::Listener),
}

impl Listener {
    pub(super) async fn bind(
        address: &Address,
        endpoint: Option<&Endpoint>,
        mode: u32,
    ) -> Result<Self> {
        let failed = || format!("cannot listen at {address}");
        let mut bound_path = None;
        let (socket, address) = match address {
            Address::Smc(target) => {
                let endpoint = endpoint.context("no endpoint")?;
                let listener = endpoint.bind(target.clone()).await.with_context(failed)?;
                let at = format!("smc:{}", listener.local_addr()?);
                let listener = endpoint::Listener::new(listener, NAME);
                (Listening::Smc(Box::new(listener)), at)
            }
            Address::Tcp(target) => {
                let listener = TcpListener::bind(target).await.with_context(failed)?;
                let at = format!("tcp:{}", listener.local_addr()?);
                (Listening::Tcp(listener), at)
            }
            Address::Unix(path) => {
                let (listener, path) = unix::listen(path, mode)?;
                bound_path = Some(path);
                (Listening::Unix(listener), address.to_string())
            }
            Address::Abstract(name) => {
                let listener = unix::listen_abstract(name).with_context(failed)?;
                (Listening::Unix(listener), address.to_string())
            }
        };
        Ok(Self {
            socket,
            address,
            _path: bound_path,
        })
    }
}

impl Accept for Listener {
    type Client = Socket;

    fn address(&self) -> &str {
        &self.address
    }

    async fn accept(&mut self) -> io::Result<Socket> {
        match &mut self.socket {
            Listening::Smc(listener) => {
                let (stream, peer) = listener.accept().await?;
                Ok(Socket::smc(stream, peer))
            }
            Listening::Tcp(listener) => {
                let (stream, peer) = listener.accept().await?;
                Ok(Socket::tcp(stream, peer))
            }
            Listening::Unix(listener) => Ok(Socket::unix(listener.accept().await?)),
        }
    }
}
