// Invalid calls on quantised caches. Refused calls name the field and what it holds, and leave the cache, its side arrays
// and every output unchanged.

#include "quantised_cache.hpp"
#include "refusal.hpp"

namespace {

using namespace support;

/// A cache and a copy of it.
class watched_cache {
public:
    watched_cache(const quantised_shape& shape, dice& random) : now(shape, random), then_(now) {
        now.append(130, random);
        then_ = now;
    }
    testing::AssertionResult untouched() const { return now.equals(then_); }

    quantised_cache now;

private:
    quantised_cache then_;
};

class BadQuantisedInput : public testing::Test {
protected:
    static constexpr std::uint32_t count = 8, dims = 64;

    static quantised_shape shape() { return {quantised_modes[1], {4, 8}, 2, dims, 150}; }

    BadQuantisedInput() : cache_(shape(), random_) {}

    void expect_all_refused(const std::vector<bad_call>& calls) {
        expect_refused(calls, cache_, keys_, values_, first_, second_, length_);
    }

    /// The functions that take a cache.
    std::vector<bad_call> calls_with(mnnkv_status expected, const std::string& word, const mnnkv_layout* layout) {
        std::uint8_t *const key = cache_.now.key(), *const value = cache_.now.value();
        mnnkv_store* const store = store_.get();
        return {
            {expected, word,
             [=] { return mnnkv_kv_gather(layout, key, value, 0, count, keys_.data(), values_.data(), room); }},
            {expected, word,
             [=] {
                 return mnnkv_kv_dequantize(layout, key, value, 0, count, MNNKV_DTYPE_F32, keys_.data(), values_.data(),
                                            room);
             }},
            {expected, word, [=] { return mnnkv_store_submit(store, 0, layout, key, value, 0, count, first_.get()); }},
            {expected, word,
             [=] { return mnnkv_kv_scatter(layout, keys_.data(), values_.data(), rows_, 0, count, key, value); }},
            {expected, word, [=] { return mnnkv_kv_move(layout, key, value, 0, 3, count); }},
            {expected, word, [=] { return mnnkv_kv_compact(layout, key, value, 0, pair_, 1, 130, length_.get()); }},
            {expected, word, [=] { return mnnkv_kv_zero(layout, key, value, 0, count); }},
            {expected, word, [=] { return mnnkv_kv_release(layout, key, value, 0, count, first_.get()); }},
            {expected, word, [=] { return mnnkv_kv_appended(layout, key, value, 0, count); }},
            {expected, word, [=] { return mnnkv_kv_changed(layout, key, value, 0, count, 130); }},
            {expected, word,
             [=] {
                 mnnkv::session session;
                 EXPECT_TRUE(ok(session.create("{}", 2, 1, 1).code()));
                 mnnkv_cache cache = mnnkv::make<mnnkv_cache>();
                 cache.layout = layout;
                 cache.key = key;
                 cache.value = value;
                 cache.kv_len = 130;
                 return session.begin(0, cache).code();
             }},
        };
    }

    /// Every function refuses the good layout with one change.
    void expect_change_refused(mnnkv_status expected, const std::string& word,
                               const std::function<void(mnnkv_layout&, mnnkv_int8&)>& change) {
        SCOPED_TRACE(word);
        mnnkv_layout layout = *cache_.now.layout();
        mnnkv_int8 int8 = cache_.now.int8();
        layout.int8 = layout.int8 == nullptr ? nullptr : &int8;
        change(layout, int8);
        expect_all_refused(calls_with(expected, word, &layout));
        expect_all_refused({
            {expected, word, [&] { return mnnkv_layout_check(&layout, first_.get(), second_.get()); }},
            {expected, word, [&] { return mnnkv_kv_index(&layout, 0, 0, first_.get(), nullptr); }},
            {expected, word, [&] { return mnnkv_kv_index(&layout, 0, 0, nullptr, first_.get()); }},
        });
    }

    /// Every function with buffers refuses these side arrays.
    void expect_arrays_refused(const std::string& word, const std::function<void(mnnkv_int8&)>& change) {
        SCOPED_TRACE(word);
        const mnnkv_layout layout = *cache_.now.layout();
        mnnkv_int8 int8 = cache_.now.int8();
        change(int8);
        mnnkv_layout changed = layout;
        changed.int8 = &int8;
        expect_all_refused(calls_with(bad, word, &changed));
    }

    static constexpr std::size_t room = 2 * count * dims * 4;
    /// Bytes of V with its scales, the larger.
    static constexpr std::size_t rows_ = 2 * count * dims + 2 * 2 * dims * 4;

    dice random_{701};
    watched_cache cache_;
    mnnkv::store store_ = [] {
        mnnkv::store store;
        EXPECT_TRUE(ok(store.create().code()));
        return store;
    }();
    guarded keys_{room}, values_{room};
    slot<std::uint64_t> first_, second_;
    slot<std::uint32_t> length_;
    const std::int32_t pair_[2] = {4, 8};
};

TEST_F(BadQuantisedInput, KNeedsItsPackingAndArrays) {
    expect_change_refused(bad, "layout->int8 is NULL",
                          [](mnnkv_layout& l, mnnkv_int8&) { l.int8 = nullptr; });
    expect_change_refused(bad, "layout->int8 is NULL",
                          [](mnnkv_layout& l, mnnkv_int8&) { l.struct_size = 72; });
    expect_change_refused(bad, "layout->int8", [](mnnkv_layout& l, mnnkv_int8& int8) { l.int8 = misaligned(&int8); });
    for (const std::uint32_t size : {0u, 16u, 4097u}) {
        expect_change_refused(bad, "struct_size is " + std::to_string(size),
                              [=](mnnkv_layout&, mnnkv_int8& int8) { int8.struct_size = size; });
    }
}

TEST_F(BadQuantisedInput, SideArraysMustBeThereWholeAlignedAndApart) {
    expect_arrays_refused("layout->int8->key_sum is NULL; 1216 bytes expected",
                          [](mnnkv_int8& int8) { int8.key_sum = nullptr; });
    expect_arrays_refused("layout->int8->value_sum is NULL; 1536 bytes expected",
                          [](mnnkv_int8& int8) { int8.value_sum = nullptr; });
    for (const std::uint64_t bytes : {std::uint64_t{0}, std::uint64_t{1212}, std::uint64_t{1220}, UINT64_MAX}) {
        expect_arrays_refused("layout->int8->key_sum_bytes is " + std::to_string(bytes) + "; 1216 expected",
                              [=](mnnkv_int8& int8) { int8.key_sum_bytes = bytes; });
        expect_arrays_refused("layout->int8->value_sum_bytes is " + std::to_string(bytes) + "; 1536 expected",
                              [=](mnnkv_int8& int8) { int8.value_sum_bytes = bytes; });
    }
    expect_arrays_refused("layout->int8->key_sum", [](mnnkv_int8& int8) { int8.key_sum = misaligned(int8.key_sum); });
    expect_arrays_refused("layout->int8->value_sum",
                          [](mnnkv_int8& int8) { int8.value_sum = misaligned(int8.value_sum); });
}

TEST_F(BadQuantisedInput, SideArraysThatShareABufferAreRefused) {
    const auto aligned = [](std::uint8_t* buffer) {
        return reinterpret_cast<float*>((reinterpret_cast<std::uintptr_t>(buffer) + 3) & ~std::uintptr_t{3});
    };
    float* const in_key = aligned(cache_.now.key());
    float* const in_value = aligned(cache_.now.value() + cache_.now.value_head() - 4);
    const std::function<void(mnnkv_int8&)> changes[] = {
        [=](mnnkv_int8& int8) { int8.key_sum = in_key; },
        [=](mnnkv_int8& int8) { int8.key_sum = in_value; },
        [=](mnnkv_int8& int8) { int8.value_sum = in_key; },
        [=](mnnkv_int8& int8) { int8.value_sum = in_value; },
        [=](mnnkv_int8& int8) { int8.value_sum = int8.key_sum; },
    };
    for (const auto& change : changes) {
        const mnnkv_layout good = *cache_.now.layout();
        mnnkv_int8 int8 = cache_.now.int8();
        change(int8);
        mnnkv_layout layout = good;
        layout.int8 = &int8;
        std::vector<bad_call> calls = calls_with(bad, "overlap", &layout);
        calls.erase(calls.begin(), calls.begin() + 3);  // they only read the cache
        expect_all_refused(calls);
    }
}

TEST_F(BadQuantisedInput, OutputsThatShareASideArrayAreRefused) {
    const mnnkv_layout* const layout = cache_.now.layout();
    std::uint8_t *const key = cache_.now.key(), *const value = cache_.now.value(), *const out = keys_.data();
    for (const std::vector<float>* const sums : {&cache_.now.key_sum(), &cache_.now.value_sum()}) {
        float* const inside = const_cast<float*>(sums->data()) + sums->size() - 1;
        expect_all_refused({
            {bad, "overlap", [=] { return mnnkv_kv_gather(layout, key, value, 0, count, inside, out, room); }},
            {bad, "overlap", [=] { return mnnkv_kv_gather(layout, key, value, 0, count, out, inside, room); }},
            {bad, "overlap", [=] { return mnnkv_kv_scatter(layout, out, inside, rows_, 0, count, key, value); }},
            {bad, "overlap",
             [=] {
                 return mnnkv_kv_dequantize(layout, key, value, 0, count, MNNKV_DTYPE_F32, out, inside, room);
             }},
        });
    }
}

TEST_F(BadQuantisedInput, ScatterRefusesTheScalesOfAnotherCacheBehindItsBegin) {
    quantised_cache other(shape(), random_);
    other.append(130, random_);
    rows foreign = other.get(20, count);
    const auto scatter = [&](std::uint32_t begin, std::size_t length) {
        return mnnkv_kv_scatter(cache_.now.layout(), foreign.key.data(), foreign.value.data(), length, begin, count,
                                cache_.now.key(), cache_.now.value());
    };
    expect_all_refused({
        {bad, "value_in has other scales than V, in head 0", [&] { return scatter(20, rows_); }},
        {bad, "len_each is 1024", [&] { return scatter(20, 1024); }},
        {bad, "len_each is " + std::to_string(rows_ + 1), [&] { return scatter(20, rows_ + 1); }},
    });
    // One bias of the last head differs.
    foreign = cache_.now.get(20, count);
    foreign.value.back() ^= 1;
    expect_all_refused({{bad, "in head 1", [&] { return scatter(1, rows_); }}});
    EXPECT_TRUE(ok(scatter(0, rows_))) << "token 0 brings scales along";
}

TEST_F(BadQuantisedInput, GatherNeedsRoomForTheScales) {
    for (const std::size_t cap : {std::size_t{0}, std::size_t{2 * count * dims}, rows_ - 1}) {
        expect_all_refused({{MNNKV_BUFFER_TOO_SMALL, std::to_string(rows_), [=] {
                                 return mnnkv_kv_gather(cache_.now.layout(), cache_.now.key(), cache_.now.value(), 0,
                                                        count, keys_.data(), values_.data(), cap);
                             }}});
    }
}

TEST_F(BadQuantisedInput, DequantizeRefusesOtherTypesCentresAndCapacities) {
    std::vector<float> center(2 * dims);
    const auto dequantize = [&](std::uint32_t dtype, std::size_t cap, std::uint32_t center_dtype,
                                std::size_t center_bytes, const void* at) {
        const mnnkv_layout* const layout = cache_.now.layout();
        cache_.now.int8().key_center = at;
        cache_.now.int8().key_center_bytes = center_bytes;
        cache_.now.int8().key_center_dtype = center_dtype;
        return mnnkv_kv_dequantize(layout, cache_.now.key(), cache_.now.value(), 0, count, dtype, keys_.data(),
                                   values_.data(), cap);
    };
    std::vector<bad_call> calls;
    for (const std::uint32_t dtype : {0u, 4u, 5u, 6u, 77u}) {
        const mnnkv_status expected = dtype == MNNKV_DTYPE_INT8 || dtype == 5 || dtype == 6 ? MNNKV_UNSUPPORTED : bad;
        calls.push_back({expected, "dtype is ", [=] { return dequantize(dtype, room, 3, 0, nullptr); }});
        calls.push_back({expected, "layout->int8->key_center_dtype is ",
                         [&, dtype] { return dequantize(MNNKV_DTYPE_F32, room, dtype, 512, center.data()); }});
    }
    for (const std::size_t bytes : {std::size_t{0}, std::size_t{256}, std::size_t{511}, std::size_t{516}, SIZE_MAX}) {
        calls.push_back({bad, "key_center", [&, bytes] { return dequantize(3, room, 3, bytes, center.data()); }});
    }
    calls.push_back({bad, "overlap", [&] { return dequantize(3, room, 3, 512, values_.data() + 8); }});
    calls.push_back({MNNKV_BUFFER_TOO_SMALL, std::to_string(room), [&] { return dequantize(3, room - 1, 3, 0, nullptr); }});
    expect_all_refused(calls);
}

TEST_F(BadQuantisedInput, RangesAndLengthsOutsideTheCacheAreRefused) {
    const mnnkv_layout* const layout = cache_.now.layout();
    std::uint8_t *const key = cache_.now.key(), *const value = cache_.now.value();
    const struct {
        std::uint32_t begin, count;
    } ranges[] = {{0, 151}, {150, 1}, {143, 8}, {151, 0}, {UINT32_MAX, 1}, {1, UINT32_MAX}};
    for (const auto& r : ranges) {
        expect_all_refused({
            {bad, "max_tokens is 150", [=] { return mnnkv_kv_appended(layout, key, value, r.begin, r.count); }},
            {bad, "max_tokens is 150", [=] { return mnnkv_kv_changed(layout, key, value, r.begin, r.count, 130); }},
            {bad, "max_tokens is 150",
             [=] {
                 return mnnkv_kv_dequantize(layout, key, value, r.begin, r.count, MNNKV_DTYPE_F32, keys_.data(),
                                            values_.data(), room);
             }},
        });
    }
    for (const std::uint32_t kv_len : {151u, UINT32_MAX}) {
        expect_all_refused({{bad, "max_tokens is 150", [=] { return mnnkv_kv_changed(layout, key, value, 0, 8, kv_len); }}});
    }
}

TEST_F(BadQuantisedInput, TheInt8FieldOfOtherCachesIsNotRead) {
    mnnkv_layout layout = make_layout(pack_modes[1], 2, dims, 150, 64);
    const bytes nothing(4);
    layout.int8 = reinterpret_cast<const mnnkv_int8*>(nothing.data() + 1);
    std::uint64_t key = 0, value = 0;
    EXPECT_TRUE(ok(mnnkv_layout_check(&layout, &key, &value)));
}

}  // namespace
