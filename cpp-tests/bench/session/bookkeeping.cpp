// The cost of h2o beside attention: scores, plans, evictions. 4,096 tokens, 32 query heads, 8 KV heads x 128, f16; one
// thread.
//
// The cost of scores is the difference between attention with and without them, measured in turns: a clock around the
// calls alone misses their effect on attention.

#include "decoder.hpp"

namespace bench {
namespace {

const std::uint32_t layers = 4;  // 64 MB: attention reads from memory
const std::uint32_t tokens = 4096;

struct Costs {
    double attention_us = 0, scores_us = 0, end_us = 0, plan_us = 0, evict_us = 0;  // per step and layer
    double physical = 0;
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
        : caches_(content, layers, tokens + 512), session_(config, layers), as_halves_(as_halves) {
        for (std::uint32_t l = 0; l < layers; ++l) {
            session_.begin(l, caches_[l]);
            caches_.append(l, tokens);
            session_.end(l, caches_[l], Decoder::query_heads, tokens);
        }
    }

    Costs run(std::uint32_t steps) {
        Costs costs;
        std::vector<double> attention, scores;
        for (std::uint32_t step = 0; step < steps; ++step) {
            for (std::uint32_t l = 0; l < layers; ++l) {
                session_.begin(l, caches_[l]);
                caches_.append(l, 1);
                double times[2];
                attend(l, false);  // caches are as warm for the first as for the second
                for (const bool scored : {step % 2 == 0, step % 2 != 0}) {
                    const double start = seconds();
                    attend(l, scored);
                    times[scored] = seconds() - start;
                }
                attention.push_back(times[0]);
                scores.push_back(times[1] - times[0]);
                session_.end(l, caches_[l], Decoder::query_heads, 1);
            }
        }
        const mnnkv_metrics m = session_.metrics();
        const double calls = double(steps);
        costs.attention_us = quantile(attention, 0.5) * 1e6;
        costs.scores_us = quantile(scores, 0.5) * 1e6;
        costs.end_us = m.h2o_score_us / calls / layers;
        costs.plan_us = zero_if_nan(m.h2o_plan_us) / calls / layers;
        costs.evict_us = zero_if_nan(m.h2o_evict_us) / calls / layers;
        costs.physical = m.h2o_physical_tokens / layers;
        return costs;
    }

private:
    /// Attention of a layer, with f16 tiles if as_halves_, summed if scored.
    void attend(std::uint32_t layer, bool scored) {
        half halves[Decoder::group_size * flash_block];
        decoder_.attend(caches_[layer], [&](const mnnkv_score_tile& floats) {
            mnnkv_score_tile tile = floats;
            if (as_halves_) {
                const float* values = static_cast<const float*>(floats.data);
                std::transform(values, values + Decoder::group_size * flash_block, halves, narrow);
                tile.dtype = MNNKV_DTYPE_F16;
                tile.data = halves;
            }
            if (scored) {
                session_.sums(layer, tile);
            }
        });
    }

    Caches caches_;
    Session session_;
    Decoder decoder_;
    const bool as_halves_;
};

void print(Table& table, const char* name, const Costs& c) {
    const auto us = [](double value) { return number("%.1f", value); };
    table.row({name, number("%.0f", c.attention_us), us(c.scores_us), us(c.end_us), us(c.plan_us), us(c.evict_us),
               number("%.0f", c.physical)});
}

}  // namespace

void bookkeeping(const Content& content, Report& report) {
    const std::string never = "{" + h2o_config() + ", \"kv_h2o_trigger_min_tokens\": 1000000}";
    const Costs sums = ScoredHost(content, never, false).run(32);
    const Costs half_sums = ScoredHost(content, never, true).run(32);
    const Costs evicting = ScoredHost(content, "{" + h2o_config() + "}", false).run(160);
    Table table("bookkeeping", "one thread, 4,096 tokens",
                {"per step and layer", "attention us", "scores us", "end us", "plan us", "evict us", "tokens left"});
    print(table, "nothing evicted, f32 block sums", sums);
    print(table, "nothing evicted, f16 block sums", half_sums);
    print(table, "3.5:1, 160 steps, f32 block sums", evicting);
    table.print();
    const auto share = [](const Costs& c) { return 100 * (c.scores_us + c.end_us) / c.attention_us; };
    report.claim(share(sums) <= 1, "scores take 1 % of attention, or less: f32 block sums",
                 share(sums), "%");
    report.claim(share(half_sums) <= 1, "scores take 1 % of attention, or less: f16 block sums",
                 share(half_sums), "%");
    const double all = evicting.scores_us + evicting.end_us + evicting.plan_us + evicting.evict_us;
    report.claim(all <= 0.01 * evicting.attention_us,
                 "3.5:1: all bookkeeping takes 1 % of attention over what is left, or less",
                 100 * all / evicting.attention_us, "%");
    report.claim(all <= 0.01 * sums.attention_us, "3.5:1: of attention over the whole chat",
                 100 * all / sums.attention_us, "%");
}

}  // namespace bench
