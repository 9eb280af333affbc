//! The in-place interface: writing into the peer's memory, and retaining received data in local
//! memory.

mod guard;
mod reserve;

pub(crate) use guard::GuardedRing;
pub use guard::ReadGuard;
pub use reserve::Reservation;
pub(crate) use reserve::ReservedSpace;

/// Maximum of a reservation in a private buffer, in bytes.
const PRIVATE_MAX: usize = 64 * 1024;
