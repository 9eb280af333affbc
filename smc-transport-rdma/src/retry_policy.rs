//! How long a peer may be silent before its link is given up.

/// When a link is given up whose peer acknowledges nothing.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Patience {
    /// A packet is taken for lost after 4.096 us times two to this.
    pub(crate) ack_timeout: u8,
    pub(crate) retries: u8,
}

impl Patience {
    /// 134 ms and seven tries, as Linux has it: about a second.
    pub(crate) const HARDWARE: Self = Self {
        ack_timeout: 15,
        retries: 7,
    };

    /// 537 ms and six retries: about four seconds, since a host that does in software what
    /// hardware does may be busy for a while. Not 7, which soft-RoCE takes for endless: an end that
    /// posts has to notice by itself that the wire died.
    pub(crate) const SOFT_ROCE: Self = Self {
        ack_timeout: 17,
        retries: 6,
    };
}
