//! The elements of a token: heads of keys and values, or a latent vector.

use super::super::Notes;
use super::super::shape::{Kv, Span};
use super::defaults::Assumed;
use super::keys::Keys;
use super::own::PER_LAYER;
use mnnkv::json::Json;
use mnnkv::status::{Result, bail};
use mnnkv::sys::memory;

/// The elements of a token in each layer.
pub(super) struct LayerKvs {
    /// Of all layers but those below.
    pub every: Kv,
    /// Of layers with full attention.
    full: Kv,
    /// Of layers with a window.
    sliding: Kv,
    /// KV heads, and elements of a head, where lists have them for each layer.
    listed: [Option<Vec<u32>>; 2],
}

impl LayerKvs {
    pub fn at(&self, number: usize, span: Span) -> Kv {
        let mut kv = match span {
            Span::Full => self.full,
            Span::Sliding(_) => self.sliding,
            Span::Chunked(_) => self.every,
        };
        if let Kv::Heads { kv_heads, head_dim } = &mut kv {
            for (value, list) in [kv_heads, head_dim].into_iter().zip(&self.listed) {
                *value = list.as_ref().and_then(|list| list.get(number)).copied().unwrap_or(*value);
            }
        }
        kv
    }
}

/// Tokens of layers with attention.
pub(super) fn of(text: &Keys, layers: u32, assumed: &mut Assumed) -> Result<LayerKvs> {
    let listed = [list(text, &KV_HEADS, layers, assumed.notes)?, list(text, &["head_dim"], layers, assumed.notes)?];
    let [kv_heads, head_dim] = [0, 1].map(|at: usize| listed[at].as_ref().and_then(|list| list.first()).copied());
    let every = match latent(text, assumed)? {
        Some(kv) => kv,
        None => match (kv_heads, dim(text, head_dim)?) {
            // No number of query heads matters.
            (Some(kv_heads), Some(head_dim)) => {
                same_length(text, "v_head_dim", head_dim)?;
                Kv::Heads { kv_heads, head_dim }
            }
            (kv_heads, head_dim) => heads(text, kv_heads, head_dim, assumed)?,
        },
    };
    Ok(LayerKvs { every, full: of_full_layers(text, every, assumed)?, sliding: of_windows(text, every)?, listed })
}

/// A number for each layer.
fn list(text: &Keys, names: &[&str], layers: u32, notes: &mut Notes) -> Result<Option<Vec<u32>>> {
    let Some(key) = names.iter().find(|key| matches!(text.get(key), Some(Json::List(_)))) else { return Ok(None) };
    let Some(values) = text.list_per_layer(key, layers, notes)? else { return Ok(None) };
    let number = |(at, value): (usize, &Json)| match value.count().and_then(|number| u32::try_from(number).ok()) {
        Some(number @ 1..) => Ok(number),
        _ => bail!(InvalidArgument, "{}[{at}] is {value}; a whole number from 1 on expected", text.path(key)),
    };
    memory::try_collect(values.iter().enumerate().map(number)).map(Some)
}

/// Elements of a head: the first of a list, or a number.
fn dim(text: &Keys, first: Option<u32>) -> Result<Option<u32>> {
    first.map_or_else(|| text.number(&DIM, u32::MAX), |first| Ok(Some(first)))
}

/// Tokens of layers with full attention. Gemma 4 has longer heads there, and fewer of them in some sizes; their values
/// are computed from the keys but stored beside them.
fn of_full_layers(text: &Keys, kv: Kv, assumed: &mut Assumed) -> Result<Kv> {
    let Kv::Heads { kv_heads, .. } = kv else { return Ok(kv) };
    let head_dim = match text.number(&["global_head_dim"], u32::MAX)? {
        Some(head_dim) => head_dim,
        // Layers with numbers of their own need no default.
        None if text.inner(PER_LAYER)?.is_some_and(|inner| inner.fields().next().is_some()) => return Ok(kv),
        None => match assumed.default(text.path("global_head_dim"), |d| d.global_head_dim)? {
            Some(head_dim) => head_dim,
            None => return Ok(kv),
        },
    };
    let own_heads = text.number(&["num_global_key_value_heads"], u32::MAX)?;
    let counts = text.flag("attention_k_eq_v")? == Some(true);
    Ok(Kv::Heads { kv_heads: own_heads.filter(|_| counts).unwrap_or(kv_heads), head_dim })
}

/// Tokens of layers with a window, which may have heads of their own.
fn of_windows(text: &Keys, kv: Kv) -> Result<Kv> {
    let own_heads = text.number(&["swa_num_attention_heads", "num_swa_attention_heads"], u32::MAX)?;
    let own_kv_heads = text.number(&["swa_num_key_value_heads", "num_swa_key_value_heads"], u32::MAX)?;
    let own_dim = text.number(&["swa_head_dim"], u32::MAX)?;
    // Step 3.5 has the other layers' numbers in an object.
    let other = text.inner("attention_other_setting")?;
    let other = match other {
        None => (None, None),
        Some(keys) if keys.name("attention_type")? == Some("sliding_attention") => {
            (keys.number(&KV_HEADS, u32::MAX)?, keys.number(&["head_dim"], u32::MAX)?)
        }
        Some(keys) => bail!(
            Unsupported,
            "{} is not \"sliding_attention\", which alone this version can size",
            keys.path("attention_type")
        ),
    };
    let Kv::Heads { kv_heads, head_dim } = kv else {
        if own_kv_heads.or(own_dim).or(other.0).is_some() {
            bail!(
                Unsupported,
                "the layers have latents (MLA) and those with a window heads, which this version cannot size"
            );
        }
        return Ok(kv);
    };
    let divided = match own_heads {
        Some(heads) if DIM.iter().all(|key| text.get(key).is_none()) => {
            text.number(&WIDTH, u32::MAX)?.map(|width| width / heads)
        }
        _ => None,
    };
    let head_dim = own_dim.or(other.1).or(divided).unwrap_or(head_dim);
    same_length(text, "swa_v_head_dim", head_dim)?;
    if head_dim == 0 {
        bail!(InvalidArgument, "{} is too small for {} heads", text.path(WIDTH[0]), own_heads.unwrap_or(0));
    }
    Ok(Kv::Heads { kv_heads: own_kv_heads.or(other.0).unwrap_or(kv_heads), head_dim })
}

/// Fails if values have another length than keys.
fn same_length(text: &Keys, key: &str, head_dim: u32) -> Result<()> {
    match text.number(&[key], u32::MAX)?.filter(|dim| *dim != head_dim) {
        None => Ok(()),
        Some(dim) => {
            bail!(Unsupported, "{} is {dim} and head_dim {head_dim}; values as long as keys expected", text.path(key))
        }
    }
}

/// Latent attention (MLA), if the config has it.
fn latent(text: &Keys, assumed: &mut Assumed) -> Result<Option<Kv>> {
    if text.flag("use_mla")? == Some(false) {
        return Ok(None);
    }
    let rank = match text.number(&["kv_lora_rank"], u32::MAX)? {
        Some(rank) => rank,
        // A model of this type declares heads by an explicit null.
        None if text.has("kv_lora_rank") => return Ok(None),
        None => match assumed.default(text.path("kv_lora_rank"), |d| d.kv_lora_rank)? {
            Some(rank) => rank,
            None => return Ok(None),
        },
    };
    let rope = match text.count("qk_rope_head_dim")? {
        Some(rope) => rope,
        None => match assumed.default(text.path("qk_rope_head_dim"), |d| d.kv_lora_rank.map(|_| 64))? {
            Some(rope) => rope,
            None => bail!(
                InvalidArgument,
                "the config has {} and no {}, which is part of what is kept",
                text.path("kv_lora_rank"),
                text.path("qk_rope_head_dim")
            ),
        },
    };
    Ok(Some(Kv::Latent { kv_lora_rank: rank, qk_rope_head_dim: rope }))
}

pub(super) const HEADS: [&str; 4] = ["num_attention_heads", "n_head", "n_heads", "num_heads"];
const WIDTH: [&str; 4] = ["hidden_size", "n_embd", "n_embed", "d_model"];

const DIM: [&str; 2] = ["head_dim", "kv_channels"];
pub(super) const KV_HEADS: [&str; 6] = [
    "num_key_value_heads",
    "num_kv_heads",
    "n_head_kv",
    "kv_n_heads",
    "num_attention_groups",
    "num_key_value_heads_per_layer",
];

/// Whether a key has a number of heads that is read here.
pub(super) fn is_read(key: &str) -> bool {
    let windows =
        ["swa_num_attention_heads", "num_swa_attention_heads", "swa_num_key_value_heads", "num_swa_key_value_heads"];
    HEADS.contains(&key) || KV_HEADS.contains(&key) || windows.contains(&key)
}

/// Heads of keys and values (MHA, GQA, MQA), those from lists first.
fn heads(text: &Keys, kv_heads: Option<u32>, head_dim: Option<u32>, assumed: &mut Assumed) -> Result<Kv> {
    let heads = assumed.required(text, &HEADS, u32::MAX, |d| d.heads)?;
    let head_dim = match head_dim {
        Some(head_dim) => head_dim,
        None => match assumed.default(text.path("head_dim"), |d| d.head_dim)? {
            Some(head_dim) => head_dim,
            None => {
                let width = assumed.required(text, &WIDTH, u32::MAX, |d| d.width)?;
                if !width.is_multiple_of(heads) {
                    bail!(
                        InvalidArgument,
                        "{} is {width}, which is no multiple of the {heads} attention heads, and there is no head_dim",
                        text.path(WIDTH[0])
                    );
                }
                width / heads
            }
        },
    };
    same_length(text, "v_head_dim", head_dim)?;
    let kv_heads = match kv_heads {
        Some(kv_heads) => kv_heads,
        None => self::kv_heads(text, heads, assumed)?,
    };
    if !heads.is_multiple_of(kv_heads) {
        bail!(
            InvalidArgument,
            "{} attention heads cannot share {kv_heads} KV heads; a divisor of {heads} expected",
            heads
        );
    }
    Ok(Kv::Heads { kv_heads, head_dim })
}

fn kv_heads(text: &Keys, heads: u32, assumed: &mut Assumed) -> Result<u32> {
    // Falcon reads `num_kv_heads` only in its newer architecture; older configs have the key, too.
    let newer_falcon = text.flag("new_decoder_architecture")? == Some(true);
    let multi_query = text.flag("multi_query")?.or(assumed.defaults.and_then(|d| d.multi_query));
    if multi_query == Some(true) && !newer_falcon {
        if text.flag("multi_query")?.is_none() {
            let family = assumed.family;
            assumed
                .notes
                .add(format_args!("multi_query is not given: true is assumed, as model type {family} has it"))?;
        }
        return Ok(1);
    }
    // ChatGLM writes the number of groups even if it does not use them.
    if text.flag("multi_query_attention")? != Some(false)
        && let Some(groups) = text.number(&["multi_query_group_num"], u32::MAX)?
    {
        return Ok(groups);
    }
    // PLaMo writes a number of KV heads that it does not use.
    if let Some(sharing) = text.number(&["n_shared_head"], u32::MAX)? {
        return Ok(heads.div_ceil(sharing));
    }
    if let Some(kv_heads) = text.number(&KV_HEADS, u32::MAX)? {
        return Ok(kv_heads);
    }
    // MPT and DBRX.
    if let Some(inner) = text.inner("attn_config")?
        && let Some(kv_heads) = inner.number(&["kv_n_heads"], u32::MAX)?
    {
        return Ok(kv_heads);
    }
    let key = text.path(KV_HEADS[0]);
    if !text.has(KV_HEADS[0])
        && let Some(kv_heads) = assumed.default(key, |d| d.kv_heads)?
    {
        return Ok(kv_heads);
    }
    let text = format_args!("{key} is not given: each of the {heads} attention heads has its own K and V (MHA)");
    assumed.notes.add(text)?;
    Ok(heads)
}
