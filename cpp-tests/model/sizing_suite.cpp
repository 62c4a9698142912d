// KV-cache sizes from a model's config: worked examples by hand, budgets, reports, and calls that must be refused.

#include "model_files.hpp"
#include "refusal.hpp"

#include <atomic>
#include <limits>
#include <thread>

namespace {

using namespace support;

mnnkv::sizing model_of(const std::string& config) {
    mnnkv::sizing model;
    EXPECT_TRUE(ok(model.create(config.data(), config.size()).code())) << config;
    return model;
}

mnnkv::sizing public_model(const std::string& name) { return model_of(read_model_text("configs/" + name + ".json")); }

/// Options with the defaults and this change.
template <class Change>
mnnkv_sizing_options options_with(Change change) {
    mnnkv_sizing_options options = mnnkv::sizing_defaults();
    change(options);
    return options;
}

mnnkv_sizing_total total_of(const mnnkv::sizing& model, std::uint64_t tokens,
                            const mnnkv_sizing_options* options = nullptr) {
    mnnkv_sizing_total total;
    EXPECT_TRUE(ok(model.bytes(tokens, total, options).code()));
    return total;
}

TEST(Sizing, KnownModelsTakeKnownBytesPerToken) {
    const struct {
        const char* name;
        std::uint64_t bytes;
    } known[] = {
        {"llama-2-7b", 2ull * 32 * 32 * 128 * 2},
        {"llama-3-8b", 2ull * 32 * 8 * 128 * 2},
        {"qwen2.5-1.5b-instruct", 2ull * 28 * 2 * 128 * 2},
        {"deepseek-v3", 61ull * (512 + 64) * 2},
        {"llava-1.5-7b", 2ull * 32 * 32 * 128 * 2},
    };
    for (const auto& k : known) {
        SCOPED_TRACE(k.name);
        const mnnkv::sizing model = public_model(k.name);
        EXPECT_EQ(total_of(model, 1000).raw, 1000 * k.bytes);
    }
}

TEST(Sizing, ElementsAreThoseOfTheModelOrOfTheOptions) {
    // Gemma 2 runs in f32, and so does its cache unless the options say otherwise.
    const mnnkv::sizing gemma = public_model("gemma-2-9b");
    EXPECT_EQ(total_of(gemma, 1).raw, 42u * 2 * 8 * 256 * 4);
    const std::pair<std::uint32_t, std::uint64_t> eighths[] = {
        {MNNKV_DTYPE_F16, 16}, {MNNKV_DTYPE_BF16, 16}, {MNNKV_DTYPE_F32, 32},
        {MNNKV_DTYPE_INT8, 8}, {MNNKV_DTYPE_FP8, 8},   {MNNKV_DTYPE_INT4, 4},
    };
    for (const auto& element : eighths) {
        const auto options = options_with([&](mnnkv_sizing_options& o) { o.element = element.first; });
        EXPECT_EQ(total_of(gemma, 1, &options).raw, 42u * 2 * 8 * 256 * element.second / 8) << element.first;
    }
}

TEST(Sizing, SavingsActOneAfterTheOther) {
    // 32 layers of 4,096 bytes a token. 10,000 of 35,000 tokens stay in layers 2 to 31.
    const mnnkv::sizing model = public_model("llama-3-8b");
    const auto options = options_with([](mnnkv_sizing_options& o) {
        o.h2o_ratio = 3.5;
        o.lossless_ratio = 2;
        o.lossless_hot_tokens = 0;
    });
    const mnnkv_sizing_total total = total_of(model, 35000, &options);
    const std::uint64_t kept = 2 * 35000 + 30 * 10000;
    EXPECT_EQ(total.raw, 32ull * 35000 * 4096);
    EXPECT_EQ(total.after_h2o, kept * 4096);
    EXPECT_EQ(total.after_lossless, (35000ull + 30 * 10000) * 4096);
    EXPECT_EQ(total.peak, total.after_lossless + 2 * 35000 * 4096);

    const auto scoped = options_with([](mnnkv_sizing_options& o) {
        o.h2o_ratio = 2;
        o.h2o_layer_start = 1;
        o.h2o_layer_end = 2;
        o.h2o_protected_tokens = 0;
        o.h2o_trigger_tokens = 0;
        o.lossless_ratio = 4;
        o.lossless_scope = MNNKV_SCOPE_H2O_KEPT;
        o.lossless_hot_tokens = 0;
    });
    const mnnkv_sizing_total middle = total_of(model, 8000, &scoped);
    EXPECT_EQ(middle.after_h2o, (30u * 8000 + 2 * 4000) * 4096);
    EXPECT_EQ(middle.after_lossless, (30u * 8000 + 2 * 1000) * 4096);
}

TEST(Sizing, TheLongestContextFitsAndOneMoreTokenDoesNot) {
    std::uint64_t tokens = 0, bytes = 0;
    const mnnkv::sizing model = public_model("llama-3-8b");
    const auto options = options_with([](mnnkv_sizing_options& o) {
        o.ranks = 4;
        o.batch = 3;
        o.h2o_ratio = 2.5;
        o.lossless_ratio = 1.5;
    });
    ASSERT_TRUE(ok(model.longest(1ull << 30, tokens, bytes, &options).code()));
    EXPECT_LE(bytes, 1ull << 30);
    EXPECT_EQ(bytes, total_of(model, tokens, &options).peak);
    EXPECT_GT(total_of(model, tokens + 1, &options).peak, 1ull << 30);
    ASSERT_TRUE(ok(public_model("mistral-7b-v0.1").longest(1ull << 30, tokens, bytes).code()));
    EXPECT_EQ(tokens, std::uint64_t(MNNKV_SIZING_MAX_TOKENS)) << "windows bound the cache";
    EXPECT_EQ(bytes, 4096u * 131072);
}

TEST(Sizing, AReportIsJsonWithTheNumbersOfTheOtherCalls) {
    const mnnkv::sizing model = public_model("gemma-2-9b");
    const auto options = options_with([](mnnkv_sizing_options& o) {
        o.element = MNNKV_DTYPE_F16;
        o.h2o_ratio = 2;
        o.ranks = 2;
    });
    const std::uint64_t contexts[] = {100, 8192};
    std::string text;
    ASSERT_TRUE(ok(model.report_json(text, contexts, 2, 1 << 30, &options).code()));
    const json report = json_reader(text).read();
    EXPECT_EQ(report["model_type"].text, "gemma2");
    EXPECT_EQ(report["layers"].u32(), 42u);
    ASSERT_EQ(report["groups"].items.size(), 2u);
    EXPECT_EQ(report["groups"].items[0]["most_tokens"].u32(), 4096u);
    ASSERT_EQ(report["totals"].items.size(), 2u);
    const json& long_one = report["totals"].items[1];
    const mnnkv_sizing_total total = total_of(model, 8192, &options);
    EXPECT_EQ(long_one["rank"]["raw"].number, static_cast<double>(total.raw));
    EXPECT_EQ(long_one["rank"]["after_h2o"].number, static_cast<double>(total.after_h2o));
    EXPECT_EQ(long_one["all_ranks"]["peak"].number, static_cast<double>(2 * total.peak));
    std::uint64_t tokens = 0, bytes = 0;
    ASSERT_TRUE(ok(model.longest(1 << 30, tokens, bytes, &options).code()));
    EXPECT_EQ(report["longest"]["tokens"].number, static_cast<double>(tokens));
    EXPECT_EQ(report["bytes_per_token"].u32(), 42u * 2 * 4 * 256 * 2);
    EXPECT_EQ(report["bytes_per_late_token"].u32(), 21u * 2 * 4 * 256 * 2);
    EXPECT_FALSE(report["notes"].items.empty());

    ASSERT_TRUE(ok(model.report_json(text, nullptr, 0).code()));
    EXPECT_EQ(text.find("longest"), std::string::npos) << "no budget was given";
}

TEST(Sizing, ManyThreadsMayAskOneModel) {
    const mnnkv::sizing model = public_model("gemma-3-4b-it");
    const std::uint64_t expected = total_of(model, 5000).raw;
    std::atomic<int> right{0};
    std::vector<std::thread> threads;
    for (int i = 0; i < 4; ++i) {
        threads.emplace_back([&] {
            for (int round = 0; round < 50; ++round) {
                mnnkv_sizing_total total;
                right += model.bytes(5000, total) && total.raw == expected;
            }
        });
    }
    for (std::thread& thread : threads) {
        thread.join();
    }
    EXPECT_EQ(right.load(), 200);
}

TEST(BadSizing, ConfigsAreRefusedByNameAndGiveNoHandle) {
    slot<mnnkv_sizing*> out;
    slot<mnnkv_sizing*> two[2];
    const std::string good = read_model_text("configs/gpt2.json");
    const auto create = [&](const std::string& text) {
        return [&out, text] { return mnnkv_sizing_create(text.data(), text.size(), MNNKV_ABI_VERSION, out.get()); };
    };
    expect_refused(
        {
            {bad, "JSON", create("")},
            {bad, "JSON", create("{")},
            {bad, "object", create("[]")},
            {bad, "num_hidden_layers", create("{}")},
            {bad, "n_layer", create("{\"n_layer\": \"12\", \"n_head\": 12, \"n_embd\": 768}")},
            {bad, "n_embd", create("{\"n_layer\": 12, \"n_head\": 12, \"n_embd\": 0}")},
            {bad, "4194304", create(std::string(4194305, ' '))},
            {MNNKV_UNSUPPORTED, "is_encoder_decoder",
             create("{\"n_layer\": 12, \"n_head\": 12, \"n_embd\": 768, \"is_encoder_decoder\": true}")},
            {bad, "config_json", [&] { return mnnkv_sizing_create(nullptr, 5, MNNKV_ABI_VERSION, out.get()); }},
            {bad, "config_json",
             [&] { return mnnkv_sizing_create(good.data(), SIZE_MAX, MNNKV_ABI_VERSION, out.get()); }},
            {bad, "out", [&] { return mnnkv_sizing_create(good.data(), good.size(), MNNKV_ABI_VERSION, nullptr); }},
            {bad, "out",
             [&] {
                 return mnnkv_sizing_create(good.data(), good.size(), MNNKV_ABI_VERSION, misaligned(two[0].get()));
             }},
            {MNNKV_UNSUPPORTED, "abi_version",
             [&] { return mnnkv_sizing_create(good.data(), good.size(), MNNKV_ABI_VERSION + 1, out.get()); }},
        },
        out, two[0], two[1]);
    mnnkv_sizing_destroy(nullptr);
    mnnkv_sizing_options_default(nullptr);
}

class BadSizingInput : public testing::Test {
protected:
    BadSizingInput() : model_(public_model("llama-3-8b")) {}

    /// Every function that takes options, with these.
    std::vector<bad_call> calls_with(mnnkv_status expected, const std::string& word, const mnnkv_sizing_options* o) {
        mnnkv_sizing* const m = model_.get();
        return {
            {expected, word, [=] { return mnnkv_sizing_bytes(m, o, 100, total_.get()); }},
            {expected, word, [=] { return mnnkv_sizing_longest(m, o, 1 << 30, a_.get(), b_.get()); }},
            {expected, word,
             [=] { return mnnkv_sizing_report_json(m, o, nullptr, 0, 0, text_.get()->chars, 4096, len_.get()); }},
        };
    }

    void expect_all_refused(const std::vector<bad_call>& calls) {
        expect_refused(calls, a_, b_, total_, len_, text_);
    }

    template <class Change>
    void expect_option_refused(const std::string& word, Change change, mnnkv_status expected = bad) {
        SCOPED_TRACE(word);
        const mnnkv_sizing_options options = options_with(change);
        expect_all_refused(calls_with(expected, word, &options));
    }

    struct text_room {
        char chars[4096];
    };
    mnnkv::sizing model_;
    slot<std::uint64_t> a_, b_;
    slot<mnnkv_sizing_total> total_;
    slot<std::size_t> len_;
    slot<text_room> text_;
};

TEST_F(BadSizingInput, PointersAreChecked) {
    const mnnkv_sizing* const m = model_.get();
    const mnnkv_sizing_options two[2] = {mnnkv::sizing_defaults(), mnnkv::sizing_defaults()};
    expect_all_refused(calls_with(bad, "options", misaligned(&two[0])));
    char* const text = text_.get()->chars;
    expect_all_refused({
        {bad, "sizing", [&] { return mnnkv_sizing_bytes(nullptr, nullptr, 1, total_.get()); }},
        {bad, "total", [&] { return mnnkv_sizing_bytes(m, nullptr, 1, nullptr); }},
        {bad, "tokens", [&] { return mnnkv_sizing_bytes(m, nullptr, 1ull << 31, total_.get()); }},
        {bad, "sizing", [&] { return mnnkv_sizing_longest(nullptr, nullptr, 1, a_.get(), b_.get()); }},
        {bad, "tokens", [&] { return mnnkv_sizing_longest(m, nullptr, 1, nullptr, b_.get()); }},
        {bad, "bytes", [&] { return mnnkv_sizing_longest(m, nullptr, 1, a_.get(), nullptr); }},
        {bad, "contexts",
         [&] { return mnnkv_sizing_report_json(m, nullptr, nullptr, 1, 0, text, 4096, len_.get()); }},
        {bad, "contexts",
         [&] { return mnnkv_sizing_report_json(m, nullptr, misaligned(a_.get()), 1, 0, text, 4096, len_.get()); }},
        {bad, "contexts",
         [&] { return mnnkv_sizing_report_json(m, nullptr, a_.get(), 1025, 0, text, 4096, len_.get()); }},
        {bad, "overlap",
         [&] {
             return mnnkv_sizing_report_json(m, nullptr, a_.get(), 1, 0, reinterpret_cast<char*>(a_.get()), 4,
                                             len_.get());
         }},
        {bad, "len", [&] { return mnnkv_sizing_report_json(m, nullptr, nullptr, 0, 0, text, 4096, nullptr); }},
    });
}

TEST_F(BadSizingInput, OptionsOutOfRangeAreRefused) {
    const double infinity = std::numeric_limits<double>::infinity();
    const double not_a_number = std::numeric_limits<double>::quiet_NaN();
    for (const double ratio : {0.5, -1.0, 1e7, infinity, not_a_number}) {
        expect_option_refused("h2o ratio", [=](mnnkv_sizing_options& o) { o.h2o_ratio = ratio; });
        expect_option_refused("lossless ratio", [=](mnnkv_sizing_options& o) { o.lossless_ratio = ratio; });
    }
    for (const std::uint32_t element : {5u, 6u, 9u, UINT32_MAX}) {
        expect_option_refused("element", [=](mnnkv_sizing_options& o) { o.element = element; });
    }
    for (const std::uint32_t ranks : {3u, 5u, 6u, 7u}) {
        expect_option_refused("ranks", [=](mnnkv_sizing_options& o) { o.ranks = ranks; });
    }
    expect_option_refused("lossless_scope", [](mnnkv_sizing_options& o) { o.lossless_scope = 4; });
    expect_option_refused("h2o_layer_end", [](mnnkv_sizing_options& o) { o.h2o_layer_end = -2; });
    expect_option_refused("last layer of h2o", [](mnnkv_sizing_options& o) {
        o.h2o_ratio = 2;
        o.h2o_layer_end = 1;
    });
    for (std::size_t i = 0; i < 3; ++i) {
        expect_option_refused("reserved", [i](mnnkv_sizing_options& o) { o.reserved[i] = 1; });
    }
    for (const std::uint32_t size : {0u, 71u, 4097u}) {
        expect_option_refused("struct_size", [=](mnnkv_sizing_options& o) { o.struct_size = size; });
    }
}

TEST_F(BadSizingInput, StructsThatAreTooShortAreNotWritten) {
    total_.get()->struct_size = 39;
    const mnnkv_sizing* const m = model_.get();
    EXPECT_TRUE(refuses(bad, "struct_size", [&] { return mnnkv_sizing_bytes(m, nullptr, 1, total_.get()); }));
    total_.get()->struct_size = sizeof(mnnkv_sizing_total);
    EXPECT_TRUE(total_.untouched());
}

TEST_F(BadSizingInput, ATextThatDoesNotFitSaysHowLongItIs) {
    std::string report;
    ASSERT_TRUE(ok(model_.report_json(report, nullptr, 0).code()));
    const std::size_t needed = report.size() + 1;
    for (const std::size_t cap : {std::size_t{0}, std::size_t{1}, needed - 1}) {
        const mnnkv_status answer =
            mnnkv_sizing_report_json(model_.get(), nullptr, nullptr, 0, 0, text_.get()->chars, cap, len_.get());
        EXPECT_TRUE(answers(answer, MNNKV_BUFFER_TOO_SMALL));
        EXPECT_EQ(*len_.get(), needed);
        EXPECT_TRUE(text_.untouched());
    }
}

}  // namespace
