//! That the public types may cross `catch_unwind`, as tokio's and std's may.
//!
//! The compiler does not derive it, because of trait objects (runtimes, sockets, devices) and of
//! the cells of wakers. It holds nevertheless: all state that calls share is in atomics and behind
//! locks without poisoning ([`crate::mutex`]). So after a panic other threads continue with the
//! state that the call has left, and the thread that catches the panic finds the same one and no
//! other. Code of an application that may panic inside of a call is a policy, a waker, or a
//! runtime or device of its own.

use std::panic::{RefUnwindSafe, UnwindSafe};

use crate::{
    Endpoint, Listener, OwnedReadHalf, OwnedWriteHalf, ReadGuard, ReadHalf, Stream, WriteHalf,
};

macro_rules! unwind_safe {
    ($($type:ty),+) => {$(
        impl UnwindSafe for $type {}
        impl RefUnwindSafe for $type {}
    )+};
}

unwind_safe!(
    Endpoint,
    Listener,
    Stream,
    ReadHalf<'_>,
    WriteHalf<'_>,
    OwnedReadHalf,
    OwnedWriteHalf,
    ReadGuard
);
