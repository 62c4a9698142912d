// Hostile blobs of format v2. Its two checksums catch accidents; here the outer one is corrected after every change, as
// an attacker would do. Blobs end where readable memory ends.

#include "cache_words.hpp"
#include "edge.hpp"
#include "refusal.hpp"
#include "xxh3.hpp"

namespace {

using namespace support;

struct specimen {
    std::string name;
    word_codec codec;
    bytes words, blob;
};

/// Offsets in a blob.
constexpr std::size_t version_at = 8, type_at = 10, mode_at = 11, row_at = 12, length_at = 16, body_at = 32;

/// Small blobs with every feature of the format.
std::vector<specimen> specimens() {
    std::vector<specimen> out;
    dice random(1101);
    std::size_t stored = 0, plain = 0, repeats = 0, angles = 0;
    const auto add = [&](const char* what, const word_codec& codec, bytes words, const mnnkv_gear_options& options) {
        bytes blob = encoded(codec, words, &options);
        if (blob.size() < 37) {
            ADD_FAILURE() << what << " " << codec.name << ": a blob of " << blob.size() << " bytes";
            return;
        }
        stored += blob[mode_at] == 0;
        plain += blob[mode_at] == 1 && blob[body_at] == 0;
        repeats += blob[mode_at] == 1 && blob[body_at] == 1;
        angles += blob[mode_at] == 1 && blob[body_at] == 3;
        out.push_back({std::string(what) + " " + codec.name, codec, std::move(words), std::move(blob)});
    };
    for (const word_codec& codec : all_codecs) {
        add("one word", codec, random.noise(codec.width), in_v2());
        add("noise", codec, random.noise(20 * codec.width), in_v2(5));
        for (const std::int32_t effort : {1, 5}) {
            mnnkv_gear_options options = in_v2();
            options.effort = effort;
            add("one value", codec, bytes(300 * codec.width, 7), options);
            options.head_dim = 6;
            add("rows", codec, cache_words(random, codec, 1, 48, 6, 48), options);
        }
        mnnkv_gear_options hard = in_v2(8);
        hard.effort = 9;
        bytes tailed = cache_words(random, codec, 1, 64, 8, 10);
        tailed.resize(tailed.size() + 3 * codec.width);
        add("repeats and a tail", codec, tailed, hard);
        if (codec.width > 1) {
            const turning how = {MNNKV_ROPE_ADJACENT, frequencies_of(10000, 8), positions_from(5, 32)};
            const bytes keys = turned_keys(random, codec, 2, 8, 5, how);
            mnnkv_gear_options hint = turned_by(MNNKV_ROPE_ADJACENT, 8, 32);
            hint.rope_first_position = 5;
            add("angles", codec, keys, hint);
            hint.rope_inv_freq = how.frequencies.data();
            add("given angles", codec, keys, hint);
        }
    }
    EXPECT_GT(stored, 3u);
    EXPECT_GT(plain, 3u);
    EXPECT_GT(repeats, 2u);
    EXPECT_EQ(angles, 6u);
    return out;
}

/// The blob with a correct checksum.
bytes resealed(bytes blob) {
    const std::uint64_t sum = xxh3::digest(blob.data(), blob.size() - 4);
    for (std::size_t i = 0; i < 4; ++i) {
        blob[blob.size() - 4 + i] = static_cast<std::uint8_t>(sum >> 8 * i);
    }
    return blob;
}

void put_number(bytes& blob, std::size_t at, std::uint64_t value, std::size_t size) {
    for (std::size_t i = 0; i < size; ++i) {
        blob[at + i] = static_cast<std::uint8_t>(value >> 8 * i);
    }
}

/// The statuses of an unreadable blob.
bool is_refusal(mnnkv_status status) { return status == MNNKV_CORRUPT || status == MNNKV_UNSUPPORTED; }

TEST(HostileV2, SpecimensAreSound) {
    for (const specimen& s : specimens()) {
        SCOPED_TRACE(s.name);
        EXPECT_TRUE(same(decoded(s.codec, s.blob, s.words.size()), s.words));
        EXPECT_TRUE(same(resealed(s.blob), s.blob)) << "the suite's checksum is the library's";
    }
}

TEST(HostileV2, EveryTruncationIsRefused) {
    edge memory(1 << 16);
    for (const specimen& s : specimens()) {
        SCOPED_TRACE(s.name);
        guarded words(s.words.size());
        slot<std::size_t> length;
        for (std::size_t cut = 0; cut < s.blob.size() && !HasFailure(); ++cut) {
            SCOPED_TRACE(testing::Message() << cut << " of " << s.blob.size() << " bytes");
            const std::uint8_t* const blob = memory.put(s.blob, cut);
            const mnnkv_status status = s.codec.decode(blob, cut, words.data(), words.size(), length.get());
            // Fewer than eight bytes are read as v1, which INT8 does not have.
            const bool is_v1_int8 = s.codec.width == 1 && cut < 8;
            EXPECT_TRUE(is_v1_int8 ? is_refusal(status) : status == MNNKV_CORRUPT) << mnnkv_status_name(status);
            EXPECT_EQ(s.codec.decode(blob, cut, nullptr, 0, length.get()), status) << "without a buffer";
            EXPECT_STRNE(mnnkv_last_error(), "");
        }
        EXPECT_TRUE(words.untouched());
        EXPECT_TRUE(length.untouched());
    }
}

TEST(HostileV2, EveryFlippedBitIsRefused) {
    edge memory(1 << 16);
    for (const specimen& s : specimens()) {
        SCOPED_TRACE(s.name);
        bytes blob = s.blob;
        guarded words(s.words.size(), 1);
        slot<std::size_t> length;
        for (std::size_t bit = 0; bit < 8 * blob.size() && !HasFailure(); ++bit) {
            SCOPED_TRACE(testing::Message() << "bit " << bit % 8 << " of byte " << bit / 8);
            const auto flip = [&] { blob[bit / 8] = static_cast<std::uint8_t>(blob[bit / 8] ^ 1 << bit % 8); };
            flip();
            const std::uint8_t* const at = memory.put(blob);
            const mnnkv_status status = s.codec.decode(at, blob.size(), words.data(), words.size(), length.get());
            // Another version may be that of a later library.
            const bool may_be_foreign = bit / 8 == version_at || (s.codec.width == 1 && bit / 8 < version_at);
            EXPECT_TRUE(may_be_foreign ? is_refusal(status) : status == MNNKV_CORRUPT) << mnnkv_status_name(status);
            EXPECT_EQ(s.codec.decode(at, blob.size(), nullptr, 0, length.get()), status) << "without a buffer";
            flip();
        }
        EXPECT_TRUE(words.untouched());
        EXPECT_TRUE(length.untouched());
    }
}

TEST(HostileV2, BytesBehindTheBlobAreCorrupt) {
    for (const specimen& s : specimens()) {
        SCOPED_TRACE(s.name);
        bytes longer = s.blob;
        longer.push_back(0);
        guarded words(s.words.size());
        slot<std::size_t> length;
        expect_refused({{MNNKV_CORRUPT, "checksum",
                         [&] {
                             return s.codec.decode(longer.data(), longer.size(), words.data(), words.size(),
                                                   length.get());
                         }}},
                       words, length);
        longer = s.blob;
        longer.insert(longer.end() - 4, 0);
        longer = resealed(longer);
        EXPECT_TRUE(answers(s.codec.decode(longer.data(), longer.size(), words.data(), words.size(), length.get()),
                            MNNKV_CORRUPT));
        EXPECT_TRUE(words.holds(words.contents())) << "the words are undefined, and nothing beside them is written";
        EXPECT_TRUE(length.untouched());
    }
}

TEST(HostileV2, HeadersThatCannotBeAreRefused) {
    for (const specimen& s : specimens()) {
        SCOPED_TRACE(s.name);
        guarded words(s.words.size());
        slot<std::size_t> length;
        const auto expect = [&](const char* what, mnnkv_status expected, std::size_t at, std::uint64_t value,
                                std::size_t size) {
            SCOPED_TRACE(what);
            bytes blob = s.blob;
            put_number(blob, at, value, size);
            blob = resealed(blob);
            EXPECT_TRUE(answers(s.codec.decode(blob.data(), blob.size(), words.data(), words.size(), length.get()),
                                expected));
            EXPECT_TRUE(words.holds(words.contents())) << "nothing beside the words is written";
        };
        expect("version 1", MNNKV_UNSUPPORTED, version_at, 1, 1);
        expect("version 3", MNNKV_UNSUPPORTED, version_at, 3, 1);
        expect("no type", MNNKV_UNSUPPORTED, type_at, 0, 1);
        expect("an unknown type", MNNKV_UNSUPPORTED, type_at, 5, 1);
        expect("an unknown mode", MNNKV_UNSUPPORTED, mode_at, 77, 1);
        expect("rows of nothing", MNNKV_CORRUPT, row_at, 0, 4);
        expect("no words", MNNKV_CORRUPT, length_at, 0, 8);
        EXPECT_TRUE(length.untouched());
        if (s.codec.width > 1) {
            expect("half a word", MNNKV_CORRUPT, length_at, s.words.size() - 1, 8);
            EXPECT_TRUE(length.untouched());
        }
        if (s.blob[mode_at] == 1) {
            expect("unknown flags", MNNKV_UNSUPPORTED, body_at, 0x80, 1);
            expect("angles without repeats", MNNKV_UNSUPPORTED, body_at, 2, 1);
            expect("rows longer than all words", MNNKV_CORRUPT, row_at, UINT32_MAX, 4);
        }
        if (s.words.size() > s.codec.width) {
            expect("fewer words", MNNKV_CORRUPT, length_at, s.words.size() - s.codec.width, 8);
        }
        expect("another digest", MNNKV_CORRUPT, 24, 12345, 8);
        EXPECT_TRUE(length.untouched());
        // A later revision is read where it uses nothing new.
        bytes later = s.blob;
        later[version_at + 1] = 200;
        EXPECT_TRUE(same(decoded(s.codec, resealed(later), s.words.size()), s.words));
    }
}

TEST(HostileV2, AnnouncingTerabytesCostsNothing) {
    for (const specimen& s : specimens()) {
        SCOPED_TRACE(s.name);
        guarded words(s.words.size());
        for (const std::uint64_t announced : {std::uint64_t{s.words.size()} + s.codec.width, std::uint64_t{1} << 31,
                                              std::uint64_t{1} << 40, std::uint64_t{1} << 62}) {
            bytes blob = s.blob;
            put_number(blob, length_at, announced, 8);
            blob = resealed(blob);
            std::size_t length = 0;
            const mnnkv_status status =
                s.codec.decode(blob.data(), blob.size(), words.data(), words.size(), &length);
            if (announced <= SIZE_MAX) {
                EXPECT_TRUE(answers(status, MNNKV_BUFFER_TOO_SMALL));
                EXPECT_EQ(length, announced);
            } else {
                EXPECT_TRUE(is_refusal(status)) << mnnkv_status_name(status);
            }
            EXPECT_TRUE(words.untouched());
        }
    }
}

/// Decodes a blob with a correct checksum and any body. The result may be any failure, or words that match the digest;
/// dst has room for far more than the original words.
void survive(const specimen& s, const bytes& blob, edge& memory, guarded& words) {
    std::size_t length = 0;
    const mnnkv_status status =
        s.codec.decode(memory.put(blob), blob.size(), words.data(), words.size(), &length);
    ASSERT_NE(status, MNNKV_INTERNAL) << mnnkv_last_error();
    if (status == MNNKV_OK) {
        // Success needs words that match the digest.
        ASSERT_LE(length, words.size());
        if (length > 16) {
            ASSERT_EQ(xxh3::u64_at(&blob[24]), xxh3::digest(words.data(), length));
        }
    }
    // A late failure leaves as many words undefined as the header announces.
    const std::uint64_t announced = xxh3::u64_at(&blob[length_at]);
    if (announced <= words.size()) {
        std::fill(words.data(), words.data() + announced, std::uint8_t{0xC7});
    }
    ASSERT_TRUE(words.untouched()) << mnnkv_status_name(status);
}

TEST(HostileV2, EveryChangedByteUnderASoundChecksumIsSurvived) {
    edge memory(1 << 16);
    guarded words(1 << 16);
    for (const specimen& s : specimens()) {
        SCOPED_TRACE(s.name);
        for (std::size_t at = version_at; at + 4 < s.blob.size() && !HasFailure(); ++at) {
            for (const int change : {1, 2, 4, 8, 16, 32, 64, 128, 255}) {
                SCOPED_TRACE(testing::Message() << "byte " << at << " of " << s.blob.size() << " ^ " << change);
                bytes blob = s.blob;
                blob[at] = static_cast<std::uint8_t>(blob[at] ^ change);
                survive(s, resealed(blob), memory, words);
            }
        }
    }
}

TEST(HostileV2, MutilationsUnderASoundChecksumAreSurvived) {
    SEEDED_DICE(random, 1102);
    edge memory(1 << 16);
    guarded words(1 << 16);
    const std::vector<specimen> all = specimens();
    for (int i = 0; i < 20000 && !HasFailure(); ++i) {
        const specimen& s = all[random.below(static_cast<std::uint32_t>(all.size()))];
        SCOPED_TRACE(testing::Message() << "case " << i << " of " << s.name);
        bytes blob(s.blob.begin(), s.blob.end() - 4);
        const auto somewhere = [&] {
            const std::uint32_t body = static_cast<std::uint32_t>(blob.size() - body_at);
            return blob.begin() + static_cast<std::ptrdiff_t>(body_at + (body > 0 ? random.below(body) : 0));
        };
        for (std::uint32_t edit = random.between(1, 4); edit > 0 && blob.size() > body_at; --edit) {
            switch (random.below(6)) {
                case 0: *somewhere() = random.byte(); break;
                case 1: *somewhere() = 0xFF; break;
                case 2: blob.erase(somewhere()); break;
                case 3: blob.insert(somewhere(), random.byte()); break;
                case 4: blob.erase(somewhere(), blob.end()); break;
                default:  // the body of another blob from here on
                    const specimen& other = all[random.below(static_cast<std::uint32_t>(all.size()))];
                    blob.erase(somewhere(), blob.end());
                    blob.insert(blob.end(), other.blob.begin() + body_at, other.blob.end() - 4);
                    break;
            }
        }
        if (random.one_in(8)) {
            put_number(blob, row_at, random.between(1, 40), 4);
        }
        if (random.one_in(8)) {
            put_number(blob, length_at, random.between(1, 4000) * s.codec.width, 8);
        }
        blob.resize(blob.size() + 4);
        survive(s, resealed(blob), memory, words);
    }
}

TEST(HostileV2, TheThreadWorksOnAfterwards) {
    edge memory(1 << 16);
    guarded words(1 << 16);
    for (const specimen& s : specimens()) {
        SCOPED_TRACE(s.name);
        bytes blob = s.blob;
        blob[blob.size() / 2] ^= 0x10;
        std::size_t length = 0;
        EXPECT_NE(s.codec.decode(blob.data(), blob.size(), words.data(), words.size(), &length), MNNKV_OK);
        survive(s, resealed(blob), memory, words);
        EXPECT_TRUE(same(decoded(s.codec, s.blob, s.words.size()), s.words));
    }
}

}  // namespace
