//! The shape of a model.

use mnnkv::json::Brief;

/// The greatest numbers of a shape.
const MAX_NUMBER: usize = 1 << 20;
const MAX_CONTEXT: usize = 1 << 24;
/// No key of a file tells the scale of queries.
const LAYERS_OF_27B: usize = 62;

/// The numbers of a model.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Shape {
    /// Layers.
    pub layers: usize,
    /// Elements of a hidden state.
    pub hidden: usize,
    /// Elements between the two linear maps of an MLP.
    pub inner: usize,
    /// Query heads, a multiple of `kv_heads`.
    pub heads: usize,
    /// KV heads.
    pub kv_heads: usize,
    /// Elements of a head, an even number.
    pub dims: usize,
    /// Tokens that the model knows.
    pub vocabulary: usize,
    /// Tokens of the longest text that it was trained for.
    pub context: usize,
    /// The addend of RMSNorm.
    pub epsilon: f32,
    /// The base of the rotation, in layers without a window.
    pub theta: f64,
    /// The head is the embedding.
    pub tied: bool,
    /// The rest of a Gemma 3.
    pub gemma: Option<Gemma>,
}

/// What a Gemma 3 has besides. Its embedding is scaled, heads of Q and K have norms, so have the outputs of attention and MLP,
/// which has GELU; and most layers are local.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Gemma {
    /// Tokens that a row of a local layer attends to, its own included.
    pub window: u32,
    /// Layers are local but for the last one of each so many.
    pub period: usize,
    /// The base of the rotation in local layers.
    pub theta: f64,
    /// Positions are divided by it in the other layers.
    pub stretch: f64,
}

impl Shape {
    /// Tokens that a row of a layer attends to, its own included; all of them if none.
    pub fn window(&self, layer: usize) -> Option<u32> {
        self.gemma.filter(|gemma| !(layer + 1).is_multiple_of(gemma.period)).map(|gemma| gemma.window)
    }

    /// Fails if a number is out of its range. Errors name the key of the file, `architecture` and its rest.
    pub(super) fn check(&self, architecture: &str) -> Result<(), String> {
        let Shape { heads, kv_heads, dims, theta, .. } = *self;
        let fail = |key: &str, number: &dyn std::fmt::Display, expected: &str| {
            Err(format!("{architecture}.{key} is {number}; {expected} expected"))
        };
        for (key, number, most) in [
            ("block_count", self.layers, MAX_NUMBER),
            ("embedding_length", self.hidden, MAX_NUMBER),
            ("feed_forward_length", self.inner, MAX_NUMBER),
            ("attention.head_count", heads, MAX_NUMBER),
            ("context_length", self.context, MAX_CONTEXT),
        ] {
            if !(1..=most).contains(&number) {
                return fail(key, &number, &format!("1 to {most}"));
            }
        }
        if !(1..=MAX_NUMBER).contains(&self.vocabulary) {
            let rows = self.vocabulary;
            return Err(format!("the rows of token_embd.weight are {rows}; 1 to {MAX_NUMBER} expected"));
        }
        if kv_heads == 0 || !heads.is_multiple_of(kv_heads) {
            return fail("attention.head_count_kv", &kv_heads, &format!("a divisor of the {heads} heads"));
        }
        if !(2..=1 << 12).contains(&dims) || !dims.is_multiple_of(2) {
            return fail("attention.key_length", &dims, "an even number from 2 to 4096");
        }
        if !(self.epsilon.is_finite() && self.epsilon >= 0.0) {
            return fail("attention.layer_norm_rms_epsilon", &Brief(self.epsilon), "a number from 0 on");
        }
        if !(theta.is_finite() && theta > 0.0) {
            return fail("rope.freq_base", &Brief(theta), "a number above 0");
        }
        let Some(Gemma { window, period, theta, stretch }) = self.gemma else { return Ok(()) };
        if self.layers == LAYERS_OF_27B {
            return fail(
                "block_count",
                &self.layers,
                "another number, since a Gemma 3 of 27B scales its queries otherwise,",
            );
        }
        if !(1..=MAX_CONTEXT).contains(&(window as usize)) {
            return fail("attention.sliding_window", &window, &format!("1 to {MAX_CONTEXT}"));
        }
        if !(1..=MAX_NUMBER).contains(&period) {
            return fail("attention.sliding_window_pattern", &period, &format!("1 to {MAX_NUMBER}"));
        }
        for (key, number) in [("rope.freq_base_swa", theta), ("rope.scaling.factor", stretch)] {
            if !(number.is_finite() && number > 0.0) {
                return fail(key, &Brief(number), "a number above 0");
            }
        }
        Ok(())
    }
}
