//! Processes, machines and servers that end: their peers detect it, others continue.

use std::time::Duration;

use anyhow::{Result, ensure};

use super::call::HELD;
use super::testbed::{At, Served, Testbed};
use super::{WAYS, WORD_TIME};

/// A scenario, for guests of which both are up.
type Scenario = fn(&mut Testbed) -> Result<()>;

/// All scenarios, in their order: after the last one guest A is of no use any more.
pub(super) const ALL: [(&str, Scenario); 4] = [
    ("kill -9 of processes of either side", kill_processes),
    ("a guest is reset", reset_guest),
    ("kill -9 of a guest's QEMU", kill_machine),
    ("the server is replaced", replace_server),
];

/// In all ways, clients and servers, at the same time: what takes long is to notice it in a guest.
fn kill_processes(testbed: &mut Testbed) -> Result<()> {
    let mut kept = Vec::new();
    let mut clients = Vec::new();
    let mut servers = Vec::new();
    let mut doomed = Vec::new();
    for (client, server) in WAYS {
        let serving = testbed.serve(server, WORD_TIME)?;
        clients.push(hold(testbed, client, &serving)?);
        doomed.push(serving.side);
        let serving = testbed.serve(server, WORD_TIME)?;
        doomed.push(hold(testbed, client, &serving)?);
        servers.push((client, serving));
    }
    // One of the survivors has other clients, too.
    if let Some((_, serving)) = servers.first() {
        kept.push(keep(testbed, At::Host, serving)?);
    }
    for side in doomed {
        testbed.kill(side)?;
    }
    for side in clients {
        all_ended(testbed, side)?;
    }
    for (_, serving) in &servers {
        for _ in 0..HELD {
            testbed.await_line(serving.side, "ended broken", DEATH_TIME)?;
        }
    }
    for side in kept {
        goes_on(testbed, side)?;
    }
    // Servers that have lost their clients take others.
    for (client, serving) in servers {
        ping(testbed, client, &serving, Carried::Smc)?;
        testbed.kill(serving.side)?;
    }
    Ok(())
}

/// Its memory is as it was, and its devices take part again.
fn reset_guest(testbed: &mut Testbed) -> Result<()> {
    lose_guest(testbed, |testbed, steady| {
        testbed.reset(At::GuestB)?;
        // The devices are taken again: their earlier peers detect it at once.
        let back = testbed.serve(At::GuestB, WORD_TIME)?;
        ping(testbed, At::GuestB, steady, Carried::Smc)?;
        Ok(Some(back))
    })
}

/// Leaves guest B switched off.
fn kill_machine(testbed: &mut Testbed) -> Result<()> {
    lose_guest(testbed, |testbed, _| {
        testbed.kill_machine(At::GuestB);
        Ok(None)
    })
}

/// Guest B ends while it is client and server; gives a server in it if it is back.
fn lose_guest(
    testbed: &mut Testbed,
    end: impl FnOnce(&mut Testbed, &Served) -> Result<Option<Served>>,
) -> Result<()> {
    let steady = testbed.serve(At::GuestA, WORD_TIME)?;
    let doomed = testbed.serve(At::GuestB, WORD_TIME)?;
    let kept = keep(testbed, At::Host, &steady)?;
    let holding = [
        hold(testbed, At::GuestA, &doomed)?,
        hold(testbed, At::Host, &doomed)?,
    ];
    hold(testbed, At::GuestB, &steady)?;
    let back = end(testbed, &steady)?;
    for side in holding {
        all_ended(testbed, side)?;
    }
    for _ in 0..HELD {
        testbed.await_line(steady.side, "ended broken", DEATH_TIME)?;
    }
    goes_on(testbed, kept)?;
    if let Some(back) = back {
        for client in [At::GuestA, At::Host] {
            ping(testbed, client, &back, Carried::Smc)?;
        }
        testbed.kill(back.side)?;
    }
    testbed.kill(steady.side)
}

/// Guest A is there all the time, guest B comes when there is another server.
fn replace_server(testbed: &mut Testbed) -> Result<()> {
    let inside = testbed.serve(At::GuestA, WORD_TIME)?;
    let outside = testbed.serve(At::Host, WORD_TIME)?;
    let holding = [
        hold(testbed, At::GuestA, &inside)?,
        hold(testbed, At::Host, &inside)?,
        hold(testbed, At::GuestA, &outside)?,
    ];
    let was_marked = testbed.end_server();
    for side in holding {
        all_ended(testbed, side)?;
    }
    for _ in 0..2 * HELD {
        testbed.await_line(inside.side, "ended broken", DEATH_TIME)?;
    }
    testbed.kill(outside.side)?;
    if was_marked {
        // No new fabric can use what is left in guests.
        let late = testbed.start(At::GuestA, &["serve", "127.0.0.1:1"])?;
        let why = "interop: device is gone: the ivshmem server";
        testbed.await_line(late, why, WORD_TIME)?;
    }
    // Endpoints of the old fabric are still reached.
    testbed.start_server()?;
    ping(testbed, At::Host, &inside, Carried::Tcp)?;
    testbed.kill(inside.side)?;
    // Machines that are started now are on the new fabric, with processes of the host.
    testbed.restart_machine(At::GuestB)?;
    let serving = testbed.serve(At::GuestB, WORD_TIME)?;
    ping(testbed, At::Host, &serving, Carried::Smc)?;
    testbed.kill(serving.side)
}

/// What a stream is expected to be on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Carried {
    Smc,
    Tcp,
}

/// Streams to a server that are to end with an error.
fn hold(testbed: &mut Testbed, client: At, server: &Served) -> Result<u32> {
    open(testbed, client, server, "hold", "holding")
}

/// Streams to a server that are to go on.
fn keep(testbed: &mut Testbed, client: At, server: &Served) -> Result<u32> {
    open(testbed, client, server, "keep", "keeping")
}

fn open(testbed: &mut Testbed, client: At, server: &Served, what: &str, word: &str) -> Result<u32> {
    let to = testbed.way(client, server)?;
    let side = testbed.start(client, &[what, &to])?;
    testbed.await_line(side, word, WORD_TIME)?;
    Ok(side)
}

fn all_ended(testbed: &mut Testbed, holding: u32) -> Result<()> {
    let code = testbed.show_until_end(holding, DEATH_TIME)?;
    ensure!(
        code == Some(0),
        "a client does not see the end as it should"
    );
    Ok(())
}

fn goes_on(testbed: &mut Testbed, keeping: u32) -> Result<()> {
    testbed.go(keeping)?;
    let code = testbed.show_until_end(keeping, WORD_TIME)?;
    ensure!(code == Some(0), "streams to others do not go on");
    Ok(())
}

fn ping(testbed: &mut Testbed, client: At, server: &Served, on: Carried) -> Result<()> {
    let to = testbed.way(client, server)?;
    let mut what = vec!["ping", &to];
    if on == Carried::Tcp {
        what.push("--tcp");
    }
    let side = testbed.start(client, &what)?;
    let code = testbed.show_until_end(side, WORD_TIME)?;
    ensure!(code == Some(0), "{client} does not get on with a server");
    Ok(())
}

/// Of a process in a guest, which is noticed after 15 seconds of silence.
const DEATH_TIME: Duration = Duration::from_secs(120);
