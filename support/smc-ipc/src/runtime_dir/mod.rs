//! The runtime directory, where processes of one host find each other by the names of sockets.
//!
//! Listeners and devices use the same one, by the same rule: [`Domain`] defines in which
//! directories a socket is published and in which it is searched. [`Publication`] is a socket that
//! has its name there, again whenever the name is removed. Both need `/proc`.

mod domain;
mod elevated;
mod error;
mod lookup;
mod open;
mod publication;
mod socket;
mod user_dir;
mod watch;

pub use domain::Domain;
pub use elevated::is_elevated;
pub use error::{DirectoryProblem, RuntimeDirError};
pub use open::OpenDir;
pub use publication::Publication;
pub use socket::{ConnectTime, Connected, bind_with_mode, by_fd, names};

#[cfg(test)]
mod tests;
