// A cache that MNN itself packed, and formulas worked out by hand.

#include "packed_model.hpp"

namespace {

using namespace support;

constexpr pack_mode avx512 = {"x86_avx512", MNNKV_DTYPE_F32, 48, 1, 8};

/// The dump: 893 tokens of one layer, as far as each head is used. Rows begin at token 7.
struct mnn_dump {
    static constexpr std::uint32_t first = 7, count = 886, heads = 2, dims = 64;

    mnn_dump()
        : layout(make_layout(avx512, heads, dims, 893, 64)),
          key(read_file("mnn_packed/key_packed.f32")),
          value(read_file("mnn_packed/value_packed.f32")),
          expected{by_head(read_file("mnn_packed/key_rows.f32")), by_head(read_file("mnn_packed/value_rows.f32"))} {
        layout.key_head_stride = 229376;
        layout.value_head_stride = 229376;
    }

    /// The files have [token][head][dim], the library [head][token][dim].
    static bytes by_head(const bytes& by_token) {
        constexpr std::size_t row = dims * 4;
        bytes out(by_token.size());
        EXPECT_EQ(out.size(), heads * count * row);
        for (std::size_t i = 0; i < heads * count && (i + 1) * row <= out.size(); ++i) {
            std::memcpy(&out[((i % heads) * count + i / heads) * row], &by_token[i * row], row);
        }
        return out;
    }

    mnnkv_layout layout;
    bytes key, value;
    rows expected;
};

TEST(MnnCache, IsExactlyAsLongAsTheLayoutSays) {
    const mnn_dump dump;
    std::uint64_t key_bytes = 0, value_bytes = 0;
    ASSERT_TRUE(ok(mnnkv_layout_check(&dump.layout, &key_bytes, &value_bytes)));
    EXPECT_EQ(key_bytes, dump.key.size());
    EXPECT_EQ(value_bytes, dump.value.size());
}

TEST(MnnCache, GathersToTheRowsItWasMadeOf) {
    const mnn_dump dump;
    guarded keys(dump.expected.key.size()), values(dump.expected.value.size());
    ASSERT_TRUE(ok(mnnkv_kv_gather(&dump.layout, dump.key.data(), dump.value.data(), dump.first, dump.count,
                                   keys.data(), values.data(), keys.size())));
    EXPECT_TRUE(keys.holds(dump.expected.key));
    EXPECT_TRUE(values.holds(dump.expected.value));
}

TEST(MnnCache, IsWhatScatteringItsRowsMakes) {
    const mnn_dump dump;
    // Everything but the tokens whose rows are known comes from the dump; those are noise until scatter writes them.
    SEEDED_DICE(random, 1);
    const packed_model model(dump.layout);
    bytes key = dump.key, value = dump.value;
    model.put(key.data(), value.data(), tokens_from(dump.first, dump.count),
              {random.noise(dump.expected.key.size()), random.noise(dump.expected.value.size())});
    guarded packed_key(key), packed_value(value);
    ASSERT_TRUE(ok(mnnkv_kv_scatter(&dump.layout, dump.expected.key.data(), dump.expected.value.data(),
                                    dump.expected.key.size(), dump.first, dump.count, packed_key.data(),
                                    packed_value.data())));
    EXPECT_TRUE(packed_key.holds(dump.key));
    EXPECT_TRUE(packed_value.holds(dump.value));
}

TEST(MnnCache, KeepsTheRowsOfTheTokensThatAnEvictionKeeps) {
    mnn_dump dump;
    const std::int32_t pairs[] = {0, 64, 100, 1, 128, 128, 500, 33, 700, 186};  // relative to token 7
    std::uint32_t new_len = 0;
    ASSERT_TRUE(ok(mnnkv_kv_compact(&dump.layout, dump.key.data(), dump.value.data(), dump.first, pairs, 5, 893,
                                    &new_len)));
    ASSERT_EQ(new_len, 7u + 64 + 1 + 128 + 33 + 186);
    const std::uint32_t kept = new_len - dump.first;
    bytes keys(dump.heads * kept * dump.dims * 4), values(keys.size());
    ASSERT_TRUE(ok(mnnkv_kv_gather(&dump.layout, dump.key.data(), dump.value.data(), dump.first, kept, keys.data(),
                                   values.data(), keys.size())));
    constexpr std::size_t row = mnn_dump::dims * 4;
    for (std::size_t head = 0; head < dump.heads; ++head) {
        std::size_t at = head * kept * row;
        for (std::size_t i = 0; i < 10; i += 2) {
            const std::size_t from = (head * dump.count + static_cast<std::size_t>(pairs[i])) * row;
            const std::size_t length = static_cast<std::size_t>(pairs[i + 1]) * row;
            EXPECT_TRUE(same(&keys[at], length, &dump.expected.key[from], length)) << "pair " << i / 2;
            EXPECT_TRUE(same(&values[at], length, &dump.expected.value[from], length)) << "pair " << i / 2;
            at += length;
        }
    }
}

TEST(Layout, PlacesWorkedOutByHand) {
    // hP 4, lP 2, D 5 and F 6: K has panels of 4 tokens x 6 dims (one is padding), V blocks of two rows of 3 panels.
    mnnkv_layout layout = make_layout({"by hand", MNNKV_DTYPE_F16, 9, 2, 4}, 2, 5, 10, 6);
    const packed_model oracle(layout);
    std::uint64_t key_bytes = 0, value_bytes = 0;
    ASSERT_TRUE(ok(mnnkv_layout_check(&layout, &key_bytes, &value_bytes)));
    EXPECT_EQ(key_bytes, 2u * 12 * 6 * 2);     // 2 heads, 12 tokens, 6 dims, 2 bytes
    EXPECT_EQ(value_bytes, 2u * 12 * 8 * 2);   // 2 heads, 12 tokens, 8 dims, 2 bytes
    const struct {
        std::uint32_t token, dim;
        std::uint64_t key, value;
    } places[] = {
        {0, 0, 0, 0},
        {1, 0, 2, 1},                         // K: next token of the panel; V: next token of the pair
        {0, 1, 1, 2},                         // K: next dim of the pair; V: next dim of the panel
        {0, 2, 8, 4},                         // K: next pair of dims
        {4, 0, 24, 16},                       // K: next panel; V: third pair of tokens
        {5, 4, 24 + 16 + 2, 24 + 16 + 1},     // V: second row, third pair, second token
        {7, 3, 24 + 8 + 6 + 1, 48 + 6 + 1},   // V: second block
    };
    for (const auto& p : places) {
        EXPECT_EQ(oracle.key_index(p.token, p.dim), p.key) << "token " << p.token << " dim " << p.dim;
        EXPECT_EQ(oracle.value_index(p.token, p.dim), p.value) << "token " << p.token << " dim " << p.dim;
    }
}

}  // namespace
