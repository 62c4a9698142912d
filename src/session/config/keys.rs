//! The table of all keys: name, type, default and range. Parsing, messages and warnings come from it; a test compares
//! docs/config.md with it.

use super::{Ratio, RuntimeMode};
use crate::attend::Format;
use crate::json::{Brief, Json as Value};
use crate::status::{Result, bail};
use crate::store::{DEFAULT_QUEUE, MOST_WORKERS};
use crate::sys::memory;
use std::borrow::Cow;
use std::fmt::{self, Display, LowerExp};
use std::ops::RangeInclusive;

/// Keys and values as the host wrote them.
pub(super) type Object<'a> = Value<'a>;

/// The type, default and range of a key.
pub(super) trait KeyType {
    /// A parsed value.
    type Parsed;

    fn default(&self) -> Self::Parsed;

    /// Parses `given`; `None` when its type or range is wrong.
    fn accept(&self, given: &Value) -> Result<Option<Self::Parsed>>;

    /// The accepted values, for messages: "... expected".
    fn allowed(&self) -> impl Display;
}

/// `true` or `false`. Holds the default.
pub(super) struct Switch(pub bool);

/// A whole number; `16.0` is 16. Holds the default and the range.
pub(super) struct Whole<T>(pub T, pub RangeInclusive<T>);

/// A number. Holds the default and the range.
pub(super) struct Decimal<T>(pub T, pub RangeInclusive<T>);

/// A type of numbers with a fraction.
pub(super) trait Float: Copy + PartialOrd + Display + LowerExp + Into<f64> {
    fn of(number: f64) -> Self;
}

impl Float for f32 {
    fn of(number: f64) -> f32 {
        number as f32
    }
}

impl Float for f64 {
    fn of(number: f64) -> f64 {
        number
    }
}

/// An array of whole numbers; the default has none. Holds the range of each.
pub(super) struct Wholes(pub RangeInclusive<u32>);

/// Any text. Holds the default.
pub(super) struct Text(pub &'static str);

/// One of several names; the first is the default.
pub(super) struct OneOf<T: 'static>(pub &'static [(&'static str, T)]);

impl KeyType for Switch {
    type Parsed = bool;

    fn default(&self) -> bool {
        self.0
    }

    fn accept(&self, given: &Value) -> Result<Option<bool>> {
        Ok(given.flag())
    }

    fn allowed(&self) -> impl Display {
        "true or false"
    }
}

impl<T: Copy + PartialOrd + TryFrom<i128> + Display> KeyType for Whole<T> {
    type Parsed = T;

    fn default(&self) -> T {
        self.0
    }

    fn accept(&self, given: &Value) -> Result<Option<T>> {
        let whole = given.number().and_then(|number| number.whole());
        Ok(whole.and_then(|whole| T::try_from(whole).ok()).filter(|number| self.1.contains(number)))
    }

    fn allowed(&self) -> impl Display {
        display(|f| write!(f, "a whole number from {} to {}", self.1.start(), self.1.end()))
    }
}

impl KeyType for Wholes {
    type Parsed = Vec<u32>;

    fn default(&self) -> Vec<u32> {
        Vec::new()
    }

    fn accept(&self, given: &Value) -> Result<Option<Vec<u32>>> {
        let Value::List(given) = given else { return Ok(None) };
        let (kind, mut numbers) = (Whole(0, self.0.clone()), Vec::new());
        for (at, value) in given.iter().enumerate() {
            match kind.accept(value)? {
                Some(number) => memory::push(&mut numbers, number)?,
                None => bail!(InvalidArgument, "item {at} is {}; {} expected", value, kind.allowed()),
            }
        }
        Ok(Some(numbers))
    }

    fn allowed(&self) -> impl Display {
        display(|f| write!(f, "an array of whole numbers from {} to {}", self.0.start(), self.0.end()))
    }
}

impl<T: Float> KeyType for Decimal<T> {
    type Parsed = T;

    fn default(&self) -> T {
        self.0
    }

    fn accept(&self, given: &Value) -> Result<Option<T>> {
        Ok(given.number().map(|number| T::of(number.float())).filter(|number| self.1.contains(number)))
    }

    fn allowed(&self) -> impl Display {
        display(|f| write!(f, "a number from {} to {}", Brief(*self.1.start()), Brief(*self.1.end())))
    }
}

impl KeyType for Text {
    type Parsed = Cow<'static, str>;

    fn default(&self) -> Cow<'static, str> {
        Cow::Borrowed(self.0)
    }

    fn accept(&self, given: &Value) -> Result<Option<Cow<'static, str>>> {
        let text = given.text().filter(|text| !text.contains(char::is_control));
        text.map(|text| memory::text(text).map(Cow::Owned)).transpose()
    }

    fn allowed(&self) -> impl Display {
        "a string without control characters"
    }
}

impl<T: Copy> KeyType for OneOf<T> {
    type Parsed = T;

    fn default(&self) -> T {
        self.0[0].1
    }

    fn accept(&self, given: &Value) -> Result<Option<T>> {
        let named = |given: &str| self.0.iter().find(|(name, _)| *name == given).map(|(_, value)| *value);
        Ok(given.text().and_then(named))
    }

    fn allowed(&self) -> impl Display {
        display(|f| {
            let or = |i: usize| if i > 0 { " or " } else { "" };
            self.0.iter().enumerate().try_for_each(|(i, (name, _))| write!(f, "{}{name:?}", or(i)))
        })
    }
}

/// A part of a message, formatted in place.
fn display(write: impl Fn(&mut fmt::Formatter<'_>) -> fmt::Result) -> impl Display {
    struct Written<F>(F);
    impl<F: Fn(&mut fmt::Formatter<'_>) -> fmt::Result> Display for Written<F> {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            (self.0)(f)
        }
    }
    Written(write)
}

fn read<K: KeyType>(kind: K, name: &str, given: &Object, defaults: &Object) -> Result<K::Parsed> {
    let Some(value) = given.get(name).or_else(|| defaults.get(name)) else { return Ok(kind.default()) };
    match kind.accept(value).map_err(|error| error.within(name))? {
        Some(value) => Ok(value),
        None => bail!(InvalidArgument, "{name} is {}; {} expected", value, kind.allowed()),
    }
}

/// The layers of a scope.
#[derive(Clone, Copy)]
pub(super) struct Scope {
    pub front: bool,
    pub kept: bool,
}

macro_rules! keys {
    ($($key:ident: $kind:ident $(<$of:ty>)? ($($declared:tt)*);)*) => {
        /// The value of every key. Keys with one value are checked, and not read.
        #[allow(dead_code)]
        pub(super) struct Values {
            $(pub $key: <$kind $(<$of>)? as KeyType>::Parsed,)*
        }

        impl Values {
            /// Reads every key from `given`, where it is absent from `defaults`, else from the table. Other keys are
            /// ignored.
            pub fn read(given: &Object, defaults: &Object) -> Result<Self> {
                Ok(Values { $($key: read($kind $(::<$of>)? ($($declared)*), stringify!($key), given, defaults)?,)* })
            }
        }

        /// The name of every key.
        pub(super) const NAMES: &[&str] = &[$(stringify!($key)),*];

        /// The name of each key, for messages.
        #[allow(non_upper_case_globals, dead_code)]
        pub(super) mod name {
            $(pub const $key: &str = stringify!($key);)*
        }

        /// Calls `see` with every declaration, in order.
        #[cfg(test)]
        pub(super) fn each(mut see: impl FnMut(&'static str, &dyn super::tests::Declared)) {
            $(see(stringify!($key), &$kind $(::<$of>)? ($($declared)*));)*
        }
    };
}

/// Most tokens: counts cross the C ABI as i32.
const TOKENS: u32 = i32::MAX as u32;
/// The highest layer number, beyond any model.
const LAYERS: u32 = 65_535;
/// Most bytes: one TiB.
const BYTES: u64 = 1 << 40;

/// Keys of the reference that have no effect any more.
pub(super) const RETIRED: &[&str] = &[
    "kv_lossless_predictors_k",
    "kv_lossless_predictors_v",
    "kv_lossless_kept_sample_layers",
    "kv_lossless_kept_sample_token_interval",
    "kv_lossless_front_sample_token_interval",
    "kv_lossless_store_disable_front",
];

keys! {
    kv_memory_mb: Decimal<f64>(0.0, 0.0..=1e6);
    kv_memory_bytes: Whole<u64>(0, 0..=BYTES);
    kv_memory_file: Text("");
    kv_memory_file_mb: Decimal<f64>(0.0, 0.0..=1e6);
    kv_memory_wait_us: Whole<u32>(2000, 0..=10_000_000);
    kv_memory_base: Text("");

    kv_quant: OneOf<Option<Format>>(&[("off", None), ("k8v4", Some(Format::K8V4)), ("k4v4", Some(Format::K4V4))]);
    kv_quant_layer_start: Whole<u32>(0, 0..=LAYERS);
    kv_quant_k8v4_layers: Wholes(0..=LAYERS);
    kv_quant_sink_tokens: Whole<u32>(super::SINK_TOKENS, 0..=TOKENS);

    kv_h2o_enable: Switch(false);
    kv_h2o_layer_start: Whole<u32>(2, 0..=LAYERS);
    kv_h2o_layer_end: Whole<i32>(-1, -1..=LAYERS as i32);
    kv_h2o_policy: OneOf<()>(&[("mass", ())]);
    kv_h2o_block_tokens: Whole<u32>(64, 1..=65_536);
    kv_h2o_sink_tokens: Whole<u32>(32, 0..=TOKENS);
    kv_h2o_recent_tokens: Whole<u32>(256, 0..=TOKENS);
    kv_h2o_target_mode: OneOf<fn(f32, f32) -> Ratio>(&[
        ("adaptive", |_, lossy| Ratio::Lossy(lossy)),
        ("static", |keep, _| Ratio::Keep(keep)),
    ]);
    kv_h2o_target_keep_ratio: Decimal<f32>(0.5, 0.0..=1.0);
    kv_h2o_target_lossy_ratio: Decimal<f32>(3.5, 1.0..=1e6);
    kv_h2o_max_tokens: Whole<u32>(0, 0..=TOKENS);
    kv_h2o_trigger_min_tokens: Whole<u32>(512, 0..=TOKENS);
    kv_h2o_update_interval: Whole<u32>(16, 1..=TOKENS);
    kv_h2o_ema_alpha: Decimal<f32>(0.9, 0.0..=1.0);
    kv_h2o_prefill_queries: Whole<i32>(0, -1..=i32::MAX);
    kv_h2o_evict_unscored: Switch(false);
    kv_h2o_log_stats: Switch(false);

    kv_lossless_enable: Switch(false);
    kv_lossless_runtime_enable: Switch(false);
    kv_lossless_scope: OneOf<Scope>(&[
        ("front_n", Scope { front: true, kept: false }),
        ("h2o_kept", Scope { front: false, kept: true }),
        ("front_n_and_h2o_kept", Scope { front: true, kept: true }),
        ("none", Scope { front: false, kept: false }),
    ]);
    kv_lossless_front_n: Whole<u32>(2, 0..=LAYERS);
    kv_lossless_codec: OneOf<bool>(&[("gear_delta", true), ("none", false)]);
    kv_lossless_codec_runtime: OneOf<()>(&[
        ("fp16_gear_predictive_v3", ()),
        ("gear_delta", ()),
        ("auto", ()),
    ]);
    kv_lossless_runtime_mode: OneOf<RuntimeMode>(&[
        ("probe", RuntimeMode::Probe),
        ("full", RuntimeMode::Full),
        ("store", RuntimeMode::Store),
    ]);
    kv_lossless_block_tokens: Whole<u32>(128, 1..=65_536);
    kv_lossless_hot_sink_tokens: Whole<u32>(16, 0..=TOKENS);
    kv_lossless_hot_recent_tokens: Whole<u32>(256, 0..=TOKENS);
    kv_lossless_store_bootstrap_tokens: Whole<u32>(32, 0..=TOKENS);
    kv_lossless_store_grouped_step_tokens: Whole<u32>(256, 1..=TOKENS);
    kv_lossless_async_threads: Whole<i32>(-1, -1..=MOST_WORKERS as i32);
    kv_lossless_max_queue: Whole<u32>(DEFAULT_QUEUE, 1..=65_536);
    kv_lossless_decode_cache_blocks: Whole<u32>(64, 0..=65_536);
    kv_lossless_decode_cache_bytes: Whole<u64>(0, 0..=BYTES);
    kv_lossless_strict_roundtrip_check: Switch(false);
}
