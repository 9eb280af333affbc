//! What the programs in `src/bin` have in common: the check that each of them makes.

pub mod resp;

use std::error::Error;

use futures::future::try_join_all;
use http_body_util::{BodyExt as _, Empty};
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use smc::info::Role;
use smc::{Connector, Endpoint, Mode};

/// An error of any kind ends a program with a status other than 0.
pub type Result<T = ()> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

/// Connections that each program has open at the same time.
pub const CLIENTS: usize = 100;

/// Opens [`CLIENTS`] connections with [`open`], and checks that this endpoint, which made them, has
/// as many clients over SMC-D. Prints a line of summary.
///
/// # Errors
///
/// The first one of a client, and when a connection is not SMC-D at both ends.
pub async fn check<C, F>(example: &str, endpoint: &Endpoint, client: impl Fn() -> F) -> Result
where
    F: Future<Output = Result<(C, String)>>,
{
    let _open = open(client).await?;
    let mut count = 0;
    for connection in endpoint.connections() {
        if !matches!(connection.mode, Mode::SmcD { .. }) {
            return Err(
                format!("{:?} of a connection: {}", connection.role, connection.mode).into(),
            );
        }
        count += usize::from(connection.role == Role::Client);
    }
    if count != CLIENTS {
        return Err(format!("{count} of {CLIENTS} clients have a connection").into());
    }
    println!("{example}: {count} of {CLIENTS} connections are SMC-D at both ends");
    Ok(())
}

/// Has [`CLIENTS`] clients at the same time. Each makes a request and returns its connection, with
/// the server's answer, which is the mode of the server's stream. Returns the connections.
///
/// # Errors
///
/// The first one of a client, and when an answer is not SMC-D.
pub async fn open<C, F>(client: impl Fn() -> F) -> Result<Vec<C>>
where
    F: Future<Output = Result<(C, String)>>,
{
    let answers = try_join_all((0..CLIENTS).map(|_| client())).await?;
    answers
        .into_iter()
        .map(|(connection, answer)| match answer.starts_with("SMC-D") {
            true => Ok(connection),
            false => Err(format!("a stream of the server: {answer}").into()),
        })
        .collect()
}

/// A client of HTTP with a connection of its own, and what it reads at this URI.
///
/// # Errors
///
/// As those of hyper-util.
pub async fn get(uri: String) -> Result<(Client<Connector, Empty<&'static [u8]>>, String)> {
    let client = Client::builder(TokioExecutor::new()).build(Connector::new());
    let response = client.get(uri.parse()?).await?;
    let body = response.into_body().collect().await?.to_bytes();
    Ok((client, String::from_utf8(body.into())?))
}
