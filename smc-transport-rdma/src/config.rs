//! Settings of a device.

use smc_core::device::RECEIVES_MIN;
use smc_wire::types::PnetId;

use crate::device::RdmaDevice;
use crate::error::OpenError;

/// Settings of a device that is to be opened. The defaults suit most.
#[derive(Clone, Debug)]
#[must_use]
pub struct Builder {
    pub(crate) name: String,
    pub(crate) pnet_id: Option<PnetId>,
    /// `None`: as the device suggests.
    pub(crate) receives: Option<u32>,
    pub(crate) is_contiguous: bool,
    pub(crate) sends: u32,
    pub(crate) links: u32,
    pub(crate) traffic_class: u8,
    pub(crate) is_relaxed: bool,
    pub(crate) has_huge_pages: bool,
}

impl Builder {
    pub(crate) fn new(name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            pnet_id: None,
            receives: None,
            is_contiguous: false,
            sends: SENDS,
            links: LINKS,
            traffic_class: 0,
            is_relaxed: false,
            has_huge_pages: false,
        }
    }

    /// The physical network that the device belongs to, whatever the kernel's table (`smc_pnet`)
    /// says of its ports. Unless set it is that of the table, else that of the network interface.
    pub fn pnet_id(mut self, pnet_id: PnetId) -> Self {
        self.pnet_id = Some(pnet_id);
        self
    }

    /// Receive buffers per link; 128 unless set, at least 48.
    ///
    /// Peers may have 16 messages of theirs unacknowledged, but an acknowledged message still
    /// takes a buffer until the device is drained. A peer that meets no buffer waits and tries
    /// again, which costs far more than the 64 bytes of a buffer.
    ///
    /// On devices whose receives take a single span of memory (`max_sge` 1) each buffer has 8 KiB,
    /// and there are 64 unless set.
    pub fn receives(mut self, count: u32) -> Self {
        self.receives = Some(count.clamp(RECEIVES_MIN, QUEUE_MAX));
        self
    }

    /// Has each receive be a single span, as on devices that have no others. For tests.
    #[doc(hidden)]
    pub fn contiguous_receives(mut self) -> Self {
        self.is_contiguous = true;
        self
    }

    /// Posts that a link takes before the first completes; 20 unless set, at least
    /// [`SENDS_MAX`](smc_core::device::SENDS_MAX).
    pub fn sends(mut self, count: u32) -> Self {
        self.sends = count.clamp(SENDS_MIN, QUEUE_MAX);
        self
    }

    /// Links at a time; 128 unless set. It sets the length of the completion queues, which take 64
    /// bytes or so per entry, and one entry for whatever a link may have posted.
    pub fn links(mut self, count: u32) -> Self {
        self.links = count.clamp(1, QUEUE_MAX);
        self
    }

    /// The traffic class of all that is sent: with RoCE v2 the byte of the IP header with the DSCP,
    /// in its upper six bits, and ECN, which devices that use it set by themselves. 0 unless set.
    ///
    /// Networks that lose no packets of RDMA commonly know these by their DSCP, such as 26, which
    /// is traffic class 104. It holds for one direction, so the peer needs it, too.
    pub fn traffic_class(mut self, traffic_class: u8) -> Self {
        self.traffic_class = traffic_class;
        self
    }

    /// Lets the device access the buffers of connections in another order than that in which data
    /// arrives (`IBV_ACCESS_RELAXED_ORDERING`); off unless set.
    ///
    /// It makes some machines faster, above all those with several memory controllers. Nothing else
    /// changes: data is read only after a completion behind it, which devices order after all of
    /// it. A device, library or kernel without it ignores it.
    pub fn relaxed_ordering(mut self, is_relaxed: bool) -> Self {
        self.is_relaxed = is_relaxed;
        self
    }

    /// Has the kernel take huge pages of 2 MiB for the buffers of connections that are at least
    /// that long, as far as it has some (`MADV_HUGEPAGE`); off unless set.
    ///
    /// A device then has fewer addresses to translate, which pays where many large buffers are in
    /// use: its table of translations is small. Other buffers, and kernels without transparent huge
    /// pages, have pages as usual. A buffer takes its memory as a whole in either case.
    pub fn huge_pages(mut self, has_huge_pages: bool) -> Self {
        self.has_huge_pages = has_huge_pages;
        self
    }

    /// Opens the device. Blocks for some milliseconds.
    ///
    /// # Errors
    ///
    /// [`OpenError`] states what is missing. A port that is down is no error: it may come up later,
    /// and [`Rdma::addresses`](smc_core::device::Rdma::addresses) is empty until then.
    pub fn open(self) -> Result<RdmaDevice, OpenError> {
        RdmaDevice::with(self)
    }
}

pub(crate) const RECEIVES: u32 = 128;
/// Where each takes 8 KiB: enough for what the protocol allows, with as much to spare as Linux has.
pub(crate) const CONTIGUOUS_RECEIVES: u32 = 64;
/// The posts that the protocol allows at a time, and a few to spare.
const SENDS: u32 = 20;
const SENDS_MIN: u32 = 16;
const LINKS: u32 = 128;
/// What the numbers of work requests have space for, by far.
const QUEUE_MAX: u32 = 1 << 14;
