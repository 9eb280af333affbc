//! The device under loom: every order of steps, every value that a load may see.
//!
//! What runs is the code itself: registered buffers, the signal page, the driver's list of peers,
//! and the writer's side with its eventfd. Only the driver's wait is missing: a model checks
//! afterwards whether it would have ended. Each model is run again with memory that does less than
//! the code requests, or without a step, and has to fail then.

mod hostile;
mod send_queue;
mod sleep;
mod slots;

use std::os::fd::OwnedFd;
use std::sync::Arc;

use smc_core::device::{Attachment, Dmb, DmbCount, Event, MemoryAccount};
use smc_core::mem::sync::Ordering;
use smc_core::mem::{Element, Region};
use smc_ipc::doorbell::new_eventfd;
use smc_wire::types::Gid;

use crate::active::ActivePeers;
use crate::local_buffers::{LocalBuffers, LoopDmb};
use crate::peer::Peer;
use crate::peer_buffers::{LoopAttachment, Notifier, NotifyBy, PeerBuffers, Target, Tokens};
use crate::pool::PoolLimits;
use crate::send_queue::SendPath;
use crate::signal_page::{self, SignalPage};

/// Both sides of a buffer.
struct Sides {
    /// The owner's.
    peer: Arc<Peer>,
    active: ActivePeers,
    permits: Arc<DmbCount>,
    dmb: LoopDmb,
    eventfd: Arc<OwnedFd>,
    /// The writer's.
    signal_page: SignalPage,
    buffers: PeerBuffers,
    target: Arc<Target>,
    /// That of the signal page.
    memory: Region,
}

impl Sides {
    /// A buffer that both sides know, of an owner that was just notified.
    fn new() -> Self {
        let memory = Region::anonymous(signal_page::LEN);
        let [owners, notifiers, signal_page] =
            [(); 3].map(|()| SignalPage::new(memory.clone()).unwrap());
        let eventfd = Arc::new(new_eventfd().unwrap());
        let account = MemoryAccount::default();
        let local = LocalBuffers::new(
            owners,
            SendPath::Own(Arc::clone(&eventfd)),
            POOL_LIMITS,
            account.clone(),
        );
        let peer = Arc::new(Peer::new(Gid::emulated(1), 1, None, local, None, None));
        let permits = DmbCount::new(8);
        let (mut dmb, new) = (peer.local.register(LEN, permits.take().unwrap())).unwrap();
        let new = new.expect("the first buffer has new memory");
        dmb.set_delivered();

        let owner = Gid::emulated(2);
        let notify_by = NotifyBy::Own(Arc::clone(&eventfd));
        let notifier = Arc::new(Notifier::new(owner, notifiers, notify_by));
        let tokens = Arc::new(Tokens::default());
        let mut buffers = PeerBuffers::new(notifier, Arc::clone(&tokens), Arc::default(), &account);
        buffers.install(new.index, new.number, Ok(new.mapping));
        let target = tokens.find(owner, dmb.token());
        let sides = Self {
            peer,
            active: ActivePeers::default(),
            permits,
            dmb,
            eventfd,
            signal_page,
            buffers,
            target: target.unwrap(),
            memory,
        };
        sides.touch(new.index);
        sides
    }

    /// Has all words and bytes touched before threads share them.
    fn touch(&self, index: u32) {
        let element = Element::new(self.dmb.region().clone()).unwrap();
        element.reset();
        element.write(0, &[0; DATA.len()]).unwrap();
        self.signal_page.set_changed(index);
        self.signal_page.take_changed(usize::MAX, |_| ());
        assert!(self.signal_page.set_ready(index), "a new owner sleeps");
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

    fn reader(&self) -> Reader {
        Reader {
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
    fn doorbell_count(&self) -> u64 {
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
    /// Writes a byte, publishes the count, and signals.
    fn write(&self, count: u8) {
        let at = usize::from(count) - 1;
        self.element.write(at, &[DATA[at]]).unwrap();
        let producer = self.element.producer();
        producer.store(count.into(), Ordering::Release);
        self.attachment.signal().unwrap();
    }
}

/// The local reading half.
struct Reader {
    element: Element,
    seen: u64,
}

impl Reader {
    /// Whether there is something new to read.
    fn poll(&mut self) -> bool {
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
}

/// Longer than what may have been used of memory that is used again.
const LEN: usize = 8192;
const POOL_LIMITS: PoolLimits = PoolLimits {
    buffers: 2,
    bytes: 1 << 20,
};
const DATA: &[u8; 3] = b"abc";
