// Invalid calls on a packed cache. Refused calls leave the cache and every output unchanged.

#include "packed_model.hpp"
#include "refusal.hpp"

namespace {

using namespace support;

constexpr pack_mode small_packs = {"small", MNNKV_DTYPE_F16, 12, 2, 4};

/// A cache of 20 tokens, dense buffers for 8 of them, and every kind of output.
class BadLayoutInput : public testing::Test {
protected:
    static constexpr std::uint32_t count = 8;

    BadLayoutInput()
        : random_(601),
          layout_(make_layout(small_packs, 2, 5, 20, 6)),
          cache_(layout_, random_),
          rows_(cache_.model.key_row_bytes(count)),
          keys_(rows_),
          values_(rows_) {}

    void expect_all_refused(const std::vector<bad_call>& calls) {
        expect_refused(calls, cache_, keys_, values_, first_, second_, length_);
    }

    /// The functions of a layout and a cache, called with these.
    std::vector<bad_call> calls_with(mnnkv_status expected, const std::string& word, const mnnkv_layout* layout,
                                     std::uint8_t* key, std::uint8_t* value) {
        std::vector<bad_call> calls = {
            {expected, word,
             [=] { return mnnkv_kv_gather(layout, key, value, 0, count, keys_.data(), values_.data(), rows_); }},
            {expected, word,
             [=] { return mnnkv_kv_scatter(layout, keys_.data(), values_.data(), rows_, 0, count, key, value); }},
            {expected, word, [=] { return mnnkv_kv_move(layout, key, value, 0, 3, count); }},
            {expected, word, [=] { return mnnkv_kv_compact(layout, key, value, 0, pair_, 1, 20, length_.get()); }},
            {expected, word, [=] { return mnnkv_kv_zero(layout, key, value, 0, count); }},
            {expected, word, [=] { return mnnkv_kv_release(layout, key, value, 0, count, first_.get()); }},
        };
        return calls;
    }

    /// The functions of a layout alone.
    std::vector<bad_call> layout_calls_with(mnnkv_status expected, const std::string& word,
                                            const mnnkv_layout* layout) {
        return {
            {expected, word, [=] { return mnnkv_layout_check(layout, first_.get(), second_.get()); }},
        };
    }

    /// Every function refuses this layout.
    void expect_layout_refused(mnnkv_status expected, const std::string& word, const mnnkv_layout* layout) {
        expect_all_refused(layout_calls_with(expected, word, layout));
        expect_all_refused(calls_with(expected, word, layout, cache_.key.data(), cache_.value.data()));
    }

    /// Every function refuses the good layout with one change.
    template <class Change>
    void expect_change_refused(mnnkv_status expected, const std::string& word, Change change) {
        SCOPED_TRACE(word);
        mnnkv_layout layout = layout_;
        change(layout);
        expect_layout_refused(expected, word, &layout);
    }

    std::uint8_t* key() { return cache_.key.data(); }
    std::uint8_t* value() { return cache_.value.data(); }

    dice random_;
    mnnkv_layout layout_;
    noisy_cache cache_;
    std::size_t rows_;
    guarded keys_, values_;
    slot<std::uint64_t> first_, second_;
    slot<std::uint32_t> length_;
    const std::int32_t pair_[2] = {4, 8};
};

TEST_F(BadLayoutInput, NullPointersAreRefused) {
    expect_layout_refused(bad, "layout", nullptr);
    expect_all_refused(calls_with(bad, "key", &layout_, nullptr, value()));
    expect_all_refused(calls_with(bad, "value", &layout_, key(), nullptr));
    expect_all_refused(calls_with(bad, "key is NULL", &layout_, nullptr, nullptr));
    expect_all_refused({
        {bad, "key_bytes", [&] { return mnnkv_layout_check(&layout_, nullptr, second_.get()); }},
        {bad, "value_bytes", [&] { return mnnkv_layout_check(&layout_, first_.get(), nullptr); }},
        {bad, "key_out",
         [&] { return mnnkv_kv_gather(&layout_, key(), value(), 0, count, nullptr, values_.data(), rows_); }},
        {bad, "value_out",
         [&] { return mnnkv_kv_gather(&layout_, key(), value(), 0, count, keys_.data(), nullptr, rows_); }},
        {bad, "key_in",
         [&] { return mnnkv_kv_scatter(&layout_, nullptr, values_.data(), rows_, 0, count, key(), value()); }},
        {bad, "value_in",
         [&] { return mnnkv_kv_scatter(&layout_, keys_.data(), nullptr, rows_, 0, count, key(), value()); }},
        {bad, "reserve_pairs",
         [&] { return mnnkv_kv_compact(&layout_, key(), value(), 0, nullptr, 1, 20, length_.get()); }},
        {bad, "new_len", [&] { return mnnkv_kv_compact(&layout_, key(), value(), 0, pair_, 1, 20, nullptr); }},
        {bad, "bytes", [&] { return mnnkv_kv_release(&layout_, key(), value(), 0, count, nullptr); }},
    });
}

TEST_F(BadLayoutInput, PointersToIntegersAndStructsMustBeAligned) {
    const mnnkv_layout two[2] = {layout_, layout_};
    const std::int32_t four[4] = {4, 8, 12, 8};
    slot<std::uint64_t> outs[2];
    slot<std::uint32_t> lengths[2];
    expect_layout_refused(bad, "layout", misaligned(&two[0]));
    expect_all_refused({
        {bad, "key_bytes", [&] { return mnnkv_layout_check(&layout_, misaligned(outs[0].get()), second_.get()); }},
        {bad, "value_bytes", [&] { return mnnkv_layout_check(&layout_, first_.get(), misaligned(outs[0].get())); }},
        {bad, "reserve_pairs",
         [&] { return mnnkv_kv_compact(&layout_, key(), value(), 0, misaligned(four), 1, 20, length_.get()); }},
        {bad, "new_len",
         [&] { return mnnkv_kv_compact(&layout_, key(), value(), 0, pair_, 1, 20, misaligned(lengths[0].get())); }},
        {bad, "bytes",
         [&] { return mnnkv_kv_release(&layout_, key(), value(), 0, count, misaligned(outs[0].get())); }},
    });
    EXPECT_TRUE(outs[0].untouched() && outs[1].untouched() && lengths[0].untouched() && lengths[1].untouched());
}

TEST_F(BadLayoutInput, NullIsLegalWhereThereIsNothingToPass) {
    EXPECT_TRUE(ok(mnnkv_kv_gather(&layout_, key(), value(), 3, 0, nullptr, nullptr, 0)));
    EXPECT_TRUE(ok(mnnkv_kv_scatter(&layout_, nullptr, nullptr, 0, 3, 0, key(), value())));
    EXPECT_TRUE(ok(mnnkv_kv_compact(&layout_, key(), value(), 9, nullptr, 0, 9, length_.get())));
    EXPECT_EQ(length_.value(), 9u);
    EXPECT_TRUE(cache_.untouched());
}

TEST_F(BadLayoutInput, DimensionsThatOverflowAreRefused) {
    constexpr std::uint32_t huge = UINT32_MAX;
    expect_change_refused(bad, "key", [](mnnkv_layout& l) { l.kv_heads = l.head_dim = l.max_tokens = huge; });
    expect_change_refused(bad, "key", [](mnnkv_layout& l) { l.head_dim = l.max_tokens = huge; });
    expect_change_refused(bad, "key", [](mnnkv_layout& l) { l.l_pack = l.h_pack = huge; });
    expect_change_refused(bad, "value", [](mnnkv_layout& l) {
        l.kv_heads = 1 << 20;
        l.h_pack = 1 << 20;
        l.flash_block = huge;
    });
    expect_change_refused(bad, "", [](mnnkv_layout& l) {
        l.kv_heads = l.head_dim = l.l_pack = l.h_pack = l.flash_block = l.max_tokens = huge;
    });
}

TEST_F(BadLayoutInput, RangesOutsideTheCacheAreRefused) {
    const struct {
        std::uint32_t begin, count;
    } ranges[] = {{0, 21}, {20, 1}, {13, 8}, {21, 0}, {UINT32_MAX, 1}, {1, UINT32_MAX}, {UINT32_MAX, UINT32_MAX}};
    for (const auto& r : ranges) {
        SCOPED_TRACE(testing::Message() << r.count << " tokens from " << r.begin);
        std::vector<bad_call> calls = {
            {bad, "max_tokens",
             [&] {
                 return mnnkv_kv_gather(&layout_, key(), value(), r.begin, r.count, keys_.data(), values_.data(),
                                        rows_);
             }},
            {bad, "max_tokens",
             [&] {
                 return mnnkv_kv_scatter(&layout_, keys_.data(), values_.data(), rows_, r.begin, r.count, key(),
                                         value());
             }},
            {bad, "max_tokens", [&] { return mnnkv_kv_move(&layout_, key(), value(), r.begin, 0, r.count); }},
            {bad, "max_tokens", [&] { return mnnkv_kv_move(&layout_, key(), value(), 0, r.begin, r.count); }},
            {bad, "max_tokens", [&] { return mnnkv_kv_zero(&layout_, key(), value(), r.begin, r.count); }},
            {bad, "max_tokens",
             [&] { return mnnkv_kv_release(&layout_, key(), value(), r.begin, r.count, first_.get()); }},
        };
        expect_all_refused(calls);
    }
}

TEST_F(BadLayoutInput, DenseBuffersMustHaveTheRightLength) {
    std::vector<bad_call> calls;
    for (const std::size_t cap : {std::size_t{0}, std::size_t{1}, rows_ / 2, rows_ - 1}) {
        calls.push_back({MNNKV_BUFFER_TOO_SMALL, "cap_each", [=] {
                             return mnnkv_kv_gather(&layout_, key(), value(), 0, count, keys_.data(), values_.data(),
                                                    cap);
                         }});
    }
    for (const std::size_t length : {std::size_t{0}, std::size_t{1}, rows_ - 1, rows_ + 1, 2 * rows_, SIZE_MAX}) {
        calls.push_back({bad, "len_each", [=] {
                             return mnnkv_kv_scatter(&layout_, keys_.data(), values_.data(), length, 0, count, key(),
                                                     value());
                         }});
    }
    expect_all_refused(calls);
    ASSERT_NE(mnnkv_kv_gather(&layout_, key(), value(), 0, count, keys_.data(), values_.data(), 1), MNNKV_OK);
    EXPECT_NE(std::string(mnnkv_last_error()).find(std::to_string(rows_)), std::string::npos)
        << "the text names the bytes needed: " << mnnkv_last_error();
}

TEST_F(BadLayoutInput, OverlappingBuffersAreRefused) {
    std::uint8_t *const k = key(), *const v = value(), *const out = values_.data();
    const std::size_t k_end = cache_.key.size() - 1, v_end = cache_.value.size() - 1;
    expect_all_refused({
        {bad, "overlap", [=] { return mnnkv_kv_gather(&layout_, k, v, 0, count, out, out, rows_); }},
        {bad, "overlap", [=] { return mnnkv_kv_gather(&layout_, k, v, 0, count, out, out + rows_ - 1, rows_); }},
        {bad, "overlap", [=] { return mnnkv_kv_gather(&layout_, k, v, 0, count, k, out, rows_); }},
        {bad, "overlap", [=] { return mnnkv_kv_gather(&layout_, k, v, 0, count, out, k + k_end, rows_); }},
        {bad, "overlap", [=] { return mnnkv_kv_gather(&layout_, k, v, 0, count, v + v_end, out, rows_); }},
        {bad, "overlap", [=] { return mnnkv_kv_scatter(&layout_, k, out, rows_, 0, count, k, v); }},
        {bad, "overlap", [=] { return mnnkv_kv_scatter(&layout_, out, v + v_end, rows_, 0, count, k, v); }},
    });
    // A cache whose K and V are one buffer, or share a byte.
    std::vector<bad_call> calls = calls_with(bad, "overlap", &layout_, k, k);
    calls.erase(calls.begin());  // gather only reads the cache
    expect_all_refused(calls);
    bytes both(k_end + 1 + v_end);
    calls = calls_with(bad, "overlap", &layout_, both.data(), both.data() + k_end);
    calls.erase(calls.begin());
    expect_all_refused(calls);
    EXPECT_TRUE(same(both, bytes(both.size())));
}

TEST_F(BadLayoutInput, BadEvictionsAreRefusedBeforeAByteMoves) {
    const struct {
        const char* what;
        std::uint32_t base;
        std::vector<std::int32_t> pairs;
        std::uint32_t kv_len;
        const char* word;
    } plans[] = {
        {"negative offset", 0, {-1, 2}, 20, "pair"},
        {"negative length", 0, {3, -2}, 20, "pair"},
        {"overlapping", 0, {2, 4, 5, 2}, 20, "pair"},
        {"descending", 0, {8, 2, 2, 2}, 20, "pair"},
        {"past the end", 0, {2, 2, 18, 3}, 20, "pair"},
        {"an empty pair past the end", 0, {2, 2, 21, 0}, 20, "pair"},
        {"a sum that overflows to something small", 0, {2, 2, INT32_MAX, INT32_MAX}, 20, "pair"},
        {"base past kv_len", 11, {}, 10, "base"},
        {"kv_len past max_tokens", 0, {2, 2}, 21, "max_tokens"},
    };
    for (const auto& plan : plans) {
        SCOPED_TRACE(plan.what);
        expect_all_refused({{bad, plan.word, [&] {
                                 return mnnkv_kv_compact(&layout_, key(), value(), plan.base, plan.pairs.data(),
                                                         plan.pairs.size() / 2, plan.kv_len, length_.get());
                             }}});
    }
    for (const std::size_t n_pairs : {SIZE_MAX, SIZE_MAX / 2, SIZE_MAX / 8 + 1}) {
        SCOPED_TRACE(n_pairs);
        expect_all_refused({{bad, "reserve_pairs", [&] {
                                 return mnnkv_kv_compact(&layout_, key(), value(), 0, pair_, n_pairs, 20,
                                                         length_.get());
                             }}});
    }
}

}  // namespace
