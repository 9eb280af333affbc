//! `smc cat`: standard input and output at the ends of a stream.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, bail};
use smc::{Endpoint, Stream, Target};
use smc_core::quota::LineQuota;
use tokio::fs::File;
use tokio::runtime::Runtime;
use tokio::time::timeout;

use crate::endpoint::{self, Ending, EndpointArgs, Listener};
use crate::output::bounded;
use crate::relay::{Broken, copy};
use crate::values;

/// Arguments of `smc cat`.
///
/// Connects to a server, or accepts a client, and copies standard input to the stream and the
/// stream to standard output. The peer may be any TCP program; the stream is SMC where the peer
/// supports it. At the end of standard input the stream is shut down for writing. The command ends
/// when both directions have ended, or when standard output is closed.
#[derive(Debug, clap::Args)]
#[command(
    verbatim_doc_comment,
    after_help = "\
The exit status is 0 if everything was copied, 1 if not, 2 for wrong arguments.

Examples:
  smc cat -l 127.0.0.1:4000 >copy          # one end
  smc cat -v 127.0.0.1:4000 <file          # the other end
  smc cat 127.0.0.1:4000 </dev/null        # only receives"
)]
pub(crate) struct Args {
    /// Accept a client at this address instead of connecting to it; port 0 is any free one
    #[arg(short, long)]
    listen: bool,

    /// Accept one client after the other
    #[arg(short, long, requires = "listen")]
    keep_listening: bool,

    /// Report addresses, and what carries the stream, on standard error
    #[arg(short, long)]
    verbose: bool,

    /// How long connecting may take
    #[arg(long, value_name = "SECONDS", value_parser = values::seconds, conflicts_with = "listen")]
    timeout: Option<Duration>,

    #[command(flatten)]
    endpoint: EndpointArgs,

    /// Where to connect to, or to listen
    #[arg(value_name = "HOST:PORT", value_parser = values::target)]
    address: Target,
}

/// Runs `smc cat`.
pub(crate) fn run(args: Args) -> Result<bool> {
    let runtime = Runtime::new().context("cannot start tokio")?;
    // A task: what wakes it is on the threads of the runtime.
    let outcome = runtime.block_on(async { tokio::spawn(Cat(args).run()).await? });
    // A read of standard input may still wait.
    runtime.shutdown_background();
    outcome.map(|()| true)
}

struct Cat(Args);

impl Cat {
    async fn run(self) -> Result<()> {
        let endpoint = self.0.endpoint.build()?;
        let mut ending = Ending::new().context("cannot wait for signals")?;
        let outcome = match self.0.listen {
            true => self.serve(&endpoint, &mut ending).await,
            false => self.connect(&endpoint, &mut ending).await,
        };
        endpoint::close(endpoint).await;
        outcome
    }

    async fn connect(&self, endpoint: &Endpoint, ending: &mut Ending) -> Result<()> {
        let to = endpoint::name(&self.0.address);
        let connecting = endpoint.connect(self.0.address.clone());
        let limit = self.0.timeout.unwrap_or(Duration::MAX);
        let stream = tokio::select! {
            connected = timeout(limit, connecting) => match connected {
                Ok(connected) => connected.map_err(anyhow::Error::from),
                Err(_elapsed) => Err(anyhow!(
                    "no answer within {} s; --timeout sets that", limit.as_secs_f64()
                )),
            },
            () = ending.wait() => bail!("ended by a signal while connecting to {to}"),
        };
        let stream = stream.with_context(|| format!("cannot connect to {to}"))?;
        let peer = stream.peer_addr().context("the server has no address")?;
        let mut input = file(io::stdin())?;
        self.copy((stream, peer), "connected to", &mut input, ending)
            .await
    }

    async fn serve(&self, endpoint: &Endpoint, ending: &mut Ending) -> Result<()> {
        let at = endpoint::name(&self.0.address);
        let listener = endpoint.bind(self.0.address.clone()).await;
        let listener = listener.with_context(|| format!("cannot listen at {at}"))?;
        let at = listener.local_addr()?;
        self.note(format_args!("listening at {at}"));
        let mut listener = Listener::new(listener, NAME);
        // One for all clients: it may have data that none of them has received.
        let mut input = file(io::stdin())?;
        let mut quota = LineQuota::default();
        loop {
            let accepted = tokio::select! {
                accepted = listener.accept() => accepted,
                () = ending.wait() => match self.0.keep_listening {
                    true => return Ok(()),
                    false => bail!("ended by a signal before there was a client at {at}"),
                },
            };
            let client = accepted.with_context(|| format!("cannot accept clients at {at}"))?;
            if !self.0.keep_listening {
                drop(listener);
                return self.copy(client, "client", &mut input, ending).await;
            }
            match self.copy(client, "client", &mut input, ending).await {
                Err(error) if error.is::<Interrupted>() => return Err(error),
                Err(error) => {
                    let now = Instant::now();
                    for line in bounded(&mut quota, "failures", format!("{error:#}"), now) {
                        endpoint::report(NAME, line);
                    }
                }
                Ok(()) => {}
            }
        }
    }

    /// Copies in both directions. A stream whose data is incomplete is reset, so that the peer does
    /// not take it for complete.
    async fn copy(
        &self,
        (mut stream, peer): (Stream, SocketAddr),
        what: &str,
        input: &mut File,
        ending: &mut Ending,
    ) -> Result<()> {
        self.note(format_args!("{what} {peer}: {}", stream.mode()));
        // Data of a terminal is sent as it is typed. A stream that was reset takes no options.
        let _reset = stream.set_nodelay(true);
        let outcome = tokio::select! {
            outcome = copy_both(&mut stream, input, file(io::stdout())?) => outcome,
            () = ending.wait() => Outcome::incomplete(Err(Interrupted.into())),
        };
        if !outcome.is_sent {
            let _ended = stream.set_zero_linger();
        }
        outcome
            .result
            .with_context(|| format!("stream with {peer}"))
    }

    fn note(&self, line: impl std::fmt::Display) {
        if self.0.verbose {
            endpoint::report(NAME, line);
        }
    }
}

/// How a stream ended.
struct Outcome {
    /// Whether all of standard input was sent.
    is_sent: bool,
    result: Result<()>,
}

impl Outcome {
    fn incomplete(result: Result<()>) -> Self {
        Self {
            is_sent: false,
            result,
        }
    }
}

async fn copy_both(stream: &mut Stream, input: &mut File, output: File) -> Outcome {
    let (from_peer, to_peer) = stream.split();
    let (mut sent, mut received) = (0, 0);
    let mut sending = std::pin::pin!(copy(input, to_peer, &mut sent));
    let mut receiving = std::pin::pin!(copy(from_peer, output, &mut received));
    let (mut was_sent, mut was_received) = (None, false);
    while was_sent.is_none() || !was_received {
        tokio::select! {
            result = &mut sending, if was_sent.is_none() => match result {
                Err(Broken::Read(error)) => {
                    let failed = Err(error).context("cannot read standard input");
                    return Outcome::incomplete(failed);
                }
                // What the peer has sent before it closed can still be received.
                Err(Broken::Write(error)) => was_sent = Some(Err(error)),
                Ok(()) => was_sent = Some(Ok(())),
            },
            result = &mut receiving, if !was_received => {
                let is_sent = matches!(was_sent, Some(Ok(())));
                let result = match result {
                    Ok(()) => {
                        was_received = true;
                        continue;
                    }
                    Err(Broken::Read(error)) => Err(error).context("cannot receive"),
                    Err(Broken::Write(error)) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
                    Err(Broken::Write(error)) => {
                        Err(error).context("cannot write standard output")
                    }
                };
                return Outcome { is_sent, result };
            }
        }
    }
    match was_sent {
        Some(Err(error)) => Outcome::incomplete(Err(error).context("cannot send")),
        _ => Outcome {
            is_sent: true,
            result: Ok(()),
        },
    }
}

/// A signal ended the command while there was a stream.
#[derive(Debug, thiserror::Error)]
#[error("ended by a signal before the end of the stream")]
struct Interrupted;

/// Standard input or output without a buffer in between: that of the standard library retains
/// output up to the end of a line.
fn file(standard: impl AsFd) -> Result<File> {
    let descriptor: io::Result<OwnedFd> = standard.as_fd().try_clone_to_owned();
    let descriptor = descriptor.context("cannot use standard input and output")?;
    Ok(File::from_std(descriptor.into()))
}

const NAME: &str = "smc cat";
