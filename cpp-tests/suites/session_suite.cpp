// Steps of a session in a host: no byte is lost, positions name the kept tokens, lengths agree.

#include "session_host.hpp"

#include <chrono>
#include <thread>

namespace {

using namespace support;

struct scenario {
    const char* name;
    pack_mode mode;
    bool flash;
    unsigned workers;
};

const scenario scenarios[] = {
    {"x86_avx2_inline", pack_modes[1], true, 0},
    {"arm64_fp16_one_worker", pack_modes[7], true, 1},
    {"sme2_f16_no_flash_three_workers", pack_modes[14], false, 3},
};

void PrintTo(const scenario& s, std::ostream* out) { *out << s.name; }

class SessionSteps : public testing::TestWithParam<scenario> {
protected:
    static mnnkv_layout layout_for(std::uint32_t max_tokens) {
        mnnkv_layout layout = make_layout(GetParam().mode, 2, 20, max_tokens, GetParam().flash ? 64 : max_tokens);
        layout.value_head_stride = packed_model(layout).value_head_bytes() + 24;
        return layout;
    }

    /// Steps without tokens until some are compressed: workers need time.
    static void step_until_compressed(session_layer& layer) {
        for (int i = 0; i < 1000 && layer.compressed_tokens() == 0; ++i) {
            ASSERT_NO_FATAL_FAILURE(layer.step(0));
            std::this_thread::sleep_for(std::chrono::milliseconds(i < 10 ? 1 : 10));
        }
        ASSERT_GT(layer.compressed_tokens(), 0u) << "nothing was ever compressed";
    }
};

TEST_P(SessionSteps, ReturnEveryByteAfterEveryBegin) {
    SEEDED_DICE(random, 1001);
    mnnkv::session session = made_session(object(storing(GetParam().workers)), 3);
    std::vector<session_layer> layers;
    for (std::uint32_t i = 0; i < 3; ++i) {
        layers.emplace_back(session, i, layout_for(300), random);
        ASSERT_NO_FATAL_FAILURE(layers[i].step(150));
    }
    for (int step = 0; step < 30 && !HasFailure(); ++step) {
        SCOPED_TRACE("step " + std::to_string(step));
        for (session_layer& layer : layers) {
            ASSERT_NO_FATAL_FAILURE(layer.step());
        }
    }
    const std::string warnings = report_of(session).warnings();
    if (warnings.find("tokens are compressed once all of their page are cold") != std::string::npos) {
        EXPECT_EQ(layers[0].compressed_tokens(), 0u) << "a page of V has more tokens than the chat";
        return;
    }
    for (session_layer& layer : layers) {
        ASSERT_NO_FATAL_FAILURE(step_until_compressed(layer));
        EXPECT_EQ(layer.length(), layer.logical_length()) << "nothing is evicted";
    }
    for (session_layer& layer : layers) {
        EXPECT_TRUE(ok(layer.begin())) << "which compares every byte";
    }
    const session_report now = report_of(session);
    EXPECT_GT(now.number("h2o_lossless_ratio"), 1.0);
    EXPECT_GT(now.number("h2o_lossless_restored_blocks"), 0.0);
    EXPECT_EQ(now.number("h2o_lossless_fallback_count"), 0.0);
}

TEST_P(SessionSteps, EvictTokensAndKeepTheOthersWhereTheySay) {
    // Scores favour tokens 64 to 80; store and eviction together must not disturb each other.
    SEEDED_DICE(random, 1002);
    const std::string config = object(evicting(), storing(GetParam().workers, R"("kv_lossless_scope": "h2o_kept")"));
    mnnkv::session session = made_session(config, 2);
    session_layer layers[] = {{session, 0, layout_for(400), random}, {session, 1, layout_for(400), random}};
    const weights weight = favouring(64, 80);
    for (int step = 0; step < 90 && !HasFailure(); ++step) {
        SCOPED_TRACE("step " + std::to_string(step));
        for (session_layer& layer : layers) {
            ASSERT_NO_FATAL_FAILURE(layer.scored_step(weight, step == 0 ? 180 : 1));
        }
    }
    for (session_layer& layer : layers) {
        EXPECT_EQ(layer.logical_length(), 180u + 89u);
        EXPECT_LT(layer.length(), 170u) << "half of the chat and what came since the last eviction";
        for (const std::int32_t kept : {0, 15, 64, 79, 238, 268}) {
            EXPECT_TRUE(layer.has(kept)) << "token " << kept << " is protected, or looked at most";
        }
    }
    const session_report now = report_of(session);
    EXPECT_EQ(now.number("h2o_total_evict_tokens"), now.number("h2o_logical_tokens") - now.number("h2o_physical_tokens"));
    EXPECT_NEAR(now.number("h2o_lossy_ratio"), 2.0, 0.35);
}

TEST_P(SessionSteps, TakeASecondPromptAndEditsOfTheHistory) {
    SEEDED_DICE(random, 1004);
    mnnkv::session session = made_session(object(evicting(), storing(GetParam().workers)), 1);
    session_layer layer(session, 0, layout_for(500), random);
    const weights weight = favouring(40, 60);
    for (int turn = 0; turn < 3 && !HasFailure(); ++turn) {
        SCOPED_TRACE("turn " + std::to_string(turn));
        ASSERT_NO_FATAL_FAILURE(layer.scored_step(weight, 120));
        for (int i = 0; i < 12; ++i) {
            ASSERT_NO_FATAL_FAILURE(layer.scored_step(weight));
        }
        const std::int32_t length = static_cast<std::int32_t>(layer.logical_length());
        ASSERT_TRUE(ok(layer.keep({0, length - 7})));  // rollback
        EXPECT_TRUE(layer.sound());
        ASSERT_TRUE(ok(layer.keep({0, 30, 37, length - 7 - 37})));  // erases seven tokens of the first turn
        EXPECT_TRUE(layer.sound());
        EXPECT_EQ(layer.logical_length(), static_cast<std::uint32_t>(length - 14));
    }
    EXPECT_GT(report_of(session).number("h2o_total_evict_tokens"), 0.0);
    EXPECT_TRUE(ok(layer.begin()));
}

INSTANTIATE_TEST_SUITE_P(EveryKindOfPacking, SessionSteps, testing::ValuesIn(scenarios),
                         [](const auto& tested) { return std::string(tested.param.name); });

TEST(Session, HasTwoLayersOpenAtOnce) {
    SEEDED_DICE(random, 1016);
    mnnkv::session session = made_session(object(evicting(), storing(1)), 2, 2);
    session_layer a(session, 0, half_layout(300), random), b(session, 1, half_layout(300), random);
    const weights first = favouring(32, 48), second = favouring(64, 80);
    for (int step = 0; step < 40 && !HasFailure(); ++step) {
        const std::uint32_t count = step == 0 ? 160 : 1;
        ASSERT_TRUE(ok(a.begin(count)));
        ASSERT_TRUE(ok(b.begin(count)));
        a.append(count);
        b.append(count);
        // Heads of both layers alternate, each in a lane of its own.
        for (std::uint32_t head = 0; head < 4; ++head) {
            ASSERT_TRUE(ok(a.score(head % 2, head, first)));
            ASSERT_TRUE(ok(b.score(head % 2, head, second)));
        }
        ASSERT_TRUE(ok(a.end(4, count)));
        ASSERT_TRUE(ok(b.end(4, count)));
        EXPECT_TRUE(a.sound() && b.sound());
    }
    EXPECT_TRUE(a.has(32) && a.has(47));
    EXPECT_TRUE(b.has(64) && b.has(79));
    EXPECT_NE(a.positions(), b.positions()) << "each by its own scores";
}

TEST(Session, SaysWhichRowsAreScored) {
    SEEDED_DICE(random, 1026);
    for (const int rows : {0, 4}) {
        const std::string config =
            evicting(R"("kv_h2o_layer_end": 0, "kv_h2o_prefill_queries": )" + std::to_string(rows));
        mnnkv::session session = made_session(object(config), 2);
        session_layer layer(session, 0, half_layout(300), random), other(session, 1, half_layout(300), random);
        const std::uint32_t of_prompts = static_cast<std::uint32_t>(rows);
        const auto scored_of = [](session_layer& of, std::uint32_t queries) {
            EXPECT_TRUE(ok(of.begin(queries)));
            mnnkv_cache cache = of.cache();
            EXPECT_TRUE(ok(of.session().abort(of.number(), cache).code()));
            return of.opened.scored_rows;
        };
        EXPECT_EQ(scored_of(layer, 1), rows > 0 ? 1u : 0u) << "the first step is a prompt";
        EXPECT_EQ(layer.opened.block_tokens, 16u);
        ASSERT_NO_FATAL_FAILURE(layer.step(100));
        EXPECT_EQ(scored_of(layer, 0), 0u);
        EXPECT_EQ(scored_of(layer, 1), 1u);
        EXPECT_EQ(scored_of(layer, 64), 64u);
        EXPECT_EQ(scored_of(layer, 65), of_prompts);
        EXPECT_EQ(scored_of(other, 1), 0u) << "no token of this layer goes";
        EXPECT_EQ(other.opened.block_tokens, 0u);
    }
}

TEST(Session, RestoresNothingOverTokensThatWereRewritten) {
    SEEDED_DICE(random, 1029);
    for (const unsigned workers : {0u, 1u}) {
        for (const bool open : {false, true}) {
            SCOPED_TRACE(testing::Message() << workers << " workers, open " << open);
            mnnkv::session session = made_session(object(storing(workers)), 1);
            session_layer layer(session, 0, half_layout(500), random);
            ASSERT_NO_FATAL_FAILURE(layer.step(300));
            for (int i = 0; i < 60; ++i) {
                ASSERT_NO_FATAL_FAILURE(layer.step());
                if (open) {
                    ASSERT_TRUE(ok(layer.begin()));
                }
                const std::uint32_t begin = random.between(0, layer.length());
                EXPECT_TRUE(ok(layer.rewrite(begin, random.between(0, layer.length() - begin))));
                if (open) {
                    ASSERT_TRUE(ok(layer.end(0, 1)));
                }
                EXPECT_TRUE(layer.sound());
            }
            EXPECT_TRUE(answers(session.rewritten(0, layer.length(), 1).code(), MNNKV_INVALID_ARGUMENT));
            EXPECT_TRUE(answers(session.rewritten(0, UINT32_MAX, UINT32_MAX).code(), MNNKV_INVALID_ARGUMENT));
            EXPECT_TRUE(answers(session.rewritten(1, 0, 0).code(), MNNKV_INVALID_ARGUMENT));
            ASSERT_TRUE(ok(layer.begin()));
        }
    }
}

TEST(Session, LeavesTheHostWithoutAHandleWhenMoved) {
    static_assert(std::is_nothrow_move_constructible<mnnkv::session>::value, "sessions move");
    static_assert(!std::is_copy_constructible<mnnkv::session>::value, "sessions do not copy");
    static_assert(!std::is_copy_assignable<mnnkv::session>::value, "sessions do not copy");
    mnnkv::session first = made_session("{}", 1);
    mnnkv_session* const handle = first.get();
    mnnkv::session second(std::move(first));
    EXPECT_EQ(second.get(), handle);
    mnnkv::session third = made_session("{}", 1);
    third = std::move(second);
    EXPECT_EQ(third.get(), handle);
    third.reset();
    third.reset();
    EXPECT_FALSE(third);

    std::uint32_t logical = 7, physical = 7;
    std::size_t n = 7;
    std::string text = "left over";
    mnnkv_step step = mnnkv::make<mnnkv_step>();
    mnnkv_cache cache = mnnkv::make<mnnkv_cache>();
    const mnnkv_block_sums sums = mnnkv::make<mnnkv_block_sums>();
    const mnnkv::status all[] = {third.reset_layer(0),
                                 third.reset_all(),
                                 third.begin(0, cache),
                                 third.block_sums(0, 0, sums),
                                 third.end(0, 0, 0, cache),
                                 third.abort(0, cache),
                                 third.rewritten(0, 0, 0),
                                 third.begin(0, cache, step),
                                 third.keep(0, nullptr, 0, cache),
                                 third.lengths(0, logical, physical),
                                 third.positions(0, MNNKV_IN_CACHE, nullptr, 0, n),
                                 third.report(text)};
    for (const mnnkv::status& status : all) {
        EXPECT_EQ(status.code(), MNNKV_INVALID_ARGUMENT);
    }
    EXPECT_NE(std::string(third.reset_all().message()).find("session"), std::string::npos);
    EXPECT_TRUE(logical == 7 && physical == 7 && n == 7 && text.empty());
    EXPECT_TRUE(ok(third.create(nullptr, 0, 1, 1).code())) << "a reset session can be made again";
    EXPECT_TRUE(ok(third.reset_all().code()));
}

}  // namespace
