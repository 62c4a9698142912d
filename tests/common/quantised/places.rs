//! The place of every byte of a quantised cache: MNN's formulas and nothing else.

use std::ops::Range;

/// The form of one half of a cache, K or V.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Float,
    Int8,
    Tq3,
    Tq4,
}

impl Kind {
    /// Bits of an index of TQ.
    pub fn bits(self) -> usize {
        if self == Kind::Tq3 { 3 } else { 4 }
    }

    pub fn is_tq(self) -> bool {
        matches!(self, Kind::Tq3 | Kind::Tq4)
    }
}

/// K and V of an `attention_mode`.
pub fn kinds(mode: usize) -> (Kind, Kind) {
    match mode {
        9 => (Kind::Int8, Kind::Float),
        10 => (Kind::Int8, Kind::Int8),
        11 => (Kind::Tq3, Kind::Float),
        12 => (Kind::Tq3, Kind::Tq3),
        13 => (Kind::Tq4, Kind::Float),
        14 => (Kind::Tq4, Kind::Tq4),
        _ => panic!("mode {mode}"),
    }
}

/// lP8 and hP8.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unit {
    pub l: usize,
    pub h: usize,
}

/// The description of a cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    pub key: Kind,
    pub value: Kind,
    pub unit: Unit,
    pub heads: usize,
    pub dims: usize,
    /// lP and hP of a float half.
    pub pack: (usize, usize),
    /// Bytes of a float.
    pub elem: usize,
    /// F.
    pub block: usize,
    /// Tokens of the buffers.
    pub max: usize,
    /// Bytes between the heads of K and between those of V.
    pub gaps: (usize, usize),
}

/// UP(a, b) * b.
pub fn round_up(a: usize, b: usize) -> usize {
    a.div_ceil(b) * b
}

impl Shape {
    /// Bytes of a block of int8 K.
    fn key_block(&self) -> usize {
        self.unit.h * (round_up(self.dims, self.unit.l) + 8)
    }

    pub fn key_code(&self, t: usize, d: usize) -> usize {
        let Unit { l, h } = self.unit;
        (t / h) * self.key_block() + (d / l) * h * l + (t % h) * l + d % l
    }

    /// The bias is 4*h bytes behind.
    pub fn key_scale(&self, t: usize) -> usize {
        let Unit { l, h } = self.unit;
        (t / h) * self.key_block() + round_up(self.dims, l) * h + 4 * (t % h)
    }

    /// Bytes of the h dims that a token `u` of a block of int8 V shares a group with.
    fn value_group(&self) -> usize {
        self.unit.h * (round_up(self.block, self.unit.l) + 8)
    }

    pub fn value_code(&self, t: usize, d: usize) -> usize {
        let (Unit { l, h }, group, u) = (self.unit, self.value_group(), t % self.block);
        (t / self.block) * self.dims.div_ceil(h) * group + (d / h) * group + (u / l) * h * l + (d % h) * l + u % l
    }

    /// The bias is 4*h bytes behind.
    pub fn value_scale(&self, b: usize, d: usize) -> usize {
        let (Unit { l, h }, group) = (self.unit, self.value_group());
        b * self.dims.div_ceil(h) * group + (d / h) * group + round_up(self.block, l) * h + 4 * (d % h)
    }

    fn float_key(&self, t: usize, d: usize) -> usize {
        let (l, h) = self.pack;
        ((t / h) * round_up(self.dims, l) * h + (d / l) * h * l + (t % h) * l + d % l) * self.elem
    }

    fn float_value(&self, t: usize, d: usize) -> usize {
        let ((l, h), u) = (self.pack, t % self.block);
        let s1 = self.block.div_ceil(l) * h * l;
        let s0 = s1 * self.dims.div_ceil(h);
        ((t / self.block) * s0 + (d / h) * s1 + (u / l) * h * l + (d % h) * l + u % l) * self.elem
    }

    /// Bytes of a token under TQ.
    pub fn record(&self, kind: Kind) -> usize {
        self.dims / 32 * (2 + 4 * kind.bits())
    }

    /// Bytes of a head of K and of V, without gaps.
    pub fn head_bytes(&self) -> (usize, usize) {
        let (l, h) = self.pack;
        let blocks = self.max.div_ceil(self.block);
        (
            match self.key {
                Kind::Float => round_up(self.max, h) * round_up(self.dims, l) * self.elem,
                Kind::Int8 => round_up(self.max, self.unit.h) * (round_up(self.dims, self.unit.l) + 8),
                tq => self.max * self.record(tq),
            },
            match self.value {
                Kind::Float => blocks * round_up(self.dims, h) * round_up(self.block, l) * self.elem,
                Kind::Int8 => blocks * self.dims.div_ceil(self.unit.h) * self.value_group(),
                tq => self.max * self.record(tq),
            },
        )
    }

    /// Bytes from one head to the next.
    pub fn strides(&self) -> (usize, usize) {
        let (key, value) = self.head_bytes();
        (key + self.gaps.0, value + self.gaps.1)
    }

    /// Bytes of K and of V.
    pub fn bytes(&self) -> (usize, usize) {
        let ((key, value), (key_stride, value_stride)) = (self.head_bytes(), self.strides());
        ((self.heads - 1) * key_stride + key, (self.heads - 1) * value_stride + value)
    }

    /// Bytes of the key sums and of the value sums of a head.
    pub fn sum_bytes(&self) -> (usize, usize) {
        (4 * round_up(self.max, self.unit.h), 4 * self.max.div_ceil(self.block) * round_up(self.dims, self.unit.h))
    }

    pub fn key_sum(&self, head: usize, t: usize) -> usize {
        head * self.sum_bytes().0 + 4 * t
    }

    pub fn value_sum(&self, head: usize, b: usize, d: usize) -> usize {
        head * self.sum_bytes().1 + 4 * (b * round_up(self.dims, self.unit.h) + d)
    }

    /// Shapes whose dims of K, and of V, include the padding of these.
    pub fn padded(&self) -> (Shape, Shape) {
        let pad = |kind: Kind, int8: usize, float: usize| match kind {
            Kind::Float => round_up(self.dims, float),
            Kind::Int8 => round_up(self.dims, int8),
            _ => self.dims,
        };
        let (l, h) = self.pack;
        let (key, value) = (pad(self.key, self.unit.l, l), pad(self.value, self.unit.h, h));
        (Shape { dims: key, ..*self }, Shape { dims: value, ..*self })
    }

    /// The bytes of a token of K, in the order of a portable token: codes, scale, bias; or floats; or records.
    pub fn key_places(&self, head: usize, t: usize) -> Vec<usize> {
        let base = head * self.strides().0;
        let at = |place: usize, len: usize| base + place..base + place + len;
        match self.key {
            Kind::Float => (0..self.dims).flat_map(|d| at(self.float_key(t, d), self.elem)).collect(),
            Kind::Int8 => {
                let scale = self.key_scale(t);
                let codes = (0..self.dims).flat_map(|d| at(self.key_code(t, d), 1));
                codes.chain(at(scale, 4)).chain(at(scale + 4 * self.unit.h, 4)).collect()
            }
            tq => at(t * self.record(tq), self.record(tq)).collect(),
        }
    }

    /// The bytes of a token of V: codes, or floats, or records.
    pub fn value_places(&self, head: usize, t: usize) -> Vec<usize> {
        let base = head * self.strides().1;
        let at = |place: usize, len: usize| -> Range<usize> { base + place..base + place + len };
        match self.value {
            Kind::Float => (0..self.dims).flat_map(|d| at(self.float_value(t, d), self.elem)).collect(),
            Kind::Int8 => (0..self.dims).flat_map(|d| at(self.value_code(t, d), 1)).collect(),
            tq => at(t * self.record(tq), self.record(tq)).collect(),
        }
    }
}
