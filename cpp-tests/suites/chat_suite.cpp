// A chat that is saved and opened, through the wrappers.
#include "refusal.hpp"
#include "session_host.hpp"

#include <cstdio>
#include <fstream>
#include <memory>

#ifdef __unix__
#include "full_disk.hpp"
#endif

namespace {

using namespace support;

class Chat : public testing::Test {
protected:
    static constexpr std::uint32_t layers = 3;

    Chat() : random_(1918), path_(temp_path("chat")), other_(temp_path("other-chat")) { remove_files(); }
    ~Chat() override { remove_files(); }

    void remove_files() const {
        std::remove(path_.c_str());
        std::remove(other_.c_str());
    }

    /// A session whose layers have different packings, as those of different backends.
    void make(const std::string& config, std::uint32_t dims = 16) {
        hosts_.clear();
        session_ = of_model(config, "a model");
        for (std::uint32_t i = 0; i < layers; ++i) {
            const mnnkv_layout layout = make_layout(pack_modes[i % 8], 2, dims, 512, 64);
            hosts_.emplace_back(new session_layer(session_, i, layout, random_));
        }
    }

    static mnnkv::session of_model(const std::string& config, const std::string& model) {
        mnnkv_session_options options = mnnkv::make<mnnkv_session_options>();
        options.layers = layers;
        options.config_json = config.data();
        options.config_len = config.size();
        options.fingerprint = model.data();
        options.fingerprint_len = model.size();
        mnnkv::session session;
        EXPECT_TRUE(ok(session.create(options).code()));
        return session;
    }

    void step_all(std::uint32_t count) {
        for (auto& host : hosts_) {
            ASSERT_NO_FATAL_FAILURE(host->scored_step([](std::int32_t at) { return at % 7 + 1.0f; }, count));
        }
    }

    std::vector<mnnkv_cache> caches() {
        std::vector<mnnkv_cache> all;
        for (auto& host : hosts_) {
            all.push_back(host->cache());
        }
        return all;
    }

    mnnkv::status save(const std::string& path, std::uint64_t* written = nullptr) {
        return session_.save(path.c_str(), caches().data(), layers, written);
    }

    /// What a host has that frees its buffers: lengths alone.
    std::vector<mnnkv_cache> lengths() const {
        std::vector<mnnkv_cache> all(layers, mnnkv::make<mnnkv_cache>());
        for (std::uint32_t layer = 0; layer < layers; ++layer) {
            std::uint32_t logical = 0;
            EXPECT_TRUE(ok(session_.lengths(layer, logical, all[layer].kv_len).code()));
        }
        return all;
    }

    dice random_;
    const std::string path_, other_;
    mnnkv::session session_;
    std::vector<std::unique_ptr<session_layer>> hosts_;
};

std::string bytes_of(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

TEST_F(Chat, FreesItsBuffersBetweenTurnsAndGoesOnWithEveryTokenUnderAnyConfig) {
    for (const std::string& config : {std::string("{}"), object(evicting(), storing(0)), object(storing(2))}) {
        SCOPED_TRACE(config);
        remove_files();
        ASSERT_NO_FATAL_FAILURE(make(config));
        for (int turn = 0; turn < 4; ++turn) {
            ASSERT_NO_FATAL_FAILURE(step_all(60));
            std::uint64_t written = 0;
            ASSERT_TRUE(ok(save(path_, &written).code()));
            EXPECT_GT(written, 0u);
            ASSERT_TRUE(ok(session_.open().code()));
            for (auto& host : hosts_) {
                std::uint64_t released = 0;
                const mnnkv_cache cache = host->cache();
                ASSERT_TRUE(ok(mnnkv_kv_zero(cache.layout, cache.key, cache.value, 0, cache.kv_len)));
                ASSERT_TRUE(ok(mnnkv_kv_release(cache.layout, cache.key, cache.value, 0, cache.kv_len, &released)));
            }
            EXPECT_TRUE(ok(session_.save(nullptr, lengths().data(), layers, &written).code())) << "it needs no caches";
            EXPECT_EQ(written, 0u) << "nothing is new";
            const std::int32_t len = static_cast<std::int32_t>(hosts_[0]->logical_length());
            EXPECT_TRUE(ok(hosts_[0]->keep({0, len - 3})));
            for (auto& host : hosts_) {
                ASSERT_NO_FATAL_FAILURE(host->step());
            }
        }
    }
}

TEST_F(Chat, IsSavedTurnByTurnAndGoesOnInAnotherSessionWithOtherPackings) {
    const std::string config = object(evicting(), storing(0));
    ASSERT_NO_FATAL_FAILURE(make(config));
    const std::vector<mnnkv_cache> before = lengths();
    std::uint64_t first = 0, written = 0;
    for (int turn = 0; turn < 4; ++turn) {
        ASSERT_NO_FATAL_FAILURE(step_all(60));
        ASSERT_TRUE(ok(session_.put("history", "ids", 3).code()) && ok(session_.put("empty", nullptr, 0).code()));
        ASSERT_TRUE(ok(save(path_, &written).code()));
        first = turn == 0 ? written : first;
    }
    EXPECT_LT(written, first * 2) << "a turn of so many tokens, not the chat";
    const mnnkv_status busy = of_model(config, "a model").open(path_.c_str()).code();
    EXPECT_TRUE(answers(busy, MNNKV_BUSY)) << "two writers";
    ASSERT_TRUE(ok(save(other_).code())) << "the chat moves there";

    const mnnkv_status stale = of_model(config, "another").open(path_.c_str()).code();
    EXPECT_TRUE(answers(stale, MNNKV_STALE));
    mnnkv::session next = of_model(config, "a model");
    ASSERT_TRUE(ok(next.open(path_.c_str()).code()));
    std::string history;
    std::vector<char> empty(3);
    EXPECT_TRUE(ok(next.get("history", history).code()) && ok(next.get("empty", empty).code()));
    EXPECT_EQ(history, "ids");
    EXPECT_TRUE(empty.empty());
    for (std::uint32_t layer = 0; layer < layers; ++layer) {
        session_layer& old = *hosts_[layer];
        std::uint32_t logical = 0, physical = 0;
        ASSERT_TRUE(ok(next.lengths(layer, logical, physical).code()));
        EXPECT_EQ(logical, old.logical_length());
        EXPECT_EQ(physical, old.length());
        ASSERT_TRUE(ok(old.begin())) << "applies the plan, as the opened one does";
        const mnnkv_layout layout = make_layout(pack_modes[(layer + 3) % 8], 2, 16, 512, 64);
        session_layer other(next, layer, layout, random_);
        mnnkv_cache cache = other.cache();
        cache.kv_len = physical;
        if (old.layout().key_dtype != layout.key_dtype || old.layout().value_dtype != layout.value_dtype) {
            EXPECT_TRUE(refuses(bad, "layout", [&] { return next.begin(layer, cache).code(); }));
            continue;
        }
        ASSERT_TRUE(ok(next.begin(layer, cache).code()));
        ASSERT_EQ(cache.kv_len, old.length());
        std::uint64_t key_bytes = 0, value_bytes = 0;
        ASSERT_TRUE(ok(mnnkv_layout_check(&layout, &key_bytes, &value_bytes)));
        const std::size_t room = static_cast<std::size_t>(key_bytes + value_bytes);
        bytes mine[2] = {bytes(room), bytes(room)}, theirs[2] = {bytes(room), bytes(room)};
        const auto gather = [&](const mnnkv_cache& from, bytes (&to)[2]) {
            return mnnkv_kv_gather(from.layout, from.key, from.value, 0, cache.kv_len, to[0].data(), to[1].data(), room);
        };
        cache.layout = &layout;
        ASSERT_TRUE(ok(gather(old.cache(), mine)) && ok(gather(cache, theirs)));
        EXPECT_TRUE(mine[0] == theirs[0] && mine[1] == theirs[1]) << "layer " << layer;
    }
}

TEST_F(Chat, BadCallsAreRefusedAndChangeNothing) {
    ASSERT_NO_FATAL_FAILURE(make("{}"));
    ASSERT_NO_FATAL_FAILURE(step_all(20));
    const std::vector<mnnkv_cache> good = caches();
    std::vector<mnnkv_cache> longer = good, missing = good, sizeless = good;
    ++longer[1].kv_len;
    missing[1].layout = nullptr;
    missing[2] = mnnkv::make<mnnkv_cache>();
    missing[2].kv_len = good[2].kv_len;
    sizeless[0].struct_size = 0;
    mnnkv_session* const live = session_.get();
    slot<std::uint64_t> written;
    slot<std::size_t> len;
    const auto save = [&](const char* path, const mnnkv_cache* all, std::uint32_t count) {
        return mnnkv_session_save(live, path, all, count, written.get());
    };
    const char* const path = path_.c_str();
    expect_refused(
        {
            {bad, "session", [&] { return mnnkv_session_save(nullptr, path, good.data(), layers, written.get()); }},
            {bad, "path", [&] { return save(nullptr, good.data(), layers); }},
            {bad, "path", [&] { return save("", good.data(), layers); }},
            {bad, "caches", [&] { return save(path, nullptr, layers); }},
            {bad, "2 caches", [&] { return save(path, good.data(), 2); }},
            {bad, "struct_size", [&] { return save(path, sizeless.data(), layers); }},
            {bad, "kv_len", [&] { return save(path, longer.data(), layers); }},
            {bad, "layout", [&] { return save(path, missing.data(), layers); }},
            {bad, "path", [&] { return session_.open().code(); }},
            {bad, "path", [&] { return session_.open("").code(); }},
            {bad, "session", [&] { return mnnkv_session_open(nullptr, path); }},
            {MNNKV_NOT_FOUND, path_, [&] { return session_.open(path).code(); }},
            {MNNKV_NOT_FOUND, "/nowhere/chat", [&] { return save("/nowhere/chat", good.data(), layers); }},
            {bad, "name", [&] { return session_.put(nullptr, "a", 1).code(); }},
            {bad, "name", [&] { return session_.put("", "a", 1).code(); }},
            {bad, "256 bytes", [&] { return session_.put(std::string(256, 'n').c_str(), "a", 1).code(); }},
            {bad, "bytes", [&] { return session_.put("a", nullptr, 1).code(); }},
            {bad, "session", [&] { return mnnkv_session_get(nullptr, "a", nullptr, 0, len.get()); }},
            {bad, "name", [&] { return mnnkv_session_get(live, nullptr, nullptr, 0, len.get()); }},
            {bad, "out", [&] { return mnnkv_session_get(live, "a", nullptr, 9, len.get()); }},
            {bad, "len", [&] { return mnnkv_session_get(live, "a", nullptr, 0, nullptr); }},
            {MNNKV_NOT_FOUND, "\"a\"", [&] { return mnnkv_session_get(live, "a", nullptr, 0, len.get()); }},
        },
        written, len);
    EXPECT_EQ(bytes_of(path_), "");
    ASSERT_TRUE(ok(session_.put("a", "12345", 5).code()));
    bytes out(4, 0x5A);
    std::size_t needed = 0;
    EXPECT_TRUE(answers(mnnkv_session_get(live, "a", out.data(), out.size(), &needed), MNNKV_BUFFER_TOO_SMALL));
    EXPECT_TRUE(needed == 5 && out == bytes(4, 0x5A));
    ASSERT_TRUE(ok(hosts_[1]->begin()));
    EXPECT_TRUE(refuses(bad, "layer 1 is open", [&] { return save(path, good.data(), layers); }));
    EXPECT_TRUE(refuses(bad, "layer 1 is open", [&] { return session_.open(path).code(); }));
    ASSERT_TRUE(ok(hosts_[1]->end(0, 0)));
    ASSERT_TRUE(ok(save(path, good.data(), layers)));
    std::ofstream(other_) << "a file of the host";
    EXPECT_TRUE(refuses(MNNKV_IO, other_, [&] { return save(other_.c_str(), good.data(), layers); }));
    EXPECT_EQ(bytes_of(other_), "a file of the host");
    EXPECT_TRUE(refuses(MNNKV_CORRUPT, other_, [&] { return session_.open(other_.c_str()).code(); }));
    for (auto& host : hosts_) {
        ASSERT_NO_FATAL_FAILURE(host->step());
    }
}

TEST_F(Chat, OfADamagedFileIsRefusedWithThePartThatIsDamaged) {
    ASSERT_NO_FATAL_FAILURE(make("{}"));
    ASSERT_NO_FATAL_FAILURE(step_all(100));
    ASSERT_TRUE(ok(session_.put("history", "ids", 3).code()) && ok(save(path_).code()) && ok(save(other_).code()));
    const std::string good = bytes_of(path_);
    int refused = 0;
    for (std::size_t at = 0; at < good.size(); at += good.size() / 97) {
        std::string damaged = good;
        damaged[at] = static_cast<char>(damaged[at] ^ 4);
        std::ofstream(path_, std::ios::binary) << damaged;
        mnnkv::session next = of_model("{}", "a model");
        const mnnkv::status opened = next.open(path_.c_str());
        if (!opened) {
            ++refused;
            EXPECT_TRUE(answers(opened.code(), MNNKV_CORRUPT)) << "byte " << at;
            EXPECT_NE(std::string(opened.message()).find("offset"), std::string::npos) << opened.message();
            continue;
        }
        for (std::uint32_t layer = 0; layer < layers; ++layer) {
            session_layer other(next, layer, hosts_[layer]->layout(), random_);
            mnnkv_cache cache = other.cache();
            cache.kv_len = hosts_[layer]->length();
            EXPECT_TRUE(ok(next.begin(layer, cache).code())) << "byte " << at << " is of no token";
        }
    }
    EXPECT_GT(refused, 60);
}

#ifdef __unix__
TEST_F(Chat, KeepsItsLastSaveWhereTheDiskIsFull) {
    ASSERT_NO_FATAL_FAILURE(make("{}"));
    ASSERT_NO_FATAL_FAILURE(step_all(100));
    ASSERT_TRUE(ok(session_.put("turn", "1", 1).code()) && ok(save(path_).code()));
    const std::string before = bytes_of(path_);
    ASSERT_NO_FATAL_FAILURE(step_all(300));
    ASSERT_TRUE(ok(session_.put("turn", "2", 1).code()));
    for (const std::size_t more : {0u, 1u, 4000u, 9000u}) {
        {
            const full_disk disk(before.size() + more);
            EXPECT_TRUE(refuses(MNNKV_IO, path_, [&] { return save(path_).code(); }));
            EXPECT_TRUE(refuses(MNNKV_IO, other_, [&] { return save(other_).code(); }));
        }
        EXPECT_TRUE(bytes_of(path_) == before) << more << " bytes of room";
        EXPECT_EQ(bytes_of(other_), "");
    }
    std::string turn;
    ASSERT_TRUE(ok(save(path_).code()) && ok(save(other_).code()));
    mnnkv::session next = of_model("{}", "a model");
    ASSERT_TRUE(ok(next.open(path_.c_str()).code()) && ok(next.get("turn", turn).code()));
    EXPECT_EQ(turn, "2");
    ASSERT_NO_FATAL_FAILURE(step_all(1));
}

TEST_F(Chat, IsSavedInItsFileWhereTheDiskHasNoRoomToWriteItAnew) {
    for (const bool has_room : {true, false}) {
        SCOPED_TRACE(has_room);
        remove_files();
        ASSERT_NO_FATAL_FAILURE(make("{}", 512));
        ASSERT_NO_FATAL_FAILURE(step_all(300));
        ASSERT_TRUE(ok(save(path_).code()));
        const std::size_t all = bytes_of(path_).size();
        ASSERT_NO_FATAL_FAILURE(hosts_[0]->clear());
        ASSERT_NO_FATAL_FAILURE(hosts_[1]->clear());
        ASSERT_TRUE(ok(save(path_).code())) << "two thirds of the file are free now";
        ASSERT_NO_FATAL_FAILURE(hosts_[2]->step());
        {
            // A quarter is less than what the third layer has.
            const full_disk disk(has_room ? all : all / 4);
            ASSERT_TRUE(ok(save(path_).code()));
        }
        EXPECT_EQ(bytes_of(path_).size() < all / 2, has_room);
        ASSERT_TRUE(ok(session_.open().code()));
        const mnnkv_cache cache = hosts_[2]->cache();
        ASSERT_EQ(cache.kv_len, 301u);
        ASSERT_TRUE(ok(mnnkv_kv_zero(cache.layout, cache.key, cache.value, 0, cache.kv_len)));
        ASSERT_NO_FATAL_FAILURE(hosts_[2]->step());
    }
}
#endif

}  // namespace
