// Snapshot files through the C ABI: by path and through functions of a host, struct sizes, refusals, damage.

#include "struct_sizes.hpp"

#include <cstdio>
#include <fstream>

namespace {

using namespace support;

/// Bytes in memory, as a host would keep them in a container of its own.
struct container {
    bytes data;
    int code = 0;

    mnnkv_snapshot_io io() {
        auto io = mnnkv::make<mnnkv_snapshot_io>();
        io.name = "container";
        io.user = this;
        io.size = [](void* user, std::uint64_t* size) {
            *size = self(user).data.size();
            return self(user).code;
        };
        io.read = [](void* user, std::uint64_t offset, void* to, std::size_t len) {
            std::memcpy(to, self(user).data.data() + offset, len);
            return self(user).code;
        };
        io.write = [](void* user, std::uint64_t offset, const void* from, std::size_t len) {
            bytes& all = self(user).data;
            all.resize(std::max(all.size(), static_cast<std::size_t>(offset) + len));
            std::memcpy(all.data() + offset, from, len);
            return self(user).code;
        };
        io.sync = [](void* user) { return self(user).code; };
        io.truncate = [](void* user, std::uint64_t size) {
            self(user).data.resize(static_cast<std::size_t>(size));
            return 0;
        };
        return io;
    }

    static container& self(void* user) { return *static_cast<container*>(user); }
};

mnnkv_snapshot_options options_of(const mnnkv_snapshot_io* io, std::uint32_t access = MNNKV_SNAPSHOT_READ) {
    auto options = mnnkv::make<mnnkv_snapshot_options>();
    options.abi_version = MNNKV_ABI_VERSION;
    options.io = io;
    options.fingerprint = "model";
    options.fingerprint_len = 5;
    options.access = access;
    return options;
}

/// A snapshot with two sections, in two saves.
container saved() {
    container made;
    const mnnkv_snapshot_io io = made.io();
    mnnkv::snapshot snapshot;
    EXPECT_TRUE(snapshot.create(options_of(&io)));
    const bytes tokens(1000, 7);
    EXPECT_TRUE(snapshot.put("tokens", tokens.data(), 900));
    EXPECT_TRUE(snapshot.put("sampler", "top-k", 5));
    EXPECT_TRUE(snapshot.commit());
    EXPECT_TRUE(snapshot.put("tokens", tokens.data(), 1000));
    EXPECT_TRUE(snapshot.commit());
    return made;
}

TEST(Snapshot, OfAPathIsReadAgainWhenItIsClosed) {
    const std::string path = temp_path("suite.kv");
    std::remove(path.c_str());
    auto options = options_of(nullptr, MNNKV_SNAPSHOT_APPEND);
    options.path = path.c_str();
    mnnkv::snapshot writer, reader;
    ASSERT_TRUE(writer.create(options));
    ASSERT_TRUE(writer.put("tokens", "1 2 3", 5));
    ASSERT_TRUE(writer.commit());
    options.access = MNNKV_SNAPSHOT_READ;
    EXPECT_EQ(reader.open(options).code(), MNNKV_BUSY);
    EXPECT_EQ(reader.create(options).code(), MNNKV_IO) << "the file exists";
    writer.reset();
    ASSERT_TRUE(reader.open(options));
    std::string tokens;
    EXPECT_TRUE(reader.section("tokens", tokens));
    EXPECT_EQ(tokens, "1 2 3");
    EXPECT_EQ(reader.section("sampler", tokens).code(), MNNKV_NOT_FOUND);
    reader.reset();
    std::remove(path.c_str());
    EXPECT_EQ(reader.open(options).code(), MNNKV_NOT_FOUND);
}

TEST(Snapshot, StructsComeInAllSizes) {
    container made = saved();
    const mnnkv_snapshot_io io = made.io();
    const auto open = [](const mnnkv_snapshot_options* given) {
        mnnkv_snapshot* snapshot = nullptr;
        const mnnkv_status status = mnnkv_snapshot_open(given, &snapshot);
        mnnkv_snapshot_destroy(snapshot);
        return status;
    };
    check_sizes(options_of(&io), open);
    check_sizes(io, [&](const mnnkv_snapshot_io* given) {
        const auto options = options_of(given);
        return open(&options);
    });
    mnnkv::snapshot snapshot;
    mnnkv_snapshot_options zeroed = {};
    zeroed.io = &io;
    zeroed.access = MNNKV_SNAPSHOT_READ;
    EXPECT_TRUE(snapshot.open(zeroed)) << "the wrapper sets the size";
    container empty;
    const mnnkv_snapshot_io to_empty = empty.io();
    zeroed.io = &to_empty;
    zeroed.access = MNNKV_SNAPSHOT_APPEND;
    EXPECT_TRUE(snapshot.create(zeroed));
}

TEST(Snapshot, RefusalsNameTheArgumentAndWriteNothing) {
    container made = saved();
    const mnnkv_snapshot_io io = made.io();
    mnnkv::snapshot snapshot;
    ASSERT_TRUE(snapshot.open(options_of(&io)));
    const mnnkv_snapshot* const live = snapshot.get();
    slot<std::size_t> len;
    bytes out(4, 0x5A);
    expect_refused(
        {
            {bad, "snapshot", [&] { return mnnkv_snapshot_get(nullptr, "tokens", nullptr, 0, len.get()); }},
            {bad, "name", [&] { return mnnkv_snapshot_get(live, nullptr, nullptr, 0, len.get()); }},
            {bad, "out", [&] { return mnnkv_snapshot_get(live, "tokens", nullptr, 9, len.get()); }},
            {bad, "len", [&] { return mnnkv_snapshot_get(live, "tokens", out.data(), 4, nullptr); }},
            {MNNKV_NOT_FOUND, "nothing", [&] { return mnnkv_snapshot_get(live, "nothing", nullptr, 0, len.get()); }},
            {bad, "read-only", [&] { return mnnkv_snapshot_put(snapshot.get(), "a", "b", 1); }},
            {bad, "read-only", [&] { return mnnkv_snapshot_commit(snapshot.get()); }},
        },
        len);
    std::size_t needed = 0;
    EXPECT_EQ(mnnkv_snapshot_get(live, "tokens", out.data(), out.size(), &needed), MNNKV_BUFFER_TOO_SMALL);
    EXPECT_TRUE(needed == 1000 && out == bytes(4, 0x5A));
}

TEST(Snapshot, AHostThatCannotWriteKeepsTheOldState) {
    container made = saved();
    const mnnkv_snapshot_io io = made.io();
    mnnkv::snapshot snapshot;
    ASSERT_TRUE(snapshot.open(options_of(&io, MNNKV_SNAPSHOT_APPEND)));
    ASSERT_TRUE(snapshot.put("sampler", "greedy", 6));
    made.code = 28;
    EXPECT_EQ(snapshot.commit().code(), MNNKV_IO);
    made.code = 0;
    std::string sampler;
    ASSERT_TRUE(snapshot.section("sampler", sampler));
    EXPECT_EQ(sampler, "top-k");
    ASSERT_TRUE(snapshot.commit());
    ASSERT_TRUE(snapshot.section("sampler", sampler));
    EXPECT_EQ(sampler, "greedy");
}

}  // namespace
