// The rotation hint: smaller blobs, exact words, and errors that name the field.

#include "cache_words.hpp"
#include "edge.hpp"
#include "refusal.hpp"

namespace {

using namespace support;

/// The flag of docs/format.md for a blob with angles.
bool has_angles(const bytes& blob) { return blob.size() > 36 && blob[11] == 1 && blob[32] == 3; }

const char real_keys[] = "kv/l0_k_h2_t1088_d64.f16";

TEST(RopeHint, ShrinksRealKeysOfAFirstLayer) {
    const bytes keys = read_file(real_keys);
    ASSERT_EQ(keys.size(), 2u * 1088 * 64 * 2);
    const mnnkv_gear_options plain = in_v2(64), hint = turned_by(MNNKV_ROPE_HALF, 64, 1088);
    const bytes blob = round_trip(fp16, keys, &hint);
    EXPECT_TRUE(has_angles(blob));
    EXPECT_GT(static_cast<double>(keys.size()) / static_cast<double>(blob.size()), 3.3);
    EXPECT_LT(2 * blob.size(), round_trip(fp16, keys, &plain).size());
    for (const std::int32_t effort : {1, 2, 3, 4, 5, 6, 7, 8, 9}) {
        SCOPED_TRACE(effort);
        mnnkv_gear_options options = hint;
        options.effort = effort;
        round_trip(fp16, keys, &options);
    }
}

TEST(RopeHint, HasOneMeaningInEveryForm) {
    // Zeros and the numbers that they stand for give the same blobs.
    const bytes keys = read_file(real_keys);
    mnnkv_gear_options options = turned_by(MNNKV_ROPE_HALF, 64, 1088);
    const bytes expected = encoded(fp16, keys, &options);
    options.rope_dims = 64;
    options.rope_theta = 10000;
    EXPECT_TRUE(same(encoded(fp16, keys, &options), expected));
    const std::vector<std::uint32_t> positions = positions_from(0, 1088);
    options.rope_positions = positions.data();
    EXPECT_TRUE(same(encoded(fp16, keys, &options), expected)) << "positions that count";
    options.rope_first_position = 12345;
    EXPECT_TRUE(same(encoded(fp16, keys, &options), expected)) << "not read with rope_positions";
    // Given frequencies are part of the blob, which is a little larger.
    const std::vector<float> frequencies = frequencies_of(10000, 64);
    options.rope_inv_freq = frequencies.data();
    const bytes given = round_trip(fp16, keys, &options);
    EXPECT_TRUE(has_angles(given));
    EXPECT_NEAR(static_cast<double>(given.size()), static_cast<double>(expected.size()), 0.01 * 4 * 1088 * 64);
    options.rope_theta = not_a_number;
    EXPECT_TRUE(same(encoded(fp16, keys, &options), given)) << "not read with rope_inv_freq";
}

TEST(RopeHint, IsNotReadWithoutAPairing) {
    SEEDED_DICE(random, 1001);
    for (const word_codec& codec : all_codecs) {
        const bytes words = some_words(random, codec.width, 640);
        mnnkv_gear_options options = in_v2(64);
        const bytes expected = encoded(codec, words, &options);
        std::memset(&options.rope_dims, 0xEE,
                    sizeof options - offsetof(mnnkv_gear_options, rope_dims));
        EXPECT_TRUE(same(encoded(codec, words, &options), expected)) << codec.name;
    }
}

TEST(RopeHint, WithTheWrongAnglesIsStillExact) {
    const bytes keys = read_file(real_keys);
    const mnnkv_gear_options plain = in_v2(64);
    const std::size_t without = encoded(fp16, keys, &plain).size();
    const auto size_with = [&](const std::function<void(mnnkv_gear_options&)>& change) {
        mnnkv_gear_options options = turned_by(MNNKV_ROPE_HALF, 64, 1088);
        change(options);
        return round_trip(fp16, keys, &options).size();
    };
    const std::size_t right = size_with([](mnnkv_gear_options&) {});
    const std::size_t wrong[] = {
        size_with([](auto& o) { o.rope_pairing = MNNKV_ROPE_ADJACENT; }),
        size_with([](auto& o) { o.rope_theta = 500000; }),
        size_with([](auto& o) { o.rope_dims = 32; }),
        size_with([](auto& o) { o.rope_tokens = 17; }),
        size_with([](auto& o) { o.head_dim = 128; }),
    };
    for (const std::size_t size : wrong) {
        EXPECT_GT(size, right * 3 / 2);
        EXPECT_LT(size, without * 11 / 10) << "a useless hint costs little";
    }
    const bytes values = read_file("kv/l1_v_h2_t1088_d64.f16");
    const mnnkv_gear_options hint = turned_by(MNNKV_ROPE_HALF, 64, 1088);
    EXPECT_LT(round_trip(fp16, values, &hint).size(), encoded(fp16, values, &plain).size() * 11 / 10);
}

TEST(RopeHint, OfAPartOfTheTokensWorksToo) {
    const bytes keys = read_file(real_keys);
    const bytes head(keys.begin(), keys.begin() + 1088 * 128);
    mnnkv_gear_options options = turned_by(MNNKV_ROPE_HALF, 64, 0);
    const bytes whole = round_trip(fp16, head, &options);
    EXPECT_TRUE(has_angles(whole)) << "0 tokens: all rows are one head";
    options.rope_tokens = 1088;
    EXPECT_TRUE(same(encoded(fp16, head, &options), whole));
    // Tokens from 300 on, at the positions they had.
    const bytes cold(head.begin() + 300 * 128, head.begin() + 812 * 128);
    options.rope_tokens = 512;
    options.rope_first_position = 300;
    const bytes blob = round_trip(fp16, cold, &options);
    EXPECT_TRUE(has_angles(blob));
    const mnnkv_gear_options plain = in_v2(64);
    EXPECT_LT(blob.size() * 3, encoded(fp16, cold, &plain).size() * 2);
}

/// Keys rotated by this suite, in each type that v2 rotates.
class RopeKeys : public testing::TestWithParam<word_codec> {
protected:
    /// The blob has angles and is much smaller than without the hint.
    void expect_gain(const bytes& keys, const mnnkv_gear_options& hint) {
        const mnnkv_gear_options plain = in_v2(hint.head_dim);
        const bytes blob = round_trip(codec_, keys, &hint);
        EXPECT_TRUE(has_angles(blob));
        EXPECT_LT(blob.size() * 4, encoded(codec_, keys, &plain).size() * 3);
    }

    const word_codec codec_ = GetParam();
    const std::uint32_t tokens_ = 400, dim_ = 48;
};

TEST_P(RopeKeys, ArePairedAsTheHintSays) {
    SEEDED_DICE(random, 1002);
    for (const std::uint32_t pairing : {MNNKV_ROPE_HALF, MNNKV_ROPE_ADJACENT}) {
        SCOPED_TRACE(pairing);
        const turning how = {pairing, frequencies_of(10000, dim_), positions_from(0, tokens_)};
        expect_gain(turned_keys(random, codec_, 2, dim_, 40, how), turned_by(pairing, dim_, tokens_));
    }
}

TEST_P(RopeKeys, MayBeTurnedInPart) {
    SEEDED_DICE(random, 1003);
    for (const std::uint32_t pairing : {MNNKV_ROPE_HALF, MNNKV_ROPE_ADJACENT}) {
        SCOPED_TRACE(pairing);
        const turning how = {pairing, frequencies_of(10000, 20), positions_from(0, tokens_)};
        mnnkv_gear_options hint = turned_by(pairing, dim_, tokens_);
        hint.rope_dims = 20;
        expect_gain(turned_keys(random, codec_, 2, dim_, 40, how), hint);
    }
}

TEST_P(RopeKeys, HaveTheThetaOfTheirModel) {
    SEEDED_DICE(random, 1004);
    for (const float theta : {1.0f, 500000.0f, 1e30f}) {
        SCOPED_TRACE(theta);
        const turning how = {MNNKV_ROPE_HALF, frequencies_of(static_cast<double>(theta), dim_),
                             positions_from(70, tokens_)};
        mnnkv_gear_options hint = turned_by(MNNKV_ROPE_HALF, dim_, tokens_);
        hint.rope_theta = theta;
        hint.rope_first_position = 70;
        expect_gain(turned_keys(random, codec_, 1, dim_, 40, how), hint);
    }
}

TEST_P(RopeKeys, HaveTheFrequenciesOfTheirModel) {
    // Frequencies of no theta: scaled, and some of them 0.
    SEEDED_DICE(random, 1005);
    turning how = {MNNKV_ROPE_HALF, frequencies_of(10000, dim_), positions_from(0, tokens_)};
    for (std::size_t i = 0; i < how.frequencies.size(); ++i) {
        how.frequencies[i] = i > 20 ? 0 : how.frequencies[i] * (0.3f + random.unit());
    }
    const bytes keys = turned_keys(random, codec_, 2, dim_, 40, how);
    mnnkv_gear_options hint = turned_by(MNNKV_ROPE_HALF, dim_, tokens_);
    const std::size_t by_theta = round_trip(codec_, keys, &hint).size();
    hint.rope_inv_freq = how.frequencies.data();
    expect_gain(keys, hint);
    EXPECT_LT(encoded(codec_, keys, &hint).size(), by_theta);
}

TEST_P(RopeKeys, HaveThePositionsOfTheirTokens) {
    // A cache with gaps, as after an eviction; then positions in any order, the largest possible one among them.
    SEEDED_DICE(random, 1006);
    turning how = {MNNKV_ROPE_ADJACENT, frequencies_of(10000, dim_), {}};
    for (std::uint32_t position = 0; how.positions.size() < tokens_; position += random.one_in(10) ? 500 : 1) {
        how.positions.push_back(position);
    }
    const bytes keys = turned_keys(random, codec_, 2, dim_, 40, how);
    mnnkv_gear_options hint = turned_by(MNNKV_ROPE_ADJACENT, dim_, tokens_);
    const std::size_t counting = round_trip(codec_, keys, &hint).size();
    hint.rope_positions = how.positions.data();
    expect_gain(keys, hint);
    EXPECT_LT(encoded(codec_, keys, &hint).size(), counting);

    std::vector<std::uint32_t> odd;
    for (std::uint32_t t = 0; t < tokens_; ++t) {
        odd.push_back(t % 50 == 0 ? UINT32_MAX - t : random.bits());
    }
    hint.rope_positions = odd.data();
    round_trip(codec_, keys, &hint);
}

TEST_P(RopeKeys, PositionsMayCountPastTheLargest) {
    SEEDED_DICE(random, 1007);
    const bytes keys = cache_words(random, codec_, 1, tokens_, dim_, 40);
    mnnkv_gear_options hint = turned_by(MNNKV_ROPE_HALF, dim_, tokens_);
    hint.rope_first_position = UINT32_MAX - 100;
    round_trip(codec_, keys, &hint);
}

TEST_P(RopeKeys, MayHoldAnyBits) {
    // NaNs and infinities go through the arithmetic of the rotation and are restored bit for bit.
    SEEDED_DICE(random, 1008);
    const turning how = {MNNKV_ROPE_HALF, frequencies_of(10000, dim_), positions_from(0, tokens_)};
    bytes keys = turned_keys(random, codec_, 1, dim_, 40, how);
    for (std::size_t row = 0; row < tokens_; row += 3) {
        const std::uint32_t odd[] = {0x7FC0, 0xFF80, 0x7F80, 0xFFFF, 0x7FBF, 0x7C01, 0xFC00, 0x0001, 0x8000};
        const std::uint32_t word = odd[random.below(9)];
        const std::size_t at = (row * dim_ + random.below(dim_)) * codec_.width + codec_.width - 2;
        keys[at] = static_cast<std::uint8_t>(word);
        keys[at + 1] = static_cast<std::uint8_t>(word >> 8);
    }
    const bytes noise = random.noise(tokens_ * dim_ * codec_.width);
    for (const std::int32_t effort : {1, 5, 9}) {
        mnnkv_gear_options hint = turned_by(MNNKV_ROPE_HALF, dim_, tokens_);
        hint.effort = effort;
        round_trip(codec_, keys, &hint);
        round_trip(codec_, noise, &hint);
    }
}

TEST_P(RopeKeys, TheArraysAreReadToTheirEndsAndNoFurther) {
    SEEDED_DICE(random, 1009);
    const turning how = {MNNKV_ROPE_HALF, frequencies_of(10000, dim_), positions_from(7, tokens_)};
    const bytes keys = turned_keys(random, codec_, 2, dim_, 40, how);
    edge for_frequencies(4096), for_positions(4096);
    const auto image = [](const void* from, std::size_t size) {
        const std::uint8_t* const at = static_cast<const std::uint8_t*>(from);
        return bytes(at, at + size);
    };
    const void* const frequencies =
        for_frequencies.put(image(how.frequencies.data(), how.frequencies.size() * sizeof(float)));
    const void* const positions = for_positions.put(image(how.positions.data(), how.positions.size() * 4));
    mnnkv_gear_options hint = turned_by(MNNKV_ROPE_HALF, dim_, tokens_);
    hint.rope_inv_freq = static_cast<const float*>(frequencies);
    hint.rope_positions = static_cast<const std::uint32_t*>(positions);
    expect_gain(keys, hint);
}

INSTANTIATE_TEST_SUITE_P(FloatTypes, RopeKeys, testing::ValuesIn(float_codecs),
                         [](const auto& tested) { return std::string(tested.param.name); });

/// Hints that do not fit 2 heads of 40 tokens of 16 channels.
class BadRopeHint : public testing::TestWithParam<word_codec> {
protected:
    static constexpr std::uint32_t tokens = 40, dim = 16;

    BadRopeHint() : words_(2 * tokens * dim * codec_.width, 5), positions_(positions_from(0, tokens)) {}

    /// The call with a good hint and one change.
    std::function<mnnkv_status()> with(const std::function<void(mnnkv_gear_options&)>& change) {
        return [this, change] {
            mnnkv_gear_options options = turned_by(MNNKV_ROPE_HALF, dim, tokens);
            change(options);
            return codec_.encode(words_.data(), words_.size(), &options, dst_.data(), dst_.size(), length_.get());
        };
    }

    const word_codec codec_ = GetParam();
    const bytes words_;
    const std::vector<float> frequencies_ = frequencies_of(10000, dim);
    const std::vector<std::uint32_t> positions_;
    guarded dst_{8192};
    slot<std::size_t> length_;
};

TEST_P(BadRopeHint, NamesTheFieldThatDoesNotFit) {
    std::vector<bad_call> calls = {
        {bad, "rope_pairing", with([](auto& o) { o.rope_pairing = 3; })},
        {bad, "rope_pairing", with([](auto& o) { o.rope_pairing = UINT32_MAX; })},
        {bad, "head_dim", with([](auto& o) { o.head_dim = 0; })},
        {bad, "rope_dims", with([](auto& o) { o.rope_dims = 1; })},
        {bad, "rope_dims", with([](auto& o) { o.rope_dims = 15; })},
        {bad, "rope_dims", with([](auto& o) { o.rope_dims = 17; })},
        {bad, "rope_dims", with([](auto& o) { o.rope_dims = 18; })},
        {bad, "rope_dims", with([](auto& o) { o.rope_dims = UINT32_MAX; })},
        {bad, "rope_dims", with([](auto& o) { o.head_dim = 5; })},
        {bad, "rope_tokens", with([](auto& o) { o.rope_tokens = 39; })},
        {bad, "rope_tokens", with([](auto& o) { o.rope_tokens = 81; })},
        {bad, "rope_tokens", with([](auto& o) { o.rope_tokens = UINT32_MAX; })},
        {bad, "rope_reserved", with([](auto& o) { o.rope_reserved = 1; })},
        {bad, "src_len", with([](auto& o) { o.head_dim = 14; })},
        {bad, "rope_inv_freq", with([&](auto& o) { o.rope_inv_freq = misaligned(frequencies_.data()); })},
        {bad, "rope_positions", with([&](auto& o) { o.rope_positions = misaligned(positions_.data()); })},
        {bad, "rope_tokens", with([&](auto& o) {
             o.rope_tokens = 0;
             o.rope_positions = positions_.data();
         })},
        // Counts above the arrays' sizes are refused before the arrays are read.
        {bad, "rope_dims", with([&](auto& o) {
             o.rope_dims = UINT32_MAX - 1;
             o.rope_inv_freq = frequencies_.data();
         })},
        {bad, "rope_tokens", with([&](auto& o) {
             o.rope_tokens = UINT32_MAX;
             o.rope_positions = positions_.data();
         })},
    };
    for (const float theta : {0.5f, -10000.0f, 1.1e30f, infinity, -infinity, not_a_number}) {
        calls.push_back({bad, "rope_theta", with([=](auto& o) { o.rope_theta = theta; })});
    }
    for (const float frequency : {-0.001f, 1.1e6f, infinity, -infinity, not_a_number}) {
        for (const std::size_t at : {std::size_t{0}, std::size_t{7}}) {
            calls.push_back({bad, "rope_inv_freq[" + std::to_string(at) + "]", [=] {
                                 std::vector<float> frequencies = frequencies_;
                                 frequencies[at] = frequency;
                                 return with([&](auto& o) { o.rope_inv_freq = frequencies.data(); })();
                             }});
        }
    }
    expect_refused(calls, dst_, length_);
    EXPECT_TRUE(ok(with([](auto&) {})())) << "but for the changes it is a good hint";
    EXPECT_TRUE(ok(with([](auto& o) { o.rope_theta = 1; })()));
    EXPECT_TRUE(ok(with([](auto& o) { o.rope_dims = 2; })()));
    EXPECT_TRUE(ok(with([](auto& o) { o.rope_tokens = 80; })()));
}

TEST_P(BadRopeHint, WithoutAWholeRowIsRefused) {
    mnnkv_gear_options options = turned_by(MNNKV_ROPE_HALF, dim, 0);
    for (const std::size_t elements : {std::size_t{1}, std::size_t{15}, std::size_t{17}}) {
        SCOPED_TRACE(elements);
        expect_refused({{bad, elements < dim ? "head_dim" : "src_len",
                         [&] {
                             return codec_.encode(words_.data(), elements * codec_.width, &options, dst_.data(),
                                                  dst_.size(), length_.get());
                         }}},
                       dst_, length_);
    }
}

INSTANTIATE_TEST_SUITE_P(FloatTypes, BadRopeHint, testing::ValuesIn(float_codecs),
                         [](const auto& tested) { return std::string(tested.param.name); });

TEST(BadRope, BytesAreNotRotated) {
    const bytes words(40 * 16, 5);
    guarded dst(2048);
    slot<std::size_t> length;
    const mnnkv_gear_options options = turned_by(MNNKV_ROPE_HALF, 16, 40);
    expect_refused({{bad, "INT8",
                     [&] {
                         return int8.encode(words.data(), words.size(), &options, dst.data(), dst.size(), length.get());
                     }}},
                   dst, length);
}

}  // namespace
