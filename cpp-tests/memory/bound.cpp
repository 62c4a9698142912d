// The bound of kv_memory_bytes by the system's figures: `make memory-bound COUNT=200`. Two sessions have random chats in turn:
// prompts in chunks, drafts that are taken back, edits, resets and trims. After each step that is no prompt the private memory
// of the process, less what it had before, is at most the budgets, 3% and 2 MB. Pages that were written count: those of
// programs are private or shared as other processes come and go. Linux only.

#include <cstdio>

#ifdef __linux__

#include "mnnkv.hpp"
#include "mnnkv_json.hpp"

#include <algorithm>
#include <cmath>
#include <condition_variable>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include <malloc.h>
#include <sys/mman.h>
#include <unistd.h>

namespace {

const std::uint32_t layers = 8, chunk = 256, longest = 8000, most_numbers = 4 * 256;
/// Heads of the chats at hand.
std::uint32_t kv_heads = 3, heads = 9, dims = 64;
/// Tokens of the window that most layers of Gemma 3 have; 0 of the others.
std::uint32_t window = 0;

/// Those of SmolLM2-135M, and of Qwen2.5 and Gemma 3 with fewer query heads, in turn.
void choose_heads(long turn) {
    kv_heads = static_cast<std::uint32_t>(3 - turn % 3);
    heads = kv_heads == 3 ? 9 : kv_heads == 2 ? 6 : 4;
    dims = kv_heads == 3 ? 64 : kv_heads == 2 ? 128 : 256;
    window = kv_heads == 1 ? 512 : 0;
}

const double share = 0.03, rest = 2e6;

void must(bool is_right, const char* what) {
    if (!is_right) {
        std::fprintf(stderr, "bound: %s; last error: %s\n", what, mnnkv_last_error());
        std::exit(3);
    }
}

#define OK(call) must((call).code() == MNNKV_OK, #call)

std::mt19937 engine(20261124);

std::uint32_t below(std::uint32_t n) { return static_cast<std::uint32_t>(engine() % n); }
bool one_in(std::uint32_t n) { return below(n) == 0; }
double unit() { return engine() / 4294967296.0; }
/// Of the same weight in each octave.
double between(double low, double high) { return low * std::pow(high / low, unit()); }

/// Fast, since a chat has millions of them: -1 to 1, a sum of two.
float number() {
    static std::uint64_t x = 88172645463325252u;
    x ^= x << 13;
    x ^= x >> 7;
    x ^= x << 17;
    return static_cast<float>(static_cast<std::int32_t>(x) / 2 + static_cast<std::int32_t>(x >> 32) / 2) / 2147483648.0f;
}

/// Bytes of a field of smaps_rollup.
double bytes_of(const char* name) {
    std::FILE* const file = std::fopen("/proc/self/smaps_rollup", "r");
    must(file != nullptr, "no smaps_rollup");
    double sum = 0;
    char line[256];
    while (std::fgets(line, sizeof line, file) != nullptr) {
        if (std::strncmp(line, name, std::strlen(name)) == 0) {
            sum += std::atof(line + std::strlen(name)) * 1024;
        }
    }
    std::fclose(file);
    return sum;
}

double private_bytes() { return bytes_of("Private_Dirty:"); }
double clean_bytes() { return bytes_of("Private_Clean:"); }

/// A second thread of attention, which a host keeps.
class Helper {
public:
    Helper() : thread_([this] { serve(); }) {}
    ~Helper() {
        {
            std::lock_guard<std::mutex> lock(mutex_);
            ends_ = true;
        }
        changed_.notify_all();
        thread_.join();
    }

    template <class Work>
    void both(Work work) {
        {
            std::lock_guard<std::mutex> lock(mutex_);
            work_ = [work] { work(1); };
            is_done_ = false;
        }
        changed_.notify_all();
        work(0);
        std::unique_lock<std::mutex> lock(mutex_);
        changed_.wait(lock, [this] { return is_done_; });
    }

private:
    void serve() {
        std::unique_lock<std::mutex> lock(mutex_);
        for (;;) {
            changed_.wait(lock, [this] { return ends_ || !is_done_; });
            if (ends_) {
                return;
            }
            lock.unlock();
            work_();
            lock.lock();
            is_done_ = true;
            changed_.notify_all();
        }
    }

    std::mutex mutex_;
    std::condition_variable changed_;
    std::function<void()> work_;
    bool is_done_ = true, ends_ = false;
    std::thread thread_;
};

/// Queries and output of a step, made before the baseline.
struct Room {
    Room() : queries(std::size_t(chunk) * most_numbers), output(queries.size()) {
        for (float& x : queries) {
            x = 4 * number();
        }
        std::fill(output.begin(), output.end(), 1.0f);
    }
    std::vector<float> queries, output;
    Helper helper;
};

/// A layer's buffers: [head][token][dim], grown as a host would.
class Buffers {
public:
    Buffers() : layout_(mnnkv::make<mnnkv_layout>()) {
        layout_.key_dtype = layout_.value_dtype = MNNKV_DTYPE_F32;
        layout_.kv_heads = kv_heads;
        layout_.head_dim = dims;
        layout_.l_pack = layout_.h_pack = layout_.flash_block = 1;
        layout_.max_tokens = 64;
        key_ = map(layout_.max_tokens);
        value_ = map(layout_.max_tokens);
    }
    ~Buffers() {
        munmap(key_, bytes(layout_.max_tokens));
        munmap(value_, bytes(layout_.max_tokens));
    }
    Buffers(const Buffers&) = delete;
    Buffers& operator=(const Buffers&) = delete;

    mnnkv_cache cache(std::uint32_t kv_len) {
        mnnkv_cache cache = mnnkv::make<mnnkv_cache>();
        cache.layout = &layout_;
        cache.key = key_;
        cache.value = value_;
        cache.kv_len = kv_len;
        return cache;
    }

    void grow(std::uint32_t kv_len, std::uint32_t needed) {
        if (needed <= layout_.max_tokens) {
            return;
        }
        const std::uint32_t before = layout_.max_tokens, after = (needed + needed / 8 + 127) / 64 * 64;
        for (float** at : {&key_, &value_}) {
            float* const to = map(after);
            for (std::uint32_t head = 0; head < kv_heads; ++head) {
                std::memcpy(to + std::size_t(head) * after * dims, *at + std::size_t(head) * before * dims,
                            std::size_t(kv_len) * dims * sizeof(float));
            }
            munmap(*at, bytes(before));
            *at = to;
        }
        layout_.max_tokens = after;
    }

    void append(std::uint32_t kv_len, std::uint32_t rows) {
        for (float* at : {key_, value_}) {
            for (std::uint32_t head = 0; head < kv_heads; ++head) {
                float* const to = at + (std::size_t(head) * layout_.max_tokens + kv_len) * dims;
                for (std::size_t i = 0; i < std::size_t(rows) * dims; ++i) {
                    to[i] = number();
                }
            }
        }
    }

    /// Pages behind the tokens go back, as in integrations/common (release_tail).
    void release(std::uint32_t kv_len) {
        std::uint64_t released = 0;
        must(mnnkv_kv_release(&layout_, key_, value_, kv_len, layout_.max_tokens - kv_len, &released) == MNNKV_OK, "release");
    }

    /// Bytes that are in memory.
    double resident() const {
        double sum = 0;
        for (float* at : {key_, value_}) {
            std::vector<unsigned char> pages(bytes(layout_.max_tokens) / 4096 + 1);
            if (mincore(at, bytes(layout_.max_tokens), pages.data()) == 0) {
                sum += 4096.0 * std::count_if(pages.begin(), pages.end(), [](unsigned char c) { return (c & 1) != 0; });
            }
        }
        return sum;
    }

private:
    static std::size_t bytes(std::uint32_t tokens) { return std::size_t(kv_heads) * tokens * dims * sizeof(float); }
    static float* map(std::uint32_t tokens) {
        void* const at = mmap(nullptr, bytes(tokens), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        must(at != MAP_FAILED, "mmap");
        return static_cast<float*>(at);
    }

    mnnkv_layout layout_;
    float *key_, *value_;
};

/// A model's caches, and their session.
class Host {
public:
    Host(Room& room, double budget, const std::string& file) : budget(budget), full(budget), room_(room), lens_(layers) {
        for (std::uint32_t layer = 0; layer < layers; ++layer) {
            buffers_.emplace_back(new Buffers);
        }
        std::string config = "{\"kv_memory_bytes\": " + std::to_string(static_cast<std::uint64_t>(budget));
        config += file.empty() ? "}" : ", \"kv_memory_file\": \"" + file + "\"}";
        mnnkv_session_options options = mnnkv::make<mnnkv_session_options>();
        options.layers = layers;
        options.lanes = 2;
        options.config_json = config.data();
        options.config_len = config.size();
        options.attends = 1;
        OK(session_.create(options));
        for (std::uint32_t layer = 0; layer < layers; ++layer) {
            OK(session_.window(layer, layer % 6 == 5 ? 0 : window, window > 0 ? 8 : 0));
        }
    }

    /// One step of all layers.
    void step(std::uint32_t rows) {
        for (std::uint32_t layer = 0; layer < layers; ++layer) {
            Buffers& buffers = *buffers_[layer];
            mnnkv_cache cache = buffers.cache(lens_[layer]);
            mnnkv_step begun = mnnkv::make<mnnkv_step>();
            OK(session_.begin(layer, cache, begun));
            buffers.grow(cache.kv_len, cache.kv_len + rows);
            buffers.append(cache.kv_len, rows);
            cache = buffers.cache(cache.kv_len + rows);
            if (begun.attends != 0) {
                mnnkv_attend step = mnnkv::make<mnnkv_attend>();
                step.dtype = MNNKV_DTYPE_F32;
                step.heads = heads;
                step.rows = rows;
                step.head_dim = dims;
                step.causal = 1;
                step.queries = room_.queries.data() + std::size_t(below(chunk - rows + 1)) * heads * dims;
                step.output = room_.output.data();
                room_.helper.both([&](std::uint32_t part) { OK(session_.attend(layer, part, 2, cache, step)); });
            }
            OK(session_.end(layer, heads, rows, cache));
            lens_[layer] = cache.kv_len;
        }
        logical += rows;
    }

    /// Takes `count` tokens at `first` out of the chat. A window may have left tokens behind that an edit asks for: then the chat
    /// begins anew.
    void cut(std::uint32_t first, std::uint32_t count) {
        const std::int32_t pairs[] = {0, std::int32_t(first), std::int32_t(first + count),
                                      std::int32_t(logical - first - count)};
        // No empty range.
        const std::size_t skip = first == 0 ? 1 : 0, n = 2 - skip - (first + count == logical ? 1 : 0);
        for (std::uint32_t layer = 0; layer < layers; ++layer) {
            mnnkv_cache cache = buffers_[layer]->cache(lens_[layer]);
            const mnnkv::status kept = session_.keep(layer, pairs + 2 * skip, n, cache);
            if (kept.code() == MNNKV_INVALID_ARGUMENT && window > 0) {
                must(layer == 0, "a refused edit has changed a layer");
                reset();
                step(chunk);
                return;
            }
            OK(kept);
            lens_[layer] = cache.kv_len;
            buffers_[layer]->release(cache.kv_len);
        }
        logical -= count;
    }

    void reset() {
        OK(session_.reset_all());
        for (std::uint32_t layer = 0; layer < layers; ++layer) {
            lens_[layer] = 0;
            buffers_[layer]->release(0);
        }
        logical = 0;
    }

    void trim(double to) {
        OK(session_.trim(static_cast<std::uint64_t>(to)));
        budget = to;
    }

    /// "memory" of the report.
    std::string memory() const {
        std::string text;
        OK(session_.report(text));
        return mnnkv_host::json_member(text, "memory");
    }

    double resident() const {
        double sum = 0;
        for (const std::unique_ptr<Buffers>& one : buffers_) {
            sum += one->resident();
        }
        return sum;
    }

    double budget;
    const double full;
    std::uint32_t logical = 0;

private:
    Room& room_;
    mnnkv::session session_;
    std::vector<std::unique_ptr<Buffers>> buffers_;
    std::vector<std::uint32_t> lens_;
};

/// What the process has above its budgets.
struct Watch {
    double before = private_bytes(), before_clean = clean_bytes();
    /// Above the budgets, and above the bound.
    double most_over = -1e18, worst = -1e18;
    long steps = 0, above = 0;
    std::string text_of_worst;

    void look(const std::vector<std::unique_ptr<Host>>& hosts, const char* what, long chat) {
        ++steps;
        double budget = 0;
        for (const std::unique_ptr<Host>& host : hosts) {
            budget += host->budget;
        }
        const double used = private_bytes() - before, over = used - budget;
        const double excess = used - (budget * (1 + share) + rest);
        above += excess > 0 ? 1 : 0;
        most_over = std::max(most_over, over);
        if (excess <= worst) {
            return;
        }
        worst = excess;
        char text[900];
        double raw = 0, blocks = 0, working = 0, buffers = 0;
        std::string states;
        for (const std::unique_ptr<Host>& host : hosts) {
            const std::string stats = host->memory();
            raw += mnnkv_host::json_number_of(stats, "raw_bytes");
            blocks += mnnkv_host::json_number_of(stats, "block_bytes");
            working += mnnkv_host::json_number_of(stats, "working_bytes");
            buffers += host->resident();
            states += mnnkv_host::json_member(stats, "state") + "/" + std::to_string(host->logical) + "/" +
                      std::to_string(static_cast<long>(host->budget / 1e3)) + "k ";
        }
#if defined(__GLIBC__) && (__GLIBC__ > 2 || __GLIBC_MINOR__ >= 33)
        const struct mallinfo2 heap = mallinfo2();
        const double held = double(heap.uordblks), idle = double(heap.fordblks), mapped = double(heap.hblkhd);
#else
        const double held = 0, idle = 0, mapped = 0;
#endif
        std::snprintf(text, sizeof text,
                      "chat %ld, %s, state/tokens/budget %s: %.2f MB of %.2f (%+.2f, bound %+.2f); clean besides %+.2f; library says raw "
                      "%.2f, blocks %.2f, working %.2f; buffers resident %.2f; malloc in use %.2f, free in heaps %.2f, mapped %.2f",
                      chat, what, states.c_str(), used / 1e6, budget / 1e6, over / 1e6, excess / 1e6,
                      (clean_bytes() - before_clean) / 1e6, raw / 1e6, blocks / 1e6, working / 1e6, buffers / 1e6,
                      held / 1e6, idle / 1e6, mapped / 1e6);
        text_of_worst = text;
    }
};

void chat(std::vector<std::unique_ptr<Host>>& hosts, Watch& watch, long number) {
    Host& host = *hosts[std::size_t(number) % 2];
    Host& other = *hosts[1 - std::size_t(number) % 2];
    if (host.logical > 4000 || !one_in(4)) {
        host.reset();
    }
    for (std::uint32_t left = static_cast<std::uint32_t>(between(100, longest)); left > 0;) {
        const std::uint32_t rows = std::min(left, chunk);
        host.step(rows);
        left -= rows;
    }
    for (std::uint32_t turn = 30 + below(60); turn > 0; --turn) {
        const char* what = "step";
        if (one_in(15) && host.logical > 200) {
            const std::uint32_t count = 1 + below(one_in(2) ? 20 : host.logical / 2);
            host.cut(below(host.logical - count + 1), count);
            what = "edit";
        }
        if (one_in(25)) {
            host.trim(host.budget < host.full ? host.full : std::max(4e6, host.full * between(0.4, 1)));
            what = "trim";
        }
        // A draft, of which some are taken.
        const std::uint32_t rows = one_in(3) ? 2 + below(7) : 1;
        host.step(rows);
        watch.look(hosts, what, number);
        if (rows > 1) {
            const std::uint32_t wrong = below(rows);
            if (wrong > 0) {
                host.cut(host.logical - wrong, wrong);
                host.step(1);
                watch.look(hosts, "rollback", number);
            }
        }
        if (one_in(4) && other.logical > 0) {
            other.step(1);
            watch.look(hosts, "other session", number);
        }
    }
}

}  // namespace

int main(int argc, char** argv) {
    const long count = argc > 1 ? std::atol(argv[1]) : 200;
    const std::string folder = argc > 2 ? argv[2] : ".";
    if (argc > 3) {
        engine.seed(static_cast<std::uint32_t>(std::atol(argv[3])));
    }
    Room room;
    {
        // Code that a chat runs is in memory before the baseline, and what this one leaves on the heap is not.
        Host first(room, 4e6, folder + "/bound." + std::to_string(getpid()) + ".0");
        for (int at = 0; at < 14; ++at) {
            first.step(chunk);
            first.step(1);
        }
        first.cut(first.logical - 1, 1);
        (void)first.memory();
    }
    malloc_trim(0);
    Watch watch;
    std::vector<std::unique_ptr<Host>> hosts;
    long over_steps = 0;
    const auto leave = [&] {
        for (const std::unique_ptr<Host>& host : hosts) {
            over_steps += static_cast<long>(mnnkv_host::json_number_of(host->memory(), "over_steps"));
        }
        hosts.clear();
    };
    for (long number = 0; number < count; ++number) {
        if (number % 10 == 0) {
            leave();
            choose_heads(number / 10);
            for (int at = 0; at < 2; ++at) {
                const std::string file =
                    one_in(2) ? folder + "/bound." + std::to_string(getpid()) + "." + std::to_string(at) : "";
                hosts.emplace_back(new Host(room, between(5e6, 40e6), file));
            }
        }
        chat(hosts, watch, number);
        if (number % 10 == 9 || number + 1 == count) {
            std::printf("%ld chats, %ld steps: at most %+.2f MB from the budgets, %+.2f from the bound; %ld steps above it\n",
                        number + 1, watch.steps, watch.most_over / 1e6, watch.worst / 1e6, watch.above);
            std::fflush(stdout);
        }
    }
    leave();
    std::printf("worst: %s\n", watch.text_of_worst.c_str());
    std::printf("steps of layers that the sessions count as above their share: %ld\n", over_steps);
    std::printf("%s\n", watch.above == 0 ? "the bound holds" : "THE BOUND DOES NOT HOLD");
    return watch.above == 0 ? 0 : 1;
}

#else

int main() {
    std::printf("this system has no smaps_rollup\n");
    return 0;
}

#endif
