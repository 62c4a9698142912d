// Directories of quantised weights, from C++: written, checked, read, and every wrong call refused.

#include "model_files.hpp"
#include "refusal.hpp"

#include <cmath>
#include <cstdio>
#include <cstring>
#include <memory>

namespace {

using namespace support;

std::string golden(const std::string& name) { return std::string(MNNKV_MODEL_TESTDATA_DIR) + "/msmodelslim/" + name; }

struct close_model {
    void operator()(mnnkv_msmodelslim* model) const { mnnkv_msmodelslim_destroy(model); }
};
using model_ptr = std::unique_ptr<mnnkv_msmodelslim, close_model>;

model_ptr open_model(const std::string& path) {
    mnnkv_msmodelslim* model = nullptr;
    EXPECT_TRUE(ok(mnnkv_msmodelslim_open(path.c_str(), MNNKV_ABI_VERSION, &model)));
    return model_ptr(model);
}

struct close_writer {
    void operator()(mnnkv_msmodelslim_writer* writer) const { mnnkv_msmodelslim_writer_destroy(writer); }
};
using writer_ptr = std::unique_ptr<mnnkv_msmodelslim_writer, close_writer>;

writer_ptr new_writer(const std::string& path, const mnnkv_msmodelslim_writer_options* options = nullptr) {
    mnnkv_msmodelslim_writer* writer = nullptr;
    EXPECT_TRUE(ok(mnnkv_msmodelslim_writer_create(path.c_str(), options, MNNKV_ABI_VERSION, &writer)));
    return writer_ptr(writer);
}

/// The text of a call with a buffer; a first call returns the length.
template <class Call>
std::string text_of(Call call) {
    std::size_t len = 0;
    EXPECT_TRUE(answers(call(nullptr, 0, &len), MNNKV_BUFFER_TOO_SMALL));
    std::string text(len, '?');
    EXPECT_TRUE(ok(call(&text[0], text.size(), &len)));
    EXPECT_EQ(len, text.size());
    EXPECT_EQ(text.back(), '\0');
    text.pop_back();
    return text;
}

json report_of(const std::string& path) {
    return json_reader(text_of([&](char* text, std::size_t cap, std::size_t* len) {
               return mnnkv_msmodelslim_check_json(path.c_str(), text, cap, len);
           })).read();
}

/// The floats of a version 1 NumPy file.
std::vector<float> npy(const std::string& name) {
    const bytes file = read_model_file("msmodelslim/" + name);
    const std::size_t data = 10u + file[8] + 256u * file[9];
    std::vector<float> numbers((file.size() - data) / sizeof(float));
    std::memcpy(numbers.data(), file.data() + data, numbers.size() * sizeof(float));
    return numbers;
}

std::uint64_t find(const mnnkv_msmodelslim* model, const char* name) {
    std::uint64_t index = ~0ull;
    EXPECT_TRUE(ok(mnnkv_msmodelslim_find(model, name, &index)));
    return index;
}

/// A path where nothing is, and where nothing stays.
class scratch {
public:
    explicit scratch(const char* name)
        : path_(temp_path(std::string("msmodelslim-") + name)) {}
    ~scratch() {
        for (const char* file : {"quant_model_description.json", "quant_model_weights.safetensors"}) {
            std::remove((path_ + "/" + file).c_str());
        }
        std::remove(path_.c_str());
    }
    const std::string& path() const { return path_; }

private:
    std::string path_;
};

TEST(Msmodelslim, AHealthyDirectoryHasNoErrorsAndABrokenOneNamesThem) {
    EXPECT_EQ(report_of(golden("w8a16_per_channel"))["errors"].number, 0);
    const json broken = report_of(golden("corrupt/missing_scale_tensor"));
    EXPECT_EQ(broken["errors"].number, 1);
    const json& finding = broken["findings"].items.at(0);
    EXPECT_EQ(finding["severity"].text, "error");
    EXPECT_EQ(finding["kind"].text, "missing_tensor");
    EXPECT_EQ(finding["tensor"].text, "model.layers.0.mlp.down_proj.weight_scale");
    EXPECT_EQ(report_of(golden("no such directory"))["findings"].items.at(0)["kind"].text, "unreadable");
}

TEST(Msmodelslim, WeightsAreReadByRows) {
    const model_ptr model = open_model(golden("w8a16_per_channel"));
    const std::string name = "model.layers.0.mlp.down_proj";
    const std::uint64_t index = find(model.get(), name.c_str());
    auto info = mnnkv::make<mnnkv_msmodelslim_linear_info>();
    ASSERT_TRUE(ok(mnnkv_msmodelslim_get_linear_info(model.get(), index, &info)));
    EXPECT_EQ(info.tag, MNNKV_MSMODELSLIM_W8A16);
    EXPECT_EQ(info.granularity, MNNKV_SCALE_CHANNEL);
    EXPECT_EQ(info.n, 16u);
    EXPECT_EQ(info.k, 24u);
    EXPECT_EQ(info.group_size, 0u);
    EXPECT_EQ(info.bias, 0u);
    EXPECT_EQ(info.bytes, 16u * 24 + 2 * 16 * 4);
    const std::vector<float> expected = npy("w8a16_per_channel/expected/" + name + ".weight.deq.npy");
    ASSERT_EQ(expected.size(), info.n * info.k);
    for (std::uint64_t begin : {0u, 5u, 16u}) {
        const std::uint64_t rows = begin == 16 ? 0 : 16 - begin;
        bytes wanted(rows * 24 * 4);
        if (!wanted.empty()) {
            std::memcpy(wanted.data(), expected.data() + begin * 24, wanted.size());
        }
        guarded out(wanted.size(), 1);
        ASSERT_TRUE(ok(mnnkv_msmodelslim_dequantize(model.get(), index, begin, rows, MNNKV_DTYPE_F32, out.data(),
                                                    out.size())));
        EXPECT_TRUE(out.holds(wanted));
    }
}

TEST(Msmodelslim, Int8LinearsGiveTheSameOutputs) {
    const model_ptr model = open_model(golden("w8a8_fp16"));
    const std::string name = "model.layers.0.self_attn.q_proj";
    const std::string stem = "w8a8_fp16/expected/" + name;
    const std::vector<float> x = npy(stem + ".x.npy"), expected = npy(stem + ".y.npy");
    std::vector<float> y(expected.size());
    ASSERT_TRUE(ok(mnnkv_msmodelslim_linear_w8a8(model.get(), find(model.get(), name.c_str()), 0, 16, x.data(),
                                                 x.size() / 16, y.data(), y.size())));
    EXPECT_EQ(y, expected);
}

TEST(Msmodelslim, UnsignedCodesBecomeSignedOnes) {
    const std::uint8_t codes[] = {0, 1, 127, 128, 255};
    std::int8_t out[] = {9, 9, 9, 9, 9, 9};
    ASSERT_EQ(mnnkv_msmodelslim_signed(codes, 5, out), MNNKV_OK) << mnnkv_model_last_error();
    const std::int8_t expected[] = {-128, -127, -1, 0, 127, 9};
    EXPECT_EQ(std::memcmp(out, expected, sizeof expected), 0);
    EXPECT_EQ(mnnkv_msmodelslim_signed(nullptr, 0, nullptr), MNNKV_OK);
    EXPECT_EQ(mnnkv_msmodelslim_signed(nullptr, 1, out), MNNKV_INVALID_ARGUMENT);
    EXPECT_EQ(mnnkv_msmodelslim_signed(codes, 1, nullptr), MNNKV_INVALID_ARGUMENT);
    const std::uint8_t* same = reinterpret_cast<const std::uint8_t*>(out);
    EXPECT_EQ(mnnkv_msmodelslim_signed(same + 1, 5, out), MNNKV_INVALID_ARGUMENT);
}

TEST(Msmodelslim, ListsNameEverything) {
    const model_ptr model = open_model(golden("w8a8_c8_fp16"));
    auto info = mnnkv::make<mnnkv_msmodelslim_info>();
    ASSERT_TRUE(ok(mnnkv_msmodelslim_get_info(model.get(), &info)));
    const json layers = json_reader(text_of([&](char* text, std::size_t cap, std::size_t* len) {
                            return mnnkv_msmodelslim_layers_json(model.get(), text, cap, len);
                        })).read();
    EXPECT_EQ(info.kv_declared, 1u);
    EXPECT_EQ(info.weight_files, 1u);
    ASSERT_EQ(info.linears, 16u);
    ASSERT_EQ(info.norms, 5u);
    ASSERT_EQ(info.kv_layers, 2u);
    const struct {
        std::uint32_t list;
        std::uint64_t count;
        const char* in_json;
        const char* name;
    } lists[] = {{MNNKV_MSMODELSLIM_LINEARS, info.linears, "linears", "name"},
                 {MNNKV_MSMODELSLIM_NORMS, info.norms, "norms", "name"},
                 {MNNKV_MSMODELSLIM_KV_LAYERS, info.kv_layers, "kv", "prefix"}};
    for (const auto& list : lists) {
        ASSERT_EQ(layers[list.in_json].items.size(), list.count);
        for (std::uint64_t i = 0; i < list.count; ++i) {
            EXPECT_EQ(text_of([&](char* text, std::size_t cap, std::size_t* len) {
                          return mnnkv_msmodelslim_name(model.get(), list.list, i, text, cap, len);
                      }),
                      layers[list.in_json].items[i][list.name].text);
        }
    }
    EXPECT_EQ(layers["kv"].items[1]["layer"].number, 1);
    EXPECT_EQ(layers["kv"].items[1]["prefix"].text, "model.layers.1.self_attn");
}

TEST(Msmodelslim, NormsHaveAPairForEachKindOfLinear) {
    const model_ptr model = open_model(golden("w8a8_fp16_seed_smooth"));
    float plain[16], smooth[16], bias[16];
    std::size_t len = 0;
    EXPECT_TRUE(answers(mnnkv_msmodelslim_norm(model.get(), 0, 0, plain, bias, 15, &len), MNNKV_BUFFER_TOO_SMALL));
    ASSERT_EQ(len, 16u);
    ASSERT_TRUE(ok(mnnkv_msmodelslim_norm(model.get(), 0, 1, smooth, bias, 16, &len)));
    ASSERT_TRUE(ok(mnnkv_msmodelslim_norm(model.get(), 0, 0, plain, bias, 16, &len)));
    EXPECT_NE(std::vector<float>(plain, plain + 16), std::vector<float>(smooth, smooth + 16));
    EXPECT_EQ(std::vector<float>(bias, bias + 16), std::vector<float>(16, 0.0f));
}

/// A directory with a tensor, a linear of 2 by 4 and KV scales.
void write_small(const std::string& path) {
    const writer_ptr writer = new_writer(path);
    const std::uint64_t shape[] = {3};
    const float weights[] = {1, 2, 3, -127, 0, 0, 0, 254}, scales[] = {0.5f, 0.25f}, offsets[] = {0, -3};
    ASSERT_TRUE(ok(mnnkv_msmodelslim_writer_tensor(writer.get(), "m.norm.weight", "FLOAT", "F16", shape, 1)));
    ASSERT_TRUE(ok(mnnkv_msmodelslim_writer_linear(writer.get(), "m.up", 2, 4)));
    ASSERT_TRUE(ok(mnnkv_msmodelslim_writer_kv(writer.get(), "m.0.attn", 2)));
    ASSERT_TRUE(ok(mnnkv_msmodelslim_writer_append(writer.get(), "m.norm.weight", "\0\x3c\0\x40\0\x42", 6)));
    ASSERT_TRUE(ok(mnnkv_msmodelslim_writer_append_rows(writer.get(), "m.up", weights, 4)));
    ASSERT_TRUE(ok(mnnkv_msmodelslim_writer_append_rows(writer.get(), "m.up", weights + 4, 4)));
    ASSERT_TRUE(ok(mnnkv_msmodelslim_writer_append_kv(writer.get(), "m.0.attn", scales, nullptr, scales, offsets, 2)));
    ASSERT_TRUE(ok(mnnkv_msmodelslim_writer_finish(writer.get())));
    EXPECT_TRUE(refuses(bad, "finished", [&] { return mnnkv_msmodelslim_writer_finish(writer.get()); }));
    EXPECT_TRUE(refuses(bad, "finished", [&] { return mnnkv_msmodelslim_writer_kv(writer.get(), "m.x", 2); }));
}

TEST(Msmodelslim, WhatIsWrittenIsCheckedAndReadBack) {
    const scratch place("written");
    write_small(place.path());
    EXPECT_EQ(report_of(place.path())["errors"].number, 0);
    const model_ptr model = open_model(place.path());
    float weights[8];
    ASSERT_TRUE(ok(mnnkv_msmodelslim_dequantize(model.get(), find(model.get(), "m.up"), 0, 2, MNNKV_DTYPE_F32, weights,
                                                sizeof weights)));
    // Scales are 1 and 2, so these numbers are codes.
    EXPECT_EQ(std::vector<float>(weights, weights + 8), (std::vector<float>{1, 2, 3, -127, 0, 0, 0, 254}));
    float scale[2], offset[2];
    std::size_t len = 0;
    for (const std::uint32_t values : {0u, 1u}) {
        ASSERT_TRUE(ok(mnnkv_msmodelslim_kv_scales(model.get(), 0, values, scale, offset, 2, &len)));
        EXPECT_EQ(len, 2u);
        EXPECT_EQ(std::vector<float>(scale, scale + 2), (std::vector<float>{0.5f, 0.25f}));
        EXPECT_EQ(offset[1], values == 0 ? 0.0f : -3.0f);
    }
    float norm[3], bias[3];
    ASSERT_TRUE(ok(mnnkv_msmodelslim_norm(model.get(), 0, 1, norm, bias, 3, &len)));
    EXPECT_EQ(std::vector<float>(norm, norm + 3), (std::vector<float>{1, 2, 3}));
    EXPECT_TRUE(refuses(bad, "quantised weights", [&] {
        mnnkv_msmodelslim_writer* writer = nullptr;
        return mnnkv_msmodelslim_writer_create(place.path().c_str(), nullptr, MNNKV_ABI_VERSION, &writer);
    }));
}

TEST(Msmodelslim, AWriterThatIsDestroyedLeavesNothing) {
    const scratch place("dropped");
    {
        const writer_ptr writer = new_writer(place.path());
        const std::uint64_t shape[] = {4};
        ASSERT_TRUE(ok(mnnkv_msmodelslim_writer_tensor(writer.get(), "m.w", "FLOAT", "I8", shape, 1)));
        ASSERT_TRUE(ok(mnnkv_msmodelslim_writer_append(writer.get(), "m.w", "abc", 3)));
    }
    EXPECT_EQ(report_of(place.path())["findings"].items.at(0)["kind"].text, "unreadable");
}

TEST(BadMsmodelslimInput, PathsAndHandlesAreChecked) {
    const std::string path = golden("w8a16_per_channel");
    slot<mnnkv_msmodelslim*> model;
    slot<mnnkv_msmodelslim_writer*> writer;
    auto options = mnnkv::make<mnnkv_msmodelslim_writer_options>();
    const auto open = [&](const char* p, std::uint32_t abi, mnnkv_msmodelslim** out) {
        return [=] { return mnnkv_msmodelslim_open(p, abi, out); };
    };
    const auto create = [&](mnnkv_msmodelslim_writer_options o) {
        return [=, &writer] {
            return mnnkv_msmodelslim_writer_create("x", &o, MNNKV_ABI_VERSION, writer.get());
        };
    };
    const auto with = [&](void (*change)(mnnkv_msmodelslim_writer_options&)) {
        mnnkv_msmodelslim_writer_options changed = options;
        change(changed);
        return create(changed);
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
            {bad, "struct_size", with([](mnnkv_msmodelslim_writer_options& o) { o.struct_size = 8; })},
            {bad, "asymmetric", with([](mnnkv_msmodelslim_writer_options& o) { o.asymmetric = 2; })},
            {bad, "reserved[1]", with([](mnnkv_msmodelslim_writer_options& o) { o.reserved[1] = 1; })},
            {bad, "path", [&] { return mnnkv_msmodelslim_writer_create(nullptr, nullptr, 1, writer.get()); }},
            {bad, "out", [&] { return mnnkv_msmodelslim_writer_create("x", nullptr, 1, nullptr); }},
            {MNNKV_UNSUPPORTED, "abi_version",
             [&] { return mnnkv_msmodelslim_writer_create("x", nullptr, 2, writer.get()); }},
        },
        model, writer);
    mnnkv_msmodelslim_destroy(nullptr);
    mnnkv_msmodelslim_writer_destroy(nullptr);
}

TEST(BadMsmodelslimInput, ReadersRefuseAndWriteNothing) {
    const model_ptr owner = open_model(golden("w8a8_c8_fp16"));
    const mnnkv_msmodelslim* const model = owner.get();
    const std::uint64_t linear = find(model, "model.layers.0.self_attn.q_proj");
    const std::uint64_t head = find(model, "lm_head");
    struct floats {
        float numbers[256];
    };
    slot<floats> out, second;
    slot<std::size_t> len;
    slot<std::uint64_t> index;
    slot<mnnkv_msmodelslim_linear_info> info;
    slot<mnnkv_msmodelslim_info> whole;
    auto short_info = mnnkv::make<mnnkv_msmodelslim_linear_info>();
    short_info.struct_size = 12;
    float* const to = out.get()->numbers;
    char* const text = reinterpret_cast<char*>(to);
    const float x[16] = {}, nan[16] = {std::nanf("")};
    const auto rows = [&](std::uint64_t l, std::uint64_t begin, std::uint64_t n, std::uint32_t dtype, std::size_t cap) {
        return [=] { return mnnkv_msmodelslim_dequantize(model, l, begin, n, dtype, to, cap); };
    };
    const auto multiply = [&](std::uint64_t l, std::uint64_t n, const float* from, float* y, std::size_t cap) {
        return [=] { return mnnkv_msmodelslim_linear_w8a8(model, l, 0, n, from, 1, y, cap); };
    };
    const auto kv = [&](std::uint64_t layer, std::uint32_t values, float* scale, float* offset) {
        return [=, &len] { return mnnkv_msmodelslim_kv_scales(model, layer, values, scale, offset, 8, len.get()); };
    };
    const auto norm = [&](std::uint64_t i, std::uint32_t quantized, float* weight, std::size_t* n) {
        return [=, &second] {
            return mnnkv_msmodelslim_norm(model, i, quantized, weight, second.get()->numbers, 16, n);
        };
    };
    expect_refused(
        {
            {bad, "model", [&] { return mnnkv_msmodelslim_get_info(nullptr, whole.get()); }},
            {bad, "info", [&] { return mnnkv_msmodelslim_get_info(model, nullptr); }},
            {bad, "model", [&] { return mnnkv_msmodelslim_dequantize(nullptr, 0, 0, 1, 3, to, 64); }},
            {bad, "out", [&] { return mnnkv_msmodelslim_dequantize(model, linear, 0, 1, 3, nullptr, 64); }},
            {bad, "dtype", rows(linear, 0, 1, 0, 64)},
            {MNNKV_UNSUPPORTED, "INT8", rows(linear, 0, 1, MNNKV_DTYPE_INT8, 64)},
            {bad, "rows 16 .. 17", rows(linear, 16, 1, MNNKV_DTYPE_F32, 64)},
            {bad, "rows 0 .. 17", rows(linear, 0, 17, MNNKV_DTYPE_F32, 64)},
            {bad, "row_begin", rows(linear, UINT64_MAX, 2, MNNKV_DTYPE_F32, 64)},
            {MNNKV_NOT_FOUND, "linear is 999", rows(999, 0, 1, MNNKV_DTYPE_F32, 64)},
            {MNNKV_BUFFER_TOO_SMALL, "out", rows(linear, 0, 2, MNNKV_DTYPE_F32, 127)},
            {MNNKV_BUFFER_TOO_SMALL, "out", rows(linear, 0, 2, MNNKV_DTYPE_F16, 63)},
            {MNNKV_UNSUPPORTED, "FLOAT", multiply(head, 16, x, to, 16)},
            {bad, "x is NULL", multiply(linear, 16, nullptr, to, 16)},
            {bad, "y is NULL", multiply(linear, 16, x, nullptr, 16)},
            {bad, "overlap", multiply(linear, 16, to + 8, to, 16)},
            {bad, "NaN", multiply(linear, 16, nan, to, 16)},
            {bad, "rows 0 .. 17", multiply(linear, 17, x, to, 16)},
            {MNNKV_BUFFER_TOO_SMALL, "y", multiply(linear, 16, x, to, 15)},
            {bad, "values", kv(0, 2, to, second.get()->numbers)},
            {bad, "scale", kv(0, 0, nullptr, second.get()->numbers)},
            {bad, "overlap", kv(0, 0, to, to + 7)},
            {MNNKV_NOT_FOUND, "KV layer is 2", kv(2, 0, to, second.get()->numbers)},
            {bad, "quantized", norm(0, 2, to, len.get())},
            {bad, "weight", norm(0, 0, nullptr, len.get())},
            {bad, "len", norm(0, 0, to, nullptr)},
            {MNNKV_NOT_FOUND, "norm is 99", norm(99, 0, to, len.get())},
            {bad, "list", [&] { return mnnkv_msmodelslim_name(model, 0, 0, text, 64, len.get()); }},
            {MNNKV_NOT_FOUND, "index", [&] { return mnnkv_msmodelslim_name(model, 1, 99, text, 64, len.get()); }},
            {bad, "name", [&] { return mnnkv_msmodelslim_find(model, nullptr, index.get()); }},
            {MNNKV_NOT_FOUND, "unlisted", [&] { return mnnkv_msmodelslim_find(model, "unlisted", index.get()); }},
            {MNNKV_NOT_FOUND, "linear is 99", [&] { return mnnkv_msmodelslim_get_linear_info(model, 99, info.get()); }},
            {bad, "struct_size", [&] { return mnnkv_msmodelslim_get_linear_info(model, 0, &short_info); }},
            {bad, "len", [&] { return mnnkv_msmodelslim_layers_json(model, text, 64, nullptr); }},
            {bad, "path", [&] { return mnnkv_msmodelslim_check_json(nullptr, text, 64, len.get()); }},
        },
        out, second, len, index, info, whole);
}

TEST(BadMsmodelslimInput, WritersRefuseAndStayUsable) {
    const scratch place("refused");
    auto options = mnnkv::make<mnnkv_msmodelslim_writer_options>();
    options.group_size = 2;
    const writer_ptr owner = new_writer(place.path(), &options);
    mnnkv_msmodelslim_writer* const writer = owner.get();
    const std::uint64_t shape[] = {2};
    const float row[4] = {1, 2, 3, 4}, bad_row[4] = {1, 2, INFINITY, 4}, ones[2] = {1, 1}, zero[2] = {0, 1};
    const auto tensor = [=](const char* name, const char* tag, const char* dtype, const std::uint64_t* dims) {
        return [=] { return mnnkv_msmodelslim_writer_tensor(writer, name, tag, dtype, dims, 1); };
    };
    expect_refused({
        {bad, "writer", [=] { return mnnkv_msmodelslim_writer_linear(nullptr, "m.a", 1, 4); }},
        {bad, "name", [=] { return mnnkv_msmodelslim_writer_linear(writer, nullptr, 1, 4); }},
        {bad, "groups of 2", [=] { return mnnkv_msmodelslim_writer_linear(writer, "m.a", 1, 3); }},
        {bad, "prefix", [=] { return mnnkv_msmodelslim_writer_kv(writer, nullptr, 2); }},
        {bad, "tag", tensor("m.t", "W9", "F16", shape)},
        {bad, "dtype", tensor("m.t", "FLOAT", "f16", shape)},
        {bad, "shape", tensor("m.t", "FLOAT", "F16", nullptr)},
        {bad, "dot", tensor("version", "FLOAT", "F16", shape)},
    });
    ASSERT_TRUE(ok(mnnkv_msmodelslim_writer_linear(writer, "m.a", 1, 4)));
    ASSERT_TRUE(ok(mnnkv_msmodelslim_writer_kv(writer, "m.p", 2)));
    expect_refused({
        {bad, "is next", [=] { return mnnkv_msmodelslim_writer_append(writer, "m.a", "abcd", 4); }},
        {bad, "weights", [=] { return mnnkv_msmodelslim_writer_append_rows(writer, "m.a", nullptr, 4); }},
        {bad, "whole rows", [=] { return mnnkv_msmodelslim_writer_append_rows(writer, "m.a", row, 3); }},
        {bad, "column 2", [=] { return mnnkv_msmodelslim_writer_append_rows(writer, "m.a", bad_row, 4); }},
    });
    ASSERT_TRUE(ok(mnnkv_msmodelslim_writer_append_rows(writer, "m.a", row, 4)));
    expect_refused({
        {bad, "contents have begun", [=] { return mnnkv_msmodelslim_writer_linear(writer, "m.z", 1, 4); }},
        {bad, "key_scale",
         [=] { return mnnkv_msmodelslim_writer_append_kv(writer, "m.p", nullptr, nullptr, ones, nullptr, 2); }},
        {bad, "value scale 0",
         [=] { return mnnkv_msmodelslim_writer_append_kv(writer, "m.p", ones, nullptr, zero, nullptr, 2); }},
        {bad, "1 key scales",
         [=] { return mnnkv_msmodelslim_writer_append_kv(writer, "m.p", ones, nullptr, ones, nullptr, 1); }},
    });
    ASSERT_TRUE(ok(mnnkv_msmodelslim_writer_append_kv(writer, "m.p", ones, nullptr, ones, nullptr, 2)));
    ASSERT_TRUE(ok(mnnkv_msmodelslim_writer_finish(writer)));
    EXPECT_EQ(report_of(place.path())["errors"].number, 0);
}

}  // namespace
