// MNN's packed K and V, element by element, straight from the formulas. Slow and simple: the judge of everything the
// library does to a packed cache.

#ifndef MNNKV_TESTS_PACKED_MODEL_HPP
#define MNNKV_TESTS_PACKED_MODEL_HPP

#include "support.hpp"

#include <numeric>

namespace support {

/// How one of MNN's CPU backends packs.
struct pack_mode {
    const char* name;
    std::uint32_t dtype, e_pack, l_pack, h_pack;
};

constexpr pack_mode pack_modes[] = {
    {"x86_sse", MNNKV_DTYPE_F32, 12, 1, 4},          {"x86_avx2", MNNKV_DTYPE_F32, 24, 1, 4},
    {"x86_avx512", MNNKV_DTYPE_F32, 48, 1, 8},       {"x86_bf16", MNNKV_DTYPE_BF16, 3, 8, 4},
    {"generic_c", MNNKV_DTYPE_F32, 16, 1, 4},        {"arm64_f32", MNNKV_DTYPE_F32, 12, 1, 8},
    {"arm32_f32", MNNKV_DTYPE_F32, 12, 1, 4},        {"arm64_fp16", MNNKV_DTYPE_F16, 12, 1, 16},
    {"arm32_fp16", MNNKV_DTYPE_F16, 12, 1, 8},       {"arm64_bf16", MNNKV_DTYPE_BF16, 12, 1, 8},
    {"arm32_bf16", MNNKV_DTYPE_BF16, 12, 1, 4},      {"armv86_bf16_64", MNNKV_DTYPE_BF16, 12, 4, 8},
    {"armv86_bf16_32", MNNKV_DTYPE_BF16, 12, 4, 4},  {"sme2_f32", MNNKV_DTYPE_F32, 16, 1, 64},
    {"sme2_f16", MNNKV_DTYPE_F16, 16, 2, 64},
};

inline mnnkv_layout make_layout(const pack_mode& mode, std::uint32_t kv_heads, std::uint32_t head_dim,
                                std::uint32_t max_tokens, std::uint32_t flash_block) {
    mnnkv_layout layout = mnnkv::make<mnnkv_layout>();
    layout.key_dtype = mode.dtype;
    layout.value_dtype = mode.dtype;
    layout.kv_heads = kv_heads;
    layout.head_dim = head_dim;
    layout.e_pack = mode.e_pack;
    layout.l_pack = mode.l_pack;
    layout.h_pack = mode.h_pack;
    layout.flash_block = flash_block;
    layout.max_tokens = max_tokens;
    return layout;
}

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

class packed_model {
public:
    explicit packed_model(const mnnkv_layout& layout)
        : layout_(layout), D(layout.head_dim), lP(layout.l_pack), hP(layout.h_pack), F(layout.flash_block) {
        key_stride_ = layout.key_head_stride != 0 ? layout.key_head_stride : key_head_bytes();
        value_stride_ = layout.value_head_stride != 0 ? layout.value_head_stride : value_head_bytes();
    }

    const mnnkv_layout& layout() const { return layout_; }

    /// Elements within a head.
    std::size_t key_index(std::size_t t, std::size_t d) const {
        return (t / hP) * RU(D, lP) * hP + (d / lP) * hP * lP + (t % hP) * lP + d % lP;
    }
    std::size_t value_index(std::size_t t, std::size_t d) const {
        const std::size_t s1 = UP(F, lP) * hP * lP, s0 = s1 * UP(D, hP), u = t % F;
        return (t / F) * s0 + (d / hP) * s1 + (u / lP) * hP * lP + (d % hP) * lP + u % lP;
    }

    std::size_t key_head_bytes() const { return RU(layout_.max_tokens, hP) * RU(D, lP) * key_element(); }
    std::size_t value_head_bytes() const {
        return UP(layout_.max_tokens, F) * RU(D, hP) * RU(F, lP) * value_element();
    }

    /// The whole buffers, up to the end of the last head.
    std::size_t key_bytes() const { return (layout_.kv_heads - 1) * key_stride_ + key_head_bytes(); }
    std::size_t value_bytes() const { return (layout_.kv_heads - 1) * value_stride_ + value_head_bytes(); }

    std::size_t key_element() const { return element(layout_.key_dtype); }
    std::size_t value_element() const { return element(layout_.value_dtype); }
    std::size_t key_row_bytes(std::size_t tokens) const { return layout_.kv_heads * tokens * D * key_element(); }
    std::size_t value_row_bytes(std::size_t tokens) const { return layout_.kv_heads * tokens * D * value_element(); }
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

    /// As zero(), and the padding that belongs to the tokens with them: their padding dims, and the padding lanes of value
    /// blocks that are all in the range.
    void release(std::uint8_t* key, std::uint8_t* value, std::uint32_t begin, std::uint32_t count) const {
        const std::size_t end = std::size_t{begin} + count, block = RU(F, lP) * RU(D, hP) * value_element();
        for (std::size_t head = 0; head < layout_.kv_heads; ++head, key += key_stride_, value += value_stride_) {
            for (std::size_t t = begin; t < end; ++t) {
                for (std::size_t d = 0; d < RU(D, lP); ++d) {
                    std::memset(key + key_index(t, d) * key_element(), 0, key_element());
                }
                for (std::size_t d = 0; d < RU(D, hP); ++d) {
                    std::memset(value + value_index(t, d) * value_element(), 0, value_element());
                }
            }
            for (std::size_t whole = UP(begin, F); whole < end / F; ++whole) {
                std::memset(value + whole * block, 0, block);
            }
        }
    }

private:
    static std::size_t UP(std::size_t a, std::size_t b) { return a / b + (a % b != 0 ? 1 : 0); }
    static std::size_t RU(std::size_t a, std::size_t b) { return UP(a, b) * b; }
    static std::size_t element(std::uint32_t dtype) { return dtype == MNNKV_DTYPE_F32 ? 4 : 2; }

    /// Calls visit(number in [head][token][dim], byte in K, byte in V).
    template <class Visit>
    void each(const std::vector<std::uint32_t>& tokens, Visit visit) const {
        for (std::size_t n = 0; n < tokens.size(); ++n) {
            for (std::size_t d = 0; d < D; ++d) {
                std::size_t key = key_index(tokens[n], d) * key_element();
                std::size_t value = value_index(tokens[n], d) * value_element();
                for (std::size_t head = 0; head < layout_.kv_heads; ++head) {
                    visit((head * tokens.size() + n) * D + d, key, value);
                    key += key_stride_;
                    value += value_stride_;
                }
            }
        }
    }

    mnnkv_layout layout_;
    std::size_t D, lP, hP, F;
    std::size_t key_stride_, value_stride_;
};

/// What belongs to no token in a cache of noise: gaps, which never change, and padding, which a release may drop.
class foreign_bytes {
public:
    foreign_bytes() = default;
    foreign_bytes(const packed_model& model, bytes key, bytes value) : kept_{std::move(key), std::move(value)} {
        const std::uint32_t max = model.layout().max_tokens;
        model.zero(kept_.key.data(), kept_.value.data(), tokens_from(0, max));
        dropped_ = kept_;
        model.release(dropped_.key.data(), dropped_.value.data(), 0, max);
    }

    /// Whether a cache whose tokens were set to zero has these bytes.
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

/// A layout, its model, and buffers of noise: every padding lane, gap and foreign token in them is a canary.
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
