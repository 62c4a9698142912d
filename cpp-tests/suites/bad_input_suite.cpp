// Conventions of all functions, and invalid calls of the codec.

#include "codec.hpp"
#include "refusal.hpp"

#include <cctype>
#include <thread>

namespace {

using namespace support;

TEST(Version, IsThatOfTheHeader) {
    EXPECT_EQ(MNNKV_VERSION_NUMBER, MNNKV_VERSION_MAJOR * 10000 + MNNKV_VERSION_MINOR * 100 + MNNKV_VERSION_PATCH);
    EXPECT_EQ(mnnkv_version(), static_cast<std::uint32_t>(MNNKV_VERSION_NUMBER));
    EXPECT_EQ(mnnkv_abi_version(), static_cast<std::uint32_t>(MNNKV_ABI_VERSION));
}

TEST(Version, CpuLevelCanBeLoweredByTheEnvironment) {
    const std::string level = mnnkv_cpu_level();
    const char* const wanted = std::getenv("MNNKV_CPU_LEVEL");
    // Levels of this kind of CPU, lowest first.
#if defined(__x86_64__) || defined(_M_X64)
    const std::vector<std::string> levels = {"portable", "sse2", "avx2", "avx512"};
    const std::string always = "sse2";
#elif defined(__aarch64__) || defined(_M_ARM64)
    const std::vector<std::string> levels = {"portable", "neon"};
    const std::string always = "neon";
#else
    const std::vector<std::string> levels = {"portable"};
    const std::string always = "portable";
#endif
    const auto rank = [&](const std::string& name) { return std::find(levels.begin(), levels.end(), name); };
    ASSERT_NE(rank(level), levels.end()) << level;
    if (wanted != nullptr && rank(wanted) <= rank(always)) {
        EXPECT_EQ(level, wanted);
    } else if (wanted != nullptr && rank(wanted) != levels.end()) {
        EXPECT_LE(rank(level), rank(wanted)) << "lowered to " << wanted;
    } else {
        EXPECT_GE(rank(level), rank(always)) << "every CPU of this kind has it";
    }
    EXPECT_EQ(mnnkv_cpu_level(), mnnkv_cpu_level()) << "the text is static";
}

TEST(Status, NamesAreThoseOfTheHeader) {
    const struct {
        mnnkv_status status;
        const char* name;
    } names[] = {{MNNKV_OK, "OK"},
                 {MNNKV_INVALID_ARGUMENT, "INVALID_ARGUMENT"},
                 {MNNKV_BUFFER_TOO_SMALL, "BUFFER_TOO_SMALL"},
                 {MNNKV_CORRUPT, "CORRUPT"},
                 {MNNKV_UNSUPPORTED, "UNSUPPORTED"},
                 {MNNKV_NOT_FOUND, "NOT_FOUND"},
                 {MNNKV_BUSY, "BUSY"},
                 {MNNKV_STALE, "STALE"},
                 {MNNKV_IO, "IO"},
                 {MNNKV_OUT_OF_MEMORY, "OUT_OF_MEMORY"},
                 {MNNKV_INTERNAL, "INTERNAL"}};
    for (const auto& n : names) {
        EXPECT_STREQ(mnnkv_status_name(n.status), n.name);
    }
    for (const mnnkv_status unknown : {-1, 10, 99, 101, INT32_MIN, INT32_MAX}) {
        EXPECT_STREQ(mnnkv_status_name(unknown), "UNKNOWN") << unknown;
    }
    // Numbers never change meaning.
    const mnnkv_status numbers[] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 100};
    for (std::size_t i = 0; i < 11; ++i) {
        EXPECT_EQ(names[i].status, numbers[i]) << names[i].name;
    }
}

TEST(LastError, IsEmptyOnAThreadWithoutFailures) {
    std::string text = "not read yet";
    std::thread([&text] { text = mnnkv_last_error(); }).join();
    EXPECT_EQ(text, "");
}

TEST(LastError, BelongsToItsThread) {
    std::size_t length = 0;
    ASSERT_EQ(mnnkv_encode_gear(nullptr, 5, 0, nullptr, nullptr, 0, &length), MNNKV_INVALID_ARGUMENT);
    const std::string mine = mnnkv_last_error();
    std::string theirs;
    std::thread([&theirs] {
        mnnkv_store_create(nullptr, 12345, nullptr);
        theirs = mnnkv_last_error();
    }).join();
    EXPECT_NE(theirs.find("12345"), std::string::npos) << theirs;
    EXPECT_EQ(mnnkv_last_error(), mine);
}

TEST(LastError, IsLeftAsItIsBySuccess) {
    std::size_t length = 0;
    ASSERT_EQ(mnnkv_encode_gear(nullptr, 5, 0, nullptr, nullptr, 0, &length), MNNKV_INVALID_ARGUMENT);
    const std::string before = mnnkv_last_error();
    const bytes words = {1, 2, 3, 4};
    encoded(fp16, words);
    mnnkv_thread_trim();
    EXPECT_EQ(mnnkv_last_error(), before);
}

TEST(LastError, NamesTheValueAndTheAllowedOnes) {
    mnnkv_gear_options options = in_format(0);
    options.effort = 1234;
    slot<std::size_t> length;
    const std::uint8_t words[4] = {};
    std::uint8_t dst[64];
    ASSERT_EQ(mnnkv_encode_fp16_gear(words, 4, &options, dst, sizeof dst, length.get()), MNNKV_INVALID_ARGUMENT);
    const std::string text = mnnkv_last_error();
    EXPECT_NE(text.find("effort"), std::string::npos) << text;
    EXPECT_NE(text.find("1234"), std::string::npos) << text;
    EXPECT_NE(text.find('9'), std::string::npos) << text;
    for (const char c : text) {
        EXPECT_TRUE(std::isprint(static_cast<unsigned char>(c))) << "one line of text: " << text;
    }
}

/// Encode and decode of one type, with outputs between canaries.
class BadCodecInput : public testing::TestWithParam<word_codec> {
protected:
    BadCodecInput() : words_(256, 7), blob_(encoded(codec_, words_)) {}

    mnnkv_status encode(const mnnkv_gear_options* options) {
        return codec_.encode(words_.data(), words_.size(), options, dst_.data(), dst_.size(), length_.get());
    }

    word_codec codec_ = GetParam();
    bytes words_, blob_;
    guarded dst_{1024};
    slot<std::size_t> length_;
};

TEST_P(BadCodecInput, NullPointersAreRefused) {
    const std::uint8_t *words = words_.data(), *blob = blob_.data();
    const std::size_t n = words_.size(), m = blob_.size(), cap = dst_.size();
    expect_refused(
        {
            {bad, "src", [&] { return codec_.encode(nullptr, n, nullptr, dst_.data(), cap, length_.get()); }},
            {bad, "dst", [&] { return codec_.encode(words, n, nullptr, nullptr, cap, length_.get()); }},
            {bad, "dst_len", [&] { return codec_.encode(words, n, nullptr, dst_.data(), cap, nullptr); }},
            {bad, "dst_len", [&] { return codec_.encode(words, n, nullptr, nullptr, 0, nullptr); }},
            {bad, "src", [&] { return codec_.decode(nullptr, m, dst_.data(), cap, length_.get()); }},
            {bad, "dst", [&] { return codec_.decode(blob, m, nullptr, cap, length_.get()); }},
            {bad, "dst_len", [&] { return codec_.decode(blob, m, dst_.data(), cap, nullptr); }},
            {bad, "dst_len", [&] { return codec_.decode(blob, m, nullptr, 0, nullptr); }},
        },
        dst_, length_);
}

TEST_P(BadCodecInput, PointersToIntegersAndStructsMustBeAligned) {
    slot<std::size_t> two[2];
    mnnkv_gear_options options[2] = {in_format(0), in_format(0)};
    expect_refused(
        {
            {bad, "dst_len",
             [&] {
                 return codec_.encode(words_.data(), words_.size(), nullptr, dst_.data(), dst_.size(),
                                      misaligned(two[0].get()));
             }},
            {bad, "dst_len",
             [&] {
                 return codec_.decode(blob_.data(), blob_.size(), dst_.data(), dst_.size(),
                                      misaligned(two[0].get()));
             }},
            {bad, "options", [&] { return encode(misaligned(&options[0])); }},
        },
        dst_, length_, two[0], two[1]);
}

TEST_P(BadCodecInput, LengthsThatAreNoWordsAreRefused) {
    std::vector<std::size_t> lengths = {0, SIZE_MAX, SIZE_MAX - 1, SIZE_MAX - 3, SIZE_MAX / 2 + 1};
    if (codec_.width > 1) {
        lengths.insert(lengths.end(), {1, 3, 5, 255});
    }
    if (codec_.width > 2) {
        lengths.insert(lengths.end(), {2, 6, 254});
    }
    const auto expect_length_refused = [&](std::size_t length) {
        SCOPED_TRACE(length);
        expect_refused({{bad, "src",
                         [&] {
                             return codec_.encode(words_.data(), length, nullptr, dst_.data(), dst_.size(),
                                                  length_.get());
                         }}},
                       dst_, length_);
    };
    for (const std::size_t length : lengths) {
        expect_length_refused(length);
        EXPECT_EQ(mnnkv_gear_bound(length, codec_.dtype), 0u) << length;
    }
    // More words than a frame counts: refused before one is read.
    if (sizeof(std::size_t) > 4) {
        expect_length_refused(static_cast<std::size_t>(4261672975u * std::uint64_t{codec_.width}));
    }
    expect_refused({{bad, "src",
                     [&] { return codec_.encode(nullptr, 0, nullptr, dst_.data(), dst_.size(), length_.get()); }}},
                   dst_, length_);
}

TEST_P(BadCodecInput, OptionsOutOfRangeAreRefused) {
    const auto with = [&](const std::function<void(mnnkv_gear_options&)>& change) {
        return [this, change] {
            mnnkv_gear_options options = in_format(0);
            change(options);
            return encode(&options);
        };
    };
    const std::vector<bad_call> calls = {
        {bad, "format", with([](auto& o) { o.format = 3; })},
        {bad, "format", with([](auto& o) { o.format = UINT32_MAX; })},
        {bad, "predictors", with([](auto& o) { o.predictors = 8; })},
        {bad, "predictors", with([](auto& o) { o.predictors = MNNKV_PREDICT_RAW | 1u << 31; })},
        {bad, "effort", with([](auto& o) { o.effort = -1; })},
        {bad, "effort", with([](auto& o) { o.effort = 10; })},
        {bad, "effort", with([](auto& o) { o.effort = INT32_MIN; })},
        {bad, "effort", with([](auto& o) { o.effort = INT32_MAX; })},
    };
    expect_refused(calls, dst_, length_);
}

TEST_P(BadCodecInput, ZeroesInOptionsAreTheDefaults) {
    SEEDED_DICE(random, 501);
    const bytes words = some_words(random, codec_.width, 2000);
    const bytes expected = encoded(codec_, words);
    mnnkv_gear_options options = in_format(0);
    EXPECT_TRUE(same(encoded(codec_, words, &options), expected)) << "NULL and all zeros";
    options.effort = 5;
    EXPECT_TRUE(same(encoded(codec_, words, &options), expected)) << "effort 0 is 5";
    options.format = codec_.default_format;
    EXPECT_TRUE(same(encoded(codec_, words, &options), expected)) << "format 0";
    options.predictors = 7;
    EXPECT_TRUE(same(encoded(codec_, words, &options), expected)) << "predictors 0 are all";
}

INSTANTIATE_TEST_SUITE_P(AllTypes, BadCodecInput, testing::ValuesIn(all_codecs),
                         [](const auto& tested) { return std::string(tested.param.name); });

TEST(Bound, IsZeroWhereNothingCanBeEncoded) {
    for (const std::uint32_t dtype : {0u, 5u, 6u, 7u, UINT32_MAX}) {
        EXPECT_EQ(mnnkv_gear_bound(256, dtype), 0u) << "dtype " << dtype;
    }
    for (const word_codec& codec : all_codecs) {
        EXPECT_GT(mnnkv_gear_bound(256, codec.dtype), 256u) << codec.name;
    }
}

}  // namespace
