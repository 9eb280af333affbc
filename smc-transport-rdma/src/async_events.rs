//! Asynchronous events: ports that come and go, queue pairs and devices that fail.

use smc_core::device::{DeviceError, Event, LinkFailure};

use crate::device::Parts;
use crate::port;
use crate::verbs::{self, Async};

/// Reads all asynchronous events and reports them as events of the device.
pub(crate) fn drain(parts: &Parts, sink: &mut dyn FnMut(Event)) -> Result<(), DeviceError> {
    let mut ports = false;
    // A bound, in case they come without end: what is left rings again.
    for _ in 0..EVENTS_MAX {
        match verbs::take_async(&parts.context) {
            Ok(Some(Async::QueuePair { qpn, why })) => {
                let links = parts.links.all();
                if let Some(link) = links.iter().find(|link| link.qpn.get() == qpn) {
                    parts.stop_link(link, LinkFailure::Device(why));
                }
            }
            Ok(Some(Async::Port)) => ports = true,
            Ok(Some(Async::Device(_))) => {
                gone(parts, sink);
                return Ok(());
            }
            Ok(Some(Async::Other)) => {}
            Ok(None) => break,
            Err(error) => return Err(DeviceError::os("reading device events", &error)),
        }
    }
    if ports {
        ports_changed(parts, sink);
    }
    Ok(())
}

/// The device was removed, or failed as a whole.
pub(crate) fn gone(parts: &Parts, sink: &mut dyn FnMut(Event)) {
    if !parts.set_gone() {
        return;
    }
    parts.addresses.lock().clear();
    for link in parts.links.all() {
        parts.stop_link(&link, LinkFailure::Device("it was removed"));
    }
    parts.report_stopped(sink);
    sink(Event::DeviceGone);
}

fn ports_changed(parts: &Parts, sink: &mut dyn FnMut(Event)) {
    // A device that cannot be queried is about to be removed, which is reported separately.
    let Ok(ports) = port::read(&parts.context) else {
        return;
    };
    let now = port::active(&ports);
    for link in parts.links.all() {
        let mut entries = now.iter();
        let still = entries.any(|entry| entry.address.is_same_entry(&link.at));
        if !still {
            parts.stop_link(&link, LinkFailure::PortDown);
        }
    }
    let before = std::mem::replace(&mut *parts.addresses.lock(), now.clone());
    if before != now {
        sink(Event::AddressesChanged);
    }
}

const EVENTS_MAX: usize = 256;
