//! Keys about heads, layers, windows and kinds of attention that no rule here reads. A config of a new model type has
//! them under names of its own: they are named instead of being passed over in silence.

use super::super::Notes;
use super::keys::Keys;
use super::kv;
use crate::names::Joined;
use mnnkv::json::Json;
use mnnkv::status::Result;
use mnnkv::sys::memory;

/// Words in the names of keys that may bear on the cache.
const ABOUT: &str = "head heads kv layer layers window windows attention attn swa pattern mixer mixers hybrid";

/// Words beside them in the names of keys of weights, positions, outputs, and of states of recurrent layers.
const NOT_ABOUT: &str = "act activation adapter alpha audio beta bias bidirectional cap classifier clip conv dense drop dropout dtype \
    encoder eps epsilon expert experts ffn impl implementation init initializer input layerdrop layernorm ln logit \
    mamba mlp moe mtp multiplier norm pdrop prob rope rotary scalar scale scaling softcapping speech ssm temperature \
    theta vision vocab";

/// Texts that mean attention to all tokens, and ways to compute it.
const PLAIN: &str = "full full_attention multihead_attention softmax default eager sdpa flash_attention_2";

/// Keys that are read, some of them only beside others, and keys of queries, which are not kept.
const READ: &str = "num_hidden_layers num_transformer_layers n_layer n_layers num_layers num_query_heads num_sliding_attention_heads \
    head_dim v_head_dim swa_head_dim swa_v_head_dim global_head_dim index_head_dim index_n_heads qk_head_dim \
    qk_nope_head_dim qk_rope_head_dim kv_channels kv_lora_rank n_shared_head attn_config attention_other_setting \
    sliding_window sliding_window_size sliding_window_layers sliding_window_pattern _sliding_window_pattern \
    max_window_layers attention_window_size attention_chunk_size attention_types layer_types layers_block_type \
    layer_group_size attn_layer_indices attn_layer_period attn_layer_offset attn_type_list full_attn_idxs \
    full_attention_interval num_kv_shared_layers per_layer_config no_rope_layers no_rope_layer_interval \
    local_layer_ids num_nextn_predict_layers num_global_key_value_heads linear_num_key_heads linear_key_head_dim \
    linear_num_value_heads linear_value_head_dim linear_head_dim linear_num_heads";

/// A note on the keys of a config that may bear on the cache and that nothing reads.
pub(super) fn note(text: &Keys, notes: &mut Notes) -> Result<()> {
    const MOST: usize = 8;
    let inner = text.inner("attn_config")?;
    let (mut named, mut more) = (Vec::new(), 0);
    for keys in [Some(text), inner.as_ref()].into_iter().flatten() {
        for (key, value) in found(keys) {
            match named.len() < MOST {
                true => memory::push(&mut named, memory::format(format_args!("{} ({value})", keys.path(key)))?)?,
                false => more += 1,
            }
        }
    }
    let listed = Joined(&named, ", ");
    match (named.len(), more) {
        (0, _) => Ok(()),
        (1, _) => notes.add(format_args!("{listed} is not understood: {MEANS}")),
        (_, 0) => notes.add(format_args!("{listed} are not understood: {MEANS}")),
        _ => notes.add(format_args!("{listed} and {more} more are not understood: {MEANS}")),
    }
}

const MEANS: &str = "the size is wrong if heads, layers or kept tokens depend on that";

/// The first of these keys that may say which layers have a window: a list, a text, or every how many.
pub(super) fn kinds_of_layers<'a>(text: &Keys<'a>) -> Option<(&'a str, &'a Json<'a>)> {
    let counts = |key: &str| key.split('_').any(|part| is_one_of("every interval period freq frequency", part));
    found(text).find(|(key, value)| match value {
        Json::List(_) | Json::Text(_) => true,
        Json::Number(_) => counts(key),
        _ => false,
    })
}

fn found<'a>(keys: &Keys<'a>) -> impl Iterator<Item = (&'a str, &'a Json<'a>)> + use<'a> {
    // The note on the keys of an indexer names its dimension.
    keys.fields().filter(|(key, value)| is_unread(key, value) && index_dim(value).is_none())
}

/// The dimension of an indexer's keys in an object, its key, and the layers that have them, where a list says so.
pub(super) fn index_dim<'a>(object: &'a Json<'a>) -> Option<(&'a str, u64, Option<usize>)> {
    let Json::Object(fields) = object else { return None };
    let is_dim = |key: &str| ["index", "dim"].iter().all(|word| key.split('_').any(|part| part == *word));
    let (key, dim) =
        fields.iter().filter(|(key, _)| is_dim(key)).find_map(|(key, value)| Some((key, value.count()?)))?;
    let layers = fields.iter().find_map(|(_, value)| match value {
        Json::List(values) => Some(values.iter().filter(|value| value.count() == Some(1)).count()),
        _ => None,
    });
    Some((key, dim, layers))
}

/// Whether a key may bear on the cache, and nothing reads it.
fn is_unread(key: &str, value: &Json) -> bool {
    let is_read = is_one_of(READ, key) || kv::is_read(key);
    !is_read && is_about_the_cache(key, value)
}

/// Whether a key, by the words of its name, may bear on the cache, and says something.
pub(super) fn is_about_the_cache(key: &str, value: &Json) -> bool {
    let has = |words| key.split('_').any(|part| is_one_of(words, part));
    let says = match value {
        Json::Null | Json::Bool(_) => false,
        Json::Number(number) => number.float() > 0.0,
        Json::Text(text) => !text.is_empty() && !is_one_of(PLAIN, text),
        Json::List(values) => !values.is_empty(),
        Json::Object(fields) => !fields.is_empty(),
    };
    says && (has(ABOUT) || key.contains("key_value")) && !has(NOT_ABOUT)
}

fn is_one_of(words: &str, word: &str) -> bool {
    words.split(' ').any(|known| known == word)
}
