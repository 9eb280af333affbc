//! `http`: requests one after the other on each of some connections, by hyper at both ends.

use std::convert::Infallible;

use anyhow::{Context as _, Result, ensure};
use http_body_util::{BodyExt as _, Empty, Full};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper::header::HOST;
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;

use super::super::figure::{Figure, Sample};
use super::super::meter::Meter;
use super::super::plan::Cell;
use super::super::transport::{Connect, Duplex};
use super::window::Window;

pub(super) async fn drive<C: Connect>(cell: &Cell, to: &C, meter: Meter) -> Result<Sample> {
    let runtime = cell.runtime;
    let mut sample = Sample::default();
    let mut senders = Vec::new();
    for _ in 0..cell.case.load {
        let stream = to.connect().await?;
        sample.path = to.path(&stream);
        let (sender, connection) = handshake(TokioIo::new(stream)).await?;
        // It ends with its sender.
        runtime.detach(async { drop(connection.await) });
        senders.push(sender);
    }
    let window = Window::new(cell.settings.time);
    let body = cell.settings.body;
    let tasks = senders.into_iter().map(|mut sender| {
        runtime.spawn(async move {
            let mut counter = window.counter();
            while counter.is_open() {
                ask(&mut sender, body).await?;
                counter.done();
            }
            Ok(counter)
        })
    });
    let tasks = tasks.collect();
    window
        .gather(cell, meter, tasks, Some(Figure::Requests), &mut sample)
        .await?;
    Ok(sample)
}

/// What requests are answered with, for all connections.
pub(super) fn page(body: usize) -> Bytes {
    vec![b'.'; body].into()
}

/// Answers requests with this.
pub(super) async fn serve<S: Duplex>(stream: S, page: Bytes) -> Result<()> {
    let service = service_fn(move |_request: Request<Incoming>| {
        let page = page.clone();
        async move { Ok::<_, Infallible>(Response::new(Full::new(page))) }
    });
    hyper::server::conn::http1::Builder::new()
        .serve_connection(TokioIo::new(stream), service)
        .await?;
    Ok(())
}

/// A request with its whole response.
async fn ask(sender: &mut SendRequest<Empty<Bytes>>, body: usize) -> Result<()> {
    let request = Request::get("/").header(HOST, "bench").body(Empty::new())?;
    sender.ready().await?;
    let mut response = sender.send_request(request).await?;
    ensure!(response.status() == StatusCode::OK, "{}", response.status());
    let mut got = 0;
    while let Some(frame) = response.frame().await {
        got += frame?.data_ref().context("a frame without data")?.len();
    }
    ensure!(got == body, "{got} bytes came of {body}");
    Ok(())
}
