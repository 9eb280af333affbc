//! The shared memory of a fabric.
//!
//! Every process that maps the memory can change everything in it at any time. So each value is
//! read once, checked, and then used; offsets follow from [`Layout`], which is private. Invalid
//! values can cause failed calls, missed or spurious wake-ups, and wrong data, but never an access
//! outside of the memory, a panic, or a wait without end.

mod granules;
mod layout;
mod slots;

pub(crate) use granules::{GranuleRun, Target};
pub(crate) use layout::GRANULE;
pub(crate) use slots::{Phase, Sleep, Tag};
#[cfg(test)]
#[cfg(smc_loom)]
pub(crate) use tests::join;

use smc_core::device::DeviceError;
use smc_core::mem::Region;
use smc_core::mem::sync::{AtomicU64, Ordering};
use smc_wire::types::Chid;

use layout::{Layout, header};

/// The shared memory of a fabric.
#[derive(Debug)]
pub(crate) struct FabricMemory {
    all: Region,
    layout: Layout,
    /// 128 random bits that identify the fabric.
    pub(crate) fabric: u128,
    /// Whether peers' buffers are written in place.
    pub(crate) nocopy: bool,
}

/// Options that are set when a fabric is created.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FabricOptions {
    /// Devices that can be on the fabric at a time.
    pub(crate) slots: u16,
    /// Whether peers' buffers are written in place.
    pub(crate) nocopy: bool,
}

impl Default for FabricOptions {
    fn default() -> Self {
        Self {
            slots: 64,
            nocopy: false,
        }
    }
}

impl FabricMemory {
    /// Initialises new, zeroed memory that no other process uses yet.
    pub(crate) fn create(all: Region, options: FabricOptions) -> Result<Self, DeviceError> {
        let layout = Layout::new(all.len(), options.slots)?;
        let fabric = crate::random::id()?;
        let memory = Self {
            all,
            layout,
            fabric,
            nocopy: options.nocopy,
        };
        let [hi, lo] = halves(fabric);
        let words = [
            (header::VERSION, VERSION),
            (header::LEN, layout.len as u64),
            (header::FABRIC_HI, hi),
            (header::FABRIC_LO, lo),
            (header::SLOTS, layout.slots.into()),
            (header::GRANULES, layout.granules.into()),
            (header::FLAGS, if options.nocopy { NOCOPY } else { 0 }),
            (header::MAGIC, MAGIC),
        ];
        for (at, word) in words {
            memory.word(at).store(word, Ordering::Release);
        }
        Ok(memory)
    }

    /// Opens memory that another process has initialised.
    pub(crate) fn open(all: Region) -> Result<Self, DeviceError> {
        let word = |at| {
            let word = all.load(at, Ordering::Acquire);
            word.map_err(|_| DeviceError::Invalid("the fabric's memory is too small"))
        };
        let bad = |why| Err(DeviceError::Invalid(why));
        match (word(header::MAGIC)?, word(header::VERSION)?) {
            (MAGIC, VERSION) => {}
            (MAGIC, _) => return bad("the fabric's memory is of another version"),
            (0, _) => return bad("the fabric's memory has not been laid out"),
            _ => return bad("this is not the memory of a fabric"),
        }
        // The memory may be longer, as BARs have lengths of their own.
        let len = usize::try_from(word(header::LEN)?).unwrap_or(usize::MAX);
        if len > all.len() {
            return bad("the fabric's memory is shorter than its header states");
        }
        let slots = u16::try_from(word(header::SLOTS)?).unwrap_or(0);
        let layout = Layout::new(len, slots)?;
        if word(header::GRANULES)? != u64::from(layout.granules) {
            return bad("the header of the fabric's memory contradicts itself");
        }
        let flags = word(header::FLAGS)?;
        if flags & !NOCOPY != 0 {
            return bad("the fabric's memory has unknown flags");
        }
        let [hi, lo] = [word(header::FABRIC_HI)?, word(header::FABRIC_LO)?];
        Ok(Self {
            layout,
            fabric: u128::from(hi) << 64 | u128::from(lo),
            nocopy: flags & NOCOPY != 0,
            all,
        })
    }

    /// The CHID of all devices of the fabric: 0xFF00 to 0xFFFE, from the fabric's id. Devices of
    /// two fabrics mostly have different ones, and detect at once that they share no memory.
    pub(crate) fn chid(&self) -> Chid {
        let [hi, lo] = halves(self.fabric);
        let mixed = (hi ^ lo).wrapping_mul(MIX) >> 32;
        let offset = u16::try_from(mixed % 255).expect("a remainder of 255");
        Chid(Chid::EMULATED_FIRST.0 + offset)
    }

    /// Devices that can be on the fabric at a time.
    pub(crate) fn slots(&self) -> u16 {
        self.layout.slots
    }

    /// Buffers of the smallest size that fit in all.
    pub(crate) fn granules(&self) -> u32 {
        self.layout.granules
    }

    /// The heartbeat of the ivshmem server; see [`FabricMemory::bump_server_heartbeat`].
    pub(crate) fn server_heartbeat(&self) -> u64 {
        self.word(header::HEARTBEAT).load(Ordering::Relaxed)
    }

    /// Increments the heartbeat of the ivshmem server.
    pub(crate) fn bump_server_heartbeat(&self) {
        self.word(header::HEARTBEAT).fetch_add(1, Ordering::Relaxed);
    }

    /// Marks the ivshmem server as ended.
    pub(crate) fn mark_server_ended(&self) {
        self.word(header::HEARTBEAT).store(ENDED, Ordering::SeqCst);
    }

    /// Whether the ivshmem server has marked itself as ended.
    pub(crate) fn has_server_ended(&self) -> bool {
        self.word(header::HEARTBEAT).load(Ordering::SeqCst) == ENDED
    }

    fn word(&self, at: usize) -> &AtomicU64 {
        self.all
            .word(at)
            .expect("offsets of the layout are inside of the memory and multiples of 8")
    }
}

fn halves(id: u128) -> [u64; 2] {
    let low = id & u128::from(u64::MAX);
    [id >> 64, low].map(|half| u64::try_from(half).expect("64 bits are left"))
}

/// "SMC ISM" and a zero, in native byte order: memory of the other order is something else.
const MAGIC: u64 = u64::from_be_bytes(*b"SMC ISM\0");
/// Of the layout, the only one that is supported. In version 1, granules had no write lock.
const VERSION: u64 = 2;
/// The heartbeat of a server that has ended.
const ENDED: u64 = u64::MAX;
/// Flag of the header: buffers are attached instead of `move_data`.
const NOCOPY: u64 = 1;
/// An odd number with its bits well spread.
const MIX: u64 = 0x9e37_79b9_7f4a_7c15;

#[cfg(test)]
mod tests;
