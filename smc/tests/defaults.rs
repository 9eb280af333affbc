//! What an endpoint with the defaults does, on each runtime.

#![cfg(any(feature = "tokio", feature = "smol"))]

use std::error::Error;
use std::sync::Arc;

use futures_lite::{AsyncReadExt, AsyncWriteExt, future};
use smc::{Builder, Domain, LoopDevice, Mode};

type TestResult = Result<(), Box<dyn Error>>;

/// Two endpoints of one domain, each with its defaults.
async fn smc_streams(builder: impl Fn() -> Builder) -> TestResult {
    let dir = tempfile::tempdir()?;
    let endpoint = || -> Result<_, Box<dyn Error>> {
        let builder = smc::add_defaults(builder(), Domain::directory(dir.path()))?;
        Ok(builder.build()?)
    };
    let (client, server) = (endpoint()?, endpoint()?);
    let listener = server.bind("127.0.0.1:0").await?;
    let addr = listener.local_addr()?;
    let (connected, accepted) = future::zip(client.connect(addr), listener.accept()).await;
    let (mut near, (mut far, _)) = (connected?, accepted?);
    for stream in [&near, &far] {
        assert!(
            matches!(stream.mode(), Mode::SmcD { .. }),
            "{}",
            stream.mode()
        );
    }
    near.write_all(b"hello").await?;
    drop(near);
    let mut word = String::new();
    far.read_to_string(&mut word).await?;
    assert_eq!(word, "hello");
    Ok(())
}

#[cfg(feature = "smol")]
#[test]
fn endpoints_on_smol_use_shared_memory() -> TestResult {
    smol::block_on(smc_streams(Builder::smol))
}

#[cfg(feature = "smol")]
#[test]
fn drivers_on_a_thread_serve_endpoints_on_smol() -> TestResult {
    smol::block_on(smc_streams(|| Builder::smol().driver_thread(true)))
}

#[cfg(feature = "tokio-io")]
#[tokio::test]
async fn endpoints_on_tokio_use_shared_memory() -> TestResult {
    smc_streams(Builder::tokio).await
}

#[cfg(feature = "tokio-io")]
#[tokio::test]
async fn drivers_on_a_thread_serve_endpoints_on_tokio() -> TestResult {
    smc_streams(|| Builder::tokio().driver_thread(true)).await
}

#[cfg(feature = "tokio-io")]
#[tokio::test]
async fn without_negotiation_a_stream_is_tcp_and_has_the_cause() -> TestResult {
    let dir = tempfile::tempdir()?;
    let device = LoopDevice::builder().domain(Domain::directory(dir.path()));
    let endpoint = Builder::tokio().device(Arc::new(device.build()?)).build()?;
    let listener = endpoint.bind("127.0.0.1:0").await?;
    let addr = listener.local_addr()?;
    let (connected, accepted) = future::zip(endpoint.connect(addr), listener.accept()).await;
    let (near, (far, _)) = (connected?, accepted?);
    for stream in [&near, &far] {
        let reason = stream.fallback_reason().ok_or("a stream over SMC")?;
        assert_eq!(reason.cause, smc::FallbackCause::NoNegotiation);
    }
    Ok(())
}
