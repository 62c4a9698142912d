//! Compressor: run on packed caches in place

use super::compressor::{mnnkv_compressor, mnnkv_compressor_options, with};
use crate::compressor::{Compressor, LengthPlan, Tokens, Workspace};
use mnnkv::ffi::cache::mnnkv_cache;
use mnnkv::ffi::given::checked_float;
use mnnkv::ffi::pointer::{self, Out};
use mnnkv::ffi::status::mnnkv_status;
use mnnkv::layout::{self, Cache, CacheRef, Layout};
use mnnkv::status::{Error, Result, bail};
use mnnkv::sys::memory;

/// Compresses the packed caches of n_layers neighbouring layers in place: those of a model, or of one device.
///
/// caches: caches[i] belongs to layer first_layer + i. All have the same struct_size, which is their distance in bytes,
/// and the same kv_len. Layouts may differ in packing; head_dim is that of the file, and K and V of a cache have one
/// type: F16, BF16 or F32. options: NULL = the defaults of the file. old_len, new_len: tokens before and after; kv_len
/// of every cache becomes new_len. Bytes after it are not cleared: mnnkv_kv_release returns that memory.
///
/// All layers are computed before the first one is written: on failure no byte and no kv_len has changed. The call
/// allocates the compressed rows of all layers. One thread per cache. Stored tokens must be restored first, and their
/// blocks must be dropped afterwards (mnnkv_store_compacted without pairs, mnnkv_session_reset).
/// INVALID_ARGUMENT: if n_layers is 0, a layer does not exist in the file, kv_len differs between caches, buffers overlap, a
///   layout does not fit, or a result is not finite.
/// UNSUPPORTED: if a cache is quantised, K and V have different types, or a weight exceeds the range of the type.
/// OUT_OF_MEMORY: if the rows cannot be allocated.
#[cfg_attr(feature = "capi", unsafe(no_mangle))]
pub unsafe extern "C" fn mnnkv_compressor_run_caches(
    compressor: *const mnnkv_compressor,
    first_layer: u32,
    options: *const mnnkv_compressor_options,
    caches: *mut mnnkv_cache,
    n_layers: u32,
    old_len: *mut u32,
    new_len: *mut u32,
) -> mnnkv_status {
    // SAFETY: the caller guarantees its pointers.
    unsafe {
        with(compressor, |file| {
            let options = mnnkv_compressor_options::given(options)?;
            let (old_len, new_len) = (Out::new(old_len, "old_len")?, Out::new(new_len, "new_len")?);
            let end = u64::from(first_layer) + u64::from(n_layers);
            if n_layers == 0 {
                bail!(InvalidArgument, "n_layers is 0; at least 1 expected");
            }
            if end > file.layers() as u64 {
                let layers = file.layers();
                bail!(InvalidArgument, "layers {first_layer} .. {end}; the weights file has {layers} layers");
            }
            let given = given_caches(caches, n_layers as usize)?;
            let kv_len = given[0].1.kv_len;
            let layers = given.iter().enumerate();
            let layers = layers.map(|(i, (_, cache))| PackedLayer::new(file, cache, kv_len).map_err(|e| named(i, &e)));
            let mut layers = memory::try_collect(layers)?;
            let plan = file.plan(kv_len as usize, &options)?;
            if plan.new_len() < plan.len() {
                let results = compress_all(file, first_layer as usize, &plan, &layers)?;
                for (layer, (key, value)) in layers.iter_mut().zip(&results) {
                    let range = layer.layout.range(0, plan.new_len() as u32)?;
                    let mut cache = Cache::new(&layer.layout, layer.key, layer.value)?;
                    layout::scatter(&mut cache, range, key, value)?;
                }
                for (place, _) in given {
                    // Read through the same pointer, which is not const.
                    (&raw mut (*place).kv_len).write(plan.new_len() as u32);
                }
            }
            old_len.set(kv_len);
            new_len.set(plan.new_len() as u32);
            Ok(())
        })
    }
}

/// An error of one of several caches.
fn named(index: usize, error: &Error) -> Error {
    error.within(format_args!("caches[{index}]"))
}

/// Every cache and where it is; none of their buffers overlap.
///
/// # Safety
/// A non-NULL `caches` is readable for `count` structs of the size in the first one; so are their layouts.
unsafe fn given_caches(caches: *mut mnnkv_cache, count: usize) -> Result<Vec<(*mut mnnkv_cache, mnnkv_cache)>> {
    let mut all = Vec::new();
    let mut buffers = Vec::new();
    memory::reserve(&mut all, count)?;
    memory::reserve(&mut buffers, 2 * count)?;
    let mut place = caches;
    for i in 0..count {
        // SAFETY: passed on.
        let cache = unsafe { pointer::required(place, "cache") }.map_err(|e| named(i, &e))?;
        let size = all.first().map_or(cache.struct_size, |(_, first): &(_, mnnkv_cache)| first.struct_size);
        if cache.struct_size != size {
            bail!(InvalidArgument, "caches[{i}].struct_size is {}; {size} expected, as the first", cache.struct_size);
        }
        // SAFETY: passed on.
        let layout = unsafe { checked_float(cache.layout) }.map_err(|e| named(i, &e))?.layout;
        memory::push(&mut buffers, (cache.key, layout.key_bytes(), i, "key"))?;
        memory::push(&mut buffers, (cache.value, layout.value_bytes(), i, "value"))?;
        memory::push(&mut all, (place, cache))?;
        place = place.wrapping_byte_add(size as usize);
    }
    buffers.sort_unstable_by_key(|buffer| buffer.0.addr());
    for pair in buffers.windows(2) {
        let [(a, a_len, i, a_name), (b, _, j, b_name)] = [pair[0], pair[1]];
        if a.addr().saturating_add(a_len) > b.addr() && !a.is_null() {
            bail!(InvalidArgument, "{a_name} of caches[{i}] and {b_name} of caches[{j}] overlap");
        }
    }
    Ok(all)
}

/// A cache that the compressor can work on.
struct PackedLayer<'a> {
    layout: Layout,
    key: &'a mut [u8],
    value: &'a mut [u8],
}

impl PackedLayer<'_> {
    /// # Safety
    /// Both buffers are as long as the layout says, and are not touched by others during the call.
    unsafe fn new(file: &Compressor, cache: &mnnkv_cache, kv_len: u32) -> Result<Self> {
        // SAFETY: passed on; no two buffers overlap, see `given_caches`.
        let (layout, key, value) = unsafe {
            let layout = checked_float(cache.layout)?.layout;
            let key = pointer::output_bytes(cache.key, layout.key_bytes(), "key")?;
            let value = pointer::output_bytes(cache.value, layout.value_bytes(), "value")?;
            (layout, key, value)
        };
        let rows = layout.rows();
        if rows.key != rows.value {
            let (k, v) = (rows.key.name(), rows.value.name());
            bail!(Unsupported, "layout->key_dtype is {k}, value_dtype is {v}; one type for both expected");
        }
        if rows.dims != file.head_dim() {
            let (given, expected) = (rows.dims, file.head_dim());
            bail!(InvalidArgument, "layout->head_dim is {given}; {expected} expected, as in the weights file");
        }
        if cache.kv_len != kv_len {
            bail!(InvalidArgument, "kv_len is {}; {kv_len} expected, as in caches[0]", cache.kv_len);
        }
        layout.range(0, kv_len)?;
        Ok(PackedLayer { layout, key, value })
    }
}

/// The compressed rows of K and V of every layer.
fn compress_all(
    file: &Compressor,
    first_layer: usize,
    plan: &LengthPlan,
    layers: &[PackedLayer],
) -> Result<Vec<(Vec<u8>, Vec<u8>)>> {
    let (mut work, mut keys, mut values) = (Workspace::default(), Vec::new(), Vec::new());
    let mut results = Vec::new();
    memory::reserve(&mut results, layers.len())?;
    for (i, layer) in layers.iter().enumerate() {
        let rows = layer.layout.rows();
        let range = layer.layout.range(0, plan.len() as u32)?;
        memory::resize(&mut keys, rows.key_bytes(plan.len()))?;
        memory::resize(&mut values, rows.value_bytes(plan.len()))?;
        let cache = CacheRef::new(&layer.layout, layer.key, layer.value)?;
        layout::gather(&cache, range, &mut keys, &mut values)?;
        let (mut key, mut value) = (Vec::new(), Vec::new());
        memory::resize(&mut key, rows.key_bytes(plan.new_len()))?;
        memory::resize(&mut value, rows.value_bytes(plan.new_len()))?;
        let tokens = Tokens { dtype: rows.key.words(), heads: rows.heads };
        file.run(first_layer + i, plan, tokens, &keys, &values, &mut key, &mut value, &mut work)
            .map_err(|e| named(i, &e))?;
        memory::push(&mut results, (key, value))?;
    }
    Ok(results)
}
