//! Routes of this host.

use std::io;
use std::net::IpAddr;

use netlink_packet_route::link::{LinkAttribute, LinkMessage};
use netlink_packet_route::route::{RouteAttribute, RouteFlags, RouteMessage};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};

use netlink_sys::protocols::NETLINK_ROUTE;

use crate::request::Connection;

/// How packets get to an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Route {
    /// Index of the interface that they leave by; 0 if the kernel does not say it.
    pub interface: u32,
    /// Whether a router is on the way.
    pub has_gateway: bool,
}

impl Route {
    /// A route by an interface.
    #[must_use]
    pub const fn new(interface: u32, has_gateway: bool) -> Self {
        Self {
            interface,
            has_gateway,
        }
    }

    /// Whether it is by this interface, if there is one. The kernel prefers the interface that a
    /// request names, but does not insist on it for IPv6.
    fn is_by(&self, index: Option<u32>) -> bool {
        self.interface == 0 || index.is_none_or(|index| index == self.interface)
    }
}

/// The route from one address to another, as the kernel takes it now; `None` if there is none, or
/// `from` is an IPv4 address that this host does not have. With the index of an interface only the
/// routes by that one count.
///
/// # Errors
///
/// When the kernel cannot be asked, as without netlink sockets.
pub fn route(from: IpAddr, to: IpAddr, by: Option<u32>) -> io::Result<Option<Route>> {
    get_route(&Connection::open(NETLINK_ROUTE)?, from, to, by)
}

fn get_route(
    connection: &Connection,
    from: IpAddr,
    to: IpAddr,
    by: Option<u32>,
) -> io::Result<Option<Route>> {
    let mut request = RouteMessage::default();
    let (family, len) = match to {
        IpAddr::V4(_) => (AddressFamily::Inet, 32),
        IpAddr::V6(_) => (AddressFamily::Inet6, 128),
    };
    request.header.address_family = family;
    request.header.destination_prefix_length = len;
    request.header.source_prefix_length = len;
    request.attributes = vec![
        RouteAttribute::Destination(to.into()),
        RouteAttribute::Source(from.into()),
    ];
    if let Some(index) = by {
        request.attributes.push(RouteAttribute::Oif(index));
        // Without this flag the kernel takes every address for a neighbour on that interface.
        request.header.flags = RouteFlags::FibMatch;
    }
    let replies = match connection.get(RouteNetlinkMessage::GetRoute(request)) {
        Ok(replies) => replies,
        Err(error) if is_refusal(&error) => return Ok(None),
        Err(error) => return Err(error),
    };
    let route = replies.into_iter().find_map(|reply| match reply {
        RouteNetlinkMessage::NewRoute(route) => Some(read(&route)),
        _ => None,
    });
    Ok(route.filter(|route| route.is_by(by)))
}

/// The length of packets from one address to another that no IPsec policy applies to: the limit of
/// the interface that they leave by. `None` without a route.
///
/// A socket whose path is shorter (`IP_MTU`) can have its packets wrapped. A limit of the route
/// does not count: it may be there because of a tunnel. The policies themselves are shown to
/// administrators only.
///
/// # Errors
///
/// As [`route`].
pub fn unprotected_mtu(from: IpAddr, to: IpAddr) -> io::Result<Option<u32>> {
    let connection = Connection::open(NETLINK_ROUTE)?;
    let Some(route) = get_route(&connection, from, to, None)? else {
        return Ok(None);
    };
    let mut request = LinkMessage::default();
    request.header.index = route.interface;
    let replies = connection.get(RouteNetlinkMessage::GetLink(request))?;
    Ok(replies.into_iter().find_map(|reply| match reply {
        RouteNetlinkMessage::NewLink(link) => {
            link.attributes
                .iter()
                .find_map(|attribute| match attribute {
                    LinkAttribute::Mtu(mtu) => Some(*mtu),
                    _ => None,
                })
        }
        _ => None,
    }))
}

/// The errors by which the kernel says that no packet may go there.
fn is_refusal(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::NetworkUnreachable
            | io::ErrorKind::HostUnreachable
            | io::ErrorKind::PermissionDenied
            | io::ErrorKind::InvalidInput
    )
}

fn read(message: &RouteMessage) -> Route {
    let mut route = Route::new(0, false);
    for attribute in &message.attributes {
        match attribute {
            RouteAttribute::Oif(index) => route.interface = *index,
            RouteAttribute::Gateway(_) | RouteAttribute::Via(_) => route.has_gateway = true,
            _ => {}
        }
    }
    route
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use netlink_packet_route::route::RouteAddress;

    use super::*;

    #[test]
    fn loopback_is_reached_directly() {
        let loopback = IpAddr::from(Ipv4Addr::LOCALHOST);
        let route = route(loopback, loopback, None).unwrap().unwrap();
        assert!(!route.has_gateway);
        assert_ne!(route.interface, 0);
    }

    #[test]
    fn packets_on_the_loopback_interface_are_as_long_as_it_says() {
        let loopback = IpAddr::from(Ipv4Addr::LOCALHOST);
        let mtu = unprotected_mtu(loopback, loopback).unwrap().unwrap();
        let interface = std::fs::read_to_string("/sys/class/net/lo/mtu").unwrap();
        assert_eq!(interface.trim(), mtu.to_string());
    }

    #[test]
    fn there_is_no_route_from_an_address_of_another_host() {
        // RFC 5737: an address for documentation.
        let other = Ipv4Addr::new(192, 0, 2, 1).into();
        assert_eq!(
            route(other, Ipv4Addr::LOCALHOST.into(), None).unwrap(),
            None
        );
    }

    #[test]
    fn a_route_by_another_interface_does_not_count() {
        let route = Route::new(3, false);
        assert!(route.is_by(None) && route.is_by(Some(3)));
        assert!(!route.is_by(Some(4)));
        // The kernel does not say it of a route over several interfaces.
        assert!(Route::new(0, false).is_by(Some(4)));
    }

    #[test]
    fn a_route_over_a_router_has_its_gateway() {
        let mut message = RouteMessage::default();
        message.attributes = vec![
            RouteAttribute::Oif(3),
            RouteAttribute::Gateway(RouteAddress::Inet(Ipv4Addr::new(10, 0, 0, 1))),
        ];
        let expected = Route {
            interface: 3,
            has_gateway: true,
        };
        assert_eq!(read(&message), expected);
    }
}
