// A chat whose session attends, compared with attention in f64 over the numbers that were appended, or over those that docs/format.md
// says blocks have.

#ifndef MNNKV_TESTS_BUDGET_CHAT_HPP
#define MNNKV_TESTS_BUDGET_CHAT_HPP

#include "session_host.hpp"
#include "struct_sizes.hpp"

#include <array>
#include <chrono>
#include <cmath>
#include <thread>

namespace support {

constexpr std::uint32_t layers = 3, kv_heads = 2, heads = 6, dims = 64, block = 64, sink = 16, chunk = 256;
/// Channels of K whose numbers are not small.
constexpr std::uint32_t few_dims = 16;

/// What mnnkv_session_attend rounds beside the numbers: logits of up to 5 by 2^-13 of themselves, and weights by 2^-14 of the largest in
/// their block, which is at most 50 times the mean here, over a range of 2; blocks below 2^-14 are left out. 2 * (5 + 50 + 8)
/// / 2^14 = 0.008 is the worst case of all signs.
constexpr double rounding = 0.008;
/// Single steps leave out blocks of the file that get little attention as sketches tell, up to a few hundredths together; a
/// token that is asked for and not found is off by about 1, and one that is found by what 4 bits of V round.
constexpr double unread = 0.25;

/// The nearest number of 11 bits to a double: f16, of numbers that are neither tiny nor large.
inline double nearest_half(double x) {
    int exponent = 0;
    const double part = std::frexp(x, &exponent);
    return std::ldexp(std::nearbyint(part * 2048), exponent - 11);
}

/// The least such number at or above x.
inline double least_half(double x) {
    int exponent = 0;
    const double part = std::frexp(x, &exponent);
    return std::ldexp(std::ceil(part * 2048), exponent - 11);
}

/// K and V of a token of a layer: [K or V][head][dim].
using numbers = std::vector<float>;
constexpr std::size_t v_at = std::size_t{kv_heads} * dims;

/// The numbers that a block of these tokens has (docs/format.md, "k8v4 blocks"). No channel of this test's has 16 bits.
inline void quantise(std::vector<numbers>& tokens, std::size_t first) {
    for (std::size_t channel = 0; channel < v_at; ++channel) {
        float low = INFINITY, high = -INFINITY;
        for (std::size_t t = first; t < first + block; ++t) {
            low = std::min(low, tokens[t][channel]);
            high = std::max(high, tokens[t][channel]);
        }
        const double middle = nearest_half(0.5 * low + 0.5 * high);
        const double scale = least_half(std::max(high - middle, middle - low) / 127);
        for (std::size_t t = first; t < first + block; ++t) {
            float& x = tokens[t][channel];
            x = static_cast<float>(std::nearbyint((x - middle) / scale) * scale + middle);
        }
    }
    for (std::size_t t = first; t < first + block; ++t) {
        for (std::size_t group = v_at; group < 2 * v_at; group += 32) {
            const auto begin = tokens[t].begin() + static_cast<std::ptrdiff_t>(group);
            const double low = *std::min_element(begin, begin + 32), high = *std::max_element(begin, begin + 32);
            const double middle = nearest_half(low + (high - low) * 8 / 15);
            const double scale = least_half(std::max((middle - low) / 8, (high - middle) / 7));
            for (auto x = begin; x != begin + 32; ++x) {
                *x = static_cast<float>(std::nearbyint((*x - middle) / scale) * scale + middle);
            }
        }
    }
}

inline mnnkv::session made(const std::string& config) {
    mnnkv_session_options options = mnnkv::make<mnnkv_session_options>();
    options.layers = layers;
    options.config_json = config.data();
    options.config_len = config.size();
    options.attends = 1;
    mnnkv::session session;
    EXPECT_TRUE(ok(session.create(options).code())) << config;
    return session;
}

inline std::string budget(std::uint64_t bytes, const std::string& more = "") {
    return "{\"kv_memory_bytes\": " + std::to_string(bytes) + (more.empty() ? "" : ", " + more) + "}";
}

/// Waits for the file are long, so that results do not hang on the disk.
inline std::string with_file(std::uint64_t bytes, const std::string& path, const std::string& more = "") {
    return budget(bytes, "\"kv_memory_wait_us\": 5000000, \"kv_memory_file\": \"" + path + "\"" +
                             (more.empty() ? "" : ", " + more));
}

/// A host of `layers` row-major caches of f32, [head][token][dim], that also keeps every token.
class Chat {
public:
    explicit Chat(const std::string& config, std::uint32_t room = 4096) : session(made(config)), random_(4701), all_(layers) {
        layout_ = mnnkv::make<mnnkv_layout>();
        layout_.key_dtype = layout_.value_dtype = MNNKV_DTYPE_F32;
        layout_.kv_heads = kv_heads;
        layout_.head_dim = dims;
        layout_.max_tokens = room;
        layout_.l_pack = layout_.h_pack = layout_.flash_block = 1;
        for (cache_of& one : caches_) {
            one.key.resize(std::size_t{kv_heads} * room * dims);
            one.value.resize(one.key.size());
        }
    }

    /// Steps of `count` tokens, in chunks of a prompt.
    void prompt(std::uint32_t count) {
        for (std::uint32_t rows = 0; count > 0; count -= rows) {
            rows = std::min(count, chunk);
            ASSERT_NO_FATAL_FAILURE(step(rows));
        }
    }

    void singles(std::uint32_t count) {
        for (; count > 0; --count) {
            ASSERT_NO_FATAL_FAILURE(step(1));
        }
    }

    /// One step of all layers. `wanted`: a token that the queries ask for, and little else; -1 = none.
    void step(std::uint32_t rows, int wanted = -1) {
        attended = 0;
        for (std::uint32_t layer = 0; layer < layers; ++layer) {
            ASSERT_NO_FATAL_FAILURE(step_of(layer, rows, wanted));
        }
    }

    std::uint32_t length() const { return static_cast<std::uint32_t>(all_[0].size()); }

    double memory(const char* name) const { return report_of(session).memory(name); }

    /// The largest distance of the last step's last row from f64 over the numbers that blocks have, over all layers.
    double distance() {
        double most = 0;
        const session_report now = report_of(session);
        for (std::uint32_t layer = 0; layer < layers; ++layer) {
            std::vector<numbers> tokens = all_[layer];
            EXPECT_EQ(now.layer(layer, "quant_unfit_block_count"), 0);
            const std::size_t quantised = static_cast<std::size_t>(now.layer(layer, "quant_tokens"));
            for (std::size_t first = sink; first < sink + quantised; first += block) {
                quantise(tokens, first);
            }
            // The last row sees all tokens.
            const std::size_t row = queries_[layer].size() - std::size_t{heads} * dims;
            for (std::size_t head = 0; head < heads; ++head) {
                const float* const query = &queries_[layer][row + head * dims];
                const std::size_t kv = head / (heads / kv_heads);
                std::vector<double> out(dims);
                double sum = 0;
                for (const numbers& token : tokens) {
                    double logit = 0;
                    for (std::size_t d = 0; d < dims; ++d) {
                        logit += double{query[d]} * token[kv * dims + d];
                    }
                    const double weight = std::exp(logit / 8);
                    sum += weight;
                    for (std::size_t d = 0; d < dims; ++d) {
                        out[d] += weight * token[v_at + kv * dims + d];
                    }
                }
                for (std::size_t d = 0; d < dims; ++d) {
                    const double off = std::fabs(out[d] / sum - outputs_[layer][row + head * dims + d]);
                    most = off <= most ? most : off;
                }
            }
        }
        return most;
    }

    /// Each number of the last outputs lies between the least and the greatest V.
    bool is_average() const {
        for (const std::vector<float>& output : outputs_) {
            for (const float x : output) {
                if (!(std::fabs(x) <= 1.3f)) {
                    return false;
                }
            }
        }
        return true;
    }

    /// The parts of a step of one layer, between which a test may call the session.
    void begin(std::uint32_t layer, std::uint32_t rows, int wanted = -1) {
        cache_of& own = caches_[layer];
        mnnkv_cache now = cache(layer);
        ASSERT_TRUE(ok(session.begin(layer, now, begun).code()));
        ASSERT_LE(now.kv_len + rows, layout_.max_tokens);
        own.kv_len = now.kv_len;
        for (std::uint32_t row = 0; row < rows; ++row, ++own.kv_len) {
            all_[layer].emplace_back(2 * v_at);
            for (std::size_t at = 0; at < 2 * v_at; ++at) {
                // Keys have few directions, as those of models, which sketches of what is in the file are made for.
                const float size = at >= v_at ? 1.0f : at % dims < few_dims ? 2.0f : 0.4f;
                const float offset = at >= v_at && at % dims == 0 ? value_offset : 0.0f;
                all_[layer].back()[at] = size * number() + offset;
            }
            for (std::uint32_t h = 0; h < kv_heads; ++h) {
                const std::size_t at = (std::size_t{h} * layout_.max_tokens + own.kv_len) * dims;
                std::copy_n(&all_[layer].back()[h * dims], dims, &own.key[at]);
                std::copy_n(&all_[layer].back()[v_at + h * dims], dims, &own.value[at]);
            }
        }
        std::vector<float>& queries = queries_[layer];
        queries.resize(std::size_t{rows} * heads * dims);
        for (std::size_t at = 0; at < queries.size(); ++at) {
            const std::size_t kv = at / dims % heads / (heads / kv_heads);
            queries[at] = wanted < 0 ? 6 * number() : 16 * all_[layer][std::size_t(wanted)][kv * dims + at % dims];
        }
        outputs_[layer].assign(queries.size(), std::nanf(""));
    }

    mnnkv_attend attention(std::uint32_t layer, std::uint32_t rows) {
        mnnkv_attend step = mnnkv::make<mnnkv_attend>();
        step.dtype = MNNKV_DTYPE_F32;
        step.heads = heads;
        step.head_dim = dims;
        step.causal = 1;
        step.rows = rows;
        step.queries = queries_[layer].data();
        step.output = outputs_[layer].data();
        return step;
    }

    void attend(std::uint32_t layer, std::uint32_t rows, std::uint32_t parts) {
        const mnnkv_cache now = cache(layer);
        const mnnkv_attend step = attention(layer, rows);
        std::vector<std::thread> threads;
        for (std::uint32_t part = 0; part < parts; ++part) {
            threads.emplace_back([=] { EXPECT_TRUE(ok(session.attend(layer, part, parts, now, step).code())); });
        }
        for (std::thread& thread : threads) {
            thread.join();
        }
    }

    mnnkv_status end(std::uint32_t layer, std::uint32_t rows) {
        mnnkv_cache now = cache(layer);
        return session.end(layer, heads, rows, now).code();
    }

    mnnkv_cache cache(std::uint32_t layer) {
        mnnkv_cache cache = mnnkv::make<mnnkv_cache>();
        cache.layout = &layout_;
        cache.key = caches_[layer].key.data();
        cache.value = caches_[layer].value.data();
        cache.kv_len = caches_[layer].kv_len;
        return cache;
    }

    std::vector<float>& queries(std::uint32_t layer) { return queries_[layer]; }
    const std::vector<float>& output(std::uint32_t layer) const { return outputs_[layer]; }

    mnnkv::session session;
    /// What the last begin has said.
    mnnkv_step begun = mnnkv::make<mnnkv_step>();
    /// Of the first channel of V of each head, which hides the 31 others of its group where it is large.
    float value_offset = 0;
    /// Layers of the last step that the session attended to.
    std::uint32_t attended = 0;

private:
    struct cache_of {
        std::vector<float> key, value;
        std::uint32_t kv_len = 0;
    };

    float number() { return random_.unit() - random_.unit(); }

    void step_of(std::uint32_t layer, std::uint32_t rows, int wanted) {
        ASSERT_NO_FATAL_FAILURE(begin(layer, rows, wanted));
        const cache_of& own = caches_[layer];
        if (begun.attends != 0) {
            ++attended;
            attend(layer, rows, 2);
        } else {
            // The host's attention would read these.
            ASSERT_EQ(own.kv_len, all_[layer].size());
            outputs_[layer].assign(outputs_[layer].size(), 0.0f);
            for (std::uint32_t t = own.kv_len - 1;; t -= std::min(t, 97u)) {
                for (std::uint32_t h = 0; h < kv_heads; ++h) {
                    const std::size_t at = (std::size_t{h} * layout_.max_tokens + t) * dims;
                    ASSERT_TRUE(std::equal(&own.key[at], &own.key[at] + dims, &all_[layer][t][h * dims])) << t;
                    ASSERT_TRUE(std::equal(&own.value[at], &own.value[at] + dims, &all_[layer][t][v_at + h * dims])) << t;
                }
                if (t == 0) {
                    break;
                }
            }
        }
        ASSERT_TRUE(ok(end(layer, rows)));
    }

    dice random_;
    mnnkv_layout layout_;
    std::vector<std::vector<numbers>> all_;
    std::array<cache_of, layers> caches_;
    std::array<std::vector<float>, layers> queries_, outputs_;
};

}  // namespace support

#endif  // MNNKV_TESTS_BUDGET_CHAT_HPP
