//! The network interfaces of this host.

use nix::ifaddrs::getifaddrs;
use nix::sys::socket::SockaddrStorage;

use super::InterfaceAddress;
use crate::proto::handshake::Subnet;

pub(super) fn of_this_host() -> Vec<InterfaceAddress> {
    let entries = getifaddrs().into_iter().flatten();
    let addresses = entries.filter_map(|entry| {
        let subnet = subnet(entry.address?, entry.netmask?)?;
        Some(InterfaceAddress::new(entry.interface_name, subnet))
    });
    addresses.collect()
}

fn subnet(address: SockaddrStorage, mask: SockaddrStorage) -> Option<Subnet> {
    if let (Some(address), Some(mask)) = (address.as_sockaddr_in(), mask.as_sockaddr_in()) {
        let bits = u32::from(mask.ip()).leading_ones();
        return Some(Subnet::V4(address.ip(), u8::try_from(bits).ok()?));
    }
    let (address, mask) = (address.as_sockaddr_in6()?, mask.as_sockaddr_in6()?);
    let bits = u128::from(mask.ip()).leading_ones();
    Some(Subnet::V6(address.ip(), u8::try_from(bits).ok()?))
}
