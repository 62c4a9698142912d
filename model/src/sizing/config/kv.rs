//! The elements of a token: heads of keys and values, or a latent vector.

use super::super::shape::Kv;
use super::defaults::Assumed;
use super::keys::Keys;
use mnnkv::status::{Result, bail};

/// Tokens of layers with attention.
pub(super) fn of(text: &Keys, assumed: &mut Assumed) -> Result<Kv> {
    match latent(text, assumed)? {
        Some(kv) => Ok(kv),
        None => heads(text, assumed),
    }
}

/// Tokens of layers with full attention. Gemma 4 has longer heads there, and fewer of them in some sizes; their values
/// are computed from the keys but stored beside them.
pub(super) fn of_full_layers(text: &Keys, kv: Kv, assumed: &mut Assumed) -> Result<Kv> {
    let Kv::Heads { kv_heads, .. } = kv else { return Ok(kv) };
    let head_dim = match text.number(&["global_head_dim"], u32::MAX)? {
        Some(head_dim) => head_dim,
        None => match assumed.default(text.path("global_head_dim"), |d| d.global_head_dim)? {
            Some(head_dim) => head_dim,
            None => return Ok(kv),
        },
    };
    let own_heads = text.number(&["num_global_key_value_heads"], u32::MAX)?;
    let counts = text.flag("attention_k_eq_v")? == Some(true);
    Ok(Kv::Heads { kv_heads: own_heads.filter(|_| counts).unwrap_or(kv_heads), head_dim })
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

const HEADS: [&str; 4] = ["num_attention_heads", "n_head", "n_heads", "num_heads"];
const WIDTH: [&str; 4] = ["hidden_size", "n_embd", "n_embed", "d_model"];

/// Heads of keys and values (MHA, GQA, MQA).
fn heads(text: &Keys, assumed: &mut Assumed) -> Result<Kv> {
    let heads = assumed.required(text, &HEADS, u32::MAX, |d| d.heads)?;
    let head_dim = match text.number(&["head_dim", "kv_channels"], u32::MAX)? {
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
    if let Some(v_head_dim) = text.number(&["v_head_dim"], u32::MAX)?.filter(|dim| *dim != head_dim) {
        let key = text.path("v_head_dim");
        bail!(Unsupported, "{key} is {v_head_dim} and head_dim {head_dim}; values as long as keys expected");
    }
    let kv_heads = kv_heads(text, heads, assumed)?;
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
    const KV_HEADS: [&str; 4] = ["num_key_value_heads", "num_kv_heads", "n_head_kv", "kv_n_heads"];
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
