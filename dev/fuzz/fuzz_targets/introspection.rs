//! Introspection: any packet as a request to an endpoint of this process, and any answer to a
//! client. Records are those of a real answer, changed, or anything.

#![no_main]

use std::path::PathBuf;
use std::sync::{Arc, LazyLock};
use std::thread;
use std::time::Duration;

use libfuzzer_sys::fuzz_target;
use rustix::net::{RecvFlags, accept, recv};
use smc::Endpoint;
use smc::introspection::{Request, Subject, directories, query};
use smc_core::negotiate::Assume;
use smc_fuzz::Input;
use smc_testkit::memory_device::MemFabric;
use smc_testkit::runtime::VirtualRuntime;
use smc_testkit::unix::{connect_to, listen_at, send_if_possible};

const ALL: [Subject; 6] = [
    Subject::Endpoints,
    Subject::Connections,
    Subject::Listeners,
    Subject::Groups,
    Subject::Devices,
    Subject::Stats,
];

/// The endpoint that answers, its socket and an answer.
static SERVED: LazyLock<Served> = LazyLock::new(Served::new);

struct Served {
    _endpoint: Endpoint,
    _runtime: VirtualRuntime,
    socket: PathBuf,
    answer: Vec<Vec<u8>>,
}

fuzz_target!(|data: &[u8]| {
    let mut input = Input::new(data);
    match input.byte() & 1 {
        0 => request(input.rest()),
        _ => answer(&mut input),
    }
});

/// An answer is complete or one error, whatever was requested.
fn request(packet: &[u8]) {
    // An empty packet is the end of a connection.
    if packet.is_empty() || packet.len() > 8192 {
        return;
    }
    // A client that sends nothing for 0.2 seconds is disconnected, which can happen to this one
    // while the process is stopped.
    let mut answers = (0..3).map(|_| SERVED.ask(packet));
    let lines = answers.find(|lines| !lines.is_empty() || packet.len() > 4096);
    let lines = lines.unwrap_or_default();
    let kind = |line: &[u8]| {
        let record: serde_json::Value = serde_json::from_slice(line).expect("a record in JSON");
        record["record"].as_str().expect("it has a kind").to_owned()
    };
    let kinds: Vec<_> = lines.iter().map(|line| kind(line)).collect();
    match &kinds[..] {
        // Longer than a request may be.
        [] => assert!(packet.len() > 4096),
        [error] => assert_eq!(error, "error"),
        [first, .., last] => assert_eq!((&first[..], &last[..]), ("process", "end")),
    }
}

/// A client takes records that it has requested, up to its limit, or fails.
fn answer(input: &mut Input<'_>) {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("i-1-0123456789abcdef.sock");
    let listener = listen_at(&path);
    let requested = input.byte();
    let what = ALL.into_iter().enumerate();
    let what: Vec<_> = what
        .filter(|(at, _)| requested >> at & 1 != 0)
        .map(|(_, subject)| subject)
        .collect();
    let limit = usize::from(input.u16()) * 256;
    let mut packets = Vec::new();
    while !input.is_empty() && packets.len() < 64 {
        let line = match input.below(8) {
            0 => input.bytes(200).to_vec(),
            at => {
                let usual = &SERVED.answer;
                let usual = &usual[at % usual.len()];
                input.changed(usual)
            }
        };
        packets.push([&line[..], b"\n"].concat());
    }
    let mut permitted = 0;
    let permit = |len| {
        permitted += len;
        permitted <= limit
    };
    let serving = thread::spawn(move || {
        let Ok(client) = accept(&listener) else {
            return;
        };
        let _request = recv(&client, &mut [0; 4096][..], RecvFlags::empty());
        for packet in packets {
            if !send_if_possible(&client, &packet, &[]) {
                return;
            }
        }
    });
    let request = Request::new(&what);
    let records = query(&path, &request, Duration::from_secs(2), permit);
    serving
        .join()
        .expect("it panics for nothing that a client does");
    if let Ok(records) = records {
        assert!(permitted <= limit);
        let subjects: Vec<_> = what.iter().map(name_of).collect();
        let is_requested = |record| {
            let kind = serde_json::to_value(record).expect("it is plain")["record"].clone();
            let kind = kind.as_str().expect("it has a kind").trim_end_matches('s');
            // All answers begin with the process.
            kind == "proce" || subjects.iter().any(|of| of.trim_end_matches('s') == kind)
        };
        assert!(records.iter().all(is_requested));
    }
}

fn name_of(subject: &Subject) -> String {
    let name = serde_json::to_value(subject).expect("it is plain");
    name.as_str().expect("it is a name").to_owned()
}

impl Served {
    fn new() -> Self {
        let runtime = VirtualRuntime::new(1);
        let builder = smc::Builder::new().runtime(runtime.handle());
        let builder = builder.negotiation(Arc::new(Assume::new()));
        let endpoint = builder.device(MemFabric::new(1).device("mem")).build();
        let endpoint = endpoint.expect("all settings make sense");
        let prefix = format!("i-{}-", std::process::id());
        let is_own = |path: &PathBuf| {
            let name = path.file_name().and_then(|name| name.to_str());
            name.is_some_and(|name| name.starts_with(&prefix))
        };
        let find = || {
            let found = directories().found;
            let mut sockets = found.iter().flat_map(|it| it.sockets());
            sockets.find(is_own)
        };
        let pause = || thread::sleep(Duration::from_millis(10));
        let socket = (0..500).find_map(|_| find().or_else(|| (pause(), None).1));
        let mut served = Self {
            _endpoint: endpoint,
            _runtime: runtime,
            socket: socket.expect("the endpoint answers"),
            answer: Vec::new(),
        };
        let request = serde_json::to_vec(&Request::new(&ALL)).expect("it is plain");
        served.answer = served.ask(&request);
        served
    }

    /// The lines of an answer.
    fn ask(&self, packet: &[u8]) -> Vec<Vec<u8>> {
        let client = connect_to(&self.socket);
        send_if_possible(&client, packet, &[]);
        let mut lines = Vec::new();
        let mut answer = vec![0; 1 << 18];
        while let Ok((len @ 1.., _)) = recv(&client, &mut answer[..], RecvFlags::empty()) {
            let packet = answer[..len].split(|byte| *byte == b'\n');
            lines.extend(packet.filter(|line| !line.is_empty()).map(<[u8]>::to_vec));
        }
        lines
    }
}
