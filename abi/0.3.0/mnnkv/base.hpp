// Frozen by `make abi`, without comments; see docs/abi.md.
#ifndef MNNKV_BASE_HPP
#define MNNKV_BASE_HPP
#include "base.h"
#include <cstddef>
#include <cstdint>
#if defined(__clang__)
#define MNNKV_NODISCARD [[clang::warn_unused_result]]
#elif (defined(__GNUC__) && __GNUC__ >= 7) || __cplusplus >= 201703L || (defined(_MSVC_LANG) && _MSVC_LANG >= 201703L)
#define MNNKV_NODISCARD [[nodiscard]]
#else
#define MNNKV_NODISCARD
#endif
namespace mnnkv {
class MNNKV_NODISCARD status {
public:
    status(mnnkv_status code = MNNKV_OK) noexcept : code_(code), last_error_(nullptr) {}
    status(mnnkv_status code, const char* (*last_error)()) noexcept : code_(code), last_error_(last_error) {}
    explicit operator bool() const noexcept { return code_ == MNNKV_OK; }
    mnnkv_status code() const noexcept { return code_; }
    const char* name() const noexcept { return mnnkv_status_name(code_); }
    const char* message() const noexcept {
        return code_ == MNNKV_OK ? "" : last_error_ == nullptr ? mnnkv_last_error() : last_error_();
    }
private:
    mnnkv_status code_;
    const char* (*last_error_)();
};
template <class T>
T make() noexcept {
    T value = T();
    value.struct_size = static_cast<std::uint32_t>(sizeof(T));
    return value;
}
namespace detail {
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
template <class T, class Read>
status get(T& out, Read read) {
    T value = make<T>();
    const status result = read(&value);
    if (result) {
        out = value;
    }
    return result;
}
}
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
    void reset() noexcept { destroy(release()); }
    explicit operator bool() const noexcept { return handle_ != nullptr; }
    Handle* get() const noexcept { return handle_; }
    Handle* release() noexcept {
        Handle* handle = handle_;
        handle_ = nullptr;
        return handle;
    }
protected:
    Handle* handle_;
};
}
#undef MNNKV_NODISCARD
#endif
