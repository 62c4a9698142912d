// Format v1 of the lossless codec, against the golden frames and an independent reader.

#include "codec.hpp"
#include "v1_reader.hpp"

#include <sstream>

namespace {

using namespace support;

/// The bits of a list of the golden frames, as "raw,delta_seq".
std::uint32_t predictors_of(const std::string& list) {
    std::uint32_t bits = 0;
    std::istringstream names(list);
    for (std::string name; std::getline(names, name, ',');) {
        bits |= name == "raw" ? MNNKV_PREDICT_RAW : name == "delta_seq" ? MNNKV_PREDICT_DELTA_SEQ : MNNKV_PREDICT_XOR_SEQ;
    }
    return bits;
}

TEST(GoldenFrame, DecodesToTheInputItWasMadeOf) {
    for (const golden_frame& golden : golden_frames()) {
        SCOPED_TRACE(golden.name);
        guarded words(golden.input.size(), 1);
        std::size_t length = 0;
        EXPECT_TRUE(ok(golden.codec.decode(golden.frame.data(), golden.frame.size(), words.data(), words.size(),
                                           &length)));
        EXPECT_EQ(length, golden.input.size());
        EXPECT_TRUE(words.holds(golden.input));
    }
}

TEST(GoldenFrame, IsNotSmallerThanOurs) {
    for (const golden_frame& golden : golden_frames()) {
        SCOPED_TRACE(golden.name);
        const mnnkv_gear_options options = predicting(predictors_of(golden.predictors));
        const bytes ours = encoded(golden.codec, golden.input, &options);
        EXPECT_LE(static_cast<double>(ours.size()), static_cast<double>(golden.frame.size()) * 1.002 + 8);
        EXPECT_TRUE(same(decoded(golden.codec, ours, golden.input.size()), golden.input));
    }
}

TEST(GoldenFrame, HasTheRunLengthsThatWeWrite) {
    int theirs_total = 0, compared = 0;
    for (const golden_frame& golden : golden_frames()) {
        SCOPED_TRACE(golden.name);
        const mnnkv_gear_options options = predicting(predictors_of(golden.predictors));
        v1::blob theirs, ours;
        ASSERT_EQ(v1::parse(golden.frame, golden.codec.width, theirs), "");
        ASSERT_EQ(v1::parse(encoded(golden.codec, golden.input, &options), golden.codec.width, ours), "");
        for (std::size_t i = 0; i < golden.codec.width; ++i) {
            const v1::frame &their = theirs.planes[i], &our = ours.planes[i];
            if (their.codec != v1::rle) {
                continue;
            }
            ++theirs_total;
            // The independent writer agrees with the reference, so it may judge the library.
            const bytes plane = v1::plane_of(golden.input, golden.codec.width, i);
            ASSERT_TRUE(same(v1::rle_encode(v1::residual(their.mode, plane)), their.payload)) << "plane " << i;
            if (our.codec == v1::rle) {
                EXPECT_EQ(our.mode, their.mode) << "plane " << i;
                EXPECT_TRUE(same(our.payload, their.payload)) << "plane " << i;
                ++compared;
            }
        }
    }
    EXPECT_GT(theirs_total, 0);
    EXPECT_GT(compared, theirs_total / 2) << "of " << theirs_total;
}

/// Checks one blob with the reader: planes, predictors, run lengths, and that no run-length choice was better.
void check_against_the_page(const word_codec& codec, const bytes& words, std::uint32_t predictors) {
    const mnnkv_gear_options options = predicting(predictors);
    v1::blob blob;
    ASSERT_EQ(v1::parse(encoded(codec, words, &options), codec.width, blob), "");
    ASSERT_EQ(blob.words, words.size() / codec.width);
    for (std::size_t i = 0; i < codec.width; ++i) {
        SCOPED_TRACE("plane " + std::to_string(i));
        const v1::frame& frame = blob.planes[i];
        const bytes plane = v1::plane_of(words, codec.width, i);
        ASSERT_TRUE((predictors == 0 ? 7u : predictors) >> frame.mode & 1) << "mode " << int(frame.mode);
        if (frame.codec == v1::zstd) {
            EXPECT_EQ(v1::zstd_shape(frame.payload, plane.size()), "");
        } else {
            bytes symbols;
            ASSERT_TRUE(v1::rle_decode(frame.payload, plane.size(), symbols));
            EXPECT_TRUE(same(v1::undo(frame.mode, symbols), plane));
            EXPECT_TRUE(same(frame.payload, v1::rle_encode(v1::residual(frame.mode, plane))));
        }
        for (std::uint8_t mode = 0; mode < 3; ++mode) {
            if ((predictors == 0 ? 7u : predictors) >> mode & 1) {
                const std::size_t other = v1::rle_encode(v1::residual(mode, plane)).size();
                // The earlier of equal payloads wins: modes in order, run lengths before ZSTD.
                const bool earlier = mode < frame.mode || (mode == frame.mode && frame.codec == v1::zstd);
                EXPECT_GE(other, frame.payload.size() + (earlier ? 1 : 0)) << "mode " << int(mode) << " was smaller";
            }
        }
    }
}

TEST(Codec, BlobsFollowThePageOfTheFormat) {
    SEEDED_DICE(random, 101);
    for (int i = 0; i < 250; ++i) {
        const word_codec& codec = v1_codecs[i % 2];
        const std::uint32_t predictors = random.below(8), words = random.between(1, random.one_in(10) ? 3000 : 300);
        SCOPED_TRACE(testing::Message() << "case " << i << ": " << words << " words, predictors "
                                        << predictors);
        check_against_the_page(codec, some_words(random, codec.width, words), predictors);
    }
}

TEST(Codec, ReturnsSpecialFloatsBitForBit) {
    const std::uint32_t specials[] = {
        0x00000000, 0x80000000,                          // zeros
        0x7F800000, 0xFF800000,                          // infinities
        0x7FC00000, 0xFFC00000, 0x7FC12345, 0xFFFFFFFF,  // quiet NaNs and payloads
        0x7F800001, 0xFF812345, 0x7FBFFFFF,              // signalling NaNs
        0x00000001, 0x80000001, 0x007FFFFF, 0x807FFFFF,  // denormals
        0x00800000, 0x7F7FFFFF, 0x3F800000, 0xBF800000,
    };
    bytes words;
    for (const std::uint32_t word : specials) {
        v1::push_u32(words, word);
        // One at a time too: a blob of a single word.
        bytes one;
        v1::push_u32(one, word);
        EXPECT_TRUE(same(decoded(fp32, encoded(fp32, one), 4), one)) << std::hex << word;
    }
    EXPECT_TRUE(same(decoded(fp32, encoded(fp32, words), words.size()), words));
}

TEST(Codec, CompressesARealCache) {
    for (const char* name : {"kv/l0_k_h2_t1088_d64.f16", "kv/l1_v_h2_t1088_d64.f16"}) {
        const bytes words = read_file(name);
        const bytes blob = encoded(fp16, words);
        EXPECT_LT(blob.size(), words.size() * 9 / 10) << name;
        EXPECT_TRUE(same(decoded(fp16, blob, words.size()), words)) << name;
    }
}

TEST(Codec, DecodesBlobsThatOthersWrote) {
    SEEDED_DICE(random, 103);
    for (int i = 0; i < 200; ++i) {
        const word_codec& codec = v1_codecs[i % 2];
        const bytes words = some_words(random, codec.width, random.between(1, 400));
        v1::blob blob{static_cast<std::uint32_t>(words.size() / codec.width), {}};
        for (std::size_t plane = 0; plane < codec.width; ++plane) {
            const std::uint8_t mode = static_cast<std::uint8_t>(random.below(3));
            const bytes symbols = v1::residual(mode, v1::plane_of(words, codec.width, plane));
            blob.planes.push_back(
                {mode, v1::rle, random.one_in(3) ? v1::rle_single_literals(symbols) : v1::rle_encode(symbols)});
        }
        ASSERT_TRUE(same(decoded(codec, v1::write(blob), words.size()), words)) << "case " << i;
    }
}

TEST(Predictors, TheZeroOptionsMeanAll) {
    SEEDED_DICE(random, 109);
    const bytes words = some_words(random, 4, 3000);
    const mnnkv_gear_options none = predicting(0), all = predicting(7);
    EXPECT_TRUE(same(encoded(fp32, words, &none), encoded(fp32, words, &all)));
    EXPECT_TRUE(same(encoded(fp32, words), encoded(fp32, words, &all))) << "and so does NULL";
}

}  // namespace
