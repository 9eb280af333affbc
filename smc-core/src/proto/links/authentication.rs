//! Authentication of ACCEPT and CONFIRM by the key of their link group
//! (docs/spec/extensions.md#authentication).

use hmac::{Hmac, KeyInit as _, Mac as _};
use sha2::Sha256;
use smc_wire::clc::Authentication;
use smc_wire::types::{AuthenticationCode, KeyShare};

use super::PeerRmb;
use crate::proto::Role;

/// Distinguishes the key from other uses of the key shares.
const KEY_LABEL: &[u8] = b"smc link group authentication 1";

/// The key of one link group, which its ends have exchanged on the first link, and the numbers of
/// messages.
///
/// A TCP connection of another process or host can name the group, but has no key. It can relay a
/// message of the peer, once.
#[derive(Debug)]
pub(super) struct GroupAuthentication {
    role: Role,
    own_share: KeyShare,
    /// There once the peer's share is known.
    key: Option<Hmac<Sha256>>,
    last_sent: u64,
    received: ReceivedNumbers,
}

impl GroupAuthentication {
    /// `own_share` is random.
    pub(super) fn new(role: Role, own_share: KeyShare) -> Self {
        Self {
            role,
            own_share,
            key: None,
            last_sent: 0,
            received: ReceivedNumbers::default(),
        }
    }

    pub(super) fn own_share(&self) -> KeyShare {
        self.own_share
    }

    /// Makes the key.
    pub(super) fn set_peer_share(&mut self, peer: KeyShare) {
        let (client, server) = match self.role {
            Role::Client => (self.own_share, peer),
            Role::Server => (peer, self.own_share),
        };
        let key = [KEY_LABEL, client.as_bytes(), server.as_bytes()].concat();
        // A key of any length is possible.
        self.key = Hmac::new_from_slice(&key).ok();
    }

    /// For a message that names this RMB of the local end. `None` without a key.
    pub(super) fn authenticate(&mut self, rmb: &PeerRmb) -> Option<Authentication> {
        let number = self.last_sent.checked_add(1)?;
        let code = mac(self.key.as_ref()?, self.role, number, rmb);
        self.last_sent = number;
        let mut bytes = [0; 16];
        // The first half of the code.
        let code = code.finalize().into_bytes();
        bytes.iter_mut().zip(code).for_each(|(to, from)| *to = from);
        let code = AuthenticationCode::from_bytes(bytes);
        Some(Authentication { number, code })
    }

    /// Whether the message that named this RMB is from the peer, and was not received before.
    pub(super) fn verify(&mut self, rmb: &PeerRmb) -> bool {
        let (Some(key), Some(stated)) = (&self.key, rmb.authentication) else {
            return false;
        };
        let expected = mac(key, self.role.other(), stated.number, rmb);
        let is_authentic = expected
            .verify_truncated_left(stated.code.as_bytes())
            .is_ok();
        is_authentic && self.received.insert(stated.number)
    }
}

/// Over all that a message says about an end of a further connection, but for its link: key and
/// address of the RMB are those on that link.
fn mac(key: &Hmac<Sha256>, sender: Role, number: u64, rmb: &PeerRmb) -> Hmac<Sha256> {
    let sender = match sender {
        Role::Client => 0,
        Role::Server => 1,
    };
    let mut mac = key.clone();
    mac.update(&[sender]);
    mac.update(&number.to_be_bytes());
    mac.update(&rmb.rkey.0.to_be_bytes());
    mac.update(&rmb.addr.0.to_be_bytes());
    mac.update(&[rmb.index, rmb.size.code()]);
    mac.update(&rmb.token.get().to_be_bytes());
    mac
}

/// The numbers of received messages: the highest one, and those below it within a window, as in
/// RFC 4303 (appendix A2). Messages come on TCP connections of their own, so in any order.
#[derive(Debug, Default)]
struct ReceivedNumbers {
    highest: u64,
    /// A bit for each number of the window, by its remainder.
    window: [u64; 16],
}

const WINDOW: u64 = 1024;

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

    fn ends() -> [GroupAuthentication; 2] {
        let shares = [[1; 7], [2; 7]].map(KeyShare::from_bytes);
        let mut client = GroupAuthentication::new(Role::Client, shares[0]);
        let mut server = GroupAuthentication::new(Role::Server, shares[1]);
        client.set_peer_share(shares[1]);
        server.set_peer_share(shares[0]);
        [client, server]
    }

    #[test]
    fn a_message_is_taken_from_the_other_end_once() {
        let [mut client, mut server] = ends();
        let mut named = rmb();
        named.authentication = client.authenticate(&named);
        assert!(!client.verify(&named), "it is a message of a client");
        assert!(server.verify(&named));
        assert!(!server.verify(&named));
        named.authentication = server.authenticate(&rmb());
        assert!(client.verify(&named));
    }

    /// As computed by another implementation of HMAC (Python's).
    #[test]
    fn the_code_is_that_of_the_specification() {
        let [mut client, _] = ends();
        let authentication = client.authenticate(&rmb()).unwrap();
        assert_eq!(authentication.number, 1);
        assert_eq!(
            authentication.code.to_string(),
            "99fb02e49c463d4b5a83c80c684eb304"
        );
    }

    #[test]
    fn whatever_is_changed_the_message_is_refused() {
        let [mut client, mut server] = ends();
        let mut named = rmb();
        named.authentication = client.authenticate(&named);
        let changes: [fn(&mut PeerRmb); 8] = [
            |rmb| rmb.rkey.0 += 1,
            |rmb| rmb.addr.0 += 1,
            |rmb| rmb.index += 1,
            |rmb| rmb.size = SizeCode::MAX,
            |rmb| rmb.token = AlertToken::new(1).unwrap(),
            |rmb| rmb.authentication = None,
            |rmb| rmb.authentication.as_mut().unwrap().number += 1,
            |rmb| {
                let code = &mut rmb.authentication.as_mut().unwrap().code;
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
