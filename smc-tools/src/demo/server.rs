//! The server's process.

use std::io::{Read as _, Write as _};
use std::path::Path;
use std::pin::pin;
use std::sync::Arc;
use std::thread;

use anyhow::{Context as _, Result};
use futures::channel::oneshot;
use futures::future::{Either, select};
use smc::Endpoint;

use super::carrier::Carried;
use super::net::{Listeners, Transport};
use super::{Args, job};

/// Serves until standard input ends.
pub(super) async fn serve(args: &Args, unix: &Path) -> Result<()> {
    let ended = stdin_ended();
    let carried = Carried::open(args)?;
    let endpoint = carried.endpoint.clone();
    let (listeners, at) = Listeners::bind(args.runtime, &carried, unix).await?;
    println!("{} {}", at.smc, at.tcp);
    std::io::stdout()
        .flush()
        .context("cannot send to the client where to connect")?;
    let listeners = Arc::new(listeners);
    let outcome = {
        let loops = Transport::ALL.map(|transport| accept(&endpoint, &listeners, transport));
        let serving = futures::future::try_join_all(loops);
        match select(pin!(serving), ended).await {
            Either::Left((failed, _)) => failed.map(drop),
            Either::Right(_) => Ok(()),
        }
    };
    // An orderly end, which leaves no names behind.
    drop(listeners);
    drop(endpoint);
    carried.part().await;
    outcome
}

async fn accept(
    endpoint: &Endpoint,
    listeners: &Arc<Listeners>,
    transport: Transport,
) -> Result<()> {
    loop {
        let stream = listeners.accept(transport).await?;
        endpoint.spawn(async move {
            if let Err(error) = job::serve(stream).await {
                eprintln!("smc demo: server: {transport}: {error}");
            }
        });
    }
}

/// The client holds the other end of standard input; this process ends with it.
fn stdin_ended() -> oneshot::Receiver<()> {
    let (ended, receiver) = oneshot::channel();
    thread::spawn(|| {
        let mut nothing = Vec::new();
        // Whatever comes of it, the client is gone.
        let _ended = std::io::stdin().read_to_end(&mut nothing);
        let _ignored = ended.send(());
    });
    receiver
}
