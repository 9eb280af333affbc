//! The close sequence of a connection: both ends, whose flags arrive late and in any number
//! together, and an end whose peer sends any flags.

#![no_main]

use libfuzzer_sys::fuzz_target;
use smc_core::proto::conn::{Closing, ReadEnd, WriteEnd};
use smc_fuzz::Input;
use smc_wire::cdc::StateFlags;

fuzz_target!(|data: &[u8]| {
    let mut input = Input::new(data);
    let mut ends = [End::default(), End::default()];
    let mut is_honest = true;
    while !input.is_empty() {
        let step = input.byte();
        let at = usize::from(step >> 7);
        let end = &mut ends[at];
        let discard = step & 8 != 0;
        match step & 7 {
            0 => end.change(Closing::shutdown_write),
            1 => end.change(|closing| closing.shutdown_both(discard)),
            2 => end.change(|closing| closing.close(discard)),
            3 => end.change(Closing::abort),
            4 => end.change(Closing::abort_or_close),
            5 | 6 => {
                let flags = end.sent;
                ends[1 - at].receive(flags);
            }
            _ => {
                is_honest = false;
                end.receive(StateFlags::from_bits_retain(input.byte()));
            }
        }
    }
    // Both applications close, and everything arrives.
    for end in &mut ends {
        end.change(|closing| closing.close(false));
    }
    for at in [0, 1, 0, 1] {
        let flags = ends[at].sent;
        ends[1 - at].receive(flags);
    }
    for end in &mut ends {
        if !is_honest {
            // The flags of such a peer may never come: its link group ends.
            end.change(Closing::abort);
        }
        assert!(end.closing.is_removable(), "{:?}", end.closing);
        assert_ne!(end.closing.write_end(), WriteEnd::Open);
    }
});

#[derive(Default)]
struct End {
    closing: Closing,
    /// Flags that this end has sent.
    sent: StateFlags,
}

impl End {
    fn change(&mut self, change: impl FnOnce(&mut Closing) -> Option<StateFlags>) {
        self.checked(|end| {
            if let Some(flags) = change(&mut end.closing) {
                assert!(flags.contains(end.sent), "a flag is cleared");
                assert_ne!(flags, end.sent, "nothing is new");
                end.sent = flags;
            }
        });
    }

    fn receive(&mut self, flags: StateFlags) {
        self.checked(|end| {
            end.closing.handle_peer(flags);
            assert!(!end.closing.handle_peer(flags), "they are new once");
        });
    }

    /// What has ended does not open again, and an end that can be removed stays so.
    fn checked(&mut self, step: impl FnOnce(&mut Self)) {
        let before = self.closing.clone();
        step(self);
        let after = &self.closing;
        assert!(!before.is_removable() || after.is_removable());
        assert!(before.read_end() == ReadEnd::Open || after.read_end() != ReadEnd::Open);
        assert!(before.write_end() == WriteEnd::Open || after.write_end() != WriteEnd::Open);
        assert!(!before.is_app_closed() || after.is_app_closed());
        let finals = StateFlags::CLOSED | StateFlags::ABORTED;
        assert_ne!(self.sent & finals, finals, "closed and aborted");
    }
}
