//! Layouts of the messages, byte for byte, without the header.
//!
//! Messages that are shorter than 44 bytes with these parts are filled up with zeros.

use zerocopy::big_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::DeleteLinkReason;
use crate::layout::Show::{self, Code, Reserved, Unswapped};
use crate::layout::{BYTES, Bits, DEC, GID, HEX, MAC, MTU_BITS, layouts};
use crate::types::{Mac, RoceGid};

/// `length` is length and reason in v1, the unswapped length in v2.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct Header {
    pub(crate) kind: u8,
    pub(crate) length: [u8; 2],
    pub(crate) flags: u8,
}

layouts! {
    /// CONFIRM LINK.
    pub(crate) struct ConfirmLink: 40 {
        mac: Mac => MAC,
        gid: RoceGid => GID,
        qp_number: [u8; 3] => HEX,
        link_number: u8 => DEC,
        link_user_id: U32 => HEX,
        max_links: u8 => DEC,
        max_connections: u8 => DEC,
        reserved_36: [u8; 8] => Reserved,
    }

    /// ADD LINK, the part common to v1 and v2.
    pub(crate) struct AddLink: 40 {
        mac: Mac => MAC,
        reserved_10: [u8; 2] => Reserved,
        gid: RoceGid => GID,
        qp_number: [u8; 3] => HEX,
        link_number: u8 => DEC,
        mtu: u8 => Show::Bits(&[Bits::reserved("reserved_mtu_bits", 0xf0), MTU_BITS]),
        initial_psn: [u8; 3] => HEX,
        reserved_36: [u8; 8] => Reserved,
    }

    /// ADD LINK, what follows in v2; rtokens follow.
    pub(crate) struct AddLinkExtension: 28 {
        v2_flags: u8 => Show::Bits(&[
            Bits::flag("v2_direct", V2_DIRECT),
            Bits::reserved("reserved_v2_flags", !V2_DIRECT),
        ]),
        reserved_45: u8 => Reserved,
        client_target_gid: RoceGid => GID,
        reserved_62: [u8; 8] => Reserved,
        rtoken_count: [u8; 2] => Unswapped,
    }

    /// An [`Rtoken`](super::Rtoken) in its 16 bytes of wire form, so that long lists can be
    /// borrowed.
    #[derive(PartialEq, Eq, Hash, Default)]
    pub struct WireRtoken: 16 {
        rkey: U32 => HEX,
        new_rkey: U32 => HEX,
        new_address: U64 => HEX,
    }

    /// ADD LINK CONT; up to two rtokens follow.
    pub(crate) struct AddLinkCont: 4 {
        link_number: u8 => DEC,
        rtokens_left: u8 => DEC,
        reserved_6: [u8; 2] => Reserved,
    }

    /// DELETE LINK.
    pub(crate) struct DeleteLink: 40 {
        link_number: u8 => DEC,
        reason: U32 => Code(|reason| DeleteLinkReason(u32::try_from(reason).ok()?).name()),
        reserved_9: [u8; 35] => Reserved,
    }

    /// REQUEST ADD LINK; GIDs follow.
    pub(crate) struct RequestAddLink: 24 {
        reserved_4: [u8; 20] => Reserved,
        gid_count: u8 => DEC,
        reserved_25: [u8; 3] => Reserved,
    }

    /// An rtoken on a further link.
    pub(crate) struct LinkRtoken: 13 {
        link_number: u8 => DEC,
        rkey: U32 => HEX,
        address: U64 => HEX,
    }

    /// CONFIRM RKEY; up to two rtokens follow.
    pub(crate) struct ConfirmRkey: 13 {
        further_links: u8 => DEC,
        rkey: U32 => HEX,
        address: U64 => HEX,
    }

    /// CONFIRM RKEY CONT; up to three rtokens follow.
    pub(crate) struct ConfirmRkeyCont: 1 {
        rtokens_left: u8 => DEC,
    }

    /// TEST LINK.
    pub(crate) struct TestLink: 40 {
        user_data: [u8; 16] => BYTES,
        reserved_20: [u8; 24] => Reserved,
    }

    /// DELETE RKEY in v1; up to eight rkeys follow.
    pub(crate) struct DeleteRkeyV1: 4 {
        rkey_count: u8 => DEC,
        unknown_rkey_mask: u8 => HEX,
        reserved_6: [u8; 2] => Reserved,
    }

    /// DELETE RKEY in v2; up to 255 rkeys follow.
    pub(crate) struct DeleteRkey: 4 {
        rkey_count: u8 => DEC,
        unknown_rkey_count: u8 => DEC,
        reserved_6: [u8; 2] => Reserved,
    }

    /// An [`Rkey`](crate::types::Rkey) in its four bytes of wire form, so that long lists can be
    /// borrowed.
    #[derive(PartialEq, Eq, Hash, Default)]
    pub struct WireRkey: 4 {
        rkey: U32 => HEX,
    }
}

/// `v2_flags` of ADD LINK: the sender reaches the peer without a gateway.
pub(crate) const V2_DIRECT: u8 = 0x80;

/// Up to `count` items at the start of `bytes`, fewer if there is no space for more.
pub(super) fn list<T>(bytes: &[u8], count: usize) -> &[T]
where
    T: FromBytes + Immutable + KnownLayout + Unaligned,
{
    let fit = bytes.len().checked_div(size_of::<T>()).unwrap_or(0);
    match <[T]>::ref_from_prefix_with_elems(bytes, count.min(fit)) {
        Ok((items, _)) => items,
        Err(_) => &[],
    }
}
