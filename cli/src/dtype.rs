//! Element types on the command line.

use clap::builder::{PossibleValuesParser, TypedValueParser};
use mnnkv::dtype::Dtype;
use mnnkv_model::sizing::CacheElement;

/// Parses one of `names`, each a name of an element type.
pub fn named(names: &'static [&'static str]) -> impl TypedValueParser<Value = CacheElement> {
    PossibleValuesParser::new(names).map(|name| CacheElement::from_name(&name).expect("a name of an element type"))
}

/// The floats among the element types.
pub fn float(element: CacheElement) -> Option<Dtype> {
    match element {
        CacheElement::F16 => Some(Dtype::F16),
        CacheElement::Bf16 => Some(Dtype::Bf16),
        CacheElement::F32 => Some(Dtype::F32),
        _ => None,
    }
}
