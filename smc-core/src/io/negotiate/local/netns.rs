//! Network namespaces, and the addresses in them.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};

/// A network namespace, equal only if it is the same one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct NetNs {
    dev: u64,
    ino: u64,
}

impl NetNs {
    /// The one in which this thread makes sockets.
    pub(super) fn current() -> io::Result<Self> {
        let stat = rustix::fs::stat("/proc/thread-self/ns/net")?;
        Ok(Self {
            dev: stat.st_dev,
            ino: stat.st_ino,
        })
    }

    /// Its number among the namespaces of this host, which are all on one device.
    pub(super) fn number(self) -> u64 {
        self.ino
    }

    pub(super) fn to_bytes(self) -> [u8; 16] {
        let mut bytes = [0; 16];
        let (dev, ino) = bytes.split_at_mut(8);
        dev.copy_from_slice(&self.dev.to_le_bytes());
        ino.copy_from_slice(&self.ino.to_le_bytes());
        bytes
    }

    pub(super) fn from_bytes(bytes: [u8; 16]) -> Self {
        let half = |half: Option<&[u8; 8]>| half.copied().map_or(0, u64::from_le_bytes);
        Self {
            dev: half(bytes.first_chunk()),
            ino: half(bytes.last_chunk()),
        }
    }
}

/// One form for every address: IPv4 in IPv6 is IPv4, and what `connect` takes for this host is
/// the loopback address. Scopes go: interfaces are numbered anew in every namespace.
pub(super) fn canonical(addr: SocketAddr) -> SocketAddr {
    let ip = match addr.ip().to_canonical() {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    };
    SocketAddr::new(ip, addr.port())
}

/// Whether an address belongs to this host, in this thread's network namespace.
pub(super) fn is_local(addr: SocketAddr) -> bool {
    // Binding a datagram socket tests the address and takes nothing but one of its ports.
    addr.ip().is_loopback()
        || UdpSocket::bind(match addr {
            SocketAddr::V4(v4) => SocketAddr::new((*v4.ip()).into(), 0),
            SocketAddr::V6(mut v6) => {
                v6.set_port(0);
                v6.into()
            }
        })
        .is_ok()
}

/// Whether an address means the same host everywhere in a network.
pub(super) fn is_routable(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(ip) => {
            !(ip.is_loopback() || ip.is_link_local() || ip.is_multicast() || ip.is_broadcast())
        }
        IpAddr::V6(ip) => !(ip.is_loopback() || ip.is_unicast_link_local() || ip.is_multicast()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_get_one_form() {
        for (given, want) in [
            ("[::ffff:10.0.0.1]:80", "10.0.0.1:80"),
            ("0.0.0.0:1", "127.0.0.1:1"),
            ("[::]:1", "[::1]:1"),
            ("[fe80::1%3]:9", "[fe80::1]:9"),
            ("[::1]:5", "[::1]:5"),
        ] {
            assert_eq!(canonical(given.parse().unwrap()), want.parse().unwrap());
        }
    }

    #[test]
    fn a_namespace_survives_the_trip() {
        let here = NetNs::current().unwrap();
        assert_eq!(NetNs::from_bytes(here.to_bytes()), here);
        assert_eq!(NetNs::current().unwrap(), here);
    }

    #[test]
    fn loopback_is_local_and_documentation_is_not() {
        assert!(is_local("127.0.0.1:1".parse().unwrap()));
        assert!(!is_local("192.0.2.1:1".parse().unwrap()));
        assert!(!is_local("[2001:db8::1]:1".parse().unwrap()));
    }
}
