// Attention over quantised tokens by the C API, beside plain attention in f64 over the numbers that were appended.

#include "session_host.hpp"
#include "struct_sizes.hpp"

#include <cmath>
#include <thread>

namespace {

using namespace support;

constexpr std::uint32_t kv_heads = 2, heads = 6, dims = 64;
constexpr mnnkv_status bad = MNNKV_INVALID_ARGUMENT;

/// A host of one layer with a row-major cache of f32, [head][token][dim], that also keeps every token.
class Attend : public testing::Test {
protected:
    Attend() : layout_(mnnkv::make<mnnkv_layout>()), step_(mnnkv::make<mnnkv_attend>()), random_(3201) {
        layout_.key_dtype = layout_.value_dtype = MNNKV_DTYPE_F32;
        layout_.kv_heads = kv_heads;
        layout_.head_dim = dims;
        layout_.max_tokens = 700;
        layout_.l_pack = layout_.h_pack = layout_.flash_block = 1;
        key_.resize(std::size_t{kv_heads} * layout_.max_tokens * dims);
        value_.resize(key_.size());
        const std::string config = R"({"kv_quant": "k8v4"})";
        mnnkv_session_options options = mnnkv::make<mnnkv_session_options>();
        options.layers = options.lanes = 1;
        options.config_json = config.data();
        options.config_len = config.size();
        options.attends = 1;
        EXPECT_TRUE(ok(session_.create(options).code()));
        EXPECT_TRUE(session_.attends(0));
        step_.dtype = MNNKV_DTYPE_F32;
        step_.heads = heads;
        step_.head_dim = dims;
        step_.causal = 1;
    }

    mnnkv_cache cache() {
        mnnkv_cache cache = mnnkv::make<mnnkv_cache>();
        cache.layout = &layout_;
        cache.key = key_.data();
        cache.value = value_.data();
        cache.kv_len = kv_len_;
        return cache;
    }

    /// -1 to 1, from two dice.
    float number() { return random_.unit() - random_.unit(); }

    void begin(std::uint32_t rows) {
        mnnkv_cache now = cache();
        ASSERT_TRUE(ok(session_.begin(0, now).code()));
        kv_len_ = now.kv_len;
        ASSERT_LE(kv_len_ + rows, layout_.max_tokens);
        for (std::uint32_t row = 0; row < rows; ++row, ++kv_len_) {
            all_.emplace_back(2 * kv_heads * dims);
            for (float& x : all_.back()) {
                x = number();
            }
            for (std::uint32_t h = 0; h < kv_heads; ++h) {
                const std::size_t at = (std::size_t{h} * layout_.max_tokens + kv_len_) * dims;
                std::copy_n(&all_.back()[h * dims], dims, &key_[at]);
                std::copy_n(&all_.back()[(kv_heads + h) * dims], dims, &value_[at]);
            }
        }
        queries_.resize(std::size_t{rows} * heads * dims);
        for (float& x : queries_) {
            x = 6 * number();
        }
        output_.assign(queries_.size(), std::nanf(""));
        step_.rows = rows;
        step_.queries = queries_.data();
        step_.output = output_.data();
    }

    void attend(std::uint32_t parts) {
        std::vector<std::thread> threads;
        for (std::uint32_t part = 0; part < parts; ++part) {
            threads.emplace_back([=] { EXPECT_TRUE(ok(session_.attend(0, part, parts, cache(), step_).code())); });
        }
        for (std::thread& thread : threads) {
            thread.join();
        }
    }

    mnnkv_status try_end() {
        mnnkv_cache now = cache();
        return session_.end(0, heads, step_.rows, now).code();
    }

    void end() { ASSERT_TRUE(ok(try_end())); }

    /// The largest distance from attention over the numbers themselves.
    double distance() const {
        double most = 0;
        for (std::size_t at = 0; at < queries_.size(); at += dims) {
            const std::size_t row = at / dims / heads, kv = at / dims % heads / (heads / kv_heads);
            const std::size_t count = all_.size() - step_.rows + row + 1;
            std::vector<double> out(dims);
            double sum = 0;
            for (std::size_t t = 0; t < count; ++t) {
                double logit = 0;
                for (std::size_t d = 0; d < dims; ++d) {
                    logit += double{queries_[at + d]} * all_[t][kv * dims + d];
                }
                const double weight = std::exp(logit / 8);
                sum += weight;
                for (std::size_t d = 0; d < dims; ++d) {
                    out[d] += weight * all_[t][(kv_heads + kv) * dims + d];
                }
            }
            for (std::size_t d = 0; d < dims; ++d) {
                most = std::max(most, std::fabs(out[d] / sum - output_[at + d]));
            }
        }
        return most;
    }

    mnnkv::session session_;
    mnnkv_layout layout_;
    mnnkv_attend step_;
    dice random_;
    std::vector<float> key_, value_, queries_, output_;
    std::vector<std::vector<float>> all_;
    std::uint32_t kv_len_ = 0;
};

TEST_F(Attend, EveryTokenIsAttendedToOnAnyNumberOfThreads) {
    const std::uint32_t threads[] = {1, 2, 3, 8};
    for (std::uint32_t at = 0; at < 40; ++at) {
        const std::uint32_t rows = at % 10 == 0 ? 500 : at % 7 == 0 ? 5 : 1;
        ASSERT_NO_FATAL_FAILURE(begin(rows));
        attend(threads[at % 4]);
        // V of 4 bits is off by at most a thirtieth of its range of 2, and its mean by far less.
        EXPECT_LT(distance(), at == 0 ? 1e-5 : 0.04) << "step " << at;
        ASSERT_NO_FATAL_FAILURE(end());
    }
    const mnnkv_metrics metrics = metrics_of(session_, 0);
    EXPECT_EQ(metrics.quant_tokens, metrics.quant_block_count * 64);
    EXPECT_EQ(static_cast<double>(all_.size()), metrics.quant_tokens + kv_len_);
    EXPECT_LT(metrics.quant_bytes, metrics.quant_tokens * kv_heads * dims * 2 * 4 * 0.22) << "of f32";
}

TEST_F(Attend, LayersThatDoNotAttendAreTold) {
    mnnkv::session other;
    const std::string config = R"({"kv_quant": "k8v4"})";
    ASSERT_TRUE(ok(other.create(config.data(), config.size(), 1, 1).code()));
    EXPECT_FALSE(other.attends(0)) << "the host has not said that it attends";
    std::string warnings;
    ASSERT_TRUE(ok(other.warnings(warnings).code()));
    EXPECT_NE(warnings.find("kv_quant has no effect"), std::string::npos) << warnings;
}

TEST_F(Attend, StepsThatDoNotFitAreRefusedAndUnharmed) {
    ASSERT_NO_FATAL_FAILURE(begin(300));
    attend(2);
    ASSERT_NO_FATAL_FAILURE(end());
    ASSERT_NO_FATAL_FAILURE(begin(2));
    const mnnkv_attend good = step_;
    const mnnkv_cache now = cache();
    const auto tried = [&](void (*spoil)(mnnkv_attend&)) {
        mnnkv_attend step = good;
        spoil(step);
        return mnnkv_session_attend(session_.get(), 0, 0, 1, &now, &step);
    };
    const std::vector<bad_call> calls = {
        {bad, "queries", [&] { return tried([](mnnkv_attend& s) { s.queries = nullptr; }); }},
        {bad, "output", [&] { return tried([](mnnkv_attend& s) { s.output = nullptr; }); }},
        {bad, "heads", [&] { return tried([](mnnkv_attend& s) { s.heads = 5; }); }},
        {bad, "rows", [&] { return tried([](mnnkv_attend& s) { s.rows = 0; }); }},
        {bad, "dims", [&] { return tried([](mnnkv_attend& s) { s.head_dim = 32; }); }},
        {bad, "head_stride", [&] { return tried([](mnnkv_attend& s) { s.query_head_stride = 8; }); }},
        {bad, "stride", [&] { return tried([](mnnkv_attend& s) { s.output_row_stride = 4; }); }},
        {bad, "attend->output_head_stride is", [&] {
             return tried([](mnnkv_attend& s) { s.output_head_stride = s.output_row_stride = s.head_dim * 4; });
         }},
        {bad, "soft_cap", [&] { return tried([](mnnkv_attend& s) { s.soft_cap = -1; }); }},
        {bad, "scale", [&] { return tried([](mnnkv_attend& s) { s.scale = -1; }); }},
        {bad, "overlap", [&] { return tried([](mnnkv_attend& s) { s.sinks = static_cast<const float*>(s.output); }); }},
        {bad, "overlap", [&] {
             return tried([](mnnkv_attend& s) { s.mask = static_cast<const float*>(s.output), s.mask_tokens = 2; });
         }},
        {bad, "other rows", [&] {
             mnnkv_layout other = *now.layout;
             other.key_dtype = other.value_dtype = MNNKV_DTYPE_BF16;
             mnnkv_cache cache = now;
             cache.layout = &other;
             return mnnkv_session_attend(session_.get(), 0, 0, 1, &cache, &good);
         }},
        {bad, "part is 2 of 2", [&] { return mnnkv_session_attend(session_.get(), 0, 2, 2, &now, &good); }},
        {bad, "part is 0 of 0", [&] { return mnnkv_session_attend(session_.get(), 0, 0, 0, &now, &good); }},
        {bad, "layer is 1", [&] { return mnnkv_session_attend(session_.get(), 1, 0, 1, &now, &good); }},
        {bad, "0 of 2 rows", [&] { return try_end(); }},
    };
    expect_refused(calls);
    for (const float number : {std::nanf(""), INFINITY}) {
        queries_[dims + 3] = number;
        EXPECT_TRUE(refuses(bad, "element 3 of row 0 of query head 1", [&] {
            return mnnkv_session_attend(session_.get(), 0, 0, 1, &now, &good);
        }));
    }
    queries_[dims + 3] = 0.5f;
    for (const float number : {std::nanf(""), INFINITY}) {
        const float mask[] = {0, -INFINITY, 0, number};
        mnnkv_attend masked = good;
        masked.mask = mask;
        masked.mask_tokens = 2;
        EXPECT_TRUE(refuses(bad, "element 1 of row 1 of the mask", [&] {
            return mnnkv_session_attend(session_.get(), 0, 0, 1, &now, &masked);
        }));
    }
    ASSERT_TRUE(ok(session_.attend(0, 0, 2, now, good).code()));
    EXPECT_TRUE(refuses(bad, "part 0 of 2 is given twice", [&] { return session_.attend(0, 0, 2, now, good).code(); }));
    EXPECT_TRUE(refuses(bad, "part 1 of 2 has not attended", [&] { return try_end(); }));
    ASSERT_TRUE(ok(session_.attend(0, 1, 2, now, good).code()));
    EXPECT_LT(distance(), 0.04);
    ASSERT_NO_FATAL_FAILURE(end());
    EXPECT_TRUE(refuses(bad, "is not open", [&] { return session_.attend(0, 0, 1, now, good).code(); }));
}

TEST_F(Attend, TakesStructsOfOtherHeaders) {
    ASSERT_NO_FATAL_FAILURE(begin(3));
    const mnnkv_cache now = cache();
    std::uint32_t part = 0;
    check_sizes(step_, [&](const mnnkv_attend* step) {
        const mnnkv_status status = mnnkv_session_attend(session_.get(), 0, part, 64, &now, step);
        part += status == MNNKV_OK;
        return status;
    });
}

}  // namespace
