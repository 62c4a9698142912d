// The chat of the demo: K, V and queries of every token, and its attention in f64.

#ifndef MNNKV_DEMO_CHAT_HPP
#define MNNKV_DEMO_CHAT_HPP

#include "attention.hpp"
#include "sample.hpp"

#include <algorithm>
#include <cmath>

namespace demo {

/// A chat of any length: the sample, repeated with noise.
///
/// KV head h of layer l is head h % 2 of the sample's layer l % 4, from a token of its own on. The noise of a channel is
/// half of its deviation, and differs each time, so that no token comes twice.
class Chat {
public:
    static constexpr std::uint32_t layers = 8, heads = 4, group = 2, query_heads = heads * group;
    static constexpr std::uint32_t dims = Sample::dims;
    /// The last steps, of which outputs are compared; and the steps that read one earlier passage.
    static constexpr std::uint32_t compared = 16;

    const std::uint32_t tokens, steps, prompt;

    Chat(const Sample& sample, std::uint32_t length)
        : tokens(length), steps(length / 64), prompt(length - steps) {
        key_.reserve(layers * heads * head_stride());
        value_.reserve(key_.capacity());
        for (std::uint32_t head = 0; head < layers * heads; ++head) {
            const std::uint32_t layer = head / heads % Sample::layers, of = head % Sample::heads;
            repeat(&sample.key[layer][of * Sample::tokens * dims], head, key_);
            repeat(&sample.value[layer][of * Sample::tokens * dims], head, value_);
        }
    }

    /// [token][dim]; the next head of the layer comes after head_stride elements.
    const half* key(std::uint32_t layer, std::uint32_t head = 0) const { return at(key_, layer, head); }
    const half* value(std::uint32_t layer, std::uint32_t head = 0) const { return at(value_, layer, head); }
    std::size_t head_stride() const { return std::size_t(tokens) * dims; }

    /// Bytes of K and V.
    double bytes() const { return double(2 * key_.size() * sizeof(half)); }

    /// The queries of a step with a new token, with their scale: [query head][dim].
    ///
    /// The sample has none. The first head of a group asks for tokens like the newest. The second reads an earlier passage,
    /// token by token: every 16 steps another one, which no step before has read.
    void queries(std::uint32_t layer, std::uint32_t token, std::uint32_t step, float* out) const {
        const float sharpness = 0.5f;
        for (std::uint32_t head = 0; head < heads; ++head) {
            const std::uint32_t like[group] = {token, passage(layer, head, step / compared) + step % compared};
            for (std::uint32_t q = 0; q < group; ++q) {
                const half* row = key(layer, head) + std::size_t(like[q]) * dims;
                for (std::uint32_t d = 0; d < dims; ++d) {
                    *out++ = sharpness / 8 * kernel::widen(row[d]);  // 8 is sqrt(dims)
                }
            }
        }
    }

    /// The attention of the last steps over all tokens in f64: [step][layer][query head][dim].
    std::vector<double> reference() const {
        std::vector<double> out(std::size_t(compared) * layers * query_heads * dims);
        for (std::uint32_t layer = 0; layer < layers; ++layer) {
            for (std::uint32_t head = 0; head < heads; ++head) {
                attend_in_f64(layer, head, out);
            }
        }
        return out;
    }

private:
    /// The sample's rows of a head, as often as needed, appended to `to`.
    void repeat(const half* rows, std::uint32_t head, std::vector<half>& to) {
        float noise[dims];
        for (std::uint32_t d = 0; d < dims; ++d) {
            double sum = 0, squares = 0;
            for (std::uint32_t t = 0; t < Sample::tokens; ++t) {
                const double x = kernel::widen(rows[std::size_t(t) * dims + d]);
                sum += x;
                squares += x * x;
            }
            const double mean = sum / Sample::tokens;
            noise[d] = static_cast<float>(0.5 * std::sqrt(std::max(0.0, squares / Sample::tokens - mean * mean)));
        }
        for (std::uint32_t t = 0; t < tokens; ++t) {
            const std::size_t row = (t + head * 136) % Sample::tokens * dims;
            for (std::uint32_t d = 0; d < dims; ++d) {
                to.push_back(kernel::narrow(kernel::widen(rows[row + d]) + noise[d] * normal()));
            }
        }
    }

    /// A random number of mean 0 and deviation 1: a sum of four.
    float normal() {
        random_ ^= random_ << 13;
        random_ ^= random_ >> 7;
        random_ ^= random_ << 17;
        std::uint64_t sum = 0;
        for (std::uint32_t shift = 0; shift < 64; shift += 16) {
            sum += random_ >> shift & 0xffff;
        }
        return (static_cast<float>(sum) - 131070.0f) / 37837.0f;
    }

    const half* at(const std::vector<half>& rows, std::uint32_t layer, std::uint32_t head) const {
        return &rows[(layer * heads + head) * head_stride()];
    }

    /// The first token of a passage: those of all heads and runs of steps are spread evenly over the prompt.
    std::uint32_t passage(std::uint32_t layer, std::uint32_t head, std::uint32_t run) const {
        const std::uint32_t number = (run * layers + layer) * heads + head;
        return static_cast<std::uint32_t>(std::uint64_t(number * 2654435769u) * (prompt - compared) >> 32);
    }

    void attend_in_f64(std::uint32_t layer, std::uint32_t head, std::vector<double>& out) const {
        std::vector<float> scaled(query_heads * dims);
        std::vector<double> query(dims), weights(tokens), row(dims);
        for (std::uint32_t step = 0; step < compared; ++step) {
            queries(layer, tokens - compared + step, steps - compared + step, scaled.data());
            const std::uint32_t length = tokens - compared + step + 1;
            for (std::uint32_t q = head * group; q < (head + 1) * group; ++q) {
                std::copy_n(&scaled[q * dims], dims, query.begin());
                double most = -1e300, sum = 0;
                for (std::uint32_t t = 0; t < length; ++t) {
                    weights[t] = dot(query.data(), key(layer, head) + std::size_t(t) * dims);
                    most = std::max(most, weights[t]);
                }
                for (std::uint32_t t = 0; t < length; ++t) {
                    sum += weights[t] = std::exp(weights[t] - most);
                }
                double* const to = &out[((std::size_t(step) * layers + layer) * query_heads + q) * dims];
                for (std::uint32_t t = 0; t < length; ++t) {
                    const half* const from = value(layer, head) + std::size_t(t) * dims;
                    for (std::uint32_t d = 0; d < dims; ++d) {
                        to[d] += weights[t] / sum * kernel::widen(from[d]);
                    }
                }
            }
        }
    }

    static double dot(const double* a, const half* b) {
        double sums[8] = {};
        for (std::uint32_t d = 0; d < dims; d += 8) {
            for (std::uint32_t i = 0; i < 8; ++i) {
                sums[i] += a[d + i] * kernel::widen(b[d + i]);
            }
        }
        return ((sums[0] + sums[1]) + (sums[2] + sums[3])) + ((sums[4] + sums[5]) + (sums[6] + sums[7]));
    }

    std::vector<half> key_, value_;  // [layer][head][token][dim]
    std::uint64_t random_ = 88172645463325252u;
};

}  // namespace demo

#endif
