//! Buffers that are withdrawn while a peer writes them, under loom: every order of steps, every
//! value that a load may see. Each model is run again with weaker memory orderings than the code
//! requests, and has to fail then.

mod sleep;

use std::io::IoSlice;
use std::sync::Arc;

use loom::thread;
use smc_core::device::SubmitError;
use smc_core::mem::Region;
use smc_core::mem::sync::model::{Mutation, check, with};
use smc_wire::types::{DmbToken, Gid};

use crate::shared::{FabricMemory, FabricOptions, GranuleRun, Tag, join};

#[test]
fn memory_is_reused_only_after_a_move() {
    uses(None, None, &[FabricMemory::moves]);
}

#[test]
#[should_panic(expected = "Causality violation")]
fn a_write_lock_that_is_taken_out_of_order_is_not_seen() {
    uses(Some(Mutation::NoSeqCst), None, &[FabricMemory::moves]);
}

#[test]
#[should_panic(expected = "Causality violation")]
fn an_owner_that_withdraws_out_of_order_does_not_see_a_write_lock() {
    uses(None, Some(Mutation::NoSeqCst), &[FabricMemory::moves]);
}

#[test]
#[should_panic(expected = "Causality violation")]
fn a_write_lock_that_is_freed_without_release_races() {
    uses(Some(Mutation::NoRelease), None, &[FabricMemory::moves]);
}

#[test]
#[should_panic(expected = "Causality violation")]
fn an_owner_without_acquire_races_with_the_last_move() {
    uses(None, Some(Mutation::NoAcquire), &[FabricMemory::moves]);
}

#[test]
fn memory_is_reused_only_after_a_longer_use() {
    uses(None, None, &[FabricMemory::stays]);
}

#[test]
#[should_panic(expected = "Causality violation")]
fn a_use_that_begins_out_of_order_is_not_seen() {
    uses(Some(Mutation::NoSeqCst), None, &[FabricMemory::stays]);
}

#[test]
#[should_panic(expected = "Causality violation")]
fn a_use_that_ends_without_release_races() {
    uses(Some(Mutation::NoRelease), None, &[FabricMemory::stays]);
}

#[test]
fn memory_is_reused_only_after_two_moves() {
    uses(None, None, &[FabricMemory::moves, FabricMemory::moves]);
}

#[test]
#[should_panic(expected = "Causality violation")]
fn of_two_moves_one_that_begins_out_of_order_is_not_seen() {
    uses(
        Some(Mutation::NoSeqCst),
        None,
        &[FabricMemory::moves, FabricMemory::moves],
    );
}

/// One way to write a byte of a buffer.
type Write = fn(&FabricMemory, DmbToken, Tag, GranuleRun, usize) -> Result<(), SubmitError>;

impl FabricMemory {
    fn moves(
        &self,
        token: DmbToken,
        writer: Tag,
        _: GranuleRun,
        at: usize,
    ) -> Result<(), SubmitError> {
        self.with_access(token, writer, |target, _| {
            self.write(target.run, at as u32, &[IoSlice::new(&[1])])
        })
    }

    fn stays(
        &self,
        token: DmbToken,
        writer: Tag,
        run: GranuleRun,
        at: usize,
    ) -> Result<(), SubmitError> {
        let target = self.begin_use(token, writer)?;
        self.write(target.run, at as u32, &[IoSlice::new(&[1])])?;
        self.end_use(run.first, writer);
        Ok(())
    }
}

/// The owner withdraws a buffer, and writes there itself when it has no user, while threads of a
/// peer write it.
fn uses(using: Option<Mutation>, owning: Option<Mutation>, writes: &'static [Write]) {
    check(move || {
        let memory = Arc::new(FabricMemory::create(Region::anonymous(LEN), OPTIONS).unwrap());
        let [owner, writer] = [0, 1].map(|n| join(&memory, n, Gid::new(7, n.into())).unwrap());
        let run = memory.allocate(owner, 0).unwrap();
        let token = memory.offer(run, writer).unwrap();
        // Accesses all words and bytes before threads share them.
        for at in 0..writes.len() {
            for write in [FabricMemory::moves, FabricMemory::stays] {
                write(&memory, token, writer, run, at).unwrap();
            }
        }
        assert!(!memory.is_used(run.first));

        let writers: Vec<_> = (writes.iter().enumerate())
            .map(|(at, write)| {
                let memory = Arc::clone(&memory);
                thread::spawn(move || {
                    with(using, || match write(&memory, token, writer, run, at) {
                        Ok(()) | Err(SubmitError::UnknownToken) => {}
                        Err(error) => panic!("{error}"),
                    });
                })
            })
            .collect();
        with(owning, || {
            memory.withdraw(run);
            if !memory.is_used(run.first) {
                let mark = [IoSlice::new(&[2; 2][..writes.len()])];
                memory.write(run, 0, &mark).unwrap();
            }
        });
        for writer in writers {
            writer.join().unwrap();
        }
        assert!(!memory.is_used(run.first), "a use that does not end");
    });
}

const LEN: usize = 160 << 10;
const OPTIONS: FabricOptions = FabricOptions {
    slots: 2,
    nocopy: false,
};
