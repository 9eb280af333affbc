//! `smc listen`: a server for `smc check`, which sends back what it receives.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use anyhow::{Context as _, Result};
use smc::{Endpoint, Stream, Target};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::runtime::Runtime;
use tokio::sync::watch;
use tokio::time::sleep;

use crate::endpoint::{self, Ending, EndpointArgs, report};
use crate::serve::{Accept, ServeLimit, Server};
use crate::values;

/// Arguments of `smc listen`.
///
/// Accepts clients, and sends back to each what it sends (RFC 862), until it ends its direction. So
/// `smc check --round-trip` has an answer to its probes, and any other client an echo.
#[derive(Debug, clap::Args)]
#[command(
    verbatim_doc_comment,
    after_help = "\
SIGTERM and SIGINT end it: clients get back what was received, and the end of the stream. Those that do \
not read are reset after two seconds. The exit status is 0 then.

Examples:
  smc listen 127.0.0.1:4000
  smc check --round-trip 127.0.0.1:4000    # as another process"
)]
pub(crate) struct Args {
    /// Where to listen: all addresses without a host; port 0 is any free one
    #[arg(value_name = "[HOST:]PORT", value_parser = values::listening)]
    address: Target,

    #[command(flatten)]
    limit: ServeLimit,

    /// Report each client on standard error when it has ended
    #[arg(short, long)]
    verbose: bool,

    #[command(flatten)]
    endpoint: EndpointArgs,
}

/// Runs `smc listen`.
pub(crate) fn run(args: Args) -> Result<bool> {
    args.limit.raise_descriptors(NAME);
    let runtime = Runtime::new().context("cannot start tokio")?;
    let outcome = runtime.block_on(async { tokio::spawn(attempt(args)).await? });
    outcome.map(|()| true)
}

async fn attempt(args: Args) -> Result<()> {
    let endpoint = args.endpoint.build()?;
    let ending = Ending::new().context("cannot wait for signals")?;
    let listener = Listener::bind(&endpoint, args.address).await?;
    report(NAME, format_args!("listening at {}", listener.address()));
    let (ended, is_ended) = watch::channel(false);
    let verbose = args.verbose;
    let serve = |(stream, peer)| answer(stream, peer, verbose, is_ended.clone());
    let server = Server::new(NAME, args.limit, ending);
    let outcome = server.run(listener, serve, None, ended).await;
    endpoint::close(endpoint).await;
    outcome
}

struct Listener {
    listener: endpoint::Listener,
    address: String,
}

impl Listener {
    async fn bind(endpoint: &Endpoint, to: Target) -> Result<Self> {
        let listener = match (endpoint.bind(to.clone()).await, &to) {
            // A host without IPv6.
            (Err(_), Target::Addr(SocketAddr::V6(at))) if at.ip().is_unspecified() => {
                endpoint.bind((Ipv4Addr::UNSPECIFIED, at.port())).await
            }
            (bound, _) => bound,
        };
        let listener = listener.context("cannot listen")?;
        Ok(Self {
            address: listener.local_addr()?.to_string(),
            listener: endpoint::Listener::new(listener, NAME),
        })
    }
}

impl Accept for Listener {
    type Client = (Stream, SocketAddr);

    fn address(&self) -> &str {
        &self.address
    }

    async fn accept(&mut self) -> io::Result<Self::Client> {
        self.listener.accept().await
    }
}

/// Serves a client to its end.
async fn answer(
    mut stream: Stream,
    peer: SocketAddr,
    verbose: bool,
    is_ended: watch::Receiver<bool>,
) {
    let mode = stream.mode().to_string();
    // Probes are short. A stream that was reset takes no options.
    let _reset = stream.set_nodelay(true);
    let mut echoed = 0;
    let mut until = is_ended.clone();
    let late = async {
        // The sender lives as long as the server.
        drop(until.wait_for(|is_ended| *is_ended).await);
        sleep(CLOSING).await;
    };
    let outcome = tokio::select! {
        outcome = echo(&mut stream, &mut echoed, is_ended) => outcome,
        () = late => Err(io::Error::new(io::ErrorKind::TimedOut, "the client does not read")),
    };
    if outcome.is_err() {
        let _ended = stream.set_zero_linger();
    }
    if verbose {
        let how = outcome.map_or_else(|error| error.to_string(), |()| "complete".to_owned());
        report(NAME, format_args!("{peer}: {mode}: {echoed} bytes, {how}"));
    }
}

/// Sends back what is received, up to the end of the client's direction or of the command.
async fn echo(
    stream: &mut Stream,
    echoed: &mut u64,
    mut is_ended: watch::Receiver<bool>,
) -> io::Result<()> {
    let mut buf = vec![0; BUFFER];
    loop {
        let len = tokio::select! {
            len = stream.read(&mut buf) => len?,
            _ = is_ended.wait_for(|is_ended| *is_ended) => 0,
        };
        if len == 0 {
            return stream.shutdown().await;
        }
        stream.write_all(buf.get(..len).unwrap_or_default()).await?;
        *echoed += len as u64;
        // SMC streams have no budget of their own.
        tokio::task::coop::consume_budget().await;
    }
}

const NAME: &str = "smc listen";
/// The buffer of a client, of which there may be many.
const BUFFER: usize = 16 << 10;
/// How long a client may take to read the last of its data after a signal.
const CLOSING: Duration = Duration::from_secs(2);
