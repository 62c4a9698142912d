// Format v2 of the lossless codec: four types, every option, self-describing blobs.

#include "cache_words.hpp"
#include "refusal.hpp"
#include "v1_reader.hpp"
#include "xxh3.hpp"

namespace {

using namespace support;

/// All tests of one type.
class GearV2 : public testing::TestWithParam<word_codec> {
protected:
    const word_codec codec_ = GetParam();
};

TEST_P(GearV2, TakesRowsOfAnyLength) {
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
    // Each row equals an earlier one except for the last bits of its words.
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

TEST_P(GearV2, BlobsNameTheirType) {
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
        // "BF16" does not contain " F16".
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

}  // namespace
