// Attention over quantised tokens by the C API, beside attention in f64 over the numbers that blocks have.

#include "budget_chat.hpp"

namespace {

using namespace support;

const char* const quantising = R"({"kv_quant": "k8v4"})";

TEST(Attend, EveryTokenIsAttendedToOnAnyNumberOfThreads) {
    Chat chat(quantising);
    const std::uint32_t threads[] = {1, 2, 3, 8};
    std::uint32_t tokens = 0;
    for (std::uint32_t at = 0; at < 40; ++at) {
        const std::uint32_t rows = at % 10 == 0 ? 500 : at % 7 == 0 ? 5 : 1;
        for (std::uint32_t layer = 0; layer < layers; ++layer) {
            ASSERT_NO_FATAL_FAILURE(chat.begin(layer, rows));
            ASSERT_EQ(chat.begun.attends, 1u);
            chat.attend(layer, rows, threads[(at + layer) % 4]);
            ASSERT_TRUE(ok(chat.end(layer, rows)));
        }
        tokens += rows;
        EXPECT_LT(chat.distance(), rounding) << "step " << at;
    }
    std::int32_t runs[2] = {};
    std::size_t count = 0;
    ASSERT_TRUE(ok(chat.session.positions(0, kv_heads - 1, runs, 1, count).code())) << "each token is attended to";
    EXPECT_EQ((std::vector<std::int32_t>{0, static_cast<std::int32_t>(tokens)}), std::vector<std::int32_t>(runs, runs + 2));
    EXPECT_EQ(chat.session.positions(0, MNNKV_IN_CACHE, runs, 1, count).code(), MNNKV_BUFFER_TOO_SMALL);
    EXPECT_EQ(count, 2u) << "the first and the newest tokens are in the cache";
    const session_report now = report_of(chat.session);
    const double quantised = now.layer(0, "quant_tokens");
    EXPECT_EQ(quantised, now.layer(0, "quant_block_count") * block);
    EXPECT_EQ(tokens, quantised + chat.cache(0).kv_len);
    EXPECT_LT(now.layer(0, "quant_bytes"), quantised * kv_heads * dims * 2 * 4 * 0.22) << "of f32";
}

TEST(Attend, LayersThatDoNotAttendAreTold) {
    mnnkv::session other;
    ASSERT_TRUE(ok(other.create(quantising, std::strlen(quantising), 1, 1).code()));
    mnnkv_cache empty = mnnkv::make<mnnkv_cache>();
    mnnkv_step begun = mnnkv::make<mnnkv_step>();
    ASSERT_TRUE(ok(other.begin(0, empty, begun).code()));
    EXPECT_EQ(begun.attends, 0u) << "the host has not said that it attends";
    const std::string warnings = report_of(other).warnings();
    EXPECT_NE(warnings.find("kv_quant has no effect"), std::string::npos) << warnings;
}

TEST(Attend, StepsThatDoNotFitAreRefusedAndUnharmed) {
    Chat chat(quantising);
    ASSERT_NO_FATAL_FAILURE(chat.step(300));
    ASSERT_NO_FATAL_FAILURE(chat.step(2));
    ASSERT_NO_FATAL_FAILURE(chat.begin(0, 2));
    mnnkv::session& session = chat.session;
    const mnnkv_attend good = chat.attention(0, 2);
    const mnnkv_cache now = chat.cache(0);
    const auto tried = [&](void (*spoil)(mnnkv_attend&)) {
        mnnkv_attend step = good;
        spoil(step);
        return mnnkv_session_attend(session.get(), 0, 0, 1, &now, &step);
    };
    const std::vector<bad_call> calls = {
        {bad, "queries", [&] { return tried([](mnnkv_attend& s) { s.queries = nullptr; }); }},
        {bad, "output", [&] { return tried([](mnnkv_attend& s) { s.output = nullptr; }); }},
        {bad, "heads", [&] { return tried([](mnnkv_attend& s) { s.heads = 5; }); }},
        {bad, "rows", [&] { return tried([](mnnkv_attend& s) { s.rows = 0; }); }},
        {bad, "dims", [&] { return tried([](mnnkv_attend& s) { s.head_dim = 32; }); }},
        {bad, "head_stride", [&] { return tried([](mnnkv_attend& s) { s.query_head_stride = 8; }); }},
        {bad, "stride", [&] { return tried([](mnnkv_attend& s) { s.output_row_stride = 4; }); }},
        {bad, "soft_cap", [&] { return tried([](mnnkv_attend& s) { s.soft_cap = -1; }); }},
        {bad, "scale", [&] { return tried([](mnnkv_attend& s) { s.scale = -1; }); }},
        {bad, "overlap", [&] { return tried([](mnnkv_attend& s) { s.sinks = static_cast<const float*>(s.output); }); }},
        {bad, "part is 2 of 2", [&] { return mnnkv_session_attend(session.get(), 0, 2, 2, &now, &good); }},
        {bad, "part is 0 of 0", [&] { return mnnkv_session_attend(session.get(), 0, 0, 0, &now, &good); }},
        {bad, "kv_head is 2",
         [&] {
             std::int32_t runs[2];
             std::size_t count;
             return session.positions(0, kv_heads, runs, 1, count).code();
         }},
        {bad, "layer is 3", [&] { return session.window(3, 100).code(); }},
        {bad, "layer 0 is open already", [&] { return session.window(0, 100).code(); }},
        {bad, "layer 0 is open already", [&] { return session.window(MNNKV_ALL_LAYERS, 100).code(); }},
        {bad, "2147483647 or less together", [&] { return session.window(1, UINT32_MAX).code(); }},
        {bad, "2147483647 or less together", [&] { return session.window(1, 1, INT32_MAX).code(); }},
        {bad, "layer is 3", [&] { return mnnkv_session_attend(session.get(), 3, 0, 1, &now, &good); }},
        {bad, "0 of 2 rows", [&] { return chat.end(0, 2); }},
    };
    expect_refused(calls);
    for (const float number : {std::nanf(""), INFINITY}) {
        chat.queries(0)[dims + 3] = number;
        EXPECT_TRUE(refuses(bad, "element 3 of row 0 of query head 1",
                            [&] { return mnnkv_session_attend(session.get(), 0, 0, 1, &now, &good); }));
    }
    chat.queries(0)[dims + 3] = 0.5f;
    const float mask[] = {0, -INFINITY, 0, std::nanf("")};
    mnnkv_attend masked = good;
    masked.mask = mask;
    masked.mask_tokens = 2;
    EXPECT_TRUE(refuses(bad, "element 1 of row 1 of the mask",
                        [&] { return mnnkv_session_attend(session.get(), 0, 0, 1, &now, &masked); }));
    ASSERT_TRUE(ok(session.attend(0, 0, 2, now, good).code()));
    EXPECT_TRUE(refuses(bad, "part 0 of 2 is given twice", [&] { return session.attend(0, 0, 2, now, good).code(); }));
    EXPECT_TRUE(refuses(bad, "part 1 of 2 has not attended", [&] { return chat.end(0, 2); }));
    ASSERT_TRUE(ok(session.attend(0, 1, 2, now, good).code()));
    ASSERT_TRUE(ok(chat.end(0, 2)));
    EXPECT_TRUE(ok(session.attend(0, 0, 1, now, good).code())) << "rows of a layer that reads this one";
    mnnkv_cache shorter = now;
    shorter.kv_len -= 1;
    EXPECT_TRUE(refuses(bad, "as the last call left it", [&] { return session.attend(0, 0, 1, shorter, good).code(); }));
    EXPECT_TRUE(ok(session.window(0, 100, 10).code()));
    EXPECT_NE(report_of(session).text().find("attend to the newest 100 tokens"), std::string::npos);
}

TEST(Attend, TakesStructsOfOtherHeaders) {
    Chat chat(quantising);
    ASSERT_NO_FATAL_FAILURE(chat.begin(0, 3));
    const mnnkv_cache now = chat.cache(0);
    std::uint32_t part = 0;
    check_sizes(chat.attention(0, 3), [&](const mnnkv_attend* step) {
        const mnnkv_status status = mnnkv_session_attend(chat.session.get(), 0, part, 64, &now, step);
        part += status == MNNKV_OK;
        return status;
    });
}

}  // namespace
