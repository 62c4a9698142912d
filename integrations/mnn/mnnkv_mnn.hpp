// mnn-kv inside Alibaba MNN: what lies between CPUAttention and the C API. Included by the patches in this folder.
//
// C++11, needs neither exceptions nor RTTI. Three things live here:
//
//   host     what the LLM engine says of a model; hangs on KVMeta::mnnkv. No host, or nothing enabled: MNN unchanged.
//   model    the mnn-kv session of that model, made by the first attention op that runs.
//   layer    one attention op's cache; hangs on CPUKVCacheManager::mnnkv, which all clones of the op share.
//
// MNN counts tokens in KVMeta: the chat's (logical). A layer whose tokens were evicted has fewer (physical). So a layer
// hands CPUAttention a KVMeta of its own for the step, in which `previous` is what its cache holds and edits of the
// history are done already; MNN's own code then appends, grows and attends as ever. Positional encodings come from the
// engine's count and are not touched.
//
// One thread per model, as MNN runs it, except layer::tile, which attention's threads call side by side.

#ifndef MNNKV_MNN_HPP
#define MNNKV_MNN_HPP

#include <MNN/MNNDefine.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#if defined(__GLIBC__) || defined(__ANDROID__)
#include <malloc.h>
#endif

#include "core/KVMeta.hpp"
#include "mnnkv.hpp"

namespace mnnkv_mnn {

class model;

/// What the LLM engine says of a model before it is loaded.
struct host {
    /// The model's config as a JSON object; kv_h2o_ and kv_lossless_ keys are read by mnnkv_session_create.
    std::string config;
    /// kv_h2o_enable and kv_lossless_enable: with neither nothing is ever made.
    bool evicts = false, compresses = false;
    /// kv_h2o_log_stats: one line per eviction.
    bool logs = false;
    /// As in llm_config.json: "full", "mix" ...; "float", "glm" ...
    std::string attention_type, attention_mask;

    /// Metrics as mnnkv_session_metrics_json writes them. Empty until attention has run. Set by the side that links
    /// mnn-kv, so that the engine, which may be a library of its own, needs none of its symbols.
    std::function<std::string()> metrics;
    std::shared_ptr<mnnkv_mnn::model> model;
};

/// Called by the engine before its KVMeta goes to the runtime. What was said before is replaced.
inline void attach(MNN::KVMeta& meta, const host& said) {
    meta.mnnkv.reset(said.evicts || said.compresses ? new host(said) : nullptr);
}

/// The model's metrics as JSON; "" when nothing is compressed.
inline std::string metrics(const MNN::KVMeta& meta) {
    return meta.mnnkv && meta.mnnkv->metrics ? meta.mnnkv->metrics() : std::string();
}

/// The session of one model.
class model {
public:
    /// An mnn-kv session of as many layers as the model has. When the config cannot be used, one line says why.
    model(const host& said, std::uint32_t layers, std::uint32_t threads)
        : evicts(said.evicts), logs(said.logs) {
        if (said.attention_type != "full") {
            refusal = "attention_type is \"" + said.attention_type + "\", not \"full\"";
        } else if (said.attention_mask != "float") {
            refusal = "attention_mask is \"" + said.attention_mask + "\", not \"float\"";
        } else {
            // The first eviction shall know something of the prompt, and run between its chunks. Of equal keys the last
            // counts, so the model's own config has its way.
            std::string config = said.config;
            if (evicts) {
                config.insert(config.find('{') + 1, "\"kv_h2o_prefill_queries\": 8,");
            }
            const std::uint32_t lanes = std::max<std::uint32_t>(threads, 8);
            const mnnkv::status made = session.create(config.data(), config.size(), layers, lanes);
            if (!made) {
                refusal = std::string("the config is refused: ") + made.message();
            }
        }
        std::string warnings;
        if (refusal.empty()) {
            (void)session.warnings(warnings);
        }
        std::istringstream lines(warnings);
        for (std::string line; std::getline(lines, line);) {
            say_once(line);
        }
    }

    /// Prints a line unless it was printed before, so that a model of 80 layers says it once.
    void say_once(const std::string& line) {
        if (said_.insert(line).second) {
            MNN_PRINT("mnn-kv: %s\n", line.c_str());
        }
    }

    /// Numbers layers in the order in which they first run; a number that was given back is used again.
    std::uint32_t take_number() {
        std::uint32_t number = 0;
        while (!taken_.insert(number).second) {
            ++number;
        }
        return number;
    }
    void give_number(std::uint32_t number) {
        (void)session.reset_layer(number);
        taken_.erase(number);
    }

    /// Buffers were freed or replaced in this forward. MNN hands them to malloc when the next one starts.
    void buffers_changed() { stale_heap_ = true; }

    /// A layer's step begins. At the start of a forward memory that malloc holds back goes to the system; malloc keeps
    /// what is freed below something still in use, which of caches that grow in turn is nearly everything.
    void enter(std::uint32_t number) {
        if (number <= last_entered_ && stale_heap_) {
            stale_heap_ = false;
#if defined(__GLIBC__)
            malloc_trim(0);
#elif defined(__ANDROID__) && defined(M_PURGE)
            mallopt(M_PURGE, 0);
#endif
        }
        last_entered_ = number;
    }

    mnnkv::session session;
    /// Why there is no session; empty when there is one.
    std::string refusal;
    const bool evicts, logs;

private:
    std::set<std::string> said_;
    std::set<std::uint32_t> taken_;
    std::uint32_t last_entered_ = 0;
    bool stale_heap_ = false;
};

/// One attention op's cache. Per step CPUAttention calls begin, appended, tile, end; it may leave after begin on an
/// error of its own, which the next begin mends.
class layer {
public:
    /// The layer of a cache, made when it is first asked for. NULL when nothing is to be done: the engine enabled
    /// nothing, or this op keeps no cache of its own (has_cache: kv_cache, and not another layer's).
    template <class Cache>
    static layer* of(MNN::KVMeta* meta, Cache& cache, bool has_cache, int threads) {
        if (!has_cache || meta == nullptr || !meta->mnnkv) {
            return nullptr;
        }
        if (!cache.mnnkv || !cache.mnnkv->model_) {
            const bool shared = cache.mnnkv != nullptr;
            cache.mnnkv.reset(new layer(*meta, static_cast<std::uint32_t>(std::max(threads, 1))));
            cache.mnnkv->shared_ = shared;
        }
        return cache.mnnkv.get();
    }

    /// Another op reads this cache: after the step it must be as MNN left it.
    template <class Cache>
    static void share(Cache& cache) {
        if (!cache.mnnkv) {
            cache.mnnkv.reset(new layer());
        }
        cache.mnnkv->shared_ = true;
    }

    ~layer() {
        if (model_) {
            model_->give_number(number_);
        }
    }

    /// Before MNN makes room for the step's tokens. Edits of the history are done, compressed tokens are back, the
    /// eviction that was planned is applied. The answer is what MNN takes for KVMeta in this step; NULL when tokens
    /// could not be restored (out of memory): nothing is lost, but attention must not run.
    template <class Cache>
    MNN::KVMeta* begin(MNN::KVMeta* meta, Cache& cache) {
        const bool was_open = open_;
        open_ = false;
        refused_.store(false, std::memory_order_relaxed);
        model_->enter(number_);
        if (meta->previous == meta->remove) {
            // MNN clears the cache and allocates a new one, whatever is reserved.
            (void)model_->session.reset_layer(number_);
            remember(*meta, 0);
            const std::string why = objection(*meta, cache);
            on_ = pending_ = why.empty();
            if (on_) {
                model_->buffers_changed();
            } else {
                model_->say_once("off where " + why);
            }
            return meta;
        }
        pending_ = false;
        if (!on_) {
            return meta;
        }
        if (was_open) {
            // The last step left early.
            mnnkv_cache now = describe(cache);
            (void)model_->session.end(number_, 0, 0, now);
        }
        mnnkv_cache given = describe(cache);
        std::uint32_t logical = 0, physical = 0;
        (void)model_->session.lengths(number_, logical, physical);
        mnnkv::status done = edit(*meta, logical, given);
        const std::uint32_t edited = given.kv_len;
        if (done) {
            (void)model_->session.lengths(number_, logical, physical);
            remember(*meta, logical);
            done = model_->session.begin(number_, given);
        }
        cache.mPastLength = static_cast<int>(given.kv_len);
        if (!done) {
            MNN_ERROR("mnn-kv: layer %u: %s\n", number_, done.message());
            return nullptr;
        }
        open_ = true;
        if (model_->logs && given.kv_len < edited) {
            MNN_PRINT("mnn-kv: layer %u evicted %u of %u tokens\n", number_, edited - given.kv_len, edited);
        }
        widen(cache, given.kv_len + meta->add);
        copy_numbers(*meta);
        view_.previous = given.kv_len;
        return &view_;
    }

    /// After MNN has appended the step's tokens.
    template <class Cache>
    void appended(Cache& cache) {
        if (chunk_ != 0) {
            cache.mConfig.mExpandChunk = chunk_;
            chunk_ = 0;
            // MNN has zeroed what it does not need yet.
            give_back_tail(cache);
            model_->buffers_changed();
        }
        if (!pending_) {
            return;
        }
        // The cache was cleared and is new: only now there is one to show.
        pending_ = false;
        mnnkv_cache given = describe(cache);
        given.kv_len = 0;
        const mnnkv::status begun = model_->session.begin(number_, given);
        on_ = open_ = static_cast<bool>(begun);
        if (!begun) {
            model_->say_once(std::string("off where a cache is refused: ") + begun.message());
        }
    }

    /// A softmax tile of one query head as it is before it meets V: [UP(tokens, pack)][rows][pack] of `bytes` bytes
    /// each. scale and sum are MNN's updateScale and runningSum, [rows]; sum is read with the last tile. Without scale
    /// the tile is the whole row and finished. Called by thread `lane`.
    void tile(int lane, const void* data, int bytes, int pack, int rows, int tokens, int token_begin, bool last,
              const float* scale, const float* sum) {
        if (!open_ || !model_->evicts) {
            return;
        }
        mnnkv_score_tile given = mnnkv::make<mnnkv_score_tile>();
        given.dtype = bytes == 2 ? MNNKV_DTYPE_F16 : MNNKV_DTYPE_F32;
        given.pack = static_cast<std::uint32_t>(pack);
        given.queries = static_cast<std::uint32_t>(rows);
        given.heads = 1;
        given.tokens = static_cast<std::uint32_t>(tokens);
        given.token_begin = static_cast<std::uint32_t>(token_begin);
        given.flags = (token_begin == 0 ? MNNKV_TILE_FIRST : 0) | (last ? MNNKV_TILE_LAST : 0);
        given.data = data;
        given.update_scale = scale;
        given.row_sum = scale != nullptr && last ? sum : nullptr;
        if (!model_->session.scores(number_, static_cast<std::uint32_t>(lane), given)) {
            refused_.store(true, std::memory_order_relaxed);
        }
    }

    /// After attention: `rows` queries of `heads` query heads have seen the cache.
    template <class Cache>
    void end(Cache& cache, std::uint32_t heads, std::uint32_t rows) {
        if (!open_) {
            return;
        }
        open_ = false;
        mnnkv_cache now = describe(cache);
        std::string why = "a tile was refused";
        if (!refused_.load(std::memory_order_relaxed)) {
            const mnnkv::status done = model_->session.end(number_, heads, rows, now);
            if (done) {
                return;
            }
            why = done.message();
        }
        // The tokens are kept; what the step's attention would have said of them is not known.
        model_->say_once("a step goes without scores: " + why);
        (void)model_->session.end(number_, 0, 0, now);
    }

private:
    layer() = default;

    layer(MNN::KVMeta& meta, std::uint32_t threads) : host_(meta.mnnkv) {
        if (!host_->model) {
            const std::uint32_t layers = static_cast<std::uint32_t>(std::max(meta.layer_nums, 1));
            host_->model = std::make_shared<mnnkv_mnn::model>(*host_, layers, threads);
            mnnkv_mnn::model* made = host_->model.get();
            if (made->session) {
                host_->metrics = [made] {
                    std::string text;
                    (void)made->session.metrics_json(text);
                    return text;
                };
            }
        }
        model_ = host_->model.get();
        number_ = model_->take_number();
    }

    /// Why the cache that is about to be made cannot be compressed; "" when it can.
    template <class Cache>
    std::string objection(const MNN::KVMeta& meta, const Cache& cache) const {
        std::uint32_t logical = 0, physical = 0;
        if (!model_->refusal.empty()) {
            return model_->refusal;
        }
        if (shared_) {
            return "a cache is read by more than one layer";
        }
        if (static_cast<int>(cache.mKeyQuantMode) != 0 || static_cast<int>(cache.mValueQuantMode) != 0) {
            return "the cache is quantised; attention_mode 8 and 0 are not";
        }
        if (!meta.file_name.empty() && meta.file_flag != MNN::KVMeta::NoChange) {
            return "the cache is a prefix cache file, until a prompt that clears it";
        }
        if (cache.mBytes != 4 && cache.mBytes != 2) {
            return "an element of the cache has " + std::to_string(cache.mBytes) + " bytes";
        }
        if (!model_->session.lengths(number_, logical, physical)) {
            return "a model has more caches than layer_nums says";
        }
        return std::string();
    }

    /// The cache as the library wants it.
    template <class Cache>
    mnnkv_cache describe(Cache& cache) {
        layout_ = mnnkv::make<mnnkv_layout>();
        layout_.key_dtype = layout_.value_dtype = cache.mBytes == 2 ? MNNKV_DTYPE_F16 : MNNKV_DTYPE_F32;
        layout_.kv_heads = static_cast<std::uint32_t>(cache.mKvNumHead);
        layout_.head_dim = static_cast<std::uint32_t>(cache.mHeadDim);
        layout_.e_pack = static_cast<std::uint32_t>(cache.eP);
        layout_.l_pack = static_cast<std::uint32_t>(cache.lP);
        layout_.h_pack = static_cast<std::uint32_t>(cache.hP);
        layout_.flash_block = static_cast<std::uint32_t>(cache.mFlashAttentionUpperKv);
        layout_.max_tokens = static_cast<std::uint32_t>(cache.mMaxLength);
        layout_.key_head_stride = cache.mCurrentKeySizePerHead;
        layout_.value_head_stride = cache.mCurrentValueSizePerHead;
        mnnkv_cache described = mnnkv::make<mnnkv_cache>();
        described.layout = &layout_;
        described.key = cache.keyAddr();
        described.value = cache.valudAddr();
        described.kv_len = static_cast<std::uint32_t>(cache.mPastLength);
        return described;
    }

    /// Drops what KVMeta wants dropped from the history: as many tokens at the end as it removes, but for the reserved
    /// ranges among them.
    mnnkv::status edit(const MNN::KVMeta& meta, std::size_t logical, mnnkv_cache& given) {
        kept_.clear();
        if (meta.previous == last_.previous && meta.previous != last_.next) {
            // The last forward failed, here or in a later layer, so KVMeta did not move on. What it appended goes; its
            // edit is done, if it is still the same.
            const bool same = meta.remove == last_.remove && meta.n_reserve == last_.n_reserve;
            keep(0, same ? last_.edited : std::min(last_.edited, meta.previous - std::min(meta.previous, meta.remove)));
        } else {
            const std::size_t base = logical - std::min(logical, meta.remove);
            keep(0, base);
            for (int i = 0; i < meta.n_reserve; ++i) {
                const std::size_t offset = static_cast<std::size_t>(std::max(meta.reserve[2 * i], 0));
                const std::size_t from = base + std::min(offset, logical - base);
                const std::size_t count = static_cast<std::size_t>(std::max(meta.reserve[2 * i + 1], 0));
                keep(from, std::min(count, logical - from));
            }
        }
        return model_->session.keep(number_, kept_.data(), kept_.size() / 2, given);
    }

    /// Remembers what KVMeta says of this step. edited: the logical length before anything is appended.
    void remember(const MNN::KVMeta& meta, std::size_t edited) {
        last_.previous = meta.previous;
        // As KVMeta::sync counts, which is not always what the cache has.
        last_.next = meta.previous - meta.remove + meta.add;
        for (int i = 0; i < meta.n_reserve; ++i) {
            last_.next += static_cast<std::size_t>(std::max(meta.reserve[2 * i + 1], 0));
        }
        last_.remove = meta.remove;
        last_.n_reserve = meta.n_reserve;
        last_.edited = edited;
    }

    void keep(std::size_t from, std::size_t count) {
        if (count > 0) {
            kept_.push_back(static_cast<std::int32_t>(from));
            kept_.push_back(static_cast<std::int32_t>(count));
        }
    }

    /// MNN grows a cache by 64 tokens, and copies all of it each time. What a growing cache does not need yet goes back
    /// to the system, so it may as well grow by a quarter.
    template <class Cache>
    void widen(Cache& cache, std::size_t tokens) {
        if (tokens > static_cast<std::size_t>(cache.mMaxLength) && !cache.mKVCacheInDisk) {
            // Still set where the last growth failed.
            chunk_ = chunk_ != 0 ? chunk_ : cache.mConfig.mExpandChunk;
            cache.mConfig.mExpandChunk = std::max(chunk_, static_cast<int>(tokens / 4));
        }
    }

    template <class Cache>
    void give_back_tail(Cache& cache) {
        const mnnkv_cache now = describe(cache);
        std::uint64_t bytes = 0;
        mnnkv_kv_release(now.layout, now.key, now.value, now.kv_len, layout_.max_tokens - now.kv_len, &bytes);
    }

    /// What MNN's allocation and growth read of a KVMeta. The history's edit is done.
    void copy_numbers(const MNN::KVMeta& meta) {
        view_.block = meta.block;
        view_.remove = 0;
        view_.reserve = nullptr;
        view_.n_reserve = 0;
        view_.add = meta.add;
        view_.layer_nums = meta.layer_nums;
        view_.attn_scale = meta.attn_scale;
    }

    /// Kept alive beyond KVMeta.
    std::shared_ptr<host> host_;
    /// The host's; NULL as long as share() alone has named the layer.
    mnnkv_mnn::model* model_ = nullptr;
    std::uint32_t number_ = 0;
    /// Compressed since the cache was cleared last.
    bool on_ = false;
    /// Cleared in this step; the session hears of the new cache once there is one.
    bool pending_ = false;
    /// Between begin and end of the session.
    bool open_ = false;
    bool shared_ = false;
    /// KVMeta at the last begin, to tell a forward that failed from one that was done.
    struct {
        std::size_t previous, next, remove, edited;
        int n_reserve;
    } last_ = {0, 0, 0, 0, 0};
    /// A tile of this step was refused.
    std::atomic<bool> refused_{false};
    /// MNN's own mExpandChunk while it is another for one growth; else 0.
    int chunk_ = 0;
    MNN::KVMeta view_;
    mnnkv_layout layout_;
    std::vector<std::int32_t> kept_;
};

/// The metrics in what Llm::dump_config writes; "" when there are none.
inline std::string bench_metrics(const std::string& config) {
    const std::size_t at = config.find("\"kv_metrics\"");
    return at == std::string::npos ? std::string() : config.substr(at);
}

/// What llm_bench shows of the metrics, one column each.
inline const std::vector<std::string>& bench_columns() {
    static const std::vector<std::string> names = {"h2o_lossy_ratio", "h2o_lossless_ratio", "h2o_total_evict_tokens",
                                                   "h2o_resident_saved_bytes"};
    return names;
}

/// One number of bench_metrics' text; "-" when it was not measured.
inline std::string bench_value(const std::string& metrics, const std::string& name) {
    const std::string key = "\"" + name + "\":";
    const std::size_t at = metrics.find(key);
    if (at == std::string::npos) {
        return "-";
    }
    char text[32];
    std::snprintf(text, sizeof text, "%.10g", std::strtod(metrics.c_str() + at + key.size(), nullptr));
    return text;
}

}  // namespace mnnkv_mnn

#endif  // MNNKV_MNN_HPP
