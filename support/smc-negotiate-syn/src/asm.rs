//! A small assembler for eBPF: as many instructions as the program needs, with labels.
//!
//! Encodings are those of the instruction set standard (RFC 9669).

use std::collections::BTreeMap;
use std::os::fd::{AsRawFd, BorrowedFd};

/// An instruction as the kernel takes it, eight bytes in the byte order of the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub(super) struct Insn {
    opcode: u8,
    registers: u8,
    offset: i16,
    immediate: i32,
}

impl Insn {
    fn new(opcode: u8, dst: Reg, src: Reg, offset: i16, immediate: i32) -> Self {
        let (dst, src) = (dst as u8, src as u8);
        // Two bit fields of a byte, which begin at the other end on big-endian machines.
        let registers = match cfg!(target_endian = "big") {
            true => dst << 4 | src,
            false => src << 4 | dst,
        };
        Self {
            opcode,
            registers,
            offset,
            immediate,
        }
    }

    /// The function that it calls.
    #[cfg(test)]
    pub(super) fn called(&self) -> Option<i32> {
        (self.opcode == JUMP | CALL).then_some(self.immediate)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reg {
    /// Result of a call; the program's own at exit.
    R0 = 0,
    /// First argument of a call. Calls spoil `R0` to `R5`.
    R1,
    R2,
    R3,
    R4,
    /// Survives calls, as do the following.
    R6 = 6,
    R7,
    R8,
    /// The end of the stack, which grows downwards.
    Frame = 10,
}

/// How much a load or store moves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Size {
    /// 4 bytes.
    Word = 0x00,
    /// 2 bytes.
    Half = 0x08,
    /// 8 bytes.
    Double = 0x18,
}

/// A condition of a jump; signed where it matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum If {
    Equal = 0x10,
    /// Any of the bits.
    AnyOf = 0x40,
    NotEqual = 0x50,
    Less = 0xc0,
}

/// Puts a program together.
///
/// Labels are of any type that names them well; each is placed once and may be jumped to from
/// before and, which this program does not need and the assembler does not check, from behind.
#[derive(Debug)]
pub(super) struct Assembler<L> {
    code: Vec<Insn>,
    labels: BTreeMap<L, usize>,
    jumps: Vec<(usize, L)>,
}

impl<L: Copy + Ord> Assembler<L> {
    pub(super) fn new() -> Self {
        Self {
            code: Vec::new(),
            labels: BTreeMap::new(),
            jumps: Vec::new(),
        }
    }

    /// The program. Panics if a label was never placed, which a test of each program rules out.
    pub(super) fn finish(mut self) -> Vec<Insn> {
        for (at, label) in self.jumps {
            let target = self.labels.get(&label).copied();
            let distance = target.and_then(|target| i16::try_from(target - (at + 1)).ok());
            self.code[at].offset = distance.expect("labels are placed, and near");
        }
        self.code
    }

    /// What follows is where jumps to `label` go.
    pub(super) fn place(&mut self, label: L) -> &mut Self {
        self.labels.insert(label, self.code.len());
        self
    }

    /// `dst = src`
    pub(super) fn copy(&mut self, dst: Reg, src: Reg) -> &mut Self {
        self.emit(Insn::new(ALU64 | MOV | BY_REGISTER, dst, src, 0, 0))
    }

    /// `dst = value`
    pub(super) fn set(&mut self, dst: Reg, value: i32) -> &mut Self {
        self.emit(Insn::new(ALU64 | MOV, dst, Reg::R0, 0, value))
    }

    /// `dst += value`
    pub(super) fn add(&mut self, dst: Reg, value: i32) -> &mut Self {
        self.emit(Insn::new(ALU64 | ADD, dst, Reg::R0, 0, value))
    }

    /// `dst |= value`
    pub(super) fn or(&mut self, dst: Reg, value: i32) -> &mut Self {
        self.emit(Insn::new(ALU64 | OR, dst, Reg::R0, 0, value))
    }

    /// `dst &= value`
    pub(super) fn and(&mut self, dst: Reg, value: i32) -> &mut Self {
        self.emit(Insn::new(ALU64 | AND, dst, Reg::R0, 0, value))
    }

    /// `dst =` the map behind this descriptor.
    pub(super) fn map(&mut self, dst: Reg, map: BorrowedFd<'_>) -> &mut Self {
        // The one instruction that is two; the register field is the kind of number.
        let mut wide = Insn::new(LOAD_WIDE, dst, Reg::R1, 0, map.as_raw_fd());
        self.emit(wide);
        (wide.opcode, wide.registers, wide.immediate) = (0, 0, 0);
        self.emit(wide)
    }

    /// `dst = base[offset]`
    pub(super) fn load(&mut self, size: Size, dst: Reg, base: Reg, offset: i16) -> &mut Self {
        self.emit(Insn::new(LOAD | size as u8, dst, base, offset, 0))
    }

    /// `base[offset] = src`
    pub(super) fn store(&mut self, size: Size, base: Reg, offset: i16, src: Reg) -> &mut Self {
        self.emit(Insn::new(STORE | size as u8, base, src, offset, 0))
    }

    /// `base[offset] = value`
    pub(super) fn store_value(
        &mut self,
        size: Size,
        base: Reg,
        offset: i16,
        value: i32,
    ) -> &mut Self {
        let opcode = STORE_VALUE | size as u8;
        self.emit(Insn::new(opcode, base, Reg::R0, offset, value))
    }

    /// Jumps if the comparison of all 64 bits holds.
    pub(super) fn jump_if(&mut self, left: Reg, when: If, right: i32, to: L) -> &mut Self {
        self.jumps.push((self.code.len(), to));
        self.emit(Insn::new(JUMP | when as u8, left, Reg::R0, 0, right))
    }

    pub(super) fn jump(&mut self, to: L) -> &mut Self {
        self.jumps.push((self.code.len(), to));
        self.emit(Insn::new(JUMP, Reg::R0, Reg::R0, 0, 0))
    }

    /// Calls a function of the kernel.
    pub(super) fn call(&mut self, helper: i32) -> &mut Self {
        self.emit(Insn::new(JUMP | CALL, Reg::R0, Reg::R0, 0, helper))
    }

    /// Ends the program; its result is in `R0`.
    pub(super) fn exit(&mut self) -> &mut Self {
        self.emit(Insn::new(JUMP | EXIT, Reg::R0, Reg::R0, 0, 0))
    }

    fn emit(&mut self, insn: Insn) -> &mut Self {
        self.code.push(insn);
        self
    }
}

/// Classes and modes (RFC 9669 sections 3, 4 and 5).
const LOAD_WIDE: u8 = 0x18;
const LOAD: u8 = 0x61;
const STORE_VALUE: u8 = 0x62;
const STORE: u8 = 0x63;
const JUMP: u8 = 0x05;
const ALU64: u8 = 0x07;
const BY_REGISTER: u8 = 0x08;

/// Arithmetic (section 4.1) and jumps without condition (section 4.3).
const ADD: u8 = 0x00;
const OR: u8 = 0x40;
const AND: u8 = 0x50;
const MOV: u8 = 0xb0;
const CALL: u8 = 0x80;
const EXIT: u8 = 0x90;

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;

    /// Opcode, destination, source, offset and immediate, as other assemblers print them.
    fn fields(code: &[Insn]) -> Vec<(u8, u8, u8, i16, i32)> {
        let nibbles = |registers: u8| match cfg!(target_endian = "big") {
            true => (registers >> 4, registers & 15),
            false => (registers & 15, registers >> 4),
        };
        code.iter()
            .map(|insn| {
                let (dst, src) = nibbles(insn.registers);
                (insn.opcode, dst, src, insn.offset, insn.immediate)
            })
            .collect()
    }

    #[test]
    fn each_instruction_has_its_encoding() {
        let mut asm = Assembler::<u8>::new();
        asm.copy(Reg::R6, Reg::R1)
            .set(Reg::R0, 1)
            .add(Reg::R2, -40)
            .or(Reg::R2, 64)
            .and(Reg::R2, -65)
            .load(Size::Word, Reg::R7, Reg::R6, 212)
            .load(Size::Double, Reg::R2, Reg::R6, 184)
            .store(Size::Word, Reg::R8, 4, Reg::R1)
            .store_value(Size::Double, Reg::Frame, -40, 0)
            .store_value(Size::Half, Reg::Frame, -36, 7)
            .call(107)
            .exit();
        assert_eq!(
            fields(&asm.finish()),
            [
                (0xbf, 6, 1, 0, 0),
                (0xb7, 0, 0, 0, 1),
                (0x07, 2, 0, 0, -40),
                (0x47, 2, 0, 0, 64),
                (0x57, 2, 0, 0, -65),
                (0x61, 7, 6, 212, 0),
                (0x79, 2, 6, 184, 0),
                (0x63, 8, 1, 4, 0),
                (0x7a, 10, 0, -40, 0),
                (0x6a, 10, 0, -36, 7),
                (0x85, 0, 0, 0, 107),
                (0x95, 0, 0, 0, 0),
            ]
        );
    }

    #[test]
    fn jumps_count_from_the_next_instruction() {
        let mut asm = Assembler::new();
        asm.jump_if(Reg::R0, If::Equal, 0, 'b')
            .jump_if(Reg::R0, If::NotEqual, 2, 'a')
            .jump_if(Reg::R0, If::AnyOf, 1, 'a')
            .jump_if(Reg::R0, If::Less, 6, 'a')
            .jump('b')
            .place('a')
            .set(Reg::R0, 1)
            .place('b')
            .exit();
        assert_eq!(
            fields(&asm.finish())[..5],
            [
                (0x15, 0, 0, 5, 0),
                (0x55, 0, 0, 3, 2),
                (0x45, 0, 0, 2, 1),
                (0xc5, 0, 0, 1, 6),
                (0x05, 0, 0, 1, 0),
            ]
        );
    }

    #[test]
    fn a_map_takes_two_instructions() {
        let file = std::fs::File::open("/dev/null").unwrap();
        let mut asm = Assembler::<u8>::new();
        asm.map(Reg::R1, file.as_fd());
        let fd = file.as_raw_fd();
        assert_eq!(
            fields(&asm.finish()),
            [(0x18, 1, 1, 0, fd), (0, 0, 0, 0, 0)]
        );
    }

    #[test]
    #[should_panic = "labels are placed"]
    fn a_label_without_a_place_is_noticed() {
        let mut asm = Assembler::new();
        asm.jump('x');
        asm.finish();
    }
}
