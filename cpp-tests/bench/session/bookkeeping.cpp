// What h2o costs beside attention: adding up scores, planning, evicting. 4,096 tokens, 32 query heads, 8 KV heads x
// 128, f16; one thread.
//
// Attention is timed with nobody looking on. Then it runs again and shows its tiles to the session; the calls for the 4
// query heads of a KV head are timed together, right after their tiles were made, less what the clock itself takes.

#include "decoder.hpp"

namespace bench {
namespace {

const std::uint32_t layers = 4;  // 64 MB: attention reads from memory
const std::uint32_t tokens = 4096;

struct Costs {
    double attention_us = 0, scores_us = 0, end_us = 0, plan_us = 0, evict_us = 0;  // per step, all layers
    double evicted = 0, physical = 0, call_ns = 0;
};

/// Bits of the nearest binary16, for softmax values: 0 to 1.
half narrow(float value) {
    std::uint32_t bits;
    value *= 1.92592994e-34f;  // 2^-112: the bias of binary16, small values become denormal
    std::memcpy(&bits, &value, sizeof bits);
    return static_cast<half>((bits + 0x1000u) >> 13);
}

class ScoredHost {
public:
    ScoredHost(const Content& content, const std::string& config, bool as_halves)
        : caches_(content, layers, tokens + 512), session_(config, layers, Decoder::group_size), as_halves_(as_halves) {
        for (std::uint32_t l = 0; l < layers; ++l) {
            session_.begin(l, caches_[l]);
            caches_.append(l, tokens);
            session_.end(l, caches_[l], Decoder::query_heads, tokens);
        }
    }

    Costs run(std::uint32_t steps) {
        Costs costs;
        double scores = 0, attention = 0;
        for (std::uint32_t step = 0; step < steps; ++step) {
            for (std::uint32_t l = 0; l < layers; ++l) {
                session_.begin(l, caches_[l]);
                caches_.append(l, 1);
                const double start = seconds();
                decoder_.attend(caches_[l]);
                attention += seconds() - start;
                scores += score(l);
                session_.end(l, caches_[l], Decoder::query_heads, 1);
            }
        }
        const mnnkv_metrics m = session_.metrics();
        costs.attention_us = attention * 1e6 / steps;
        costs.scores_us = scores * 1e6 / steps;
        costs.end_us = m.h2o_score_us / steps;
        costs.plan_us = zero_if_nan(m.h2o_plan_us) / steps;
        costs.evict_us = zero_if_nan(m.h2o_evict_us) / steps;
        costs.call_ns = scores / calls_ * 1e9;
        costs.evicted = zero_if_nan(m.h2o_total_evict_tokens);
        costs.physical = m.h2o_physical_tokens / layers;
        return costs;
    }

private:
    /// Shows a layer's tiles to the session; answers the seconds that took.
    double score(std::uint32_t layer) {
        double spent = 0;
        mnnkv_score_tile tiles[Decoder::group_size];
        half halves[Decoder::group_size][flash_block];
        decoder_.attend(caches_[layer], [&](std::uint32_t, std::uint32_t head, const mnnkv_score_tile& tile) {
            tiles[head] = tile;
            if (as_halves_) {
                const float* values = static_cast<const float*>(tile.data);
                std::transform(values, values + tile.tokens, halves[head], narrow);
                tiles[head].dtype = MNNKV_DTYPE_F16;
                tiles[head].data = halves[head];
            }
            if (head + 1 == Decoder::group_size) {
                const double start = seconds();
                for (std::uint32_t h = 0; h < Decoder::group_size; ++h) {
                    session_.scores(layer, h, tiles[h]);
                }
                spent += seconds() - start - clock_;
                calls_ += Decoder::group_size;
            }
        });
        return spent;
    }

    /// What reading the clock twice adds to a time.
    static double clock_cost() {
        const double start = seconds();
        for (int i = 0; i < 100000; ++i) {
            seconds();
        }
        return (seconds() - start) / 100001;
    }

    Caches caches_;
    Session session_;
    Decoder decoder_;
    const bool as_halves_;
    const double clock_ = clock_cost();
    double calls_ = 0;
};

void print(const char* name, const Costs& c) {
    std::printf("  %s: per step and layer attention %.0f us, scores %.1f (%.0f ns a call), end %.1f, plan %.1f,\n"
                "    evict %.1f; %.0f tokens evicted, %.0f left per layer\n",
                name, c.attention_us / layers, c.scores_us / layers, c.call_ns, c.end_us / layers, c.plan_us / layers,
                c.evict_us / layers, c.evicted, c.physical);
}

}  // namespace

void bookkeeping(const Content& content, Report& report) {
    const std::string never = "{" + h2o_config() + ", \"kv_h2o_trigger_min_tokens\": 1000000}";
    const Costs full = ScoredHost(content, never, false).run(32);
    const Costs halves = ScoredHost(content, never, true).run(32);
    const Costs evicting = ScoredHost(content, "{" + h2o_config() + "}", false).run(160);
    print("nothing evicted, f32 tiles", full);
    print("nothing evicted, f16 tiles", halves);
    print("3.5:1, 160 steps, f32 tiles", evicting);
    for (const Costs* c : {&full, &halves}) {
        const double share = 100 * (c->scores_us + c->end_us) / c->attention_us;
        report.claim(share <= 2, c == &full ? "scores of 4,096 tokens x 32 heads: 2 % of attention or less, f32 tiles"
                                            : "scores of 4,096 tokens x 32 heads: 2 % of attention or less, f16 tiles",
                     share, "%");
    }
    const double all = evicting.scores_us + evicting.end_us + evicting.plan_us + evicting.evict_us;
    report.claim(all <= 0.01 * evicting.attention_us,
                 "3.5:1: all bookkeeping 1 % of attention over what is left, or less",
                 100 * all / evicting.attention_us, "%");
    report.claim(all <= 0.01 * full.attention_us, "3.5:1: the same beside attention over the whole chat",
                 100 * all / full.attention_us, "%");
}

}  // namespace bench
