//! What negotiation and devices share between processes of one Linux host.
//!
//! [`Domain`] defines in which directories sockets are published and searched, and of which users
//! the processes are. [`runtime_dir`] publishes them there and connects to them, and
//! [`Credentials`] are those of the process at the other end of a socket. A [`channel`] has packets
//! with descriptors; what a process passes that is not trusted is closed without waiting
//! ([`passed`]). A [`doorbell`] is what a driver waits for.
//!
//! Nothing here waits, and nothing is trusted that a process of another user can change.
//!
//! ```
//! use smc_ipc::channel::{Received, receive, send};
//! use smc_ipc::runtime_dir::Publication;
//! use smc_ipc::{Credentials, Domain};
//!
//! # let dir = tempfile::tempdir()?;
//! let domain = Domain::directory(dir.path());
//! let mut publication = Publication::new(domain.clone(), "service.sock".into())?;
//!
//! let client = domain.connect("service.sock")?;
//! send(&client, b"hello", &[])?;
//!
//! // When `publication.epoll_fd()` is readable:
//! publication.handle_events();
//! let socket = publication.accept()?;
//! assert!(domain.allows(Credentials::of_peer(&socket)?.uid));
//! let mut bytes = [0; 16];
//! match receive(&socket, &mut bytes, 0) {
//!     Received::Packet(packet, _) => assert_eq!(packet, b"hello"),
//!     other => panic!("{other:?}"),
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#![forbid(unsafe_code)]

#[doc(hidden)]
pub mod cgroup;
pub mod channel;
mod credentials;
pub mod doorbell;
pub mod error;
pub mod netns;
pub mod passed;
pub mod runtime_dir;
#[doc(hidden)]
pub mod shortage;
pub mod thread;

pub use credentials::{Credentials, is_ambiguous_user, is_own_user};
pub use error::{IoError, Limit, OsError};
pub use runtime_dir::{DirectoryProblem, Domain, RuntimeDirError};
