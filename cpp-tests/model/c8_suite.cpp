// K and V as int8 codes: values by the formula in double, and everything that a caller can get wrong.

#include "model_files.hpp"
#include "refusal.hpp"

#include <cmath>

namespace {

using namespace support;

using floats = std::vector<float>;
using codes = std::vector<std::int8_t>;

mnnkv_c8_shape shape_of(std::uint32_t dtype, std::uint32_t order, std::uint32_t kv_heads, std::uint32_t head_dim,
                        std::uint32_t tokens) {
    mnnkv_c8_shape shape = mnnkv::make<mnnkv_c8_shape>();
    shape.dtype = dtype;
    shape.order = order;
    shape.kv_heads = kv_heads;
    shape.head_dim = head_dim;
    shape.tokens = tokens;
    return shape;
}

TEST(C8, BothOrdersHaveTheValuesOfTheFormula) {
    SEEDED_DICE(random, 901);
    constexpr std::uint32_t heads = 3, dims = 21, tokens = 9, channels = heads * dims;
    const bytes noise = random.noise(channels * tokens);
    const std::int8_t* const coded = reinterpret_cast<const std::int8_t*>(noise.data());
    floats scale, offset;
    for (std::uint32_t i = 0; i < channels; ++i) {
        scale.push_back(std::ldexp(0.5f + random.unit(), static_cast<int>(random.below(12)) - 8));
        offset.push_back(random.one_in(2) ? 0.0f : static_cast<float>(random.below(256)) - 128.0f);
    }
    for (const std::uint32_t order : {MNNKV_ORDER_HEAD_TOKEN_DIM, MNNKV_ORDER_TOKEN_HEAD_DIM}) {
        const mnnkv_c8_shape shape = shape_of(MNNKV_DTYPE_F32, order, heads, dims, tokens);
        guarded values(noise.size() * 4, 1);
        ASSERT_TRUE(ok(mnnkv_c8_dequantize(&shape, coded, scale.data(), offset.data(), values.data(), values.size())));
        bytes expected(values.size());
        for (std::size_t i = 0; i < noise.size(); ++i) {
            const bool by_head = order == MNNKV_ORDER_HEAD_TOKEN_DIM;
            const std::size_t channel = by_head ? i / (tokens * dims) * dims + i % dims : i % channels;
            const float value = static_cast<float>((double(coded[i]) - offset[channel]) * scale[channel]);
            std::memcpy(&expected[4 * i], &value, 4);
        }
        EXPECT_TRUE(values.holds(expected)) << order;
    }
    const mnnkv_c8_shape nothing = shape_of(MNNKV_DTYPE_F16, MNNKV_ORDER_TOKEN_HEAD_DIM, heads, dims, 0);
    EXPECT_TRUE(ok(mnnkv_c8_dequantize(&nothing, nullptr, scale.data(), offset.data(), nullptr, 0)));
}

TEST(C8, BadInputIsRefusedByNameAndWritesNothing) {
    const mnnkv_c8_shape good = shape_of(MNNKV_DTYPE_F16, MNNKV_ORDER_TOKEN_HEAD_DIM, 2, 3, 4);
    const codes coded(24, 1);
    const floats ones(6, 1.0f), zeros(6, 0.0f);
    guarded values(48);
    const auto call = [&](const mnnkv_c8_shape& shape, const floats& scale, const floats& offset, std::size_t cap) {
        return mnnkv_c8_dequantize(&shape, coded.data(), scale.data(), offset.data(), values.data(), cap);
    };
    const auto with = [&](void (*change)(mnnkv_c8_shape&)) {
        mnnkv_c8_shape shape = good;
        change(shape);
        return [=, &call] { return call(shape, ones, zeros, 48); };
    };
    const auto scaled = [&](float scale, float offset) {
        floats scales(6, 1.0f), offsets(6, 0.0f);
        scales[4] = scale;
        offsets[4] = offset;
        return [=, &call] { return call(good, scales, offsets, 48); };
    };
    const auto raw = [&](const mnnkv_c8_shape* shape, const std::int8_t* from, const float* scale, const float* offset,
                         void* to) {
        return [=] { return mnnkv_c8_dequantize(shape, from, scale, offset, to, 48); };
    };
    void* const out = values.data();
    expect_refused(
        {
            {bad, "shape is NULL", raw(nullptr, coded.data(), ones.data(), zeros.data(), out)},
            {bad, "codes is NULL", raw(&good, nullptr, ones.data(), zeros.data(), out)},
            {bad, "scale is NULL", raw(&good, coded.data(), nullptr, zeros.data(), out)},
            {bad, "offset is NULL", raw(&good, coded.data(), ones.data(), nullptr, out)},
            {bad, "values is NULL", raw(&good, coded.data(), ones.data(), zeros.data(), nullptr)},
            {bad, "overlap", raw(&good, static_cast<std::int8_t*>(out) + 47, ones.data(), zeros.data(), out)},
            {bad, "overlap", raw(&good, coded.data(), static_cast<float*>(out), zeros.data(), out)},
            {bad, "overlap", raw(&good, coded.data(), ones.data(), static_cast<float*>(out), out)},
            {bad, "dtype", with([](mnnkv_c8_shape& s) { s.dtype = 0; })},
            {bad, "INT8", with([](mnnkv_c8_shape& s) { s.dtype = MNNKV_DTYPE_INT8; })},
            {MNNKV_UNSUPPORTED, "dtype", with([](mnnkv_c8_shape& s) { s.dtype = MNNKV_DTYPE_TQ4; })},
            {bad, "order", with([](mnnkv_c8_shape& s) { s.order = 3; })},
            {bad, "kv_heads", with([](mnnkv_c8_shape& s) { s.kv_heads = 0; })},
            {bad, "overflow", with([](mnnkv_c8_shape& s) { s.kv_heads = s.head_dim = s.tokens = UINT32_MAX; })},
            {bad, "reserved[1]", with([](mnnkv_c8_shape& s) { s.reserved[1] = 1; })},
            {bad, "struct_size", with([](mnnkv_c8_shape& s) { s.struct_size = sizeof s - 1; })},
            {bad, "the scale of channel 4", scaled(0.0f, 0.0f)},
            {bad, "the offset of channel 4", scaled(1.0f, 0.5f)},
            {MNNKV_BUFFER_TOO_SMALL, "48 needed", [&] { return call(good, ones, zeros, 47); }},
        },
        values);
}

}  // namespace
