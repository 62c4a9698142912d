// Format v2: four types, every option, and blobs that say what they hold.

#include "cache_words.hpp"
#include "refusal.hpp"
#include "v1_reader.hpp"
#include "xxh3.hpp"

#include <atomic>
#include <cstdio>
#include <thread>

namespace {

using namespace support;

constexpr std::uint32_t v2_predictors[] = {MNNKV_PREDICT_RAW, MNNKV_PREDICT_DELTA_TOKEN, MNNKV_PREDICT_XOR_TOKEN,
                                           MNNKV_PREDICT_DELTA_PAIR, MNNKV_PREDICT_DELTA_PAIR_TOKEN};
constexpr std::uint32_t all_v2_predictors = 1 | 8 | 16 | 32 | 64;

/// All tests of one type.
class GearV2 : public testing::TestWithParam<word_codec> {
protected:
    const word_codec codec_ = GetParam();
};

TEST_P(GearV2, ReturnsEveryInputBitForBit) {
    SEEDED_DICE(random, 901);
    for (int i = 0; i < 250; ++i) {
        const std::uint32_t count = i < 70 ? static_cast<std::uint32_t>(i / 2 + 1) : random.between(1, 3000);
        const bytes words = some_words(random, codec_.width, count);
        mnnkv_gear_options options = in_v2();
        options.effort = static_cast<std::int32_t>(random.below(10));
        options.predictors = random.bits() & all_v2_predictors;
        const std::uint32_t dims[] = {0, 1, 2, 3, 8, 64, 65, count, count + 1, UINT32_MAX};
        options.head_dim = dims[random.below(10)];
        SCOPED_TRACE(testing::Message() << "case " << i << ": " << count << " words, head_dim " << options.head_dim
                                        << ", effort " << options.effort << ", predictors " << options.predictors);
        round_trip(codec_, words, &options);
        ASSERT_FALSE(HasFailure());
    }
}

TEST_P(GearV2, ReturnsEveryWordThereIs) {
    bytes words;
    for (std::uint32_t word = 0; word < 0x10000; ++word) {
        for (std::size_t i = 0; i < codec_.width; ++i) {
            // Of four bytes the upper two take all values; below them NaNs get payloads.
            const std::uint32_t wide = codec_.width == 4 ? word << 16 | (word * 40503 & 0xFFFF) : word;
            words.push_back(static_cast<std::uint8_t>(wide >> 8 * i));
        }
    }
    for (const std::uint32_t dim : {0u, 64u, 100u}) {
        const mnnkv_gear_options options = in_v2(dim);
        round_trip(codec_, words, &options);
    }
}

TEST_P(GearV2, KnowsRowsOfAnyLength) {
    SEEDED_DICE(random, 902);
    // Powers of two, odd ones, and tails that fill no row.
    for (const std::size_t dim : {1u, 2u, 3u, 5u, 16u, 63u, 64u, 80u, 128u, 257u}) {
        SCOPED_TRACE(dim);
        bytes words = cache_words(random, codec_, 2, 75, dim, 60);
        for (const std::size_t tail : {std::size_t{0}, std::size_t{1}, dim / 2}) {
            const mnnkv_gear_options options = in_v2(static_cast<std::uint32_t>(dim));
            round_trip(codec_, words, &options);
            words.insert(words.end(), tail * codec_.width, 0x3C);
        }
    }
}

TEST_P(GearV2, CompressesRowsBetterThanItsInputUnknown) {
    SEEDED_DICE(random, 903);
    const bytes words = cache_words(random, codec_, 2, 600, 64, 600);
    const mnnkv_gear_options blind = in_v2(), seeing = in_v2(64);
    const std::size_t without = round_trip(codec_, words, &blind).size();
    const std::size_t with = round_trip(codec_, words, &seeing).size();
    EXPECT_LT(with, words.size());
    EXPECT_LT(with, without);
}

TEST_P(GearV2, LeavesOutRowsThatComeAgain) {
    SEEDED_DICE(random, 904);
    const bytes rare = cache_words(random, codec_, 1, 512, 64, 512);
    const bytes often = cache_words(random, codec_, 1, 512, 64, 32);
    const mnnkv_gear_options options = in_v2(64);
    EXPECT_LT(round_trip(codec_, often, &options).size(), round_trip(codec_, rare, &options).size() / 4);
}

TEST_P(GearV2, PredictsRowsThatAreAlike) {
    // Each row is an earlier one but for the last bits of its words.
    SEEDED_DICE(random, 920);
    const std::size_t dim = 64, tokens = 400;
    const bytes first = cache_words(random, codec_, 1, 20, dim, 20);
    for (const std::uint32_t change : {1u, 7u, 20u}) {
        SCOPED_TRACE(change);
        bytes words = first;
        while (words.size() < tokens * dim * codec_.width) {
            const std::size_t from = random.below(20) * dim * codec_.width;
            for (std::size_t i = 0; i < dim * codec_.width; ++i) {
                const bool lowest = i % codec_.width == 0;
                words.push_back(static_cast<std::uint8_t>(words[from + i] + (lowest ? random.below(change + 1) : 0)));
            }
        }
        for (const std::int32_t effort : {1, 5, 9}) {
            mnnkv_gear_options options = in_v2(dim);
            options.effort = effort;
            round_trip(codec_, words, &options);
        }
    }
}

TEST_P(GearV2, TakesEveryEffort) {
    SEEDED_DICE(random, 905);
    const bytes words = cache_words(random, codec_, 2, 300, 64, 400);
    std::size_t sizes[10] = {};
    for (std::int32_t effort = 0; effort <= 9; ++effort) {
        SCOPED_TRACE(effort);
        mnnkv_gear_options options = in_v2(64);
        options.effort = effort;
        sizes[effort] = round_trip(codec_, words, &options).size();
    }
    EXPECT_EQ(sizes[0], sizes[5]) << "the default";
    EXPECT_LE(sizes[9], sizes[1]) << "the smallest against the fastest";
    EXPECT_LT(sizes[1], words.size());
}

TEST_P(GearV2, TakesEveryPredictor) {
    SEEDED_DICE(random, 906);
    const bytes words = cache_words(random, codec_, 2, 200, 32, 300);
    for (std::uint32_t set = 0; set < 32; ++set) {
        mnnkv_gear_options options = in_v2(32);
        for (std::size_t i = 0; i < 5; ++i) {
            options.predictors |= set >> i & 1 ? v2_predictors[i] : 0;
        }
        SCOPED_TRACE(options.predictors);
        for (const std::int32_t effort : {1, 5, 9}) {
            options.effort = effort;
            round_trip(codec_, words, &options);
        }
    }
}

TEST_P(GearV2, TakesWhatAPredictorIsGoodAt) {
    // Channels that climb by a step of their own from token to token: noise but for the differences.
    SEEDED_DICE(random, 907);
    const std::size_t dim = 16, tokens = 512;
    bytes words(dim * tokens * codec_.width);
    for (std::size_t d = 0; d < dim; ++d) {
        std::uint32_t word = random.bits();
        const std::uint32_t step = random.bits() | 1;
        for (std::size_t t = 0; t < tokens; ++t, word += step) {
            std::memcpy(&words[(t * dim + d) * codec_.width], &word, codec_.width);
        }
    }
    mnnkv_gear_options raw = in_v2(dim), delta = in_v2(dim);
    raw.predictors = MNNKV_PREDICT_RAW;
    delta.predictors = MNNKV_PREDICT_DELTA_TOKEN;
    raw.effort = delta.effort = 9;
    EXPECT_LT(round_trip(codec_, words, &delta).size(), round_trip(codec_, words, &raw).size());
}

TEST_P(GearV2, NeedsNoMoreThanTheBound) {
    SEEDED_DICE(random, 908);
    for (const std::size_t count : {1u, 2u, 127u, 128u, 129u, 1000u, 65536u}) {
        SCOPED_TRACE(count);
        const bytes words = random.noise(count * codec_.width);
        const std::size_t bound = mnnkv_gear_bound(words.size(), codec_.dtype);
        EXPECT_LE(bound, words.size() + words.size() / 64 + 64) << "a little over the input";
        for (const std::uint32_t dim : {0u, 64u}) {
            for (const std::int32_t effort : {1, 5, 9}) {
                mnnkv_gear_options options = in_v2(dim);
                options.effort = effort;
                const bytes blob = round_trip(codec_, words, &options);
                EXPECT_LE(blob.size(), words.size() + 36) << "docs/format.md: stored";
                // Exactly as much room as it takes is enough.
                guarded room(blob.size());
                std::size_t length = 0;
                EXPECT_TRUE(ok(codec_.encode(words.data(), words.size(), &options, room.data(), room.size(), &length)));
                EXPECT_TRUE(room.holds(blob));
            }
        }
    }
}

TEST_P(GearV2, BlobsBeginAndEndAsThePageSays) {
    SEEDED_DICE(random, 909);
    for (int i = 0; i < 60; ++i) {
        const bytes words = some_words(random, codec_.width, random.between(17, 900));
        const std::size_t count = words.size() / codec_.width;
        const std::uint32_t dims[] = {0, 1, 8, 64};
        const mnnkv_gear_options options = in_v2(dims[random.below(4)]);
        SCOPED_TRACE(testing::Message() << "case " << i << ": " << count << " words, head_dim " << options.head_dim);
        const bytes blob = encoded(codec_, words, &options);
        ASSERT_GE(blob.size(), 37u);
        const bytes start = {0, 0, 0, 0, 'M', 'N', 'K', 'V', 2, 0, static_cast<std::uint8_t>(codec_.dtype)};
        EXPECT_TRUE(same(blob.data(), start.size(), start.data(), start.size()));
        EXPECT_LE(blob[11], 2) << "stored, coded or flat";
        const std::uint32_t row = v1::u32_at(blob, 12);
        const bool has_rows = options.head_dim > 0 && options.head_dim <= count && blob[11] != 2;
        EXPECT_EQ(row, has_rows ? options.head_dim : 1);
        EXPECT_EQ(xxh3::u64_at(&blob[16]), words.size());
        EXPECT_EQ(xxh3::u64_at(&blob[24]), xxh3::digest(words.data(), words.size()));
        EXPECT_EQ(v1::u32_at(blob, blob.size() - 4),
                  static_cast<std::uint32_t>(xxh3::digest(blob.data(), blob.size() - 4)));
        if (blob[11] == 0) {
            EXPECT_TRUE(same(&blob[32], blob.size() - 36, words.data(), words.size()));
        }
    }
    const bytes noise = random.noise(64 * codec_.width);
    const mnnkv_gear_options options = in_v2(8);
    EXPECT_EQ(encoded(codec_, noise, &options).at(11), 0) << "noise is stored";
}

TEST_P(GearV2, TellsTheSizeWithoutABuffer) {
    SEEDED_DICE(random, 910);
    for (const std::size_t kinds : {20, 100}) {
        const bytes words = cache_words(random, codec_, 1, 100, 16, kinds);
        const mnnkv_gear_options options = in_v2(16);
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

TEST_P(GearV2, ABufferThatIsTooSmallIsLeftAlone) {
    SEEDED_DICE(random, 911);
    const bytes words = cache_words(random, codec_, 1, 100, 16, 50);
    const mnnkv_gear_options options = in_v2(16);
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
    // More room than needed is left as it is, too.
    guarded large(words.size() + 999);
    bytes expected = large.contents();
    std::copy(words.begin(), words.end(), expected.begin());
    std::size_t length = 0;
    EXPECT_TRUE(ok(codec_.decode(blob.data(), blob.size(), large.data(), large.size(), &length)));
    EXPECT_EQ(length, words.size());
    EXPECT_TRUE(large.holds(expected));
}

TEST_P(GearV2, OverlapIsRefused) {
    SEEDED_DICE(random, 912);
    const bytes words = cache_words(random, codec_, 1, 64, 16, 1000);
    const mnnkv_gear_options options = in_v2(16);
    const bytes blob = encoded(codec_, words, &options);
    const std::size_t n = words.size(), m = blob.size(), cap = n + 100;
    bytes place(3 * cap + n);
    std::copy(blob.begin(), blob.end(), place.begin() + static_cast<std::ptrdiff_t>(cap));
    const bytes before = place;
    std::uint8_t* const src = place.data() + cap;
    slot<std::size_t> length;
    expect_refused(
        {
            {bad, "overlap", [&] { return codec_.encode(src, n, &options, src, cap, length.get()); }},
            {bad, "overlap", [&] { return codec_.encode(src, n, &options, src + n - 1, cap, length.get()); }},
            {bad, "overlap", [&] { return codec_.encode(src, n, &options, src - cap + 1, cap, length.get()); }},
            {bad, "overlap", [&] { return codec_.decode(src, m, src, n, length.get()); }},
            {bad, "overlap", [&] { return codec_.decode(src, m, src + m - 1, n, length.get()); }},
            {bad, "overlap", [&] { return codec_.decode(src, m, src - n + 1, n, length.get()); }},
        },
        length);
    EXPECT_TRUE(same(place, before));
    EXPECT_TRUE(ok(codec_.decode(src, m, src + m, n, length.get()))) << "side by side is no overlap";
    EXPECT_TRUE(same(src + m, n, words.data(), n));
}

TEST_P(GearV2, TheBytesDependOnNothingButTheCall) {
    // The thread keeps working memory from call to call; nothing of it may show.
    SEEDED_DICE(random, 913);
    const bytes words = cache_words(random, codec_, 1, 200, 32, 150);
    const mnnkv_gear_options options = in_v2(32);
    const bytes blob = encoded(codec_, words, &options);
    for (const word_codec& other : all_codecs) {
        mnnkv_gear_options larger = in_v2(48);
        larger.effort = 9;
        encoded(other, cache_words(random, other, 1, 400, 48, 90), &larger);
        encoded(other, some_words(random, other.width, 3));
        EXPECT_TRUE(same(encoded(codec_, words, &options), blob)) << "after " << other.name;
    }
    mnnkv_thread_trim();
    EXPECT_TRUE(same(encoded(codec_, words, &options), blob)) << "after a trim";
    EXPECT_TRUE(same(decoded(codec_, blob, words.size()), words));
}

TEST_P(GearV2, BlobsSayWhichTypeTheyHold) {
    SEEDED_DICE(random, 914);
    const bytes words = cache_words(random, codec_, 1, 40, 16, 20);
    const mnnkv_gear_options options = in_v2(16);
    const bytes blob = encoded(codec_, words, &options);
    for (const word_codec& other : all_codecs) {
        if (other.dtype == codec_.dtype) {
            continue;
        }
        SCOPED_TRACE(other.name);
        guarded out(words.size());
        slot<std::size_t> length;
        // " F16" is no part of "BF16".
        for (const char* const name : {codec_.type_name, other.type_name}) {
            expect_refused(
                {
                    {bad, std::string(" ") + name,
                     [&] { return other.decode(blob.data(), blob.size(), out.data(), out.size(), length.get()); }},
                    {bad, std::string(" ") + name,
                     [&] { return other.decode(blob.data(), blob.size(), nullptr, 0, length.get()); }},
                },
                out, length);
        }
    }
}

INSTANTIATE_TEST_SUITE_P(AllTypes, GearV2, testing::ValuesIn(all_codecs),
                         [](const auto& tested) { return std::string(tested.param.name); });

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
    // Keys of the first layer want the rotation hint.
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
    for (const word_codec& codec : all_codecs) {
        for (const std::size_t kinds : {30, 130}) {
            for (const std::int32_t effort : {1, 5, 9}) {
                mnnkv_gear_options options = in_v2(40);
                options.effort = effort;
                out.push_back({codec, cache_words(random, codec, 2, 130, 40, kinds), options});
            }
        }
        out.push_back({codec, some_words(random, codec.width, 3000), in_v2()});
        if (codec.width > 1) {
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
    // What a larger call left with the thread counts, and is given back where it is in the way.
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
    // A process has one SIMD level; the test "levels" compares what this prints at each.
    SEEDED_DICE(random, 919);
    bytes all;
    for (const work_item& item : work_of_all_kinds(random)) {
        for (const std::uint32_t format : {MNNKV_GEAR_FORMAT_V2, MNNKV_GEAR_FORMAT_V1}) {
            mnnkv_gear_options options = item.options;
            options.format = std::max(format, item.codec.default_format);
            const bytes blob = round_trip(item.codec, item.words, &options);
            all.insert(all.end(), blob.begin(), blob.end());
        }
    }
    std::printf("blobs of level %s: %016llx\n", mnnkv_cpu_level(),
                static_cast<unsigned long long>(xxh3::digest(all.data(), all.size())));
}

}  // namespace
