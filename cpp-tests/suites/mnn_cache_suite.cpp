// A cache that MNN itself packed, layouts whose K and V differ, and formulas worked out by hand.

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
        std::uint64_t key = 0, value = 0;
        ASSERT_TRUE(ok(mnnkv_kv_index(&layout, p.token, p.dim, &key, nullptr)));
        ASSERT_TRUE(ok(mnnkv_kv_index(&layout, p.token, p.dim, nullptr, &value)));
        EXPECT_EQ(key, p.key) << "token " << p.token << " dim " << p.dim;
        EXPECT_EQ(value, p.value) << "token " << p.token << " dim " << p.dim;
    }
}

TEST(Layout, DoesNotDependOnHowTheQueryIsPacked) {
    SEEDED_DICE(random, 2);
    mnnkv_layout layout = make_layout(avx512, 2, 24, 100, 64);
    noisy_cache cache(layout, random);
    const rows expected = cache.get(tokens_from(0, 100));
    for (const std::uint32_t e_pack : {0u, 1u, 48u, UINT32_MAX}) {
        layout.e_pack = e_pack;
        bytes keys(expected.key.size()), values(expected.value.size());
        ASSERT_TRUE(ok(mnnkv_kv_gather(&layout, cache.key.data(), cache.value.data(), 0, 100, keys.data(),
                                       values.data(), keys.size())));
        EXPECT_TRUE(same(keys, expected.key));
        EXPECT_TRUE(same(values, expected.value));
    }
}

/// K and V with element types of different size: the length given is that of the larger one.
class MixedTypes : public testing::TestWithParam<std::pair<std::uint32_t, std::uint32_t>> {
protected:
    static mnnkv_layout layout() {
        mnnkv_layout mixed = make_layout({"mixed", GetParam().first, 12, 2, 8}, 2, 13, 90, 64);
        mixed.value_dtype = GetParam().second;
        return mixed;
    }
};

TEST_P(MixedTypes, GatherAndScatterAreInverse) {
    SEEDED_DICE(random, 3);
    const mnnkv_layout mixed = layout();
    noisy_cache from(mixed, random), to(mixed, random);
    const rows expected = from.get(tokens_from(3, 70));
    const std::size_t larger = std::max(expected.key.size(), expected.value.size());
    ASSERT_NE(expected.key.size(), expected.value.size());
    guarded keys(expected.key.size()), values(expected.value.size());
    ASSERT_TRUE(ok(mnnkv_kv_gather(&mixed, from.key.data(), from.value.data(), 3, 70, keys.data(), values.data(),
                                   larger)));
    EXPECT_TRUE(keys.holds(expected.key));
    EXPECT_TRUE(values.holds(expected.value));

    bytes key = to.key.contents(), value = to.value.contents();
    to.model.put(key.data(), value.data(), tokens_from(3, 70), expected);
    ASSERT_TRUE(ok(mnnkv_kv_scatter(&mixed, keys.data(), values.data(), larger, 3, 70, to.key.data(),
                                    to.value.data())));
    EXPECT_TRUE(to.holds(key, value));
}

TEST_P(MixedTypes, CapacityForTheSmallerTypeAloneIsTooSmall) {
    SEEDED_DICE(random, 4);
    const mnnkv_layout mixed = layout();
    noisy_cache cache(mixed, random);
    const std::size_t larger = std::max(cache.model.key_row_bytes(70), cache.model.value_row_bytes(70));
    guarded keys(larger), values(larger);
    EXPECT_TRUE(refuses(MNNKV_BUFFER_TOO_SMALL, "cap_each", [&] {
        return mnnkv_kv_gather(&mixed, cache.key.data(), cache.value.data(), 3, 70, keys.data(), values.data(),
                               larger / 2);
    }));
    EXPECT_TRUE(keys.untouched());
    EXPECT_TRUE(values.untouched());
    EXPECT_TRUE(refuses(MNNKV_INVALID_ARGUMENT, "len_each", [&] {
        return mnnkv_kv_scatter(&mixed, keys.data(), values.data(), larger / 2, 3, 70, cache.key.data(),
                                cache.value.data());
    }));
    EXPECT_TRUE(cache.untouched());
}

INSTANTIATE_TEST_SUITE_P(KeyAndValue, MixedTypes,
                         testing::Values(std::make_pair(MNNKV_DTYPE_F32, MNNKV_DTYPE_F16),
                                         std::make_pair(MNNKV_DTYPE_BF16, MNNKV_DTYPE_F32)));

}  // namespace
