//! Asynchronous events: ports that come and go, queue pairs and devices that fail.

use smc_core::device::{DeviceError, Event, LinkFailure};

use smc_core::mem::sync::Ordering;

use crate::device::Parts;
use crate::port;
use crate::verbs::{self, Async};

/// Reads all asynchronous events and reports them as events of the device.
pub(crate) fn drain(parts: &Parts, sink: &mut dyn FnMut(Event)) -> Result<(), DeviceError> {
    let mut ports = parts.is_port_change_pending.swap(false, Ordering::Relaxed);
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
    if ports && !ports_changed(parts, sink) {
        parts.is_port_change_pending.store(true, Ordering::Relaxed);
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

/// Ends the links of ports that are down or have other addresses, and reports new addresses.
/// Returns whether that is complete: otherwise it is to be repeated.
fn ports_changed(parts: &Parts, sink: &mut dyn FnMut(Event)) -> bool {
    // A device that cannot be queried is about to be removed, which is reported separately.
    let Ok(mut ports) = port::states(&parts.context) else {
        return true;
    };
    // Without memory or descriptors the interfaces cannot be read.
    let has_addresses = port::read_addresses(&parts.context, &mut ports).is_ok();
    for link in parts.links.all() {
        if !port::is_usable(&link.at, &ports, has_addresses) {
            parts.stop_link(&link, LinkFailure::PortDown);
        }
    }
    if has_addresses {
        let now = port::active(&ports);
        let before = std::mem::replace(&mut *parts.addresses.lock(), now.clone());
        if before != now {
            sink(Event::AddressesChanged);
        }
    }
    has_addresses
}

const EVENTS_MAX: usize = 256;
