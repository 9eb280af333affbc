//! Work that may block for long, on a thread of its own.
//!
//! Connecting a queue pair resolves the peer's hardware address, which takes about a second when
//! there is no such host. An executor's thread must not block for that.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;

use atomic_waker::AtomicWaker;
use smc_core::device::DeviceError;
use smc_core::mutex::Mutex;

/// Runs `work` elsewhere and waits for it. If the wait is given up, the work still ends, and its
/// result is dropped.
pub(crate) async fn offload<T, F>(work: F) -> Result<T, DeviceError>
where
    T: Send + 'static,
    F: FnOnce() -> T + Send + 'static,
{
    let promise = Arc::new(Promise {
        state: Mutex::new(State::Working),
        waker: AtomicWaker::new(),
    });
    let ours = Finish(Arc::clone(&promise));
    std::thread::Builder::new()
        .name("smc-rdma".to_owned())
        .spawn(move || {
            let result = work();
            *ours.0.state.lock() = State::Done(result);
        })
        .map_err(|error| DeviceError::os("starting a thread", &error))?;
    poll_fn(move |cx| {
        promise.waker.register(cx.waker());
        let mut state = promise.state.lock();
        match std::mem::replace(&mut *state, State::Lost) {
            State::Working => {
                *state = State::Working;
                Poll::Pending
            }
            State::Done(result) => Poll::Ready(Ok(result)),
            State::Lost => Poll::Ready(Err(DeviceError::Gone("its thread ended early"))),
        }
    })
    .await
}

#[derive(Debug)]
struct Promise<T> {
    state: Mutex<State<T>>,
    waker: AtomicWaker,
}

#[derive(Debug)]
enum State<T> {
    Working,
    Done(T),
    Lost,
}

/// Wakes the waiting task, also if the work panicked.
struct Finish<T>(Arc<Promise<T>>);

impl<T> Drop for Finish<T> {
    fn drop(&mut self) {
        let mut state = self.0.state.lock();
        if matches!(*state, State::Working) {
            *state = State::Lost;
        }
        drop(state);
        self.0.waker.wake();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_result_comes_back() {
        let answer = futures_lite::future::block_on(offload(|| 6 * 7)).unwrap();
        assert_eq!(answer, 42);
    }

    #[test]
    fn work_that_panics_is_an_error() {
        let answer = futures_lite::future::block_on(offload(|| -> u8 { panic!("on purpose") }));
        assert!(matches!(answer, Err(DeviceError::Gone(_))));
    }
}
