// The bundled sample of a real KV cache: testdata/README.md says what it is.

#ifndef MNNKV_DEMO_SAMPLE_HPP
#define MNNKV_DEMO_SAMPLE_HPP

#include <cstdint>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

namespace demo {

/// Bits of a binary16; the host never computes with K and V.
using half = std::uint16_t;

inline float to_float(half h) {
    const std::uint32_t sign = static_cast<std::uint32_t>(h >> 15) << 31;
    const std::uint32_t exponent = (h >> 10) & 31u;
    const std::uint32_t fraction = h & 1023u;
    float value = 0;
    if (exponent == 0) {
        value = static_cast<float>(fraction) / 16777216.0f;
    } else {
        const std::uint32_t bits = ((exponent + 112u) << 23) | (fraction << 13);
        std::memcpy(&value, &bits, sizeof value);
    }
    return sign != 0 ? -value : value;
}

struct Sample {
    static constexpr std::uint32_t layers = 4;
    static constexpr std::uint32_t heads = 2;
    static constexpr std::uint32_t tokens = 1088;
    static constexpr std::uint32_t dims = 64;
    static constexpr std::uint32_t prompt = 1024;  // attention was recorded from here on
    static constexpr std::uint32_t query_heads = 4;
    static constexpr std::uint32_t queries = tokens - prompt;
    static constexpr std::uint32_t first_scored_layer = 2;

    std::vector<half> key[layers];        // [head][token][dim]
    std::vector<half> value[layers];      // [head][token][dim]
    std::vector<half> attention[layers];  // [query head][query][token], empty below first_scored_layer

    /// False, with a message, when a file is missing or has another size.
    bool load(const std::string& folder) {
        const std::size_t rows = std::size_t(heads) * tokens * dims;
        for (std::uint32_t l = 0; l < layers; ++l) {
            const std::string layer = folder + "/l" + std::to_string(l);
            if (!read(layer + "_k_h2_t1088_d64.f16", rows, key[l]) ||
                !read(layer + "_v_h2_t1088_d64.f16", rows, value[l])) {
                return false;
            }
            const std::string recorded = folder + "/attention_l" + std::to_string(l) + "_h4_q64_t1088.f16";
            if (l >= first_scored_layer &&
                !read(recorded, std::size_t(query_heads) * queries * tokens, attention[l])) {
                return false;
            }
        }
        return true;
    }

    /// Attention that one query gave to one token, summed over the query heads.
    float weight(std::uint32_t layer, std::uint32_t query, std::uint32_t token) const {
        float sum = 0;
        for (std::uint32_t h = 0; h < query_heads; ++h) {
            sum += to_float(attention[layer][(std::size_t(h) * queries + query) * tokens + token]);
        }
        return sum;
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
