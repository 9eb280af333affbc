//! What the targets share: the decoding of an input into choices, numbers and pieces of messages.

pub mod devices;
pub mod handshakes;
pub mod ism;

/// The rest of an input, consumed from its beginning. At its end each value is zero.
#[derive(Debug)]
pub struct Input<'a>(&'a [u8]);

impl<'a> Input<'a> {
    /// All of an input.
    pub fn new(data: &'a [u8]) -> Self {
        Self(data)
    }

    /// Whether nothing is left.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The bytes that are left.
    pub fn rest(self) -> &'a [u8] {
        self.0
    }

    /// The next bytes, at most so many.
    pub fn bytes(&mut self, most: usize) -> &'a [u8] {
        let (bytes, rest) = self.0.split_at(most.min(self.0.len()));
        self.0 = rest;
        bytes
    }

    /// The next byte.
    pub fn byte(&mut self) -> u8 {
        self.bytes(1).first().copied().unwrap_or(0)
    }

    /// A yes or no.
    pub fn flag(&mut self) -> bool {
        self.byte() & 1 != 0
    }

    /// The next number of two bytes.
    pub fn u16(&mut self) -> u16 {
        u16::from_le_bytes([self.byte(), self.byte()])
    }

    /// The next number of four bytes.
    pub fn u32(&mut self) -> u32 {
        u32::from(self.u16()) | u32::from(self.u16()) << 16
    }

    /// The next number of eight bytes.
    pub fn u64(&mut self) -> u64 {
        u64::from(self.u32()) | u64::from(self.u32()) << 32
    }

    /// A number below `end`, which is not zero.
    pub fn below(&mut self, end: usize) -> usize {
        let number = match end {
            ..=0x100 => usize::from(self.byte()),
            _ => usize::from(self.u16()),
        };
        number % end
    }

    /// One of these.
    pub fn choose<T: Clone>(&mut self, of: &[T]) -> T {
        of[self.below(of.len())].clone()
    }

    /// A message with up to three of its bytes changed, and perhaps cut short or prolonged.
    pub fn changed(&mut self, message: &[u8]) -> Vec<u8> {
        let mut message = message.to_vec();
        let changes = self.byte();
        for _ in 0..changes & 3 {
            let (at, value) = (self.u16(), self.byte());
            if !message.is_empty() {
                let at = usize::from(at) % message.len();
                message[at] = value;
            }
        }
        match changes >> 2 {
            1 => message.truncate(self.below(message.len().max(1))),
            2 => message.extend(self.bytes(16)),
            _ => {}
        }
        message
    }
}
