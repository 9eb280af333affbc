//! Runs the program, and builds captures for it.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use etherparse::{PacketBuilder, TcpHeader};
use serde_json::Value;

/// PROPOSAL of version 2, 156 bytes.
pub(crate) const PROPOSAL: &str = "\
    e2d4c3d901009c2200000000000000000000000000000000000000000000000000000000000000000000000000000000\
    0000001c00000000000000000000000000000000000000000000000000000000010000100000000000000000000000\
    000000ffff0a090002ff020001000000000000000000000000534d4356322d474f4c44454e2d45494420202020202020\
    202020202020202020e2d4c3d9";
/// ACCEPT of version 1, 68 bytes.
pub(crate) const ACCEPT: &str = "\
    e2d4c3d902004418fd82525400000001fe80000000000000505400fffe0000015254000000010000120000052e010000\
    00022300ff454b86438c0000009a30f8e2d4c3d9";
/// CONFIRM of version 1, 68 bytes.
pub(crate) const CONFIRM: &str = "\
    e2d4c3d903004418df33525400000002fe80000000000000505400fffe000002525400000002000011000003dc010000\
    00012300ff40bb09434c000000fdb923e2d4c3d9";
/// DECLINE of version 1, 28 bytes.
pub(crate) const DECLINE: &str = "e2d4c3d904001c1000000000000000000303000000000000e2d4c3d9";
/// CONFIRM LINK request of version 1, from queue pair 0x12.
pub(crate) const CONFIRM_LINK: &str =
    "012c0003525400000001fe80000000000000505400fffe000001000012010000020102000000000000000000";
/// CDC.
pub(crate) const CDC: &str =
    "fe2c00010000000200000000000003e800000000000000000000000000000000000000000000000000000000";

pub(crate) const CLIENT: &str = "10.0.0.2:40000";
pub(crate) const SERVER: &str = "10.0.0.1:5555";

/// Bytes from hex digits.
pub(crate) fn hex(digits: &str) -> Vec<u8> {
    let digits: String = digits.split_whitespace().collect();
    assert_eq!(digits.len() % 2, 0);
    let byte = |at| u8::from_str_radix(&digits[at..at + 2], 16).expect("hex digits");
    (0..digits.len()).step_by(2).map(byte).collect()
}

/// Runs `smc dissect` with these arguments.
pub(crate) fn smc(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_smc"))
        .arg("dissect")
        .args(arguments)
        .output()
        .expect("the program runs")
}

pub(crate) fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).expect("text")
}

pub(crate) fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).expect("text")
}

/// The messages in JSON output.
pub(crate) fn messages(output: &Output) -> Vec<Value> {
    let parse = |line: &str| serde_json::from_str(line).expect("each line is a JSON object");
    stdout(output).lines().map(parse).collect()
}

/// Frame and type of each message, with `!` for an error, `?` for a retransmission.
pub(crate) fn summary(messages: &[Value]) -> Vec<String> {
    let marks = |message: &Value| match (message.get("error"), &message["retransmission"]) {
        (Some(_), _) => "!",
        (None, Value::Bool(true)) => "?",
        _ => "",
    };
    messages
        .iter()
        .map(|message| {
            let kind = message["type"].as_str().expect("a type");
            format!("{} {kind}{}", message["frame"], marks(message))
        })
        .collect()
}

/// The captures that come with the wire crate.
pub(crate) fn vectors() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../smc-wire/tests/vectors")
}

/// A classic capture in the making.
pub(crate) struct Capture {
    file: Vec<u8>,
    frames: u32,
}

impl Capture {
    pub(crate) fn new(link: u32) -> Self {
        let mut file = 0xA1B2_C3D4_u32.to_le_bytes().to_vec();
        file.extend([2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        file.extend(262_144_u32.to_le_bytes());
        file.extend(link.to_le_bytes());
        Self { file, frames: 0 }
    }

    pub(crate) fn ethernet() -> Self {
        Self::new(1)
    }

    pub(crate) fn frame(&mut self, frame: &[u8]) -> &mut Self {
        self.cut(frame, frame.len())
    }

    /// A frame of which only the first bytes were captured.
    pub(crate) fn cut(&mut self, frame: &[u8], captured: usize) -> &mut Self {
        self.frames += 1;
        let captured = captured.min(frame.len());
        for word in [1_700_000_000, self.frames, u32(captured), u32(frame.len())] {
            self.file.extend(word.to_le_bytes());
        }
        self.file.extend(&frame[..captured]);
        self
    }

    pub(crate) fn frames<'a>(
        &mut self,
        frames: impl IntoIterator<Item = &'a Vec<u8>>,
    ) -> &mut Self {
        frames.into_iter().for_each(|frame| {
            self.frame(frame);
        });
        self
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.file
    }

    /// The messages that the program finds; it must report no error.
    pub(crate) fn dissect(&self) -> Vec<Value> {
        let output = run_on(&self.file, &["--json", "--hex"]);
        assert!(output.status.success(), "{}", stderr(&output));
        assert_eq!(stderr(&output), "");
        messages(&output)
    }

    pub(crate) fn summary(&self) -> Vec<String> {
        summary(&self.dissect())
    }
}

/// Runs the program on a file with this content.
pub(crate) fn run_on(content: &[u8], arguments: &[&str]) -> Output {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("capture");
    std::fs::write(&path, content).expect("a file");
    let path = path.to_str().expect("a path");
    smc(&[&[path], arguments].concat())
}

fn u32(len: usize) -> u32 {
    u32::try_from(len).expect("a short frame")
}

/// One direction of a TCP connection.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Side {
    pub(crate) src: &'static str,
    pub(crate) dst: &'static str,
    /// Sequence number of its SYN.
    pub(crate) isn: u32,
}

/// Both directions between the usual addresses.
pub(crate) fn sides() -> (Side, Side) {
    (
        Side {
            src: CLIENT,
            dst: SERVER,
            isn: 1000,
        },
        Side {
            src: SERVER,
            dst: CLIENT,
            isn: 90_000,
        },
    )
}

impl Side {
    /// A segment whose payload is at this offset of the stream.
    pub(crate) fn data(self, offset: usize, payload: &[u8]) -> Vec<u8> {
        let sequence = self.isn.wrapping_add(1).wrapping_add(u32(offset));
        let mut header = self.header(sequence);
        header.ack = true;
        self.packet(header, payload)
    }

    /// SYN with the SMC option.
    pub(crate) fn syn(self) -> Vec<u8> {
        let mut header = self.header(self.isn);
        header.syn = true;
        self.packet(header, &[])
    }

    /// SYN/ACK with the SMC option.
    pub(crate) fn syn_ack(self, peer: Self) -> Vec<u8> {
        let mut header = self.header(self.isn);
        (header.syn, header.ack) = (true, true);
        header.acknowledgment_number = peer.isn.wrapping_add(1);
        self.packet(header, &[])
    }

    fn header(self, sequence: u32) -> TcpHeader {
        let port = |address: &str| {
            address
                .rsplit(':')
                .next()
                .expect("a port")
                .parse()
                .expect("a number")
        };
        TcpHeader::new(port(self.src), port(self.dst), sequence, 1024)
    }

    fn packet(self, mut header: TcpHeader, payload: &[u8]) -> Vec<u8> {
        if header.syn {
            header
                .set_options_raw(&[1, 1, 0xFE, 6, 0xE2, 0xD4, 0xC3, 0xD9])
                .expect("there is space");
        }
        let address = |text: &str| -> [u8; 4] {
            let ip: std::net::Ipv4Addr = text
                .split(':')
                .next()
                .expect("an address")
                .parse()
                .expect("an address");
            ip.octets()
        };
        let builder = PacketBuilder::ethernet2([2; 6], [4; 6])
            .ipv4(address(self.src), address(self.dst), 64)
            .tcp_header(header);
        let mut frame = Vec::new();
        builder.write(&mut frame, payload).expect("a packet");
        frame
    }
}

/// A RoCE packet from the base transport header to the invariant CRC.
pub(crate) fn bth(opcode: u8, queue_pair: u32, sequence: u32, payload: &[u8]) -> Vec<u8> {
    let padding = payload.len().next_multiple_of(4) - payload.len();
    let mut packet = vec![
        opcode,
        0x80 | u8::try_from(padding << 4).expect("at most 3"),
        0xFF,
        0xFF,
    ];
    packet.extend(queue_pair.to_be_bytes());
    packet.extend((sequence & 0x00FF_FFFF).to_be_bytes());
    packet.extend(payload);
    packet.resize(packet.len() + padding + 4, 0);
    packet
}

/// An Ethernet frame with a RoCE v2 packet from 10.0.0.2 to 10.0.0.1.
pub(crate) fn roce_v2(packet: &[u8]) -> Vec<u8> {
    let builder = PacketBuilder::ethernet2([2; 6], [4; 6])
        .ipv4([10, 0, 0, 2], [10, 0, 0, 1], 64)
        .udp(50_000, 4791);
    let mut frame = Vec::new();
    builder.write(&mut frame, packet).expect("a packet");
    frame
}
