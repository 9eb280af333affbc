//! The printers, on whole, broken and arbitrary messages.

#![allow(clippy::unwrap_used, reason = "a helper of a test fails the test")]

mod capture;
mod support;

use proptest::collection::vec;
use proptest::prelude::*;
use smc_wire::cdc::ByteOrder;
use smc_wire::pretty::{self, Family, Field, Group, Problem, Value, Visitor};

use capture::{Found, captures};
use support::{ALL_CLC, ALL_EXTENDED, C1, C2, CAPTURED_PROPOSAL, P3, hex, with};

const FAMILIES: [Family; 6] = [
    Family::TcpOption,
    Family::Clc,
    Family::Llc,
    Family::CdcR,
    Family::CdcD(ByteOrder::Little),
    Family::CdcD(ByteOrder::Big),
];

const ADD_LINK: &str = "
22580000 525400000001 0000 00000000000000000000ffff0a090001 000012 02 03 3dd5dc 0000000000000000
80 00 00000000000000000000ffff0a090001 0000000000000000 0100 000003bb 00000512 ff459d1383810000";

#[test]
fn a_proposal_as_a_tree() {
    let expected = "
    0                     header
    0  e2d4c3d9             eyecatcher: 0xe2d4c3d9 (SMCR)
    4  01                   type: 0x01 (PROPOSAL)
    5  009c                 length: 156
    7  22                   version: 2
    7  22                   v2_type: 0x0 (SMC-R)
    7  22                   v1_type: 0x2 (none)
    8  0000000000000000   peer_id: 0000@00:00:00:00:00:00
   16  0000000000000000…  gid: ::
   32  000000000000       mac: 00:00:00:00:00:00
   38  0000               ip_area_offset: 0
   40                     smcd_area
   40  0000000000000000     ism_gid: 0x0000000000000000
   48  0000                 ism_chid: 0x0000 (none)
   50  001c                 v2_extension_offset: 28
   52  000000               vendor_oui
   55  0000000000           vendor_options
   80                     v2_extension
   80  01                   ueid_count: 1
   81  00                   gid_entry_count: 0
   83  10                   release: 1
   83  10                   seid_present: no
   86  0000                 smcd_v2_offset: 0
   88  0000000000000000…    rocev2_gid: ::ffff:10.9.0.2
  104  ff                   max_connections: 255
  105  02                   max_links: 2
  106  0001                 feature_mask: 0x0001
  120  534d4356322d5445…    ueids[0]: \"SMCV2-TEST-EID\"
  152  e2d4c3d9           trailer: 0xe2d4c3d9 (SMCR)
";
    assert_eq!(
        format!("\n{}", tree(Family::Clc, &hex(CAPTURED_PROPOSAL))),
        expected
    );
}

#[test]
fn an_add_link_as_a_tree() {
    let expected = "
    0                     header
    0  22                   type: 0x22 (ADD LINK)
    1  5800                 length: 88 [little-endian]
    3  00                   response: no
    3  00                   rejected: no
    4  525400000001       mac: 52:54:00:00:00:01
   12  0000000000000000…  gid: ::ffff:10.9.0.1
   28  000012             qp_number: 0x000012
   31  02                 link_number: 2
   32  03                 mtu: 3 (1024 bytes)
   33  3dd5dc             initial_psn: 0x3dd5dc
   44                     v2_extension
   44  80                   v2_direct: yes
   46  0000000000000000…    client_target_gid: ::ffff:10.9.0.1
   70  0100                 rtoken_count: 1 [little-endian]
   72                       rtokens[0]
   72  000003bb               rkey: 0x000003bb
   76  00000512               new_rkey: 0x00000512
   80  ff459d1383810000       new_address: 0xff459d1383810000
";
    assert_eq!(format!("\n{}", tree(Family::Llc, &hex(ADD_LINK))), expected);
}

#[test]
fn messages_as_lines() {
    let line = |family, digits: &str| pretty::line(family, &hex(digits)).to_string();
    assert_eq!(
        line(Family::Clc, CAPTURED_PROPOSAL),
        "PROPOSAL v2.1 len 156 D:- R:v2 eids [SMCV2-TEST-EID] gid ::ffff:10.9.0.2 max-conns 255 \
         max-links 2",
    );
    assert_eq!(
        line(Family::Clc, P3),
        "PROPOSAL v2.1 len 242 D:v1+v2 R:v1+v2 eids [EXAMPLE-EID] seid \
         IBM-SYSZ-ISMSEID000000001A2B3906 gid ::ffff:192.0.2.1 max-conns 255 max-links 2 devices \
         [0200000000000002@0x07c2 11111111111111112222222222222222@0xffff] v1-gid \
         fe80::200:ff:fe00:aa mac 02:00:00:00:00:aa ism 0100000000000001@0x07c1 net 192.0.2.0/24 \
         peer 1234@02:00:00:00:00:aa",
    );
    assert_eq!(
        line(Family::Clc, support::A3),
        "ACCEPT v2.1 len 130 SMC-D first-contact gid 11111111111111112222222222222222 chid 0xffff \
         dmb 0x00000000deadbeef#0 size 65536 group 00010000 eid EXAMPLE-EID os Linux host \
         \"host-a\"",
    );
    assert_eq!(
        line(Family::Llc, ADD_LINK),
        "ADD LINK v2 request link 2 qp 0x000012 psn 0x3dd5dc mtu 1024 gid ::ffff:10.9.0.1 mac \
         52:54:00:00:00:01 rtokens 1/1",
    );
    assert_eq!(
        line(Family::Llc, "212c00"),
        "CONFIRM LINK malformed, 3 bytes: LLC header: message at offset 0: expected at least 44 \
         bytes, got 3",
    );
    assert_eq!(
        line(Family::CdcD(ByteOrder::Little), C1),
        line(Family::CdcD(ByteOrder::Big), C2)
    );
    assert_eq!(
        line(Family::TcpOption, "0101fe06e2d4c3d9"),
        "TCP option SMCR at 2"
    );
    assert_eq!(
        line(Family::TcpOption, "020405b4"),
        "TCP options without SMC, 4 bytes"
    );
}

/// Whatever is cut off, what is there is shown, and what is missing is reported.
#[test]
fn truncated_messages_are_shown_as_far_as_they_go() {
    for (name, bytes) in samples() {
        for len in 0..bytes.1.len() {
            let recording = Recording::of(bytes.0, &bytes.1[..len]);
            let complete = Recording::of(bytes.0, &bytes.1);
            let missing = |p: &&Problem| matches!(p, Problem::Missing { .. });
            // A shorter LLC message may look complete: its size is what was received.
            let reports = recording.problems.iter().any(|p| missing(&p))
                || !recording.problems.is_empty() && matches!(bytes.0, Family::Llc)
                || matches!(bytes.0, Family::TcpOption);
            assert!(reports, "{name} cut to {len}: {:?}", recording.problems);
            let shown = recording
                .paths
                .iter()
                .filter(|path| !path.ends_with("trailer"));
            let whole: Vec<_> = complete.paths.iter().collect();
            let lost = shown
                .filter(|path| !whole.contains(path))
                .collect::<Vec<_>>();
            let only_bytes = lost.iter().all(|path| {
                // Without its features a message is not known to have extensions.
                path.ends_with("length")
                    || path.ends_with("rtoken_count")
                    || path.contains("reserved")
                    || *path == "unknown_bytes"
            });
            assert!(only_bytes, "{name} cut to {len} shows {lost:?}");
        }
    }
}

#[test]
fn names_are_unique_and_lists_are_counted() {
    for (_, (family, bytes)) in samples() {
        // The recording itself checks; broken messages have to keep the promise as well.
        for len in 0..=bytes.len() {
            Recording::of(family, &bytes[..len]);
        }
    }
}

#[test]
fn captured_messages_print_without_problems() {
    for capture in captures() {
        for (family, list) in [
            (Family::TcpOption, &capture.options),
            (Family::Clc, &capture.clc),
            (Family::Llc, &capture.llc),
            (Family::CdcR, &capture.cdc),
        ] {
            for Found { frame, bytes, .. } in list {
                let at = format!("{} frame {frame}", capture.name);
                let recording = Recording::of(family, bytes);
                assert_eq!(recording.problems, [], "{at}");
                assert!(recording.paths.len() > 2, "{at}");
                let line = pretty::line(family, bytes).to_string();
                assert!(!line.contains("malformed"), "{at}: {line}");
                assert!(!tree(family, bytes).contains('!'), "{at}");
            }
        }
    }
}

/// Fields, together with reserved fields that are zero and not shown, cover every byte.
#[test]
fn every_byte_that_is_not_zero_is_shown() {
    for (name, (family, bytes)) in samples() {
        for at in 0..bytes.len() {
            for value in [0x00, 0x01, 0x10, 0xFF] {
                let changed = with(&bytes, at, value);
                if value != 0 && structural(family, at, &bytes) {
                    continue;
                }
                let recording = Recording::of(family, &changed);
                let shown = changed[at] == 0 || recording.covered.get(at).copied().unwrap_or(false);
                assert!(shown, "{name}: byte {at} = {value:#x} is not shown");
            }
        }
    }
}

#[test]
fn reserved_bytes_appear_when_they_are_not_zero() {
    let changed = with(&hex(CAPTURED_PROPOSAL), 79, 5);
    let recording = Recording::of(Family::Clc, &changed);
    assert!(
        recording
            .paths
            .contains(&"smcd_area/reserved_60".to_owned()),
        "{:?}",
        recording.paths
    );
    assert_eq!(
        recording.problems,
        [],
        "they are no reason to refuse the message"
    );
    assert!(tree(Family::Clc, &changed).contains("[reserved, not zero]"));
}

#[test]
fn excess_bytes_are_reported() {
    let mut bytes = hex(CAPTURED_PROPOSAL);
    bytes.extend([1, 2, 3]);
    let recording = Recording::of(Family::Clc, &bytes);
    assert_eq!(
        recording.problems,
        [Problem::Excess {
            offset: 156,
            len: 3
        }]
    );
}

#[test]
fn contradictions_and_refusals_are_reported() {
    let bytes = with(&hex(CAPTURED_PROPOSAL), 80, 9);
    let recording = Recording::of(Family::Clc, &bytes);
    assert!(
        matches!(recording.problems.last(), Some(Problem::Rejected(_))),
        "{:?}",
        recording.problems
    );

    let bytes = with(&hex(ADD_LINK), 1, 0x68);
    let recording = Recording::of(Family::Llc, &bytes);
    let (field, offset, expected, got) = ("length", 1, 88, 104);
    assert_eq!(
        recording.problems,
        [Problem::Contradiction {
            field,
            offset,
            expected,
            got
        }]
    );
}

#[test]
fn unknown_codes_are_shown_in_hex() {
    let bytes = with(&hex(support::D1), 19, 0x77);
    assert!(tree(Family::Clc, &bytes).contains("diagnosis: 0x04000077\n"));
    let mut bytes = vec![0x0C; 44];
    bytes[1] = 44;
    assert!(tree(Family::Llc, &bytes).contains("type: 0x0c\n"));
    assert_eq!(
        pretty::line(Family::Llc, &bytes).to_string(),
        "LLC type 0x0c, 44 bytes"
    );
}

proptest! {
    #[test]
    fn no_bytes_make_the_printers_panic(bytes in vec(any::<u8>(), 0..400)) {
        for family in FAMILIES {
            let _ = pretty::line(family, &bytes).to_string();
            let _ = tree(family, &bytes);
            Recording::of(family, &bytes);
        }
    }

    #[test]
    fn no_change_makes_the_printers_panic(
        sample in 0..1000_usize, changes in vec((any::<usize>(), any::<u8>()), 0..6),
        cut in 0..40_usize,
    ) {
        let samples = samples();
        let (_, (family, bytes)) = &samples[sample % samples.len()];
        let mut bytes = bytes.clone();
        for (at, value) in changes {
            let at = at % bytes.len();
            bytes[at] = value;
        }
        bytes.truncate(bytes.len().saturating_sub(cut));
        let _ = pretty::line(*family, &bytes).to_string();
        let _ = tree(*family, &bytes);
        Recording::of(*family, &bytes);
    }
}

fn tree(family: Family, bytes: &[u8]) -> String {
    pretty::tree(family, bytes).to_string()
}

/// One message of each kind.
fn samples() -> Vec<(&'static str, (Family, Vec<u8>))> {
    let mut samples: Vec<_> = ALL_CLC
        .iter()
        .chain(&ALL_EXTENDED)
        .map(|(name, digits)| (*name, (Family::Clc, hex(digits))))
        .collect();
    samples.extend([
        (
            "option",
            (Family::TcpOption, hex("020405b40101fe06e2d4c3d9")),
        ),
        ("ADD LINK", (Family::Llc, hex(ADD_LINK))),
        (
            "CDC little-endian",
            (Family::CdcD(ByteOrder::Little), hex(C1)),
        ),
        ("CDC big-endian", (Family::CdcD(ByteOrder::Big), hex(C2))),
    ]);
    let llc = [
        ("CONFIRM LINK", 0x21),
        ("ADD LINK v1", 0x02),
        ("ADD LINK CONT", 0x03),
        ("DELETE LINK", 0x24),
        ("REQUEST ADD LINK", 0x25),
        ("CONFIRM RKEY", 0x26),
        ("TEST LINK", 0x07),
        ("CONFIRM RKEY CONT", 0x08),
        ("DELETE RKEY", 0x29),
        ("DELETE RKEY v1", 0x09),
    ];
    for (name, kind) in llc {
        let mut bytes = vec![0; 44];
        (bytes[0], bytes[1]) = (kind, 44);
        match kind {
            0x25 => bytes[24] = 1,
            _ => bytes[4] = 1,
        }
        samples.push((name, (Family::Llc, bytes)));
    }
    let mut cdc = vec![0; 44];
    (cdc[0], cdc[1]) = (0xFE, 44);
    samples.push(("CDC", (Family::CdcR, cdc)));
    samples
}

/// Bytes that decide what other bytes mean: types, lengths, offsets and counts.
fn structural(family: Family, at: usize, bytes: &[u8]) -> bool {
    match family {
        Family::Clc => {
            let is_proposal = bytes[4] == 1;
            at < 8
                || is_proposal && matches!(at, 38 | 39 | 50 | 51)
                || is_proposal && matches!(at, 80 | 81 | 86 | 87 | 88 | 89 | 94 | 95)
                || is_proposal && matches!(at, 47)
                || !is_proposal && matches!(at, 75 | 156)
        }
        Family::Llc => at < 3 || matches!(at, 4 | 5 | 24 | 70 | 71),
        Family::TcpOption => true,
        Family::CdcR | Family::CdcD(_) => false,
        _ => unreachable!("no other families"),
    }
}

/// A name and its position in a list.
type Name = (&'static str, Option<usize>);

/// Records the calls of a visitor and checks what the documentation of [`Visitor`] promises.
#[derive(Debug, Default)]
struct Recording {
    /// The groups around the present position: path and names so far.
    stack: Vec<(String, Vec<Name>)>,
    paths: Vec<String>,
    covered: Vec<bool>,
    problems: Vec<Problem>,
}

impl Recording {
    fn of(family: Family, bytes: &[u8]) -> Self {
        let mut recording = Self {
            covered: vec![false; bytes.len()],
            ..Self::default()
        };
        recording.stack.push((String::new(), Vec::new()));
        pretty::describe(family, bytes, &mut recording);
        assert_eq!(recording.stack.len(), 1, "every group is left");
        recording
    }

    fn name(&mut self, name: &'static str, index: Option<usize>) -> String {
        assert!(
            name.chars()
                .all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_')
        );
        let (path, names) = self.stack.last_mut().unwrap();
        match index {
            None | Some(0) => {
                assert!(
                    names.iter().all(|known| known.0 != name),
                    "{path}: two of {name}"
                );
            }
            Some(index) => assert_eq!(names.last(), Some(&(name, Some(index - 1))), "{path}"),
        }
        names.push((name, index));
        format!("{path}{name}")
    }
}

impl Visitor for Recording {
    fn enter(&mut self, group: &Group) {
        let path = self.name(group.name, group.index);
        self.stack.push((format!("{path}/"), Vec::new()));
    }

    fn field(&mut self, field: &Field<'_>) {
        let path = self.name(field.name, field.index);
        self.paths.push(path);
        assert!(!field.bytes.is_empty());
        assert!(field.mask.is_none() || field.bytes.len() == 1);
        self.covered[field.offset..][..field.bytes.len()].fill(true);
        if let Value::Bytes(bytes) | Value::Text(bytes) = field.value {
            assert_eq!(bytes, field.bytes);
        }
    }

    fn leave(&mut self) {
        self.stack.pop();
    }

    fn problem(&mut self, problem: &Problem) {
        self.problems.push(*problem);
        assert!(!problem.to_string().is_empty());
    }
}
