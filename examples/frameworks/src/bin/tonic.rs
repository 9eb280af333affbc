//! gRPC with tonic over SMC, server and client. The service is that of tonic-health.
//!
//! `smc` with the feature `tonic014`. One line each of server and client differs from TCP:
//!
//! ```ignore
//! server.serve_with_incoming(listener.into_incoming()) // before: server.serve(addr)
//! endpoint.connect_with_connector(Connector::new())    // before: endpoint.connect()
//! ```

use smc::tokio::TcpListener;
use smc::{Connector, Mode, SmcConnectInfo};
use smc_framework_examples::{Result, check};
use tonic::service::InterceptorLayer;
use tonic::transport::{Endpoint, Server};
use tonic::{Request, Status};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;
use tonic_health::server::health_reporter;

#[tokio::main]
async fn main() -> Result {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let uri = format!("http://{}", listener.local_addr()?);
    let (_reporter, health) = health_reporter();
    let server = Server::builder()
        .layer(InterceptorLayer::new(only_smc_d))
        .add_service(health)
        .serve_with_incoming(listener.into_incoming());
    tokio::spawn(server);

    check("tonic", &smc::tokio::endpoint()?, || async {
        let endpoint = Endpoint::from_shared(uri.clone())?;
        let mut client =
            HealthClient::new(endpoint.connect_with_connector(Connector::new()).await?);
        client.check(HealthCheckRequest::default()).await?;
        Ok((client, "SMC-D, or it had refused the request".to_owned()))
    })
    .await
}

/// What a service or, as here, an interceptor of all requests learns of the connection.
fn only_smc_d(request: Request<()>) -> std::result::Result<Request<()>, Status> {
    match request.extensions().get::<SmcConnectInfo>() {
        Some(connection) if matches!(connection.mode, Mode::SmcD { .. }) => Ok(request),
        connection => Err(Status::failed_precondition(format!(
            "not SMC-D: {connection:?}"
        ))),
    }
}
