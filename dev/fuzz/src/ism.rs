//! The memory of an ISM fabric as a process sees it that writes there what it wants.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

use crate::Input;

/// Length of the memory of a fabric.
pub const LEN: usize = 1 << 20;
/// Devices that can be on it.
pub const SLOTS: u16 = 4;

/// The file of a fabric's memory.
#[derive(Debug)]
pub struct Memory(pub File);

impl Memory {
    /// Of a fabric in a directory.
    pub fn open(path: &Path) -> Self {
        let file = File::options().read(true).write(true).open(path);
        Self(file.expect("the first device has created it"))
    }

    /// The word at an offset.
    pub fn word(&self, at: u64) -> u64 {
        let mut bytes = [0; 8];
        self.0
            .read_exact_at(&mut bytes, at)
            .expect("within the memory");
        u64::from_ne_bytes(bytes)
    }

    /// Changes one word, mostly of the header, of a slot or of a granule.
    pub fn scribble(&self, input: &mut Input<'_>) {
        let (slots, granules) = (u64::from(SLOTS), LEN as u64 / (1 << 14));
        let ready = granules.div_ceil(64);
        let slot_len = (0x100 + 8 * (slots + ready.div_ceil(64) + ready)).next_multiple_of(64);
        let kind = input.byte();
        let (index, word) = (u64::from(input.byte()), u64::from(input.byte()));
        let at = match kind & 7 {
            0 => 8 * (word & 15),
            1..=3 => 0x1000 + index % slots * slot_len + 8 * word % slot_len,
            4..=6 => 0x1000 + slots * slot_len + index % granules * 128 + 8 * (word % 16),
            _ => u64::from(input.u32()),
        };
        let at = (at % LEN as u64) & !7;
        let before = self.word(at);
        let after = match kind >> 3 & 7 {
            0 => 0,
            1 => u64::MAX,
            2 => before ^ 1 << (input.byte() & 63),
            3 => before.wrapping_add(1),
            4 => before.wrapping_add(1 << 32),
            5 => u64::from(input.byte()),
            // That of another place.
            6 => self.word((u64::from(input.u32()) % LEN as u64) & !7),
            _ => input.u64(),
        };
        self.0
            .write_all_at(&after.to_ne_bytes(), at)
            .expect("within the memory");
    }
}
