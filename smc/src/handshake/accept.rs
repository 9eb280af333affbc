//! The server's side: an accepted TCP connection, and the handshake.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;

use super::carrier::{Carrier, ClcPeer, UnixReader};
use super::work::HandshakeResources;
use super::{
    Outcome, drive, fallback_stream, handshake_config, path, run_handshake,
    run_handshake_on_socket, tcp_stream,
};
use crate::address::Address;
use crate::endpoint::EndpointInner;
use crate::error::{Error, FallbackCause, Phase};
use crate::negotiate::{Credentials, SideChannel};
use crate::proto::Role;
use crate::proto::handshake::{EarlyDataPolicy, Handshake, HandshakeConfig, TcpPath};
use crate::runtime::Socket;
use crate::stream::Stream;

impl ClcPeer {
    /// Waits for the first byte of a client that is known to send CLC, as long as for a message of
    /// the handshake: its PROPOSAL may be lost, or its process not scheduled.
    pub(crate) async fn after_first_byte(
        endpoint: &EndpointInner,
        socket: &dyn Socket,
        process: Option<Credentials>,
    ) -> Result<Self, Error> {
        let wait = endpoint.base_config().timeouts.message;
        let mut timer = pin!(endpoint.groups.after(wait));
        let timed_out = |()| Err(Error::TimedOut(Phase::Proposal));
        let received = match process {
            Some(_) => {
                let mut reader = UnixReader::new(endpoint, socket);
                let read = poll_fn(|cx| match reader.poll_fill(cx) {
                    Poll::Ready(filled) => Poll::Ready(filled.map_err(Error::from)),
                    Poll::Pending => timer.as_mut().poll(cx).map(timed_out),
                });
                read.await?;
                reader.into_ahead()
            }
            None => {
                let wait = poll_fn(|cx| match socket.poll_readable(cx) {
                    Poll::Ready(readable) => Poll::Ready(readable.map_err(Error::from)),
                    Poll::Pending => timer.as_mut().poll(cx).map(timed_out),
                });
                wait.await?;
                Vec::new()
            }
        };
        Ok(Self {
            process,
            received,
            answer_within: None,
        })
    }

    /// A client of a UNIX socket that has sent this.
    pub(crate) fn after(process: Credentials, received: Vec<u8>) -> Self {
        Self {
            process: Some(process),
            received,
            answer_within: None,
        }
    }
}

/// The way to a client whose PROPOSAL is expected.
pub(crate) enum ClientPath {
    SideChannel(Box<dyn SideChannel>),
    Clc(ClcPeer),
}

/// Sets up the stream on an accepted connection.
pub(crate) async fn accept(
    endpoint: &Arc<EndpointInner>,
    socket: Arc<dyn Socket>,
    peer: &Address,
    client: ClientPath,
    early_data: Option<Arc<EarlyDataPolicy>>,
) -> Result<Stream, Error> {
    let now = endpoint.runtime.now();
    let mut config = handshake_config(endpoint, peer, None)?;
    if early_data.is_some() {
        Arc::make_mut(&mut config).early_data = early_data;
    }
    let has_side_channel = matches!(client, ClientPath::SideChannel(_));
    let path = path(endpoint, &config, &*socket, peer, has_side_channel);
    let mut machine = Handshake::server(now, config, path);
    match client {
        ClientPath::SideChannel(mut side_channel) => {
            let mut carrier = Carrier::server(endpoint, &mut *side_channel);
            let mut resources = HandshakeResources::default();
            let (machine, resources) = (&mut machine, &mut resources);
            let outcome =
                run_handshake(endpoint, &mut carrier, &socket, peer, machine, resources).await;
            match outcome {
                Err(_) if side_channel.is_withdrawn() => {
                    let cause = FallbackCause::Withdrawn;
                    Ok(tcp_stream(endpoint, Role::Server, socket, peer, cause))
                }
                outcome => outcome,
            }
        }
        ClientPath::Clc(client) => {
            let resources = &mut HandshakeResources::default();
            let machine = &mut machine;
            let other = (client, None);
            run_handshake_on_socket(endpoint, &socket, peer, other, machine, resources).await
        }
    }
}

/// Receives the PROPOSAL of a client and declines it: the policy for this connection is TCP.
pub(crate) async fn decline_all(
    endpoint: &Arc<EndpointInner>,
    socket: Arc<dyn Socket>,
    peer: &Address,
    client: ClientPath,
) -> Result<Stream, Error> {
    // Without any device, so that it can only end in a DECLINE.
    let mut config = HandshakeConfig::new(Vec::new());
    let current = endpoint.base_config();
    (config.host, config.timeouts) = (current.host, current.timeouts);
    let mut machine =
        Handshake::server(endpoint.runtime.now(), Arc::new(config), TcpPath::default());
    let mut side_channel = None;
    let mut carrier = match client {
        ClientPath::SideChannel(channel) => {
            Carrier::server(endpoint, &mut **side_channel.insert(channel))
        }
        ClientPath::Clc(client) => {
            Carrier::on_socket(endpoint, &*socket, client, Role::Server, None, None)
        }
    };
    let outcome = drive(
        endpoint,
        &mut carrier,
        &mut machine,
        &mut HandshakeResources::default(),
    )
    .await;
    let unread = carrier.take_unread();
    drop(carrier);
    let (role, policy) = (Role::Server, FallbackCause::Policy);
    match outcome {
        Ok(Outcome::Tcp(_)) => {
            let reason = policy.into();
            Ok(fallback_stream(
                endpoint, role, socket, peer, unread, reason,
            ))
        }
        Err(_) if side_channel.is_some_and(|side_channel| side_channel.is_withdrawn()) => {
            Ok(tcp_stream(endpoint, role, socket, peer, policy))
        }
        Err(error) => Err(error),
        Ok(Outcome::Smc(_)) => Err(Error::Bug("a handshake without devices came to SMC")),
    }
}
