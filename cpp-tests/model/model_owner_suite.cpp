// The owners of mnnkv/model.hpp: the text of their failures, and owners that hold nothing.

#include "model_files.hpp"
#include "refusal.hpp"

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
    EXPECT_STREQ(model.report_json(text, nullptr, 0).message(), mnnkv_model_last_error()) << "by way of a text output";
    mnnkv_sizing_total total = mnnkv_sizing_total();
    EXPECT_STREQ(model.bytes(1, total).message(), mnnkv_model_last_error()) << "and of a struct";
    EXPECT_STREQ(mnnkv::status().message(), "");
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
}

TEST(ModelOwner, OwnersThatHoldNothingAnswerInvalidArgument) {
    mnnkv::compressor file;
    ASSERT_TRUE(ok(file.open(data_path("compressor/toy_fp32.bin").c_str()).code()));
    const mnnkv::compressor moved = std::move(file);
    EXPECT_TRUE(moved);
    const mnnkv::msmodelslim model;
    const mnnkv::sizing sizing;
    mnnkv_cache cache = mnnkv::make<mnnkv_cache>();
    slot<mnnkv_compressor_info> info;
    slot<std::uint32_t> length;
    slot<mnnkv_msmodelslim_linear_info> linear;
    slot<mnnkv_sizing_total> total;
    std::string text = "before";
    expect_refused(
        {
            {bad, "compressor is NULL", [&] { return file.info(*info.get()).code(); }},
            {bad, "compressor is NULL", [&] { return file.new_len(5, *length.get()).code(); }},
            {bad, "compressor is NULL", [&] { return file.run_caches(0, &cache, 1).code(); }},
            {bad, "model is NULL", [&] { return model.linear_info("a.b", *linear.get()).code(); }},
            {bad, "sizing is NULL", [&] { return sizing.bytes(1, *total.get()).code(); }},
            {bad, "sizing is NULL", [&] { return sizing.report_json(text, nullptr, 0).code(); }},
        },
        info, length, linear, total);
    EXPECT_EQ(text, "") << "texts are emptied on failure";
}

}  // namespace
