//! Work that may block for long, on a thread of its own.
//!
//! Connecting a queue pair resolves the peer's hardware address, which takes about a second when
//! there is no such host. An executor's thread must not block for that.

use smc_core::device::DeviceError;
use smc_ipc::thread::promise;

/// Runs `work` elsewhere and waits for it. If the wait is given up, the work still ends, and its
/// result is dropped.
pub(crate) async fn offload<T, F>(work: F) -> Result<T, DeviceError>
where
    T: Send + 'static,
    F: FnOnce() -> T + Send + 'static,
{
    let (promise, answer) = promise();
    std::thread::Builder::new()
        .name("smc-rdma".to_owned())
        .spawn(move || promise.keep(work()))
        .map_err(|error| DeviceError::os("starting a thread", &error))?;
    let result = answer.await;
    result.map_err(|_| DeviceError::Gone("its thread ended early"))
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
