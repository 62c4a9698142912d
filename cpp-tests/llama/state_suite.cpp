// States through C: arguments, capacities, and what is never written.

#include "refusal.hpp"

namespace {

using namespace support;

mnnkv_state_tensor tensor(std::uint64_t offset, std::uint64_t bytes) {
    mnnkv_state_tensor made = {};
    made.dtype = MNNKV_DTYPE_F16;
    made.offset = offset;
    made.bytes = bytes;
    return made;
}

TEST(State, ABufferComesBackBitForBitOnAnyNumberOfThreads) {
    const bytes sample = read_file("kv/l1_k_h2_t1088_d64.f16");
    const guarded src(sample, 1);
    const std::vector<mnnkv_state_tensor> tensors = {tensor(128, 128000), tensor(sample.size() - 640, 640)};
    const std::size_t bound = mnnkv_state_bound(src.size(), tensors.data(), tensors.size());
    for (const std::uint32_t threads : {0u, 1u, 3u}) {
        guarded dst(bound, 1), back(src.size(), 1);
        std::size_t len = 0, size = 0, decoded = 0;
        ASSERT_TRUE(ok(mnnkv_state_encode(src.data(), src.size(), tensors.data(), tensors.size(), threads,
                                          dst.data(), dst.size(), &len)));
        EXPECT_LT(len, src.size());
        ASSERT_TRUE(ok(mnnkv_state_decoded_size(dst.data(), len, &size)));
        ASSERT_TRUE(ok(mnnkv_state_decode(dst.data(), len, threads, back.data(), size, &decoded)));
        EXPECT_EQ(decoded, src.size());
        EXPECT_TRUE(back.holds(sample));
    }
}

TEST(State, AnEmptyBufferHasABlob) {
    bytes blob(mnnkv_state_bound(0, nullptr, 0));
    std::size_t len = 0, decoded = 7;
    ASSERT_TRUE(ok(mnnkv_state_encode(nullptr, 0, nullptr, 0, 0, blob.data(), blob.size(), &len)));
    ASSERT_TRUE(ok(mnnkv_state_decode(blob.data(), len, 0, nullptr, 0, &decoded)));
    EXPECT_EQ(decoded, 0u);
}

TEST(State, BadArgumentsAreRefusedByName) {
    bytes src(1000, 1), dst(2000), blob(2000);
    slot<std::size_t> len;
    std::size_t blob_len = 0;
    ASSERT_TRUE(ok(mnnkv_state_encode(src.data(), 1000, nullptr, 0, 0, blob.data(), 2000, &blob_len)));
    const auto with = [&](const char* word, void (*change)(mnnkv_state_tensor&)) {
        mnnkv_state_tensor second = tensor(500, 200);
        change(second);
        return bad_call{bad, word, [&, second] {
            const mnnkv_state_tensor both[] = {tensor(0, 200), second};
            EXPECT_EQ(mnnkv_state_bound(1000, both, 2), 0u);
            return mnnkv_state_encode(src.data(), 1000, both, 2, 1, dst.data(), 2000, len.get());
        }};
    };
    using change = mnnkv_state_tensor&;
    expect_refused(
        {
            with("tensors[1]: dtype", [](change t) { t.dtype = 0; }),
            with("tensors[1].scale_bytes", [](change t) { t.block_bytes = 10; }),
            with("tensors[1].scale_bytes", [](change t) { t.scale_bytes = 2; }),
            with("tensors[1].bytes", [](change t) { t.bytes = 0; }),
            with("tensors[1] has", [](change t) { t.bytes = 502; }),
            with("tensors[1] has", [](change t) { t.offset = UINT64_MAX; }),
            with("tensors[1].offset", [](change t) { t.offset = 199; }),
            {bad, "src is NULL",
             [&] { return mnnkv_state_encode(nullptr, 1000, nullptr, 0, 0, dst.data(), 2000, len.get()); }},
            {bad, "tensors is NULL",
             [&] { return mnnkv_state_encode(src.data(), 1000, nullptr, 1, 0, dst.data(), 2000, len.get()); }},
            {bad, "tensors",
             [&] {
                 const mnnkv_state_tensor one = tensor(0, 2);
                 return mnnkv_state_encode(src.data(), 1000, &one, SIZE_MAX, 0, dst.data(), 2000, len.get());
             }},
            {bad, "overlap",
             [&] { return mnnkv_state_encode(src.data(), 1000, nullptr, 0, 0, src.data(), 2000, len.get()); }},
            {bad, "dst_len",
             [&] { return mnnkv_state_encode(src.data(), 1000, nullptr, 0, 0, dst.data(), 2000, nullptr); }},
            {bad, "size", [&] { return mnnkv_state_decoded_size(blob.data(), blob_len, nullptr); }},
            {MNNKV_CORRUPT, "blob", [&] { return mnnkv_state_decoded_size(blob.data(), blob_len - 1, len.get()); }},
            {MNNKV_CORRUPT, "section 0",
             [&] {
                 bytes damaged = blob;
                 damaged[blob_len - 1] ^= 1;
                 return mnnkv_state_decode(damaged.data(), blob_len, 0, dst.data(), 1000, len.get());
             }},
        },
        len);
}

TEST(State, CapacitiesThatAreTooSmallReportTheNeed) {
    const bytes src(5000, 1);
    bytes dst(mnnkv_state_bound(5000, nullptr, 0));
    std::size_t len = 0, need = 0;
    EXPECT_TRUE(refuses(MNNKV_BUFFER_TOO_SMALL, "dst_cap", [&] {
        return mnnkv_state_encode(src.data(), 5000, nullptr, 0, 0, dst.data(), dst.size() - 1, &need);
    }));
    EXPECT_EQ(need, dst.size());
    ASSERT_TRUE(ok(mnnkv_state_encode(src.data(), 5000, nullptr, 0, 0, dst.data(), need, &len)));
    EXPECT_TRUE(refuses(MNNKV_BUFFER_TOO_SMALL, "dst_cap",
                        [&] { return mnnkv_state_decode(dst.data(), len, 0, nullptr, 0, &need); }));
    EXPECT_EQ(need, 5000u);
}

}  // namespace
