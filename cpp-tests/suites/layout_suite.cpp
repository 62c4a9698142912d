// Every operation on a packed cache, in every packing of MNN and in random ones, against the oracle.

#include "layout_checks.hpp"

namespace {

using namespace support;

/// Puts `gap` elements between one head's K and the next, and three times as many for V.
void add_gaps(mnnkv_layout& layout, std::uint32_t gap) {
    const packed_model model(layout);
    layout.key_head_stride = model.key_head_bytes() + gap * model.key_element();
    layout.value_head_stride = model.value_head_bytes() + 3 * gap * model.value_element();
}

void check_everything(const mnnkv_layout& layout, dice& random) {
    SCOPED_TRACE(testing::Message() << layout.kv_heads << " heads x " << layout.head_dim << ", packs " << layout.l_pack
                                    << " " << layout.h_pack << ", block " << layout.flash_block << ", max "
                                    << layout.max_tokens);
    const std::uint32_t max = layout.max_tokens, count = random.below(max + 1);
    const std::uint32_t src = random.below(max - count + 1), dst = random.below(max - count + 1);
    check_sizes_of(layout);
    check_gather(layout, random_range(max, random), random);
    check_scatter(layout, random_range(max, random), random);
    check_move(layout, src, dst, count, random);
    check_compaction(layout, random_eviction(max, random), random);
    check_clearing(layout, random_range(max, random), false, random);
    check_clearing(layout, random_range(max, random), true, random);
}

TEST(PackedCache, FollowsTheFormulasInEveryPackingOfMnn) {
    SEEDED_DICE(random, 11);
    for (const pack_mode& mode : pack_modes) {
        for (const bool flash : {true, false}) {
            SCOPED_TRACE(std::string(mode.name) + (flash ? " flash" : " no flash"));
            const auto shape = [&](std::uint32_t heads, std::uint32_t dims, std::uint32_t max) {
                return make_layout(mode, heads, dims, max, flash ? 64 : max);
            };
            // Everything a multiple of the packs; nothing, with gaps between the heads; one head only.
            mnnkv_layout odd = shape(3, 21, 150);
            add_gaps(odd, 13);
            for (const mnnkv_layout& layout : {shape(2, 64, 192), odd, shape(1, 80, 70)}) {
                check_everything(layout, random);
                const std::uint32_t all = layout.max_tokens;
                const std::int32_t max = static_cast<std::int32_t>(all);
                check_gather(layout, {0, all}, random);
                check_gather(layout, {all, 0}, random);
                check_move(layout, 1, 0, all - 1, random);
                check_move(layout, 0, layout.h_pack, all - layout.h_pack, random);
                check_compaction(layout, {0, all, {}}, random);
                check_compaction(layout, {7, all, {1, 1, 3, 1, 5, 1, max - 8, 1}}, random);
            }
        }
    }
}

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

TEST(PackedCache, FollowsTheFormulasInAnyPacking) {
    SEEDED_DICE(random, 71);
    for (int i = 0; i < 400 && !testing::Test::HasFailure(); ++i) {
        SCOPED_TRACE(i);
        check_everything(any_layout(random), random);
    }
}

}  // namespace
