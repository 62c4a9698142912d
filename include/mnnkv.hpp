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
    /// Destroys the session held before and makes another. On failure there is none. struct_size and abi_version need not
    /// be set.
    status create(mnnkv_session_options options) noexcept {
        reset();
        options.struct_size = sizeof options;
        options.abi_version = MNNKV_ABI_VERSION;
        return mnnkv_session_create(&options, &handle_);
    }

    /// The same with a config alone.
    status create(const char* config_json, std::size_t len, std::uint32_t layers, std::uint32_t lanes) noexcept {
        mnnkv_session_options options = {};
        options.layers = layers;
        options.lanes = lanes;
        options.config_json = config_json;
        options.config_len = len;
        return create(options);
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

}  // namespace mnnkv

#undef MNNKV_NODISCARD

#endif  // MNNKV_HPP
