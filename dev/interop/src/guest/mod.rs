//! What runs inside a guest: the first process, which does what the host requests.

mod agent;
mod boot;
mod kernel_log;
mod netlink;
mod resources;
pub(crate) mod smc;

pub(crate) use boot::MODULES;

/// The first process of a guest: sets the system up and serves the host until it requests power
/// off. There is no caller to return to.
pub(crate) fn init() -> ! {
    if let Err(error) = boot::boot().and_then(|()| agent::serve()) {
        eprintln!("interop agent: {error:#}");
    }
    boot::power_off()
}
