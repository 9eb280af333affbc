//! A client of the crate redis over SMC, and a server of its protocol (`src/resp.rs`).
//!
//! `smc` with the feature `tokio`. A server changes one `use` line. A client makes its connection
//! from a stream:
//!
//! ```ignore
//! let stream = TcpStream::connect(addr).await?;
//! let (connection, driver) =
//!     MultiplexedConnection::new_with_config(&info, stream, config).await?;
//! tokio::spawn(driver);
//! // before: let connection = client.get_multiplexed_async_connection().await?;
//! ```
//!
//! For a Redis server as it is, and for other clients, see `redis_proxy`.

use redis::AsyncCommands as _;
use redis::aio::MultiplexedConnection;
use smc::tokio::{TcpListener, TcpStream};
use smc_framework_examples::{Result, check, resp};

#[tokio::main]
async fn main() -> Result {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let addr = listener.local_addr()?;
    tokio::spawn(resp::serve(listener));
    check("redis", &smc::tokio::endpoint()?, || async {
        let stream = TcpStream::connect(addr).await?;
        let (info, config) = Default::default();
        let (mut connection, driver) =
            MultiplexedConnection::new_with_config(&info, stream, config).await?;
        tokio::spawn(driver);
        let answer = connection.get("mode").await?;
        Ok((connection, answer))
    })
    .await
}
