//! The program that runs in the kernel for every TCP socket of a cgroup.
//!
//! A `sock_ops` program is called at certain events of a TCP socket. This one only handles
//! sockets that user space has *marked*, by an entry in its map, and only their
//! handshakes. An entry is two words, of which user space writes the first and reads both:
//!
//! ```text
//!   +--------------------+--------------------+
//!   | flags: MARK, SEEN  | verdict: 0, 2 or 4 |
//!   +--------------------+--------------------+
//! ```
//!
//! | moment | what it does for a marked socket |
//! |---|---|
//! | before `connect` sends, after `listen` | sets `SEEN`, requests calls for outgoing options |
//! | a segment is planned | SYN: reserves the option's six bytes. SYN-ACK: the same if the SYN had the option and no SYN cookie is used. Anything else: requests no more calls |
//! | a segment is written | SYN, SYN-ACK: as above, writes the option |
//! | established, client | searches the option in the SYN-ACK: the verdict |
//! | established, server | searches the option in the SYN, which the listener saved: the verdict |
//!
//! An accepted socket inherits a copy of its listener's entry, and its verdict is written there.
//! A SYN-ACK is sent before there is a socket, and the listener cannot be read then. A
//! listener is marked if the program is called for its SYN-ACKs at all.
//!
//! It never touches the context's `reply`: other programs of the cgroup may have set it, and
//! unset it means the default for every operation.

use std::os::fd::BorrowedFd;

use smc_wire::option;

use crate::asm::{Assembler, If, Insn, Reg, Size};

/// The name by which the program and its map are known to the kernel, and to tools.
pub(super) const NAME: &str = "smc_syn_option";

/// The program, with its marks in `map`.
pub(super) fn code(map: BorrowedFd<'_>) -> Vec<Insn> {
    use Label::*;
    let mut asm = Assembler::new();

    asm.copy(CONTEXT, Reg::R1)
        .load(Size::Word, OPERATION, CONTEXT, context::OP);
    for (operation, label) in [
        (operation::CONNECT, Begin),
        (operation::LISTEN, Begin),
        (operation::OPTION_LEN, Segment),
        (operation::OPTION_WRITE, Segment),
        (operation::ACTIVE_ESTABLISHED, Established),
        (operation::PASSIVE_ESTABLISHED, Established),
    ] {
        asm.jump_if(OPERATION, If::Equal, operation, label);
    }
    asm.jump(Done);

    // The socket is about to shake hands: be called when options are put together.
    asm.place(Begin);
    entry(&mut asm, map);
    asm.load(Size::Word, Reg::R1, ENTRY, entry::FLAGS)
        .or(Reg::R1, entry::SEEN)
        .store(Size::Word, ENTRY, entry::FLAGS, Reg::R1)
        .load(Size::Word, Reg::R2, CONTEXT, context::CALLBACKS)
        .or(Reg::R2, CALLBACK_WRITE)
        .jump(Callbacks);

    // A segment is planned or written.
    asm.place(Segment)
        .load(Size::Word, Reg::R1, CONTEXT, context::TCP_FLAGS)
        .and(Reg::R1, SYN | ACK)
        .jump_if(Reg::R1, If::Equal, SYN, Syn)
        .jump_if(Reg::R1, If::Equal, SYN | ACK, SynAck)
        // The handshake is over, unless this call is only for the length of options.
        .load(Size::Word, Reg::R1, CONTEXT, context::ARGUMENT)
        .jump_if(Reg::R1, If::NotEqual, 0, Done)
        .jump_if(OPERATION, If::NotEqual, operation::OPTION_LEN, Done);
    entry(&mut asm, map);
    asm.load(Size::Word, Reg::R2, CONTEXT, context::CALLBACKS)
        .and(Reg::R2, !CALLBACK_WRITE)
        .place(Callbacks)
        .copy(Reg::R1, CONTEXT)
        .call(helper::SET_CALLBACKS)
        .jump(Done);

    // Another program may have requested the call, so check whether the socket is a marked one.
    asm.place(Syn);
    entry(&mut asm, map);
    asm.jump(Add);

    asm.place(SynAck)
        .load(Size::Word, Reg::R1, CONTEXT, context::ARGUMENT)
        .jump_if(Reg::R1, If::Equal, ARGUMENT_COOKIE, Done)
        .set(Reg::R4, LOAD_FROM_SYN);
    find(&mut asm);
    asm.jump_if(Reg::R0, If::Less, OPTION_LEN, Done)
        .jump_if(Reg::R0, If::AnyOf, 1, Done);

    asm.place(Add)
        .jump_if(OPERATION, If::Equal, operation::OPTION_WRITE, Write)
        .copy(Reg::R1, CONTEXT)
        .set(Reg::R2, OPTION_LEN)
        .set(Reg::R3, 0)
        .call(helper::RESERVE_OPTION)
        .jump(Done);

    asm.place(Write);
    option(&mut asm);
    asm.copy(Reg::R1, CONTEXT)
        .copy(Reg::R2, Reg::Frame)
        .add(Reg::R2, BUFFER.into())
        .set(Reg::R3, OPTION_LEN)
        .set(Reg::R4, 0)
        .call(helper::STORE_OPTION)
        .jump(Done);

    // The handshake is complete: did the peer's half of it have the option?
    asm.place(Established);
    entry(&mut asm, map);
    asm.set(Reg::R4, LOAD_FROM_SEGMENT)
        .jump_if(OPERATION, If::Equal, operation::ACTIVE_ESTABLISHED, Look)
        .set(Reg::R4, LOAD_FROM_SYN)
        .place(Look);
    find(&mut asm);
    asm.set(Reg::R1, entry::HAS_NOT)
        .jump_if(Reg::R0, If::Less, OPTION_LEN, Negotiated)
        // Linux takes the option at any even length.
        .jump_if(Reg::R0, If::AnyOf, 1, Negotiated)
        .set(Reg::R1, entry::HAS)
        .place(Negotiated)
        .store(Size::Word, ENTRY, entry::VERDICT, Reg::R1);

    asm.place(Done).set(Reg::R0, 1).exit();
    asm.finish()
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Label {
    Begin,
    Segment,
    Callbacks,
    Syn,
    SynAck,
    Add,
    Write,
    Established,
    Look,
    Negotiated,
    Done,
}

/// `ENTRY` = the entry of this socket; the program ends here if it has none.
fn entry(asm: &mut Assembler<Label>, map: BorrowedFd<'_>) {
    asm.load(Size::Double, Reg::R2, CONTEXT, context::SOCKET)
        .jump_if(Reg::R2, If::Equal, 0, Label::Done)
        .map(Reg::R1, map)
        .set(Reg::R3, 0)
        .set(Reg::R4, 0)
        .call(helper::STORAGE)
        .jump_if(Reg::R0, If::Equal, 0, Label::Done)
        .copy(ENTRY, Reg::R0);
}

/// Looks for the option, with what to search in `R4`; its length is in `R0`, or an error.
fn find(asm: &mut Assembler<Label>) {
    option(asm);
    asm.copy(Reg::R1, CONTEXT)
        .copy(Reg::R2, Reg::Frame)
        .add(Reg::R2, BUFFER.into())
        .set(Reg::R3, BUFFER_LEN.into())
        .call(helper::LOAD_OPTION);
}

/// Puts the option into the buffer, with zeros behind it. Spoils no register.
fn option(asm: &mut Assembler<Label>) {
    let [a, b, c, d, e, f] = option::BYTES;
    for at in (0..BUFFER_LEN).step_by(8) {
        asm.store_value(Size::Double, Reg::Frame, BUFFER + at, 0);
    }
    let (first, rest) = (i32::from_ne_bytes([a, b, c, d]), u16::from_ne_bytes([e, f]));
    asm.store_value(Size::Word, Reg::Frame, BUFFER, first)
        .store_value(Size::Half, Reg::Frame, BUFFER + 4, rest.into());
}

const CONTEXT: Reg = Reg::R6;
const OPERATION: Reg = Reg::R7;
const ENTRY: Reg = Reg::R8;

/// On the stack: the whole of the option space, so that no option is too long for it.
const BUFFER_LEN: i16 = 40;
const BUFFER: i16 = -BUFFER_LEN;

const OPTION_LEN: i32 = option::BYTES.len() as i32;

const SYN: i32 = 0x02;
const ACK: i32 = 0x10;

/// An entry of the map.
pub(super) mod entry {
    /// Offsets.
    pub(super) const FLAGS: i16 = 0;
    pub(super) const VERDICT: i16 = 4;

    /// The socket is to use SMC. Set by user space.
    pub(crate) const MARK: i32 = 1;
    /// The program was called for the socket.
    pub(crate) const SEEN: i32 = 2;

    /// The peer's half of the handshake had the option.
    pub(crate) const HAS: i32 = 2;
    /// It did not.
    pub(super) const HAS_NOT: i32 = 4;
}

/// Offsets in `struct bpf_sock_ops` of `linux/bpf.h`.
mod context {
    pub(super) const OP: i16 = 0;
    /// First of the arguments.
    pub(super) const ARGUMENT: i16 = 4;
    pub(super) const CALLBACKS: i16 = 84;
    pub(super) const SOCKET: i16 = 184;
    pub(super) const TCP_FLAGS: i16 = 212;
}

/// `BPF_SOCK_OPS_*`.
mod operation {
    pub(super) const CONNECT: i32 = 3;
    pub(super) const ACTIVE_ESTABLISHED: i32 = 4;
    pub(super) const PASSIVE_ESTABLISHED: i32 = 5;
    pub(super) const LISTEN: i32 = 11;
    pub(super) const OPTION_LEN: i32 = 14;
    pub(super) const OPTION_WRITE: i32 = 15;
}

/// Functions of the kernel, by number.
mod helper {
    pub(super) const SET_CALLBACKS: i32 = 59;
    pub(super) const STORAGE: i32 = 107;
    pub(super) const LOAD_OPTION: i32 = 142;
    pub(super) const STORE_OPTION: i32 = 143;
    pub(super) const RESERVE_OPTION: i32 = 144;
}

/// `BPF_SOCK_OPS_WRITE_HDR_OPT_CB_FLAG`.
const CALLBACK_WRITE: i32 = 0x40;

/// `BPF_WRITE_HDR_TCP_SYNACK_COOKIE`.
const ARGUMENT_COOKIE: i32 = 2;

/// Where to search an option.
const LOAD_FROM_SEGMENT: i32 = 0;
const LOAD_FROM_SYN: i32 = 1;

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;

    #[test]
    fn the_program_is_what_it_was() {
        let map = std::fs::File::open("/dev/null").unwrap();
        let code = code(map.as_fd());
        // Changes on purpose only: a pinned program of another length is of another version, and
        // refused.
        assert_eq!(code.len(), 123, "instructions");
        let called: Vec<_> = code.iter().filter_map(Insn::called).collect();
        assert_eq!(called, [107, 107, 59, 107, 142, 144, 143, 107, 142]);
    }

    #[test]
    fn the_option_lies_in_the_buffer_as_it_is_sent() {
        let mut asm = Assembler::new();
        option(&mut asm);
        let code = format!("{:?}", asm.finish());
        let first = i32::from_ne_bytes([0xfe, 6, 0xe2, 0xd4]);
        let rest = u16::from_ne_bytes([0xc3, 0xd9]);
        assert!(code.contains(&format!("offset: -40, immediate: {first} ")));
        assert!(code.contains(&format!("offset: -36, immediate: {rest} ")));
    }
}
