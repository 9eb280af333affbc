//! The counters of a proxy and of its endpoint, as text for Prometheus.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context as _, Result};
use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::CONTENT_TYPE;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use metrics::{counter, describe_counter, describe_gauge, gauge};
use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle};
use smc::Endpoint;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

use super::connection::End;
use crate::serve::ACCEPT_PAUSE;

/// Answers scrapes until it is dropped.
pub(super) struct Exporter {
    listener: TcpListener,
    source: Source,
}

#[derive(Clone)]
struct Source {
    recorder: PrometheusHandle,
    endpoint: Option<Endpoint>,
}

impl Exporter {
    /// Listens at an address, and becomes the recorder of the process.
    pub(super) async fn bind(at: &str, endpoint: Option<Endpoint>) -> Result<Self> {
        let listener = TcpListener::bind(at).await;
        let listener = listener.with_context(|| format!("cannot listen for scrapes at {at}"))?;
        let recorder = PrometheusBuilder::new().install_recorder()?;
        describe_counter!(CONNECTIONS, "Connections that have ended, by how they did");
        describe_gauge!(OPEN, "Connections");
        describe_counter!(BYTES, "Bytes of connections that have ended");
        for end in ["complete", "refused", "broken", "not connected"] {
            counter!(CONNECTIONS, "end" => end).increment(0);
        }
        gauge!(OPEN).set(0);
        Ok(Self {
            listener,
            source: Source { recorder, endpoint },
        })
    }

    pub(super) fn address(&self) -> std::io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    pub(super) async fn serve(self) {
        let mut clients = Clients::default();
        loop {
            match self.listener.accept().await {
                Ok((client, _)) => clients.add(&self.source, client),
                // Descriptors are short, and may be free again later.
                Err(_) => sleep(ACCEPT_PAUSE).await,
            }
        }
    }
}

/// The clients that are connected, the oldest first.
#[derive(Default)]
struct Clients(VecDeque<Client>);

struct Client {
    serving: JoinHandle<()>,
    has_asked: Arc<AtomicBool>,
}

impl Clients {
    /// Serves another client. If there are too many, one is closed for it.
    fn add(&mut self, source: &Source, client: TcpStream) {
        self.0.retain(|client| !client.serving.is_finished());
        if self.0.len() >= CLIENTS_MAX {
            let is_silent = |client: &Client| !client.has_asked.load(Ordering::Relaxed);
            let oldest = self.0.iter().position(is_silent).unwrap_or(0);
            if let Some(client) = self.0.remove(oldest) {
                client.serving.abort();
            }
        }
        let has_asked = Arc::new(AtomicBool::new(false));
        let (source, asked) = (source.clone(), Arc::clone(&has_asked));
        let serving = tokio::spawn(async move {
            // A client that is slow, or has gone, is no concern of the proxy.
            let _served = timeout(SCRAPE_TIME, source.serve(client, &asked)).await;
        });
        self.0.push_back(Client { serving, has_asked });
    }
}

impl Source {
    async fn serve(self, client: TcpStream, has_asked: &AtomicBool) -> hyper::Result<()> {
        let service = service_fn(move |request: Request<Incoming>| {
            has_asked.store(true, Ordering::Relaxed);
            let response = self.respond(&request);
            async move { Ok::<_, Infallible>(response) }
        });
        let mut server = http1::Builder::new();
        server.keep_alive(false).max_buf_size(REQUEST_MAX);
        server
            .timer(TokioTimer::new())
            .header_read_timeout(REQUEST_TIME);
        server.serve_connection(TokioIo::new(client), service).await
    }

    fn respond(&self, request: &Request<Incoming>) -> Response<Full<Bytes>> {
        let mut response = Response::default();
        if request.uri().path() != "/metrics" {
            *response.status_mut() = StatusCode::NOT_FOUND;
        } else if request.method() != Method::GET {
            *response.status_mut() = StatusCode::METHOD_NOT_ALLOWED;
        } else {
            if let Some(endpoint) = &self.endpoint {
                smc::metrics::record(endpoint, "proxy");
            }
            let kind = hyper::header::HeaderValue::from_static("text/plain; version=0.0.4");
            response.headers_mut().insert(CONTENT_TYPE, kind);
            *response.body_mut() = self.recorder.render().into();
        }
        response
    }
}

/// A connection as the gauge counts it.
pub(super) struct Counted;

impl Counted {
    pub(super) fn new() -> Self {
        gauge!(OPEN).increment(1);
        Self
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        gauge!(OPEN).decrement(1);
    }
}

/// Counts a connection that has ended, and its bytes in both directions.
pub(super) fn count_end(end: &End, there: u64, back: u64) {
    let name = match end {
        End::Complete => "complete",
        End::Refused(_) => "refused",
        End::Broken(_) => "broken",
    };
    counter!(CONNECTIONS, "end" => name).increment(1);
    counter!(BYTES, "direction" => "there").increment(there);
    counter!(BYTES, "direction" => "back").increment(back);
}

/// Counts a client for which there was no connection to the other address.
pub(super) fn count_not_connected() {
    counter!(CONNECTIONS, "end" => "not connected").increment(1);
}

const CONNECTIONS: &str = "smc_proxy_connections_total";
const OPEN: &str = "smc_proxy_connections_open";
const BYTES: &str = "smc_proxy_bytes_total";

/// Clients at a time: silent ones in this number, or fewer, take no place from a scrape.
const CLIENTS_MAX: usize = 64;

/// How long the head of a request may take: a client sends it at once.
const REQUEST_TIME: Duration = Duration::from_secs(1);

/// How long a scrape may take.
const SCRAPE_TIME: Duration = Duration::from_secs(5);

/// Bytes of a request.
const REQUEST_MAX: usize = 16 << 10;
