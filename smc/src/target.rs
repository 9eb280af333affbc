//! Targets of a connection: addresses and host names.

use std::borrow::Cow;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};

/// Where to connect to or listen at: one address or several, or a name that the runtime resolves.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Target {
    /// An address.
    Addr(SocketAddr),
    /// Addresses that are tried in order, until one succeeds. An empty list is
    /// [`Error::Misuse`](crate::Error::Misuse) where it is used.
    Addrs(Vec<SocketAddr>),
    /// A host name with a port.
    Name(String, u16),
    /// A text that is neither.
    Invalid(String),
}

/// Types that convert to a [`Target`].
///
/// A name is not resolved here: the runtime does that when the target is used.
pub trait IntoTarget {
    /// The target.
    fn into_target(self) -> Target;
}

impl IntoTarget for Target {
    fn into_target(self) -> Target {
        self
    }
}

/// As the value itself, which is cloned.
impl<T: IntoTarget + Clone> IntoTarget for &T {
    fn into_target(self) -> Target {
        self.clone().into_target()
    }
}

macro_rules! addresses {
    ($($kind:ty),+) => {$(
        impl IntoTarget for $kind {
            fn into_target(self) -> Target {
                Target::Addr(self.into())
            }
        }
    )+};
}

addresses!(
    SocketAddr,
    SocketAddrV4,
    SocketAddrV6,
    (IpAddr, u16),
    (Ipv4Addr, u16),
    (Ipv6Addr, u16)
);

/// Addresses that are tried in order.
impl IntoTarget for Vec<SocketAddr> {
    fn into_target(self) -> Target {
        Target::Addrs(self)
    }
}

/// Addresses that are tried in order.
impl IntoTarget for &[SocketAddr] {
    fn into_target(self) -> Target {
        Target::Addrs(self.to_vec())
    }
}

/// Addresses that are tried in order.
impl<const N: usize> IntoTarget for [SocketAddr; N] {
    fn into_target(self) -> Target {
        Target::Addrs(self.into())
    }
}

impl IntoTarget for (&str, u16) {
    fn into_target(self) -> Target {
        match self.0.parse::<IpAddr>() {
            Ok(ip) => Target::Addr((ip, self.1).into()),
            Err(_) => Target::Name(self.0.to_owned(), self.1),
        }
    }
}

impl IntoTarget for (String, u16) {
    fn into_target(self) -> Target {
        match self.0.parse::<IpAddr>() {
            Ok(ip) => Target::Addr((ip, self.1).into()),
            Err(_) => Target::Name(self.0, self.1),
        }
    }
}

/// `address:port` or `name:port`.
impl IntoTarget for &str {
    fn into_target(self) -> Target {
        if let Ok(addr) = self.parse() {
            return Target::Addr(addr);
        }
        match self
            .rsplit_once(':')
            .map(|(host, port)| (host, port.parse()))
        {
            Some((host, Ok(port))) if !host.is_empty() => Target::Name(host.to_owned(), port),
            _ => Target::Invalid(self.to_owned()),
        }
    }
}

macro_rules! texts {
    ($($kind:ty),+) => {$(
        /// As `&str`.
        impl IntoTarget for $kind {
            fn into_target(self) -> Target {
                (*self).into_target()
            }
        }
    )+};
}

texts!(String, Box<str>, Cow<'_, str>);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_names_and_invalid_texts_are_distinguished() {
        let addr: SocketAddr = "[::1]:80".parse().unwrap();
        assert_eq!("[::1]:80".into_target(), Target::Addr(addr));
        assert_eq!(
            "host.example:80".into_target(),
            Target::Name("host.example".into(), 80)
        );
        assert_eq!(
            ("127.0.0.1", 1).into_target(),
            Target::Addr(([127, 0, 0, 1], 1).into())
        );
        for text in ["", "host", ":80", "host:", "host:99999"] {
            assert_eq!(text.into_target(), Target::Invalid(text.into()));
        }
    }

    #[test]
    fn owned_texts_and_references_are_the_same_targets_as_borrowed_texts() {
        let target = "host.example:80".into_target();
        let text = "host.example:80".to_owned();
        for same in [
            (&text).into_target(),
            (&&*text).into_target(),
            text.clone().into_boxed_str().into_target(),
            Cow::Borrowed(&*text).into_target(),
            Cow::<str>::Owned(text.clone()).into_target(),
            ("host.example", 80).into_target(),
            ("host.example".to_owned(), 80).into_target(),
            (&("host.example".to_owned(), 80)).into_target(),
            (&target).into_target(),
            text.into_target(),
        ] {
            assert_eq!(same, target);
        }
        let addr = Target::Addr(([127, 0, 0, 1], 1).into());
        assert_eq!(("127.0.0.1".to_owned(), 1).into_target(), addr);
    }

    #[test]
    fn several_addresses_stay_in_order() {
        let addrs = [2, 1].map(|port| SocketAddr::from(([127, 0, 0, 1], port)));
        let target = Target::Addrs(addrs.to_vec());
        for same in [
            addrs.into_target(),
            (&addrs).into_target(),
            addrs[..].into_target(),
            addrs.to_vec().into_target(),
            (&addrs.to_vec()).into_target(),
        ] {
            assert_eq!(same, target);
        }
    }
}
