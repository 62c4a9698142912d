// Kills while saving: `make kills COUNT=200`. A child has a chat of which tokens are evicted, and saves it again and again.
// It is killed at a random moment. Then the file must open without a repair, whole, with the tokens of the last commit that
// returned or of the one that was under way, and a session must go on with them, bit for bit. The next child goes on with
// the file. POSIX only.

#include <cstdio>

#if defined(__unix__) || defined(__APPLE__)

#include "mnnkv.hpp"

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

namespace {

const std::uint32_t heads = 2, dims = 16, room = 4096, longest = 2500;

const char config[] =
    "{\"kv_h2o_enable\":true,\"kv_h2o_layer_start\":0,\"kv_h2o_target_lossy_ratio\":4,\"kv_h2o_trigger_min_tokens\":1,"
    "\"kv_h2o_block_tokens\":8,\"kv_h2o_sink_tokens\":4,\"kv_h2o_recent_tokens\":8,\"kv_h2o_evict_unscored\":true}";

/// The words of a child before it was killed: tokens of the commit that it began last, and of the last that returned. The
/// checker tells what the next child finds, and how many tokens were evicted.
struct Told {
    volatile std::uint32_t begun, committed, commits, evicted;
};

void must(bool is_right, const char* what) {
    if (!is_right) {
        std::fprintf(stderr, "kill: %s; last error: %s\n", what, mnnkv_last_error());
        std::fflush(stderr);
        _exit(3);
    }
}

#define OK(call) must((call) == MNNKV_OK, #call)

/// An element of a token, by its position in the chat.
float element(std::uint32_t token, std::uint32_t head, std::uint32_t dim, std::uint32_t kind) {
    std::uint32_t x = token * 2654435761u ^ (head * 97 + dim * 31 + kind * 7919);
    x ^= x >> 13;
    x *= 0x5bd1e995;
    x ^= x >> 15;
    return float(x % 2001) / 1000.0f - 1.0f;
}

/// A session of one layer, and its cache.
class Chat {
public:
    Chat() : key_(heads * room * dims), value_(heads * room * dims) {
        layout_ = mnnkv::make<mnnkv_layout>();
        layout_.key_dtype = layout_.value_dtype = MNNKV_DTYPE_F32;
        layout_.kv_heads = heads;
        layout_.head_dim = dims;
        layout_.l_pack = layout_.h_pack = layout_.flash_block = 1;
        layout_.max_tokens = room;
        cache = mnnkv::make<mnnkv_cache>();
        cache.layout = &layout_;
        cache.key = key_.data();
        cache.value = value_.data();
        mnnkv_session_options options = mnnkv::make<mnnkv_session_options>();
        options.abi_version = MNNKV_ABI_VERSION;
        options.layers = 1;
        options.config_json = config;
        options.config_len = sizeof config - 1;
        OK(mnnkv_session_create(&options, &session));
    }
    ~Chat() { mnnkv_session_destroy(session); }
    Chat(const Chat&) = delete;
    Chat& operator=(const Chat&) = delete;

    std::uint32_t logical() const {
        std::uint32_t logical = 0, physical = 0;
        OK(mnnkv_session_lengths(session, 0, &logical, &physical));
        return logical;
    }

    /// Takes the chat of a file, whose tokens stay there until the next step.
    mnnkv_status open(const std::string& path) {
        const mnnkv_status opened = mnnkv_session_open(session, path.c_str());
        std::uint32_t logical = 0;
        OK(mnnkv_session_lengths(session, 0, &logical, &cache.kv_len));
        return opened;
    }

    void step(std::uint32_t count) {
        OK(mnnkv_session_begin(session, 0, &cache, nullptr));
        check();
        const std::uint32_t first = logical();
        for (std::uint32_t i = 0; i < count; ++i) {
            put(cache.kv_len++, first + i);
        }
        OK(mnnkv_session_end(session, 0, 4, count, &cache));
    }

    /// Each token of the cache must have the bits of its position.
    void check() const {
        std::vector<std::int32_t> pairs(2 * room);
        std::size_t count = 0;
        OK(mnnkv_session_positions(session, 0, MNNKV_IN_CACHE, pairs.data(), room, &count));
        std::uint32_t at = 0;
        for (std::size_t i = 0; i < count; ++i) {
            for (std::int32_t j = 0; j < pairs[2 * i + 1]; ++j) {
                must(is(at++, std::uint32_t(pairs[2 * i] + j)), "a token has other bits");
            }
        }
        must(at == cache.kv_len, "the cache has another length");
    }

    mnnkv_session* session = nullptr;
    mnnkv_cache cache;

private:
    static std::size_t index(std::uint32_t at, std::uint32_t h, std::uint32_t d) {
        return (std::size_t(h) * room + at) * dims + d;
    }
    void put(std::uint32_t at, std::uint32_t token) {
        for (std::uint32_t h = 0; h < heads; ++h) {
            for (std::uint32_t d = 0; d < dims; ++d) {
                key_[index(at, h, d)] = element(token, h, d, 0);
                value_[index(at, h, d)] = element(token, h, d, 1);
            }
        }
    }
    bool is(std::uint32_t at, std::uint32_t token) const {
        bool is = true;
        for (std::uint32_t h = 0; h < heads; ++h) {
            for (std::uint32_t d = 0; d < dims; ++d) {
                is = is && key_[index(at, h, d)] == element(token, h, d, 0) &&
                     value_[index(at, h, d)] == element(token, h, d, 1);
            }
        }
        return is;
    }

    mnnkv_layout layout_;
    std::vector<float> key_, value_;
};

/// The child: steps, saves and frees its buffers until it is killed.
void host(const std::string& path, Told* told) {
    Chat chat;
    if (told->commits > 0) {
        OK(chat.open(path));
    }
    if (chat.logical() == 0) {
        chat.step(60);
    }
    for (std::uint32_t i = 0; chat.logical() < longest; ++i) {
        chat.step(1 + i % 3);
        if (i % 3 == 0) {
            const std::uint32_t tokens = chat.logical();
            told->begun = tokens;
            OK(mnnkv_session_put(chat.session, "tokens", &tokens, sizeof tokens));
            OK(mnnkv_session_save(chat.session, path.c_str(), &chat.cache, 1, nullptr));
            told->committed = tokens;
            told->commits = told->commits + 1;
            if (i % 7 == 3) {
                OK(chat.open(path));
            }
        }
    }
}

/// Whether the file has a state, which then must be whole.
bool check(const std::string& path, Told* told) {
    Chat chat;
    const mnnkv_status opened = chat.open(path);
    if (opened != MNNKV_OK) {
        // Killed while the file was made: no commit has returned.
        must(told->commits == 0 && opened == MNNKV_NOT_FOUND, "the file does not open");
        return false;
    }
    std::size_t len = 0;
    std::uint32_t tokens = 0;
    OK(mnnkv_session_get(chat.session, "tokens", &tokens, sizeof tokens, &len));
    must(tokens == told->committed || tokens == told->begun, "the state is of another commit");
    must(chat.logical() == tokens, "layer and section are of different commits");
    told->evicted = tokens - chat.cache.kv_len;
    told->begun = told->committed = tokens;
    told->commits = 1;
    chat.step(1);
    chat.step(1);
    chat.check();
    return true;
}

}  // namespace

int main(int argc, char** argv) {
    const int count = argc > 1 ? std::atoi(argv[1]) : 20;
    const std::string folder = argc > 2 ? argv[2] : ".";
    const std::string path = folder + "/mnnkv-kill-" + std::to_string(getpid()) + ".kv";
    void* const shared = mmap(nullptr, sizeof(Told), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (count < 1 || shared == MAP_FAILED) {
        std::fprintf(stderr, "usage: mnnkv_kill COUNT [FOLDER]\n");
        return 2;
    }
    Told* const told = static_cast<Told*>(shared);
    std::uint32_t whole = 0, empty = 0, evicted = 0, torn = 0, seed = std::uint32_t(time(nullptr));
    std::printf("seed %u\n", seed);
    std::fflush(stdout);
    int result = 0;
    for (int run = 0; run < count && result == 0; ++run) {
        const pid_t child = fork();
        if (child == 0) {
            host(path, told);
            _exit(0);
        }
        seed = seed * 1664525u + 1013904223u;
        // Short lives meet the making of a file, long ones chats of many commits, however slow the machine is. Every other
        // one ends in a save.
        const std::uint32_t commits = run % 4 == 0 ? 0 : told->commits + (seed >> 8) % 24;
        int status = 0;
        pid_t ended = 0;
        const auto is_early = [&] { return told->commits < commits || (run % 2 == 1 && told->begun == told->committed); };
        while (is_early() && ended == 0) {
            ended = waitpid(child, &status, WNOHANG);
            usleep(20);
        }
        usleep((seed >> 16) % (run % 2 == 1 ? 400 : 4000));
        if (ended == 0) {
            kill(child, SIGKILL);
            waitpid(child, &status, 0);
        }
        if (WIFEXITED(status) && WEXITSTATUS(status) != 0) {
            result = 1;
            break;
        }
        torn += told->begun != told->committed;
        const pid_t checker = fork();
        if (checker == 0) {
            _exit(check(path, told) ? 0 : 1);
        }
        waitpid(checker, &status, 0);
        result = !WIFEXITED(status) || WEXITSTATUS(status) > 1;
        if (result == 0 && WEXITSTATUS(status) == 0) {
            ++whole;
            evicted += told->evicted;
        } else if (result == 0) {
            ++empty;
        }
        // A chat without a state, or a long one, begins anew.
        if (result == 0 && (WEXITSTATUS(status) == 1 || told->committed > longest - 500)) {
            unlink(path.c_str());
            told->begun = told->committed = told->commits = 0;
        }
    }
    std::printf("%d kills, %u of them in a save: %u chats came back (of which %u tokens were evicted), %u had no state\n",
                count, torn, whole, evicted, empty);
    if (result == 0) {
        unlink(path.c_str());
    } else {
        std::printf("kill: failed; the file is %s\n", path.c_str());
    }
    return result;
}

#else

int main() {
    std::puts("skipped: no fork");
    return 0;
}

#endif
