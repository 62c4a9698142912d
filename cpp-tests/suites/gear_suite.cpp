// Promises of all formats of the lossless codec, in every type that each format has.

#include "cache_words.hpp"
#include "refusal.hpp"
#include "v1_reader.hpp"
#include "xxh3.hpp"

#include <atomic>
#include <cstdio>
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
        all.push_back({codec, MNNKV_GEAR_FORMAT_V2});
        all.push_back({codec, MNNKV_GEAR_FORMAT_LANES});
        if (codec.default_format == MNNKV_GEAR_FORMAT_V1) {
            all.push_back({codec, MNNKV_GEAR_FORMAT_V1});
        }
    }
    return all;
}

std::string name_of(const wire& w) {
    const char* const names[] = {"", "_v1", "_v2", "_lanes"};
    return std::string(w.codec.name) + names[w.format];
}
void PrintTo(const wire& w, std::ostream* out) { *out << name_of(w); }

class Gear : public testing::TestWithParam<wire> {
protected:
    /// Options for this format; v1 does not read head_dim.
    mnnkv_gear_options with(std::uint32_t head_dim) const {
        mnnkv_gear_options options = in_v2(head_dim);
        options.format = GetParam().format;
        return options;
    }
    bool is_v1() const { return GetParam().format == MNNKV_GEAR_FORMAT_V1; }

    const word_codec codec_ = GetParam().codec;
};

TEST_P(Gear, ReturnsEveryInputBitForBit) {
    SEEDED_DICE(random, 901);
    const std::uint32_t predictors = is_v1() ? 7 : 0;
    for (int i = 0; i < 300; ++i) {
        const std::uint32_t count = i < 70 ? static_cast<std::uint32_t>(i / 2 + 1) : random.between(1, 3000);
        const bytes words = some_words(random, codec_.width, count);
        const std::uint32_t dims[] = {0, 1, 2, 3, 8, 64, 65, count, count + 1, UINT32_MAX};
        mnnkv_gear_options options = with(dims[random.below(10)]);
        options.effort = static_cast<std::int32_t>(random.below(10));
        options.predictors = random.bits() & predictors;
        SCOPED_TRACE(testing::Message() << "case " << i << ": " << count << " words, head_dim " << options.head_dim
                                        << ", effort " << options.effort << ", predictors " << options.predictors);
        round_trip(codec_, words, &options);
        ASSERT_FALSE(HasFailure());
    }
}

TEST_P(Gear, ReturnsEveryWordThereIs) {
    bytes words;
    for (std::uint32_t word = 0; word < 0x10000; ++word) {
        for (std::size_t i = 0; i < codec_.width; ++i) {
            // The upper two of four bytes take all values; below them NaNs get payloads.
            const std::uint32_t wide = codec_.width == 4 ? word << 16 | (word * 40503 & 0xFFFF) : word;
            words.push_back(static_cast<std::uint8_t>(wide >> 8 * i));
        }
    }
    for (const std::uint32_t dim : {0u, 64u, 100u}) {
        const mnnkv_gear_options options = with(dim);
        round_trip(codec_, words, &options);
    }
}

TEST_P(Gear, NeedsNoMoreThanTheBound) {
    SEEDED_DICE(random, 908);
    for (const std::size_t count : {1u, 2u, 127u, 128u, 129u, 1000u, 65536u, 131072u}) {
        SCOPED_TRACE(count);
        const bytes words = random.noise(count * codec_.width);
        const std::size_t bound = mnnkv_gear_bound(words.size(), codec_.dtype);
        EXPECT_LE(bound, words.size() + words.size() / 64 + 64) << "a little over the input";
        for (const std::uint32_t dim : {0u, 64u}) {
            for (const std::int32_t effort : {1, 5, 9}) {
                mnnkv_gear_options options = with(dim);
                options.effort = effort;
                const bytes blob = round_trip(codec_, words, &options);
                EXPECT_LE(blob.size(), is_v1() ? bound : words.size() + 36) << "docs/format.md: stored";
                guarded room(blob.size());
                std::size_t length = 0;
                EXPECT_TRUE(ok(codec_.encode(words.data(), words.size(), &options, room.data(), room.size(), &length)));
                EXPECT_TRUE(room.holds(blob)) << "exactly as much room as it takes is enough";
            }
        }
    }
}

TEST_P(Gear, TellsTheSizeWithoutABuffer) {
    SEEDED_DICE(random, 910);
    for (const std::size_t kinds : {20, 100}) {
        const bytes words = cache_words(random, codec_, 1, 100, 16, kinds);
        const mnnkv_gear_options options = with(16);
        const bytes blob = encoded(codec_, words, &options);
        std::size_t length = 0;
        EXPECT_TRUE(answers(codec_.decode(blob.data(), blob.size(), nullptr, 0, &length), MNNKV_BUFFER_TOO_SMALL));
        EXPECT_EQ(length, words.size());
        length = 0;
        EXPECT_TRUE(answers(codec_.encode(words.data(), words.size(), &options, nullptr, 0, &length),
                            MNNKV_BUFFER_TOO_SMALL));
        EXPECT_EQ(length, blob.size());
    }
}

TEST_P(Gear, ABufferThatIsTooSmallIsLeftAlone) {
    SEEDED_DICE(random, 911);
    const bytes words = cache_words(random, codec_, 1, 100, 16, 50);
    const mnnkv_gear_options options = with(16);
    const bytes blob = encoded(codec_, words, &options);
    for (const std::size_t lack : {std::size_t{1}, std::size_t{20}, blob.size() - 1}) {
        guarded small_blob(blob.size() - lack), small_words(words.size() - lack);
        std::size_t length = 0;
        EXPECT_TRUE(refuses(MNNKV_BUFFER_TOO_SMALL, "dst_cap", [&] {
            return codec_.encode(words.data(), words.size(), &options, small_blob.data(), small_blob.size(), &length);
        }));
        EXPECT_EQ(length, blob.size());
        EXPECT_TRUE(small_blob.untouched());
        EXPECT_TRUE(refuses(MNNKV_BUFFER_TOO_SMALL, "dst_cap", [&] {
            return codec_.decode(blob.data(), blob.size(), small_words.data(), small_words.size(), &length);
        }));
        EXPECT_EQ(length, words.size());
        EXPECT_TRUE(small_words.untouched());
    }
    // Room that is not needed is left as it is, too.
    guarded large(words.size() + 999);
    bytes expected = large.contents();
    std::copy(words.begin(), words.end(), expected.begin());
    std::size_t length = 0;
    EXPECT_TRUE(ok(codec_.decode(blob.data(), blob.size(), large.data(), large.size(), &length)));
    EXPECT_EQ(length, words.size());
    EXPECT_TRUE(large.holds(expected));
}

TEST_P(Gear, OverlapIsRefused) {
    SEEDED_DICE(random, 912);
    const bytes words = cache_words(random, codec_, 1, 64, 16, 1000);
    const mnnkv_gear_options options = with(16);
    const bytes blob = encoded(codec_, words, &options);
    const std::size_t n = words.size(), m = blob.size(), cap = n + 100;
    bytes place(3 * cap + n);
    std::copy(blob.begin(), blob.end(), place.begin() + static_cast<std::ptrdiff_t>(cap));
    const bytes before = place;
    std::uint8_t *const src = place.data() + cap, *const first = place.data();
    slot<std::size_t> length;
    expect_refused(
        {
            {bad, "overlap", [&] { return codec_.encode(src, n, &options, src, cap, length.get()); }},
            {bad, "overlap", [&] { return codec_.encode(src, n, &options, src + n - 1, cap, length.get()); }},
            {bad, "overlap", [&] { return codec_.encode(src, n, &options, src - cap + 1, cap, length.get()); }},
            {bad, "overlap", [&] { return codec_.encode(src, n, &options, first, place.size(), length.get()); }},
            {bad, "overlap", [&] { return codec_.decode(src, m, src, n, length.get()); }},
            {bad, "overlap", [&] { return codec_.decode(src, m, src + m - 1, n, length.get()); }},
            {bad, "overlap", [&] { return codec_.decode(src, m, src - n + 1, n, length.get()); }},
        },
        length);
    EXPECT_TRUE(same(place, before));
    for (std::uint8_t* const beside : {src - n, src + m}) {
        EXPECT_TRUE(ok(codec_.decode(src, m, beside, n, length.get()))) << "adjacent buffers do not overlap";
        EXPECT_TRUE(same(beside, n, words.data(), n));
    }
}

TEST_P(Gear, TheBytesDependOnNothingButTheCall) {
    // The thread retains working memory from call to call.
    SEEDED_DICE(random, 913);
    const bytes words = cache_words(random, codec_, 1, 200, 32, 150);
    const mnnkv_gear_options options = with(32);
    const bytes blob = encoded(codec_, words, &options);
    for (const word_codec& other : all_codecs) {
        mnnkv_gear_options larger = in_v2(48);
        larger.effort = 9;
        encoded(other, cache_words(random, other, 1, 400, 48, 90), &larger);
        encoded(other, some_words(random, other.width, 3));
        EXPECT_TRUE(same(encoded(codec_, words, &options), blob)) << "after " << other.name;
    }
    mnnkv_thread_trim();
    mnnkv_thread_trim();
    EXPECT_TRUE(same(encoded(codec_, words, &options), blob)) << "after a trim";
    mnnkv_thread_trim();
    EXPECT_TRUE(same(decoded(codec_, blob, words.size()), words));
}

INSTANTIATE_TEST_SUITE_P(AllTypes, Gear, testing::ValuesIn(all_wires()),
                         [](const auto& tested) { return name_of(tested.param); });

TEST(GearFormats, BlobsOfBothAreReadByTheSameFunctions) {
    SEEDED_DICE(random, 915);
    for (const word_codec& codec : v1_codecs) {
        const bytes words = cache_words(random, codec, 1, 100, 16, 50);
        mnnkv_gear_options options = in_v2(16);
        const bytes second = encoded(codec, words, &options);
        options.format = MNNKV_GEAR_FORMAT_V1;
        const bytes first = encoded(codec, words, &options);
        v1::blob parsed;
        EXPECT_EQ(v1::parse(first, codec.width, parsed), "");
        EXPECT_NE(v1::parse(second, codec.width, parsed), "") << "a v1 reader refuses v2 by its first bytes";
        for (int round = 0; round < 2; ++round) {
            EXPECT_TRUE(same(decoded(codec, first, words.size()), words));
            EXPECT_TRUE(same(decoded(codec, second, words.size()), words));
        }
    }
}

TEST(GearFormats, TheFirstHasNoUseForRowsAndRotations) {
    SEEDED_DICE(random, 916);
    for (const word_codec& codec : v1_codecs) {
        const bytes words = cache_words(random, codec, 1, 64, 16, 50);
        const bytes expected = encoded(codec, words);
        mnnkv_gear_options options = turned_by(MNNKV_ROPE_HALF, 16, 64);
        options.format = MNNKV_GEAR_FORMAT_V1;
        EXPECT_TRUE(same(encoded(codec, words, &options), expected));
        options = predicting(0);
        for (const std::uint32_t dim : {1u, 16u, UINT32_MAX}) {
            options.head_dim = dim;
            EXPECT_TRUE(same(encoded(codec, words, &options), expected));
        }
    }
}

TEST(GearFormats, TheFirstTakesEveryEffort) {
    SEEDED_DICE(random, 917);
    for (const word_codec& codec : v1_codecs) {
        const bytes words = cache_words(random, codec, 2, 300, 64, 400);
        std::size_t sizes[10] = {};
        for (std::int32_t effort = 0; effort <= 9; ++effort) {
            SCOPED_TRACE(effort);
            mnnkv_gear_options options = predicting(0);
            options.effort = effort;
            const bytes blob = round_trip(codec, words, &options);
            v1::blob parsed;
            EXPECT_EQ(v1::parse(blob, codec.width, parsed), "");
            sizes[effort] = blob.size();
        }
        EXPECT_EQ(sizes[0], sizes[5]) << "the default";
        for (const std::size_t size : sizes) {
            EXPECT_LE(sizes[9], size) << "at 9 everything is tried";
        }
    }
}

TEST(GearFormats, TheSecondIsSmallerForARealCache) {
    // Keys of the first layer need the rotation hint.
    for (const char* name : {"kv/l0_v_h2_t1088_d64.f16", "kv/l1_k_h2_t1088_d64.f16",
                             "kv/l1_v_h2_t1088_d64.f16", "kv/l3_k_h2_t1088_d64.f16"}) {
        SCOPED_TRACE(name);
        const bytes words = read_file(name);
        const mnnkv_gear_options options = in_v2(64);
        EXPECT_LT(round_trip(fp16, words, &options).size(), encoded(fp16, words).size());
    }
}

/// An input of every kind, with options for it.
struct work_item {
    word_codec codec;
    bytes words;
    mnnkv_gear_options options;
};

std::vector<work_item> work_of_all_kinds(dice& random) {
    std::vector<work_item> out;
    for (const wire& w : all_wires()) {
        const word_codec& codec = w.codec;
        for (const std::size_t kinds : {30, 130}) {
            for (const std::int32_t effort : {1, 5, 9}) {
                mnnkv_gear_options options = in_v2(40);
                options.format = w.format;
                options.effort = effort;
                out.push_back({codec, cache_words(random, codec, 2, 130, 40, kinds), options});
            }
        }
        mnnkv_gear_options plain = in_v2();
        plain.format = w.format;
        out.push_back({codec, some_words(random, codec.width, 3000), plain});
        if (codec.width > 1 && w.format == MNNKV_GEAR_FORMAT_V2) {
            const turning how = {MNNKV_ROPE_HALF, frequencies_of(10000, 40), positions_from(0, 130)};
            out.push_back({codec, turned_keys(random, codec, 2, 40, 20, how), turned_by(MNNKV_ROPE_HALF, 40, 130)});
        }
    }
    return out;
}

TEST(GearThreads, GiveEqualBytesAllAtOnce) {
    SEEDED_DICE(random, 918);
    const std::vector<work_item> items = work_of_all_kinds(random);
    std::vector<bytes> blobs;
    for (const work_item& item : items) {
        blobs.push_back(encoded(item.codec, item.words, &item.options));
    }
    std::atomic<int> wrong{0};
    std::vector<std::thread> threads;
    for (std::size_t t = 0; t < 6; ++t) {
        threads.emplace_back([&, t] {
            for (std::size_t i = 0; i < items.size(); ++i) {
                const std::size_t at = (i * 5 + t * 7) % items.size();
                const work_item& item = items[at];
                bytes blob(mnnkv_gear_bound(item.words.size(), item.codec.dtype)), words(item.words.size());
                std::size_t length = 0;
                const bool encodes = item.codec.encode(item.words.data(), item.words.size(), &item.options,
                                                       blob.data(), blob.size(), &length) == MNNKV_OK;
                blob.resize(length);
                const bool decodes = item.codec.decode(blobs[at].data(), blobs[at].size(), words.data(), words.size(),
                                                       &length) == MNNKV_OK;
                if (!encodes || !decodes || blob != blobs[at] || words != item.words) {
                    ++wrong;
                }
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

TEST(GearLimit, DecodeGearReadsWhatEveryDecoderReads) {
    SEEDED_DICE(random, 920);
    for (const work_item& item : work_of_all_kinds(random)) {
        const bytes blob = round_trip(item.codec, item.words, &item.options);
        bytes back(item.words.size());
        std::size_t length = 0;
        EXPECT_TRUE(ok(mnnkv_decode_gear(blob.data(), blob.size(), item.codec.dtype, nullptr, back.data(), back.size(),
                                         &length)));
        EXPECT_EQ(length, back.size());
        EXPECT_TRUE(same(back, item.words));
    }
}

TEST(GearLimit, ABlobThatTakesMoreIsRefusedWithBothNumbersAndReadWithMore) {
    SEEDED_DICE(random, 921);
    bytes words(64 * 1024);
    for (std::uint8_t& byte : words) {
        byte = static_cast<std::uint8_t>(random.below(20));
    }
    mnnkv_gear_options coded = in_v2(64);
    const bytes blob = encoded(int8, words, &coded);
    ASSERT_LT(blob.size(), words.size());
    bytes back(words.size(), 0x5A);
    const bytes untouched = back;
    std::size_t length = 77;
    mnnkv_decode_options options = mnnkv::make<mnnkv_decode_options>();
    const auto decode = [&] {
        return mnnkv_decode_gear(blob.data(), blob.size(), MNNKV_DTYPE_INT8, &options, back.data(), back.size(), &length);
    };
    mnnkv_thread_trim();
    options.max_working_bytes = 12345;
    EXPECT_TRUE(refuses(MNNKV_OUT_OF_MEMORY, "12345", decode));
    EXPECT_TRUE(refuses(MNNKV_OUT_OF_MEMORY, "65536", decode));
    EXPECT_TRUE(same(back, untouched));
    EXPECT_EQ(length, 77u);
    options.max_working_bytes = 3 * words.size() + (256u << 10);
    EXPECT_TRUE(ok(decode()));
    EXPECT_TRUE(same(back, words));
    // Memory that a larger call left with the thread counts, and is released where it is in the way.
    back = untouched;
    options.max_working_bytes = 12345;
    EXPECT_TRUE(refuses(MNNKV_OUT_OF_MEMORY, "12345", decode));
    options.max_working_bytes = UINT64_MAX;
    EXPECT_TRUE(ok(decode()));
    EXPECT_TRUE(same(back, words));

    options.reserved = 1;
    EXPECT_TRUE(refuses(MNNKV_INVALID_ARGUMENT, "options->reserved", decode));
    options.reserved = 0;
    options.struct_size = 15;
    EXPECT_TRUE(refuses(MNNKV_INVALID_ARGUMENT, "options->struct_size", decode));
    EXPECT_TRUE(refuses(MNNKV_INVALID_ARGUMENT, "dtype", [&] {
        return mnnkv_decode_gear(blob.data(), blob.size(), 0, nullptr, back.data(), back.size(), &length);
    }));
}

TEST(GearLevels, PrintADigestOfTheirBlobs) {
    // A process has one SIMD level; the test "levels" compares the line that is printed at each.
    SEEDED_DICE(random, 919);
    bytes all;
    for (const work_item& item : work_of_all_kinds(random)) {
        const bytes blob = round_trip(item.codec, item.words, &item.options);
        all.insert(all.end(), blob.begin(), blob.end());
    }
    std::printf("blobs of level %s: %016llx\n", mnnkv_cpu_level(),
                static_cast<unsigned long long>(xxh3::digest(all.data(), all.size())));
}

}  // namespace
