// A host that decodes a chat with caches that mnn-kv keeps small, as a patched engine does. The calls are in
// Host::decode and session.hpp.

#ifndef MNNKV_DEMO_HOST_HPP
#define MNNKV_DEMO_HOST_HPP

#include "chat.hpp"
#include "session.hpp"

namespace demo {

class Host {
public:
    /// config: JSON for the session; "": no mnn-kv. evicts: h2o ranks tokens by attention, which the host hands over.
    Host(const Chat& chat, const std::string& config, bool evicts)
        : chat_(chat), evicts_(evicts), session_(config, Chat::layers), queries_(Chat::query_heads * Chat::dims),
          out_(queries_.size()) {
        for (std::uint32_t layer = 0; layer < Chat::layers; ++layer) {
            caches_.push_back(PackedCache(Chat::heads, Chat::dims, chat.tokens));
        }
    }

    /// Reads the prompt in chunks, without attention: the demo is about steps. Calls after() after each layer of a chunk. The last
    /// `steps` tokens of a chunk are steps of one token; then see(tokens, the seconds of the median).
    template <class After, class See>
    void prompt(std::uint32_t steps, After&& after, See&& see) {
        const std::uint32_t chunk = 256;
        std::vector<double> times(steps);
        for (std::uint32_t token = 0; token < chat_.prompt; token += chunk) {
            const std::uint32_t count = std::min(chunk, chat_.prompt - token) - steps;
            for (std::uint32_t layer = 0; layer < Chat::layers; ++layer) {
                session_.begin(layer, caches_[layer]);
                append(layer, token, count);
                session_.end(layer, caches_[layer], Chat::query_heads, 0);  // 0 rows have attended
                after();
            }
            for (std::uint32_t i = 0; i < steps; ++i) {
                const double start = seconds();
                // Those behind the prompt read other passages.
                decode_all(token + count + i, chat_.steps + token + i, [](const std::vector<float>&) {});
                times[i] = seconds() - start;
            }
            if (steps > 0) {
                std::sort(times.begin(), times.end());
                see(token + count + steps, times[steps / 2]);
            }
        }
    }

    /// One more token. Calls see(outputs of attention) for each layer.
    template <class See>
    void step(std::uint32_t step, See&& see) {
        decode_all(chat_.prompt + step, step, see);
    }

    /// Saves the chat. Returns the bytes written.
    std::uint64_t save() { return session_.save(caches_); }

    /// Goes on with the chat that another host has saved.
    void open() { session_.open(caches_); }

    const Session& session() const { return session_; }

private:
    /// All layers and one new token.
    template <class See>
    void decode_all(std::uint32_t token, std::uint32_t step, See&& see) {
        for (std::uint32_t layer = 0; layer < Chat::layers; ++layer) {
            chat_.queries(layer, token, step, queries_.data());
            decode(layer, token);
            see(out_);
        }
    }

    /// One layer and one new token, in the order of a patched engine.
    void decode(std::uint32_t layer, std::uint32_t token) {
        session_.begin(layer, caches_[layer]);  // 1. tokens leave the cache for few bits, as the config asks
        append(layer, token, 1);
        if (session_.attends()) {
            // 2. over all tokens, in the cache or not
            session_.attend(layer, caches_[layer], Chat::query_heads, queries_.data(), out_.data());
        } else {
            attention(layer);  // 2. while all are in the cache
        }
        session_.end(layer, caches_[layer], Chat::query_heads, 1);  // 3.
    }

    void append(std::uint32_t layer, std::uint32_t token, std::uint32_t count) {
        for (; count > 0; ++token, --count) {
            const std::size_t row = std::size_t(token) * Chat::dims;
            caches_[layer].append(chat_.key(layer) + row, chat_.value(layer) + row, chat_.head_stride());
        }
    }

    void attention(std::uint32_t layer) {
        const std::uint32_t dims = Chat::group * Chat::dims;
        for (std::uint32_t head = 0; head < Chat::heads; ++head) {
            group_.start(Chat::group, Chat::dims, &queries_[head * dims], &out_[head * dims]);
            const PackedCache& cache = caches_[layer];
            demo::attend(cache, cache.key(head), cache.value(head), group_, [&](const mnnkv_score_tile& tile) {
                if (evicts_) {
                    session_.sums(layer, tile);
                }
            });
        }
    }

    const Chat& chat_;
    const bool evicts_;
    Session session_;
    std::vector<PackedCache> caches_;  // [layer]
    HeadGroup group_;
    std::vector<float> queries_, out_;  // [query head][dim]
};

}  // namespace demo

#endif
