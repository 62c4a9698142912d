// Rows of packed caches through the oracle, and caches of noise around them. Slow and simple.

#ifndef MNNKV_TESTS_PACKED_MODEL_HPP
#define MNNKV_TESTS_PACKED_MODEL_HPP

#include "support.hpp"

#include "../oracle/packing.hpp"

#include <numeric>

namespace support {

using oracle::make_layout;
using oracle::pack_mode;
using oracle::pack_modes;

/// 2 heads x 24 dims in f16, packed as on 64-bit Arm: padding in K and V.
inline mnnkv_layout half_layout(std::uint32_t max_tokens) { return make_layout(pack_modes[7], 2, 24, max_tokens, 64); }
/// Bytes of a token in buffers of half_layout: 2 heads of 24 channels of K, and of V, which has room for 32, of 2 bytes.
constexpr double half_token_bytes = 2 * (24 + 32) * 2;

/// K and V of some tokens as dense rows [head][token][dim].
struct rows {
    bytes key, value;
};

/// Token numbers begin .. begin + count.
inline std::vector<std::uint32_t> tokens_from(std::uint32_t begin, std::uint32_t count) {
    std::vector<std::uint32_t> tokens(count);
    std::iota(tokens.begin(), tokens.end(), begin);
    return tokens;
}

using pair_list = std::vector<std::int32_t>;

/// Ascending pairs (offset, length) inside `limit` tokens, some of them empty, some of whole groups of tokens.
inline pair_list random_pairs(std::uint32_t limit, dice& random) {
    pair_list pairs;
    const std::uint32_t unit = random.one_in(3) ? 16 : 1;
    for (std::uint32_t at = 0; pairs.size() < 24;) {
        const std::uint32_t offset = at + random.below(8) * unit;
        const std::uint32_t length = random.one_in(6) ? 0 : random.below(30) * unit;
        if (offset + length > limit) {
            break;
        }
        pairs.push_back(static_cast<std::int32_t>(offset));
        pairs.push_back(static_cast<std::int32_t>(length));
        at = offset + length;
    }
    return pairs;
}

class packed_model : public oracle::packing {
public:
    explicit packed_model(const mnnkv_layout& layout)
        : packing(layout), D(layout.head_dim), key_stride_(key_stride()), value_stride_(value_stride()) {}

    std::size_t key_row_bytes(std::size_t tokens) const { return layout().kv_heads * tokens * D * key_element(); }
    std::size_t value_row_bytes(std::size_t tokens) const { return layout().kv_heads * tokens * D * value_element(); }
    std::size_t token_bytes() const { return key_row_bytes(1) + value_row_bytes(1); }

    rows get(const std::uint8_t* key, const std::uint8_t* value, const std::vector<std::uint32_t>& tokens) const {
        rows out{bytes(key_row_bytes(tokens.size())), bytes(value_row_bytes(tokens.size()))};
        each(tokens, [&](std::size_t i, std::size_t k, std::size_t v) {
            std::memcpy(&out.key[i * key_element()], key + k, key_element());
            std::memcpy(&out.value[i * value_element()], value + v, value_element());
        });
        return out;
    }

    void put(std::uint8_t* key, std::uint8_t* value, const std::vector<std::uint32_t>& tokens, const rows& in) const {
        each(tokens, [&](std::size_t i, std::size_t k, std::size_t v) {
            std::memcpy(key + k, &in.key[i * key_element()], key_element());
            std::memcpy(value + v, &in.value[i * value_element()], value_element());
        });
    }

    void zero(std::uint8_t* key, std::uint8_t* value, const std::vector<std::uint32_t>& tokens) const {
        put(key, value, tokens, {bytes(key_row_bytes(tokens.size())), bytes(value_row_bytes(tokens.size()))});
    }

    /// As zero(), and with it the padding of these tokens: padding dims, and padding lanes of value blocks that lie in
    /// the range as a whole.
    void release(std::uint8_t* key, std::uint8_t* value, std::uint32_t begin, std::uint32_t count) const {
        const std::size_t F = layout().flash_block, end = std::size_t{begin} + count;
        const std::size_t block = value_index(F, 0) * value_element();
        for (std::size_t head = 0; head < layout().kv_heads; ++head, key += key_stride_, value += value_stride_) {
            for (std::size_t t = begin; t < end; ++t) {
                for (std::size_t d = 0; d < oracle::round_up(D, layout().l_pack); ++d) {
                    std::memset(key + key_index(t, d) * key_element(), 0, key_element());
                }
                for (std::size_t d = 0; d < oracle::round_up(D, layout().h_pack); ++d) {
                    std::memset(value + value_index(t, d) * value_element(), 0, value_element());
                }
            }
            for (std::size_t whole = oracle::up(begin, F); whole < end / F; ++whole) {
                std::memset(value + whole * block, 0, block);
            }
        }
    }

private:
    /// Calls visit(number in [head][token][dim], byte in K, byte in V).
    template <class Visit>
    void each(const std::vector<std::uint32_t>& tokens, Visit visit) const {
        for (std::size_t n = 0; n < tokens.size(); ++n) {
            for (std::size_t d = 0; d < D; ++d) {
                std::size_t key = key_index(tokens[n], d) * key_element();
                std::size_t value = value_index(tokens[n], d) * value_element();
                for (std::size_t head = 0; head < layout().kv_heads; ++head) {
                    visit((head * tokens.size() + n) * D + d, key, value);
                    key += key_stride_;
                    value += value_stride_;
                }
            }
        }
    }

    std::size_t D, key_stride_, value_stride_;
};

/// The bytes of no token in a cache of noise: gaps, which never change, and padding, which a release may drop.
class foreign_bytes {
public:
    foreign_bytes() = default;
    foreign_bytes(const packed_model& model, bytes key, bytes value) : kept_{std::move(key), std::move(value)} {
        const std::uint32_t max = model.layout().max_tokens;
        model.zero(kept_.key.data(), kept_.value.data(), tokens_from(0, max));
        dropped_ = kept_;
        model.release(dropped_.key.data(), dropped_.value.data(), 0, max);
    }

    /// A cache whose tokens were set to zero has these bytes.
    bool are_in(const bytes& key, const bytes& value) const {
        return either(key, kept_.key, dropped_.key) && either(value, kept_.value, dropped_.value);
    }

private:
    static bool either(const bytes& now, const bytes& kept, const bytes& dropped) {
        for (std::size_t i = 0; i < now.size(); ++i) {
            if (now[i] != kept[i] && now[i] != dropped[i]) {
                return false;
            }
        }
        return now.size() == kept.size();
    }

    rows kept_, dropped_;
};

/// A layout, its model, and buffers of noise: every padding word, gap and foreign token in them is a canary.
class noisy_cache {
public:
    noisy_cache(const mnnkv_layout& layout, dice& random)
        : model(layout), key(random.noise(model.key_bytes()), 1), value(random.noise(model.value_bytes()), 3) {}

    const mnnkv_layout* layout() const { return &model.layout(); }

    rows get(const std::vector<std::uint32_t>& tokens) const { return model.get(key.data(), value.data(), tokens); }

    testing::AssertionResult holds(const bytes& expected_key, const bytes& expected_value) const {
        const testing::AssertionResult k = key.holds(expected_key), v = value.holds(expected_value);
        if (k && v) {
            return testing::AssertionSuccess();
        }
        return testing::AssertionFailure() << "K: " << k.message() << "; V: " << v.message();
    }

    testing::AssertionResult untouched() const {
        const testing::AssertionResult k = key.untouched(), v = value.untouched();
        if (k && v) {
            return testing::AssertionSuccess() << "untouched";
        }
        return testing::AssertionFailure() << "K: " << k.message() << "; V: " << v.message();
    }

    packed_model model;
    guarded key, value;
};

}  // namespace support

#endif  // MNNKV_TESTS_PACKED_MODEL_HPP
