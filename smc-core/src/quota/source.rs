//! The source address that limits are counted for.

use core::net::{IpAddr, Ipv6Addr};

/// The source of clients: the address or, as an IPv6 host may use any address of its network, the
/// network of an IPv6 address.
#[must_use]
pub fn source(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V4(address) => address.into(),
        IpAddr::V6(address) => {
            let bits = address.to_bits() >> HOST_BITS << HOST_BITS;
            Ipv6Addr::from_bits(bits).into()
        }
    }
}

/// Host bits of an IPv6 address.
const HOST_BITS: u32 = 64;
