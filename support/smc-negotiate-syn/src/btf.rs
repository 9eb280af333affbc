//! The types of the map in BTF, the kernel's BPF Type Format.

use crate::bpf::{SocketEntry, Value, count};

/// An `int`, and a structure of a number of eight bytes and a lock.
pub(super) fn type_description() -> Vec<u8> {
    const STRINGS: &[u8] = b"\0int\0entry\0val\0bpf_spin_lock\0lock\0";
    // Where they begin.
    const INT_NAME: u32 = 1;
    const ENTRY_NAME: u32 = 5;
    const VAL_NAME: u32 = 11;
    const SPIN_LOCK_NAME: u32 = 15;
    const LOCK_NAME: u32 = 29;
    const INT: u32 = 1 << 24;
    const STRUCT: u32 = 4 << 24;
    const SIGNED: u32 = 1 << 24;
    let (entry, value) = (size_of::<SocketEntry>() as u32, size_of::<Value>() as u32);
    // Name, kind and number of members, size; then the encoding of a number, or name, type and
    // place in bits of each member.
    let types: [&[u32]; 5] = [
        &[INT_NAME, INT, 4, SIGNED | 32],
        &[ENTRY_NAME, INT, entry, 64],
        &[VAL_NAME, INT, 4, 32],
        &[SPIN_LOCK_NAME, STRUCT | 1, 4, VAL_NAME, 3, 0],
        &[
            0,
            STRUCT | 2,
            value,
            ENTRY_NAME,
            2,
            0,
            LOCK_NAME,
            4,
            entry * 8,
        ],
    ];
    let types = types.concat();
    let type_len = count(&types) * 4;
    let mut all = Vec::new();
    all.extend(0xeb9f_u16.to_ne_bytes());
    // Version and flags.
    all.extend([1, 0]);
    // Lengths of the header, then offset and length of the types and of the strings behind it.
    for word in [24, 0, type_len, type_len, count(STRINGS)] {
        all.extend(word.to_ne_bytes());
    }
    all.extend(types.iter().flat_map(|word: &u32| word.to_ne_bytes()));
    all.extend(STRINGS);
    all
}

/// The types of [`type_description`].
pub(super) const TYPE_KEY: u32 = 1;
pub(super) const TYPE_VALUE: u32 = 5;
