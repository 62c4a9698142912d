// Invalid configs, and invalid calls that make a session.

#include "refusal.hpp"
#include "session_host.hpp"

namespace {

using namespace support;

mnnkv_session_options options_of(const char* config, std::size_t len, std::uint32_t layers, std::uint32_t lanes,
                                 std::uint32_t abi) {
    mnnkv_session_options options = {};
    options.struct_size = sizeof options;
    options.abi_version = abi;
    options.layers = layers;
    options.lanes = lanes;
    options.config_json = config;
    options.config_len = len;
    return options;
}

class BadSessionConfig : public testing::Test {
protected:
    mnnkv_status create(const std::string& config, std::uint32_t layers = 4, std::uint32_t lanes = 1) {
        const mnnkv_session_options options =
            options_of(config.data(), config.size(), layers, lanes, MNNKV_ABI_VERSION);
        return mnnkv_session_create(&options, out_.get());
    }

    mnnkv_status create_with_defaults(const std::string& config, const std::string& defaults, mnnkv_session** out) {
        mnnkv_session_options options = options_of(config.data(), config.size(), 4, 1, MNNKV_ABI_VERSION);
        options.defaults_json = defaults.data();
        options.defaults_len = defaults.size();
        return mnnkv_session_create(&options, out);
    }

    void expect_config_refused(const std::string& word, const std::string& config) {
        expect_refused({{bad, word, [&] { return create(config); }}}, out_);
        EXPECT_LT(std::strlen(mnnkv_last_error()), 500u) << "a message fits a log line";
        EXPECT_EQ(std::strchr(mnnkv_last_error(), '\n'), nullptr);
    }

    slot<mnnkv_session*> out_;
};

TEST_F(BadSessionConfig, ArgumentsAreChecked) {
    slot<mnnkv_session*> two[2];
    mnnkv_session* handle = nullptr;
    const auto create = [&](const char* text, std::size_t len, std::uint32_t layers, std::uint32_t lanes,
                            std::uint32_t abi, mnnkv_session** out) {
        return [=] {
            const mnnkv_session_options options = options_of(text, len, layers, lanes, abi);
            return mnnkv_session_create(&options, out);
        };
    };
    const std::uint32_t abi = MNNKV_ABI_VERSION;
    expect_refused({{bad, "config_json", create(nullptr, 2, 1, 1, abi, out_.get())},
                    {bad, "config_json", create("{}", SIZE_MAX, 1, 1, abi, out_.get())},
                    {bad, "out", create("{}", 2, 1, 1, abi, nullptr)},
                    {bad, "out", create("{}", 2, 1, 1, abi, misaligned(two[0].get()))},
                    {bad, "layers", create("{}", 2, 0, 1, abi, out_.get())},
                    {bad, "layers", create("{}", 2, UINT32_MAX, 1, abi, out_.get())},
                    {bad, "lanes", create("{}", 2, 1, 1025, abi, out_.get())},
                    {bad, "lanes", create("{}", 2, 1, UINT32_MAX, abi, out_.get())},
                    {MNNKV_UNSUPPORTED, "abi_version", create("{}", 2, 1, 1, 0, out_.get())},
                    {MNNKV_UNSUPPORTED, "abi_version", create("{}", 2, 1, 1, abi + 1, out_.get())},
                    {MNNKV_UNSUPPORTED, "abi_version", create("{}", 2, 1, 1, UINT32_MAX, out_.get())}},
                   out_, two[0], two[1]);
    mnnkv_session_options options = options_of("{}", 2, 1, 1, abi);
    options.defaults_len = 2;
    expect_refused({{bad, "options", [&] { return mnnkv_session_create(nullptr, out_.get()); }},
                    {bad, "defaults_json", [&] { return mnnkv_session_create(&options, out_.get()); }}},
                   out_);
    EXPECT_TRUE(ok(create(nullptr, 0, 1, 1, abi, &handle)())) << "NULL with length 0 means no config";
    mnnkv_session_destroy(handle);
    mnnkv_session_destroy(nullptr);
    mnnkv::session session;
    EXPECT_FALSE(session.create("[", 1, 1, 1));
    EXPECT_FALSE(session) << "a session that could not be made holds nothing";
}

TEST_F(BadSessionConfig, DefaultsAreCheckedAsTheConfigIsAndHoldWhereItHasNoKey) {
    for (const auto& [word, defaults] : {std::pair{"defaults_json", "["}, std::pair{"defaults_json", "3"},
                                         std::pair{"defaults_json: kv_h2o_ema_alpha", R"({"kv_h2o_ema_alpha": 7})"},
                                         std::pair{"defaults_json: kv_h2o_max_tokens", R"({"kv_h2o_max_tokens": 9})"}}) {
        const std::string config = R"({"kv_h2o_ema_alpha": 0.5})", text = defaults;
        expect_refused({{bad, word, [&] { return create_with_defaults(config, text, out_.get()); }}}, out_);
    }
    mnnkv_session* session = nullptr;
    ASSERT_TRUE(ok(create_with_defaults("{}", R"({"kv_h2o_enable": true})", &session)));
    mnnkv_cache cache = mnnkv::make<mnnkv_cache>();
    mnnkv_step step = mnnkv::make<mnnkv_step>();
    step.rows = 1;
    EXPECT_TRUE(ok(mnnkv_session_begin(session, 2, &cache, &step)));
    EXPECT_EQ(step.scored_rows, 0u) << "an empty layer gets a prompt, and its rows are not scored";
    mnnkv_session_destroy(session);
    ASSERT_TRUE(ok(create_with_defaults(R"({"kv_h2o_prefill_queries": 1})",
                                        R"({"kv_h2o_enable": true, "kv_h2o_prefill_queries": 0})", &session)));
    EXPECT_TRUE(ok(mnnkv_session_begin(session, 2, &cache, &step)));
    EXPECT_EQ(step.scored_rows, 1u) << "the config wins";
    mnnkv_session_destroy(session);
}

TEST_F(BadSessionConfig, WrongTypesAndRangesNameTheKey) {
    for (const char* const text : {"[]", "null", " ", "{", "{}{}", "{\"a\": 01}", "\xff", "{\"kv_h2o_enable\": tru"}) {
        expect_config_refused("config", text);
    }
    const struct {
        const char *key, *value;
    } wrong[] = {
        {"kv_h2o_enable", "1"},           {"kv_lossless_enable", "null"},   {"kv_h2o_block_tokens", "65537"},
        {"kv_h2o_layer_end", "-2"},       {"kv_h2o_ema_alpha", "1.1"},      {"kv_h2o_policy", "\"keydiff\""},
        {"kv_lossless_scope", "\"All\""}, {"kv_lossless_async_threads", "65"}, {"kv_quant", "true"},
        {"kv_memory_mb", "\"64\""},       {"kv_memory_bytes", "1.5"},       {"kv_memory_file", "7"},
    };
    for (const auto& w : wrong) {
        expect_config_refused(w.key, std::string("{\"") + w.key + "\": " + w.value + "}");
    }
}

}  // namespace
