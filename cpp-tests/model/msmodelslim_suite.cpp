// Directories of quantised weights, from C++: checked, read, and every wrong call refused.

#include "model_files.hpp"
#include "refusal.hpp"

#include <cmath>
#include <cstring>

namespace {

using namespace support;

std::string golden(const std::string& name) { return std::string(MNNKV_MODEL_TESTDATA_DIR) + "/msmodelslim/" + name; }

mnnkv::msmodelslim open_model(const std::string& name) {
    mnnkv::msmodelslim model;
    EXPECT_TRUE(ok(model.open(golden(name).c_str()).code()));
    return model;
}

json report_of(const std::string& name) {
    std::string text;
    EXPECT_TRUE(ok(mnnkv::msmodelslim::check_json(golden(name).c_str(), text).code()));
    return json_reader(text).read();
}

/// The floats of a version 1 NumPy file.
std::vector<float> npy(const std::string& name) {
    const bytes file = read_model_file("msmodelslim/" + name);
    const std::size_t data = 10u + file[8] + 256u * file[9];
    std::vector<float> numbers((file.size() - data) / sizeof(float));
    std::memcpy(numbers.data(), file.data() + data, numbers.size() * sizeof(float));
    return numbers;
}

TEST(Msmodelslim, AHealthyDirectoryHasNoErrorsAndABrokenOneNamesThem) {
    EXPECT_EQ(report_of("w8a16_per_channel")["errors"].number, 0);
    const json broken = report_of("corrupt/missing_scale_tensor");
    EXPECT_EQ(broken["errors"].number, 1);
    const json& finding = broken["findings"].items.at(0);
    EXPECT_EQ(finding["severity"].text, "error");
    EXPECT_EQ(finding["kind"].text, "missing_tensor");
    EXPECT_EQ(finding["tensor"].text, "model.layers.0.mlp.down_proj.weight_scale");
    EXPECT_EQ(report_of("no such directory")["findings"].items.at(0)["kind"].text, "unreadable");
}

TEST(Msmodelslim, WeightsAreReadByNameAndRows) {
    const mnnkv::msmodelslim model = open_model("w8a16_per_channel");
    const std::string name = "model.layers.0.mlp.down_proj";
    mnnkv_msmodelslim_linear_info info = mnnkv_msmodelslim_linear_info();
    ASSERT_TRUE(ok(model.linear_info(name.c_str(), info).code()));
    EXPECT_TRUE(info.n == 16 && info.k == 24 && info.int8_inputs == 0);
    const std::vector<float> expected = npy("w8a16_per_channel/expected/" + name + ".weight.deq.npy");
    ASSERT_EQ(expected.size(), info.n * info.k);
    for (std::uint64_t begin : {0u, 5u, 16u}) {
        const std::uint64_t rows = 16 - begin;
        bytes wanted(rows * 24 * 4);
        if (!wanted.empty()) {
            std::memcpy(wanted.data(), expected.data() + begin * 24, wanted.size());
        }
        guarded out(wanted.size(), 1);
        ASSERT_TRUE(ok(model.dequantize(name.c_str(), begin, rows, MNNKV_DTYPE_F32, out.data(), out.size()).code()));
        EXPECT_TRUE(out.holds(wanted));
    }
}

TEST(Msmodelslim, Int8LinearsGiveTheSameOutputs) {
    const mnnkv::msmodelslim model = open_model("w8a8_fp16");
    const std::string name = "model.layers.0.self_attn.q_proj";
    const std::string stem = "w8a8_fp16/expected/" + name;
    const std::vector<float> x = npy(stem + ".x.npy"), expected = npy(stem + ".y.npy");
    std::vector<float> y(expected.size());
    ASSERT_TRUE(ok(model.linear_w8a8(name.c_str(), 0, 16, x.data(), x.size() / 16, y.data(), y.size()).code()));
    EXPECT_EQ(y, expected);
    mnnkv_msmodelslim_linear_info info = mnnkv_msmodelslim_linear_info();
    ASSERT_TRUE(ok(model.linear_info(name.c_str(), info).code()));
    EXPECT_EQ(info.int8_inputs, 1u);
}

TEST(Msmodelslim, NormsHaveAPairForEachKindOfLinear) {
    const mnnkv::msmodelslim model = open_model("w8a8_fp16_seed_smooth");
    const char* const name = "model.layers.0.input_layernorm";
    std::vector<float> found[2], bias(16);
    std::size_t len = 0;
    for (const bool quantized : {false, true}) {
        found[quantized].resize(16);
        ASSERT_TRUE(ok(model.norm(name, quantized, found[quantized].data(), bias.data(), 16, len).code()));
        EXPECT_EQ(len, 16u);
    }
    EXPECT_NE(found[0], found[1]);
    EXPECT_EQ(bias.size(), 16u);
    EXPECT_TRUE(answers(model.norm(name, false, found[0].data(), bias.data(), 15, len).code(), MNNKV_BUFFER_TOO_SMALL));
    EXPECT_EQ(len, 16u);
}

TEST(Msmodelslim, KvScalesRestoreCodes) {
    const mnnkv::msmodelslim model = open_model("w8a8_c8_fp16");
    const std::string stem = "../c8/w8a8_c8_fp16/expected/kv.layer1.";
    float scale[8], offset[8];
    for (const bool values : {false, true}) {
        std::size_t len = 0;
        const char* const module = "model.layers.1.self_attn";
        ASSERT_TRUE(ok((values ? model.value_scales(module, scale, offset, 8, len)
                               : model.key_scales(module, scale, offset, 8, len))
                           .code()));
        ASSERT_EQ(len, 8u);
        const std::string side = values ? "v" : "k";
        const bytes file = read_model_file("msmodelslim/" + stem + side + ".q.npy");
        const std::vector<float> expected = npy(stem + side + ".deq.npy");
        const std::int8_t* const codes = reinterpret_cast<const std::int8_t*>(file.data() + file.size()) - expected.size();
        mnnkv_c8_shape shape = mnnkv::make<mnnkv_c8_shape>();
        shape.dtype = MNNKV_DTYPE_F32, shape.order = MNNKV_ORDER_TOKEN_HEAD_DIM;
        shape.kv_heads = 2, shape.head_dim = 4, shape.tokens = static_cast<std::uint32_t>(expected.size() / 8);
        std::vector<float> restored(expected.size());
        ASSERT_TRUE(ok(mnnkv_c8_dequantize(&shape, codes, scale, offset, restored.data(), restored.size() * 4)));
        EXPECT_EQ(restored, expected);
    }
}

TEST(BadMsmodelslimInput, PathsAndHandlesAreChecked) {
    const std::string path = golden("w8a16_per_channel");
    slot<mnnkv_msmodelslim*> model;
    const auto open = [&](const char* p, std::uint32_t abi, mnnkv_msmodelslim** out) {
        return [=] { return mnnkv_msmodelslim_open(p, abi, out); };
    };
    const std::string broken = golden("corrupt/json_truncated"), file = path + "/config.json";
    expect_refused(
        {
            {bad, "path", open(nullptr, MNNKV_ABI_VERSION, model.get())},
            {bad, "UTF-8", open("\xff\xfe", MNNKV_ABI_VERSION, model.get())},
            {bad, "out", open(path.c_str(), MNNKV_ABI_VERSION, nullptr)},
            {MNNKV_UNSUPPORTED, "abi_version", open(path.c_str(), MNNKV_ABI_VERSION + 1, model.get())},
            {MNNKV_NOT_FOUND, "nowhere", open("nowhere", MNNKV_ABI_VERSION, model.get())},
            {bad, "not a directory", open(file.c_str(), MNNKV_ABI_VERSION, model.get())},
            {MNNKV_CORRUPT, "line", open(broken.c_str(), MNNKV_ABI_VERSION, model.get())},
        },
        model);
    mnnkv_msmodelslim_destroy(nullptr);
}

TEST(BadMsmodelslimInput, ReadersRefuseAndWriteNothing) {
    const mnnkv::msmodelslim owner = open_model("w8a8_c8_fp16");
    const mnnkv_msmodelslim* const model = owner.get();
    const char* const linear = "model.layers.0.self_attn.q_proj";
    const char* const module = "model.layers.0.self_attn";
    const char* const layer_norm = "model.norm";
    struct floats {
        float numbers[256];
    };
    slot<floats> out, second;
    slot<std::size_t> len;
    slot<mnnkv_msmodelslim_linear_info> info;
    auto short_info = mnnkv::make<mnnkv_msmodelslim_linear_info>();
    short_info.struct_size = 12;
    float* const to = out.get()->numbers;
    float* const other = second.get()->numbers;
    char* const text = reinterpret_cast<char*>(to);
    const float x[16] = {}, nan[16] = {std::nanf("")};
    const auto rows = [&](const char* l, std::uint64_t begin, std::uint64_t n, std::uint32_t dtype, std::size_t cap) {
        return [=] { return mnnkv_msmodelslim_dequantize(model, l, begin, n, dtype, to, cap); };
    };
    const auto multiply = [&](const char* l, std::uint64_t n, const float* from, float* y, std::size_t cap) {
        return [=] { return mnnkv_msmodelslim_linear_w8a8(model, l, 0, n, from, 1, y, cap); };
    };
    const auto kv = [&](const char* name, std::uint32_t values, float* scale, float* offset) {
        return [=, &len] { return mnnkv_msmodelslim_kv_scales(model, name, values, scale, offset, 8, len.get()); };
    };
    const auto norm = [&](const char* name, std::uint32_t quantized, float* weight, std::size_t* n) {
        return [=] { return mnnkv_msmodelslim_norm(model, name, quantized, weight, other, 16, n); };
    };
    expect_refused(
        {
            {bad, "model", [&] { return mnnkv_msmodelslim_dequantize(nullptr, linear, 0, 1, 3, to, 64); }},
            {bad, "out", [&] { return mnnkv_msmodelslim_dequantize(model, linear, 0, 1, 3, nullptr, 64); }},
            {bad, "linear is NULL", rows(nullptr, 0, 1, MNNKV_DTYPE_F32, 64)},
            {bad, "dtype", rows(linear, 0, 1, 0, 64)},
            {MNNKV_UNSUPPORTED, "INT8", rows(linear, 0, 1, MNNKV_DTYPE_INT8, 64)},
            {bad, "rows 16 .. 17", rows(linear, 16, 1, MNNKV_DTYPE_F32, 64)},
            {bad, "rows 0 .. 17", rows(linear, 0, 17, MNNKV_DTYPE_F32, 64)},
            {bad, "row_begin", rows(linear, UINT64_MAX, 2, MNNKV_DTYPE_F32, 64)},
            {MNNKV_NOT_FOUND, "no linear \"unlisted\"", rows("unlisted", 0, 1, MNNKV_DTYPE_F32, 64)},
            {MNNKV_BUFFER_TOO_SMALL, "out", rows(linear, 0, 2, MNNKV_DTYPE_F32, 127)},
            {MNNKV_BUFFER_TOO_SMALL, "out", rows(linear, 0, 2, MNNKV_DTYPE_F16, 63)},
            {MNNKV_UNSUPPORTED, "FLOAT", multiply("lm_head", 16, x, to, 16)},
            {bad, "x is NULL", multiply(linear, 16, nullptr, to, 16)},
            {bad, "y is NULL", multiply(linear, 16, x, nullptr, 16)},
            {bad, "overlap", multiply(linear, 16, to + 8, to, 16)},
            {bad, "NaN", multiply(linear, 16, nan, to, 16)},
            {bad, "rows 0 .. 17", multiply(linear, 17, x, to, 16)},
            {MNNKV_BUFFER_TOO_SMALL, "y", multiply(linear, 16, x, to, 15)},
            {bad, "values", kv(module, 2, to, other)},
            {bad, "module is NULL", kv(nullptr, 0, to, other)},
            {bad, "scale", kv(module, 0, nullptr, other)},
            {bad, "overlap", kv(module, 0, to, to + 7)},
            {MNNKV_NOT_FOUND, "no layer with KV scales \"model\"", kv("model", 0, to, other)},
            {bad, "quantized", norm(layer_norm, 2, to, len.get())},
            {bad, "weight", norm(layer_norm, 0, nullptr, len.get())},
            {bad, "len", norm(layer_norm, 0, to, nullptr)},
            {MNNKV_NOT_FOUND, "no norm \"unlisted\"", norm("unlisted", 0, to, len.get())},
            {MNNKV_NOT_FOUND, "unlisted",
             [&] { return mnnkv_msmodelslim_get_linear_info(model, "unlisted", info.get()); }},
            {bad, "info", [&] { return mnnkv_msmodelslim_get_linear_info(model, linear, nullptr); }},
            {bad, "struct_size", [&] { return mnnkv_msmodelslim_get_linear_info(model, linear, &short_info); }},
            {bad, "path", [&] { return mnnkv_msmodelslim_check_json(nullptr, text, 64, len.get()); }},
            {bad, "len", [&] { return mnnkv_msmodelslim_check_json(golden("w8a8_fp16").c_str(), text, 64, nullptr); }},
        },
        out, second, len, info);
}

}  // namespace
