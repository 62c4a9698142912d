// mnn-kv for C++11 and later: handles that destroy themselves and statuses that cannot be mistaken for counts.
//
// Header-only over mnnkv.h, which is the manual. Needs neither exceptions nor RTTI.

#ifndef MNNKV_HPP
#define MNNKV_HPP

#include "mnnkv.h"

#include <cstddef>
#include <cstdint>

namespace mnnkv {

/// The outcome of a call. True in an `if` when it succeeded.
class status {
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

/// Owns a mnnkv_store. Moves, does not copy; a moved-from or reset store holds nothing, and its calls answer
/// INVALID_ARGUMENT.
class store {
public:
    store() noexcept : handle_(nullptr) {}
    ~store() { reset(); }

    store(store&& other) noexcept : handle_(other.release()) {}
    store& operator=(store&& other) noexcept {
        if (this != &other) {
            reset();
            handle_ = other.release();
        }
        return *this;
    }
    store(const store&) = delete;
    store& operator=(const store&) = delete;

    /// Makes a store, destroying the one held before. On failure it holds nothing.
    status create(const mnnkv_store_config* config = nullptr) noexcept {
        reset();
        return mnnkv_store_create(config, MNNKV_ABI_VERSION, &handle_);
    }

    /// Destroys the store now. May be called again.
    void reset() noexcept { mnnkv_store_destroy(release()); }

    explicit operator bool() const noexcept { return handle_ != nullptr; }
    mnnkv_store* get() const noexcept { return handle_; }

    /// Gives the handle away; the caller destroys it.
    mnnkv_store* release() noexcept {
        mnnkv_store* handle = handle_;
        handle_ = nullptr;
        return handle;
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

    status stats(mnnkv_store_statistics& out) const noexcept {
        mnnkv_store_statistics value = make<mnnkv_store_statistics>();
        const status result = mnnkv_store_stats(handle_, &value);
        if (result) {
            out = value;
        }
        return result;
    }

private:
    mnnkv_store* handle_;
};

}  // namespace mnnkv

#endif  // MNNKV_HPP
