// The learned compressor: files read, and packed caches in place.

#include "model_files.hpp"
#include "packed_model.hpp"
#include "refusal.hpp"

#include <limits>
#include <memory>
#include <thread>

namespace {

using namespace support;

struct destroyer {
    void operator()(mnnkv_compressor* compressor) const { mnnkv_compressor_destroy(compressor); }
};
using compressor = std::unique_ptr<mnnkv_compressor, destroyer>;

compressor open_bytes(const bytes& file) {
    mnnkv_compressor* handle = nullptr;
    EXPECT_TRUE(ok(mnnkv_compressor_create(file.data(), file.size(), MNNKV_ABI_VERSION, &handle)));
    return compressor(handle);
}

compressor open_golden(const char* name) { return open_bytes(read_model_file(std::string("compressor/") + name)); }

mnnkv_compressor_info describe(const compressor& file) {
    mnnkv_compressor_info info = mnnkv::make<mnnkv_compressor_info>();
    EXPECT_TRUE(ok(mnnkv_compressor_get_info(file.get(), &info)));
    return info;
}

mnnkv_compressor_options with_image(std::uint32_t tokens) {
    mnnkv_compressor_options config = mnnkv::make<mnnkv_compressor_options>();
    config.image_kv_len = tokens;
    return config;
}

/// Numbers that F16, BF16 and F32 all have.
bytes elements(std::uint32_t dtype, const std::vector<float>& values) {
    bytes out;
    for (const float value : values) {
        std::uint32_t bits = 0;
        std::memcpy(&bits, &value, 4);
        std::uint16_t half = static_cast<std::uint16_t>(bits >> 16);
        if (dtype == MNNKV_DTYPE_F16) {
            const std::uint32_t rest = bits & 0x7fffffff;
            const std::uint32_t rebased = rest == 0 ? 0 : (rest - ((127u - 15u) << 23)) >> 13;
            half = static_cast<std::uint16_t>(rebased | (bits >> 31 << 15));
        }
        const std::uint8_t* const from = dtype == MNNKV_DTYPE_F32 ? reinterpret_cast<const std::uint8_t*>(&bits)
                                                                  : reinterpret_cast<const std::uint8_t*>(&half);
        out.insert(out.end(), from, from + (dtype == MNNKV_DTYPE_F32 ? 4 : 2));
    }
    return out;
}

const std::vector<float> toy_key = {1, 2, 3, 4, -1, 0, 2, -2, 9, 9, 0, 1, 1, 0, 2, 2, -1, 1, 7, -7};
const std::vector<float> toy_value = {1, 1, 2, 2, 0, 4, -4, 0, 5, 6, 1, -1, 3, -3, .5f, .25f, .25f, .5f, 8, 8};
const std::vector<float> toy_key_after = {29.75f, -3.25f, 1, 1.5f, 9, 9, 4.25f, 1.25f, 8.75f, -6.25f, 7, -7};
const std::vector<float> toy_value_after = {6, -.125f, 4, -.125f, 5, 6, 0, -8.125f, 1.5f, -.125f, 8, 8};

TEST(Compressor, FilesSayWhatTheyAre) {
    const compressor file = open_golden("std_fp16_12.bin");
    const mnnkv_compressor_info info = describe(file);
    EXPECT_EQ(info.dtype, std::uint32_t{MNNKV_DTYPE_F16});
    EXPECT_EQ(info.layers, 2u);
    EXPECT_EQ(info.blocks_per_layer, 12u);
    EXPECT_EQ(info.head_dim, 4u);
    EXPECT_EQ(info.compression_factor, 3u);
    EXPECT_EQ(info.min_seq_len, 2u);
    EXPECT_EQ(info.num_heads, 2u);
}

TEST(Compressor, NewLengthsFollowImageAndText) {
    struct {
        std::uint32_t len, image, with_12, with_6;
    } const cases[] = {{11, 0, 5, 5}, {11, 7, 7, 11}, {11, 5, 7, 7},  {14, 7, 6, 10},
                       {5, 0, 5, 5},  {14, 14, 6, 14}, {14, 20, 6, 14}, {6, 0, 2, 2}, {0, 3, 0, 0}};
    const compressor both = open_golden("std_fp32_12.bin"), text = open_golden("std_fp32_6.bin");
    for (const auto& one : cases) {
        const mnnkv_compressor_options config = with_image(one.image);
        std::uint32_t with_12 = 77, with_6 = 77;
        EXPECT_TRUE(ok(mnnkv_compressor_new_len(both.get(), &config, one.len, &with_12)));
        EXPECT_TRUE(ok(mnnkv_compressor_new_len(text.get(), &config, one.len, &with_6)));
        EXPECT_EQ(with_12, one.with_12) << one.len << " " << one.image;
        EXPECT_EQ(with_6, one.with_6) << one.len << " " << one.image;
    }
    mnnkv_compressor_options config = with_image(7);
    std::uint32_t length = 0;
    config.segments = MNNKV_SEGMENT_IMAGE;
    EXPECT_TRUE(ok(mnnkv_compressor_new_len(both.get(), &config, 14, &length)));
    EXPECT_EQ(length, 10u);
    config.segments = MNNKV_SEGMENT_IMAGE | MNNKV_SEGMENT_TEXT;
    config.min_seq_len = 3;
    EXPECT_TRUE(ok(mnnkv_compressor_new_len(both.get(), &config, 14, &length)));
    EXPECT_EQ(length, 14u);
}

/// A cache of a layer with tokens of small numbers in it, and noise everywhere else.
struct cache {
    cache(const mnnkv_layout& layout, std::uint32_t len, dice& random) : packed(layout, random) {
        for (bytes* rows : {&dense.key, &dense.value}) {
            std::vector<float> numbers(layout.kv_heads * len * layout.head_dim);
            for (float& x : numbers) {
                x = (static_cast<float>(random.below(257)) - 128) / 64;
            }
            *rows = elements(layout.key_dtype, numbers);
        }
        put(len, dense);
        edge = mnnkv::make<mnnkv_cache>();
        edge.layout = packed.layout();
        edge.key = packed.key.data();
        edge.value = packed.value.data();
        edge.kv_len = len;
    }

    void put(std::uint32_t len, const rows& in) {
        packed.model.put(packed.key.data(), packed.value.data(), tokens_from(0, len), in);
    }

    noisy_cache packed;
    rows dense;
    mnnkv_cache edge;
};

TEST(Compressor, TheWorkedExampleIsExactInEveryLayoutAndType) {
    SEEDED_DICE(random, 901);
    for (const char* name : {"toy_fp16.bin", "toy_bf16.bin", "toy_fp32.bin"}) {
        const compressor file = open_golden(name);
        for (const pack_mode& mode : pack_modes) {
            SCOPED_TRACE(mode.name);
            cache only(make_layout(mode, 2, 2, 40, random.one_in(2) ? 64 : 8), 5, random);
            only.put(5, rows{elements(mode.dtype, toy_key), elements(mode.dtype, toy_value)});
            bytes key = only.packed.key.contents(), value = only.packed.value.contents();
            only.packed.model.put(key.data(), value.data(), tokens_from(0, 3),
                                  rows{elements(mode.dtype, toy_key_after), elements(mode.dtype, toy_value_after)});
            std::uint32_t old_len = 0, new_len = 0;
            ASSERT_TRUE(ok(mnnkv_compressor_run_caches(file.get(), 0, nullptr, &only.edge, 1, &old_len, &new_len)));
            EXPECT_TRUE(old_len == 5 && new_len == 3 && only.edge.kv_len == 3);
            // Padding, and tokens behind the new length, are as they were.
            EXPECT_TRUE(only.packed.holds(key, value));
        }
    }
}

TEST(Compressor, AFailureInTheLastLayerLeavesEveryCacheAsItWas) {
    SEEDED_DICE(random, 902);
    const compressor file = open_golden("std_fp32_12.bin");
    const mnnkv_layout layout = make_layout(pack_modes[0], 2, 4, 20, 8);
    cache first(layout, 14, random), second(layout, 14, random);
    const float infinity = std::numeric_limits<float>::infinity();
    std::memcpy(&second.dense.value[40], &infinity, 4);
    second.put(14, second.dense);
    const bytes before[] = {first.packed.key.contents(), first.packed.value.contents(),
                            second.packed.key.contents(), second.packed.value.contents()};
    mnnkv_cache array[] = {first.edge, second.edge};
    slot<std::uint32_t> old_len, new_len;
    EXPECT_TRUE(refuses(bad, "caches[1]: layer 1, block 3 (tv slot 0): head 0: the result of the tokens from 0", [&] {
        return mnnkv_compressor_run_caches(file.get(), 0, nullptr, array, 2, old_len.get(), new_len.get());
    }));
    EXPECT_TRUE(old_len.untouched() && new_len.untouched());
    EXPECT_TRUE(first.packed.holds(before[0], before[1]) && second.packed.holds(before[2], before[3]));
    EXPECT_EQ(array[0].kv_len, 14u);
    EXPECT_EQ(array[1].kv_len, 14u);
}

TEST(Compressor, ACacheThatStaysAsItIsIsNotWritten) {
    SEEDED_DICE(random, 903);
    const compressor file = open_golden("std_fp32_6.bin");
    cache only(make_layout(pack_modes[0], 1, 4, 8, 8), 5, random);
    const bytes key = only.packed.key.contents(), value = only.packed.value.contents();
    std::uint32_t old_len = 0, new_len = 0;
    ASSERT_TRUE(ok(mnnkv_compressor_run_caches(file.get(), 1, nullptr, &only.edge, 1, &old_len, &new_len)));
    EXPECT_TRUE(old_len == 5 && new_len == 5 && only.edge.kv_len == 5);
    EXPECT_TRUE(only.packed.holds(key, value));
}

TEST(Compressor, CachesOfANewerHeaderLieFurtherApart) {
    SEEDED_DICE(random, 905);
    const compressor file = open_golden("std_fp32_12.bin");
    cache first(make_layout(pack_modes[0], 1, 4, 16, 8), 14, random), second(first);
    struct newer {
        mnnkv_cache known;
        std::uint64_t unknown[3];
    } array[] = {{first.edge, {}}, {first.edge, {}}};
    array[1].known.key = second.packed.key.data();
    array[1].known.value = second.packed.value.data();
    array[0].known.struct_size = array[1].known.struct_size = sizeof(newer);
    std::uint32_t old_len = 0, new_len = 0;
    ASSERT_TRUE(ok(mnnkv_compressor_run_caches(file.get(), 0, nullptr, &array[0].known, 2, &old_len, &new_len)));
    EXPECT_TRUE(new_len == 6 && array[0].known.kv_len == 6 && array[1].known.kv_len == 6);
    EXPECT_FALSE(second.packed.untouched());
}

TEST(Compressor, CachesThatDoNotFitAreRefused) {
    SEEDED_DICE(random, 904);
    const compressor file = open_golden("std_fp32_12.bin");
    const mnnkv_layout layout = make_layout(pack_modes[0], 2, 4, 20, 8);
    cache first(layout, 14, random), second(layout, 14, random);
    const bytes before[] = {first.packed.key.contents(), first.packed.value.contents(),
                            second.packed.key.contents(), second.packed.value.contents()};
    slot<std::uint32_t> old_len, new_len;
    const mnnkv_cache good[] = {first.edge, second.edge};
    mnnkv_layout other = layout;
    const auto run = [&](std::uint32_t first_layer, std::uint32_t n, const std::function<void(mnnkv_cache*)>& change) {
        mnnkv_cache array[] = {good[0], good[1], good[1]};
        change(array);
        return mnnkv_compressor_run_caches(file.get(), first_layer, nullptr, array, n, old_len.get(), new_len.get());
    };
    const auto nothing = [](mnnkv_cache*) {};
    const auto with_layout = [&](const std::function<void(mnnkv_layout&)>& change) {
        return run(0, 2, [&](mnnkv_cache* array) {
            other = layout;
            change(other);
            array[1].layout = &other;
        });
    };
    expect_refused(
        {
            {bad, "layers 0 .. 3; the weights file has 2 layers", [&] { return run(0, 3, nothing); }},
            {bad, "layers 1 .. 3", [&] { return run(1, 2, nothing); }},
            {bad, "layers 4294967295 .. 4294967296", [&] { return run(UINT32_MAX, 1, nothing); }},
            {bad, "n_layers is 0", [&] { return run(0, 0, nothing); }},
            {bad, "caches[1]: kv_len is 13", [&] { return run(0, 2, [](mnnkv_cache* a) { a[1].kv_len = 13; }); }},
            {bad, "max_tokens", [&] { return run(0, 1, [](mnnkv_cache* a) { a[0].kv_len = 21; }); }},
            {bad, "caches[1]: layout is NULL",
             [&] { return run(0, 2, [](mnnkv_cache* a) { a[1].layout = nullptr; }); }},
            {bad, "caches[1]: key is NULL", [&] { return run(0, 2, [](mnnkv_cache* a) { a[1].key = nullptr; }); }},
            {bad, "caches[0]: value is NULL", [&] { return run(0, 2, [](mnnkv_cache* a) { a[0].value = nullptr; }); }},
            {bad, "overlap", [&] { return run(0, 2, [](mnnkv_cache* a) { a[1].key = a[0].key; }); }},
            {bad, "overlap", [&] { return run(0, 2, [](mnnkv_cache* a) { a[1].value = a[0].key; }); }},
            {bad, "caches[1].struct_size is 48; 40 expected, as the first", [&] {
                 return run(0, 2, [](mnnkv_cache* a) {
                     a[1].struct_size += 8;
                     std::memset(&a[2], 0, sizeof a[2]);
                 });
             }},
            {bad, "struct_size", [&] { return run(0, 2, [](mnnkv_cache* a) { a[0].struct_size = 0; }); }},
            {bad, "caches[1]: layout->head_dim is 8; 4 expected",
             [&] { return with_layout([](mnnkv_layout& l) { l.head_dim = 8, l.kv_heads = 1; }); }},
            {MNNKV_UNSUPPORTED, "layout->key_dtype is F32, value_dtype is F16",
             [&] { return with_layout([](mnnkv_layout& l) { l.value_dtype = MNNKV_DTYPE_F16; }); }},
            {bad, "caches[1]: layout->int8",
             [&] { return with_layout([](mnnkv_layout& l) { l.key_dtype = MNNKV_DTYPE_INT8; }); }},
            {MNNKV_UNSUPPORTED, "caches[1]: layout->key_dtype is INT8",
             [&] {
                 mnnkv_int8 unit = mnnkv::make<mnnkv_int8>();
                 unit.l_pack = 4;
                 unit.h_pack = 8;
                 return with_layout([&](mnnkv_layout& l) { l.key_dtype = MNNKV_DTYPE_INT8, l.int8 = &unit; });
             }},
            {bad, "cache is NULL",
             [&] {
                 return mnnkv_compressor_run_caches(file.get(), 0, nullptr, nullptr, 2, old_len.get(), new_len.get());
             }},
            {bad, "old_len is NULL", [&] {
                 mnnkv_cache array[] = {good[0], good[1]};
                 return mnnkv_compressor_run_caches(file.get(), 0, nullptr, array, 2, nullptr, new_len.get());
             }},
            {bad, "new_len is NULL", [&] {
                 mnnkv_cache array[] = {good[0], good[1]};
                 return mnnkv_compressor_run_caches(file.get(), 0, nullptr, array, 2, old_len.get(), nullptr);
             }},
        },
        old_len, new_len);
    EXPECT_TRUE(first.packed.holds(before[0], before[1]) && second.packed.holds(before[2], before[3]));
}

TEST(Compressor, OptionsThatDoNotFitAreRefused) {
    const compressor file = open_golden("toy_fp32.bin");
    slot<std::uint32_t> new_len;
    const auto with = [&](void (*change)(mnnkv_compressor_options&)) {
        mnnkv_compressor_options config = mnnkv::make<mnnkv_compressor_options>();
        change(config);
        return [&file, &new_len, config] { return mnnkv_compressor_new_len(file.get(), &config, 5, new_len.get()); };
    };
    expect_refused(
        {
            {bad, "factor is 3", with([](mnnkv_compressor_options& o) { o.factor = 3; })},
            {bad, "segments is 0x4", with([](mnnkv_compressor_options& o) { o.segments = 4; })},
            {bad, "reserved[2]", with([](mnnkv_compressor_options& o) { o.reserved[2] = 1; })},
            {bad, "struct_size", with([](mnnkv_compressor_options& o) { o.struct_size = 16; })},
        },
        new_len);
}

TEST(Compressor, BadFilesGiveNoHandle) {
    slot<mnnkv_compressor*> out;
    const bytes good = read_model_file("compressor/toy_fp32.bin");
    const std::string folder = std::string(MNNKV_MODEL_TESTDATA_DIR) + "/compressor/";
    const auto open = [&](const std::string& path) {
        return mnnkv_compressor_open(path.c_str(), MNNKV_ABI_VERSION, out.get());
    };
    const auto create = [&](const bytes& file, std::size_t size) {
        return mnnkv_compressor_create(file.data(), size, MNNKV_ABI_VERSION, out.get());
    };
    expect_refused(
        {
            {bad, "path is NULL", [&] { return mnnkv_compressor_open(nullptr, MNNKV_ABI_VERSION, out.get()); }},
            {bad, "path is empty", [&] { return open(""); }},
            {bad, "path is no UTF-8: invalid utf-8 sequence of 1 bytes from index 2", [&] { return open("ab\xff"); }},
            {MNNKV_NOT_FOUND, "no_such_file", [&] { return open(folder + "no_such_file"); }},
            {bad, "a directory", [&] { return open(folder); }},
            {MNNKV_CORRUPT, "bad_bias_flag_2.bin: offset 52:", [&] { return open(folder + "bad_bias_flag_2.bin"); }},
            {MNNKV_UNSUPPORTED, "offset 4: version is 2", [&] { return open(folder + "bad_version_2.bin"); }},
            {MNNKV_CORRUPT, "offset ", [&] { return create(good, good.size() - 1); }},
            {MNNKV_CORRUPT, "offset 0", [&] { return create(good, 0); }},
            {bad, "bytes is NULL", [&] { return mnnkv_compressor_create(nullptr, 9, MNNKV_ABI_VERSION, out.get()); }},
            {bad, "out is NULL",
             [&] { return mnnkv_compressor_create(good.data(), good.size(), MNNKV_ABI_VERSION, nullptr); }},
            {MNNKV_UNSUPPORTED, "abi_version",
             [&] { return mnnkv_compressor_create(good.data(), good.size(), MNNKV_ABI_VERSION + 1, out.get()); }},
        },
        out);
    mnnkv_compressor_destroy(nullptr);
}

TEST(Compressor, QuestionsThatHaveNoAnswer) {
    const compressor file = open_golden("toy_fp32.bin");
    slot<mnnkv_compressor_info> info;
    slot<std::uint32_t> new_len;
    expect_refused(
        {
            {bad, "compressor is NULL", [&] { return mnnkv_compressor_get_info(nullptr, info.get()); }},
            {bad, "info is NULL", [&] { return mnnkv_compressor_get_info(file.get(), nullptr); }},
            {bad, "new_len is NULL", [&] { return mnnkv_compressor_new_len(file.get(), nullptr, 5, nullptr); }},
            {bad, "compressor is NULL", [&] { return mnnkv_compressor_new_len(nullptr, nullptr, 5, new_len.get()); }},
        },
        info, new_len);
    // An older header's struct is written as far as it goes.
    mnnkv_compressor_info older;
    std::memset(&older, 0x5A, sizeof older);
    older.struct_size = 4;
    EXPECT_TRUE(refuses(bad, "struct_size", [&] { return mnnkv_compressor_get_info(file.get(), &older); }));
    EXPECT_EQ(older.layers, 0x5A5A5A5Au);
}

TEST(Compressor, OneHandleServesSeveralThreads) {
    SEEDED_DICE(random, 906);
    const compressor file = open_golden("toy_fp32.bin");
    const mnnkv_layout layout = make_layout(pack_modes[0], 2, 2, 8, 8);
    const rows toy{elements(layout.key_dtype, toy_key), elements(layout.key_dtype, toy_value)};
    const bytes expected = elements(layout.key_dtype, toy_key_after);
    std::vector<cache> caches(4, cache(layout, 5, random));
    std::vector<std::thread> threads;
    bool same_everywhere[4] = {};
    for (std::size_t i = 0; i < caches.size(); ++i) {
        threads.emplace_back([&, i] {
            cache& own = caches[i];
            own.edge.key = own.packed.key.data();
            own.edge.value = own.packed.value.data();
            own.edge.layout = &layout;
            bool all_same = true;
            for (int round = 0; round < 200; ++round) {
                own.put(5, toy);
                own.edge.kv_len = 5;
                std::uint32_t old_len = 0, new_len = 0;
                const mnnkv_status status =
                    mnnkv_compressor_run_caches(file.get(), 0, nullptr, &own.edge, 1, &old_len, &new_len);
                all_same = all_same && status == MNNKV_OK && own.packed.get(tokens_from(0, 3)).key == expected;
            }
            same_everywhere[i] = all_same;
        });
    }
    for (std::size_t i = 0; i < threads.size(); ++i) {
        threads[i].join();
        EXPECT_TRUE(same_everywhere[i]) << "thread " << i;
    }
}

}  // namespace
