// A host that keeps several chats and shrinks their KV caches with mnn-kv: what a patched engine does, small enough
// to read. Layers 0 and 1 are kept whole and compressed losslessly; layers 2 and 3 are evicted by attention first.
//
//   mnnkv_demo [pack mode] [chats]
//
// It replays a recorded text: each step appends one token, reads every layer (as attention would) and compares each
// byte with the recording.

#include "packed_cache.hpp"

#include <cstdlib>
#include <numeric>

#if defined(__linux__)
#include <unistd.h>
#endif

namespace demo {

// The settings of mnn-kv's design documents: 3.5:1, sink 16, recent 96, blocks of 32 tokens.
const std::uint32_t block_tokens = 32;
const std::uint32_t update_interval = 16;
const float lossy_target = 3.5f;
// Lossless: the first and last tokens stay raw, the rest goes in blocks. Larger blocks compress better and fit worse.
const std::uint32_t hot_sink = 16;
const std::uint32_t hot_recent = 96;
const std::uint32_t store_block = 192;

/// Resident bytes of this process as the system counts them, or 0 where it does not say.
std::size_t resident_bytes() {
    unsigned long long pages = 0;
#if defined(__linux__)
    if (std::FILE* statm = std::fopen("/proc/self/statm", "r")) {
        if (std::fscanf(statm, "%*u %llu", &pages) != 1) {
            pages = 0;
        }
        std::fclose(statm);
    }
    pages *= static_cast<unsigned long long>(sysconf(_SC_PAGESIZE));
#endif
    return static_cast<std::size_t>(pages);
}

void require(mnnkv::status status, const char* what) {
    if (!status) {
        std::fprintf(stderr, "%s: %s: %s\n", what, status.name(), status.message());
        std::exit(1);
    }
}

/// One layer of one chat.
struct Layer {
    PackedCache cache;
    std::vector<std::uint32_t> logical;  // which token of the text each physical token is
    std::vector<float> scores;           // one per block
    std::vector<std::int32_t> plan;      // made at the end of a step, applied at the start of the next
    std::uint32_t steps_since_plan = 0;

    explicit Layer(const PackMode& mode) : cache(mode, Sample::tokens) {}
};

class Host {
public:
    Host(const Sample& sample, const PackMode& mode, std::uint32_t chats) : sample_(sample) {
        for (std::uint32_t l = 0; l < Sample::layers; ++l) {
            // One store per layer, chats as its layers: so its counters are those of one table row. An engine would
            // have one store per model.
            require(stores_[l].create(), "store");
            layers_[l].reserve(chats);
            for (std::uint32_t c = 0; c < chats; ++c) {
                layers_[l].emplace_back(mode);
                for (std::uint32_t t = 0; t < Sample::prompt; ++t) {
                    append(l, layers_[l].back(), t);
                }
            }
        }
    }

    void step(std::uint32_t query) {
        for (std::uint32_t l = 0; l < Sample::layers; ++l) {
            for (std::uint32_t c = 0; c < layers_[l].size(); ++c) {
                step(l, c, query);
            }
        }
    }

    std::uint64_t compared_bytes() const { return compared_; }
    std::uint64_t restored_bytes() const {
        return std::accumulate(stores_, stores_ + Sample::layers, std::uint64_t(0),
                               [](std::uint64_t sum, const mnnkv::store& s) { return sum + stats(s).restored_bytes; });
    }

    void print_table() const {
        std::printf("layer   raw bytes  lossless   kept tokens   lossy   joint\n");
        std::uint64_t all_raw = 0, all_held = 0;
        for (std::uint32_t l = 0; l < Sample::layers; ++l) {
            const std::uint64_t chats = layers_[l].size();
            const std::uint64_t token_bytes = 2u * Sample::heads * Sample::dims * sizeof(half);
            const std::uint64_t raw = chats * Sample::tokens * token_bytes;
            const std::uint32_t kept = layers_[l][0].cache.length();
            const mnnkv_store_statistics s = stats(stores_[l]);
            const std::uint64_t held = chats * kept * token_bytes - s.released_raw_bytes + s.compressed_bytes;
            const double lossless = s.compressed_bytes > 0 ? double(s.raw_bytes) / double(s.compressed_bytes) : 1.0;
            std::printf("%5u %11llu  %6.2f:1 %5u of %u %6.2f:1 %6.2f:1\n", l, static_cast<unsigned long long>(raw),
                        lossless, kept, Sample::tokens, double(Sample::tokens) / kept, double(raw) / double(held));
            all_raw += raw;
            all_held += held;
        }
        std::printf("  all %11llu                                 %6.2f:1\n", static_cast<unsigned long long>(all_raw),
                    double(all_raw) / double(all_held));
    }

    void print_speed() const {
        double encoded = 0, encode_ns = 0, decoded = 0, decode_ns = 0;
        for (const mnnkv::store& store : stores_) {
            const mnnkv_store_statistics s = stats(store);
            encoded += double(s.encoded_bytes);
            encode_ns += double(s.encode_ns);
            decoded += double(s.decoded_bytes);
            decode_ns += double(s.decode_ns);
        }
        std::printf("codec, one thread: encode %.0f MB/s, decode %.0f MB/s (%s)\n", encoded / encode_ns * 1e3,
                    decoded / decode_ns * 1e3, mnnkv_cpu_level());
    }

private:
    static mnnkv_store_statistics stats(const mnnkv::store& store) {
        mnnkv_store_statistics s = mnnkv::make<mnnkv_store_statistics>();
        require(store.stats(s), "stats");
        return s;
    }

    void append(std::uint32_t l, Layer& layer, std::uint32_t token) {
        layer.cache.append(sample_, l, token);
        layer.logical.push_back(token);
    }

    /// What an engine's patched attention does for one layer and one new token.
    void step(std::uint32_t l, std::uint32_t chat, std::uint32_t query) {
        Layer& layer = layers_[l][chat];
        if (!layer.plan.empty()) {
            evict(l, chat, layer);
        }
        PackedCache& cache = layer.cache;
        require(stores_[l].restore(chat, cache.layout(), cache.key(), cache.value()), "restore");
        append(l, layer, Sample::prompt + query);
        read(l, layer);
        if (l >= Sample::first_scored_layer) {
            score(l, layer, query);
            make_plan(layer, Sample::prompt + query + 1);
        }
        submit_cold(l, chat, layer);
        require(stores_[l].commit(chat, cache.layout(), cache.key(), cache.value()), "commit");
    }

    /// Applies the plan of the step before and gives the tail's memory back.
    void evict(std::uint32_t l, std::uint32_t chat, Layer& layer) {
        PackedCache& cache = layer.cache;
        const std::size_t n_pairs = layer.plan.size() / 2;
        const std::uint32_t old_length = cache.length();
        std::uint32_t new_length = 0;
        require(mnnkv_kv_compact(&cache.layout(), cache.key(), cache.value(), 0, layer.plan.data(), n_pairs, old_length,
                                 &new_length),
                "compact");
        require(stores_[l].compacted(chat, layer.plan.data(), n_pairs), "compacted");
        std::uint64_t bytes = 0;
        require(mnnkv_kv_release(&cache.layout(), cache.key(), cache.value(), new_length, old_length - new_length,
                                 &bytes),
                "release");
        cache.set_length(new_length);

        // Scores and token numbers move with the blocks.
        std::vector<std::uint32_t> logical;
        std::vector<float> scores;
        for (std::size_t i = 0; i < n_pairs; ++i) {
            const std::uint32_t begin = static_cast<std::uint32_t>(layer.plan[2 * i]);
            const std::uint32_t end = begin + static_cast<std::uint32_t>(layer.plan[2 * i + 1]);
            logical.insert(logical.end(), layer.logical.begin() + begin, layer.logical.begin() + end);
            for (std::uint32_t t = begin; t < end; t += block_tokens) {
                scores.push_back(t / block_tokens < layer.scores.size() ? layer.scores[t / block_tokens] : 0.0f);
            }
        }
        layer.logical.swap(logical);
        layer.scores.swap(scores);
        layer.plan.clear();
    }

    /// Stands for attention: reads every token of the layer, and compares it with the recording.
    void read(std::uint32_t l, Layer& layer) {
        PackedCache& cache = layer.cache;
        const std::size_t count = layer.logical.size();
        const std::size_t row = Sample::dims;
        keys_.resize(Sample::heads * count * row);
        values_.resize(keys_.size());
        require(mnnkv_kv_gather(&cache.layout(), cache.key(), cache.value(), 0, cache.length(), keys_.data(),
                                values_.data(), keys_.size() * sizeof(half)),
                "gather");
        for (std::size_t h = 0; h < Sample::heads; ++h) {
            for (std::size_t t = 0; t < count; ++t) {
                const std::size_t at = (h * count + t) * row;
                const std::size_t recorded = (h * Sample::tokens + layer.logical[t]) * row;
                if (std::memcmp(&keys_[at], &sample_.key[l][recorded], row * sizeof(half)) != 0 ||
                    std::memcmp(&values_[at], &sample_.value[l][recorded], row * sizeof(half)) != 0) {
                    std::fprintf(stderr, "layer %u, head %zu, token %u differs from the recording\n", l, h,
                                 layer.logical[t]);
                    std::exit(1);
                }
            }
        }
        compared_ += 2 * keys_.size() * sizeof(half);
    }

    void score(std::uint32_t l, Layer& layer, std::uint32_t query) {
        const std::uint32_t length = layer.cache.length();
        std::vector<float> sums((length + block_tokens - 1) / block_tokens);
        for (std::uint32_t t = 0; t < length; ++t) {
            sums[t / block_tokens] += sample_.weight(l, query, layer.logical[t]);
        }
        layer.scores.resize(sums.size(), 0.0f);
        require(mnnkv_h2o_update_scores(layer.scores.data(), sums.size(), sums.data(), 0.9f, Sample::query_heads),
                "scores");
    }

    void make_plan(Layer& layer, std::uint32_t chat_length) {
        if (++layer.steps_since_plan < update_interval) {
            return;
        }
        mnnkv_h2o_config config = mnnkv::h2o_defaults();
        config.block_tokens = block_tokens;
        config.sink_tokens = hot_sink;
        config.recent_tokens = hot_recent;
        // 3.5:1 of the whole chat, not of what earlier evictions left.
        config.target_tokens = static_cast<std::uint32_t>(static_cast<float>(chat_length) / lossy_target);
        std::vector<std::int32_t> pairs(2 * (layer.scores.size() / 2 + 1));
        std::size_t n_pairs = 0;
        mnnkv_h2o_plan plan = mnnkv::make<mnnkv_h2o_plan>();
        require(mnnkv_h2o_plan_reserve(layer.scores.data(), layer.scores.size(), layer.cache.length(), &config,
                                       pairs.data(), pairs.size() / 2, &n_pairs, &plan),
                "plan");
        if (plan.evicted_tokens > 0) {
            layer.plan.assign(pairs.begin(), pairs.begin() + static_cast<std::ptrdiff_t>(2 * n_pairs));
        }
        layer.steps_since_plan = 0;
    }

    /// Hands in the cold tokens, whole blocks at a time. Blocks handed in before cost nothing.
    void submit_cold(std::uint32_t l, std::uint32_t chat, Layer& layer) {
        PackedCache& cache = layer.cache;
        for (std::uint32_t t = hot_sink; t + store_block + hot_recent <= cache.length(); t += store_block) {
            require(stores_[l].submit(chat, cache.layout(), cache.key(), cache.value(), t, store_block), "submit");
        }
    }

    const Sample& sample_;
    mnnkv::store stores_[Sample::layers];
    std::vector<Layer> layers_[Sample::layers];
    std::vector<half> keys_, values_;
    std::uint64_t compared_ = 0;
};

}  // namespace demo

int main(int argc, char** argv) {
    using namespace demo;
    const char* wanted = argc > 1 ? argv[1] : pack_modes[0].name;
    const long chats = argc > 2 ? std::strtol(argv[2], nullptr, 10) : 32;
    const PackMode* mode = nullptr;
    for (const PackMode& m : pack_modes) {
        mode = std::strcmp(m.name, wanted) == 0 ? &m : mode;
    }
    if (mode == nullptr || chats < 1 || chats > 1000) {
        std::fprintf(stderr, "usage: mnnkv_demo [arm64-fp16|arm32-fp16|sme2-fp16] [chats 1..1000]\n");
        return 2;
    }
    Sample sample;
    if (!sample.load(MNNKV_SAMPLE_DIR)) {
        return 1;
    }
    std::printf("%ld chats of %u tokens, layers 0 to %u of a small Llama, f16, packed as MNN's %s\n", chats,
                Sample::tokens, Sample::layers - 1, mode->name);
    const std::size_t empty = resident_bytes();
    Host host(sample, *mode, static_cast<std::uint32_t>(chats));
    const std::size_t before = resident_bytes();
    for (std::uint32_t query = 0; query < Sample::queries; ++query) {
        host.step(query);
    }
    const std::size_t after = resident_bytes();

    host.print_table();
    if (after > 0) {
        std::printf("resident memory of the caches, by the system: %.1f MB after the prompt (%u tokens, raw),\n",
                    double(before - empty) / 1e6, Sample::prompt);
        std::printf("    %.1f MB after %u more steps with mnn-kv, blobs and working memory included\n",
                    double(after - empty) / 1e6, Sample::queries);
    }
    host.print_speed();
    std::printf("every restored byte matched: %.1f MB restored, %.1f MB compared with the recording\n",
                double(host.restored_bytes()) / 1e6, double(host.compared_bytes()) / 1e6);
    return host.restored_bytes() > 0 ? 0 : 1;
}
