//! Strategies for messages.

#![allow(clippy::unwrap_used, reason = "a helper of a test fails the test")]

use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use proptest::sample::select;
use smc_wire::Bounded;
use smc_wire::clc::{
    AcceptConfirm, AcceptKind, Body, DirectEnd, DirectExtension, FirstContact, GidEntry, IpArea,
    Ipv6Prefix, Proposal, RdmaEnd, SmcdArea, Terms, V2Extension,
};
use smc_wire::size::SizeCode;
use smc_wire::types::*;

use crate::support::{hex, with_true_length};

fn bounded<T: Copy + Default + std::fmt::Debug>(
    item: impl Strategy<Value = T>,
) -> impl Strategy<Value = Bounded<T, 8>> {
    vec(item, 0..=8).prop_map(|items| Bounded::from_slice(&items).unwrap())
}

prop_compose! {
    pub(crate) fn peer_id()(bytes: [u8; 8]) -> PeerId {
        PeerId::from_bytes(bytes)
    }
}

prop_compose! {
    fn mac()(bytes: [u8; 6]) -> Mac {
        Mac::new(bytes)
    }
}

prop_compose! {
    fn roce_gid()(bytes: [u8; 16]) -> RoceGid {
        RoceGid::new(bytes)
    }
}

prop_compose! {
    fn eid()(bytes: [u8; 32]) -> Eid {
        Eid::from_bytes(bytes)
    }
}

prop_compose! {
    fn smcd_area(prefix_count_byte: bool)(
        gid: u64,
        last in 0..=8_u64,
        chid: u16,
        vendor_oui: [u8; 3],
        vendor_options: [u8; 5],
    ) -> SmcdArea {
        // Without IP area the last byte of the GID has to pass for a prefix count.
        let gid = if prefix_count_byte { (gid & !0xff) | last } else { gid };
        SmcdArea { gid: IsmGid(gid), chid: Chid(chid), vendor_oui, vendor_options }
    }
}

prop_compose! {
    fn ip_area()(
        subnet: [u8; 4],
        prefix_len: u8,
        prefixes in bounded(any::<([u8; 16], u8)>().prop_map(|(prefix, prefix_len)| {
            Ipv6Prefix { prefix: prefix.into(), prefix_len }
        })),
    ) -> IpArea {
        IpArea { subnet: subnet.into(), prefix_len, prefixes }
    }
}

prop_compose! {
    fn direct_extension()(
        seid in eid(),
        entries in bounded(any::<(u64, u16)>().prop_map(|(gid, chid)| {
            GidEntry { gid: IsmGid(gid), chid: Chid(chid) }
        })),
    ) -> DirectExtension {
        DirectExtension { seid, entries }
    }
}

prop_compose! {
    fn extension(has_d: bool)(
        release in 0..16_u8,
        has_seid: bool,
        gid in roce_gid(),
        max_conns: u8,
        max_links: u8,
        features: u16,
        ueids in bounded(eid()),
        direct in direct_extension(),
    ) -> V2Extension {
        V2Extension {
            release: Release::new(release).unwrap(),
            has_seid,
            gid,
            max_conns,
            max_links,
            features: FeatureMask::from_bits_retain(features),
            ueids,
            direct: has_d.then_some(direct),
        }
    }
}

/// Version 1 with or without SMC-D area, version 2 and above with every pair of offers.
pub(crate) fn proposal() -> impl Strategy<Value = Proposal> {
    let offers = [
        OfferedTypes::R,
        OfferedTypes::D,
        OfferedTypes::Neither,
        OfferedTypes::Both,
    ];
    let v1 = (
        Just(Version::V1),
        select(vec![OfferedTypes::R, OfferedTypes::D, OfferedTypes::Both]),
    );
    let v1 = v1.prop_map(|(version, v1)| (version, v1, OfferedTypes::Neither));
    let v2 = (2..16_u8, select(offers.to_vec()), select(offers.to_vec()))
        .prop_map(|(version, v1, v2)| (Version::new(version).unwrap(), v1, v2));
    prop_oneof![v1, v2].prop_flat_map(|(version, v1, v2)| {
        let may_lack_area = !version.is_v2() && !v1.has_d();
        let regions = (
            (smcd_area(v1.is_neither()), any::<bool>())
                .prop_map(move |(area, skip)| (!(skip && may_lack_area)).then_some(area)),
            ip_area().prop_map(move |ip| (!v1.is_neither()).then_some(ip)),
            extension(v2.has_d()).prop_map(move |ext| (!v2.is_neither()).then_some(ext)),
        );
        (peer_id(), roce_gid(), mac(), regions).prop_map(
            move |(peer_id, gid, mac, (smcd, ip, ext))| Proposal {
                version,
                v1,
                v2,
                peer_id,
                gid,
                mac,
                smcd,
                ip,
                ext,
            },
        )
    })
}

prop_compose! {
    pub(crate) fn rdma_end()(
        ids in (peer_id(), roce_gid(), mac()),
        numbers in (0..0x100_0000_u32, 0..0x100_0000_u32, any::<u32>(), any::<u32>()),
        rmbe_index: u8,
        size in 0..16_u8,
        mtu in 0..16_u8,
        address: u64,
    ) -> RdmaEnd {
        RdmaEnd {
            peer_id: ids.0,
            gid: ids.1,
            mac: ids.2,
            qpn: Qpn::new(numbers.0).unwrap(),
            psn: Psn::new(numbers.1).unwrap(),
            rkey: Rkey(numbers.2),
            token: AlertToken::from_wire(numbers.3),
            rmbe_index,
            size: SizeCode::new(size).unwrap(),
            mtu: MtuCode::new(mtu).unwrap(),
            rmb_addr: RmbAddr(address),
        }
    }
}

prop_compose! {
    pub(crate) fn direct_end(is_v2: bool)(
        (hi, lo) in any::<(u64, u64)>(),
        chid in prop_oneof![any::<u16>(), 0xff00..=0xffff_u16],
        dmb: u64,
        dmbe_index: u8,
        size in 0..16_u8,
        group: [u8; 4],
    ) -> DirectEnd {
        let chid = if is_v2 { Chid(chid) } else { Chid::NONE };
        DirectEnd {
            gid: if chid.is_emulated() { Gid::new(hi, lo) } else { Gid::native(hi) },
            chid,
            dmb: DmbToken(dmb),
            dmbe_index,
            size: SizeCode::new(size).unwrap(),
            group: GroupId(group),
        }
    }
}

prop_compose! {
    fn first_contact(with_gids: bool)(
        v2_direct: bool,
        os in 0..16_u8,
        release in 0..16_u8,
        host: [u8; 32],
        (max_conns, max_links, features, vendor_options) in any::<(u8, u8, u16, u32)>(),
        gids in option::of(bounded(roce_gid())),
    ) -> FirstContact {
        let release = Release::new(release).unwrap();
        let parts = FirstContact {
            v2_direct,
            gids: gids.filter(|_| with_gids),
            ..FirstContact::new(release, OsType::new(os).unwrap(), HostName::from_bytes(host))
        };
        if release == Release::V2_0 {
            return parts;
        }
        let features = FeatureMask::from_bits_retain(features);
        FirstContact { max_conns, max_links, features, vendor_options, ..parts }
    }
}

pub(crate) fn accept_confirm() -> impl Strategy<Value = AcceptConfirm> {
    let kind = select(vec![AcceptKind::Accept, AcceptKind::Confirm]);
    (kind, any::<bool>(), any::<bool>()).prop_flat_map(|(kind, is_rdma, is_v2)| {
        let body = if is_rdma {
            rdma_end().prop_map(Body::R).boxed()
        } else {
            direct_end(is_v2).prop_map(Body::D).boxed()
        };
        let terms = if is_v2 {
            let parts = option::of(first_contact(is_rdma && kind == AcceptKind::Confirm));
            (eid(), parts)
                .prop_map(|(eid, first_contact)| Terms::V2 { eid, first_contact })
                .boxed()
        } else {
            any::<bool>()
                .prop_map(|first_contact| Terms::V1 { first_contact })
                .boxed()
        };
        (terms, body).prop_map(move |(terms, body)| AcceptConfirm { kind, terms, body })
    })
}

prop_compose! {
    /// One of these messages (name and hex digits) with some bytes changed, and perhaps cut short.
    pub(crate) fn mutated(messages: &'static [(&'static str, &'static str)])(
        index in 0..messages.len(),
        changes in vec((any::<usize>(), any::<u8>()), 1..6),
        cut in option::weighted(0.2, any::<usize>()),
        fix_length: bool,
    ) -> Vec<u8> {
        let mut bytes = hex(messages[index].1);
        for (at, value) in changes {
            let at = at % bytes.len();
            bytes[at] = value;
        }
        if let Some(cut) = cut {
            bytes.truncate(8 + cut % (bytes.len() - 8));
        }
        match fix_length {
            true => with_true_length(bytes),
            false => bytes,
        }
    }
}
