//! Network namespaces, and the addresses in them.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};

use smc_core::error::OsError;
use smc_ipc::netns;

/// A network namespace, by the number that it alone has on this host while it exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct NetNs(pub(super) u64);

impl NetNs {
    /// The one in which this thread makes sockets.
    pub(super) fn current() -> Result<Self, OsError> {
        netns::current().map(Self)
    }
}

/// One form for every address: IPv4 in IPv6 is IPv4, and what `connect` takes for this host is
/// the loopback address. Scope IDs are removed: each namespace numbers its interfaces.
pub(super) fn canonical(addr: SocketAddr) -> SocketAddr {
    let ip = match addr.ip().to_canonical() {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    };
    SocketAddr::new(ip, addr.port())
}

/// Whether an address belongs to this host, in this thread's network namespace.
///
/// # Errors
///
/// When there is no descriptor to find out with.
pub(super) fn is_local(addr: SocketAddr) -> Result<bool, OsError> {
    if addr.ip().is_loopback() {
        return Ok(true);
    }
    // Binding a datagram socket tests the address and takes nothing but one of its ports.
    let bound = UdpSocket::bind(match addr {
        SocketAddr::V4(v4) => SocketAddr::new((*v4.ip()).into(), 0),
        SocketAddr::V6(mut v6) => {
            v6.set_port(0);
            v6.into()
        }
    });
    match bound {
        // The kernel checks the address first. Other users may have all ports.
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => Ok(true),
        Err(error) => match OsError::new("test whose address it is", &error) {
            error if error.is_lack() => Err(error),
            _ => Ok(false),
        },
        Ok(_) => Ok(true),
    }
}

/// Whether an address means nothing without the number of an interface.
pub(super) fn has_scope(ip: IpAddr) -> bool {
    matches!(ip, IpAddr::V6(ip) if ip.is_unicast_link_local())
}

/// Whether an address means the same host everywhere in a network.
pub(super) fn is_routable(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(ip) => {
            !(ip.is_loopback() || ip.is_link_local() || ip.is_multicast() || ip.is_broadcast())
        }
        IpAddr::V6(v6) => !(v6.is_loopback() || v6.is_multicast() || has_scope(ip)),
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
    fn every_thread_knows_where_it_is() {
        let here = NetNs::current().unwrap();
        assert_eq!(NetNs::current().unwrap(), here);
        assert_eq!(
            std::thread::spawn(NetNs::current).join().unwrap().unwrap(),
            here
        );
    }

    #[test]
    fn loopback_is_local_and_documentation_is_not() {
        assert_eq!(is_local("127.0.0.1:1".parse().unwrap()), Ok(true));
        assert_eq!(is_local("192.0.2.1:1".parse().unwrap()), Ok(false));
        assert_eq!(is_local("[2001:db8::1]:1".parse().unwrap()), Ok(false));
    }
}
