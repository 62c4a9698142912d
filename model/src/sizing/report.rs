//! All sizes of a model's cache as one value.

use super::Notes;
use super::budget::Longest;
use super::config::ModelConfig;
use super::savings::{Lossless, Savings};
use super::shape::{Kv, LayerShape};
use super::sizer::{Bytes, Cost, Setup, Sizer};
use mnnkv::status::{Result, bail, error};
use mnnkv::sys::memory;

/// The largest number of contexts in a report.
pub const MAX_CONTEXTS: usize = 1024;

/// The input of a report.
#[derive(Clone, Debug, PartialEq)]
pub struct Request {
    /// The cache before savings.
    pub setup: Setup,
    /// Expected savings.
    pub savings: Savings,
    /// Lengths in tokens; at most 1,024.
    pub contexts: Vec<u64>,
    /// Byte budget of each rank for the longest context.
    pub budget: Option<u64>,
}

/// The sizes. Bytes are those of one rank unless stated otherwise.
#[derive(Clone, Debug, PartialEq)]
pub struct SizeReport {
    /// `model_type` of the config.
    pub model_type: Option<String>,
    /// The longest context of the model.
    pub max_context: Option<u64>,
    /// From the request.
    pub setup: Setup,
    /// From the request.
    pub savings: Savings,
    /// All layers, with or without a cache.
    pub layers: u32,
    /// The layers by shape, in the order of their first.
    pub groups: Vec<Group>,
    /// Bytes of one more token of one sequence while no window or chunk is full, without savings.
    pub bytes_per_token: u64,
    /// The same once every window and chunk is full.
    pub bytes_per_late_token: u64,
    /// One for each requested context, in that order.
    pub totals: Vec<Total>,
    /// The longest context with savings.
    pub longest: Option<Longest>,
    /// The longest context without savings.
    pub longest_without_savings: Option<Longest>,
    /// Notes of the model, then notes of the request.
    pub notes: Vec<String>,
}

/// Layers of one shape.
#[derive(Clone, Debug, PartialEq)]
pub struct Group {
    /// Their shape.
    pub layer: LayerShape,
    /// Their numbers, ascending.
    pub numbers: Vec<u32>,
    /// Bytes of a token of one sequence in one of them, without savings; 0 without a cache.
    pub layer_bytes_per_token: u64,
}

/// The bytes at one length.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Total {
    /// Tokens of each sequence.
    pub context: u64,
    /// On one rank, all sequences, savings cumulated.
    pub rank: Bytes,
    /// On all ranks together.
    pub all_ranks: Bytes,
}

impl SizeReport {
    /// Computes the report. Errors are those of [`Sizer::new`] and [`Sizer::bytes`].
    pub fn new(model: &ModelConfig, request: &Request) -> Result<SizeReport> {
        let Request { setup, savings, contexts, budget } = request;
        if contexts.len() > MAX_CONTEXTS {
            bail!(InvalidArgument, "{} contexts given; {MAX_CONTEXTS} or fewer expected", contexts.len());
        }
        let sizer = |savings: &Savings| Sizer::new(&model.layers, *setup, savings);
        let (all, plain) = (sizer(savings)?, sizer(&Savings::default())?);
        let totals = contexts.iter().map(|context| {
            let rank = all.bytes(*context)?;
            let all_ranks = rank.times(setup.ranks).ok_or_else(|| {
                error!(InvalidArgument, "the bytes of {context} tokens on {} ranks do not fit 64 bits", setup.ranks)
            })?;
            Ok(Total { context: *context, rank, all_ranks })
        });
        let totals = memory::try_collect(totals)?;
        let longest = budget.map(|budget| all.longest(budget));
        let mut notes = Notes(memory::try_collect(model.notes.iter().map(|note| memory::text(note)))?);
        about(model, request, longest.as_ref(), &mut notes)?;
        Ok(SizeReport {
            model_type: model.model_type.as_deref().map(memory::text).transpose()?,
            max_context: model.max_context,
            setup: *setup,
            savings: *savings,
            layers: model.layers.len() as u32,
            groups: groups(&model.layers, *setup)?,
            bytes_per_token: plain.bytes_per_token()?,
            bytes_per_late_token: plain.bytes_per_late_token()?,
            totals,
            longest,
            longest_without_savings: budget.map(|budget| plain.longest(budget)),
            notes: notes.0,
        })
    }
}

fn groups(layers: &[LayerShape], setup: Setup) -> Result<Vec<Group>> {
    let mut groups: Vec<Group> = Vec::new();
    for (number, layer) in (0u32..).zip(layers) {
        if let Some(group) = groups.iter_mut().find(|group| group.layer == *layer) {
            memory::push(&mut group.numbers, number)?;
            continue;
        }
        let layer_bytes_per_token = match layer.attention() {
            Some(attention) => Cost::new(attention, &setup, number)?.token(),
            None => 0,
        };
        let numbers = memory::filled(number, 1)?;
        memory::push(&mut groups, Group { layer: *layer, numbers, layer_bytes_per_token })?;
    }
    Ok(groups)
}

/// Notes about a request.
fn about(model: &ModelConfig, request: &Request, longest: Option<&Longest>, notes: &mut Notes) -> Result<()> {
    let Request { setup, savings, contexts, .. } = request;
    let layers = model.layers.len() as u32;
    replicas(model, setup, notes)?;
    if setup.mnn.is_some() {
        notes.add(format_args!(
            "sizes are those of MNN's buffers with room for 64 more tokens; MNN without mnn-kv also keeps the buffers that \
             a cache has grown out of, about as much again"
        ))?;
    }
    if let Some(h2o) = &savings.h2o {
        if h2o.first_layer >= layers {
            notes.add(format_args!(
                "h2o begins at layer {}; the model has {layers}: nothing is evicted",
                h2o.first_layer
            ))?;
        }
        notes.add(format_args!(
            "h2o: sizes are the largest up to a length: from the first eviction on they stay the same until the share that is \
             kept is larger"
        ))?;
        notes.add(format_args!(
            "h2o: a prompt is whole in a layer until the layer's first eviction, and between evictions up to a block \
             and an interval of tokens come on top; neither is counted"
        ))?;
    }
    if let Some(Lossless { h2o_layers, front_layers, .. }) = savings.lossless {
        if h2o_layers && savings.h2o.is_none() {
            notes
                .add(format_args!("lossless is for layers of h2o, too, and h2o is off: none of them is compressed"))?;
        }
        if (0..layers).all(|layer| savings.compresses(layer).is_none()) {
            notes.add(format_args!("lossless is for the first {front_layers} layers: nothing is compressed"))?;
        } else {
            notes.add(format_args!("lossless: within a step one compressed layer is raw and the next is decoded; the peak has both, and may \
                 be above what no compression takes when few layers are compressed"))?;
        }
    }
    let Some(max) = model.max_context else { return Ok(()) };
    if let Some(beyond) = contexts.iter().find(|context| **context > max) {
        notes.add(format_args!("{beyond} tokens are more than the {max} that the model was made for"))?;
    }
    if longest.is_some_and(|longest| longest.tokens > max) {
        notes.add(format_args!("the budget holds more than the {max} tokens that the model was made for"))?;
    }
    Ok(())
}

/// Notes about the distribution over ranks.
fn replicas(model: &ModelConfig, setup: &Setup, notes: &mut Notes) -> Result<()> {
    let ranks = setup.ranks;
    let kvs = || model.layers.iter().filter_map(LayerShape::attention).map(|attention| attention.kv);
    let heads = |kv| match kv {
        Kv::Heads { kv_heads, .. } => Some(kv_heads),
        Kv::Latent { .. } => None,
    };
    if let Some(kv_heads) = kvs().filter_map(heads).min().filter(|kv_heads| *kv_heads < ranks) {
        notes.add(format_args!("{ranks} ranks share {kv_heads} KV heads: each has a copy of one"))?;
        if !ranks.is_multiple_of(kv_heads) {
            notes.add(format_args!("{ranks} ranks are no multiple of {kv_heads} KV heads; engines may refuse that"))?;
        }
    }
    if ranks > 1 && kvs().any(|kv| matches!(kv, Kv::Latent { .. })) {
        notes.add(format_args!("latents serve all heads: each of the {ranks} ranks has all of them"))?;
    }
    Ok(())
}
