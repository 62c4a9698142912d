// mnn-kv for C++11 and later: handles that destroy themselves and statuses that cannot be mistaken for counts.
//
// Header-only over mnnkv.h, which is the manual. Needs neither exceptions nor RTTI, and nothing of the library but its
// C functions.

#ifndef MNNKV_HPP
#define MNNKV_HPP

#include "mnnkv.h"

#include <cstddef>
#include <cstdint>
#include <cstring>

// Asks the compiler to warn where a result is dropped. Clang takes the standard attribute for an extension before C++17.
#if defined(__clang__)
#define MNNKV_NODISCARD [[clang::warn_unused_result]]
#elif (defined(__GNUC__) && __GNUC__ >= 7) || __cplusplus >= 201703L || (defined(_MSVC_LANG) && _MSVC_LANG >= 201703L)
#define MNNKV_NODISCARD [[nodiscard]]
#else
#define MNNKV_NODISCARD
#endif

namespace mnnkv {

/// The outcome of a call. True in an `if` when it succeeded. A call whose status is dropped is a warning where the
/// compiler can; `(void)` in front of the call drops it on purpose.
class MNNKV_NODISCARD status {
public:
    status(mnnkv_status code = MNNKV_OK) noexcept : code_(code) {}

    explicit operator bool() const noexcept { return code_ == MNNKV_OK; }
    mnnkv_status code() const noexcept { return code_; }

    /// Such as "CORRUPT". Static text.
    const char* name() const noexcept { return mnnkv_status_name(code_); }

    /// What was given and what was allowed; "" on success. Valid until the thread's next mnnkv call.
    const char* message() const noexcept { return code_ == MNNKV_OK ? "" : mnnkv_last_error(); }

private:
    mnnkv_status code_;
};

/// An option struct with every field zero but struct_size: `auto layout = mnnkv::make<mnnkv_layout>();`
template <class T>
T make() noexcept {
    T value = T();
    value.struct_size = static_cast<std::uint32_t>(sizeof(T));
    return value;
}

/// The eviction config with its defaults.
inline mnnkv_h2o_config h2o_defaults() noexcept {
    mnnkv_h2o_config config = mnnkv_h2o_config();
    mnnkv_h2o_config_default(&config);
    return config;
}

/// Whether a number of mnnkv_metrics was measured: it is not NaN. By its bits, so that it also holds where a host is
/// compiled with -ffast-math, which takes `metric == metric` for granted.
inline bool measured(double metric) noexcept {
    std::uint64_t bits = 0;
    std::memcpy(&bits, &metric, sizeof bits);
    return (bits & 0x7fffffffffffffffu) <= 0x7ff0000000000000u;
}

namespace detail {

/// Text of whatever length a call has: asked for its length, then for itself, and again should it have grown. `guess`:
/// room to begin with, where asking twice is dear.
template <class Text, class Write>
status fill(Text& text, Write write, std::size_t guess = 0) {
    std::size_t len = 0;
    text.resize(guess);
    status result = write(guess == 0 ? nullptr : &text[0], guess, &len);
    while (result.code() == MNNKV_BUFFER_TOO_SMALL) {
        text.resize(len);
        result = write(&text[0], len, &len);
    }
    text.resize(result ? len - 1 : 0);
    return result;
}

/// A struct that a call fills in; `out` changes only on success.
template <class T, class Read>
status get(T& out, Read read) {
    T value = make<T>();
    const status result = read(&value);
    if (result) {
        out = value;
    }
    return result;
}

}  // namespace detail

/// Owns a handle of the library: what mnnkv::store, mnnkv::session and the others have in common. Moves, does not copy;
/// a moved-from or reset owner holds nothing, and its calls answer INVALID_ARGUMENT.
template <class Handle, void (*destroy)(Handle*)>
class owner {
public:
    owner() noexcept : handle_(nullptr) {}
    ~owner() { reset(); }

    owner(owner&& other) noexcept : handle_(other.release()) {}
    owner& operator=(owner&& other) noexcept {
        if (this != &other) {
            reset();
            handle_ = other.release();
        }
        return *this;
    }
    owner(const owner&) = delete;
    owner& operator=(const owner&) = delete;

    /// Destroys what it holds now. May be called again.
    void reset() noexcept { destroy(release()); }

    explicit operator bool() const noexcept { return handle_ != nullptr; }
    Handle* get() const noexcept { return handle_; }

    /// Gives the handle away; the caller destroys it.
    Handle* release() noexcept {
        Handle* handle = handle_;
        handle_ = nullptr;
        return handle;
    }

protected:
    Handle* handle_;
};

/// Owns a mnnkv_store.
class store : public owner<mnnkv_store, mnnkv_store_destroy> {
public:
    /// Makes a store, destroying the one held before. On failure it holds nothing.
    status create(const mnnkv_store_config* config = nullptr) noexcept {
        reset();
        return mnnkv_store_create(config, MNNKV_ABI_VERSION, &handle_);
    }

    status submit(std::uint32_t layer, const mnnkv_layout& layout, const void* key, const void* value,
                  std::uint32_t begin, std::uint32_t count, std::uint64_t* ticket = nullptr) noexcept {
        std::uint64_t unused = 0;
        return mnnkv_store_submit(handle_, layer, &layout, key, value, begin, count, ticket ? ticket : &unused);
    }

    status commit(std::uint32_t layer, const mnnkv_layout& layout, void* key, void* value,
                  std::uint64_t* released_bytes = nullptr) noexcept {
        std::uint64_t unused = 0;
        return mnnkv_store_commit(handle_, layer, &layout, key, value, released_bytes ? released_bytes : &unused);
    }

    status prefetch(std::uint32_t layer) noexcept { return mnnkv_store_prefetch(handle_, layer); }

    status restore(std::uint32_t layer, const mnnkv_layout& layout, void* key, void* value,
                   std::uint64_t* restored_bytes = nullptr) noexcept {
        std::uint64_t unused = 0;
        return mnnkv_store_restore(handle_, layer, &layout, key, value, restored_bytes ? restored_bytes : &unused);
    }

    status compacted(std::uint32_t layer, const std::int32_t* reserve_pairs, std::size_t n_pairs) noexcept {
        return mnnkv_store_compacted(handle_, layer, reserve_pairs, n_pairs);
    }

    status truncated(std::uint32_t layer, std::uint32_t kv_len) noexcept {
        return mnnkv_store_truncated(handle_, layer, kv_len);
    }

    status rewritten(std::uint32_t layer, std::uint32_t begin, std::uint32_t count) noexcept {
        return mnnkv_store_rewritten(handle_, layer, begin, count);
    }

    status stats(mnnkv_store_statistics& out) const noexcept {
        return detail::get(out, [this](mnnkv_store_statistics* to) { return mnnkv_store_stats(handle_, to); });
    }
};

/// Owns a mnnkv_session. Which calls may run beside which is said at mnnkv_session.
///
/// reset() destroys the handle, as in every owner; when a layer's cache was cleared, call reset_layer, and reset_all
/// when all were.
class session : public owner<mnnkv_session, mnnkv_session_destroy> {
public:
    /// Makes a session, destroying the one held before. On failure it holds nothing.
    status create(const char* config_json, std::size_t len, std::uint32_t layers, std::uint32_t lanes) noexcept {
        reset();
        return mnnkv_session_create(config_json, len, layers, lanes, MNNKV_ABI_VERSION, &handle_);
    }

    /// As mnnkv_session_reset of one layer.
    status reset_layer(std::uint32_t layer) noexcept { return mnnkv_session_reset(handle_, layer); }

    /// As mnnkv_session_reset of MNNKV_ALL_LAYERS.
    status reset_all() noexcept { return mnnkv_session_reset(handle_, MNNKV_ALL_LAYERS); }

    status begin(std::uint32_t layer, mnnkv_cache& cache) noexcept {
        return mnnkv_session_begin(handle_, layer, &cache);
    }

    status scores(std::uint32_t layer, std::uint32_t lane, const mnnkv_score_tile& tile) noexcept {
        return mnnkv_session_scores(handle_, layer, lane, &tile);
    }

    status wants_scores(std::uint32_t layer, std::uint32_t queries, bool& wanted) const noexcept {
        std::uint32_t given = 0;
        const status result = mnnkv_session_wants_scores(handle_, layer, queries, &given);
        if (result) {
            wanted = given != 0;
        }
        return result;
    }

    status end(std::uint32_t layer, std::uint32_t heads, std::uint32_t queries, mnnkv_cache& cache) noexcept {
        return mnnkv_session_end(handle_, layer, heads, queries, &cache);
    }

    status abort(std::uint32_t layer, mnnkv_cache& cache) noexcept {
        return mnnkv_session_abort(handle_, layer, &cache);
    }

    status rewritten(std::uint32_t layer, std::uint32_t begin, std::uint32_t count) noexcept {
        return mnnkv_session_rewritten(handle_, layer, begin, count);
    }

    status keep(std::uint32_t layer, const std::int32_t* logical_pairs, std::size_t n_pairs,
                mnnkv_cache& cache) noexcept {
        return mnnkv_session_keep(handle_, layer, logical_pairs, n_pairs, &cache);
    }

    status lengths(std::uint32_t layer, std::uint32_t& logical, std::uint32_t& physical) const noexcept {
        return mnnkv_session_lengths(handle_, layer, &logical, &physical);
    }

    status positions(std::uint32_t layer, std::int32_t* pairs, std::size_t pairs_cap,
                     std::size_t& n_pairs) const noexcept {
        return mnnkv_session_positions(handle_, layer, pairs, pairs_cap, &n_pairs);
    }

    status metrics(mnnkv_metrics& out) const noexcept {
        return detail::get(out, [this](mnnkv_metrics* to) { return mnnkv_session_metrics(handle_, to); });
    }

    status layer_metrics(std::uint32_t layer, mnnkv_metrics& out) const noexcept {
        return detail::get(out, [this, layer](mnnkv_metrics* to) {
            return mnnkv_session_layer_metrics(handle_, layer, to);
        });
    }

    /// Into text of the caller's with room for cap bytes; len counts the zero at its end.
    status warnings(char* text, std::size_t cap, std::size_t& len) const noexcept {
        return mnnkv_session_warnings(handle_, text, cap, &len);
    }

    /// As warnings.
    status metrics_json(char* text, std::size_t cap, std::size_t& len) const noexcept {
        return mnnkv_session_metrics_json(handle_, text, cap, &len);
    }

    /// Into a std::string, or anything else with resize() and elements of char side by side (this header includes no
    /// string). Empty on failure. Throws what resize() throws.
    template <class Text>
    status warnings(Text& text) const {
        return detail::fill(text, [this](char* to, std::size_t cap, std::size_t* len) {
            return mnnkv_session_warnings(handle_, to, cap, len);
        });
    }

    /// As warnings. The text may grow while it is asked for; this asks again.
    template <class Text>
    status metrics_json(Text& text) const {
        return detail::fill(text, [this](char* to, std::size_t cap, std::size_t* len) {
            return mnnkv_session_metrics_json(handle_, to, cap, len);
        });
    }

};

/// Owns a mnnkv_compressor. Any number of threads may use it at once, on different caches.
class compressor : public owner<mnnkv_compressor, mnnkv_compressor_destroy> {
public:
    /// Reads a weights file, destroying what was held before. On failure it holds nothing.
    status open(const char* path) noexcept {
        reset();
        return mnnkv_compressor_open(path, MNNKV_ABI_VERSION, &handle_);
    }

    /// As open, of a file in memory.
    status create(const void* bytes, std::size_t len) noexcept {
        reset();
        return mnnkv_compressor_create(bytes, len, MNNKV_ABI_VERSION, &handle_);
    }

    status info(mnnkv_compressor_info& out) const noexcept {
        return detail::get(out, [this](mnnkv_compressor_info* to) { return mnnkv_compressor_get_info(handle_, to); });
    }

    status block_info(std::uint32_t layer, std::uint32_t block, mnnkv_compressor_block_info& out) const noexcept {
        return detail::get(out, [this, layer, block](mnnkv_compressor_block_info* to) {
            return mnnkv_compressor_get_block_info(handle_, layer, block, to);
        });
    }

    /// Into a std::string or its like, as session::warnings.
    template <class Text>
    status notes(Text& text) const {
        return detail::fill(text, [this](char* to, std::size_t cap, std::size_t* len) {
            return mnnkv_compressor_notes(handle_, to, cap, len);
        });
    }

    status new_len(std::uint32_t kv_len, std::uint32_t& len,
                   const mnnkv_compressor_options* options = nullptr) const noexcept {
        return mnnkv_compressor_new_len(handle_, options, kv_len, &len);
    }

    /// One layer of dense rows.
    status run(std::uint32_t layer, std::uint32_t dtype, std::uint32_t kv_heads, std::uint32_t kv_len, const void* key,
               const void* value, void* key_out, void* value_out, std::size_t cap_each, std::uint32_t& new_len,
               const mnnkv_compressor_options* options = nullptr) const noexcept {
        return mnnkv_compressor_run(handle_, layer, options, dtype, kv_heads, kv_len, key, value, key_out, value_out,
                                    cap_each, &new_len);
    }

    /// Packed caches of neighbouring layers, in place: all or none. Their kv_len changes.
    status run_caches(std::uint32_t first_layer, mnnkv_cache* caches, std::uint32_t n_layers,
                      const mnnkv_compressor_options* options = nullptr) const noexcept {
        std::uint32_t old_len = 0, new_len = 0;
        return mnnkv_compressor_run_caches(handle_, first_layer, options, caches, n_layers, &old_len, &new_len);
    }
};

/// Owns a mnnkv_msmodelslim. Any number of threads may read it at once.
class msmodelslim : public owner<mnnkv_msmodelslim, mnnkv_msmodelslim_destroy> {
public:
    /// Opens a directory, closing the one held before. On failure it holds nothing.
    status open(const char* path) noexcept {
        reset();
        return mnnkv_msmodelslim_open(path, MNNKV_ABI_VERSION, &handle_);
    }

    /// The report on any directory, into a std::string or its like, as session::warnings. One over 64 KiB, which has
    /// hundreds of findings, costs reading the directory twice.
    template <class Text>
    static status check_json(const char* path, Text& text) {
        const auto check = [path](char* to, std::size_t cap, std::size_t* len) {
            return mnnkv_msmodelslim_check_json(path, to, cap, len);
        };
        return detail::fill(text, check, 65536);
    }

    status info(mnnkv_msmodelslim_info& out) const noexcept {
        return detail::get(out, [this](mnnkv_msmodelslim_info* to) { return mnnkv_msmodelslim_get_info(handle_, to); });
    }

    /// Into a std::string or its like, as session::warnings.
    template <class Text>
    status layers_json(Text& text) const {
        return detail::fill(text, [this](char* to, std::size_t cap, std::size_t* len) {
            return mnnkv_msmodelslim_layers_json(handle_, to, cap, len);
        });
    }

    /// As layers_json. list: MNNKV_MSMODELSLIM_LINEARS, NORMS or KV_LAYERS.
    template <class Text>
    status name(std::uint32_t list, std::uint64_t index, Text& text) const {
        return detail::fill(text, [this, list, index](char* to, std::size_t cap, std::size_t* len) {
            return mnnkv_msmodelslim_name(handle_, list, index, to, cap, len);
        });
    }

    status find(const char* name, std::uint64_t& linear) const noexcept {
        return mnnkv_msmodelslim_find(handle_, name, &linear);
    }

    status linear_info(std::uint64_t linear, mnnkv_msmodelslim_linear_info& out) const noexcept {
        return detail::get(out, [this, linear](mnnkv_msmodelslim_linear_info* to) {
            return mnnkv_msmodelslim_get_linear_info(handle_, linear, to);
        });
    }

    status dequantize(std::uint64_t linear, std::uint64_t row_begin, std::uint64_t rows, std::uint32_t dtype, void* out,
                      std::size_t out_bytes) const noexcept {
        return mnnkv_msmodelslim_dequantize(handle_, linear, row_begin, rows, dtype, out, out_bytes);
    }

    status linear_w8a8(std::uint64_t linear, std::uint64_t row_begin, std::uint64_t rows, const float* x,
                       std::size_t tokens, float* y, std::size_t y_cap) const noexcept {
        return mnnkv_msmodelslim_linear_w8a8(handle_, linear, row_begin, rows, x, tokens, y, y_cap);
    }

    status norm(std::uint64_t norm, bool quantized, float* weight, float* bias, std::size_t cap,
                std::size_t& len) const noexcept {
        return mnnkv_msmodelslim_norm(handle_, norm, quantized ? 1 : 0, weight, bias, cap, &len);
    }

    status key_scales(std::uint64_t kv_layer, float* scale, float* offset, std::size_t cap,
                      std::size_t& len) const noexcept {
        return mnnkv_msmodelslim_kv_scales(handle_, kv_layer, 0, scale, offset, cap, &len);
    }

    status value_scales(std::uint64_t kv_layer, float* scale, float* offset, std::size_t cap,
                        std::size_t& len) const noexcept {
        return mnnkv_msmodelslim_kv_scales(handle_, kv_layer, 1, scale, offset, cap, &len);
    }
};

/// Owns a mnnkv_msmodelslim_writer: announce everything, then append everything in the same order, then finish. What
/// was written is removed when it is destroyed before.
class msmodelslim_writer : public owner<mnnkv_msmodelslim_writer, mnnkv_msmodelslim_writer_destroy> {
public:
    /// Prepares a directory, giving up the one held before. On failure it holds nothing.
    status create(const char* path, const mnnkv_msmodelslim_writer_options* options = nullptr) noexcept {
        reset();
        return mnnkv_msmodelslim_writer_create(path, options, MNNKV_ABI_VERSION, &handle_);
    }

    status tensor(const char* name, const char* tag, const char* dtype, const std::uint64_t* shape,
                  std::size_t rank) noexcept {
        return mnnkv_msmodelslim_writer_tensor(handle_, name, tag, dtype, shape, rank);
    }

    status linear(const char* name, std::size_t n, std::size_t k) noexcept {
        return mnnkv_msmodelslim_writer_linear(handle_, name, n, k);
    }

    status kv(const char* prefix, std::size_t channels) noexcept {
        return mnnkv_msmodelslim_writer_kv(handle_, prefix, channels);
    }

    status append(const char* name, const void* data, std::size_t len) noexcept {
        return mnnkv_msmodelslim_writer_append(handle_, name, data, len);
    }

    status append_rows(const char* name, const float* weights, std::size_t count) noexcept {
        return mnnkv_msmodelslim_writer_append_rows(handle_, name, weights, count);
    }

    status append_kv(const char* prefix, const float* key_scale, const float* key_offset, const float* value_scale,
                     const float* value_offset, std::size_t channels) noexcept {
        return mnnkv_msmodelslim_writer_append_kv(handle_, prefix, key_scale, key_offset, value_scale, value_offset,
                                                  channels);
    }

    status finish() noexcept { return mnnkv_msmodelslim_writer_finish(handle_); }
};

/// The sizing options with their defaults.
inline mnnkv_sizing_options sizing_defaults() noexcept {
    mnnkv_sizing_options options = mnnkv_sizing_options();
    mnnkv_sizing_options_default(&options);
    return options;
}

/// Owns a mnnkv_sizing. Any number of threads may ask it at once.
class sizing : public owner<mnnkv_sizing, mnnkv_sizing_destroy> {
public:
    /// Reads a config.json, destroying what was held before. On failure it holds nothing.
    status create(const char* config_json, std::size_t len) noexcept {
        reset();
        return mnnkv_sizing_create(config_json, len, MNNKV_ABI_VERSION, &handle_);
    }

    status info(mnnkv_sizing_info& out) const noexcept {
        return detail::get(out, [this](mnnkv_sizing_info* to) { return mnnkv_sizing_get_info(handle_, to); });
    }

    status layer_info(std::uint32_t layer, mnnkv_sizing_layer_info& out) const noexcept {
        return detail::get(out, [this, layer](mnnkv_sizing_layer_info* to) {
            return mnnkv_sizing_get_layer_info(handle_, layer, to);
        });
    }

    status per_token(std::uint64_t& bytes_per_token, std::uint64_t& bytes_per_late_token,
                     const mnnkv_sizing_options* options = nullptr) const noexcept {
        return mnnkv_sizing_per_token(handle_, options, &bytes_per_token, &bytes_per_late_token);
    }

    status bytes(std::uint64_t tokens, mnnkv_sizing_total& out,
                 const mnnkv_sizing_options* options = nullptr) const noexcept {
        return detail::get(out, [this, options, tokens](mnnkv_sizing_total* to) {
            return mnnkv_sizing_bytes(handle_, options, tokens, to);
        });
    }

    status longest(std::uint64_t budget, std::uint64_t& tokens, std::uint64_t& bytes,
                   const mnnkv_sizing_options* options = nullptr) const noexcept {
        return mnnkv_sizing_longest(handle_, options, budget, &tokens, &bytes);
    }

    /// Into a std::string or its like, as session::warnings.
    template <class Text>
    status notes(Text& text) const {
        return detail::fill(text, [this](char* to, std::size_t cap, std::size_t* len) {
            return mnnkv_sizing_notes(handle_, to, cap, len);
        });
    }

    /// As notes. budget 0: the report has no longest context.
    template <class Text>
    status report_json(Text& text, const std::uint64_t* contexts, std::size_t n, std::uint64_t budget = 0,
                       const mnnkv_sizing_options* options = nullptr) const {
        return detail::fill(text, [this, options, contexts, n, budget](char* to, std::size_t cap, std::size_t* len) {
            return mnnkv_sizing_report_json(handle_, options, contexts, n, budget, to, cap, len);
        });
    }
};

}  // namespace mnnkv

#undef MNNKV_NODISCARD

#endif  // MNNKV_HPP
