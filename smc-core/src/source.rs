//! What limits for one source address count.

use core::net::{IpAddr, Ipv6Addr};

/// Where clients of this address come from: the address or, as a host may use any address of its
/// network, the network of one of IPv6.
pub(crate) fn source(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V4(address) => address.into(),
        IpAddr::V6(address) => {
            let bits = address.to_bits() >> HOST_BITS << HOST_BITS;
            Ipv6Addr::from_bits(bits).into()
        }
    }
}

/// Of an IPv6 address.
const HOST_BITS: u32 = 64;
