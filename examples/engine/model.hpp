// A transformer with made-up weights, and what it reads and writes: tokens, logits, text. It has no KV cache.

#ifndef ENGINE_MODEL_HPP
#define ENGINE_MODEL_HPP

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

namespace engine {

using Token = std::uint32_t;
using Tokens = std::vector<Token>;

const std::uint32_t layers = 8, hidden = 64, query_heads = 4, kv_heads = 2, dims = 32, inner = 128, vocabulary = 128;
const std::uint32_t group = query_heads / kv_heads;  // query heads that read one KV head
const float rope_theta = 10000;

/// Numbers that look random, and are the same everywhere.
class Numbers {
public:
    explicit Numbers(std::uint64_t seed) : state_(seed * 2 + 1) {}
    std::uint32_t bits() {
        state_ = state_ * 6364136223846793005u + 1442695040888963407u;
        return static_cast<std::uint32_t>(state_ >> 33) ^ static_cast<std::uint32_t>(state_ >> 48);
    }
    /// 0 to 1, without 1.
    float share() { return static_cast<float>(bits() >> 7 & 0xffffff) / 16777216.0f; }

private:
    std::uint64_t state_;
};

/// y = W x.
class Matrix {
public:
    Matrix(std::uint32_t rows, std::uint32_t columns, float gain, Numbers& numbers) : rows_(rows), columns_(columns) {
        const float scale = gain * std::sqrt(3.0f / static_cast<float>(columns));
        for (std::uint32_t i = 0; i < rows * columns; ++i) {
            weights_.push_back(scale * (2 * numbers.share() - 1));
        }
    }

    void times(const float* x, float* y) const {
        for (std::uint32_t row = 0; row < rows_; ++row) {
            const float* w = row_at(row);
            float part[8] = {};
            for (std::uint32_t i = 0; i < columns_; i += 8) {
                for (std::uint32_t j = 0; j < 8; ++j) {
                    part[j] += w[i + j] * x[i + j];
                }
            }
            y[row] = ((part[0] + part[1]) + (part[2] + part[3])) + ((part[4] + part[5]) + (part[6] + part[7]));
        }
    }

    const float* row_at(std::uint32_t row) const { return &weights_[std::size_t(row) * columns_]; }

private:
    std::uint32_t rows_, columns_;
    std::vector<float> weights_;
};

inline void normalise(const float* x, float* y) {
    float squares = 1e-5f;
    for (std::uint32_t i = 0; i < hidden; ++i) {
        squares += x[i] * x[i];
    }
    for (std::uint32_t i = 0; i < hidden; ++i) {
        y[i] = x[i] / std::sqrt(squares / hidden);
    }
}

/// Turns a head's row by its position: channel i with channel i + dims / 2, as Llama does.
inline void rotate(float* row, float position) {
    for (std::uint32_t i = 0; i < dims / 2; ++i) {
        const float angle = position * std::pow(rope_theta, -2.0f * static_cast<float>(i) / dims);
        const float c = std::cos(angle), s = std::sin(angle), a = row[i], b = row[i + dims / 2];
        row[i] = a * c - b * s;
        row[i + dims / 2] = a * s + b * c;
    }
}

class Model {
public:
    explicit Model(std::uint64_t number)
        : seed(number), numbers_(number), embedding_(vocabulary, hidden, 8, numbers_),
          head_(vocabulary, hidden, 2.5f, numbers_) {
        for (std::uint32_t i = 0; i < layers; ++i) {
            blocks_.push_back(Block(numbers_));
        }
    }

    const float* embed(Token token) const { return embedding_.row_at(token); }

    /// Q, K and V of one row, after the rotation.
    void project(std::uint32_t layer, const float* x, float position, float* q, float* k, float* v) const {
        float y[hidden];
        normalise(x, y);
        blocks_[layer].q.times(y, q);
        blocks_[layer].k.times(y, k);
        blocks_[layer].v.times(y, v);
        for (std::uint32_t head = 0; head < query_heads; ++head) {
            rotate(q + head * dims, position);
        }
        for (std::uint32_t head = 0; head < kv_heads; ++head) {
            rotate(k + head * dims, position);
        }
    }

    /// Adds what attention returned, and the block after it.
    void mix(std::uint32_t layer, const float* attended, float* x) const {
        float y[hidden], z[inner];
        blocks_[layer].out.times(attended, y);
        add(y, x);
        normalise(x, y);
        blocks_[layer].up.times(y, z);
        for (float& value : z) {
            value = std::max(value, 0.0f);
        }
        blocks_[layer].down.times(z, y);
        add(y, x);
    }

    /// A number for each token that may follow a row.
    void logits(const float* x, float* out) const {
        float y[hidden];
        normalise(x, y);
        head_.times(y, out);
    }

    /// The token after a row that came at `position - 1`: drawn, in the same way each time.
    Token draw(const float* x, std::size_t position) const {
        float p[vocabulary], sum = 0;
        logits(x, p);
        for (float& value : p) {
            sum += value = std::exp(std::min(value, 80.0f));
        }
        float left = Numbers(seed ^ (position * 0x9e3779b97f4a7c15u)).share() * sum;
        Token token = 0;
        while (token + 1 < vocabulary && (left -= p[token]) >= 0) {
            ++token;
        }
        return token;
    }

    const std::uint64_t seed;

private:
    struct Block {
        explicit Block(Numbers& n)
            : q(query_heads * dims, hidden, 1.6f, n), k(kv_heads * dims, hidden, 1.6f, n),
              v(kv_heads * dims, hidden, 1, n), out(hidden, query_heads * dims, 1, n), up(inner, hidden, 1, n),
              down(hidden, inner, 1, n) {}
        Matrix q, k, v, out, up, down;
    };

    static void add(const float* y, float* x) {
        for (std::uint32_t i = 0; i < hidden; ++i) {
            x[i] += y[i];
        }
    }

    Numbers numbers_;
    Matrix embedding_, head_;
    std::vector<Block> blocks_;
};

/// A syllable for each token.
inline std::string text(const Tokens& tokens) {
    std::string out;
    for (const Token token : tokens) {
        out += "bdfghklmnprstvwz"[token % 16];
        out += "aeiouaeo"[token / 16];
        out += token % 3 == 0 ? " " : "";
    }
    return out;
}

}  // namespace engine

#endif
