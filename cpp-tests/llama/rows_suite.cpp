// Attention over rows of a host's own cache by the C API, beside attention in f64 over the numbers of their format.

#include "struct_sizes.hpp"

#include <array>
#include <cmath>
#include <thread>

namespace {

using namespace support;

constexpr std::uint32_t kv_heads = 2, heads = 6, dims = 64, rows = 3, tokens = 150;
constexpr std::size_t unit = 34, row = dims / 32 * unit;

/// One number per head: zeros, and the last one.
const float* numbers_to(float last) {
    static std::array<float, heads> numbers{};
    numbers.back() = last;
    return numbers.data();
}

/// K and V in q8_0, [token][head][dim]; blocks have the scale 1/64.
class Rows : public testing::Test {
protected:
    Rows() : step_(mnnkv::make<mnnkv_rows>()), random_(3303), output_(std::size_t{rows} * heads * dims) {
        for (std::vector<std::uint8_t>* const side : {&key_, &value_}) {
            side->resize(std::size_t{tokens} * kv_heads * row);
            for (std::uint8_t& byte : *side) {
                byte = random_.byte();
            }
            for (std::size_t at = 0; at < side->size(); at += unit) {
                (*side)[at] = 0x00;
                (*side)[at + 1] = 0x24;
            }
        }
        for (std::size_t i = 0; i < output_.size(); ++i) {
            queries_.push_back(random_.unit() - random_.unit());
        }
        step_.heads = heads;
        step_.rows = rows;
        step_.kv_heads = kv_heads;
        step_.tokens = tokens;
        step_.key_type = step_.value_type = MNNKV_ROWS_Q8_0;
        step_.key_dim = step_.value_dim = dims;
        step_.key = key_.data();
        step_.value = value_.data();
        step_.key_token_stride = step_.value_token_stride = kv_heads * row;
        step_.key_head_stride = step_.value_head_stride = row;
        step_.scale = 1.0f / 8;
        step_.queries = queries_.data();
        step_.output = output_.data();
        step_.query_head_stride = step_.output_head_stride = dims * 4;
        step_.query_row_stride = step_.output_row_stride = heads * dims * 4;
    }

    std::uint64_t scratch_bytes(std::uint32_t parts) {
        std::uint64_t bytes = 0;
        EXPECT_TRUE(ok(mnnkv_rows_scratch(&step_, parts, &bytes)));
        scratch_.assign(bytes / sizeof(float), std::nanf(""));
        return bytes;
    }

    void attend(std::uint32_t parts) {
        const std::uint64_t bytes = scratch_bytes(parts);
        output_.assign(output_.size(), std::nanf(""));
        const auto on_threads = [&](auto call) {
            std::vector<std::thread> threads;
            for (std::uint32_t part = 0; part < parts; ++part) {
                threads.emplace_back([=] { EXPECT_TRUE(ok(call(part))); });
            }
            for (std::thread& thread : threads) {
                thread.join();
            }
        };
        on_threads([&, bytes](std::uint32_t part) { return mnnkv_rows_attend(&step_, part, parts, scratch_.data(), bytes); });
        on_threads([&, bytes](std::uint32_t part) { return mnnkv_rows_merge(&step_, part, parts, scratch_.data(), bytes); });
    }

    static double number(const std::vector<std::uint8_t>& side, std::size_t token, std::size_t head, std::size_t dim) {
        const std::uint8_t byte = side[(token * kv_heads + head) * row + dim / 32 * unit + 2 + dim % 32];
        return static_cast<std::int8_t>(byte) / 64.0;
    }

    /// The largest distance of the output from attention in f64.
    double distance() const {
        double most = 0;
        for (std::size_t r = 0; r < rows; ++r) {
            for (std::size_t head = 0; head < heads; ++head) {
                const std::size_t at = (r * heads + head) * dims, kv_head = head / (heads / kv_heads);
                std::vector<double> sums(dims);
                double total = 0;
                for (std::size_t token = 0; token < tokens; ++token) {
                    double logit = 0;
                    for (std::size_t d = 0; d < dims; ++d) {
                        logit += queries_[at + d] * number(key_, token, kv_head, d) / 8;
                    }
                    const double weight = std::exp(logit);
                    total += weight;
                    for (std::size_t d = 0; d < dims; ++d) {
                        sums[d] += weight * number(value_, token, kv_head, d);
                    }
                }
                for (std::size_t d = 0; d < dims; ++d) {
                    most = std::max(most, std::fabs(output_[at + d] - sums[d] / total));
                }
            }
        }
        return most;
    }

    mnnkv_rows step_;
    dice random_;
    std::vector<float> queries_, output_, scratch_;
    std::vector<std::uint8_t> key_, value_;
};

TEST_F(Rows, EveryTokenIsAttendedToOnAnyNumberOfThreads) {
    for (const std::uint32_t parts : {1u, 2u, 3u, 8u, 64u}) {
        attend(parts);
        EXPECT_LT(distance(), 2e-5) << parts;
    }
}

TEST_F(Rows, StepsThatDoNotFitAreRefusedAndNothingIsWritten) {
    const std::uint64_t bytes = scratch_bytes(2);
    output_.assign(output_.size(), 7.0f);
    const auto tried = [&](void (*spoil)(mnnkv_rows&)) {
        mnnkv_rows step = step_;
        spoil(step);
        const mnnkv_status attended = mnnkv_rows_attend(&step, 0, 2, scratch_.data(), bytes);
        EXPECT_EQ(attended, mnnkv_rows_merge(&step, 0, 2, scratch_.data(), bytes));
        return attended;
    };
    const auto part = [&](std::uint32_t at, std::uint32_t of) {
        return mnnkv_rows_attend(&step_, at, of, scratch_.data(), bytes);
    };
    const std::vector<bad_call> calls = {
        {bad, "heads is 5", [&] { return tried([](mnnkv_rows& s) { s.heads = 5; }); }},
        {bad, "rows 0", [&] { return tried([](mnnkv_rows& s) { s.rows = 0; }); }},
        {bad, "kv_heads 0", [&] { return tried([](mnnkv_rows& s) { s.kv_heads = 0; }); }},
        {bad, "tokens is 0", [&] { return tried([](mnnkv_rows& s) { s.tokens = 0; }); }},
        {MNNKV_UNSUPPORTED, "key_type is 4", [&] { return tried([](mnnkv_rows& s) { s.key_type = 4; }); }},
        {MNNKV_UNSUPPORTED, "value_type is 0", [&] { return tried([](mnnkv_rows& s) { s.value_type = 0; }); }},
        {bad, "key_dim is 48", [&] { return tried([](mnnkv_rows& s) { s.key_dim = 48; }); }},
        {bad, "value_dim is 1056", [&] { return tried([](mnnkv_rows& s) { s.value_dim = 1056; }); }},
        {bad, "key_token_stride", [&] { return tried([](mnnkv_rows& s) { s.key_token_stride = UINT64_MAX; }); }},
        {bad, "value_head_stride", [&] { return tried([](mnnkv_rows& s) { s.value_head_stride = UINT64_MAX / 2; }); }},
        {bad, "key_token_stride is 0", [&] { return tried([](mnnkv_rows& s) { s.key_token_stride = 0; }); }},
        {bad, "value_head_stride is 1; ", [&] { return tried([](mnnkv_rows& s) { s.value_head_stride = 1; }); }},
        {bad, "head_stride", [&] { return tried([](mnnkv_rows& s) { s.query_head_stride = 8; }); }},
        {bad, "multiples of 4",
         [&] { return tried([](mnnkv_rows& s) { s.output_head_stride = s.output_row_stride = 2001; }); }},
        {bad, "output_head_stride is 256 and rows->output_row_stride 256",
         [&] { return tried([](mnnkv_rows& s) { s.output_head_stride = s.output_row_stride = dims * 4; }); }},
        {bad, "a row stride of 1536 or more, or a head stride of 2816 or more",
         [&] { return tried([](mnnkv_rows& s) { s.output_head_stride = dims * 4, s.output_row_stride = dims * 4 * (heads - 1); }); }},
        {bad, "scale is", [&] { return tried([](mnnkv_rows& s) { s.scale = INFINITY; }); }},
        {bad, "soft_cap is -1", [&] { return tried([](mnnkv_rows& s) { s.soft_cap = -1; }); }},
        {bad, "reserved", [&] { return tried([](mnnkv_rows& s) { s.reserved = 1; }); }},
        {bad, "key is NULL", [&] { return tried([](mnnkv_rows& s) { s.key = nullptr; }); }},
        {bad, "value is NULL", [&] { return tried([](mnnkv_rows& s) { s.value = nullptr; }); }},
        {bad, "queries is NULL", [&] { return tried([](mnnkv_rows& s) { s.queries = nullptr; }); }},
        {bad, "output is NULL", [&] { return tried([](mnnkv_rows& s) { s.output = nullptr; }); }},
        {bad, "mask_row_stride is 149; 150 or more expected",
         [&] { return tried([](mnnkv_rows& s) { s.mask = s.key, s.mask_row_stride = tokens - 1; }); }},
        {bad, "slopes[5] is NaN", [&] { return tried([](mnnkv_rows& s) { s.slopes = numbers_to(NAN); }); }},
        {bad, "sinks[5] is -inf", [&] { return tried([](mnnkv_rows& s) { s.sinks = numbers_to(-INFINITY); }); }},
        {bad, "overlap", [&] { return tried([](mnnkv_rows& s) { s.queries = s.output; }); }},
        {bad, "overlap", [&] { return tried([](mnnkv_rows& s) { s.sinks = s.output; }); }},
        {bad, "overlap", [&] { return mnnkv_rows_attend(&step_, 0, 1, step_.output, scratch_bytes(1)); }},
        {bad, "overlap", [&] { return mnnkv_rows_merge(&step_, 0, 1, step_.queries, scratch_bytes(1)); }},
        {bad, "part is 2 of 2", [&] { return part(2, 2); }},
        {bad, "part is 0 of 65", [&] { return part(0, 65); }},
        {bad, "scratch_bytes", [&] { return part(0, 3); }},
        {bad, "scratch", [&] { return mnnkv_rows_attend(&step_, 0, 2, nullptr, bytes); }},
        {bad, "rows is NULL", [&] { return mnnkv_rows_attend(nullptr, 0, 2, scratch_.data(), bytes); }},
    };
    expect_refused(calls);
    for (const float x : output_) {
        ASSERT_EQ(x, 7.0f);
    }
}

TEST_F(Rows, TakesStructsOfOtherHeaders) {
    const std::uint64_t bytes = scratch_bytes(1);
    check_sizes(step_, [&](const mnnkv_rows* step) { return mnnkv_rows_attend(step, 0, 1, scratch_.data(), bytes); });
}

}  // namespace
