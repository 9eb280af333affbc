//! Properties of LLC messages: what can be built can be sent and read back, what was read is sent
//! as it was, and no bytes make a parser or a printer panic.

#![allow(clippy::unwrap_used, reason = "a helper of a test fails the test")]

use proptest::collection::vec;
use proptest::prelude::*;
use smc_wire::Bounded;
use smc_wire::llc::{
    AddLink, AddLinkClass, AddLinkCont, AddLinkExtension, AnnounceCredits, ByteOrder, Class,
    ConfirmLink, ConfirmRkey, ConfirmRkeyCont, DeleteLink, DeleteLinkReason, DeleteRkey,
    DeleteRkeyErrors, Dialect, Header, LinkRtoken, MAX_MESSAGE_LEN, Message, RejectReason,
    RequestAddLink, RequestAddLinkClass, RkeyClass, Rtoken, TestLink, WireRkey, WireRtoken,
    detect_order,
};
use smc_wire::types::{
    LinkAuthentication, LinkNumber, LinkUid, Mac, MtuCode, Psn, Qpn, Rkey, RmbAddr, RoceGid,
};

proptest! {
    #[test]
    fn no_bytes_make_it_panic(
        bytes in vec(any::<u8>(), 0..300),
        kind in prop::sample::select(vec![0x01, 0x02, 0x03, 0x04, 0x06, 0x07, 0x08, 0x09, 0x21,
            0x22, 0x24, 0x25, 0x26, 0x27, 0x29, 0xFE, 0x55]),
        little in any::<bool>(),
    ) {
        let mut plausible = bytes.clone();
        let length = u16::try_from(bytes.len()).unwrap();
        let length = if kind & 0x20 == 0 {
            [44, 0]
        } else if little {
            length.to_le_bytes()
        } else {
            length.to_be_bytes()
        };
        for (to, from) in plausible.iter_mut().zip([kind, length[0], length[1]]) {
            *to = from;
        }
        for bytes in [&bytes, &plausible] {
            if let Ok(message) = Message::parse(bytes) {
                let mut buffer = [0; MAX_MESSAGE_LEN];
                let len = message.emit(&mut buffer).expect("what was read can be sent");
                prop_assert_eq!(len, message.encoded_len());
                let again = Message::parse(&buffer[..len]).expect("and read again");
                prop_assert_eq!(again, message);
            }
        }
    }

    #[test]
    fn confirm_link(
        dialect in dialect(), class in class(), no_eyecatcher in 0..4_u8, mac in any::<[u8; 6]>(),
        gid in any::<[u8; 16]>(), qpn in qpn(), link in any::<u8>(), user_id in any::<u32>(),
        max_links in any::<u8>(), max_connections in any::<u8>(), authentication in any::<[u8; 8]>(),
    ) {
        survives(&Message::ConfirmLink(ConfirmLink {
            dialect, class, no_eyecatcher, mac: Mac::new(mac), gid: RoceGid::new(gid), qpn,
            link: LinkNumber(link), user_id: LinkUid(user_id), max_links, max_connections,
            authentication: LinkAuthentication::from_bytes(authentication),
        }))?;
    }

    #[test]
    fn add_link(
        dialect in dialect(), kind in 0..3, reason in 0..16_u8, mac in any::<[u8; 6]>(),
        gid in any::<[u8; 16]>(), qpn in qpn(), psn in 0..1_u32 << 24, mtu in 0..16_u8,
        direct in any::<bool>(), more in any::<u8>(),
        rtokens in vec(any::<(u32, u32, u64)>(), 0..256), has_extension in any::<bool>(),
    ) {
        let class = match kind {
            0 => AddLinkClass::Request,
            1 => AddLinkClass::Accepted,
            _ => AddLinkClass::Rejected(RejectReason::from_low_nibble(reason)),
        };
        let rtokens: Vec<WireRtoken> = rtokens.into_iter().map(wire_rtoken).collect();
        let extension = AddLinkExtension {
            direct,
            client_target_gid: RoceGid::new(gid),
            stated_count: u16::try_from(rtokens.len()).unwrap() + u16::from(more),
            rtokens: &rtokens,
        };
        let may = dialect.is_v2() && kind != 2;
        let message = Message::AddLink(AddLink {
            dialect, class, mac: Mac::new(mac), gid: RoceGid::new(gid), qpn, link: LinkNumber(more),
            mtu: MtuCode::new(mtu).unwrap(), psn: Psn::new(psn).unwrap(),
            extension: (has_extension && may).then_some(extension),
        });
        survives(&message)?;
    }

    #[test]
    fn add_link_cont(
        class in class(), link in any::<u8>(), left in vec(any::<(u32, u32, u64)>(), 0..9),
    ) {
        let left: Vec<Rtoken> = left.into_iter().map(|token| wire_rtoken(token).into()).collect();
        let message = AddLinkCont::of(class, LinkNumber(link), &left);
        survives(&Message::AddLinkCont(message))?;
    }

    #[test]
    fn delete_link(
        dialect in dialect(), class in class(), all in any::<bool>(), orderly in any::<bool>(),
        link in any::<u8>(), reason in any::<u32>(),
    ) {
        survives(&Message::DeleteLink(DeleteLink {
            dialect, class, all, orderly, link: LinkNumber(link), reason: DeleteLinkReason(reason),
        }))?;
    }

    #[test]
    fn request_add_link(
        order in order(), gids in vec(any::<[u8; 16]>(), 0..9), rejected in any::<bool>(),
        reason in 0..16_u8, request in any::<bool>(),
    ) {
        let gids: Vec<RoceGid> = gids.into_iter().map(RoceGid::new).collect();
        let class = if request {
            RequestAddLinkClass::Request { gids: Bounded::from_slice(&gids).unwrap() }
        } else {
            let reason = RejectReason::from_low_nibble(reason);
            RequestAddLinkClass::Response { rejected, reason }
        };
        survives(&Message::RequestAddLink(RequestAddLink { order, class }))?;
    }

    #[test]
    fn confirm_rkey(
        dialect in dialect(), class in rkey_class(), rkey in any::<u32>(), address in any::<u64>(),
        further in vec(any::<(u8, u32, u64)>(), 0..6),
    ) {
        let links = further.into_iter().map(link_rtoken).collect::<Vec<_>>();
        survives(&Message::ConfirmRkey(ConfirmRkey {
            dialect, class, rkey: Rkey(rkey), address: RmbAddr(address),
            further_links: u8::try_from(links.len()).unwrap(),
            further: Bounded::from_iter_lossy(links.iter().copied()),
        }))?;
        survives(&Message::ConfirmRkeyCont(ConfirmRkeyCont {
            class, left: u8::try_from(links.len()).unwrap(),
            rtokens: Bounded::from_iter_lossy(links),
        }))?;
    }

    #[test]
    fn announce_credits(order in order(), credits in any::<u16>()) {
        survives(&Message::AnnounceCredits(AnnounceCredits { order, credits }))?;
    }

    #[test]
    fn test_link(
        dialect in dialect(), class in class(), user_data in any::<[u8; 16]>(),
        reserved in any::<[u8; 24]>(),
    ) {
        survives(&Message::TestLink(TestLink { dialect, class, user_data, reserved }))?;
    }

    #[test]
    fn delete_rkey(
        dialect in dialect(), class in class(), negative in any::<bool>(), errors in any::<u8>(),
        rkeys in vec(any::<u32>(), 0..256),
    ) {
        let max = if dialect.is_v2() { 255 } else { 8 };
        let rkeys: Vec<WireRkey> =
            rkeys.into_iter().take(max).map(|rkey| Rkey(rkey).into()).collect();
        let errors = if dialect.is_v2() {
            DeleteRkeyErrors::Count(errors)
        } else {
            DeleteRkeyErrors::Mask(errors)
        };
        let message = DeleteRkey { dialect, class, negative, errors, rkeys: &rkeys };
        survives(&Message::DeleteRkey(message))?;
    }
}

/// Sends a message and reads it back, then sends what was read.
fn survives(message: &Message<'_>) -> Result<(), TestCaseError> {
    let mut sent = vec![0xAA; message.encoded_len()];
    prop_assert_eq!(message.emit(&mut sent), Ok(sent.len()));
    // The order of a length that reads alike in both orders has to be known already.
    let order = match message {
        Message::AddLink(m) => m.dialect.order(),
        Message::DeleteRkey(m) => m.dialect.order(),
        _ => detect_order(&sent).unwrap_or(ByteOrder::Big),
    };
    let received = Message::parse_from(&sent, order);
    let received = received.map_err(|error| TestCaseError::fail(error.to_string()))?;
    let header = Header::parse(&sent, Some(order)).unwrap();
    prop_assert!(header.length_agrees());
    prop_assert_eq!(&received, message);
    let mut again = vec![0x55; sent.len()];
    prop_assert_eq!(received.emit(&mut again), Ok(sent.len()));
    prop_assert_eq!(again, sent);
    Ok(())
}

fn order() -> impl Strategy<Value = ByteOrder> {
    prop_oneof![Just(ByteOrder::Big), Just(ByteOrder::Little)]
}

fn dialect() -> impl Strategy<Value = Dialect> {
    prop_oneof![Just(Dialect::V1), order().prop_map(Dialect::V2)]
}

fn class() -> impl Strategy<Value = Class> {
    prop_oneof![Just(Class::Request), Just(Class::Response)]
}

fn rkey_class() -> impl Strategy<Value = RkeyClass> {
    prop_oneof![
        Just(RkeyClass::Request),
        Just(RkeyClass::Accepted),
        any::<bool>().prop_map(|retry| RkeyClass::Rejected { retry }),
    ]
}

fn qpn() -> impl Strategy<Value = Qpn> {
    (0..1_u32 << 24).prop_map(|value| Qpn::new(value).unwrap())
}

fn wire_rtoken((rkey, new_rkey, address): (u32, u32, u64)) -> WireRtoken {
    let (rkey, new_rkey) = (Rkey(rkey), Rkey(new_rkey));
    Rtoken {
        rkey,
        new_rkey,
        new_address: RmbAddr(address),
    }
    .into()
}

fn link_rtoken((link, rkey, address): (u8, u32, u64)) -> LinkRtoken {
    LinkRtoken {
        link: LinkNumber(link),
        rkey: Rkey(rkey),
        address: RmbAddr(address),
    }
}
