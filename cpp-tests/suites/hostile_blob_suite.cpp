// Hostile blobs of format v1: cut, flipped, made up. The decoder returns CORRUPT or writes the announced number of
// bytes, and nothing else. Blobs end where readable memory ends, so a read past one is a crash.

#include "codec.hpp"
#include "edge.hpp"
#include "refusal.hpp"
#include "v1_reader.hpp"

namespace {

using namespace support;

/// Small golden frames of every kind, and some blobs of the library with all predictors.
struct specimen {
    std::string name;
    word_codec codec;
    bytes blob;
    std::size_t words_bytes;
};

std::vector<specimen> specimens(std::size_t largest) {
    std::vector<specimen> out;
    for (const golden_frame& golden : golden_frames()) {
        if (golden.frame.size() <= largest) {
            out.push_back({golden.name, golden.codec, golden.frame, golden.input.size()});
        }
    }
    dice random(701);
    for (int i = 0; i < 8; ++i) {
        const word_codec& codec = v1_codecs[i % 2];
        const bytes words = some_words(random, codec.width, random.between(1, 120));
        out.push_back({"ours " + std::to_string(i), codec, encoded(codec, words), words.size()});
    }
    EXPECT_GT(out.size(), 30u);
    return out;
}

TEST(HostileBlob, EveryTruncationIsCorrupt) {
    edge memory(1 << 16);
    for (const specimen& s : specimens(2000)) {
        SCOPED_TRACE(s.name);
        guarded words(s.words_bytes);
        slot<std::size_t> length;
        for (std::size_t cut = 0; cut < s.blob.size() && !HasFailure(); ++cut) {
            SCOPED_TRACE(testing::Message() << cut << " of " << s.blob.size() << " bytes");
            const std::uint8_t* const blob = memory.put(s.blob, cut);
            EXPECT_TRUE(answers(s.codec.decode(blob, cut, words.data(), words.size(), length.get()), MNNKV_CORRUPT));
            EXPECT_TRUE(answers(s.codec.decode(blob, cut, nullptr, 0, length.get()), MNNKV_CORRUPT));
            EXPECT_STRNE(mnnkv_last_error(), "");
        }
        EXPECT_TRUE(words.untouched());
        EXPECT_TRUE(length.untouched());
    }
}

TEST(HostileBlob, EveryFlippedBitIsCorruptOrGivesAsManyBytes) {
    edge memory(1 << 16);
    std::size_t refused = 0, accepted = 0;
    for (const specimen& s : specimens(700)) {
        SCOPED_TRACE(s.name);
        bytes blob = s.blob;
        for (std::size_t bit = 0; bit < 8 * blob.size() && !HasFailure(); ++bit) {
            SCOPED_TRACE(testing::Message() << "bit " << bit % 8 << " of byte " << bit / 8);
            const auto flip = [&] { blob[bit / 8] = static_cast<std::uint8_t>(blob[bit / 8] ^ 1 << bit % 8); };
            flip();
            guarded words(s.words_bytes, 1);
            slot<std::size_t> length;
            const mnnkv_status status =
                s.codec.decode(memory.put(blob), blob.size(), words.data(), words.size(), length.get());
            if (status == MNNKV_OK) {
                EXPECT_EQ(length.value(), s.words_bytes);
                EXPECT_TRUE(words.holds(words.contents())) << "canaries";
                ++accepted;
            } else {
                EXPECT_TRUE(answers(status, MNNKV_CORRUPT));
                EXPECT_TRUE(words.untouched());
                EXPECT_TRUE(length.untouched());
                ++refused;
            }
            flip();
        }
    }
    EXPECT_GT(refused, accepted) << "headers are most of a small blob";
    EXPECT_GT(accepted, 0u) << "v1 has no checksum";
}

TEST(HostileBlob, NoiseIsCorrupt) {
    SEEDED_DICE(random, 702);
    edge memory(4096);
    for (int i = 0; i < 3000; ++i) {
        bytes blob = random.noise(random.below(200));
        // Half of them begin like a blob: a small word count, consistent headers, short payloads.
        if (i % 2 == 0 && blob.size() >= 14) {
            const std::uint8_t start[] = {9, 0, 0, 0, static_cast<std::uint8_t>(random.below(3)),
                                          static_cast<std::uint8_t>(random.below(2)), 9, 0, 0, 0,
                                          static_cast<std::uint8_t>(random.below(40)), 0, 0, 0};
            std::copy(std::begin(start), std::end(start), blob.begin());
        }
        guarded words(4096);
        slot<std::size_t> length;
        for (const word_codec& codec : v1_codecs) {
            ASSERT_TRUE(answers(codec.decode(memory.put(blob), blob.size(), words.data(), words.size(), length.get()),
                                MNNKV_CORRUPT))
                << "case " << i;
        }
        ASSERT_TRUE(words.untouched());
        ASSERT_TRUE(length.untouched());
    }
}

/// Two planes of nine words, run-length coded: a small blob with every field.
v1::blob sound_blob() {
    const bytes plane = {1, 2, 3, 7, 7, 7, 7, 7, 9};
    return {9, {{v1::raw, v1::rle, v1::rle_encode(plane)}, {v1::delta_seq, v1::rle, v1::rle_encode(plane)}}};
}

void expect_corrupt(const char* what, const bytes& blob) {
    SCOPED_TRACE(what);
    edge memory(4096);
    guarded words(64);
    slot<std::size_t> length;
    const std::uint8_t* const at = memory.put(blob);
    EXPECT_TRUE(
        answers(mnnkv_decode_fp16_gear(at, blob.size(), words.data(), words.size(), length.get()), MNNKV_CORRUPT));
    EXPECT_TRUE(words.untouched());
    EXPECT_TRUE(length.untouched());
}

TEST(HostileBlob, EveryRuleOfTheFormatIsEnforced) {
    const bytes good = v1::write(sound_blob());
    ASSERT_EQ(decoded(fp16, good, 18).size(), 18u);
    const auto with = [&](std::size_t at, std::uint8_t value) {
        bytes blob = good;
        blob[at] = value;
        return blob;
    };
    expect_corrupt("no words", with(0, 0));
    expect_corrupt("another word count", with(0, 8));
    expect_corrupt("a huge word count", with(3, 0x80));
    expect_corrupt("unknown mode", with(4, 3));
    expect_corrupt("mode 255", with(4, 255));
    expect_corrupt("unknown codec", with(5, 2));
    expect_corrupt("raw_len below the word count", with(6, 8));
    expect_corrupt("raw_len above the word count", with(6, 10));
    expect_corrupt("raw_len 0", with(6, 0));
    expect_corrupt("a payload longer than the blob", with(10, 200));
    expect_corrupt("a payload of 4 GB", with(13, 0xFF));
    expect_corrupt("an empty payload", with(10, 0));

    expect_corrupt("empty planes", v1::write({0, {{v1::raw, v1::rle, {}}, {v1::raw, v1::rle, {}}}}));
    expect_corrupt("zeros", bytes(24));

    bytes longer = good;
    longer.push_back(0);
    expect_corrupt("a byte after the last plane", longer);
    v1::blob three = sound_blob();
    three.planes.push_back(three.planes[0]);
    expect_corrupt("a third plane", v1::write(three));
    expect_corrupt("an fp16 blob is not an fp32 blob", [&] {
        bytes words(36);
        return encoded(fp32, words);
    }());

    const struct {
        const char* what;
        bytes payload;
    } payloads[] = {
        {"run lengths that end early", {0x83, 7}},
        {"run lengths that go on", {0x86, 7}},
        {"a run without its byte", {0x84, 7, 0x80}},
        {"literals without bytes", {0x08}},
        {"literals cut off", {0x08, 1, 2, 3, 4}},
        {"literals past the end", {0x83, 7, 0x7F, 1, 2}},
        {"an empty group", {0x85, 7, 0x00}},
        {"nothing", {}},
    };
    for (const auto& p : payloads) {
        for (std::size_t plane = 0; plane < 2; ++plane) {
            v1::blob blob = sound_blob();
            blob.planes[plane].payload = p.payload;
            expect_corrupt(p.what, v1::write(blob));
        }
    }
}

/// A ZSTD frame of one block that is one byte repeated (RFC 8878), announcing `announced` bytes.
bytes zstd_run(std::uint8_t value, std::uint8_t announced, std::uint8_t actual) {
    return {0x28, 0xB5, 0x2F, 0xFD, 0x20, announced, static_cast<std::uint8_t>(1 | 1 << 1 | (actual & 31) << 3),
            static_cast<std::uint8_t>(actual >> 5), 0, value};
}

TEST(HostileBlob, ZstdPayloadsMustBeOneFrameOfTheRightLength) {
    v1::blob blob = sound_blob();
    blob.planes[0].codec = v1::zstd;
    const auto with = [&](bytes payload) {
        blob.planes[0].payload = std::move(payload);
        return v1::write(blob);
    };
    const bytes words = decoded(fp16, with(zstd_run(5, 9, 9)), 18);
    EXPECT_EQ(words[0], 5);
    EXPECT_EQ(words[16], 5);
    expect_corrupt("fewer bytes", with(zstd_run(5, 8, 8)));
    expect_corrupt("more bytes", with(zstd_run(5, 10, 10)));
    expect_corrupt("announced is not actual", with(zstd_run(5, 9, 8)));
    expect_corrupt("a flood", with(zstd_run(5, 255, 255)));
    bytes cut = zstd_run(5, 9, 9);
    cut.pop_back();
    expect_corrupt("a frame cut off", with(cut));
    bytes trailing = zstd_run(5, 9, 9);
    trailing.push_back(0);
    expect_corrupt("a byte after the frame", with(trailing));
    bytes two = zstd_run(5, 4, 4);
    const bytes second = zstd_run(5, 5, 5);
    two.insert(two.end(), second.begin(), second.end());
    EXPECT_NE(v1::zstd_shape(two, 9), "") << "the independent reader calls this no single frame";
    expect_corrupt("two frames", with(two));
    expect_corrupt("no frame", with({1, 2, 3, 4, 5, 6, 7, 8, 9}));
}

TEST(HostileBlob, AnnouncingGigabytesCostsNothing) {
    if (sizeof(std::size_t) < 8) {
        GTEST_SKIP() << "a size that only a 64-bit machine can name";
    }
    for (const word_codec& codec : v1_codecs) {
        const v1::blob blob{0xFFFFFFFF, std::vector<v1::frame>(codec.width, {v1::raw, v1::rle, {0x80, 0}})};
        const bytes data = v1::write(blob);
        guarded words(64);
        std::size_t length = 0;
        EXPECT_TRUE(answers(codec.decode(data.data(), data.size(), nullptr, 0, &length), MNNKV_BUFFER_TOO_SMALL));
        EXPECT_EQ(static_cast<std::uint64_t>(length), std::uint64_t{0xFFFFFFFF} * codec.width);
        EXPECT_TRUE(answers(codec.decode(data.data(), data.size(), words.data(), words.size(), &length),
                            MNNKV_BUFFER_TOO_SMALL));
        EXPECT_TRUE(words.untouched());
    }
}

}  // namespace
