// mnn-kv for C++11 and later: owners of handles, and statuses that a compiler checks.
//
// Header-only over the C headers, which are the manual; needs neither exceptions nor RTTI. mnnkv/model.hpp has the handles
// of mnnkv/model.h.

#ifndef MNNKV_HPP
#define MNNKV_HPP

#include "mnnkv.h"
#include "mnnkv/session.h"
#include "mnnkv/layout.h"
#include "mnnkv/h2o.h"
#include "mnnkv/store.h"
#include "mnnkv/gear.h"

#include <cstddef>
#include <cstdint>

// Warns where a result is dropped. Clang rejects the standard attribute before C++17 as an extension.
#if defined(__clang__)
#define MNNKV_NODISCARD [[clang::warn_unused_result]]
#elif (defined(__GNUC__) && __GNUC__ >= 7) || __cplusplus >= 201703L || (defined(_MSVC_LANG) && _MSVC_LANG >= 201703L)
#define MNNKV_NODISCARD [[nodiscard]]
#else
#define MNNKV_NODISCARD
#endif

namespace mnnkv {

/// The outcome of a call; true on success. A call that drops it is a warning, unless cast to void.
class MNNKV_NODISCARD status {
public:
    status(mnnkv_status code = MNNKV_OK) noexcept : code_(code), last_error_(nullptr) {}

    /// A code whose text comes from `last_error`, not from mnnkv_last_error.
    status(mnnkv_status code, const char* (*last_error)()) noexcept : code_(code), last_error_(last_error) {}

    explicit operator bool() const noexcept { return code_ == MNNKV_OK; }
    mnnkv_status code() const noexcept { return code_; }

    /// mnnkv_status_name
    const char* name() const noexcept { return mnnkv_status_name(code_); }

    /// The text of the last failure on this thread: mnnkv_last_error, or mnnkv_model_last_error of a call of model.hpp. Read it
    /// on the thread of the call, before its next call. A status with a `last_error` of its own has the text of that one. ""
    /// on success.
    const char* message() const noexcept {
        return code_ == MNNKV_OK ? "" : last_error_ == nullptr ? mnnkv_last_error() : last_error_();
    }

private:
    mnnkv_status code_;
    const char* (*last_error_)();
};

/// A struct with struct_size set and all other fields 0: `auto layout = mnnkv::make<mnnkv_layout>();`
template <class T>
T make() noexcept {
    T value = T();
    value.struct_size = static_cast<std::uint32_t>(sizeof(T));
    return value;
}

namespace detail {

/// Reads a text output: its length, then the text, again if it has grown. `guess`: room to begin with. `end`: bytes after the
/// text, 0 of bytes that are none.
template <class Text, class Write>
status fill(Text& text, Write write, std::size_t guess = 0, std::size_t end = 1) {
    std::size_t len = 0;
    text.resize(guess);
    status result = write(guess == 0 ? nullptr : &text[0], guess, &len);
    while (result.code() == MNNKV_BUFFER_TOO_SMALL) {
        text.resize(len);
        result = write(&text[0], len, &len);
    }
    text.resize(result ? len - end : 0);
    return result;
}

/// Reads a struct output; `out` changes only on success.
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

/// Owns a handle. Movable, not copyable. Calls on an empty owner return INVALID_ARGUMENT.
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

    /// Destroys the handle and becomes empty.
    void reset() noexcept { destroy(release()); }

    explicit operator bool() const noexcept { return handle_ != nullptr; }
    Handle* get() const noexcept { return handle_; }

    /// Returns the handle, which the caller must destroy, and becomes empty.
    Handle* release() noexcept {
        Handle* handle = handle_;
        handle_ = nullptr;
        return handle;
    }

protected:
    /// Destroys the handle, and makes another by `make`.
    template <class Options>
    status made(Options options, mnnkv_status (*make)(const Options*, Handle**)) noexcept {
        reset();
        options.struct_size = static_cast<std::uint32_t>(sizeof options);
        options.abi_version = MNNKV_ABI_VERSION;
        return make(&options, &handle_);
    }

    Handle* handle_;
};

/// Owns a mnnkv_session. reset() destroys the handle; reset_layer and reset_all are mnnkv_session_reset.
class session : public owner<mnnkv_session, mnnkv_session_destroy> {
public:
    using owner::get;

    /// mnnkv_session_create, after reset(). Sets struct_size and abi_version. Empty on failure.
    status create(mnnkv_session_options options) noexcept {
        return this->made(options, mnnkv_session_create);
    }

    /// The same with only a config. `attends` is 0: kv_quant has no effect, nor has a budget.
    status create(const char* config_json, std::size_t len, std::uint32_t layers, std::uint32_t lanes = 1) noexcept {
        mnnkv_session_options options = mnnkv_session_options();
        options.layers = layers;
        options.lanes = lanes;
        options.config_json = config_json;
        options.config_len = len;
        return create(options);
    }

    /// mnnkv_session_reset
    status reset_layer(std::uint32_t layer) noexcept { return mnnkv_session_reset(handle_, layer); }

    /// mnnkv_session_reset, MNNKV_ALL_LAYERS
    status reset_all() noexcept { return mnnkv_session_reset(handle_, MNNKV_ALL_LAYERS); }

    /// mnnkv_session_begin, for hosts that attend themselves and hand over no sums
    status begin(std::uint32_t layer, mnnkv_cache& cache) noexcept {
        return mnnkv_session_begin(handle_, layer, &cache, nullptr);
    }

    /// mnnkv_session_begin; sets struct_size. `rows` of the step are the host's
    status begin(std::uint32_t layer, mnnkv_cache& cache, mnnkv_step& step) noexcept {
        step.struct_size = static_cast<std::uint32_t>(sizeof step);
        return mnnkv_session_begin(handle_, layer, &cache, &step);
    }

    /// mnnkv_session_block_sums
    status block_sums(std::uint32_t layer, std::uint32_t lane, const mnnkv_block_sums& sums) noexcept {
        return mnnkv_session_block_sums(handle_, layer, lane, &sums);
    }

    /// mnnkv_session_attend; sets struct_size
    status attend(std::uint32_t layer, std::uint32_t part, std::uint32_t parts, const mnnkv_cache& cache,
                  mnnkv_attend step) const noexcept {
        step.struct_size = static_cast<std::uint32_t>(sizeof step);
        return mnnkv_session_attend(handle_, layer, part, parts, &cache, &step);
    }

    /// mnnkv_session_window
    status window(std::uint32_t layer, std::uint32_t tokens, std::uint32_t rollback = 0) noexcept {
        return mnnkv_session_window(handle_, layer, tokens, rollback);
    }

    /// mnnkv_session_trim
    status trim(std::uint64_t bytes, std::uint64_t* in_use = nullptr) noexcept {
        return mnnkv_session_trim(handle_, bytes, in_use);
    }

    /// mnnkv_session_end
    status end(std::uint32_t layer, std::uint32_t heads, std::uint32_t queries, mnnkv_cache& cache) noexcept {
        return mnnkv_session_end(handle_, layer, heads, queries, &cache);
    }

    /// mnnkv_session_abort
    status abort(std::uint32_t layer, mnnkv_cache& cache) noexcept {
        return mnnkv_session_abort(handle_, layer, &cache);
    }

    /// mnnkv_session_rewritten
    status rewritten(std::uint32_t layer, std::uint32_t begin, std::uint32_t count) noexcept {
        return mnnkv_session_rewritten(handle_, layer, begin, count);
    }

    /// mnnkv_session_keep
    status keep(std::uint32_t layer, const std::int32_t* logical_pairs, std::size_t n_pairs,
                mnnkv_cache& cache) noexcept {
        return mnnkv_session_keep(handle_, layer, logical_pairs, n_pairs, &cache);
    }

    /// mnnkv_session_pin
    status pin(std::uint32_t first, std::uint32_t count, bool on = true) noexcept {
        return mnnkv_session_pin(handle_, first, count, on ? 1 : 0);
    }

    /// mnnkv_session_lengths
    status lengths(std::uint32_t layer, std::uint32_t& logical, std::uint32_t& physical) const noexcept {
        return mnnkv_session_lengths(handle_, layer, &logical, &physical);
    }

    /// mnnkv_session_positions
    status positions(std::uint32_t layer, std::uint32_t kv_head, std::int32_t* pairs, std::size_t pairs_cap,
                     std::size_t& n_pairs) const noexcept {
        return mnnkv_session_positions(handle_, layer, kv_head, pairs, pairs_cap, &n_pairs);
    }

    /// mnnkv_session_put
    status put(const char* name, const void* bytes, std::size_t len) noexcept {
        return mnnkv_session_put(handle_, name, bytes, len);
    }

    /// mnnkv_session_get into a std::string, or a type with resize() and contiguous bytes. Empty on failure.
    template <class Bytes>
    status get(const char* name, Bytes& bytes) const {
        static_assert(sizeof(bytes[0]) == 1, "a section is bytes");
        const auto read = [this, name](void* to, std::size_t cap, std::size_t* len) {
            return mnnkv_session_get(handle_, name, to, cap, len);
        };
        return detail::fill(bytes, read, 0, 0);
    }

    /// mnnkv_session_save. path: nullptr = the chat's file
    status save(const char* path, const mnnkv_cache* caches, std::uint32_t layers, std::uint64_t* written = nullptr) noexcept {
        return mnnkv_session_save(handle_, path, caches, layers, written);
    }

    /// mnnkv_session_open. path: nullptr = the chat's file
    status open(const char* path = nullptr) noexcept { return mnnkv_session_open(handle_, path); }

    /// mnnkv_session_report into a std::string, or a type with resize() and contiguous chars. Empty on failure.
    template <class Text>
    status report(Text& text) const {
        return detail::fill(text, [this](char* to, std::size_t cap, std::size_t* len) {
            return mnnkv_session_report(handle_, to, cap, len);
        });
    }
};

/// Owns a mnnkv_store.
class store : public owner<mnnkv_store, mnnkv_store_destroy> {
public:
    /// mnnkv_store_create, after reset(). Empty on failure.
    status create(const mnnkv_store_config* config = nullptr) noexcept {
        reset();
        return mnnkv_store_create(config, MNNKV_ABI_VERSION, &handle_);
    }

    /// mnnkv_store_submit
    status submit(std::uint32_t layer, const mnnkv_layout& layout, const void* key, const void* value,
                  std::uint32_t begin, std::uint32_t count, std::uint64_t* ticket = nullptr) noexcept {
        std::uint64_t unused = 0;
        return mnnkv_store_submit(handle_, layer, &layout, key, value, begin, count, ticket ? ticket : &unused);
    }

    /// mnnkv_store_commit
    status commit(std::uint32_t layer, const mnnkv_layout& layout, void* key, void* value,
                  std::uint64_t* released_bytes = nullptr) noexcept {
        std::uint64_t unused = 0;
        return mnnkv_store_commit(handle_, layer, &layout, key, value, released_bytes ? released_bytes : &unused);
    }

    /// mnnkv_store_restore
    status restore(std::uint32_t layer, const mnnkv_layout& layout, void* key, void* value,
                   std::uint64_t* restored_bytes = nullptr) noexcept {
        std::uint64_t unused = 0;
        return mnnkv_store_restore(handle_, layer, &layout, key, value, restored_bytes ? restored_bytes : &unused);
    }

    /// mnnkv_store_compacted
    status compacted(std::uint32_t layer, const std::int32_t* reserve_pairs, std::size_t n_pairs) noexcept {
        return mnnkv_store_compacted(handle_, layer, reserve_pairs, n_pairs);
    }

    /// mnnkv_store_stats
    status stats(mnnkv_store_statistics& out) const noexcept {
        return detail::get(out, [this](mnnkv_store_statistics* to) { return mnnkv_store_stats(handle_, to); });
    }
};

/// mnnkv_h2o_config_default
inline mnnkv_h2o_config h2o_defaults() noexcept {
    mnnkv_h2o_config config = mnnkv_h2o_config();
    mnnkv_h2o_config_default(&config);
    return config;
}

}  // namespace mnnkv

#undef MNNKV_NODISCARD

#endif  // MNNKV_HPP
