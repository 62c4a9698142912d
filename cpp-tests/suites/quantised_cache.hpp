// Quantised MNN caches, byte by byte, from MNN's formulas (docs/format.md): the places of codes, scales, records and
// sums, how MNN appends, and the values that codes stand for. Independent of the library. Slow and simple.

#ifndef MNNKV_TESTS_QUANTISED_CACHE_HPP
#define MNNKV_TESTS_QUANTISED_CACHE_HPP

#include "packed_model.hpp"

#include <cmath>

namespace support {

using oracle::round_up;
using oracle::up;

/// One attention_mode.
struct quantised_mode {
    std::uint32_t mode, key, value;
};

constexpr quantised_mode quantised_modes[] = {
    {9, MNNKV_DTYPE_INT8, MNNKV_DTYPE_F32},  {10, MNNKV_DTYPE_INT8, MNNKV_DTYPE_INT8},
    {11, MNNKV_DTYPE_TQ3, MNNKV_DTYPE_F32},  {12, MNNKV_DTYPE_TQ3, MNNKV_DTYPE_TQ3},
    {13, MNNKV_DTYPE_TQ4, MNNKV_DTYPE_F32},  {14, MNNKV_DTYPE_TQ4, MNNKV_DTYPE_TQ4},
};

/// lP8 and hP8 of one CPU.
struct int8_unit {
    std::uint32_t l, h;
};

constexpr int8_unit int8_units[] = {{16, 4}, {4, 8}, {4, 64}, {8, 8}, {4, 32}};

/// Heads, dims and room of a cache.
struct quantised_shape {
    quantised_mode mode;
    int8_unit unit;
    std::uint32_t heads, dims, max;
};

template <class T>
T load(const std::uint8_t* from) {
    T value;
    std::memcpy(&value, from, sizeof value);
    return value;
}

class quantised_cache {
public:
    /// No tokens; all that MNN does not clear is noise.
    quantised_cache(const quantised_shape& shape, dice& random)
        : shape_(shape), D(shape.dims), l(shape.unit.l), h(shape.unit.h), model_(float_halves(shape)) {
        key_ = guarded(random.noise((shape_.heads - 1) * key_stride() + key_head()), 1);
        value_ = guarded(bytes((shape_.heads - 1) * value_stride() + value_head()), 3);
        key_sum_.assign(has_int8_key() ? shape_.heads * round_up(shape_.max, h) : 0, std::nanf(""));
        value_sum_.assign(has_int8_value() ? shape_.heads * up(shape_.max, F) * round_up(D, h) : 0, 0.0f);
    }
    quantised_cache(const quantised_cache&) = default;
    quantised_cache& operator=(const quantised_cache&) = default;

    static constexpr std::size_t F = 64;
    std::uint32_t n = 0;

    const quantised_shape& shape() const { return shape_; }
    std::uint8_t* key() { return key_.data(); }
    std::uint8_t* value() { return value_.data(); }
    std::vector<float>& key_sum() { return key_sum_; }
    std::vector<float>& value_sum() { return value_sum_; }
    bool has_int8_key() const { return shape_.mode.key == MNNKV_DTYPE_INT8; }
    bool has_int8_value() const { return shape_.mode.value == MNNKV_DTYPE_INT8; }

    /// The cache as the library takes it; valid until the next call.
    mnnkv_layout* layout() {
        int8_ = mnnkv::make<mnnkv_int8>();
        int8_.l_pack = shape_.unit.l;
        int8_.h_pack = shape_.unit.h;
        int8_.key_sum = key_sum_.data();
        int8_.key_sum_bytes = key_sum_.size() * 4;
        int8_.value_sum = has_int8_value() ? value_sum_.data() : nullptr;
        int8_.value_sum_bytes = value_sum_.size() * 4;
        layout_ = model_.layout();
        layout_.key_dtype = shape_.mode.key;
        layout_.value_dtype = shape_.mode.value;
        layout_.key_head_stride = key_stride();
        layout_.value_head_stride = value_stride();
        layout_.int8 = has_int8_key() ? &int8_ : nullptr;
        return &layout_;
    }

    /// Bytes of one head.
    std::size_t key_head() const {
        return has_int8_key() ? up(shape_.max, h) * key_block()
                              : is_float(shape_.mode.key) ? model_.key_head_bytes() : shape_.max * record(shape_.mode.key);
    }
    std::size_t value_head() const {
        return has_int8_value() ? up(shape_.max, F) * value_block()
               : is_float(shape_.mode.value) ? model_.value_head_bytes() : shape_.max * record(shape_.mode.value);
    }
    /// Heads lie apart, as where the host has made room for more.
    std::size_t key_stride() const { return key_head() + 8; }
    std::size_t value_stride() const { return value_head() + 16; }

    /// The bytes of a token of K in the order of a portable token, but for its key sum.
    std::vector<std::size_t> key_places(std::size_t head, std::size_t t) const {
        std::vector<std::size_t> places;
        const auto add = [&](std::size_t at, std::size_t length) {
            for (std::size_t i = 0; i < length; ++i) {
                places.push_back(head * key_stride() + at + i);
            }
        };
        if (has_int8_key()) {
            for (std::size_t d = 0; d < D; ++d) {
                add(key_code(t, d), 1);
            }
            const std::size_t scale = t / h * key_block() + round_up(D, l) * h + 4 * (t % h);
            add(scale, 4);
            add(scale + 4 * h, 4);
        } else {
            add(t * record(shape_.mode.key), record(shape_.mode.key));
        }
        return places;
    }

    /// The bytes of a token of V.
    std::vector<std::size_t> value_places(std::size_t head, std::size_t t) const {
        std::vector<std::size_t> places;
        const std::size_t base = head * value_stride();
        const bool records = !is_float(shape_.mode.value) && !has_int8_value();
        for (std::size_t i = 0; i < (records ? record(shape_.mode.value) : D); ++i) {
            if (records) {
                places.push_back(base + t * record(shape_.mode.value) + i);
            } else if (has_int8_value()) {
                places.push_back(base + value_code(t, i));
            } else {
                for (std::size_t b = 0; b < 4; ++b) {
                    places.push_back(base + model_.value_index(t, i) * 4 + b);
                }
            }
        }
        return places;
    }

    std::size_t key_code(std::size_t t, std::size_t d) const {
        return t / h * key_block() + d / l * h * l + t % h * l + d % l;
    }
    std::size_t value_code(std::size_t t, std::size_t d) const {
        const std::size_t u = t % F;
        return t / F * value_block() + d / h * group() + u / l * h * l + d % h * l + u % l;
    }
    /// The scale of a dim of INT8 V; its bias is 4*h bytes behind.
    std::size_t value_scale(std::size_t head, std::size_t block, std::size_t d) const {
        return head * value_stride() + block * value_block() + d / h * group() + F * h + 4 * (d % h);
    }
    float& key_sum_of(std::size_t head, std::size_t t) { return key_sum_[head * round_up(shape_.max, h) + t]; }
    float& value_sum_of(std::size_t head, std::size_t block, std::size_t d) {
        return value_sum_[(head * up(shape_.max, F) + block) * round_up(D, h) + d];
    }

    /// Portable tokens, as mnnkv_kv_gather returns them.
    rows get(const std::vector<std::uint32_t>& tokens) {
        rows out;
        for (std::size_t head = 0; head < shape_.heads; ++head) {
            for (const std::uint32_t t : tokens) {
                copy(out.key, key(), key_places(head, t));
                if (has_int8_key()) {
                    const std::uint8_t* const sum = reinterpret_cast<const std::uint8_t*>(&key_sum_of(head, t));
                    out.key.insert(out.key.end(), sum, sum + 4);
                }
                copy(out.value, value(), value_places(head, t));
            }
        }
        for (std::size_t head = 0; has_int8_value() && head < shape_.heads; ++head) {
            for (const std::size_t lane : {std::size_t{0}, 4 * h}) {
                for (std::size_t d = 0; d < D; ++d) {
                    const std::uint8_t* const from = value() + value_scale(head, 0, d) + lane;
                    out.value.insert(out.value.end(), from, from + 4);
                }
            }
        }
        return out;
    }
    rows get(std::uint32_t begin, std::uint32_t count) { return get(tokens_from(begin, count)); }

    /// Appends as MNN does, but for the quantisation itself: codes, scales and key sums are random.
    void append(std::uint32_t count, dice& random) {
        const auto number = [&](std::uint8_t* to, float low, float high) {
            const float value = low + (high - low) * random.unit();
            std::memcpy(to, &value, 4);
        };
        for (std::size_t head = 0; head < shape_.heads; ++head) {
            for (std::size_t d = 0; has_int8_value() && d < D; ++d) {
                if (n == 0) {
                    number(value() + value_scale(head, 0, d), 0.01f, 0.1f);
                    number(value() + value_scale(head, 0, d) + 4 * h, -2, 2);
                }
                for (std::size_t block = 1; n % F == 0 && block < up(shape_.max, F); ++block) {
                    copy_scale(head, d, block);
                }
            }
            for (std::uint32_t t = n; t < n + count; ++t) {
                for (const std::size_t at : key_places(head, t)) {
                    key()[at] = random.byte();
                }
                for (const std::size_t at : value_places(head, t)) {
                    value()[at] = random.byte();
                }
                finish(head, t, number);
                for (std::size_t d = 0; has_int8_value() && d < D; ++d) {
                    float& sum = value_sum_of(head, t / F, d);
                    sum = added(sum, head, t, d);
                }
            }
        }
        n += count;
    }

    /// An INT8 V as every kernel of MNN reads it right: the scales of block 0 in all blocks of tokens, no codes behind
    /// the last token, and the sums of the tokens, bit by bit.
    testing::AssertionResult is_valid() {
        for (std::size_t head = 0; has_int8_value() && head < shape_.heads; ++head) {
            for (std::size_t block = 0; block < up(shape_.max, F); ++block) {
                for (std::size_t d = 0; d < D; ++d) {
                    float sum = 0;
                    for (std::size_t t = block * F; t < std::min<std::size_t>((block + 1) * F, n); ++t) {
                        sum = added(sum, head, t, d);
                    }
                    if (sum != value_sum_of(head, block, d)) {
                        return testing::AssertionFailure() << "value sum of head " << head << ", block " << block
                                                           << ", dim " << d << " is " << value_sum_of(head, block, d)
                                                           << " instead of " << sum;
                    }
                    if (block * F < n && !has_scales(head, block, d)) {
                        return testing::AssertionFailure() << "block " << block << " has other scales in dim " << d;
                    }
                }
            }
            for (std::size_t t = n; t < round_up(n, F); ++t) {
                for (const std::size_t at : value_places(head, t)) {
                    if (value()[at] != 0) {
                        return testing::AssertionFailure() << "a code of token " << t << " behind the last is left";
                    }
                }
            }
        }
        const testing::AssertionResult k = inside(key_), v = inside(value_);
        return k ? v : k;
    }

    /// The block has the scale and bias of block 0.
    bool has_scales(std::size_t head, std::size_t block, std::size_t d) {
        const std::uint8_t *const own = value() + value_scale(head, block, d), *const first = value() + value_scale(head, 0, d);
        return std::memcmp(own, first, 4) == 0 && std::memcmp(own + 4 * h, first + 4 * h, 4) == 0;
    }
    void copy_scale(std::size_t head, std::size_t d, std::size_t block) {
        for (const std::size_t lane : {std::size_t{0}, 4 * h}) {
            std::memcpy(value() + value_scale(head, block, d) + lane, value() + value_scale(head, 0, d) + lane, 4);
        }
    }

private:
    static bool is_float(std::uint32_t dtype) { return dtype == MNNKV_DTYPE_F32; }
    static unsigned bits(std::uint32_t dtype) { return dtype == MNNKV_DTYPE_TQ3 ? 3 : 4; }
    std::size_t record(std::uint32_t dtype) const { return D / 32 * (2 + 4 * bits(dtype)); }
    std::size_t key_block() const { return h * (round_up(D, l) + 8); }
    std::size_t group() const { return h * (F + 8); }
    std::size_t value_block() const { return up(D, h) * group(); }

    static mnnkv_layout float_halves(const quantised_shape& shape) {
        return make_layout(pack_modes[1], shape.heads, shape.dims, shape.max, F);
    }

    static void copy(bytes& to, const std::uint8_t* from, const std::vector<std::size_t>& places) {
        for (const std::size_t at : places) {
            to.push_back(from[at]);
        }
    }
    static bytes raw(const std::vector<float>& numbers) {
        bytes out(numbers.size() * 4);
        if (!out.empty()) {
            std::memcpy(out.data(), numbers.data(), out.size());
        }
        return out;
    }
    static testing::AssertionResult inside(const guarded& buffer) { return buffer.holds(buffer.contents()); }

    /// Finite numbers where random bytes could be none.
    template <class Number>
    void finish(std::size_t head, std::size_t t, Number number) {
        const std::vector<std::size_t> k = key_places(head, t), v = value_places(head, t);
        if (has_int8_key()) {
            number(key() + k[D], 0.01f, 0.1f);
            number(key() + k[D + 4], -2, 2);
            number(reinterpret_cast<std::uint8_t*>(&key_sum_of(head, t)), -9, 9);
        }
        const auto halves = [&](std::uint8_t* buffer, const std::vector<std::size_t>& places, std::uint32_t dtype) {
            for (std::size_t at = 0; at < places.size(); at += 2 + 4 * bits(dtype)) {
                buffer[places[at + 1]] = 0x38;  // f16: 0.5 to 1
            }
        };
        if (!has_int8_key()) {
            halves(key(), k, shape_.mode.key);
        }
        if (is_float(shape_.mode.value)) {
            for (std::size_t at = 0; at < v.size(); at += 4) {
                number(value() + v[at], -2, 2);
            }
        } else if (!has_int8_value()) {
            halves(value(), v, shape_.mode.value);
        }
    }

    /// With the scales of block 0. Product and sum are rounded one by one, whatever the compiler may contract.
    float decoded(std::size_t head, std::size_t t, std::size_t d) {
        const std::uint8_t* const scale = value() + value_scale(head, 0, d);
        const auto code = static_cast<std::int8_t>(value()[head * value_stride() + value_code(t, d)]);
        volatile float product = static_cast<float>(code) * load<float>(scale);
        return product + load<float>(scale + 4 * h);
    }
    float added(float sum, std::size_t head, std::size_t t, std::size_t d) {
        volatile float number = decoded(head, t, d);
        return sum + number;
    }

    quantised_shape shape_;
    std::size_t D, l, h;
    packed_model model_;
    guarded key_{0}, value_{0};
    std::vector<float> key_sum_, value_sum_;
    mnnkv_int8 int8_;
    mnnkv_layout layout_;
};

}  // namespace support

#endif  // MNNKV_TESTS_QUANTISED_CACHE_HPP
