// A session releases the memory that it promises, and needs little itself. Linux only: other systems have no figure to
// compare with.
#ifdef __linux__

#include "memory.hpp"
#include "packed_model.hpp"
#include "report.hpp"
#include "score_tiles.hpp"

#include <chrono>
#include <memory>
#include <numeric>
#include <thread>

namespace {

using namespace support;

/// The most that a host's memory may grow, for caches of any size: stacks, codecs, bookkeeping.
constexpr long allowance = 4 * mega;
/// The same for each worker; timing decides how many encode at once.
constexpr long allowance_per_worker = 2 * mega;

/// A host with 64 MB of KV, f16 as on a phone: 32 layers of 2,048 tokens of 1 KB. All caches come from the system.
class ResidentHost : public testing::Test {
protected:
    static constexpr std::uint32_t layers = 32, tokens = 2048, prompt = 1920;
    static constexpr long token_bytes = 1024, kv_bytes = static_cast<long>(layers) * tokens * token_bytes;

    ResidentHost() : random_(1801), layout_(make_layout(pack_modes[7], 4, 64, tokens, 64)) {
        for (std::uint32_t i = 0; i < layers; ++i) {
            key_.emplace_back(new mapping(kv_bytes / layers / 2));
            value_.emplace_back(new mapping(kv_bytes / layers / 2));
        }
        rows_ = likely_words(prompt);
        kept_len_.assign(layers, 0);
        // The process's own memory is resident from here on.
        empty_ = resident_bytes();
        empty_ = resident_bytes();
    }

    /// Words as in many layers: few exponents, most mantissas.
    bytes likely_words(std::uint32_t count) {
        bytes words = random_.noise(static_cast<std::size_t>(count) * token_bytes / 2);
        for (std::size_t i = 0; i < words.size(); i += 2) {
            const std::uint8_t b = words[i + 1];
            words[i] &= 0xF8;
            words[i + 1] = static_cast<std::uint8_t>((b & 0x83) | (0x30 + ((b >> 2) & (b >> 4) & 3) * 4));
        }
        return words;
    }

    void make(const std::string& config) {
        ASSERT_TRUE(ok(session_.create(config.data(), config.size(), layers, 1).code()));
    }

    mnnkv_cache cache(std::uint32_t layer) {
        mnnkv_cache cache = mnnkv::make<mnnkv_cache>();
        cache.layout = &layout_;
        cache.key = key_[layer]->data();
        cache.value = value_[layer]->data();
        cache.kv_len = kept_len_[layer];
        return cache;
    }

    /// One step of one layer; samples memory after each call.
    void step(std::uint32_t layer, std::uint32_t count, bool scored) {
        mnnkv_cache given = cache(layer);
        mnnkv_step begun = mnnkv::make<mnnkv_step>();
        begun.rows = count;
        ASSERT_TRUE(ok(session_.begin(layer, given, begun).code()));
        look(layer);
        const std::size_t bytes_each = static_cast<std::size_t>(count) * token_bytes / 2;
        ASSERT_TRUE(ok(mnnkv_kv_scatter(&layout_, rows_.data(), rows_.data(), bytes_each, given.kv_len, count,
                                        given.key, given.value)));
        given.kv_len += count;
        appended_ += count;
        for (std::uint32_t head = 0; scored && head < 4; ++head) {
            const std::vector<float> row(given.kv_len, 1.0f);
            ASSERT_TRUE(ok(hand_over(session_, layer, 0, row, begun)));
        }
        look(layer);
        ASSERT_TRUE(ok(session_.end(layer, scored ? 4 : 0, count, given).code()));
        kept_len_[layer] = given.kv_len;
        look(layer);
    }

    /// The process's memory above that of a host without a session.
    long above_baseline() const { return resident_bytes() - empty_ - static_cast<long>(appended_) * token_bytes; }

    /// A sample takes longer than a step, so each step samples some of the layers in turn.
    void look(std::uint32_t layer) {
        if (layer % 8 == static_cast<std::uint32_t>(steps_) % 8) {
            most_above_ = std::max(most_above_, above_baseline());
        }
    }

    void expect_never_much_above(unsigned workers = 0) {
        const long allowed = allowance + workers * allowance_per_worker;
        EXPECT_LE(most_above_, kv_bytes / 50 + allowed) << "2 % of " << kv_bytes << " and " << allowed;
    }

    double metric(const char* name) { return report_of(session_).number(name); }

    dice random_;
    mnnkv_layout layout_;
    std::vector<std::unique_ptr<mapping>> key_, value_;
    bytes rows_;
    std::vector<std::uint32_t> kept_len_;
    long empty_ = 0, most_above_ = 0;
    std::uint64_t appended_ = 0;
    int steps_ = 0;
    mnnkv::session session_;
};

TEST_F(ResidentHost, LosesSixtyPercentByEviction) {
    make(R"({"kv_h2o_enable": true, "kv_h2o_layer_start": 0, "kv_h2o_target_lossy_ratio": 3.5,
             "kv_h2o_sink_tokens": 32, "kv_h2o_recent_tokens": 256, "kv_h2o_update_interval": 4})");
    for (int i = 0; i < 8; ++i) {
        for (std::uint32_t layer = 0; layer < layers; ++layer) {
            ASSERT_NO_FATAL_FAILURE(step(layer, i == 0 ? prompt : 1, i > 0));
        }
        ++steps_;
    }
    const long all = static_cast<long>(appended_) * token_bytes, gone = -above_baseline();
    EXPECT_GE(gone, all * 60 / 100);
    EXPECT_NEAR(metric("h2o_lossy_ratio"), 3.5, 0.3);
    EXPECT_GE(metric("h2o_released_bytes"), static_cast<double>(gone) * 0.95);
    EXPECT_LE(metric("h2o_resident_saved_bytes"), static_cast<double>(gone + allowance));
    expect_never_much_above();
}

TEST_F(ResidentHost, KeepsLittleOfAChatThatIsSavedAndOpened) {
    make("{}");
    const std::string path = temp_path("resident.kv");
    std::remove(path.c_str());
    std::vector<mnnkv_cache> caches;
    for (std::uint32_t layer = 0; layer < layers; ++layer) {
        ASSERT_NO_FATAL_FAILURE(step(layer, prompt, false));
        caches.push_back(cache(layer));
    }
    ASSERT_TRUE(ok(session_.save(path.c_str(), caches.data(), layers).code()) && ok(session_.open().code()));
    for (std::uint32_t layer = 0; layer < layers; ++layer) {
        key_[layer].reset();
        value_[layer].reset();
    }
    mnnkv_thread_trim();
    EXPECT_LE(resident_bytes() - empty_, allowance + allowance_per_worker * std::thread::hardware_concurrency());
    std::remove(path.c_str());
}

TEST_F(ResidentHost, TakesTheBytesOfQuantisedTokensAndLittleElse) {
    constexpr std::uint32_t some = layers / 2, rows = 16, heads = 2, dims = 128;
    layout_ = make_layout(pack_modes[7], heads, dims, tokens, 64);
    const std::string config = R"({"kv_quant": "k8v4"})";
    mnnkv_session_options options = mnnkv::make<mnnkv_session_options>();
    options.layers = some;
    options.attends = 1;
    options.config_json = config.data();
    options.config_len = config.size();
    ASSERT_TRUE(ok(session_.create(options).code()));
    std::vector<float> queries(std::size_t{rows} * heads * dims, 0.1f), output(queries.size());
    mnnkv_attend attention = mnnkv::make<mnnkv_attend>();
    attention.dtype = MNNKV_DTYPE_F32;
    attention.rows = rows;
    attention.heads = heads;
    attention.head_dim = dims;
    attention.causal = 1;
    attention.queries = queries.data();
    attention.output = output.data();
    for (std::uint32_t done = 0; done < prompt; done += rows) {
        for (std::uint32_t layer = 0; layer < some; ++layer) {
            mnnkv_cache given = cache(layer);
            ASSERT_TRUE(ok(session_.begin(layer, given).code()));
            ASSERT_TRUE(ok(mnnkv_kv_scatter(&layout_, rows_.data(), rows_.data(), rows * token_bytes / 2, given.kv_len, rows,
                                            given.key, given.value)));
            given.kv_len += rows;
            ASSERT_TRUE(ok(session_.attend(layer, 0, 1, given, attention).code()));
            ASSERT_TRUE(ok(session_.end(layer, heads, rows, given).code()));
            kept_len_[layer] = given.kv_len;
        }
    }
    const long raw = std::accumulate(kept_len_.begin(), kept_len_.end(), 0L) * token_bytes;
    EXPECT_LE(raw, some * 128 * token_bytes) << "the others are quantised";
    const long resident = resident_bytes() - empty_ - raw, codes = static_cast<long>(metric("quant_bytes"));
    EXPECT_LE(resident, codes + codes / 50 + allowance);
}

class ResidentStore : public ResidentHost, public testing::WithParamInterface<unsigned> {};

TEST_P(ResidentStore, LosesWhatTheRatioSaysAndHoldsIt) {
    constexpr std::uint32_t hot = 128;
    make(R"({"kv_lossless_enable": true, "kv_lossless_runtime_enable": true, "kv_lossless_runtime_mode": "store",
             "kv_lossless_front_n": 32, "kv_lossless_hot_sink_tokens": 0, "kv_lossless_hot_recent_tokens": 128,
             "kv_lossless_store_bootstrap_tokens": 0, "kv_lossless_block_tokens": 128,
             "kv_lossless_async_threads": )" + std::to_string(GetParam()) + "}");
    const auto step_all = [this](std::uint32_t count) {
        for (std::uint32_t layer = 0; layer < layers; ++layer) {
            ASSERT_NO_FATAL_FAILURE(step(layer, count, false));
            // Stands for the host's computation.
            std::this_thread::sleep_for(std::chrono::microseconds(GetParam() > 0 ? 500 : 0));
        }
        ++steps_;
    };
    ASSERT_NO_FATAL_FAILURE(step_all(prompt));
    // The prompt is submitted a group of blocks a step, or as fast as the workers encode.
    const double cold = static_cast<double>(layers) * (prompt - hot) * token_bytes;
    // A busy machine takes long; there is room for 128 tokens, and steps without tokens count as well.
    while (!(metric("h2o_lossless_raw_bytes") >= cold) && steps_ < 4000) {  // at first it is absent
        ASSERT_NO_FATAL_FAILURE(step_all(steps_ < 64 ? 1 : 0));
    }
    ASSERT_LT(steps_, 4000) << "cold tokens are never all compressed";
    ASSERT_NO_FATAL_FAILURE(step_all(1));
    long least = kv_bytes;
    for (int i = 0; i < 30; ++i) {
        ASSERT_NO_FATAL_FAILURE(step_all(1));
        least = std::min(least, -above_baseline());
    }
    const double ratio = metric("h2o_lossless_ratio");
    const double promised = (1 - 1 / ratio - 0.03) * cold;
    EXPECT_GT(ratio, 1.2);
    EXPECT_GE(static_cast<double>(least),
              promised - static_cast<double>(allowance + GetParam() * allowance_per_worker))
        << "ratio " << ratio << ", cold " << cold;
    expect_never_much_above(GetParam());
    std::uint64_t wrong = 0;
    for (std::uint32_t layer = 0; layer < layers; ++layer) {
        mnnkv_cache given = cache(layer);
        ASSERT_TRUE(ok(session_.begin(layer, given).code()));
        bytes key(rows_.size()), value(rows_.size());
        ASSERT_TRUE(ok(mnnkv_kv_gather(&layout_, given.key, given.value, 0, prompt, key.data(), value.data(),
                                       key.size())));
        wrong += (key != rows_) + (value != rows_);
    }
    EXPECT_EQ(wrong, 0u) << "and every byte is back";
}

INSTANTIATE_TEST_SUITE_P(Inline, ResidentStore, testing::Values(0u));
INSTANTIATE_TEST_SUITE_P(OneWorker, ResidentStore, testing::Values(1u));

}  // namespace

#endif
