//! The in-place interface: writing into the peer's memory, and holding what it wrote into ours.

mod guard;
mod reserve;

pub use guard::ReadGuard;
pub(crate) use guard::RetainedRanges;
pub use reserve::Reservation;

/// Most that a reservation has where it is a buffer of ours, in bytes.
pub(crate) const PRIVATE_MAX: usize = 64 * 1024;
