// Row-major caches as in llama.cpp: the layouts of the header, by formulas of their own.

#include "memory.hpp"
#include "support.hpp"

#include <vector>

namespace {

using namespace support;

constexpr std::uint32_t heads = 8, dims = 128, tokens = 2048;

/// V in rows of tokens, or transposed.
class RowMajorCache : public testing::TestWithParam<bool> {
protected:
    RowMajorCache() : key_(bytes), value_(bytes), layout_(mnnkv::make<mnnkv_layout>()) {
        layout_.key_dtype = layout_.value_dtype = MNNKV_DTYPE_F16;
        layout_.kv_heads = heads;
        layout_.head_dim = dims;
        layout_.max_tokens = tokens;
        layout_.l_pack = layout_.h_pack = 1;
        layout_.key_token_stride = heads * dims * 2;
        if (transposed()) {
            layout_.flash_block = tokens;
        } else {
            layout_.flash_block = 1;
            layout_.value_token_stride = heads * dims * 2;
        }
        for (std::uint32_t t = 0; t < tokens; ++t) {
            write(t, t);
        }
    }

    static constexpr std::size_t bytes = std::size_t{tokens} * heads * dims * 2;

    static bool transposed() { return GetParam(); }

    std::uint16_t& key(std::uint32_t t, std::uint32_t h, std::uint32_t d) {
        return reinterpret_cast<std::uint16_t*>(key_.data())[(t * heads + h) * dims + d];
    }

    std::uint16_t& value(std::uint32_t t, std::uint32_t h, std::uint32_t d) {
        const std::size_t at = transposed() ? (h * dims + d) * tokens + t : (t * heads + h) * dims + d;
        return reinterpret_cast<std::uint16_t*>(value_.data())[at];
    }

    static std::uint16_t word(std::uint32_t content, std::uint32_t h, std::uint32_t d, std::uint32_t of) {
        return static_cast<std::uint16_t>(0x3C00 + (content * 7 + h * 5 + d * 3 + of) % 1021);
    }

    void write(std::uint32_t t, std::uint32_t content) {
        for (std::uint32_t h = 0; h < heads; ++h) {
            for (std::uint32_t d = 0; d < dims; ++d) {
                key(t, h, d) = word(content, h, d, 0);
                value(t, h, d) = word(content, h, d, 1);
            }
        }
    }

    bool holds(std::uint32_t t, std::uint32_t content) {
        bool same = true;
        for (std::uint32_t h = 0; h < heads; ++h) {
            for (std::uint32_t d = 0; d < dims; ++d) {
                same &= key(t, h, d) == word(content, h, d, 0) && value(t, h, d) == word(content, h, d, 1);
            }
        }
        return same;
    }

    mapping key_, value_;
    mnnkv_layout layout_;
};

TEST_P(RowMajorCache, IsReadAndCompactedWhereItLies) {
    std::uint64_t key_bytes = 0, value_bytes = 0;
    ASSERT_TRUE(ok(mnnkv_layout_check(&layout_, &key_bytes, &value_bytes)));
    EXPECT_EQ(key_bytes, bytes);
    EXPECT_EQ(value_bytes, bytes);
    std::vector<std::uint16_t> rows(heads * 3 * dims), values(rows.size());
    ASSERT_TRUE(ok(mnnkv_kv_gather(&layout_, key_.data(), value_.data(), 100, 3, rows.data(), values.data(),
                                   rows.size() * 2)));
    for (std::uint32_t h = 0; h < heads; ++h) {
        EXPECT_EQ(rows[(h * 3 + 2) * dims + 9], word(102, h, 9, 0));
        EXPECT_EQ(values[(h * 3 + 1) * dims + 9], word(101, h, 9, 1));
    }
    const std::int32_t pairs[] = {0, 10, 33, 500, 1000, 48};
    std::uint32_t len = 0;
    ASSERT_TRUE(ok(mnnkv_kv_compact(&layout_, key_.data(), value_.data(), 0, pairs, 3, tokens, &len)));
    ASSERT_EQ(len, 558u);
    for (std::uint32_t t = 0; t < len; ++t) {
        ASSERT_TRUE(holds(t, t < 10 ? t : t < 510 ? t + 23 : t + 490)) << t;
    }
    for (std::uint32_t t = 1048; t < tokens; ++t) {
        ASSERT_TRUE(holds(t, t)) << t;
    }
}

INSTANTIATE_TEST_SUITE_P(Of, RowMajorCache, testing::Bool(), [](const testing::TestParamInfo<bool>& tested) {
    return tested.param ? "ValuesTransposed" : "ValuesAsRows";
});

}  // namespace
