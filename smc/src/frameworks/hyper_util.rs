//! hyper-util: [`Connector`] as a service of URIs, for the legacy client, and [`Connection`].

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use ::hyper_util::client::legacy::connect::{Connected, Connection};
use ::hyper_util::rt::TokioIo;
use http::Uri;
use tower_service::Service;

use super::{Connector, SmcConnectInfo};
use crate::stream::Stream;
use crate::tokio::TcpStream;

impl Service<Uri> for Connector {
    type Response = TokioIo<TcpStream>;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<Self::Response>> + Send>>;

    fn poll_ready(&mut self, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, to: Uri) -> Self::Future {
        let connector = self.clone();
        Box::pin(async move {
            let stream = connector.connect(connector.target(&to)?).await?;
            Ok(TokioIo::new(stream))
        })
    }
}

impl Connector {
    fn target(&self, uri: &Uri) -> io::Result<(String, u16)> {
        if self.enforce_http && matches!(uri.scheme_str(), Some("https" | "wss")) {
            let error =
                format!("scheme of URI {uri} takes TLS, which this connector does not make");
            return Err(io::Error::new(io::ErrorKind::InvalidInput, error));
        }
        host_and_port(uri)
    }
}

fn host_and_port(uri: &Uri) -> io::Result<(String, u16)> {
    let Some(host) = uri.host() else {
        let error = format!("URI {uri} has no host");
        return Err(io::Error::new(io::ErrorKind::InvalidInput, error));
    };
    // An IPv6 address is in brackets.
    let address = host
        .strip_prefix('[')
        .and_then(|host| host.strip_suffix(']'));
    let port = uri.port_u16().unwrap_or_else(|| match uri.scheme_str() {
        Some("https" | "wss") => 443,
        _ => 80,
    });
    Ok((address.unwrap_or(host).to_owned(), port))
}

fn connected(stream: &Stream) -> Connected {
    Connected::new().extra(SmcConnectInfo::from(stream))
}

impl Connection for Stream {
    fn connected(&self) -> Connected {
        connected(self)
    }
}

impl Connection for TcpStream {
    fn connected(&self) -> Connected {
        connected(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn schemes_with_tls_are_refused_unless_another_connector_makes_it() {
        let uri = Uri::from_static("https://host.example/a");
        let error = Connector::new().target(&uri).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
        let wrapped = Connector::new().enforce_http(false);
        assert_eq!(wrapped.target(&uri).unwrap().1, 443);
    }

    #[test]
    fn host_and_port_are_those_of_the_uri() {
        let of = |uri: &'static str| host_and_port(&Uri::from_static(uri));
        assert_eq!(
            of("http://host.example/a").unwrap(),
            ("host.example".into(), 80)
        );
        assert_eq!(
            of("https://host.example").unwrap(),
            ("host.example".into(), 443)
        );
        assert_eq!(of("http://[::1]:8080/").unwrap(), ("::1".into(), 8080));
        let error = of("/path").unwrap_err();
        assert_eq!(error.to_string(), "URI /path has no host");
    }
}
