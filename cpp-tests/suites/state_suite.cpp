// State buffers of other engines through C: arguments, capacities, struct sizes, and what is never written.

#include "struct_sizes.hpp"

namespace {

using namespace support;

mnnkv_state_tensor tensor(std::uint64_t offset, std::uint64_t rows, std::uint64_t row_bytes) {
    auto made = mnnkv::make<mnnkv_state_tensor>();
    made.dtype = MNNKV_DTYPE_F16;
    made.offset = offset;
    made.rows = rows;
    made.row_bytes = row_bytes;
    return made;
}

TEST(State, ABufferComesBackBitForBitWhateverTheOptions) {
    SEEDED_DICE(random, 11);
    const bytes sample = read_file("kv/l1_k_h2_t1088_d64.f16");
    const guarded src(sample, 1);
    const std::vector<mnnkv_state_tensor> tensors = {tensor(128, 1000, 128), tensor(sample.size() - 640, 5, 128)};
    const std::size_t bound = mnnkv_state_bound(src.size(), tensors.data(), tensors.size());
    std::size_t largest = bound;
    for (const int effort : {1, 0, 9}) {
        auto options = mnnkv::make<mnnkv_state_options>();
        options.effort = effort;
        options.threads = random.below(4);
        guarded dst(bound, 1), back(src.size(), 1);
        std::size_t len = 0, size = 0, decoded = 0;
        ASSERT_TRUE(ok(mnnkv_state_encode(src.data(), src.size(), tensors.data(), tensors.size(), &options,
                                          dst.data(), dst.size(), &len)));
        EXPECT_LT(len, largest) << "effort " << effort;
        largest = len;
        ASSERT_TRUE(ok(mnnkv_state_decoded_size(dst.data(), len, &size)));
        ASSERT_TRUE(ok(mnnkv_state_decode(dst.data(), len, &options, back.data(), size, &decoded)));
        EXPECT_EQ(decoded, src.size());
        EXPECT_TRUE(back.holds(sample));
    }
}

TEST(State, AnEmptyBufferHasABlob) {
    bytes blob(mnnkv_state_bound(0, nullptr, 0));
    std::size_t len = 0, decoded = 7;
    ASSERT_TRUE(ok(mnnkv_state_encode(nullptr, 0, nullptr, 0, nullptr, blob.data(), blob.size(), &len)));
    ASSERT_TRUE(ok(mnnkv_state_decode(blob.data(), len, nullptr, nullptr, 0, &decoded)));
    EXPECT_EQ(decoded, 0u);
}

TEST(State, BadArgumentsAreRefusedByName) {
    bytes src(1000, 1), dst(2000), blob(2000);
    slot<std::size_t> len;
    std::size_t blob_len = 0;
    ASSERT_TRUE(ok(mnnkv_state_encode(src.data(), 1000, nullptr, 0, nullptr, blob.data(), 2000, &blob_len)));
    const auto encode = [&](const mnnkv_state_tensor& second) {
        const mnnkv_state_tensor both[] = {tensor(0, 2, 100), second};
        EXPECT_EQ(mnnkv_state_bound(1000, both, 2), 0u);
        return mnnkv_state_encode(src.data(), 1000, both, 2, nullptr, dst.data(), 2000, len.get());
    };
    const auto with = [&](const char* word, void (*change)(mnnkv_state_tensor&)) {
        mnnkv_state_tensor second = tensor(500, 2, 100);
        change(second);
        return bad_call{bad, word, [=] { return encode(second); }};
    };
    auto options = mnnkv::make<mnnkv_state_options>();
    options.effort = 10;
    const auto flags = [&](mnnkv_state_options given) {
        return mnnkv_state_encode(src.data(), 1000, nullptr, 0, &given, dst.data(), 2000, len.get());
    };
    auto reserved = mnnkv::make<mnnkv_state_options>();
    reserved.reserved = 1;
    using change = mnnkv_state_tensor&;
    expect_refused(
        {
            with("tensors[1]: dtype", [](change t) { t.dtype = 0; }),
            with("tensors[1]: layout", [](change t) { t.layout = 3; }),
            with("tensors[1]: block_bytes", [](change t) { t.block_bytes = 34; }),
            with("tensors[1]: block_bytes", [](change t) { t.layout = MNNKV_STATE_BLOCKS, t.block_bytes = 65536; }),
            with("tensors[1].scale_bytes", [](change t) { t.layout = MNNKV_STATE_BLOCKS, t.block_bytes = 10; }),
            with("tensors[1]: reserved", [](change t) { t.reserved = 1; }),
            with("tensors[1]", [](change t) { t.struct_size = 0; }),
            with("tensors[1].rows", [](change t) { t.rows = 0; }),
            with("tensors[1].row_bytes", [](change t) { t.row_bytes = 3; }),
            with("tensors[1].stride", [](change t) { t.stride = 98; }),
            with("tensors[1] has", [](change t) { t.rows = 6; }),
            with("tensors[1] has", [](change t) { t.offset = UINT64_MAX; }),
            with("tensors[1] begins", [](change t) { t.offset = 199; }),
            {bad, "options->effort", [&] { return flags(options); }},
            {bad, "options->reserved", [&] { return flags(reserved); }},
            {bad, "src is NULL",
             [&] { return mnnkv_state_encode(nullptr, 1000, nullptr, 0, nullptr, dst.data(), 2000, len.get()); }},
            {bad, "tensors is NULL",
             [&] { return mnnkv_state_encode(src.data(), 1000, nullptr, 1, nullptr, dst.data(), 2000, len.get()); }},
            {bad, "tensors",
             [&] {
                 const mnnkv_state_tensor one = tensor(0, 1, 2);
                 return mnnkv_state_encode(src.data(), 1000, &one, SIZE_MAX, nullptr, dst.data(), 2000, len.get());
             }},
            {bad, "overlap",
             [&] { return mnnkv_state_encode(src.data(), 1000, nullptr, 0, nullptr, src.data(), 2000, len.get()); }},
            {bad, "dst_len",
             [&] { return mnnkv_state_encode(src.data(), 1000, nullptr, 0, nullptr, dst.data(), 2000, nullptr); }},
            {bad, "size", [&] { return mnnkv_state_decoded_size(blob.data(), blob_len, nullptr); }},
            {MNNKV_CORRUPT, "blob", [&] { return mnnkv_state_decoded_size(blob.data(), blob_len - 1, len.get()); }},
            {MNNKV_CORRUPT, "section 0",
             [&] {
                 bytes damaged = blob;
                 damaged[blob_len - 1] ^= 1;
                 return mnnkv_state_decode(damaged.data(), blob_len, nullptr, dst.data(), 1000, len.get());
             }},
        },
        len);
}

TEST(State, CapacitiesThatAreTooSmallReportTheNeed) {
    const bytes src(5000, 1);
    bytes dst(mnnkv_state_bound(5000, nullptr, 0));
    std::size_t len = 0, need = 0;
    EXPECT_TRUE(refuses(MNNKV_BUFFER_TOO_SMALL, "dst_cap", [&] {
        return mnnkv_state_encode(src.data(), 5000, nullptr, 0, nullptr, dst.data(), dst.size() - 1, &need);
    }));
    EXPECT_EQ(need, dst.size());
    ASSERT_TRUE(ok(mnnkv_state_encode(src.data(), 5000, nullptr, 0, nullptr, dst.data(), need, &len)));
    EXPECT_TRUE(refuses(MNNKV_BUFFER_TOO_SMALL, "dst_cap",
                        [&] { return mnnkv_state_decode(dst.data(), len, nullptr, nullptr, 0, &need); }));
    EXPECT_EQ(need, 5000u);
}

TEST(State, StructsComeInAllSizes) {
    const bytes src(1000, 1);
    bytes dst(2000);
    std::size_t len = 0;
    check_sizes(tensor(4, 3, 100), [&](const mnnkv_state_tensor* given) {
        return mnnkv_state_encode(src.data(), 1000, given, 1, nullptr, dst.data(), 2000, &len);
    });
    check_sizes(mnnkv::make<mnnkv_state_options>(), [&](const mnnkv_state_options* given) {
        return mnnkv_state_encode(src.data(), 1000, nullptr, 0, given, dst.data(), 2000, &len);
    });
    EXPECT_EQ(sizeof(mnnkv_state_tensor), 56u);
    EXPECT_EQ(sizeof(mnnkv_state_options), 16u);
}

}  // namespace
