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
                    {bad, "lanes", create("{}", 2, 1, 0, abi, out_.get())},
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
    ASSERT_TRUE(ok(create_with_defaults("{}", R"({"kv_h2o_enable": true, "kv_h2o_policy": "mass"})", &session)));
    std::uint32_t rows = 0, block_tokens = 0;
    EXPECT_TRUE(ok(mnnkv_session_scored_rows(session, 2, 1, &rows, &block_tokens)));
    EXPECT_EQ(rows, 0u) << "an empty layer gets a prompt, and its rows are not scored";
    mnnkv_session_destroy(session);
    ASSERT_TRUE(ok(create_with_defaults(R"({"kv_h2o_prefill_queries": 1})",
                                        R"({"kv_h2o_enable": true, "kv_h2o_policy": "mass",
                                            "kv_h2o_prefill_queries": 0})", &session)));
    EXPECT_TRUE(ok(mnnkv_session_scored_rows(session, 2, 1, &rows, &block_tokens)));
    EXPECT_EQ(rows, 1u) << "the config wins";
    mnnkv_session_destroy(session);
}

TEST_F(BadSessionConfig, TextThatIsNoObjectIsRefused) {
    for (const char* const text :
         {"[]", "[{}]", "3", "-0.5e3", "\"kv_h2o_enable\"", "null", "true", " ", "\n", "{", "}", "{}{}", "{},", "{} x",
          "{\"kv_h2o_enable\"", "{\"kv_h2o_enable\":", "{\"kv_h2o_enable\": tru", "{\"kv_h2o_enable\": true",
          "{\"kv_h2o_enable\": true,}", "{'kv_h2o_enable': true}", "{kv_h2o_enable: true}", "{\"a\": 01}",
          "{\"a\": NaN}", "{\"a\": \"\t\"}", "{\"a\": \"\\x\"}", "// {}", "{\"a\": 1e999}", "{\"a\": \"\\ud800\"}"}) {
        SCOPED_TRACE(text);
        expect_config_refused("config", text);
    }
    expect_config_refused("config", std::string("{\"a\": 1}\0", 9));
    expect_config_refused("config", std::string(1, '\0'));
    // Every beginning of a good config.
    const std::string good = R"({"kv_h2o_enable": true, "host": [1, {"x": "\u00e9"}]})";
    for (std::size_t length = 1; length < good.size(); ++length) {
        expect_config_refused("config", good.substr(0, length));
    }
}

TEST_F(BadSessionConfig, InvalidUtf8IsRefused) {
    for (const char* const text : {"\xff", "{\"\x80\": 1}", "{\"a\": \"\xc3\"}", "{\"a\": \"\xed\xa0\x80\"}",
                                   "{\"a\": \"\xc0\xaf\"}", "{}\xf5", "\xef\xbb\xbf{}\xff"}) {
        expect_config_refused("UTF-8", text);
    }
}

TEST_F(BadSessionConfig, GarbageOfOneMegabyteIsRefused) {
    SEEDED_DICE(random, 1401);
    const bytes noise = random.noise(1 << 20);
    expect_config_refused("config", std::string(noise.begin(), noise.end()));
    expect_config_refused("config", std::string(1 << 20, '['));
    expect_config_refused("config", std::string(1 << 20, '{'));
    expect_config_refused("config", std::string(1 << 20, ' '));
    std::string deep;
    for (int i = 0; i < 100000; ++i) {
        deep += "{\"a\":";
    }
    expect_config_refused("config", deep);
    expect_config_refused("kv_h2o_target_mode", R"({"kv_h2o_target_mode": ")" + std::string(1 << 20, 'x') + "\"}");
}

TEST_F(BadSessionConfig, WrongTypesAndRangesNameTheKey) {
    const char* const switches[] = {"kv_h2o_enable", "kv_h2o_log_stats", "kv_lossless_enable",
                                    "kv_lossless_runtime_enable", "kv_lossless_strict_roundtrip_check"};
    for (const std::string key : switches) {
        for (const char* const value : {"1", "0", "\"true\"", "null", "[]", "{}"}) {
            expect_config_refused(key, "{\"" + key + "\": " + value + "}");
        }
    }
    const struct {
        const char *key, *below, *above;
    } numbers[] = {
        {"kv_h2o_layer_start", "-1", "65536"},
        {"kv_h2o_layer_end", "-2", "65536"},
        {"kv_h2o_block_tokens", "-1", "65537"},
        {"kv_h2o_sink_tokens", "-1", "2147483648"},
        {"kv_h2o_recent_tokens", "-1", "2147483648"},
        {"kv_h2o_target_keep_ratio", "-0.001", "1.001"},
        {"kv_h2o_target_lossy_ratio", "0.999", "1000001"},
        {"kv_h2o_max_tokens", "-1", "2147483648"},
        {"kv_h2o_trigger_min_tokens", "-1", "2147483648"},
        {"kv_h2o_update_interval", "0", "2147483648"},
        {"kv_h2o_ema_alpha", "-0.1", "1.1"},
        {"kv_h2o_prefill_queries", "-2", "2147483648"},
        {"kv_lossless_front_n", "-1", "65536"},
        {"kv_lossless_effort", "-1", "10"},
        {"kv_lossless_block_tokens", "0", "65537"},
        {"kv_lossless_hot_sink_tokens", "-1", "2147483648"},
        {"kv_lossless_hot_recent_tokens", "-1", "2147483648"},
        {"kv_lossless_store_bootstrap_tokens", "-1", "2147483648"},
        {"kv_lossless_store_grouped_step_tokens", "0", "2147483648"},
        {"kv_lossless_async_threads", "-2", "65"},
        {"kv_lossless_max_queue", "0", "65537"},
        {"kv_lossless_decode_cache_blocks", "-1", "65537"},
        {"kv_lossless_decode_cache_bytes", "-1", "1099511627777"},
        {"kv_lossless_pending_bytes", "-1", "1099511627777"},
    };
    for (const auto& n : numbers) {
        for (const std::string value : {n.below, n.above, "-1e300", "1e300", "18446744073709551616", "\"5\"", "true",
                                        "null", "[5]", "{\"a\": 5}"}) {
            SCOPED_TRACE(value);
            expect_config_refused(n.key, "{\"" + std::string(n.key) + "\": " + value + "}");
        }
    }
    const char* const names[] = {"kv_h2o_target_mode",  "kv_h2o_target_basis", "kv_h2o_aggregation",
                                 "kv_lossless_scope",   "kv_lossless_codec",   "kv_lossless_codec_runtime",
                                 "kv_lossless_runtime_mode"};
    for (const std::string key : names) {
        for (const char* const value : {"\"\"", "\"Adaptive\"", "\" static\"", "0", "true", "null", "[\"store\"]"}) {
            expect_config_refused(key, "{\"" + key + "\": " + value + "}");
        }
    }
}

TEST_F(BadSessionConfig, SettingsThatContradictEachOtherAreRefused) {
    expect_config_refused("kv_h2o_layer_end", R"({"kv_h2o_layer_start": 3, "kv_h2o_layer_end": 2})");
    expect_config_refused("kv_h2o_max_tokens", R"({"kv_h2o_max_tokens": 100})");
    // The bad key is found beside any other keys, and while its feature is off.
    expect_config_refused("kv_h2o_ema_alpha", R"({"a": 1, "kv_h2o_enable": false, "kv_h2o_ema_alpha": 7, "z": []})");
}

}  // namespace
