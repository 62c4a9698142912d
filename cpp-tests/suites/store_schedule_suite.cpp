// Random schedules of store calls: no token loses a byte, and the counters are right.

#include "store_host.hpp"

namespace {

using namespace support;

struct scenario {
    const char* name;
    pack_mode mode;
    bool flash;
};

const scenario scenarios[] = {
    {"x86_avx512", pack_modes[2], true},       {"x86_bf16_no_flash", pack_modes[3], false},
    {"arm64_fp16", pack_modes[7], true},       {"arm64_fp16_no_flash", pack_modes[7], false},
    {"armv86_bf16", pack_modes[11], true},     {"sme2_f16_no_flash", pack_modes[14], false},
};

void PrintTo(const scenario& s, std::ostream* out) { *out << s.name; }

class Schedule : public testing::TestWithParam<scenario> {
protected:
    static mnnkv_layout layout_for(std::uint32_t max_tokens) {
        mnnkv_layout layout = make_layout(GetParam().mode, 2, 20, max_tokens, GetParam().flash ? 64 : max_tokens);
        layout.key_head_stride = packed_model(layout).key_head_bytes() + 24;
        return layout;
    }
};

/// Counters that only grow, and amounts that must agree with each other.
void check_counters(const mnnkv_store_statistics& before, const mnnkv_store_statistics& now) {
    EXPECT_EQ(now.reserved, 0u);
    EXPECT_GE(now.submitted_blocks, before.submitted_blocks);
    EXPECT_GE(now.no_gain_blocks, before.no_gain_blocks);
    EXPECT_GE(now.stale_blocks, before.stale_blocks);
    EXPECT_GE(now.restored_blocks, before.restored_blocks);
    EXPECT_GE(now.encode_ns, before.encode_ns);
    EXPECT_GE(now.decode_ns, before.decode_ns);
    EXPECT_GE(now.decoded_bytes, before.decoded_bytes);
    EXPECT_GE(now.decoded_bytes, now.restored_bytes) << "what was written back was decoded";
    EXPECT_LE(now.resident_blocks + now.released_blocks + now.no_gain_blocks, now.submitted_blocks);
    EXPECT_LE(now.released_raw_bytes, now.raw_bytes);
    EXPECT_EQ(now.released_raw_bytes == 0, now.released_blocks == 0);
    EXPECT_EQ(now.raw_bytes == 0, now.resident_blocks + now.released_blocks == 0);
    EXPECT_EQ(now.raw_bytes == 0, now.compressed_bytes == 0);
}

/// One random call on a layer, with its effects on cache and counters.
void step(mnnkv::store& store, store_host& host, dice& random, mnnkv_layout (*layout_for)(std::uint32_t)) {
    const mnnkv_store_statistics before = stats_of(store);
    mnnkv_store_statistics expected = before;  // of the counters whose change is known
    const std::uint32_t length = host.length();
    const std::uint64_t released_before = host.released_raw_bytes();
    const std::uint32_t what = random.below(20);
    if (what < 5) {
        SCOPED_TRACE("append");
        const std::uint32_t count = random.between(1, 40);
        if (count > host.room()) {
            host.move_to(layout_for(length + count + random.below(64)));
        }
        host.append(count, random.one_in(4) ? content::noise : content::compressible);
    } else if (what < 10 && length > 0) {
        const std::uint32_t begin = random.below(length);
        const std::uint32_t count = random.between(1, std::min(length - begin, 64u));
        SCOPED_TRACE(testing::Message() << "submit " << count << " tokens from " << begin);
        const bool released = host.any_released(begin, count), submitted = host.any_submitted(begin, count);
        const mnnkv_status status = host.submit(begin, count);
        // A block of other tokens that still equals the cache is refused, too.
        if (released || !submitted || status != MNNKV_INVALID_ARGUMENT) {
            EXPECT_TRUE(answers(status, released ? MNNKV_INVALID_ARGUMENT : MNNKV_OK));
        }
        // Either nothing was encoded (the block is known) or exactly these tokens.
        if (status == MNNKV_OK && stats_of(store).submitted_blocks > before.submitted_blocks) {
            expected.submitted_blocks += 1;
            expected.encoded_bytes += count * host.model().token_bytes();
        }
    } else if (what < 13) {
        SCOPED_TRACE("commit");
        std::uint64_t released = 0;
        EXPECT_TRUE(ok(host.commit(&released)));
        expected.released_bytes += released;
    } else if (what < 16) {
        SCOPED_TRACE("restore");
        std::uint64_t restored = 0;
        EXPECT_TRUE(ok(host.restore(&restored)));
        EXPECT_EQ(restored, released_before);
        EXPECT_TRUE(host.whole());
        expected.restored_bytes += restored;
    } else if (what < 17 && length > 0) {
        const std::uint32_t begin = random.below(length), count = random.between(1, std::min(length - begin, 9u));
        SCOPED_TRACE(testing::Message() << "write " << count << " tokens from " << begin);
        if (!host.any_released(begin, count)) {
            host.write(begin, count, random.one_in(4) ? content::noise : content::compressible);
        }
    } else if (what < 18) {
        SCOPED_TRACE("compact");
        const std::uint32_t base = random.one_in(2) ? 0 : random.below(length + 1);
        host.compact(base, random_pairs(length - base, random));
    } else if (what < 19) {
        SCOPED_TRACE("truncate");
        host.truncate(random.one_in(5) ? 0 : length - random.below(length / 4 + 1));
    } else {
        SCOPED_TRACE("grow");
        host.move_to(layout_for(length + random.between(1, 100)));
    }
    EXPECT_TRUE(host.sound());
    const mnnkv_store_statistics now = stats_of(store);
    check_counters(before, now);
    EXPECT_EQ(now.submitted_blocks, expected.submitted_blocks);
    EXPECT_EQ(now.encoded_bytes, expected.encoded_bytes);
    EXPECT_EQ(now.released_bytes, expected.released_bytes);
    EXPECT_EQ(now.restored_bytes, expected.restored_bytes);
}

TEST_P(Schedule, NeverLosesAByte) {
    for (std::uint32_t seed = 301; seed < 306; ++seed) {
        SCOPED_TRACE("seed " + std::to_string(seed));
        dice random(seed);
        mnnkv::store store;
        ASSERT_TRUE(ok(store.create().code()));
        store_host layer(store, 3, layout_for(96), random);
        for (int i = 0; i < 120 && !HasFailure(); ++i) {
            SCOPED_TRACE("step " + std::to_string(i));
            step(store, layer, random, layout_for);
            EXPECT_EQ(stats_of(store).released_raw_bytes, layer.released_raw_bytes());
        }
        EXPECT_TRUE(ok(layer.restore()));
        EXPECT_TRUE(layer.whole());
        EXPECT_GT(stats_of(store).restored_blocks, 0u) << "the schedule released and restored something";
    }
}

TEST_P(Schedule, LayersDoNotDisturbEachOther) {
    SEEDED_DICE(random, 321);
    mnnkv::store store;
    ASSERT_TRUE(ok(store.create().code()));
    // Layers of different shape: numbers are the host's and need not be dense.
    mnnkv_layout other = make_layout(pack_modes[4], 3, 7, 200, 64);
    store_host layers[] = {{store, 0, layout_for(128), random},
                           {store, UINT32_MAX, other, random},
                           {store, 7, layout_for(64), random}};
    for (int i = 0; i < 200 && !HasFailure(); ++i) {
        SCOPED_TRACE("step " + std::to_string(i));
        const std::uint32_t which = random.below(3);
        if (which != 1) {
            step(store, layers[which], random, layout_for);
        } else if (layers[1].length() == 0) {
            layers[1].append(190);
        } else {
            const std::uint32_t begin = 64 * random.below(2);
            EXPECT_TRUE(random.one_in(2) ? ok(layers[1].restore()) : ok(layers[1].commit()));
            if (!layers[1].any_released(begin, 64)) {
                EXPECT_TRUE(ok(layers[1].submit(begin, 64)));
            }
        }
        std::uint64_t released = 0;
        for (const store_host& layer : layers) {
            EXPECT_TRUE(layer.sound());
            released += layer.released_raw_bytes();
        }
        EXPECT_EQ(stats_of(store).released_raw_bytes, released);
    }
    for (store_host& layer : layers) {
        EXPECT_TRUE(ok(layer.restore()));
        EXPECT_TRUE(layer.whole());
    }
}

INSTANTIATE_TEST_SUITE_P(EveryKindOfPacking, Schedule, testing::ValuesIn(scenarios),
                         [](const auto& tested) { return std::string(tested.param.name); });

}  // namespace
