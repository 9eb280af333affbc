//! Errors for endpoints and targets that cannot work.

#![cfg(all(feature = "tokio", feature = "smol"))]

use std::io::ErrorKind;
use std::net::TcpStream;
use std::sync::Arc;

use smc::{Builder, Error};
use smc_core::negotiate::Assume;

#[test]
fn an_endpoint_without_a_runtime_names_the_ways_to_one() {
    let error = Builder::new().build().expect_err("no runtime");
    let text = "misuse: an endpoint needs a runtime: give Builder::runtime one";
    assert_eq!(error.to_string(), text);

    let error = Builder::tokio().build().expect_err("not in a runtime");
    let text = "misuse: Builder::tokio was called outside of a tokio runtime: call it in an async \
                function that tokio runs, or after Runtime::enter";
    assert_eq!(error.to_string(), text);
}

#[test]
#[should_panic(expected = "timers are disabled")]
fn a_tokio_runtime_without_timers_is_found_out_where_the_endpoint_is_built() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_io()
        .build();
    let _context = runtime.as_ref().expect("runtime").enter();
    let _endpoint = Builder::tokio().build();
}

#[test]
fn a_buffer_that_is_too_long_is_named_by_its_kind() {
    let error = Builder::smol().send_buffer(1 << 30).build();
    let text = "misuse: send buffers have at most 512 MiB";
    assert_eq!(error.expect_err("too long").to_string(), text);
    let error = Builder::smol().recv_buffer(1 << 30).build();
    let text = "misuse: receive buffers have at most 512 MiB";
    assert_eq!(error.expect_err("too long").to_string(), text);
}

#[test]
fn a_target_that_is_none_is_in_the_message() {
    let endpoint = Builder::smol().build().expect("endpoint");
    let form = "is neither address:port nor name:port, with a number as port";
    for (target, text) in [
        ("localhost", format!("target \"localhost\" {form}")),
        (
            "localhost:http",
            format!("target \"localhost:http\" {form}"),
        ),
        (":80", format!("target \":80\" {form}")),
        (
            "127.0.0.1:99999",
            "port of target \"127.0.0.1:99999\" is more than 65535".into(),
        ),
    ] {
        let error = smol::block_on(endpoint.connect(target)).expect_err("no target");
        assert_eq!(error.to_string(), format!("misuse: {text}"));
        assert!(matches!(error, Error::Misuse(_)));
        assert_eq!(std::io::Error::from(error).kind(), ErrorKind::InvalidInput);
    }
}

#[test]
fn an_empty_list_of_addresses_is_misuse() {
    let endpoint = Builder::smol().build().expect("endpoint");
    let error = smol::block_on(endpoint.connect(Vec::new())).expect_err("no address");
    let text = "misuse: the target is an empty list of addresses";
    assert_eq!(error.to_string(), text);
    let error = smol::block_on(endpoint.bind([])).expect_err("no address");
    assert_eq!(error.to_string(), text);
}

#[test]
fn accept_does_not_blame_the_runtime_alone_when_a_policy_has_panicked() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    runtime.expect("runtime").block_on(async {
        let endpoint = Builder::tokio()
            .negotiation(Arc::new(Assume::new()))
            .policy_for(|_| panic!("the policy panics"))
            .build()
            .expect("endpoint");
        let listener = endpoint.bind("127.0.0.1:0").await.expect("listener");
        let at = listener.local_addr().expect("address");
        let _client = TcpStream::connect(at).expect("client");
        let error = listener.accept().await.expect_err("nothing accepts");
        assert_eq!(error.kind(), ErrorKind::InvalidInput);
        assert!(error.to_string().contains("has panicked"), "{error}");
    });
}
