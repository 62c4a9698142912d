// K of f16 in 8 bits and V of f16 in 4, in state buffers of llama.cpp: 0.41 of the bytes, which do not come back bit for bit.
//
// C++11, needs neither exceptions nor RTTI, but std::vector may throw std::bad_alloc.
//
// K has a scale for each 64 numbers of a row, codes from -127 to 127; V a least number and a scale for each 32, codes from 0 to
// 15. This is not the format of attend (docs/format.md): a scale is of a group of a row, whatever the size of a head. Scales are f16. A tensor with
// numbers that are not finite, or with rows that are no whole groups, stays as it is, and so do all other bytes.

#ifndef MNNKV_LLAMA_QUANTISE_HPP
#define MNNKV_LLAMA_QUANTISE_HPP

#include "mnnkv_half.hpp"
#include "mnnkv_llama_layout.hpp"

#include <algorithm>
#include <cmath>

namespace mnnkv_llama {

using mnnkv_host::float_of_half;
using mnnkv_host::half_of_float;

/// A buffer whose K and V are in fewer bits, and what it takes to have it back.
class quantised {
public:
    /// Quantises `state`. False: nothing in it can be, and it is not touched.
    bool shrink(const std::vector<std::uint8_t>& state, std::vector<std::uint8_t>& small, layout& of_small) {
        const layout found = find(state.data(), state.size());
        raw_size_ = state.size();
        parts_.clear();
        of_small = layout();
        for (std::size_t i = 0; i < found.tensors.size(); ++i) {
            if (fits(found, i, state.data())) {
                parts_.push_back({found.tensors[i].offset, found.tensors[i].bytes, found.roles[i] == 'k'});
            }
        }
        if (parts_.empty()) {
            return false;
        }
        small.clear();
        std::size_t at = 0;
        for (const part& each : parts_) {
            const std::size_t begin = each.offset;
            small.insert(small.end(), state.data() + at, state.data() + begin);
            of_small.tensors.push_back(each.small(small.size()));
            const std::size_t size = each.groups() * each.bytes();
            small.resize(small.size() + size);
            each.quantise(state.data() + begin, small.data() + small.size() - size);
            at = begin + each.raw_bytes;
        }
        small.insert(small.end(), state.begin() + static_cast<std::ptrdiff_t>(at), state.end());
        return true;
    }

    /// The buffer that shrink was given, but for the rounding. `small` is what it made.
    void grow(const std::vector<std::uint8_t>& small, std::vector<std::uint8_t>& state) const {
        state.resize(raw_size_);
        std::size_t from = 0, to = 0;
        for (const part& each : parts_) {
            const std::size_t begin = each.offset;
            std::memcpy(state.data() + to, small.data() + from, begin - to);
            from += begin - to;
            each.restore(small.data() + from, state.data() + begin);
            from += each.groups() * each.bytes();
            to = begin + each.raw_bytes;
        }
        std::memcpy(state.data() + to, small.data() + from, raw_size_ - to);
    }

    /// shrink has returned true.
    bool is_smaller() const { return !parts_.empty(); }

private:
    /// A tensor, K or V.
    struct part {
        std::size_t offset, raw_bytes;
        bool is_key;

        /// Numbers of a group, and its bytes: scales, then codes.
        std::size_t count() const { return is_key ? 64 : 32; }
        std::size_t bytes() const { return is_key ? 2 + 64 : 4 + 16; }
        std::size_t groups() const { return raw_bytes / 2 / count(); }

        mnnkv_state_tensor small(std::size_t at) const {
            mnnkv_state_tensor made = {};
            made.dtype = MNNKV_DTYPE_F16;
            made.block_bytes = static_cast<std::uint16_t>(bytes());
            made.scale_bytes = is_key ? 2 : 4;
            made.offset = at;
            made.bytes = groups() * bytes();
            return made;
        }

        void quantise(const std::uint8_t* from, std::uint8_t* to) const {
            float numbers[64];
            for (std::size_t group = groups(); group > 0; --group, from += 2 * count(), to += bytes()) {
                for (std::size_t i = 0; i < count(); ++i) {
                    numbers[i] = float_of_half(half_at(from + 2 * i));
                }
                if (is_key) {
                    keys(numbers, to);
                } else {
                    values(numbers, to);
                }
            }
        }

        void restore(const std::uint8_t* from, std::uint8_t* to) const {
            for (std::size_t group = groups(); group > 0; --group, from += bytes(), to += 2 * count()) {
                const float first = float_of_half(half_at(from)), scale = is_key ? first : float_of_half(half_at(from + 2));
                for (std::size_t i = 0; i < count(); ++i) {
                    const float number = is_key ? scale * static_cast<float>(static_cast<std::int8_t>(from[2 + i]))
                                                : first + scale * static_cast<float>(from[4 + i / 2] >> (i % 2 * 4) & 15);
                    put_half(to + 2 * i, half_of_float(number));
                }
            }
        }

        static void keys(const float* numbers, std::uint8_t* to) {
            float most = 0;
            std::for_each(numbers, numbers + 64, [&](float number) { most = std::max(most, std::fabs(number)); });
            const std::uint16_t scale = half_of_float(most / 127);
            put_half(to, scale);
            for (int i = 0; i < 64; ++i) {
                to[2 + i] = static_cast<std::uint8_t>(static_cast<std::int8_t>(code(numbers[i], scale, -127, 127)));
            }
        }

        static void values(const float* numbers, std::uint8_t* to) {
            const float least = *std::min_element(numbers, numbers + 32), most = *std::max_element(numbers, numbers + 32);
            const std::uint16_t scale = half_of_float(most / 15 - least / 15);
            put_half(to, half_of_float(least));
            put_half(to + 2, scale);
            for (int i = 0; i < 16; ++i) {
                const int low = code(numbers[2 * i] - least, scale, 0, 15), high = code(numbers[2 * i + 1] - least, scale, 0, 15);
                to[4 + i] = static_cast<std::uint8_t>(high << 4 | low);
            }
        }

        static int code(float number, std::uint16_t scale, int least, int most) {
            const float step = float_of_half(scale);
            const float steps = step > 0 ? std::nearbyint(number / step) : 0;
            return static_cast<int>(std::min(std::max(steps, static_cast<float>(least)), static_cast<float>(most)));
        }
    };

    static bool fits(const layout& found, std::size_t i, const std::uint8_t* state) {
        const mnnkv_state_tensor& tensor = found.tensors[i];
        const std::size_t group = found.roles[i] == 'k' ? 128 : 64;
        if (found.roles[i] == 's' || tensor.dtype != MNNKV_DTYPE_F16 || tensor.block_bytes > 0 ||
            found.row_bytes[i] % group != 0) {
            return false;
        }
        const std::uint8_t* const begin = state + tensor.offset;
        for (std::size_t at = 0, end = static_cast<std::size_t>(tensor.bytes); at < end; at += 2) {
            if ((half_at(begin + at) & 0x7c00) == 0x7c00) {
                return false;
            }
        }
        return true;
    }

    static std::uint16_t half_at(const std::uint8_t* from) {
        std::uint16_t half;
        std::memcpy(&half, from, sizeof half);
        return half;
    }

    static void put_half(std::uint8_t* to, std::uint16_t half) { std::memcpy(to, &half, sizeof half); }

    std::size_t raw_size_ = 0;
    std::vector<part> parts_;
};

}  // namespace mnnkv_llama

#endif  // MNNKV_LLAMA_QUANTISE_HPP
