//! Network addresses: MAC, peer ID and RoCE GID.

use core::fmt;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::wire_id::wire_id;

wire_id! {
    /// MAC address of a RoCE port (6 bytes).
    ///
    /// Prints as six hex pairs with colons.
    #[derive(Default)]
    Mac[6], new
}

impl fmt::Display for Mac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

wire_id! {
    /// Identifies one instance of an SMC-R stack (8 bytes: instance number and a MAC of the host).
    ///
    /// The instance number differs after a restart. All eight bytes are compared. SMC-R only; a
    /// PROPOSAL that does not offer SMC-R v1 carries zeros (docs/spec/identifiers.md#peer-id,
    /// RFC 7609 appendix A.2.1). Prints as `9b5a@52:54:00:00:00:01`.
    #[derive(Default)]
    PeerId[8], from_bytes
}

impl PeerId {
    /// From an instance number, which must change at each restart, and a MAC of the host.
    #[must_use]
    pub const fn new(instance: u16, mac: Mac) -> Self {
        let ([a, b], [c, d, e, f, g, h]) = (instance.to_be_bytes(), mac.0);
        Self([a, b, c, d, e, f, g, h])
    }

    /// The instance number of the stack.
    #[must_use]
    pub const fn instance(self) -> u16 {
        let [a, b, ..] = self.0;
        u16::from_be_bytes([a, b])
    }

    /// The MAC; zero while the host has seen no RoCE port.
    #[must_use]
    pub const fn mac(self) -> Mac {
        let [_, _, mac @ ..] = self.0;
        Mac(mac)
    }
}

impl fmt::Display for PeerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:04x}@{}", self.instance(), self.mac())
    }
}

wire_id! {
    /// GID of a RoCE port (16 bytes).
    ///
    /// In RoCEv2 it stands for an IP address. An IPv4 address has two forms in the wild: the
    /// IPv4-mapped one, which is what [`from_ipv4`](Self::from_ipv4) makes and what Linux sends,
    /// and twelve zero bytes followed by the address, which the v2 documents describe. Both are
    /// understood by [`ipv4`](Self::ipv4). Equality compares bytes, as link group reuse requires,
    /// so one form has to be used consistently. Prints as an IPv6 address.
    #[derive(Default)]
    RoceGid[16], new
}

impl RoceGid {
    /// The RoCEv2 GID of an IPv4 address, in the IPv4-mapped form (`::ffff:a.b.c.d`).
    #[must_use]
    pub const fn from_ipv4(address: Ipv4Addr) -> Self {
        Self(address.to_ipv6_mapped().octets())
    }

    /// The GID with the bytes of an IPv6 address.
    #[must_use]
    pub const fn from_ipv6(address: Ipv6Addr) -> Self {
        Self(address.octets())
    }

    /// The IPv4 address it stands for, in either form, or `None`.
    ///
    /// The zero GID means "not given" and yields `None`.
    #[must_use]
    pub fn ipv4(self) -> Option<Ipv4Addr> {
        let [head @ .., _, _, a, b, c, d] = self.0;
        let [.., x, y, _, _, _, _] = self.0;
        let form = match [x, y] {
            [0xff, 0xff] => true,
            [0, 0] => [a, b, c, d] != [0; 4],
            _ => false,
        };
        (form && head == [0; 10]).then_some(Ipv4Addr::new(a, b, c, d))
    }

    /// The IP address that packets of RoCEv2 with this GID have: IPv4 in either form, or an IPv6
    /// address that other hosts can reach.
    ///
    /// `None` for zero, IPv6 multicast, and link-local addresses, which mean something else at each
    /// interface (docs/spec/identifiers.md#roce-gid).
    ///
    /// ```
    /// use smc_wire::types::RoceGid;
    ///
    /// let ip = |text: &str| {
    ///     let gid = RoceGid::from_ipv6(text.parse().expect("an address"));
    ///     gid.ip().map(|ip| ip.to_string())
    /// };
    /// assert_eq!(ip("2001:db8::7").as_deref(), Some("2001:db8::7"));
    /// assert_eq!(ip("::ffff:192.0.2.7").as_deref(), Some("192.0.2.7"));
    /// assert_eq!(ip("fe80::7"), None);
    /// ```
    #[must_use]
    pub fn ip(self) -> Option<IpAddr> {
        if let Some(address) = self.ipv4() {
            return Some(address.into());
        }
        let address = self.ipv6();
        let is_usable = !address.is_unspecified()
            && !address.is_multicast()
            && !address.is_unicast_link_local();
        is_usable.then_some(address.into())
    }

    /// The sixteen bytes read as an IPv6 address.
    #[must_use]
    pub const fn ipv6(self) -> Ipv6Addr {
        let value = u128::from_be_bytes(self.0);
        Ipv6Addr::from_bits(value)
    }
}

impl From<Ipv4Addr> for RoceGid {
    fn from(address: Ipv4Addr) -> Self {
        Self::from_ipv4(address)
    }
}

impl From<Ipv6Addr> for RoceGid {
    fn from(address: Ipv6Addr) -> Self {
        Self::from_ipv6(address)
    }
}

impl fmt::Display for RoceGid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.ipv6(), f)
    }
}
