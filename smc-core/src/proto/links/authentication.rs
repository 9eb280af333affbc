//! Authentication of ACCEPT and CONFIRM by the key of their link group
//! (docs/spec/extensions.md#authentication).

use std::fmt;

use hmac::{Hmac, KeyInit as _, Mac as _};
use sha2::{Digest as _, Sha256};
use smc_wire::clc::Authentication;
use smc_wire::types::{AuthenticationCode, Features, LinkAuthentication, Nonce};

use super::PeerRmb;
use crate::proto::Role;

/// Distinguishes the key from other uses of the key shares.
const KEY_LABEL: &[u8] = b"smc link group authentication 1";

/// Bytes of the client's share, and of its code, in CONFIRM LINK.
const HALF: usize = 4;

/// Hash of PROPOSAL, ACCEPT and CONFIRM of a first contact, as one end has sent and received them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct HandshakeHash([u8; 32]);

impl HandshakeHash {
    /// Of these bytes, one after the other.
    #[must_use]
    pub fn of(messages: &[&[u8]]) -> Self {
        let mut hash = Sha256::new();
        messages.iter().for_each(|message| hash.update(message));
        Self(hash.finalize().into())
    }
}

/// Hash of the nonce and the early data of a PROPOSAL.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct EarlyDataHash([u8; 32]);

impl EarlyDataHash {
    /// Of a PROPOSAL with early data.
    #[must_use]
    pub fn of(nonce: Nonce, data: &[u8]) -> Self {
        let HandshakeHash(hash) = HandshakeHash::of(&[nonce.as_bytes(), data]);
        Self(hash)
    }

    /// Of a PROPOSAL without.
    #[must_use]
    pub fn of_none() -> Self {
        let HandshakeHash(hash) = HandshakeHash::of(&[]);
        Self(hash)
    }
}

/// The part of a message that its code covers besides the RMB.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AuthenticatedPart {
    /// ACCEPT or CONFIRM: which of early CONFIRM and early data are in use on the connection; and
    /// for ACCEPT the number of the early CONFIRM in the PROPOSAL, taken or not. 0 without one.
    InUse(Features, u64),
    /// An early CONFIRM: the early data beside it.
    Early(EarlyDataHash),
}

/// The authentication of an ACCEPT or CONFIRM, before it is known which features the connection
/// uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Authentications {
    /// [`Authentication::number`].
    pub number: u64,
    codes: [AuthenticationCode; 3],
}

impl Authentications {
    /// What can be in use, in the order of the codes.
    const IN_USE: [Features; 3] = [
        Features::empty(),
        Features::EARLY_CONFIRM,
        Features::EARLY_CONFIRM.union(Features::EARLY_DATA),
    ];

    /// With these codes, in the order of the above: for tests.
    #[doc(hidden)]
    #[must_use]
    pub const fn new(number: u64, codes: [AuthenticationCode; 3]) -> Self {
        Self { number, codes }
    }

    /// That of a message that states this; `None` for what cannot be in use.
    #[must_use]
    pub fn of(&self, in_use: Features) -> Option<Authentication> {
        let mut all = Self::IN_USE.iter().zip(self.codes);
        let (_, code) = all.find(|(features, _)| **features == in_use)?;
        let number = self.number;
        Some(Authentication { number, code })
    }
}

/// The key of one link group, which its ends have exchanged on the first link, and the numbers of
/// messages.
///
/// A TCP connection of another process or host can name the group, but has no key. It can relay a
/// message of the peer, once.
pub(super) struct GroupAuthentication {
    role: Role,
    /// Random bytes; a client uses the first half.
    own_share: [u8; 2 * HALF],
    /// There once all messages are.
    first_contact: Option<HandshakeHash>,
    /// There once the peer's share is known.
    key: Option<Hmac<Sha256>>,
    last_sent: u64,
    received: ReceivedNumbers,
}

impl fmt::Debug for GroupAuthentication {
    /// Without what the key is made from.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GroupAuthentication")
            .field("has_key", &self.key.is_some())
            .field("last_sent", &self.last_sent)
            .finish_non_exhaustive()
    }
}

impl GroupAuthentication {
    /// `own_share` is random.
    pub(super) fn new(role: Role, own_share: [u8; 2 * HALF]) -> Self {
        Self {
            role,
            own_share,
            first_contact: None,
            key: None,
            last_sent: 0,
            received: ReceivedNumbers::default(),
        }
    }

    pub(super) fn set_first_contact(&mut self, hash: HandshakeHash) {
        self.first_contact = Some(hash);
    }

    /// What a server sends in its CONFIRM LINK: its share.
    pub(super) fn request(&self) -> LinkAuthentication {
        LinkAuthentication::from_bytes(self.own_share)
    }

    /// Makes a client's key, and what it responds: its share, and a code by which the server sees
    /// that both have the same messages. `None` if the server has sent no share.
    pub(super) fn respond(&mut self, request: LinkAuthentication) -> Option<LinkAuthentication> {
        let [a, b, c, d, ..] = self.own_share;
        let share = [a, b, c, d];
        let key = self.key(request.as_bytes(), share)?;
        let code = finish::<HALF>(of_first_contact(&key));
        self.key = Some(key);
        let [e, f, g, h] = code;
        Some(LinkAuthentication::from_bytes([a, b, c, d, e, f, g, h]))
    }

    /// Makes a server's key. False if the client has another one: it has no share, or has sent or
    /// received other messages than this side.
    pub(super) fn verify_response(&mut self, response: LinkAuthentication) -> bool {
        let [a, b, c, d, code @ ..] = response.as_bytes();
        let Some(key) = self.key(&self.own_share, [*a, *b, *c, *d]) else {
            return false;
        };
        let is_same = of_first_contact(&key).verify_truncated_left(code).is_ok();
        self.key = is_same.then_some(key);
        is_same
    }

    /// `None` for a share of zero, and before the messages are known.
    fn key(&self, server: &[u8; 2 * HALF], client: [u8; HALF]) -> Option<Hmac<Sha256>> {
        let HandshakeHash(hash) = self.first_contact?;
        if *server == [0; 2 * HALF] || client == [0; HALF] {
            return None;
        }
        let key = [KEY_LABEL, server, &client, &hash].concat();
        // A key of any length is possible.
        Hmac::new_from_slice(&key).ok()
    }

    /// For an ACCEPT or CONFIRM that names this RMB of the local end. `early` as
    /// [`AuthenticatedPart::InUse`] has it. `None` without a key.
    pub(super) fn authenticate(&mut self, rmb: &PeerRmb, early: u64) -> Option<Authentications> {
        let number = self.last_sent.checked_add(1)?;
        let key = self.key.as_ref()?;
        let codes = Authentications::IN_USE.map(|in_use| {
            let part = AuthenticatedPart::InUse(in_use, early);
            AuthenticationCode::from_bytes(finish(mac(key, self.role, number, rmb, &part)))
        });
        self.last_sent = number;
        Some(Authentications { number, codes })
    }

    /// The same for an early CONFIRM, with the hash of its early data.
    pub(super) fn authenticate_early(
        &mut self,
        rmb: &PeerRmb,
        data: EarlyDataHash,
    ) -> Option<Authentication> {
        let number = self.last_sent.checked_add(1)?;
        let part = AuthenticatedPart::Early(data);
        let code = mac(self.key.as_ref()?, self.role, number, rmb, &part);
        self.last_sent = number;
        let code = AuthenticationCode::from_bytes(finish(code));
        Some(Authentication { number, code })
    }

    /// Whether the message that named this RMB is from the peer, and was not received before.
    pub(super) fn verify(&mut self, rmb: &PeerRmb) -> bool {
        let (Some(key), Some((stated, part))) = (&self.key, rmb.authentication) else {
            return false;
        };
        let expected = mac(key, self.role.other(), stated.number, rmb, &part);
        let is_authentic = expected
            .verify_truncated_left(stated.code.as_bytes())
            .is_ok();
        is_authentic && self.received.insert(stated.number)
    }
}

/// By this a server sees that the client has the same key.
fn of_first_contact(key: &Hmac<Sha256>) -> Hmac<Sha256> {
    let mut mac = key.clone();
    mac.update(&[2]);
    mac
}

/// The first bytes of the code.
fn finish<const N: usize>(mac: Hmac<Sha256>) -> [u8; N] {
    let mut bytes = [0; N];
    let code = mac.finalize().into_bytes();
    bytes.iter_mut().zip(code).for_each(|(to, from)| *to = from);
    bytes
}

/// Over all that a message says about an end of a further connection, but for its link: key and
/// address of the RMB are those on that link.
fn mac(
    key: &Hmac<Sha256>,
    sender: Role,
    number: u64,
    rmb: &PeerRmb,
    part: &AuthenticatedPart,
) -> Hmac<Sha256> {
    let sender = match (sender, part) {
        (Role::Client, AuthenticatedPart::InUse(..)) => 0,
        (Role::Server, AuthenticatedPart::InUse(..)) => 1,
        (Role::Client, AuthenticatedPart::Early(_)) => 3,
        // Only clients send them.
        (Role::Server, AuthenticatedPart::Early(_)) => 4,
    };
    let mut mac = key.clone();
    mac.update(&[sender]);
    mac.update(&number.to_be_bytes());
    mac.update(&rmb.rkey.0.to_be_bytes());
    mac.update(&rmb.addr.0.to_be_bytes());
    mac.update(&[rmb.index, rmb.size.code()]);
    mac.update(&rmb.token.get().to_be_bytes());
    match part {
        AuthenticatedPart::InUse(in_use, early) => {
            mac.update(&in_use.bits().to_be_bytes());
            mac.update(&early.to_be_bytes());
        }
        AuthenticatedPart::Early(EarlyDataHash(hash)) => mac.update(hash),
    }
    mac
}

/// The numbers of received messages: the highest one, and those below it within a window, as in
/// RFC 4303 (appendix A2). Messages come on TCP connections of their own, so in any order.
#[derive(Debug)]
struct ReceivedNumbers {
    highest: u64,
    /// A bit for each number of the window, by its remainder.
    window: Box<[u64; WORDS]>,
}

/// Two KiB for each group. A message that is later is refused: that costs its stream if it is a
/// CONFIRM, whose client has established the connection. With a retransmission of TCP (200 ms) it
/// takes 80,000 connections per second between two processes.
const WORDS: usize = 256;
const WINDOW: u64 = 16384;

impl Default for ReceivedNumbers {
    fn default() -> Self {
        Self {
            highest: 0,
            window: Box::new([0; WORDS]),
        }
    }
}

impl ReceivedNumbers {
    /// False for a number that is there, or below the window.
    fn insert(&mut self, number: u64) -> bool {
        if self.highest.saturating_sub(number) >= WINDOW || number == 0 {
            return false;
        }
        if number > self.highest {
            let in_window = self.highest.max(number.saturating_sub(WINDOW));
            for new in in_window.saturating_add(1)..=number {
                self.replace(new, false);
            }
            self.highest = number;
        }
        !self.replace(number, true)
    }

    /// Sets the bit of a number, and returns the one before.
    fn replace(&mut self, number: u64, is_received: bool) -> bool {
        let (at, bit) = ((number % WINDOW) / 64, 1 << (number % 64));
        let word = usize::try_from(at).ok();
        let Some(word) = word.and_then(|at| self.window.get_mut(at)) else {
            return true;
        };
        let before = *word & bit != 0;
        match is_received {
            true => *word |= bit,
            false => *word &= !bit,
        }
        before
    }
}

#[cfg(test)]
mod tests {
    use smc_wire::size::SizeCode;
    use smc_wire::types::{AlertToken, Rkey, RmbAddr};

    use super::*;

    fn rmb() -> PeerRmb {
        PeerRmb {
            rkey: Rkey(0x0102_0304),
            addr: RmbAddr(0x1122_3344_5566_7788),
            index: 1,
            size: SizeCode::LINUX_DEFAULT,
            token: AlertToken::new(0x0a0b_0c0d).unwrap(),
            authentication: None,
        }
    }

    /// Of an early CONFIRM without early data.
    const EARLY: AuthenticatedPart = AuthenticatedPart::Early(EarlyDataHash([7; 32]));

    /// That of a message without early CONFIRM.
    fn plain(all: Authentications) -> (Authentication, AuthenticatedPart) {
        let in_use = Features::empty();
        (all.of(in_use).unwrap(), AuthenticatedPart::InUse(in_use, 0))
    }

    fn ends_with(hashes: [HandshakeHash; 2]) -> ([GroupAuthentication; 2], bool) {
        let mut client = GroupAuthentication::new(Role::Client, [1; 8]);
        let mut server = GroupAuthentication::new(Role::Server, [2; 8]);
        client.set_first_contact(hashes[0]);
        server.set_first_contact(hashes[1]);
        let response = client.respond(server.request()).unwrap();
        let is_same = server.verify_response(response);
        ([client, server], is_same)
    }

    fn ends() -> [GroupAuthentication; 2] {
        let (ends, is_same) = ends_with([HandshakeHash([3; 32]); 2]);
        assert!(is_same);
        ends
    }

    #[test]
    fn ends_with_other_messages_of_the_first_contact_have_other_keys() {
        let messages = [&b"PROPOSAL"[..], b"ACCEPT", b"CONFIRM"];
        let changed = [&b"PROPOSAL"[..], b"ACCEPT", b"confirm"];
        let hashes = [&messages, &changed].map(|messages| HandshakeHash::of(messages));
        let ([mut client, mut server], is_same) = ends_with(hashes);
        assert!(!is_same);
        let mut named = rmb();
        named.authentication = client.authenticate(&named, 0).map(plain);
        assert!(!server.verify(&named));
    }

    #[test]
    fn there_is_no_key_without_both_shares_and_all_messages() {
        let mut client = GroupAuthentication::new(Role::Client, [1; 8]);
        assert_eq!(client.respond(LinkAuthentication::from_bytes([2; 8])), None);
        client.set_first_contact(HandshakeHash([3; 32]));
        assert_eq!(client.respond(LinkAuthentication::ZERO), None);
        let mut server = GroupAuthentication::new(Role::Server, [2; 8]);
        server.set_first_contact(HandshakeHash([3; 32]));
        assert!(!server.verify_response(LinkAuthentication::ZERO));
        assert!(!server.verify_response(LinkAuthentication::from_bytes([1; 8])));
        assert_eq!(server.authenticate(&rmb(), 0), None);
    }

    #[test]
    fn a_message_is_taken_from_the_other_end_once() {
        let [mut client, mut server] = ends();
        let mut named = rmb();
        named.authentication = client.authenticate(&named, 0).map(plain);
        assert!(!client.verify(&named), "it is a message of a client");
        assert!(server.verify(&named));
        assert!(!server.verify(&named));
        named.authentication = server.authenticate(&rmb(), 0).map(plain);
        assert!(client.verify(&named));
    }

    /// As computed by another implementation of HMAC (Python's).
    #[test]
    fn the_code_is_that_of_the_specification() {
        let [mut client, _] = ends();
        let (authentication, _) = plain(client.authenticate(&rmb(), 0).unwrap());
        let response = [1, 1, 1, 1, 0x74, 0x00, 0x6d, 0xc2];
        let request = LinkAuthentication::from_bytes([2; 8]);
        let response = LinkAuthentication::from_bytes(response);
        assert_eq!(client.respond(request), Some(response));
        assert_eq!(authentication.number, 1);
        assert_eq!(
            authentication.code.to_string(),
            "def24dec47d5f98e33f38eac456c797a"
        );
        let [mut client, _] = ends();
        let data = EarlyDataHash::of(Nonce::from_bytes([5; 16]), b"data");
        let authentication = client.authenticate_early(&rmb(), data).unwrap();
        assert_eq!(
            authentication.code.to_string(),
            "244c326ad3b3c63b49a94e465087a722"
        );
    }

    #[test]
    fn whatever_is_changed_the_message_is_refused() {
        let [mut client, mut server] = ends();
        let mut named = rmb();
        named.authentication = client.authenticate(&named, 0).map(plain);
        let changes: [fn(&mut PeerRmb); 11] = [
            // The PROPOSAL had an early CONFIRM, as far as the server has seen.
            |rmb| {
                let part = &mut rmb.authentication.as_mut().unwrap().1;
                *part = AuthenticatedPart::InUse(Features::empty(), 7);
            },
            |rmb| rmb.rkey.0 += 1,
            |rmb| rmb.addr.0 += 1,
            |rmb| rmb.index += 1,
            |rmb| rmb.size = SizeCode::MAX,
            |rmb| rmb.token = AlertToken::new(1).unwrap(),
            |rmb| rmb.authentication = None,
            |rmb| rmb.authentication.as_mut().unwrap().1 = EARLY,
            |rmb| {
                let part = &mut rmb.authentication.as_mut().unwrap().1;
                *part = AuthenticatedPart::InUse(Features::EARLY_CONFIRM, 0);
            },
            |rmb| rmb.authentication.as_mut().unwrap().0.number += 1,
            |rmb| {
                let code = &mut rmb.authentication.as_mut().unwrap().0.code;
                let mut bytes = *code.as_bytes();
                bytes[15] ^= 1;
                *code = AuthenticationCode::from_bytes(bytes);
            },
        ];
        for (at, change) in changes.into_iter().enumerate() {
            let mut changed = named;
            change(&mut changed);
            assert!(!server.verify(&changed), "change {at}");
        }
        assert!(server.verify(&named));
    }

    #[test]
    fn an_early_confirm_has_a_code_of_its_own_which_covers_the_data() {
        let [mut client, mut server] = ends();
        let mut named = rmb();
        let data = EarlyDataHash::of(Nonce::from_bytes([5; 16]), b"data");
        let authentication = client.authenticate_early(&named, data).unwrap();
        let others = [
            AuthenticatedPart::InUse(Features::empty(), 0),
            AuthenticatedPart::InUse(Features::EARLY_CONFIRM, 0),
            EARLY,
            AuthenticatedPart::Early(EarlyDataHash::of(Nonce::from_bytes([5; 16]), b"DATA")),
            AuthenticatedPart::Early(EarlyDataHash::of(Nonce::from_bytes([6; 16]), b"data")),
        ];
        for part in others {
            named.authentication = Some((authentication, part));
            assert!(!server.verify(&named), "{part:?}");
        }
        named.authentication = Some((authentication, AuthenticatedPart::Early(data)));
        assert!(server.verify(&named));
        assert!(!server.verify(&named));
    }

    #[test]
    fn an_accept_has_a_code_for_each_set_of_features() {
        let [mut client, mut server] = ends();
        let mut named = rmb();
        let all = server.authenticate(&named, 0).unwrap();
        let mut codes = Vec::new();
        for in_use in Authentications::IN_USE {
            let authentication = all.of(in_use).unwrap();
            assert_eq!(authentication.number, all.number);
            assert!(!codes.contains(&authentication.code));
            codes.push(authentication.code);
        }
        assert_eq!(all.of(Features::EARLY_DATA), None);
        let in_use = Features::EARLY_CONFIRM;
        let part = AuthenticatedPart::InUse(in_use, 0);
        named.authentication = Some((all.of(in_use).unwrap(), part));
        assert!(client.verify(&named));
    }

    #[test]
    fn numbers_come_in_any_order_within_the_window_and_once() {
        let mut received = ReceivedNumbers::default();
        assert!(!received.insert(0));
        for number in [5, 3, 4, 1, 2] {
            assert!(received.insert(number), "{number}");
        }
        assert!((0..=5).all(|number| !received.insert(number)));
        assert!(received.insert(5 + WINDOW));
        assert!(!received.insert(5), "it is below the window");
        assert!(received.insert(6));
        assert!(received.insert(100 * WINDOW));
        for number in 99 * WINDOW + 1..100 * WINDOW {
            assert!(received.insert(number), "{number}");
            assert!(!received.insert(number), "{number}");
        }
        assert!(received.insert(u64::MAX));
        assert!(!received.insert(u64::MAX));
        assert!(received.insert(u64::MAX - 1));
    }
}
