// The demo's calls of the system: pages, resident memory, time.

#ifndef MNNKV_DEMO_SYSTEM_HPP
#define MNNKV_DEMO_SYSTEM_HPP

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <utility>

#if defined(__unix__) || defined(__APPLE__)
#include <sys/mman.h>
#include <unistd.h>
#define DEMO_HAS_MMAP 1
#endif
#if defined(__GLIBC__)
#include <malloc.h>
#endif

namespace demo {

/// Zeroed memory on whole pages, so that the system's figures show what is released. An engine may use any heap: then
/// the first and last page of each buffer stay.
class Pages {
public:
    Pages() = default;
    explicit Pages(std::size_t bytes) : bytes_(bytes) {
#if defined(DEMO_HAS_MMAP)
        void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        data_ = memory == MAP_FAILED ? nullptr : memory;
#else
        data_ = std::calloc(bytes, 1);
#endif
        if (data_ == nullptr) {
            std::fprintf(stderr, "no memory for a cache of %zu bytes\n", bytes);
            std::exit(1);
        }
    }
    Pages(Pages&& other) noexcept { swap(other); }
    Pages& operator=(Pages&& other) noexcept {
        swap(other);
        return *this;
    }
    ~Pages() {
#if defined(DEMO_HAS_MMAP)
        if (data_ != nullptr) {
            munmap(data_, bytes_);
        }
#else
        std::free(data_);
#endif
    }

    void* data() const { return data_; }
    std::size_t size() const { return bytes_; }

private:
    void swap(Pages& other) {
        std::swap(data_, other.data_);
        std::swap(bytes_, other.bytes_);
    }

    void* data_ = nullptr;
    std::size_t bytes_ = 0;
};

/// Private resident bytes of this process by the system's count, without code and other files; 0 where there is none.
inline std::size_t resident_bytes() {
    unsigned long long pages = 0, shared = 0;
#if defined(__linux__)
    if (std::FILE* statm = std::fopen("/proc/self/statm", "r")) {
        if (std::fscanf(statm, "%*u %llu %llu", &pages, &shared) != 2) {
            pages = shared = 0;
        }
        std::fclose(statm);
    }
    pages = (pages - shared) * static_cast<unsigned long long>(sysconf(_SC_PAGESIZE));
#endif
    return static_cast<std::size_t>(pages);
}

/// Returns free memory of the C heap to the system, so that all runs start alike.
inline void trim_heap() {
#if defined(__GLIBC__)
    malloc_trim(0);
#endif
}

inline double seconds() {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace demo

#endif
