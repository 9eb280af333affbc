//! What a seed decides.

use std::time::Duration;

use smc_testkit::Rng;
use smc_testkit::runtime::Options;

/// One run.
#[derive(Debug)]
pub(super) struct Plan {
    pub(super) rng: Rng,
    pub(super) hardship: Hardship,
    /// What each host has.
    pub(super) ports: [Ports; 2],
    pub(super) max_links: Option<u8>,
    pub(super) max_conns: Option<u8>,
    /// Whether each host has the features beyond the released protocol.
    pub(super) vendor_features: [bool; 2],
    pub(super) rkeys_in_flight: usize,
    pub(super) recv_buffer: usize,
    pub(super) send_buffer: usize,
    /// Streams in each direction.
    pub(super) streams: [usize; 2],
    /// Within which they are set up.
    pub(super) spread: Duration,
    /// Clients that do not play along.
    pub(super) nuisances: usize,
    pub(super) faults: usize,
    pub(super) latency: Duration,
    pub(super) jitter: Duration,
    pub(super) setup_time: Duration,
    pub(super) options: Options,
}

/// The ports of a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ports {
    One,
    /// Two devices with a port each.
    TwoDevices,
    /// One device with two ports.
    OneDevice,
}

/// What goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Hardship {
    /// Nothing, apart from strange clients.
    None,
    /// One link of two at a time: no stream may notice.
    Survivable,
    /// Anything. Streams may be aborted, but never lie.
    Anything,
}

impl Plan {
    pub(super) fn new(seed: u64) -> Self {
        let mut rng = Rng::new(seed ^ 0x5eed);
        let hardship = [Hardship::None, Hardship::Survivable, Hardship::Anything][rng.below(3)];
        let is_concurrent = rng.chance(20);
        let count = if is_concurrent { 120 } else { 6 };
        let is_survivable = hardship == Hardship::Survivable;
        let micros = |rng: &mut Rng, end| Duration::from_micros(rng.below(end) as u64);
        Self {
            hardship,
            ports: if is_survivable {
                // One of the hosts may do with a port; its groups are asymmetric then.
                let ports = [Ports::TwoDevices, Ports::TwoDevices, Ports::OneDevice];
                let mut both = [ports[rng.below(3)], ports[rng.below(3)]];
                if rng.chance(300) {
                    both[rng.below(2)] = Ports::One;
                }
                both
            } else {
                let ports = [Ports::One, Ports::TwoDevices, Ports::OneDevice];
                [ports[rng.below(3)], ports[rng.below(3)]]
            },
            max_links: if is_survivable {
                Some(2)
            } else {
                [None, Some(1), Some(2)][rng.below(3)]
            },
            max_conns: [None, Some(16)][rng.below(2)],
            vendor_features: [rng.chance(750), rng.chance(750)],
            rkeys_in_flight: [1, 4][rng.below(2)],
            recv_buffer: [16, 16, 64][rng.below(3)] * 1024,
            send_buffer: [16, 64, 256][rng.below(3)] * 1024,
            streams: [rng.below(count + 1), rng.below(count + 1)],
            spread: micros(&mut rng, 20_000),
            nuisances: if rng.chance(300) { rng.below(4) } else { 0 },
            faults: match hardship {
                Hardship::None => 0,
                _ => rng.between(1, 4),
            },
            latency: micros(&mut rng, 100),
            jitter: micros(&mut rng, 50),
            setup_time: if rng.chance(500) {
                micros(&mut rng, 500)
            } else {
                Duration::ZERO
            },
            options: Options::default()
                .with_latency(micros(&mut rng, 200), micros(&mut rng, 100))
                .with_fragment(if rng.chance(200) { 7 } else { 4096 })
                .with_max_steps(50_000_000),
            rng,
        }
    }
}
