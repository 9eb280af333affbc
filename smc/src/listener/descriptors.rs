//! Descriptors of clients until the application has accepted them, by source.
//!
//! Each client of a listener has a descriptor: while it waits for a place, while its handshake is
//! under way, and until `accept` returns its stream. All listeners of the process take from one
//! limit (`RLIMIT_NOFILE`). Clients of other users are counted with all else that these have
//! ([`descriptors`]), clients of a source address here, by the same shares. Clients of the
//! own user are not counted, nor are those without a handshake, of which the listener itself keeps
//! a bounded number.

use std::net::IpAddr;
use std::sync::LazyLock;

use super::admission::Source;
use crate::error::Limit;
use crate::mutex::Mutex;
use crate::quota::{FairShares, Permit, descriptors};

/// The descriptor of one client. Dropping it gives it back.
#[derive(Debug)]
pub(super) struct ClientDescriptor {
    _of_user: Option<Permit>,
    of_address: Option<IpAddr>,
}

impl ClientDescriptor {
    /// Counts one for a client of this source; none if that is the own user.
    ///
    /// # Errors
    ///
    /// The share of the source, if it would have more.
    pub(super) fn take(source: Option<Source>) -> Result<Self, Limit> {
        let mut taken = Self {
            _of_user: None,
            of_address: None,
        };
        match source {
            None => {}
            Some(Source::User(user)) => taken._of_user = Some(descriptors::take(user, 1)?),
            Some(Source::Address(address)) => {
                let mut of_all = OF_ADDRESSES.lock();
                let share = of_all.take_of_limit(descriptors::limit(), &address, 1);
                share.map_err(|share| {
                    let share = u64::try_from(share).unwrap_or(u64::MAX);
                    Limit::new("share of descriptors of an address", share)
                })?;
                taken.of_address = Some(address);
            }
        }
        Ok(taken)
    }
}

impl Drop for ClientDescriptor {
    fn drop(&mut self) {
        if let Some(address) = &self.of_address {
            OF_ADDRESSES.lock().release(address);
        }
    }
}

static OF_ADDRESSES: LazyLock<Mutex<FairShares<IpAddr>>> =
    LazyLock::new(|| Mutex::new(FairShares::new(0, 0)));

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

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
        let user = Source::User(rustix::process::geteuid().as_raw() + 77);
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
