// Memory that ends where readable memory ends, so that a read past it is a crash.

#ifndef MNNKV_TESTS_EDGE_HPP
#define MNNKV_TESTS_EDGE_HPP

#include "support.hpp"

#if defined(__unix__) || defined(__APPLE__)
#include <sys/mman.h>
#include <unistd.h>
#define HAS_PAGES 1
#endif

namespace support {

/// Memory whose last byte is the last readable one, where the system supports it.
class edge {
public:
    explicit edge(std::size_t capacity) {
#ifdef HAS_PAGES
        const std::size_t page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
        const std::size_t readable = (capacity + page - 1) / page * page;
        size_ = readable + page;
        void* const at = mmap(nullptr, size_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        EXPECT_NE(at, MAP_FAILED);
        begin_ = static_cast<std::uint8_t*>(at);
        end_ = begin_ + readable;
        EXPECT_EQ(mprotect(end_, page, PROT_NONE), 0);
#else
        plain_.resize(capacity);
        end_ = plain_.data() + capacity;
#endif
    }
    ~edge() {
#ifdef HAS_PAGES
        munmap(begin_, size_);
#endif
    }
    edge(const edge&) = delete;
    edge& operator=(const edge&) = delete;

    /// The first `length` bytes of a blob, at the edge.
    const std::uint8_t* put(const bytes& blob, std::size_t length) {
        std::copy(blob.begin(), blob.begin() + static_cast<std::ptrdiff_t>(length), end_ - length);
        return end_ - length;
    }
    const std::uint8_t* put(const bytes& blob) { return put(blob, blob.size()); }

private:
    std::uint8_t* begin_ = nullptr;
    std::uint8_t* end_ = nullptr;
    std::size_t size_ = 0;
    bytes plain_;
};

}  // namespace support

#endif  // MNNKV_TESTS_EDGE_HPP
