//! TLS by tokio-rustls over SMC, which has no encryption and no authentication of its own.
//!
//! `smc` with the feature `tokio`. One line differs from TCP:
//!
//! ```ignore
//! use smc::tokio::{TcpListener, TcpStream}; // before: use tokio::net::{TcpListener, TcpStream};
//! ```

use std::sync::Arc;

use rcgen::{CertifiedKey, generate_simple_self_signed};
use smc::tokio::{TcpListener, TcpStream};
use smc_framework_examples::{Result, check};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio_rustls::rustls::pki_types::PrivateKeyDer;
use tokio_rustls::rustls::{ClientConfig, RootCertStore, ServerConfig};
use tokio_rustls::{TlsAcceptor, TlsConnector};

#[tokio::main]
async fn main() -> Result {
    let (acceptor, connector) = tls()?;
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let addr = listener.local_addr()?;
    tokio::spawn(async move {
        while let Ok((stream, _peer)) = listener.accept().await {
            tokio::spawn(serve(acceptor.clone(), stream));
        }
    });
    check("rustls", &smc::tokio::endpoint()?, || async {
        let stream = TcpStream::connect(addr).await?;
        let mut stream = connector.connect("localhost".try_into()?, stream).await?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await?;
        Ok((stream, answer))
    })
    .await
}

async fn serve(acceptor: TlsAcceptor, stream: TcpStream) -> Result {
    let mut stream = acceptor.accept(stream).await?;
    let mode = stream.get_ref().0.mode().to_string();
    stream.write_all(mode.as_bytes()).await?;
    stream.shutdown().await?; // close_notify, then the end of the SMC stream
    Ok(())
}

/// Both ends of TLS, with a certificate that is made for this run.
fn tls() -> Result<(TlsAcceptor, TlsConnector)> {
    let CertifiedKey { cert, signing_key } = generate_simple_self_signed(["localhost".to_owned()])?;
    let cert = cert.der().clone();
    let mut roots = RootCertStore::empty();
    roots.add(cert.clone())?;
    let key = PrivateKeyDer::Pkcs8(signing_key.serialize_der().into());
    let server = ServerConfig::builder()
        .with_no_client_auth()
        .with_single_cert(vec![cert], key)?;
    let client = ClientConfig::builder()
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok((Arc::new(server).into(), Arc::new(client).into()))
}
