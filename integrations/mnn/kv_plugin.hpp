// mnn-kv inside Alibaba MNN: the adapter between CPUAttention and mnnkv_host.hpp, included by the patches.
//
// C++11, needs neither exceptions nor RTTI.
//
//   host     the LLM engine's settings of a model (kv_plugin_host.hpp); hangs on KVMeta::plugin. Without a host MNN is unchanged.
//   layer    one attention op's cache; hangs on CPUKVCacheManager::plugin, which all clones of the op share.
//
// KVMeta counts the chat's tokens (logical). A layer whose tokens were evicted has fewer (physical). layer::begin
// sets `meta` to a KVMeta of the layer's own for the step: its `previous` is the physical length, and history edits are done.
// MNN's code then appends, grows and attends unchanged. Positional encodings use the engine's count.
//
// All calls of one model must come from one thread at a time, as in MNN, except layer::tile and attend.

#ifndef KV_PLUGIN_HPP
#define KV_PLUGIN_HPP

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "mnnkv_chat.hpp"
#include "mnnkv_files.hpp"
#include "mnnkv_half.hpp"
#include "kv_plugin_host.hpp"
#include "kv_plugin_mask.hpp"

namespace kv_plugin {

/// Gives an attention op the engine's KVMeta back when its step returns: until then it may have a layer's own.
class own_meta {
public:
    explicit own_meta(MNN::KVMeta*& of_op) : of_op_(of_op), engine_(of_op) {}
    ~own_meta() { of_op_ = engine_; }
    own_meta(const own_meta&) = delete;
    own_meta& operator=(const own_meta&) = delete;

private:
    MNN::KVMeta*& of_op_;
    MNN::KVMeta* const engine_;
};

/// One attention op's cache. Per step CPUAttention calls begin, appended, tile, end; where the layer attends:
/// begin, appended, prepare, attend, end. It may leave after begin on an error of its own, which the next begin mends.
/// An op that reads the cache of another one has a layer of its own, which only attends.
class layer {
public:
    /// Tokens that drafts take back at a time, at most.
    enum { most_drafts = 64 };

    /// The layer of a cache, made at the first call, or that of an op that reads it (is_reader). NULL when the engine enabled
    /// nothing, or when this op keeps no cache (has_cache: kv_cache).
    template <class Cache>
    static layer* of(MNN::KVMeta* meta, Cache& cache, bool has_cache, bool is_reader, int threads) {
        if (!has_cache || meta == nullptr || !meta->plugin) {
            return nullptr;
        }
        if (is_reader) {
            meta->plugin->readers += counts(*meta->plugin) ? 1 : 0;
            return cache.plugin && cache.plugin->host_ ? cache.plugin->reader() : nullptr;
        }
        if (counts(*meta->plugin)) {
            ++meta->plugin->caches;
            return nullptr;
        }
        if (!meta->plugin->is_started) {
            start(*meta, static_cast<std::uint32_t>(std::max(threads, 1)), types_of(cache));
        }
        if (!meta->plugin->required && !meta->plugin->model && !dumps(*meta->plugin)) {
            return nullptr;
        }
        if (!cache.plugin || !cache.plugin->host_) {
            const bool shared = cache.plugin != nullptr;
            cache.plugin.reset(new layer(*meta));
            cache.plugin->shared_ = shared;
        }
        return cache.plugin.get();
    }

    /// Another op reads this cache: mnn-kv leaves it alone.
    template <class Cache>
    static void share(Cache& cache) {
        if (!cache.plugin) {
            cache.plugin.reset(new layer());
        }
        cache.plugin->shared_ = true;
    }

    /// Before MNN makes room for the step's tokens: edits the history, restores stored tokens, applies the planned
    /// eviction. Sets meta, that of the engine, to the one of this step for MNN's code. Where tokens cannot be restored it
    /// prints the reason: no token is lost, and attention must not run.
    template <class Cache>
    MNN::ErrorCode begin(MNN::KVMeta*& meta, Cache& cache) {
        scale_ = meta->attn_scale > 0 ? meta->attn_scale : 1.0f / std::sqrt(static_cast<float>(cache.mHeadDim));
        const mnnkv_host::step_counts counts = counts_of(*meta);
        position_ = position_of(*meta);
        if (owner_ != nullptr) {
            return MNN::NO_ERROR;
        }
        if (host_->required && !host_->model) {
            return MNN::NOT_SUPPORT;
        }
        look_after(cache);
        if (host_->dump) {
            prepare_dump(counts, *meta, cache);
        }
        if (!steps_) {
            return MNN::NO_ERROR;
        }
        if (meta->previous == meta->remove) {
            // MNN clears the cache and allocates a new one, also with reserved tokens.
            steps_->clear(counts);
            begin_chat();
            is_loaded_ = false;
            const std::string why = objection(*meta, cache);
            on_ = pending_ = why.empty();
            host_->off->set(this, why);
            if (on_) {
                model().buffers_changed();
            }
            return on_ || !host_->required ? MNN::NO_ERROR : MNN::NOT_SUPPORT;
        }
        pending_ = false;
        host_->has_resumed = false;
        if (!on_) {
            return MNN::NO_ERROR;
        }
        if (is_loaded_) {
            make_room(*meta, cache);
        }
        mnnkv_cache given = describe(cache);
        const mnnkv::status begun = steps_->begin(counts, given);
        cache.mPastLength = static_cast<int>(given.kv_len);
        if (!begun) {
            const std::string why = mnnkv_host::model_session::of_layer(steps_->number(), begun.message());
            MNN_ERROR("mnn-kv: %s\n", why.c_str());
            return error_of(begun.code());
        }
        is_loaded_ = false;
        widen(cache, given.kv_len + meta->add);
        copy_numbers(*meta);
        view_.previous = given.kv_len;
        meta = &view_;
        return MNN::NO_ERROR;
    }

    /// After MNN has appended the step's tokens.
    template <class Cache>
    void appended(Cache& cache) {
        if (owner_ != nullptr) {
            return;
        }
        if (chunk_ != 0) {
            cache.mConfig.mExpandChunk = chunk_;
            chunk_ = 0;
            // MNN has zeroed the unused tail, which made its pages resident.
            mnnkv_host::release_tail(describe(cache));
            model().buffers_changed();
        }
        if (pending_) {
            // MNN has allocated the cleared cache just now.
            pending_ = false;
            view_.previous = 0;
            const mnnkv::status begun = steps_->begin_cleared(describe(cache));
            on_ = static_cast<bool>(begun);
            if (begun) {
                check_chunk();
            } else {
                host_->off->set(this, std::string("a cache is refused: ") + begun.message());
            }
        }
        if (on_ && kind(cache.mValueQuantMode, cache) == MNNKV_DTYPE_INT8) {
            // MNN leaves V without scales where an append enters blocks that the cache has grown by.
            const mnnkv_cache now = describe(cache);
            const std::uint32_t before = static_cast<std::uint32_t>(view_.previous);
            (void)mnnkv_kv_appended(now.layout, now.key, now.value, before, now.kv_len - before);
        }
        if (on_) {
            now_ = describe(cache);
        }
    }

    /// A softmax tile of one query head before its product with V: [UP(tokens, pack)][rows][pack] of `bytes` bytes
    /// each. scale and sum are MNN's updateScale and runningSum, [rows]; sum is read with the last tile. Without scale
    /// the tile is the whole row, normalised. Called by thread `lane`.
    void tile(int lane, const void* data, int bytes, int pack, int rows, int tokens, int token_begin, bool last,
              const float* scale, const float* sum) {
        if (!steps_ || owner_ != nullptr || !steps_->takes_tiles()) {
            return;
        }
        mnnkv_score_tile given = mnnkv::make<mnnkv_score_tile>();
        given.dtype = bytes == 2 ? MNNKV_DTYPE_F16 : MNNKV_DTYPE_F32;
        given.pack = static_cast<std::uint32_t>(pack);
        given.queries = static_cast<std::uint32_t>(rows);
        given.tokens = static_cast<std::uint32_t>(tokens);
        given.token_begin = static_cast<std::uint32_t>(token_begin);
        given.flags = (token_begin == 0 ? MNNKV_TILE_FIRST : 0) | (last ? MNNKV_TILE_LAST : 0);
        given.data = data;
        given.update_scale = scale;
        given.row_sum = scale != nullptr && last ? sum : nullptr;
        steps_->sum(static_cast<std::uint32_t>(lane), given);
    }

    /// mnn-kv attends to the step's tokens in place of MNN. Caches that MNN quantises stay MNN's. query, mask, rows: as of
    /// prepare.
    template <class Cache, class Tensor>
    bool attends(Cache& cache, const Tensor* query, const Tensor* mask, int rows) {
        if (static_cast<int>(cache.mKeyQuantMode) != 0 || static_cast<int>(cache.mValueQuantMode) != 0) {
            return false;
        }
        if (!own().on_) {
            return false;
        }
        see_mask(mask, static_cast<std::size_t>(query->length(1)), static_cast<std::size_t>(rows),
                 static_cast<std::size_t>(cache.mBytes));
        if (owner_ != nullptr) {
            now_ = owner_->describe(cache);
            return owner_->steps_->has_attended();
        }
        return steps_->attends();
    }

    /// Before the threads attend to `rows` tokens. query: [row][head][dim], of `rows` or more rows. mask: none or one
    /// number is causal attention; else floats to add, [row][token], whose tokens are the newest ones. sinks: none, or
    /// a logit per head. output: [row][head][dim], or with c4 [UP(heads * dim, c4)][rows][c4].
    template <class Cache, class Tensor>
    void prepare(const Cache& cache, const Tensor* query, const Tensor* mask, const Tensor* sinks, const Tensor* output,
                 int heads, int rows, int c4, int threads) {
        const std::size_t bytes = static_cast<std::size_t>(cache.mBytes);
        // A thread has a part; others than the first 64 have none.
        parts_ = static_cast<std::uint32_t>(std::min(std::max(threads, 1), 64));
        attend_ = mnnkv::make<mnnkv_attend>();
        attend_.dtype = float_type(cache);
        attend_.heads = static_cast<std::uint32_t>(heads);
        attend_.rows = static_cast<std::uint32_t>(rows);
        attend_.head_dim = static_cast<std::uint32_t>(cache.mHeadDim);
        attend_.scale = scale_;
        attend_.causal = 1;
        attend_.queries = query->template host<std::int8_t>();
        sinks_ = sinks == nullptr ? std::vector<float>() : floats(*sinks, bytes);
        attend_.sinks = sinks_.empty() ? nullptr : sinks_.data();
        output_ = output->template host<std::int8_t>();
        // A row's numbers are not side by side in C4, except those of the only one.
        c4_bytes_ = c4 > 0 && rows > 1 ? static_cast<std::size_t>(c4) * bytes : 0;
        row_bytes_ = static_cast<std::size_t>(heads) * attend_.head_dim * bytes;
        rows_.resize(c4_bytes_ > 0 ? row_bytes_ * attend_.rows : 0);
        attend_.output = c4_bytes_ > 0 ? rows_.data() : output_;
        const std::size_t given = static_cast<std::size_t>(query->length(1));
        if (c4 == 0 && given > attend_.rows) {
            // Rows that fill a batch are no tokens.
            std::memset(output_ + row_bytes_ * attend_.rows, 0, row_bytes_ * (given - attend_.rows));
        }
        // Of a model with windows the session knows them, but for the first step that has told.
        attend_.window = form_ == step_mask::windowed ? host_->window() : 0;
        if (form_ == step_mask::other && mask != nullptr && !take_mask(*mask, given, bytes)) {
            fail("a mask of " + std::to_string(mask->elementSize()) + " numbers for " + std::to_string(rows) +
                 " rows cannot be attended by");
        }
        if ((form_ == step_mask::all && own().has_window_) || (form_ == step_mask::windowed && own().has_all_)) {
            fail(std::string("its mask shows ") + (own().has_all_ ? "no tokens" : "tokens") +
                 " before its sliding_window, unlike that of an earlier step");
        }
    }

    /// A thread's part of the attention that prepare has described; each calls this once.
    void attend(int thread) {
        if (static_cast<std::uint32_t>(thread) < parts_) {
            own().steps_->attend(static_cast<std::uint32_t>(thread), parts_, now_, attend_);
        }
    }

    /// After attention of `rows` queries in each of `heads` query heads. Where attention has failed the step has, and no
    /// token is lost.
    template <class Cache>
    MNN::ErrorCode end(Cache& cache, std::uint32_t heads, std::uint32_t rows) {
        if (!rows_.empty()) {
            pack_output();
        }
        if (owner_ != nullptr) {
            return error_of(owner_->steps_->end_reader());
        }
        mnnkv_cache now = describe(cache);
        if (dumps_) {
            const bool prompt = rows > 1 || position_ == 0;
            const mnnkv_host::dump_step step = {&now, rows, position_, prompt};
            host_->dump->write(dump_number_, step);
        }
        if (steps_ && !on_ && host_->required) {
            return MNN::NOT_SUPPORT;  // the cache of this step was refused
        }
        const mnnkv_status ended = steps_ ? steps_->end(heads, rows, now) : MNNKV_OK;
        if (ended == MNNKV_OK && on_) {
            learn();
        }
        return error_of(ended);
    }

    ~layer() {
        if (!host_ || owner_ != nullptr) {
            return;
        }
        host_->layers.erase(std::remove(host_->layers.begin(), host_->layers.end(), this), host_->layers.end());
        host_->off->forget(this);
        if (host_->dump) {
            host_->dump->return_number(dump_number_);
        }
    }

private:
    layer() = default;

    /// Of an op that reads the cache of another layer.
    layer(const std::shared_ptr<host>& of, layer& owner) : host_(of), owner_(&owner) {}

    layer* reader() {
        if (!reader_) {
            reader_.reset(new layer(host_, *this));
        }
        return steps_ ? reader_.get() : nullptr;
    }

    /// The layer whose cache is attended to.
    layer& own() { return owner_ != nullptr ? *owner_ : *this; }

    /// A step that counts caches.
    static bool counts(const host& own) { return own.is_trial && !own.is_counted && !own.is_started; }

    void fail(const std::string& why) {
        own().steps_->fail(MNNKV_INVALID_ARGUMENT, why);
        parts_ = 0;
    }

    /// Looks what the mask of a step shows.
    template <class Tensor>
    void see_mask(const Tensor* mask, std::size_t given, std::size_t rows, std::size_t bytes) {
        form_ = step_mask::other;
        const std::size_t columns = static_cast<std::size_t>(position_) + given;
        if (host_->window() > 0 && mask != nullptr && !mask->shape().empty() &&
            static_cast<std::size_t>(mask->elementSize()) == given * columns) {
            form_ = step_mask(mask->template host<std::int8_t>(), bytes, columns, static_cast<std::size_t>(position_))
                        .read(rows, host_->window());
        }
    }

    /// A step has ended whose mask has told whether the layer has a window: the session keeps to it from now on.
    void learn() {
        has_all_ = has_all_ || form_ == step_mask::all;
        if (form_ == step_mask::windowed && !has_window_) {
            const mnnkv::status known = steps_->window(host_->window(), host_->drafts ? most_drafts : 0);
            has_window_ = static_cast<bool>(known);
            if (!known) {
                model().say(mnnkv_host::model_session::of_layer(steps_->number(), known.message()));
            }
        }
    }

    explicit layer(MNN::KVMeta& meta) : host_(meta.plugin) {
        if (dumps(*host_)) {
            if (!host_->dump) {
                host_->dump = std::make_shared<mnnkv_host::cache_dump>(host_->dump_folder, &print);
            }
            dump_number_ = host_->dump->take_number();
        }
        if (host_->model) {
            steps_.reset(new mnnkv_host::layer_session(model()));
            take_commands();
        }
    }

    /// Loads the library, and makes the session or checks the keys of a config that switches nothing on. What fails is off.
    static void start(const MNN::KVMeta& meta, std::uint32_t threads, const std::string& types) {
        host& own = *meta.plugin;
        own.is_started = true;
        const bool keeps = own.keeps_tokens() && own.off->all().empty();
        if (!keeps && own.keeps_tokens() && own.dump_folder.empty()) {
            return;
        }
        const std::string missing = load_library(own.library);
        own.has_library = missing.empty();
        if (!own.has_library) {
            own.off->set("its library is not loaded: " + missing);
        } else if (keeps) {
            mnnkv_host::model_config config = session_config(own, layers_of(meta), threads);
            config.fingerprint = mnnkv_host::fingerprint_of(own.model_files) + types + " in " + std::to_string(config.layers);
            const auto made = std::make_shared<mnnkv_host::model_session>(config);
            if (!made->session) {
                own.off->set(made->refusal);
                return;
            }
            own.model = made;
            mnnkv_host::model_session* const session = made.get();
            own.metrics = [session] { return session->report(); };
            own.raw_tokens = [session] { return session->memory("raw_tokens"); };
            own.trim = [session](std::uint64_t bytes) { return session->session.trim(bytes).message(); };
        } else if (!own.keeps_tokens() && (own.dump_folder.empty() || own.required)) {
            const std::string refusal = mnnkv_host::model_session::check(session_config(own, layers_of(meta), 1));
            if (!refusal.empty()) {
                own.off->set(refusal);
            }
            if (own.required) {
                own.off->set("kv_required is true, and no key switches mnn-kv on");
            }
        }
    }

    /// Why MNN, which is built without the library, has none, and what to do; "" where there is one.
    static std::string load_library(const std::string& path) {
        const char* why = nullptr;
#ifdef MNNKV_LOAD
        static std::mutex one_at_a_time;
        const std::lock_guard<std::mutex> lock(one_at_a_time);
        why = mnnkv_load(path.c_str());
#else
        (void)path;
#endif
        return why == nullptr ? ""
                              : std::string(why) + "; name its file by the key kv_library or the variable MNNKV_LIBRARY, or put it "
                                                   "beside libMNN (integrations/mnn/README.md, \"Apply and build\")";
    }

    /// What attention_mode and precision make of a cache, of which a chat's file must be, too.
    template <class Cache>
    static std::string types_of(const Cache& cache) {
        return " " + std::to_string(kind(cache.mKeyQuantMode, cache)) + " " + std::to_string(kind(cache.mValueQuantMode, cache)) +
               " of " + std::to_string(cache.mBytes);
    }

    static bool dumps(const host& own) { return own.has_library && !own.dump_folder.empty(); }

    /// Says once that a chunk of the config is a large part of its budget.
    void check_chunk() {
        const std::uint64_t chunk = host_->chunk;
        if (chunk <= prompt_chunk::most || !host_->bounds) {
            return;
        }
        const std::uint64_t raw = model().memory("raw_tokens");
        if (raw > 0 && chunk > raw / 4) {
            host_->chunk = 0;
            model().say("chunk is " + std::to_string(chunk) + ": a prompt exceeds the budget, which holds " + std::to_string(raw) +
                        " raw tokens, by so many while it is computed; " + std::to_string(prompt_chunk::most) +
                        " is the default with a budget");
        }
    }

    /// The numbers of a tensor as floats: MNN has them in the backend's type.
    template <class Tensor>
    static std::vector<float> floats(const Tensor& tensor, std::size_t bytes) {
        std::vector<float> numbers(static_cast<std::size_t>(tensor.elementSize()));
        if (bytes == sizeof(float)) {
            std::memcpy(numbers.data(), tensor.template host<std::int8_t>(), numbers.size() * bytes);
            return numbers;
        }
        const std::uint16_t* words = tensor.template host<std::uint16_t>();
        std::transform(words, words + numbers.size(), numbers.begin(), &mnnkv_host::float_of_half);
        return numbers;
    }

    /// Sets the mask of attend_, for the step's rows of `given` ones. Returns false where it is none of MNN's.
    template <class Tensor>
    bool take_mask(const Tensor& mask, std::size_t given, std::size_t bytes) {
        if (mask.shape().empty()) {
            mask_ = floats(mask, bytes);
            return mask_.front() < 1e-6f;
        }
        const std::size_t count = static_cast<std::size_t>(mask.elementSize()), columns = count / given;
        const std::size_t filled = given - attend_.rows;
        if (count != columns * given || columns < given) {
            return false;
        }
        mask_ = floats(mask, bytes);
        attend_.causal = 0;
        attend_.mask = mask_.data();
        attend_.mask_tokens = static_cast<std::uint32_t>(columns - filled);
        attend_.mask_row_stride = columns;
        return true;
    }

    /// From rows to MNN's C4 output.
    void pack_output() {
        const std::size_t rows = attend_.rows;
        for (std::size_t row = 0; row < rows; ++row) {
            const std::int8_t* from = rows_.data() + row * row_bytes_;
            for (std::size_t at = 0; at < row_bytes_; at += c4_bytes_) {
                std::memcpy(output_ + at * rows + row * c4_bytes_, from + at, std::min(c4_bytes_, row_bytes_ - at));
            }
        }
        // A prompt may be long, and each layer has its own.
        std::vector<std::int8_t>().swap(rows_);
    }

    /// Carries out commands for all layers of a model: kv_plugin_chat.hpp.
    class commands;
    void take_commands();
    void begin_chat();
    std::string make_ready(const MNN::KVMeta& meta, mnnkv_cache& cache);

    /// The session has the layer's tokens.
    bool has_tokens() const { return on_ && !pending_; }

    /// The layer under commands between steps.
    template <class Cache>
    void look_after(Cache& cache) {
        see_ = [this, &cache] { return describe(cache); };
        set_length_ = [&cache](std::uint32_t length) { cache.mPastLength = static_cast<int>(length); };
    }

    /// Gives a layer that was loaded a cache for its tokens and those of the step. MNN may have none, or a smaller one.
    template <class Cache>
    void make_room(MNN::KVMeta& meta, Cache& cache) {
        const std::uint32_t length = steps_->length();
        cache.onClear();
        cache.onAlloc(&meta, static_cast<int>(length + meta.add));
        cache.mPastLength = static_cast<int>(length);
        if (!center_.empty()) {
            std::memcpy(cache.addrOfKeyMax(0), center_.data(), center_.size());
        }
        model().buffers_changed();
    }

    static mnnkv_host::step_counts counts_of(const MNN::KVMeta& meta) {
        return {meta.synced, meta.previous, meta.remove, meta.add, meta.reserve, meta.n_reserve};
    }

    /// Where a step has counted them; layer_nums has other layers, too.
    static std::uint32_t layers_of(const MNN::KVMeta& meta) {
        const std::uint32_t counted = meta.plugin->caches;
        return counted > 0 ? counted : static_cast<std::uint32_t>(std::max(meta.layer_nums, 1));
    }

    static mnnkv_host::model_config session_config(const host& settings, std::uint32_t layers, std::uint32_t threads) {
        const bool has_policy = settings.bounds || settings.quantises || settings.evicts || settings.compresses;
        mnnkv_host::model_config config;
        config.json = settings.config;
        config.layers = layers;
        config.lanes = threads;
        config.logs = settings.logs;
        config.attends = true;
        config.also = !has_policy                            ? "; the chat can be saved and loaded"
                      : settings.bounds && !settings.has_chunk ? "; a prompt beyond the raw tokens is computed 256 tokens at a time"
                                                               : "";
        config.print = &print;
        return config;
    }

    static void print(const char* line) { MNN_PRINT("%s\n", line); }

    mnnkv_host::model_session& model() const { return *host_->model; }

    /// Why the cache that is about to be made cannot be compressed; "" when it can.
    template <class Cache>
    std::string objection(const MNN::KVMeta& meta, const Cache& cache) const {
        if (shared_ && (host_->evicts || host_->compresses)) {
            return "a cache is read by more than one layer, and kv_h2o_enable or kv_lossless_enable is on";
        }
        const std::string why = no_words(meta, cache);
        if (why.empty() && !steps_->is_counted()) {
            return "a model has more caches than layer_nums says";
        }
        return why;
    }

    /// Why the tokens of the cache that is about to be made cannot be read or moved; "" when they can.
    template <class Cache>
    static std::string no_words(const MNN::KVMeta& meta, const Cache& cache) {
        if (!meta.file_name.empty() && meta.file_flag != MNN::KVMeta::NoChange) {
            return "the cache is a prefix cache file, until a prompt that clears it";
        }
        if (cache.mBytes != 4 && cache.mBytes != 2) {
            return "an element of the cache has " + std::to_string(cache.mBytes) + " bytes";
        }
        if (static_cast<int>(cache.mValueQuantMode) > 1 && !cache.mUseFlashAttention) {
            return "attention_mode is 4 or 6: MNN overruns its buffer of softmax weights without flash attention";
        }
        return std::string();
    }

    template <class Cache>
    void prepare_dump(const mnnkv_host::step_counts& counts, const MNN::KVMeta& meta, const Cache& cache) {
        if (counts.previous == counts.remove) {
            const std::string why = no_words(meta, cache);
            dumps_ = why.empty() && !host_->is_trial;
            if (!why.empty()) {
                host_->dump->say_once("dump off where " + why);
            }
        }
    }

    template <class Cache>
    static std::uint32_t float_type(const Cache& cache) {
        return cache.mBytes == 2 ? MNNKV_DTYPE_F16 : MNNKV_DTYPE_F32;
    }

    /// The element type of K or V, by MNN's KVQuantMode: none, INT8, TQ3, TQ4.
    template <class Mode, class Cache>
    static std::uint32_t kind(Mode mode, const Cache& cache) {
        switch (static_cast<int>(mode)) {
            case 0:
                return float_type(cache);
            case 1:
                return MNNKV_DTYPE_INT8;
            case 2:
                return MNNKV_DTYPE_TQ3;
            case 3:
                return MNNKV_DTYPE_TQ4;
            default:
                return 0;  // refused by name
        }
    }

    template <class Cache>
    mnnkv_cache describe(Cache& cache) {
        layout_ = mnnkv::make<mnnkv_layout>();
        layout_.key_dtype = kind(cache.mKeyQuantMode, cache);
        layout_.value_dtype = kind(cache.mValueQuantMode, cache);
        center_bytes_ = 0;
        if (layout_.key_dtype == MNNKV_DTYPE_INT8) {
            describe_int8(cache);
            layout_.int8 = &int8_;
        }
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

    /// The packing of INT8, and the arrays beside it, which growth replaces.
    template <class Cache>
    void describe_int8(Cache& cache) {
        const auto round_up = [](std::size_t count, std::size_t unit) { return (count + unit - 1) / unit * unit; };
        const std::size_t unit = static_cast<std::size_t>(cache.hP8), f32 = sizeof(float);
        const std::size_t heads = static_cast<std::size_t>(cache.mKvNumHead);
        const std::size_t dims = static_cast<std::size_t>(cache.mHeadDim);
        const std::size_t tokens = static_cast<std::size_t>(cache.mMaxLength);
        int8_ = mnnkv::make<mnnkv_int8>();
        int8_.l_pack = static_cast<std::uint32_t>(cache.lP8);
        int8_.h_pack = static_cast<std::uint32_t>(cache.hP8);
        int8_.key_sum = static_cast<float*>(static_cast<void*>(cache.addrOfKeySum(0)));
        int8_.key_sum_bytes = heads * round_up(tokens, unit) * f32;
        if (layout_.value_dtype == MNNKV_DTYPE_INT8) {
            int8_.value_sum = static_cast<float*>(static_cast<void*>(cache.addrOfValueSum(0)));
            int8_.value_sum_bytes = heads * (round_up(tokens, 64) / 64) * round_up(dims, unit) * f32;
        }
        center_at_ = static_cast<const char*>(static_cast<const void*>(cache.addrOfKeyMax(0)));
        center_bytes_ = heads * dims * static_cast<std::size_t>(cache.mBytes);
    }

    /// MNN grows a cache by 64 tokens and copies all of it each time. A compressed cache grows by a quarter; its unused
    /// pages go back to the system.
    template <class Cache>
    void widen(Cache& cache, std::size_t tokens) {
        if (tokens > static_cast<std::size_t>(cache.mMaxLength) && !cache.mKVCacheInDisk) {
            // Still set where the last growth failed.
            chunk_ = chunk_ != 0 ? chunk_ : cache.mConfig.mExpandChunk;
            cache.mConfig.mExpandChunk = std::max(chunk_, static_cast<int>(tokens / 4));
        }
    }

    /// The members of KVMeta that MNN's allocation and growth read, without the edit.
    void copy_numbers(const MNN::KVMeta& meta) {
        view_.block = meta.block;
        view_.remove = 0;
        view_.reserve = nullptr;
        view_.n_reserve = 0;
        view_.add = meta.add;
        view_.layer_nums = meta.layer_nums;
        view_.attn_scale = meta.attn_scale;
    }

    /// May outlive KVMeta. Declared before steps_, which needs the model until its end.
    std::shared_ptr<host> host_;
    /// NULL while only share has named the layer, and where nothing is evicted or compressed.
    std::unique_ptr<mnnkv_host::layer_session> steps_;
    /// The cache as it is between steps, its length, and why it cannot be compressed; set by begin.
    std::function<mnnkv_cache()> see_;
    std::function<void(std::uint32_t)> set_length_;
    /// Its tokens are in a file until the next begin.
    bool is_loaded_ = false;
    /// The centre of INT8 K of a loaded layer.
    std::string center_;
    /// That of MNN's cache, as describe has seen it; empty where K is not INT8.
    const char* center_at_ = "";
    std::size_t center_bytes_ = 0;
    /// Compressed since the cache was cleared last.
    bool on_ = false;
    /// Cleared in this step, and not yet allocated.
    bool pending_ = false;
    bool shared_ = false;
    /// What the mask of this step shows, and what masks have shown.
    step_mask::form form_ = step_mask::other;
    bool has_window_ = false, has_all_ = false;
    /// The layer whose cache an op reads that has none; else NULL. And the layer of such ops.
    layer* owner_ = nullptr;
    std::unique_ptr<layer> reader_;
    /// Dumped since the cache was cleared last.
    bool dumps_ = false;
    std::uint32_t dump_number_ = 0;
    /// This step's factor of Q K, and the logical position of its first token.
    float scale_ = 0;
    std::uint64_t position_ = 0;
    /// MNN's own mExpandChunk while it is another for one growth; else 0.
    int chunk_ = 0;
    MNN::KVMeta view_;
    mnnkv_layout layout_;
    mnnkv_int8 int8_;
    /// The cache while threads read it, which no member function changes meanwhile.
    mnnkv_cache now_;
    /// The attention that threads run a part each of, its mask and sinks as floats, and MNN's output.
    mnnkv_attend attend_;
    std::uint32_t parts_ = 0;
    std::vector<float> mask_, sinks_;
    std::int8_t* output_ = nullptr;
    /// Where output is C4: rows to be packed, and the bytes of one and of a pack.
    std::vector<std::int8_t> rows_;
    std::size_t row_bytes_ = 0, c4_bytes_ = 0;
};

}  // namespace kv_plugin

#include "kv_plugin_chat.hpp"

#endif  // KV_PLUGIN_HPP
