// The bundled sample of a real KV cache: see testdata/README.md.

#ifndef MNNKV_DEMO_SAMPLE_HPP
#define MNNKV_DEMO_SAMPLE_HPP

#include "packed_cache.hpp"

#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

namespace demo {

struct Sample {
    static constexpr std::uint32_t layers = 4;
    static constexpr std::uint32_t heads = 2;
    static constexpr std::uint32_t tokens = 1088;
    static constexpr std::uint32_t dims = 64;

    std::vector<half> key[layers];    // [head][token][dim]
    std::vector<half> value[layers];  // [head][token][dim]

    /// False, with a message, when a file is missing or has another size.
    bool load(const std::string& folder) {
        const std::size_t rows = std::size_t(heads) * tokens * dims;
        for (std::uint32_t l = 0; l < layers; ++l) {
            const std::string layer = folder + "/l" + std::to_string(l);
            if (!read(layer + "_k_h2_t1088_d64.f16", rows, key[l]) ||
                !read(layer + "_v_h2_t1088_d64.f16", rows, value[l])) {
                return false;
            }
        }
        return true;
    }

private:
    static bool read(const std::string& path, std::size_t count, std::vector<half>& out) {
        out.resize(count);
        std::FILE* file = std::fopen(path.c_str(), "rb");
        const std::size_t got = file != nullptr ? std::fread(out.data(), sizeof(half), count, file) : 0;
        if (file != nullptr) {
            std::fclose(file);
        }
        if (got != count) {
            std::fprintf(stderr, "%s: %zu of %zu words read\n", path.c_str(), got, count);
        }
        return got == count;
    }
};

}  // namespace demo

#endif
