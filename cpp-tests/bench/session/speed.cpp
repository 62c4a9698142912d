// Decode speed with h2o at 3.5 beside the same host without: attention only, since a model's matrix products take the
// same time in both. 4 layers, 32 query heads, 8 KV heads x 128, f16; one thread.

#include "decoder.hpp"

namespace bench {
namespace {

const std::uint32_t layers = 4;
const std::uint32_t steps = 128;

/// Seconds of each step: begin, append, attention with scores, end.
std::vector<double> run(const Content& content, std::uint32_t tokens, const std::string& config) {
    Caches caches(content, layers, tokens + steps);
    Session session(config, layers);
    Decoder decoder;
    for (std::uint32_t l = 0; l < layers; ++l) {
        session.begin(l, caches[l]);
        caches.append(l, tokens);
        session.end(l, caches[l], Decoder::query_heads, tokens);
    }
    std::vector<double> times;
    for (std::uint32_t step = 0; step < steps; ++step) {
        const double start = seconds();
        for (std::uint32_t l = 0; l < layers; ++l) {
            session.begin(l, caches[l]);
            caches.append(l, 1);
            session.on() ? decoder.attend(caches[l], session, l) : decoder.attend_only(caches[l], session, l);
            session.end(l, caches[l], Decoder::query_heads, 1);
        }
        times.push_back(seconds() - start);
    }
    return times;
}

double mean(const std::vector<double>& values) {
    double sum = 0;
    for (double value : values) {
        sum += value;
    }
    return sum / double(values.size());
}

}  // namespace

void speed(const Content& content, Report& report) {
    for (std::uint32_t tokens : {1024u, 4096u}) {
        const std::vector<double> base = run(content, tokens, "");
        const std::vector<double> h2o = run(content, tokens, "{" + h2o_config() + "}");
        std::printf("  %u tokens: baseline %.2f ms per step (median %.2f), h2o %.2f (median %.2f, longest %.2f);\n"
                    "    steps per second, mean over %u steps: %.2f times as many\n",
                    tokens, mean(base) * 1e3, quantile(base, 0.5) * 1e3, mean(h2o) * 1e3, quantile(h2o, 0.5) * 1e3,
                    quantile(h2o, 1) * 1e3, steps, mean(base) / mean(h2o));
        char text[128];
        std::snprintf(text, sizeof text, "%u tokens: h2o at 3.5 decodes faster than baseline (medians)", tokens);
        const double times = quantile(base, 0.5) / quantile(h2o, 0.5);
        report.claim(times > 1, text, times, "x");
    }
}

}  // namespace bench
