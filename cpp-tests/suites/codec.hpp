// The codec of each type, and the golden frames.

#ifndef MNNKV_TESTS_CODEC_HPP
#define MNNKV_TESTS_CODEC_HPP

#include "support.hpp"

namespace support {

/// The codec of one element type.
struct word_codec {
    const char* name;
    /// Its name in error texts.
    const char* type_name;
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

constexpr word_codec fp16 = {"fp16", "F16", MNNKV_DTYPE_F16, MNNKV_GEAR_FORMAT_V1, 2};
constexpr word_codec bf16 = {"bf16", "BF16", MNNKV_DTYPE_BF16, MNNKV_GEAR_FORMAT_V2, 2};
constexpr word_codec fp32 = {"fp32", "F32", MNNKV_DTYPE_F32, MNNKV_GEAR_FORMAT_V1, 4};
constexpr word_codec int8 = {"int8", "INT8", MNNKV_DTYPE_INT8, MNNKV_GEAR_FORMAT_V2, 1};
/// The types of format v1, which is their default.
constexpr word_codec v1_codecs[] = {fp16, fp32};
constexpr word_codec all_codecs[] = {fp16, bf16, fp32, int8};
/// The types that v2 rotates by a hint.
constexpr word_codec float_codecs[] = {fp16, bf16, fp32};

inline void PrintTo(const word_codec& codec, std::ostream* out) { *out << codec.name; }

/// Options with these predictors and defaults otherwise.
inline mnnkv_gear_options predicting(std::uint32_t predictors) {
    mnnkv_gear_options options = mnnkv::make<mnnkv_gear_options>();
    options.predictors = predictors;
    return options;
}

/// Options for format v2, with rows of head_dim elements, and defaults otherwise.
inline mnnkv_gear_options in_v2(std::uint32_t head_dim = 0) {
    mnnkv_gear_options options = mnnkv::make<mnnkv_gear_options>();
    options.format = MNNKV_GEAR_FORMAT_V2;
    options.head_dim = head_dim;
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

/// The words of a blob that has `size` bytes of them. Fails the test when they are not exactly that many.
inline bytes decoded(const word_codec& codec, const bytes& blob, std::size_t size) {
    bytes words(size);
    std::size_t length = 0;
    EXPECT_TRUE(ok(codec.decode(blob.data(), blob.size(), words.data(), words.size(), &length)));
    EXPECT_EQ(length, size);
    return words;
}

/// An input and the frame that the reference encoder made of it.
struct golden_frame {
    std::string name, predictors;
    word_codec codec;
    bytes input, frame;
};

inline std::vector<golden_frame> golden_frames() {
    std::vector<golden_frame> out;
    for (const json& entry : json_reader(read_text("gear_v1/manifest.json")).read().items) {
        const word_codec& codec = entry["dtype"].text == "f16" ? fp16 : fp32;
        golden_frame golden{entry["frame"].text, entry["predictors"].text, codec,
                            read_file("gear_v1/" + entry["input"].text), read_file("gear_v1/" + entry["frame"].text)};
        EXPECT_EQ(golden.input.size(), entry["raw_bytes"].u32()) << golden.name;
        EXPECT_EQ(golden.frame.size(), entry["frame_bytes"].u32()) << golden.name;
        out.push_back(std::move(golden));
    }
    EXPECT_EQ(out.size(), 135u);
    return out;
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
