//! The SMC messages of the captures, from `vectors/messages.txt`.

#![allow(
    dead_code,
    reason = "shared by several test binaries, none of which uses all of it"
)]

use std::net::IpAddr;

/// One SMC message of a capture.
#[derive(Debug, Clone)]
pub(crate) struct Found {
    /// 1-based number of the frame that completed the message.
    pub(crate) frame: usize,
    /// The sender.
    pub(crate) src: IpAddr,
    /// The receiver.
    pub(crate) dst: IpAddr,
    /// The message, without anything around it.
    pub(crate) bytes: Vec<u8>,
}

/// Everything of SMC in one capture, each in the order of the frames.
#[derive(Debug, Default)]
pub(crate) struct Capture {
    /// The name of the capture file without its extension.
    pub(crate) name: &'static str,
    /// The option of each SYN and SYN/ACK that has it.
    pub(crate) options: Vec<Found>,
    /// CLC messages.
    pub(crate) clc: Vec<Found>,
    /// LLC messages (received RDMA SENDs that are no CDC).
    pub(crate) llc: Vec<Found>,
    /// CDC messages of SMC-R.
    pub(crate) cdc: Vec<Found>,
}

/// All captures, sorted by name.
pub(crate) fn captures() -> Vec<Capture> {
    let mut all = Vec::new();
    for line in include_str!("../vectors/messages.txt").lines() {
        if let Some(name) = line.strip_prefix("capture ") {
            all.push(Capture {
                name,
                ..Capture::default()
            });
            continue;
        }
        let (family, found) = message(line).unwrap_or_else(|| panic!("malformed: {line}"));
        let capture = all.last_mut().expect("messages follow a name");
        let list = match family {
            "tcp-option" => &mut capture.options,
            "clc" => &mut capture.clc,
            "llc" => &mut capture.llc,
            "cdc" => &mut capture.cdc,
            _ => panic!("no family: {line}"),
        };
        list.push(found);
    }
    all
}

/// Family and contents of a line.
fn message(line: &str) -> Option<(&str, Found)> {
    let mut words = line.split(' ');
    let family = words.next()?;
    let found = Found {
        frame: words.next()?.parse().ok()?,
        src: words.next()?.parse().ok()?,
        dst: words.next()?.parse().ok()?,
        bytes: hex(words.next()?)?,
    };
    Some((family, found))
}

fn hex(digits: &str) -> Option<Vec<u8>> {
    (0..digits.len())
        .step_by(2)
        .map(|at| u8::from_str_radix(digits.get(at..at + 2)?, 16).ok())
        .collect()
}
