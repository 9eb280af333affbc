//! A device of SMC-D that a target drives, with its buffers and attachments.

use std::io::IoSlice;
use std::sync::Arc;

use futures_lite::future::{block_on, poll_once};
use smc_core::device::{Attachment, Device, Direct, Dmb, Event, PeerEvent, Signal};
use smc_wire::types::{DmbToken, Gid};

use crate::Input;

/// Buffers and attachments that a device has at a time.
const HELD_MAX: usize = 4;

/// One device.
#[derive(Debug)]
pub struct Driven<D> {
    /// The device.
    pub device: D,
    /// Its buffers.
    pub dmbs: Vec<Arc<dyn Dmb>>,
    attached: Vec<Arc<dyn Attachment>>,
}

impl<D: Device + Direct> Driven<D> {
    /// A device without buffers.
    pub fn new(device: D) -> Self {
        Self {
            device,
            dmbs: Vec::new(),
            attached: Vec::new(),
        }
    }

    /// One call of the device, about a peer whose buffers have these tokens.
    pub fn step(&mut self, input: &mut Input<'_>, peer: Gid, tokens: &[DmbToken]) {
        let step = input.byte();
        let token = match tokens {
            [] => DmbToken(u64::from(step)),
            _ => input.choose(tokens),
        };
        match step & 15 {
            0 | 1 if self.dmbs.len() < HELD_MAX => {
                let len = 1 << (14 + (step >> 4 & 1));
                let registering = self.device.register(peer, len);
                if let Some(Ok(dmb)) = block_on(poll_once(registering)) {
                    assert!(dmb.region().len() >= len);
                    self.dmbs.push(dmb);
                }
            }
            2 if !self.dmbs.is_empty() => {
                let dmb = self.dmbs.swap_remove(input.below(self.dmbs.len()));
                if step & 16 != 0 {
                    dmb.set_used(input.u16().into());
                }
            }
            3 => self.dmbs.iter().for_each(|dmb| dmb.arm()),
            4 | 5 => {
                let (at, data) = (u32::from(input.u16()), input.bytes(64));
                let signal = if step & 16 != 0 {
                    Signal::Yes
                } else {
                    Signal::No
                };
                let data = [IoSlice::new(data)];
                let _ = self.device.move_data(peer, token, at, &data, signal);
            }
            6 | 7 if self.attached.len() < HELD_MAX => {
                if let Some(nocopy) = self.device.nocopy() {
                    let attached = block_on(poll_once(nocopy.attach(peer, token)));
                    self.attached.extend(attached.and_then(Result::ok));
                }
            }
            8 => {
                for attached in &self.attached {
                    let region = attached.region();
                    let at = usize::from(input.u16()) % region.len().max(1);
                    let written = region.copy_in(at, &[1, 2, 3]);
                    assert!(written.is_ok() || at + 3 > region.len());
                    let _ = attached.signal();
                }
            }
            9 => self.attached.truncate(usize::from(step >> 4)),
            10 => {
                if let Some(events) = self.device.peer_events() {
                    let event = input.choose(&[PeerEvent::Shutdown, PeerEvent::TestRequest]);
                    let _ = events.signal_event(peer, event);
                }
            }
            11 => drop(self.device.arm()),
            12 => drop(block_on(poll_once(self.device.reach(peer)))),
            13 => drop(self.device.is_registered(peer, token)),
            _ => drop(self.drain()),
        }
    }

    /// The events of one call of `drain`; none if the device has failed.
    pub fn drain(&self) -> Vec<Event> {
        let mut events = Vec::new();
        let _ = self.device.drain(&mut |event| events.push(event));
        assert!(events.len() < 100_000, "events without end");
        events
    }

    /// The tokens of its buffers.
    pub fn tokens(&self) -> Vec<DmbToken> {
        self.dmbs.iter().map(|dmb| dmb.token()).collect()
    }

    /// Drops buffers and attachments.
    pub fn release(&mut self) {
        self.dmbs.clear();
        self.attached.clear();
    }
}
