//! A driver that sleeps while a peer writes: the write is reported, or the driver is notified.

use std::os::fd::{AsFd as _, BorrowedFd};
use std::sync::Arc;

use loom::thread;
use smc_core::device::{DeviceError, Dmb as _, Limits};
use smc_core::mem::Region;
use smc_core::mem::sync::model::{Mutation, check, with};
use smc_ipc::doorbell::Doorbell;
use smc_wire::types::Gid;

use super::{LEN, OPTIONS};
use crate::fabric::{ConnectError, FabricOps};
use crate::node::Node;
use crate::shared::{FabricMemory, GRANULE, Tag};

#[test]
fn a_driver_that_sleeps_is_notified() {
    sleeps(None, None, true);
}

#[test]
#[should_panic(expected = "neither reported nor notified")]
fn a_writer_out_of_order_does_not_see_that_the_driver_sleeps() {
    sleeps(Some(Mutation::NoSeqCst), None, true);
}

#[test]
#[should_panic(expected = "neither reported nor notified")]
fn a_driver_that_sleeps_out_of_order_does_not_see_what_was_written() {
    sleeps(None, Some(Mutation::NoSeqCst), true);
}

#[test]
#[should_panic(expected = "neither reported nor notified")]
fn a_driver_has_to_drain_again() {
    sleeps(None, None, false);
}

/// The driver drains, requests a notification, and drains again, while the peer signals once.
fn sleeps(writing: Option<Mutation>, sleeping: Option<Mutation>, drains_again: bool) {
    check(move || {
        let memory = FabricMemory::create(Region::anonymous(LEN), OPTIONS).unwrap();
        let fabric = Arc::new(Fabric {
            memory: Arc::new(memory),
            doorbells: [(); 2].map(|()| Doorbell::new().unwrap()),
        });
        let [owner, writer] = [0, 1].map(|slot| {
            let ops = Arc::clone(&fabric);
            Node::join(ops, slot, Gid::new(7, slot.into()), Limits::new(1, GRANULE)).unwrap()
        });
        let dmb = owner.register(writer.gid, GRANULE).unwrap();
        let (target, used) = writer.attach(owner.gid, dmb.token()).unwrap();
        // Accesses all words before threads share them.
        dmb.arm();
        writer.signal(target);
        while drain(&owner) {}
        fabric.take_notification(owner.tag);

        dmb.arm();
        let signals = {
            let writer = Arc::clone(&writer);
            thread::spawn(move || with(writing, || writer.signal(target)))
        };
        let is_reported = with(sleeping, || {
            drain(&owner) || {
                owner.arm().unwrap();
                drains_again && drain(&owner)
            }
        });
        signals.join().unwrap();
        if !is_reported {
            let is_notified = fabric.take_notification(owner.tag);
            assert!(is_notified, "neither reported nor notified");
            assert!(drain(&owner), "notified without an event");
        }
        drop(used);
    });
}

/// Whether there were events.
fn drain(node: &Node) -> bool {
    let mut events = Vec::new();
    node.drain(&mut events).unwrap();
    !events.is_empty()
}

/// Both ends of a fabric, with a doorbell for each slot.
#[derive(Debug)]
struct Fabric {
    memory: Arc<FabricMemory>,
    doorbells: [Doorbell; 2],
}

impl Fabric {
    fn take_notification(&self, of: Tag) -> bool {
        let mut is_notified = false;
        let doorbell = &self.doorbells[usize::from(of.slot)];
        doorbell.poll(|_| is_notified = true).unwrap();
        is_notified
    }
}

impl FabricOps for Fabric {
    fn memory(&self) -> &Arc<FabricMemory> {
        &self.memory
    }

    fn connect_peer(&self, _: Tag) -> Result<(), ConnectError> {
        Ok(())
    }

    fn notify(&self, peer: Tag) {
        self.doorbells[usize::from(peer.slot)].notify_self();
    }

    fn poll_events(&self, _: &mut dyn FnMut(Tag)) -> Result<(), DeviceError> {
        Ok(())
    }

    fn doorbell(&self) -> BorrowedFd<'_> {
        self.doorbells[0].as_fd()
    }
}
