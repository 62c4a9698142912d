// mnnkv/base.hpp: what all C++ wrappers share.

#ifndef MNNKV_BASE_HPP
#define MNNKV_BASE_HPP

#include "base.h"

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

/// Reads a text output: its length, then the text, again if it has grown. `guess`: room to begin with.
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
    Handle* handle_;
};

}  // namespace mnnkv

#undef MNNKV_NODISCARD

#endif  // MNNKV_BASE_HPP
