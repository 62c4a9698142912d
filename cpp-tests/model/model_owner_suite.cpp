// The owners of mnnkv.hpp for files that come with a model: one journey each, and owners that hold nothing.

#include "model_files.hpp"
#include "refusal.hpp"

#include <cstdio>

namespace {

using namespace support;

std::string data_path(const char* name) { return std::string(MNNKV_MODEL_TESTDATA_DIR) + "/" + name; }

TEST(ModelOwner, AStatusHasTheTextOfItsLibrary) {
    mnnkv::session session;
    const mnnkv::status of_core = session.reset_all();
    mnnkv::sizing model;
    const mnnkv::status of_model = model.create("[]", 2);
    ASSERT_FALSE(of_core);
    ASSERT_FALSE(of_model);
    EXPECT_STREQ(of_core.message(), mnnkv_last_error());
    EXPECT_STREQ(of_model.message(), mnnkv_model_last_error());
    EXPECT_STRNE(of_core.message(), of_model.message());
    model.reset();
    std::string text;
    EXPECT_STREQ(model.notes(text).message(), mnnkv_model_last_error()) << "read by way of a text output";
    mnnkv_sizing_info info = mnnkv_sizing_info();
    EXPECT_STREQ(model.info(info).message(), mnnkv_model_last_error()) << "and of a struct";
    EXPECT_STREQ(mnnkv::status().message(), "");
}

TEST(ModelOwner, ACompressorIsOpenedAskedAndRun) {
    mnnkv::compressor file;
    EXPECT_FALSE(file);
    ASSERT_TRUE(ok(file.open(data_path("compressor/reserved_fp16_6.bin").c_str()).code()));
    mnnkv_compressor_info info = mnnkv_compressor_info();
    ASSERT_TRUE(ok(file.info(info).code()));
    EXPECT_EQ(info.blocks_per_layer, 6u);
    mnnkv_compressor_block_info block = mnnkv_compressor_block_info();
    ASSERT_TRUE(ok(file.block_info(1, 2, block).code()));
    EXPECT_EQ(block.rows, info.head_dim) << "the last of three ends with a token's elements";
    std::string notes = "before";
    ASSERT_TRUE(ok(file.notes(notes).code()));
    EXPECT_NE(notes.find("0xbeef"), std::string::npos) << notes;

    const bytes toy = read_model_file("compressor/toy_fp32.bin");
    ASSERT_TRUE(ok(file.create(toy.data(), toy.size()).code())) << "what it held before is destroyed";
    mnnkv_compressor_options text_stays = mnnkv::make<mnnkv_compressor_options>();
    text_stays.segments = MNNKV_SEGMENT_IMAGE;
    std::uint32_t shorter = 0, same_len = 0;
    ASSERT_TRUE(ok(file.new_len(5, shorter).code()));
    ASSERT_TRUE(ok(file.new_len(5, same_len, &text_stays).code()));
    EXPECT_EQ(shorter, 3u);
    EXPECT_EQ(same_len, 5u);
    const bytes row(2 * 5 * 2 * 4);
    bytes key(2 * 3 * 2 * 4, 1), value(key.size(), 1);
    std::uint32_t new_len = 0;
    ASSERT_TRUE(ok(file.run(0, MNNKV_DTYPE_F32, 2, 5, row.data(), row.data(), key.data(), value.data(), key.size(),
                            new_len)
                       .code()));
    EXPECT_EQ(new_len, 3u);
}

TEST(ModelOwner, ADirectoryIsWrittenCheckedAndRead) {
    const std::string path = temp_path("model-owner");
    const std::uint64_t shape[] = {4};
    const float norm[] = {1, 2, 3, 4}, weights[] = {127, -127, 64, 0, 1, 2, 3, 127};
    const float keys[] = {0.5f, 0.25f}, values[] = {2, 3};
    {
        mnnkv::msmodelslim_writer writer;
        ASSERT_TRUE(ok(writer.create(path.c_str()).code()));
        ASSERT_TRUE(ok(writer.tensor("model.norm.weight", "FLOAT", "F32", shape, 1).code()));
        ASSERT_TRUE(ok(writer.linear("model.layers.0.mlp.down_proj", 2, 4).code()));
        ASSERT_TRUE(ok(writer.kv("model.layers.0.self_attn", 2).code()));
        ASSERT_TRUE(ok(writer.append("model.norm.weight", norm, sizeof norm).code()));
        ASSERT_TRUE(ok(writer.append_rows("model.layers.0.mlp.down_proj", weights, 8).code()));
        ASSERT_TRUE(ok(writer.append_kv("model.layers.0.self_attn", keys, nullptr, values, nullptr, 2).code()));
        ASSERT_TRUE(ok(writer.finish().code()));
        EXPECT_TRUE(answers(writer.finish().code(), bad)) << "once";
    }
    std::string report;
    ASSERT_TRUE(ok(mnnkv::msmodelslim::check_json(path.c_str(), report).code()));
    EXPECT_EQ(json_reader(report).read()["errors"].number, 0) << report;

    mnnkv::msmodelslim model;
    ASSERT_TRUE(ok(model.open(path.c_str()).code()));
    mnnkv_msmodelslim_info info = mnnkv_msmodelslim_info();
    ASSERT_TRUE(ok(model.info(info).code()));
    EXPECT_TRUE(info.linears == 1 && info.norms == 1 && info.kv_layers == 1);
    std::uint64_t linear = 7;
    ASSERT_TRUE(ok(model.find("model.layers.0.mlp.down_proj", linear).code()));
    mnnkv_msmodelslim_linear_info of_linear = mnnkv_msmodelslim_linear_info();
    ASSERT_TRUE(ok(model.linear_info(linear, of_linear).code()));
    EXPECT_TRUE(of_linear.n == 2 && of_linear.k == 4);
    std::vector<float> got(8), bias(4), offset(2);
    ASSERT_TRUE(ok(model.dequantize(linear, 0, 2, MNNKV_DTYPE_F32, got.data(), 32).code()));
    EXPECT_EQ(got, std::vector<float>(weights, weights + 8)) << "whole numbers, of which the greatest is 127";
    std::string name, all;
    ASSERT_TRUE(ok(model.name(MNNKV_MSMODELSLIM_NORMS, 0, name).code()));
    EXPECT_EQ(name, "model.norm");
    ASSERT_TRUE(ok(model.layers_json(all).code()));
    EXPECT_NE(all.find("model.norm"), std::string::npos);
    std::size_t length = 0;
    ASSERT_TRUE(ok(model.norm(0, false, got.data(), bias.data(), 4, length).code()));
    EXPECT_EQ(length, 4u);
    EXPECT_EQ(got[3], 4.0f);
    got.resize(2);
    ASSERT_TRUE(ok(model.key_scales(0, got.data(), offset.data(), 2, length).code()));
    EXPECT_EQ(got, std::vector<float>(keys, keys + length));
    ASSERT_TRUE(ok(model.value_scales(0, got.data(), offset.data(), 2, length).code()));
    EXPECT_EQ(got, std::vector<float>(values, values + length));
    for (const char* file : {"/quant_model_description.json", "/quant_model_weights.safetensors", ""}) {
        EXPECT_EQ(std::remove((path + file).c_str()), 0) << file;
    }
}

TEST(ModelOwner, NormsHaveAPairForQuantisedLinearsAndOneForFloatOnes) {
    mnnkv::msmodelslim model;
    ASSERT_TRUE(ok(model.open(data_path("msmodelslim/w8a8_fp16_seed_smooth").c_str()).code()));
    std::vector<float> found[2], bias(16);
    for (const bool quantized : {false, true}) {
        std::vector<float> expected(16);
        std::size_t length = 0;
        found[quantized].resize(16);
        ASSERT_TRUE(ok(model.norm(0, quantized, found[quantized].data(), bias.data(), 16, length).code()));
        ASSERT_TRUE(ok(mnnkv_msmodelslim_norm(model.get(), 0, quantized, expected.data(), bias.data(), 16, &length)));
        EXPECT_EQ(found[quantized], expected);
    }
    EXPECT_NE(found[0], found[1]);
}

TEST(ModelOwner, AFailedOpenHoldsNothing) {
    mnnkv::compressor file;
    ASSERT_TRUE(ok(file.open(data_path("compressor/toy_fp32.bin").c_str()).code()));
    EXPECT_TRUE(answers(file.open(data_path("compressor/no such file").c_str()).code(), MNNKV_NOT_FOUND));
    EXPECT_FALSE(file);
    mnnkv::msmodelslim model;
    ASSERT_TRUE(ok(model.open(data_path("msmodelslim/w8a8_fp16").c_str()).code()));
    EXPECT_TRUE(answers(model.open(data_path("no such directory").c_str()).code(), MNNKV_NOT_FOUND));
    EXPECT_FALSE(model);
    mnnkv::msmodelslim_writer writer;
    ASSERT_TRUE(ok(writer.create(temp_path("model-owner-nothing").c_str()).code()));
    EXPECT_TRUE(answers(writer.create(data_path("msmodelslim/w8a8_fp16").c_str()).code(), bad));
    EXPECT_FALSE(writer);
}

TEST(ModelOwner, OwnersThatHoldNothingAnswerInvalidArgument) {
    mnnkv::compressor file;
    ASSERT_TRUE(ok(file.open(data_path("compressor/toy_fp32.bin").c_str()).code()));
    const mnnkv::compressor moved = std::move(file);
    EXPECT_TRUE(moved);
    mnnkv_cache cache = mnnkv::make<mnnkv_cache>();
    slot<mnnkv_compressor_info> info;
    slot<std::uint32_t> length;
    std::string text = "before";
    expect_refused(
        {
            {bad, "compressor is NULL", [&] { return file.info(*info.get()).code(); }},
            {bad, "compressor is NULL", [&] { return file.new_len(5, *length.get()).code(); }},
            {bad, "compressor is NULL", [&] { return file.run_caches(0, &cache, 1).code(); }},
            {bad, "compressor is NULL", [&] { return file.notes(text).code(); }},
        },
        info, length);
    EXPECT_EQ(text, "") << "texts are emptied on failure";

    mnnkv::msmodelslim model;
    mnnkv::msmodelslim_writer writer;
    slot<mnnkv_msmodelslim_info> whole;
    slot<std::uint64_t> linear;
    expect_refused(
        {
            {bad, "model is NULL", [&] { return model.info(*whole.get()).code(); }},
            {bad, "model is NULL", [&] { return model.find("a.b", *linear.get()).code(); }},
            {bad, "model is NULL", [&] { return model.layers_json(text).code(); }},
            {bad, "writer is NULL", [&] { return writer.linear("a.b", 1, 1).code(); }},
            {bad, "writer is NULL", [&] { return writer.finish().code(); }},
        },
        whole, linear);
}

}  // namespace
