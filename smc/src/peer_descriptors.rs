//! Descriptors of peers that the application does not have, by source.
//!
//! Each client of a listener has a descriptor: while it waits for a place, while its handshake is
//! under way, and until `accept` returns its stream. All listeners of the process take from one
//! limit (`RLIMIT_NOFILE`). Clients of other users are counted with all else that these have
//! ([`descriptors`]), clients of a source address here, by the same shares. Clients of the own user
//! are not counted, nor are those without a handshake, of which the listener itself keeps a bounded
//! number.
//!
//! Each connection, of either role, has a descriptor from the time when the application drops the
//! stream until the peer has closed it. Of these, sources have the same shares once more; and again
//! of those that had data to send then.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::LazyLock;

use rustix::process::geteuid;

use crate::address::Address;
use crate::error::Limit;
use crate::mutex::Mutex;
use crate::negotiate::Credentials;
use crate::quota::{FairShares, Permit, descriptors, source};

/// The source of peers that share a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Source {
    /// An IPv4 address, or the network part of an IPv6 one: a host may use any address of its
    /// network. Processes of this host may use any loopback address, so these are one source.
    Address(IpAddr),
    /// Another user of this host.
    User(u32),
}

impl Source {
    pub(crate) fn of_address(address: IpAddr) -> Self {
        let address = source(address);
        Self::Address(match address.is_loopback() {
            true => Ipv4Addr::LOCALHOST.into(),
            false => address,
        })
    }

    /// Of a peer with which there is a connection: by its user where that is known, else by its
    /// address. None for the own user.
    pub(crate) fn of_peer(process: Option<Credentials>, address: &Address) -> Option<Self> {
        match (process, address) {
            (Some(process), _) => Self::of_unix(process),
            (None, Address::Tcp(address)) => Some(Self::of_address(address.ip())),
            (None, Address::Unix(_)) => None,
        }
    }

    /// Of a client of a UNIX socket, by its user. Clients of the own user may have all places.
    pub(crate) fn of_unix(client: Credentials) -> Option<Self> {
        (client.uid != geteuid().as_raw()).then_some(Self::User(client.uid))
    }

    /// Of a client with a side channel, by its address if the side channel does not show its user.
    /// Clients of the own user may have all places.
    pub(crate) fn of_client(
        client: Option<Credentials>,
        is_own: bool,
        address: IpAddr,
    ) -> Option<Self> {
        let user = client.map(|client| Self::User(client.uid));
        (!is_own).then(|| user.unwrap_or_else(|| Self::of_address(address)))
    }
}

/// The descriptors that sources have, each no more than its share.
type Shares = LazyLock<Mutex<FairShares<Source>>>;

static OF_ADDRESSES: Shares = LazyLock::new(|| Mutex::new(FairShares::new(0, 0)));
static CLOSING: Shares = LazyLock::new(|| Mutex::new(FairShares::new(0, 0)));
static UNSENT: Shares = LazyLock::new(|| Mutex::new(FairShares::new(0, 0)));

/// One descriptor of a source. Dropping it gives it back.
#[derive(Debug)]
struct Descriptor {
    shares: &'static Shares,
    source: Source,
}

impl Descriptor {
    /// # Errors
    ///
    /// The share of the source, if it would have more.
    fn take(shares: &'static Shares, source: Source) -> Result<Self, usize> {
        let mut taken = shares.lock();
        taken.take_of_limit(descriptors::limit(), &source, 1)?;
        Ok(Self { shares, source })
    }
}

impl Drop for Descriptor {
    fn drop(&mut self) {
        self.shares.lock().release(&self.source);
    }
}

/// The descriptor of one client. Dropping it gives it back.
#[derive(Debug)]
pub(crate) struct ClientDescriptor {
    _of_user: Option<Permit>,
    _of_address: Option<Descriptor>,
}

impl ClientDescriptor {
    /// Counts one for a client of this source; none if that is the own user.
    ///
    /// # Errors
    ///
    /// The share of the source, if it would have more.
    pub(crate) fn take(source: Option<Source>) -> Result<Self, Limit> {
        let mut taken = Self {
            _of_user: None,
            _of_address: None,
        };
        match source {
            None => {}
            Some(Source::User(user)) => taken._of_user = Some(descriptors::take(user, 1)?),
            Some(source @ Source::Address(_)) => {
                let descriptor = Descriptor::take(&OF_ADDRESSES, source).map_err(|share| {
                    let share = u64::try_from(share).unwrap_or(u64::MAX);
                    Limit::new("share of descriptors of an address", share)
                })?;
                taken._of_address = Some(descriptor);
            }
        }
        Ok(taken)
    }
}

/// The descriptor of one connection that waits for its peer's close. Dropping it gives it back.
#[derive(Debug)]
pub(crate) struct ClosingDescriptor {
    _of_source: Option<Descriptor>,
    /// There was data to send when the application dropped the stream.
    pub(crate) had_unsent: bool,
}

impl ClosingDescriptor {
    /// Counts one for a peer of this source; none if that is the own user. None if the source has
    /// its share of connections with data to send, or without.
    pub(crate) fn take(source: Option<Source>, had_unsent: bool) -> Option<Self> {
        let shares = match had_unsent {
            true => &UNSENT,
            false => &CLOSING,
        };
        let taken = source.map(|source| Descriptor::take(shares, source));
        Some(Self {
            _of_source: taken.transpose().ok()?,
            had_unsent,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_have_a_quarter_of_the_descriptors_and_one_an_eighth() {
        let mut taken = FairShares::new(0, 0);
        let mut fill = |last| {
            let address = IpAddr::from(Ipv4Addr::new(10, 0, 0, last));
            let take = || taken.take_of_limit(1024, &address, 1).ok();
            std::iter::from_fn(take).count()
        };
        assert_eq!(fill(1), 128);
        let others: usize = (2..=255).map(fill).sum();
        assert!(others <= 128, "{others}");
        assert!(others >= 64, "{others}");
    }

    #[test]
    fn all_listeners_count_the_clients_of_another_user_together() {
        let user = Source::User(geteuid().as_raw() + 77);
        let take = || ClientDescriptor::take(Some(user)).ok();
        let of_one_listener: Vec<_> = std::iter::from_fn(take).take(100_000).collect();
        assert!(of_one_listener.len() <= descriptors::limit() / 8);
        assert!(ClientDescriptor::take(Some(user)).is_err());
        assert!(
            ClientDescriptor::take(None).is_ok(),
            "the own user has them"
        );
        drop(of_one_listener);
        assert!(ClientDescriptor::take(Some(user)).is_ok());
    }
}
