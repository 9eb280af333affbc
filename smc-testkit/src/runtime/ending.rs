use std::fmt;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll};
use std::time::Instant;

use async_trait::async_trait;
use smc_core::runtime::{
    Acceptor, BeforeConnect, BeforeListen, InterfaceAddress, Runtime, Socket, SocketOptions, Task,
    Timer, Watch,
};

/// A runtime that ends while the [`VirtualRuntime`](super::VirtualRuntime) that its tasks run on goes
/// on, as one of two runtimes in a process.
///
/// Its timers and sockets go on as well.
pub struct EndingRuntime {
    inner: Arc<dyn Runtime>,
    /// None after the end.
    tasks: Mutex<Option<Vec<Weak<Cell>>>>,
}

/// A task, until it has come to its end.
type Cell = Mutex<Option<Task>>;

impl EndingRuntime {
    pub(super) fn new(inner: Arc<dyn Runtime>) -> Arc<Self> {
        Arc::new(Self {
            inner,
            tasks: Mutex::new(Some(Vec::new())),
        })
    }

    /// Drops all tasks and takes no more. Not to be called by one of them.
    pub fn end(&self) {
        let tasks = lock(&self.tasks).take().unwrap_or_default();
        let tasks = tasks.iter().filter_map(Weak::upgrade);
        // Outside of all locks, since a task may do anything when it is dropped.
        let tasks: Vec<_> = tasks.map(|task| lock(&task).take()).collect();
        drop(tasks);
    }
}

#[async_trait]
impl Runtime for EndingRuntime {
    fn now(&self) -> Instant {
        self.inner.now()
    }

    fn timer(&self, at: Instant) -> Timer {
        self.inner.timer(at)
    }

    fn spawn(&self, task: Task) {
        let task = Arc::new(Mutex::new(Some(task)));
        if let Some(tasks) = &mut *lock(&self.tasks) {
            tasks.retain(|task| task.strong_count() > 0);
            tasks.push(Arc::downgrade(&task));
        } else {
            return;
        }
        self.inner.spawn(Box::pin(Running(task)));
    }

    async fn resolve(&self, host: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
        self.inner.resolve(host, port).await
    }

    async fn connect(
        &self,
        to: SocketAddr,
        options: &SocketOptions,
        before: &mut BeforeConnect<'_>,
    ) -> io::Result<Arc<dyn Socket>> {
        self.inner.connect(to, options, before).await
    }

    fn bind(
        &self,
        at: SocketAddr,
        options: &SocketOptions,
        before: &mut BeforeListen<'_>,
    ) -> io::Result<Arc<dyn Acceptor>> {
        self.inner.bind(at, options, before)
    }

    fn watch(&self, fd: BorrowedFd<'_>) -> io::Result<Box<dyn Watch>> {
        self.inner.watch(fd)
    }

    fn interfaces(&self) -> Vec<InterfaceAddress> {
        self.inner.interfaces()
    }
}

impl fmt::Debug for EndingRuntime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EndingRuntime").finish_non_exhaustive()
    }
}

/// A task as the other runtime sees it.
struct Running(Arc<Cell>);

impl Future for Running {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let mut task = lock(&self.0);
        let is_pending = task
            .as_mut()
            .is_some_and(|task| task.as_mut().poll(cx).is_pending());
        if is_pending {
            return Poll::Pending;
        }
        let ended = task.take();
        drop(task);
        drop(ended);
        Poll::Ready(())
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
