//! Features beyond the released protocol, in the vendor options of v2.1.

use core::fmt;

use bitflags::bitflags;

use crate::layout::{Bits, HEX, Show, layouts};

bitflags! {
    /// Features beyond the released protocol that a peer supports
    /// (docs/spec/extensions.md#features). Unknown bits are kept.
    ///
    /// They travel in the vendor options of v2.1, which other implementations send as zero and
    /// ignore. No feature at all is sent as zero too.
    ///
    /// ```
    /// use smc_wire::types::Features;
    ///
    /// let features = Features::SINGLE_LINK | Features::EARLY_DATA;
    /// assert_eq!(features.to_vendor_options(), 0x5346_0009);
    /// assert_eq!(Features::from_vendor_options(0x5346_0009), features);
    /// // Without features, and of another vendor.
    /// assert_eq!(Features::empty().to_vendor_options(), 0);
    /// assert_eq!(Features::from_vendor_options(0x0000_0009), Features::empty());
    /// ```
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
    pub struct Features: u16 {
        /// The link group never has a second link, and its RMBs stay announced when their
        /// connections have ended.
        const SINGLE_LINK = 0x0001;
        /// PROPOSAL is accepted as data of the SYN.
        const FAST_OPEN = 0x0002;
        /// The client's buffer is in the PROPOSAL, which takes the place of CONFIRM.
        const EARLY_CONFIRM = 0x0004;
        /// Data of the application is in the PROPOSAL.
        const EARLY_DATA = 0x0008;
        /// SMC-R between RoCEv2 GIDs that are IPv6 addresses.
        const RDMA_IPV6 = 0x0010;
        /// The receiver of CDC and LLC messages grants credits for them.
        const RECEIVE_CREDITS = 0x0020;
        /// The ends of a link group of SMC-R exchange a key on its first link. ACCEPT and CONFIRM
        /// of further connections have a code that takes this key.
        const AUTHENTICATION = 0x0040;
        /// A UNIX socket on which an SMC-D connection was set up serves another one when that has
        /// ended in order.
        const SOCKET_REUSE = 0x0080;
        const _ = !0;
    }
}

impl Features {
    /// OUI of the vendor options in a PROPOSAL: locally administered, "RSM" in ASCII.
    pub const OUI: [u8; 3] = [0x52, 0x53, 0x4d];

    /// High half of vendor options with features, "SF" in ASCII.
    const MAGIC: u16 = 0x5346;

    /// The features in vendor options of first-contact parts; none if the options are not those of
    /// this implementation.
    #[must_use]
    pub const fn from_vendor_options(options: u32) -> Self {
        let [a, b, c, d] = options.to_be_bytes();
        match u16::from_be_bytes([a, b]) {
            Self::MAGIC => Self::from_bits_retain(u16::from_be_bytes([c, d])),
            _ => Self::empty(),
        }
    }

    /// The vendor options of first-contact parts with these features; zero if there are none.
    #[must_use]
    pub const fn to_vendor_options(self) -> u32 {
        if self.is_empty() {
            return 0;
        }
        let [a, b] = Self::MAGIC.to_be_bytes();
        let [c, d] = self.bits().to_be_bytes();
        u32::from_be_bytes([a, b, c, d])
    }

    /// The features in the vendor fields of a PROPOSAL; none if the fields are not those of this
    /// implementation.
    pub(crate) const fn from_proposal(oui: [u8; 3], [a, b, c, d, _]: [u8; 5]) -> Self {
        match oui {
            Self::OUI => Self::from_vendor_options(u32::from_be_bytes([a, b, c, d])),
            _ => Self::empty(),
        }
    }

    /// The vendor fields of a PROPOSAL with these features; zero if there are none.
    pub(crate) const fn to_proposal(self) -> ([u8; 3], [u8; 5]) {
        let [a, b, c, d] = self.to_vendor_options().to_be_bytes();
        let oui = if self.is_empty() { [0; 3] } else { Self::OUI };
        (oui, [a, b, c, d, 0])
    }

    const fn low_byte(self) -> u8 {
        let [_, low] = self.bits().to_be_bytes();
        low
    }

    const LOW_BYTE: &[Bits] = &[
        Bits::flag("single_link", Self::SINGLE_LINK.low_byte()),
        Bits::flag("fast_open", Self::FAST_OPEN.low_byte()),
        Bits::flag("early_confirm", Self::EARLY_CONFIRM.low_byte()),
        Bits::flag("early_data", Self::EARLY_DATA.low_byte()),
        Bits::flag("rdma_ipv6", Self::RDMA_IPV6.low_byte()),
        Bits::flag("receive_credits", Self::RECEIVE_CREDITS.low_byte()),
        Bits::flag("authentication", Self::AUTHENTICATION.low_byte()),
        Bits::flag("socket_reuse", Self::SOCKET_REUSE.low_byte()),
    ];
}

layouts! {
    /// Vendor options with features.
    pub(crate) struct VendorOptions: 4 {
        magic: [u8; 2] => HEX,
        high_byte: u8 => Show::Bits(&[Bits::reserved("reserved_2", 0xff)]),
        low_byte: u8 => Show::Bits(Features::LOW_BYTE),
    }
}

impl fmt::Display for Features {
    /// Names with `|` between them, then unknown bits in hex.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        bitflags::parser::to_writer(self, f)
    }
}
