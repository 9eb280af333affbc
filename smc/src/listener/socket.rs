//! What a listener listens at, and what was accepted there.

use std::io;
use std::sync::Arc;
use std::task::{Context, Poll};

use crate::address::Address;
use crate::error::{FallbackCause, Refusal};
use crate::negotiate::{Negotiated, Published};
use crate::runtime::{Acceptor, Socket};
use crate::unix::{KnownClient, ListeningUnix, NextConnection, names};

/// What a listener listens at.
pub(crate) struct ListeningSocket {
    pub(super) local: Address,
    pub(super) kind: ListeningKind,
}

pub(super) enum ListeningKind {
    Tcp {
        acceptor: Arc<dyn Acceptor>,
        /// The publication, or why clients cannot find the listener.
        published: Result<Arc<dyn Published>, FallbackCause>,
    },
    Unix(ListeningUnix),
}

impl ListeningSocket {
    pub(crate) fn tcp(
        acceptor: Arc<dyn Acceptor>,
        published: Result<Arc<dyn Published>, FallbackCause>,
    ) -> io::Result<Self> {
        Ok(Self {
            local: acceptor.local_addr()?.into(),
            kind: ListeningKind::Tcp {
                acceptor,
                published,
            },
        })
    }

    pub(crate) fn unix(socket: ListeningUnix) -> Self {
        Self {
            local: socket.local().clone().into(),
            kind: ListeningKind::Unix(socket),
        }
    }

    pub(super) fn unpublished(&self) -> Option<&FallbackCause> {
        match &self.kind {
            ListeningKind::Tcp { published, .. } => published.as_ref().err(),
            ListeningKind::Unix(socket) => socket.unmarked(),
        }
    }

    pub(super) fn poll_accept(&self, cx: &mut Context<'_>) -> Poll<io::Result<Accepted>> {
        match &self.kind {
            ListeningKind::Tcp { acceptor, .. } => acceptor.poll_accept(cx).map_ok(|accepted| {
                let (socket, peer) = accepted;
                Accepted {
                    socket,
                    peer: peer.into(),
                    sends_clc: false,
                    before: None,
                }
            }),
            ListeningKind::Unix(unix) => unix.poll_accept(cx).map_ok(|(socket, peer)| Accepted {
                socket,
                peer: names::shown_client(&peer).into(),
                sends_clc: names::is_client(&peer),
                before: None,
            }),
        }
    }

    /// How a connection that was just accepted continues, where the policy permits SMC and there is
    /// capacity.
    pub(super) fn negotiated(&self, accepted: &Accepted) -> Negotiated {
        match (&self.kind, &accepted.peer) {
            (ListeningKind::Tcp { published, .. }, Address::Tcp(peer)) => match published {
                Ok(published) => published.negotiated(&*accepted.socket, *peer),
                Err(cause) => Negotiated::Plain(cause.clone()),
            },
            _ => self.negotiated_unix(accepted, FallbackCause::NotOffered),
        }
    }

    /// The same where the connection is plain in any case.
    pub(super) fn dismiss(
        &self,
        accepted: &Accepted,
        why: Refusal,
        plain: FallbackCause,
    ) -> Negotiated {
        match (&self.kind, &accepted.peer) {
            (ListeningKind::Tcp { published, .. }, Address::Tcp(peer)) => match published {
                Ok(published) => match published.dismiss(&*accepted.socket, *peer, why) {
                    Negotiated::Plain(_) if why == Refusal::Full => Negotiated::Plain(plain),
                    dismissed => dismissed,
                },
                Err(cause) if why == Refusal::Full => Negotiated::Plain(cause.clone()),
                Err(_) => Negotiated::Plain(plain),
            },
            _ => self.negotiated_unix(accepted, plain),
        }
    }

    /// A client of a UNIX socket that sends CLC expects an answer in CLC. It sends nothing but the
    /// application's data if this socket has no mark.
    fn negotiated_unix(&self, accepted: &Accepted, plain: FallbackCause) -> Negotiated {
        match (self.unpublished(), accepted.sends_clc) {
            (None, true) => Negotiated::Clc,
            (None, false) => Negotiated::Plain(plain),
            (Some(cause), _) => Negotiated::Plain(cause.clone()),
        }
    }
}

/// A connection that was accepted.
pub(super) struct Accepted {
    pub(super) socket: Arc<dyn Socket>,
    pub(super) peer: Address,
    /// Whether the client of a UNIX socket sends a PROPOSAL.
    sends_clc: bool,
    /// Of a UNIX socket that has served another connection before: its client, and what that has
    /// sent since.
    pub(super) before: Option<(KnownClient, Vec<u8>)>,
}

impl From<NextConnection> for Accepted {
    fn from(next: NextConnection) -> Self {
        Self {
            socket: next.socket,
            peer: next.client.addr.clone(),
            sends_clc: true,
            before: Some((next.client, next.received)),
        }
    }
}
