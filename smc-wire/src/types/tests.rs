use core::net::{Ipv4Addr, Ipv6Addr};
use std::string::ToString;

use super::*;

#[test]
fn text_forms() {
    let mac = Mac::new([0x52, 0x54, 0, 0, 0, 0x0a]);
    assert_eq!(mac.to_string(), "52:54:00:00:00:0a");
    assert_eq!(
        PeerId::new(0x9b5a, mac).to_string(),
        "9b5a@52:54:00:00:00:0a"
    );
    assert_eq!(
        RoceGid::from_ipv4(Ipv4Addr::new(10, 9, 0, 2)).to_string(),
        "::ffff:10.9.0.2"
    );
    assert_eq!(
        IsmGid(0x0100_0000_0000_0001).to_string(),
        "0100000000000001"
    );
    assert_eq!(Gid::native(0x12).to_string(), "0000000000000012");
    assert_eq!(
        Gid::new(1, 2).to_string(),
        "00000000000000010000000000000002"
    );
    assert_eq!(Chid(0x7c1).to_string(), "0x07c1");
    assert_eq!(DmbToken(0xdead_beef).to_string(), "0x00000000deadbeef");
    assert_eq!(Qpn::new(0x11).unwrap().to_string(), "0x000011");
    assert_eq!(Psn::MAX.to_string(), "0xffffff");
    assert_eq!(Rkey(0x3bb).to_string(), "0x000003bb");
    assert_eq!(
        RmbAddr(0xff45_9d13_8381_0000).to_string(),
        "0xff459d1383810000"
    );
    assert_eq!(AlertToken::new(7).unwrap().to_string(), "0x00000007");
    assert_eq!(LinkNumber(200).to_string(), "200");
    assert_eq!(LinkUid(0x0100).to_string(), "0x00000100");
    assert_eq!(GroupId([0, 1, 0, 0]).to_string(), "00010000");
    assert_eq!(MtuCode::MTU_4096.to_string(), "4096");
    assert_eq!(Version::V2.to_string(), "v2");
    assert_eq!(Release::V2_1.to_string(), "v2.1");
    assert_eq!(FeatureMask::from_bits_retain(0x8001).to_string(), "0x8001");
    assert_eq!(HostName::new("host-a").to_string(), "host-a");
    assert_eq!(PnetId::new("net1").unwrap().to_string(), "NET1");
    assert_eq!(Eid::ueid("A.B-9").unwrap().to_string(), "A.B-9");
}

mod gid {
    use super::*;

    #[test]
    fn ipv4_in_either_form() {
        let address = Ipv4Addr::new(10, 9, 0, 2);
        let mapped = RoceGid::from_ipv4(address);
        let zeros = RoceGid::new([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 10, 9, 0, 2]);
        assert_eq!(
            (mapped.ipv4(), zeros.ipv4()),
            (Some(address), Some(address))
        );
        // One form has to be used consistently: they are different GIDs.
        assert_ne!(mapped, zeros);
    }

    #[test]
    fn ipv6_is_no_ipv4() {
        let address: Ipv6Addr = "fe80::200:ff:fe00:aa".parse().unwrap();
        let gid = RoceGid::from(address);
        assert_eq!((gid.ipv4(), gid.ipv6()), (None, address));
        assert_eq!(RoceGid::ZERO.ipv4(), None);
        assert_eq!(
            RoceGid::new([1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 1, 2, 3, 4]).ipv4(),
            None
        );
        assert_eq!(
            RoceGid::new([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xfe, 1, 2, 3, 4]).ipv4(),
            None
        );
    }

    #[test]
    fn addresses_that_other_hosts_can_reach() {
        let ip = |text: &str| RoceGid::from_ipv6(text.parse().unwrap()).ip();
        let v4 = Some(Ipv4Addr::new(10, 9, 0, 2).into());
        assert_eq!((ip("::ffff:10.9.0.2"), ip("::10.9.0.2")), (v4, v4));
        for address in ["fd09::2", "2001:db8::1", "64:ff9b::10.9.0.2"] {
            let expected = address.parse::<Ipv6Addr>().unwrap();
            assert_eq!(ip(address), Some(expected.into()));
        }
        for address in ["::", "fe80::1", "febf::1", "ff02::1"] {
            assert_eq!(ip(address), None, "{address}");
        }
        // Twelve zero bytes and an address, which is none of IPv6.
        assert!(ip("::1").is_some_and(|ip| ip.is_ipv4()));
    }

    #[test]
    fn halves_of_an_emulated_gid() {
        let gid = Gid::emulated(0x1111_2222);
        assert_eq!((gid.hi(), gid.lo()), (IsmGid(0), IsmGid(0x1111_2222)));
        assert_eq!(Gid::new(1, 2).to_u128(), (1 << 64) + 2);
        assert_eq!(Gid::emulated((1 << 64) + 2), Gid::new(1, 2));
        assert_eq!(Gid::from(IsmGid(5)), Gid::native(5));
        assert!(Gid::ZERO.is_zero());
        for gid in [Gid::native(0x12), Gid::new(1, 2)] {
            assert_eq!(gid.to_string().parse(), Ok(gid));
        }
        for text in ["", "g", "-1", &"1".repeat(33)] {
            assert!(text.parse::<Gid>().is_err(), "{text}");
        }
    }

    #[test]
    fn emulated_chids() {
        let emulated =
            [0, 1, 0x7c2, 0xfeff, 0xff00, 0xfffe, 0xffff].map(|chid| Chid(chid).is_emulated());
        assert_eq!(emulated, [false, false, false, false, true, true, true]);
        assert!(Chid::NONE.is_none());
    }
}

mod eid {
    use super::*;

    #[test]
    fn padded_with_blanks() {
        let eid = Eid::ueid("EXAMPLE-EID").unwrap();
        assert_eq!("EXAMPLE-EID".parse(), Ok(eid));
        assert_eq!(eid.as_bytes(), b"EXAMPLE-EID                     ");
        assert!(Eid::ueid(&"A".repeat(32)).is_ok());
    }

    #[test]
    fn each_rule_has_its_error() {
        assert_eq!(Eid::ueid(""), Err(EidError::Empty));
        assert_eq!(
            Eid::ueid(&"A".repeat(33)),
            Err(EidError::TooLong { len: 33 })
        );
        let character = |at, found| Err(EidError::Character { at, found });
        assert_eq!(Eid::ueid("ABc"), character(2, 'c'));
        assert_eq!(Eid::ueid("A B"), character(1, ' '));
        assert_eq!(Eid::ueid("AB "), character(2, ' '));
        assert_eq!(Eid::ueid("A\u{c4}"), character(1, '\u{c4}'));
        assert_eq!(Eid::ueid("-A"), Err(EidError::FirstCharacter));
        assert_eq!(Eid::ueid(".A"), Err(EidError::FirstCharacter));
        assert_eq!(Eid::ueid("A..B"), Err(EidError::ConsecutiveDots));
        assert_eq!(
            character(1, ' ')
                .map(|eid: Eid| eid)
                .unwrap_err()
                .to_string(),
            "EID has ' ' at position 1, only A-Z, 0-9, '.', '-' are allowed"
        );
    }

    #[test]
    fn received_bytes_are_not_judged() {
        let mut bytes = *b"EXAMPLE-EID                     ";
        assert_eq!(Eid::from_bytes(bytes), Eid::ueid("EXAMPLE-EID").unwrap());
        bytes[11..].fill(0);
        let padded_with_nul = Eid::from_bytes(bytes);
        assert_ne!(padded_with_nul, Eid::ueid("EXAMPLE-EID").unwrap());
        assert_eq!(padded_with_nul.to_string(), "EXAMPLE-EID");
        assert_eq!(Eid::from_bytes([0x9b; 32]).to_string(), ".".repeat(32));
        assert_eq!(Eid::ZERO.to_string(), "");
    }
}

mod codes {
    use super::*;

    #[test]
    fn decline_codes_have_names_and_sentences() {
        for code in DeclineCode::KNOWN {
            let (name, sentence) = (code.name().unwrap(), code.description().unwrap());
            assert!(sentence.ends_with('.'), "{name}");
            assert!(code.to_string().ends_with(&std::format!("({name})")));
        }
        assert!(DeclineCode::KNOWN.is_sorted());
        assert_eq!(DeclineCode(7).description(), None);
        assert_eq!(DeclineCode::SYNCERR.to_string(), "0x04000000 (SYNCERR)");
    }

    #[test]
    fn offers() {
        for code in 0..4 {
            let offer = OfferedTypes::from_low_bits(code | 0xfc);
            assert_eq!(offer.code(), code);
            assert_eq!(OfferedTypes::of(offer.has_r(), offer.has_d()), offer);
            assert_eq!(offer.is_neither(), code == 2);
        }
    }

    #[test]
    fn nibbles() {
        assert_eq!(Version::new(0), None);
        assert_eq!(Version::new(16), None);
        assert!(!Version::V1.is_v2() && Version::V2.is_v2() && Version::new(3).unwrap().is_v2());
        assert_eq!(Release::from_low_nibble(0x21), Release::V2_1);
        assert_eq!(OsType::from_high_nibble(0x21), OsType::LINUX);
        assert_eq!(OsType::new(9).unwrap().to_string(), "OS type 9");
        assert_eq!(
            (Release::new(16), OsType::new(16), MtuCode::new(16)),
            (None, None, None)
        );
    }

    #[test]
    fn mtu_codes() {
        for code in 0..16 {
            let bytes = MtuCode::new(code).unwrap().bytes();
            assert_eq!(bytes.is_some(), (1..=5).contains(&code));
        }
        assert_eq!(
            MtuCode::from_low_nibble(0x26).to_string(),
            "reserved MTU code 6"
        );
    }

    #[test]
    fn numbers_of_24_bits() {
        assert_eq!(Qpn::new(0x100_0000), None);
        let qpn = Qpn::from_be_bytes([0x12, 0x34, 0x56]);
        assert_eq!(
            (qpn.get(), qpn.to_be_bytes()),
            (0x12_3456, [0x12, 0x34, 0x56])
        );
    }

    #[test]
    fn alert_tokens_are_not_zero() {
        assert_eq!(AlertToken::new(0), None);
        assert!(AlertToken::from_wire(0).is_zero());
    }
}

mod names {
    use super::*;

    #[test]
    fn host_names_are_cut_and_padded() {
        let long = HostName::new("a-host-name-of-more-than-thirty-two-characters");
        assert_eq!(long.as_str(), Some("a-host-name-of-more-than-thirty-"));
        assert_eq!(HostName::new("h").as_bytes()[1..], [b' '; 31]);
        assert_eq!(HostName::default().as_str(), Some(""));
    }

    #[test]
    fn host_names_that_are_not_ascii_are_ignored() {
        let name = HostName::from_bytes([0xc4; 32]);
        assert_eq!(name.as_str(), None);
        assert_eq!(name.to_string(), ".".repeat(32));
    }

    #[test]
    fn pnet_ids_are_upper_case_letters_and_digits() {
        assert_eq!(PnetId::new("net1"), PnetId::new("NET1"));
        for name in ["", "12345678901234567", "A B", "\u{e4}"] {
            assert_eq!(PnetId::new(name), None, "{name:?}");
        }
        assert_eq!(
            PnetId::new("0123456789ABCDEF").unwrap().as_str(),
            "0123456789ABCDEF"
        );
    }

    #[test]
    fn peer_ids() {
        let id = PeerId::from_bytes([0x9b, 0x5a, 0x52, 0x54, 0, 0, 0, 1]);
        assert_eq!(
            (id.instance(), id.mac()),
            (0x9b5a, Mac::new([0x52, 0x54, 0, 0, 0, 1]))
        );
        assert_eq!(*id.as_bytes(), [0x9b, 0x5a, 0x52, 0x54, 0, 0, 0, 1]);
        assert!(PeerId::ZERO.is_zero() && PeerId::ZERO.mac().is_zero());
    }
}
