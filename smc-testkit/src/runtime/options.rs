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
    /// Virtual time that polling a task takes; 1 us by default.
    pub step: Duration,
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
            step: Duration::from_micros(1),
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

    /// Sets how many bytes a connection holds in each direction.
    #[must_use]
    pub fn with_capacity(mut self, capacity: usize) -> Self {
        self.capacity = capacity;
        self
    }

    /// Sets the longest piece that one call moves.
    #[must_use]
    pub fn with_fragment(mut self, fragment: usize) -> Self {
        self.fragment = Some(fragment);
        self
    }

    /// Sets what polling a task takes.
    #[must_use]
    pub fn with_step(mut self, step: Duration) -> Self {
        self.step = step;
        self
    }

    /// Sets the number of polls after which a run counts as endless.
    #[must_use]
    pub fn with_max_steps(mut self, max_steps: u64) -> Self {
        self.max_steps = max_steps;
        self
    }
}
