// struct_size and reserved fields of the structs for files that come with a model.

#include "model_files.hpp"
#include "packed_model.hpp"
#include "struct_sizes.hpp"

namespace {

using namespace support;

/// Both: a struct that a call reads, in all sizes and with reserved fields set.
template <class T, class Call>
void check_input(const T& good, Call call) {
    check_sizes(good, call);
    check_reserved(good, call);
}

/// A file for caches of two heads, head_dim 2.
mnnkv::compressor toy() {
    const bytes file = read_model_file("compressor/toy_fp32.bin");
    mnnkv::compressor compressor;
    EXPECT_TRUE(ok(compressor.create(file.data(), file.size()).code()));
    return compressor;
}

TEST(ModelStruct, CompressorOptionsComeInAllSizes) {
    const mnnkv::compressor file = toy();
    const mnnkv_layout layout = make_layout(pack_modes[0], 2, 2, 8, 8);
    const packed_model model(layout);
    bytes key(model.key_bytes()), value(model.value_bytes());
    std::uint32_t before = 0, after = 0;
    const auto good = mnnkv::make<mnnkv_compressor_options>();
    check_input(good, [&](const mnnkv_compressor_options* o) {
        return mnnkv_compressor_new_len(file.get(), o, 5, &after);
    });
    mnnkv_cache cache = mnnkv::make<mnnkv_cache>();
    cache.layout = &layout;
    cache.key = key.data();
    cache.value = value.data();
    // One token: nothing to compress, so that the calls do not build upon each other.
    cache.kv_len = 1;
    check_input(good, [&](const mnnkv_compressor_options* o) {
        return mnnkv_compressor_run_caches(file.get(), 0, o, &cache, 1, &before, &after);
    });
    check_sizes(cache, [&](const mnnkv_cache* c) {
        return mnnkv_compressor_run_caches(file.get(), 0, nullptr, const_cast<mnnkv_cache*>(c), 1, &before, &after);
    });
    check_sizes(layout, [&](const mnnkv_layout* l) {
        cache.layout = l;
        return mnnkv_compressor_run_caches(file.get(), 0, nullptr, &cache, 1, &before, &after);
    });
}

TEST(ModelStruct, CompressorInfosAreWrittenAsFarAsTheCallerHasRoom) {
    const mnnkv::compressor file = toy();
    check_output_sizes<mnnkv_compressor_info>(
        [&](mnnkv_compressor_info* out) { return mnnkv_compressor_get_info(file.get(), out); });
}

TEST(ModelStruct, MsmodelslimInfosAreWrittenAsFarAsTheCallerHasRoom) {
    mnnkv::msmodelslim model;
    ASSERT_TRUE(ok(model.open(MNNKV_MODEL_TESTDATA_DIR "/msmodelslim/w8a8_c8_fp16").code()));
    check_output_sizes<mnnkv_msmodelslim_linear_info>(
        [&](mnnkv_msmodelslim_linear_info* out) { return mnnkv_msmodelslim_get_linear_info(model.get(), "lm_head", out); });
}

TEST(ModelStruct, Int8StructsComeInAllSizes) {
    mnnkv_c8_shape shape = mnnkv::make<mnnkv_c8_shape>();
    shape.dtype = MNNKV_DTYPE_F32, shape.order = MNNKV_ORDER_HEAD_TOKEN_DIM;
    shape.kv_heads = 2, shape.head_dim = 4, shape.tokens = 3;
    const std::vector<float> ones(8, 1.0f), zeros(8);
    const std::vector<std::int8_t> codes(24);
    bytes values(96);
    check_input(shape, [&](const mnnkv_c8_shape* s) {
        return mnnkv_c8_dequantize(s, codes.data(), ones.data(), zeros.data(), values.data(), values.size());
    });
}

TEST(ModelStruct, SizingStructsComeInAllSizes) {
    const std::string config = read_model_text("configs/llama-3-8b.json");
    mnnkv::sizing model;
    ASSERT_TRUE(ok(model.create(config.data(), config.size()).code()));
    mnnkv_sizing_total total = mnnkv::make<mnnkv_sizing_total>();
    std::uint64_t a = 0, b = 0;
    const mnnkv_sizing_options good = mnnkv::sizing_defaults();
    check_input(good, [&](const mnnkv_sizing_options* o) { return mnnkv_sizing_bytes(model.get(), o, 9, &total); });
    check_input(good, [&](const mnnkv_sizing_options* o) { return mnnkv_sizing_longest(model.get(), o, 9, &a, &b); });
    std::vector<char> text(1 << 16);
    std::size_t length = 0;
    check_input(good, [&](const mnnkv_sizing_options* o) {
        return mnnkv_sizing_report_json(model.get(), o, nullptr, 0, 0, text.data(), text.size(), &length);
    });
    check_output_sizes<mnnkv_sizing_total>(
        [&](mnnkv_sizing_total* out) { return mnnkv_sizing_bytes(model.get(), nullptr, 1000, out); });
}

}  // namespace
