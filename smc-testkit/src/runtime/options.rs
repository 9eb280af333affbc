//! Options of the virtual runtime.

use std::time::Duration;

/// How the virtual machine behaves.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Options {
    /// How long bytes are on their way; 50 us by default.
    pub latency: Duration,
    /// Added to the latency at random, up to this; nothing by default. Bytes of one connection
    /// stay in order.
    pub jitter: Duration,
    /// Bytes of one direction that can be under way or unread; 64 KiB by default.
    pub capacity: usize,
    /// Longest piece that one call reads or writes, random from 1; unlimited by default.
    pub fragment: Option<usize>,
    /// Packets are wrapped by IPsec; they are not by default.
    pub ipsec: bool,
    /// Polls after which a run counts as endless; ten million by default.
    pub max_steps: u64,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            latency: Duration::from_micros(50),
            jitter: Duration::ZERO,
            capacity: 64 * 1024,
            fragment: None,
            ipsec: false,
            max_steps: 10_000_000,
        }
    }
}

impl Options {
    /// Sets latency and jitter.
    #[must_use]
    pub fn with_latency(mut self, latency: Duration, jitter: Duration) -> Self {
        (self.latency, self.jitter) = (latency, jitter);
        self
    }

    /// Sets the longest piece that one call moves.
    #[must_use]
    pub fn with_fragment(mut self, fragment: usize) -> Self {
        self.fragment = Some(fragment);
        self
    }
}

setters! {
    Options {
        /// Sets how many bytes a connection holds in each direction.
        fn with_capacity(capacity: usize);
        /// Sets whether packets are wrapped by IPsec.
        fn with_ipsec(ipsec: bool);
        /// Sets the number of polls after which a run counts as endless.
        fn with_max_steps(max_steps: u64);
    }
}
