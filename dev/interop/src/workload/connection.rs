//! What a script needs of a connection, so that it does not have to know what it is made of.

use std::io;
use std::net::SocketAddr;
use std::thread;
use std::time::Duration;

use super::Carrier;

/// A connection, blocking. It is closed when the last handle of it is dropped.
pub(crate) trait Connection: Send + Sync {
    fn read(&self, buf: &mut [u8]) -> io::Result<usize>;

    fn write(&self, buf: &[u8]) -> io::Result<usize>;

    /// Waits until there is something to read, and leaves it there.
    fn peek(&self) -> io::Result<()>;

    /// Sends one byte as urgent data.
    fn urgent(&self, byte: u8) -> io::Result<()>;

    /// Keeps the async runtime of this end, if it has one, from running tasks for that long.
    fn block_runtime(&self, time: Duration) {
        thread::sleep(time);
    }

    /// Shuts writing down.
    fn finish(&self) -> io::Result<()>;

    /// Another handle, so that two threads can read and write.
    fn share(&self) -> io::Result<Box<dyn Connection>>;

    fn local_addr(&self) -> io::Result<SocketAddr>;

    fn peer_addr(&self) -> io::Result<SocketAddr>;

    /// What carries it.
    fn carrier(&self) -> io::Result<Carrier>;

    /// Whether this is how a connection that the peer broke off looks to a reader.
    fn is_broken(&self, read: &io::Result<usize>) -> bool;
}

/// Accepts connections, blocking.
pub(crate) trait Listener: Send {
    fn accept(&self) -> io::Result<Box<dyn Connection>>;
}
