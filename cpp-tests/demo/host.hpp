// A host that decodes several chats in a batch with caches that mnn-kv shrinks, as a patched engine does. The four
// calls are in Host::decode.

#ifndef MNNKV_DEMO_HOST_HPP
#define MNNKV_DEMO_HOST_HPP

#include "attention.hpp"
#include "sample.hpp"

#include <algorithm>

namespace demo {

inline void require(mnnkv::status status, const char* what) {
    if (!status) {
        std::fprintf(stderr, "%s: %s: %s\n", what, status.name(), status.message());
        std::exit(1);
    }
}

/// Attention outputs of every step. Chats replay the same text, so the outputs of all chats must be equal.
class Outputs {
public:
    struct Difference {
        std::uint32_t step, layer, chat, head;
        float there, here;
    };

    /// Records the first outputs of a step and layer, and compares all later ones, bit for bit.
    void see(std::uint32_t step, std::uint32_t layer, std::uint32_t chat, const std::vector<float>& out) {
        std::vector<float>& recorded = recorded_[step][layer];
        if (recorded.empty()) {
            recorded = out;
        }
        if (std::memcmp(recorded.data(), out.data(), out.size() * sizeof(float)) != 0) {
            std::size_t i = 0;
            while (std::memcmp(&recorded[i], &out[i], sizeof(float)) == 0) {
                ++i;
            }
            const std::uint32_t head = static_cast<std::uint32_t>(i / Sample::dims);
            differences.push_back({step, layer, chat, head, recorded[i], out[i]});
        }
    }

    std::vector<Difference> differences;  // at most one per step, layer and chat

private:
    std::vector<float> recorded_[Sample::steps][Sample::layers];  // [query head][dim]
};

class Host {
public:
    /// config: JSON for the session; "": no mnn-kv. evicts: the config has kv_h2o_enable.
    ///
    /// A step visits all chats in layer 0, then all in layer 1 and so on, as batches do. Each layer of each chat is one
    /// layer of the session, in that order. A host of one chat numbers its layers 0, 1, 2 and so on.
    Host(const Sample& sample, const PackMode& mode, std::uint32_t chats, const std::string& config, bool evicts)
        : sample_(sample), chats_(chats), evicts_(evicts), out_(Sample::query_heads * Sample::dims) {
        for (std::uint32_t i = 0; i < Sample::layers * chats; ++i) {
            caches_.push_back(PackedCache(mode, Sample::heads, Sample::dims, Sample::tokens));
        }
        if (!config.empty()) {
            require(mnnkv_session_create(config.data(), config.size(), Sample::layers * chats, 1,
                                         MNNKV_ABI_VERSION, &session_),
                    "session");
        }
    }
    ~Host() { mnnkv_session_destroy(session_); }
    Host(const Host&) = delete;
    Host& operator=(const Host&) = delete;

    /// Fills the caches with the prompt. Its attention is not part of the demo, so nothing is scored.
    void prompt() {
        for (std::uint32_t i = 0; i < caches_.size(); ++i) {
            mnnkv_cache view = begin(i);
            for (std::uint32_t token = 0; token < Sample::prompt; ++token) {
                append(i, token);
            }
            end(i, view, Sample::prompt);
        }
    }

    /// One more token for every chat.
    void step(std::uint32_t step, Outputs& outputs) {
        for (std::uint32_t layer = 0; layer < Sample::layers; ++layer) {
            for (std::uint32_t chat = 0; chat < chats_; ++chat) {
                decode(layer * chats_ + chat, Sample::prompt + step);
                outputs.see(step, layer, chat, out_);
            }
        }
    }

    /// Compares every kept token with the recording. Returns the bytes compared; exits where one differs.
    std::uint64_t compare() {
        std::uint64_t bytes = 0;
        for (std::uint32_t i = 0; i < caches_.size(); ++i) {
            mnnkv_cache view = begin(i);
            bytes += compare(i);
            end(i, view, 0);
        }
        return bytes;
    }

    /// Bytes that smaller buffers would save: the empty tails of all caches.
    std::uint64_t tail_bytes() const {
        std::uint64_t sum = 0;
        for (const PackedCache& cache : caches_) {
            std::uint32_t first = 0, count = 0;
            std::uint64_t bytes = 0;
            require(mnnkv_kv_tail(&cache.layout(), cache.length(), &first, &count, &bytes), "tail");
            sum += bytes;
        }
        return sum;
    }

    mnnkv_metrics metrics() const {
        mnnkv_metrics metrics = mnnkv::make<mnnkv_metrics>();
        if (session_ != nullptr) {
            require(mnnkv_session_metrics(session_, &metrics), "metrics");
        }
        return metrics;
    }

    double attention_seconds() const { return attention_seconds_; }

private:
    static constexpr std::uint32_t group_size = Sample::query_heads / Sample::heads;

    /// One layer and one new token, in the order of a patched engine.
    void decode(std::uint32_t i, std::uint32_t token) {
        mnnkv_cache view = begin(i);  // 1. evicts planned tokens, restores stored ones
        append(i, token);
        const double start = seconds();
        attention(i, token);  // 2. passes its softmax tiles to mnnkv_session_scores
        attention_seconds_ += seconds() - start;
        end(i, view, 1);  // 3. plans the next eviction, compresses cold tokens
    }

    mnnkv_cache begin(std::uint32_t i) {
        mnnkv_cache view = caches_[i].view();
        if (session_ != nullptr) {
            require(mnnkv_session_begin(session_, i, &view), "begin");
            caches_[i].set_length(view.kv_len);
        }
        return view;
    }

    void end(std::uint32_t i, mnnkv_cache& view, std::uint32_t queries) {
        if (session_ != nullptr) {
            view.kv_len = caches_[i].length();
            require(mnnkv_session_end(session_, i, Sample::query_heads, queries, &view), "end");
        }
    }

    void append(std::uint32_t i, std::uint32_t token) {
        const std::uint32_t layer = i / chats_;
        const std::size_t row = std::size_t(token) * Sample::dims, head = std::size_t(Sample::tokens) * Sample::dims;
        caches_[i].append(&sample_.key[layer][row], &sample_.value[layer][row], head);
    }

    void attention(std::uint32_t i, std::uint32_t token) {
        for (std::uint32_t kv_head = 0; kv_head < Sample::heads; ++kv_head) {
            make_queries(i / chats_, kv_head, token);
            group_.start(group_size, Sample::dims, queries_, &out_[kv_head * group_size * Sample::dims]);
            attend(caches_[i], kv_head, group_, [&](const mnnkv_score_tile& tile) {
                if (evicts_) {
                    require(mnnkv_session_scores(session_, i, 0, &tile), "scores");  // lane 0: the only thread
                }
            });
        }
    }

    /// The recording has no queries. A token's key replaces them, which favours tokens with similar keys; the two heads
    /// of a group differ in sharpness.
    void make_queries(std::uint32_t layer, std::uint32_t kv_head, std::uint32_t token) {
        const float sharpness[group_size] = {0.5f, 0.25f};
        const half* key = &sample_.key[layer][(std::size_t(kv_head) * Sample::tokens + token) * Sample::dims];
        for (std::uint32_t q = 0; q < group_size; ++q) {
            for (std::uint32_t d = 0; d < Sample::dims; ++d) {
                queries_[q * Sample::dims + d] = sharpness[q] / 8 * kernel::widen(key[d]);  // 8 is sqrt(dims)
            }
        }
    }

    std::uint64_t compare(std::uint32_t i) {
        const PackedCache& cache = caches_[i];
        const std::uint32_t layer = i / chats_, length = cache.length();
        std::vector<half> keys(std::size_t(Sample::heads) * length * Sample::dims), values(keys.size());
        require(mnnkv_kv_gather(&cache.layout(), cache.key(), cache.value(), 0, length, keys.data(), values.data(),
                                keys.size() * sizeof(half)),
                "gather");
        std::uint32_t t = 0;
        for (const std::pair<std::uint32_t, std::uint32_t>& run : positions(i)) {
            const std::size_t count = std::size_t(run.second) * Sample::dims;
            for (std::uint32_t h = 0; h < Sample::heads; ++h) {
                const std::size_t at = (std::size_t(h) * length + t) * Sample::dims;
                const std::size_t recorded = (std::size_t(h) * Sample::tokens + run.first) * Sample::dims;
                if (std::memcmp(&keys[at], &sample_.key[layer][recorded], count * sizeof(half)) != 0 ||
                    std::memcmp(&values[at], &sample_.value[layer][recorded], count * sizeof(half)) != 0) {
                    std::fprintf(stderr, "layer %u, chat %u, head %u: tokens %u to %u differ from the recording\n",
                                 layer, i % chats_, h, run.first, run.first + run.second - 1);
                    std::exit(1);
                }
            }
            t += run.second;
        }
        if (t != length) {
            std::fprintf(stderr, "layer %u, chat %u: %u positions for %u tokens\n", layer, i % chats_, t, length);
            std::exit(1);
        }
        return 2 * keys.size() * sizeof(half);
    }

    /// The tokens of the text that the cache holds: runs of (first, count).
    std::vector<std::pair<std::uint32_t, std::uint32_t>> positions(std::uint32_t i) const {
        if (session_ == nullptr) {
            return {{0, caches_[i].length()}};
        }
        std::vector<std::int32_t> pairs(2 * Sample::tokens);
        std::size_t n_pairs = 0;
        require(mnnkv_session_positions(session_, i, pairs.data(), pairs.size() / 2, &n_pairs), "positions");
        std::vector<std::pair<std::uint32_t, std::uint32_t>> runs;
        for (std::size_t p = 0; p < n_pairs; ++p) {
            runs.emplace_back(static_cast<std::uint32_t>(pairs[2 * p]), static_cast<std::uint32_t>(pairs[2 * p + 1]));
        }
        return runs;
    }

    const Sample& sample_;
    const std::uint32_t chats_;
    const bool evicts_;
    std::vector<PackedCache> caches_;  // [layer][chat]
    mnnkv_session* session_ = nullptr;
    HeadGroup group_;
    float queries_[group_size * Sample::dims];
    std::vector<float> out_;  // [query head][dim]
    double attention_seconds_ = 0;
};

}  // namespace demo

#endif
