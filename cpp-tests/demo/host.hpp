// A host that decodes several chats in a batch with caches that mnn-kv shrinks, as a patched engine does. The calls
// are in Host::decode and session.hpp.

#ifndef MNNKV_DEMO_HOST_HPP
#define MNNKV_DEMO_HOST_HPP

#include "attention.hpp"
#include "sample.hpp"
#include "session.hpp"

#include <algorithm>

namespace demo {

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
        : sample_(sample), chats_(chats), evicts_(evicts), session_(config, Sample::layers * chats),
          out_(Sample::query_heads * Sample::dims) {
        for (std::uint32_t i = 0; i < Sample::layers * chats; ++i) {
            caches_.push_back(PackedCache(mode, Sample::heads, Sample::dims, Sample::tokens));
        }
    }

    /// Fills the caches with the prompt. Its attention is not part of the demo, so nothing is scored.
    void prompt() {
        for (std::uint32_t i = 0; i < caches_.size(); ++i) {
            session_.begin(i, caches_[i]);
            for (std::uint32_t token = 0; token < Sample::prompt; ++token) {
                append(i, token);
            }
            session_.end(i, caches_[i], Sample::query_heads, Sample::prompt);
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
            session_.begin(i, caches_[i]);
            session_.restore(i, caches_[i]);
            bytes += compare(i);
            session_.end(i, caches_[i], Sample::query_heads, 0);
        }
        return bytes;
    }

    /// Bytes that smaller buffers would save: the empty tails of all caches.
    std::uint64_t tail_bytes() const {
        std::uint64_t sum = 0;
        for (const PackedCache& cache : caches_) {
            const std::uint64_t unused = cache.layout().max_tokens - cache.length();
            sum += 2 * unused * Sample::heads * Sample::dims * sizeof(half);
        }
        return sum;
    }

    mnnkv_metrics metrics() const { return session_.metrics(); }
    double attention_seconds() const { return attention_seconds_; }

private:
    static constexpr std::uint32_t group_size = Sample::query_heads / Sample::heads;

    /// One layer and one new token, in the order of a patched engine.
    void decode(std::uint32_t i, std::uint32_t token) {
        session_.begin(i, caches_[i]);  // 1. evicts planned tokens
        append(i, token);
        const double start = seconds();
        attention(i, token);  // 2. asks Session::head where a head is, passes its softmax tiles to Session::sums
        attention_seconds_ += seconds() - start;
        session_.end(i, caches_[i], Sample::query_heads, 1);  // 3. plans the next eviction, compresses cold tokens
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
            const half *key, *value;
            session_.head(i, caches_[i], kv_head, key, value);
            attend(caches_[i], key, value, group_, [&](const mnnkv_score_tile& tile) {
                if (evicts_) {
                    session_.sums(i, tile);
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
        const std::vector<std::int32_t> runs = session_.positions(i, length);
        for (std::size_t run = 0; run < runs.size(); run += 2) {
            const std::uint32_t first = static_cast<std::uint32_t>(runs[run]);
            const std::uint32_t tokens = static_cast<std::uint32_t>(runs[run + 1]);
            const std::size_t count = std::size_t(tokens) * Sample::dims;
            for (std::uint32_t h = 0; h < Sample::heads; ++h) {
                const std::size_t at = (std::size_t(h) * length + t) * Sample::dims;
                const std::size_t recorded = (std::size_t(h) * Sample::tokens + first) * Sample::dims;
                if (std::memcmp(&keys[at], &sample_.key[layer][recorded], count * sizeof(half)) != 0 ||
                    std::memcmp(&values[at], &sample_.value[layer][recorded], count * sizeof(half)) != 0) {
                    std::fprintf(stderr, "layer %u, chat %u, head %u: tokens %u to %u differ from the recording\n",
                                 layer, i % chats_, h, first, first + tokens - 1);
                    std::exit(1);
                }
            }
            t += tokens;
        }
        if (t != length) {
            std::fprintf(stderr, "layer %u, chat %u: %u positions for %u tokens\n", layer, i % chats_, t, length);
            std::exit(1);
        }
        return 2 * keys.size() * sizeof(half);
    }

    const Sample& sample_;
    const std::uint32_t chats_;
    const bool evicts_;
    Session session_;
    std::vector<PackedCache> caches_;  // [layer][chat]
    HeadGroup group_;
    float queries_[group_size * Sample::dims];
    std::vector<float> out_;  // [query head][dim]
    double attention_seconds_ = 0;
};

}  // namespace demo

#endif
