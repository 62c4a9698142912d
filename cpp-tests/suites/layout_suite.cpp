// Every operation on a packed cache, in every packing of MNN and in random ones, against the oracle.

#include "layout_checks.hpp"

namespace {

using namespace support;

struct packing {
    pack_mode mode;
    bool flash;
};

std::vector<packing> all_packings() {
    std::vector<packing> out;
    for (const pack_mode& mode : pack_modes) {
        out.push_back({mode, true});
        out.push_back({mode, false});
    }
    return out;
}

std::string name_of(const testing::TestParamInfo<packing>& tested) {
    return std::string(tested.param.mode.name) + (tested.param.flash ? "_flash" : "_no_flash");
}

void PrintTo(const packing& p, std::ostream* out) { *out << p.mode.name << (p.flash ? " flash" : " no flash"); }

/// Puts `gap` elements between one head's K and the next, and three times as many for V.
void add_gaps(mnnkv_layout& layout, std::uint32_t gap) {
    const packed_model model(layout);
    layout.key_head_stride = model.key_head_bytes() + gap * model.key_element();
    layout.value_head_stride = model.value_head_bytes() + 3 * gap * model.value_element();
}

/// Tests run over three shapes: everything a multiple of the packs; nothing a multiple, with gaps between the heads;
/// one head only.
class PackedCache : public testing::TestWithParam<packing> {
protected:
    static std::vector<mnnkv_layout> shapes() {
        std::vector<mnnkv_layout> out = {shape(2, 64, 192), shape(3, 21, 150), shape(1, 80, 70)};
        add_gaps(out[1], 13);
        return out;
    }

    static mnnkv_layout shape(std::uint32_t heads, std::uint32_t dims, std::uint32_t max) {
        return make_layout(GetParam().mode, heads, dims, max, GetParam().flash ? 64 : max);
    }
};

class KeyValueIndex : public PackedCache {};
class Gather : public PackedCache {};
class Scatter : public PackedCache {};
class Move : public PackedCache {};
class Compact : public PackedCache {};
class Zero : public PackedCache {};
class Release : public PackedCache {};

/// Everything, nothing, one token, and some ranges at random.
std::vector<token_range> ranges(std::uint32_t max, dice& random) {
    std::vector<token_range> out = {{0, max}, {max, 0}, {0, 0}, {max - 1, 1}};
    for (int i = 0; i < 4; ++i) {
        out.push_back(random_range(max, random));
    }
    return out;
}

TEST_P(KeyValueIndex, SizesAndPlacesAreThoseOfMnn) {
    for (const mnnkv_layout& layout : shapes()) {
        check_sizes_and_places(layout);
    }
}

TEST_P(Gather, ReadsTheNamedTokensInOrder) {
    for (const mnnkv_layout& layout : shapes()) {
        SEEDED_DICE(random, 11);
        for (const token_range& r : ranges(layout.max_tokens, random)) {
            check_gather(layout, r, random);
        }
    }
}

TEST_P(Gather, WritesNoMoreThanTheRangeHoweverLargeTheOutput) {
    const mnnkv_layout layout = shapes()[1];
    SEEDED_DICE(random, 12);
    noisy_cache cache(layout, random);
    const rows expected = cache.get(tokens_from(9, 40));
    const std::size_t cap = expected.key.size() + 77;
    guarded key_out(cap), value_out(cap);
    ASSERT_TRUE(ok(mnnkv_kv_gather(&layout, cache.key.data(), cache.value.data(), 9, 40, key_out.data(),
                                   value_out.data(), cap)));
    bytes key_expected(cap, 0xC7), value_expected(cap, 0xC7);
    std::copy(expected.key.begin(), expected.key.end(), key_expected.begin());
    std::copy(expected.value.begin(), expected.value.end(), value_expected.begin());
    EXPECT_TRUE(key_out.holds(key_expected));
    EXPECT_TRUE(value_out.holds(value_expected));
}

TEST_P(Scatter, WritesTheNamedTokensAndNothingElse) {
    for (const mnnkv_layout& layout : shapes()) {
        SEEDED_DICE(random, 21);
        for (const token_range& r : ranges(layout.max_tokens, random)) {
            check_scatter(layout, r, random);
        }
    }
}

TEST_P(Move, IsACopyThroughElsewhere) {
    for (const mnnkv_layout& layout : shapes()) {
        SEEDED_DICE(random, 31);
        const std::uint32_t max = layout.max_tokens, pack = layout.h_pack;
        const struct {
            std::uint32_t src, dst, count;
        } steps[] = {
            {1, 0, max - 1},       {0, 1, max - 1},        // overlapping by all but one token, both ways
            {pack, 0, max - pack}, {0, pack, max - pack},  // by all but one pack
            {64, 0, max - 64},     {0, 64, max - 64},      // by whole value blocks
            {5, max, 0},           {3, 3, 20},             // nothing, and onto itself
            {2, 0, 1},             {max - 1, 0, 1},        // one token
        };
        for (const auto& s : steps) {
            check_move(layout, s.src, s.dst, s.count, random);
        }
        for (int i = 0; i < 6; ++i) {
            const std::uint32_t count = random.below(max + 1);
            const std::uint32_t src = random.below(max - count + 1);
            check_move(layout, src, random.below(max - count + 1), count, random);
        }
    }
}

TEST_P(Compact, KeepsTheNamedTokensInOrderAndTouchesNothingElse) {
    for (const mnnkv_layout& layout : shapes()) {
        SEEDED_DICE(random, 41);
        for (int i = 0; i < 16; ++i) {
            check_compaction(layout, random_eviction(layout.max_tokens, random), random);
        }
    }
}

TEST_P(Compact, HandlesTheEdgesOfAPlan) {
    for (const mnnkv_layout& layout : shapes()) {
        SEEDED_DICE(random, 42);
        const std::int32_t max = static_cast<std::int32_t>(layout.max_tokens);
        const std::uint32_t all = layout.max_tokens;
        check_compaction(layout, {0, all, {}}, random);                              // nothing stays
        check_compaction(layout, {all, all, {}}, random);                            // all below base
        check_compaction(layout, {0, all, {0, max}}, random);                        // all stays
        check_compaction(layout, {0, all, {1, max - 1}}, random);                    // the first goes
        check_compaction(layout, {0, all, {0, 0, 5, 0, max, 0}}, random);            // only empty pairs
        check_compaction(layout, {0, all, {0, 9, 9, 9, 18, 9}}, random);             // touching pairs
        check_compaction(layout, {7, all, {1, 1, 3, 1, 5, 1, max - 8, 1}}, random);  // single tokens
        check_compaction(layout, {0, 0, {}}, random);                                // an empty cache
    }
}

TEST_P(Zero, ClearsTheNamedTokensAndNothingElse) {
    for (const mnnkv_layout& layout : shapes()) {
        SEEDED_DICE(random, 51);
        for (const token_range& r : ranges(layout.max_tokens, random)) {
            check_clearing(layout, r, false, random);
        }
    }
}

TEST_P(Release, ClearsTheNamedTokensAndNothingElse) {
    for (const mnnkv_layout& layout : shapes()) {
        SEEDED_DICE(random, 61);
        for (const token_range& r : ranges(layout.max_tokens, random)) {
            check_clearing(layout, r, true, random);
        }
    }
}

#define FOR_EVERY_PACKING(suite) \
    INSTANTIATE_TEST_SUITE_P(EveryPacking, suite, testing::ValuesIn(all_packings()), name_of)

FOR_EVERY_PACKING(KeyValueIndex);
FOR_EVERY_PACKING(Gather);
FOR_EVERY_PACKING(Scatter);
FOR_EVERY_PACKING(Move);
FOR_EVERY_PACKING(Compact);
FOR_EVERY_PACKING(Zero);
FOR_EVERY_PACKING(Release);

/// Packs, blocks and element types that no MNN backend has.
mnnkv_layout any_layout(dice& random) {
    const std::uint32_t dtypes[] = {MNNKV_DTYPE_F16, MNNKV_DTYPE_BF16, MNNKV_DTYPE_F32};
    const std::uint32_t l_packs[] = {1, 1, 2, 3, 4, 5, 8}, h_packs[] = {1, 2, 3, 4, 7, 8, 16, 64};
    const pack_mode mode = {"any", dtypes[random.below(3)], random.below(50), l_packs[random.below(7)],
                            h_packs[random.below(8)]};
    const std::uint32_t max = random.between(1, 130);
    const std::uint32_t flash_blocks[] = {1, 64, max, 1000, random.between(1, 40)};
    mnnkv_layout layout =
        make_layout(mode, random.between(1, 3), random.between(1, 40), max, flash_blocks[random.below(5)]);
    layout.value_dtype = dtypes[random.below(3)];
    if (random.one_in(2)) {
        add_gaps(layout, random.below(40));
    }
    return layout;
}

TEST(AnyPacking, FollowsTheFormulasToo) {
    SEEDED_DICE(random, 71);
    for (int i = 0; i < 400 && !testing::Test::HasFailure(); ++i) {
        const mnnkv_layout layout = any_layout(random);
        SCOPED_TRACE(testing::Message() << "case " << i << ": " << layout.kv_heads << " heads x " << layout.head_dim
                                        << ", packs " << layout.l_pack << " " << layout.h_pack << ", block "
                                        << layout.flash_block << ", max " << layout.max_tokens);
        const std::uint32_t max = layout.max_tokens, count = random.below(max + 1);
        const std::uint32_t src = random.below(max - count + 1), dst = random.below(max - count + 1);
        check_sizes_and_places(layout);
        check_gather(layout, random_range(max, random), random);
        check_scatter(layout, random_range(max, random), random);
        check_move(layout, src, dst, count, random);
        check_compaction(layout, random_eviction(max, random), random);
        check_clearing(layout, random_range(max, random), random.one_in(2), random);
    }
}

}  // namespace
