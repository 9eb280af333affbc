//! Targets of a connection: addresses and host names.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};

/// Where to connect to or listen at: an address, or a name that the runtime resolves.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Target {
    /// An address.
    Addr(SocketAddr),
    /// A host name with a port.
    Name(String, u16),
    /// A text that is neither.
    Invalid(String),
}

/// Types that convert to a [`Target`].
pub trait IntoTarget {
    /// The target.
    fn into_target(self) -> Target;
}

impl IntoTarget for Target {
    fn into_target(self) -> Target {
        self
    }
}

impl IntoTarget for &SocketAddr {
    fn into_target(self) -> Target {
        Target::Addr(*self)
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

impl IntoTarget for (&str, u16) {
    fn into_target(self) -> Target {
        match self.0.parse::<IpAddr>() {
            Ok(ip) => Target::Addr((ip, self.1).into()),
            Err(_) => Target::Name(self.0.to_owned(), self.1),
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

impl IntoTarget for String {
    fn into_target(self) -> Target {
        self.as_str().into_target()
    }
}

impl IntoTarget for &String {
    fn into_target(self) -> Target {
        self.as_str().into_target()
    }
}

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
}
