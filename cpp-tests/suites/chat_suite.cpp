// A chat that is parked, saved and loaded, through the wrappers.
#include "refusal.hpp"
#include "session_host.hpp"

#include <cstdio>
#include <memory>
#include <unistd.h>

namespace {

using namespace support;

mnnkv_snapshot_options at(const std::string& path, std::uint32_t access) {
    mnnkv_snapshot_options options = mnnkv::make<mnnkv_snapshot_options>();
    options.abi_version = MNNKV_ABI_VERSION;
    options.path = path.c_str();
    options.fingerprint = "a model";
    options.fingerprint_len = 7;
    options.access = access;
    return options;
}

class Chat : public testing::Test {
protected:
    static constexpr std::uint32_t layers = 3;

    Chat() : random_(1918), path_("mnnkv_chat_" + std::to_string(getpid()) + ".kv") { std::remove(path_.c_str()); }
    ~Chat() override { std::remove(path_.c_str()); }

    /// A session whose layers have different packings, as those of different backends.
    void make(const std::string& config, std::size_t first_mode = 0) {
        hosts_.clear();
        session_ = made_session(config, layers);
        for (std::uint32_t i = 0; i < layers; ++i) {
            const mnnkv_layout layout = make_layout(pack_modes[(first_mode + i) % 8], 2, 16, 512, 64);
            hosts_.emplace_back(new session_layer(session_, i, layout, random_));
        }
    }

    template <class Body>
    void each(Body body) {
        for (auto& host : hosts_) {
            ASSERT_NO_FATAL_FAILURE(body(*host));
        }
    }

    mnnkv_parked park(std::uint32_t layer, const mnnkv_park_options* options = nullptr) {
        mnnkv_parked parked = mnnkv::make<mnnkv_parked>();
        mnnkv_cache cache = hosts_[layer]->cache();
        EXPECT_TRUE(ok(session_.park(layer, options, cache, &parked).code()));
        return parked;
    }

    dice random_;
    std::string path_;
    mnnkv::session session_;
    std::vector<std::unique_ptr<session_layer>> hosts_;
};

TEST_F(Chat, ParkedLayersGoOnWithEveryTokenUnderAnyConfig) {
    for (const std::string& config : {std::string("{}"), object(evicting(), storing(0)), object(storing(2))}) {
        SCOPED_TRACE(config);
        ASSERT_NO_FATAL_FAILURE(make(config));
        for (int turn = 0; turn < 4; ++turn) {
            each([&](session_layer& host) { host.scored_step([](std::int32_t at) { return at % 7 + 1.0f; }, 60); });
            for (std::uint32_t layer = 0; layer < layers; ++layer) {
                EXPECT_GT(park(layer).encoded_bytes, 0u);
                EXPECT_EQ(park(layer).raw_bytes, 0u) << "it is parked already";
                EXPECT_EQ(hosts_[layer]->compressed_tokens(), hosts_[layer]->length());
            }
            EXPECT_GT(report_of(session_).number("h2o_parked_raw_bytes"), report_of(session_).number("h2o_parked_bytes") * 0.9);
            const std::int32_t len = static_cast<std::int32_t>(hosts_[0]->logical_length());
            EXPECT_TRUE(ok(hosts_[0]->keep({0, len - 3})));
            each([&](session_layer& host) { host.step(); });
        }
        EXPECT_EQ(report_of(session_).number("h2o_parked_bytes"), 0.0);
    }
}

TEST_F(Chat, IsSavedStepByStepAndGoesOnInAnotherSessionWithOtherPackings) {
    const std::string config = object(evicting(), storing(0));
    ASSERT_NO_FATAL_FAILURE(make(config));
    mnnkv::snapshot file;
    ASSERT_TRUE(ok(file.create(at(path_, 0)).code()));
    std::uint32_t logical[layers], physical[layers];
    std::vector<pair_list> positions;
    for (int turn = 0; turn < 4; ++turn) {
        positions.clear();
        for (std::uint32_t layer = 0; layer < layers; ++layer) {
            session_layer& host = *hosts_[layer];
            host.scored_step([](std::int32_t at) { return at % 7 + 1.0f; }, 60);
            std::uint32_t written = 0;
            mnnkv_cache cache = host.cache();
            ASSERT_TRUE(ok(file.append(session_, layer, nullptr, cache, &written).code()));
            EXPECT_EQ(written, 60u);
            ASSERT_TRUE(ok(session_.lengths(layer, logical[layer], physical[layer]).code()));
            positions.push_back(host.positions());
        }
        ASSERT_TRUE(ok(file.put("history", "ids", 3).code()));
        ASSERT_TRUE(ok(file.commit().code()));
    }
    file.reset();

    ASSERT_TRUE(ok(file.open(at(path_, MNNKV_SNAPSHOT_READ)).code()));
    std::string history;
    EXPECT_TRUE(ok(file.section("history", history).code()));
    EXPECT_EQ(history, "ids");
    mnnkv::session next = made_session(config, layers), sharing = made_session("{}", layers);
    ASSERT_TRUE(ok(file.load(next).code()));
    ASSERT_TRUE(ok(file.load(sharing, 1).code())) << "and a second one";
    file.reset();
    for (std::uint32_t layer = 0; layer < layers; ++layer) {
        std::uint32_t l = 0, p = 0;
        ASSERT_TRUE(ok(next.lengths(layer, l, p).code()));
        EXPECT_EQ(l, logical[layer]);
        EXPECT_EQ(p, physical[layer]);
        session_layer& old = *hosts_[layer];
        ASSERT_TRUE(ok(old.begin())) << "applies the plan, as the loaded one does";
        const mnnkv_layout layout = make_layout(pack_modes[(layer + 3) % 8], 2, 16, 512, 64);
        session_layer other(sharing, layer, layout, random_);
        mnnkv_cache cache = mnnkv::make<mnnkv_cache>();
        cache.layout = &layout;
        cache.key = other.key();
        cache.value = other.value();
        cache.kv_len = p;
        if (old.layout().key_dtype != layout.key_dtype || old.layout().value_dtype != layout.value_dtype) {
            EXPECT_TRUE(refuses(bad, "layout", [&] { return next.begin(layer, cache).code(); }));
            continue;
        }
        ASSERT_TRUE(ok(next.begin(layer, cache).code()));
        ASSERT_EQ(cache.kv_len, old.length());
        bytes mine[2], theirs[2];
        std::uint64_t key_bytes = 0, value_bytes = 0;
        ASSERT_TRUE(ok(mnnkv_layout_check(&layout, &key_bytes, &value_bytes)));
        const std::size_t room = static_cast<std::size_t>(key_bytes + value_bytes);
        for (bytes* rows : {&mine[0], &mine[1], &theirs[0], &theirs[1]}) {
            rows->resize(room);
        }
        mnnkv_cache before = old.cache();
        ASSERT_TRUE(ok(mnnkv_kv_gather(&old.layout(), before.key, before.value, 0, cache.kv_len, mine[0].data(),
                                       mine[1].data(), room)));
        ASSERT_TRUE(ok(mnnkv_kv_gather(&layout, cache.key, cache.value, 0, cache.kv_len, theirs[0].data(),
                                       theirs[1].data(), room)));
        EXPECT_TRUE(mine[0] == theirs[0] && mine[1] == theirs[1]) << "layer " << layer;
    }
}

TEST_F(Chat, BadCallsAreRefusedAndChangeNothing) {
    ASSERT_NO_FATAL_FAILURE(make("{}"));
    each([&](session_layer& host) { host.step(20); });
    mnnkv::snapshot file, readonly;
    ASSERT_TRUE(ok(file.create(at(path_, 0)).code()));
    mnnkv_cache cache = hosts_[0]->cache();
    mnnkv_cache longer = cache, missing = mnnkv::make<mnnkv_cache>();
    ++longer.kv_len;
    missing.kv_len = cache.kv_len;
    mnnkv_park_options options = mnnkv::make<mnnkv_park_options>();
    options.effort = 10;
    slot<std::uint32_t> written;
    const auto append = [&](std::uint32_t layer, mnnkv_cache& given) {
        return mnnkv_snapshot_append(file.get(), session_.get(), layer, nullptr, &given, written.get());
    };
    expect_refused(
        {
            {bad, "effort", [&] { return session_.park(0, &options, cache).code(); }},
            {bad, "layer", [&] { return session_.park(3, nullptr, cache).code(); }},
            {bad, "kv_len", [&] { return session_.park(0, nullptr, longer).code(); }},
            {bad, "interrupted", [&] { return mnnkv_session_interrupt(session_.get(), 2); }},
            {bad, "session", [&] { return mnnkv_session_park(nullptr, 0, nullptr, &cache, nullptr); }},
            {bad, "layer", [&] { return append(3, cache); }},
            {bad, "kv_len", [&] { return append(0, longer); }},
            {bad, "cache", [&] { return append(0, missing); }},
            {bad, "snapshot", [&] { return mnnkv_snapshot_load(nullptr, session_.get(), 0); }},
            {MNNKV_NOT_FOUND, "layer 0", [&] { return file.load(session_, 0).code(); }},
        },
        written);
    ASSERT_TRUE(ok(session_.interrupt().code()));
    EXPECT_TRUE(refuses(MNNKV_BUSY, "interrupted", [&] { return session_.park(0, nullptr, cache).code(); }));
    EXPECT_TRUE(refuses(MNNKV_BUSY, "interrupted", [&] { return append(0, cache); }));
    each([&](session_layer& host) { host.step(); });
    EXPECT_GT(park(0).raw_bytes, 0u) << "a begin ends the interruption";
    missing.kv_len = hosts_[0]->length();
    EXPECT_TRUE(ok(file.append(session_, 0, nullptr, missing).code())) << "a parked layer needs no cache";
    ASSERT_TRUE(ok(session_.interrupt().code()));
    EXPECT_TRUE(refuses(MNNKV_BUSY, "interrupted", [&] { return append(0, missing); }));
    ASSERT_TRUE(ok(session_.interrupt(false).code()));
    EXPECT_TRUE(ok(append(0, missing))) << "without a begin";
    ASSERT_TRUE(ok(hosts_[1]->begin()));
    EXPECT_TRUE(refuses(bad, "open", [&] { return file.load(session_).code(); }));
    mnnkv_cache open = hosts_[1]->cache();
    EXPECT_TRUE(refuses(bad, "open", [&] { return session_.park(1, nullptr, open).code(); }));
    ASSERT_TRUE(ok(hosts_[1]->end(0, 0)));
    each([&](session_layer& host) { host.step(); });
}

}  // namespace
