//! Which devices there are, and why one cannot be used.

use std::sync::Arc;

use rustix::io::Errno;
use rustix::process::{Resource, getrlimit};
use sideway::ibverbs::AccessFlags;
use sideway::ibverbs::device::{
    DeviceInfo, DeviceList, GetDeviceListErrorKind, OpenDeviceErrorKind,
};
use sideway::ibverbs::device_context::DeviceContext;
use sideway::ibverbs::protection_domain::ProtectionDomain;
use smc_core::device::{RdmaAddress, RoceKind};
use smc_core::mem::Region;
use smc_core::mutex::Mutex;
use smc_wire::types::MtuCode;

use crate::buffers::buffers_len;
use crate::config::Builder;
use crate::device::{Depths, attributes};
use crate::domain;
use crate::error::OpenError;
use crate::port::{self, Port, PortState};
use crate::verbs::{self, Registered};

/// State of a device.
#[derive(Debug)]
#[non_exhaustive]
pub struct DeviceReport {
    /// Its name, for [`RdmaDevice::open`](crate::RdmaDevice::open).
    pub name: String,
    /// Its ports, as far as they could be asked.
    pub ports: Vec<PortReport>,
    /// Whether links of SMC-R version 2 can be opened on it now, or why not.
    pub usable: Result<(), Unusable>,
}

/// State of a port.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PortReport {
    /// Its number, from 1.
    pub number: u8,
    /// Its state.
    pub state: PortState,
    /// Whether it is on Ethernet, as RoCE is.
    pub ethernet: bool,
    /// Largest packet payload that it sends now.
    pub mtu: Option<MtuCode>,
    /// Its RoCE addresses, of both kinds, also while it is down.
    pub addresses: Vec<RdmaAddress>,
}

/// Why a device cannot carry links.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Unusable {
    /// It cannot be opened.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// It has no port on Ethernet: InfiniBand and iWARP are other fabrics.
    #[error("no port on Ethernet, so no RoCE")]
    NotRoce,
    /// No port is active.
    #[error("no port is active; is the network interface up?")]
    PortDown,
    /// No active port has a RoCE version 2 GID with an IPv4 address, or with an IPv6 address that
    /// is not link-local, which SMC-R version 2 takes. Version 1 may do with what there is.
    #[error("no RoCE v2 GID with an IP address; has the network interface one?")]
    NoAddress,
}

/// Looks at all devices of the host.
///
/// Opens each and tries to register some memory, so what it states holds for this process and its
/// limits. Blocks for some milliseconds.
///
/// # Errors
///
/// [`OpenError::NoLibrary`] or [`OpenError::NoDevices`] if there is nothing to check.
pub fn probe() -> Result<Vec<DeviceReport>, OpenError> {
    Ok(names()?.into_iter().map(report).collect())
}

fn report(name: String) -> DeviceReport {
    let result = context(&name).and_then(|context| {
        let ports = port::read(&context)
            .map_err(|error| OpenError::verbs("reading the GID table", error))?;
        Ok((context, ports))
    });
    let (context, ports) = match result {
        Ok(result) => result,
        Err(error) => {
            return DeviceReport {
                name,
                ports: Vec::new(),
                usable: Err(error.into()),
            };
        }
    };
    DeviceReport {
        usable: usable(&name, &context, &ports),
        name,
        ports: ports.into_iter().map(PortReport::from).collect(),
    }
}

fn usable(name: &str, context: &Arc<DeviceContext>, ports: &[Port]) -> Result<(), Unusable> {
    let domain = domain::allocate(context);
    let domain = domain.map_err(|error| OpenError::verbs(domain::ALLOCATING, error))?;
    let depths = Depths::of(&attributes(context)?, &Builder::new(name))?;
    check_locked_memory(&domain, buffers_len(depths))?;
    if !ports.iter().any(|port| port.ethernet) {
        return Err(Unusable::NotRoce);
    }
    if !ports.iter().any(|port| port.state == PortState::Active) {
        return Err(Unusable::PortDown);
    }
    let addresses = port::active(ports);
    let fits = |address: &RdmaAddress| address.kind == RoceKind::V2 && address.gid.ip().is_some();
    if !addresses.iter().any(|entry| fits(&entry.address)) {
        return Err(Unusable::NoAddress);
    }
    Ok(())
}

impl From<Port> for PortReport {
    fn from(port: Port) -> Self {
        Self {
            number: port.number,
            state: port.state,
            ethernet: port.ethernet,
            mtu: port.mtu,
            addresses: port
                .entries
                .into_iter()
                .map(|entry| entry.address)
                .collect(),
        }
    }
}

/// Names of all devices, at least one.
pub(crate) fn names() -> Result<Vec<String>, OpenError> {
    let list = devices()?;
    let names: Vec<_> = list.iter().map(|device| device.name()).collect();
    if names.is_empty() {
        return Err(OpenError::NoDevices);
    }
    Ok(names)
}

/// Opens a device by name.
pub(crate) fn context(name: &str) -> Result<Arc<DeviceContext>, OpenError> {
    let list = devices()?;
    let Some(device) = list.iter().find(|device| device.name() == name) else {
        let present: Vec<_> = list.iter().map(|device| device.name()).collect();
        return Err(if present.is_empty() {
            OpenError::NoDevices
        } else {
            OpenError::NotFound {
                name: name.to_owned(),
                present,
            }
        });
    };
    device.open().map_err(|error| match error.0 {
        OpenDeviceErrorKind::Ibverbs(error)
            if error.kind() == std::io::ErrorKind::PermissionDenied =>
        {
            OpenError::NotPermitted(error)
        }
        OpenDeviceErrorKind::Ibverbs(error) => OpenError::verbs("opening the device", error),
        _ => OpenError::Incapable("it cannot be opened"),
    })
}

/// Whether memory for a link can be registered: the limit on locked memory is often too low.
pub(crate) fn check_locked_memory(
    domain: &Arc<ProtectionDomain>,
    len: u64,
) -> Result<(), OpenError> {
    let region = Region::try_anonymous(usize::try_from(len).unwrap_or(usize::MAX))
        .map_err(|error| OpenError::verbs("allocating memory", error.into()))?;
    let registered = Registered::new(domain, region, AccessFlags::LocalWrite);
    registered
        .map(drop)
        .map_err(|error| match Errno::from_io_error(&error) {
            Some(Errno::NOMEM | Errno::PERM) => OpenError::LockedMemory {
                limit: getrlimit(Resource::Memlock).current,
            },
            _ => OpenError::verbs("registering memory", error),
        })
}

/// Prepares the process for its children, before the first device is listed or opened.
fn protect_from_fork() -> Result<(), OpenError> {
    static IS_PROTECTED: Mutex<bool> = Mutex::new(false);
    let mut is_protected = IS_PROTECTED.lock();
    if !*is_protected {
        verbs::protect_from_fork().map_err(|error| match Errno::from_io_error(&error) {
            // The stub of the library returns this when it is missing.
            Some(Errno::OPNOTSUPP) => OpenError::NoLibrary,
            _ => OpenError::verbs("keeping registered memory from child processes", error),
        })?;
        *is_protected = true;
    }
    Ok(())
}

fn devices() -> Result<DeviceList, OpenError> {
    protect_from_fork()?;
    DeviceList::new().map_err(|error| match error.0 {
        GetDeviceListErrorKind::Ibverbs(error) => {
            match Errno::from_io_error(&error) {
                // The stub of the library returns this when it is missing.
                Some(Errno::OPNOTSUPP) => OpenError::NoLibrary,
                // The library returns this when the kernel lacks the interface.
                Some(Errno::NOSYS | Errno::NOENT) => OpenError::NoDevices,
                _ => OpenError::verbs("listing the devices", error),
            }
        }
        _ => OpenError::NoDevices,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn children_are_prepared_for_before_devices_are_listed() {
        if let Err(OpenError::NoLibrary) = devices() {
            println!("skipped: no libibverbs");
            return;
        }
        assert!(verbs::is_protected_from_fork());
    }
}
