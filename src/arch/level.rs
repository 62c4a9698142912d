//! The witness of a level, and its tables.

/// Defines a level: its witness, the features that the witness proves, and the tables of kernels, each an instance of a
/// generic kernel. A kernel that gains nothing at a level is that of the level below.
macro_rules! level {
    (
        $(#[$doc:meta])*
        $witness:ident: $detected:ident $features:tt, below $kernels_below:path;
        kernels: { $($field:ident: $kind:ident = $kernel:path;)* }
    ) => {
        $(#[$doc])*
        #[derive(Clone, Copy)]
        pub(in crate::arch) struct $witness(());

        impl $witness {
            /// A witness, if the CPU has the features of the level.
            pub(in crate::arch) fn new() -> Option<Self> {
                $crate::arch::level::has_features!($detected $features).then_some($witness(()))
            }

            pub(in crate::arch) fn kernels(self) -> &'static $crate::arch::Kernels {
                &KERNELS
            }
        }

        /// Only for [`
        #[doc = stringify!($witness)]
        /// `], and for levels that have all of its features.
        pub(super) static KERNELS: $crate::arch::Kernels = $crate::arch::Kernels {
            level: $crate::arch::Level::$witness,
            $($field: $crate::arch::level::kernel!($features $kind $kernel),)*
            ..$kernels_below
        };
    };
}

macro_rules! has_features {
    ($detected:ident [$($feature:tt),*]) => {
        $(std::arch::$detected!($feature))&&*
    };
}

/// A function of a table that runs a generic kernel with CPU features enabled.
macro_rules! kernel {
    ($features:tt shuffle $kernel:path) => {
        $crate::arch::level::kernel!(@ $features (src: &[u8], dst: &mut [u8]) -> () = $kernel)
    };
    ($features:tt undo $kernel:path) => {
        $crate::arch::level::kernel!(@ $features (bytes: &mut [u8]) -> () = $kernel)
    };
    ($features:tt scan $kernel:path) => {
        $crate::arch::level::kernel!(@ $features (src: &[u8]) -> usize = $kernel)
    };
    ($features:tt transpose2 $kernel:path) => {
        $crate::arch::level::kernel!(@ $features
            (shape: &$crate::arch::Transposition, src: &[[u8; 2]], dst: &mut [[u8; 2]]) -> () = $kernel)
    };
    ($features:tt transpose4 $kernel:path) => {
        $crate::arch::level::kernel!(@ $features
            (shape: &$crate::arch::Transposition, src: &[[u8; 4]], dst: &mut [[u8; 4]]) -> () = $kernel)
    };
    ($features:tt places $kernel:path) => {
        $crate::arch::level::kernel!(@ $features (src: &[u8], byte: u8, places: &mut [u16]) -> usize = $kernel)
    };
    ($features:tt estimates $vector:path) => {
        $crate::arch::estimates::EstimateKernels {
            project: $crate::arch::level::kernel!(@ $features (row: &[f32], basis: &[$crate::arch::estimates::Shorts]) -> [f32; 16] = $crate::arch::estimates::project::<$vector>),
            sketch: $crate::arch::level::kernel!(@ $features
                (tiles: &$crate::arch::estimates::SketchTiles<'_>, rows: &[$crate::arch::estimates::SketchRow], logits: &mut [[f32; 16]], peaks: &mut [f32]) -> () = $crate::arch::estimates::sketch::<$vector>),
            mass: $crate::arch::level::kernel!(@ $features (logits: &[[f32; 16]], peak: f32) -> f32 = $crate::arch::estimates::mass::<$vector>),
        }
    };
    ($features:tt attend $dots:path) => {
        $crate::arch::attend::AttendKernels {
            logits: $crate::arch::level::kernel!(@ $features
                (block: &$crate::arch::attend::HeadBlock, queries: &[&[f32]], logits: &mut [[f32; 64]], scratch: &mut $crate::arch::attend::Scratch) -> () = $crate::arch::attend::keys::logits::<$dots>),
            values: $crate::arch::level::kernel!(@ $features
                (block: &$crate::arch::attend::HeadBlock, logits: &mut [[f32; 64]], running: &mut [$crate::arch::attend::Running], sums: &mut [f32], scratch: &mut $crate::arch::attend::Scratch) -> () = $crate::arch::attend::values::values::<$dots>),
            soften: $crate::arch::level::kernel!(@ $features
                (logits: &mut [[f32; 16]], running: &mut $crate::arch::attend::Running) -> f32 = $crate::arch::attend::softmax::soften::<$dots>),
            soft_cap: $crate::arch::level::kernel!(@ $features
                (logits: &mut [[f32; 16]], cap: f32) -> () = $crate::arch::attend::soft_cap::soft_cap),
            key_ranges: $crate::arch::level::kernel!(@ $features
                (rows: &[f32], out: &mut $crate::arch::attend::encode::KeyRanges) -> bool = $crate::arch::attend::encode::key_ranges::<$dots>),
            key_codes: $crate::arch::level::kernel!(@ $features
                (rows: &[f32], mids: &[f32], inverses: &[f32], quads: usize, lines: &mut [$crate::arch::attend::Line]) -> () = $crate::arch::attend::encode::key_codes::<$dots>),
            value_codes: $crate::arch::level::kernel!(@ $features
                (rows: &[f32], groups: usize, lines: &mut [$crate::arch::attend::Line], out: &mut $crate::arch::attend::encode::ValueScales) -> bool = $crate::arch::attend::encode::value_codes::<$dots>),
            key_bits: $crate::arch::level::kernel!(@ $features
                (panels: &[[f32; 16]], plan: &$crate::arch::attend::bits::KeyBits, lines: &mut [$crate::arch::attend::Line]) -> () = $crate::arch::attend::bits::key_bits::<$dots>),
            value_bits: $crate::arch::level::kernel!(@ $features
                (panels: &mut [[f32; 16]], lines: &mut [$crate::arch::attend::Line], out: &mut $crate::arch::attend::encode::ValueScales) -> bool = $crate::arch::attend::bits::value_bits::<$dots>),
            decode: $crate::arch::level::kernel!(@ $features
                (block: &$crate::arch::attend::HeadBlock, keys: &mut [[f32; 16]], values: &mut [[f32; 16]]) -> () = $crate::arch::attend::decode::decode::<$dots>),
        }
    };
    ($features:tt attend_rows $vector:path) => {
        $crate::arch::level::kernel!(@rows $features $vector, 4, 4, 4, 4)
    };
    ($features:tt attend_rows_narrow $vector:path) => {
        // 4 tokens or 2 query vectors fill 8 of 16 registers.
        $crate::arch::level::kernel!(@rows $features $vector, 4, 1, 2, 2)
    };
    ($features:tt attend_rows_narrowest $vector:path) => {
        // 4 query vectors fill 16 of 32 registers: with one token, and with half a unit of values; 2 with a unit.
        $crate::arch::level::kernel!(@rows $features $vector, 1, 4, 4, 2)
    };
    (@rows $features:tt $vector:path, $tokens:literal, $most_logits:literal, $most_values:literal, $whole:literal) => {{
        use $crate::arch::attend::rows::{self, F16, Q4_0, Q8_0, RowKernels};
        RowKernels {
            logits: [
                $crate::arch::level::kernel!(@row_logits $features rows::logits::<$vector, F16, $tokens, $most_logits>),
                $crate::arch::level::kernel!(@row_logits $features rows::logits::<$vector, Q8_0, $tokens, $most_logits>),
                $crate::arch::level::kernel!(@row_logits $features rows::logits::<$vector, Q4_0, $tokens, $most_logits>),
            ],
            values: [
                $crate::arch::level::kernel!(@row_values $features rows::values::<$vector, F16, $most_values, $whole>),
                $crate::arch::level::kernel!(@row_values $features rows::values::<$vector, Q8_0, $most_values, $whole>),
                $crate::arch::level::kernel!(@row_values $features rows::values::<$vector, Q4_0, $most_values, $whole>),
            ],
        }
    }};
    (@row_logits $features:tt $kernel:path) => {
        $crate::arch::level::kernel!(@ $features
            (tile: &$crate::arch::attend::rows::RowTile, queries: &[&[f32]], scale: f32, logits: &mut [[f32; 64]]) -> () = $kernel)
    };
    (@row_values $features:tt $kernel:path) => {
        $crate::arch::level::kernel!(@ $features
            (tile: &$crate::arch::attend::rows::RowTile, weights: &[[f32; 64]], sums: &mut [f32], len: usize) -> () = $kernel)
    };
    ($features:tt product $kernel:path) => {
        $crate::arch::level::kernel!(@ $features
            (product: &$crate::arch::Product, result: &mut [[f32; $crate::arch::PANEL]]) -> () = $kernel)
    };
    (@ [$($feature:literal),*] ($($arg:ident: $type:ty),*) -> $out:ty = $kernel:path) => {{
        fn call($($arg: $type),*) -> $out {
            $(#[target_feature(enable = $feature)])*
            fn enabled($($arg: $type),*) -> $out {
                #[allow(unused_unsafe, reason = "kernels that compilers vectorise are safe")]
                // SAFETY: the features that the vectors of this level need are enabled.
                unsafe { $kernel($($arg),*) }
            }
            // SAFETY: the table is reached through a witness of these features.
            unsafe { enabled($($arg),*) }
        }
        call
    }};
}

pub(in crate::arch) use {has_features, kernel, level};
