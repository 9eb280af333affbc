//! Ways between processes that others have made. They are no streams, so each has its own code
//! for what it can do.

pub(super) mod iceoryx2;
