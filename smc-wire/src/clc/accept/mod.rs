//! ACCEPT and CONFIRM: what was chosen, and one end of it.

mod repr;
mod view;

pub use repr::{AcceptConfirm, Body, DirectEnd, RdmaEnd, Step, Terms};
pub use view::AcceptConfirmView;
