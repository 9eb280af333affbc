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
use crate::tokio::{TcpStream, UnixStream};

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
        if self.enforce_http && !has_scheme(uri, &["http", "ws"]) && uri.scheme().is_some() {
            let error = format!(
                "scheme of URI {uri} is neither http nor ws, and this connector makes no TLS"
            );
            return Err(io::Error::new(io::ErrorKind::InvalidInput, error));
        }
        host_and_port(uri)
    }
}

/// Whether the scheme of a URI is one of these, in whatever case it is written.
fn has_scheme(uri: &Uri, schemes: &[&str]) -> bool {
    let scheme = uri.scheme_str().unwrap_or_default();
    schemes
        .iter()
        .any(|known| scheme.eq_ignore_ascii_case(known))
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
    let default = match has_scheme(uri, &["https", "wss"]) {
        true => 443,
        false => 80,
    };
    let port = uri.port_u16().unwrap_or(default);
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

impl Connection for UnixStream {
    fn connected(&self) -> Connected {
        connected(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn schemes_with_tls_are_refused_unless_another_connector_makes_it() {
        let mut wrapped = Connector::new();
        wrapped.enforce_http(false);
        for (scheme, port) in [
            ("https", 443),
            ("HTTPS", 443),
            ("wss", 443),
            ("WsS", 443),
            ("grpcs", 80),
        ] {
            let uri: Uri = format!("{scheme}://host.example/a").parse().unwrap();
            let error = Connector::new().target(&uri).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::InvalidInput, "{scheme}");
            assert_eq!(wrapped.target(&uri).unwrap().1, port, "{scheme}");
        }
        for uri in [
            "http://host.example/a",
            "WS://host.example",
            "host.example:80",
        ] {
            assert!(
                Connector::new().target(&uri.parse().unwrap()).is_ok(),
                "{uri}"
            );
        }
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
