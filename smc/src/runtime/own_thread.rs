//! A thread that runs the tasks of one endpoint.

use std::io;
use std::sync::Arc;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread;

use event_listener::{Event, EventListener};

/// The thread of a runtime. It ends when this is dropped, also by one of its own tasks: the drop
/// does not wait for it.
#[derive(Debug)]
pub(super) struct OwnThread {
    end: Event,
}

impl OwnThread {
    /// Starts a thread that sends what it was started for, or an error, and then runs tasks until
    /// the listener is notified. Waits for what it sends.
    pub(super) fn start<T: Send + 'static>(
        run: impl FnOnce(SyncSender<io::Result<T>>, EventListener) + Send + 'static,
    ) -> io::Result<(T, Arc<Self>)> {
        let end = Event::new();
        let ended = end.listen();
        let (started, start) = sync_channel(1);
        let thread = thread::Builder::new().name(NAME.into());
        thread.spawn(move || run(started, ended))?;
        let started = start.recv().map_err(io::Error::other)??;
        Ok((started, Arc::new(Self { end })))
    }
}

impl Drop for OwnThread {
    fn drop(&mut self) {
        self.end.notify(1);
    }
}

/// The name of the thread, as in `/proc` and in debuggers.
const NAME: &str = "smc-driver";
