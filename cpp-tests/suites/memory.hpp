// This process's memory, and memory straight from the system. Linux only.

#ifndef MNNKV_TESTS_MEMORY_HPP
#define MNNKV_TESTS_MEMORY_HPP

#include "support.hpp"

#include <sys/mman.h>
#include <unistd.h>

namespace support {

constexpr long mega = 1 << 20;

/// Resident bytes of this process that belong to no file: paging in code must not count. smaps_rollup is exact; statm,
/// for kernels without it, may lag.
inline long resident_bytes() {
    std::ifstream rollup("/proc/self/smaps_rollup");
    for (std::string word; rollup >> word;) {
        if (word == "Anonymous:") {
            long kilobytes = 0;
            rollup >> kilobytes;
            return kilobytes * 1024;
        }
    }
    std::ifstream statm("/proc/self/statm");
    long total = 0, pages = 0, of_files = 0;
    statm >> total >> pages >> of_files;
    EXPECT_GT(pages, of_files) << "cannot read the resident memory";
    return (pages - of_files) * sysconf(_SC_PAGESIZE);
}

/// Zeroed memory from the system, independent of malloc.
class mapping {
public:
    explicit mapping(std::size_t size) : size_(size) {
        void* const at = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        EXPECT_NE(at, MAP_FAILED);
        data_ = static_cast<std::uint8_t*>(at);
    }
    ~mapping() { munmap(data_, size_); }
    mapping(const mapping&) = delete;
    mapping& operator=(const mapping&) = delete;

    std::uint8_t* data() { return data_; }
    std::size_t size() const { return size_; }

private:
    std::uint8_t* data_;
    std::size_t size_;
};

}  // namespace support

#endif  // MNNKV_TESTS_MEMORY_HPP
