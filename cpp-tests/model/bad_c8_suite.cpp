// Everything a caller can get wrong about int8 caches. Refused calls leave every output and every cache as they were.

#include "c8.hpp"
#include "refusal.hpp"

namespace {

using namespace support;

constexpr float nan = NAN, infinity = INFINITY;

/// 4 tokens of 2 heads of 3 dims in f16, a packed cache of 20 such tokens, and every kind of output.
class BadC8Input : public testing::Test {
protected:
    static constexpr std::uint32_t heads = 2, dims = 3, tokens = 4, channels = heads * dims;
    static constexpr std::size_t n = channels * tokens, len = 2 * n;

    BadC8Input()
        : random_(921),
          layout_(make_layout({"small", MNNKV_DTYPE_F16, 12, 2, 4}, heads, dims, 20, 6)),
          cache_(layout_, random_),
          shape_(c8_shape(MNNKV_DTYPE_F16, MNNKV_ORDER_TOKEN_HEAD_DIM, heads, dims, tokens)),
          good_{floats(channels, 0.5f), floats(channels, 3.0f)},
          scales_(good_.c()),
          zeros_(len),
          codes_(n),
          more_codes_(n),
          values_(len),
          min_(bytes_of(floats(channels, -1))),
          max_(bytes_of(floats(channels, 1))),
          scale_(channels * sizeof(float)),
          offset_(channels * sizeof(float)) {}

    static bytes bytes_of(const floats& numbers) {
        bytes out(numbers.size() * sizeof(float));
        std::memcpy(out.data(), numbers.data(), out.size());
        return out;
    }

    void expect_all_refused(const std::vector<bad_call>& calls) {
        expect_refused(calls, cache_, codes_, more_codes_, values_, min_, max_, scale_, offset_, figures_);
    }

    static float* as_floats(guarded& buffer) { return reinterpret_cast<float*>(buffer.data()); }
    static std::int8_t* as_codes(guarded& buffer) { return reinterpret_cast<std::int8_t*>(buffer.data()); }

    mnnkv_status update(const mnnkv_c8_shape* shape, const void* values, std::size_t size) {
        return mnnkv_c8_ranges_update(shape, values, size, as_floats(min_), as_floats(max_));
    }
    mnnkv_status quantize(const mnnkv_c8_shape* shape, const void* values, std::size_t size,
                          const mnnkv_c8_scales* scales, std::size_t cap) {
        return mnnkv_c8_quantize(shape, values, size, scales, as_codes(codes_), cap);
    }
    mnnkv_status dequantize(const mnnkv_c8_shape* shape, const std::int8_t* codes, std::size_t size,
                            const mnnkv_c8_scales* scales, std::size_t cap) {
        return mnnkv_c8_dequantize(shape, codes, size, scales, values_.data(), cap);
    }
    mnnkv_status gather(const mnnkv_layout* layout, const void* key, const void* value, std::uint32_t begin,
                        const mnnkv_c8_scales* key_scales, const mnnkv_c8_scales* value_scales,
                        std::size_t cap) {
        return mnnkv_c8_gather(layout, key, value, begin, tokens, key_scales, value_scales, as_codes(codes_),
                                    as_codes(more_codes_), cap);
    }
    mnnkv_status scatter(const mnnkv_layout* layout, const std::int8_t* key_codes, const std::int8_t* value_codes,
                         std::size_t size, const mnnkv_c8_scales* key_scales,
                         const mnnkv_c8_scales* value_scales, std::uint32_t begin) {
        return mnnkv_c8_scatter(layout, key_codes, value_codes, size, key_scales, value_scales, begin, tokens,
                                     cache_.key.data(), cache_.value.data());
    }
    mnnkv_status parameters(const float* min, const float* max, std::uint32_t symmetry, std::uint32_t dtype) {
        return mnnkv_c8_parameters(min, max, channels, symmetry, dtype, as_floats(scale_), as_floats(offset_));
    }

    /// No function takes this shape.
    void expect_shape_refused(mnnkv_status expected, const std::string& word, const mnnkv_c8_shape* shape) {
        const std::int8_t* const some = reinterpret_cast<const std::int8_t*>(zeros_.data());
        expect_all_refused({
            {expected, word, [=] { return update(shape, zeros_.data(), len); }},
            {expected, word, [=] { return quantize(shape, zeros_.data(), len, &scales_, n); }},
            {expected, word, [=] { return dequantize(shape, some, n, &scales_, len); }},
            {expected, word,
             [=] { return mnnkv_c8_measure(shape, zeros_.data(), len, &scales_, figures_.get()); }},
        });
    }

    /// No function takes these scales.
    void expect_scales_refused(mnnkv_status expected, const std::string& word, const mnnkv_c8_scales* scales) {
        const std::int8_t* const some = reinterpret_cast<const std::int8_t*>(zeros_.data());
        const std::uint8_t *key = cache_.key.data(), *value = cache_.value.data();
        const mnnkv_c8_scales* const good = &scales_;
        expect_all_refused({
            {expected, word, [=] { return quantize(&shape_, zeros_.data(), len, scales, n); }},
            {expected, word, [=] { return dequantize(&shape_, some, n, scales, len); }},
            {expected, word,
             [=] { return mnnkv_c8_measure(&shape_, zeros_.data(), len, scales, figures_.get()); }},
            {expected, word, [=] { return gather(&layout_, key, value, 0, scales, good, n); }},
            {expected, word, [=] { return gather(&layout_, key, value, 0, good, scales, n); }},
            {expected, word, [=] { return scatter(&layout_, some, some, n, scales, good, 0); }},
            {expected, word, [=] { return scatter(&layout_, some, some, n, good, scales, 0); }},
        });
    }

    dice random_;
    mnnkv_layout layout_;
    noisy_cache cache_;
    mnnkv_c8_shape shape_;
    c8_scales good_;
    mnnkv_c8_scales scales_;
    bytes zeros_;
    guarded codes_, more_codes_, values_, min_, max_, scale_, offset_;
    slot<mnnkv_c8_figures> figures_;
};

TEST_F(BadC8Input, NullPointersAreRefusedByName) {
    expect_shape_refused(bad, "shape", nullptr);
    expect_scales_refused(bad, "scales", nullptr);
    mnnkv_c8_scales without = scales_;
    without.scale = nullptr;
    expect_scales_refused(bad, "scales->scale", &without);
    without = scales_;
    without.offset = nullptr;
    expect_scales_refused(bad, "scales->offset", &without);
    const std::int8_t* const some = reinterpret_cast<const std::int8_t*>(zeros_.data());
    const std::uint8_t *key = cache_.key.data(), *value = cache_.value.data();
    float* const range = as_floats(min_);
    expect_all_refused({
        {bad, "min", [&] { return mnnkv_c8_ranges_clear(channels, nullptr, range); }},
        {bad, "max", [&] { return mnnkv_c8_ranges_clear(channels, range, nullptr); }},
        {bad, "values", [&] { return update(&shape_, nullptr, len); }},
        {bad, "min", [&] { return mnnkv_c8_ranges_update(&shape_, zeros_.data(), len, nullptr, range); }},
        {bad, "max", [&] { return mnnkv_c8_ranges_update(&shape_, zeros_.data(), len, range, nullptr); }},
        {bad, "min", [&] { return parameters(nullptr, range, 1, MNNKV_DTYPE_F32); }},
        {bad, "max", [&] { return parameters(range, nullptr, 1, MNNKV_DTYPE_F32); }},
        {bad, "scale",
         [&] { return mnnkv_c8_parameters(range, range, channels, 1, 3, nullptr, as_floats(offset_)); }},
        {bad, "offset",
         [&] { return mnnkv_c8_parameters(range, range, channels, 1, 3, as_floats(scale_), nullptr); }},
        {bad, "values", [&] { return quantize(&shape_, nullptr, len, &scales_, n); }},
        {bad, "codes",
         [&] { return mnnkv_c8_quantize(&shape_, zeros_.data(), len, &scales_, nullptr, n); }},
        {bad, "codes", [&] { return dequantize(&shape_, nullptr, n, &scales_, len); }},
        {bad, "values", [&] { return mnnkv_c8_dequantize(&shape_, some, n, &scales_, nullptr, len); }},
        {bad, "figures", [&] { return mnnkv_c8_measure(&shape_, zeros_.data(), len, &scales_, nullptr); }},
        {bad, "layout", [&] { return gather(nullptr, key, value, 0, &scales_, &scales_, n); }},
        {bad, "key", [&] { return gather(&layout_, nullptr, value, 0, &scales_, &scales_, n); }},
        {bad, "value", [&] { return gather(&layout_, key, nullptr, 0, &scales_, &scales_, n); }},
        {bad, "layout", [&] { return scatter(nullptr, some, some, n, &scales_, &scales_, 0); }},
        {bad, "key_codes", [&] { return scatter(&layout_, nullptr, some, n, &scales_, &scales_, 0); }},
        {bad, "value_codes", [&] { return scatter(&layout_, some, nullptr, n, &scales_, &scales_, 0); }},
    });
}

TEST_F(BadC8Input, ShapesThatCannotBeAreRefused) {
    const auto refused = [&](mnnkv_status expected, const char* word, void (*change)(mnnkv_c8_shape&)) {
        SCOPED_TRACE(word);
        mnnkv_c8_shape shape = shape_;
        change(shape);
        expect_shape_refused(expected, word, &shape);
    };
    refused(bad, "dtype", [](mnnkv_c8_shape& s) { s.dtype = 0; });
    refused(bad, "INT8", [](mnnkv_c8_shape& s) { s.dtype = MNNKV_DTYPE_INT8; });
    refused(MNNKV_UNSUPPORTED, "dtype", [](mnnkv_c8_shape& s) { s.dtype = MNNKV_DTYPE_TQ4; });
    refused(bad, "order", [](mnnkv_c8_shape& s) { s.order = 0; });
    refused(bad, "order", [](mnnkv_c8_shape& s) { s.order = 3; });
    refused(bad, "kv_heads", [](mnnkv_c8_shape& s) { s.kv_heads = 0; });
    refused(bad, "head_dim", [](mnnkv_c8_shape& s) { s.head_dim = 0; });
    refused(bad, "overflow", [](mnnkv_c8_shape& s) { s.kv_heads = s.head_dim = s.tokens = UINT32_MAX; });
    refused(bad, "reserved[0]", [](mnnkv_c8_shape& s) { s.reserved[0] = 1; });
    refused(bad, "reserved[1]", [](mnnkv_c8_shape& s) { s.reserved[1] = 1; });
    refused(bad, "struct_size", [](mnnkv_c8_shape& s) { s.struct_size = 0; });
    refused(bad, "struct_size", [](mnnkv_c8_shape& s) { s.struct_size = sizeof s - 1; });
}

TEST_F(BadC8Input, ScalesThatCannotBeAreRefusedByChannel) {
    for (const float scale : {0.0f, -1.0f, nan, infinity, 1e-40f}) {
        floats numbers(channels, 1.0f);
        numbers[4] = scale;
        mnnkv_c8_scales given = scales_;
        given.scale = numbers.data();
        expect_scales_refused(bad, "the scale of channel 4", &given);
    }
    for (const float offset : {0.5f, 128.0f, -129.0f, nan, infinity}) {
        floats numbers(channels, 1.0f);
        numbers[5] = offset;
        mnnkv_c8_scales given = scales_;
        given.offset = numbers.data();
        expect_scales_refused(bad, "the offset of channel 5", &given);
    }
    const auto refused = [&](const char* word, void (*change)(mnnkv_c8_scales&)) {
        SCOPED_TRACE(word);
        mnnkv_c8_scales given = scales_;
        change(given);
        expect_scales_refused(bad, word, &given);
    };
    refused("channels", [](mnnkv_c8_scales& s) { s.channels = channels - 1; });
    refused("channels", [](mnnkv_c8_scales& s) { s.channels = 1; });
    refused("reserved[1]", [](mnnkv_c8_scales& s) { s.reserved[1] = 1; });
    refused("struct_size", [](mnnkv_c8_scales& s) { s.struct_size = sizeof s - 1; });
}

TEST_F(BadC8Input, LengthsAndRangesAreChecked) {
    const std::int8_t* const some = reinterpret_cast<const std::int8_t*>(zeros_.data());
    const std::uint8_t *key = cache_.key.data(), *value = cache_.value.data();
    expect_all_refused({
        {bad, "47 bytes", [&] { return update(&shape_, zeros_.data(), len - 1); }},
        {bad, "47 bytes", [&] { return quantize(&shape_, zeros_.data(), len - 1, &scales_, n); }},
        {MNNKV_BUFFER_TOO_SMALL, "24 needed",
         [&] { return quantize(&shape_, zeros_.data(), len, &scales_, n - 1); }},
        {bad, "23 codes", [&] { return dequantize(&shape_, some, n - 1, &scales_, len); }},
        {MNNKV_BUFFER_TOO_SMALL, "48 needed", [&] { return dequantize(&shape_, some, n, &scales_, len - 1); }},
        {bad, "47 bytes",
         [&] { return mnnkv_c8_measure(&shape_, zeros_.data(), len - 1, &scales_, figures_.get()); }},
        {MNNKV_BUFFER_TOO_SMALL, "24 needed",
         [&] { return gather(&layout_, key, value, 0, &scales_, &scales_, n - 1); }},
        {bad, "max_tokens", [&] { return gather(&layout_, key, value, 17, &scales_, &scales_, n); }},
        {bad, "len_each", [&] { return scatter(&layout_, some, some, n - 1, &scales_, &scales_, 0); }},
        {bad, "len_each", [&] { return scatter(&layout_, some, some, n + 1, &scales_, &scales_, 0); }},
        {bad, "max_tokens", [&] { return scatter(&layout_, some, some, n, &scales_, &scales_, 17); }},
    });
}

TEST_F(BadC8Input, NumbersThatAreNotFiniteAreRefusedWithTheirPlace) {
    bytes values(len);
    const std::uint16_t not_a_number = 0x7e00;
    std::memcpy(&values[2 * (2 * channels + 4)], &not_a_number, 2);
    expect_all_refused({
        {bad, "token 2, channel 4 (head 1, dim 1)", [&] { return update(&shape_, values.data(), len); }},
        {bad, "token 2, channel 4 (head 1, dim 1)",
         [&] { return mnnkv_c8_measure(&shape_, values.data(), len, &scales_, figures_.get()); }},
    });
    EXPECT_TRUE(ok(quantize(&shape_, values.data(), len, &scales_, n))) << "it gets the code of 0";
    EXPECT_EQ(as_codes(codes_)[2 * channels + 4], 3);
}

TEST_F(BadC8Input, QuantisedCachesAreRefused) {
    const std::int8_t* const some = reinterpret_cast<const std::int8_t*>(zeros_.data());
    const std::uint8_t *key = cache_.key.data(), *value = cache_.value.data();
    mnnkv_int8 unit = mnnkv::make<mnnkv_int8>();
    unit.l_pack = 4;
    unit.h_pack = 8;
    mnnkv_layout int8 = layout_, tq4 = layout_;
    int8.key_dtype = MNNKV_DTYPE_INT8;
    int8.int8 = &unit;
    tq4.key_dtype = MNNKV_DTYPE_TQ4;
    tq4.head_dim = 32;
    expect_all_refused({
        {MNNKV_UNSUPPORTED, "layout->key_dtype is INT8", [&] { return gather(&int8, key, value, 0, &scales_, &scales_, n); }},
        {MNNKV_UNSUPPORTED, "layout->key_dtype is INT8", [&] { return scatter(&int8, some, some, n, &scales_, &scales_, 0); }},
        {MNNKV_UNSUPPORTED, "layout->key_dtype is TQ4", [&] { return gather(&tq4, key, value, 0, &scales_, &scales_, n); }},
    });
}

TEST_F(BadC8Input, ParametersNeedRangesThatWereObserved) {
    const float* const low = as_floats(min_);
    const float* const high = as_floats(max_);
    floats min(channels), max(channels), wide(channels, 1e7f);
    ASSERT_TRUE(ok(mnnkv_c8_ranges_clear(channels, min.data(), max.data())));
    floats reversed(channels, -2);
    expect_all_refused({
        {bad, "channel 0: nothing", [&] { return parameters(min.data(), max.data(), 1, MNNKV_DTYPE_F32); }},
        {bad, "channel 0", [&] { return parameters(low, reversed.data(), 1, MNNKV_DTYPE_F32); }},
        {bad, "F16", [&] { return parameters(low, wide.data(), 1, MNNKV_DTYPE_F16); }},
        {bad, "symmetry", [&] { return parameters(low, high, 0, MNNKV_DTYPE_F32); }},
        {bad, "symmetry", [&] { return parameters(low, high, 3, MNNKV_DTYPE_F32); }},
        {bad, "dtype", [&] { return parameters(low, high, 1, 0); }},
        {bad, "INT8", [&] { return parameters(low, high, 1, MNNKV_DTYPE_INT8); }},
    });
}

TEST_F(BadC8Input, OverlapsAreRefused) {
    const std::int8_t* const some = reinterpret_cast<const std::int8_t*>(zeros_.data());
    std::uint8_t *key = cache_.key.data(), *value = cache_.value.data();
    std::int8_t* const key_codes = as_codes(codes_);
    mnnkv_c8_scales inside = scales_;
    inside.offset = as_floats(offset_);
    std::memset(offset_.data(), 0, offset_.size());
    const auto overlap = [](std::function<mnnkv_status()> run) { return bad_call{bad, "overlap", run}; };
    const std::vector<bad_call> calls = {
        overlap([&] { return mnnkv_c8_ranges_clear(channels, as_floats(min_), as_floats(min_) + 1); }),
        overlap([&] {
            return mnnkv_c8_ranges_update(&shape_, min_.data(), len, as_floats(min_), as_floats(max_));
        }),
        overlap([&] {
            return mnnkv_c8_parameters(as_floats(min_), as_floats(max_), channels, 1, 3, as_floats(min_),
                                            as_floats(offset_));
        }),
        overlap([&] {
            return mnnkv_c8_parameters(as_floats(min_), as_floats(max_), channels, 1, 3, as_floats(scale_),
                                            as_floats(scale_) + 5);
        }),
        overlap([&] { return quantize(&shape_, codes_.data(), len, &scales_, n); }),
        overlap([&] {
            return mnnkv_c8_quantize(&shape_, zeros_.data(), len, &inside, as_codes(offset_), n);
        }),
        overlap([&] { return dequantize(&shape_, as_codes(values_) + len - 1, n, &scales_, len); }),
        overlap([&] {
            return mnnkv_c8_dequantize(&shape_, some, n, &inside, offset_.data() - len + 1, len);
        }),
        overlap([&] {
            return mnnkv_c8_gather(&layout_, key, value, 0, tokens, &scales_, &scales_, key_codes, key_codes + 1,
                                        n);
        }),
        overlap([&] {
            return mnnkv_c8_gather(&layout_, key, value, 0, tokens, &scales_, &scales_,
                                        reinterpret_cast<std::int8_t*>(value), key_codes, n);
        }),
        overlap([&] { return scatter(&layout_, reinterpret_cast<std::int8_t*>(key), some, n, &scales_, &scales_, 0); }),
        overlap([&] {
            return mnnkv_c8_scatter(&layout_, some, some, n, &scales_, &scales_, 0, tokens, key, key);
        }),
    };
    expect_refused(calls, cache_, codes_, more_codes_, values_, min_, max_, scale_, figures_);
}

TEST_F(BadC8Input, StructsOfNewerHeadersAreTakenWhileWhatIsUnknownIsZero) {
    struct {
        mnnkv_c8_shape known;
        std::uint32_t unknown;
    } shape = {shape_, 0};
    shape.known.struct_size = sizeof shape;
    EXPECT_TRUE(ok(quantize(&shape.known, zeros_.data(), len, &scales_, n)));
    shape.unknown = 1;
    EXPECT_TRUE(answers(quantize(&shape.known, zeros_.data(), len, &scales_, n), MNNKV_UNSUPPORTED));
    EXPECT_EQ(sizeof(mnnkv_c8_shape), 32u);
    EXPECT_EQ(sizeof(mnnkv_c8_scales), 16u + 2 * sizeof(void*));
    EXPECT_EQ(sizeof(mnnkv_c8_figures), 64u);
    EXPECT_EQ(offsetof(mnnkv_c8_figures, cosine_similarity), 48u);
}

}  // namespace
