// The report of a session: what it does, warnings, and numbers in total and per layer.

#include "session_host.hpp"

#include <atomic>
#include <thread>

namespace {

using namespace support;

TEST(SessionReport, HasNoNumbersAtFirst) {
    for (const std::string& config : {std::string("{}"), object(evicting(), storing(2))}) {
        mnnkv::session session = made_session(config, 3);
        const session_report now = report_of(session);
        EXPECT_NE(now.does(), "");
        EXPECT_EQ(now.text(), "{\"does\":" + mnnkv_host::json_quoted(now.does()) + ",\"warnings\":[],\"layers\":[]}");
    }
    EXPECT_EQ(report_of(made_session("{}", 3)).does(), "all layers keep all tokens");
}

TEST(SessionReport, HasTheNumbersOfEachLayerAndTheirSums) {
    SEEDED_DICE(random, 1301);
    mnnkv::session session = made_session(object(evicting(), storing(2)), 6);
    session_layer layers[] = {{session, 1, half_layout(300), random}, {session, 4, half_layout(300), random}};
    for (int step = 0; step < 30; ++step) {
        for (session_layer& layer : layers) {
            ASSERT_NO_FATAL_FAILURE(layer.scored_step(favouring(40, 60), step == 0 ? 150 : 1));
        }
    }
    const session_report now = report_of(session);
    const json all = json_reader(now.text()).read();
    ASSERT_EQ(all["layers"].items.size(), 2u) << "layers that were never named are absent";
    double logical = 0, physical = 0;
    for (std::size_t i = 0; i < 2; ++i) {
        const std::uint32_t number = layers[i].number();
        EXPECT_EQ(all["layers"].items[i]["layer"].u32(), number);
        EXPECT_EQ(now.layer(number, "h2o_logical_tokens"), layers[i].logical_length());
        EXPECT_EQ(now.layer(number, "h2o_physical_tokens"), layers[i].length());
        EXPECT_GT(now.layer(number, "h2o_plan_count"), 0);
        logical += layers[i].logical_length();
        physical += layers[i].length();
    }
    EXPECT_EQ(now.number("h2o_logical_tokens"), logical);
    EXPECT_EQ(now.number("h2o_physical_tokens"), physical);
    EXPECT_NEAR(now.number("h2o_lossy_ratio"), logical / physical, 1e-12);
    EXPECT_EQ(now.number("h2o_plan_count"), now.layer(1, "h2o_plan_count") + now.layer(4, "h2o_plan_count"));
    EXPECT_FALSE(now.has("h2o_over_limit_count") || now.has("memory")) << "not measured";
}

TEST(SessionReport, IsReadBesideEveryOtherCall) {
    SEEDED_DICE(random, 1305);
    mnnkv::session session = made_session(object(evicting(), storing(1)), 2, 2);
    session_layer layer(session, 0, half_layout(400), random);
    std::atomic<bool> done{false};
    std::atomic<int> wrong{0}, reads{0};
    std::thread reader([&] {
        double evicted = 0;
        while (!done) {
            std::string text;
            std::uint32_t logical = 0, physical = 1;
            std::size_t n = 0;
            wrong += !session.report(text) || !session.lengths(0, logical, physical) || physical > logical;
            const double now = mnnkv_host::json_number_of(text, "h2o_total_evict_tokens");
            wrong += now < evicted;
            const mnnkv_status runs = session.positions(0, MNNKV_IN_CACHE, nullptr, 0, n).code();
            wrong += runs != MNNKV_OK && runs != MNNKV_BUFFER_TOO_SMALL;
            evicted = now;
            ++reads;
        }
    });
    for (int step = 0; step < 60 && !HasFailure(); ++step) {
        const std::uint32_t count = step == 0 ? 160 : 1;
        EXPECT_TRUE(ok(layer.begin(count)));
        layer.append(count);
        std::thread other([&] { wrong += layer.score(1, 1, favouring(0, 50)) != MNNKV_OK; });
        EXPECT_TRUE(ok(layer.score(0, 0, favouring(0, 50))));
        other.join();
        EXPECT_TRUE(ok(layer.end(2, count)));
    }
    done = true;
    reader.join();
    EXPECT_EQ(wrong, 0);
    EXPECT_GT(reads, 0);
    EXPECT_TRUE(layer.sound());
}

TEST(SessionReport, GoesIntoAnythingThatResizesAndKeepsEveryLetter) {
    const std::string config = R"({"kv_h2o_\"\\\u00e9": 1, "kv_h2o_nonsense": 1})";
    mnnkv::session session;
    ASSERT_TRUE(ok(session.create(config.data(), config.size(), 1, 1).code()));
    std::string string = "left over";
    std::vector<char> chars(500, 'x');
    ASSERT_TRUE(ok(session.report(string).code()));
    ASSERT_TRUE(ok(session.report(chars).code()));
    EXPECT_EQ(std::string(chars.begin(), chars.end()), string);
    const std::string lines = session_report(string).warnings();
    EXPECT_NE(lines.find("kv_h2o_\\\"\\\\\xc3\xa9 is not a key"), std::string::npos) << lines;
    EXPECT_NE(lines.find("\nkv_h2o_nonsense is not a key"), std::string::npos) << lines;
}

}  // namespace
