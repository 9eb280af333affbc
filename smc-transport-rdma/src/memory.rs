//! Registered memory.

use std::any::Any;
use std::io;
use std::sync::Arc;

use rustix::io::Errno;
use sideway::ibverbs::AccessFlags;
use sideway::ibverbs::protection_domain::ProtectionDomain;
use smc_core::device::{Access, DeviceError, Mr, Piece, SubmitError, Write};
use smc_core::mem::Region;
use smc_wire::types::{Rkey, RmbAddr};

use crate::verbs::{Registered, Span, WriteRequest};

/// Memory registered in one domain.
#[derive(Debug)]
pub(crate) struct Memory {
    registered: Registered,
}

impl Memory {
    pub(crate) fn new(
        domain: &Arc<ProtectionDomain>,
        region: &Region,
        access: Access,
        is_relaxed: bool,
    ) -> Result<Self, DeviceError> {
        let flags = flags(access, is_relaxed);
        let registered = match access {
            Access::Local => Registered::new(domain, region.clone(), flags),
            // Peers receive the address, so it must not reveal where the memory is.
            Access::RemoteWrite => {
                let random = smc_core::random::bytes()
                    .map_err(|error| DeviceError::os("choosing an address", &error))?;
                let at = random_address(region, u64::from_ne_bytes(random));
                Registered::at(domain, region.clone(), flags, at)
            }
        };
        Ok(Self {
            registered: registered.map_err(|error| not_registered(&error))?,
        })
    }

    fn span(&self, piece: Piece) -> Result<Span, SubmitError> {
        let end = u64::from(piece.at) + u64::from(piece.len);
        if end > self.region().len() as u64 {
            return Err(SubmitError::OutOfBounds);
        }
        Ok(self.registered.span(u64::from(piece.at), piece.len))
    }
}

impl Mr for Memory {
    fn region(&self) -> &Region {
        self.registered.region()
    }

    fn rkey(&self) -> Rkey {
        Rkey(self.registered.rkey())
    }

    fn addr(&self) -> RmbAddr {
        RmbAddr(self.registered.addr())
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

fn flags(access: Access, is_relaxed: bool) -> AccessFlags {
    let mut flags = AccessFlags::LocalWrite;
    if access == Access::RemoteWrite {
        flags |= AccessFlags::RemoteWrite;
    }
    if is_relaxed {
        flags |= AccessFlags::RelaxedOrdering;
    }
    flags
}

/// Has long memory take huge pages, where the kernel can.
pub(crate) fn advise_huge_pages(region: &Region) {
    if region.len() as u64 >= HUGE_PAGE {
        // Usual pages do as well.
        let _best_effort = region.advise_huge_pages();
    }
}

/// Another address for memory, with 41 random bits. The part within a huge page stays: a device
/// needs it to map the memory by pages of that size.
///
/// Two registrations may overlap, or have the same address: an address counts within the memory
/// that the key of a request names, and nowhere else.
fn random_address(region: &Region, random: u64) -> u64 {
    let within = region.as_ptr().as_ptr().addr() as u64 % HUGE_PAGE;
    // Peers may add to it, and it is not null.
    let page = (random % ADDRESSES).max(1) * HUGE_PAGE;
    page + within
}

/// Checks a write of a link in this domain. `None` if there is nothing to write.
pub(crate) fn request(
    domain: &Arc<ProtectionDomain>,
    write: &Write<'_>,
) -> Result<Option<WriteRequest>, SubmitError> {
    let memory = write.from.as_any().downcast_ref::<Memory>();
    let memory = memory
        .filter(|memory| memory.registered.is_in(domain))
        .ok_or(DeviceError::Invalid(
            "memory is registered in another protection domain",
        ))?;
    let mut request = WriteRequest {
        rkey: write.rkey.0,
        to: write.to.0,
        ..WriteRequest::default()
    };
    for piece in [write.first, write.second] {
        let span = memory.span(piece)?;
        if let Some(slot) = request.from.get_mut(usize::from(request.spans)) {
            if span.len > 0 {
                *slot = span;
                request.spans += 1;
            }
        }
    }
    Ok((request.spans > 0).then_some(request))
}

/// Why memory could not be registered.
pub(crate) fn not_registered(error: &io::Error) -> DeviceError {
    match Errno::from_io_error(error) {
        Some(Errno::NOMEM | Errno::AGAIN) => DeviceError::NoMemory,
        Some(Errno::NOSPC) => DeviceError::Exhausted,
        _ => DeviceError::os("registering memory", error),
    }
}

/// The largest page that devices commonly map.
const HUGE_PAGE: u64 = 2 << 20;

/// Huge pages to choose from: addresses have 62 bits.
const ADDRESSES: u64 = 1 << 41;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn peers_write_only_what_is_for_them_and_the_order_is_relaxed_if_wanted() {
        let (local, remote) = (AccessFlags::LocalWrite, AccessFlags::RemoteWrite);
        let relaxed = AccessFlags::RelaxedOrdering;
        for (access, is_relaxed, expected) in [
            (Access::Local, false, local),
            (Access::RemoteWrite, false, local | remote),
            (Access::Local, true, local | relaxed),
            (Access::RemoteWrite, true, local | remote | relaxed),
        ] {
            assert_eq!(flags(access, is_relaxed).bits(), expected.bits());
        }
    }

    /// The flags of the mapping that has an address, as the kernel shows them.
    fn mapping_flags(of: &Region) -> String {
        let at = of.as_ptr().as_ptr().addr();
        let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
        let mut is_in = false;
        for line in maps.lines() {
            let range = line
                .split(' ')
                .next()
                .and_then(|range| range.split_once('-'));
            let number = |text| usize::from_str_radix(text, 16);
            if let Some((Ok(start), Ok(end))) = range.map(|(a, b)| (number(a), number(b))) {
                is_in = (start..end).contains(&at);
            } else if let (true, Some(flags)) = (is_in, line.strip_prefix("VmFlags:")) {
                return flags.to_owned();
            }
        }
        panic!("not mapped");
    }

    #[test]
    fn long_memory_takes_huge_pages() {
        if !std::path::Path::new("/sys/kernel/mm/transparent_hugepage").exists() {
            println!("skipped: the kernel has no transparent huge pages");
            return;
        }
        for (len, expected) in [(HUGE_PAGE / 2, false), (2 * HUGE_PAGE, true)] {
            let region = Region::try_anonymous(len.try_into().unwrap()).unwrap();
            advise_huge_pages(&region);
            let flags = mapping_flags(&region);
            let is_huge = flags.split_whitespace().any(|flag| flag == "hg");
            assert_eq!(is_huge, expected, "{len} bytes: {flags}");
        }
    }

    #[test]
    fn random_addresses_keep_the_place_in_a_huge_page_and_do_not_overflow() {
        let region = Region::anonymous(3 * HUGE_PAGE as usize);
        let real = region.as_ptr().as_ptr().addr() as u64;
        for random in [0, 1, ADDRESSES - 1, ADDRESSES, u64::MAX] {
            let at = random_address(&region, random);
            assert_eq!(at % HUGE_PAGE, real % HUGE_PAGE);
            assert!(at >= HUGE_PAGE);
            assert!(at + (u32::MAX as u64) < 1 << 63);
        }
        let [first, second] = [5, 6].map(|random| random_address(&region, random));
        assert_eq!(second - first, HUGE_PAGE);
    }
}
