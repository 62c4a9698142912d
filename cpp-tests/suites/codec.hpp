// The lossless codec by element type.

#ifndef MNNKV_TESTS_CODEC_HPP
#define MNNKV_TESTS_CODEC_HPP

#include "support.hpp"

namespace support {

/// The codec of one element type.
struct word_codec {
    const char* name;
    std::uint32_t dtype;
    /// The format of options->format 0.
    std::uint32_t default_format;
    std::size_t width;

    mnnkv_status encode(const void* src, std::size_t src_len, const mnnkv_gear_options* options, void* dst,
                        std::size_t dst_cap, std::size_t* dst_len) const {
        return mnnkv_encode_gear(src, src_len, dtype, options, dst, dst_cap, dst_len);
    }
    mnnkv_status decode(const void* src, std::size_t src_len, void* dst, std::size_t dst_cap,
                        std::size_t* dst_len) const {
        return mnnkv_decode_gear(src, src_len, dtype, nullptr, dst, dst_cap, dst_len);
    }
};

constexpr word_codec fp16 = {"fp16", MNNKV_DTYPE_F16, MNNKV_GEAR_FORMAT_V1, 2};
constexpr word_codec bf16 = {"bf16", MNNKV_DTYPE_BF16, MNNKV_GEAR_FORMAT_CHECKED, 2};
constexpr word_codec fp32 = {"fp32", MNNKV_DTYPE_F32, MNNKV_GEAR_FORMAT_V1, 4};
constexpr word_codec int8 = {"int8", MNNKV_DTYPE_INT8, MNNKV_GEAR_FORMAT_CHECKED, 1};
constexpr word_codec all_codecs[] = {fp16, bf16, fp32, int8};

inline void PrintTo(const word_codec& codec, std::ostream* out) { *out << codec.name; }

/// Options with this format and defaults otherwise.
inline mnnkv_gear_options in_format(std::uint32_t format) {
    mnnkv_gear_options options = mnnkv::make<mnnkv_gear_options>();
    options.format = format;
    return options;
}

/// The blob of some words; a failure fails the test.
inline bytes encoded(const word_codec& codec, const bytes& words, const mnnkv_gear_options* options = nullptr) {
    bytes blob(mnnkv_gear_bound(words.size(), codec.dtype));
    std::size_t length = 0;
    EXPECT_TRUE(ok(codec.encode(words.data(), words.size(), options, blob.data(), blob.size(), &length)));
    blob.resize(std::min(length, blob.size()));
    return blob;
}

/// Words of a random kind: like those of caches, or noise.
inline bytes some_words(dice& random, std::size_t width, std::size_t count) {
    bytes out(width * count);
    const std::uint32_t kind = random.below(5);
    const std::uint32_t constant = random.bits(), step = random.below(300);
    std::uint32_t walk = random.bits();
    for (std::size_t i = 0; i < count; ++i) {
        std::uint32_t word = constant;
        switch (kind) {
            case 0: word = random.bits(); break;                              // noise
            case 1: break;                                                    // one value
            case 2: word = constant + static_cast<std::uint32_t>(i) * step; break;  // a ramp
            case 3: word = walk += random.below(5); break;                    // a slow walk
            default: word = random.one_in(9) ? random.bits() : walk; break;   // runs with breaks
        }
        std::memcpy(&out[i * width], &word, width);
    }
    return out;
}

}  // namespace support

#endif  // MNNKV_TESTS_CODEC_HPP
