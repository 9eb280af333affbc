//! Drives the machine of a handshake: messages, work, and timeouts.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use event_listener::EventListener;

use super::carrier::Carrier;
use super::executor::{HandshakeResources, WorkResult, execute};
use crate::deadlines::Deadline;
use crate::endpoint::EndpointInner;
use crate::error::Error;
use crate::proto::group::GroupId;
use crate::proto::handshake::{CrossingDecline, Established, Fallback, Handshake, HandshakeOutput};
use crate::runtime::Socket;

/// How a handshake ended.
pub(super) enum Outcome {
    Smc(Box<Established>),
    Tcp(Fallback),
}

pub(super) async fn drive(
    endpoint: &Arc<EndpointInner>,
    carrier: &mut Carrier<'_>,
    machine: &mut Handshake,
    resources: &mut HandshakeResources,
) -> Result<Outcome, Error> {
    let mut work: Option<Pin<Box<dyn Future<Output = WorkResult> + Send>>> = None;
    // The group whose termination was reported to the machine.
    let mut reported = None;
    let mut terminated = None;
    loop {
        while let Some(output) = machine.poll_output() {
            match output {
                HandshakeOutput::Send(bytes) => {
                    let until = endpoint.runtime.now() + endpoint.handshake().timeouts.message;
                    if let Err(error) = carrier.send(&*endpoint.runtime, until, &bytes).await {
                        machine.handle_io_error(error.into());
                    }
                }
                HandshakeOutput::Work(requested) => {
                    let process = carrier.credentials();
                    match resources.take_early(&requested, process) {
                        Some(done) => machine.handle_done(endpoint.runtime.now(), done),
                        None => {
                            let prepared = resources.prepared.clone();
                            let endpoint = Arc::clone(endpoint);
                            work = Some(Box::pin(execute(endpoint, requested, prepared, process)));
                        }
                    }
                }
                HandshakeOutput::Discard => {
                    work = None;
                    *resources = HandshakeResources::default();
                }
                HandshakeOutput::OutOfSync(group) => {
                    let groups = &endpoint.groups;
                    groups.update(|registry| registry.handle_out_of_sync(group));
                }
                HandshakeOutput::Established(established) => {
                    carrier.flush();
                    return Ok(Outcome::Smc(established));
                }
                HandshakeOutput::Fallback(fallback) => {
                    carrier.flush();
                    return Ok(Outcome::Tcp(fallback));
                }
                HandshakeOutput::Abort(error) => return Err(error),
            }
        }
        carrier.flush();
        let group = resources
            .membership
            .as_ref()
            .map(|membership| membership.member.group());
        let group = group.filter(|group| reported != Some(*group));
        if group.is_some_and(|group| endpoint.groups.is_terminating(group)) {
            reported = group;
            machine.handle_terminated();
            continue;
        }
        let mut timer = machine
            .poll_timeout()
            .map(|at| endpoint.groups.deadlines.at(at));
        poll_fn(|cx| {
            let input = poll_input(
                cx, endpoint, carrier, machine, resources, &mut work, &mut timer,
            );
            if input.is_ready() {
                return Poll::Ready(());
            }
            if work.is_some() {
                carrier.publish_progress(cx);
            }
            match group {
                Some(group) => poll_terminated(cx, endpoint, group, &mut terminated),
                None => Poll::Pending,
            }
        })
        .await;
    }
}

/// Waits until this group or another one may be terminating. Most handshakes have no need to: the
/// listener is created when one has to wait, and serves it until it was notified.
fn poll_terminated(
    cx: &mut Context<'_>,
    endpoint: &EndpointInner,
    group: GroupId,
    listener: &mut Option<EventListener>,
) -> Poll<()> {
    let listening = match listener {
        Some(listening) => listening,
        None => {
            let listening = listener.insert(endpoint.groups.terminated.listen());
            // Before there was a listener.
            if endpoint.groups.is_terminating(group) {
                return Poll::Ready(());
            }
            listening
        }
    };
    let is_notified = Pin::new(listening).poll(cx);
    if is_notified.is_ready() {
        *listener = None;
    }
    is_notified
}

/// Waits for the first event and passes it to the machine.
fn poll_input(
    cx: &mut Context<'_>,
    endpoint: &EndpointInner,
    carrier: &mut Carrier<'_>,
    machine: &mut Handshake,
    resources: &mut HandshakeResources,
    work: &mut Option<Pin<Box<dyn Future<Output = WorkResult> + Send>>>,
    timer: &mut Option<Deadline>,
) -> Poll<()> {
    if let Some(Poll::Ready((acquired, done))) = work.as_mut().map(|work| work.as_mut().poll(cx)) {
        *work = None;
        resources.add(acquired);
        machine.handle_done(endpoint.runtime.now(), done);
        return Poll::Ready(());
    }
    let needed = machine.bytes_needed();
    if needed > 0 {
        let mut buf = [0; READ_MAX];
        let len = needed.min(buf.len());
        let (part, _) = buf.split_at_mut(len);
        match carrier.poll_read(cx, part) {
            Poll::Ready(Ok(0)) => {
                machine.handle_closed();
                return Poll::Ready(());
            }
            Poll::Ready(Ok(count)) => {
                let (read, _) = part.split_at(count.min(len));
                machine.handle_bytes(endpoint.runtime.now(), read);
                if carrier.is_confirmed() {
                    machine.handle_confirmed();
                }
                return Poll::Ready(());
            }
            Poll::Ready(Err(error)) => {
                machine.handle_io_error(error.into());
                return Poll::Ready(());
            }
            Poll::Pending => {}
        }
    }
    match timer.as_mut().map(|timer| Pin::new(timer).poll(cx)) {
        Some(Poll::Ready(())) => {
            machine.handle_timeout(endpoint.runtime.now());
            Poll::Ready(())
        }
        _ => Poll::Pending,
    }
}

/// Removes a DECLINE that crossed the local one from the stream. Returns other data that was read.
pub(super) async fn without_crossing_decline(
    endpoint: &EndpointInner,
    socket: &dyn Socket,
) -> Vec<u8> {
    let mut filter = CrossingDecline::new(endpoint.runtime.now());
    while let Some(until) = filter.poll_timeout() {
        let mut timer = endpoint.runtime.timer(until);
        poll_fn(|cx| {
            let mut buf = [0; READ_MAX];
            let (part, _) = buf.split_at_mut(filter.bytes_needed().min(READ_MAX));
            match socket.poll_read(cx, part) {
                Poll::Ready(Ok(0) | Err(_)) => filter.handle_closed(),
                Poll::Ready(Ok(count)) => {
                    // All of it is consumed: not more was read than needed.
                    filter.handle_bytes(part.get(..count).unwrap_or(part));
                }
                Poll::Pending => match timer.as_mut().poll(cx) {
                    Poll::Ready(()) => filter.handle_timeout(endpoint.runtime.now()),
                    Poll::Pending => return Poll::Pending,
                },
            }
            Poll::Ready(())
        })
        .await;
    }
    filter.release().unwrap_or_default()
}

/// Longer than any message of the handshake.
const READ_MAX: usize = 1024;
