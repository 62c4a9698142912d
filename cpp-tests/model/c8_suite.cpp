// K and V as int8: calibration, codes and back, what that costs, and packed caches as codes.

#include "c8.hpp"

namespace {

using namespace support;

TEST(C8, AWorkedExample) {
    // Two channels. Two batches of calibration, and a token beyond their range.
    floats min(2, 7), max(2, 7);
    ASSERT_TRUE(ok(mnnkv_c8_ranges_clear(2, min.data(), max.data())));
    const floats batches[] = {{0.5f, -4, 1.5f, 2}, {-0.25f, 3}};
    for (const floats& batch : batches) {
        const mnnkv_c8_shape shape = c8_shape(MNNKV_DTYPE_F32, MNNKV_ORDER_TOKEN_HEAD_DIM, 1, 2,
                                                     static_cast<std::uint32_t>(batch.size() / 2));
        ASSERT_TRUE(ok(mnnkv_c8_ranges_update(&shape, batch.data(), batch.size() * sizeof(float), min.data(),
                                                   max.data())));
    }
    EXPECT_EQ(min, (floats{-0.25f, -4}));
    EXPECT_EQ(max, (floats{1.5f, 3}));

    const struct {
        std::uint32_t symmetry;
        floats scale, offset;
        codes expected;
        floats restored;
    } cases[] = {
        {MNNKV_C8_SYMMETRIC, {0.011811024f, 0.031496063f}, {0, 0}, {59, -128}, {0.69685f, -4.0315f}},
        {MNNKV_C8_ASYMMETRIC, {0.006862745f, 0.02745098f}, {-92, 18}, {10, -128}, {0.7f, -4.00784f}},
    };
    for (const auto& c : cases) {
        c8_scales made{floats(2), floats(2)};
        ASSERT_TRUE(ok(mnnkv_c8_parameters(min.data(), max.data(), 2, c.symmetry, MNNKV_DTYPE_F32,
                                                made.scale.data(), made.offset.data())));
        EXPECT_EQ(made.scale, c.scale);
        EXPECT_EQ(made.offset, c.offset);
        const mnnkv_c8_scales scales = made.c();
        const floats token = {0.7f, -6};
        const mnnkv_c8_shape shape = c8_shape(MNNKV_DTYPE_F32, MNNKV_ORDER_HEAD_TOKEN_DIM, 1, 2, 1);
        codes out(2);
        ASSERT_TRUE(ok(mnnkv_c8_quantize(&shape, token.data(), 8, &scales, out.data(), 2)));
        EXPECT_EQ(out, c.expected);
        floats restored(2);
        ASSERT_TRUE(ok(mnnkv_c8_dequantize(&shape, out.data(), 2, &scales, restored.data(), 8)));
        EXPECT_NEAR(restored[0], c.restored[0], 1e-5);
        EXPECT_NEAR(restored[1], c.restored[1], 1e-4);

        mnnkv_c8_figures figures = mnnkv::make<mnnkv_c8_figures>();
        ASSERT_TRUE(ok(mnnkv_c8_measure(&shape, token.data(), 8, &scales, &figures)));
        const double lost[] = {double(token[0]) - restored[0], double(token[1]) - restored[1]};
        EXPECT_EQ(figures.worst_channel, 1u);
        EXPECT_EQ(figures.elements, 2u);
        EXPECT_EQ(figures.saturated, 1u);
        EXPECT_EQ(figures.max_abs_error, std::fabs(lost[1]));
        const double squares = lost[0] * lost[0] + lost[1] * lost[1];
        EXPECT_NEAR(figures.rms_error, std::sqrt(squares / 2), 1e-12);
        const auto length = [](const floats& v) { return std::sqrt(double(v[0]) * v[0] + double(v[1]) * v[1]); };
        const double norm = length(token), other = length(restored);
        EXPECT_NEAR(figures.relative_rms_error, std::sqrt(squares) / norm, 1e-12);
        const double product = double(token[0]) * restored[0] + double(token[1]) * restored[1];
        EXPECT_NEAR(figures.cosine_similarity, product / norm / other, 1e-12);
    }
}

TEST(C8, ScalesAreRoundedToTheTypeOfTheStatistics) {
    const float min = -1, max = 3;
    const float exact = 3.0f / 127.0f;
    for (const std::uint32_t dtype : {MNNKV_DTYPE_F16, MNNKV_DTYPE_BF16, MNNKV_DTYPE_F32}) {
        float scale = 0, offset = 7;
        ASSERT_TRUE(ok(mnnkv_c8_parameters(&min, &max, 1, MNNKV_C8_SYMMETRIC, dtype, &scale, &offset)));
        // 11 or 8 significant bits; the unit of a number from 2^-6 to 2^-5 is 2^-16 or 2^-13.
        const double unit = dtype == MNNKV_DTYPE_F16 ? 0x1p-16 : dtype == MNNKV_DTYPE_BF16 ? 0x1p-13 : 0x1p-29;
        EXPECT_EQ(scale, std::nearbyint(exact / unit) * unit);
        EXPECT_EQ(offset, 0.0f);
    }
}

TEST(C8, BothOrdersAndAllTypesHaveTheCodesOfTheFormula) {
    SEEDED_DICE(random, 901);
    constexpr std::uint32_t heads = 3, dims = 21, tokens = 9;
    for (const std::uint32_t dtype : {MNNKV_DTYPE_F16, MNNKV_DTYPE_BF16, MNNKV_DTYPE_F32}) {
        const std::size_t width = dtype == MNNKV_DTYPE_F32 ? 4 : 2, n = std::size_t{heads} * dims * tokens;
        // Any bits: infinities, NaN and denormals among them.
        const bytes by_head = random.noise(n * width);
        bytes by_token(n * width);
        for (std::size_t row = 0; row < heads * tokens; ++row) {
            const std::size_t to = row % tokens * heads + row / tokens;
            std::memcpy(&by_token[to * dims * width], &by_head[row * dims * width], dims * width);
        }
        const c8_scales made = random_scales(heads * dims, random);
        const mnnkv_c8_scales scales = made.c();
        const codes expected = codes_of(dtype, by_head, heads, dims, made);
        mnnkv_c8_shape shape = c8_shape(dtype, MNNKV_ORDER_HEAD_TOKEN_DIM, heads, dims, tokens);
        codes out(n + 3, 99);
        ASSERT_TRUE(ok(mnnkv_c8_quantize(&shape, by_head.data(), by_head.size(), &scales, out.data(), n + 3)));
        EXPECT_TRUE(same_codes(out.data(), expected));
        EXPECT_EQ(out[n], 99) << "no more than the shape's codes are written";
        shape.order = MNNKV_ORDER_TOKEN_HEAD_DIM;
        codes turned(n);
        ASSERT_TRUE(ok(mnnkv_c8_quantize(&shape, by_token.data(), by_token.size(), &scales, turned.data(), n)));
        for (std::size_t row = 0; row < heads * tokens; ++row) {
            const std::size_t to = row % tokens * heads + row / tokens;
            EXPECT_EQ(std::memcmp(&turned[to * dims], &out[row * dims], dims), 0) << "row " << row;
        }
        // Back: (code - offset) * scale in float; what is rounded again is at most half a unit off.
        guarded values(n * width, 1);
        ASSERT_TRUE(ok(mnnkv_c8_dequantize(&shape, turned.data(), n, &scales, values.data(), values.size())));
        for (std::size_t i = 0; i < n; ++i) {
            const std::size_t channel = i % (heads * dims);
            const double exact = (turned[i] - made.offset[channel]) * made.scale[channel];
            const double slack = dtype == MNNKV_DTYPE_F16 ? 0x1p-11 : dtype == MNNKV_DTYPE_BF16 ? 0x1p-8 : 0;
            EXPECT_LE(std::fabs(number_at(dtype, values.data(), i) - exact), slack * std::fabs(exact));
        }
    }
}

/// Everything, nothing, one token, and some ranges at random.
struct token_range {
    std::uint32_t begin, count;
};

std::vector<token_range> some_ranges(std::uint32_t max, dice& random) {
    std::vector<token_range> out = {{0, max}, {max, 0}, {max - 1, 1}};
    for (int i = 0; i < 3; ++i) {
        const std::uint32_t begin = random.below(max);
        out.push_back({begin, random.between(1, max - begin)});
    }
    return out;
}

TEST(C8, PackedCachesAreGatheredAsCodes) {
    SEEDED_DICE(random, 911);
    for (const pack_mode& mode : pack_modes) {
        SCOPED_TRACE(mode.name);
        const mnnkv_layout layout = make_layout(mode, 3, 21, 150, 64);
        const std::size_t channels = 3 * 21;
        const c8_scales key_made = random_scales(channels, random), value_made = random_scales(channels, random);
        const mnnkv_c8_scales key_scales = key_made.c(), value_scales = value_made.c();
        for (const token_range& r : some_ranges(layout.max_tokens, random)) {
            noisy_cache cache(layout, random);
            const rows dense = cache.get(tokens_from(r.begin, r.count));
            const std::size_t n = channels * r.count;
            codes key_codes(n + 5, 99), value_codes(n + 5, 99);
            ASSERT_TRUE(ok(mnnkv_c8_gather(&layout, cache.key.data(), cache.value.data(), r.begin, r.count,
                                                &key_scales, &value_scales, key_codes.data(), value_codes.data(),
                                                n + 5)));
            EXPECT_TRUE(same_codes(key_codes.data(), codes_of(mode.dtype, dense.key, 3, 21, key_made)));
            EXPECT_TRUE(same_codes(value_codes.data(), codes_of(mode.dtype, dense.value, 3, 21, value_made)));
            EXPECT_TRUE(key_codes[n] == 99 && value_codes[n] == 99);
            EXPECT_TRUE(cache.untouched());
        }
    }
}

TEST(C8, CodesAreScatteredIntoTheNamedTokensAndNothingElse) {
    SEEDED_DICE(random, 912);
    for (const pack_mode& mode : pack_modes) {
        SCOPED_TRACE(mode.name);
        mnnkv_layout layout = make_layout(mode, 3, 21, 150, 64);
        // K and V of different types.
        layout.key_dtype = MNNKV_DTYPE_F32;
        const std::size_t channels = 3 * 21;
        const c8_scales key_made = random_scales(channels, random), value_made = random_scales(channels, random);
        const mnnkv_c8_scales key_scales = key_made.c(), value_scales = value_made.c();
        for (const token_range& r : some_ranges(layout.max_tokens, random)) {
            noisy_cache cache(layout, random);
            const std::size_t n = channels * r.count;
            const bytes noise = random.noise(2 * n);
            const std::int8_t* const key_codes = reinterpret_cast<const std::int8_t*>(noise.data());
            const std::int8_t* const value_codes = key_codes + n;
            rows restored{bytes(cache.model.key_row_bytes(r.count)), bytes(cache.model.value_row_bytes(r.count))};
            const auto restore = [&](std::uint32_t dtype, const std::int8_t* from, const mnnkv_c8_scales& scales,
                                     bytes& to) {
                const mnnkv_c8_shape shape = c8_shape(dtype, MNNKV_ORDER_HEAD_TOKEN_DIM, 3, 21, r.count);
                ASSERT_TRUE(ok(mnnkv_c8_dequantize(&shape, from, n, &scales, to.data(), to.size())));
            };
            restore(layout.key_dtype, key_codes, key_scales, restored.key);
            restore(layout.value_dtype, value_codes, value_scales, restored.value);
            bytes key = cache.key.contents(), value = cache.value.contents();
            cache.model.put(key.data(), value.data(), tokens_from(r.begin, r.count), restored);
            ASSERT_TRUE(ok(mnnkv_c8_scatter(&layout, key_codes, value_codes, n, &key_scales, &value_scales,
                                                 r.begin, r.count, cache.key.data(), cache.value.data())));
            EXPECT_TRUE(cache.holds(key, value));
        }
    }
}

TEST(C8, NothingToDoNeedsNoBuffers) {
    const mnnkv_c8_shape shape = c8_shape(MNNKV_DTYPE_F16, MNNKV_ORDER_TOKEN_HEAD_DIM, 1, 2, 0);
    const c8_scales made{{1, 1}, {0, 0}};
    const mnnkv_c8_scales scales = made.c();
    EXPECT_TRUE(ok(mnnkv_c8_quantize(&shape, nullptr, 0, &scales, nullptr, 0)));
    EXPECT_TRUE(ok(mnnkv_c8_dequantize(&shape, nullptr, 0, &scales, nullptr, 0)));
    EXPECT_TRUE(ok(mnnkv_c8_ranges_clear(0, nullptr, nullptr)));
    EXPECT_TRUE(ok(mnnkv_c8_parameters(nullptr, nullptr, 0, MNNKV_C8_SYMMETRIC, MNNKV_DTYPE_F32, nullptr,
                                            nullptr)));
    floats min = {-1, -2}, max = {1, 2};
    EXPECT_TRUE(ok(mnnkv_c8_ranges_update(&shape, nullptr, 0, min.data(), max.data())));
    EXPECT_EQ(min, (floats{-1, -2}));
    mnnkv_c8_figures figures = mnnkv::make<mnnkv_c8_figures>();
    EXPECT_TRUE(ok(mnnkv_c8_measure(&shape, nullptr, 0, &scales, &figures)));
    EXPECT_EQ(figures.elements, 0u);
    EXPECT_EQ(figures.cosine_similarity, 1.0);
}

}  // namespace
