use super::time::Clock;
use super::*;

const MICRO: [u8; 4] = [0xA1, 0xB2, 0xC3, 0xD4];
const NANO: [u8; 4] = [0xA1, 0xB2, 0x3C, 0x4D];

/// A classic capture of one frame, in either byte order.
fn classic(magic: [u8; 4], big_endian: bool, data: &[u8], original: u32) -> Vec<u8> {
    let word = |value: u32| match big_endian {
        true => value.to_be_bytes(),
        false => value.to_le_bytes(),
    };
    let half = |value: u16| match big_endian {
        true => value.to_be_bytes(),
        false => value.to_le_bytes(),
    };
    let mut file = word(u32::from_be_bytes(magic)).to_vec();
    file.extend([half(2), half(4)].concat());
    file.extend([word(0), word(0), word(65_535), word(1)].concat());
    let captured = u32::try_from(data.len()).unwrap();
    file.extend(
        [
            word(1_700_000_000),
            word(42),
            word(captured),
            word(original),
        ]
        .concat(),
    );
    file.extend(data);
    file
}

/// Number, time, link type, length and missing bytes.
type Shown = (u64, String, u32, usize, usize);

/// All frames, or the error at which reading ends.
fn frames(file: &[u8]) -> Result<Vec<Shown>, String> {
    let mut reader = Reader::new(file).map_err(|error| error.to_string())?;
    let mut all = Vec::new();
    while let Some(frame) = reader.next_frame().map_err(|error| error.to_string())? {
        let time = frame.time.map_or_else(String::new, |time| time.to_string());
        all.push((
            frame.number,
            time,
            frame.link.0,
            frame.data.len(),
            frame.missing,
        ));
    }
    Ok(all)
}

#[test]
fn classic_files_in_all_four_variants() {
    for big_endian in [false, true] {
        let micro = classic(MICRO, big_endian, b"12345", 5);
        let expected = (1, "2023-11-14T22:13:20.000042Z".to_owned(), 1, 5, 0);
        assert_eq!(frames(&micro), Ok(vec![expected]));
        let nano = classic(NANO, big_endian, b"12345", 9);
        let expected = (1, "2023-11-14T22:13:20.000000042Z".to_owned(), 1, 5, 4);
        assert_eq!(frames(&nano), Ok(vec![expected]));
    }
}

#[test]
fn what_is_not_a_capture_is_told_apart() {
    for (file, reason) in [
        (&b""[..], "the file is empty"),
        (
            b"GET / HTTP/1.1\r\n",
            "not a pcap or pcapng file: it begins with 47455420",
        ),
        (
            b"\x1f\x8b\x08\0",
            "the file is compressed: decompress it first",
        ),
        (
            b"\xd4\xc3",
            "the file header is cut off: the file ends after 2 bytes",
        ),
        (
            b"\xd4\xc3\xb2\xa1\x02\0\x04\0",
            "the file header is cut off: the file ends after 8 bytes",
        ),
        (
            b"\x0a\x0d\x0d\x0a\x1c\0\0\0",
            "the file header is cut off: the file ends after 8 bytes",
        ),
        (
            b"\x0a\x0d\x0d\x0a\x1c\0\0\0GIBB",
            "malformed byte order in the section header",
        ),
    ] {
        assert_eq!(frames(file), Err(reason.to_owned()));
    }
}

#[test]
fn a_file_that_ends_within_a_record_says_where() {
    let file = classic(MICRO, false, b"12345", 5);
    assert_eq!(
        frames(&file[..file.len() - 2]),
        Err("the file ends within frame 1: 19 of 21 bytes are there (at byte 24)".to_owned()),
    );
    assert_eq!(
        frames(&file[..30]),
        Err("the file ends within frame 1: 6 of 16 bytes are there (at byte 24)".to_owned()),
    );
}

#[test]
fn a_length_that_cannot_be_is_not_believed() {
    let mut file = classic(MICRO, false, b"12345", 5);
    file[32..36].copy_from_slice(&u32::MAX.to_le_bytes());
    assert_eq!(
        frames(&file),
        Err("frame 1 claims to have 4294967295 bytes: the file is damaged (at byte 24)".to_owned()),
    );
}

/// Blocks of a pcapng file in one byte order.
struct Ng {
    big_endian: bool,
    file: Vec<u8>,
}

impl Ng {
    fn new(big_endian: bool) -> Self {
        let mut ng = Self {
            big_endian,
            file: Vec::new(),
        };
        ng.section();
        ng
    }

    fn section(&mut self) {
        let body = [
            self.word(0x1A2B_3C4D),
            [self.half(1), self.half(0)].concat().try_into().unwrap(),
        ];
        self.block(0x0A0D_0D0A, &[body.concat(), vec![0xFF; 8]].concat());
    }

    fn interface(&mut self, link: u16, snap_length: u32, options: &[(u16, &[u8])]) {
        let mut body = [self.half(link), self.half(0)].concat();
        body.extend(self.word(snap_length));
        for (code, value) in options {
            body.extend(self.half(*code));
            body.extend(self.half(u16::try_from(value.len()).unwrap()));
            body.extend(*value);
            body.resize(body.len().next_multiple_of(4), 0);
        }
        if !options.is_empty() {
            body.extend([0; 4]);
        }
        self.block(1, &body);
    }

    fn packet(&mut self, interface: u32, ticks: u64, data: &[u8], original: u32) {
        let (high, low) = ((ticks >> 32) as u32, ticks as u32);
        let captured = u32::try_from(data.len()).unwrap();
        let words = [interface, high, low, captured, original].map(|word| self.word(word));
        self.block(6, &[&words.concat(), data].concat());
    }

    fn block(&mut self, kind: u32, body: &[u8]) {
        let mut body = body.to_vec();
        body.resize(body.len().next_multiple_of(4), 0);
        let len = self.word(u32::try_from(body.len() + 12).unwrap());
        self.file.extend([self.word(kind), len].concat());
        self.file.extend(body);
        self.file.extend(len);
    }

    fn word(&self, value: u32) -> [u8; 4] {
        if self.big_endian {
            value.to_be_bytes()
        } else {
            value.to_le_bytes()
        }
    }

    fn half(&self, value: u16) -> [u8; 2] {
        if self.big_endian {
            value.to_be_bytes()
        } else {
            value.to_le_bytes()
        }
    }
}

#[test]
fn pcapng_with_interfaces_sections_and_unknown_blocks() {
    for big_endian in [false, true] {
        let mut ng = Ng::new(big_endian);
        ng.block(0x0000_0BAD, b"something private");
        ng.interface(1, 0, &[]);
        let hour: i64 = 3600;
        let offset = if big_endian {
            hour.to_be_bytes()
        } else {
            hour.to_le_bytes()
        };
        ng.interface(113, 0, &[(2, b"eth1"), (9, &[9]), (14, &offset)]);
        ng.packet(1, 1_700_000_000_000_000_007, b"123456", 6);
        ng.packet(0, 1_700_000_000_000_042, b"12345", 50);
        let simple = [&ng.word(7), &b"1234567"[..]].concat();
        ng.block(3, &simple);
        // Interfaces are counted anew in each section.
        ng.section();
        ng.interface(101, 3, &[(9, &[0x80 | 10])]);
        let simple = [&ng.word(7), &b"123"[..]].concat();
        ng.block(3, &simple);
        ng.packet(0, 1024 * 1_700_000_000 + 512, b"1", 1);
        let old = [&[0u8; 12][..], &ng.word(2), &ng.word(9), b"12"].concat();
        ng.block(2, &old);
        let time = |text: &str| text.to_owned();
        let expected = vec![
            (1, time("2023-11-14T23:13:20.000000007Z"), 113, 6, 0),
            (2, time("2023-11-14T22:13:20.000042Z"), 1, 5, 45),
            (3, time(""), 1, 7, 0),
            (4, time(""), 101, 3, 4),
            (5, time("2023-11-14T22:13:20.500000Z"), 101, 1, 0),
            (6, time("1970-01-01T00:00:00.000000Z"), 101, 2, 7),
        ];
        assert_eq!(frames(&ng.file), Ok(expected));
    }
}

#[test]
fn a_packet_of_an_unknown_interface_is_an_error() {
    let mut ng = Ng::new(false);
    ng.packet(0, 0, b"1", 1);
    let error = frames(&ng.file).unwrap_err();
    assert_eq!(
        error,
        "frame 1 is of interface 0, which is not described (at byte 28)"
    );
}

/// They would fill the memory: a section can be as long as a pipe is open.
#[test]
fn a_section_with_very_many_interfaces_is_an_error() {
    let mut ng = Ng::new(false);
    for _ in 0..(1 << 16) {
        ng.interface(1, 0, &[]);
    }
    assert_eq!(frames(&ng.file), Ok(Vec::new()));
    ng.interface(1, 0, &[]);
    let error = frames(&ng.file).unwrap_err();
    assert!(
        error.contains("number of interfaces of a section"),
        "{error}"
    );
}

#[test]
fn time_is_shown_in_the_gregorian_calendar() {
    for (seconds, text) in [
        (0, "1970-01-01T00:00:00.000000Z"),
        (68_169_599, "1972-02-28T23:59:59.000000Z"),
        (951_782_400, "2000-02-29T00:00:00.000000Z"),
        (1_709_251_199, "2024-02-29T23:59:59.000000Z"),
        (u32::MAX, "2106-02-07T06:28:15.000000Z"),
    ] {
        assert_eq!(Timestamp::classic(seconds, 0, false).to_string(), text);
    }
    let clock = Clock {
        per_second: 1,
        offset: i64::MIN,
    };
    assert!(Timestamp::ng(u64::MAX, clock).to_string().ends_with('Z'));
    let clock = Clock {
        per_second: 1,
        offset: i64::MAX,
    };
    assert!(Timestamp::ng(u64::MAX, clock).to_string().ends_with('Z'));
}
