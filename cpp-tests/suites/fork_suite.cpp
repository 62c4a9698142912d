// A process that forks: the child, which has no worker threads, may destroy inherited handles and prints nothing.

#include "session_host.hpp"

#if defined(__unix__) || defined(__APPLE__)

#include <csignal>
#include <sys/wait.h>
#include <unistd.h>

namespace {

using namespace support;

/// A child's standard error, and its exit code, or minus the signal.
struct ending {
    std::string errors;
    int code;
};

/// Runs `body` in a child that exits without the parent's destructors.
template <class Body>
ending in_child(Body body) {
    int ends[2] = {-1, -1};
    EXPECT_EQ(pipe(ends), 0);
    const pid_t child = fork();
    if (child == 0) {
        alarm(20);  // A child that waits for a thread which is not there is killed.
        dup2(ends[1], STDERR_FILENO);
        body();
        _exit(0);
    }
    close(ends[1]);
    ending result = {"", 0};
    char buffer[4096];
    for (ssize_t n = 1; n > 0;) {
        n = read(ends[0], buffer, sizeof buffer);
        result.errors.append(buffer, n > 0 ? static_cast<std::size_t>(n) : 0);
    }
    close(ends[0]);
    int status = 0;
    EXPECT_EQ(waitpid(child, &status, 0), child);
    result.code = WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
    return result;
}

void expect_silent_end(const ending& child) {
    EXPECT_EQ(child.errors, "");
    EXPECT_EQ(child.code, 0);
}

class fork_suite : public testing::TestWithParam<unsigned> {};

TEST_P(fork_suite, a_child_destroys_a_session_of_its_parent) {
    SEEDED_DICE(random, 1701);
    mnnkv::session session = made_session(object(evicting(), storing(GetParam())), 2);
    const mnnkv_layout layout = half_layout(1024);
    session_layer layer(session, 0, layout, random);
    layer.step(300);
    layer.step(1);
    expect_silent_end(in_child([&] { session.reset(); }));
    // The parent is unaffected.
    for (int i = 0; i < 20; ++i) {
        layer.step(1);
    }
}

TEST(ForkedFiles, AChildLeavesFilesOfItsParentAsTheyAre) {
    const std::string blocks = temp_path("fork.blocks");
    SEEDED_DICE(random, 1704);
    mnnkv_session_options how = mnnkv::make<mnnkv_session_options>();
    const std::string config = "{\"kv_memory_bytes\": 900000, \"kv_memory_file\": \"" + blocks + "\"}";
    how.layers = how.attends = 1;
    how.config_json = config.data();
    how.config_len = config.size();
    mnnkv::session session;
    const mnnkv_layout layout = make_layout(pack_modes[7], 2, 64, 4096, 64);
    const packed_model model(layout);
    bytes key(model.key_bytes()), value(model.value_bytes());
    mnnkv_cache cache = mnnkv::make<mnnkv_cache>();
    cache.layout = &layout;
    cache.key = key.data();
    cache.value = value.data();
    const auto steps = [&](int count) {
        for (int step = 0; step < count; ++step) {
            ASSERT_TRUE(ok(session.begin(0, cache).code()));
            cache.kv_len += 64;
            ASSERT_TRUE(ok(session.end(0, 4, 0, cache).code()));
        }
    };
    for (const bool is_saved : {false, true}) {
        ASSERT_TRUE(ok(session.create(how).code()));
        cache.kv_len = 0;
        ASSERT_NO_FATAL_FAILURE(steps(200));
        ASSERT_EQ(::access(blocks.c_str(), F_OK), 0) << "blocks are in the file";
        if (is_saved) {
            ASSERT_TRUE(ok(session.save(nullptr, &cache, 1).code()));
            ASSERT_NO_FATAL_FAILURE(steps(20));
        }
        expect_silent_end(in_child([&] { session.reset(); }));
        EXPECT_EQ(::access(blocks.c_str(), F_OK), 0);
        mnnkv::session other;
        how.config_json = "{\"kv_memory_mb\": 1}";
        how.config_len = 19;
        ASSERT_TRUE(ok(other.create(how).code()));
        EXPECT_TRUE(answers(other.open(blocks.c_str()).code(), MNNKV_BUSY)) << "the parent still has its lock";
        ASSERT_NO_FATAL_FAILURE(steps(2));
        session.reset();
        EXPECT_EQ(::access(blocks.c_str(), F_OK) == 0, is_saved) << "the file of a chat that was not saved goes with it";
        EXPECT_TRUE(answers(other.open(blocks.c_str()).code(), is_saved ? MNNKV_OK : MNNKV_NOT_FOUND));
        how.config_json = config.data();
        how.config_len = config.size();
    }
    std::remove(blocks.c_str());
}

TEST_P(fork_suite, a_child_has_workers_of_its_own_while_its_parent_has_some) {
    SEEDED_DICE(random, 1702);
    const std::string config = object(evicting(), storing(GetParam()));
    const mnnkv::session session = made_session(config, 1);
    expect_silent_end(in_child([&] {
        mnnkv::session own = made_session(config, 1);
        session_layer layer(own, 0, half_layout(1024), random);
        layer.step(300);
        for (int i = 0; i < 1000 && layer.compressed_tokens() == 0; ++i) {
            layer.step(0);
            usleep(1000);
        }
        own.reset();
        if (layer.compressed_tokens() == 0 || testing::Test::HasFailure()) {
            _exit(1);
        }
    }));
}

INSTANTIATE_TEST_SUITE_P(workers, fork_suite, testing::Values(0u, 2u));

}  // namespace

#endif
