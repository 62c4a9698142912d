// The lossless codec through the C functions. Formats, goldens and damage: tests/gear.rs.

#include "codec.hpp"
#include "refusal.hpp"

#include <atomic>
#include <thread>

namespace {

using namespace support;

struct wire {
    word_codec codec;
    std::uint32_t format;
};

std::vector<wire> all_wires() {
    std::vector<wire> all;
    for (const word_codec& codec : all_codecs) {
        all.push_back({codec, MNNKV_GEAR_FORMAT_V1});
        all.push_back({codec, MNNKV_GEAR_FORMAT_CHECKED});
    }
    return all;
}

TEST(Gear, ReturnsEveryInputBitForBitIntoExactlyTheRoomThatItNeeds) {
    SEEDED_DICE(random, 901);
    for (int i = 0; i < 400; ++i) {
        const wire w = all_wires()[random.below(8)];
        const bytes words = some_words(random, w.codec.width, i < 70 ? random.between(1, 70) : random.between(1, 3000));
        mnnkv_gear_options options = in_format(w.format);
        options.effort = static_cast<std::int32_t>(random.below(10));
        options.predictors = random.below(8);
        SCOPED_TRACE(testing::Message() << "case " << i << ": " << w.codec.name << ", format " << w.format << ", effort "
                                        << options.effort << ", predictors " << options.predictors << ", "
                                        << words.size() << " bytes");
        const bytes blob = encoded(w.codec, words, &options);
        const guarded src(words, 1), from(blob, 1);
        std::size_t length = 0;
        const auto encode = [&](std::uint8_t* dst, std::size_t cap) {
            return w.codec.encode(src.data(), src.size(), &options, dst, cap, &length);
        };
        const auto decode = [&](std::uint8_t* dst, std::size_t cap) {
            return w.codec.decode(from.data(), from.size(), dst, cap, &length);
        };
        EXPECT_TRUE(answers(encode(nullptr, 0), MNNKV_BUFFER_TOO_SMALL));
        EXPECT_EQ(length, blob.size());
        guarded small(blob.size() - 1), room(blob.size(), 3), out(words.size(), 1);
        EXPECT_TRUE(refuses(MNNKV_BUFFER_TOO_SMALL, "dst_cap", [&] { return encode(small.data(), small.size()); }));
        EXPECT_TRUE(small.untouched());
        EXPECT_TRUE(ok(encode(room.data(), room.size())));
        EXPECT_TRUE(room.holds(blob));
        EXPECT_TRUE(answers(decode(nullptr, 0), MNNKV_BUFFER_TOO_SMALL));
        EXPECT_EQ(length, words.size());
        EXPECT_TRUE(ok(decode(out.data(), out.size())));
        EXPECT_TRUE(out.holds(words));
        EXPECT_TRUE(src.untouched());
        ASSERT_FALSE(HasFailure());
    }
}

TEST(Gear, GoldenFramesOfTheReferenceAreRead) {
    const std::vector<json> manifest = json_reader(read_text("gear_v1/manifest.json")).read().items;
    EXPECT_EQ(manifest.size(), 135u);
    for (const json& entry : manifest) {
        const word_codec& codec = entry["dtype"].text == "f16" ? fp16 : fp32;
        const bytes input = read_file("gear_v1/" + entry["input"].text), frame = read_file("gear_v1/" + entry["frame"].text);
        guarded words(input.size(), 1);
        std::size_t length = 0;
        EXPECT_TRUE(ok(codec.decode(frame.data(), frame.size(), words.data(), words.size(), &length)));
        EXPECT_TRUE(words.holds(input)) << entry["frame"].text;
    }
}

TEST(Gear, OverlapIsRefused) {
    const bytes words(2048, 7);
    const bytes blob = encoded(fp16, words);
    const std::size_t n = words.size(), m = blob.size(), cap = n + 100;
    bytes place(3 * cap + n);
    std::copy(blob.begin(), blob.end(), place.begin() + static_cast<std::ptrdiff_t>(cap));
    const bytes before = place;
    std::uint8_t* const src = place.data() + cap;
    slot<std::size_t> length;
    expect_refused(
        {
            {bad, "overlap", [&] { return fp16.encode(src, n, nullptr, src, cap, length.get()); }},
            {bad, "overlap", [&] { return fp16.encode(src, n, nullptr, src + n - 1, cap, length.get()); }},
            {bad, "overlap", [&] { return fp16.encode(src, n, nullptr, src - cap + 1, cap, length.get()); }},
            {bad, "overlap", [&] { return fp16.decode(src, m, src + m - 1, n, length.get()); }},
            {bad, "overlap", [&] { return fp16.decode(src, m, src - n + 1, n, length.get()); }},
        },
        length);
    EXPECT_TRUE(same(place, before));
    for (std::uint8_t* const beside : {src - n, src + m}) {
        EXPECT_TRUE(ok(fp16.decode(src, m, beside, n, length.get()))) << "adjacent buffers do not overlap";
        EXPECT_TRUE(same(beside, n, words.data(), n));
    }
}

TEST(Gear, ThreadsGiveEqualBytesAllAtOnce) {
    SEEDED_DICE(random, 918);
    std::vector<bytes> words, blobs;
    for (const wire& w : all_wires()) {
        words.push_back(some_words(random, w.codec.width, 20000));
        const mnnkv_gear_options options = in_format(w.format);
        blobs.push_back(encoded(w.codec, words.back(), &options));
    }
    std::atomic<int> wrong{0};
    std::vector<std::thread> threads;
    for (std::size_t t = 0; t < 6; ++t) {
        threads.emplace_back([&, t] {
            for (std::size_t i = 0; i < 5 * blobs.size(); ++i) {
                const std::size_t at = (i * 5 + t * 7) % blobs.size();
                const wire w = all_wires()[at];
                const mnnkv_gear_options options = in_format(w.format);
                bytes blob(blobs[at].size()), back(words[at].size());
                std::size_t length = 0;
                const bool encodes = w.codec.encode(words[at].data(), words[at].size(), &options, blob.data(),
                                                    blob.size(), &length) == MNNKV_OK;
                const bool decodes = w.codec.decode(blobs[at].data(), blobs[at].size(), back.data(), back.size(),
                                                    &length) == MNNKV_OK;
                wrong += !encodes || !decodes || blob != blobs[at] || back != words[at];
                if (i % 5 == 0) {
                    mnnkv_thread_trim();
                }
            }
        });
    }
    for (std::thread& thread : threads) {
        thread.join();
    }
    EXPECT_EQ(wrong, 0);
}

TEST(Gear, ABlobThatTakesMoreMemoryIsRefusedWithBothNumbersAndReadWithMore) {
    SEEDED_DICE(random, 921);
    bytes words(64 * 1024);
    for (std::uint8_t& byte : words) {
        byte = static_cast<std::uint8_t>(random.below(20));
    }
    const bytes blob = encoded(int8, words);
    bytes back(words.size(), 0x5A);
    std::size_t length = 77;
    mnnkv_decode_options options = mnnkv::make<mnnkv_decode_options>();
    const auto decode = [&] {
        return mnnkv_decode_gear(blob.data(), blob.size(), MNNKV_DTYPE_INT8, &options, back.data(), back.size(), &length);
    };
    mnnkv_thread_trim();
    options.max_working_bytes = 12345;
    EXPECT_TRUE(refuses(MNNKV_OUT_OF_MEMORY, "12345", decode));
    EXPECT_EQ(length, 77u);
    options.max_working_bytes = UINT64_MAX;
    EXPECT_TRUE(ok(decode()));
    EXPECT_TRUE(same(back, words));
    options.reserved = 1;
    EXPECT_TRUE(refuses(bad, "options->reserved", decode));
    options.reserved = 0;
    options.struct_size = 15;
    EXPECT_TRUE(refuses(bad, "options->struct_size", decode));
}

}  // namespace
