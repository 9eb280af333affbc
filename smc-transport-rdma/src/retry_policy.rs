//! Timeout and retries of a queue pair, after which its link is given up.

/// Timeout and retries of a queue pair whose peer sends no acknowledgement.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RetryPolicy {
    /// A packet counts as lost after 4.096 us times two to the power of this.
    pub(crate) ack_timeout: u8,
    pub(crate) retries: u8,
}

impl RetryPolicy {
    /// 134 ms and seven retries, as in Linux: about a second.
    pub(crate) const HARDWARE: Self = Self {
        ack_timeout: 15,
        retries: 7,
    };

    /// 537 ms and six retries: about four seconds, since a host that does in software what
    /// hardware does may be busy for a while. Not 7, which soft-RoCE takes for endless: an end that
    /// posts has to detect by itself that the link has failed.
    pub(crate) const SOFT_ROCE: Self = Self {
        ack_timeout: 17,
        retries: 6,
    };
}
