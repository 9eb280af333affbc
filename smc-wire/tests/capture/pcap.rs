//! The classic pcap file format, both byte orders, micro- and nanoseconds.

/// What the first bytes of each frame are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LinkType {
    /// Ethernet II, possibly with VLAN tags.
    Ethernet,
    /// An IP packet without anything in front.
    Raw,
    /// Linux "cooked" capture, version 1.
    Cooked,
    /// Linux "cooked" capture, version 2.
    Cooked2,
}

/// One captured frame.
#[derive(Debug, Clone)]
pub(crate) struct Frame {
    /// 1-based position in the file.
    pub(crate) number: usize,
    /// The captured bytes.
    pub(crate) data: Vec<u8>,
}

/// Reads a whole capture file. A last record that is cut off is ignored.
pub(crate) fn read(file: &[u8]) -> (LinkType, Vec<Frame>) {
    let header = file.get(..24).expect("a pcap file header of 24 bytes");
    let big = match header[..4] {
        [0xD4, 0xC3, 0xB2, 0xA1] | [0x4D, 0x3C, 0xB2, 0xA1] => false,
        [0xA1, 0xB2, 0xC3, 0xD4] | [0xA1, 0xB2, 0x3C, 0x4D] => true,
        ref other => panic!("not a classic pcap file: magic {other:02x?}"),
    };
    let word = |bytes: &[u8]| {
        let word = bytes.try_into().expect("four bytes");
        if big {
            u32::from_be_bytes(word)
        } else {
            u32::from_le_bytes(word)
        }
    };
    let link = match word(&header[20..24]) & 0xFFFF {
        1 => LinkType::Ethernet,
        101 | 228 | 229 => LinkType::Raw,
        113 => LinkType::Cooked,
        276 => LinkType::Cooked2,
        other => panic!("link type {other} is not supported"),
    };
    let mut frames = Vec::new();
    let mut rest = &file[24..];
    while let Some((record, tail)) = rest.split_at_checked(16) {
        let captured = usize::try_from(word(&record[8..12])).expect("a usize");
        let Some((data, tail)) = tail.split_at_checked(captured) else {
            break;
        };
        frames.push(Frame {
            number: frames.len() + 1,
            data: data.to_vec(),
        });
        rest = tail;
    }
    (link, frames)
}
