//! One layer of MNN: the cache that the library edits, and the oracle's, which only ever has the kept tokens.

use crate::common::Random;
use crate::described::{edit, layout, range};
use crate::layout::{self, Cache};
use crate::quantised::{Kind, MnnCache, Shape, Unit, kinds, live_bytes_equal};

/// Different tokens but for one dim: few enough to compress.
const POOL: usize = 3;

pub(super) struct Host {
    pub(super) real: MnnCache,
    pub(super) model: MnnCache,
    /// The logical position of each token.
    pub(super) logical: Vec<u32>,
    /// Times that the buffers and the arrays beside them were replaced.
    pub(super) growths: u64,
    /// Tokens are of a pool, and compress.
    pub(super) plain: bool,
    pool: [Vec<f32>; 2],
    random: Random,
}

/// A cache of an `attention_mode`, of AVX2's packing.
pub(super) fn shape(mode: usize, dims: usize, max: usize) -> Shape {
    let (key, value) = kinds(mode);
    let unit = Unit { l: 4, h: 8 };
    Shape { key, value, unit, heads: 1, dims, pack: (1, 4), elem: 4, block: 64, max, gaps: (0, 0) }
}

/// Any cache that MNN has, for few tokens.
pub(super) fn any_shape(random: &mut Random) -> Shape {
    let mode = random.pick(&[9, 9, 10, 10, 10, 11, 12, 13, 14]);
    let (l, h) = random.pick(&[(16, 4), (4, 8), (4, 64), (8, 8), (4, 32)]);
    let dims = if mode > 10 { random.pick(&[32, 64]) } else { random.pick(&[5, 20, 32, 64]) };
    let (heads, max, gap) = (random.from(1, 2), random.from(1, 200), 4 * random.below(3));
    Shape { unit: Unit { l, h }, heads, elem: random.pick(&[2, 4]), gaps: (gap, gap), ..shape(mode, dims, max) }
}

impl Host {
    pub(super) fn new(shape: Shape, seed: u64) -> Self {
        let mut random = Random::new(seed);
        let mut real = MnnCache::new(shape);
        real.fill_free_bytes(&mut random);
        let pool = [(); 2].map(|()| (0..POOL * shape.dims).map(|_| random.unit() as f32 - 0.4).collect());
        Host { model: real.clone(), real, logical: Vec::new(), growths: 0, plain: true, pool, random }
    }

    pub(super) fn len(&self) -> u32 {
        self.real.n as u32
    }

    /// Other buffers, whose V may have bytes of another use, and with nothing else but what MNN keeps beside them.
    pub(super) fn renew(&mut self) {
        let (n, key_max) = (self.real.n, self.real.key_max.clone());
        self.real = MnnCache::new(self.real.shape);
        let (shape, used) = (self.real.shape, self.random.pick(&[0, 0x77]));
        let tokens = (0..shape.heads).flat_map(|head| (0..shape.max).map(move |t| (head, t)));
        tokens.flat_map(|(head, t)| shape.value_places(head, t)).for_each(|at| self.real.value[at] = used);
        self.real.fill_free_bytes(&mut self.random);
        (self.real.n, self.real.key_max) = (n, key_max);
    }

    /// A call of the library, which returns the new length.
    pub(super) fn call<T>(&mut self, what: impl FnOnce(Cache<'_>, u32) -> T) -> T {
        let (layout, len) = (layout(&self.real), self.len());
        what(edit(&layout, &mut self.real), len)
    }

    fn rows(&mut self, count: usize, of: usize) -> Vec<f32> {
        let Shape { heads, dims, .. } = self.real.shape;
        let mut rows = Vec::new();
        if !self.plain {
            return (0..heads * count * dims).map(|_| self.random.unit() as f32).collect();
        }
        for _ in 0..heads * count {
            let row = self.random.below(POOL) * dims;
            rows.extend_from_slice(&self.pool[of][row..row + dims]);
            let at = rows.len() - 1 - self.random.below(dims);
            rows[at] = self.random.unit() as f32;
        }
        rows
    }

    fn make_room(&mut self, count: usize) {
        if self.real.n + count > self.real.shape.max {
            let max = self.real.n + count + self.random.below(100);
            self.real.grow(max);
            self.model.grow(max);
            self.growths += 1;
        }
    }

    /// MNN appends, and the host declares it.
    pub(super) fn append(&mut self, count: usize) {
        self.make_room(count);
        let (keys, values, begin) = (self.rows(count, 0), self.rows(count, 1), self.real.n);
        self.real.append(&keys, &values);
        self.model.append(&keys, &values);
        self.model = self.model.mended(begin, count);
        let layout = layout(&self.real);
        layout::appended(&mut edit(&layout, &mut self.real), range(&layout, begin, count));
    }

    /// MNN appends in a step that fails. The centre of K does not go back.
    pub(super) fn append_in_vain(&mut self, count: usize) {
        self.make_room(count);
        let (keys, values, n) = (self.rows(count, 0), self.rows(count, 1), self.real.n);
        self.real.append(&keys, &values);
        self.real.n = n;
        self.model.key_max.clone_from(&self.real.key_max);
    }

    /// The host copies tokens over others, from wherever it has them, and declares it.
    pub(super) fn rewrite(&mut self, from: usize, to: usize, count: usize) {
        self.model.overwrite(from, to, count, self.model.n);
        (to..to + count).for_each(|t| self.real.copy_token(&self.model, t, t));
        let layout = layout(&self.real);
        let tokens = range(&layout, to, count);
        layout::changed(&mut edit(&layout, &mut self.real), tokens, self.model.n as u32).unwrap();
    }

    /// The library has removed the tokens whose logical positions do not `stay`.
    pub(super) fn removed(&mut self, stay: impl Fn(u32) -> bool) {
        let pairs: Vec<(usize, usize)> =
            self.logical.iter().enumerate().filter(|(_, l)| stay(**l)).map(|(at, _)| (at, 1)).collect();
        if pairs.len() < self.logical.len() {
            self.model = self.model.kept(&pairs);
        }
        self.logical.retain(|l| stay(*l));
        self.real.n = self.logical.len();
    }

    /// Checks every byte that MNN may read, bit by bit.
    pub(super) fn check(&self) {
        assert_eq!(live_bytes_equal(&self.real, &self.model, 0.0), Ok(()));
    }

    /// As [`Host::check`], between steps with a store: stored tokens read as zero, blocks of them without scales, and sums
    /// are right unless tokens have moved. Returns the number of stored tokens.
    pub(super) fn check_stored(&self, moved: bool) -> usize {
        let mut whole = self.real.clone();
        let is_zero = |bytes: &[u8], places: Vec<usize>| places.into_iter().all(|at| bytes[at] == 0);
        let s = whole.shape;
        let is_stored = |t: &usize| {
            let zero =
                |h| is_zero(&self.real.key, s.key_places(h, *t)) && is_zero(&self.real.value, s.value_places(h, *t));
            (0..s.heads).all(zero)
        };
        let stored: Vec<usize> = (0..whole.n).filter(is_stored).collect();
        stored.iter().for_each(|t| whole.copy_token(&self.model, *t, *t));
        whole = whole.mended(0, whole.n);
        if moved && s.value == Kind::Int8 {
            whole.value_sum.clone_from(&self.model.value_sum);
        }
        assert_eq!(live_bytes_equal(&whole, &self.model, 0.0), Ok(()));
        stored.len()
    }
}
