//! Bytes as a source of choices. A source that is used up gives zeros, so that every input has a meaning.

pub struct Given<'a>(&'a [u8]);

impl<'a> Given<'a> {
    pub fn new(bytes: &'a [u8]) -> Self {
        Given(bytes)
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn byte(&mut self) -> u8 {
        self.bytes(1).first().copied().unwrap_or(0)
    }

    /// At most `len` bytes.
    pub fn bytes(&mut self, len: usize) -> &'a [u8] {
        let (taken, rest) = self.0.split_at(len.min(self.0.len()));
        self.0 = rest;
        taken
    }

    /// As many bytes as a 16-bit number before them says.
    pub fn block(&mut self) -> &'a [u8] {
        let len = self.array().map(u16::from_le_bytes).unwrap_or(0);
        self.bytes(len.into())
    }

    pub fn rest(&mut self) -> &'a [u8] {
        std::mem::take(&mut self.0)
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.bytes(N).try_into().ok()
    }

    /// From 0 to below `end`, which is at most 65,536.
    pub fn below(&mut self, end: usize) -> usize {
        let number = if end <= 256 { self.byte().into() } else { self.array().map_or(0, u16::from_le_bytes) };
        number as usize % end
    }

    /// From `first` to `last`.
    pub fn from(&mut self, first: usize, last: usize) -> usize {
        first + self.below(last - first + 1)
    }

    pub fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.below(of.len())]
    }

    pub fn flag(&mut self) -> bool {
        self.byte() & 1 == 1
    }

    /// A number of any size: small ones, any ones, and those at the ends of the range.
    pub fn any(&mut self) -> u32 {
        match self.byte() % 4 {
            0 => self.byte().into(),
            1 => u32::MAX - u32::from(self.byte()),
            2 => (1 << 31) - 128 + u32::from(self.byte()),
            _ => self.array().map_or(0, u32::from_le_bytes),
        }
    }

    /// As [`Given::any`], of 64 bits.
    pub fn any_long(&mut self) -> u64 {
        match self.byte() % 4 {
            0 => self.byte().into(),
            1 => u64::MAX - u64::from(self.byte()),
            2 => 1 << (self.byte() % 64),
            _ => self.array().map_or(0, u64::from_le_bytes),
        }
    }

    /// A float with any bits.
    pub fn float(&mut self) -> f32 {
        f32::from_bits(self.any())
    }
}
