// struct_size and reserved fields of the structs for files that come with a model.

#include "c8.hpp"
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
    bytes in(2 * 5 * 2 * 4), key_out(in.size()), value_out(in.size());
    std::uint32_t before = 0, after = 0;
    const auto good = mnnkv::make<mnnkv_compressor_options>();
    check_input(good, [&](const mnnkv_compressor_options* o) {
        return mnnkv_compressor_new_len(file.get(), o, 5, &after);
    });
    check_input(good, [&](const mnnkv_compressor_options* o) {
        return mnnkv_compressor_run(file.get(), 0, o, MNNKV_DTYPE_F32, 2, 5, in.data(), in.data(), key_out.data(),
                                    value_out.data(), in.size(), &after);
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

TEST(ModelStruct, CompressorHeadersComeInAllSizes) {
    const float zeros[4] = {};
    std::vector<mnnkv_compressor_linear> linears;
    for (std::uint32_t block = 0; block < 6; ++block) {
        const std::uint32_t cols = block % 3 == 0 ? 2 : 1;
        linears.push_back({1, cols, zeros, nullptr});
    }
    mnnkv_compressor_header header = mnnkv::make<mnnkv_compressor_header>();
    header.dtype = MNNKV_DTYPE_F32;
    header.layers = header.head_dim = 1;
    header.blocks_per_layer = 6;
    header.compression_factor = header.min_seq_len = 2;
    bytes file(1024);
    std::size_t length = 0;
    check_input(header, [&](const mnnkv_compressor_header* h) {
        return mnnkv_compressor_write(h, linears.data(), linears.size(), file.data(), file.size(), &length);
    });
}

TEST(ModelStruct, CompressorInfosAreWrittenAsFarAsTheCallerHasRoom) {
    const mnnkv::compressor file = toy();
    check_output_sizes<mnnkv_compressor_info>(
        [&](mnnkv_compressor_info* out) { return mnnkv_compressor_get_info(file.get(), out); });
    check_output_sizes<mnnkv_compressor_block_info>(
        [&](mnnkv_compressor_block_info* out) { return mnnkv_compressor_get_block_info(file.get(), 0, 1, out); });
}

TEST(ModelStruct, MsmodelslimInfosAreWrittenAsFarAsTheCallerHasRoom) {
    mnnkv::msmodelslim model;
    ASSERT_TRUE(ok(model.open(MNNKV_MODEL_TESTDATA_DIR "/msmodelslim/w8a8_c8_fp16").code()));
    check_output_sizes<mnnkv_msmodelslim_info>(
        [&](mnnkv_msmodelslim_info* out) { return mnnkv_msmodelslim_get_info(model.get(), out); });
    check_output_sizes<mnnkv_msmodelslim_linear_info>(
        [&](mnnkv_msmodelslim_linear_info* out) { return mnnkv_msmodelslim_get_linear_info(model.get(), 3, out); });
}

TEST(ModelStruct, WriterOptionsComeInAllSizes) {
    const std::string nothing_is_there = temp_path("model-struct");
    check_input(mnnkv::make<mnnkv_msmodelslim_writer_options>(), [&](const mnnkv_msmodelslim_writer_options* o) {
        mnnkv::msmodelslim_writer writer;
        return writer.create(nothing_is_there.c_str(), o).code();
    });
}

TEST(ModelStruct, Int8StructsComeInAllSizes) {
    const mnnkv_c8_shape shape = c8_shape(MNNKV_DTYPE_F32, MNNKV_ORDER_HEAD_TOKEN_DIM, 2, 4, 3);
    c8_scales own{floats(8, 0.5f), floats(8)};
    const mnnkv_c8_scales scales = own.c();
    floats values(24, 1.0f), min(8), max(8);
    codes coded(24);
    mnnkv_c8_figures figures = mnnkv::make<mnnkv_c8_figures>();
    const std::size_t size = values.size() * sizeof(float);
    const auto quantize = [&](const mnnkv_c8_shape* s, const mnnkv_c8_scales* with) {
        return mnnkv_c8_quantize(s, values.data(), size, with, coded.data(), coded.size());
    };
    const auto dequantize = [&](const mnnkv_c8_shape* s, const mnnkv_c8_scales* with) {
        return mnnkv_c8_dequantize(s, coded.data(), coded.size(), with, values.data(), size);
    };
    const auto measure = [&](const mnnkv_c8_shape* s, const mnnkv_c8_scales* with) {
        return mnnkv_c8_measure(s, values.data(), size, with, &figures);
    };
    check_input(shape, [&](const mnnkv_c8_shape* s) {
        return mnnkv_c8_ranges_update(s, values.data(), size, min.data(), max.data());
    });
    check_input(shape, [&](const mnnkv_c8_shape* s) { return quantize(s, &scales); });
    check_input(shape, [&](const mnnkv_c8_shape* s) { return dequantize(s, &scales); });
    check_input(shape, [&](const mnnkv_c8_shape* s) { return measure(s, &scales); });
    check_input(scales, [&](const mnnkv_c8_scales* s) { return quantize(&shape, s); });
    check_input(scales, [&](const mnnkv_c8_scales* s) { return dequantize(&shape, s); });
    check_input(scales, [&](const mnnkv_c8_scales* s) { return measure(&shape, s); });
    check_output_sizes<mnnkv_c8_figures>([&](mnnkv_c8_figures* out) {
        return mnnkv_c8_measure(&shape, values.data(), size, &scales, out);
    });

    const mnnkv_layout layout = make_layout(pack_modes[0], 2, 4, 8, 8);
    const packed_model model(layout);
    bytes key(model.key_bytes()), value(model.value_bytes());
    codes other(24);
    const auto gather = [&](const mnnkv_layout* l, const mnnkv_c8_scales* k, const mnnkv_c8_scales* v) {
        return mnnkv_c8_gather(l, key.data(), value.data(), 0, 3, k, v, coded.data(), other.data(), coded.size());
    };
    const auto scatter = [&](const mnnkv_layout* l, const mnnkv_c8_scales* k, const mnnkv_c8_scales* v) {
        return mnnkv_c8_scatter(l, coded.data(), other.data(), coded.size(), k, v, 0, 3, key.data(), value.data());
    };
    check_sizes(layout, [&](const mnnkv_layout* l) { return gather(l, &scales, &scales); });
    check_sizes(layout, [&](const mnnkv_layout* l) { return scatter(l, &scales, &scales); });
    check_input(scales, [&](const mnnkv_c8_scales* s) { return gather(&layout, s, &scales); });
    check_input(scales, [&](const mnnkv_c8_scales* s) { return gather(&layout, &scales, s); });
    check_input(scales, [&](const mnnkv_c8_scales* s) { return scatter(&layout, s, &scales); });
    check_input(scales, [&](const mnnkv_c8_scales* s) { return scatter(&layout, &scales, s); });
}

TEST(ModelStruct, SizingStructsComeInAllSizes) {
    const std::string config = read_model_text("configs/llama-3-8b.json");
    mnnkv::sizing model;
    ASSERT_TRUE(ok(model.create(config.data(), config.size()).code()));
    mnnkv_sizing_total total = mnnkv::make<mnnkv_sizing_total>();
    std::uint64_t a = 0, b = 0;
    const mnnkv_sizing_options good = mnnkv::sizing_defaults();
    check_input(good, [&](const mnnkv_sizing_options* o) { return mnnkv_sizing_per_token(model.get(), o, &a, &b); });
    check_input(good, [&](const mnnkv_sizing_options* o) { return mnnkv_sizing_bytes(model.get(), o, 9, &total); });
    check_input(good, [&](const mnnkv_sizing_options* o) { return mnnkv_sizing_longest(model.get(), o, 9, &a, &b); });
    std::vector<char> text(1 << 16);
    std::size_t length = 0;
    check_input(good, [&](const mnnkv_sizing_options* o) {
        return mnnkv_sizing_report_json(model.get(), o, nullptr, 0, 0, text.data(), text.size(), &length);
    });
    check_output_sizes<mnnkv_sizing_info>(
        [&](mnnkv_sizing_info* out) { return mnnkv_sizing_get_info(model.get(), out); });
    check_output_sizes<mnnkv_sizing_layer_info>(
        [&](mnnkv_sizing_layer_info* out) { return mnnkv_sizing_get_layer_info(model.get(), 5, out); });
    check_output_sizes<mnnkv_sizing_total>(
        [&](mnnkv_sizing_total* out) { return mnnkv_sizing_bytes(model.get(), nullptr, 1000, out); });
}

}  // namespace
