//! Messages and their bytes.

use super::*;

/// ACCEPT and CONFIRM among a side's messages.
pub(super) fn parse_all(mut bytes: &[u8]) -> Vec<AcceptConfirm> {
    let mut found = Vec::new();
    while !bytes.is_empty() {
        let frame = smc_wire::clc::Frame::peek_extended(bytes).unwrap().unwrap();
        let (message, rest) = bytes.split_at(frame.length());
        let (message, _) = Message::parse_extended(message).unwrap();
        if let Message::Accept(view) | Message::Confirm(view) = message {
            found.push(view);
        }
        bytes = rest;
    }
    found
}

/// A PROPOSAL of such a host.
pub(super) fn proposal(config: &HandshakeConfig) -> Proposal {
    Proposal::parse(
        ClientProposal::new(config, &TcpPath::default())
            .unwrap()
            .bytes(),
    )
    .unwrap()
}

pub(super) fn bytes(proposal: &Proposal) -> Vec<u8> {
    let mut buffer = vec![0; 700];
    let len = proposal.emit(&mut buffer).unwrap();
    buffer.truncate(len);
    buffer
}

pub(super) fn accept_bytes(accept: &AcceptConfirm) -> Vec<u8> {
    let mut buffer = vec![0; 512];
    let len = accept.emit(&mut buffer).unwrap();
    buffer.truncate(len);
    buffer
}

pub(super) fn unhex(text: &str) -> Vec<u8> {
    let digits: Vec<_> = text.chars().filter(|c| !c.is_whitespace()).collect();
    digits
        .chunks(2)
        .map(|pair| u8::from_str_radix(&pair.iter().collect::<String>(), 16).unwrap())
        .collect()
}
