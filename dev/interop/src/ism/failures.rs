//! Processes, machines and servers that end: their peers detect it, others continue.

use std::time::Duration;

use anyhow::{Result, ensure};

use super::call::HELD;
use super::stage::{At, Served, Stage};
use super::{WAYS, WORD_TIME};

/// A scene, for guests of which both are up.
type Scene = fn(&mut Stage) -> Result<()>;

/// All scenes, in their order: after the last one guest A is of no use any more.
pub(super) const ALL: [(&str, Scene); 4] = [
    ("kill -9 of processes of either side", kill_processes),
    ("a guest is reset", reset_guest),
    ("kill -9 of a guest's QEMU", kill_machine),
    ("the server is replaced", replace_server),
];

/// In all ways, clients and servers, at the same time: what takes long is to notice it in a guest.
fn kill_processes(stage: &mut Stage) -> Result<()> {
    let mut kept = Vec::new();
    let mut clients = Vec::new();
    let mut servers = Vec::new();
    let mut doomed = Vec::new();
    for (client, server) in WAYS {
        let serving = stage.serve(server, WORD_TIME)?;
        clients.push(hold(stage, client, &serving)?);
        doomed.push(serving.side);
        let serving = stage.serve(server, WORD_TIME)?;
        doomed.push(hold(stage, client, &serving)?);
        servers.push((client, serving));
    }
    // One of the survivors has other clients, too.
    if let Some((_, serving)) = servers.first() {
        kept.push(keep(stage, At::Host, serving)?);
    }
    for side in doomed {
        stage.kill(side)?;
    }
    for side in clients {
        all_ended(stage, side)?;
    }
    for (_, serving) in &servers {
        for _ in 0..HELD {
            stage.await_line(serving.side, "ended broken", DEATH_TIME)?;
        }
    }
    for side in kept {
        goes_on(stage, side)?;
    }
    // Servers that have lost their clients take others.
    for (client, serving) in servers {
        ping(stage, client, &serving, Carried::Smc)?;
        stage.kill(serving.side)?;
    }
    Ok(())
}

/// Its memory is as it was, and its devices take part again.
fn reset_guest(stage: &mut Stage) -> Result<()> {
    lose_guest(stage, |stage, steady| {
        stage.reset(At::GuestB)?;
        // The devices are taken again: their earlier peers detect it at once.
        let back = stage.serve(At::GuestB, WORD_TIME)?;
        ping(stage, At::GuestB, steady, Carried::Smc)?;
        Ok(Some(back))
    })
}

/// Leaves guest B switched off.
fn kill_machine(stage: &mut Stage) -> Result<()> {
    lose_guest(stage, |stage, _| {
        stage.kill_machine(At::GuestB);
        Ok(None)
    })
}

/// Guest B ends while it is client and server; gives a server in it if it is back.
fn lose_guest(
    stage: &mut Stage,
    end: impl FnOnce(&mut Stage, &Served) -> Result<Option<Served>>,
) -> Result<()> {
    let steady = stage.serve(At::GuestA, WORD_TIME)?;
    let doomed = stage.serve(At::GuestB, WORD_TIME)?;
    let kept = keep(stage, At::Host, &steady)?;
    let holding = [
        hold(stage, At::GuestA, &doomed)?,
        hold(stage, At::Host, &doomed)?,
    ];
    hold(stage, At::GuestB, &steady)?;
    let back = end(stage, &steady)?;
    for side in holding {
        all_ended(stage, side)?;
    }
    for _ in 0..HELD {
        stage.await_line(steady.side, "ended broken", DEATH_TIME)?;
    }
    goes_on(stage, kept)?;
    if let Some(back) = back {
        for client in [At::GuestA, At::Host] {
            ping(stage, client, &back, Carried::Smc)?;
        }
        stage.kill(back.side)?;
    }
    stage.kill(steady.side)
}

/// Guest A is there all the time, guest B comes when there is another server.
fn replace_server(stage: &mut Stage) -> Result<()> {
    let inside = stage.serve(At::GuestA, WORD_TIME)?;
    let outside = stage.serve(At::Host, WORD_TIME)?;
    let holding = [
        hold(stage, At::GuestA, &inside)?,
        hold(stage, At::Host, &inside)?,
        hold(stage, At::GuestA, &outside)?,
    ];
    let was_marked = stage.end_server();
    for side in holding {
        all_ended(stage, side)?;
    }
    for _ in 0..2 * HELD {
        stage.await_line(inside.side, "ended broken", DEATH_TIME)?;
    }
    stage.kill(outside.side)?;
    if was_marked {
        // No new fabric can use what is left in guests.
        let late = stage.start(At::GuestA, &["serve", "127.0.0.1:1"])?;
        let why = "interop: device is gone: the ivshmem server";
        stage.await_line(late, why, WORD_TIME)?;
    }
    // Endpoints of the old fabric are still reached.
    stage.start_server()?;
    ping(stage, At::Host, &inside, Carried::Tcp)?;
    stage.kill(inside.side)?;
    // Machines that are started now are on the new fabric, with processes of the host.
    stage.restart_machine(At::GuestB)?;
    let serving = stage.serve(At::GuestB, WORD_TIME)?;
    ping(stage, At::Host, &serving, Carried::Smc)?;
    stage.kill(serving.side)
}

/// What a stream is expected to be on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Carried {
    Smc,
    Tcp,
}

/// Streams to a server that are to end with an error.
fn hold(stage: &mut Stage, client: At, server: &Served) -> Result<u32> {
    open(stage, client, server, "hold", "holding")
}

/// Streams to a server that are to go on.
fn keep(stage: &mut Stage, client: At, server: &Served) -> Result<u32> {
    open(stage, client, server, "keep", "keeping")
}

fn open(stage: &mut Stage, client: At, server: &Served, what: &str, word: &str) -> Result<u32> {
    let to = stage.way(client, server)?;
    let side = stage.start(client, &[what, &to])?;
    stage.await_line(side, word, WORD_TIME)?;
    Ok(side)
}

fn all_ended(stage: &mut Stage, holding: u32) -> Result<()> {
    let code = stage.show_until_end(holding, DEATH_TIME)?;
    ensure!(
        code == Some(0),
        "a client does not see the end as it should"
    );
    Ok(())
}

fn goes_on(stage: &mut Stage, keeping: u32) -> Result<()> {
    stage.go(keeping)?;
    let code = stage.show_until_end(keeping, WORD_TIME)?;
    ensure!(code == Some(0), "streams to others do not go on");
    Ok(())
}

fn ping(stage: &mut Stage, client: At, server: &Served, on: Carried) -> Result<()> {
    let to = stage.way(client, server)?;
    let mut what = vec!["ping", &to];
    if on == Carried::Tcp {
        what.push("--tcp");
    }
    let side = stage.start(client, &what)?;
    let code = stage.show_until_end(side, WORD_TIME)?;
    ensure!(code == Some(0), "{client} does not get on with a server");
    Ok(())
}

/// Of a process in a guest, which is noticed after 15 seconds of silence.
const DEATH_TIME: Duration = Duration::from_secs(120);
