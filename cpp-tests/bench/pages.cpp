// Where a decoder should write what attention reads once: the cost of taking pages and returning them, beside memory that
// stays mapped. A copy stands for decoding, a sum for attention. One thread, heads of 4,000 tokens x 64 dims of f32, 16
// heads in turn; medians of microseconds per head, of all ways in one run. Linux only.

#include <cstdio>

#ifdef __linux__

#include "../demo/table.hpp"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <functional>
#include <string>
#include <sys/mman.h>
#include <time.h>
#include <vector>

namespace {

const std::size_t head = 2u * 4000 * 64 * 4, heads = 16, rounds = 40;
#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

char* pages(std::size_t bytes) {
    void* const at = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED) {
        return nullptr;
    }
    (void)madvise(at, bytes, MADV_NOHUGEPAGE);  // caches are rarely aligned for huge pages
    return static_cast<char*>(at);
}

double microseconds() {
    timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return double(now.tv_sec) * 1e6 + double(now.tv_nsec) / 1e3;
}

/// Reads a head as attention does.
std::uint64_t read(const char* from) {
    std::uint64_t sum = 0;
    for (std::size_t i = 0; i < head; i += sizeof sum) {
        std::uint64_t word;
        std::memcpy(&word, from + i, sizeof word);
        sum += word;
    }
    return sum;
}

struct Way {
    const char* name;
    /// Writes head `h`, of which `source` has the bytes, to the cache or elsewhere, and returns where it is.
    std::function<char*(char* cache, std::size_t h)> write;
    /// After the read; 0: nothing.
    int advice;
    char* cache;
    std::vector<double> times;
};

}  // namespace

int main() {
    const std::size_t stride = (head + 4095) / 4096 * 4096;
    char *const source = pages(heads * stride), *const window = pages(stride);
    if (source == nullptr || window == nullptr) {
        return 1;
    }
    std::memset(source, 1, heads * stride);
    const auto to_cache = [=](char* cache, std::size_t h) {
        return static_cast<char*>(std::memcpy(cache + h * stride, source + h * stride, head));
    };
    const auto populated = [=](char* cache, std::size_t h) {
        (void)madvise(cache + h * stride, stride, MADV_POPULATE_WRITE);
        return to_cache(cache, h);
    };
    const auto to_window = [=](char*, std::size_t h) {
        return static_cast<char*>(std::memcpy(window, source + h * stride, head));
    };
    const auto in_place = [=](char*, std::size_t h) { return source + h * stride; };
    Way ways[] = {
        {"read in the cache alone", in_place, 0, nullptr, {}},
        {"written to the cache, whose pages stay", to_cache, 0, nullptr, {}},
        {"written to the cache, MADV_DONTNEED after", to_cache, MADV_DONTNEED, nullptr, {}},
        {"the same, MADV_POPULATE_WRITE before", populated, MADV_DONTNEED, nullptr, {}},
        {"written to the cache, MADV_FREE after", to_cache, MADV_FREE, nullptr, {}},
        {"written to one window", to_window, 0, nullptr, {}},
    };
    for (Way& way : ways) {
        way.cache = pages(heads * stride);
        if (way.cache == nullptr) {
            return 1;
        }
        if (way.advice == 0) {
            std::memset(way.cache, 1, heads * stride);
        }
    }
    std::uint64_t sum = 0;
    for (std::size_t round = 0; round < rounds; ++round) {
        for (Way& way : ways) {
            for (std::size_t h = 0; h < heads; ++h) {
                const double start = microseconds();
                char* const at = way.write(way.cache, h);
                sum += read(at);
                if (way.advice != 0) {
                    (void)madvise(at, stride, way.advice);
                }
                way.times.push_back(microseconds() - start);
            }
        }
    }
    demo::Table table("pages", "one thread", {"a head is", "us a head"});
    for (Way& way : ways) {
        std::sort(way.times.begin(), way.times.end());
        table.row({way.name, demo::number("%.0f", way.times[way.times.size() / 2])});
    }
    table.print();
    return sum == 1 ? 1 : 0;
}

#else

int main() {
    std::printf("only Linux is measured\n");
    return 0;
}

#endif
