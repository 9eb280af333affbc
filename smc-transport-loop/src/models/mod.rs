//! The device under loom: every order of steps, every value that a load may see.
//!
//! What runs is the code itself: registered buffers, the bell, the driver's list of peers, and the
//! ringer's side with its eventfd. Only the driver's wait is missing: a model looks afterwards
//! whether it would have ended. Each model is run again with memory that does less
//! than the code asks for, or without a step, and has to fail then.

mod sleep;
mod slots;

use std::os::fd::OwnedFd;
use std::sync::Arc;

use smc_core::device::{Attachment, Dmb, Event, MemoryAccount};
use smc_core::mem::sync::Ordering;
use smc_core::mem::{Element, Region};
use smc_wire::types::Gid;

use crate::active::Active;
use crate::bell::{self, Bell};
use crate::doorbell::new_eventfd;
use crate::outbox::Way;
use crate::peer::Peer;
use crate::pool::Keep;
use crate::registry::{LoopDmb, Owner, Permits};
use crate::remote::{LoopAttachment, Remote, RingWith, Ringer, Target, Tokens};

/// Both sides of a buffer.
struct Sides {
    /// The owner's.
    peer: Arc<Peer>,
    active: Active,
    permits: Arc<Permits>,
    dmb: LoopDmb,
    eventfd: Arc<OwnedFd>,
    /// The ringer's.
    bell: Bell,
    target: Arc<Target>,
}

impl Sides {
    /// A buffer that both sides know, of an owner who has just been rung.
    fn new() -> Self {
        let memory = Region::anonymous(bell::LEN);
        let [owners, ringers, bell] = [(); 3].map(|()| Bell::new(memory.clone()).unwrap());
        let eventfd = Arc::new(new_eventfd().unwrap());
        let account = MemoryAccount::default();
        let owner = Owner::new(
            owners,
            Way::Own(Arc::clone(&eventfd)),
            KEEP,
            account.clone(),
        );
        let peer = Arc::new(Peer::new(Gid::emulated(1), 1, None, owner, None, None));
        let permits = Permits::new(8, account.clone());
        let (dmb, new) = (peer.owner.register(LEN, permits.take().unwrap())).unwrap();
        let new = new.expect("the first buffer has new memory");
        dmb.set_delivered();

        let with = RingWith::Eventfd(Arc::clone(&eventfd));
        let ringer = Arc::new(Ringer::new(Gid::emulated(2), ringers, with));
        let tokens = Arc::new(Tokens::default());
        let mut remote = Remote::new(ringer, Arc::clone(&tokens), &account);
        remote.install(new.index, new.number, Ok(new.mapping));
        let target = tokens.with(dmb.token(), |target| Ok(Arc::clone(target)));
        let sides = Self {
            peer,
            active: Active::default(),
            permits,
            dmb,
            eventfd,
            bell,
            target: target.unwrap(),
        };
        sides.touch(new.index);
        sides
    }

    /// Has all words and bytes touched before threads share them.
    fn touch(&self, index: u32) {
        let element = Element::new(self.dmb.region().clone()).unwrap();
        element.reset();
        element.write(0, &[0; DATA.len()]).unwrap();
        self.bell.set_fresh(index);
        self.bell.take_fresh(|_| ());
        assert!(self.bell.set_ready(index), "a new owner sleeps");
        self.active.add(&self.peer);
        self.active.collect(&mut Vec::new());
    }

    fn attach(&self) -> Writer {
        let attachment = self.target.attach().unwrap();
        let element = Element::new(attachment.region().clone()).unwrap();
        Writer {
            element,
            attachment,
        }
    }

    fn reader(&self) -> Reader<'_> {
        Reader {
            dmb: &self.dmb,
            element: Element::new(self.dmb.region().clone()).unwrap(),
            seen: 0,
        }
    }

    /// What the driver does before it waits; whether the buffer was reported.
    fn drive(&self) -> bool {
        if self.collect() {
            return true;
        }
        self.active.arm();
        self.collect()
    }

    fn collect(&self) -> bool {
        let mut events = Vec::new();
        self.active.collect(&mut events);
        assert!(events.len() <= 1, "reported twice");
        let token = self.dmb.token();
        let is_ours = |event: &Event| *event == Event::Signalled(token);
        assert!(events.iter().all(is_ours), "reported something else");
        !events.is_empty()
    }

    /// How often the doorbell was rung, which ends the driver's wait; once the threads have ended.
    fn rung(&self) -> u64 {
        let mut count = [0; 8];
        match rustix::io::read(&self.eventfd, &mut count) {
            Ok(_) => u64::from_ne_bytes(count),
            Err(_) => 0,
        }
    }
}

/// The peer's writing half.
struct Writer {
    element: Element,
    attachment: LoopAttachment,
}

impl Writer {
    /// Writes a byte, shows how many there are now, and tells.
    fn write(&self, count: u8) {
        let at = usize::from(count) - 1;
        self.element.write(at, &[DATA[at]]).unwrap();
        let producer = self.element.producer();
        producer.store(count.into(), Ordering::Release);
        self.attachment.signal().unwrap();
    }
}

/// Our reading half.
struct Reader<'a> {
    dmb: &'a LoopDmb,
    element: Element,
    seen: u64,
}

impl Reader<'_> {
    /// Whether there is something new to read.
    fn look(&mut self) -> bool {
        let count = self.element.producer().load(Ordering::Acquire);
        if count == self.seen {
            return false;
        }
        self.seen = count;
        let count = usize::try_from(count).unwrap();
        let mut data = [0; DATA.len()];
        self.element.read(0, &mut data[..count]).unwrap();
        assert_eq!(data[..count], DATA[..count]);
        true
    }

    /// The last thing that a half does before its task sleeps.
    fn arm_and_look(&mut self) -> bool {
        self.dmb.arm();
        self.look()
    }
}

/// Longer than what is kept of an unused buffer.
const LEN: usize = 8192;
const KEEP: Keep = Keep {
    buffers: 2,
    bytes: 1 << 20,
};
const DATA: &[u8; 3] = b"abc";
